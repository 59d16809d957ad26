"""Room in SQLite's log: there from the first write on, never in the way of what is written."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.children import said, tell
from tests.stores.children import children

from holdfast.stores import MemoryRunStore, SqliteRunStore
from holdfast.stores.log_space import EACH, FIRST, MOST


@pytest.fixture
def start() -> Iterator[Any]:
    with children() as start:
        yield start


def length_of_log(path: Path) -> int:
    return os.stat(f"{path}-wal").st_size


def test_the_log_is_as_long_as_it_gets_before_it_is_full(path: Path) -> None:
    lengths = []
    with SqliteRunStore(path) as store:
        store.create_run("s", "p", run_id="r")
        lengths.append(length_of_log(path))
        while lengths[-1] < MOST:
            for _ in range(lengths[-1] // EACH + 1):
                store.record_event("r", "note", {})
            lengths.append(length_of_log(path))
            assert len(lengths) < 10
        for _ in range(100):
            store.record_event("r", "note", {})

        assert lengths == [FIRST, 2 * FIRST, 4 * FIRST, MOST]
        assert length_of_log(path) == MOST


def test_a_log_that_has_room_gets_no_more_of_it_by_others(path: Path) -> None:
    with SqliteRunStore(path) as store, SqliteRunStore(path) as other:
        store.create_run("s", "p", run_id="r")
        for number in range(10):
            (store if number % 2 else other).record_event("r", "note", {"number": number})

        assert length_of_log(path) == FIRST
        assert [event.payload["number"] for event in other.events("r") if event.type == "note"] == list(range(10))


def test_a_log_that_others_have_cut_gets_its_room_again(path: Path) -> None:
    with SqliteRunStore(path) as store:
        store.create_run("s", "p", run_id="r")
        with contextlib.closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
        assert length_of_log(path) == 0

        with SqliteRunStore(path) as other:
            other.record_event("r", "note", {})
        after_another = length_of_log(path)
        for _ in range(FIRST // EACH + 1):
            store.record_event("r", "note", {})

        assert (after_another, length_of_log(path)) == (FIRST, 2 * FIRST)
        assert len(store.events("r")) == FIRST // EACH + 2


@pytest.mark.parametrize("events", [1, 40, 300])
def test_what_a_killed_process_wrote_is_found_before_the_room_that_it_made(
    path: Path, tmp_path: Path, start: Any, events: int
) -> None:
    with SqliteRunStore(path) as store:
        store.create_run("s", "p", run_id="r")
    child = start("append_and_stay", path, 1, events, "r")
    assert said(child) == "ready"
    tell(child)
    for at in range(events):
        assert said(child) == f"r {at}"
    child.send_signal(signal.SIGKILL)
    child.wait()
    copy = tmp_path / "copy"
    copy.mkdir()
    assert not any((tmp_path / "runs.db-wal").read_bytes()[-EACH:])
    for suffix in ("", "-wal"):  # as after a power cut: nobody has the index of the log any more
        shutil.copy(f"{path}{suffix}", copy)

    with SqliteRunStore(copy / "runs.db") as store:
        found = [event.payload["at"] for event in store.events("r") if event.type == "note"]
        store.record_event("r", "note", {"at": "after"})
    with contextlib.closing(sqlite3.connect(copy / "runs.db")) as connection:
        (sound,) = connection.execute("PRAGMA integrity_check").fetchone()
        (kept,) = connection.execute("SELECT count(*) FROM events WHERE type = 'note'").fetchone()

    assert found == list(range(events))
    assert (sound, kept) == ("ok", events + 1)


def test_who_does_not_wait_for_the_disk_makes_no_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)

    with SqliteRunStore(path, synchronous="NORMAL") as store, MemoryRunStore() as memory:
        store.create_run("s", "p", run_id="r")
        memory.create_run("s", "p", run_id="r")
        seen = {name: os.stat(name).st_size for name in os.listdir() if name.endswith("-wal")}

    assert list(seen) == ["runs.db-wal"]
    assert seen["runs.db-wal"] < FIRST
