"""`ToolResilience`: admission, fault isolation and accounting in one place, for callers with their own loop."""

from __future__ import annotations

import math
from enum import StrEnum

from holdfast import checks
from holdfast.category import ErrorCategory, retry_after
from holdfast.clock import Clock, fits
from holdfast.errors import ConfigError, RateLimited
from holdfast.guards.rate import Priority, priority_of
from holdfast.loops import asleep
from holdfast.parts.breaker import BreakerSnapshot, CircuitBreaker
from holdfast.parts.limiters import AdaptiveRateLimiter, RateLimiter
from holdfast.parts.permit import Permit


class CallOutcome(StrEnum):
    """How a call ended, for callers that keep no permit."""

    SUCCESS = "success"
    INVALID_ARGUMENT = "invalid_argument"
    EXECUTION_ERROR = "execution_error"
    TIMED_OUT = "timed_out"
    RATE_LIMITED = "rate_limited"
    CANCELLED = "cancelled"


_CATEGORIES = {
    CallOutcome.INVALID_ARGUMENT: ErrorCategory.INVALID_PARAMETERS,
    CallOutcome.EXECUTION_ERROR: ErrorCategory.EXECUTION_ERROR,
    CallOutcome.TIMED_OUT: ErrorCategory.TIMEOUT,
    CallOutcome.RATE_LIMITED: ErrorCategory.RATE_LIMIT,
    CallOutcome.CANCELLED: ErrorCategory.CANCELLED,
}


class ToolResilience:
    """Asks the circuit first, then the limiter, and reserves with both or with neither.

    *max_wait* is how long `acquire` may wait for the limiter; 0 refuses at once. Without a *clock* it uses that of the
    parts it is given.
    """

    def __init__(
        self,
        limiter: AdaptiveRateLimiter | RateLimiter | None = None,
        breaker: CircuitBreaker | None = None,
        *,
        max_wait: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        checks.number("max_wait", max_wait, least=0)
        if limiter is not None and not isinstance(limiter, AdaptiveRateLimiter | RateLimiter):
            raise ConfigError(f"limiter = {checks.shown(limiter)}: must be a RateLimiter or an AdaptiveRateLimiter")
        if breaker is not None and not isinstance(breaker, CircuitBreaker):
            raise ConfigError(f"breaker = {checks.shown(breaker)}: must be a CircuitBreaker")
        clocks = (part.clock for part in (breaker, limiter) if part is not None)
        self._clock = checks.clock(clock if clock is not None else next(clocks, None))
        self._limiter = limiter if limiter is not None else AdaptiveRateLimiter(clock=self._clock)
        self._breaker = breaker if breaker is not None else CircuitBreaker(clock=self._clock)
        self._adaptive = self._limiter if isinstance(self._limiter, AdaptiveRateLimiter) else None
        self._max_wait = max_wait

    def acquire(self, tool: str, priority: Priority = Priority.NORMAL) -> Permit:
        """A permit for one attempt, to be used as a context manager; raises `CircuitOpen` or `RateLimited`."""
        waited = 0.0
        while not isinstance(answer := self._try(tool, priority, waited), Permit):
            self._clock.sleep(answer)
            waited += answer
        return answer

    async def aacquire(self, tool: str, priority: Priority = Priority.NORMAL) -> Permit:
        """As `acquire`, waiting as a task."""
        waited = 0.0
        while not isinstance(answer := self._try(tool, priority, waited), Permit):
            await asleep(self._clock, answer)
            waited += answer
        return answer

    def record_success(self, tool: str) -> None:
        """Report a success without a permit."""
        self.record_outcome(tool, CallOutcome.SUCCESS)

    def record_outcome(self, tool: str, outcome: CallOutcome) -> None:
        """Report how a call ended, without a permit."""
        checks.choice("outcome", outcome, [*CallOutcome])
        outcome = CallOutcome(outcome)
        if outcome is CallOutcome.SUCCESS:
            self._breaker.record_success(tool)
        else:
            self._breaker.record_failure(tool, _CATEGORIES[outcome])
        if self._adaptive is not None:
            if outcome is CallOutcome.SUCCESS:
                self._adaptive.record_success(tool)
            elif outcome is CallOutcome.RATE_LIMITED:
                self._adaptive.record_rate_limited(tool)

    def circuit_snapshot(self) -> BreakerSnapshot:
        """All circuits at one instant."""
        return self._breaker.snapshot()

    def _try(self, tool: str, priority: Priority, waited: float) -> Permit | float:
        """Return a permit, or the seconds to wait for the limiter; the circuit is asked again each time."""
        if type(priority) is not Priority:
            priority = priority_of(priority)
        granted = self._breaker.admit(tool)
        try:
            wait = self._limiter.try_acquire(tool, priority)
        except BaseException:
            granted.release()
            raise
        if not wait:
            return Permit(self, tool, granted._circuit, granted._grant, self._clock.monotonic())
        granted.release()
        if not fits(wait, self._max_wait - waited):
            raise RateLimited(tool, retry_after=wait if math.isfinite(wait) else None)
        return wait

    def _answer(self, permit: Permit, category: ErrorCategory | None, error: BaseException | None) -> None:
        self._breaker._answer(permit, category, error)
        if self._adaptive is not None:
            if category is None:
                self._adaptive.record_success(permit.tool)
            elif category is ErrorCategory.RATE_LIMIT:
                pause = retry_after(error, now=self._clock.time()) if error is not None else None
                self._adaptive.record_rate_limited(permit.tool, pause, permit._at)

    def _take_back(self, permit: Permit) -> None:
        self._breaker._take_back(permit)


def default_resilience() -> ToolResilience:
    """Return the `ToolResilience` of this process, made on first use."""
    # Two threads that ask for it first at the same time both get the same object.
    return _DEFAULT.get("default") or _DEFAULT.setdefault("default", ToolResilience())


_DEFAULT: dict[str, ToolResilience] = {}
