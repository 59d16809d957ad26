"""The rate: a token bucket that says exactly when the next call may be made, and learns from the server's refusals.

The state of a bucket is one float: the time at which it will be full again if no call takes from it.
A `Bucket` has no lock: its owner holds one around every call of it.
"""

from __future__ import annotations

import math
import random as chance
import sys
from collections.abc import Callable
from enum import StrEnum

import msgspec

from holdfast import checks
from holdfast.clock import until
from holdfast.errors import ConfigError
from holdfast.guards.learning import Learnt

# CPython with its global lock switches threads only at calls and backward jumps. Methods documented as undivided have
# neither between reading the state and writing it, so there they need no lock; elsewhere their owner holds one.
UNDIVIDED = sys.implementation.name == "cpython" and "t" not in getattr(sys, "abiflags", "t")

_ALMOST = 1e-6  # tokens a bucket may lack: clocks and sums of floats are off by that little
_LONGEST_PAUSE = 86_400.0  # seconds; a server that asks for a longer pause gets this one
_JITTER = 0.1
_MOST_LEFT = 64  # earlier settings that are remembered because tokens are owed under them


class Priority(StrEnum):
    """How urgent a call is: the more urgent, the fewer tokens it costs and the earlier it leaves a queue."""

    LOW = "low", 2.0, 0
    NORMAL = "normal", 1.0, 1
    HIGH = "high", 0.5, 2
    CRITICAL = "critical", 0.1, 3

    cost: float
    rank: int

    def __new__(cls, value: str, cost: float, rank: int) -> Priority:
        member = str.__new__(cls, value)
        member._value_ = value
        member.cost = cost
        member.rank = rank
        return member


LEAST_RATE = 1e-9  # one call in thirty years; at lower rates, times would become infinite or NaN


def priority_of(value: object) -> Priority:
    """Return *value* as a `Priority`; its plain text is accepted, too."""
    checks.choice("priority", value, [*Priority])
    return Priority(value)  # type: ignore[call-arg, arg-type]


LEAST_COST = min(priority.cost for priority in Priority)


class RateConfig(msgspec.Struct, frozen=True, kw_only=True):
    """*per_second* tokens a second, *burst* of them kept at most (None: a second's worth, at least 5).

    With *adaptive* the rate follows the server's refusals, never below *floor* times *per_second*.
    """

    per_second: float
    burst: float | None = None
    adaptive: bool = False
    floor: float = 0.05

    def __post_init__(self) -> None:
        checks.number("per_second", self.per_second, least=LEAST_RATE)
        if self.burst is not None:
            checks.number("burst", self.burst, least=LEAST_COST)
        checks.flag("adaptive", self.adaptive)
        checks.number("floor", self.floor, above=0, most=1)

    @property
    def capacity(self) -> float:
        """How many tokens the bucket holds when it is full."""
        return max(self.per_second, 5.0) if self.burst is None else self.burst

    @property
    def terms(self) -> tuple[float, float, float | None]:
        """The settings that a bucket's state depends on."""
        return self.per_second, self.capacity, self.floor if self.adaptive else None


class Bucket:
    """The bucket of one tool. Its owner holds the lock, and reports every success unless *reports* is false."""

    __slots__ = (
        "capacity", "config", "full_at", "interval", "learnt", "rate", "_horizon", "_left", "_random", "_reports",
    )  # fmt: skip

    def __init__(
        self, config: RateConfig, *, random: Callable[[], float] = chance.random, reports: bool = True
    ) -> None:
        self.full_at = -math.inf
        self.learnt: Learnt | None = None
        self._left: dict[tuple[float, float, float | None], float] = {}  # full_at under earlier settings
        self._random = random
        self._reports = reports
        self._apply(config, config.per_second)

    def admit(self, now: float, cost: float = 1.0) -> float:
        """Take *cost* and return 0.0 if the call may be made; otherwise take nothing and return the seconds to wait."""
        if self.learnt is not None:
            return self._admit_learnt(self.learnt, now, cost)
        full_at = self.full_at
        full_at = (full_at if full_at > now else now) + cost * self.interval
        if full_at - self._horizon <= now:
            self.full_at = full_at
            return 0.0
        return wait_for(full_at, now, cost, self.capacity, self.interval)

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Take *cost* and return True if the call may be made; on False ask `admit`. Undivided: see `UNDIVIDED`."""
        if self.learnt is not None:
            return False
        full_at = self.full_at
        full_at = (full_at if full_at > now else now) + cost * self.interval
        if full_at - self._horizon > now:
            return False
        self.full_at = full_at
        return True

    def refund(self, cost: float, now: float) -> None:
        """Give back the tokens of an admitted call that was never made."""
        full_at = self.full_at - cost * self.interval  # undivided, like `take`
        self.full_at = full_at if full_at > now else now
        if self.learnt is not None:
            self.learnt.refunded(cost)

    def succeeded(self, now: float) -> None:
        """Note that the server accepted a call: the rate may recover."""
        self._reports = True
        if self.learnt is not None:
            self.learnt.succeeded(now, self.interval)

    def limited(self, now: float, retry_after: float | None = None, admitted_at: float | None = None) -> bool:
        """Note that the server refused a call admitted at *admitted_at* (None: just now); True if that cuts the rate.

        Nothing is admitted for *retry_after* seconds and, so that clients do not come back together, a little longer.
        Calls that were under way at the last cut do not cut the rate again.
        """
        if not self.config.adaptive:
            return False
        pause = self._pause_for(retry_after)
        last = self.learnt
        if last is not None and admitted_at is not None and admitted_at <= last.cut_at:
            self._pause(last, now, pause)
            return False
        pause = max(pause, self.pause(now))
        refused = self.rate_at(now)
        self._set_rate(max(refused / 2, self.config.floor * self.config.per_second))
        self.full_at = now + self.capacity * self.interval
        self.learnt = Learnt(now, refused, self.rate, pause, last)
        self._pause(self.learnt, now, pause)
        return True

    def rate_at(self, now: float) -> float:
        """Return the tokens a second to which the rate has recovered by *now*."""
        if self.learnt is None:
            return self.rate
        return min(self.config.per_second, max(self.rate, self.learnt.allowed(now)))

    def tokens(self, now: float) -> float:
        """How many tokens the bucket holds."""
        return max(0.0, self.capacity - max(0.0, self.full_at - now) * self.rate)

    def pause(self, now: float) -> float:
        """Return how many seconds of the pause that the server asked for are left."""
        return 0.0 if self.learnt is None else max(0.0, self.learnt.paused_until - now)

    def configure(self, config: RateConfig, now: float) -> None:
        """Apply new settings and keep the state: the tokens that were used, and, if still adaptive, what was learnt.

        Used tokens beyond the size of a smaller bucket are owed again when the earlier settings return: callers may
        alternate between settings.
        """
        self._horizon = -math.inf  # `take` refuses until all is set: what it takes without the lock would be lost
        owed = max(0.0, self.full_at - now) * self.rate
        left = {terms: full_at for terms, full_at in self._left.items() if full_at > now}
        if len(left) >= _MOST_LEFT:
            left = {}
        left[self.config.terms] = self.full_at
        self._left = left
        if not config.adaptive:
            self.learnt = None
        rate = config.per_second
        if self.learnt is not None:
            rate = max(config.floor * rate, min(rate, self.rate))
        self.full_at = max(now + min(owed, config.capacity) / rate, left.pop(config.terms, now))
        self._apply(config, rate)
        if self.learnt is not None:
            self._pause(self.learnt, now, self.learnt.paused_until - now)

    def _admit_learnt(self, learnt: Learnt, now: float, cost: float) -> float:
        full_at = max(self.full_at, now) + cost * self.interval
        if full_at - self._horizon > now:
            # Refused at the rate of the last look; perhaps not at the rate it has grown to since.
            self._grow(learnt, now)
            full_at = max(self.full_at, now) + cost * self.interval
        if full_at - self._horizon > now or learnt.paused_until > now:
            wait = wait_for(full_at, now, cost, self.capacity, self.interval)
            return max(wait, until(now, learnt.paused_until))
        learnt.admitted(cost, lull=now - self.full_at > self.interval)
        self.full_at = full_at
        if not self._reports:  # if successes are not reported, an admitted call has to count as one
            learnt.succeeded(now, self.interval)
        self._grow(learnt, now)
        return 0.0

    def _grow(self, learnt: Learnt, now: float) -> None:
        """Let the rate recover. The debt is kept in tokens, so that waits announced earlier hold or get shorter."""
        if not learnt.is_due(now):
            return
        rate = self.rate_at(now)
        if rate > self.rate:
            owed = max(0.0, self.full_at - now) * self.rate
            self._set_rate(rate)
            self.full_at = now + owed * self.interval
        if rate >= self.config.per_second and now >= learnt.paused_until:
            self.learnt = None

    def _pause_for(self, retry_after: float | None) -> float:
        if retry_after is None or not 0.0 < retry_after < math.inf:
            return 0.0
        return min(retry_after, _LONGEST_PAUSE) * (1.0 + _JITTER * self._random())

    def _pause(self, learnt: Learnt, now: float, seconds: float) -> None:
        """Admit nothing for *seconds*; then one call may go at once, the others follow at the rate."""
        if seconds > 0:
            learnt.pause_until(now + seconds)
            self.full_at = max(self.full_at, now + seconds + (self.capacity - 1.0) * self.interval)

    def _apply(self, config: RateConfig, rate: float) -> None:
        self.config = config
        self.capacity = config.capacity
        self._set_rate(rate)

    def _set_rate(self, rate: float) -> None:
        self.rate = rate
        self.interval = 1.0 / rate
        self._horizon = horizon(self.capacity, self.interval)


def horizon(capacity: float, interval: float) -> float:
    """Return how many seconds ahead of now `full_at` may lie for a call to be admitted."""
    return (capacity + _ALMOST) * interval


def wait_for(full_at: float, now: float, cost: float, capacity: float, interval: float) -> float:
    """Return the seconds until a call may be made after which the bucket is full again at *full_at*."""
    if cost > capacity:
        raise ConfigError(f"a call of {cost:g} tokens does not fit a bucket of {capacity:g}: allow a larger burst")
    return until(now, full_at - capacity * interval)
