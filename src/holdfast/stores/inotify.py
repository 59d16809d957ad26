"""Notices changes by Linux's inotify: of one file, or of the names in a folder.

A file is watched for writes and its folder for new names only: other files in the folder may be written all the time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Protocol

# <sys/inotify.h>
_MODIFY, _MOVED_FROM, _MOVED_TO = 0x2, 0x40, 0x80
_CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x100, 0x200, 0x400, 0x800
_UNMOUNT, _OVERFLOW, _IGNORED, _ONLYDIR = 0x2000, 0x4000, 0x8000, 0x1000000
_EVENT = struct.Struct("=iIII")  # watch, mask, cookie, length of the name that follows


def inotify_watch_for(folder: str, name: str) -> InotifyWatch | None:
    """The watch of a file; None if the system has no inotify, or a user's limit of instances or watches is reached."""
    libc = load()
    try:
        return None if libc is None else InotifyWatch(libc, folder, name)
    except (OSError, AttributeError):
        return None


def folder_news_for(folder: str) -> FolderNews | None:
    """The news of a folder; None where `inotify_watch_for` gives none either."""
    libc = load()
    try:
        return None if libc is None else FolderNews(libc, folder)
    except (OSError, AttributeError):
        return None


def load() -> _Inotify | None:
    """The C library; None if there can be no inotify.

    Called before a fork, too: a module that another thread is importing then could never be imported in the child.
    """
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        return ctypes.CDLL(None, use_errno=True)
    except (ImportError, OSError):  # a Python that was built without ctypes
        return None


class InotifyWatch:
    """An inotify instance and a pipe to wake the thread that waits; closed with the last reference to it."""

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

    def hear(self, seconds: float) -> bool:
        """Wait for a change, a wake or *seconds*; True if there was a change: a wake then waits for the next call.

        Raises an `OSError` if no change will be reported from now on.
        """
        ready = {fd for fd, _ in self._poll.poll(seconds * 1000)}
        if self._fd in ready and self._understand(os.read(self._fd, 65_536)):
            return True
        if self._woken in ready:
            os.read(self._woken, 65_536)
        return False

    def wake(self) -> None:
        """Make `hear` return: the one in progress, otherwise the next."""
        try:
            os.write(self._waker, b"\0")
        except BlockingIOError:  # full of wakes that were not read yet
            return

    def deafen(self) -> None:
        """Stop watching; `wake` still works."""
        self._fds.remove(self._fd)
        os.close(self._fd)

    def shut(self) -> None:
        """Close everything; no thread may use it meanwhile."""
        fds, self._fds = self._fds, []
        for fd in fds:
            with contextlib.suppress(OSError):  # a process that became a daemon, say, has closed all
                os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_fds"):  # otherwise `__init__` was interrupted before it had any
            self.shut()

    def _understand(self, events: bytes) -> bool:
        """Whether one of *events* is a change."""
        written = named = False
        for watch, mask, name in _told(events):
            if mask & _OVERFLOW:  # events were lost: anything may have happened
                named = True
            elif watch == self._folder:
                if mask & (_DELETE_SELF | _MOVE_SELF | _UNMOUNT | _IGNORED):
                    raise FileNotFoundError(errno.ENOENT, "the folder is gone")
                named = named or name == self._name
            elif watch == self._file and mask & _MODIFY:
                written = True
        if named:
            self._find_file()
        return written or named

    def _find_file(self) -> None:
        """Watch the file that has the name now; done before the change is reported, so that no write is missed."""
        before = self._file
        try:
            self._file = _good(self._inotify.inotify_add_watch(self._fd, self._path, _MODIFY))
        except FileNotFoundError:
            self._file = -1
        if before not in {-1, self._file}:
            self._inotify.inotify_rm_watch(self._fd, before)  # fails if its file is gone, and with it the watch


class FolderNews:
    """Whether names in a folder have come, gone or changed; asking costs a fifth of what a look at the folder does.

    One thread at a time asks; closed with the last reference to it.
    """

    def __init__(self, libc: _Inotify, folder: str) -> None:
        self._fd = -1
        self._fd = _good(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        mask = _CREATE | _MOVED_TO | _MOVED_FROM | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
        _good(libc.inotify_add_watch(self._fd, os.fsencode(folder), mask))
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        self.since: Callable[[int], object] = poll.poll  # `since(0)` is empty if there was nothing since `hear`

    def hear(self) -> bool:
        """Take note of everything so far; False if nothing will be told any more, as the folder is gone, say."""
        try:
            while True:
                for _, mask, _ in _told(os.read(self._fd, 65_536)):
                    if mask & (_DELETE_SELF | _MOVE_SELF | _UNMOUNT | _IGNORED):
                        return False
        except BlockingIOError:  # there is no more
            return True
        except OSError:  # a process that became a daemon, say, has closed it
            return False

    def __del__(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)


class _Inotify(Protocol):
    """The three functions of the C library."""

    def inotify_init1(self, flags: int, /) -> int: ...

    def inotify_add_watch(self, fd: int, path: bytes, mask: int, /) -> int: ...

    def inotify_rm_watch(self, fd: int, watch: int, /) -> int: ...


def _told(events: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Watch, mask and name of each event."""
    at = 0
    while at < len(events):
        watch, mask, _, length = _EVENT.unpack_from(events, at)
        at += _EVENT.size + length
        yield watch, mask, events[at - length : at].rstrip(b"\0")


def _good(answer: int) -> int:
    if answer < 0:
        import ctypes

        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return answer
