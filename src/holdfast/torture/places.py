"""Where the tortured runs are kept: a temporary store of the kind in use, which each process opens for itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from holdfast.errors import ConfigError
from holdfast.stores import PostgresRunStore, RunStore, SqliteRunStore
from holdfast.stores.store import LEASE
from holdfast.torture.server import ServerPlace, borrowed


class FilePlace(msgspec.Struct, frozen=True, tag="file"):
    """A store in a file at *path*; an owner that shows no sign of life for *lease* seconds has lost its runs."""

    path: str
    lease: float = LEASE

    def open(self, crash: Callable[[str], object] | None = None) -> RunStore:
        """Open the store; *crash* is called at each point of a transaction."""
        return SqliteRunStore(self.path, lease=self.lease, crash=crash)

    def damage(self) -> str | None:
        """Return what is wrong with the store itself, if anything."""
        import sqlite3
        from contextlib import closing

        with closing(sqlite3.connect(self.path)) as connection:
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(5)")]
        return None if found == ["ok"] else "; ".join(found)

    def keep(self, folder: str) -> None:
        """Do nothing: the file is in *folder* already."""

    def clear(self) -> None:
        """Do nothing: the file is deleted with its folder."""


Place = FilePlace | ServerPlace


@contextmanager
def temporary(like: RunStore | None, folder: str, say: Callable[[str], object]) -> Iterator[Place]:
    """Yield a new store of the kind of *like*, a file if None, with its files in *folder*; *say* gets warnings."""
    if like is not None and like.file.path is None:
        raise ConfigError("a store in memory is gone with its process: there is nothing to torture; name a file")
    if isinstance(like, PostgresRunStore):
        with borrowed(like.url, say) as place:
            yield place
    else:
        yield FilePlace(os.path.join(folder, "runs.db"))
