"""The one place that waits: for a time to pass, or for a signal with a time limit; as a thread or as a task.

Everything that may have to wait says so with a `Wait`, and the driver of the call picks `pause` or `apause`.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.guards.circuit import until
from holdfast.guards.line import Signal


class Wait:
    """What a call has to wait for: *signal* if there is one, at the latest the time *until*.

    *begin* starts what will fire the signal, once the time limit stands.
    """

    __slots__ = ("begin", "signal", "until")

    def __init__(self, until: float, signal: Signal | None = None, begin: Callable[[], object] | None = None) -> None:
        self.until = until
        self.signal = signal
        self.begin = begin


def pause(clock: Clock, wait: Wait) -> bool:
    """Wait as a thread; false if the time was up before the signal came."""
    if wait.signal is None:
        if (seconds := until(clock.monotonic(), wait.until)) > 0:
            clock.sleep(seconds)
        return False
    woken = threading.Event()
    with _Alarm(clock, wait, wait.signal, woken.set) as alarm:
        woken.wait()
    return alarm.in_time


async def apause(clock: Clock, wait: Wait) -> bool:
    """Wait as a task; false if the time was up before the signal came."""
    if wait.signal is None:
        if (seconds := until(clock.monotonic(), wait.until)) > 0:
            await clock.asleep(seconds)
        return False
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    def wake_from_anywhere() -> None:
        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:  # the loop is closed, and the waiter gone with it
            return

    with _Alarm(clock, wait, wait.signal, wake_from_anywhere) as alarm:
        await woken
    return alarm.in_time


class _Alarm:
    """Calls *wake* when the signal fires or when the time is up, and remembers which came first."""

    __slots__ = ("in_time", "_signal", "_timer", "_wake")

    def __init__(self, clock: Clock, wait: Wait, signal: Signal, wake: Callable[[], object]) -> None:
        self.in_time = True
        self._signal = signal
        self._wake = wake
        self._timer = clock.call_at(wait.until, self._ring) if wait.until < math.inf and not signal.fired else None
        if wait.begin is not None:
            wait.begin()
        signal.listen(wake)

    def _ring(self) -> None:
        self.in_time = self._signal.fired
        self._wake()

    def __enter__(self) -> _Alarm:
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
