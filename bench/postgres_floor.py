"""The floors on PostgreSQL: psycopg and msgspec and nothing else; two events and a snapshot a step.

`each` commits every step by itself, in one statement, on a connection for each run. `steps` has one connection and one
thread that writes whatever has come by then, as many steps as there are in one statement. No lease, no fence, no fold,
no redaction, no resume.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.durable_child import work
from bench.durable_peers import AOne, One
from bench.postgres_peers import url_in

SCHEMA = """
CREATE TABLE runs (key bigint PRIMARY KEY, id text NOT NULL, touched_at bigint, snapshot bytea);
CREATE TABLE events (run bigint, sequence bigint, at bigint, type text, payload text, PRIMARY KEY (run, sequence));
"""
ADD = "INSERT INTO runs (key, id) VALUES (%s, %s)"
STEP = """
WITH said AS (
    INSERT INTO events SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::text[])
)
UPDATE runs SET touched_at = fresh.at, snapshot = fresh.snapshot
FROM unnest(%s::bigint[], %s::bigint[], %s::bytea[]) AS fresh (key, at, snapshot) WHERE runs.key = fresh.key
"""
_JSON = msgspec.json.Encoder()
_PACK = msgspec.msgpack.Encoder()

Rows = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]


@contextmanager
def each(file: Path) -> Iterator[One]:
    """A connection and a commit of its own for everybody."""
    import psycopg

    url, keys = url_in(file), itertools.count(1)
    free: queue.SimpleQueue[psycopg.Connection[Any]] = queue.SimpleQueue()
    with psycopg.connect(url, autocommit=True) as first:
        first.execute(SCHEMA)

    def one(name: str, steps: int) -> None:
        try:
            connection = free.get_nowait()
        except queue.Empty:
            connection = psycopg.connect(url, autocommit=True)
        run = next(keys)
        connection.execute(ADD, (run, name))
        for number in range(steps):
            connection.execute(STEP, _columns([_rows(run, number, work(number))]))
        free.put(connection)

    yield one
    while not free.empty():
        free.get().close()


class Bare:
    """The log with group commit: rows in, a call back when they are committed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._queue: queue.SimpleQueue[tuple[Any, Callable[[], object]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self._keys = itertools.count(1)

    def step(self, run: int, number: int, value: object, told: Callable[[], object]) -> None:
        """Two events and a snapshot."""
        self._queue.put((_rows(run, number, value), told))

    def begin(self, name: str) -> int:
        """A row for the run's state."""
        run, ready = next(self._keys), threading.Event()
        self._queue.put(((run, name), ready.set))
        ready.wait()
        return run

    def close(self) -> None:
        """Write what is queued and end."""
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        import psycopg

        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(SCHEMA)
            while (first := self._queue.get()) is not None:
                group = [first]
                while not self._queue.empty() and (other := self._queue.get()) is not None:
                    group.append(other)
                for row in [row for row, _ in group if len(row) == 2]:
                    connection.execute(ADD, row)
                if rows := [row for row, _ in group if len(row) != 2]:
                    connection.execute(STEP, _columns(rows))
                for _, told in group:
                    told()


@contextmanager
def steps(file: Path) -> Iterator[One]:
    """A thread waits for its own lock."""
    bare = Bare(url_in(file))

    def one(name: str, steps: int) -> None:
        run, lock = bare.begin(name), threading.Lock()
        lock.acquire()
        for number in range(steps):
            bare.step(run, number, work(number), lock.release)
            lock.acquire()

    yield one
    bare.close()


@asynccontextmanager
async def asteps(file: Path) -> AsyncIterator[AOne]:
    """A task waits for a future."""
    bare = Bare(url_in(file))
    loop = asyncio.get_running_loop()

    async def one(name: str, steps: int) -> None:
        run = bare.begin(name)
        for number in range(steps):
            future = loop.create_future()
            bare.step(
                run, number, work(number), lambda future=future: loop.call_soon_threadsafe(future.set_result, None)
            )
            await future

    yield one
    bare.close()


def _rows(run: int, number: int, value: object) -> Rows:
    key = f"{run:016x}{number:016x}"
    at = time.time_ns() // 1_000_000
    started = _JSON.encode({"call_id": key[:16], "name": "work", "key": key, "arguments": [number]}).decode()
    ended = _JSON.encode({"call_id": key[:16], "name": "work", "status": "success", "result": value}).decode()
    state = _PACK.encode({"status": "executing", "event_count": 2 * number + 2, "updated_at_ms": at})
    return (
        (run, 2 * number, at, "step_started", started),
        (run, 2 * number + 1, at, "step_ended", ended),
        (run, at, state),
    )


def _columns(rows: list[Rows]) -> list[list[Any]]:
    """An array a column; of each run the last state only."""
    events = [event for started, ended, _ in rows for event in (started, ended)]
    states = {state[0]: state for *_, state in rows}
    return [list(column) for table in (events, states.values()) for column in zip(*table, strict=True)]
