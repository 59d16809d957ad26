"""The queue: what is submitted, which run is taken next, and that nobody else takes it."""

from __future__ import annotations

import contextlib
import io
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.stores.kinds import KINDS, SHARED, Open, opener

from holdfast.errors import ConfigError, LeaseLost, RunConflict, StoreError
from holdfast.history import CancelResult, RunStatus
from holdfast.stores import MemoryRunStore, RunStore, SqliteRunStore, queue, schema
from holdfast.stores.ledger import Claim, Ledger, OwnerRow
from holdfast.stores.queue import Search
from holdfast.stores.store import LEASE
from holdfast.testing import ManualClock
from holdfast.workers import submit

MAIN = Search(("agent:main",))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


on_shared = pytest.mark.parametrize("kind", sorted(SHARED))  # where there can be another process


@pytest.fixture
def open_one(kind: str, tmp_path: Path) -> Open:
    return opener(kind, tmp_path)


@pytest.fixture
def store(open_one: Open, clock: ManualClock) -> Iterator[RunStore]:
    with open_one(clock=clock) as store:
        yield store


@pytest.fixture
def other(open_one: Open, clock: ManualClock) -> Iterator[RunStore]:
    """The same store, as another process has it."""
    with open_one(clock=clock) as store:
        yield store


def put(store: RunStore, run_id: str, target: str = "agent:main", **more: Any) -> None:
    submit(store, target, run_id=run_id, **more)


def taken(store: RunStore, search: Search = MAIN, **more: Any) -> str | None:
    found = queue.take(store, search, **more)
    return None if found is None else found.claim.run_id


def all_taken(store: RunStore, search: Search = MAIN) -> list[str]:
    return list(iter(lambda: taken(store, search), None))


def own(store: RunStore, run_id: str, owner: OwnerRow) -> Claim:
    def claim(ledger: Ledger) -> Claim:
        live = ledger.run(run_id)
        claim = ledger.claim(live, owner)
        ledger.say(live, "run_started")
        return claim

    return store.writer.commit(claim)


def elsewhere(clock: ManualClock) -> OwnerRow:
    """A process on another machine, of which nothing is known but its lease."""
    return OwnerRow("theirs", "elsewhere", 1, int((clock.time() + LEASE) * 1000))


# --- submitting ---


def test_a_run_that_was_submitted_waits_and_knows_what_to_call(store: RunStore) -> None:
    run = submit(store, "agent:main", ["Oslo", {"n": (1, 2.5, None, True)}], session="s", prompt="p", priority=3)

    header = store.memory(run.id).header
    assert (run.status, run.session_id, run.prompt, run.owner, run.event_count) == ("created", "s", "p", None, 0)
    assert header.entry == {"target": "agent:main", "args": ["Oslo", {"n": [1, 2.5, None, True]}]}
    assert header.priority == 3


def test_the_same_again_submits_nothing_new(store: RunStore) -> None:
    first = submit(store, "agent:main", [1], run_id="r")

    again = submit(store, "agent:main", [1], run_id="r")

    assert again == first
    assert all_taken(store) == ["r"]


@pytest.mark.parametrize(
    "change",
    [{"session": "t"}, {"prompt": "q"}, {"priority": 1}, {"target": "agent:other"}, {"args": [2]}, {"args": [True]}],
)
def test_an_id_that_is_taken_by_another_run_is_a_conflict(change: dict[str, Any]) -> None:
    given: dict[str, Any] = {"target": "agent:main", "args": [1], "session": "s", "prompt": "p", "run_id": "r"}
    with MemoryRunStore() as store:
        submit(store, **given)

        with pytest.raises(RunConflict, match="choose another id"):
            submit(store, **{**given, **change})


def test_a_run_that_was_only_created_is_not_taken_for_a_submitted_one(store: RunStore) -> None:
    store.create_run("default", "", run_id="r")

    with pytest.raises(RunConflict, match="exists with another"):
        submit(store, "agent:main", run_id="r")


def test_texts_and_numbers_of_a_class_of_their_own_are_plain_arguments(store: RunStore) -> None:
    word, whole, real = type("Word", (str,), {}), type("Whole", (int,), {}), type("Real", (float,), {})

    run = submit(store, "agent:main", [word("a"), {word("k"): [whole(3), real(2.5)]}])

    args = (store.memory(run.id).header.entry or {})["args"]
    assert args == ["a", {"k": [3, 2.5]}]
    assert [type(value) for value in (args[0], *args[1], *args[1]["k"])] == [str, str, int, float]


def test_a_function_can_be_given_itself(store: RunStore) -> None:
    run = submit(store, taken)

    assert store.memory(run.id).header.entry == {"target": f"{__name__}:taken", "args": []}


class Odd:
    def __repr__(self) -> str:
        return "odd \x1b[2J"


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"target": "agent"}, "MODULE:FUNCTION"),
        ({"target": "agent:"}, "MODULE:FUNCTION"),
        ({"target": "../agent:main"}, "MODULE:FUNCTION"),
        ({"target": "a" * 500 + ":b"}, "MODULE:FUNCTION"),
        ({"target": lambda: None}, "that a module has by name"),
        ({"target": 3}, "that a module has by name"),
        ({"args": [float("nan")]}, r"argument 1 = nan: must be what JSON can hold"),
        ({"args": [1, {"a": [b"x"]}]}, r"argument 2\['a'\]\[0\] = b'x'"),
        ({"args": [{1: 2}]}, "argument 1 = {1: 2}"),
        ({"args": ["\ud800"]}, "argument 1"),
        ({"args": [Odd()]}, r"argument 1 = odd \\x1b"),
        ({"args": ENDLESS}, "nested deeper than 100"),
        ({"priority": 101}, "at most 100"),
        ({"priority": -101}, "at least -100"),
        ({"priority": True}, "whole number"),
        ({"session": "a\0b"}, "NUL"),
        ({"run_id": ""}, "printable characters"),
    ],
)
def test_what_cannot_be_called_is_not_submitted(change: dict[str, Any], complaint: str) -> None:
    with MemoryRunStore() as store:
        with pytest.raises(ConfigError, match=complaint):
            submit(store, **{"target": "agent:main", **change})

        assert store.list_runs() == []


def test_a_function_of_the_script_that_was_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken, "__module__", "__main__")

    with MemoryRunStore() as store, pytest.raises(ConfigError, match="no worker finds it"):
        submit(store, taken)


# --- which is next ---


def test_the_highest_priority_goes_first_then_the_oldest(store: RunStore, clock: ManualClock) -> None:
    for run_id, priority in (("late low", -1), ("old", 0), ("young", 0), ("high", 5)):
        put(store, run_id, priority=priority)
        clock.advance(1)

    assert all_taken(store) == ["high", "old", "young", "late low"]


def test_several_functions_share_one_order(store: RunStore, clock: ManualClock) -> None:
    for run_id, target, priority in (("1", "a:b", 0), ("2", "c:d", 0), ("3", "a:b", 1), ("4", "c:d", 2)):
        put(store, run_id, target, priority=priority)
        clock.advance(1)

    assert all_taken(store, Search(("a:b", "c:d"))) == ["4", "3", "1", "2"]


def test_runs_of_other_functions_and_runs_that_nobody_submitted_are_left_alone(store: RunStore) -> None:
    put(store, "other", "agent:other")
    store.create_run("s", "p", run_id="created")
    store.create_run("s", "p", run_id="begun")
    store.record_event("begun", "run_started")
    store.writer.commit(
        lambda ledger: ledger.add(store.header("s", "p", "with an entry", entry={"target": "agent:main"}))
    )

    assert taken(store) is None


def test_a_run_that_was_cancelled_while_it_waited_is_never_taken(store: RunStore) -> None:
    put(store, "r")

    store.cancel("r", "not needed")

    assert taken(store) is None
    assert queue.is_empty(store, MAIN.targets)


def test_a_run_that_somebody_wrote_to_while_it_waited_is_taken_all_the_same(store: RunStore) -> None:
    put(store, "r")
    store.record_event("r", "note")

    found = queue.take(store, MAIN)

    assert found is not None
    assert not found.is_new


def test_an_imported_run_is_for_hand_only(store: RunStore, tmp_path: Path) -> None:
    text = io.StringIO()
    with SqliteRunStore(tmp_path / "theirs.db") as theirs:
        put(theirs, "r", priority=4)
        theirs.export(text)

    store.import_(io.StringIO(text.getvalue()))

    assert store.memory("r").header.priority == 4
    assert taken(store) is None


def test_nothing_is_written_where_there_is_nothing_to_take(store: RunStore) -> None:
    put(store, "r", "agent:other")
    written: list[object] = []
    store.writer.commit = written.append  # type: ignore[method-assign,assignment]

    assert taken(store) is None

    assert written == []


# --- whose it is ---


@on_shared
def test_what_is_taken_has_an_owner_and_is_taken_once(store: RunStore, other: RunStore) -> None:
    put(store, "r")

    assert taken(store) == "r"

    assert taken(other) is None
    assert other.snapshot("r").owner is not None


def test_two_that_take_in_one_transaction_take_two_runs(store: RunStore) -> None:
    for run_id in ("1", "2", "3"):
        put(store, run_id, session=run_id[:1])
    owner = store.ownership.row()

    with store.writer.turn:
        takings = [store.writer.submit(queue._Taking(store, MAIN, True, owner, []).write) for _ in range(2)]
    store.writer.flush()

    assert [pending.value.claim.run_id for pending in takings] == ["1", "2"]


@on_shared
def test_many_who_take_at_once_never_take_the_same(
    open_one: Open, store: RunStore, other: RunStore, clock: ManualClock
) -> None:
    for number in range(40):
        put(store, f"{number:02}")
    found: list[str] = []

    def take_all(mine: RunStore) -> None:
        found.extend(all_taken(mine))

    with open_one(clock=clock) as third:
        threads = [threading.Thread(target=take_all, args=(each,)) for each in (store, other, third) * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(found) == [f"{number:02}" for number in range(40)]


def test_what_was_given_back_is_taken_again_and_its_old_owner_may_write_no_more(store: RunStore) -> None:
    put(store, "r")
    claim = own(store, "r", store.ownership.row())

    queue.give_back(store, [claim], "stopped")

    assert store.snapshot("r").interrupted
    assert [event.type for event in store.events("r")][-1] == "run_interrupted"
    with pytest.raises(LeaseLost):
        store.writer.commit(lambda ledger: ledger.claimed(claim))
    assert taken(store, thorough=False) == "r"


def test_a_run_that_has_ended_or_changed_hands_is_not_given_back(store: RunStore) -> None:
    put(store, "ended")
    put(store, "theirs")
    ended, lost = own(store, "ended", store.ownership.row()), own(store, "theirs", store.ownership.row())
    store.record_event("ended", "run_completed", {"text": ""})
    queue.give_back(store, [lost], "stopped")
    own(store, "theirs", store.ownership.row())

    queue.give_back(store, [ended, lost], "again")

    assert store.snapshot("ended").status is RunStatus.COMPLETED
    assert store.snapshot("theirs").owner is not None


def test_what_a_dead_worker_left_is_taken_when_its_lease_is_over(store: RunStore, clock: ManualClock) -> None:
    put(store, "r")
    own(store, "r", elsewhere(clock))
    assert taken(store) is None

    clock.advance(LEASE + 1)

    assert taken(store, thorough=False) is None
    assert taken(store) == "r"


def test_what_was_taken_and_never_begun_is_taken_again(store: RunStore, clock: ManualClock) -> None:
    put(store, "r")
    store.writer.commit(lambda ledger: ledger.claim(ledger.run("r"), elsewhere(clock)))

    clock.advance(LEASE + 1)

    found = queue.take(store, MAIN)
    assert found is not None
    assert (found.claim.run_id, found.is_new) == ("r", True)


@pytest.mark.parametrize("event", ["planning_started", "verification_started"])
def test_what_was_left_in_the_middle_of_planning_or_verifying_is_taken(
    store: RunStore, clock: ManualClock, event: str
) -> None:
    for run_id, owner in (("given back", store.ownership.row()), ("left", elsewhere(clock))):
        put(store, run_id)
        claim = own(store, run_id, owner)
        store.record_event(run_id, event)
        if run_id == "given back":
            queue.give_back(store, [claim], "stopped")

    assert all_taken(store) == ["given back"]
    clock.advance(LEASE + 1)
    assert not queue.is_empty(store, MAIN.targets)
    assert all_taken(store) == ["left"]


def test_what_has_begun_goes_before_what_has_not(store: RunStore, clock: ManualClock) -> None:
    put(store, "begun", priority=-5)
    queue.give_back(store, [own(store, "begun", store.ownership.row())], "stopped")
    put(store, "urgent", priority=100)

    assert all_taken(store) == ["begun", "urgent"]


def test_a_run_rests_the_longer_the_oftener_it_has_changed_hands(store: RunStore, clock: ManualClock) -> None:
    put(store, "r")
    rests = []
    for _ in range(6):
        waited = 0.0
        while (found := queue.take(store, MAIN)) is None:
            clock.advance(0.5)
            waited += 0.5
        rests.append(waited)
        queue.give_back(store, [found.claim], "stopped")

    assert rests == [0.0, 0.0, 1.0, 4.0, 16.0, 64.0]


def test_what_workers_left_by_dying_again_and_again_rests_too(store: RunStore, clock: ManualClock) -> None:
    put(store, "r")
    for _ in range(8):
        own(store, "r", elsewhere(clock))
        clock.advance(LEASE + 1)
    own(store, "r", elsewhere(clock))

    clock.advance(31.9)
    assert taken(store) is None
    clock.advance(0.1)
    assert taken(store) == "r"


def test_of_what_dead_workers_left_the_oldest_is_taken_and_nothing_of_other_functions(
    store: RunStore, clock: ManualClock
) -> None:
    for run_id, target in (("theirs", "agent:other"), ("b", "agent:main"), ("a", "agent:main")):
        put(store, run_id, target)
        own(store, run_id, elsewhere(clock))
    clock.advance(LEASE + 1)

    assert all_taken(store) == ["b", "a"]


def test_a_run_rests_for_five_minutes_at_most(store: RunStore, clock: ManualClock) -> None:
    put(store, "r")

    for _ in range(8):
        found = queue.take(store, MAIN)
        assert found is not None
        queue.give_back(store, [found.claim], "stopped")
        clock.advance(300)


@pytest.mark.parametrize("times", [1, 4])
def test_a_clock_that_went_back_keeps_no_run_from_going_on(store: RunStore, clock: ManualClock, times: int) -> None:
    put(store, "r")
    for _ in range(times):
        clock.advance(400)
        found = queue.take(store, MAIN)
        assert found is not None
        queue.give_back(store, [found.claim], "stopped")

    clock.shift_time(-3600)

    assert taken(store) == "r"


def test_a_run_that_has_changed_hands_too_often_is_failed(store: RunStore) -> None:
    put(store, "r")
    put(store, "next")
    queue.give_back(store, [own(store, "r", store.ownership.row())], "stopped")

    found = taken(store, Search(MAIN.targets, attempts=2))

    assert found == "next"
    assert store.snapshot("r").status is RunStatus.FAILED
    assert "changed hands 2 times" in (store.snapshot("r").error or "")


def test_a_run_whose_owner_died_before_it_was_cancelled_is_cancelled_and_not_taken(store: RunStore) -> None:
    put(store, "r")
    claim = own(store, "r", store.ownership.row())
    assert store.cancel("r", "enough") is CancelResult.REQUESTED
    queue.give_back(store, [claim], "stopped")

    found = taken(store)

    assert found is None
    assert (store.snapshot("r").status, store.snapshot("r").error) == (RunStatus.CANCELLED, "enough")


# --- sessions ---


@on_shared
def test_at_most_so_many_of_a_session_are_at_work_in_all_processes(store: RunStore, other: RunStore) -> None:
    for number in range(3):
        put(store, f"a{number}", session="a", priority=1)
    put(store, "b", session="b")
    search = Search(MAIN.targets, per_session=2)

    found = [taken(store, search), taken(other, search), taken(store, search), taken(other, search)]

    assert found == ["a0", "a1", "b", None]


def test_two_that_take_in_one_transaction_know_of_each_other_s_session(store: RunStore) -> None:
    for run_id in ("1", "2"):
        put(store, run_id, session="s")
    owner, search = store.ownership.row(), Search(MAIN.targets, per_session=1)

    with store.writer.turn:
        takings = [store.writer.submit(queue._Taking(store, search, True, owner, []).write) for _ in range(2)]
    store.writer.flush()

    assert [each.value is None for each in takings] == [False, True]


def test_a_session_has_room_again_when_a_run_of_it_ends_or_its_owner_dies(store: RunStore, clock: ManualClock) -> None:
    for run_id in ("1", "2", "3"):
        put(store, run_id, session="s")
        clock.advance(1)
    search = Search(MAIN.targets, per_session=1)
    own(store, "1", elsewhere(clock))
    assert taken(store, search) is None

    clock.advance(LEASE + 1)
    assert taken(store, search) == "1"
    assert taken(store, search) is None
    store.mark_failed("1", "done with it")

    assert taken(store, search) == "2"


def test_what_has_begun_waits_for_room_in_its_session_too(store: RunStore) -> None:
    put(store, "left", session="s")
    queue.give_back(store, [own(store, "left", store.ownership.row())], "stopped")
    put(store, "running", session="s")
    own(store, "running", store.ownership.row())

    assert taken(store, Search(MAIN.targets, per_session=1)) is None


def test_what_a_dead_worker_left_waits_for_room_in_its_session_too(store: RunStore, clock: ManualClock) -> None:
    put(store, "left", session="s")
    own(store, "left", elsewhere(clock))
    clock.advance(LEASE + 1)
    put(store, "at work", session="s")
    own(store, "at work", store.ownership.row())

    assert taken(store, MAIN._replace(per_session=1)) is None
    assert taken(store, MAIN._replace(per_session=2)) == "left"


def test_only_runs_that_were_submitted_take_room_in_their_session(store: RunStore) -> None:
    store.create_run("s", "p", run_id="own")
    own(store, "own", store.ownership.row())
    put(store, "r", session="s")

    assert taken(store, MAIN._replace(per_session=1)) == "r"


def test_each_session_of_a_worker_has_its_own_room(store: RunStore) -> None:
    for session in ("s", "t"):
        put(store, f"{session} at work", session=session)
        own(store, f"{session} at work", store.ownership.row())
        put(store, f"{session} waits", session=session)

    assert taken(store, MAIN._replace(per_session=1)) is None


# --- how much there is ---


def test_the_queue_counts_what_waits_by_function(store: RunStore) -> None:
    put(store, "cancelled")
    store.cancel("cancelled")
    put(store, "1")
    put(store, "2")
    put(store, "3", "agent:other")
    store.create_run("s", "p")
    taken(store)

    assert queue.counts(store) == {"agent:main": 1, "agent:other": 1}


def test_the_queue_is_empty_when_nothing_waits_and_nothing_was_left(store: RunStore, clock: ManualClock) -> None:
    assert queue.is_empty(store, MAIN.targets)
    put(store, "r")
    assert not queue.is_empty(store, MAIN.targets)
    own(store, "r", elsewhere(clock))
    assert queue.is_empty(store, MAIN.targets)

    clock.advance(LEASE + 1)

    assert not queue.is_empty(store, MAIN.targets)
    assert queue.is_empty(store, ["agent:other"])


# --- the embedded store ---


def test_a_file_of_the_second_schema_gets_a_queue_and_keeps_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.db"
    with monkeypatch.context() as old:
        old.setattr(schema, "SCHEMA", 2)
        with SqliteRunStore(path) as store:
            store.create_run("s", "p", run_id="old")

    with SqliteRunStore(path) as store:
        put(store, "new")
        found = all_taken(store)

        assert found == ["new"]
        assert store.snapshot("old").prompt == "p"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.SCHEMA,)


@pytest.mark.parametrize(
    ("name", "parameters", "index"),
    [
        ("next_queued", ["t", "[]"], "runs_queued"),
        ("next_released", ["t", 0, "[]"], "runs_begun"),
        ("next_abandoned", ["t", 0, "[]", "[]"], "runs_begun"),
        ("any_begun", ["t", "[]"], "runs_begun"),
        ("sessions_at_work", [], "runs_of_owner"),
    ],
)
def test_the_queue_is_found_by_an_index_and_not_sorted(
    tmp_path: Path, name: str, parameters: list[Any], index: str
) -> None:
    with SqliteRunStore(tmp_path / "runs.db") as store:
        put(store, "r")

        rows = store.file.reader().execute(f"EXPLAIN QUERY PLAN {store.file.sql(name)}", parameters).fetchall()

    steps = [row[3] for row in rows]
    assert any(f"INDEX {index}" in step for step in steps), steps
    few = ("next_abandoned", "sessions_at_work")  # those that are at work
    assert name in few or not any("TEMP B-TREE" in step for step in steps), steps


def test_a_store_that_fails_while_a_run_is_taken_says_what_may_be_taken(tmp_path: Path, clock: ManualClock) -> None:
    path, unsure = tmp_path / "runs.db", list[Claim]()
    with SqliteRunStore(path, clock=clock) as store:
        run_id = submit(store, "agent:main").id
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TRIGGER full BEFORE UPDATE ON runs BEGIN SELECT RAISE(FAIL, 'full'); END")

        with pytest.raises(StoreError, match="full"):
            queue.take(store, MAIN, unsure=unsure)

        assert [claim.run_id for claim in unsure] == [run_id]
