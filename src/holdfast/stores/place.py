"""Where an SQLite file lies: made if there is none, and still the same file whenever it is used.

SQLite itself would not notice that its file was deleted or replaced, and write on to one that nobody can find. So it is
with its log, which the last process to close the file deletes. It may take itself for the last: whoever opens the file
for himself and closes it, to copy or to search it, say, takes the locks of his whole process from it.
"""

from __future__ import annotations

import contextlib
import os

from holdfast.errors import StoreError
from holdfast.stores.trouble import unreachable


class Place:
    """The file at *path*, which is shown as *name*."""

    __slots__ = ("_log", "_name", "_opened", "_path")

    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self._name = name
        self._opened: tuple[int, int] | None = None  # device and inode of the file that was opened
        self._log: tuple[int, int] | None = None  # the same of the index of its log

    def exists(self) -> bool:
        """Whether there is a file; what may not be looked at is an error, not nothing."""
        try:
            return self._opened is not None or _is_there(self._path)
        except OSError as error:
            raise unreachable(self._name, error) from error

    def make(self) -> None:
        """Make the file if there is none: empty, and for this user alone. SQLite takes an empty file for a new one."""
        path, name = self._path, self._name
        if _size(path) == 0 and _size(f"{path}-wal") > 0 and _size(path) == 0:  # asked again: others make it, too
            raise StoreError(
                f"{name}: is gone or empty, but its log ({os.path.basename(name)}-wal) is there; put the database "
                "back, or delete the log if what is in it is not needed"
            )
        if not _is_there(path):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def note(self) -> None:
        """The file that is here now is the one that was opened; its log, too, unless another one is open still."""
        found = os.stat(self._path)
        self._opened = (found.st_dev, found.st_ino)
        self._log = self._log or _log_of(self._path)

    def has_lost_log(self) -> bool:
        """Whether the log that was opened is no longer here."""
        return self._log is not None and self._log != _log_of(self._path)

    def has_log(self) -> bool:
        """Whether others can find what is written: for all of a process SQLite may still use one that was deleted."""
        self._log = self._log or _log_of(self._path)
        return self._log is not None and not self.has_lost_log()

    def forget_log(self) -> None:
        """None is open any more."""
        self._log = None

    def forget(self) -> None:
        """The next one may be another."""
        self._opened = None

    def check(self) -> None:
        """That the file which was opened is still here."""
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


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def _log_of(path: str) -> tuple[int, int] | None:
    """What tells the log of the file at *path* from others; None if there is none.

    Its index does: nobody may ask for the log itself, as `room` says.
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
