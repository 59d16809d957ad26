"""The path of an SQLite file: creates the file if it is missing, and checks on each use that it is still the same one.

SQLite itself does not notice that its file was deleted or replaced, and goes on writing to one that nothing can find.
The same goes for its log, which the last process that closes the file deletes. A process may wrongly take itself for
the last: when another one opens and closes the file directly, to copy or search it, say, the system drops all locks
which that process has on the file.

Three looks before each commit would cost half as much as its statements. One at the folder is enough as long as its
time of change stays the same: then no file in it has come, gone or been renamed. That counts only if the time is older
than the steps in which its file system counts, and only for a moment, as there may be some that do not keep it. A
process that writes much has the system tell it of such changes, which counts for a moment, too.
"""

from __future__ import annotations

import contextlib
import os

from holdfast.clock import SystemClock
from holdfast.errors import StoreError
from holdfast.folders import make_folder
from holdfast.stores.inotify import FolderNews, folder_news_for
from holdfast.stores.trouble import unreachable

STEP = 3.0  # seconds; longer than the steps in which any file system counts
FINE = 0.1  # seconds; longer than the steps of those that count in less than a COARSE one: a tick of the system's clock
COARSE = 10_000_000  # nanoseconds
TRUST = 0.1  # seconds for which the folder alone is looked at
MUCH = 500  # commits after which the system is to tell of changes; few processes need that, as a user can have few


class Place:
    """The file at *path*, called *name* in errors."""

    __slots__ = ("_asked", "_folder", "_log", "_looked_at", "_name", "_news", "_opened", "_path", "_whole")

    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self._folder = os.path.dirname(path)
        self._name = name
        self._opened: tuple[int, int] | None = None  # device and inode of the file that was opened
        self._log: tuple[int, int] | None = None  # device and inode of its log's index (-shm)
        self._whole: tuple[int, int, int] | None = None  # the folder, with its time, when both were last found there
        self._looked_at = 0.0  # when that was
        self._asked = 0  # how often `is_whole` was asked, since the system was asked to tell
        self._news: FolderNews | None = None

    def exists(self) -> bool:
        """True if there is a file; raises a `StoreError` if the path cannot be examined."""
        try:
            return self._opened is not None or _is_there(self._path)
        except OSError as error:
            raise unreachable(self._name, error) from error

    def make(self) -> None:
        """Create the file if it is missing: empty, which SQLite takes for new, and accessible to this user alone."""
        path, name = self._path, self._name
        if _size(path) == 0 and _size(f"{path}-wal") > 0 and _size(path) == 0:  # twice: another process may create it
            raise StoreError(
                f"{name}: is gone or empty, but its log ({os.path.basename(name)}-wal) is there; put the database "
                "back, or delete the log if what is in it is not needed"
            )
        if not _is_there(path):
            make_folder(os.path.dirname(path))  # SQLite syncs the folder of the file, but not those above it
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def note(self) -> None:
        """Remember the file now at the path as the one that was opened, and its log if none is remembered yet."""
        found = os.stat(self._path)
        self._opened = (found.st_dev, found.st_ino)
        self._log = self._log or _log_of(self._path)
        self._whole = None

    def is_whole(self) -> bool:
        """Raise a `StoreError` if the file that was opened is no longer at its path; False if its log is not."""
        now, news = SystemClock.time(), self._news
        self._asked += 1
        if self._whole is not None and 0 <= now - self._looked_at < TRUST:
            is_same = _changed(self._folder) == self._whole if news is None else not news.since(0)
            if is_same:
                return True
        return self._look(now, news)

    def _look(self, now: float, news: FolderNews | None) -> bool:
        if self._asked > MUCH:  # where it cannot be had, it is asked for again after as many
            self._asked = 0
            news = news or folder_news_for(self._folder)
        if news is not None and not news.hear():  # first: what happens from now on, it tells next time
            news = None
        self._news = news
        folder = _changed(self._folder)
        self.check()
        if not self.has_log():
            return False
        is_known = news is not None or (folder is not None and _is_settled(folder[2], now))
        self._whole = folder if is_known else None
        self._looked_at = now
        return True

    def has_lost_log(self) -> bool:
        """True if the log that was opened is no longer at its path."""
        return self._log is not None and self._log != _log_of(self._path)

    def has_log(self) -> bool:
        """True if others can find what is written: all connections of this process may still use a deleted log."""
        self._log = self._log or _log_of(self._path)
        return self._log is not None and not self.has_lost_log()

    def log_age(self) -> float:
        """Seconds since any process has written to the log; only for a process that has to wait anyway, as the next
        commit takes longer after it.
        """
        try:
            return SystemClock.time() - os.stat(f"{self._path}-wal").st_mtime
        except OSError:
            return 0.0

    def forget_log(self) -> None:
        """Forget the log: no connection has it open any more."""
        self._log = self._whole = self._news = None

    def forget(self) -> None:
        """Forget the file: the next one that is opened may be another."""
        self._opened = self._whole = None

    def check(self) -> None:
        """Raise a `StoreError` if the file that was opened is no longer at its path."""
        opened = self._opened
        if opened is None:
            return
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            raise StoreError(
                f"{self._name}: was deleted or moved while in use; put it back, or close the store: its next use "
                "begins a new file"
            ) from None
        except OSError as error:
            raise unreachable(self._name, error) from error
        if (found.st_dev, found.st_ino) != opened:
            raise StoreError(
                f"{self._name}: was replaced by another file while in use; put it back, or close the store: its "
                "next use opens the other one"
            )


def _is_settled(changed: int, now: float) -> bool:
    """True if the next change would have another time than *changed* (ns)."""
    return now - changed / 1e9 > (FINE if changed % COARSE else STEP)


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def _changed(folder: str) -> tuple[int, int, int] | None:
    """Device and inode of a folder, and when a file in it last came, went or was renamed; None if it is not there."""
    try:
        found = os.stat(folder)
    except OSError:  # the look at the file says what is wrong
        return None
    return (found.st_dev, found.st_ino, found.st_ctime_ns)


def _log_of(path: str) -> tuple[int, int] | None:
    """Device and inode of the log's index (-shm), which identify the log of the file at *path*; None if there is none.

    The log itself must not be passed to `stat`, as `log_space` explains.
    """
    try:
        found = os.stat(f"{path}-shm")
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if os.access(f"{path}-wal", os.F_OK) else None


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0
