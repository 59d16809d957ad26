"""One try of a call: waits for its turn, is let in by the guards or refused, and is settled when it is left."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from holdfast import checks, events
from holdfast.calls import reporting
from holdfast.calls.nesting import is_within_itself
from holdfast.category import ErrorCategory, classify, retry_after
from holdfast.category.looking import is_a
from holdfast.errors import (
    BudgetExceeded,
    CircuitOpen,
    ConcurrencyFull,
    Denied,
    InDoubt,
    LeaseLost,
    LoopDetected,
    RateLimited,
    RunConflict,
    StoreError,
    ToolTimeout,
    in_lines,
    is_refusal,
)
from holdfast.fleet.question import Question
from holdfast.guards.line import Ticket
from holdfast.loops import running_loop
from holdfast.parts.permit import known
from holdfast.tools.verdicts import Pass, Refusal
from holdfast.waiting.threads import may_hold_a_lock
from holdfast.waiting.waits import Wait

if TYPE_CHECKING:
    from holdfast.calls.execution import Execution


# Errors that may leave a tool, but say nothing about it: they come from other calls, the run, the store, the process.
NEUTRAL = (InDoubt, LeaseLost, RunConflict, StoreError, KeyboardInterrupt, SystemExit, GeneratorExit)
WITHIN_ITSELF = f"{ConcurrencyFull.reason}, and one of them makes this call: it would wait for itself"
STEPS_IN = (CircuitOpen, RateLimited, ConcurrencyFull)  # refusals for which a fallback may step in
OF_ITS_POLICY = (*STEPS_IN, ToolTimeout)  # errors that calls with other settings need not share
OF_ITS_RUN = (LoopDetected, BudgetExceeded, InDoubt, LeaseLost, StoreError)  # errors that other runs do not share


class Made(msgspec.Struct, frozen=True):
    """A first attempt that the quick path made, without an execution, and that failed."""

    error: BaseException
    passed: Pass
    begun: float


class Attempt:
    """One try of a call."""

    __slots__ = ("begun", "_execution", "_pass", "_pause", "_question", "_reserved", "_ticket", "_told")

    def __init__(self, execution: Execution) -> None:
        self.begun = 0.0
        self._execution = execution
        self._ticket: Ticket | None = None
        self._pass: Pass | None = None
        self._question: Question | None = None  # to the fleet, not answered yet
        self._reserved: Pass | None = None  # a pass whose token is not due yet
        self._told: ErrorCategory | None = None
        self._pause: float | None = None

    def fail(self, category: ErrorCategory | str, retry_after: float | None = None) -> None:
        """Count the attempt as failed with *category* although it raises nothing, since the tool's answer says so.

        *retry_after* is how many seconds the tool asked to be left alone.
        """
        told = known(category)
        if retry_after is not None:
            checks.number("retry_after", retry_after, least=0)
        self._told = told
        self._pause = retry_after

    def waits(self) -> Iterator[Wait]:
        """What to wait for before the tool may be called; raises if it may not."""
        if self._execution.made is not None:
            raise self._take_up(self._execution.made)  # not in `_turn`: a StopIteration could not leave a generator
        return self._turn()

    def _turn(self) -> Iterator[Wait]:
        execution = self._execution
        clock, policy = execution.kit.clock, execution.policy
        now = clock.monotonic()
        if execution.delay:
            yield from self._wait(now, Wait(now + execution.delay))
            now = clock.monotonic()
        until = min(now + policy.max_wait, execution.deadline)
        while True:
            if now >= execution.deadline:
                raise execution.too_late() if execution.error is None else execution.error
            if execution.threaded and execution.kit.workers.full:
                why = "too many timed-out calls still run in threads"
                raise self._refuse(Refusal(ConcurrencyFull, math.inf, why=why))
            if self._ticket is not None:
                self._ticket.signal.rearm()
            asked = execution.asked or execution.tool.admit(now, policy, self._ticket, until - now)
            answer = asked if not isinstance(asked, Question) else (yield from self._ask(asked, now, until))
            if isinstance(answer, Pass):
                break
            if answer.ticket is None:  # `leave` gives up its place in line, if it has one
                raise self._refuse(answer)
            self._ticket = answer.ticket
            if execution.as_task:
                self._ticket.can_ask = running_loop().is_running
            signal = answer.ticket.signal if answer.wait == math.inf or answer.wakes else None
            yield from self._wait(now, Wait(min(until, now + answer.wait), signal))
            now = clock.monotonic()
        self._ticket = None
        self._pass = answer
        self.begun = clock.monotonic()
        execution.attempts += 1
        if execution.watched is not None:
            execution.watched.admitted()
        if execution.attempts == 1 and (write := execution.begun()) is not None:
            yield Wait(write=write)
            self.begun = clock.monotonic()  # the time of the write is not the tool's
        execution.check()  # while it waited, for whatever, the run may have been cancelled, and even be over
        if execution.record is not None:
            execution.record.called = True

    def _take_up(self, made: Made) -> BaseException:
        """Take over the attempt that the quick path made; returns its error."""
        self._execution.made = None
        self._execution.attempts += 1
        self._pass = made.passed
        self.begun = made.begun
        return made.error

    def _ask(self, question: Question, now: float, until: float) -> Generator[Wait, None, Pass | Refusal]:
        """Ask the fleet, unless the quick path has asked it; wait for the granted token if that is due only later."""
        execution = self._execution
        if execution.asked is None:
            self._question = question
            yield Wait(write=question)
            self._question = None
            now = execution.kit.clock.monotonic()
        execution.asked = None
        answer = execution.tool.judge(now, execution.policy, self._ticket, until - now, question)
        if isinstance(answer, Pass) and answer.held is not None and answer.held.wait > 0:
            self._ticket = None
            self._reserved = answer
            yield from self._wait(now, Wait(now + answer.held.wait))
            self._reserved = None
        return answer

    def _wait(self, now: float, wait: Wait) -> Iterator[Wait]:
        """Wait for the attempt's turn, but no longer than until the run is cancelled."""
        execution = self._execution
        yield from execution.patiently(wait)
        execution.waited += execution.kit.clock.monotonic() - now

    def exclude_seconds(self, seconds: float) -> None:
        """Take off *seconds* that the consumer of a stream took: they are not the tool's."""
        self.begun += seconds
        if self._execution.deadline < math.inf:
            self._execution.deadline += seconds

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if is_a(error, GeneratorExit) and may_hold_a_lock():
            self._execution.over = True
            self._execution.unsettled = self
            return False
        return self.leave(error)

    def held(self) -> Held:
        """The context that an async generator enters while it makes the attempt."""
        return Held(self)

    def forsake(self) -> None:
        """End the attempt and its call after their generator was dropped without being closed."""
        self._execution.unsettled = self
        self._execution.forsake(GeneratorExit())

    def leave(self, error: BaseException | None) -> bool:
        """Settle with the guards; True if the call is to be tried once more."""
        execution, passed = self._execution, self._pass
        if self._ticket is not None:
            execution.tool.limiting.leave_line(self._ticket)
        if (question := self._question or execution.asked) is not None:
            execution.tool.forsake(question, execution.policy)
        if self._reserved is not None:
            execution.tool.give_back(self._reserved)
        execution.over = True
        if execution.thrown is not None:
            execution.left = error is execution.thrown  # it left the tool again: the consumer ended the stream
            execution.thrown = None  # its traceback holds this call: a reference cycle
        if passed is None:  # refused, or cancelled while it waited
            if error is not None and error is not execution.error and not is_a(error, Denied):
                execution.category = self._verdict(error)
            return False
        now = execution.kit.clock.monotonic()
        execution.spent += now - self.begun
        if error is None and self._told is None and execution.attempts == 1:
            if execution.tool.has_nothing_to_tell(now, passed, self.begun):
                execution.noted_at = now
                return False
        return self._settle(passed, error, now)

    def _settle(self, passed: Pass, error: BaseException | None, now: float) -> bool:
        execution, pause, sign = self._execution, self._pause, None
        category: ErrorCategory | None = ErrorCategory.CANCELLED
        try:
            category = self._verdict(error)
            execution.category = category if error is None or not is_refusal(error) else classify(error)
            if pause is None and category is not None and category.retryable and error is not None:
                pause = retry_after(error, now=execution.kit.clock.time())
            if category is not None and (breaker := execution.policy.breaker) is not None:
                sign = execution.subject.canonical_bytes() if breaker.distinct_arguments else None
        finally:  # even without a verdict: what the attempt holds comes back
            execution.tool.settle(now, passed, self.begun, category, pause=pause, sign=sign, error=error)
        if category is None or error is None or category is ErrorCategory.CANCELLED:
            return False
        again = execution.again(category, error, pause, now)
        execution.over = not again
        delay = execution.delay if again else None
        if execution.watched is not None:
            execution.watched.failed(error, category, delay)
        reporting.emit(
            execution,
            events.TOOL_ATTEMPT_FAILED,
            attempt=execution.attempts,
            category=str(category),
            error=in_lines(error),
            duration_ms=round((now - self.begun) * 1000),
            retry_in_ms=None if delay is None else round(delay * 1000),
        )
        return again

    def limit(self, now: float) -> float | None:
        """How many seconds the tool may take from *now* to its answer, or to a stream's next item."""
        timeout, left = self._execution.policy.timeout, self._execution.deadline - now
        if left == math.inf:
            return timeout
        return left if timeout is None else min(timeout, left)

    def _refuse(self, refusal: Refusal) -> BaseException:
        """The refusal to raise; if the tool has failed before in this call, that failure instead."""
        execution, reason = self._execution, refusal.why
        if reason is None and refusal.kind is ConcurrencyFull and is_within_itself(execution.tool):
            reason = WITHIN_ITSELF
        if execution.error is not None:
            execution.why = f"not repeated: {reason or refusal.kind.reason}"
            return execution.error
        wait = refusal.wait if refusal.wait < math.inf else None
        execution.denied = refusal.kind(execution.tool.name, reason, wait)
        return execution.denied

    def _verdict(self, error: BaseException | None) -> ErrorCategory | None:
        """What the attempt says about the tool: None is a success, cancelled says nothing about it."""
        if error is None:
            return self._told
        if self._execution.left:
            return None
        if is_a(error, NEUTRAL) or is_refusal(error):
            return ErrorCategory.CANCELLED
        return classify(error)


class Held:
    """Ends the attempt of an async generator that is dropped unclosed, as happens once its event loop is closed."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Attempt) -> None:
        self._attempt: Attempt | None = attempt

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._attempt = None

    def __del__(self) -> None:
        if self._attempt is not None and not sys.is_finalizing():
            self._attempt.forsake()
