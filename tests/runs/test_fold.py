"""The fold: what each event means for the state of a run, and that nothing in an event can break it."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stores.events import EVENTS

from holdfast.history import (
    CheckStatus,
    RunEventRecord,
    RunHeader,
    RunSnapshot,
    RunStatus,
    begin,
    fold,
)

HEADER = RunHeader(id="r", session_id="s", prompt="p", created_at_ms=1000)
FIELDS = {
    "id", "session_id", "status", "prompt", "created_at_ms", "updated_at_ms", "started_at_ms", "finished_at_ms",
    "result_text", "error", "event_count", "tool_calls", "tool_failures", "tool_denials", "cached_hits", "spend",
    "verification", "active_tools", "forked_from", "owner", "interrupted",
}  # fmt: skip

Told = tuple[str, dict[str, Any]]


def told(*events: str | Told) -> list[RunEventRecord]:
    """Events, one every ten milliseconds."""
    pairs = [(event, {}) if isinstance(event, str) else event for event in events]
    return [RunEventRecord(at, 1010 + 10 * at, type, payload) for at, (type, payload) in enumerate(pairs)]


def after(*events: str | Told) -> RunSnapshot:
    return fold(HEADER, told(*events))


# --- statuses ---


def test_a_run_without_events_is_what_its_header_says() -> None:
    header = RunHeader(id="r", session_id="s", prompt="p", created_at_ms=1000, forked_from="q")

    run = fold(header, [])

    assert run == RunSnapshot(
        id="r", session_id="s", prompt="p", created_at_ms=1000, updated_at_ms=1000, forked_from="q"
    )
    assert run.status is RunStatus.CREATED


@pytest.mark.parametrize(
    ("events", "status"),
    [
        (["run_started"], "executing"),
        (["planning_started"], "planning"),
        (["planning_started", "planning_ended"], "executing"),
        (["planning_started", "turn_started"], "executing"),
        (["planning_started", "step_started"], "executing"),
        (["planning_started", "tool_started"], "executing"),
        (["planning_ended"], "executing"),
        (["turn_started"], "executing"),
        (["run_resumed"], "executing"),
        (["run_started", "verification_started"], "verifying"),
        (["run_started", "verification_started", "verification_ended"], "executing"),
        (["verification_ended"], "executing"),
        (["verification_started", "run_started"], "executing"),
        (["run_started", "run_completed"], "completed"),
        (["run_started", "run_failed"], "failed"),
        (["run_cancelled"], "cancelled"),
        (["run_cancel_requested"], "created"),
        (["run_started", "planning_started", "run_interrupted"], "planning"),
        (["something_else"], "created"),
    ],
)
def test_events_lead_to_a_status(events: list[str], status: str) -> None:
    assert after(*events).status == status


@pytest.mark.parametrize("start", ["turn_started", "step_started", "tool_started"])
def test_a_check_may_call_tools(start: str) -> None:
    run = after("run_started", "verification_started", start)

    assert run.status is RunStatus.VERIFYING


def test_only_the_three_last_statuses_are_terminal() -> None:
    assert {status for status in RunStatus if status.is_terminal} == {"completed", "failed", "cancelled"}


@pytest.mark.parametrize(
    ("event", "result", "error"),
    [
        (("run_completed", {"text": "done"}), "done", None),
        (("run_failed", {"error": "broken"}), None, "broken"),
        (("run_cancelled", {"reason": "enough"}), None, "enough"),
        (("run_cancelled", {"reason": None}), None, None),
        (("run_completed", {"text": 7}), None, None),
        (
            ("run_completed", {"text": {"cut": "a long t", "bytes": 99_999}}),
            "a long t… (cut; 99999 bytes in all)",
            None,
        ),
    ],
)
def test_the_end_leaves_a_result_or_an_error(event: Told, result: str | None, error: str | None) -> None:
    run = after("run_started", event)

    assert (run.result_text, run.error, run.finished_at_ms) == (result, error, 1020)


@pytest.mark.parametrize("end", ["run_completed", "run_failed", "run_cancelled"])
@pytest.mark.parametrize("late", [type for type, _ in EVENTS])
def test_what_comes_after_the_end_is_counted_and_changes_nothing_else(end: str, late: str) -> None:
    ended = after("run_started", end)

    run = after("run_started", end, (late, dict(EVENTS)[late]))

    assert run.event_count == 3
    run.event_count = 2
    assert run == ended


# --- times ---


def test_a_run_begins_with_its_first_work_and_not_with_its_first_event() -> None:
    run = after("note", "tool_denied", "turn_started", "turn_started")

    assert run.started_at_ms == 1030
    assert run.updated_at_ms == 1040
    assert run.finished_at_ms is None


def test_times_that_go_back_do_not_take_the_run_along() -> None:
    events = [RunEventRecord(0, 5000, "run_started", {}), RunEventRecord(1, 4000, "run_completed", {})]

    run = fold(HEADER, events)

    assert (run.started_at_ms, run.updated_at_ms, run.finished_at_ms) == (5000, 5000, 5000)


# --- calls ---


def call(type: str, call_id: object = "c1", **more: Any) -> Told:
    return type, {"call_id": call_id, "tool": "search", **more}


def test_a_call_is_counted_when_it_starts() -> None:
    run = after(call("tool_started", "c1"), call("tool_started", "c2"), call("tool_ended", "c1", status="success"))

    assert (run.tool_calls, run.tool_failures) == (2, 0)


def test_a_repeat_of_a_call_that_never_ended_is_the_same_call() -> None:
    run = after(call("tool_started"), "run_interrupted", call("tool_started"))

    assert run.tool_calls == 1
    assert run.active_tools == ("search",)


def test_a_repeat_of_a_call_that_ended_says_so_and_is_the_same_call() -> None:
    run = after(call("tool_started"), call("tool_ended"), call("tool_started", repeat=True))

    assert run.tool_calls == 1


@pytest.mark.parametrize(
    ("failed", "attempt"),
    [
        ({"attempt": 1, "retry_in_ms": 200}, 2),
        ({"attempt": 2, "retry_in_ms": 0}, 3),
        ({"attempt": 2, "retry_in_ms": None}, 1),
        ({"attempt": 0, "retry_in_ms": 200}, 1),
        ({"attempt": 2**31, "retry_in_ms": 200}, 1),
        ({"attempt": "1", "retry_in_ms": 200}, 1),
    ],
)
def test_a_call_that_is_tried_again_is_in_its_next_attempt(failed: dict[str, Any], attempt: int) -> None:
    run = after(call("tool_started", "c1"), call("tool_attempt_failed", "c1", **failed))

    assert run.active_calls["c1"].attempt == attempt


def test_a_call_whose_tool_was_not_called_is_none() -> None:
    cut_off = call("tool_started", "c2"), call("tool_ended", "c2", status="cancelled", uncalled=True)
    run = after(call("tool_started", "c1"), *cut_off, call("tool_started", "c2"))

    assert run.tool_calls == 2


def test_what_never_began_is_not_taken_off() -> None:
    run = after(call("tool_started", "c1"), call("tool_ended", "c2", uncalled=True))

    assert run.tool_calls == 1


@pytest.mark.parametrize("name", [None, 1, ["search"]])
def test_a_call_without_a_name_counts_too(name: object) -> None:
    run = after(("tool_started", {"call_id": "c1", "tool": name}))

    assert run.tool_calls == 1
    assert run.active_tools == ()


@pytest.mark.parametrize("id", [None, 1, ["c1"]])
def test_a_call_without_an_id_counts_too(id: object) -> None:
    run = after(*[("tool_started", {"call_id": id, "tool": "search"})] * 2)

    assert run.tool_calls == 2
    assert run.active_tools == ()


@pytest.mark.parametrize(
    ("status", "failures"), [("failed", 1), ("timed_out", 1), ("success", 0), ("cancelled", 0), (["failed"], 0)]
)
def test_failures_and_timeouts_are_failures(status: object, failures: int) -> None:
    assert after(call("tool_started"), call("tool_ended", status=status)).tool_failures == failures


def test_hits_and_refusals_are_no_calls() -> None:
    run = after(call("tool_ended", cached=True, status="success"), "tool_denied", "tool_denied")

    assert (run.tool_calls, run.cached_hits, run.tool_denials) == (0, 1, 2)


def test_the_active_tools_are_named_in_the_order_they_began() -> None:
    begun = [("tool_started", {"call_id": each, "tool": f"tool {each}", "key": "00"}) for each in "abc"]

    run = after(*begun, ("step_started", {"call_id": "d", "name": "think"}), ("tool_ended", {"call_id": "b"}))

    assert run.active_tools == ("tool a", "tool c")
    assert [call.name for call in run.active_calls.values()] == ["tool a", "tool c", "think"]
    assert run.active_calls["a"].key == "00"
    assert run.tool_calls == 3


def test_blocks_are_no_longer_active_when_the_run_is_resumed_and_calls_are() -> None:
    block = ("tool_started", {"call_id": "a", "tool": "mailbox"})
    known = ("tool_started", {"call_id": "b", "tool": "pay", "key": "00"})

    assert after(block, known).active_tools == ("mailbox", "pay")
    assert after(block, known, "run_resumed").active_tools == ("pay",)


def test_a_step_that_ended_is_no_longer_active() -> None:
    run = after(("step_started", {"call_id": "d", "name": "think"}), ("step_ended", {"call_id": "d"}))

    assert run.active_calls == {}


# --- spend and verification ---


def test_spend_adds_up_by_unit() -> None:
    run = after(
        ("spent", {"unit": "tokens", "amount": 3}),
        ("spent", {"unit": "eur", "amount": 0.5}),
        ("spent", {"unit": "tokens", "amount": 4}),
    )

    assert run.spend == {"tokens": 7.0, "eur": 0.5}


@pytest.mark.parametrize("amount", [True, None, "3", 10**400, -(10**400), float("nan"), float("inf"), [3]])
def test_what_is_no_amount_is_not_added(amount: object) -> None:
    run = after(("spent", {"unit": "tokens", "amount": 3}), ("spent", {"unit": "tokens", "amount": amount}))

    assert run.spend == {"tokens": 3.0}


def test_a_total_that_no_number_can_hold_is_not_reached() -> None:
    most = ("spent", {"unit": "tokens", "amount": sys.float_info.max})

    assert after(most, most).spend == {"tokens": sys.float_info.max}


def test_the_reports_of_a_verification_are_summed_up() -> None:
    checks = [{"name": "builds", "status": "passed"}, {"name": "tests", "status": "failed"}]

    run = after("verification_started", ("verification_ended", {"reports": [{"name": "ci", "checks": checks}]}))

    assert run.verification is not None
    assert run.verification.status is CheckStatus.FAILED
    assert (run.verification.passed, run.verification.failed) == (1, 1)


# --- any events at all ---

KNOWN = st.sampled_from([type for type, _ in EVENTS])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.sampled_from(["c1", "c2", "failed", "timed_out", "passed", "tokens", 10**400]),
)  # fmt: skip
KEYS = st.sampled_from(
    [
        "call_id", "tool", "name", "key", "repeat", "status", "cached", "unit", "amount", "reports", "checks",
        "required", "text", "cut", "error", "reason",
    ]
)  # fmt: skip
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
HOSTILE = st.lists(st.tuples(KNOWN | st.text(min_size=1, max_size=5), st.dictionaries(KEYS, VALUES, max_size=5)))


@given(HOSTILE, st.lists(st.integers(-(10**6), 10**6)))
def test_the_fold_takes_anything(pairs: list[Told], times: list[int]) -> None:
    events = [
        RunEventRecord(at, times[at % len(times)] if times else 0, type, payload)
        for at, (type, payload) in enumerate(pairs)
    ]

    run = fold(HEADER, events)

    assert run.event_count == len(events)
    assert run.updated_at_ms >= run.created_at_ms
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(run), type=RunSnapshot) == run
    assert msgspec.json.encode(run.to_dict())


@given(HOSTILE, st.data())
def test_a_fold_can_go_on_from_any_place(pairs: list[Told], data: st.DataObject) -> None:
    events = told(*pairs)
    place = data.draw(st.integers(0, len(events)))
    base = fold(HEADER, events[:place])
    before = base.copy()

    run = fold(base, events[place:])

    assert run == fold(HEADER, events)
    assert base == before


# --- snapshots ---


def test_a_copy_of_a_snapshot_is_its_own() -> None:
    run = after(("spent", {"unit": "tokens", "amount": 3}), call("tool_started"))

    copy = run.copy()
    copy.spend["tokens"] = 5
    copy.active_calls.clear()

    assert run.spend == {"tokens": 3.0}
    assert run.active_tools == ("search",)


def test_a_snapshot_as_plain_data_has_every_name() -> None:
    plain = begin(HEADER).to_dict()

    assert set(plain) == FIELDS
    assert all(hasattr(begin(HEADER), name) for name in FIELDS)
