"""Wakes when a file changes: by inotify where the system has it, otherwise every few milliseconds.

One thread waits, any thread may wake or close. Nothing here takes a lock, as the garbage collector may wake a watch in
the middle of anything; a descriptor stays open as long as there is a reference to the object it belongs to.
"""

from __future__ import annotations

import math
import os
import queue
import threading

from holdfast import checks
from holdfast.clock import SystemClock
from holdfast.errors import StoreError, printable
from holdfast.stores.inotify import inotify_watch_for

_LONGEST = 86_400.0  # seconds; the system accepts waits of up to some weeks
_FIRST_GAP = 0.001


class Watch:
    """Watches one file, which need not exist yet; the folder it is in must.

    A write may be seen before it counts: SQLite fills its log first and shows the commit when that is on disk. So a
    change is reported again, at growing intervals, for about *settle* seconds.
    """

    def __init__(self, path: str, *, poll: float = 0.025, settle: float = 0.0) -> None:
        checks.number("poll", poll, above=0)
        checks.number("settle", settle, least=0)
        folder, name = os.path.split(os.path.abspath(path))
        if not os.path.isdir(folder):
            missing = printable(folder, 300)
            raise StoreError(f"{missing}: no such folder, so nothing in it can be watched; make it first")
        self._every = poll
        self._settle = settle
        self._gap = _FIRST_GAP
        self._again = math.inf  # when to report the last change again
        self._pid = os.getpid()
        self._closed = False
        self._hearer: int | None = None  # the thread that waits
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()  # safe to put into from anywhere
        self._inotify = inotify_watch_for(folder, name)

    @property
    def notified(self) -> bool:
        """True if the system reports changes; otherwise the watch polls."""
        return self._inotify is not None

    @property
    def closed(self) -> bool:
        """True if it will report nothing more; always so in a forked child, as the events are the parent's."""
        return self._closed or self._pid != os.getpid()

    def wait(self, timeout: float | None) -> bool:
        """Block until the file may have been written, created or replaced since the last wait, and return True.

        False at the *timeout*, when woken and when closed. When polling, each wait returns True after a short time.
        """
        self._hearer = threading.get_ident()
        end = math.inf if timeout is None else SystemClock.monotonic() + timeout  # real time: it waits for the system
        while not self.closed and (inotify := self._inotify) is not None:
            now = SystemClock.monotonic()
            try:
                changed = inotify.hear(max(0.0, min(end - now, self._again - now, _LONGEST)))
            except OSError:
                self._inotify = None  # from now on we poll
                return True
            if changed:
                self._gap = _FIRST_GAP
                return self._tell_again_later()
            if self._took_wakes():
                return False
            now = SystemClock.monotonic()
            if now >= self._again:
                return self._tell_again_later()
            if now >= end:
                return False
        return self._wait_a_little(end)

    def wake(self) -> None:
        """Make `wait` return False: the one in progress, otherwise the next."""
        if self._pid == os.getpid():  # the pipe that wakes the parent is shared with its children
            if self._wakes.empty():
                self._wakes.put(None)
            if (inotify := self._inotify) is not None:
                inotify.wake()

    def close(self) -> None:
        """End the watch and wake the thread that waits; harmless when it has ended."""
        self._closed = True
        self.wake()
        inotify, self._inotify = self._inotify, None
        if inotify is not None and self._pid != os.getpid():
            inotify.shut()  # the thread that waits is not in the child, but its references are
        elif inotify is not None and self._hearer == threading.get_ident():
            inotify.deafen()  # here, not in the thread that has just woken this one: it takes milliseconds

    def _wait_a_little(self, end: float) -> bool:
        """Poll: True when the time is over, as a change cannot be ruled out then."""
        left = min(self._every, end - SystemClock.monotonic())
        try:
            if not self.closed:
                self._wakes.get(timeout=max(0.0, left))
        except queue.Empty:
            return not self.closed
        self._took_wakes()
        return False

    def _tell_again_later(self) -> bool:
        self._again = SystemClock.monotonic() + self._gap if self._gap <= self._settle else math.inf
        self._gap *= 2
        return True

    def _took_wakes(self) -> bool:
        """Remove all wakes from the queue; True if there were any."""
        woken = False
        while not self._wakes.empty():
            self._wakes.get()
            woken = True
        return woken
