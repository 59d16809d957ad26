"""Turns errors of SQLite and of the system into a `StoreError` that tells a user what happened and what to do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar, TypeVarTuple

import msgspec

from holdfast.errors import StoreError, printable

if TYPE_CHECKING:
    from holdfast.stores.sqlite import SqliteFile

Row = TypeVarTuple("Row")
T = TypeVar("T")

PATIENCE = 60.0  # seconds to wait for another process that writes

_MEANINGS = {
    "SQLITE_FULL": "the disk is full, or a limit on file sizes is reached; make room and go on",
    "SQLITE_READONLY": "cannot be written: the file (or its -wal or -shm) or the folder is read-only for this user",
    "SQLITE_CANTOPEN": "cannot be opened: look at the folder and its permissions, and how many files this process may "
    "have open; a path over 500 bytes is too long",
    "SQLITE_CORRUPT": "is damaged; keep a copy, then restore a backup or an export (or try `sqlite3 FILE .recover`)",
    "SQLITE_NOTADB": "is not an SQLite database, or is damaged; nothing was changed: use another file",
    "SQLITE_BUSY": f"another process has been writing for more than {PATIENCE:g} s; see which one, and wait or stop it",
    "SQLITE_PERM": "may not be used: look at its permissions",
    "SQLITE_TOOBIG": "a text is too long to be kept",
    "SQLITE_ERROR": "does not have the tables that it should have; if nobody changed them, it is damaged",
    "SQLITE_IOERR": "the disk failed to read or write; look at the system's log",
}
_NO_ROOM = {"SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_TRUNCATE"}
_FOR_ALL = ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_NOTADB", "SQLITE_BUSY", "SQLITE_IOERR")


class Explains(Protocol):
    """A database that knows what its errors mean."""

    def explained(self, error: BaseException) -> Exception | None: ...


class errors_of:  # noqa: N801 - read as a word: with errors_of(file); a generator would cost twice as much a commit
    """Replace an error of the database by what `explained` makes of it."""

    __slots__ = ("_file",)

    def __init__(self, file: Explains) -> None:
        self._file = file

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None and (told := self._file.explained(error)) is not None:
            raise told from error


def explained(name: str, error: BaseException) -> StoreError | None:
    """Return what *error* means for the file *name*; None if SQLite or a decoder of its rows did not raise it."""
    import sqlite3

    if isinstance(error, sqlite3.Error):
        return _explained(name, error)
    if isinstance(error, msgspec.DecodeError | UnicodeDecodeError):  # also from messages that quote a damaged file
        return store_error(name, _MEANINGS["SQLITE_CORRUPT"], error)
    return None


def concerns_all(error: BaseException) -> bool:
    """True if every write would fail with *error*; not if the disk is full, as a smaller write may still fit."""
    kind = getattr(error, "sqlite_errorname", None) or ""
    return kind.startswith(_FOR_ALL) and kind not in _NO_ROOM


def is_read_only(error: BaseException) -> bool:
    """True if the file, or what SQLite keeps beside it, could not be written when it was opened."""
    return (getattr(error, "sqlite_errorname", None) or "").startswith("SQLITE_READONLY")


def is_conflict(error: BaseException) -> bool:
    """True if there is a row already with a key that was to be new."""
    return (getattr(error, "sqlite_errorname", None) or "").startswith("SQLITE_CONSTRAINT")


def unreachable(name: str, error: OSError) -> StoreError:
    """The error for a file *name* whose path cannot be used."""
    advice = "look at the folder and its permissions, or put the store elsewhere"
    return StoreError(f"{name}: {error.strerror or error}; {advice}")


def busy(file: SqliteFile) -> StoreError:
    """The error for a file that other processes kept locked for too long."""
    return StoreError(f"{file.name}: {_MEANINGS['SQLITE_BUSY']}")


def reads_rows(fn: Callable[[*Row], T]) -> Callable[[*Row], T]:
    """Make *fn* raise a `DecodeError` for values of the wrong kind: a row of a damaged file may hold anything."""

    @functools.wraps(fn)
    def read(*row: *Row) -> T:
        try:
            return fn(*row)
        except (TypeError, ValueError) as error:
            raise msgspec.DecodeError(f"a row cannot be read: {error}") from error

    return read


def _explained(name: str, error: Exception) -> StoreError:
    # Python gives no error code for a text that is not UTF-8, which only a damaged file contains.
    kind = getattr(error, "sqlite_errorname", None) or ("SQLITE_CORRUPT" if "UTF-8" in str(error) else "")
    kind = "SQLITE_FULL" if kind in _NO_ROOM else kind
    return store_error(name, next((text for code, text in _MEANINGS.items() if kind.startswith(code)), None), error)


def store_error(name: str, meaning: str | None, error: BaseException) -> StoreError:
    """A `StoreError` that *error* happened to the store *name*, with its *meaning* if that is known."""
    said = printable(str(error), 300)  # the message may quote the file, which may hold anything
    return StoreError(f"{name}: {said}" if meaning is None else f"{name}: {meaning} ({said})")
