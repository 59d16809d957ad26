"""Many writers at once: threads, tasks and processes. Nothing acknowledged is lost, nothing is written twice."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
from tests.children import eventually, said, tell
from tests.stores.children import children
from tests.stores.kinds import EMBEDDED, KINDS, opener

from holdfast.errors import RunConflict, RunNotFound, StoreError
from holdfast.history import CancelResult, RunStatus
from holdfast.stores import RunStore, SqliteRunStore
from holdfast.stores.ledger import Ledger, Live, OwnerRow
from holdfast.stores.pending import Pending
from holdfast.stores.sqlite import SqliteFile
from holdfast.stores.writer import Writer

Op = Callable[[Ledger], Any]


class Gate:
    """A crash point that holds whoever comes by until it is opened."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.passed: list[str] = []
        self.failing = 0  # how many of those who come later fail
        self.fails_when_opened = False

    def __call__(self, point: str) -> None:
        self.passed.append(point)
        if point == self.point and not self.opened.is_set():
            self.reached.set()
            self.opened.wait()
            if self.fails_when_opened:
                raise StoreError("the disk is gone")
        elif point == self.point and self.failing:
            self.failing -= 1
            raise StoreError("the disk is gone")

    @property
    def commits(self) -> int:
        return self.passed.count("committed")


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate("begin")
    yield gate
    gate.opened.set()


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, gate: Gate) -> Iterator[RunStore]:
    gate.opened.set()
    with opener(request.param, tmp_path)(crash=gate) as store:
        store.create_run("s", "p", run_id="r")
        gate.opened.clear()
        gate.passed.clear()
        yield store
        gate.opened.set()


@pytest.fixture
def start() -> Iterator[Any]:
    with children() as start:
        yield start


def note(at: int = 0, run: str = "r") -> Op:
    return lambda ledger: ledger.say(ledger.run(run), "note", at=at)


def raises(error: BaseException) -> Op:
    def op(ledger: Ledger) -> None:
        raise error

    return op


def changes_and_raises(error: BaseException) -> Op:
    def op(ledger: Ledger) -> None:
        ledger.say(ledger.run("r"), "never")
        raise error

    return op


def notes(store: RunStore, run: str = "r") -> list[int]:
    """What the notes of a run say, once all that is queued is written; checks their numbers on the way."""
    store.writer.flush()
    events = store.events(run)
    assert [event.sequence for event in events] == list(range(len(events)))
    assert store.snapshot(run).event_count == len(events)
    return [event.payload["at"] for event in events]


# --- groups ---


def test_all_that_waits_is_committed_at_once(store: RunStore, gate: Gate) -> None:
    threads = [threading.Thread(target=store.writer.commit, args=(note(0),))]
    threads[0].start()
    gate.reached.wait()
    pending = [store.writer.submit(note(at)) for at in range(1, 501)]

    gate.opened.set()
    for each in pending:
        store.writer.settle(each)

    threads[0].join()
    assert gate.commits <= 3
    assert notes(store) == list(range(501))


def test_more_than_a_group_is_not_kept_waiting(store: RunStore, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stores.writer.TICK", 3600.0)  # nobody looks on his own
    monkeypatch.setattr("holdfast.stores.writer.MOST_AT_ONCE", 10)
    leader = threading.Thread(target=store.writer.commit, args=(note(0),))
    leader.start()
    gate.reached.wait()
    pending = [store.writer.submit(note(at)) for at in range(1, 96)]

    gate.opened.set()
    store.writer.settle(pending[-1])

    leader.join()
    monkeypatch.undo()
    assert gate.commits == 11
    assert notes(store) == list(range(96))
    store.writer.close()


async def test_tasks_are_committed_together(store: RunStore, gate: Gate) -> None:
    leader = threading.Thread(target=store.writer.commit, args=(note(0),))
    leader.start()
    await asyncio.to_thread(gate.reached.wait)
    tasks = [asyncio.create_task(store.writer.acommit(note(at))) for at in range(1, 201)]
    await asyncio.sleep(0)

    gate.opened.set()
    await asyncio.gather(*tasks)

    leader.join()
    assert gate.commits <= 3
    assert notes(store) == list(range(201))


def test_a_caller_alone_commits_in_its_own_thread(store: RunStore, gate: Gate) -> None:
    gate.opened.set()
    seen: list[threading.Thread] = []

    store.writer.commit(lambda ledger: seen.append(threading.current_thread()))

    assert seen == [threading.current_thread()]


def test_a_write_gives_what_it_returns(store: RunStore, gate: Gate) -> None:
    gate.opened.set()

    assert store.writer.commit(lambda ledger: ledger.run("r").header.prompt) == "p"
    assert asyncio.run(store.writer.acommit(lambda ledger: 7)) == 7


# --- writes that fail ---


@pytest.mark.parametrize(
    "bad",
    [
        raises(RunNotFound("x")),
        changes_and_raises(RunNotFound("x")),
        raises(ZeroDivisionError("x")),
        changes_and_raises(ZeroDivisionError("x")),
    ],
)
def test_a_write_that_fails_in_a_group_fails_alone(store: RunStore, gate: Gate, bad: Op) -> None:
    leader = threading.Thread(target=store.writer.commit, args=(note(0),))
    leader.start()
    gate.reached.wait()
    good = [store.writer.submit(note(at)) for at in range(1, 10)]
    middle = store.writer.submit(bad)
    more = [store.writer.submit(note(at)) for at in range(10, 20)]

    gate.opened.set()
    for each in (*good, middle, *more):
        store.writer.settle(each)

    leader.join()
    assert [each.error for each in (*good, *more)] == [None] * 19
    with pytest.raises((RunNotFound, ZeroDivisionError)):
        middle.result()
    assert notes(store) == list(range(20))


@pytest.mark.parametrize(
    "change",
    [
        lambda ledger, run: ledger.say(run, "note"),
        lambda ledger, run: ledger.remember(run, b"key", "pay", b"paid"),
        lambda ledger, run: ledger.claim(run, OwnerRow("0" * 32, "elsewhere", 4711, 2**50)),
        lambda ledger, run: (ledger.step_aside(), ledger.erase(run.key)),
    ],
)
def test_a_write_that_is_refused_after_a_change_has_changed_nothing(
    store: RunStore, gate: Gate, change: Callable[[Ledger, Live], object]
) -> None:
    def change_and_refuse(ledger: Ledger) -> None:
        change(ledger, ledger.run("r"))
        raise RunConflict("no")

    gate.opened.set()
    before = store.memory("r")

    with pytest.raises(RunConflict):
        store.writer.commit(change_and_refuse)

    assert (store.memory("r"), store.events("r"), store.snapshot("r").interrupted) == (before, [], False)
    assert store.snapshot("r").owner is None


def test_a_write_that_the_database_refuses_fails_alone(store: RunStore, gate: Gate) -> None:
    def nameless(ledger: Ledger) -> None:
        ledger.append(ledger.run("r"), None, {}, "{}")  # type: ignore[arg-type]

    leader = threading.Thread(target=store.writer.commit, args=(note(0),))
    leader.start()
    gate.reached.wait()
    good = store.writer.submit(note(1))
    bad = store.writer.submit(nameless)
    also_good = store.writer.submit(note(2))

    gate.opened.set()
    for each in (good, bad, also_good):
        store.writer.settle(each)

    leader.join()
    with pytest.raises(StoreError, match=r"(?i)not.null"):
        bad.result()
    assert notes(store) == [0, 1, 2]


def test_a_refusal_counts_only_if_it_is_the_last_word(store: RunStore, gate: Gate) -> None:
    answers = iter([RunNotFound("x")])

    def refused_once(ledger: Ledger) -> str:
        if (error := next(answers, None)) is not None:
            raise error
        return "made"

    leader = threading.Thread(target=store.writer.commit, args=(note(0),))
    leader.start()
    gate.reached.wait()
    refused = store.writer.submit(refused_once)
    bad = store.writer.submit(changes_and_raises(ZeroDivisionError()))

    gate.opened.set()
    store.writer.settle(refused)
    store.writer.settle(bad)

    leader.join()
    assert refused.result() == "made"


def test_each_of_a_group_that_fails_gets_an_error_of_its_own(store: RunStore, gate: Gate) -> None:
    leader = threading.Thread(target=store.writer.commit, args=(note(0),))
    leader.start()
    gate.reached.wait()
    pending = [store.writer.submit(note(at)) for at in range(1, 4)]

    gate.failing = 1
    gate.opened.set()
    for each in pending:
        store.writer.settle(each)

    leader.join()
    errors = [each.error for each in pending]
    assert len({id(error) for error in errors}) == 3
    assert {str(error) for error in errors} == {"the disk is gone"}
    assert notes(store) == [0]


def test_an_error_that_nobody_waits_for_is_logged_once(
    store: RunStore, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gate.opened.set()

    for _ in range(3):
        store.writer.submit(raises(RunNotFound("x")))
    store.writer.flush()

    assert [record.message for record in caplog.records] == [
        "what was queued could not be written: there is no run 'x' in this store"
    ]


async def test_an_error_that_its_caller_is_told_is_not_logged(
    store: RunStore, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gate.opened.set()

    with pytest.raises(RunNotFound):
        store.writer.commit(raises(RunNotFound("x")))
    with pytest.raises(RunNotFound):
        await store.writer.acommit(raises(RunNotFound("x")))

    assert caplog.records == []


def test_after_a_failure_the_numbers_go_on_without_a_gap(store: RunStore, gate: Gate) -> None:
    gate.opened.set()
    store.writer.commit(note(0))

    with pytest.raises(ZeroDivisionError):
        store.writer.commit(changes_and_raises(ZeroDivisionError()))
    store.writer.commit(note(1))

    assert notes(store) == [0, 1]


async def test_a_task_waits_no_longer_than_it_has_patience(store: RunStore, gate: Gate) -> None:
    leader = threading.Thread(target=store.writer.commit, args=(note(0),))
    leader.start()
    gate.reached.wait()
    store.writer.patience = 0.01

    with pytest.raises(StoreError, match="takes too long"):
        await store.writer.acommit(note(1))

    store.writer.patience = None
    gate.opened.set()
    leader.join()
    assert notes(store) == [0, 1]


# --- interrupts ---


def test_in_the_middle_of_a_write_its_thread_cannot_have_the_connection_to_itself(store: RunStore, gate: Gate) -> None:
    gate.opened.set()

    with pytest.raises(StoreError, match="in the middle of another write"):
        store.writer.commit(lambda ledger: store.writer.alone(lambda: None))


def test_a_request_in_the_middle_of_a_write_is_made_without_another_write(store: RunStore, gate: Gate) -> None:
    gate.opened.set()

    assert store.writer.commit(lambda ledger: store.cancel("r")) is CancelResult.REQUESTED

    assert eventually(lambda: store.snapshot("r").status is RunStatus.CANCELLED)


@pytest.mark.parametrize("point", ["begin", "written"])
def test_an_interrupted_leader_leaves_its_group_to_the_next(tmp_path: Path, point: str) -> None:
    interrupts = iter([KeyboardInterrupt()])

    def crash(at: str) -> None:
        if at == point and armed and (error := next(interrupts, None)) is not None:
            raise error

    armed = False
    with SqliteRunStore(tmp_path / "runs.db", crash=crash) as store:
        store.create_run("s", "p", run_id="r")
        armed = True
        with pytest.raises(KeyboardInterrupt):
            store.writer.commit(note(0))
        store.writer.commit(note(1))

        assert notes(store) == [0, 1]


def test_what_an_interrupted_leader_leaves_is_made_without_further_ado(tmp_path: Path) -> None:
    def crash(at: str) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    armed = False
    with SqliteRunStore(tmp_path / "runs.db", crash=crash) as store:
        store.create_run("s", "p", run_id="r")
        armed = True
        with pytest.raises(KeyboardInterrupt):
            store.writer.commit(note(0))

        assert next(store.follow("r")).sequence == 0


def test_what_was_committed_before_an_interrupt_is_not_committed_again(tmp_path: Path) -> None:
    def crash(at: str) -> None:
        if at == "committed" and armed:
            raise KeyboardInterrupt

    armed = False
    with SqliteRunStore(tmp_path / "runs.db", crash=crash) as store:
        store.create_run("s", "p", run_id="r")
        armed = True
        with pytest.raises(KeyboardInterrupt):
            store.writer.commit(note(0))
        armed = False

        assert notes(store) == [0]


def test_what_was_committed_before_memory_ran_out_is_not_committed_again(
    store: RunStore, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_for_the_second(ledger: Ledger) -> None:
        if (trouble := next(troubles, None)) is not None:
            raise trouble
        written(ledger)

    troubles, written = iter([None, MemoryError()]), Ledger.written
    monkeypatch.setattr(Ledger, "written", fails_for_the_second)
    leader = threading.Thread(target=store.writer.commit, args=(note(0),))
    leader.start()
    gate.reached.wait()
    pending = [store.writer.submit(note(at)) for at in range(1, 5)]

    gate.opened.set()
    for each in pending:
        store.writer.settle(each)

    leader.join()
    assert [each.error for each in pending] == [None] * 4
    assert notes(store) == list(range(5))
    assert next(troubles, "none left") == "none left"


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)  # in memory its own task would lead
async def test_a_write_that_hits_its_leader_each_time_is_given_up(
    store: RunStore, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gate.opened.set()

    with pytest.raises(StoreError, match="cut short again and again"):
        await store.writer.acommit(raises(SystemExit()))
    await store.writer.acommit(note(0))

    assert notes(store) == [0]
    assert {record.message for record in caplog.records} == {"a group of writes was cut short"}


def test_a_leader_that_was_interrupted_and_still_seems_to_lead_holds_nobody_up(store: RunStore, gate: Gate) -> None:
    gate.opened.set()
    store.writer._is_led = True

    store.writer.commit(note(0))

    assert notes(store) == [0]
    assert not store.writer._is_led


def test_interrupts_at_any_moment_lose_nothing_and_harm_nobody_else(tmp_path: Path, start: Any) -> None:
    path = tmp_path / "runs.db"
    with SqliteRunStore(path) as store:
        store.create_run("s", "p", run_id="main")
        store.create_run("s", "p", run_id="beside")

        told = json.loads(said(start("interrupt", path, 100)))

        assert told["troubles"] == []
        assert notes(store, "beside") == list(range(told["beside"]))
        written = notes(store, "main")
        assert len(set(written)) == len(written)
        assert set(told["acknowledged"]) <= set(written)


async def test_a_task_that_is_cancelled_while_it_waits_has_written(
    store: RunStore, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    leader = threading.Thread(target=store.writer.commit, args=(note(0),))
    leader.start()
    await asyncio.to_thread(gate.reached.wait)
    task = asyncio.create_task(store.writer.acommit(note(1)))
    await asyncio.sleep(0)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.opened.set()
    await asyncio.to_thread(leader.join)

    assert notes(store) == [0, 1]
    await asyncio.sleep(0)
    assert caplog.records == []


def test_a_loop_that_is_closed_leaves_nobody_waiting(store: RunStore, gate: Gate) -> None:
    leader = threading.Thread(target=store.writer.commit, args=(note(0),))
    leader.start()
    gate.reached.wait()

    async def hurry() -> None:
        task = asyncio.create_task(store.writer.acommit(note(1)))
        await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(hurry())
    gate.opened.set()

    leader.join()
    assert notes(store) == [0, 1]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)  # in memory its own task would lead
def test_a_task_that_stops_its_loop_leaves_no_other_waiting(store: RunStore, gate: Gate) -> None:
    async def say(at: int) -> None:
        await store.writer.acommit(note(at))
        if at == 1:
            raise SystemExit

    async def begin() -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(say(at)) for at in range(3)]
        await asyncio.sleep(0)
        return tasks

    loop = asyncio.new_event_loop()
    tasks = loop.run_until_complete(begin())
    gate.opened.set()
    with pytest.raises(SystemExit):
        loop.run_until_complete(tasks[1])
    loop.run_until_complete(asyncio.wait_for(tasks[2], 20))
    loop.close()

    assert notes(store) == [0, 1, 2]
    assert isinstance(tasks[1].exception(), SystemExit)


# --- the thread ---


def test_the_thread_ends_when_idle_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stores.writer.LINGER", 0)
    monkeypatch.setattr("holdfast.stores.writer.TICK", 0.001)
    book: list[int] = []
    writer: Writer[list[int]] = Writer(lambda group: [_made(each, book) for each in group])
    others = set(threading.enumerate())

    for at in range(20):
        writer.settle(writer.submit(lambda book, at=at: book.append(at)))
        for thread in set(threading.enumerate()) - others:
            if thread.name == "holdfast-writer":
                thread.join()

    assert book == list(range(20))


def _made(pending: Pending[list[int], Any], book: list[int]) -> None:
    pending.value = pending.op(book)
    pending.made = True


@pytest.mark.parametrize("nap", [600, 0.005])
def test_what_is_queued_is_made_by_a_thread_that_had_nothing_to_do(nap: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stores.writer.LINGER", 1200)
    monkeypatch.setattr("holdfast.stores.writer.NAP", nap)
    book: list[int] = []
    writer: Writer[list[int]] = Writer(lambda group: [_made(each, book) for each in group])
    for at in range(20):
        pending = writer.submit(lambda book, at=at: book.append(at))

        assert eventually(lambda pending=pending: pending.done)
        assert book == list(range(at + 1))
        threading.Event().wait(0.002 * at)  # it is at any point of its wait
    writer.close()


@pytest.fixture
def napping(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Writer[list[int]], list[int]]]:
    """A writer whose thread has had nothing to do for so long that it does not look by itself, and its book."""
    monkeypatch.setattr("holdfast.stores.writer.LINGER", 1200)
    monkeypatch.setattr("holdfast.stores.writer.NAP", 0)
    monkeypatch.setattr("holdfast.stores.writer.TICK", 0.001)
    book: list[int] = []
    writer: Writer[list[int]] = Writer(lambda group: [_made(each, book) for each in group])
    writer.submit(lambda book: book.append(0))
    assert eventually(lambda: book and writer._naps)
    yield writer, book
    writer.close()


def test_a_thread_that_naps_is_not_woken_by_time(napping: tuple[Writer[list[int]], list[int]]) -> None:
    status = Path(f"/proc/self/task/{thread_of(napping[0]).native_id}/status")
    if not status.exists():
        pytest.skip("only Linux tells how often a thread woke up")
    assert eventually(lambda: "(sleeping)" in status.read_text())
    before = status.read_text()
    threading.Event().wait(0.1)

    assert wakes(status.read_text()) == wakes(before)


def test_a_caller_that_waits_wakes_a_thread_that_naps(napping: tuple[Writer[list[int]], list[int]]) -> None:
    writer, book = napping

    asyncio.run(writer.acommit(lambda book: book.append(1)))

    assert book == [0, 1]


def test_a_write_that_is_only_queued_leaves_a_thread_that_naps_time_for_others(
    napping: tuple[Writer[list[int]], list[int]],
) -> None:
    writer, book = napping
    writer.ticks = 10**6

    pending = writer.submit(lambda book: book.append(1))
    assert eventually(lambda: not writer._naps and writer._rings.empty())

    assert not pending.done
    writer.commit(lambda book: book.append(2))
    assert book == [0, 1, 2]


def test_a_thread_that_naps_ends_with_the_writer(napping: tuple[Writer[list[int]], list[int]]) -> None:
    thread = thread_of(napping[0])

    napping[0].close()

    thread.join(60)
    assert not thread.is_alive()


def test_a_ring_is_heard_whenever_it_comes(napping: tuple[Writer[list[int]], list[int]]) -> None:
    writer, _ = napping
    for at in range(100):
        writer.ticks = 1
        writer._rings.put(None)
        assert eventually(lambda: writer._naps)
        writer.ticks = 10**6  # so that only a ring helps
        writer.submit(lambda book: None)  # which wakes the thread first
        threading.Event().wait(0.00001 * (at % 10))
        pending = writer.submit(lambda book: None)
        writer._ring()

        assert eventually(lambda pending=pending: pending.done)


def thread_of(writer: Writer[Any]) -> threading.Thread:
    thread = writer._thread._thread
    assert thread is not None
    return thread


def wakes(status: str) -> str:
    """How often a thread has waited, as its *status* says."""
    return next(line for line in status.splitlines() if line.startswith("voluntary"))


def test_what_is_queued_as_the_thread_is_told_to_end_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stores.writer.LINGER", 600)
    book: list[int] = []
    writer: Writer[list[int]] = Writer(lambda group: [_made(each, book) for each in group])
    writer.settle(writer.submit(lambda book: book.append(1)))

    writer._closed = True  # as `close` does, just before
    writer.submit(lambda book: book.append(2))

    assert eventually(lambda: book == [1, 2])
    assert eventually(lambda: not writer._thread.there)


def test_no_wakeup_is_lost_when_the_thread_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stores.writer.LINGER", 0)
    monkeypatch.setattr("holdfast.stores.writer.TICK", 0.0002)
    book: list[int] = []
    writer: Writer[list[int]] = Writer(lambda group: [_made(each, book) for each in group])
    dice = random.Random(7)
    pauses = [dice.choice([0, 0, 0.0001, 0.0003, 0.001]) for _ in range(400)]

    def plain() -> None:
        for pause in pauses:
            writer.commit(lambda book: book.append(1))
            threading.Event().wait(pause)

    def queueing() -> None:
        for pause in pauses:
            pending = writer.submit(lambda book: book.append(1))
            threading.Event().wait(pause)
            writer.settle(pending)

    async def tasks() -> None:
        for pause in pauses:
            await writer.acommit(lambda book: book.append(1))
            await asyncio.sleep(pause)

    threads = [threading.Thread(target=each) for each in (plain, plain, queueing, lambda: asyncio.run(tasks()))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert not any(thread.is_alive() for thread in threads)
    assert len(book) == 4 * len(pauses)


def test_a_write_that_comes_as_the_thread_leaves_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stores.writer.LINGER", 0)
    monkeypatch.setattr("holdfast.stores.writer.TICK", 0.001)
    book: list[int] = []
    writer: Writer[list[int]] = Writer(lambda group: [_made(each, book) for each in group])
    late: list[Pending[list[int], None]] = []

    class Leaving(dict[str, object]):
        """The mark that there is a thread; somebody queues a write just before it is taken for the first time."""

        def pop(self, *args: Any) -> object:
            if not late:
                late.append(writer.submit(lambda book: book.append(2)))
            return super().pop(*args)

    writer._thread.there = Leaving()
    writer.settle(writer.submit(lambda book: book.append(1)))

    while not (late and late[0].done):
        threading.Event().wait(0.001)
    assert book == [1, 2]


def test_where_no_thread_can_be_started_the_caller_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with SqliteRunStore(tmp_path / "runs.db") as store:
        store.create_run("s", "p", run_id="r")
        monkeypatch.setattr(threading.Thread, "start", no_thread)

        store.writer.submit(note(0))
        asyncio.run(store.writer.acommit(note(1)))
        store.writer.commit(note(2))

        assert notes(store) == [0, 1, 2]


def test_threads_and_tasks_write_at_once(store: RunStore, gate: Gate) -> None:
    gate.opened.set()
    acknowledged: list[int] = []

    def thread(start: int) -> None:
        for at in range(start, start + 50):
            store.writer.commit(note(at))
            acknowledged.append(at)

    async def task(start: int) -> None:
        for at in range(start, start + 50):
            await store.writer.acommit(note(at))
            acknowledged.append(at)

    async def tasks() -> None:
        await asyncio.gather(*(task(start) for start in range(1000, 1400, 50)))

    workers = [threading.Thread(target=thread, args=(start,)) for start in range(0, 400, 50)]
    for worker in workers:
        worker.start()
    asyncio.run(tasks())
    for worker in workers:
        worker.join()

    written = notes(store)
    assert sorted(written) == sorted(acknowledged) == [*range(400), *range(1000, 1400)]
    for start in (*range(0, 400, 50), *range(1000, 1400, 50)):
        own = [at for at in written if start <= at < start + 50]
        assert own == sorted(own)


def test_readers_never_see_half_of_a_group(store: RunStore, gate: Gate) -> None:
    gate.opened.set()
    done = threading.Event()
    odd: list[int] = []

    def both(ledger: Ledger) -> None:
        note(0)(ledger)
        note(1)(ledger)

    def read() -> None:
        while not done.is_set():
            odd.extend(count for count in [store.snapshot("r").event_count, len(store.events("r"))] if count % 2)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(100):
        store.writer.commit(both)
    done.set()
    for reader in readers:
        reader.join()

    assert odd == []


def test_what_is_taken_back_was_never_seen(store: RunStore, gate: Gate) -> None:
    gate.point = "written"
    seen: list[int] = []
    read = threading.Event()

    def look() -> None:
        seen.append(store.snapshot("r").event_count)
        read.set()

    leader = threading.Thread(target=lambda: store.writer.settle(store.writer.submit(note(0))))
    reader = threading.Thread(target=look)
    gate.fails_when_opened = True
    leader.start()
    gate.reached.wait()
    reader.start()
    read.wait(0.2)  # in memory whoever reads has to wait, so this does, too

    gate.opened.set()

    leader.join()
    reader.join()
    assert seen == [0]


# --- closing ---


def test_closing_writes_what_is_queued(tmp_path: Path) -> None:
    store = SqliteRunStore(tmp_path / "runs.db")
    store.create_run("s", "p", run_id="r")
    for at in range(50):
        store.writer.submit(note(at))

    store.close()

    with SqliteRunStore(tmp_path / "runs.db") as store:
        assert notes(store) == list(range(50))


def test_closing_a_store_that_cannot_be_written_says_what_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def crash(point: str) -> None:
        if failing:
            raise StoreError("the disk is gone")

    failing = False
    store = SqliteRunStore(tmp_path / "runs.db", crash=crash)
    store.create_run("s", "p", run_id="r")
    failing = True
    store.writer.submit(note(0))

    store.close()

    assert "what was queued could not be written: the disk is gone" in caplog.text


def test_a_write_that_comes_while_the_store_is_closed_is_made(store: RunStore, gate: Gate) -> None:
    leader = threading.Thread(target=store.writer.commit, args=(note(0),))
    leader.start()
    gate.reached.wait()
    closer = threading.Thread(target=store.close)
    closer.start()
    late = store.writer.submit(lambda ledger: ledger.now_ms())

    gate.opened.set()
    store.writer.settle(late)

    leader.join()
    closer.join()
    assert late.error is None


# --- processes ---


def appended(store: RunStore, run: str) -> list[tuple[int, int]]:
    events = store.events(run)
    assert [event.sequence for event in events] == list(range(len(events)))
    assert store.snapshot(run).event_count == len(events)
    return [(event.payload["by"], event.payload["at"]) for event in events]


def test_eight_processes_append_to_one_run_and_to_many(tmp_path: Path, start: Any) -> None:
    path = tmp_path / "runs.db"
    with SqliteRunStore(path) as store:
        for run in ("all", *map(str, range(8))):
            store.create_run("s", "p", run_id=run)
        appenders = [start("append", path, number, 15, "all", number) for number in range(8)]
        for child in appenders:
            assert said(child) == "ready"

        for child in appenders:
            tell(child)
        codes = [child.wait() for child in appenders]

        assert codes == [0] * 8
        everything = appended(store, "all")
        assert Counter(everything) == Counter((by, at) for by in range(8) for at in range(15))
        for by in range(8):
            assert [at for who, at in everything if who == by] == list(range(15))
            assert appended(store, str(by)) == [(by, at) for at in range(15)]


def test_what_a_process_acknowledged_before_it_was_killed_is_there(tmp_path: Path, start: Any) -> None:
    path = tmp_path / "runs.db"
    with SqliteRunStore(path) as store:
        store.create_run("s", "p", run_id="all")
        appenders = [start("append", path, number, 100_000, "all") for number in range(4)]
        for child in appenders:
            assert said(child) == "ready"
        for child in appenders:
            tell(child)

        acknowledged = []
        for number, child in enumerate(appenders):
            for _ in range(10):
                said(child)
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().splitlines()
            last = 9 + sum(line.startswith("all ") for line in rest)
            acknowledged += [(number, at) for at in range(last + 1)]

        written = appended(store, "all")
        assert len(set(written)) == len(written)
        assert set(acknowledged) <= set(written)
        assert len(written) <= len(acknowledged) + 4  # one each may have been on its way
        assert store.record_event("all", "note").event_count == len(written) + 1


@pytest.mark.parametrize("point", ["begin", "written", "committed"])
def test_a_process_that_is_killed_at_any_point_leaves_whole_writes(tmp_path: Path, start: Any, point: str) -> None:
    path = tmp_path / "runs.db"
    with SqliteRunStore(path) as store:
        store.create_run("s", "p", run_id="r")
        child = start("die", path, point, 3)

        acknowledged = child.stdout.read().split()

        assert child.wait() == -signal.SIGKILL
        assert acknowledged == ["0", "1", "2"]
        written = [0, 0, 1, 1, 2, 2, 3, 3] if point == "committed" else [0, 0, 1, 1, 2, 2]
        assert notes(store) == written
        assert len(store.memory("r").memos) == len(written) // 2


def test_a_follower_sees_what_other_processes_write(tmp_path: Path, start: Any) -> None:
    path = tmp_path / "runs.db"
    with SqliteRunStore(path) as store:
        store.create_run("s", "p", run_id="all")
        appenders = [start("append", path, number, 10, "all") for number in range(2)]
        for child in appenders:
            assert said(child) == "ready"
        following = store.follow("all")

        for child in appenders:
            tell(child)
        seen = [(event.sequence, event.payload["by"]) for event in itertools.islice(following, 20)]

        assert [sequence for sequence, _ in seen] == list(range(20))
        assert Counter(by for _, by in seen) == {0: 10, 1: 10}
        store.mark_failed("all", "enough")
        assert [event.type for event in following] == ["run_failed"]


def test_eight_writers_get_their_share(tmp_path: Path, start: Any) -> None:
    hammers = [start("hammer", tmp_path / "runs.db", number, 2.0) for number in range(8)]
    for child in hammers:
        assert said(child) == "ready"

    for child in hammers:
        tell(child)
    told = [json.loads(said(child)) for child in hammers]

    counts = [count for count, _ in told]
    assert min(counts) * 40 > max(counts)  # with SQLite's own wait some get one for hundreds of others
    assert max(worst for _, worst in told) < 20


def test_a_fork_in_the_middle_harms_neither_parent_nor_child(tmp_path: Path, start: Any) -> None:
    path = tmp_path / "runs.db"
    with SqliteRunStore(path) as store:
        store.create_run("s", "p", run_id="parent")
        store.create_run("s", "p", run_id="child")

        told = json.loads(said(start("fork", path, 15)))

        assert told["codes"] == [0] * 15
        events = store.events("parent")
        assert [event.sequence for event in events] == list(range(told["written"]))
        assert store.snapshot("child").event_count == 30


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is loaded to watch files with")
def test_a_fork_while_a_follower_loads_a_module_leaves_the_child_one_that_it_can_load(
    tmp_path: Path, start: Any
) -> None:
    with SqliteRunStore(tmp_path / "runs.db") as store:
        store.create_run("s", "p", run_id="r")
        store.record_event("r", "note")

        assert said(start("fork_loading", tmp_path / "runs.db")) == "0"


@pytest.mark.parametrize("store", EMBEDDED, indirect=True)
def test_a_child_opens_the_file_anew_and_keeps_what_is_in_memory(store: RunStore, gate: Gate) -> None:
    gate.opened.set()
    before = store.file.writing()

    store.hold()
    store.after_fork()  # as in a child

    assert (store.file.writing() is before) == (store.file.path is None)
    assert store.writer.commit(lambda ledger: ledger.run("r").header.id) == "r"


@pytest.mark.parametrize("store", EMBEDDED, indirect=True)
def test_a_fork_that_would_not_wait_for_another_leaves_the_store_in_nobodys_hands(
    store: RunStore, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.opened.set()
    monkeypatch.setattr("holdfast.stores.store.FORK_PATIENCE", 0.01)

    let_go = store.hold()
    impatient = threading.Thread(target=store.hold)
    impatient.start()
    impatient.join()
    let_go()
    writer = threading.Thread(target=store.record_event, args=("r", "note"), daemon=True)
    writer.start()
    writer.join(10)

    assert [event.type for event in store.events("r")] == ["note"]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
@pytest.mark.parametrize("where", [SqliteFile.hold, SqliteFile.put_away])
def test_a_fork_that_is_interrupted_leaves_the_store_in_nobodys_hands(
    store: RunStore, gate: Gate, where: FunctionType
) -> None:
    gate.opened.set()

    def strike(frame: FrameType, *_: object) -> None:
        if frame.f_code is where.__code__:
            raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(strike)
    try:
        with pytest.raises(KeyboardInterrupt):
            store.hold()
    finally:
        sys.settrace(before)

    assert store.record_event("r", "note").event_count == 1


def test_a_store_that_is_gone_leaves_nothing_behind(tmp_path: Path) -> None:
    def come_and_go(times: int) -> int:
        for _ in range(times):
            SqliteRunStore(tmp_path / "runs.db").close()
        gc.collect()
        return len(gc.get_objects())

    before = come_and_go(5)

    assert come_and_go(50) - before < 50


def test_what_cannot_be_put_right_in_a_child_keeps_nothing_else_from_it(start: Any) -> None:
    assert said(start("fork_trouble", "-")) == "put right"


def test_a_forked_store_in_memory_goes_on_with_a_copy(start: Any) -> None:
    told = json.loads(said(start("fork_memory", "-")))

    assert told == {"child": 2, "parent": 2}
