"""Transactions on an SQLite file that wait for nobody: commits write to its log, and leave it to others to sync that.

Readers see them at once. What is committed later, by any process, is on disk only if they are: it follows in the log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.stores.database import NotNow

if TYPE_CHECKING:
    import sqlite3

    from holdfast.stores.sqlite import SqliteFile

MOST_PAGES = 1000  # of the log, after which a commit copies it into the database; SQLite's own number


class Haste:
    """The hasty transactions of *file*; *is_on* while its connection is set for them."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._log: LogHandle | None = None
        self.is_on = False

    def begin(self) -> None:
        """Begin one, which trusts what is in memory.

        Raises `NotNow` if another process is writing, or the log must be lengthened or copied into the database first.
        """
        cursor = self._file.ready()
        if cursor is None:
            raise NotNow("the log needs care")
        try:
            if not self.is_on:
                self._set(cursor, "NORMAL", 0)
            self.log()
            cursor.execute("BEGIN IMMEDIATE")
        except Exception as error:
            raise NotNow(str(error)) from error
        self._file.note_begin(trusting=True)

    def turn_off(self, cursor: sqlite3.Cursor) -> None:
        """Have the connection sync its commits again."""
        self._set(cursor, "FULL", MOST_PAGES)
        self.is_on = False

    def _set(self, cursor: sqlite3.Cursor, synchronous: str, pages: int) -> None:
        self.is_on = True  # if only one of them is set, too
        cursor.execute(f"PRAGMA synchronous = {synchronous}")
        cursor.execute(f"PRAGMA wal_autocheckpoint = {pages}")

    def log(self) -> int:
        """The handle of the log that commits write to."""
        if self._log is None:
            self._log = LogHandle(f"{self._file.path}-wal")
        return self._log.number

    def sync(self) -> None:
        """Put all that is in the log on disk."""
        with contextlib.suppress(FileNotFoundError):  # whoever deleted it has copied it into the database
            os.fdatasync(self.log())

    def distrust(self) -> None:
        """Begin a new log, as the disk has failed to write this one."""
        self._file.distrust()

    def forget(self) -> None:
        """Forget the connection, which is closed, and the handle."""
        self._log = None
        self.is_on = False


class LogHandle:
    """The log at *path*, open until nobody refers to this; `open` would look at its times, see `log_space`."""

    __slots__ = ("number",)

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        with contextlib.suppress(AttributeError):  # it could not be opened
            close(self.number)
