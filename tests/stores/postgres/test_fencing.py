"""Who has a run on PostgreSQL: leases on the server's clock, locks that die with a process, cancels that reach it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.children import ask, eventually, said, tell
from tests.stores.kinds import claim

from holdfast.errors import LeaseLost, RunConflict
from holdfast.history import CancelResult, RunStatus
from holdfast.stores import PostgresRunStore, RunStore
from holdfast.stores.ledger import Claim

PATIENCE = 30.0
FOR_EVER = 3600.0


@pytest.fixture
def store(database: str) -> Iterator[RunStore]:
    with PostgresRunStore(database) as store:
        store.create_run("s", "p", run_id="r")
        yield store


def owned(database: str, child: Any) -> Any:
    """A process that owns the run for ever, and says that its lock tells of it; a busy machine may need a moment."""
    other = child("own", database, "r", FOR_EVER)
    assert said(other) == "ready"
    assert eventually(lambda: ask(other, "renew") == "ok" and is_locked(database))
    return other


def is_locked(database: str) -> bool:
    with psycopg.connect(database) as connection:
        return connection.execute("SELECT locked FROM holdfast.owners").fetchone() == (True,)


def write(store: RunStore, held: Claim) -> None:
    store.writer.commit(lambda ledger: ledger.say(ledger.claimed(held), "note"))


def test_a_frozen_owner_loses_its_run_with_its_lease_and_writes_nothing_when_it_wakes(
    database: str, store: RunStore, child: Any
) -> None:
    frozen = child("own", database, "r", 1)
    assert said(frozen) == "ready"
    frozen.send_signal(signal.SIGSTOP)
    assert eventually(lambda: store.snapshot("r").interrupted)
    held = claim(store, "r")
    write(store, held)

    frozen.send_signal(signal.SIGCONT)
    tell(frozen)

    assert said(frozen) == "LeaseLost"
    assert store.snapshot("r").event_count == 1


def test_an_owner_that_wakes_before_anybody_has_its_run_goes_on(database: str, store: RunStore, child: Any) -> None:
    frozen = child("own", database, "r", 3)
    assert said(frozen) == "ready"
    frozen.send_signal(signal.SIGSTOP)
    assert eventually(lambda: store.snapshot("r").interrupted)

    frozen.send_signal(signal.SIGCONT)
    tell(frozen, "renew")
    tell(frozen)

    assert [said(frozen), said(frozen)] == ["ok", "ok"]
    assert not store.snapshot("r").interrupted
    with pytest.raises(RunConflict):
        claim(store, "r")


def test_a_claim_that_was_never_written_is_not_taken_for_that_of_the_owner_who_got_the_same_number(
    store: RunStore,
) -> None:
    held = claim(store, "r")

    with pytest.raises(LeaseLost):
        write(store, held._replace(owner="somebody"))

    assert store.snapshot("r").event_count == 0


def test_an_owner_that_is_killed_is_noticed_by_its_lock_and_not_by_its_lease(
    database: str, store: RunStore, child: Any
) -> None:
    other = owned(database, child)
    with pytest.raises(RunConflict):
        claim(store, "r")

    other.kill()

    assert eventually(lambda: store.snapshot("r").interrupted)
    assert claim(store, "r").fence == 2


@pytest.mark.parametrize("off", [3600, -3600])
def test_an_owner_whose_clock_is_off_by_an_hour_neither_loses_its_run_nor_takes_another(
    database: str, store: RunStore, child: Any, off: int
) -> None:
    held = claim(store, "r")
    store.create_run("s", "p", run_id="theirs")

    thief, owner = child("own", database, "r", 60, off), child("own", database, "theirs", 60, off)

    assert said(thief) == "RunConflict"
    assert said(owner) == "ready"
    write(store, held)
    with pytest.raises(RunConflict):
        claim(store, "theirs")
    tell(owner)
    assert said(owner) == "ok"
    assert [each.owner is not None for each in store.list_runs()] == [True, True]


def test_a_server_whose_clock_jumps_ahead_costs_no_living_owner_of_this_host_its_run(
    database: str, store: RunStore, child: Any
) -> None:
    owned(database, child)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE holdfast.owners SET until = 1")  # to the server, the lease ended long ago

        assert not store.snapshot("r").interrupted
        with pytest.raises(RunConflict):
            claim(store, "r")

        connection.execute("UPDATE holdfast.owners SET awake_until = 1")  # by the host's own clock, too
        assert store.snapshot("r").interrupted


def test_times_of_events_are_the_servers_whoever_writes_them(database: str, store: RunStore, child: Any) -> None:
    store.record_event("r", "note")
    other = child("own", database, "r", 60, 3600)
    assert said(other) == "ready"
    tell(other)
    assert said(other) == "ok"
    store.record_event("r", "note")

    first, theirs, last = (event.timestamp_ms for event in store.events("r"))

    assert first <= theirs <= last
    assert last - first < 1_800_000


def test_a_cancel_reaches_a_coroutine_in_another_process(database: str, store: RunStore, child: Any) -> None:
    other = child("wait", database, "far", FOR_EVER)
    assert said(other) == "ready"

    result = store.cancel("far", "enough")

    assert result is CancelResult.REQUESTED
    assert said(other) == "cancelled enough"
    assert eventually(lambda: store.snapshot("far").status is RunStatus.CANCELLED)


def test_a_run_whose_owner_was_killed_is_cancelled_at_once(database: str, store: RunStore, child: Any) -> None:
    other = owned(database, child)
    other.kill()
    assert eventually(lambda: store.snapshot("r").interrupted)

    store.cancel("r")

    assert store.snapshot("r").status is RunStatus.CANCELLED


def test_a_run_is_followed_from_another_process_as_it_goes(database: str, store: RunStore, child: Any) -> None:
    store.record_event("r", "run_started")
    other = child("follow", database, "r")
    assert said(other) == "0 run_started"

    for at in range(1, 4):
        store.record_event("r", "note")
        assert said(other) == f"{at} note"
    store.record_event("r", "run_completed", {"text": "done"})

    assert [said(other), said(other)] == ["4 run_completed", "end"]
