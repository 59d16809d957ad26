"""When to try again: which failures, how long to wait, and how much repeating a tool as a whole may bear."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast import checks

RESERVE = 10.0  # retries a tool may make before its calls have earned any
MOST = 100.0  # retries that a long quiet spell can save up
LONGEST = 60.0  # a Retry-After beyond this is not waited for unless a deadline allows it


class RetryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Up to *attempts* tries; waits grow from *initial* by *factor* to *max* seconds, each drawn at random below that.

    *budget* is the share of a tool's calls that may be retries; 0 means no bound.
    """

    attempts: int = 3
    initial: float = 0.2
    max: float = 3.0
    factor: float = 2.0
    budget: float = 0.2

    def __post_init__(self) -> None:
        checks.whole("attempts", self.attempts)
        checks.number("initial", self.initial, least=0)
        checks.number("max", self.max, least=self.initial)
        checks.number("factor", self.factor, least=1)
        checks.number("budget", self.budget, least=0)

    def delay(self, failed: int, random: Callable[[], float]) -> float:
        """How long to wait after *failed* attempts: full jitter below the growing bound."""
        try:
            bound = self.initial * self.factor ** (failed - 1)
        except OverflowError:
            bound = self.max
        return min(bound, self.max) * random()


class RetryBudget:
    """Stops retry storms: each call of a tool earns a share of a retry; not locked, its owner is."""

    __slots__ = ("_calls", "_saved")

    def __init__(self) -> None:
        self._calls = 0
        self._saved = RESERVE

    def take(self, share: float, calls: int) -> bool:
        """Whether one more retry is affordable, after *calls* calls in all."""
        if not share:
            return True
        self._saved = min(MOST, self._saved + share * max(0, calls - self._calls))
        self._calls = calls
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
