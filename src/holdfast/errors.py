"""The errors of Holdfast. Each says what happened and what to do; the facts are attributes too.

HoldfastError
├─ Denied                 a guard said no: the tool was not called
│  ├─ CircuitOpen         the tool failed too often and rests
│  ├─ RateLimited         too many calls in too short a time
│  ├─ ConcurrencyFull     too many calls at once
│  ├─ LoopDetected        the same call keeps failing in this run
│  └─ BudgetExceeded      the run has used up what it may spend
├─ ToolTimeout            the tool took too long; also a TimeoutError
├─ RunError               a durable run cannot do what was asked
│  ├─ RunNotFound         the store has no run of that id
│  ├─ RunConflict         another owner has the run, or its state does not allow this
│  ├─ RunDiverged         the resumed run did not ask for calls that the log says it made
│  ├─ InDoubt             a call may or may not have been made before the crash; the caller decides
│  ├─ LeaseLost           another process took the run over: this one may no longer write to it
│  └─ RecordedError       what a tool raised before the crash, raised again from the log
├─ StoreError             the store cannot be read or written
└─ ConfigError            a setting is wrong; also a ValueError

RunCancelled              unwinds a cancelled run; an asyncio.CancelledError, so that `except Exception` lets it pass
"""

from __future__ import annotations

import asyncio
import copyreg
import math
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, NoReturn

from holdfast.category import ErrorCategory
from holdfast.category.looking import chain, is_a, leaves


class HoldfastError(Exception):
    """The base of all errors of Holdfast, except `RunCancelled`."""


class Denied(HoldfastError):
    """A guard said no; the tool was not called.

    *retry_after* is the seconds until it is worth asking again, None if that is unknown.
    """

    category: ClassVar[ErrorCategory] = ErrorCategory.CIRCUIT_OPEN
    reason: str = "refused"
    advice: str = "Use another tool or go on without it."

    def __init__(self, tool: str, reason: str | None = None, retry_after: float | None = None) -> None:
        # `__new__` keeps the arguments; calling `Exception.__init__` as well would only make a refusal slower.
        self.tool = tool
        self.retry_after = retry_after
        if reason is not None:
            self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        # By its attributes and not by calling the class again: arguments given by keyword are not in `args`.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return f"{printable(self.tool)}: {self.reason}{self._when()}"

    def for_model(self) -> str:
        """A short text for the model: what is unavailable, until when, what to do instead."""
        when = self._when()
        return (
            f"The tool {printable(self.tool)!r} was not called: {self.reason}{when}. "
            f"Do not repeat this call{' before then' if when else ''}. {self.advice}"
        )

    def _when(self) -> str:
        if self.retry_after is None or not math.isfinite(self.retry_after):
            return ""
        return f"; available in about {math.ceil(self.retry_after * 10) / 10:g} s"


SWITCHED_OFF = "it is switched off by hand"  # the reason if a circuit is open and it is unknown until when


class CircuitOpen(Denied):
    """The tool's circuit is open: it failed too often and is left alone for a while, or it was switched off by hand."""

    reason = "it has failed repeatedly and is temporarily disabled"
    advice = "Use another tool, or tell the user that this one is down."


class RateLimited(Denied):
    """The tool's rate is used up, and the next token comes later than the call may wait."""

    category = ErrorCategory.RATE_LIMIT
    reason = "its rate limit is used up"
    advice = "Do other work first, or make fewer calls."


class ConcurrencyFull(Denied):
    """The tool already has as many running calls as it may have at once."""

    category = ErrorCategory.RESOURCE_EXHAUSTED
    reason = "too many calls of it are running"
    advice = "Wait for the running calls to finish, or do other work first."


class LoopDetected(Denied):
    """The same call, with the same arguments, keeps failing in this run."""

    category = ErrorCategory.POLICY_VIOLATION
    reason = "the same call with the same arguments keeps failing"
    advice = "Change the arguments, use another tool, or tell the user what is blocking you."


class BudgetExceeded(Denied):
    """The run, or the tool within it, has used up what it may spend."""

    category = ErrorCategory.RESOURCE_EXHAUSTED
    reason = "the run's budget is used up"
    advice = "Finish with what you have and report the result."


class ToolTimeout(HoldfastError, TimeoutError):
    """The tool did not answer within its time limit: *seconds*, for the last attempt."""

    category: ClassVar[ErrorCategory] = ErrorCategory.TIMEOUT

    def __init__(self, tool: str, seconds: float) -> None:
        self.tool = tool
        self.seconds = seconds
        super().__init__(tool, seconds)

    def __str__(self) -> str:
        return f"{printable(self.tool)}: no answer within {round(self.seconds, 3):g} s"


class RunError(HoldfastError):
    """A durable run cannot do what was asked; says nothing about any tool."""

    category: ClassVar[ErrorCategory] = ErrorCategory.CANCELLED


class RunNotFound(RunError):
    """The store has no run of that id."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(run_id)

    def __str__(self) -> str:
        return f"there is no run {printable(self.run_id)!r} in this store"


class RunConflict(RunError):
    """Another owner has the run, or its state does not allow what was asked."""


class RunDiverged(RunError):
    """The resumed run has not asked for calls that the log says it finished; *calls* names them."""

    def __init__(self, calls: tuple[str, ...]) -> None:
        self.calls = calls
        super().__init__(calls)

    def __str__(self) -> str:
        some = ", ".join(printable(call) for call in self.calls[:5])
        more = f" and {len(self.calls) - 5} more" if len(self.calls) > 5 else ""
        return f"the resumed run did not ask for {len(self.calls)} finished calls: {some}{more}"


class InDoubt(RunError):
    """A call began before the crash, and its result is unknown: it may have been made or not, so the caller decides.
    *why* says what is known.

    `repeat()` makes the call again with the same idempotency *key*, and returns its result (await it if the tool is a
    coroutine function). `answer(value)`, or `await aanswer(value)`, records *value* as the result without calling the
    tool. A copy of this error, in another process for example, has the attributes but cannot decide.
    """

    def __init__(self, tool: str, call_id: str, key: str, why: str) -> None:
        self.tool = tool
        self.call_id = call_id
        self.key = key
        self.why = why
        self.repeat: Callable[[], Any] = self._unbound
        self.answer: Callable[[Any], Any] = self._unbound
        self.aanswer: Callable[[Any], Awaitable[Any]] = self._unbound
        super().__init__(tool, call_id, key, why)

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {name: value for name, value in vars(self).items() if name not in ("repeat", "answer", "aanswer")}
        return type(self), self.args, facts

    def __str__(self) -> str:
        return (
            f"{printable(self.tool)}: {self.why}, and the tool is not declared idempotent or read-only; "
            f"look whether its effect is there (idempotency key {self.key}), then repeat() or answer(value)"
        )

    def _unbound(self, *_: object) -> NoReturn:
        raise RunConflict("this error was not raised by a call that can still be decided")


class LeaseLost(RunError):
    """The run has, or may have, another owner; this one can no longer make calls in it or write to it."""

    def __init__(self, run_id: str, why: str = "has another owner now") -> None:
        self.run_id = run_id
        self.why = why
        super().__init__(run_id, why)

    def __str__(self) -> str:
        return f"run {printable(self.run_id)!r} {self.why}: stop, nothing more is recorded from here"


class RecordedError(RunError):
    """An error that a tool raised before the run was interrupted, raised again from the log; *type* names its class."""

    def __init__(self, type: str, message: str, category: ErrorCategory) -> None:
        self.type = type
        self.message = message
        self.category = category  # type: ignore[misc]
        super().__init__(type, message, category)

    def __str__(self) -> str:
        return self.message  # unchanged, so that what the code makes of it, say a model's next prompt, is the same


class StoreError(HoldfastError):
    """The store cannot be read or written; *result* is the tool's result if only the write after the call failed."""

    category: ClassVar[ErrorCategory] = ErrorCategory.CANCELLED
    result: object = None


class RunCancelled(asyncio.CancelledError):
    """The run was cancelled; raised in the code that still runs in it. `except Exception` does not catch it."""

    def __init__(self, run_id: str = "", reason: str | None = None) -> None:
        self.run_id = run_id
        self.reason = reason
        super().__init__(run_id, reason)

    def __str__(self) -> str:
        which = f"run {printable(self.run_id)!r}" if self.run_id else "the run"
        return f"{which} was cancelled{f': {printable(self.reason)}' if self.reason else ''}"


class ConfigError(HoldfastError, ValueError):
    """A setting is wrong; the text says where, what, and what is allowed."""

    category: ClassVar[ErrorCategory] = ErrorCategory.INVALID_PARAMETERS
    problems: tuple[str, ...] = ()  # one line for each mistake, where several can be found at once


def is_refusal(error: BaseException) -> bool:
    """True if *error* is a `Denied`, was raised from one, or is a group of such: it says nothing about a tool."""
    found = leaves(error)
    return bool(found) and all(any(is_a(link, Denied) for link in chain(leaf)) for leaf in found)


def in_words(error: BaseException) -> str:
    """The type and the text of *error* on one line, safe to show; for a group, also of the first error in it."""
    return " ".join(in_lines(error).split())


def in_lines(error: BaseException) -> str:
    """The same with the line breaks of the text, for records that are read later.

    The text comes from the error's own code, which may fail.
    """
    try:
        kind = error.type.rpartition(".")[2] if is_a(error, RecordedError) else type(error).__name__
        said = ": ".join(filter(None, (kind, printable(str(error).replace("\r\n", "\n"), 500, kept=LINES))))
        if is_a(error, BaseExceptionGroup) and (found := leaves(error)):
            said = f"{said}; the first: {in_lines(found[0])}"
        return said
    except Exception:
        return type(error).__name__


LINES = "\n\t"  # characters that a text of several lines has, besides printable ones


def printable(name: str, limit: int = 120, *, kept: str = "") -> str:
    """*name* made safe for terminal or log: control characters are escaped, except those *kept*; a long one is cut."""
    if len(name) > limit:
        name = f"{name[: limit // 2]}…({len(name)} characters)"
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in name)


def in_digits(value: float) -> str:
    """A sum as people write it: with thousands separators, no power of ten, and at most six decimal places."""
    return f"{value:,.6f}".rstrip("0").rstrip(".")
