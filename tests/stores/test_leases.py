"""Who may write to a run: claims and fences, leases and locks, and what cancelling means to each."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.children import eventually, said, tell
from tests.stores.children import children
from tests.stores.kinds import KINDS, claim, opener

from holdfast.errors import LeaseLost, RunConflict
from holdfast.history import CancelResult, RunStatus
from holdfast.stores import MemoryRunStore, RunStore, SqliteRunStore, queue, turn
from holdfast.stores.ledger import PIECE, Claim, Ledger, OwnerRow
from holdfast.stores.sqlite import SqliteFile
from holdfast.testing import ManualClock


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[RunStore]:
    with opener(request.param, tmp_path)(clock=clock) as store:
        store.create_run("s", "p", run_id="r")
        yield store


@pytest.fixture
def one(path: Path, clock: ManualClock) -> Iterator[RunStore]:
    with SqliteRunStore(path, clock=clock, synchronous="NORMAL") as store:
        store.create_run("s", "p", run_id="r")
        yield store


@pytest.fixture
def two(path: Path, one: RunStore, clock: ManualClock) -> Iterator[RunStore]:
    """Another store on the same file, as another process has it."""
    with SqliteRunStore(path, clock=clock, synchronous="NORMAL") as store:
        yield store


@pytest.fixture
def start() -> Iterator[Any]:
    with children() as start:
        yield start


def stranger(store: RunStore, seconds: float = 15.0) -> OwnerRow:
    """An owner on another host, whose lease has *seconds* to go."""
    return OwnerRow("0" * 31 + "1", "elsewhere", 4711, int((store.clock.time() + seconds) * 1000))


def give(store: RunStore, owner: OwnerRow, run: str = "r") -> Claim:
    return store.writer.commit(lambda ledger: ledger.claim(ledger.run(run), owner))


def write(store: RunStore, held: Claim) -> None:
    store.writer.commit(lambda ledger: ledger.say(ledger.claimed(held), "note"))


def release(store: RunStore, held: Claim) -> None:
    store.writer.commit(lambda ledger: ledger.release(ledger.claimed(held)))


def owners_of(store: RunStore) -> int:
    ((count,),) = store.file.reader().execute("SELECT count(*) FROM owners").fetchall()
    return int(count)


# --- claims ---


def test_an_owner_writes_under_its_claim(store: RunStore) -> None:
    held = claim(store, "r")

    write(store, held)

    assert held[:3] == ("r", store.ownership.id, 1)
    assert store.snapshot("r").event_count == 1


def test_a_second_claim_is_a_conflict_in_the_same_process_too(store: RunStore) -> None:
    claim(store, "r")

    with pytest.raises(RunConflict, match=rf"run 'r' is being run by process {os.getpid()} on .*: cancel it there"):
        claim(store, "r")


def test_a_second_claim_is_a_conflict_after_our_own_lease_has_run_out(store: RunStore, clock: ManualClock) -> None:
    claim(store, "r")
    clock.advance(3600)

    with pytest.raises(RunConflict):
        claim(store, "r")


def test_a_claim_of_another_store_is_a_conflict(one: RunStore, two: RunStore) -> None:
    held = claim(one, "r")

    with pytest.raises(RunConflict):
        claim(two, "r")
    write(one, held)

    assert two.snapshot("r").owner == one.snapshot("r").owner is not None


def test_a_run_that_was_given_back_can_be_claimed(one: RunStore, two: RunStore) -> None:
    held = claim(one, "r")
    release(one, held)

    again = claim(two, "r")

    assert again.fence == 2
    write(two, again)
    with pytest.raises(LeaseLost, match="run 'r' has another owner now"):
        write(one, held)
    assert one.snapshot("r").event_count == 1


def test_an_owner_that_was_refused_has_written_nothing(one: RunStore, two: RunStore) -> None:
    held = claim(one, "r")
    release(one, held)
    claim(two, "r")

    for use in (
        lambda ledger: ledger.say(ledger.claimed(held), "run_completed"),
        lambda ledger: ledger.release(ledger.claimed(held)),
        lambda ledger: ledger.remember(ledger.claimed(held), b"k", "n", b"o"),
    ):
        with pytest.raises(LeaseLost):
            one.writer.commit(use)

    assert two.snapshot("r").event_count == 0
    assert two.snapshot("r").owner is not None
    assert two.memory("r").memos == []


def test_an_owner_whose_first_claim_failed_is_written_with_the_next(one: RunStore) -> None:
    def fail(ledger: Ledger) -> None:
        ledger.claim(ledger.run("r"), one.ownership.row())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        one.writer.commit(fail)
    claim(one, "r")

    assert owners_of(one) == 1


def test_a_claim_with_the_fence_of_another_owner_is_lost(store: RunStore) -> None:
    held = claim(store, "r")

    with pytest.raises(LeaseLost):
        write(store, held._replace(owner="another"))


def create_again(store: RunStore) -> None:
    store.mark_failed("r", "lost")
    store.prune(max_runs=0)
    store.create_run("s", "p", run_id="r")
    release(store, claim(store, "r"))


def begin_again(store: RunStore) -> None:
    store.mark_failed("r", "lost")
    store.prune(max_runs=0)
    store.create_run("s", "p", run_id="r")
    claim(store, "r")


def import_again(store: RunStore) -> None:
    backup = io.BytesIO()
    store.export(backup)
    backup.seek(0)
    store.mark_failed("r", "lost")
    store.prune(max_runs=0)
    store.import_(backup)


def put_back(store: RunStore) -> None:
    before = store.records()
    store.mark_failed("r", "lost")
    store.replace_records(before)


@pytest.mark.parametrize("come_back", [create_again, begin_again, import_again, put_back])
def test_a_claim_to_a_run_that_was_deleted_is_no_claim_to_one_that_comes_back_under_its_id(
    store: RunStore, come_back: Callable[[RunStore], None]
) -> None:
    held = claim(store, "r")
    write(store, held)
    come_back(store)
    before = store.events("r")

    with pytest.raises(LeaseLost):
        write(store, held)
    queue.give_back(store, [held], "its worker lost sight of it")

    assert store.events("r") == before


def test_an_owner_goes_on_after_its_lease_ran_out_if_nobody_took_over(one: RunStore, clock: ManualClock) -> None:
    held = claim(one, "r")
    clock.advance(3600)

    write(one, held)

    assert one.snapshot("r").event_count == 1


def test_whoever_has_no_claim_may_write_too_and_the_owner_goes_on(one: RunStore, two: RunStore) -> None:
    held = claim(one, "r")

    assert two.record_event("r", "note").event_count == 1
    write(one, held)


def test_a_store_that_is_closed_owns_nothing(one: RunStore, two: RunStore) -> None:
    held = claim(one, "r")

    one.close()

    assert two.snapshot("r").interrupted
    assert claim(two, "r").fence == held.fence + 1
    assert owners_of(two) == 1


# --- leases ---


def test_a_store_that_is_closed_leaves_other_owners_alone(one: RunStore, two: RunStore) -> None:
    one.create_run("s", "p", run_id="other")
    claim(one, "r")
    claim(two, "other")

    two.close()

    assert not one.snapshot("r").interrupted


def test_on_another_host_the_lease_alone_decides(store: RunStore, clock: ManualClock) -> None:
    held = give(store, stranger(store))
    clock.advance(14.9)
    assert store.snapshot("r").owner == "elsewhere:4711"
    with pytest.raises(RunConflict, match="process 4711 on elsewhere"):
        claim(store, "r")

    clock.advance(0.2)

    assert (store.snapshot("r").owner, store.snapshot("r").interrupted) == (None, True)
    assert store.list_runs()[0].interrupted
    assert claim(store, "r").fence == held.fence + 1


def test_a_sign_of_life_prolongs_the_lease(one: RunStore, two: RunStore, clock: ManualClock) -> None:
    claim(one, "r")
    for _ in range(5):
        clock.advance(10)
        one.renew()

    assert not two.snapshot("r").interrupted
    clock.advance(15.1)
    assert two.snapshot("r").interrupted


def test_a_claim_is_a_sign_of_life_too(one: RunStore, two: RunStore, clock: ManualClock) -> None:
    one.create_run("s", "p", run_id="other")
    claim(one, "r")
    clock.advance(10)

    claim(one, "other")

    clock.advance(10)
    assert not two.snapshot("r").interrupted
    clock.advance(5.1)
    assert two.snapshot("r").interrupted


def test_a_long_import_does_not_cost_others_their_leases(one: RunStore, two: RunStore, clock: ManualClock) -> None:
    one.create_run("s", "p", run_id="gone")
    give(one, stranger(one, seconds=-1), "gone")
    held = claim(one, "r")
    with MemoryRunStore(clock=clock) as other:
        other.create_run("s", "p", run_id="new")
        other.export(exported := io.StringIO())
    exported.seek(0)
    # A minute passes in the middle of it, in which nobody else can write.
    two.file.writing().set_trace_callback(lambda sql: clock.advance(60) if "INTO runs" in sql else None)

    assert two.import_(exported) == 1

    assert not two.snapshot("r").interrupted
    with pytest.raises(RunConflict, match="is being run by"):
        claim(two, "r")
    assert one.snapshot("gone").interrupted
    write(one, held)


def test_a_long_transaction_does_not_cost_others_their_leases(one: RunStore, two: RunStore, clock: ManualClock) -> None:
    held = claim(one, "r")
    two.writer.commit(lambda ledger: clock.advance(60))  # in which nobody else can write

    with pytest.raises(RunConflict):
        claim(two, "r")

    write(one, held)
    clock.advance(30)
    assert claim(two, "r").fence == 2  # if it still does not write, it is gone


def test_a_long_wait_for_another_writer_does_not_cost_others_their_leases(
    one: RunStore, two: RunStore, path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "LONG", 0.0)
    held, file = claim(one, "r"), two.file
    assert isinstance(file, SqliteFile)
    with closing(sqlite3.connect(path, isolation_level=None)) as stopped, ThreadPoolExecutor() as threads:
        stopped.execute("BEGIN IMMEDIATE")
        clock.advance(60)
        os.utime(f"{path}-wal", (0, time.time() - 60))  # when the last of all processes has written
        taking = threads.submit(claim, two, "r")
        assert eventually(lambda: file._contended)
        stopped.execute("ROLLBACK")

        with pytest.raises(RunConflict):
            taking.result()

    write(one, held)


def test_a_clock_that_goes_back_does_not_shorten_the_lease(one: RunStore, two: RunStore, clock: ManualClock) -> None:
    claim(one, "r")
    clock.shift_time(-3600)
    one.renew()
    clock.shift_time(3600)

    assert not two.snapshot("r").interrupted


def test_an_owner_that_was_forgotten_is_written_again_although_the_clock_went_back(
    store: RunStore, clock: ManualClock
) -> None:
    release(store, claim(store, "r"))
    clock.advance(20)
    store.writer.commit(Ledger.drop_old_owners)  # as another process that begins a run does
    clock.shift_time(-30)

    held = claim(store, "r")

    assert store.file.fetch("owner", held.owner) != []


def test_a_clock_that_jumps_ahead_costs_no_living_owner_its_run(
    one: RunStore, two: RunStore, clock: ManualClock
) -> None:
    """As when a machine sleeps: its monotonic clock stands still meanwhile."""
    held = claim(one, "r")
    clock.shift_time(3600)

    assert not two.snapshot("r").interrupted
    with pytest.raises(RunConflict, match="is being run by"):
        claim(two, "r")
    write(one, held)
    clock.advance(15.1)
    assert two.snapshot("r").interrupted


def test_a_clock_that_jumps_ahead_keeps_no_dead_owner_alive(path: Path, one: RunStore, clock: ManualClock) -> None:
    with SqliteRunStore(path, clock=clock, synchronous="NORMAL") as two:
        claim(two, "r")
        row = one._ledger.owner(two.ownership.id or "")
        clock.shift_time(3600)
        assert one.ownership.is_alive(row)

        two.ownership.end()

        assert not one.ownership.is_alive(row)


def test_by_the_monotonic_clock_only_owners_of_this_host_are_alive(one: RunStore, clock: ManualClock) -> None:
    with closing(one.ownership._locks.take("0" * 31 + "1")) as locked:  # type: ignore[union-attr]
        give(one, stranger(one)._replace(awake_until=10**9))
        clock.shift_time(14.9)
        assert locked.locked
        assert not one.snapshot("r").interrupted

        clock.shift_time(0.2)

        assert one.snapshot("r").interrupted


def test_whoever_owns_nothing_gives_no_sign_of_life(one: RunStore) -> None:
    one.renew()

    assert one.ownership.id is None
    assert owners_of(one) == 0


def test_old_owners_are_forgotten_when_a_new_one_comes(one: RunStore, clock: ManualClock) -> None:
    one.create_run("s", "p", run_id="kept")
    for number in range(3):
        gone = OwnerRow(f"{number:032}", "elsewhere", number, int(clock.time() * 1000) + 15_000)
        held = give(one, gone)
        if number:
            release(one, held)
        else:
            give(one, gone._replace(id="9" * 32), "kept")
            release(one, held)
    clock.advance(60)

    claim(one, "r")

    assert owners_of(one) == 2  # ourselves, and the one who left a run behind
    assert one.snapshot("kept").interrupted


def test_the_files_of_dead_owners_are_removed_when_a_new_one_comes(path: Path, start: Any) -> None:
    with SqliteRunStore(path) as store:
        for name in ("a", "b", "c"):
            store.create_run("s", "p", run_id=name)
        for name in "ab":
            child = start("own", path, name, 15)
            assert said(child) == "ready"
            child.kill()
            child.wait()
        folder = path.with_name("runs.db-owners")
        before = len(list(folder.iterdir()))

        claim(store, "c")

        assert (before, len(list(folder.iterdir()))) == (1, 1)  # the second child has removed the first's


# --- real processes ---


def test_a_killed_owner_is_noticed_at_once(path: Path, start: Any) -> None:
    with SqliteRunStore(path) as store:
        store.create_run("s", "p", run_id="r")
        child = start("own", path, "r", 3600)
        assert said(child) == "ready"
        owned = store.snapshot("r")
        with pytest.raises(RunConflict, match=f"process {child.pid} on "):
            claim(store, "r")

        child.send_signal(signal.SIGKILL)
        child.wait()

        assert not owned.interrupted
        assert store.snapshot("r").interrupted
        assert claim(store, "r").fence == 2


def test_a_stopped_owner_keeps_its_run_until_the_lease_is_over_and_is_fenced_after(path: Path, start: Any) -> None:
    with SqliteRunStore(path) as store:
        store.create_run("s", "p", run_id="r")
        child = start("own", path, "r", 3.0)
        assert said(child) == "ready"
        tell(child, "write")
        assert said(child) == "ok"
        tell(child, "renew")
        assert said(child) == "ok"

        child.send_signal(signal.SIGSTOP)
        with pytest.raises(RunConflict):
            claim(store, "r")
        while not store.snapshot("r").interrupted:
            store.clock.sleep(0.02)
        held = claim(store, "r")
        child.send_signal(signal.SIGCONT)
        tell(child, "write")

        assert said(child) == "LeaseLost"
        write(store, held)
        assert [event.type for event in store.events("r")] == ["note", "note"]


def test_of_many_who_claim_at_once_one_gets_the_run(path: Path, start: Any) -> None:
    with SqliteRunStore(path) as store:
        store.create_run("s", "p", run_id="r")

        contenders = [start("own", path, "r", 15) for _ in range(6)]

        told = [said(child) for child in contenders]
        assert sorted(told) == ["", "", "", "", "", "ready"]


# --- cancelling ---


def cancel_events(store: RunStore) -> list[str]:
    return [event.type for event in store.events("r")]


def test_with_a_live_owner_a_cancel_is_a_request(one: RunStore, two: RunStore) -> None:
    held = claim(one, "r")
    one.create_run("s", "p", run_id="other")
    claim(two, "other")

    answers = [two.cancel("r", "enough"), two.cancel("r", "really"), one.cancel("r")]

    assert answers == [CancelResult.REQUESTED] * 3
    assert cancel_events(one) == ["run_cancel_requested"]
    assert one.cancels() == [("r", "enough")]
    assert two.cancels() == []
    assert not one.snapshot("r").status.is_terminal
    one.writer.commit(lambda ledger: ledger.say(ledger.claimed(held), "run_cancelled", reason="enough"))
    assert (two.snapshot("r").status, two.cancel("r")) == (RunStatus.CANCELLED, CancelResult.ALREADY_FINISHED)
    assert one.cancels() == []


def test_a_request_without_a_reason_is_a_request(one: RunStore, two: RunStore) -> None:
    claim(one, "r")

    two.cancel("r")

    assert one.cancels() == [("r", "")]
    assert one.events("r")[0].payload == {"reason": None}


def test_a_request_wakes_the_owner(one: RunStore, two: RunStore) -> None:
    claim(one, "r")
    mailbox = one.ownership.mailbox()
    assert mailbox is not None

    two.cancel("r")

    assert mailbox.wait(30)
    mailbox.close()


def test_a_request_in_the_same_process_is_handed_over(store: RunStore) -> None:
    claim(store, "r")
    seen: list[Any] = []
    store.ownership.on_wake = lambda: seen.append(store.cancels())

    store.cancel("r", "enough")

    assert seen == [[("r", "enough")]]


def test_an_owner_whose_run_was_ended_by_another_caller_is_told_and_may_not_go_on(store: RunStore) -> None:
    held = claim(store, "r")
    seen: list[Any] = []
    store.ownership.on_wake = lambda: seen.append(store.snapshot("r").status)

    store.mark_failed("r", "no more")

    assert seen == [RunStatus.FAILED]
    with pytest.raises(LeaseLost):
        write(store, held)


def test_an_owner_that_cannot_be_woken_does_not_undo_the_request(
    store: RunStore, caplog: pytest.LogCaptureFixture
) -> None:
    claim(store, "r")

    def fail() -> None:
        raise ZeroDivisionError

    store.ownership.on_wake = fail

    assert store.cancel("r", "enough") is CancelResult.REQUESTED
    assert cancel_events(store) == ["run_cancel_requested"]
    assert "could not be told to look" in caplog.text


def test_with_a_dead_owner_a_run_is_cancelled_at_once_and_the_owner_fenced(store: RunStore, clock: ManualClock) -> None:
    held = give(store, stranger(store))
    clock.advance(16)

    assert store.cancel("r", "enough") is CancelResult.REQUESTED

    assert store.snapshot("r").status is RunStatus.CANCELLED
    with pytest.raises(LeaseLost):
        write(store, held)
    assert cancel_events(store) == ["run_cancelled"]


def test_a_request_outlives_its_owner(store: RunStore, clock: ManualClock) -> None:
    give(store, stranger(store))
    store.cancel("r", "enough")
    clock.advance(16)

    claim(store, "r")

    assert store.cancels() == [("r", "enough")]


def test_a_run_that_nobody_owns_any_more_is_cancelled_at_once(store: RunStore) -> None:
    release(store, claim(store, "r"))

    store.cancel("r")

    assert cancel_events(store) == ["run_cancelled"]


# --- memos ---


def remember(store: RunStore, key: bytes, outcome: bytes, run: str = "r") -> None:
    store.writer.commit(lambda ledger: ledger.remember(ledger.run(run), key, "search", outcome))


def test_of_the_outcomes_of_a_call_the_last_is_remembered(store: RunStore) -> None:
    for number in range(3):
        remember(store, b"k", str(number).encode())

    memory = store.memory("r")

    assert memory.memos == [(b"k", "search", b"2")]
    assert (memory.header.id, memory.snapshot.id, memory.is_foreign) == ("r", "r", False)


@pytest.mark.parametrize(("end", "left"), [("run_completed", 0), ("run_failed", 2), ("run_cancelled", 2)])
def test_a_completed_run_forgets_its_outcomes(store: RunStore, end: str, left: int) -> None:
    remember(store, b"k", b"o")

    def finish(ledger: Ledger) -> None:
        live = ledger.run("r")
        ledger.remember(live, b"l", "search", b"o")
        ledger.say(live, end)

    store.writer.commit(finish)

    assert len(store.memory("r").memos) == left
    remember(store, b"m", b"o")
    assert len(store.memory("r").memos) == (left + 1 if left else 0)


def remember_much(store: RunStore, pieces: int = 4) -> None:
    """Outcomes that weigh so many times what one write deletes."""

    def write(ledger: Ledger) -> None:
        live = ledger.run("r")
        for number in range(pieces * 10):
            ledger.remember(live, number.to_bytes(2), "search", bytes(PIECE // 10))

    store.writer.commit(write)


def left_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM memos").fetchall()
    return int(count)


def test_many_outcomes_are_all_forgotten(store: RunStore) -> None:
    remember_much(store)

    store.record_event("r", "run_completed")
    while store._ledger.leftovers:
        store.writer.flush()

    assert store.memory("r").memos == []


def test_many_outcomes_are_forgotten_in_small_writes_and_others_wait_for_none_long(one: RunStore, path: Path) -> None:
    left: list[int] = []
    remember_much(one)
    with SqliteRunStore(path, synchronous="NORMAL", crash=lambda point: left.append(left_of(path))) as store:
        store.record_event("r", "run_completed")

    assert left[-1] == 0
    assert max(before - after for before, after in itertools.pairwise(left)) <= 10


def test_many_outcomes_of_a_failed_run_go_with_it_in_small_writes(one: RunStore, path: Path) -> None:
    left: list[int] = []
    remember_much(one)
    one.mark_failed("r", "lost")
    with SqliteRunStore(path, synchronous="NORMAL", crash=lambda point: left.append(left_of(path))) as store:
        assert store.prune(max_runs=0)[0] == 1
        assert left_of(path) == 0

    assert max(before - after for before, after in itertools.pairwise(left)) <= 10


def test_for_the_size_of_a_store_no_run_goes_because_outcomes_of_another_are_still_going(
    one: RunStore, path: Path
) -> None:
    remember_much(one)
    one.mark_failed("r", "lost")
    one.create_run("s", "p", run_id="later")
    one.record_event("later", "run_completed")

    one.prune(max_bytes=PIECE)

    assert [run.id for run in one.list_runs()] == ["later"]


def test_outcomes_that_a_deleted_run_has_left_are_no_other_run_s(path: Path) -> None:
    with SqliteRunStore(path, synchronous="NORMAL") as store:
        store.create_run("s", "p", run_id="r")
        store.record_event("r", "run_failed", {"error": "lost"})
        remember_much(store)
    with closing(sqlite3.connect(path)) as connection, connection:  # as whoever dies in the middle leaves it
        connection.execute("INSERT INTO meta SELECT 'memos of ' || key, key FROM runs")
        connection.execute("DELETE FROM runs")

    with SqliteRunStore(path, synchronous="NORMAL") as store:
        store.create_run("s", "p", run_id="new")
        assert store.memory("new").memos == []
        claim(store, "new")

    assert left_of(path) == 0


def test_what_a_process_that_died_has_left_of_outcomes_goes_with_the_next_owner(path: Path, start: Any) -> None:
    with SqliteRunStore(path, synchronous="NORMAL") as store:
        for run in ("r", "other"):
            store.create_run("s", "p", run_id=run)
        remember_much(store)
    start("complete_and_die", path, "r").wait()
    assert left_of(path) == 30

    with SqliteRunStore(path, synchronous="NORMAL") as store:
        claim(store, "other")
        assert store.snapshot("r").status is RunStatus.COMPLETED

    assert left_of(path) == 0


def test_what_was_noted_of_a_run_that_is_gone_does_no_harm_to_the_next_of_its_key(path: Path) -> None:
    with SqliteRunStore(path, synchronous="NORMAL") as store:
        store.create_run("s", "p", run_id="r")
        remember_much(store)
        secret = store.secret()
    with closing(sqlite3.connect(path)) as connection, connection:  # as older versions may have left it
        connection.execute("INSERT INTO meta SELECT 'memos of ' || key, key FROM runs")

    with SqliteRunStore(path, synchronous="NORMAL") as store:
        claim(store, "r")

    assert left_of(path) == 40
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT value FROM meta WHERE name LIKE 'memos%' OR name = 'secret'").fetchall() == [
            (secret,)
        ]


def test_a_copy_of_outcomes_has_those_that_are_being_written(store: RunStore) -> None:
    remember(store, b"k", b"0")

    def copy(ledger: Ledger) -> None:
        live, other, new = ledger.run("r"), *(ledger.add(store.header("s", "p", run_id)) for run_id in ("other", "new"))
        ledger.remember(live, b"l", "search", b"1")
        ledger.say(live, "tool_ended", key=b"m".hex(), tool="search", result=2)
        ledger.remember(other, b"n", "search", b"3")
        ledger.say(other, "tool_ended", key=b"o".hex(), tool="search", result=4)
        ledger.copy_memos(live, new)

    store.writer.commit(copy)

    assert sorted(store.memory("new").memos) == sorted(store.memory("r").memos)
    assert sorted(key for key, _, _ in store.memory("new").memos) == [b"k", b"l", b"m"]


def test_a_memo_is_looked_for_in_its_own_run(store: RunStore) -> None:
    store.create_run("s", "p", run_id="other")
    remember(store, b"k", b"0")

    def found(ledger: Ledger) -> list[bool]:
        return [ledger.has_memo(ledger.run(run), key) for run in ("r", "other") for key in (b"k", b"l")]

    assert store.writer.commit(found) == [True, False, False, False]


def test_memory_has_the_last_result_of_each_call_and_the_warnings_in_their_order(store: RunStore) -> None:
    for number in (1, 2):
        store.record_event("r", "tool_started", {"tool": "search"})
        store.record_event("r", "tool_ended", {"tool": "search", "key": b"k".hex(), "result": number})
        store.record_event("r", "budget_warning", {"number": number})

    memory = store.memory("r")

    assert memory.memos == [(b"k", "search", b"j2")]
    assert [json.loads(warning) for warning in memory.warned] == [{"number": 1}, {"number": 2}]


def test_the_secret_of_a_store_is_its_own_and_stays(one: RunStore, two: RunStore, tmp_path: Path) -> None:
    with SqliteRunStore(tmp_path / "other.db") as other:
        assert one.secret() == two.secret() != other.secret()
    assert len(one.secret()) == 32


def test_the_first_of_all_processes_finds_no_folder_and_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "share" / "holdfast" / "runs.db"

    with SqliteRunStore(path) as store:
        owner = store.ownership.row()

        assert store.ownership.is_process_alive(owner.id, owner.host, owner.until)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
