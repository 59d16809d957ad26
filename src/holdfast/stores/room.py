"""Room in SQLite's log before it is needed: commits that need not lengthen it take half to two thirds of the time.

With a new length the file system has to write down where the new piece lies, and that is another trip to the disk.
SQLite begins its log again once it is four megabytes long, and needs no more from there on; most processes end before.

So zeros are written behind what is in it. To SQLite they are what an earlier use has left there: a piece of the log
counts only if it goes on from the one before. Nobody may ask for its length by `stat`: since Linux 6.13 a file whose
times were looked at writes them down anew with its next change, and each commit would take as long as before.
"""

from __future__ import annotations

import contextlib
import os

FIRST = 512 * 1024  # bytes
MOST = 4 * 1024 * 1024  # somewhat more than the 1,000 pages after which SQLite begins again
EACH = 24 * 1024  # bytes for an event, with which three pages change, and more: a new file has its tables in there, too
NEVER = 2**63


class Room:
    """Room in the log at *path*, twice as much each time; none where nothing waits for the disk (*path* is None)."""

    __slots__ = ("_length", "_path", "enough", "events")

    def __init__(self, path: str | None) -> None:
        self._path = path
        self.begin()

    def begin(self) -> None:
        """The log may be a new one."""
        self._length = FIRST
        self.events = 0  # that were written to it
        self.enough = NEVER if self._path is None else 0  # for so many events

    def make(self) -> None:
        """Make more, also where others have cut it; only for whoever has begun to write, as then nobody else does."""
        assert self._path is not None
        with contextlib.suppress(OSError):  # the commit itself says what is wrong, if anything is
            _lengthen(self._path, self._length)
        self.enough = self.events + self._length // EACH
        self._length = min(2 * self._length, MOST)


def _lengthen(path: str, length: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND)  # over nothing that is there, whoever may have put it there
    try:
        missing = length - os.lseek(handle, 0, os.SEEK_END)
        if missing > 0:
            os.write(handle, bytes(missing))
    finally:
        os.close(handle)
