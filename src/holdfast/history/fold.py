"""The fold: from a header and events to a snapshot. Pure, total and the only place that knows what an event means.

Users may emit any event with any payload; an event without the expected shape is counted and otherwise ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from msgspec import structs

from holdfast import events
from holdfast.history.records import ActiveCall, RunEventRecord, RunHeader, RunSnapshot, RunStatus
from holdfast.history.verification import read_reports, summarise

Payload = Mapping[str, object]

_MOST = sys.float_info.max
_MOST_ATTEMPTS = 2**31


def begin(header: RunHeader) -> RunSnapshot:
    """The state of a run that has no event yet."""
    return RunSnapshot(
        id=header.id,
        session_id=header.session_id,
        prompt=header.prompt,
        created_at_ms=header.created_at_ms,
        updated_at_ms=header.created_at_ms,
        forked_from=header.forked_from,
    )


def fold(start: RunHeader | RunSnapshot, events: Iterable[RunEventRecord]) -> RunSnapshot:
    """The state after *events*, from the header, or from the snapshot before them if retention removed earlier ones."""
    snapshot = begin(start) if isinstance(start, RunHeader) else start.copy()
    for event in events:
        apply(snapshot, event.type, event.payload, event.timestamp_ms)
    return snapshot


def apply(run: RunSnapshot, type: str, payload: Payload, at_ms: int) -> bool:
    """Apply one event to *run*; True if it came late, after the run's end."""
    run.event_count += 1
    if run.status.is_terminal:
        return True
    if at_ms < run.updated_at_ms:
        at_ms = run.updated_at_ms
    run.updated_at_ms = at_ms
    meaning = _MEANINGS.get(type)
    if meaning is not None:
        meaning(run, payload, at_ms)
    return False


# -- what each event means ---------------------------------------------------------------------------------------------


def _started(run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    _work(run, payload, at_ms)
    run.status = RunStatus.EXECUTING


def _work(run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    """Mark the run as started and executing; a run that verifies stays so, as its checks may call tools."""
    if run.started_at_ms is None:
        run.started_at_ms = at_ms
    if run.status is not RunStatus.VERIFYING:
        run.status = RunStatus.EXECUTING


def _resumed(run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    """Drop blocks (they have no key), which ended with the previous owner; the resumed code asks for calls again."""
    _work(run, payload, at_ms)
    run.active_calls = {id: call for id, call in run.active_calls.items() if call.key}


def _planning(run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    _work(run, payload, at_ms)
    run.status = RunStatus.PLANNING


def _tool_started(run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    call = payload.get("call_id")
    if payload.get("repeat") is not True and not (isinstance(call, str) and call in run.active_calls):
        run.tool_calls += 1
    _call_started("tool", run, payload, at_ms)


def _call_started(label: str, run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    if run.status is not RunStatus.EXECUTING:
        _work(run, payload, at_ms)
    call, name = payload.get("call_id"), payload.get(label)
    if isinstance(call, str) and isinstance(name, str):
        key = payload.get("key")
        run.active_calls[call] = ActiveCall(name, at_ms, key if isinstance(key, str) else "", label == "name")


def _attempt_failed(run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    """The call goes on with its next attempt, unless this was the last."""
    call, attempt = payload.get("call_id"), payload.get("attempt")
    if isinstance(call, str) and call in run.active_calls and payload.get("retry_in_ms") is not None:
        if isinstance(attempt, int) and 0 < attempt < _MOST_ATTEMPTS:
            run.active_calls[call] = structs.replace(run.active_calls[call], attempt=attempt + 1)


def _tool_ended(run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    call = payload.get("call_id")
    if payload.get("uncalled") is True and isinstance(call, str) and call in run.active_calls:
        run.tool_calls = max(0, run.tool_calls - 1)
    _step_ended(run, payload, at_ms)
    if payload.get("cached") is True:
        run.cached_hits += 1
    if payload.get("status") in ("failed", "timed_out"):
        run.tool_failures += 1


def _step_ended(run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    call = payload.get("call_id")
    if isinstance(call, str):
        run.active_calls.pop(call, None)


def _denied(run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    run.tool_denials += 1


def _spent(run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    unit, amount = payload.get("unit"), payload.get("amount")
    if isinstance(unit, str) and isinstance(amount, int | float) and not isinstance(amount, bool):
        if abs(amount) <= _MOST:  # False for NaN, and for an int too large for a float
            total = run.spend.get(unit, 0.0) + amount
            if abs(total) <= _MOST:
                run.spend[unit] = total


def _verifying(run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    _work(run, payload, at_ms)
    run.status = RunStatus.VERIFYING


def _verified(run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    _started(run, payload, at_ms)
    run.verification = summarise(read_reports(payload.get("reports")))


def _completed(run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    _finish(run, RunStatus.COMPLETED, at_ms)
    run.result_text = _text(payload.get("text"))


def _failed(run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    _finish(run, RunStatus.FAILED, at_ms)
    run.error = _text(payload.get("error"))


def _cancelled(run: RunSnapshot, payload: Payload, at_ms: int) -> None:
    _finish(run, RunStatus.CANCELLED, at_ms)
    run.error = _text(payload.get("reason"))


def _finish(run: RunSnapshot, status: RunStatus, at_ms: int) -> None:
    run.status = status
    run.finished_at_ms = at_ms


def _text(value: object) -> str | None:
    if isinstance(value, Mapping):  # a text that was too long to be kept whole
        cut, size = value.get("cut"), value.get("bytes")
        return f"{cut}… (cut; {size} bytes in all)" if isinstance(cut, str) and isinstance(size, int) else None
    return value if isinstance(value, str) else None


_MEANINGS: Mapping[str, Callable[[RunSnapshot, Payload, int], None]] = {
    events.RUN_STARTED: _started,
    events.RUN_RESUMED: _resumed,
    events.PLANNING_STARTED: _planning,
    events.PLANNING_ENDED: _work,
    events.TURN_STARTED: _work,
    events.STEP_STARTED: partial(_call_started, "name"),
    events.STEP_ENDED: _step_ended,
    events.TOOL_STARTED: _tool_started,
    events.TOOL_ATTEMPT_FAILED: _attempt_failed,
    events.TOOL_ENDED: _tool_ended,
    events.TOOL_DENIED: _denied,
    events.SPENT: _spent,
    events.VERIFICATION_STARTED: _verifying,
    events.VERIFICATION_ENDED: _verified,
    events.RUN_COMPLETED: _completed,
    events.RUN_FAILED: _failed,
    events.RUN_CANCELLED: _cancelled,
}
