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
│  ├─ RunConflict         somebody else has the run, or it is not in a state for this
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
    """Whatever Holdfast itself raises."""


class Denied(HoldfastError):
    """A guard said no; the tool was not called."""

    category: ClassVar[ErrorCategory] = ErrorCategory.CIRCUIT_OPEN
    reason: str = "refused"
    advice: str = "Use another tool or go on without it."

    def __init__(self, tool: str, reason: str | None = None, retry_after: float | None = None) -> None:
        # The arguments are kept by `__new__`; calling up to `Exception.__init__` would only make a refusal dearer.
        self.tool = tool
        self.retry_after = retry_after
        if reason is not None:
            self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        # By its facts and not by calling it again: what was given by keyword is not among the arguments.
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


HELD = "it is switched off by hand"  # why a circuit is open of which nobody knows until when


class CircuitOpen(Denied):
    """The tool failed too often; its circuit is open until it has rested."""

    reason = "it has failed repeatedly and is temporarily disabled"
    advice = "Use another tool, or tell the user that this one is down."


class RateLimited(Denied):
    """The tool's rate is used up, and the wait is longer than the call may wait."""

    category = ErrorCategory.RATE_LIMIT
    reason = "its rate limit is used up"
    advice = "Do other work first, or make fewer calls."


class ConcurrencyFull(Denied):
    """As many calls of the tool as may run at once are running."""

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
    """The tool took longer than it may."""

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
    """Somebody else has the run, or it is not in a state in which this can be done."""


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
    """A call began before the crash and no result is known: it may have been made or not, so the caller decides; *why*
    says if it was.

    `repeat()` makes it again, with the same idempotency *key*, and gives its result (of a coroutine function: to be
    awaited); `answer(value)`, or `aanswer`, takes *value* for its result without calling. A copy of it, in another
    process say, has the facts alone.
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
    """The run has, or may have, another owner; whatever this one would do in it is refused."""

    def __init__(self, run_id: str, why: str = "has another owner now") -> None:
        self.run_id = run_id
        self.why = why
        super().__init__(run_id, why)

    def __str__(self) -> str:
        return f"run {printable(self.run_id)!r} {self.why}: stop, nothing more is recorded from here"


class RecordedError(RunError):
    """What a tool raised before the run was interrupted, told again from the log."""

    def __init__(self, type: str, message: str, category: ErrorCategory) -> None:
        self.type = type
        self.message = message
        self.category = category  # type: ignore[misc]
        super().__init__(type, message, category)

    def __str__(self) -> str:
        return self.message  # as it was: what the code makes of the text, a model's next prompt say, is the same again


class StoreError(HoldfastError):
    """The store cannot be read or written; *result* is the tool's, where only the write after it failed."""

    category: ClassVar[ErrorCategory] = ErrorCategory.CANCELLED
    result: object = None


class RunCancelled(asyncio.CancelledError):
    """The run was cancelled; whatever still runs in it ends with this."""

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
    problems: tuple[str, ...] = ()  # one line a mistake, where there may be several


def is_refusal(error: BaseException) -> bool:
    """Whether *error* is a refusal of ours, was raised from one, or is a group of such: no word about a tool."""
    found = leaves(error)
    return bool(found) and all(any(is_a(link, Denied) for link in chain(leaf)) for leaf in found)


def in_words(error: BaseException) -> str:
    """The kind and the text of *error* on one line, safe to show, and of a group the first that is none."""
    return " ".join(in_lines(error).split())


def in_lines(error: BaseException) -> str:
    """The same with the lines that the text has, for those who read it later.

    Whoever wrote the error wrote its text, which may fail.
    """
    try:
        kind = error.type.rpartition(".")[2] if is_a(error, RecordedError) else type(error).__name__
        said = ": ".join(filter(None, (kind, printable(str(error).replace("\r\n", "\n"), 500, kept=LINES))))
        if is_a(error, BaseExceptionGroup) and (found := leaves(error)):
            said = f"{said}; the first: {in_lines(found[0])}"
        return said
    except Exception:
        return type(error).__name__


LINES = "\n\t"  # what a text of several lines is made of, beside what is printed


def printable(name: str, limit: int = 120, *, kept: str = "") -> str:
    """*name* safe to show on a terminal or in a log: control characters but those *kept* escaped, a long one cut."""
    if len(name) > limit:
        name = f"{name[: limit // 2]}…({len(name)} characters)"
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in name)


def in_digits(value: float) -> str:
    """A sum as people read it: thousands apart, no power of ten, and no more digits than anybody spends."""
    return f"{value:,.6f}".rstrip("0").rstrip(".")
