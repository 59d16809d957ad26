"""Writing a file that belongs to another program: whole or not at all, never over a change that we have not seen.

The file as it was is kept beside it. A backup is never written over another.
"""

from __future__ import annotations

import itertools
import os
import stat
import tempfile
from typing import Final, NamedTuple

from holdfast.errors import ConfigError
from holdfast.folders import sync_folder

MOST_BYTES: Final = 100_000_000
BACKUP: Final = ".holdfast-backup"


class Loaded(NamedTuple):
    """A file as it was read: *path* is the real one, behind links."""

    path: str
    data: bytes
    status: os.stat_result

    @property
    def text(self) -> str:
        """The content as text."""
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            raise ConfigError(f"{self.path}:{line}: is not UTF-8 text") from None


def load(path: str) -> Loaded:
    """Read the whole file at *path*."""
    real = os.path.realpath(path)
    try:
        if not stat.S_ISREG(os.stat(real).st_mode):  # anything else might block, or never end
            raise ConfigError(f"{path}: is {'a directory' if os.path.isdir(real) else 'no regular file'}")
        with open(real, "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: does not exist") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{path}: is larger than {MOST_BYTES:,} bytes, too large for a configuration")
    return Loaded(real, data, status)


def save(loaded: Loaded, text: str) -> str:
    """Replace the *loaded* file by *text*, and return the path of the backup.

    If the file was changed since, or anything else fails, raise a `ConfigError` and leave the file as it was.
    """
    folder = os.path.dirname(loaded.path)
    try:
        _check_unchanged(loaded)
        backup = _back_up(loaded)
        sync_folder(folder)  # after a power cut, a new file must not be there without the backup
        temporary = _write_beside(loaded, text.encode())
        try:
            _check_unchanged(loaded)
            os.replace(temporary, loaded.path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise ConfigError(f"{loaded.path}: cannot be written: {error.strerror or error}; it is as it was") from error
    sync_folder(folder)
    return backup


def _check_unchanged(loaded: Loaded) -> None:
    """Raise a `ConfigError` if the file was changed. Called as late as possible: other programs take no lock."""
    now = load(loaded.path)
    if now.data != loaded.data:
        raise ConfigError(f"{loaded.path}: was changed by another program just now; nothing was written, try again")


def _back_up(loaded: Loaded) -> str:
    """The path of a copy of what was loaded, made if there is none yet."""
    for number in itertools.count():
        backup = f"{loaded.path}{BACKUP}{f'.{number}' if number else ''}"
        if os.path.lexists(backup):
            if os.path.isfile(backup) and load(backup).data == loaded.data:
                return backup
            continue
        temporary = _write_beside(loaded, loaded.data)
        try:
            os.link(temporary, backup)  # fails where a rename would overwrite a file that was made in between
        except FileExistsError:
            continue
        except OSError:  # a file system without hard links
            os.rename(temporary, backup)
            return backup
        finally:
            if os.path.lexists(temporary):
                os.unlink(temporary)
        return backup
    raise AssertionError("there is always one more number")


def _write_beside(loaded: Loaded, data: bytes) -> str:
    """Write *data* to a new file on disk, with the owner and mode of the loaded one, and return its path."""
    folder, name = os.path.split(loaded.path)
    number, path = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
            file.flush()
            mine = os.fstat(number)
            if (mine.st_uid, mine.st_gid) != (loaded.status.st_uid, loaded.status.st_gid):
                os.fchown(number, loaded.status.st_uid, loaded.status.st_gid)
            os.fchmod(number, stat.S_IMODE(loaded.status.st_mode))
            os.fsync(number)
    except BaseException:
        os.unlink(path)
        raise
    return path
