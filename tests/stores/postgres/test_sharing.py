"""Several processes on one PostgreSQL: what each has at hand of a run may be outdated, and that must never be seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.children import eventually
from tests.stores.kinds import claim, postgres_url

from holdfast.clock import SystemClock
from holdfast.errors import LeaseLost, RunConflict
from holdfast.history import CancelResult, RunStatus
from holdfast.stores import PostgresRunStore, RunStore
from holdfast.stores.bell import Listener
from holdfast.stores.board import Board
from holdfast.stores.ledger import Ledger


@pytest.fixture
def url(tmp_path: Path) -> str:
    return postgres_url(tmp_path)


@pytest.fixture
def one(url: str) -> Iterator[RunStore]:
    with PostgresRunStore(url) as store:
        store.create_run("s", "p", run_id="r")
        yield store


@pytest.fixture
def two(url: str, one: RunStore) -> Iterator[RunStore]:
    """Another store on the same tables, as another process has it."""
    with PostgresRunStore(url) as store:
        yield store


def sequences(store: RunStore, run: str = "r") -> list[int]:
    return [event.sequence for event in store.events(run)]


# --- what is at hand ---


def test_events_of_two_writers_are_numbered_without_a_gap(one: RunStore, two: RunStore) -> None:
    for _ in range(5):
        one.record_event("r", "note")
        two.record_event("r", "note")

    assert sequences(one) == list(range(10))
    assert one.snapshot("r").event_count == two.snapshot("r").event_count == 10


def test_a_run_that_another_has_ended_is_not_cancelled(one: RunStore, two: RunStore) -> None:
    one.record_event("r", "note")
    two.record_event("r", "run_completed")

    assert one.cancel("r") is CancelResult.ALREADY_FINISHED
    assert one.snapshot("r").status is RunStatus.COMPLETED


def test_a_run_that_another_has_given_back_can_be_claimed(one: RunStore, two: RunStore) -> None:
    held = claim(two, "r")
    with pytest.raises(RunConflict):
        claim(one, "r")
    two.writer.commit(lambda ledger: ledger.release(ledger.claimed(held)))

    assert claim(one, "r").fence == 2


def test_who_was_replaced_hears_so_although_it_knows_nothing_of_it(one: RunStore, two: RunStore) -> None:
    held = claim(one, "r")
    one.writer.commit(lambda ledger: ledger.say(ledger.claimed(held), "note"))

    def replace(ledger: Ledger) -> None:
        ledger.release(ledger.run("r"))
        ledger.claim(ledger.run("r"), two.ownership.row())

    two.writer.commit(replace)

    with pytest.raises(LeaseLost):
        one.writer.commit(lambda ledger: ledger.say(ledger.claimed(held), "note"))
    assert sequences(two) == [0]


def test_one_id_that_two_make_at_once_is_one_run(one: RunStore, two: RunStore) -> None:
    """The first has written, and not committed yet, when the second looks for the id."""
    written, second = threading.Event(), threading.Event()

    def hesitate(point: str) -> None:
        if point == "written":
            written.set()
            second.wait(30)

    with PostgresRunStore(one.url, crash=hesitate) as slow:
        first = threading.Thread(target=slow.create_run, args=("s", "p"), kwargs={"run_id": "new"})
        first.start()
        written.wait(30)
        other = threading.Thread(target=two.create_run, args=("s", "p"), kwargs={"run_id": "new"})
        other.start()
        second.set()
        first.join()
        other.join()

    assert [run.id for run in one.list_runs()].count("new") == 1


def test_groups_that_cross_are_all_written(one: RunStore, two: RunStore) -> None:
    """Two stores write to the same two runs, in opposite order, again and again."""
    one.create_run("s", "p", run_id="q")

    def write(store: RunStore, *runs: str) -> None:
        for _ in range(20):
            store.writer.commit(lambda ledger: [ledger.say(ledger.run(run), "note") for run in runs])

    threads = [
        threading.Thread(target=write, args=(one, "r", "q")),
        threading.Thread(target=write, args=(two, "q", "r")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sequences(one) == sequences(one, "q") == list(range(40))


def test_two_orders_at_once_have_two_numbers(one: RunStore, two: RunStore) -> None:
    threads = [
        threading.Thread(target=Board(store).order, args=("open", [name])) for store, name in ((one, "a"), (two, "b"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(order.number for order in Board(one).orders()) == [1, 2]


# --- what wakes others ---


def test_a_follower_hears_of_what_another_writes(one: RunStore, two: RunStore) -> None:
    one.record_event("r", "note")
    following = one.follow("r")
    assert next(following).sequence == 0
    with one.listen() as listener:
        two.record_event("r", "run_completed")
        assert listener.wait(20)

    assert [event.sequence for event in following] == [1]


def test_a_cancel_wakes_the_owner_wherever_it_is(one: RunStore, two: RunStore) -> None:
    claim(one, "r")
    mailbox = one.ownership.mailbox()
    assert mailbox is not None

    two.cancel("r", "enough")

    while not one.cancels():
        assert mailbox.wait(20)
    mailbox.close()
    assert one.cancels() == [("r", "enough")]


def test_who_comes_while_another_thread_closes_the_store_still_hears_and_is_known_to_live(
    url: str, two: RunStore
) -> None:
    came: list[tuple[Listener, str]] = []

    def come(point: str) -> None:
        """In the last write of a store that is closed, when nobody is its owner any more."""
        if point == "committed" and closing.ownership.id is None and not came:
            came.append((closing.listen(), closing.ownership.row().id))

    closing = PostgresRunStore(url, crash=come)
    closing.writer.commit(lambda ledger: ledger.renew_owner(closing.ownership.row()))

    closing.close()

    ((listener, owner),) = came
    while listener.wait(0.5):  # what it hears in the beginning
        continue
    two.record_event("r", "note")
    assert listener.wait(30)
    assert closing.ownership.row().locked
    assert two.ownership.is_process_alive(owner, "elsewhere", until=0)
    closing.close()


def test_what_has_changed_since_a_moment_is_found_whoever_wrote_it(one: RunStore, two: RunStore) -> None:
    two.create_run("s", "p", run_id="q")

    def changed(since: tuple[int, int]) -> set[str]:
        return {run.id for run in one.snapshots(one.file.fetch("changed", *since, 100))}

    ((event, key),) = one.file.fetch("last_change")
    one.record_event("r", "note")
    two.record_event("q", "run_completed")
    two.create_run("s", "p", run_id="new")

    assert changed((event, key)) >= {"r", "q", "new"}


def test_a_late_event_is_a_change_too(one: RunStore, two: RunStore) -> None:
    two.record_event("r", "run_completed")
    ((event, key),) = one.file.fetch("last_change")

    two.record_event("r", "late")

    assert [run.id for run in one.snapshots(one.file.fetch("changed", event, key, 100))] == ["r"]


def test_what_was_written_on_another_server_is_no_change(
    one: RunStore, server: psycopg.Connection[Any], schema: str
) -> None:
    one.create_run("s", "p", run_id="ended")
    one.record_event("ended", "run_completed")
    server.execute(f"UPDATE {schema}.runs SET changed = changed + 1e12, ended = ended + 1e12".encode())
    one.create_run("s", "p", run_id="q")
    ((event, key),) = one.file.fetch("last_change")

    one.record_event("q", "note")

    assert [run.id for run in one.snapshots(one.file.fetch("changed", event, key, 100))] == ["q"]


# --- time ---


def test_times_are_the_servers_whatever_the_host_believes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "time", staticmethod(lambda: 1_000_000_000.0))

    with PostgresRunStore(url, clock=SystemClock()) as store, psycopg.connect(url.partition("?")[0]) as connection:
        made = store.create_run("s", "p")
        (now,) = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone() or (0.0,)

    assert abs(made.created_at_ms / 1000 - now) < 60


def test_a_host_whose_clock_is_off_neither_loses_nor_steals_a_run(
    one: RunStore, two: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(one, "r")

    for hours in (-1, 1):
        wrong = 1_800_000_000.0 + 3600 * hours
        monkeypatch.setattr(SystemClock, "time", staticmethod(lambda wrong=wrong: wrong))
        one.renew()
        with pytest.raises(RunConflict):
            claim(two, "r")


# --- forks ---

FORK = """
import os, sys
from holdfast.stores import PostgresRunStore

store = PostgresRunStore(sys.argv[1])
store.create_run("s", "p", run_id="r")
store.record_event("r", "note")
store.ownership.row()
codes = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            store.record_event("r", "note")
            store.ownership.row()
            code = 0 if store.snapshot("r").event_count == len(store.events("r")) else 2
            store.close()
        finally:
            os._exit(code)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    store.record_event("r", "note")
assert store.ownership.is_locked
store.close()
print(codes)
"""


def test_a_child_has_connections_of_its_own(url: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, url], capture_output=True, text=True, check=False, timeout=50)

    assert (done.stdout.strip(), done.returncode) == ("[0, 0, 0]", 0), done.stderr
    with PostgresRunStore(url) as store:
        assert sequences(store) == list(range(7))


LINGER = """
import os, sys, time
from holdfast.stores import PostgresRunStore

store = PostgresRunStore(sys.argv[1], lease=3600.0)
owner = store.ownership.row()
store.writer.commit(lambda ledger: ledger.claim(ledger.run("r"), owner))
while not store.ownership.is_locked:
    time.sleep(0.01)
store.renew()  # says that its lock tells that it lives
pid = os.fork()
if pid == 0:
    time.sleep(60)
    os._exit(0)
print(pid, flush=True)
time.sleep(60)
"""


def test_a_child_that_lives_on_does_not_keep_its_parent_alive(one: RunStore) -> None:
    with subprocess.Popen([sys.executable, "-c", LINGER, one.url], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        owned = one.snapshot("r").owner
        parent.kill()
        parent.wait()
        noticed = eventually(lambda: one.snapshot("r").interrupted)
        os.kill(child, signal.SIGKILL)

    assert owned is not None
    assert noticed
