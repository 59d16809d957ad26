"""A guarded call in the log of its run: found there if it was made before, written there when it is made.

Its start is on disk before the tool is called, unless calling again is safe; its end before the caller sees the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast import events
from holdfast.category import ErrorCategory, classify
from holdfast.errors import InDoubt, RunConflict
from holdfast.runs import LOST, Run, Step, Write, is_lasting, mark
from holdfast.values.failures import dump_error, is_error, load_error
from holdfast.values.memo import Memo
from holdfast.values.said import SAID

if TYPE_CHECKING:
    from holdfast.calls.execution import Execution

MOST_ITEMS = 10_000  # of a stream; with more it is not remembered


class Callee(Protocol):
    """The function that is called, as far as this module needs it."""

    @property
    def memo(self) -> Memo: ...
    def repeat(self, execution: Execution, step: Step | None) -> object: ...
    def fits(self, other: str, execution: Execution) -> bool: ...


class Record(msgspec.Struct, eq=False):
    """One call of a tool in the log of a run; a block of code has no callee, and is never answered from the log."""

    _run: Run
    _callee: Callee | None
    step: Step
    called: bool | None = None  # True if the tool is called, or is about to be; False if it was not after all
    value: Any = None  # the result from before the run was resumed
    items: list[Any] | None = []  # the items of a stream; None if they are too many or too large
    _size: int = 0  # bytes of the items in a memo
    _is_exact: bool = True  # the items can be given back exactly
    write: Write | None = None  # the write of the call's end, if the caller waits for it
    _started: bool = False

    # -- what is known from before -------------------------------------------------------------------------------------

    def failure(self) -> Exception | None:
        """The error that the call raised before the run was resumed, if it did."""
        outcome = self.step.outcome
        if outcome is None or not is_error(outcome):
            return None
        error = load_error(outcome)
        mark(error, self._run.id, self.step.key, self.step.name)
        self.step.mark_answered()
        return error

    def load(self, *, is_stream: bool) -> bool:
        """True if the earlier result can be given back exactly; it is then in `value`, a stream's items in `items`."""
        outcome = self.step.outcome
        if not outcome or self._callee is None:
            return False
        try:
            if is_stream:
                self.items, self.value = self._callee.memo.load_items(outcome)
            else:
                self.value = self._callee.memo.load(outcome)
        except LookupError:  # it cannot be rebuilt: the return annotation has changed, say
            return False
        self.step.mark_answered()
        return True

    def doubt(self, execution: Execution) -> InDoubt:
        """The error that lets the caller decide about a call in doubt."""
        step, callee = self.step, self._callee
        assert callee is not None
        error = InDoubt(step.name, step.call_id, step.key, _why(step))

        def answer(value: object) -> object:
            if (write := self._decide(execution, value)) is not None:
                write.settle()
            return value

        async def aanswer(value: object) -> object:
            if (write := self._decide(execution, value)) is not None:
                await write.asettle()
            return value

        def repeat() -> object:  # a new call if this one was decided about already
            return callee.repeat(execution, step if step.decide() else None)

        error.repeat = repeat
        error.answer = answer
        error.aanswer = aanswer
        step.doubt()
        return error

    def _decide(self, execution: Execution, value: object) -> Write | None:
        """Record *value* as the result of a call in doubt; for a stream, as its items."""
        if not self.step.decide():
            raise RunConflict(f"this call of {self.step.name!r} has been decided already")
        facts: dict[str, Any] = {
            "status": "success", "duration_ms": 0, "attempts": 0, "cached": False, "category": None, "answered": True,
        }  # fmt: skip
        if execution.is_stream:
            self.items, value = list(value), None  # type: ignore[call-overload]
        execution.recount(failed=False)
        self.step.mark_answered()
        return self._succeed(facts, value, is_stream=execution.is_stream)

    # -- what is written -----------------------------------------------------------------------------------------------

    def start(self, arguments: object, *, waits: bool) -> Write | None:
        """Write that the tool is about to be called; returns the write if the call *waits* until it is on disk."""
        self._started = True
        shown = self._run.log.store.payloads.shown(arguments) if arguments is not None else None
        write = self.step.start(shown)
        return write if waits else None

    def keep(self, item: object) -> None:
        """Keep a copy of an item of a stream: many streams give the same object again, and change it in between."""
        if self.items is None or self._callee is None:
            return
        memo = self._callee.memo
        if (kept := memo.dump(item)) is not None:
            copy = memo.load(kept)
        else:
            self._is_exact = False
            kept = bytes(self._run.log.store.payloads.shown(item))
            copy = msgspec.json.decode(kept)
        self._size += len(kept)
        self.items.append(copy)
        if len(self.items) > MOST_ITEMS or self._size > memo.limit:
            self.items = None

    def refuse(self) -> None:
        """Give the step back, since the tool is not called: the next identical call gets it."""
        self.step.give_back()

    def end(self, execution: Execution, facts: dict[str, Any], error: BaseException | None) -> None:
        """Write how the call ended, and what came of it."""
        if facts["cached"] or self.called:
            if error is None:
                value, is_stream = execution.value, execution.is_stream
                kept = execution.policy.remember and not self._run.is_noted
                self.write = self._succeed(facts, value, is_stream=is_stream, kept=kept)
            else:
                self._fail(facts, error, cut=execution.yielded)
            if self._run.is_noted:  # the calls of a noted run do not wait for the disk
                self.write = None
        elif self._started:
            write = self.step.end_uncalled(facts)
            if self.called is False and not self._run.is_noted:  # otherwise it was cut off, and no caller waits
                self.write = write
        else:
            id = None if self.step.key else execution.call_id  # None for a call in doubt, which this does not end
            self._run.log.emit(events.TOOL_ENDED, {"call_id": id, "tool": self.step.name, **facts})
            self.step.give_back()

    def _succeed(
        self, facts: dict[str, Any], value: object, *, is_stream: bool = False, kept: bool = True
    ) -> Write | None:
        shown, is_all = self._run.log.store.payloads.said(self.items if is_stream else value)
        memo = None
        if kept and self._callee is not None:
            if not is_stream:
                memo = SAID if is_all else self._callee.memo.dump(value)
            elif self.items is not None and self._is_exact:
                memo = self._callee.memo.dump_items(self.items, value)
        facts["result"] = shown
        return self.step.end(facts, memo)

    def _fail(self, facts: Mapping[str, Any], error: BaseException, *, cut: bool) -> None:
        if cut or not is_lasting(error):  # what the tool has done is unknown; the write is not waited for
            self.step.end(facts, None)
        else:
            assert isinstance(error, Exception)
            category = facts["category"]
            memo = dump_error(error, ErrorCategory(category) if category is not None else classify(error))
            self.write = self.step.end(facts, memo)
        if not self.step.is_block:  # a block is not a call; a call inside it marks its own error
            mark(error, self._run.id, self.step.key, self.step.name)


def _why(step: Step) -> str:
    """Why the caller must decide about a call."""
    if step.outcome != LOST:
        return "it ended before the run was interrupted, but its result can no longer be read"
    if step.is_unkept:
        return (
            "it was made before the run was interrupted, but its result was not kept: it is too large, of a kind that "
            "cannot be given back, or not to be remembered"
        )
    return "it began before the run was interrupted, and no result of it was kept"
