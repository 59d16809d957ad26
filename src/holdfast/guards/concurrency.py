"""How many calls of a tool may run at once: a fixed limit, or one that follows the tool's latency.

While the adaptive limit is used up, it is now and then lowered to a third for a moment, to see how long calls take when
the tool has little to do. When they take longer than that, they wait inside the tool, and the limit shrinks until they
hardly do; else it grows. A latency that was only remembered would rise with the load that it is to be compared with.
"""

from __future__ import annotations

import math

import msgspec

from holdfast import checks

FIRST = 20  # where an adaptive limit starts
MOST_SLOTS = 1_000_000  # each costs memory
ENOUGH = 20  # calls, at least, by which a latency is judged; with a greater limit, as many as that
ROUNDS = 50  # of as many calls, after which the limit is lowered to look
TOLERANCE = 1.2  # calls may take a fifth longer before the limit shrinks
OVERLOAD = 0.8  # what an overload leaves of the limit


class ConcurrencyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """At most *limit* calls at once; with *adaptive* the limit moves between 1 and *limit* as latency tells."""

    limit: int
    adaptive: bool = False

    def __post_init__(self) -> None:
        checks.whole("limit", self.limit, most=MOST_SLOTS)
        checks.flag("adaptive", self.adaptive)


class Slots:
    """The slots of one tool; its owner locks, with one exception.

    A free slot is an item of *free*. Taking one by `pop` is a single operation, which the interpreter does not split,
    and needs no lock; nor does giving it back by `append` while *plain* says that nothing else is to be done.
    """

    __slots__ = (
        "config", "free", "plain", "_alone", "_alone_at", "_calls", "_lowered", "_made", "_owed", "_rounds", "_seconds",
        "_stale", "_wanted",
    )  # fmt: skip

    def __init__(self, config: ConcurrencyConfig) -> None:
        self.config = config
        self.plain = True
        self.free: list[None] = []
        self._made = 0  # slots there are, free or taken
        self._owed = 0  # slots that go when they come back
        self._wanted = 0.0
        self._lowered = False  # to look how long calls take
        self._alone, self._alone_at = 0.0, 0  # how long they took then, 0 if never, and with how many at once
        self._rounds = 1  # until the next look
        self._calls, self._seconds = 0, 0.0  # of this round
        self._stale = 0  # calls to pass over: they began under another limit
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
        full = self.in_flight >= self.limit
        self.give()
        if self.config.adaptive:
            if self._stale:
                self._stale -= 1  # so that many overloads at once count as one
            elif overloaded:
                self._aim(self._wanted * OVERLOAD)
            elif duration is not None and full:  # else demand holds the number down, and there is nothing to learn
                self._learn(duration)
        self.plain = not self.config.adaptive and not self._owed

    def configure(self, config: ConcurrencyConfig) -> None:
        """Go on under another limit; calls in flight keep their slots, and what was learnt stays."""
        if config == self.config:  # a call with settings of its own has come or gone: what is being learnt stays, too
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
            known = self._alone and self._alone_at <= self.limit
            self._alone = (self._alone + latency) / 2 if known else latency
            self._alone_at, self._rounds = self.limit, ROUNDS
        if self._lowered:
            self._aim(self._wanted)
        else:
            self._follow(latency)

    def _follow(self, latency: float) -> None:
        """Move the limit after a round, or lower it to look."""
        if self._alone:
            share = min(1.5, max(0.5, TOLERANCE * self._alone / latency))
            self._wanted = self._within(self._wanted * share + math.sqrt(self._wanted) / 2)
        doubtful = self._wanted < 2 * self._alone_at or 2 * latency < self._alone
        self._lowered = self._wanted >= 2 and (self._rounds <= 0 or doubtful)
        if self._lowered:
            self._have(max(1, int(self._wanted / 3)))
            self._stale = self.in_flight + self.limit
        else:
            self._have(int(self._wanted))

    def _aim(self, wanted: float) -> None:
        """Go on with *wanted* for the right limit."""
        self._lowered = False
        self._wanted = self._within(wanted)
        self._have(int(self._wanted))
        self._stale = self.in_flight

    def _within(self, wanted: float) -> float:
        return min(max(wanted, 1.0), float(self.config.limit))

    def _have(self, limit: int) -> None:
        """Have as many slots as *limit*; slots in use go when they come back."""
        self.plain = False  # first: who gives one back meanwhile waits for the lock
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
