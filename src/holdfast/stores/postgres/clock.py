"""The server's clock, seen from here: our monotonic clock, and how far the server's is from it.

The clocks of hosts differ, that of the server is one for all. It is measured again every few seconds that it is used;
until it could be for the first time, our host's has to do.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.clock import Clock, SystemClock, Timer
from holdfast.errors import StoreError

FRESH = 10.0  # seconds for which a measurement is good


class ServerClock:
    """Dates by the server, waits by the system; *measure* is called, once, when the server was never heard of."""

    monotonic = staticmethod(SystemClock.monotonic)
    sleep = staticmethod(SystemClock.sleep)

    def __init__(self, measure: Callable[[], float]) -> None:
        self._measure = measure
        self._system: Clock = SystemClock()
        self._measured: tuple[float, float] | None = None  # when, and how far the clocks are from each other
        self._is_away = False  # when it was asked for

    def time(self) -> float:
        """Seconds since the epoch."""
        if self._measured is None and not self._is_away:
            try:
                self.set(self._measure())
            except StoreError:  # whoever needs the server is told so when it is written to
                self._is_away = True
        return self._system.time() if self._measured is None else self._measured[1] + SystemClock.monotonic()

    def set(self, offset: float) -> None:
        """The server's clock is so far from our monotonic one now."""
        self._measured = (SystemClock.monotonic(), offset)

    @property
    def is_fresh(self) -> bool:
        """Whether it was measured lately."""
        return self._measured is not None and SystemClock.monotonic() - self._measured[0] < FRESH

    async def asleep(self, seconds: float) -> None:
        """Suspend the calling task for *seconds*."""
        await self._system.asleep(seconds)

    def call_at(self, when: float, fn: Callable[[], object]) -> Timer:
        """Call *fn* once `monotonic()` has reached *when*."""
        return self._system.call_at(when, fn)
