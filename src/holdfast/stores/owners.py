"""Shows which owners of runs are alive on this host: each has a file beside the database, locked while it is alive.

The system releases the lock when the process ends, however it ends. An owner locks its file before the file gets the
name that others look for, and a process that asks takes a shared lock for a moment: so it disturbs neither the owner
nor other processes that ask.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterator

from holdfast.checks import shown
from holdfast.errors import ConfigError, StoreError, printable
from holdfast.folders import make_folder
from holdfast.stores.neighbours import this_host
from holdfast.stores.watch import Watch

POLL = 0.25  # seconds between two looks at the mailbox where the system does not notify

_OWNER, _NEW = ".owner", ".new"
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}  # errors of a file system without locks
_TRIES = 100
_log = logging.getLogger("holdfast")
_UNLOCKED = b"no lock: the lease decides\n"  # after the first byte, which is for pokes


class LockFiles:
    """The owners' files in *folder*; the lock of a process on another host may not be visible here."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._host = this_host()

    def take(self, owner: str) -> OwnerFile:
        """Make the locked file of *owner*, which is this process; files of dead owners are removed on the way."""
        with contextlib.suppress(OSError):  # making the file will say what is wrong
            make_folder(os.path.dirname(self._folder))  # this process may be the first here
        file = OwnerFile(self._folder, owner)
        try:
            self.sweep()
        except StoreError as error:  # no reason to fail
            _log.warning("files of dead owners could not be removed: %s", error)
        return file

    def is_living(self, owner: str, host: str, *, locked: bool | None) -> bool | None:
        """True if *owner* is alive; None if that cannot be told, as for one of another *host* without a lock here."""
        living = _asked(_path(self._folder, owner))
        return None if living is False and host != self._host else living

    def is_gone(self, owner: str) -> bool:
        """True if *owner*, a process of this host, has surely ended; False if it is alive or if that cannot be told."""
        return _asked(_path(self._folder, owner)) is False

    def poke(self, owner: str) -> None:
        """Write to the file of *owner*, so that its watch wakes; do nothing if the file is gone, or another user's."""
        path = _path(self._folder, owner)
        with _explained(path, "its owner cannot be woken; see that it is a file this user may write"):
            try:
                fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except (FileNotFoundError, PermissionError):
                return
            try:
                os.pwrite(fd, b"\1", 0)
            finally:
                os.close(fd)

    def sweep(self) -> int:
        """Remove the files of owners that have ended; return how many. Files that are no owner's stay."""
        removed = 0
        with _explained(self._folder, "cannot be tidied; see that it is a folder this user may write to"):
            for path in _files(self._folder):
                if _living(path) is False:
                    with contextlib.suppress(FileNotFoundError, PermissionError):  # swept by others, or another user's
                        os.unlink(path)
                        removed += 1
        return removed


class OwnerFile:
    """The file of this process: shows others that it is alive, until it is closed or the process ends.

    *owner* is a token that no other process has or had. Where the file system has no locks, *locked* is False, and only
    the lease shows that this process is alive.
    """

    _fd: int | None = None  # also if `__init__` was interrupted before it had one

    def __init__(self, folder: str, owner: str) -> None:
        self.path = _path(folder, owner)
        self._folder = folder
        self._pid = os.getpid()
        if os.path.lexists(self.path) and _asked(self.path) is not False:
            raise StoreError(f"{printable(self.path, 300)}: a living process has this name; take another")
        with _explained(self.path, "an owner's file cannot be made there; see that this user may write to its folder"):
            self._fd, self.locked = _make(folder, self.path)

    def close(self) -> None:
        """Remove the file, and its folder if nothing else is in it; harmless when done already."""
        if self._fd is not None and self._pid == os.getpid():
            with _explained(self.path, "cannot be removed; remove it when this process has ended"):
                try:
                    with contextlib.suppress(FileNotFoundError):  # another process has swept it
                        os.unlink(self.path)
                finally:
                    self._let_go()
            with contextlib.suppress(OSError):  # not empty, or may not be removed: it stays
                os.rmdir(self._folder)
        self._let_go()

    def __del__(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(StoreError, OSError):  # then the file stays, unlocked, for others to sweep
                self.close()

    def poked(self) -> bool:
        """True if another process has poked this one since the last call; one system call if none has."""
        if self._fd is None or os.pread(self._fd, 1, 0) != b"\1":
            return False
        os.pwrite(self._fd, b"\0", 0)  # before the caller looks for what is new: a poke from now on is another one
        return True

    def mailbox(self) -> Watch:
        """A watch that wakes when another process has poked this one."""
        return Watch(self.path, poll=POLL)

    def after_fork(self) -> None:
        """In a forked child: the lock is the parent's, and must not outlive it here."""
        self._let_go()

    def _let_go(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):  # a process that became a daemon, say, has closed all
                os.close(fd)


def _path(folder: str, owner: str) -> str:
    if not isinstance(owner, str) or not owner.isascii() or not owner.replace("-", "").isalnum() or len(owner) > 200:
        raise ConfigError(f"owner = {shown(owner)}: must be 1 to 200 letters, digits and dashes")
    return os.path.join(folder, owner + _OWNER)


def _files(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [e.path for e in entries if e.name.endswith((_OWNER, _NEW)) and e.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _make(folder: str, path: str) -> tuple[int, bool]:
    """Make the file; return its descriptor and whether it is locked. Others may remove its empty folder meanwhile."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        with contextlib.suppress(FileNotFoundError, BlockingIOError):  # a sweep may hold the new file for a moment
            return _try_to_make(folder, path)
    raise FileNotFoundError(errno.ENOENT, "removed by others each time it was made")


def _try_to_make(folder: str, path: str) -> tuple[int, bool]:
    new = os.path.join(folder, os.urandom(8).hex() + _NEW)
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        locked = _lock(fd, fcntl.LOCK_EX)
        os.write(fd, b"\0" if locked else b"\0" + _UNLOCKED)
        os.rename(new, path)
    except BaseException:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        raise
    return fd, locked


def _asked(path: str) -> bool | None:
    with _explained(path, "cannot be asked whether its owner lives; see that it is a file this user may read"):
        return _living(path)


def _living(path: str) -> bool | None:
    """True if the owner of a file is alive; None if that cannot be told."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except PermissionError:
        return None
    try:
        has_locks = _lock(fd, fcntl.LOCK_SH)
        # If the owner found no locks (its file is longer then), being able to take one now says nothing.
        return False if has_locks and os.fstat(fd).st_size <= 1 else None
    except BlockingIOError:  # the owner has it
        return True
    finally:
        os.close(fd)


def _lock(fd: int, kind: int) -> bool:
    """Take a lock, which lasts until the last copy of *fd* is closed; False if the file system has no locks.

    Raises a `BlockingIOError` if another process has it.
    """
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


@contextlib.contextmanager
def _explained(path: str, advice: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{printable(path, 300)}: {error.strerror or error}; {advice}") from error
