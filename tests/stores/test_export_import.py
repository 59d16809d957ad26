"""Runs out of a store and in again: as records, and as JSON lines that are checked to the last byte."""

from __future__ import annotations

import io
import itertools
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stores.kinds import EMBEDDED, postgres_url

from holdfast.errors import ConfigError, RunNotFound, StoreError
from holdfast.history import RunEventRecord, RunHeader, RunRecord, RunStatus, begin, fold
from holdfast.stores import MemoryRunStore, PostgresRunStore, RunStore, SqliteRunStore
from holdfast.stores.ledger import Ledger
from holdfast.stores.portable import LONGEST_LINE
from holdfast.stores.records import ShortenedRecord
from holdfast.stores.staging import Staging
from holdfast.testing import ManualClock

KINDS = ["memory", "sqlite", "postgres"]
Make = Callable[..., RunStore]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Make]:
    """Makes stores of one kind, each with a database of its own."""
    made: list[RunStore] = []

    def new(kind: str = request.param, **more: Any) -> RunStore:
        path = tmp_path / f"{len(made)}.db"
        if kind == "memory":
            made.append(MemoryRunStore(clock=clock, **more))
        elif kind == "sqlite":
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


def fill(store: RunStore, clock: ManualClock) -> RunStore:
    """One run of each kind, a second apart."""
    store.create_run("s", "an answer", run_id="completed")
    store.record_event("completed", "run_started", {"prompt": "an answer"})
    call(store, "completed", "search", key="0a" * 16)
    store.record_event("completed", "spent", {"unit": "usd", "amount": 0.1})
    store.record_event("completed", "run_completed", {"text": "zwölf \u2028 \U0001f600"})
    store.record_event("completed", "tool_ended", {"call_id": "search", "status": "failed"})
    clock.advance(1)
    store.create_run("s", "", run_id="failed")
    call(store, "failed", "pay", key="0b" * 16)
    store.mark_failed("failed", "no money")
    clock.advance(1)
    store.create_run("t", 'a "prompt"\n', run_id="executing")
    call(store, "executing", "pay", key="0c" * 16)
    store.record_event("executing", "tool_started", {"call_id": "b", "tool": "mail", "key": "0d" * 16})
    clock.advance(1)
    store.create_run("t", "later", run_id="created")
    return store


def call(store: RunStore, run_id: str, tool: str, key: str | None = None) -> None:
    """A call of *tool* that begins and ends."""
    start = {"call_id": tool, "tool": tool} | ({} if key is None else {"key": key})
    store.record_event(run_id, "tool_started", start)
    store.record_event(run_id, "tool_ended", {"call_id": tool, "tool": tool, "status": "success", "result": [1, "x"]})


def exported(store: RunStore, run_ids: list[str] | None = None) -> str:
    fp = io.StringIO()
    store.export(fp, run_ids)
    return fp.getvalue()


def signed(*lines: str) -> str:
    """*lines* as an export, whatever they say: with a last line that fits."""
    text = "".join(f"{line}\n" for line in lines)
    runs, events = (sum(line.startswith(f'{{"{kind}"') for line in lines) for kind in ("run", "event"))
    checksum = blake2b(text.encode(), digest_size=32).hexdigest()
    return text + f'{{"end":{{"runs":{runs},"events":{events},"checksum":"{checksum}"}}}}\n'


def lines_of(text: str) -> list[str]:
    """The lines of an export, but for the last."""
    return text.split("\n")[:-2]


def memos(store: RunStore, run_id: str) -> list[tuple[bytes, str, bytes]]:
    return store.memory(run_id).memos


def shorten(store: RunStore, events: int) -> None:
    store.prune(max_events=events)


# --- records ---


def test_records_are_all_runs_with_their_events_oldest_first(store: RunStore, clock: ManualClock) -> None:
    fill(store, clock)

    records = list(store.records())

    assert [record.snapshot.id for record in records] == ["completed", "failed", "executing", "created"]
    assert all(record.snapshot == store.snapshot(record.snapshot.id) for record in records)
    assert all(list(record.events) == store.events(record.snapshot.id) for record in records)


def test_runs_of_the_same_moment_come_in_the_order_of_their_ids(store: RunStore) -> None:
    for run_id in ("b", "c", "a"):
        store.create_run("s", "", run_id=run_id)

    assert [record.snapshot.id for record in store.records()] == ["a", "b", "c"]


def test_records_are_the_same_wherever_they_are_put(make: Make, clock: ManualClock) -> None:
    source, store = fill(make(), clock), make()
    records = source.records()

    source.replace_records(records)
    store.replace_records(records)

    assert source.records() == records
    assert store.records() == records
    assert not store.snapshot("executing").interrupted


def test_a_run_that_was_owned_where_its_record_was_made_is_left_where_it_is_put(make: Make) -> None:
    source, store = make(), make()
    source.create_run("s", "", run_id="a")
    source.record_event("a", "run_started")
    (record,) = source.records()
    owned = msgspec.structs.replace(record.snapshot, owner="elsewhere:1")

    store.replace_records([RunRecord(owned, record.events)])

    assert (store.snapshot("a").owner, store.snapshot("a").interrupted) == (None, True)


def test_reading_everything_makes_no_file(tmp_path: Path) -> None:
    store = SqliteRunStore(tmp_path / "none.db")

    assert list(store.records()) == []
    assert len(exported(store).splitlines()) == 2
    assert list(tmp_path.iterdir()) == []


# --- export ---


def test_an_export_says_what_it_is_and_ends_with_counts_and_a_checksum(store: RunStore, clock: ManualClock) -> None:
    fill(store, clock)

    text = exported(store)

    first, *_, last = text.splitlines()
    before = text.encode()[: -len(last) - 1]
    assert json.loads(first) == {"holdfast": "runs", "schema": 1}
    assert json.loads(last) == {
        "end": {"runs": 4, "events": 12, "checksum": blake2b(before, digest_size=32).hexdigest()}
    }


def test_an_export_has_a_line_for_each_run_and_each_event(store: RunStore) -> None:
    store.create_run("session", "prompt", run_id="a")
    store.record_event("a", "noted", {"b": 1, "a": [None]})

    _, run, event, _ = exported(store).splitlines()

    at = store.snapshot("a").created_at_ms
    home = store.file.meta("store")
    header = {"id": "a", "session_id": "session", "prompt": "prompt", "created_at_ms": at, "store": home}
    assert json.loads(run) == {"run": header}
    payload = {"a": [None], "b": 1}
    assert json.loads(event) == {"event": {"sequence": 0, "timestamp_ms": at, "type": "noted", "payload": payload}}


def test_an_export_gives_the_number_of_runs(store: RunStore, clock: ManualClock) -> None:
    fill(store, clock)

    assert store.export(io.StringIO()) == 4
    assert store.export(io.StringIO(), ["failed"]) == 1


def test_named_runs_are_exported_oldest_first_and_once(store: RunStore, clock: ManualClock) -> None:
    fill(store, clock)

    text = exported(store, ["created", "failed", "created"])

    assert [json.loads(line)["run"]["id"] for line in text.splitlines() if line.startswith('{"run"')] == [
        "failed",
        "created",
    ]


@pytest.mark.parametrize("unknown", ["unknown", "", "\ud800"])
def test_an_unknown_run_is_not_exported_and_nothing_is_written(
    store: RunStore, clock: ManualClock, unknown: str
) -> None:
    fill(store, clock)
    fp = io.StringIO()

    with pytest.raises(RunNotFound):
        store.export(fp, ["failed", unknown])

    assert fp.getvalue() == ""


@pytest.mark.parametrize("run_ids", ["completed", [1], [None]])
def test_ids_that_are_no_list_of_texts_are_a_config_error(store: RunStore, run_ids: Any) -> None:
    with pytest.raises(ConfigError, match="run_ids"):
        store.export(io.StringIO(), run_ids)


def test_exact_results_are_never_exported(store: RunStore) -> None:
    store.create_run("s", "", run_id="a")
    store.writer.commit(lambda ledger: ledger.remember(ledger.run("a"), b"key", "tool", b"the exact result"))

    assert "exact" not in exported(store)


@pytest.mark.parametrize("make", EMBEDDED, indirect=True)  # it looks into the tables
def test_a_store_that_lost_events_is_not_exported(store: RunStore, clock: ManualClock) -> None:
    fill(store, clock)
    store.writer.commit(lambda ledger: store.file.writing().execute("DELETE FROM events WHERE sequence = 1"))

    with pytest.raises(StoreError, match="damaged"):
        exported(store)


@pytest.mark.parametrize("make", EMBEDDED, indirect=True)  # it looks into the tables
def test_a_payload_that_is_no_json_is_not_exported(store: RunStore, clock: ManualClock) -> None:
    fill(store, clock)
    store.writer.commit(lambda ledger: store.file.writing().execute("UPDATE events SET payload = '{'"))

    with pytest.raises(StoreError, match="damaged"):
        exported(store)


# --- import: what comes in ---


@pytest.mark.parametrize("other", KINDS)
def test_what_was_exported_and_imported_is_exported_the_same(make: Make, clock: ManualClock, other: str) -> None:
    text = exported(fill(make(), clock))
    store = make(other)

    assert store.import_(io.StringIO(text)) == 4

    assert exported(store) == text


def test_an_imported_run_has_the_state_that_its_events_give(make: Make, clock: ManualClock) -> None:
    source, store = fill(make(), clock), make()

    store.import_(io.StringIO(exported(source)))

    for snapshot in source.list_runs():
        imported = store.snapshot(snapshot.id)
        assert msgspec.structs.replace(imported, interrupted=False) == snapshot
        assert store.events(snapshot.id) == source.events(snapshot.id)


def test_runs_keep_their_origin_however_often_they_move(make: Make, clock: ManualClock) -> None:
    first, second, third = make(), make(), make()
    second.create_run("s", "", run_id="of the second")
    second.import_(io.StringIO(exported(fill(first, clock))))

    third.import_(io.StringIO(exported(second)))

    assert exported(third) == exported(second)
    homes = {json.loads(line)["run"]["store"] for line in exported(third).splitlines() if line.startswith('{"run"')}
    assert homes == {first.file.meta("store"), second.file.meta("store")}


def test_header_facts_that_no_snapshot_shows_survive(make: Make) -> None:
    source, store = make(), make()
    header = RunHeader(
        id="a",
        session_id="s",
        prompt="",
        created_at_ms=5,
        forked_from="b",
        root="c",
        entry={"target": "m:f", "args": [1]},
        budget={"usd": 2},
    )
    source.writer.commit(lambda ledger: ledger.add(header))

    store.import_(io.StringIO(exported(source)))

    assert store.memory("a").header == header
    assert exported(store) == exported(source)


def test_importing_twice_is_importing_once(make: Make, clock: ManualClock) -> None:
    text, store = exported(fill(make(), clock)), make()
    store.import_(io.StringIO(text))
    before = memos(store, "executing")

    assert store.import_(io.StringIO(text)) == 0

    assert exported(store) == text
    assert memos(store, "executing") == before


def test_only_new_runs_are_added(make: Make, clock: ManualClock) -> None:
    source, store = fill(make(), clock), make()
    store.import_(io.StringIO(exported(source, ["failed", "executing"])))

    assert store.import_(io.StringIO(exported(source))) == 2

    assert exported(store) == exported(source)


def test_importing_into_the_store_it_came_from_changes_nothing(store: RunStore, clock: ManualClock) -> None:
    text = exported(fill(store, clock))

    assert store.import_(io.StringIO(text)) == 0

    assert exported(store) == text
    assert not store.memory("executing").is_foreign


def test_a_run_that_differs_is_named_and_nothing_is_imported(make: Make, clock: ManualClock) -> None:
    text, store = exported(fill(make(), clock)), make()
    store.import_(io.StringIO(exported_run(text, "failed")))
    store.record_event("failed", "noted")
    before = exported(store)

    with pytest.raises(StoreError, match="'failed'"):
        store.import_(io.StringIO(text))

    assert exported(store) == before


def exported_run(text: str, run_id: str) -> str:
    """The export of one run alone, taken from that of many."""
    title, *lines = lines_of(text)
    wanted = []
    taking = False
    for line in lines:
        if line.startswith('{"run"'):
            taking = json.loads(line)["run"]["id"] == run_id
        if taking:
            wanted.append(line)
    return signed(title, *wanted)


def test_a_payload_spelt_in_another_way_is_the_same(make: Make) -> None:
    source, store = make(), make()
    source.create_run("s", "", run_id="a")
    source.record_event("a", "noted", {"x": 1})
    text = exported(source)
    store.import_(io.StringIO(text))

    assert store.import_(io.StringIO(signed(*lines_of(text.replace('{"x":1}', '{ "x": 1 }'))))) == 0


def test_an_empty_export_brings_nothing(make: Make) -> None:
    text, store = exported(make()), make()

    assert store.import_(io.StringIO(text)) == 0


def test_runs_may_come_in_any_order(make: Make, clock: ManualClock) -> None:
    source, store = fill(make(), clock), make()
    title, *first = lines_of(exported(source, ["failed"]))
    _, *second = lines_of(exported(source, ["completed"]))

    store.import_(io.StringIO(signed(title, *first, *second)))

    assert exported(store) == exported(source, ["completed", "failed"])


def test_an_import_is_read_from_a_real_file(make: Make, clock: ManualClock, tmp_path: Path) -> None:
    source, store = fill(make(), clock), make()
    with open(tmp_path / "runs.jsonl", "w", encoding="utf-8") as fp:
        source.export(fp)

    with open(tmp_path / "runs.jsonl", encoding="utf-8") as fp:
        store.import_(fp)

    assert exported(store) == exported(source)


def test_what_is_there_already_is_found_without_keeping_others_from_writing(tmp_path: Path, clock: ManualClock) -> None:
    points: list[str] = []
    with SqliteRunStore(tmp_path / "runs.db", clock=clock, crash=points.append) as store:
        text = exported(fill(store, clock))
        points.clear()

        store.import_(io.StringIO(text))

        assert points == []


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (["run"], ["run, prompt"]),
        (["run, tool_calls 1", "event"], ["run, tool_calls 2", "event"]),
        (["run", "0"], ["run", "0", "1"]),
        (["run", "0", "1"], ["run", "0"]),
        (["run", "0"], ["run", "other 0"]),
    ],
)
def test_every_difference_counts(store: RunStore, mine: list[str], theirs: list[str]) -> None:
    spelt = {
        "run": RUN,
        "run, prompt": RUN.replace('"prompt":""', '"prompt":"other"'),
        "run, tool_calls 1": based(tool_calls=1),
        "run, tool_calls 2": based(tool_calls=2),
        "event": event(2),
        "0": event(0),
        "1": event(1),
        "other 0": event(0, payload='{"x":1}'),
    }
    store.import_(io.StringIO(signed(TITLE, *(spelt[line] for line in mine))))

    with pytest.raises(StoreError, match="'a' is in the store already and differs"):
        store.import_(io.StringIO(signed(TITLE, *(spelt[line] for line in theirs))))


# --- import: how a run goes on ---


def test_an_imported_run_that_had_begun_is_interrupted(make: Make, clock: ManualClock) -> None:
    store = make()
    store.import_(io.StringIO(exported(fill(make(), clock))))

    interrupted = {snapshot.id: snapshot.interrupted for snapshot in store.list_runs()}

    assert interrupted == {"completed": False, "failed": False, "executing": True, "created": False}
    assert all(snapshot.owner is None for snapshot in store.list_runs())


def test_finished_calls_of_an_imported_run_are_in_doubt_unless_it_completed(make: Make, clock: ManualClock) -> None:
    store = make()
    store.import_(io.StringIO(exported(fill(make(), clock))))

    assert memos(store, "executing") == [(b"\x0c" * 16, "pay", b"")]
    assert memos(store, "failed") == [(b"\x0b" * 16, "pay", b"")]
    assert memos(store, "completed") == []


def test_a_finished_step_is_in_doubt_too(make: Make) -> None:
    source, store = make(), make()
    source.create_run("s", "", run_id="a")
    source.record_event("a", "step_started", {"call_id": "1", "name": "think", "key": "0e"})
    source.record_event("a", "step_ended", {"call_id": "1"})

    store.import_(io.StringIO(exported(source)))

    assert memos(store, "a") == [(b"\x0e", "think", b"")]


def test_a_result_that_only_an_imported_event_tells_of_is_not_believed(make: Make) -> None:
    source, store = make(), make()
    source.create_run("s", "", run_id="a")
    source.record_event("a", "tool_ended", {"tool": "pay", "key": "0e", "result": 5})
    assert source.memory("a").memos == [(b"\x0e", "pay", b"j5")]

    store.import_(io.StringIO(exported(source)))

    assert store.memory("a").memos == []
    assert store.writer.commit(lambda ledger: ledger.memos_of(ledger.run("a"))) == []


@pytest.mark.parametrize("key", [None, "", "not a digest"])
def test_a_call_without_a_key_leaves_no_memo(make: Make, key: str | None) -> None:
    source, store = make(), make()
    source.create_run("s", "", run_id="a")
    call(source, "a", "block", key)

    store.import_(io.StringIO(exported(source)))

    assert memos(store, "a") == []


def test_an_imported_run_is_foreign_even_where_it_came_from(store: RunStore, clock: ManualClock) -> None:
    text = exported(fill(store, clock))
    store.replace_records([])

    store.import_(io.StringIO(text))

    assert store.memory("executing").is_foreign


def test_an_imported_run_goes_on_with_the_next_sequence(make: Make, clock: ManualClock) -> None:
    store = make()
    store.import_(io.StringIO(exported(fill(make(), clock))))

    snapshot = store.record_event("executing", "run_completed", {"text": "done"})

    assert snapshot.status is RunStatus.COMPLETED
    assert [event.sequence for event in store.events("executing")] == [0, 1, 2, 3]
    assert store.snapshot("executing") == fold_of(store, "executing")


def test_timestamps_of_an_imported_run_do_not_go_back(make: Make, clock: ManualClock) -> None:
    store = make()
    store.import_(io.StringIO(exported(fill(make(), clock))))
    clock.shift_time(-3600)

    store.record_event("executing", "noted")

    times = [event.timestamp_ms for event in store.events("executing")]
    assert times == sorted(times)


def test_a_wish_to_cancel_comes_along(make: Make) -> None:
    source, store = make(), make()
    source.create_run("s", "", run_id="a")
    source.record_event("a", "run_cancel_requested", {"reason": "enough"})

    store.import_(io.StringIO(exported(source)))

    assert store.writer.commit(lambda ledger: ledger.run("a").cancel) == "enough"


def test_runs_made_before_and_after_an_import_have_their_own_place(make: Make, clock: ManualClock) -> None:
    text, store = exported(fill(make(), clock)), make()
    store.create_run("s", "", run_id="before")

    store.import_(io.StringIO(text))
    store.create_run("s", "", run_id="after")
    store.record_event("after", "noted")

    assert len(list(store.records())) == 6
    assert [event.type for event in store.events("after")] == ["noted"]


def test_an_import_shares_its_write_with_others(store: RunStore) -> None:
    header = RunHeader(id="other", session_id="s", prompt="", created_at_ms=1)
    with staged(store, "a", "b") as staging:

        def write(ledger: Ledger) -> int:
            ledger.say(ledger.add(header), "noted")
            return staging.add(ledger)

        assert store.writer.commit(write) == 2

    assert [record.snapshot.id for record in store.records()] == ["other", "a", "b"]
    assert [event.type for event in store.events("other")] == ["noted"]


def test_a_write_that_was_taken_back_is_not_remembered_by_the_next_attempt(make: Make) -> None:
    failing = ["written"]

    def crash(point: str) -> None:
        if point in failing:
            raise StoreError("no")

    store = make(crash=crash)
    with staged(store, "a") as staging:

        def write(ledger: Ledger) -> int:
            ledger.add(RunHeader(id="a", session_id="s", prompt="", created_at_ms=100))
            return staging.add(ledger)

        with pytest.raises(StoreError):
            store.writer.commit(write)
        failing.clear()

        assert store.writer.commit(staging.add) == 1


def staged(store: RunStore, *run_ids: str) -> Staging:
    """Runs without events, about to be added."""
    staging = Staging(store.file)
    for run_id in run_ids:
        header = RunHeader(id=run_id, session_id="s", prompt="", created_at_ms=100)
        staging.end(staging.begin(header, origin="x"))
    return staging


def test_another_user_of_the_file_writes_to_what_was_imported(tmp_path: Path, clock: ManualClock) -> None:
    with (
        MemoryRunStore(clock=clock) as source,
        SqliteRunStore(tmp_path / "runs.db", clock=clock) as one,
        SqliteRunStore(tmp_path / "runs.db", clock=clock) as other,
    ):
        other.create_run("s", "", run_id="before")

        one.import_(io.StringIO(exported(fill(source, clock))))
        other.record_event("executing", "noted")
        other.create_run("s", "", run_id="after")

        assert [event.sequence for event in one.events("executing")] == [0, 1, 2, 3]
        assert one.snapshot("after").event_count == 0


def fold_of(store: RunStore, run_id: str) -> Any:
    header = store.memory(run_id).header
    return fold(header, store.events(run_id))


# --- import: what is refused ---


def test_nothing_is_imported_if_the_write_fails(make: Make, clock: ManualClock) -> None:
    failing: list[str] = []

    def crash(point: str) -> None:
        if point in failing:
            raise StoreError("the disk is on fire")

    text, store = exported(fill(make(), clock)), make(crash=crash)
    store.create_run("s", "", run_id="mine")
    before = exported(store)
    failing.append("written")

    with pytest.raises(StoreError, match="fire"):
        store.import_(io.StringIO(text))

    failing.clear()
    assert exported(store) == before
    assert store.import_(io.StringIO(text)) == 4


def small_export() -> str:
    """A few lines that have a bit of everything."""
    with MemoryRunStore(clock=ManualClock()) as store:
        store.create_run("s", "ü", run_id="a")
        call(store, "a", "pay", key="0a")
        store.record_event("a", "run_completed", {"text": "done"})
        store.record_event("a", "noted", {"n": [1.5]})
        shorten(store, 3)
        store.create_run("s", "", run_id="b")
        return exported(store)


SMALL = small_export()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_anywhere_is_refused_or_whole(kind: str, tmp_path: Path) -> None:
    store = MemoryRunStore() if kind == "memory" else SqliteRunStore(tmp_path / "runs.db")
    store.create_run("s", "", run_id="mine")
    before = exported(store)
    with store:
        for length in range(len(SMALL) - 1):
            with pytest.raises(StoreError, match="line"):
                store.import_(io.StringIO(SMALL[:length]))
        assert exported(store) == before

        assert store.import_(io.StringIO(SMALL[:-1])) == 2  # only the last newline is missing


@given(st.data())
def test_a_damaged_file_is_refused_or_means_the_same(data: st.DataObject) -> None:
    text = SMALL
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(at, min(len(text), at + 3)))
        put = data.draw(st.text(max_size=3) | st.sampled_from(["\n", " ", '"', "{", "}", "0", "9", ","]))
        text = text[:at] + put + text[end:]
    with MemoryRunStore() as store:
        try:
            store.import_(io.StringIO(text, newline="\n"))
        except StoreError:
            assert store.list_runs() == []
        else:
            assert exported(store) == SMALL


@settings(max_examples=300)
@given(st.data())
def test_a_file_that_was_changed_and_signed_anew_is_refused_or_kept_as_it_is(data: st.DataObject) -> None:
    lines = lines_of(SMALL)
    number = data.draw(st.integers(0, len(lines) - 1))
    line = lines[number]
    at = data.draw(st.integers(0, len(line)))
    end = data.draw(st.integers(at, min(len(line), at + 2)))
    put = data.draw(st.text(max_size=2) | st.sampled_from(["-", "1", "null", "true", '"', "[]", "{}"]))
    lines[number] = (line[:at] + put + line[end:]).replace("\n", "")
    with MemoryRunStore() as store:
        try:
            store.import_(io.StringIO(signed(*lines), newline="\n"))
        except StoreError:
            assert store.list_runs() == []
            return
        once = exported(store)
        assert all(store.snapshot(each.snapshot.id).event_count >= len(each.events) for each in store.records())
        with MemoryRunStore() as other:
            other.import_(io.StringIO(once))
            assert exported(other) == once


RUN = '{"run":{"id":"a","session_id":"s","prompt":"","created_at_ms":100,"store":"x"}}'
TITLE = '{"holdfast":"runs","schema":1}'


def event(sequence: int = 0, at: int = 100, type: str = "noted", payload: str = "{}", more: str = "") -> str:
    return (
        f'{{"event":{{"sequence":{sequence},"timestamp_ms":{at},"type":{json.dumps(type)},"payload":{payload}{more}}}}}'
    )


def based(first: int = 2, **changes: object) -> str:
    """A run that lost its first events."""
    base = {
        "id": "a", "session_id": "s", "prompt": "", "created_at_ms": 100, "updated_at_ms": 100, "event_count": 2,
    } | changes  # fmt: skip
    text = json.dumps(base, separators=(",", ":"))
    return RUN[:-2] + f',"first":{first},"base":{text}}}}}'


ENDED = event(0, type="run_completed")
BASED_ON_NOTHING = based().replace('"first":2,', "").replace(',"event_count":2', "")

FLAWS: dict[str, tuple[list[str], int, str]] = {
    "no title": ([RUN], 1, "not an export"),
    "another title": (['{"holdfast":"tools","schema":1}'], 1, "not an export"),
    "a newer schema": (['{"holdfast":"runs","schema":2,"more":1}'], 1, "newer Holdfast"),
    "a schema of no number": (['{"holdfast":"runs","schema":"1"}'], 1, "int"),
    "an older schema": (['{"holdfast":"runs","schema":0}'], 1, "unknown"),
    "an unknown fact in the title": (['{"holdfast":"runs","schema":1,"x":1}'], 1, "unknown field"),
    "no json": ([TITLE, RUN, "what?"], 3, "malformed"),
    "a list": ([TITLE, "[]"], 2, "object"),
    "an empty line": ([TITLE, "", RUN], 2, "truncated"),
    "an empty object": ([TITLE, "{}"], 2, "not as an export"),
    "two things in a line": ([TITLE, RUN, event()[:-1] + "," + RUN[1:]], 3, "not as an export"),
    "an unknown thing": ([TITLE, '{"memo":{}}'], 2, "unknown field"),
    "an unknown fact of a run": ([TITLE, RUN[:-2] + ',"x":1}}'], 2, "unknown field"),
    "a fact of a run that is missing": ([TITLE, RUN.replace('"prompt":"",', "")], 2, "prompt"),
    "a run in other words": ([TITLE, RUN.replace(":", ": ")], 2, "not as an export"),
    "an id of no text": ([TITLE, RUN.replace('"a"', "1")], 2, "str"),
    "an empty id": ([TITLE, RUN.replace('"a"', '""')], 2, "id must be 1 to 200"),
    "a long id": ([TITLE, RUN.replace('"a"', f'"{"a" * 201}"')], 2, "id must be 1 to 200"),
    "an id with control characters": ([TITLE, RUN.replace('"a"', '"a\\u007f"')], 2, "not as an export|id must be"),
    "a store without a name": ([TITLE, RUN.replace('"x"', '""')], 2, "store must be"),
    "a time that is none": ([TITLE, RUN.replace("100", str(2**70))], 2, "is not a time"),
    "a run twice": ([TITLE, RUN, event(), RUN], 4, "second time"),
    "an event before any run": ([TITLE, event()], 2, "before the first run"),
    "a sequence that does not start at 0": ([TITLE, RUN, event(1)], 3, "where 0 should follow"),
    "a gap": ([TITLE, RUN, event(0), event(2)], 4, "where 1 should follow"),
    "a repeat": ([TITLE, RUN, event(0), event(0)], 4, "where 1 should follow"),
    "a sequence of no number": ([TITLE, RUN, event().replace(":0,", ":false,")], 3, "int"),
    "a time before the run": ([TITLE, RUN, event(0, at=99)], 3, "must not go back"),
    "a time that goes back": ([TITLE, RUN, event(0, at=105), event(1, at=104)], 4, "must not go back"),
    "a time beyond all": ([TITLE, RUN, event(0, at=2**63)], 3, "timestamp_ms"),
    "a type without a name": ([TITLE, RUN, event(type="")], 3, "type must be"),
    "a type with control characters": ([TITLE, RUN, event(type="a\x1bb")], 3, "type must be"),
    "a payload of no object": ([TITLE, RUN, event(payload="[]")], 3, "object"),
    "a payload of no json": ([TITLE, RUN, event(payload='{"a":01}')], 3, "malformed"),
    "a payload with half a character": ([TITLE, RUN, event(payload='{"a":"\\ud800"}')], 3, ""),
    "a payload that is nested too deep": ([TITLE, RUN, event(payload='{"a":' * 400 + "1" + "}" * 400)], 3, "deep"),
    "a payload that is nested without end": ([TITLE, RUN, event(payload='{"a":' + "[" * 10**6)], 3, "deep"),
    "a number beyond all": ([TITLE, RUN, event(payload='{"a":1e999}')], 3, "range"),
    "an event without payload": ([TITLE, RUN, event().replace(',"payload":{}', "")], 3, "payload"),
    "an unknown fact of an event": ([TITLE, RUN, event(more=',"x":1')], 3, "unknown field"),
    "late before the end": ([TITLE, RUN, event(more=',"late":true')], 3, "late is true"),
    "not late after the end": ([TITLE, RUN, ENDED, event(1)], 4, "late is false"),
    "events missing": ([TITLE, RUN[:-2] + ',"first":2}}', event(2)], 2, "missing"),
    "a base of nothing": ([TITLE, BASED_ON_NOTHING], 2, "0 are missing"),
    "a base of another count": ([TITLE, based(event_count=3), event(2)], 2, "after 3 events, but 2"),
    "a base of another run": ([TITLE, based(id="b"), event(2)], 2, "another run"),
    "a base with an owner": ([TITLE, based(owner="me"), event(2)], 2, "another run"),
    "a base with a prompt": ([TITLE, based(prompt="x"), event(2)], 2, "prompt"),
    "a base with a bad count": ([TITLE, based(tool_calls=-1), event(2)], 2, "count"),
    "a base from before the run": ([TITLE, based(updated_at_ms=99), event(2)], 2, "updated"),
    "a base after its events": ([TITLE, based(updated_at_ms=101), event(2)], 3, "must not go back"),
    "a base with unknown facts": ([TITLE, based(x=1), event(2)], 2, "not as an export"),
    "an event before the base": ([TITLE, based(), event(1)], 3, "where 2 should follow"),
}  # fmt: skip


def test_a_file_that_cannot_be_read_is_named_with_its_line(make: Make) -> None:
    class Torn(io.StringIO):
        def readline(self, size: int | None = -1, /) -> str:
            if self.tell():
                raise OSError(5, "Input/output error")
            return super().readline(size)

    with pytest.raises(StoreError, match=r"^line 2: cannot be read: Input/output error; nothing was imported"):
        make().import_(Torn(signed(TITLE, event(0))))


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_is_named_with_its_line_and_nothing_is_imported(make: Make, clock: ManualClock, flaw: str) -> None:
    lines, number, message = FLAWS[flaw]
    store = fill(make(), clock)
    before = exported(store)

    with pytest.raises(StoreError, match=rf"^line {number}: .*({message}).*nothing was imported"):
        store.import_(io.StringIO(signed(*lines)))

    assert exported(store) == before


def test_lines_without_a_flaw_are_imported(store: RunStore) -> None:
    late = event(4, type="tool_ended", more=',"late":true')
    lines = [TITLE, based(), event(2), event(3, 105, "run_completed"), late.replace("100", "105")]

    assert store.import_(io.StringIO(signed(*lines))) == 1

    snapshot = store.snapshot("a")
    assert (snapshot.event_count, snapshot.status, snapshot.finished_at_ms) == (5, RunStatus.COMPLETED, 105)
    assert store.event_page("a").first_available == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text + "\n", "line 4: something follows"),
        (lambda text: text + TITLE, "line 4: something follows"),
        (lambda text: text.replace('"runs":1', '"runs":2'), "line 3: 2 runs and 0 events said, 1 and 0 found"),
        (lambda text: text.replace('"events":0', '"events":1'), "line 3: 1 runs and 1 events said, 1 and 0 found"),
        (lambda text: text.replace('"prompt":""', '"prompt":"x"'), "line 3: the checksum does not match"),
        (lambda text: text.replace('"end":{', '"end": {'), "line 3: is not as an export"),
        (lambda text: text.replace("\n", "\r\n"), "line 1: contains a carriage return"),
        (lambda text: "\ufeff" + text, "line 1: the file is not an export"),
        (lambda text: "".join(text.splitlines(keepends=True)[:2]), "line 3: .*cut short"),
        (lambda text: "", "line 1: the file is not an export"),
        (lambda text: text.replace('"s"', '"\ud800"'), "line 2: is not UTF-8"),
    ],
)
def test_an_export_must_be_whole(store: RunStore, change: Callable[[str], str], message: str) -> None:
    text = signed(TITLE, RUN)

    with pytest.raises(StoreError, match=message):
        store.import_(io.StringIO(change(text), newline="\n"))

    assert store.list_runs() == []


def test_a_file_that_is_not_utf_8_is_refused(store: RunStore, tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_bytes(signed(TITLE, RUN).encode().replace(b'"s"', b'"\xff"'))

    with open(tmp_path / "runs.jsonl", encoding="utf-8") as fp, pytest.raises(StoreError, match="not UTF-8"):
        store.import_(fp)


def test_a_file_of_bytes_will_do(make: Make, clock: ManualClock) -> None:
    source, store = fill(make(), clock), make()
    file, text = io.BytesIO(), io.StringIO()

    source.export(file)
    source.export(text)
    file.seek(0)

    assert file.getvalue() == text.getvalue().encode()
    assert store.import_(file) == len(source.records())


def test_a_file_of_bytes_that_are_not_utf_8_is_refused(store: RunStore) -> None:
    with pytest.raises(StoreError, match="not UTF-8"):
        store.import_(io.BytesIO(signed(TITLE, RUN).encode().replace(b'"s"', b'"\xff"')))


def test_what_gives_neither_text_nor_bytes_is_refused(store: RunStore) -> None:
    with pytest.raises(StoreError, match="neither text nor bytes"):
        store.import_(SimpleNamespace(readline=lambda limit: [1]))  # type: ignore[arg-type]


@pytest.mark.parametrize("before", ["", f"{TITLE}\n{RUN}\n"])
def test_an_endless_line_is_refused_before_it_is_read(store: RunStore, before: str) -> None:
    fp = io.StringIO(before + "x" * (LONGEST_LINE + 100))

    with pytest.raises(StoreError, match=f"is longer than {LONGEST_LINE} characters"):
        store.import_(fp)

    assert len(fp.read()) == 99


# --- random runs ---

NAMES = st.sampled_from(["search", "pay", "mail"])
PAYLOADS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "run_started": st.just({}),
    "planning_started": st.just({}),
    "planning_ended": st.just({}),
    "verification_started": st.just({}),
    "verification_ended": st.just({"reports": [{"name": "r", "checks": [{"name": "c", "status": "failed"}]}]}),
    "tool_started": st.fixed_dictionaries({"call_id": NAMES, "tool": NAMES}, optional={"key": st.just("0a0b")}),
    "tool_ended": st.fixed_dictionaries({"call_id": NAMES, "status": st.sampled_from(["success", "failed"])}),
    "tool_denied": st.just({"tool": "pay"}),
    "spent": st.fixed_dictionaries({"unit": st.just("usd"), "amount": st.floats(0, 10)}),
    "run_completed": st.fixed_dictionaries({"text": st.text(max_size=5)}),
    "run_failed": st.just({"error": "no"}),
    "anything": st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=5), max_size=3),
}
EVENTS = st.sampled_from(sorted(PAYLOADS)).flatmap(lambda type: st.tuples(st.just(type), PAYLOADS[type]))
RUNS = st.lists(st.lists(EVENTS, max_size=8), max_size=4)


@settings(max_examples=50)
@given(RUNS, st.integers(1, 5) | st.none())
def test_random_runs_survive_the_way_out_and_in(runs: list[list[tuple[str, dict[str, Any]]]], kept: int | None) -> None:
    clock = ManualClock()
    with MemoryRunStore(clock=clock) as source, MemoryRunStore(clock=clock) as store, MemoryRunStore() as third:
        for number, events in enumerate(runs):
            source.create_run("s", "p", run_id=f"{number}")
            for type, payload in events:
                clock.advance(0.5)
                source.record_event(f"{number}", type, payload)
        if kept is not None:
            shorten(source, kept)
        text = exported(source)

        store.import_(io.StringIO(text))
        third.replace_records(store.records())

        assert exported(store) == text
        assert [plain(record) for record in store.records()] == [plain(record) for record in source.records()]
        assert list(third.records()) == list(store.records())
        for record in store.records():
            base = record.base if isinstance(record, ShortenedRecord) else begin(header_of(record))
            assert fold(base, record.events) == plain(record).snapshot


def plain(record: RunRecord) -> RunRecord:
    """*record* without what comes from leases and time."""
    snapshot = msgspec.structs.replace(record.snapshot, owner=None, interrupted=False)
    return msgspec.structs.replace(record, snapshot=snapshot)


def header_of(record: RunRecord) -> RunHeader:
    facts = record.snapshot
    return RunHeader(id=facts.id, session_id=facts.session_id, prompt=facts.prompt, created_at_ms=facts.created_at_ms)


# --- replacing everything ---


@pytest.mark.parametrize("other", KINDS)
def test_records_take_the_place_of_everything(make: Make, clock: ManualClock, other: str) -> None:
    source, store = fill(make(), clock), make(other)
    store.create_run("s", "", run_id="mine")
    store.record_event("mine", "noted")
    store.create_run("s", "other", run_id="failed")

    store.replace_records(source.records())

    assert list(map(plain, store.records())) == list(map(plain, source.records()))


def test_a_store_can_be_emptied(store: RunStore, clock: ManualClock) -> None:
    fill(store, clock)

    store.replace_records([])

    assert store.list_runs() == []
    assert store.create_run("s", "", run_id="new").event_count == 0


def test_what_a_replaced_run_remembered_is_gone(store: RunStore) -> None:
    store.create_run("s", "", run_id="old")
    store.writer.commit(lambda ledger: ledger.remember(ledger.run("old"), b"key", "pay", b"exact"))

    store.replace_records([])
    store.create_run("s", "", run_id="new")

    assert memos(store, "new") == []


def test_a_run_that_stays_as_it_is_keeps_what_it_remembers(store: RunStore, clock: ManualClock) -> None:
    fill(store, clock)
    store.writer.commit(lambda ledger: ledger.remember(ledger.run("executing"), b"key", "pay", b"exact"))

    store.replace_records(record for record in store.records() if record.snapshot.id != "failed")

    assert [record.snapshot.id for record in store.records()] == ["completed", "executing", "created"]
    assert memos(store, "executing") == [(b"key", "pay", b"exact")]
    assert not store.memory("executing").is_foreign


def test_a_run_that_stays_as_it_is_keeps_what_no_record_shows(store: RunStore) -> None:
    entry = {"target": "module:function"}
    header = RunHeader(id="a", session_id="s", prompt="", created_at_ms=100, entry=entry)
    store.writer.commit(lambda ledger: ledger.add(header))

    store.replace_records(store.records())

    assert store.memory("a").header.entry == entry


def test_a_run_that_is_put_back_with_fewer_events_is_in_doubt(store: RunStore, clock: ManualClock) -> None:
    fill(store, clock)
    (record,) = [record for record in store.records() if record.snapshot.id == "executing"]
    fewer = record.events[:2]
    changed = RunRecord(fold(header_of(record), fewer), fewer)

    store.replace_records([changed])

    assert store.events("executing") == list(fewer)
    assert memos(store, "executing") == [(b"\x0c" * 16, "pay", b"")]


def test_records_that_lost_their_first_events_are_put_back_and_go_on(make: Make, clock: ManualClock) -> None:
    source, store = fill(make(), clock), make()
    shorten(source, 2)

    store.replace_records(source.records())

    assert list(map(plain, store.records())) == list(map(plain, source.records()))
    assert store.record_event("completed", "noted").event_count == 7
    assert store.event_page("completed").first_available == 4


def claim(store: RunStore, run_id: str) -> None:
    owner = store.ownership.row()
    store.writer.commit(lambda ledger: ledger.claim(ledger.run(run_id), owner))


def test_nothing_is_replaced_while_a_run_is_being_run(store: RunStore, clock: ManualClock) -> None:
    fill(store, clock)
    claim(store, "executing")
    before = exported(store)

    with pytest.raises(StoreError, match="process"):
        store.replace_records([])

    assert exported(store) == before


def test_an_owner_that_has_no_run_in_hand_is_no_obstacle(store: RunStore) -> None:
    store.create_run("s", "", run_id="a")
    claim(store, "a")
    store.record_event("a", "run_completed")

    store.replace_records([])

    assert store.records() == []


def test_a_dead_owner_is_no_obstacle(tmp_path: Path, clock: ManualClock) -> None:
    with (
        SqliteRunStore(tmp_path / "runs.db", clock=clock) as dead,
        SqliteRunStore(tmp_path / "runs.db", clock=clock) as store,
    ):
        dead.create_run("s", "", run_id="a")
        claim(dead, "a")
        clock.advance(dead.lease + 1)

        store.replace_records([])

        assert store.list_runs() == []


def record(*events: RunEventRecord, **changes: Any) -> RunRecord:
    header = RunHeader(id="a", session_id="s", prompt="", created_at_ms=100)
    return RunRecord(msgspec.structs.replace(fold(header, events), **changes), events)


NOTED = RunEventRecord(0, 100, "noted")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (record(NOTED, tool_calls=1), "not what its events give"),
        (record(id=""), "id must be"),
        (record(id=3), "id must be"),
        (record(session_id=None), "texts"),
        (record(session_id="\ud800"), "UTF-8"),
        (record(created_at_ms="now"), "not a time"),
        (record(RunEventRecord(1, 100, "noted")), "where 0 should follow"),
        (record(RunEventRecord(0, 99, "noted")), "must not go back"),
        (record(RunEventRecord(0, 100.5, "noted")), "must not go back"),  # type: ignore[arg-type]
        (record(RunEventRecord(0, 100, "")), "type must be"),
        (record(RunEventRecord(0, 100, "noted", {}, True)), "late"),
        (record(RunEventRecord(0, 100, "noted", {"a": object()})), "object"),
        (RunRecord(begin(RunHeader(id="a", session_id="s", prompt="", created_at_ms=1)), ("noted",)), "RunEventRecord"),  # type: ignore[arg-type]
        ("noted", "not a RunRecord"),
    ],
)
def test_a_record_that_cannot_be_is_named_and_nothing_is_replaced(
    store: RunStore, clock: ManualClock, bad: Any, message: str
) -> None:
    fill(store, clock)
    before = exported(store)
    good = store.records()[0]

    with pytest.raises(StoreError, match=f"^record 2: .*{message}.*nothing was replaced"):
        store.replace_records([good, bad])

    assert exported(store) == before


def test_a_run_twice_among_the_records_is_refused(store: RunStore) -> None:
    with pytest.raises(StoreError, match="record 2: run 'a' is there a second time"):
        store.replace_records([record(NOTED), record(NOTED)])


def test_records_that_fail_to_come_change_nothing(store: RunStore, clock: ManualClock) -> None:
    fill(store, clock)
    before = exported(store)

    def failing() -> Iterator[RunRecord]:
        yield record(NOTED)
        raise LookupError("no more")

    with pytest.raises(LookupError):
        store.replace_records(failing())

    assert exported(store) == before


def test_the_records_are_taken_one_at_a_time(store: RunStore) -> None:
    taken: list[int] = []

    def watched() -> Iterator[RunRecord]:
        for number in range(3):
            taken.append(number)
            yield record(id=f"{number}")

    store.replace_records(itertools.islice(watched(), 2))

    assert taken == [0, 1]
    assert len(store.list_runs()) == 2


def test_others_see_all_of_an_import_or_nothing(tmp_path: Path, clock: ManualClock) -> None:
    seen: list[int] = []
    others: list[sqlite3.Connection] = []

    def look(point: str) -> None:
        seen.extend(other.execute("SELECT count(*) FROM events").fetchone()[0] for other in others)

    with MemoryRunStore(clock=clock) as source:
        text = exported(fill(source, clock))
    with SqliteRunStore(tmp_path / "runs.db", clock=clock, crash=look) as store:
        store.create_run("s", "", run_id="mine")
        others.append(sqlite3.connect(tmp_path / "runs.db"))

        store.import_(io.StringIO(text))
        others.pop().close()

    assert seen == [0, 0, 12]


KILLED = """
import os, signal, sys
from holdfast.stores import SqliteRunStore

def crash(point):
    if point == "written":
        os.kill(os.getpid(), signal.SIGKILL)

with open(sys.argv[2], encoding="utf-8") as fp:
    SqliteRunStore(sys.argv[1], crash=crash).import_(fp)
"""


def test_a_process_killed_in_the_middle_of_an_import_leaves_nothing(tmp_path: Path, clock: ManualClock) -> None:
    with MemoryRunStore(clock=clock) as source:
        text = exported(fill(source, clock))
    (tmp_path / "runs.jsonl").write_text(text, encoding="utf-8")
    with SqliteRunStore(tmp_path / "runs.db", clock=clock) as store:
        store.create_run("s", "", run_id="mine")
        before = exported(store)

        words = [sys.executable, "-c", KILLED, tmp_path / "runs.db", tmp_path / "runs.jsonl"]
        child = subprocess.run(words, check=False)

        assert child.returncode == -signal.SIGKILL
        assert exported(store) == before
        assert store.import_(io.StringIO(text)) == 4
