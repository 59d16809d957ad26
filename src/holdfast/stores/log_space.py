"""Lengthens SQLite's log before it is needed: commits that need not lengthen it take half to two thirds of the time.

When a file grows, the file system must also record where the new piece lies, which is another write to the disk. SQLite
starts its log over once it is four megabytes long, and needs no more from there on; most processes end before.

So zeros are appended to the log. SQLite takes them for leftovers of an earlier use: a frame of the log counts only if
it continues the one before. The log must not be passed to `stat` while commits are to be quick: since Linux 6.13 a file
whose times were read has them written anew with its next change, and each commit would take as long as before. Nor may
the zeros be written in one go: since Linux 6.16 ext4 keeps what was written at once as one piece of memory, and every
small write into a large piece looks through all of it; commits of single steps took an eighth longer.
"""

from __future__ import annotations

import contextlib
import os

FIRST = 512 * 1024  # bytes
MOST = 4 * 1024 * 1024  # bytes; somewhat more than the 1,000 pages after which SQLite starts its log over
EACH = 24 * 1024  # bytes for an event: three changed pages, and more, as a new file has its tables in the log, too
PIECE = 64 * 1024  # bytes of zeros written at once
NEVER = 2**63


class LogSpace:
    """Lengthens the log at *path*, twice as far each time; not if *path* is None, as commits then do not sync."""

    __slots__ = ("_length", "_path", "enough", "events")

    def __init__(self, path: str | None) -> None:
        self._path = path
        self.begin()

    def begin(self) -> None:
        """Start over, as the log may be a new one."""
        self._length = FIRST
        self.events = 0  # written to the log so far
        self.enough = NEVER if self._path is None else 0  # events for which the log is long enough

    def make(self) -> None:
        """Lengthen the log, even if another process has cut it; only in a transaction, so that no other writes."""
        assert self._path is not None
        with contextlib.suppress(OSError):  # if anything is wrong, the commit itself will say so
            _lengthen(self._path, self._length)
        self.enough = self.events + self._length // EACH
        self._length = min(2 * self._length, MOST)


def _lengthen(path: str, length: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_APPEND)  # overwrites nothing, whichever process wrote it
    try:
        missing = length - os.lseek(handle, 0, os.SEEK_END)
        while missing > 0:
            missing -= os.write(handle, bytes(min(missing, PIECE)))
    finally:
        os.close(handle)
