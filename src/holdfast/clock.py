"""Time. Everything that needs it takes a `Clock`; only this file reads the system's.

`monotonic` orders and measures, `time` dates. A timer's callback runs in the event loop that asked for it, else in a
thread that serves all plain timers of the clock and ends when none is left.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import os
import sys
import threading
from collections.abc import Callable
from time import monotonic, sleep
from time import time as wall_time
from typing import Protocol, runtime_checkable

_LINGER = 1.0  # seconds the idle timer thread waits for the next timer, and at most between two looks at its timers
_LITTLE = 1e-6  # seconds; the rounding errors of sums of times are smaller
_log = logging.getLogger("holdfast")


class Timer(Protocol):
    """A callback that is to be called at a later time."""

    def cancel(self) -> None:
        """Do not call it; harmless once it has run."""


@runtime_checkable
class Clock(Protocol):
    """The source of time for Holdfast; bring your own to test without waiting."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""

    def time(self) -> float:
        """Seconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for *seconds*."""

    async def asleep(self, seconds: float) -> None:
        """Suspend the calling task for *seconds*."""

    def call_at(self, when: float, fn: Callable[[], object]) -> Timer:
        """Call *fn* once `monotonic()` has reached *when*.

        Inside a running event loop, that loop calls *fn*, never before this returns; otherwise any thread may call it.
        """


class SystemClock:
    """The machine's own clock."""

    # Builtins as class attributes do not bind, so a caller that keeps `clock.monotonic` calls C directly. All code here
    # reads these two: a library that freezes time in tests replaces the module's names, and would freeze only a part.
    monotonic = staticmethod(monotonic)
    time = staticmethod(wall_time)

    def __init__(self) -> None:
        self._timers = _TimerThread()

    @staticmethod
    def sleep(seconds: float) -> None:
        """Block the calling thread for *seconds*; a negative number and NaN are a `ValueError`."""
        sleep(seconds)

    async def asleep(self, seconds: float) -> None:
        """Suspend the calling task for *seconds*; like `sleep`, refuses a negative number and NaN."""
        check_sleep(seconds)
        await asyncio.sleep(seconds)

    def call_at(self, when: float, fn: Callable[[], object]) -> Timer:
        """Call *fn* once `monotonic()` has reached *when*."""
        if math.isnan(when):
            raise ValueError("when is not a number")
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            if self._timers.pid != os.getpid():  # a forked child has the object but not its thread
                self._timers = _TimerThread()
            return self._timers.add(when, fn)
        return loop.call_later(max(0.0, when - self.monotonic()), fn)


def check_sleep(seconds: float) -> None:
    """Raise a `ValueError` if *seconds* is negative or NaN; `asyncio.sleep` would take a negative one for zero."""
    if not seconds >= 0:  # NaN too
        raise ValueError(f"sleep length must be a non-negative number, not {seconds!r}")


def until(now: float, then: float) -> float:
    """The seconds from *now* to *then*, never so few that adding them to *now* falls short; 0 if it is past."""
    wait = max(0.0, then - now)
    while now + wait < then:
        wait = math.nextafter(wait, math.inf)
    return wait


def fits(wait: float, left: float) -> bool:
    """True if a caller with *left* seconds can wait *wait* seconds, apart from rounding errors."""
    return left > 0 and wait <= left + _LITTLE


class _TimerThread:
    """One daemon thread for all timers asked for outside an event loop."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._order = itertools.count()
        self._heap: list[tuple[float, int, _PlainTimer]] = []
        self._sweep_above = 64
        # Callers take the lock itself: the `with` of a Condition is Python code, and an interrupt in it keeps the lock.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._alive = False

    def add(self, when: float, fn: Callable[[], object]) -> Timer:
        if sys.is_finalizing():  # a thread would not run, and Python 3.11 would wait for it
            raise RuntimeError("the interpreter ends: no timer can ring")
        timer = _PlainTimer(fn)
        with self._lock:
            if not self._alive:  # first, so that a thread that cannot start leaves no timer behind
                threading.Thread(target=self._serve, name="holdfast-timers", daemon=True).start()
                self._alive = True
            heapq.heappush(self._heap, (when, next(self._order), timer))
            if len(self._heap) > self._sweep_above:
                self._heap = sorted(entry for entry in self._heap if entry[2].fn is not None)
                self._sweep_above = max(64, 2 * len(self._heap))
            if self._heap[0][2] is timer:
                self._changed.notify()
        return timer

    def _serve(self) -> None:
        while (timer := self._next()) is not None:
            timer.run()

    def _next(self) -> _PlainTimer | None:
        """The next timer that is due, or None when there has been none for a while."""
        with self._changed:
            while True:
                while self._heap and self._heap[0][2].fn is None:
                    heapq.heappop(self._heap)
                if self._heap:
                    wait = self._heap[0][0] - SystemClock.monotonic()
                    if wait <= 0:
                        return heapq.heappop(self._heap)[2]
                    self._changed.wait(min(wait, _LINGER))  # `cancel` does not wake this thread: it looks again
                elif not self._changed.wait(_LINGER) and not self._heap:
                    self._alive = False
                    return None


class _PlainTimer:
    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[], object]) -> None:
        self.fn: Callable[[], object] | None = fn

    def run(self) -> None:
        fn, self.fn = self.fn, None  # so that what it holds is freed as soon as it has run
        if fn is None:
            return
        try:
            fn()
        except BaseException:  # the thread serves other timers, too: if it ended, they would never run
            _log.exception("a timer's callback failed")

    def cancel(self) -> None:
        self.fn = None
