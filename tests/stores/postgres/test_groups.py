"""What becomes of a group of writes when what is wrong concerns all of them, and how long that may take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast.errors import StoreError
from holdfast.stores import PostgresRunStore, RunStore, transactions
from holdfast.stores.postgres import connections, database


@pytest.fixture
def points() -> Counter[str]:
    """How often each point of the protocol was passed."""
    return Counter()


@pytest.fixture
def store(url: str, points: Counter[str]) -> Iterator[RunStore]:
    with PostgresRunStore(url, crash=lambda point: points.update([point])) as store:
        store.create_run("s", "p", run_id="r")
        points.clear()
        yield store


def together(store: RunStore, number: int) -> list[Any]:
    """So many notes in one group."""
    with store.writer.turn:
        pending = [store.writer.submit(lambda ledger: ledger.say(ledger.run("r"), "note")) for _ in range(number)]
    for each in pending:
        store.writer.settle(each)
    return pending


def test_what_the_server_refuses_to_all_is_asked_for_once(
    store: RunStore, server: psycopg.Connection[Any], schema: str, points: Counter[str]
) -> None:
    server.execute(f"ALTER TABLE {schema}.events RENAME TO elsewhere".encode())

    pending = together(store, 16)

    assert all("does not have the tables" in str(each.error) for each in pending)
    assert points["begin"] == 1
    server.execute(f"ALTER TABLE {schema}.elsewhere RENAME TO events".encode())
    assert store.record_event("r", "note").event_count == 1


def test_a_lock_that_all_wait_for_is_not_waited_for_by_each(
    store: RunStore,
    server: psycopg.Connection[Any],
    schema: str,
    points: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "HELD", 0.2)
    monkeypatch.setattr(database, "HELD_AGAIN", 0.1)
    monkeypatch.setattr(transactions, "SEARCH", 0.0, raising=False)
    store.close()  # the next connection waits as long as that
    with server.transaction():
        server.execute(f"LOCK TABLE {schema}.events IN SHARE MODE".encode())

        pending = together(store, 16)

    assert all(isinstance(each.error, StoreError) for each in pending)
    assert points["begin"] == 3  # of all, and of each half
    assert store.record_event("r", "note").event_count == 1
