"""How many calls of a tool may run at once: a fixed limit, or one that follows the tool's latency.

The adaptive limit compares the latency of now with the latency of the long run. While they agree there is no queue in
the tool and the limit may grow; when calls take longer, they wait inside the tool, and it shrinks.
"""

from __future__ import annotations

import math

import msgspec

from holdfast import checks

TOLERANCE = 1.5  # latency may grow by half before the limit shrinks
QUICK, SLOW = 0.2, 0.01  # weight of a new sample in the latency of now and of the long run
SMOOTHING = 0.2  # share of the way to the wanted limit that one round of calls goes
OVERLOAD = 0.8  # what an overload leaves of the limit
FIRST = 20.0  # where an adaptive limit starts


class ConcurrencyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """At most *limit* calls at once; with *adaptive* the limit moves between 1 and *limit* as latency tells."""

    limit: int
    adaptive: bool = False

    def __post_init__(self) -> None:
        checks.whole("limit", self.limit)
        checks.flag("adaptive", self.adaptive)


class Slots:
    """The slots of one tool; its owner locks, with one exception.

    A free slot is an item of *free*. Taking one by `pop` is a single operation, which the interpreter does not split,
    and needs no lock; nor does giving it back by `append` while *plain* says that nothing else is to be done.
    """

    __slots__ = ("config", "free", "plain", "_made", "_now", "_owed", "_usual", "_wanted")

    def __init__(self, config: ConcurrencyConfig) -> None:
        self.config = config
        self.plain = True
        self.free: list[None] = []
        self._made = 0  # slots there are, free or taken
        self._owed = 0  # slots that go when they come back
        self._wanted = 0.0
        self._now = self._usual = 0.0  # latency; 0 before the first sample
        self._start()

    @property
    def limit(self) -> int:
        """How many calls may run at once now."""
        return self._made - self._owed

    @property
    def in_flight(self) -> int:
        """How many calls run now."""
        return self._made - len(self.free)

    def take(self) -> bool:
        """Take a slot if one is free."""
        try:
            self.free.pop()
        except IndexError:
            return False
        return True

    def give(self) -> None:
        """Give a slot back."""
        if self._owed:
            self._owed -= 1
            self._made -= 1
        else:
            self.free.append(None)

    def settle(self, duration: float | None, *, overloaded: bool = False) -> None:
        """Give a slot back and learn from the attempt; *duration* is None when it says nothing about latency."""
        if self.config.adaptive:
            if overloaded:
                self._aim(self._wanted * OVERLOAD)
            elif duration is not None:
                self._learn(duration)
        self.give()
        self.plain = not self.config.adaptive and not self._owed

    def configure(self, config: ConcurrencyConfig) -> None:
        """Go on under another limit; calls in flight keep their slots, and what was learnt stays."""
        goes_on = config.adaptive and self.config.adaptive
        self.config = config
        if goes_on:
            self._aim(self._wanted)
        else:
            self._start()

    def _start(self) -> None:
        limit = float(self.config.limit)
        self._aim(min(FIRST, limit) if self.config.adaptive else limit)

    def _learn(self, duration: float) -> None:
        duration = max(duration, 1e-6)
        if not self._usual:
            self._now = self._usual = duration
        self._now += QUICK * (duration - self._now)
        self._usual = min(self._usual + SLOW * (duration - self._usual), self._now)
        gradient = min(1.0, max(0.5, TOLERANCE * self._usual / self._now))
        if gradient == 1.0 and self.in_flight * 2 < self._wanted:
            return  # demand, not the limit, holds the number down: nothing to learn
        target = self._wanted * gradient + math.sqrt(self._wanted)
        self._aim(self._wanted + SMOOTHING * (target - self._wanted) / self._wanted)

    def _aim(self, wanted: float) -> None:
        """Have as many slots as *wanted*, within the limits; slots in use go when they come back."""
        self._wanted = min(max(wanted, 1.0), float(self.config.limit))
        more = int(self._wanted) - self.limit
        while more > 0:
            if self._owed:
                self._owed -= 1
            else:
                self._made += 1
                self.free.append(None)
            more -= 1
        while more < 0:
            if self.take():
                self._made -= 1
            else:
                self._owed += 1
            more += 1
        self.plain = not self.config.adaptive and not self._owed
