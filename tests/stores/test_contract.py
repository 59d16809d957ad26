"""What every run store does, whatever it stores in. One suite for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.runs.test_fold import HOSTILE, Told
from tests.stores.events import EVENTS
from tests.stores.kinds import EMBEDDED, KINDS, SHARED, Open, claim, opener

from holdfast.errors import ConfigError, RunConflict, RunNotFound
from holdfast.history import CancelResult, RunEventRecord, RunHeader, RunSnapshot, RunStatus, fold
from holdfast.stores import MemoryRunStore, RunStore, SqliteRunStore, open_store
from holdfast.stores.ledger import Ledger
from holdfast.stores.searching import Wanted, search
from holdfast.stores.sqlite import SqliteFile
from holdfast.stores.store import SILENT
from holdfast.testing import ManualClock
from holdfast.values.redaction import Payloads


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_one(kind: str, tmp_path: Path) -> Open:
    return opener(kind, tmp_path)


@pytest.fixture
def store(open_one: Open, clock: ManualClock) -> Iterator[RunStore]:
    with open_one(clock=clock) as store:
        yield store


@pytest.fixture
def run(store: RunStore) -> str:
    return store.create_run("s", "p", run_id="r").id


def sequences(events: Any) -> list[int]:
    return [event.sequence for event in events]


def refold(store: RunStore, run_id: str) -> RunSnapshot:
    """The state of a run from nothing but its header and its events."""
    seen = store.snapshot(run_id)
    header = RunHeader(
        id=seen.id,
        session_id=seen.session_id,
        prompt=seen.prompt,
        created_at_ms=seen.created_at_ms,
        forked_from=seen.forked_from,
    )
    return fold(header, store.events(run_id))


# --- making runs ---


def test_a_new_run_has_no_events(store: RunStore, clock: ManualClock) -> None:
    made = store.create_run("s", "p", run_id="r")

    at = int(clock.time() * 1000)
    assert made == RunSnapshot(id="r", session_id="s", prompt="p", created_at_ms=at, updated_at_ms=at)
    assert store.snapshot("r") == made
    assert store.events("r") == []


def test_a_run_gets_an_id_of_its_own(store: RunStore) -> None:
    assert store.create_run("s", "p").id != store.create_run("s", "p").id


def test_making_a_run_again_gives_the_one_that_is_there(store: RunStore, run: str) -> None:
    store.record_event(run, "run_started")

    again = store.create_run("s", "p", run_id=run)

    assert again.status is RunStatus.EXECUTING
    assert again == store.snapshot(run)


@pytest.mark.parametrize(("session", "prompt"), [("t", "p"), ("s", "q")])
def test_making_a_run_again_with_other_words_is_a_conflict(
    store: RunStore, run: str, session: str, prompt: str
) -> None:
    with pytest.raises(RunConflict, match="'r' exists with another session or prompt"):
        store.create_run(session, prompt, run_id=run)

    assert len(store.list_runs()) == 1


@pytest.mark.parametrize("run_id", ["x", "a" * 200, "with space", "ünï/codé ✓", "'; DROP TABLE runs; --", "%_*?"])
def test_an_id_is_any_printable_text(store: RunStore, run_id: str) -> None:
    store.create_run("s", "p", run_id=run_id)
    store.record_event(run_id, "run_started")

    assert store.snapshot(run_id).id == run_id
    assert store.list_runs(before=None)[0].event_count == 1
    assert store.cancel(run_id) is CancelResult.REQUESTED


@pytest.mark.parametrize("run_id", ["", "a" * 201, "a\nb", "a\0b", "\x1b[2J", "\ud800", "a\u200bb", 7, b"r", ["r"]])
def test_an_id_that_cannot_be_one_is_a_config_error(store: RunStore, run_id: Any) -> None:
    with pytest.raises(ConfigError, match=r"run_id = .*: must be 1 to 200 printable characters"):
        store.create_run("s", "p", run_id=run_id)


@pytest.mark.parametrize("text", ["", "two\nlines\0and a null", "🙂" * 3, "a" * 100_000])
def test_session_and_prompt_are_any_text(store: RunStore, text: str) -> None:
    made = store.create_run(text, text)

    seen = store.snapshot(made.id)
    assert (seen.session_id, seen.prompt) == (text, text)
    assert [each.id for each in store.list_runs(session_id=text)] == [made.id]


@pytest.mark.parametrize("text", ["\ud800", None, 3])
def test_session_and_prompt_must_be_texts(store: RunStore, text: Any) -> None:
    with pytest.raises(ConfigError, match="session = "):
        store.create_run(text, "p")
    with pytest.raises(ConfigError, match="prompt = "):
        store.create_run("s", text)


# --- recording ---


def test_events_are_numbered_from_nought_without_a_gap(store: RunStore, run: str) -> None:
    for at in range(20):
        assert store.record_event(run, "note", {"at": at}).event_count == at + 1

    events = store.events(run)
    assert sequences(events) == list(range(20))
    assert [event.payload for event in events] == [{"at": at} for at in range(20)]


def test_the_snapshot_that_is_returned_is_the_one_that_is_stored(store: RunStore, run: str) -> None:
    for type, payload in EVENTS:
        returned = store.record_event(run, type, payload)

        assert returned == store.snapshot(run) == refold(store, run)


def test_changing_a_snapshot_changes_nothing_else(store: RunStore, run: str) -> None:
    returned = store.record_event(run, "spent", {"unit": "tokens", "amount": 3})

    returned.spend["tokens"] = 99
    returned.active_calls["c"] = None  # type: ignore[assignment]
    returned.event_count = 99

    assert store.record_event(run, "spent", {"unit": "tokens", "amount": 4}).spend == {"tokens": 7.0}
    assert store.snapshot(run).event_count == 2


def test_an_event_of_an_unknown_type_is_kept_as_it_is(store: RunStore, run: str) -> None:
    payload = {"list": [1, 2.5, None, True, {"deep": "ü"}], "text": "a\nb\0c"}

    store.record_event(run, "my own.Type ✓", payload)

    (event,) = store.events(run)
    assert (event.type, event.payload, event.late) == ("my own.Type ✓", payload, False)


def test_an_event_needs_no_payload(store: RunStore, run: str) -> None:
    store.record_event(run, "note")

    assert store.events(run)[0].payload == {}


@pytest.mark.parametrize("type", ["", "a" * 201, "a\nb", "\ud800", None, 3, b"note"])
def test_an_event_type_is_1_to_200_printable_characters(store: RunStore, run: str, type: Any) -> None:
    with pytest.raises(ConfigError, match=r"type = .*: must be 1 to 200 printable characters"):
        store.record_event(run, type)

    assert store.events(run) == []


@pytest.mark.parametrize(
    "payload", [{"x": object()}, {"x": "\ud800"}, {"\ud800": 1}, {"x": [lambda: 1]}, [], 0, "text", [("a", 1)]]
)
def test_a_payload_that_cannot_be_encoded_is_a_config_error(store: RunStore, run: str, payload: Any) -> None:
    with pytest.raises(ConfigError, match="payload"):
        store.record_event(run, "note", payload)

    assert store.snapshot(run).event_count == 0


def test_secrets_are_masked_before_they_are_stored(store: RunStore, run: str) -> None:
    store.record_event(run, "note", {"api_key": "hunter2", "q": "x"})

    assert store.events(run)[0].payload == {"api_key": "[redacted]", "q": "x"}


@pytest.mark.parametrize("kind", EMBEDDED)  # it is cut before it gets there
def test_a_payload_of_100_mb_is_cut(store: RunStore, run: str) -> None:
    store.record_event(run, "run_completed", {"text": "x" * 100_000_000, "note": "kept"})

    (event,) = store.events(run)
    assert event.payload["note"] == "kept"
    assert event.payload["text"]["bytes"] == 100_000_002
    assert (store.snapshot(run).result_text or "").startswith("xxx")


def test_a_prompt_of_10_mb_is_kept_whole(store: RunStore) -> None:
    run = store.create_run("s", "x" * 10_000_000, run_id="r").id

    store.record_event(run, "run_started")

    assert store.snapshot(run).prompt == "x" * 10_000_000


def test_what_was_redacted_and_cut_is_what_folds(open_one: Open) -> None:
    with open_one(payloads=Payloads(lambda value: {"unit": "tokens", "amount": 5})) as store:
        run = store.create_run("s", "p").id

        store.record_event(run, "spent", {"unit": "tokens", "amount": 3})

        assert store.snapshot(run).spend == {"tokens": 5.0}
        assert store.snapshot(run) == refold(store, run)


# --- the end ---


def test_marking_a_run_failed_ends_it(store: RunStore, run: str) -> None:
    ended = store.mark_failed(run, "broken")

    assert (ended.status, ended.error) == (RunStatus.FAILED, "broken")
    assert store.events(run)[-1].type == "run_failed"


def test_a_run_can_be_marked_failed_with_an_exception(store: RunStore, run: str) -> None:
    assert store.mark_failed(run, ValueError("broken")).error == "ValueError: broken"


@pytest.mark.parametrize("reason", ["enough", None])
def test_marking_a_run_cancelled_ends_it(store: RunStore, run: str, reason: str | None) -> None:
    ended = store.mark_cancelled(run, reason)

    assert (ended.status, ended.error) == (RunStatus.CANCELLED, reason)
    assert store.events(run)[-1].type == "run_cancelled"


@pytest.mark.parametrize("first", ["run_completed", "run_failed", "run_cancelled"])
@pytest.mark.parametrize("second", ["run_completed", "run_failed", "run_cancelled", "run_started"])
def test_the_first_end_is_final(store: RunStore, run: str, first: str, second: str) -> None:
    ended = store.record_event(run, first)

    again = store.record_event(run, second)

    assert (again.status, again.finished_at_ms, again.event_count) == (ended.status, ended.finished_at_ms, 2)
    assert [event.late for event in store.events(run)] == [False, True]
    assert store.snapshot(run) == refold(store, run)


# --- time ---


def test_timestamps_never_go_back_within_a_run(store: RunStore, clock: ManualClock) -> None:
    made = store.create_run("s", "p", run_id="r")
    clock.shift_time(-3600)
    store.record_event("r", "run_started")
    clock.shift_time(7200)
    store.record_event("r", "note")
    clock.shift_time(-7200)
    store.record_event("r", "run_completed")
    store.record_event("r", "late")

    times = [event.timestamp_ms for event in store.events("r")]
    assert times[0] == made.created_at_ms
    assert times[1] == made.created_at_ms + 3_600_000
    assert times == sorted(times)
    assert store.snapshot("r") == refold(store, "r")


@pytest.mark.parametrize("kind", sorted(SHARED))
def test_timestamps_do_not_go_back_when_the_store_is_opened_anew(open_one: Open, clock: ManualClock) -> None:
    with open_one(clock=clock) as store:
        store.create_run("s", "p", run_id="r")
        store.record_event("r", "run_completed")
        clock.advance(10)
        store.record_event("r", "late")
    clock.shift_time(-3600)

    with open_one(clock=clock) as store:
        store.record_event("r", "later")

    times = [event.timestamp_ms for event in store.events("r")]
    store.close()
    assert times[2] == times[1] == times[0] + 10_000


# --- runs that are not there ---


@pytest.mark.parametrize("run_id", ["nobody", "", "a" * 201, "a\0b", "\ud800", "%"])
def test_an_unknown_run_is_not_found(store: RunStore, run: str, run_id: str) -> None:
    for ask in (
        lambda: store.snapshot(run_id),
        lambda: store.events(run_id),
        lambda: store.event_page(run_id),
        lambda: store.follow(run_id),
        lambda: store.afollow(run_id),
        lambda: store.record_event(run_id, "note"),
        lambda: store.mark_failed(run_id, "broken"),
        lambda: store.mark_cancelled(run_id),
        lambda: store.list_runs(before=run_id),
        lambda: store.memory(run_id),
        lambda: store.handle(run_id).status(),
    ):
        with pytest.raises(RunNotFound, match="there is no run"):
            ask()
    assert store.cancel(run_id) is CancelResult.NOT_FOUND
    assert store.handle(run_id).cancel() is CancelResult.NOT_FOUND


@pytest.mark.parametrize("run_id", [None, 5, b"r", ["r"], object()])
def test_what_is_no_text_names_no_run(store: RunStore, run: str, run_id: Any) -> None:
    for ask in (
        lambda: store.snapshot(run_id),
        lambda: store.events(run_id),
        lambda: store.follow(run_id),
        lambda: store.afollow(run_id),
        lambda: store.record_event(run_id, "note"),
        lambda: store.cancel(run_id),
    ):
        with pytest.raises(ConfigError, match=r"run_id = .*: must be a text"):
            ask()


def test_a_number_does_not_name_a_run_of_the_same_digits(store: RunStore) -> None:
    store.create_run("s", "p", run_id="5")

    with pytest.raises(ConfigError):
        store.snapshot(5)  # type: ignore[arg-type]


# --- pages ---


def test_a_page_holds_what_follows(store: RunStore, run: str) -> None:
    for _ in range(10):
        store.record_event(run, "note")

    page = store.event_page(run, after=3, limit=4)

    assert sequences(page.events) == [4, 5, 6, 7]
    assert (page.first_available, page.next_after, page.has_more, page.gap) == (0, 7, True, False)


def test_the_last_page_has_no_more(store: RunStore, run: str) -> None:
    for _ in range(10):
        store.record_event(run, "note")

    page = store.event_page(run, after=7, limit=2)

    assert sequences(page.events) == [8, 9]
    assert (page.next_after, page.has_more) == (9, False)


def test_a_page_past_the_end_is_empty_and_asks_on_from_there(store: RunStore, run: str) -> None:
    store.record_event(run, "note")

    page = store.event_page(run, after=5)

    assert (page.events, page.next_after, page.has_more, page.gap) == ((), 5, False, False)


def test_the_page_of_a_run_without_events_is_empty(store: RunStore, run: str) -> None:
    page = store.event_page(run)

    assert (page.events, page.first_available, page.next_after, page.has_more, page.gap) == ((), 0, -1, False, False)


def test_pages_make_up_all_events(store: RunStore, run: str) -> None:
    for _ in range(23):
        store.record_event(run, "note")

    after, seen = -1, []
    while True:
        page = store.event_page(run, after, 5)
        seen += page.events
        after = page.next_after
        if not page.has_more:
            break

    assert seen == store.events(run)
    assert sequences(seen) == list(range(23))


@pytest.mark.parametrize("bad", [{"after": -2}, {"after": 1.5}, {"after": 2**70}, {"limit": 0}, {"limit": True}])
def test_a_page_that_cannot_be_is_a_config_error(store: RunStore, run: str, bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(bad))} = "):
        store.event_page(run, **bad)


def test_a_page_says_what_retention_has_taken(store: RunStore, run: str) -> None:
    for _ in range(9):
        store.record_event(run, "note")
    store.record_event(run, "run_completed")
    store.prune(max_events=4)

    first, second = store.event_page(run, limit=2), store.event_page(run, after=6)

    assert sequences(first.events) == [6, 7]
    assert (first.first_available, first.gap) == (6, True)
    assert sequences(second.events) == [7, 8, 9]
    assert not second.gap
    assert store.event_page(run, after=5).gap is False


def test_sequences_go_on_after_retention(store: RunStore, run: str) -> None:
    for _ in range(9):
        store.record_event(run, "note")
    store.record_event(run, "run_completed")
    store.prune(max_events=4)

    after = store.record_event(run, "late")

    assert after.event_count == 11
    assert sequences(store.events(run)) == [6, 7, 8, 9, 10]


# --- following ---


def test_following_gives_the_past_and_ends_with_the_run(store: RunStore, run: str) -> None:
    store.record_event(run, "run_started")
    store.record_event(run, "run_completed")

    assert [event.type for event in store.follow(run)] == ["run_started", "run_completed"]
    assert sequences(store.follow(run, after=0)) == [1]
    assert sequences(store.follow(run, after=1)) == []


def test_following_goes_on_with_what_comes(store: RunStore, run: str) -> None:
    seen: list[int] = []
    first = threading.Event()

    def follow() -> None:
        for event in store.follow(run):
            seen.append(event.sequence)
            first.set()

    follower = threading.Thread(target=follow)
    store.record_event(run, "run_started")
    follower.start()
    first.wait()
    for _ in range(600):  # more than two pages
        store.writer.submit(lambda ledger: ledger.say(ledger.run(run), "note"))
    store.record_event(run, "run_completed")
    follower.join()

    assert seen == list(range(602))


async def test_a_task_follows_too(store: RunStore, run: str) -> None:
    async def follow() -> list[int]:
        return [event.sequence async for event in store.afollow(run)]

    followers = [asyncio.create_task(follow()) for _ in range(3)]
    for _ in range(5):
        await asyncio.to_thread(store.record_event, run, "note")
    await asyncio.to_thread(store.record_event, run, "run_completed")

    assert await asyncio.gather(*followers) == [list(range(6))] * 3


async def test_a_follower_that_is_cancelled_stops_at_once(store: RunStore, run: str) -> None:
    async def follow() -> None:
        async for _ in store.afollow(run):
            raise AssertionError("there is nothing to see")

    follower = asyncio.create_task(follow())
    await asyncio.sleep(0)
    follower.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(follower, 10)


async def test_following_a_long_past_lets_other_tasks_run(store: RunStore, run: str) -> None:
    for _ in range(2000):
        store.writer.submit(lambda ledger: ledger.say(ledger.run(run), "note"))
    store.record_event(run, "run_completed")
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    async for _ in store.afollow(run):
        pass
    task.cancel()

    assert turns >= 5


def test_following_in_vain_ends_when_the_store_is_closed(store: RunStore, run: str) -> None:
    begun = threading.Event()
    store.record_event(run, "note")

    def follow() -> None:
        for _ in store.follow(run):
            begun.set()

    follower = threading.Thread(target=follow)
    follower.start()
    begun.wait()
    store.close()
    follower.join(10)

    assert not follower.is_alive()


def test_a_question_that_cannot_be_followed_is_refused_at_once(store: RunStore, run: str) -> None:
    with pytest.raises(ConfigError, match="after = "):
        store.follow(run, after=-2)
    with pytest.raises(ConfigError, match="after = "):
        store.afollow(run, after=-2)


def test_a_follower_goes_on_with_what_retention_has_left(store: RunStore, run: str) -> None:
    for _ in range(300):
        store.writer.submit(lambda ledger: ledger.say(ledger.run(run), "note"))
    store.writer.flush()
    following = store.follow(run)
    seen = [next(following).sequence]
    store.record_event(run, "run_completed")
    store.prune(max_events=2)

    seen += sequences(following)

    assert seen == [*range(256), 299, 300]  # the first page had been read


def test_a_follower_of_a_run_that_is_deleted_is_told(store: RunStore, run: str) -> None:
    store.record_event(run, "note")
    following = store.follow(run)
    next(following)

    store.mark_failed(run, "broken")
    store.prune(max_runs=0)

    with pytest.raises(RunNotFound):
        list(following)


# --- lists ---


def ids(runs: list[RunSnapshot]) -> list[str]:
    return [run.id for run in runs]


def test_the_newest_runs_come_first(store: RunStore, clock: ManualClock) -> None:
    for name in "abc":
        store.create_run("s", "p", run_id=name)
        clock.advance(1)

    assert ids(store.list_runs()) == ["c", "b", "a"]
    assert ids(store.list_runs(limit=2)) == ["c", "b"]


def test_runs_of_one_moment_come_in_the_order_they_were_made(store: RunStore) -> None:
    for name in "cab":
        store.create_run("s", "p", run_id=name)

    assert ids(store.list_runs()) == ["b", "a", "c"]


def test_pages_of_runs_make_up_all_runs(store: RunStore, clock: ManualClock) -> None:
    for at in range(23):
        store.create_run("s", "p", run_id=str(at))
        clock.advance(at % 3)  # some at the same moment

    seen: list[str] = []
    while page := store.list_runs(limit=5, before=seen[-1] if seen else None):
        seen += ids(page)

    assert seen == [str(at) for at in reversed(range(23))]


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"status": "executing"},
        {"status": "alive"},
        {"session_id": "s"},
        {"status": "executing", "session_id": "s"},
        {"tool": "pay"},
    ],
)
def test_pages_make_up_all_runs_after_a_clock_went_back(
    store: RunStore, clock: ManualClock, wanted: dict[str, Any]
) -> None:
    for run_id, seconds in (("c", -10), ("a", 5), ("b", 0), ("d", 0)):
        store.create_run("s", "p", run_id=run_id)
        store.record_event(run_id, "tool_started", {"tool": "pay"})
        clock.shift_time(seconds)

    seen: list[str] = []
    while page := search(store, Wanted(**wanted), limit=1, before=seen[-1] if seen else None).runs:
        seen += ids(page)

    assert seen == ["c", "d", "b", "a"]


def test_runs_are_found_by_status_and_session(store: RunStore, clock: ManualClock) -> None:
    for name in ("s1", "s2", "t1", "t2"):
        store.create_run(name[0], "p", run_id=name)
        clock.advance(1)
    store.record_event("s1", "run_started")
    store.record_event("t1", "run_started")

    assert ids(store.list_runs(status=RunStatus.EXECUTING)) == ["t1", "s1"]
    assert ids(store.list_runs(status="created")) == ["t2", "s2"]
    assert ids(store.list_runs(session_id="s")) == ["s2", "s1"]
    assert ids(store.list_runs(status="executing", session_id="t")) == ["t1"]
    assert ids(store.list_runs(status="failed")) == []
    assert ids(store.list_runs(session_id="nobody")) == []
    assert ids(store.list_runs(session_id="\ud800")) == []
    assert ids(store.list_runs(status="executing", before="t1")) == ["s1"]
    assert ids(store.list_runs(session_id="t", limit=1, before="t2")) == ["t1"]


def test_a_list_may_be_of_those_that_nobody_runs_any_more_or_of_all_that_have_not_ended(store: RunStore) -> None:
    for run in ("left", "run", "new", "ended", "planning", "verification"):
        store.create_run("s", "p", run_id=run)
    for run in ("planning", "verification"):
        store.record_event(run, f"{run}_started")
    store.record_event("ended", "run_completed")
    held = claim(store, "left")
    store.writer.commit(lambda ledger: ledger.release(ledger.claimed(held)))
    claim(store, "run")

    assert ids(store.list_runs("interrupted")) == ["left"]
    assert sorted(ids(store.list_runs("alive"))) == ["left", "new", "planning", "run", "verification"]
    assert ids(store.list_runs("interrupted", session_id="t")) == []


@pytest.mark.parametrize(
    "bad", [{"status": "running"}, {"status": 3}, {"limit": 0}, {"limit": 10**6}, {"session_id": 3}, {"before": 3}]
)
def test_a_list_that_cannot_be_is_a_config_error(store: RunStore, bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(bad))} = "):
        store.list_runs(**bad)


# --- owners and interruptions ---


def test_a_run_that_nobody_owns_is_not_interrupted(store: RunStore, run: str) -> None:
    store.record_event(run, "run_started")

    seen = store.snapshot(run)
    assert (seen.owner, seen.interrupted) == (None, False)


def test_a_run_that_never_began_is_not_interrupted_however_old(store: RunStore, run: str, clock: ManualClock) -> None:
    clock.advance(2 * SILENT)

    assert not store.snapshot(run).interrupted


def test_an_owned_run_shows_its_owner(store: RunStore, run: str) -> None:
    claim(store, run)

    returned = store.record_event(run, "run_started")

    (listed,) = store.list_runs()
    assert returned.owner is not None
    assert returned.owner.split(":")[1].isdigit()
    assert (returned.interrupted, listed.owner, store.snapshot(run)) == (False, returned.owner, returned)


def test_a_run_that_was_given_back_is_interrupted(store: RunStore, run: str) -> None:
    claim(store, run)

    store.writer.commit(lambda ledger: ledger.release(ledger.run(run)))

    for seen in (store.snapshot(run), store.list_runs()[0], store.record_event(run, "note")):
        assert (seen.owner, seen.interrupted) == (None, True)


def test_a_run_that_has_ended_has_no_owner_and_is_not_interrupted(store: RunStore, run: str) -> None:
    claim(store, run)

    ended = store.record_event(run, "run_completed")

    for seen in (ended, store.snapshot(run), store.list_runs()[0]):
        assert (seen.owner, seen.interrupted) == (None, False)


def test_owner_and_interruption_are_laid_over_and_not_stored(store: RunStore, run: str) -> None:
    claim(store, run)
    store.record_event(run, "note")
    store.writer.commit(lambda ledger: ledger.release(ledger.run(run)))

    seen = store.snapshot(run)

    assert seen.interrupted
    seen.interrupted = False
    assert seen == refold(store, run)


# --- cancelling ---


def test_a_run_that_has_not_begun_is_cancelled_at_once(store: RunStore, run: str) -> None:
    answer = store.cancel(run, "enough")

    assert answer is CancelResult.REQUESTED
    assert store.snapshot(run).status is RunStatus.CANCELLED
    assert [(event.type, event.payload) for event in store.events(run)] == [("run_cancelled", {"reason": "enough"})]


def test_a_run_that_has_ended_is_cancelled_in_vain(store: RunStore, run: str) -> None:
    store.record_event(run, "run_completed")

    assert store.cancel(run) is CancelResult.ALREADY_FINISHED
    assert store.handle(run).cancel() is CancelResult.ALREADY_FINISHED
    assert store.snapshot(run).event_count == 1


@pytest.mark.parametrize("reason", ["\ud800", 3])
def test_a_reason_must_be_a_text(store: RunStore, run: str, reason: Any) -> None:
    with pytest.raises(ConfigError, match="reason = "):
        store.cancel(run, reason)
    with pytest.raises(ConfigError, match="reason = "):
        store.mark_cancelled(run, reason)

    assert store.snapshot(run).event_count == 0


def test_a_reason_as_long_as_a_book_is_cut(store: RunStore, run: str) -> None:
    store.cancel(run, "x" * 1_000_000)

    assert len(store.snapshot(run).error or "") == store.payloads.limit


# --- several runs ---


def work(store: RunStore, run_id: str) -> None:
    """Own a run that remembers a call and a warning."""
    store.create_run("s", "p", run_id=run_id)
    claim(store, run_id)
    store.record_event(run_id, "tool_started", {"tool": "pay", "call_id": "1"})
    store.record_event(run_id, "budget_warning", {"unit": run_id})
    store.writer.commit(lambda ledger: ledger.remember(ledger.run(run_id), b"key", "pay", run_id.encode()))


def limit(ledger: Ledger, run_id: str) -> None:
    ledger.add_to_header(ledger.run(run_id), budget={"calls": 1})


def test_what_is_added_to_a_header_takes_nothing_away(store: RunStore, run: str) -> None:
    store.writer.commit(partial(limit, run_id=run))

    store.writer.commit(lambda ledger: ledger.add_to_header(ledger.run(run), budget=None, keys=7))

    header = store.memory(run).header
    assert (header.budget, header.keys) == ({"calls": 1}, 7)


def test_what_is_done_to_other_runs_leaves_a_run_as_it_was(store: RunStore, clock: ManualClock) -> None:
    def all_of_it() -> tuple[object, ...]:
        found = [run.id for run in search(store, Wanted(tool="pay")).runs if run.id == "r"]
        return store.snapshot("r"), store.events("r"), store.memory("r"), found

    work(store, "r")
    for _ in range(5):
        store.record_event("r", "note", {"text": "x" * 1000})
    before = all_of_it()

    for run_id in ("failed", "completed"):
        work(store, run_id)
        store.writer.commit(partial(limit, run_id=run_id))
        store.record_event(run_id, f"run_{run_id}")
    assert all_of_it() == before
    assert store.prune(max_run_bytes=1000) == (0, 0)
    assert store.prune(max_events=2) == (0, 2)
    assert all_of_it() == before
    assert store.prune(max_runs=0) == (2, 4)
    store.forget_left()
    assert all_of_it() == before


# --- handles ---


def test_a_handle_shows_its_run(store: RunStore, run: str) -> None:
    handle = store.handle(run)

    store.record_event(run, "run_started")

    assert (handle.id, handle.session_id, handle.status()) == ("r", "s", RunStatus.EXECUTING)
    assert handle.snapshot() == store.snapshot(run)
    assert handle.events() == store.events(run)
    assert handle.cancel("enough") is CancelResult.REQUESTED
    assert handle.status() is RunStatus.CANCELLED


# --- opening and closing ---


def test_a_store_that_was_never_used_can_be_closed(open_one: Open, tmp_path: Path) -> None:
    store = open_one()

    store.close()
    store.close()

    assert list(tmp_path.iterdir()) == []


def test_reading_makes_no_file(open_one: Open, tmp_path: Path) -> None:
    with open_one() as store:
        assert store.list_runs() == []
        with pytest.raises(RunNotFound):
            store.snapshot("r")

        assert list(tmp_path.iterdir()) == []


def test_a_closed_store_can_be_used_again(kind: str, store: RunStore, run: str) -> None:
    store.record_event(run, "note")
    store.close()

    store.create_run("s", "p", run_id="again")
    store.record_event("again", "run_completed")

    assert sequences(store.follow("again")) == [0]
    if kind in SHARED:
        assert store.record_event(run, "note").event_count == 2


def test_followers_hear_again_after_the_store_was_closed(store: RunStore) -> None:
    store.close()
    store.create_run("s", "p", run_id="again")
    following = store.follow("again")
    store.record_event("again", "note")
    next(following)
    writer = threading.Thread(target=lambda: store.record_event("again", "run_completed"))

    writer.start()

    assert sequences(following) == [1]
    writer.join()


def test_the_url_of_a_store_opens_it(kind: str, store: RunStore, run: str) -> None:
    with open_store(store.url) as other:
        assert type(other) is type(store)
        assert len(other.list_runs()) == (kind in SHARED)


@pytest.mark.parametrize("url", ["", "a\0b", "mysql://x", "sqlite://x", "sqlite://", "sqlite:///", None, 3])
def test_a_url_that_names_no_store_is_a_config_error(url: Any) -> None:
    with pytest.raises(ConfigError, match="store = "):
        open_store(url)


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", ":memory:", None, 3])
def test_a_path_that_names_no_file_is_a_config_error(path: Any) -> None:
    with pytest.raises(ConfigError, match="path = "):
        SqliteRunStore(path)


MISTYPED = [
    "postgresql:/u:secret@h/db", "postgresql//u:secret@h/db", "postgresql:u:secret@h", "postgers:/u:secret@h/db",
    "u:secret@h/db", "Postgres:/h/secret", "host=h password=secret", "connect_timeout=3 user=u password = secret",
    "u:secret@h://db", "file:secret.db", "sqlite:secret.db", "sqlite:/secret.db", "sqlite3:secret", "SQLite//secret",
    "sqlite://u:secret@h/db", "sqlite://u:secret@h", "sqlite://h/db?password=secret",
    ":Memory:", "memory:", ":memory", " :memory: ",
]  # fmt: skip


@pytest.mark.parametrize("url", MISTYPED)
def test_an_address_that_is_mistyped_is_no_file_and_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^store: must be a path, ':memory:', sqlite:///PATH or") as caught:
        open_store(url)

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["sqlite:x.db", "file:x.db", "u:pw@h.db", "user=me.db", ":Memory:", "memory:"])
def test_a_file_whose_name_looks_like_an_address_is_opened_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)

    for url in (Path(name), f"./{name}", str(tmp_path / name), f"sqlite:///{name}"):
        assert open_store(url).url == str(tmp_path / name)


@pytest.mark.parametrize("name", ["a b.db", "12:30.db", "me@home.db", "C:\\me@home\\x.db", "memory", "postgres", "a=b"])
def test_any_other_text_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)

    assert open_store(name).url == str(tmp_path / name)


def test_urls_lead_to_their_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert isinstance(open_store(":memory:"), MemoryRunStore)
    assert isinstance(open_store("sqlite:///:memory:"), MemoryRunStore)
    assert open_store("a.db").url == str(tmp_path / "a.db")
    assert open_store("sqlite:///a.db").url == str(tmp_path / "a.db")
    assert open_store(f"sqlite:///{tmp_path}/a.db").url == str(tmp_path / "a.db")
    assert open_store(tmp_path / "a.db").url == str(tmp_path / "a.db")


@pytest.mark.parametrize("name", ["a.db", "a?b.db", "a.db?"])
def test_a_url_says_how_a_file_is_synced(tmp_path: Path, name: str) -> None:
    for synchronous, pragma in (("FULL", 2), ("NORMAL", 1)):
        with SqliteRunStore(tmp_path / name, synchronous=synchronous) as store:
            again = open_store(store.url)
            also = open_store(f"sqlite:///{tmp_path / name}?synchronous={synchronous}")
            assert again.url == also.url == store.url
            assert isinstance(again.file, SqliteFile)
            assert again.file.path == str(tmp_path / name)
            assert again.file.writing().execute("PRAGMA synchronous").fetchone() == (pragma,)
            again.close()

    assert isinstance(open_store("sqlite:///:memory:?synchronous=NORMAL"), MemoryRunStore)
    assert open_store(f"sqlite:///{tmp_path}/a.db?").url == str(tmp_path / "a.db")


@pytest.mark.parametrize("query", ["NORMAL", "synchronous=OFF", "synchronous=normal", "sync=1", "synchronous=FULL&a=1"])
def test_a_url_with_another_parameter_is_a_config_error(tmp_path: Path, query: str) -> None:
    with pytest.raises(ConfigError, match=r"^store.*: after \?, an SQLite store takes synchronous=FULL or"):
        open_store(f"sqlite:///{tmp_path}/a.db?{query}")
    with pytest.raises(ConfigError, match="after"):
        open_store("sqlite:///?synchronous=FULL")

    assert not list(tmp_path.iterdir())


def test_all_events_of_a_run_are_more_than_one_page(store: RunStore, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stores.store.MOST_A_PAGE", 2)
    for _ in range(5):
        store.record_event(run, "note")

    assert sequences(store.events(run)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", sorted(SHARED))
def test_a_store_that_opens_its_database_again_sees_what_others_wrote_meanwhile(
    open_one: Open, store: RunStore, run: str
) -> None:
    store.record_event(run, "note")
    with open_one() as other:
        store.file.rollback(afresh=True)  # as after trouble
        other.record_event(run, "note")

        assert store.record_event(run, "note").event_count == 3


@pytest.mark.parametrize("kind", sorted(SHARED))
def test_two_stores_on_one_database_make_runs_in_turn(open_one: Open, store: RunStore) -> None:
    with open_one() as other:
        for maker, run_id in zip((store, other) * 2, "abcd", strict=True):
            maker.create_run("s", "p", run_id=run_id)

        assert sorted(ids(store.list_runs())) == list("abcd")


# --- the snapshot is the fold, whatever happens ---


def record_all(store: RunStore, run_id: str, pairs: list[Told]) -> None:
    for type, payload in pairs:
        with contextlib.suppress(ConfigError):  # a name that is not printable, a text that is no text
            store.record_event(run_id, type, payload)


def check(store: RunStore, run_id: str) -> None:
    events: list[RunEventRecord] = store.events(run_id)
    assert store.snapshot(run_id) == refold(store, run_id)
    assert sequences(events) == list(range(len(events)))
    ends = [at for at, event in enumerate(events) if event.type in {"run_completed", "run_failed", "run_cancelled"}]
    assert [event.late for event in events] == [bool(ends) and at > ends[0] for at in range(len(events))]


@settings(max_examples=60)
@given(pairs=HOSTILE)
@pytest.mark.parametrize("kind", EMBEDDED)
def test_the_snapshot_is_always_the_fold(
    kind: str, tmp_path_factory: pytest.TempPathFactory, pairs: list[Told]
) -> None:
    fold_of_all(kind, tmp_path_factory.mktemp("fold"), pairs)


@settings(max_examples=10)
@given(pairs=HOSTILE)
def test_the_snapshot_is_always_the_fold_on_a_server(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[Told]
) -> None:
    fold_of_all("postgres", tmp_path_factory.mktemp("fold"), pairs)


def fold_of_all(kind: str, folder: Path, pairs: list[Told]) -> None:
    with opener(kind, folder)() as store:
        store.create_run("s", "p", run_id="r")

        record_all(store, "r", pairs)

        check(store, "r")
        if kind in SHARED:
            store.close()
            check(store, "r")


@settings(max_examples=15)
@given(pairs=HOSTILE)
@pytest.mark.parametrize("kind", sorted(SHARED))
def test_two_stores_on_one_file_agree(kind: str, tmp_path_factory: pytest.TempPathFactory, pairs: list[Told]) -> None:
    open_one = opener(kind, tmp_path_factory.mktemp("two"))
    with open_one() as one, open_one() as two:
        one.create_run("s", "p", run_id="r")

        for at in range(0, len(pairs), 2):
            record_all(one, "r", pairs[at : at + 1])
            record_all(two, "r", pairs[at + 1 : at + 2])

        check(one, "r")
        check(two, "r")
