"""The kinds of run stores: in a file, in memory, and on a server."""

from __future__ import annotations

import os
from typing import Any

from holdfast import checks
from holdfast.clock import Clock
from holdfast.errors import ConfigError
from holdfast.stores.sqlite import SqliteFile
from holdfast.stores.store import RunStore


class SqliteRunStore(RunStore):
    """Runs in the SQLite file at *path*, which any number of processes may use at once.

    *synchronous* FULL survives a power cut; NORMAL is quicker for a single run and survives the death of the process,
    but may lose the last moments when the machine itself goes down.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, synchronous: str = "FULL", clock: Clock | None = None, **more: Any
    ) -> None:
        checks.choice("synchronous", synchronous, ("FULL", "NORMAL"))
        name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if not name or name == ":memory:" or not _can_be_named(name):
            raise ConfigError(f"path = {checks.shown(path)}: must be the path of a file")
        # Links are resolved: the files beside it (-wal, -shm, -owners) must be the same for all processes that use it.
        try:
            full = os.path.realpath(os.path.expanduser(name))
        except OSError as error:
            raise ConfigError(
                f"path = {checks.shown(path)}: the working directory is gone, or may not be read; give a path from /"
            ) from error
        super().__init__(SqliteFile(full, synchronous=synchronous), clock=clock, **more)


class MemoryRunStore(RunStore):
    """Runs in memory, gone with the process: the same code on an SQLite database without a file."""

    def __init__(self, *, clock: Clock | None = None, **more: Any) -> None:
        super().__init__(SqliteFile(None), clock=clock, **more)


class PostgresRunStore(RunStore):
    """Runs on the PostgreSQL server at *dsn*, which any number of processes on any hosts may use at once.

    *dsn* is `postgresql://USER@HOST:PORT/DATABASE`, with libpq's parameters and three of ours: `schema` of the tables
    (default: holdfast), `pool=transaction` if it leads to a connection pool, `session` for the server's direct address
    beside a pool. Needs the extra `postgres`.
    """

    def __init__(self, dsn: str, *, clock: Clock | None = None, **more: Any) -> None:
        from holdfast.stores.postgres.address import parse
        from holdfast.stores.postgres.database import PostgresDatabase

        super().__init__(PostgresDatabase(parse(dsn)), clock=clock, **more)


def _can_be_named(name: str) -> bool:
    """True if *name* can be passed to the operating system as the name of a file."""
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False
