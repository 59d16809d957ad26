"""Wakes when a file changes: told by the system where it can tell (inotify), else by looking every few milliseconds.

One thread waits, any may wake or close. Nothing here takes a lock, as the garbage collector may wake a watch in the
middle of anything; what keeps a descriptor open is that somebody still holds the object it belongs to.
"""

from __future__ import annotations

import enum
import math
import os
import queue
import select
import struct
import sys
import threading
from typing import Protocol

from holdfast import checks
from holdfast.clock import SystemClock
from holdfast.errors import StoreError, printable

_LONGEST = 86_400.0  # seconds; what the system can be asked to wait for ends at some weeks
_FIRST_GAP = 0.001

# <sys/inotify.h>
_MODIFY, _MOVED_TO, _CREATE, _DELETE_SELF, _MOVE_SELF = 0x2, 0x80, 0x100, 0x400, 0x800
_UNMOUNT, _OVERFLOW, _IGNORED, _ONLYDIR = 0x2000, 0x4000, 0x8000, 0x1000000
_EVENT = struct.Struct("=iIII")  # watch, mask, cookie, length of the name that follows


class Watch:
    """One file, which need not exist yet; the folder it is in must.

    A write may be seen before it counts: SQLite fills its log first and shows the commit when that is on disk. With
    *settle* a change is told again after it, at growing distances, until so many seconds have passed.
    """

    def __init__(self, path: str, *, poll: float = 0.025, settle: float = 0.0) -> None:
        checks.number("poll", poll, above=0)
        checks.number("settle", settle, least=0)
        folder, name = os.path.split(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise StoreError(f"{printable(folder)}: no such folder, so nothing in it can be watched; make it first")
        self._every = poll
        self._settle = settle
        self._gap = _FIRST_GAP
        self._again = math.inf  # when to tell once more
        self._pid = os.getpid()
        self._closed = False
        self._hearer: int | None = None  # the thread that waits
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()  # which may be put into anywhere
        self._ears = _ears(folder, name)

    @property
    def notified(self) -> bool:
        """Whether the system tells us; else we poll."""
        return self._ears is not None

    @property
    def closed(self) -> bool:
        """Whether it will tell nothing more; in a forked child it will not, as the events are the parent's."""
        return self._closed or self._pid != os.getpid()

    def wait(self, timeout: float | None) -> bool:
        """Block until the file may have been written, created or replaced since the last wait: then true.

        False at the *timeout*, when woken and when closed. Where we poll, each wait ends with true after a short time.
        """
        self._hearer = threading.get_ident()
        end = math.inf if timeout is None else SystemClock.monotonic() + timeout  # what waits here is the system
        while not self.closed and (ears := self._ears) is not None:
            now = SystemClock.monotonic()
            heard = ears.hear(max(0.0, min(end - now, self._again - now, _LONGEST)))
            if heard is _Heard.CHANGE:
                self._gap = _FIRST_GAP
                return self._tell_again_later()
            if heard is _Heard.NEVERMORE:
                self._ears = None
                return True
            if heard is _Heard.WAKE:
                self._forget_wakes()
                return False
            now = SystemClock.monotonic()
            if now >= self._again:
                return self._tell_again_later()
            if now >= end:
                return False
        return self._wait_a_little(end)

    def wake(self) -> None:
        """Let `wait` return false: the one that runs now, else the next."""
        if self._pid == os.getpid():  # what wakes the parent's wait is shared with its children
            if self._wakes.empty():
                self._wakes.put(None)
            if (ears := self._ears) is not None:
                ears.wake()

    def close(self) -> None:
        """End, and let whoever waits go; harmless when it has ended."""
        self._closed = True
        self.wake()
        ears, self._ears = self._ears, None
        if ears is not None and self._pid != os.getpid():
            ears.shut()  # the thread that held them did not come along, but what it held did
        elif ears is not None and self._hearer == threading.get_ident():
            ears.deafen()  # here, and not in whichever thread has just woken this one: it takes milliseconds

    def _wait_a_little(self, end: float) -> bool:
        left = min(self._every, end - SystemClock.monotonic())
        try:
            if not self.closed:
                self._wakes.get(timeout=max(0.0, left))
        except queue.Empty:
            return not self.closed
        self._forget_wakes()
        return False

    def _tell_again_later(self) -> bool:
        self._again = SystemClock.monotonic() + self._gap if self._gap <= self._settle else math.inf
        self._gap *= 2
        return True

    def _forget_wakes(self) -> None:
        while not self._wakes.empty():
            self._wakes.get()


class _Heard(enum.Enum):
    NOTHING = enum.auto()  # of ours
    CHANGE = enum.auto()
    WAKE = enum.auto()
    NEVERMORE = enum.auto()  # what is to be heard will not be told from now on


class _Ears:
    """An inotify instance for one file, and a pipe to be woken by; closed when nobody holds it any more.

    The file is watched for writes and its folder for new names only: a folder may be busy with files of others.
    """

    def __init__(self, libc: _Inotify, folder: str, name: str) -> None:
        self._fds: list[int] = []
        self._inotify = libc
        self._path = os.fsencode(os.path.join(folder, name))
        self._name = os.fsencode(name)
        self._fd = _good(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        self._fds.append(self._fd)
        self._woken, self._waker = os.pipe()
        self._fds += (self._woken, self._waker)
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        mask = _CREATE | _MOVED_TO | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
        self._folder = _good(libc.inotify_add_watch(self._fd, os.fsencode(folder), mask))
        self._file = -1
        self._find_file()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def hear(self, seconds: float) -> _Heard:
        """Wait for something; a wake is left for the next time if there is a change as well."""
        try:
            ready = {fd for fd, _ in self._poll.poll(seconds * 1000)}
            heard = self._understand(os.read(self._fd, 65_536)) if self._fd in ready else _Heard.NOTHING
        except OSError:
            return _Heard.NEVERMORE
        if heard is not _Heard.NOTHING:
            return heard
        if self._woken in ready:
            os.read(self._woken, 4096)
            return _Heard.WAKE
        return _Heard.NOTHING

    def wake(self) -> None:
        try:
            os.write(self._waker, b"\0")
        except BlockingIOError:  # full of wakes that nobody has read yet
            return

    def deafen(self) -> None:
        """Hear nothing more; it can still be woken."""
        self._fds.remove(self._fd)
        os.close(self._fd)

    def shut(self) -> None:
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_fds"):  # else it was interrupted before it had any
            self.shut()

    def _understand(self, events: bytes) -> _Heard:
        heard, at = _Heard.NOTHING, 0
        found = False
        while at < len(events):
            watch, mask, _, length = _EVENT.unpack_from(events, at)
            at += _EVENT.size + length
            if mask & _OVERFLOW:  # anything may have happened
                found = True
            elif watch == self._folder:
                if mask & (_DELETE_SELF | _MOVE_SELF | _UNMOUNT | _IGNORED):
                    return _Heard.NEVERMORE
                found = found or events[at - length : at].rstrip(b"\0") == self._name
            elif watch == self._file and mask & _MODIFY:
                heard = _Heard.CHANGE
        if found:
            self._find_file()
            heard = _Heard.CHANGE
        return heard

    def _find_file(self) -> None:
        """Watch the file that has the name now; done before the change is told, so nothing falls in between."""
        before = self._file
        try:
            self._file = _good(self._inotify.inotify_add_watch(self._fd, self._path, _MODIFY))
        except FileNotFoundError:
            self._file = -1
        if before not in {-1, self._file}:
            self._inotify.inotify_rm_watch(self._fd, before)  # fails if its file is gone, and with it the watch


class _Inotify(Protocol):
    """The three functions of the C library."""

    def inotify_init1(self, flags: int, /) -> int: ...

    def inotify_add_watch(self, fd: int, path: bytes, mask: int, /) -> int: ...

    def inotify_rm_watch(self, fd: int, watch: int, /) -> int: ...


def _ears(folder: str, name: str) -> _Ears | None:
    """None where the system cannot tell, or will not: instances and watches of a user are numbered."""
    if sys.platform != "linux":
        return None
    import ctypes

    try:
        return _Ears(ctypes.CDLL(None, use_errno=True), folder, name)
    except (OSError, AttributeError):
        return None


def _good(answer: int) -> int:
    if answer < 0:
        import ctypes

        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return answer
