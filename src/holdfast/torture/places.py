"""Where the tortured runs are kept: a temporary store of the kind in use, opened by each process for itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple

from holdfast.errors import ConfigError
from holdfast.stores import PostgresRunStore, RunStore, SqliteRunStore

KINDS: Final = ("sqlite",)
LEASE: Final = 15.0


class Place(NamedTuple):
    """A store of some *kind* at *url*; an owner that gives no sign of life for *lease* seconds has lost its runs."""

    kind: str
    url: str
    lease: float = LEASE

    def open(self, crash: Callable[[str], object] | None = None) -> RunStore:
        """The store; *crash* is called at each point of a transaction."""
        return SqliteRunStore(self.url, lease=self.lease, crash=crash)

    def damage(self) -> str | None:
        """What is wrong with the store itself, if anything is."""
        import sqlite3
        from contextlib import closing

        with closing(sqlite3.connect(self.url)) as connection:
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(5)")]
        return None if found == ["ok"] else "; ".join(found)


def kind_of(store: RunStore) -> str:
    """The kind that *store* is of."""
    if store.file.path is None:
        raise ConfigError("a store in memory is gone with its process: there is nothing to torture; name a file")
    if isinstance(store, PostgresRunStore):
        raise ConfigError("the torture makes and breaks files; a server is tortured by the tests: name a file")
    return "sqlite"


def temporary(kind: str, folder: str) -> Place:
    """A new store of *kind*, with what it needs in *folder*."""
    if kind not in KINDS:
        raise ConfigError(f"kind = {kind!r}: must be one of {', '.join(KINDS)}")
    return Place(kind, os.path.join(folder, "runs.db"))
