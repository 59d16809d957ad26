"""PostgreSQL and the processes on it under load, killed and started again: nothing acknowledged is ever lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.children import eventually, said, tell
from tests.servers import PostgresServer, Toxic

from holdfast import Holdfast
from holdfast.clock import SystemClock
from holdfast.errors import StoreError
from holdfast.history import RunStatus, fold
from holdfast.policy import PolicyBook
from holdfast.stores import PostgresRunStore, RunStore

PATIENCE = 60.0


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def await_more(files: list[Path], count: int) -> None:
    """Each of the writers goes on."""
    enough = [len(lines(file)) + count for file in files]
    assert eventually(lambda: all(len(lines(file)) > least for file, least in zip(files, enough, strict=True)))


def check(store: RunStore, run: str, acknowledged: list[str]) -> None:
    """All that was acknowledged is there once, in sequence, and the snapshot is its fold."""
    log = store.events(run)
    written = Counter(f"{run} {event.payload['by']} {event.payload['at']}" for event in log)
    assert [event.sequence for event in log] == [*range(len(log))]
    assert [event.timestamp_ms for event in log] == sorted(event.timestamp_ms for event in log)
    assert max(written.values()) == 1
    assert [line for line in acknowledged if line.startswith(f"{run} ") and line not in written] == []
    assert store.snapshot(run) == fold(store.memory(run).header, log)


@pytest.mark.timeout(180)
def test_nothing_acknowledged_is_lost_when_the_server_is_killed_under_load_and_writers_go_on_by_themselves(
    own_postgres: PostgresServer, tmp_path: Path, child: Any
) -> None:
    url = own_postgres.database()
    files = [tmp_path / "0", tmp_path / "1"]
    runs = ["all", "each", "other"]
    with PostgresRunStore(url) as store:
        for run in runs:
            store.create_run("s", "p", run_id=run)
        writers = [child("append", url, file, number, 4, *runs) for number, file in enumerate(files)]
        assert [said(writer) for writer in writers] == ["ready", "ready"]

        for _ in range(2):
            await_more(files, 100)
            own_postgres.kill()
            own_postgres.start_again()
        await_more(files, 100)
        for writer in writers:
            tell(writer)
        assert all(said(writer).startswith("done") for writer in writers)

        acknowledged = [line for file in files for line in lines(file)]
        for run in runs:
            check(store, run, acknowledged)


@pytest.mark.timeout(180)
def test_nothing_is_lost_and_nothing_is_written_twice_when_connections_are_cut_under_load(
    database: str, tmp_path: Path, child: Any
) -> None:
    file, parts = tmp_path / "acknowledged", urlsplit(database)
    with Toxic(parts.port or 5432) as network, PostgresRunStore(database) as store:
        cut_off = parts._replace(netloc=f"{parts.username}@127.0.0.1:{network.port}").geturl()
        for run in ("one", "two"):
            store.create_run("s", "p", run_id=run)
        writer = child("append", cut_off, file, 0, 8, "one", "two")
        assert said(writer) == "ready"

        for _ in range(15):
            await_more([file], 20)
            network.cut()
        tell(writer)

        assert said(writer).startswith("done")
        for run in ("one", "two"):
            check(store, run, lines(file))


def test_a_store_that_is_forked_is_used_by_both(database: str, child: Any) -> None:
    with PostgresRunStore(database) as store:
        for run in ("parent", "child"):
            store.create_run("s", "p", run_id=run)

        forking = child("fork_store", database)

        assert said(forking) == "child 10 True"
        assert said(forking) == "parent 11 True"
        for run in ("parent", "child"):
            assert [event.sequence for event in store.events(run)] == [*range(store.snapshot(run).event_count)]


def test_a_run_that_its_server_was_killed_under_is_resumed_and_makes_no_finished_call_again(
    own_postgres: PostgresServer,
) -> None:
    called: list[str] = []
    store = PostgresRunStore(own_postgres.database())
    with Holdfast(PolicyBook.load({}), SystemClock(), store) as hf:
        charge = hf.tool("charge")(called.append)

        with pytest.raises(StoreError), hf.run("s", "p", run_id="r"):  # noqa: PT012
            charge("before")
            own_postgres.kill()
            charge("after")
        own_postgres.start_again()
        with hf.resume("r"):
            charge("before")
            charge("after")

        assert called == ["before", "after"]
        assert store.snapshot("r").status is RunStatus.COMPLETED


def test_a_run_that_ended_while_its_server_was_away_is_given_back_when_that_is_there_again(
    own_postgres: PostgresServer,
) -> None:
    url = own_postgres.database()
    hf = Holdfast(PolicyBook.load({}), SystemClock(), PostgresRunStore(url, lease=3600))
    with hf, PostgresRunStore(url) as other, hf.run("s", "p", run_id="open"):
        with pytest.raises(StoreError), hf.run("s", "p", run_id="ended") as run:  # noqa: PT012
            own_postgres.kill()
            run.commit("note")
        own_postgres.start_again()

        assert eventually(lambda: other.snapshot("ended").interrupted)
        assert not other.snapshot("open").interrupted


def test_several_processes_write_to_one_run_and_to_many_without_a_gap_a_repeat_or_an_error(
    database: str, tmp_path: Path, child: Any
) -> None:
    files = [tmp_path / str(number) for number in range(3)]
    with PostgresRunStore(database) as store:
        for run in ("all", "0", "1", "2"):
            store.create_run("s", "p", run_id=run)
        writers = [child("append", database, file, number, 3, "all", number) for number, file in enumerate(files)]
        assert [said(writer) for writer in writers] == ["ready"] * 3

        assert eventually(lambda: all(len(lines(file)) > 150 for file in files))
        for writer in writers:
            tell(writer)

        assert [said(writer).strip() for writer in writers] == ["done 0"] * 3
        acknowledged = [line for file in files for line in lines(file)]
        for run in ("all", "0", "1", "2"):
            check(store, run, acknowledged)
        assert sum(each.event_count for each in store.list_runs()) == len(acknowledged)


def test_what_is_finished_can_be_pruned_while_others_write(database: str, tmp_path: Path, child: Any) -> None:
    file = tmp_path / "acknowledged"
    with PostgresRunStore(database) as store:
        store.create_run("s", "p", run_id="busy")
        writer, maker = child("append", database, file, 0, 2, "busy"), child("finish", database, 30)
        assert said(writer) == "ready"

        while maker.poll() is None:
            store.prune(max_runs=2)
        tell(writer)

        assert said(maker) == "done"
        assert said(writer).strip() == "done 0"
        store.prune(max_runs=2)
        check(store, "busy", lines(file))
        assert len(store.list_runs(status=RunStatus.COMPLETED)) <= 2
