"""Time limits of calls that no task waits for. One timer serves them all: entering and leaving cost a dict entry."""

from __future__ import annotations

import math
from typing import Final, Protocol

from holdfast.clock import Clock, Timer

ASLEEP: Final = 1.0  # seconds by which an alarm can be late only if its process was stopped, or its machine asleep
MOMENT: Final = 0.2  # seconds after that for what was said meanwhile to be heard


class Expires(Protocol):
    """What may take too long."""

    def expire(self) -> None:
        """Its time is up."""


class Alarm:
    """Tells whoever has not left in time; used in one event loop."""

    __slots__ = ("_at", "_clock", "_held_at", "_limits", "_timer")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limits: dict[Expires, float] = {}
        self._timer: Timer | None = None
        self._at = math.inf  # when it rings: no later than the first of them is due
        self._held_at: float | None = None  # since when their time stands still

    def enter(self, who: Expires, when: float) -> None:
        """Have *who* told at *when*, in place of what was said before."""
        if self._held_at is not None:
            self._limits[who] = when - (self._clock.monotonic() - self._held_at)
            return
        self._limits[who] = when
        if when < self._at:
            self._set(when)

    def leave(self, who: Expires) -> None:
        """It is in time, or has no limit."""
        self._limits.pop(who, None)

    def hold(self, held: bool) -> None:
        """Have the time stand still for all of them, or go on."""
        now = self._clock.monotonic()
        if held and self._held_at is None:
            self._held_at = now
            self._set(math.inf)
        elif not held and self._held_at is not None:
            pause, self._held_at = now - self._held_at, None
            self._limits = {who: when + pause for who, when in self._limits.items()}
            self._set(min(self._limits.values(), default=math.inf))

    def close(self) -> None:
        """Tell nobody any more."""
        self._limits.clear()
        self._set(math.inf)

    def _set(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = when
        self._timer = self._clock.call_at(when, self._ring) if when < math.inf else None

    def _ring(self) -> None:
        now = self._clock.monotonic()
        if now - self._at > ASLEEP:
            self._set(now + MOMENT)
            return
        late = [who for who, when in self._limits.items() if when <= now]
        for who in late:
            del self._limits[who]
        # A call that ended in time has left its timer behind: so this may be for nobody.
        self._set(min(self._limits.values(), default=math.inf))
        for who in late:
            who.expire()
