"""When to try again: which failures, how long to wait, and how many retries a tool as a whole may make."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import msgspec

from holdfast import checks
from holdfast.category import ErrorCategory

RESERVE = 10.0  # retries a tool may make before its calls have earned any
MOST = 100.0  # retries that a long quiet spell can save up
NOTE = "holdfast: "
LONGEST = 60.0  # a Retry-After beyond this is not waited for unless a deadline allows it

_log = logging.getLogger("holdfast")


class RetryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Up to *attempts* tries; each wait is random below a bound that grows from *initial* by *factor* to *max* seconds.

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

    def next_delay(
        self, category: ErrorCategory, failed: int, pause: float | None, left: float, random: Callable[[], float]
    ) -> float | str:
        """How long to wait before another try after *failed* attempts, or why there is none.

        *pause* is how long the tool asked to be left alone, which wins over the computed delay; *left* is how long the
        call may still take.
        """
        if not category.retryable:
            return category.label
        if failed >= self.attempts:
            return ""
        delay = pause if pause is not None else self.delay(failed, random)
        if delay >= left:
            return "the deadline is too near"
        if delay > LONGEST and left == math.inf:
            return f"the tool asks to wait {delay:g} s"
        return delay


class RetryBudget:
    """Stops retry storms: each call of a tool earns a share of a retry. It has no lock: its owner holds one."""

    __slots__ = ("_calls", "_saved")

    def __init__(self) -> None:
        self._calls = 0
        self._saved = RESERVE

    def take(self, share: float, calls: int) -> bool:
        """Pay for one more retry, after *calls* calls in total; False if it is not affordable."""
        if not share:
            return True
        self._saved = min(MOST, self._saved + share * max(0, calls - self._calls))
        self._calls = calls
        if self._saved < 1:
            return False
        self._saved -= 1
        return True


def note(error: Exception, name: str, attempts: int, why: str = "", waited: float = 0.0) -> None:
    """Add a note of what was tried to the tool's error; an error raised again keeps only the last note of *name*."""
    mine = f"{NOTE}{name}: "
    tries = f"{attempts} attempt{'s' if attempts != 1 else ''}"
    waits = f", {waited:.2g} s of waiting" if waited else ""
    try:
        notes = getattr(error, "__notes__", None)
        if isinstance(notes, list):
            notes[:] = [old for old in notes if not str(old).startswith(mine)]
        error.add_note(f"{mine}{tries}{waits}{', ' if why else ''}{why}")
    except Exception as trouble:  # an error that accepts no note, such as a frozen one, is raised all the same
        _log.debug("%s takes no note: %s", type(error).__name__, type(trouble).__name__)
