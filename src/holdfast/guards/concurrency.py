"""How many calls of a tool may run at once: a fixed limit, or one that follows the tool's latency.

While all slots are in use, the adaptive limit is now and then lowered to a third for a moment, to measure how long
calls take when the tool has little to do. If calls at the usual limit take longer than that, they wait inside the tool:
the limit shrinks until they hardly do. Otherwise it grows. A baseline that was only remembered would rise with the very
load it is compared with.
"""

from __future__ import annotations

import math

import msgspec

from holdfast import checks

FIRST = 20  # where an adaptive limit starts
MOST_SLOTS = 1_000_000  # each costs memory
ENOUGH = 20  # calls in a measuring round; as many as the limit, if that is greater
ROUNDS = 50  # rounds after which the limit is lowered to measure the latency under little load
TOLERANCE = 1.2  # calls may take a fifth longer before the limit shrinks
OVERLOAD = 0.8  # share of the limit that remains after an overload


class ConcurrencyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """At most *limit* calls at once; with *adaptive* the limit moves between 1 and *limit* with the latency."""

    limit: int
    adaptive: bool = False

    def __post_init__(self) -> None:
        checks.whole("limit", self.limit, most=MOST_SLOTS)
        checks.flag("adaptive", self.adaptive)


class Slots:
    """The slots of one tool. Its owner holds a lock around every call, with one exception.

    A free slot is an item of *free*. Taking one with `pop` is a single operation that the interpreter does not split,
    and needs no lock. Giving it back with `append` needs none either while *plain* is true: nothing else is to be done.
    """

    __slots__ = (
        "config", "free", "plain", "_calls", "_lowered", "_made", "_owed", "_rounds", "_seconds", "_stale",
        "_unloaded_latency", "_unloaded_limit", "_wanted",
    )  # fmt: skip

    def __init__(self, config: ConcurrencyConfig) -> None:
        self.config = config
        self.plain = True
        self.free: list[None] = []
        self._made = 0  # slots that exist, free or taken
        self._owed = 0  # slots in use that are removed when they are given back
        self._wanted = 0.0
        self._lowered = False  # True while the limit is lowered to measure the latency under little load
        self._unloaded_latency = 0.0  # that latency; 0 if it was never measured
        self._unloaded_limit = 0  # the limit it was measured at
        self._rounds = 1  # until the limit is lowered again
        self._calls, self._seconds = 0, 0.0  # number and total duration of the calls in this round
        self._stale = 0  # calls to ignore, because they began under another limit
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
        """Take a slot; False if none is free."""
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
        full = self.in_flight >= self.limit
        self.give()
        if self.config.adaptive:
            if self._stale:
                self._stale -= 1  # so that many overloads at once count as one
            elif overloaded:
                self._aim(self._wanted * OVERLOAD)
            elif duration is not None and full:  # otherwise demand is below the limit: nothing to learn
                self._learn(duration)
        self.plain = not self.config.adaptive and not self._owed

    def configure(self, config: ConcurrencyConfig) -> None:
        """Apply another limit; calls in flight keep their slots, and what was learnt stays."""
        if config == self.config:  # a call with its own settings came or went: the running round stays, too
            return
        goes_on = config.adaptive and self.config.adaptive
        self.config = config
        if goes_on:
            self._aim(self._wanted)
        else:
            self._start()

    def _start(self) -> None:
        self._aim(FIRST if self.config.adaptive else self.config.limit)

    def _learn(self, duration: float) -> None:
        self._calls += 1
        self._seconds += duration
        if self._calls < max(ENOUGH, self.limit):
            return
        latency = max(self._seconds / self._calls, 1e-6)
        self._rounds -= 1
        if self._lowered or self.limit == 1:
            known = self._unloaded_latency and self._unloaded_limit <= self.limit
            self._unloaded_latency = (self._unloaded_latency + latency) / 2 if known else latency
            self._unloaded_limit, self._rounds = self.limit, ROUNDS
        if self._lowered:
            self._aim(self._wanted)
        else:
            self._follow(latency)

    def _follow(self, latency: float) -> None:
        """Adjust the limit after a round, or lower it to measure the latency under little load."""
        if self._unloaded_latency:
            share = min(1.5, max(0.5, TOLERANCE * self._unloaded_latency / latency))
            self._wanted = self._within(self._wanted * share + math.sqrt(self._wanted) / 2)
        doubtful = self._wanted < 2 * self._unloaded_limit or 2 * latency < self._unloaded_latency
        self._lowered = self._wanted >= 2 and (self._rounds <= 0 or doubtful)
        if self._lowered:
            self._have(max(1, int(self._wanted / 3)))
            self._stale = self.in_flight + self.limit
        else:
            self._have(int(self._wanted))

    def _aim(self, wanted: float) -> None:
        """Set the limit to *wanted*, and learn nothing from the calls in flight."""
        self._lowered = False
        self._wanted = self._within(wanted)
        self._have(int(self._wanted))
        self._stale = self.in_flight

    def _within(self, wanted: float) -> float:
        return min(max(wanted, 1.0), float(self.config.limit))

    def _have(self, limit: int) -> None:
        """Change the number of slots to *limit*; surplus slots in use are removed when they are given back."""
        self.plain = False  # first, so that a thread that gives a slot back meanwhile waits for the lock
        more = max(0, limit - self.limit)
        kept = min(more, self._owed)
        self._owed -= kept
        self._made += more - kept
        self.free.extend([None] * (more - kept))
        while self.limit > limit:
            if self.take():
                self._made -= 1
            else:
                self._owed += 1
        self._calls, self._seconds = 0, 0.0
        self.plain = not self.config.adaptive and not self._owed
