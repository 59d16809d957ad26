"""The floor: the rows that a run of ours leaves behind, written again with plain sqlite3, same schema, same pragmas.

The rows are made beforehand, so this is what SQLite and the disk cost, with no library around them.
"""

from __future__ import annotations

import itertools
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

EVENT = "INSERT INTO events (run, sequence, at, type, late, payload) VALUES (?, ?, ?, ?, ?, ?)"
RUN = "UPDATE runs SET touched_at = ?, snapshot = ? WHERE key = ?"


class Floor:
    """Writes like the last run in *model*, a database of ours, which is not over; each race is of new runs."""

    def __init__(self, model: Path, path: Path) -> None:
        with closing(sqlite3.connect(model)) as source:
            self._columns = [row[1] for row in source.execute("PRAGMA table_info(runs)")]
            self._run = source.execute("SELECT * FROM runs ORDER BY key DESC LIMIT 1").fetchone()
            key = self._run[self._columns.index("key")]
            columns = "sequence, at, type, late, payload"
            self._events = source.execute(
                f"SELECT {columns} FROM events WHERE run = ? ORDER BY sequence", (key,)
            ).fetchall()
            schema = [row[0] for row in source.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
            (vacuum,) = source.execute("PRAGMA auto_vacuum").fetchone()
        self.events_a_step = len(self._events) // sum(event[2] == "step_ended" for event in self._events)
        self._connection = sqlite3.connect(path, isolation_level=None)
        for statement in (f"PRAGMA auto_vacuum = {vacuum}", "PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL"):
            self._connection.execute(statement)
        for statement in schema:
            self._connection.execute(statement)
        self._keys = itertools.count(1)

    def race(self, runs: int, steps: int, a_group: int) -> float:
        """Seconds for *steps* steps of each of *runs* runs, *a_group* of them in a transaction.

        A step is its events; each run in a group has its snapshot written once.
        """
        keys = [self._add() for _ in range(runs)]
        groups = list(self._groups(keys, steps, a_group))
        execute, many = self._connection.execute, self._connection.executemany
        start = time.perf_counter()
        for events, snapshots in groups:
            execute("BEGIN IMMEDIATE")
            many(EVENT, events)
            many(RUN, snapshots)
            execute("COMMIT")
        return time.perf_counter() - start

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _add(self) -> int:
        key = next(self._keys)
        row = dict(zip(self._columns, self._run, strict=True)) | {"key": key, "id": f"run {key}"}
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self._connection.execute(f"INSERT INTO runs ({names}) VALUES ({marks})", list(row.values()))
        return key

    def _groups(self, keys: list[int], steps: int, a_group: int) -> Any:
        """Runs in turn, a step each, as it is when all go on at the same pace."""
        snapshot = self._run[self._columns.index("snapshot")]
        turns = [(key, step) for step in range(steps) for key in keys]
        for at in range(0, len(turns), a_group):
            turn = turns[at : at + a_group]
            events = [
                (key, sequence, *self._events[sequence][1:])
                for key, step in turn
                for sequence in range(self.events_a_step * step, self.events_a_step * (step + 1))
            ]
            yield events, [(at, snapshot, key) for key in {key: None for key, _ in turn}]
