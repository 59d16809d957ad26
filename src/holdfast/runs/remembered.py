"""Steps: calls of any function whose result the run remembers. It is on disk before the caller gets it; the begin of a
step is only queued.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast import checks
from holdfast.category import classify
from holdfast.errors import ConfigError, in_lines
from holdfast.runs.blame import mark
from holdfast.runs.current import current_key, leave
from holdfast.runs.ending import is_lasting
from holdfast.runs.identity import STEP
from holdfast.runs.log import Write
from holdfast.runs.steps import Step
from holdfast.shape import is_unawaited
from holdfast.stack import TO_CALL, check_room
from holdfast.values.canonical import encode
from holdfast.values.failures import dump_error, is_error, load_error
from holdfast.values.memo import Memo
from holdfast.values.said import SAID
from holdfast.values.telling import likeness

if TYPE_CHECKING:
    from holdfast.runs.run import Run

T = TypeVar("T")


def remember(run: Run, name: str, fn: Callable[..., T], args: tuple[Any, ...]) -> T:
    """Call a function as a step of *run*, or return what it returned before."""
    memory = Remembered(run, name, fn, args)
    if memory.known:
        value: T = memory.answer()
        return value
    memory.start()
    try:
        current_key.set(memory.step.key)
        try:
            value = fn(*args)
        finally:
            current_key.set(memory.step.parent)  # a plain function ends where it began, so no token is needed
        if is_unawaited(value):
            raise ConfigError(f"step {name!r}: gives something to await; use astep")
    except BaseException as error:
        if (write := memory.failed(error)) is not None:
            write.settle(has_room=True)
        raise
    if (write := memory.succeeded(value)) is not None:
        write.settle(has_room=True)
    return value


async def aremember(run: Run, name: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call a coroutine function as a step of *run*, or return what it returned before."""
    memory = Remembered(run, name, fn, args)
    if memory.known:
        return memory.answer()
    memory.start()
    try:
        token = current_key.set(memory.step.key)
        try:
            value = fn(*args)
            if inspect.isawaitable(value):
                value = await value
        finally:
            leave(token)
    except BaseException as error:
        if (write := memory.failed(error)) is not None:
            await write.asettle()
        raise
    if (write := memory.succeeded(value)) is not None:
        await write.asettle()
    return value


class Remembered:
    """One step: what is known of it from before, its begin and its end."""

    __slots__ = ("known", "step", "_args", "_begun", "_fn", "_is_failed", "_run", "_value")

    def __init__(self, run: Run, name: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if not checks.is_name(name):
            checks.name("step", name)
        if not callable(fn):
            raise ConfigError(f"step {name!r}: {checks.shown(fn)} cannot be called")
        check_room(TO_CALL)
        if not run.is_open:
            run.check_open()
        run.check()
        self._run = run
        self._args = list(args)  # a list, since JSON has no tuples
        self._fn = fn
        self._value: Any = None
        self.step: Step = run.steps.step(name, encode(self._args) or likeness(args), kind=STEP)
        self.known = self.step.outcome is not None and self._look(self.step.outcome)

    def answer(self) -> Any:
        """Return the remembered result, or raise the remembered error."""
        self.step.mark_answered()
        if self._is_failed:
            mark(self._value, self._run.id, self.step.key, self.step.name)
            raise self._value
        return self._value

    def start(self) -> None:
        """Record that it has begun; no need to wait for the disk, since a step may be called again."""
        self._begun = self._run.clock.monotonic()
        arguments = self._run.log.store.payloads.shown(self._args) if self._args else None
        self.step.start(arguments)

    def succeeded(self, value: object) -> Write | None:
        """Record its result."""
        shown, is_all = self._run.log.store.payloads.said(value)
        memo = SAID if is_all else Memo(self._fn).dump(value)
        facts = self._facts("success")
        facts["result"] = shown
        if (write := self.step.end(facts, memo)) is not None:
            write.returned = value
        return write

    def failed(self, error: BaseException) -> Write | None:
        """Record its failure; a step that was only cut off or refused is called again when the run is resumed."""
        self.step.leave()
        category = classify(error)
        lasting = is_lasting(error)
        facts = {**self._facts("failed" if lasting else "cancelled"), "error": in_lines(error), "category": category}
        write = self.step.end(facts, dump_error(error, category) if isinstance(error, Exception) and lasting else None)
        mark(error, self._run.id, self.step.key, self.step.name)
        return write if lasting else None

    def _facts(self, status: str) -> dict[str, Any]:
        return {"status": status, "duration_ms": round((self._run.clock.monotonic() - self._begun) * 1000)}

    def _look(self, outcome: bytes) -> bool:
        """True if the remembered *outcome* can be returned or raised again."""
        if self.step.is_tentative:
            return False
        self.step.repeated = True
        self._is_failed = is_error(outcome)
        try:
            self._value = load_error(outcome) if self._is_failed else Memo(self._fn).load(outcome)
        except LookupError:  # the result is not known, or the return annotation has changed since: call the step again
            return False
        return True
