"""The loop guard refuses a call that keeps failing in a run: a warning does not stop a loop, a refusal does."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from enum import Enum
from itertools import islice

import msgspec

from holdfast import checks

MOST_WINDOW = 1000
REFUSALS = 2  # refusals of the same call after which the loop is reported


class LoopConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A call that failed *repeats* times within the last *window* calls of its run is refused.

    With *stop*, a call that was refused twice stops the run: every later call of it is refused.
    """

    repeats: int = 3
    window: int = 8
    stop: bool = False

    def __post_init__(self) -> None:
        checks.whole("repeats", self.repeats, most=MOST_WINDOW)
        checks.whole("window", self.window, least=self.repeats, most=MOST_WINDOW)
        checks.flag("stop", self.stop)


class LoopVerdict(Enum):
    """What the loop guard decides about a call."""

    PASS = "pass"
    REFUSED = "refused"
    DETECTED = "detected"  # refused, and the loop is to be reported now


class LoopGuard:
    """The last calls of one run; its owner holds the lock. A *call* is the tool and its canonical arguments."""

    __slots__ = ("stopped", "_quiet", "_recent", "_refusals")

    def __init__(self) -> None:
        self._recent: deque[tuple[Hashable, bool]] = deque(maxlen=MOST_WINDOW)
        self._refusals: Counter[Hashable] = Counter()
        self._quiet = MOST_WINDOW  # calls since the last failed one
        self.stopped = False

    def admit(self, call: Hashable, config: LoopConfig) -> LoopVerdict:
        """Pass the call, or refuse it because the same call failed too often recently."""
        if self.stopped:
            return LoopVerdict.REFUSED
        if self._quiet >= config.window:
            return LoopVerdict.PASS
        last = islice(reversed(self._recent), config.window)
        if sum(failed and other == call for other, failed in last) < config.repeats:
            return LoopVerdict.PASS
        if len(self._refusals) >= MOST_WINDOW:  # a forgotten call has to fail again before it is refused
            known = {other for other, _ in self._recent}
            self._refusals = Counter({other: n for other, n in self._refusals.items() if other in known})
        self._refusals[call] += 1
        if self._refusals[call] != REFUSALS:
            return LoopVerdict.REFUSED
        self.stopped = config.stop
        return LoopVerdict.DETECTED

    def settle(self, call: Hashable, *, failed: bool) -> None:
        """Record how a call ended; callers do not report refused and cancelled calls."""
        self._recent.append((call if failed else None, failed))  # arguments of a success would only keep objects alive
        self._quiet = 0 if failed else self._quiet + 1
        if not failed:
            self._refusals.pop(call, None)
