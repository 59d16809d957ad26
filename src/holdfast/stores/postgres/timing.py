"""The server's clock, seen from here: our monotonic clock, and how far the server's is from it.

The clocks of hosts differ, that of the server is one for all. It is measured again every few seconds that it is used.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.clock import Clock, SystemClock, Timer

FRESH = 10.0  # seconds for which a measurement is good


class ServerClock:
    """Dates by the server, waits by the system; *measure* is called when the server was never heard of."""

    monotonic = staticmethod(SystemClock.monotonic)
    sleep = staticmethod(SystemClock.sleep)

    def __init__(self, measure: Callable[[], float]) -> None:
        self._measure = measure
        self._system: Clock = SystemClock()
        self._measured: tuple[float, float] | None = None  # when, and how far the clocks are from each other

    def time(self) -> float:
        """Seconds since the epoch."""
        measured = self._measured or self.set(self._measure())
        return measured[1] + SystemClock.monotonic()

    def set(self, offset: float) -> tuple[float, float]:
        """The server's clock is so far from our monotonic one now."""
        self._measured = measured = (SystemClock.monotonic(), offset)
        return measured

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
