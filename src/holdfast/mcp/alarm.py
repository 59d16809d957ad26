"""Time limits of calls that no task waits for. One timer serves them all: entering and leaving cost a dict entry."""

from __future__ import annotations

import math
from typing import Final, Protocol

from holdfast.clock import Clock, Timer

ASLEEP: Final = 1.0  # seconds; a timer is later than that only if the process was stopped, or the machine slept
MOMENT: Final = 0.2  # seconds after that to read the answers that came meanwhile


class Expires(Protocol):
    """Something that has a time limit."""

    def expire(self) -> None:
        """End it, since its time is up."""


class Alarm:
    """Calls `expire` of all that have not left in time; used in one event loop."""

    __slots__ = ("_at", "_clock", "_held_at", "_limits", "_timer")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limits: dict[Expires, float] = {}
        self._timer: Timer | None = None
        self._at = math.inf  # when the timer rings: no later than the earliest limit
        self._held_at: float | None = None  # since when all limits stand still; None if they do not

    def enter(self, who: Expires, when: float) -> None:
        """Let *who* expire at *when*, in place of an earlier limit of it."""
        if self._held_at is not None:
            self._limits[who] = when - (self._clock.monotonic() - self._held_at)
            return
        self._limits[who] = when
        if when < self._at:
            self._set(when)

    def leave(self, who: Expires) -> None:
        """Drop the limit of *who*, if it has one."""
        self._limits.pop(who, None)

    def hold(self, held: bool) -> None:
        """Let the time stand still for all limits while *held*, or go on."""
        now = self._clock.monotonic()
        if held and self._held_at is None:
            self._held_at = now
            self._set(math.inf)
        elif not held and self._held_at is not None:
            pause, self._held_at = now - self._held_at, None
            self._limits = {who: when + pause for who, when in self._limits.items()}
            self._set(min(self._limits.values(), default=math.inf))

    def close(self) -> None:
        """Drop all limits."""
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
        # `leave` does not move the timer, so it may have rung for a call that ended in time.
        self._set(min(self._limits.values(), default=math.inf))
        for who in late:
            who.expire()
