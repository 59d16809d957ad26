"""A commit that the disk failed, of which what was written is there all the same: it is never made twice."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import StoreError
from holdfast.stores import RunStore, SqliteRunStore
from holdfast.stores.ledger import Claim, Ledger


class Disk:
    """Where SQLite is to fail next: of its commits, *keeping* says whether they are found when the file is opened."""

    def __init__(self) -> None:
        self.failing = 0
        self.keeping = True
        self.is_gone = False  # once a commit has failed
        self.is_stuck = False  # what is in the log cannot be copied into the file
        self.interrupts: list[BaseException] = []  # of whoever looks then
        self.interrupt: BaseException | None = None  # comes when a commit has failed
        self.begun = 0

    def connect(self, *args: Any, **more: Any) -> sqlite3.Connection:
        if self.is_gone and not self.failing:
            raise trouble("SQLITE_CANTOPEN", "unable to open database file")
        if self.interrupts and not self.failing:
            raise self.interrupts.pop()
        disk = self

        class Cursor(sqlite3.Cursor):
            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                if sql == "COMMIT" and disk.failing:
                    disk.failing -= 1
                    super().execute("COMMIT" if disk.keeping else "ROLLBACK")
                    raise trouble("SQLITE_IOERR_FSYNC", "disk I/O error")
                return super().execute(sql, parameters)

        class Connection(sqlite3.Connection):
            def cursor(self, factory: Any = Cursor) -> Any:
                return super().cursor(factory)

            def rollback(self) -> None:
                super().rollback()
                disk.strike()

            def close(self) -> None:
                super().close()
                disk.strike()

            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                if disk.is_stuck and "checkpoint" in sql:
                    raise trouble("SQLITE_IOERR_FSYNC", "disk I/O error")
                return super().execute(sql, parameters)

        return CONNECT(*args, factory=Connection, **more)

    def strike(self) -> None:
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            raise interrupt

    def __call__(self, point: str) -> None:
        self.begun += point == "begin"


def trouble(name: str, words: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(words)
    error.sqlite_errorname = name
    return error


CONNECT = sqlite3.connect


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(sqlite3, "connect", disk.connect)
    return disk


@pytest.fixture
def store(tmp_path: Path, disk: Disk) -> Iterator[RunStore]:
    with SqliteRunStore(tmp_path / "runs.db", crash=disk) as store:
        store.create_run("s", "p", run_id="r")
        store.create_run("s", "p", run_id="other")
        disk.begun = 0
        yield store
        disk.is_gone = False


def note(ledger: Ledger) -> str:
    ledger.say(ledger.run("r"), "note")
    return "noted"


def claim(store: RunStore) -> Claim:
    return store.writer.commit(lambda ledger: ledger.claim(ledger.run("r"), store.ownership.row()))


def together(store: RunStore, number: int) -> list[Any]:
    """So many notes in one group."""
    with store.writer.turn:
        pending = [store.writer.submit(note) for _ in range(number)]
    for each in pending:
        store.writer.settle(each)
    return pending


def test_events_that_are_there_are_not_written_again(store: RunStore, disk: Disk) -> None:
    disk.failing = 1

    pending = together(store, 4)

    assert [each.result() for each in pending] == ["noted"] * 4
    assert store.snapshot("r").event_count == len(store.events("r")) == 4
    assert disk.begun == 1


def test_who_claimed_a_run_has_it(store: RunStore, disk: Disk) -> None:
    disk.failing = 1

    assert claim(store).fence == 1

    assert store.snapshot("r").owner is not None


def test_a_run_that_is_there_was_made(store: RunStore, disk: Disk) -> None:
    disk.failing = 1

    assert store.create_run("s", "p", run_id="new").event_count == 0

    assert len(store.list_runs()) == 3


def test_what_is_not_there_is_an_error_for_all_at_once(store: RunStore, disk: Disk) -> None:
    disk.failing, disk.keeping = 100, False

    pending = together(store, 8)

    assert all("the disk failed" in str(each.error) for each in pending)
    assert disk.begun == 1
    disk.failing = 0
    assert store.record_event("r", "note").event_count == 1


def test_a_claim_that_is_not_there_can_be_taken_anew(store: RunStore, disk: Disk) -> None:
    disk.failing, disk.keeping = 1, False

    with pytest.raises(StoreError, match="the disk failed"):
        claim(store)

    assert claim(store).fence == 1


def test_where_nobody_can_look_the_error_says_so(store: RunStore, disk: Disk) -> None:
    disk.failing, disk.is_gone = 1, True

    pending = together(store, 2)

    assert all("it may have been written or not: check before you repeat it" in str(each.error) for each in pending)
    disk.is_gone = False
    assert store.snapshot("r").event_count == 2


def test_who_is_interrupted_as_it_looks_has_nothing_made_again(store: RunStore, disk: Disk) -> None:
    disk.failing, disk.interrupts = 1, [KeyboardInterrupt()]

    with pytest.raises(KeyboardInterrupt):
        store.writer.commit(note)

    store.writer.flush()
    assert store.snapshot("r").event_count == len(store.events("r")) == 1


def test_what_the_disk_failed_to_write_is_removed_from_the_log(store: RunStore, disk: Disk) -> None:
    with contextlib.closing(CONNECT(str(store.file.path))) as reader:  # SQLite does not delete the log meanwhile
        reader.execute("SELECT count(*) FROM runs").fetchall()
        disk.failing, disk.keeping = 1, False

        together(store, 1)

        assert os.path.getsize(f"{store.file.path}-wal") == 0


@pytest.mark.parametrize("keeping", [True, False])
def test_a_log_from_which_that_cannot_be_removed_stays_in_use(store: RunStore, disk: Disk, keeping: bool) -> None:
    index = os.open(f"{store.file.path}-shm", os.O_RDONLY)
    disk.failing, disk.keeping, disk.is_stuck = 1, keeping, True

    together(store, 1)

    # If SQLite had made the index of the log anew, it would take for written what the disk failed to write.
    assert os.fstat(index).st_nlink == 1
    store.record_event("r", "note")
    store.close()
    os.close(index)
    assert not os.path.exists(f"{store.file.path}-wal")


@pytest.mark.parametrize("keeping", [True, False])
def test_writes_are_made_once_if_an_interrupt_comes_as_the_disk_fails(
    store: RunStore, disk: Disk, keeping: bool
) -> None:
    with store.writer.turn:
        pending = [store.writer.submit(note) for _ in range(3)]
    disk.failing, disk.keeping, disk.interrupt = 1, keeping, KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        store.writer.settle(pending[0])
    store.writer.flush()
    store.record_event("r", "note")

    assert [each.result() for each in pending] == ["noted"] * 3
    assert [event.sequence for event in store.events("r")] == [0, 1, 2, 3]
    assert store.snapshot("r").event_count == 4
