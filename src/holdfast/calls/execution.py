"""One guarded call in flight: asks and tells the guards in the fixed order, decides what comes next, never waits.

with execution:                          the whole call: record, event, fallback
    for wait in execution.lookup(): …    an answer from the cache, perhaps after another caller's identical call
    for attempt in execution:            none if the cache answered; one more after a failure worth repeating
        with attempt:                    one try: settled with the guards when it is left, however it is left
            for wait in attempt.waits(): …
            execution.value = …
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType
from typing import Any

from holdfast import events
from holdfast.bus import Origin, Verdict, WatchedCall
from holdfast.calls import answering, reporting
from holdfast.calls.attempt import STEPS_IN, Attempt, Made
from holdfast.calls.recording import Callee, Record
from holdfast.calls.subject import Subject
from holdfast.category import ErrorCategory, classify
from holdfast.category.looking import is_a
from holdfast.errors import Denied, ToolTimeout
from holdfast.fleet.question import Question
from holdfast.guards.retry import NOTE
from holdfast.hooks import HookContext, HookKind
from holdfast.policy import Policy
from holdfast.runs import Run, Write, inside
from holdfast.shape import DRIVES, Shape
from holdfast.stack import TO_CALL, check_room
from holdfast.tools.cache import Lead
from holdfast.tools.kit import Kit
from holdfast.tools.tool import Tool
from holdfast.waiting.threads import elsewhere, may_hold_a_lock
from holdfast.waiting.waits import Wait

_OUTSIDE: AbstractContextManager[None] = nullcontext()


class Execution:
    """One call of a tool; the modules of `calls` share its attributes."""

    __slots__ = (
        "as_task", "asked", "attempts", "cached", "call_id", "callee", "category", "counted", "deadline", "delay",
        "denied", "driver", "error", "fallback", "fell_back", "forsaken", "gate", "kit", "lead", "left", "made",
        "noted_at", "origin", "over", "policy", "record", "run", "silent", "spent", "subject", "threaded", "thrown",
        "to_tell", "tool", "unsettled", "value", "waited", "watched", "why", "yielded",
    )  # fmt: skip

    def __init__(
        self, kit: Kit, tool: Tool, policy: Policy, run: Run | None, subject: Subject, callee: Callee | None = None
    ) -> None:
        self.kit = kit
        self.tool = tool
        self.policy = policy
        self.run = run
        self.subject = subject
        self.callee = callee  # None for a block of code: one attempt, no answer to keep or to replace
        self.call_id: int | str = next(kit.call_ids) if run is None else str(next(kit.call_ids))

        # Set by the driver, or before it starts.
        self.driver: Shape | None = None  # the shape in which the call is made
        self.as_task = False  # the call waits as a task, not as a thread
        self.threaded = False  # attempts are made in a worker thread
        self.gate: Callable[[], object] | None = None  # called before the guards are asked; may raise `Denied`
        self.origin: Origin | None = None  # where the call comes from, if another program asked for it
        self.made: Made | None = None  # the first attempt, if the quick path made it
        self.asked: Question | None = None  # the question to the fleet, if the quick path asked it

        # The progress of the call.
        self.deadline = math.inf
        self.record: Record | None = None  # the call in the run's log
        self.lead: Lead | None = None  # set if the call leads: identical calls wait for its answer
        self.watched: WatchedCall | None = None
        self.attempts = 0
        self.over = False  # no further attempt is made
        self.delay = 0.0  # seconds until the next attempt
        self.error: BaseException | None = None  # of the last attempt, if there is a next one
        self.unsettled: Attempt | None = None  # an attempt that was left where no lock may be taken

        # The outcome of the call.
        self.value: Any = None
        self.yielded = False  # a stream has given its first item: it is never started again
        self.left = False  # the consumer ended the stream
        self.thrown: BaseException | None = None  # an error that the consumer throws into the stream
        self.cached = False
        self.denied: Denied | None = None
        self.category: ErrorCategory | None = None
        self.why = ""  # why the call was not repeated
        self.fallback: str | None = None  # the name of the tool to call instead
        self.fell_back = False  # `value` is the fixed value of the fallback
        self.waited = 0.0  # seconds spent waiting for its turn
        self.spent = 0.0  # seconds spent inside the tool
        self.noted_at: float | None = None  # when it succeeded, if a note of its duration is enough
        self.counted = False  # the limits of its run have counted it
        self.silent = False  # nothing is reported: the log answers, or it ended before it became a call
        self.forsaken = False  # the garbage collector ends the call: there is no caller to wait
        self.to_tell: HookContext | None = None

    def lookup(self) -> Iterable[Wait]:
        """Answer from the log or the cache if possible, else count the call with its run; returns what to wait for."""
        self.silent = True
        # Otherwise the quick path began the call, and the tool may use another policy by now.
        if self.made is None and self.asked is None:
            check_room(TO_CALL)
            self.tool.use(self.policy)
        if self.policy.deadline is not None:  # it starts here: a stream may be created long before its first item
            begun = self.kit.clock.monotonic() if self.made is None else self.made.begun
            self.deadline = begun + self.policy.deadline
        if self.run is not None:
            self._recall(self.run)  # not in `_ask`: a recorded StopIteration could not leave a generator
            if self.over:
                return ()
        self.silent = False
        return self._ask()

    def _ask(self) -> Iterator[Wait]:
        """Ask the hooks, the cache, the gate and the limits of the run."""
        kit, policy = self.kit, self.policy
        if kit.bus.watcher is not None:
            self.watched = kit.bus.watcher.call(self)
        try:
            if kit.hooks is not None and kit.hooks.has(HookKind.BEFORE_TOOL):
                context = reporting.context(self, HookKind.BEFORE_TOOL)
                yield from kit.hooks.ask(context, as_task=self.as_task, deadline=self.deadline)
            if policy.cache is not None and self.made is None and self.callee is not None and not self.is_stream:
                yield from answering.ask(self)
                if self.over:
                    return
            if self.gate is not None:
                self.gate()
            if self.run is not None:
                self.run.limits.admit(self.tool.name, self.subject.same(self.tool.name), policy)
                self.counted = True
        except Denied as denied:
            self.denied = denied
            raise

    def __iter__(self) -> Iterator[Attempt]:
        while not self.over:
            yield Attempt(self)

    def __enter__(self) -> Execution:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if is_a(error, GeneratorExit) and (self.unsettled is not None or may_hold_a_lock()):
            self.forsake(error)
            return False
        return self._end(error)

    def forsake(self, error: BaseException) -> None:
        """Have the call ended in a thread of its own, where no lock is held and nothing is waited for."""
        self.forsaken = True
        elsewhere(self._end_forsaken, error)

    def _end(self, error: BaseException | None) -> bool:
        self.error = None  # its traceback holds this call: a reference cycle
        if self.record is not None:
            self.record.step.leave()
        if self.silent:
            return error is not None and self._falls_back(error)
        if self.lead is not None:
            answering.end(self, self.lead, error)
        falls_back = error is not None and self._falls_back(error)
        if error is not None and error is self.denied:
            status = reporting.denied(self, self.denied)
        else:
            status = reporting.ended(self, error)
        if falls_back:
            self.kit.tracker.fell_back(self.tool.name)
        if self.watched is not None:
            self.watched.end(error, Verdict(str(status), self.category, self.cached, self.spent))
        return falls_back

    def _end_forsaken(self, error: BaseException) -> None:
        if self.unsettled is not None:
            self.unsettled.leave(error)
        self._end(error)

    # -- looked at -----------------------------------------------------------------------------------------------------

    @property
    def given(self) -> object:
        """The tool's arguments by name, if an adapter gave them (see `Subject`)."""
        return self.subject.given

    @property
    def is_watched(self) -> bool:
        """True if a watcher is told of the call."""
        return self.kit.bus.watcher is not None

    @property
    def run_id(self) -> str | None:
        """The id of the run that the call is in, if any."""
        return None if self.run is None else self.run.id

    @property
    def is_stream(self) -> bool:
        """True if the call gives items, not one answer."""
        return self.driver is not None and self.driver.is_stream

    @property
    def remembered(self) -> list[Any] | None:
        """The items of a stream that was exhausted before the run was resumed."""
        return self.record.items if self.record is not None and self.silent and self.over else None

    @property
    def substitute(self) -> str | None:
        """What answers in place of the tool, in words: the name of the fallback, or that it is a fixed value."""
        return "a fixed value" if self.fell_back else self.fallback

    def told(self) -> object:
        """The arguments as they are recorded and shown."""
        return self.subject.told()

    # -- around the tool -----------------------------------------------------------------------------------------------

    def begun(self) -> Write | None:
        """Report that the tool is about to be called; returns the write that must be on disk before that, if any."""
        write = None
        if self.run is not None and self.record is not None:
            waits = not (self.policy.idempotent or self.policy.read_only or self.run.is_noted)
            write = self.record.start(self.told(), waits=waits)
            self.call_id = self.record.step.call_id
        if self.kit.bus.sinks:
            self.kit.bus.emit(events.TOOL_STARTED, self.tool.name, self.run_id, call_id=self.call_id)
        return write

    def inside(self) -> AbstractContextManager[None]:
        """The context for the tool's own code: calls made in it belong to this call, unless it is a block."""
        around = _OUTSIDE
        if self.record is not None and not self.record.step.is_block:
            around = inside(self.record.step.key)
        if self.lead is not None:
            around = answering.leading(self.lead, around)
        return around if self.watched is None else self.watched.inside(around)

    def give(self, item: object) -> None:
        """Note that a stream gives *item*; from then on it is never started again."""
        self.yielded = True
        self.thrown = None
        if self.record is not None:
            self.record.keep(item)

    def hand_in(self, error: BaseException) -> BaseException:
        """Take an error that a stream's consumer throws, for the tool to handle; raise it if the consumer closes it."""
        if is_a(error, GeneratorExit):
            self.left = True
            raise error
        self.thrown = error
        return error

    def check(self) -> None:
        """Raise an error if the run of the call may not go on."""
        if self.run is not None:
            self.run.check()

    def patiently(self, wait: Wait) -> Iterable[Wait]:
        """Wait, but no longer than until the run is cancelled."""
        return (wait,) if self.run is None else self.run.patiently(wait)

    def after(self) -> Iterable[Wait]:
        """What to wait for when the call has ended, before the caller learns of it."""
        waits: Iterable[Wait] = ()
        if self.record is not None and self.record.write is not None:
            write, self.record.write = self.record.write, None
            write.returned = self.value
            waits = (Wait(write=write),)
        if self.to_tell is not None and self.kit.hooks is not None:
            context, self.to_tell = self.to_tell, None  # it may hold an error whose traceback holds this call
            waits = itertools.chain(waits, self.kit.hooks.tell(context, as_task=self.as_task))
        return waits

    # -- the run -------------------------------------------------------------------------------------------------------

    def _recall(self, run: Run) -> None:
        """Answer from the log if the call was made before the run was resumed."""
        run.check()
        if self.record is not None:  # the caller has decided to repeat a call in doubt
            return
        if self.callee is None:
            self.record = Record(run, None, run.steps.block(self.tool.name))
            return
        name, subject = self.tool.name, self.subject
        record = self.record = Record(run, self.callee, run.steps.step(name, subject.step(), shown=subject.shown))
        harmless = self.policy.idempotent or self.policy.read_only
        if record.step.outcome is None or (record.step.is_tentative and harmless):
            return
        record.step.repeated = True
        self.call_id = record.step.call_id
        if (failure := record.failure()) is not None:
            self.recount(failed=True)
            self.category = classify(failure)
            raise failure
        if record.load(is_stream=self.is_stream):
            self.recount(failed=False)
            self.value = record.value
            self.over = True
        elif not (harmless or run.repeats):
            raise record.doubt(self)

    def recount(self, *, failed: bool) -> None:
        """Count a call that was made before the run was resumed, unless the cache answered it: that never counts."""
        if self.run is not None and self.record is not None and not self.record.step.is_cached:
            name = self.tool.name
            self.run.limits.recount(name, self.subject.same(name), self.policy, failed=failed)

    # -- what comes after a failure ------------------------------------------------------------------------------------

    def again(self, category: ErrorCategory, error: BaseException, pause: float | None, now: float) -> bool:
        """True if the call is tried once more, after `delay` seconds; otherwise `why` says why not."""
        retry = self.policy.retry
        if self.callee is None or not is_a(error, Exception):
            return False
        if self.yielded:
            why: float | str = "the stream had begun"
        elif retry is None:
            why = "neither read-only nor idempotent" if category.retryable else ""
        else:
            why = retry.next_delay(category, self.attempts, pause, self.deadline - now, random.random)
            if isinstance(why, float):
                if self.tool.may_retry(retry.budget):
                    self.delay = why
                    self.error = error
                    return True
                why = "the tool's retry budget is used up"
        self.why = f"not repeated: {why}" if why else ""
        return False

    def too_late(self, limit: float | None = None) -> ToolTimeout:
        """The error of a call whose time was up before an attempt could be made."""
        self.category = ErrorCategory.TIMEOUT
        return ToolTimeout(self.tool.name, limit or self.policy.deadline or 0.0)

    def _falls_back(self, error: BaseException) -> bool:
        """True if the fallback answers instead; the statistics keep the original outcome."""
        fallback = self.policy.fallback
        if fallback is None or self.yielded or self.callee is None or not is_a(error, Exception):
            return False
        if error is self.denied:
            if not isinstance(error, STEPS_IN):
                return False
        elif self.category is None or not self.category.retryable:
            return False
        if fallback.tool is None:
            self.value = fallback.value
            self.fell_back = True
            return True
        other = self.kit.bound.get(fallback.tool)
        if other is None:
            why = "is not a tool that was decorated here"
        elif self.driver is not None and other.shape not in DRIVES[self.driver]:
            why = f"is {other.shape.value}: it cannot answer here"
        elif not self.callee.fits(fallback.tool, self):
            why = "does not take these arguments"
        else:
            self.fallback = fallback.tool
            return True
        with suppress(AttributeError, TypeError):  # an error that is frozen takes no note
            error.add_note(f"{NOTE}the fallback {fallback.tool!r} {why}")
        return False
