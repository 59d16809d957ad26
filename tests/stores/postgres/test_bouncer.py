"""Behind PgBouncer with transaction pooling there is no session, and everything works: by polling and by leases."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.children import eventually, said, tell
from tests.servers import PgBouncer
from tests.stores.kinds import claim

from holdfast.errors import RunConflict, StoreError
from holdfast.history import CancelResult, RunStatus
from holdfast.stores import PostgresRunStore, RunStore
from holdfast.stores.postgres import connections as tables

PATIENCE = 30.0


@pytest.fixture
def pooled(database: str, pgbouncer: PgBouncer) -> str:
    """The database through the pool, which lends five connections to all."""
    return pgbouncer.through(database)


@pytest.fixture
def store(pooled: str) -> Iterator[RunStore]:
    with PostgresRunStore(pooled) as store:
        store.create_run("s", "p", run_id="r")
        yield store


def test_runs_are_written_read_listed_and_pruned_through_a_pool(store: RunStore, pooled: str) -> None:
    for at in range(20):  # often enough for statements to be prepared, were they
        store.record_event("r", "note", {"at": at})
    store.record_event("r", "run_completed", {"text": "done"})

    with PostgresRunStore(pooled) as other:
        assert [event.payload.get("at") for event in other.events("r")] == [*range(20), None]
        assert other.list_runs()[0].status is RunStatus.COMPLETED
        assert other.prune(max_runs=0) == (1, 21)


def test_several_processes_share_few_connections_of_a_pool(
    store: RunStore, pooled: str, tmp_path: Any, child: Any
) -> None:
    files = [tmp_path / str(number) for number in range(3)]
    writers = [child("append", pooled, file, number, 4, "r") for number, file in enumerate(files)]
    assert [said(writer) for writer in writers] == ["ready"] * 3

    assert eventually(lambda: all(file.exists() and len(file.read_text().splitlines()) > 50 for file in files))
    for writer in writers:
        tell(writer)

    assert [said(writer).strip() for writer in writers] == ["done 0"] * 3
    acknowledged = sum(len(file.read_text().splitlines()) for file in files)
    assert [event.sequence for event in store.events("r")] == [*range(acknowledged)]


def test_no_answer_that_a_store_left_unread_is_given_to_whoever_has_its_connection_next(pooled: str) -> None:
    with PostgresRunStore(pooled) as store:
        store.create_run("s", "p", run_id="r")
    answers = []

    for _ in range(20):
        with PostgresRunStore(pooled) as store:
            store.record_event("r", "note")
        with psycopg.connect(pooled) as other:
            answers.append(other.execute("SELECT 'mine', 'only'").fetchone())

    assert answers == [("mine", "only")] * 20


def test_a_run_is_followed_through_a_pool(store: RunStore, pooled: str, child: Any) -> None:
    store.record_event("r", "run_started")
    other = child("follow", pooled, "r")
    assert said(other) == "0 run_started"

    store.record_event("r", "note")
    assert said(other) == "1 note"
    store.record_event("r", "run_completed", {"text": "done"})

    assert [said(other), said(other)] == ["2 run_completed", "end"]


def test_a_cancel_reaches_a_coroutine_through_a_pool(store: RunStore, pooled: str, child: Any) -> None:
    other = child("wait", pooled, "far", 60)
    assert said(other) == "ready"

    result = store.cancel("far", "enough")

    assert result is CancelResult.REQUESTED
    assert said(other) == "cancelled enough"


def test_an_owner_behind_a_pool_has_its_run_while_it_gives_signs_of_life(
    store: RunStore, pooled: str, child: Any
) -> None:
    other = child("own", pooled, "r", 4)
    assert said(other) == "ready"
    with pytest.raises(RunConflict):
        claim(store, "r")
    assert eventually(lambda: store.snapshot("r").interrupted)

    tell(other, "renew")
    assert said(other) == "ok"

    assert not store.snapshot("r").interrupted


def test_an_owner_behind_a_pool_that_is_killed_is_noticed_by_its_lease_and_fenced(
    store: RunStore, pooled: str, child: Any
) -> None:
    other = child("own", pooled, "r", 1)
    assert said(other) == "ready"
    other.send_signal(signal.SIGSTOP)
    assert eventually(lambda: store.snapshot("r").interrupted)

    claim(store, "r")
    other.send_signal(signal.SIGCONT)
    tell(other)

    assert said(other) == "LeaseLost"


def test_one_with_a_session_does_not_take_one_behind_a_pool_for_dead(
    database: str, store: RunStore, pooled: str, child: Any
) -> None:
    other = child("own", pooled, "r", 3600)
    assert said(other) == "ready"

    with PostgresRunStore(database) as direct:
        assert not direct.snapshot("r").interrupted
        with pytest.raises(RunConflict):
            claim(direct, "r")


def test_what_another_process_does_not_let_go_of_is_an_error_soon_through_a_pool(
    store: RunStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "HELD", 0.2)
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM holdfast.runs FOR UPDATE")

        with pytest.raises(StoreError, match="somebody else holds what is needed"):
            store.record_event("r", "note")

    assert store.record_event("r", "note").event_count == 1


def test_a_table_that_is_locked_is_an_error_soon_through_a_pool(
    store: RunStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "HELD", 0.2)
    with psycopg.connect(database) as other:
        other.execute("LOCK TABLE holdfast.events")

        with pytest.raises(StoreError, match="somebody else holds what is needed"):
            store.events("r")

    assert store.events("r") == []


def test_nothing_is_left_in_the_sessions_of_the_pool(store: RunStore, database: str) -> None:
    claim(store, "r")
    store.record_event("r", "note")

    with psycopg.connect(database) as connection:
        held = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone()

    assert held == (0,)
