"""A clock that is moved by hand, so that a test of hours ends at once.

Its lock guards the table of sleepers and timers; what falls due is taken out under it and fired outside.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import contextvars
import gc
import heapq
import itertools
import logging
import math
import selectors
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from weakref import WeakKeyDictionary

from holdfast import checks
from holdfast.clock import SystemClock, Timer, check_sleep
from holdfast.publishing import Ring
from holdfast.stores.inotify import InotifyWatch
from holdfast.stores.kernel_sync import Ear
from holdfast.stores.watch import Watch
from holdfast.stores.writer import Writer
from holdfast.waiting.threads import Workers
from holdfast.waiting.waits import pause

_log = logging.getLogger("holdfast")


class ManualClock:
    """A clock that stands still until `advance`, a plain `sleep`, or an event loop with nothing left to run moves it.

    Timers and sleeping tasks wake earliest first. Timers asked for in an event loop run in its thread, the others in
    the thread that moves the clock.
    """

    def __init__(self, start: float = 0.0, *, epoch: float | None = None) -> None:
        checks.number("start", start)
        if epoch is not None:
            checks.number("epoch", epoch)
        self.slept: list[float] = []
        self._now = self._start = float(start)
        self._epoch = self._start if epoch is None else float(epoch)
        self._parked: dict[int, _Parked] = {}
        self._heap: list[tuple[float, int]] = []
        self._order = itertools.count()
        self._lock = threading.Lock()
        self._holds = 0
        self._watches: dict[asyncio.AbstractEventLoop, _Watch] = {}
        # Threads of a test runner or a debugger sit in calls that look like work: those that never move do not count.
        self._elders = WeakKeyDictionary({thread: _place(frame) for thread, frame in _threads()})

    def monotonic(self) -> float:
        """Seconds from *start*, as far as the clock has been moved."""
        return self._now

    def time(self) -> float:
        """Seconds since the epoch: *epoch*, or *start*, plus what has passed; `shift_time` and `set_time` move it."""
        return self._epoch + (self._now - self._start)

    def set_time(self, seconds: float) -> None:
        """Let the wall clock jump to *seconds* since the epoch; `monotonic` and timers do not notice."""
        checks.number("seconds", seconds)
        with self._lock:
            self._epoch = seconds - (self._now - self._start)

    def shift_time(self, seconds: float) -> None:
        """Let the wall clock jump by *seconds*, back if negative; `monotonic` and timers do not notice."""
        checks.number("seconds", seconds)
        with self._lock:
            self._epoch += seconds

    def advance(self, seconds: float) -> None:
        """Move on by *seconds*, waking what falls due on the way, each timer at its own time."""
        checks.number("seconds", seconds, least=0.0)
        self._move_by(seconds)

    def sleep(self, seconds: float) -> None:
        """Move the clock on by *seconds*; sleeps of several threads overlap: each sees at least its own time pass."""
        check_sleep(seconds)
        if math.isinf(seconds):
            raise OverflowError("an endless sleep would never return; use a number of seconds")
        self.slept.append(seconds)
        self._move_by(seconds)

    async def asleep(self, seconds: float) -> None:
        """Park the calling task until the clock has moved by *seconds*."""
        check_sleep(seconds)
        self.slept.append(seconds)
        if seconds == 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        parked = self._park(self._now + seconds, lambda: None if woken.done() else woken.set_result(None), loop)
        try:
            await woken
        finally:
            parked.cancel()

    def call_at(self, when: float, fn: Callable[[], object]) -> Timer:
        """Call *fn* once `monotonic()` has reached *when*: at once, or soon in an event loop, if it has already."""
        if math.isnan(when):
            raise ValueError("when is not a number")
        return self._park(when, fn, _running_loop())

    @property
    def pending(self) -> int:
        """The number of sleeping tasks and waiting timers."""
        return sum(parked.loop is None or not parked.loop.is_closed() for parked in list(self._parked.values()))

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While inside, an idle event loop does not move the clock; `advance` and a plain `sleep` still do."""
        with self._lock:
            self._holds += 1
        try:
            yield
        finally:
            with self._lock:
                self._holds -= 1

    def _park(self, when: float, fn: Callable[[], object], loop: asyncio.AbstractEventLoop | None) -> _Parked:
        parked = _Parked(self._parked, next(self._order), when, fn, loop)
        with self._lock:
            due = when <= self._now
            if not due:
                self._parked[parked.order] = parked
                heapq.heappush(self._heap, (when, parked.order))
                if len(self._heap) > 2 * len(self._parked) + 64:  # most entries are cancelled
                    self._heap = sorted((other.when, other.order) for other in list(self._parked.values()))
        if loop is None:
            if due:
                parked.run()
        elif due:
            loop.call_soon(parked.run)
        else:
            self._watch(loop)
        return parked

    def _move_by(self, seconds: float) -> None:
        with self._lock:
            target = self._now + seconds
        self._move_to(target)

    def _move_to(self, target: float) -> None:
        while True:
            with self._lock:
                if not self._heap or self._heap[0][0] > target:
                    self._now = max(self._now, target)
                    return
                when, order = heapq.heappop(self._heap)
                parked = self._parked.pop(order, None)
                if parked is not None:
                    self._now = max(self._now, when)
            if parked is not None:
                parked.fire()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop in self._watches:
            return
        for other in list(self._watches):
            if other.is_closed():
                self._watches.pop(other, None)
        self._watches[loop] = watch = _Watch(self, loop)
        loop.call_soon(watch.look)

    def _next_for(self, loop: asyncio.AbstractEventLoop) -> float | None:
        """Return when the first sleeper or timer is due to which an idle *loop* may move the clock."""
        with self._lock:
            while self._heap and self._heap[0][1] not in self._parked:
                heapq.heappop(self._heap)
            first = self._parked.get(self._heap[0][1]) if self._heap else None
            if first is None or first.loop is None or first.loop is loop:
                candidates = [] if first is None else [first]
            else:
                candidates = [parked for parked in list(self._parked.values()) if parked.loop in (None, loop)]
        return min((parked.when for parked in candidates if math.isfinite(parked.when)), default=None)


class _Parked:
    """One sleeper or timer; the thread that takes it out of the clock's table fires it."""

    __slots__ = ("context", "fn", "loop", "order", "table", "when")

    def __init__(
        self,
        table: dict[int, _Parked],
        order: int,
        when: float,
        fn: Callable[[], object],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.table = table
        self.order = order
        self.when = when
        self.fn: Callable[[], object] | None = fn
        self.loop = loop
        # As on the real clock: an event loop's timer keeps the context of its caller, a plain one has an empty context.
        self.context = contextvars.Context() if loop is None else contextvars.copy_context()

    def cancel(self) -> None:
        # Without the clock's lock: the garbage collector may close a sleeping coroutine in a thread that holds it.
        self.fn = None
        self.table.pop(self.order, None)

    def fire(self) -> None:
        if self.loop is None or self.loop is _running_loop():
            self.run()
        else:
            with suppress(RuntimeError):  # its event loop is closed: no task is left to wake
                self.loop.call_soon_threadsafe(self.run)

    def run(self) -> None:
        fn, self.fn = self.fn, None
        if fn is None:
            return
        try:
            self.context.run(fn)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            _log.exception("a timer's callback failed")


_BLIND_TURNS = 20  # turns after which an event loop that does not show its ready queue counts as idle
_LOOK = 0.001  # real seconds between two looks at threads at work
_GRACE = 20  # looks that a waiting thread or an open socket gets to wake up
_PATIENCE = 1000  # looks for which a thread may stay at one place in its code before it counts as hanging
_POOL_WORKER = concurrent.futures.thread._worker.__code__
_JOB_WORKER = Workers._serve.__code__
_WAITS = frozenset(
    {
        _POOL_WORKER,
        pause.__code__,
        InotifyWatch.hear.__code__,
        Ring.wait.__code__,
        Watch._wait_a_little.__code__,
        Writer._listen.__code__,
        threading.Condition.wait.__code__,
        threading.Thread.join.__code__,
        getattr(threading.Thread, "_wait_for_tstate_lock", threading.Thread.join).__code__,
        selectors.DefaultSelector.select.__code__,
    }
)


class _Watch:
    """Moves the clock on when its event loop has nothing to run and no other thread is at work for it."""

    def __init__(self, clock: ManualClock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._turns = 0
        self._looks = 0  # looks since a thread was last seen to move
        self._places: frozenset[tuple[threading.Thread, CodeType, int]] = frozenset()

    def look(self) -> None:
        clock, loop = self._clock, self._loop
        when = clock._next_for(loop)
        if when is None:
            clock._watches.pop(loop, None)
        elif clock._holds:
            self._looks = 0
            self._look_later()
        elif self._loop_at_work():
            self._looks = 0
            loop.call_soon(self.look)
        elif self._others_at_work():
            self._looks += 1
            self._look_later()
        elif self._has_ready():  # a thread gave the loop work between the two checks
            self._looks = 0
            loop.call_soon(self.look)
        else:
            self._looks = 0
            clock._move_to(when)
            loop.call_soon(self.look)

    def _look_later(self) -> None:
        """Look again after a moment of real time, even if the event loop's own clock stands still."""
        if self._loop.time() != self._loop.time():
            self._loop.call_later(_LOOK, self.look)
        else:  # the loop's clock is frozen, and its timers would never fire
            SystemClock.sleep(_LOOK)
            self._loop.call_soon(self.look)

    def _loop_at_work(self) -> bool:
        if hasattr(self._loop, "_ready"):
            return self._has_ready()
        self._turns += 1
        return self._turns % _BLIND_TURNS != 0

    def _has_ready(self) -> bool:
        # The look of another manual clock does not count as work: two clocks would wait for each other.
        ready = list(getattr(self._loop, "_ready", ()))
        return any(getattr(handle._callback, "__func__", None) is not _Watch.look for handle in ready)

    def _others_at_work(self) -> bool:
        """True if another thread or a socket may still have work for the loop."""
        threads = _threads()
        idle, handed = self._pool(threads)
        elders = self._clock._elders
        others = [
            (thread, frame)
            for thread, frame in threads
            if thread is not threading.current_thread() and thread not in idle and _place(frame) != elders.get(thread)
        ]
        if not others and not handed and not self._has_files():
            return False
        places = frozenset((thread, *_place(frame)) for thread, frame in others if not _waits(thread, frame))
        if places != self._places:
            self._places, self._looks = places, 0
        return self._looks < (_PATIENCE if places or handed else _GRACE)

    def _has_files(self) -> bool:
        """True if the loop may hear of other files than its own, and the logs of stores that nothing is synced of."""
        selector = getattr(self._loop, "_selector", None)
        if selector is None:
            return True
        ears = [getattr(key.data[0], "_callback", None) for key in selector.get_map().values()]
        return sum(not isinstance(ear, Ear) or ear.is_waiting for ear in ears) > 1

    def _pool(self, threads: list[tuple[threading.Thread, FrameType]]) -> tuple[set[threading.Thread], bool]:
        """Return the idle threads of the loop's pool, and whether one of them is still to wake for a job."""
        pool = getattr(self._loop, "_default_executor", None)
        if not isinstance(pool, concurrent.futures.ThreadPoolExecutor):
            return set(), False
        resting = {thread for thread, frame in threads if thread in pool._threads and frame.f_code is _POOL_WORKER}
        # Two checks: a queue may pass a job on without ever holding it, and 3.11 counts too many threads as idle.
        handed = len(resting) > pool._idle_semaphore._value or (bool(resting) and not pool._work_queue.empty())
        return (set() if handed else resting), handed


def _threads() -> list[tuple[threading.Thread, FrameType]]:
    collects = sys.version_info < (3, 12) and gc.isenabled()
    try:
        if collects:
            gc.disable()  # 3.11 may collect garbage while it holds a lock that the collector needs: a deadlock
        frames = sys._current_frames()
    finally:
        if collects:
            gc.enable()
    return [(thread, frames[thread.ident]) for thread in threading.enumerate() if thread.ident in frames]


def _place(frame: FrameType) -> tuple[CodeType, int]:
    return frame.f_code, frame.f_lasti


def _waits(thread: threading.Thread, frame: FrameType) -> bool:
    """True if *thread* waits for another thread instead of working."""
    if frame.f_code is _JOB_WORKER:
        return bool(frame.f_locals["inbox"].empty())  # if not empty, it is about to wake for a job
    # The loop of a Holdfast thread waits for its next job in ways that no frame shows; a job itself is a frame deeper.
    outermost = frame.f_back is not None and frame.f_back.f_code is threading.Thread.run.__code__
    return frame.f_code in _WAITS or (outermost and thread.name.startswith("holdfast-"))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
