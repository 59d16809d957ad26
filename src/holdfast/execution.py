"""One guarded call in flight: asks and tells the guards in the fixed order, decides what comes next, never waits.

with execution:                          the whole call: record, event, fallback
    for wait in execution.lookup(): …    an answer from the cache, perhaps after somebody else's identical call
    for attempt in execution:            none if the cache answered; another one after a failure worth repeating
        with attempt:                    one try: settled with the guards when it is left, however it is left
            for wait in attempt.waits(): …
            execution.value = …
"""

from __future__ import annotations

import _thread
import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple

from holdfast import events
from holdfast.attempt import Attempt
from holdfast.cache import Flight, Hit
from holdfast.canonical import canonical
from holdfast.category import ErrorCategory, classify
from holdfast.errors import (
    BudgetExceeded,
    CircuitOpen,
    ConcurrencyFull,
    Denied,
    LoopDetected,
    RateLimited,
    ToolTimeout,
    in_words,
)
from holdfast.kit import Kit
from holdfast.policy import Policy
from holdfast.retry import NOTE, note
from holdfast.runs import Run
from holdfast.shape import DRIVES, Shape
from holdfast.threads import may_hold_a_lock
from holdfast.tools import Pass, Tool
from holdfast.tracker import ExecutionStatus
from holdfast.waiting import Wait

_log = logging.getLogger("holdfast")

STEPS_IN = (CircuitOpen, RateLimited, ConcurrencyFull)  # refusals for which a fallback may step in
OF_ITS_RUN = (LoopDetected, BudgetExceeded)  # refusals that say nothing to a caller in another run
ANSWERS = (Shape.FUNCTION, Shape.COROUTINE)  # calls with one answer, which can be kept


class Made(NamedTuple):
    """A first attempt that was made, and failed, before there was an execution: the quick path's."""

    error: BaseException
    passed: Pass
    begun: float


class Execution:
    """One call of a tool; *single* allows one attempt only, *threaded* says that attempts are made in a thread."""

    __slots__ = (
        "attempts", "call_id", "deadline", "driver", "fallback", "fell_back", "left", "made", "policy", "run",
        "threaded", "tool", "value", "waited", "yielded", "_args", "_cached", "_call", "_category", "_counted",
        "_delay", "_denied", "_error", "_flight", "_fn", "_kit", "_kwargs", "_over", "_single", "_spent",
        "_unsettled", "_why",
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
    ) -> None:
        self.tool = tool
        self.policy = policy
        self.run = run
        self.call_id = next(kit.call_ids)
        self.deadline = math.inf
        self.driver: Shape | None = None  # the shape that its driver gives the call
        self.value: Any = None
        self.fallback: str | None = None  # the tool to call instead
        self.fell_back = False  # `value` is the fixed answer for when the tool has none
        self.attempts = 0
        self.waited = 0.0
        self.yielded = False  # a stream has given its first item: it is never begun again
        self.threaded = False
        self.left = False  # the consumer of a stream went away by itself
        self.made: Made | None = None
        self._kit = kit
        self._fn = fn
        self._args = args
        self._kwargs = kwargs or {}
        self._single = single
        self._call: bytes | None = None
        self._flight: Flight | None = None
        self._spent = 0.0  # seconds inside the tool
        self._delay = 0.0
        self._cached = self._counted = self._over = False
        self._denied: Denied | None = None
        self._error: BaseException | None = None
        self._category: ErrorCategory | None = None
        self._unsettled: Attempt | None = None
        self._why = ""

    def lookup(self) -> Iterator[Wait]:
        """Answer from the cache if possible, else count the call with the run; yields what to wait for meanwhile."""
        self.tool.use(self.policy)
        if self.policy.deadline is not None:  # a call begins here: a stream may be asked for long before its first item
            begun = self._kit.clock.monotonic() if self.made is None else self.made.begun
            self.deadline = begun + self.policy.deadline
        if self.policy.cache is not None and self.made is None and self.driver in ANSWERS:
            yield from self._ask_cache()
        if self.run is not None and not self._over:
            wants_sign = self.policy.loop is not None
            call = (self.tool.name, sign) if wants_sign and (sign := self.sign()) is not None else None
            try:
                self.run.admit(self.tool.name, call, self.policy)
            except Denied as denied:
                self._denied = denied
                raise
            self._counted = True

    def __iter__(self) -> Iterator[Attempt]:
        while not self._over:
            yield Attempt(self)

    def sign(self) -> bytes | None:
        """The canonical arguments, worked out when first needed; None if they cannot be told, as those of a block."""
        if self._call is None and self._fn is not None:
            self._call = canonical(self._fn, self._args, self._kwargs)
        return self._call

    def __enter__(self) -> Execution:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, GeneratorExit) and (self._unsettled is not None or may_hold_a_lock()):
            _thread.start_new_thread(self._end_elsewhere, (error,))
            return False
        return self._end(error)

    def _end(self, error: BaseException | None) -> bool:
        self._error = None  # its traceback leads here
        self._end_flight(error)
        if error is not None and error is self._denied:
            self._report_denied(self._denied)
        else:
            self._report_end(error)
        return error is not None and self._falls_back(error)

    def _end_elsewhere(self, error: BaseException) -> None:
        """Settle and end in a thread of its own, where no lock is held."""
        try:
            if self._unsettled is not None:
                self._unsettled.leave(error)
            self._end(error)
        except Exception:
            _log.exception("a call of %s that was left to the garbage collector could not be ended", self.tool.name)

    # -- the cache -----------------------------------------------------------------------------------------------------

    def _ask_cache(self) -> Iterator[Wait]:
        cache, key, clock = self.tool.cache, self.sign(), self._kit.clock
        while cache is not None and key is not None:
            answer = cache.ask(key, clock.monotonic())
            if isinstance(answer, Hit):
                return self._answer(answer.value)
            flight, leads = answer
            if leads:
                self._flight = flight
                return None
            yield Wait(self.deadline, flight.follow())
            if flight.error is not None:
                self._cached = True
                self._denied = flight.error if isinstance(flight.error, Denied) else None
                self._category = classify(flight.error)
                raise flight.error
            if flight.landed:
                return self._answer(flight.value)
            if clock.monotonic() >= self.deadline:
                raise self._too_late()
        return None

    def _answer(self, value: object) -> None:
        self.value = value
        self._cached = self._over = True

    def _end_flight(self, error: BaseException | None) -> None:
        cache, flight, key = self.tool.cache, self._flight, self._call
        if cache is None or flight is None or key is None:
            return
        if error is None and self.policy.cache is not None:
            cache.land(key, flight, self.value, self._kit.clock.monotonic() + self.policy.cache.ttl)
        else:
            own = not isinstance(error, Exception) or isinstance(error, OF_ITS_RUN)
            cache.crash(key, flight, None if own else error)

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
            error.add_note(f"{NOTE}the fallback {fallback.tool!r} is not a tool that was decorated here")
        elif self.driver is not None and other.shape not in DRIVES[self.driver]:
            error.add_note(f"{NOTE}the fallback {fallback.tool!r} is {other.shape.value}: it cannot answer here")
        else:
            self.fallback = fallback.tool
        return self.fallback is not None

    # -- telling -------------------------------------------------------------------------------------------------------

    def _report_denied(self, denied: Denied) -> None:
        if self._counted and self.run is not None:
            self.run.forget(self.tool.name)
        self._kit.tracker.denied(self.tool.name)
        wait = denied.retry_after
        self._emit(
            events.TOOL_DENIED,
            kind=type(denied).__name__,
            reason=denied.reason,
            retry_after_ms=None if wait is None else math.ceil(wait * 1000),
        )

    def _report_end(self, error: BaseException | None) -> None:
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
            call = (self.tool.name, self._call) if self._call is not None else None
            self.run.settle(call, failed=status is not ExecutionStatus.SUCCESS)
        self._kit.tracker.record(
            self.tool.name, status, self._spent, self._cached, attempts=max(1, self.attempts), category=category
        )
        self._emit(
            events.TOOL_ENDED,
            status=str(status),
            duration_ms=round(self._spent * 1000),
            waited_ms=round(self.waited * 1000),
            attempts=self.attempts,
            cached=self._cached,
            category=None if category is None else str(category),
            error=None if error is None else in_words(error),
        )

    def _too_late(self) -> ToolTimeout:
        self._category = ErrorCategory.TIMEOUT
        return ToolTimeout(self.tool.name, self.policy.deadline or 0.0)

    def _emit(self, type: str, **payload: object) -> None:
        run = self.run.id if self.run is not None else None
        self._kit.bus.emit(type, self.tool.name, run, call_id=self.call_id, **payload)
