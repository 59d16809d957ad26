"""Every kind of run store, for the tests that hold for all of them. A new kind joins with a line in `KINDS`."""

from __future__ import annotations

import atexit
import itertools
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.servers.fixtures import or_skipped
from tests.servers.sharing import shared_postgres

from holdfast.stores import MemoryRunStore, PostgresRunStore, RunStore, SqliteRunStore

Open = Callable[..., RunStore]
AT_ONCE = 4  # stores on PostgreSQL that one test may have
EMPTY = """
DO $$ DECLARE each text; BEGIN
    FOR each IN SELECT tablename FROM pg_tables WHERE schemaname = '$schema' AND tablename NOT IN ('meta', 'migrations')
    LOOP EXECUTE 'DELETE FROM $schema.' || each; END LOOP;
    IF each IS NOT NULL THEN
        DELETE FROM $schema.meta WHERE name NOT IN ('store', 'secret');
        UPDATE $schema.meta SET value = md5(random()::text) || md5(random()::text);
    END IF;
END $$
"""


def postgres_url(folder: Path) -> str:
    """A place on the shared server for what belongs to *folder*, empty when it is first asked for."""
    with or_skipped():
        return _places().url(folder)


class _Places:
    """A few schemas that are emptied and used in turn: to make one takes longer than most tests."""

    def __init__(self) -> None:
        import psycopg

        self._server = shared_postgres()
        self._connection = psycopg.connect(self._server.url, autocommit=True)
        atexit.register(self._connection.close)
        self._used: dict[Path, str] = {}
        self._schemas = itertools.cycle([f"t{os.getpid()}_{number}" for number in range(AT_ONCE)])

    def url(self, folder: Path) -> str:
        if folder not in self._used:
            self._used[folder] = schema = next(self._schemas)
            self._connection.execute(EMPTY.replace("$schema", schema).encode())
        return f"{self._server.url}?schema={self._used[folder]}"


_places = cache(_Places)


def _on_postgres(folder: Path) -> Open:
    url = postgres_url(folder)
    return lambda **more: PostgresRunStore(url, **more)


KINDS: dict[str, Callable[[Path], Open]] = {
    "memory": lambda folder: MemoryRunStore,
    # Not written through to the disk, which takes most of the time and is asked for by default.
    "sqlite": lambda folder: lambda **more: SqliteRunStore(folder / "runs.db", **{"synchronous": "NORMAL", **more}),
    "postgres": _on_postgres,
}
EMBEDDED = ("memory", "sqlite")  # those that have no server
SHARED = {"sqlite", "postgres"}  # those that several stores, in one process or many, may have open at once


def opener(kind: str, folder: Path) -> Open:
    """Opens a store of *kind*, each time the same one if it is shared."""
    return KINDS[kind](folder)


def claim(store: RunStore, run_id: str) -> Any:
    """Have this process own a run."""
    owner = store.ownership.row()
    return store.writer.commit(lambda ledger: ledger.claim(ledger.run(run_id), owner))
