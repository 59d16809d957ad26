"""The server's clock, as seen from here: our monotonic clock plus the offset of the server's clock from it.

The clocks of hosts differ; the server's is the same for all processes. The offset is measured again every few seconds
while the server is used; until it was measured for the first time, the host's clock has to do.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.clock import Clock, SystemClock, Timer
from holdfast.errors import StoreError

FRESH = 10.0  # seconds for which a measurement is good


class ServerClock:
    """Dates by the server, waits by the system; *measure* is called, once at most, if no offset was set before."""

    monotonic = staticmethod(SystemClock.monotonic)
    sleep = staticmethod(SystemClock.sleep)

    def __init__(self, measure: Callable[[], float]) -> None:
        self._measure = measure
        self._system: Clock = SystemClock()
        self._measured: tuple[float, float] | None = None  # when it was measured, and the offset
        self._is_away = False  # the server could not be reached when the time was first asked for

    def time(self) -> float:
        """Seconds since the epoch."""
        if self._measured is None and not self._is_away:
            try:
                self.set(self._measure())
            except StoreError:  # a caller that needs the server gets an error when it writes
                self._is_away = True
        return self._system.time() if self._measured is None else self._measured[1] + SystemClock.monotonic()

    def set(self, offset: float) -> None:
        """Set the offset of the server's clock from our monotonic clock, measured now."""
        self._measured = (SystemClock.monotonic(), offset)

    @property
    def is_fresh(self) -> bool:
        """True if the offset was measured lately."""
        return self._measured is not None and SystemClock.monotonic() - self._measured[0] < FRESH

    async def asleep(self, seconds: float) -> None:
        """Suspend the calling task for *seconds*."""
        await self._system.asleep(seconds)

    def call_at(self, when: float, fn: Callable[[], object]) -> Timer:
        """Call *fn* once `monotonic()` has reached *when*."""
        return self._system.call_at(when, fn)
