"""Writes that an event loop makes for its tasks: it never waits for the disk or another process, and nothing is told
before it is on disk.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import StoreError
from holdfast.stores import RunStore, SqliteRunStore, loop_writer
from holdfast.stores import kernel_sync as kernel_sync_module
from holdfast.stores.haste import MOST_PAGES
from holdfast.stores.kernel_sync import KernelSync, kernel_sync
from holdfast.stores.ledger import Ledger
from holdfast.stores.log_space import EACH, FIRST
from holdfast.stores.loop_writer import MOST_AT_ONCE, LoopWriter

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="needs Linux's asynchronous I/O"
)


SETTINGS = ("synchronous", "wal_autocheckpoint")
NORMAL, FULL = 1, 2


class Points:
    """Notes which thread was at which point of a transaction, and does something there."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.at: dict[str, Callable[[], object]] = {}

    def __call__(self, point: str) -> None:
        if point == "begin":
            self.threads.append(threading.current_thread())
        if (do := self.at.pop(point, None)) is not None:
            do()

    @property
    def here(self) -> list[bool]:
        """For each transaction, whether it was made in this thread."""
        return [thread is threading.current_thread() for thread in self.threads]


@pytest.fixture
def points() -> Points:
    return Points()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path, points: Points, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStore]:
    monkeypatch.setattr(loop_writer, "SLOW", 60.0)
    with SqliteRunStore(path, crash=points) as store:
        store.writer.ticks = 3000  # so that the thread writes only what is left to it, however slow the loop is
        store.create_run("s", "p", run_id="r")
        points.threads.clear()
        yield store
        points.at.clear()


async def write(store: RunStore, at: int = 0, *, fenced: bool = True) -> None:
    """As a step does, in a task; a thread that has just written has left by then."""
    with store.writer.turn:
        pass
    pending = store.writer.submit(note(at), fenced)
    await store.writer.asettle(pending)
    pending.result()


def note(at: int) -> Callable[[Ledger], object]:
    return lambda ledger: ledger.say(ledger.run("r"), "note", at=at)


def notes(store: RunStore) -> list[int]:
    """What the notes say, as another connection reads them; their numbers are checked on the way."""
    with SqliteRunStore(str(store.file.path)) as other:
        events = other.events("r")
        assert [event.sequence for event in events] == list(range(len(events)))
        assert other.snapshot("r").event_count == len(events)
    return [event.payload["at"] for event in events]


def in_loop(store: RunStore) -> LoopWriter:
    assert store.writer._in_loop is not None
    return store.writer._in_loop


async def in_flight(store: RunStore, at: int = 0) -> asyncio.Task[None]:
    """A task that waits for the system to sync what the loop has written for it."""
    task = asyncio.create_task(write(store, at))
    await until(lambda: in_loop(store).is_behind)
    return task


async def turns(number: int) -> None:
    """Let the loop turn so many times."""
    for _ in range(number):
        await asyncio.sleep(0)


async def until(is_so: Callable[[], object]) -> None:
    """Let the loop turn until something is so."""
    while not is_so():  # noqa: ASYNC110 - what it waits for happens in other threads, or in the system
        await asyncio.sleep(0)


# --- where writes are made ---


async def test_plain_events_are_written_in_the_loop_of_their_tasks(store: RunStore, points: Points) -> None:
    for at in range(3):
        await write(store, at)

    assert points.here == [True] * 3
    assert notes(store) == [0, 1, 2]


async def test_tasks_are_written_together(store: RunStore, points: Points) -> None:
    await asyncio.gather(*(write(store, at) for at in range(MOST_AT_ONCE)))

    assert points.here == [True]
    assert notes(store) == list(range(MOST_AT_ONCE))


async def test_tasks_that_come_while_the_log_is_synced_are_written_next(store: RunStore, points: Points) -> None:
    first = await in_flight(store, 0)
    others = [asyncio.create_task(write(store, at)) for at in range(1, 4)]

    await asyncio.gather(first, *others)

    assert points.here == [True, True]
    assert notes(store) == [0, 1, 2, 3]


async def test_a_crowd_is_left_to_the_thread(store: RunStore, points: Points) -> None:
    await asyncio.gather(*(write(store, at) for at in range(MOST_AT_ONCE + 1)))

    assert True not in points.here
    assert notes(store) == list(range(MOST_AT_ONCE + 1))


async def test_what_must_see_the_writes_of_others_is_left_to_the_thread(store: RunStore, points: Points) -> None:
    await write(store, fenced=False)

    assert points.here == [False]


async def test_what_another_process_has_written_first_is_noticed(store: RunStore, points: Points, path: Path) -> None:
    await write(store, 0)
    with SqliteRunStore(path) as other:
        other.record_event("r", "note", {"at": 1})

    await write(store, 2)

    assert points.here == [True, True, False]
    assert notes(store) == [0, 1, 2]


async def test_a_log_that_is_full_is_lengthened_and_copied_by_the_thread(store: RunStore, points: Points) -> None:
    def settings() -> list[int]:
        return [store.file.writing().execute(f"PRAGMA {name}").fetchone()[0] for name in SETTINGS]  # type: ignore[attr-defined]

    for at in range(FIRST // EACH):
        await write(store, at)
    assert points.here[-1]
    assert settings() == [NORMAL, 0]

    await write(store)

    assert points.here.count(False) == 1
    assert settings() == [FULL, MOST_PAGES]
    await write(store)
    assert settings() == [NORMAL, 0]


async def test_where_the_system_cannot_do_that_the_thread_writes(
    store: RunStore, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "m68k")

    await write(store, 0)
    monkeypatch.undo()
    await write(store, 1)

    assert points.here == [False, False]


@pytest.mark.parametrize("address", [":memory:", "NORMAL"])
async def test_other_stores_have_nothing_to_sync(address: str, path: Path) -> None:
    url = address if address == ":memory:" else f"sqlite:///{path}?synchronous=NORMAL"
    async with holdfast.open(url, policies={}) as hf, hf.run() as run:
        assert await run.astep("think", abs, -1) == 1

        assert hf.runs.writer._in_loop is None


async def test_the_steps_of_a_coroutine_agent_are_written_in_its_loop(path: Path) -> None:
    async def think(value: int) -> int:
        return value + 1

    async with holdfast.open(path, policies={}) as hf:
        async with hf.run(run_id="r") as run:
            assert [await run.astep("think", think, value) for value in range(5)] == [1, 2, 3, 4, 5]
            assert in_loop(hf.runs)._sync is not None

        assert hf.runs.snapshot("r").event_count == len(hf.runs.events("r")) == 12


# --- nobody is held up ---


async def test_the_loop_goes_on_while_another_process_writes(store: RunStore, points: Points, path: Path) -> None:
    await write(store, 0)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        task = asyncio.create_task(write(store, 1))
        await until(lambda: len(points.threads) == 3)  # the loop has tried, and the thread waits
        assert not task.done()
        other.execute("ROLLBACK")

    await task

    assert points.here == [True, True, False]
    assert notes(store) == [0, 1]


async def test_after_a_slow_write_all_is_left_to_the_thread_for_a_while(
    store: RunStore, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as slow:
        slow.setattr(loop_writer, "SLOW", -1.0)
        await write(store)
    await write(store)
    monkeypatch.setattr(in_loop(store), "_rests_until", 0.0)
    await write(store)

    assert points.here == [True, False, True]


async def test_a_thread_that_commits_meanwhile_tells_the_tasks_of_a_busy_loop(store: RunStore) -> None:
    task = await in_flight(store, 0)
    thread = threading.Thread(target=store.writer.commit, args=(note(1),))
    thread.start()
    thread.join()  # in which time the loop is busy

    assert not in_loop(store).is_behind
    await task
    await write(store, 2)
    assert notes(store) == [0, 1, 2]


async def test_a_task_of_another_loop_is_served_by_the_thread(store: RunStore, points: Points) -> None:
    await write(store, 0)
    thread = threading.Thread(target=asyncio.run, args=(write(store, 1),))
    thread.start()
    await until(lambda: not thread.is_alive())
    await write(store, 2)

    assert points.here == [True, False, True]
    assert threading.current_thread() is not points.threads[1] is not thread
    assert notes(store) == [0, 1, 2]


def test_each_loop_that_comes_after_another_writes_for_its_tasks(store: RunStore, points: Points) -> None:
    for at in range(3):
        asyncio.run(write(store, at))

    assert points.here == [True] * 3
    assert notes(store) == [0, 1, 2]


def test_a_loop_that_is_closed_while_the_system_syncs_holds_nobody_up(store: RunStore) -> None:
    async def leave() -> None:
        (await in_flight(store, 0)).cancel()

    asyncio.run(leave())
    asyncio.run(write(store, 1))
    store.writer.commit(note(2))

    assert notes(store) == [0, 1, 2]


async def test_a_task_that_is_cancelled_has_written(store: RunStore) -> None:
    task = await in_flight(store, 0)
    task.cancel()
    await write(store, 1)

    assert task.cancelled()
    assert notes(store) == [0, 1]


# --- trouble ---


async def test_what_the_disk_fails_to_take_is_in_doubt(store: RunStore, points: Points) -> None:
    tasks = [await in_flight(store, 0), asyncio.create_task(write(store, 1))]
    sync = in_loop(store)._sync
    assert sync is not None
    sync.wait()
    sync.failure = OSError(5, "Input/output error")  # as this system's disk never fails

    first, second = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(first, StoreError)
    assert "Input/output error" in str(first)
    assert "may have been written or not" in str(first)
    assert second is None
    await write(store, 2)
    assert points.here == [True, False, True]
    assert notes(store) == [0, 1, 2]


async def test_a_log_that_cannot_be_synced_is_in_doubt(store: RunStore) -> None:
    await write(store, 0)
    assert store.file.later is not None
    reading, writing = os.pipe()  # which nobody can sync
    os.dup2(writing, store.file.later.log())

    with pytest.raises(StoreError, match=r"runs.db: Invalid argument.*may have been written or not"):
        await write(store, 1)

    await write(store, 2)
    assert notes(store) == [0, 1, 2]
    os.close(reading)
    os.close(writing)


async def test_a_log_that_is_gone_is_not_written_to(store: RunStore, path: Path) -> None:
    await write(store, 0)
    os.unlink(path)

    with pytest.raises(StoreError, match="was deleted or moved"):
        await write(store, 1)


@pytest.mark.parametrize("point", ["begin", "written", "committed"])
def test_an_interrupt_in_the_loop_loses_nothing_and_repeats_nothing(
    point: str, store: RunStore, points: Points
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    asyncio.run(write(store, 0))
    points.at[point] = interrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(write(store, 1))

    store.writer.flush()
    asyncio.run(write(store, 2))
    assert notes(store) == [0, 1, 2]


# --- the end ---


async def test_a_store_that_is_closed_in_the_loop_has_told_its_tasks(store: RunStore) -> None:
    task = await in_flight(store, 0)
    store.close()

    await task
    await write(store, 1)
    assert notes(store) == [0, 1]


async def test_a_store_that_is_closed_elsewhere_has_told_its_tasks(store: RunStore) -> None:
    task = await in_flight(store, 0)
    await asyncio.to_thread(store.close)

    await task
    assert notes(store) == [0]


async def test_a_closed_store_leaves_nothing_in_the_loop(path: Path) -> None:
    gc.collect()  # what earlier tests have left behind
    files, heard = len(os.listdir("/proc/self/fd")), listened()
    store = SqliteRunStore(path)
    store.create_run("s", "p", run_id="r")
    await write(store)
    assert listened() == heard + 1

    store.close()
    await turns(3)

    assert listened() == heard
    assert len(os.listdir("/proc/self/fd")) <= files  # fewer if something of an earlier test has ended meanwhile


async def test_a_store_that_nobody_has_any_more_leaves_nothing_in_the_loop(path: Path) -> None:
    heard = listened()
    store = SqliteRunStore(path)
    store.create_run("s", "p", run_id="r")
    await write(store)
    del store
    await until(
        lambda: "holdfast-writer" not in {thread.name for thread in threading.enumerate()}
    )  # it keeps the store

    def is_gone() -> bool:
        gc.collect()
        return listened() == heard

    await until(is_gone)


def listened() -> int:
    loop: Any = asyncio.get_running_loop()
    return len(loop._selector.get_map())


async def test_a_forked_child_starts_over_and_the_parent_goes_on(store: RunStore) -> None:
    task = await in_flight(store, 0)
    if (child := os.fork()) == 0:
        try:
            asyncio.run(write(store, 1))
            store.close()
        finally:
            os._exit(notes(store) != [0, 1])
    _, status = await asyncio.to_thread(os.waitpid, child, 0)

    assert status == 0
    await task
    await write(store, 2)
    assert notes(store) == [0, 1, 2]


# --- the system's part ---


class Told:
    """Notes the ends of syncs."""

    def __init__(self) -> None:
        self.ends = 0

    def end(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("awake", [0.0, kernel_sync_module.AWAKE, 60.0])
async def test_a_file_is_synced_while_the_loop_goes_on(
    path: Path, awake: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_sync_module, "AWAKE", awake)
    told = Told()
    sync = kernel_sync(told.end)
    assert isinstance(sync, KernelSync)
    assert sync.listen(asyncio.get_running_loop())
    with path.open("wb", buffering=0) as file:
        for number in range(3):
            file.write(b"x")
            sync.start(file.fileno())
            assert sync.busy
            await until(lambda number=number: told.ends > number)
            assert not sync.busy
            assert sync.failure is None
    os.eventfd_write(sync._eventfd, 1)  # so the system tells of an end, too, that the loop has asked for before
    await turns(3)

    assert told.ends == 3


async def test_the_end_of_a_sync_whose_beginning_was_interrupted_is_not_taken_for_that_of_the_next(path: Path) -> None:
    sync = kernel_sync(Told().end)
    assert sync is not None
    with path.open("wb", buffering=0) as file:
        for number in range(20):
            file.write(b"x")
            sync.start(file.fileno())
            sync.busy = False  # as an interrupt leaves it that comes before this is noted
            sync.start(file.fileno())
            sync.wait()

            (heard, *_) = kernel_sync_module._RESULT.unpack(sync._result)
            assert heard == 2 * (number + 1)


async def test_a_thread_can_wait_for_the_end_while_the_loop_is_busy(path: Path) -> None:
    told = Told()
    sync = kernel_sync(told.end)
    assert sync is not None
    assert sync.listen(asyncio.get_running_loop())
    with path.open("wb", buffering=0) as file:
        for _ in range(50):  # whoever asks first
            file.write(b"x")
            sync.start(file.fileno())
            waiting = asyncio.create_task(asyncio.to_thread(sync.wait))
            await waiting
            assert not sync.busy
    sync.wait()
    await turns(2)

    assert told.ends <= 50


async def test_what_cannot_be_synced_is_refused(path: Path) -> None:
    told = Told()
    sync = kernel_sync(told.end)
    assert sync is not None
    assert sync.listen(asyncio.get_running_loop())
    with path.open("wb") as file:
        handle = file.fileno()

    with pytest.raises(OSError, match="Bad file descriptor"):
        sync.start(handle)
    assert not sync.busy
    assert told.ends == 0
