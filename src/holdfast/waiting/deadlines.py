"""Time limits on coroutines. Calls with the same limit end in the order they began, so one timer serves them all.

Entering costs a dict entry instead of a timer; the one timer is set for the oldest entry, then for the next.
"""

from __future__ import annotations

import asyncio
from asyncio import current_task
from threading import get_ident
from types import TracebackType
from weakref import WeakValueDictionary

from holdfast.clock import Clock, Timer
from holdfast.errors import ToolTimeout
from holdfast.loops import running_loop


class Wheel:
    """The calls of one event loop that must end within *seconds*, oldest first; used by that loop's thread alone."""

    __slots__ = ("entries", "loop", "seconds", "thread", "timer", "_clock", "__weakref__")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, seconds: float) -> None:
        self.loop = loop
        self.thread = get_ident()
        self.seconds = seconds
        self.entries: dict[Limit, float] = {}
        self.timer: Timer | None = None
        self._clock = clock

    def wind(self, when: float) -> None:
        """Set the timer."""
        self.timer = self._clock.call_at(when, self._ring)

    def stop(self) -> None:
        """Cancel the timer: no call needs it any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _ring(self) -> None:
        self.timer = None
        now = self._clock.monotonic()
        late = []
        for limit, when in self.entries.items():
            if when > now:
                self.wind(when)
                break
            late.append(limit)
        for limit in late:
            del self.entries[limit]
            limit.expire()


class Deadlines:
    """The time limits of one tool. Calls with its usual limit share a wheel, one per event loop."""

    __slots__ = ("_clock", "_tool", "_wheel", "_wheels")

    def __init__(self, clock: Clock, tool: str) -> None:
        self._clock = clock
        self._tool = tool
        self._wheel: Wheel | None = None  # the one used last
        # The wheels of all loops, by the loop's `id`: a wheel keeps its loop alive, its timer and calls keep the wheel.
        self._wheels: WeakValueDictionary[tuple[int, float], Wheel] | None = None

    def within(self, seconds: float, now: float) -> Limit:
        """Return the usual limit, counted from *now*."""
        wheel = self._wheel
        # Asking for the running loop costs a system call. In the thread of the wheel's loop, that loop is the running
        # one if it has a current task.
        if wheel is not None and wheel.seconds == seconds and wheel.thread == get_ident():
            task = current_task(wheel.loop)
            if task is not None:
                return Limit(wheel, self._tool, now, task)
        self._wheel = wheel = self._find(running_loop(), seconds)
        return Limit(wheel, self._tool, now, _current_task())

    def once_within(self, seconds: float, now: float) -> Limit:
        """Return a limit for one call only, counted from *now*; leaving it cancels its timer."""
        wheel = Wheel(running_loop(), self._clock, seconds)
        return Limit(wheel, self._tool, now, _current_task(), alone=True)

    def _find(self, loop: asyncio.AbstractEventLoop, seconds: float) -> Wheel:
        """Return the wheel of *loop*; make it if necessary."""
        if self._wheels is None:
            self._wheels = WeakValueDictionary()
        wheel = self._wheels.get((id(loop), seconds))
        if wheel is None:
            wheel = self._wheels[id(loop), seconds] = Wheel(loop, self._clock, seconds)
        wheel.thread = get_ident()
        return wheel


class Limit:
    """Around an await that begins at *now*: turns a cancellation by *wheel*, and no other, into `ToolTimeout`.

    *alone* says that no other call uses the wheel, so that leaving cancels its timer.
    """

    __slots__ = ("_alone", "_cancels", "_now", "_task", "_tool", "_wheel")

    def __init__(self, wheel: Wheel, tool: str, now: float, task: asyncio.Task[object], *, alone: bool = False) -> None:
        self._wheel = wheel
        self._tool = tool
        self._now = now
        self._task = task
        self._alone = alone

    def expire(self) -> None:
        """Cancel the task: it is too late."""
        self._task.cancel()

    def __enter__(self) -> None:
        wheel = self._wheel
        self._cancels = self._task.cancelling()
        wheel.entries[self] = when = self._now + wheel.seconds
        if wheel.timer is None:
            wheel.wind(when)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wheel = self._wheel
        if wheel.entries.pop(self, None) is not None:
            if self._alone:
                wheel.stop()
            return
        cancels = self._task.uncancel()
        if error is None or isinstance(error, KeyboardInterrupt | SystemExit):
            return  # the task finished although it was cancelled: its result is as good as any
        if cancels > self._cancels and isinstance(error, asyncio.CancelledError):
            return  # other code has cancelled the task, too
        raise ToolTimeout(self._tool, wheel.seconds) from error


def _current_task() -> asyncio.Task[object]:
    task = current_task()
    if task is None:
        raise RuntimeError("a time limit needs a running task")
    return task
