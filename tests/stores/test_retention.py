"""Retention: what goes, what stays, and that whatever stays still folds to the state it had."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stores.kinds import EMBEDDED, postgres_url

from holdfast.errors import ConfigError, RunNotFound, StoreError
from holdfast.history import RunHeader, RunSnapshot, RunStatus, begin, fold
from holdfast.stores import MemoryRunStore, PostgresRunStore, RunStore, SqliteRunStore, queue
from holdfast.stores.ledger import Ledger
from holdfast.stores.records import ShortenedRecord
from holdfast.stores.retention import DAY, DEFAULT, ROWS, RUNS, UNFINISHED, Limits, prune_if_due
from holdfast.stores.searching import INTERRUPTED, Wanted, every
from holdfast.testing import ManualClock
from holdfast.workers import submit

Make = Callable[..., RunStore]
ENDS = ("run_completed", "run_failed", "run_cancelled")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Make]:
    """Makes a store."""
    made: list[RunStore] = []

    def new(**more: Any) -> RunStore:
        path = tmp_path / f"{len(made)}.db"
        if request.param == "memory":
            made.append(MemoryRunStore(clock=clock, **more))
        elif request.param == "sqlite":
            made.append(SqliteRunStore(path, clock=clock, **more))
        else:
            made.append(PostgresRunStore(postgres_url(path), clock=clock, **more))
        return made[-1]

    yield new
    for store in made:
        store.close()


@pytest.fixture
def store(make: Make) -> RunStore:
    return make()


def ids(store: RunStore) -> list[str]:
    return [record.snapshot.id for record in store.records()]


def run(store: RunStore, run_id: str, events: int = 3, end: str | None = "run_completed", payload: str = "x") -> None:
    """A run of so many events, of which the last is *end*."""
    header = store.header("s", "a prompt", run_id)

    def write(ledger: Ledger) -> None:
        live = ledger.add(header)
        for number in range(events - (end is not None)):
            ledger.say(live, "turn_started", text=payload, number=number % 7)
        if end is not None:
            ledger.say(live, end)

    store.writer.commit(write)


def claim(store: RunStore, run_id: str) -> None:
    owner = store.ownership.row()
    store.writer.commit(lambda ledger: ledger.claim(ledger.run(run_id), owner))


def rows(store: RunStore, table: str) -> int:
    connection = store.file.writing()
    count: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return count


def assert_folds(store: RunStore) -> None:
    """Every run is what its base and its events give."""
    for record in store.records():
        given = record.snapshot
        header = RunHeader(
            id=given.id, session_id=given.session_id, prompt=given.prompt, created_at_ms=given.created_at_ms
        )
        base = record.base if isinstance(record, ShortenedRecord) else begin(header)
        first = base.event_count
        assert [event.sequence for event in record.events] == list(range(first, given.event_count))
        assert fold(base, record.events) == msgspec.structs.replace(given, owner=None, interrupted=False)
        assert store.event_page(given.id).first_available == first


# --- limits ---


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_age": -1},
        {"max_age": float("nan")},
        {"max_age": "30d"},
        {"max_runs": -1},
        {"max_runs": 1.5},
        {"max_events": 0},
        {"max_run_bytes": -1},
        {"max_bytes": True},
        {"max_bytes": 2**64},
    ],
)
def test_limits_that_say_nothing_or_nonsense_are_a_config_error(store: RunStore, limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="max_"):
        store.prune(**limits)


def test_the_default_keeps_thirty_days_and_a_gigabyte() -> None:
    assert Limits(max_age=30 * 86_400, max_bytes=1_000_000_000) == DEFAULT


def test_pruning_makes_no_file(tmp_path: Path) -> None:
    store = SqliteRunStore(tmp_path / "none.db")

    assert store.prune(max_age=0) == (0, 0)
    assert prune_if_due(store, DEFAULT) == (0, 0)
    assert list(tmp_path.iterdir()) == []


# --- by age ---


def test_runs_that_ended_too_long_ago_go(store: RunStore, clock: ManualClock) -> None:
    run(store, "old")
    clock.advance(60)
    run(store, "young")
    clock.advance(50)

    assert store.prune(max_age=100) == (1, 3)

    assert ids(store) == ["young"]
    with pytest.raises(RunNotFound):
        store.events("old")


@pytest.mark.parametrize("end", ["run_completed", "run_failed", "run_cancelled"])
def test_age_counts_from_the_last_event(store: RunStore, clock: ManualClock, end: str) -> None:
    run(store, "a", end=None)
    clock.advance(60)
    store.record_event("a", end)
    clock.advance(50)

    assert store.prune(max_age=100) == (0, 0)

    clock.advance(51)
    assert store.prune(max_age=100) == (1, 4)


def test_an_age_beyond_all_keeps_everything(store: RunStore) -> None:
    run(store, "a")

    assert store.prune(max_age=1e300) == (0, 0)


def test_a_run_that_has_an_owner_stays_however_old(store: RunStore, clock: ManualClock) -> None:
    run(store, "a", end=None)
    claim(store, "a")
    clock.advance(1000)

    assert store.prune(max_age=100, max_runs=0, max_events=1, max_run_bytes=0, max_bytes=0) == (0, 0)

    assert len(store.events("a")) == 3


def test_a_run_whose_owner_is_unknown_counts_as_running(store: RunStore, clock: ManualClock) -> None:
    store.create_run("s", "", run_id="a")
    store.record_event("a", "run_started")
    clock.advance(1000)

    assert store.prune(max_age=100, max_runs=0, max_events=1, max_run_bytes=0, max_bytes=0) == (0, 0)


def test_a_run_whose_owner_is_unknown_counts_as_left_after_a_day_of_silence(
    store: RunStore, clock: ManualClock
) -> None:
    store.create_run("s", "", run_id="a")
    store.record_event("a", "run_started")
    clock.advance(86_400)
    before = store.snapshot("a").interrupted
    clock.advance(1)

    assert (before, store.snapshot("a").interrupted) == (False, True)
    assert [run.id for run in every(store, Wanted(INTERRUPTED))] == ["a"]
    assert store.prune(max_age=100) == (1, 1)


def test_a_run_that_nobody_resumed_goes(tmp_path: Path, clock: ManualClock) -> None:
    with (
        SqliteRunStore(tmp_path / "runs.db", clock=clock) as dead,
        SqliteRunStore(tmp_path / "runs.db", clock=clock) as store,
    ):
        run(dead, "a", end=None)
        claim(dead, "a")
        clock.advance(dead.lease + 1)

        assert store.prune(max_age=100) == (0, 0)
        assert store.prune(max_runs=0, max_events=1, max_run_bytes=0, max_bytes=0) == (0, 0)
        clock.advance(100)
        assert store.prune(max_age=100) == (1, 3)


def test_a_run_that_never_began_goes(store: RunStore, clock: ManualClock) -> None:
    store.create_run("s", "", run_id="a")
    clock.advance(1000)

    assert store.prune(max_age=100) == (1, 0)

    with pytest.raises(RunNotFound):
        store.record_event("a", "noted")
    assert store.create_run("s", "another", run_id="a").prompt == "another"


def test_a_run_that_waits_for_a_worker_stays_however_old_until_a_worker_has_left_it(
    store: RunStore, clock: ManualClock
) -> None:
    submit(store, "agent:main", run_id="a")
    clock.advance(100)

    assert store.prune(max_age=10) == (0, 0)

    taken = queue.take(store, queue.Search(["agent:main"]))
    assert taken is not None
    store.record_event("a", "run_started")
    queue.give_back(store, [taken.claim], "stopped")
    clock.advance(100)
    assert store.prune(max_age=10) == (1, 2)


@pytest.mark.parametrize("make", EMBEDDED, indirect=True)  # it looks into the tables
def test_what_a_run_remembered_goes_with_it(store: RunStore, clock: ManualClock) -> None:
    for run_id in ("gone", "kept"):
        run(store, run_id, end="run_failed")
        store.writer.commit(lambda ledger, run_id=run_id: ledger.remember(ledger.run(run_id), b"k", "tool", b"v"))  # type: ignore[misc]
        store.record_event(run_id, "tool_started", {"call_id": 1, "tool": "search"})
        clock.advance(60)

    store.prune(max_age=100)

    assert [rows(store, table) for table in ("runs", "memos", "tools_of_runs")] == [1, 1, 1]
    assert store.memory("kept").memos == [(b"k", "tool", b"v")]


# --- by number ---


def test_the_newest_finished_runs_stay(store: RunStore, clock: ManualClock) -> None:
    for number in range(5):
        run(store, f"{number}", events=2, end=ENDS[number % 3])
        clock.advance(1)
    store.create_run("s", "", run_id="created")

    assert store.prune(max_runs=2) == (3, 6)

    assert ids(store) == ["3", "4", "created"]


@pytest.mark.parametrize(
    ("limits", "gone"),
    [({"max_runs": 3}, (1200, 2400)), ({"max_age": 10}, (1203, 2406)), ({"max_events": 1}, (0, 1203))],
)
def test_more_runs_than_one_look_takes_go(
    store: RunStore, clock: ManualClock, limits: dict[str, Any], gone: tuple[int, int]
) -> None:
    header = store.header("s", "", "x")

    def write(ledger: Ledger) -> None:
        for number in range(1203):
            live = ledger.add(msgspec.structs.replace(header, id=f"{number:04}"))
            ledger.say(live, "run_started")
            ledger.say(live, "run_completed")

    store.writer.commit(write)
    clock.advance(100)

    assert store.prune(**limits) == gone

    assert ids(store) == [f"{number:04}" for number in range(gone[0], 1203)]


# --- by events ---


@pytest.mark.parametrize("end", ENDS)
def test_a_long_run_keeps_its_last_events_and_its_state(store: RunStore, end: str) -> None:
    run(store, "a", events=10, end=end)
    before = store.snapshot("a")

    assert store.prune(max_events=4) == (0, 6)

    assert store.snapshot("a") == before
    assert [event.sequence for event in store.events("a")] == [6, 7, 8, 9]
    assert_folds(store)


def test_a_run_can_be_shortened_again_and_again(store: RunStore) -> None:
    run(store, "a", events=10)

    assert [store.prune(max_events=most) for most in (8, 8, 5, 1, 1)] == [(0, 2), (0, 0), (0, 3), (0, 4), (0, 0)]

    assert [event.type for event in store.events("a")] == ["run_completed"]
    assert_folds(store)


def test_a_page_says_that_events_are_gone(store: RunStore) -> None:
    run(store, "a", events=5)
    store.prune(max_events=2)

    page = store.event_page("a")

    assert (page.first_available, page.gap, [event.sequence for event in page.events]) == (3, True, [3, 4])
    assert not store.event_page("a", after=2).gap


def test_sequences_go_on_after_events_have_gone(store: RunStore) -> None:
    run(store, "a", events=5)
    store.prune(max_events=2)

    snapshot = store.record_event("a", "noted")

    assert snapshot.event_count == 6
    assert [event.sequence for event in store.events("a")] == [3, 4, 5]
    assert_folds(store)


def test_a_run_that_goes_on_keeps_its_events(store: RunStore) -> None:
    run(store, "a", events=5, end=None)
    claim(store, "a")

    assert store.prune(max_events=1, max_run_bytes=0) == (0, 0)


def test_a_shortened_run_keeps_what_it_remembers(store: RunStore) -> None:
    run(store, "a", events=5, end="run_failed")
    store.writer.commit(lambda ledger: ledger.remember(ledger.run("a"), b"k", "tool", b"v"))

    store.prune(max_events=1)

    assert store.memory("a").memos == [(b"k", "tool", b"v")]


def test_only_the_last_bytes_of_a_run_stay(store: RunStore) -> None:
    run(store, "a", events=6, payload="ü" * 50)
    (size,) = {len(msgspec.json.encode(event.payload)) for event in store.events("a")[:-1]}
    end = len(msgspec.json.encode(store.events("a")[-1].payload))

    assert store.prune(max_run_bytes=2 * size + end) == (0, 3)
    assert store.prune(max_run_bytes=2 * size + end - 1) == (0, 1)

    assert_folds(store)


def test_the_last_event_stays_however_large(store: RunStore) -> None:
    run(store, "a", events=6)

    assert store.prune(max_run_bytes=0) == (0, 5)
    assert store.prune(max_run_bytes=0) == (0, 0)

    assert [event.type for event in store.events("a")] == ["run_completed"]


def test_a_shortened_run_is_exported_and_imported_the_same(make: Make) -> None:
    source, store = make(), make()
    run(source, "a", events=10)
    source.prune(max_events=3)
    fp, again = io.StringIO(), io.StringIO()
    source.export(fp)

    store.import_(io.StringIO(fp.getvalue()))
    store.export(again)

    assert again.getvalue() == fp.getvalue()
    assert_folds(store)


# --- by size ---


def test_the_oldest_finished_runs_go_until_the_store_is_small_enough(store: RunStore, clock: ManualClock) -> None:
    store.create_run("s", "", run_id="created")
    for number in range(20):
        clock.advance(1)
        run(store, f"{number:02}", events=20, end=ENDS[number % 3], payload="x" * 1000)
    most = size(store) // 2

    runs, events = store.prune(max_bytes=most)

    assert 5 <= runs <= 15
    assert events == 20 * runs
    assert most * 0.8 < size(store) <= most
    assert ids(store) == ["created", *(f"{number:02}" for number in range(runs, 20))]


def test_no_more_runs_go_than_must(store: RunStore, clock: ManualClock) -> None:
    for number in range(20):
        clock.advance(1)
        run(store, f"{number:02}", events=200, payload="x" * 1000)

    runs, _ = store.prune(max_bytes=size(store) - 1)

    assert runs == 1


def test_a_store_that_is_small_enough_stays(store: RunStore) -> None:
    run(store, "a")

    assert store.prune(max_bytes=size(store)) == (0, 0)


def test_a_size_that_cannot_be_reached_leaves_what_may_not_go(store: RunStore) -> None:
    run(store, "finished")
    run(store, "running", end=None)

    assert store.prune(max_bytes=0) == (1, 3)

    assert ids(store) == ["running"]


def test_the_file_gives_back_what_is_not_used(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "runs.db"
    store = SqliteRunStore(path, clock=clock)
    run(store, "old", events=5000, payload="x" * 1000)
    store.close()
    before = path.stat().st_size
    clock.advance(100)

    with store:
        store.prune(max_age=10)

    assert before > 5_000_000
    assert path.stat().st_size < 100_000


def size(store: RunStore) -> int:
    ((found,),) = store.file.fetch("size")
    return int(found)


# --- how it is done ---


@pytest.mark.parametrize("limits", [{"max_age": 10}, {"max_events": 5}])
def test_a_long_run_goes_in_small_writes(make: Make, clock: ManualClock, limits: dict[str, Any]) -> None:
    points: list[str] = []
    store = make(crash=points.append)
    run(store, "a", events=3 * ROWS + 1)
    clock.advance(100)
    points.clear()

    _, events = store.prune(**limits)

    assert events > 2 * ROWS
    assert points.count("committed") >= events / ROWS


def test_small_runs_go_many_in_a_write(make: Make, clock: ManualClock) -> None:
    points: list[str] = []
    store = make(crash=points.append)
    for number in range(100):
        run(store, f"{number}", events=30)
    clock.advance(100)
    points.clear()

    assert store.prune(max_age=10) == (100, 3000)

    assert 3000 / ROWS <= points.count("committed") <= 3000 / ROWS + 3


def test_runs_without_events_go_in_small_writes_and_are_sought_once(clock: ManualClock) -> None:
    points: list[str] = []
    made: list[str] = []
    with MemoryRunStore(clock=clock, crash=points.append) as store:
        run(store, "first", events=1)
        store.writer.commit(lambda ledger: [ledger.add(store.header("s", "", f"{n}")) for n in range(3 * RUNS)])
        store.file.writing().execute("UPDATE runs SET status = 'completed'")
        store.file.writing().set_trace_callback(made.append)
        points.clear()

        assert store.prune(max_runs=0) == (3 * RUNS + 1, 1)

    assert points.count("committed") >= 3
    assert sum("LIMIT min(" in statement for statement in made) == 2


def test_others_write_between_two_writes(tmp_path: Path, clock: ManualClock) -> None:
    with SqliteRunStore(tmp_path / "runs.db", clock=clock) as other:
        run(other, "long", events=3 * ROWS)
        other.create_run("s", "", run_id="short")
        clock.advance(100)
        during: list[int] = []

        def write(point: str) -> None:
            if point == "committed":
                during.append(other.record_event("short", "noted").event_count)

        with SqliteRunStore(tmp_path / "runs.db", clock=clock, crash=write) as store:
            store.prune(max_age=10)

        assert len(during) >= 3
        assert [event.sequence for event in other.events("short")] == list(range(len(during)))
        assert ids(other) == ["short"]


@pytest.mark.parametrize("write", range(1, 5))
def test_a_deletion_that_stops_in_the_middle_leaves_runs_whole(make: Make, clock: ManualClock, write: int) -> None:
    left = [10**6]

    def crash(point: str) -> None:
        left[0] -= point == "written"
        if left[0] == 0:
            raise StoreError("stopped")

    store = make(crash=crash)
    run(store, "a", events=2 * ROWS + 5)
    run(store, "b", events=ROWS)
    clock.advance(100)
    left[0] = write

    with pytest.raises(StoreError, match="stopped"):
        store.prune(max_age=10)

    assert_folds(store)
    left[0] = 10**6
    store.prune(max_age=10)
    assert ids(store) == []


def test_a_run_that_is_taken_up_meanwhile_stays(tmp_path: Path, clock: ManualClock) -> None:
    with SqliteRunStore(tmp_path / "runs.db", clock=clock) as dead:
        run(dead, "a", events=2 * ROWS, end=None)
        claim(dead, "a")
    clock.advance(1000)
    with SqliteRunStore(tmp_path / "runs.db", clock=clock) as other:
        taken: list[str] = []

        def take(point: str) -> None:
            if point == "committed" and not taken:
                taken.append("a")
                claim(other, "a")

        with SqliteRunStore(tmp_path / "runs.db", clock=clock, crash=take) as store:
            store.prune(max_age=10)

            assert store.snapshot("a").owner is not None
            assert_folds(store)


def test_a_run_that_another_process_has_deleted_meanwhile_is_passed_over(tmp_path: Path, clock: ManualClock) -> None:
    with SqliteRunStore(tmp_path / "runs.db", clock=clock) as other:
        run(other, "a")

        def be_quicker(point: str) -> None:
            if point == "begin":
                other.replace_records([])

        with SqliteRunStore(tmp_path / "runs.db", clock=clock, crash=be_quicker) as store:
            assert store.prune(max_runs=0) == (0, 0)


def test_a_run_that_was_put_in_place_of_an_old_one_meanwhile_stays(tmp_path: Path, clock: ManualClock) -> None:
    with SqliteRunStore(tmp_path / "runs.db", clock=clock) as other:
        run(other, "a")
        replaced: list[str] = []

        def replace(point: str) -> None:
            if point == "begin" and not replaced:
                replaced.append("a")
                other.replace_records([])
                run(other, "a", end=None)

        with SqliteRunStore(tmp_path / "runs.db", clock=clock, crash=replace) as store:
            assert store.prune(max_runs=0) == (0, 0)

        assert ids(other) == ["a"]


# --- once a day ---


def test_pruning_is_due_once_a_day(store: RunStore, clock: ManualClock) -> None:
    limits = Limits(max_age=10)
    run(store, "a")
    clock.advance(100)

    assert prune_if_due(store, limits) == (1, 3)
    run(store, "b")
    clock.advance(DAY - 1)
    assert prune_if_due(store, limits) == (0, 0)
    clock.advance(1)
    assert prune_if_due(store, limits) == (1, 3)


def test_what_a_process_that_went_has_not_pruned_another_takes_up(tmp_path: Path, clock: ManualClock) -> None:
    class Killed(Exception):
        pass

    def die(point: str) -> None:
        points.append(point)
        if points.count("written") == 3:  # it has begun, one run has gone, the next is about to
            raise Killed

    points: list[str] = []
    path = tmp_path / "runs.db"
    with SqliteRunStore(path, clock=clock) as other:
        for run_id in ("a", "b"):
            run(other, run_id, events=ROWS)
        clock.advance(100)
        with SqliteRunStore(path, clock=clock, crash=die) as store, pytest.raises(Killed):
            prune_if_due(store, Limits(max_age=10))

        assert prune_if_due(other, Limits(max_age=10)) == (0, 0)
        clock.advance(UNFINISHED)
        assert prune_if_due(other, Limits(max_age=10)) == (1, ROWS)


def test_one_process_prunes_for_all(tmp_path: Path, clock: ManualClock) -> None:
    with (
        SqliteRunStore(tmp_path / "runs.db", clock=clock) as one,
        SqliteRunStore(tmp_path / "runs.db", clock=clock) as other,
    ):
        run(one, "a")
        clock.advance(100)
        assert prune_if_due(one, Limits(max_age=10)) == (1, 3)
        run(one, "b")
        clock.advance(100)

        assert prune_if_due(other, Limits(max_age=10)) == (0, 0)


def test_of_two_processes_that_find_it_due_one_prunes(tmp_path: Path, clock: ManualClock) -> None:
    limits = Limits(max_runs=0)
    with SqliteRunStore(tmp_path / "runs.db", clock=clock) as other:
        run(other, "a")
        pruned: list[tuple[int, int]] = []

        def be_quicker(point: str) -> None:
            if point == "begin" and not pruned:
                pruned.append(prune_if_due(other, limits))
                run(other, "b")

        with SqliteRunStore(tmp_path / "runs.db", clock=clock, crash=be_quicker) as one:
            assert prune_if_due(one, limits) == (0, 0)

        assert pruned == [(1, 3)]
        assert ids(other) == ["b"]
        clock.advance(UNFINISHED)
        assert prune_if_due(other, limits) == (0, 0)


def test_a_clock_that_went_back_does_not_stop_it_for_ever(store: RunStore, clock: ManualClock) -> None:
    run(store, "a")
    prune_if_due(store, Limits(max_age=10**9))
    clock.shift_time(-10 * DAY)
    run(store, "b")
    clock.advance(100)

    runs, _ = prune_if_due(store, Limits(max_age=10))

    assert runs == 1


def test_a_clock_that_jumped_ahead_deletes_no_run_for_its_age(store: RunStore, clock: ManualClock) -> None:
    limits = Limits(max_age=30 * DAY)
    run(store, "a")
    prune_if_due(store, limits)
    clock.shift_time(3650 * DAY)

    assert prune_if_due(store, limits) == (0, 0)
    clock.shift_time(-3650 * DAY)
    clock.advance(DAY)
    assert prune_if_due(store, limits) == (0, 0)
    assert ids(store) == ["a"]


def test_a_store_that_nobody_used_for_long_loses_old_runs_a_day_after_it_is_used_again(
    store: RunStore, clock: ManualClock
) -> None:
    limits = Limits(max_age=30 * DAY, max_runs=1)
    for name in "ab":
        run(store, name)
    clock.advance(1)
    prune_if_due(store, Limits(max_age=30 * DAY))
    clock.advance(60 * DAY)

    assert prune_if_due(store, limits) == (1, 3)  # the other limits hold all the same
    clock.advance(DAY)
    assert prune_if_due(store, limits) == (1, 3)


# --- random runs ---

CALLS = st.sampled_from(["1", "2", "3"])
PAYLOADS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "run_started": st.just({}),
    "planning_started": st.just({}),
    "planning_ended": st.just({}),
    "turn_started": st.just({}),
    "verification_started": st.just({}),
    "verification_ended": st.just({"reports": [{"name": "r", "checks": [{"name": "c", "status": "passed"}]}]}),
    "step_started": st.fixed_dictionaries({"call_id": CALLS, "name": st.just("think")}),
    "step_ended": st.fixed_dictionaries({"call_id": CALLS}),
    "tool_started": st.fixed_dictionaries({"call_id": CALLS, "tool": st.just("pay")}),
    "tool_ended": st.fixed_dictionaries({"call_id": CALLS, "status": st.sampled_from(["success", "failed"])}),
    "spent": st.fixed_dictionaries({"unit": st.just("usd"), "amount": st.floats(0, 1e300)}),
    "run_completed": st.just({"text": "done"}),
    "run_failed": st.just({"error": "no"}),
    "run_cancelled": st.just({"reason": "enough"}),
    "anything": st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=20), max_size=3),
}
EVENTS = st.sampled_from(sorted(PAYLOADS)).flatmap(lambda type: st.tuples(st.just(type), PAYLOADS[type]))
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_age": st.integers(0, 30),
        "max_runs": st.integers(0, 3),
        "max_events": st.integers(1, 5),
        "max_run_bytes": st.integers(0, 100),
    },
).filter(bool)


@settings(max_examples=60)
@given(st.lists(st.lists(EVENTS, max_size=10), max_size=4), st.lists(LIMITS, min_size=1, max_size=3))
def test_whatever_goes_the_rest_has_the_state_it_had(
    runs: list[list[tuple[str, dict[str, Any]]]], rounds: list[dict[str, Any]]
) -> None:
    clock = ManualClock()
    with MemoryRunStore(clock=clock) as store:
        for number, events in enumerate(runs):
            store.create_run("s", "p", run_id=f"{number}")
            for type, payload in events:
                clock.advance(1)
                store.record_event(f"{number}", type, payload)
        before: dict[str, RunSnapshot] = {each.id: each for each in store.list_runs()}
        kept = {run_id: len(store.events(run_id)) for run_id in before}

        gone = [store.prune(**limits) for limits in rounds]

        after = {each.id: each for each in store.list_runs()}
        assert after.items() <= before.items()
        assert len(before) - len(after) == sum(runs for runs, _ in gone)
        left = sum(len(store.events(run_id)) for run_id in after)
        assert sum(kept.values()) - left == sum(events for _, events in gone)
        for run_id, snapshot in before.items():
            if not snapshot.status.is_terminal and snapshot.status is not RunStatus.CREATED:
                assert len(store.events(run_id)) == kept[run_id]
        assert_folds(store)
