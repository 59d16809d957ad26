"""One guarded call in flight: asks and tells the guards in the fixed order, decides what comes next, never waits.

with execution:                          the whole call: record, event, fallback
    for wait in execution.lookup(): …    an answer from the cache, perhaps after somebody else's identical call
    for attempt in execution:            none if the cache answered; another one after a failure worth repeating
        with attempt:                    one try: settled with the guards when it is left, however it is left
            for wait in attempt.waits(): …
            execution.value = …
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from types import MethodType, TracebackType
from typing import Any

from holdfast import events
from holdfast.bus import Origin, Verdict, WatchedCall
from holdfast.calls import answering
from holdfast.calls.attempt import STEPS_IN, Attempt, Made
from holdfast.calls.recording import Callee, Record
from holdfast.category import ErrorCategory, classify
from holdfast.errors import Denied, ToolTimeout, in_words, printable
from holdfast.fleet.desk import Question
from holdfast.guards.retry import NOTE, note
from holdfast.hooks import HookContext, HookKind
from holdfast.policy import Policy
from holdfast.runs import Run, Write, inside
from holdfast.shape import DRIVES, Shape
from holdfast.tools.cache import Flight
from holdfast.tools.kit import Kit
from holdfast.tools.tool import Tool
from holdfast.tracking.records import ExecutionStatus
from holdfast.values.canonical import bind, encode, impersonal, owner
from holdfast.values.telling import likeness
from holdfast.waiting.threads import elsewhere, may_hold_a_lock
from holdfast.waiting.waits import Wait

_OUTSIDE: AbstractContextManager[None] = nullcontext()
ANSWERS = (Shape.FUNCTION, Shape.COROUTINE)  # calls with one answer, which can be kept


class Execution:
    """One call of a tool; *single* allows one attempt only."""

    __slots__ = (
        "as_task", "asked", "attempts", "call_id", "callee", "deadline", "driver", "fallback", "fell_back", "gate",
        "given", "left", "made", "origin", "policy", "record", "run", "threaded", "tool", "value", "waited", "watched",
        "yielded", "_args", "_arguments", "_cached", "_call", "_category", "_counted", "_delay", "_denied", "_error",
        "_flight", "_fn", "_forsaken", "_kit", "_kwargs", "_noted_at", "_over", "_same", "_silent", "_single", "_spent",
        "_to_tell", "_told", "_unsettled", "_whose", "_why",
    )  # fmt: skip

    def __init__(
        self,
        kit: Kit,
        tool: Tool,
        policy: Policy,
        run: Run | None,
        fn: Callable[..., Any] | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        single: bool = False,
        arguments: object = None,
    ) -> None:
        self.tool = tool
        self.policy = policy
        self.run = run
        self.record: Record | None = None  # its place in the run's log
        self.callee: Callee | None = None
        self.as_task = False  # its driver waits as a task
        self.call_id: int | str = next(kit.call_ids) if run is None else str(next(kit.call_ids))
        self.deadline = math.inf
        self.driver: Shape | None = None  # the shape that its driver gives the call
        self.value: Any = None
        self.fallback: str | None = None  # the tool to call instead
        self.fell_back = False  # `value` is the fixed answer for when the tool has none
        self.attempts = 0
        self.yielded = False  # a stream has given its first item: it is never begun again
        self.threaded = False  # its attempts are made in a thread
        self.left = False  # the consumer of a stream went away by itself
        self.made: Made | None = None
        self.gate: Callable[[], object] | None = None  # asked before the guards; may refuse
        self.asked: Question | None = None  # a question to the fleet that was asked already
        self.origin: Origin | None = None  # where it comes from, if from another program
        self.watched: WatchedCall | None = None
        self._kit = kit
        self._fn = self._whose = fn  # the second tells it apart: as the method that it is, where `sign` makes it one
        self._args = args
        self._kwargs = kwargs or {}
        self._single = single
        self.given = self._arguments = self._told = arguments  # by name, from who knows better than the function
        self._call: bytes | None = None
        self._same: tuple[Hashable, ...] | None = None
        self._flight: Flight | None = None
        self.waited = self._spent = self._delay = 0.0  # seconds for its turn, inside the tool, and to the next try
        self._noted_at: float | None = None  # when it succeeded, if that has nothing to tell but its duration
        self._cached = self._counted = self._over = self._forsaken = False  # the last: nobody could wait for anything
        self._to_tell: HookContext | None = None
        self._silent = False  # there is nothing to report: it is answered from the log, or was never a call
        self._denied: Denied | None = None
        self._error: BaseException | None = None
        self._category: ErrorCategory | None = None
        self._unsettled: Attempt | None = None
        self._why = ""

    def lookup(self) -> Iterable[Wait]:
        """Answer from the log or the cache if possible, else count the call with the run; gives what to wait for."""
        self.tool.use(self.policy)
        if self.policy.deadline is not None:  # a call begins here: a stream may be asked for long before its first item
            begun = self._kit.clock.monotonic() if self.made is None else self.made.begun
            self.deadline = begun + self.policy.deadline
        if self.run is not None:
            self._silent = True
            self._recall(self.run)  # not in a generator: none lets a StopIteration out
            if self._over:
                return ()
            self._silent = False
        return self._ask()

    def _ask(self) -> Iterator[Wait]:
        if self._kit.bus.watcher is not None:
            self.watched = self._kit.bus.watcher.call(self)
        try:
            if self._kit.hooks is not None or self.policy.cache is not None:
                yield from self._ask_first()
            if self._over:
                return
            if self.gate is not None:
                self.gate()
            if self.run is not None:
                self.run.limits.admit(self.tool.name, self.same(), self.policy)
                self._counted = True
        except Denied as denied:
            self._denied = denied
            raise

    def _ask_first(self) -> Iterator[Wait]:
        """Ask the hooks, then the cache."""
        hooks = self._kit.hooks
        if hooks is not None and hooks.has(HookKind.BEFORE_TOOL):
            context = self._context(HookKind.BEFORE_TOOL)
            yield from hooks.ask(context, as_task=self.as_task, deadline=self.deadline)
        if self.policy.cache is not None and self.made is None and self.driver in ANSWERS:
            yield from answering.ask(self)

    def __iter__(self) -> Iterator[Attempt]:
        while not self._over:
            yield Attempt(self)

    def sign(self) -> bytes | None:
        """The canonical arguments, None if they cannot be told; a method's object that has no value is none of them."""
        if self._call is None and self._fn is not None:
            self._call = encode(arguments := self.arguments())
            if self._call is None and self.told() is not arguments and isinstance(arguments, dict):
                self._call = encode(self.told())
                self._whose = MethodType(self._fn, next(iter(arguments.values())))
        return self._call

    def arguments(self) -> object:
        """The arguments by name."""
        if self._arguments is None and self._fn is not None:
            self._arguments = bind(self._fn, self._args, self._kwargs)
        return self._arguments

    def told(self) -> object:
        """The arguments as others are told them, and as a run knows the call by: a method's object is none of them."""
        if self._told is None and self._fn is not None:
            self._told = impersonal(self._fn, self.arguments())
        return self._told

    def same(self) -> Hashable | None:
        """What the loop guard knows it by: tool, arguments, and the object of a method."""
        if self._same is None and (sign := self.sign()) is not None:
            self._same = (self.tool.name, sign, *owner(self._whose))
        return self._same

    def __enter__(self) -> Execution:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, GeneratorExit) and (self._unsettled is not None or may_hold_a_lock()):
            self._forsaken = True
            elsewhere(self._end_forsaken, error)
            return False
        return self._end(error)

    def _end(self, error: BaseException | None) -> bool:
        self._error = None  # its traceback leads here
        if self.record is not None:
            self.record.step.leave()
        if self._silent:
            return error is not None and self._falls_back(error)
        if self._flight is not None:
            answering.end(self, self._flight, error)
        if error is not None and error is self._denied:
            status = self._report_denied(self._denied)
        else:
            status = self._report_end(error)
        falls_back = error is not None and self._falls_back(error)
        if self.watched is not None:
            self.watched.end(error, Verdict(status, self._category, self._cached, self._spent))
        return falls_back

    def _end_forsaken(self, error: BaseException) -> None:
        if self._unsettled is not None:
            self._unsettled.leave(error)
        self._end(error)

    # -- the run and the hooks -----------------------------------------------------------------------------------------

    @property
    def is_watched(self) -> bool:
        """Whether somebody will be told of it."""
        return self._kit.bus.watcher is not None

    @property
    def run_id(self) -> str | None:
        """The run it is in."""
        return None if self.run is None else self.run.id

    @property
    def is_stream(self) -> bool:
        """Whether it gives items, not one answer."""
        return self.driver not in ANSWERS and self.driver is not None

    def begun(self) -> Write | None:
        """The tool is about to be called; gives what must be on disk before that."""
        write = None
        if self.run is not None and self.record is not None:
            waits = not (self.policy.idempotent or self.policy.read_only or self.run.is_noted)
            write = self.record.start(self.told(), waits=waits)
            self.call_id = self.record.step.call_id
        if self._kit.bus.sinks:
            self._kit.bus.emit(events.TOOL_STARTED, self.tool.name, self.run_id, call_id=self.call_id)
        return write

    def inside(self) -> AbstractContextManager[None]:
        """Around the tool's own code: calls made in there are this call's, unless nobody will know it again."""
        around = _OUTSIDE
        if self.record is not None and not self.record.step.is_block:
            around = inside(self.record.step.key)
        if self._flight is not None:
            around = answering.leading(self._flight, around)
        return around if self.watched is None else self.watched.inside(around)

    def give(self, item: object) -> None:
        """A stream gives an item: it is never begun again."""
        self.yielded = True
        if self.record is not None:
            self.record.keep(item)

    @property
    def remembered(self) -> list[Any] | None:
        """The items of a stream that was exhausted before the run was resumed."""
        return self.record.items if self.record is not None and self._silent and self._over else None

    def after(self) -> Iterable[Wait]:
        """What to wait for when the call has ended, before the caller learns of it."""
        waits: Iterable[Wait] = ()
        if self.record is not None and self.record.write is not None:
            write, self.record.write = self.record.write, None
            write.result = self.value
            waits = (Wait(write=write),)
        if self._to_tell is not None and self._kit.hooks is not None:
            context, self._to_tell = self._to_tell, None  # which may hold an error whose traceback leads here
            waits = itertools.chain(waits, self._kit.hooks.tell(context, as_task=self.as_task))
        return waits

    def _recall(self, run: Run) -> None:
        """Answer from the log if the call was made before the run was resumed."""
        run.check()
        if self.record is not None:  # it is made again, on purpose
            return
        if self._fn is None:
            self.record = Record(run, None, run.steps.block(self.tool.name))
            return
        told = self.told()
        sign = self.sign() if told is self._arguments else encode(told)
        record = self.record = Record(run, self.callee, run.steps.step(self.tool.name, sign or likeness(told)))
        harmless = self.policy.idempotent or self.policy.read_only
        if record.step.outcome is None or (record.step.is_tentative and harmless):
            return
        record.step.repeated = True
        self.call_id = record.step.call_id
        if (failure := record.failure()) is not None:
            self.recount(failed=True)
            self._category = classify(failure)
            raise failure
        if record.load(is_stream=self.is_stream):
            self.recount(failed=False)
            self.value = record.value
            self._over = True
        elif not (harmless or run.repeats):
            raise record.doubt(self)

    def recount(self, *, failed: bool) -> None:
        """Count a call with its run that was made before; the cache's answers never counted."""
        if self.run is not None and self.record is not None and not self.record.step.is_cached:
            self.run.limits.recount(self.tool.name, self.same(), self.policy, failed=failed)

    def patiently(self, wait: Wait) -> Iterable[Wait]:
        """Wait as long as the run is wanted."""
        return (wait,) if self.run is None else self.run.patiently(wait)

    def _tell(self, kind: HookKind, **facts: object) -> None:
        """Have the hooks of *kind* told when the call has ended."""
        if self._kit.hooks is not None and self._kit.hooks.has(kind) and not self._forsaken:
            self._to_tell = self._context(kind, **facts)

    def _context(self, kind: HookKind, **facts: Any) -> HookContext:
        arguments = self.arguments()
        return HookContext(
            kind=kind,
            tool=self.tool.name,
            arguments=arguments if isinstance(arguments, Mapping) else {},
            run_id=self.run_id,
            call_id=self.call_id,
            key=(self.record.step.key or None) if self.record is not None else None,
            **facts,
        )

    # -- what comes after an attempt -----------------------------------------------------------------------------------

    def _again(self, category: ErrorCategory, error: BaseException, pause: float | None, now: float) -> bool:
        """Whether to try once more, and after which delay; `_why` says why not."""
        retry = self.policy.retry
        if self._single or not isinstance(error, Exception):
            return False
        if self.yielded:
            why: float | str = "the stream had begun"
        elif retry is None:
            why = "neither read-only nor idempotent" if category.retryable else ""
        else:
            why = retry.next_delay(category, self.attempts, pause, self.deadline - now, random.random)
            if isinstance(why, float):
                if self.tool.may_retry(retry.budget):
                    self._delay = why
                    self._error = error
                    return True
                why = "the tool's retry budget is used up"
        self._why = f"not repeated: {why}" if why else ""
        return False

    def _falls_back(self, error: BaseException) -> bool:
        """Whether somebody else answers instead; the statistics keep the original outcome."""
        fallback = self.policy.fallback
        if fallback is None or self.yielded or self._single or not isinstance(error, Exception):
            return False
        if error is self._denied:
            if not isinstance(error, STEPS_IN):
                return False
        elif self._category is None or not self._category.retryable:
            return False
        if fallback.tool is None:
            self.value = fallback.value
            self.fell_back = True
            return True
        other = self._kit.bound.get(fallback.tool)
        if other is None:
            why = "is not a tool that was decorated here"
        elif self.driver is not None and other.shape not in DRIVES[self.driver]:
            why = f"is {other.shape.value}: it cannot answer here"
        else:
            self.fallback = fallback.tool
            return True
        with suppress(AttributeError, TypeError):  # an error that is frozen takes no note
            error.add_note(f"{NOTE}the fallback {fallback.tool!r} {why}")
        return False

    # -- telling -------------------------------------------------------------------------------------------------------

    def _report_denied(self, denied: Denied) -> str:
        if self._counted and self.run is not None:
            self.run.limits.forget(self.tool.name)
        if self.attempts:  # it had begun, and then there was no thread for it
            self._tell_end(ExecutionStatus.CANCELLED, denied)
        elif self.record is not None:
            self.record.refuse()
        self._kit.tracker.denied(self.tool.name, type(denied).__name__)
        wait = denied.retry_after
        self._emit(
            events.TOOL_DENIED,
            kind=type(denied).__name__,
            reason=printable(denied.reason, 500),
            retry_after_ms=None if wait is None else math.ceil(wait * 1000),
        )
        self._tell(HookKind.ON_DENIED, error=denied, reason=denied.reason)
        return "denied"

    def _report_end(self, error: BaseException | None) -> str:
        category = self._category
        if (error is None and category is None) or self.left:
            status = ExecutionStatus.SUCCESS
        elif category is None or category is ErrorCategory.CANCELLED:
            status = ExecutionStatus.CANCELLED
        else:
            status = ExecutionStatus.TIMED_OUT if category is ErrorCategory.TIMEOUT else ExecutionStatus.FAILED
            if isinstance(error, Exception) and not self._cached:
                note(error, self.tool.name, self.attempts, self._why, self.waited)
        if self._counted and self.run is not None and status is not ExecutionStatus.CANCELLED:
            self.run.limits.settle(self._same, failed=status is not ExecutionStatus.SUCCESS)
        if self._noted_at is not None and status is ExecutionStatus.SUCCESS:
            self.tool.note(self._noted_at, self._spent)
        else:
            attempts = max(1, self.attempts)
            self._kit.tracker.record(
                self.tool.name, status, self._spent, self._cached, attempts=attempts, category=category
            )
        self._tell_end(status, error)
        if error is None or self.left:
            self._tell(HookKind.AFTER_TOOL, result=self.value)
        elif isinstance(error, Exception):
            self._tell(HookKind.ON_ERROR, error=error)
        return str(status)

    def _tell_end(self, status: ExecutionStatus, error: BaseException | None) -> None:
        bus, record, category = self._kit.bus, self.record, self._category
        if record is None and not bus.sinks:
            return  # nobody hears of it
        facts: dict[str, object] = {
            "status": str(status),
            "duration_ms": round(self._spent * 1000),
            "waited_ms": round(self.waited * 1000),
            "attempts": self.attempts,
            "cached": self._cached,
            "category": None if category is None else str(category),
            "error": None if error is None else in_words(error),
        }
        if bus.sinks:
            bus.emit(events.TOOL_ENDED, self.tool.name, self.run_id, call_id=self.call_id, **facts)
        if record is not None:
            record.end(self, facts, error)

    def _too_late(self, limit: float | None = None) -> ToolTimeout:
        self._category = ErrorCategory.TIMEOUT
        return ToolTimeout(self.tool.name, limit or self.policy.deadline or 0.0)

    def _emit(self, type: str, **payload: object) -> None:
        if self.run is None:
            self._kit.bus.emit(type, self.tool.name, None, call_id=self.call_id, **payload)
        else:
            self.run.tell(type, self.tool.name, call_id=self.call_id, **payload)
