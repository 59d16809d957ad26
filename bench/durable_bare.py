"""The floor with callers: a bare log with group commit, sqlite3 and msgspec and nothing else.

Each step encodes two events and waits until they are on disk; one thread writes whatever has come by then.
No lease, no fence, no fold, no redaction, no resume: what is left is what any log must do.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from bench.durable_child import work
from bench.durable_floor import EVENT, RUN
from bench.durable_peers import AOne, One

ADD = (
    "INSERT INTO runs (id, key, session, status, created_at, touched_at, header, snapshot) "
    "VALUES (?, ?, '', 'executing', 0, 0, '', '')"
)
_JSON = msgspec.json.Encoder()
_PACK = msgspec.msgpack.Encoder()


class Bare:
    """The log: rows in, a call back when they are on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: queue.SimpleQueue[tuple[Any, Any, Callable[[], object]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self._keys = itertools.count(1)

    def step(self, run: int, number: int, value: object, told: Callable[[], object]) -> None:
        """Two events and a snapshot."""
        key = f"{run:016x}{number:016x}"
        at = time.time_ns() // 1_000_000
        started = _JSON.encode({"call_id": key[:16], "name": "work", "key": key, "arguments": [number]}).decode()
        ended = _JSON.encode({"call_id": key[:16], "name": "work", "status": "success", "result": value}).decode()
        events = (
            (run, 2 * number, at, "step_started", 0, started),
            (run, 2 * number + 1, at, "step_ended", 0, ended),
        )
        state = (at, _PACK.encode({"status": "executing", "event_count": 2 * number + 2, "updated_at_ms": at}), run)
        self._queue.put((events, state, told))

    def begin(self, name: str) -> int:
        """A row for the run's state."""
        run, ready = next(self._keys), threading.Event()
        self._queue.put(((), (name, run), ready.set))
        ready.wait()
        return run

    def close(self) -> None:
        """Write what is queued and end."""
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        schema = resources.files("holdfast.stores").joinpath("sql/001_runs.sql").read_text("utf-8")
        connection.executescript(schema)
        while (first := self._queue.get()) is not None:
            group = [first]
            while not self._queue.empty() and (other := self._queue.get()) is not None:
                group.append(other)
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(EVENT, [event for events, *_ in group for event in events])
            connection.executemany(ADD, [fresh for events, fresh, _ in group if not events])
            connection.executemany(RUN, {state[2]: state for events, state, _ in group if events}.values())
            connection.execute("COMMIT")
            for *_, told in group:
                told()
        connection.close()


@contextmanager
def steps(path: Path) -> Iterator[One]:
    """A thread waits for its own lock."""
    bare = Bare(path)

    def one(name: str, steps: int) -> None:
        run, lock = bare.begin(name), threading.Lock()
        lock.acquire()
        for number in range(steps):
            bare.step(run, number, work(number), lock.release)
            lock.acquire()

    yield one
    bare.close()


@asynccontextmanager
async def asteps(path: Path) -> AsyncIterator[AOne]:
    """A task waits for a future."""
    bare = Bare(path)
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
