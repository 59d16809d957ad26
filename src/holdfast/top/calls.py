"""Puts the events of a run together into calls: when each waited, which attempts it made, how it ended.

Pure: the same events give the same calls, in whatever batches they arrive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast import events
from holdfast.history import RunEventRecord

MARKS = {
    events.CIRCUIT_OPENED, events.CIRCUIT_HALF_OPENED, events.CIRCUIT_CLOSED, events.LOOP_DETECTED,
    events.BUDGET_WARNING, events.RUN_CANCEL_REQUESTED, events.RUN_INTERRUPTED, events.RUN_RESUMED,
    events.RUN_DIVERGED,
}  # fmt: skip
TROUBLE = {"failed", "timed_out", "denied", "unknown"}
NO_BAR = {"mark", "cached", "denied"}
MOST_EVENTS = 100_000  # of one run; the last ones are kept


class Fail(NamedTuple):
    """A failed attempt: when it ended, the planned wait before the next, and how long it took, in milliseconds."""

    at: float
    retry: float | None
    took: float | None = None


class Bar(NamedTuple):
    """A piece of time: *kind* is wait, backoff or attempt."""

    kind: str
    start: float
    end: float
    outcome: str = ""


class Call(msgspec.Struct):
    """One call, step or mark; *status* is running, success, failed, timed_out, cancelled, cached, denied or unknown."""

    sequence: int
    kind: str
    name: str
    at: float
    status: str
    depth: int = 0
    end: float | None = None
    events: list[RunEventRecord] = []
    fails: list[Fail] = []
    lost: list[tuple[float, float]] = []
    facts: Mapping[str, Any] = {}

    @property
    def is_trouble(self) -> bool:
        """Whether anything went wrong with it."""
        return self.status in TROUBLE or bool(self.fails)


class Story:
    """The calls of one run, in the order in which they began; for a long run, only those of its last events."""

    def __init__(self) -> None:
        self.last = -1
        self._begin()

    def _begin(self) -> None:
        self.calls: list[Call] = []
        self.events: list[RunEventRecord] = []
        self._open: dict[str, Call] = {}
        self._ids: dict[str, Call] = {}

    def add(self, found: Iterable[RunEventRecord]) -> None:
        """Take in events; those already known are skipped."""
        for event in found:
            if event.sequence <= self.last:
                continue
            self.last = event.sequence
            self._keep(event)
        if len(self.events) > MOST_EVENTS:
            kept = self.events[-(MOST_EVENTS // 2) :]  # half of them, so that this is seldom done
            self._begin()
            for event in kept:
                self._keep(event)

    @property
    def first(self) -> int:
        """The sequence of the first event that is kept."""
        return self.events[0].sequence if self.events else 0

    def event(self, sequence: int) -> RunEventRecord | None:
        """The event with this *sequence*, if it is kept; sequences have no gaps."""
        place = sequence - self.events[0].sequence if self.events else -1
        return self.events[place] if 0 <= place < len(self.events) else None

    def abandon(self) -> None:
        """Mark open calls as unknown, since no process works on the run; a later event may still end them."""
        for call in self._open.values():
            call.end = call.end or self.events[-1].timestamp_ms
            call.status = "unknown"

    def _keep(self, event: RunEventRecord) -> None:
        self.events.append(event)
        if not event.late:
            self._take(event)

    def _take(self, event: RunEventRecord) -> None:
        match event.type:
            case events.TOOL_STARTED | events.STEP_STARTED:
                self._start(event)
            case events.TOOL_ATTEMPT_FAILED:
                self._fail(event)
            case events.TOOL_ENDED | events.STEP_ENDED:
                self._end(event)
            case events.TOOL_DENIED:
                self._single(event, "call", "denied")
            case type if type in MARKS:
                self._single(event, "mark", "mark")
        if event.type == events.RUN_INTERRUPTED:
            self.abandon()

    def _start(self, event: RunEventRecord) -> None:
        id = _word(event.payload.get("call_id"))
        before = self._open.get(id)
        if before is None:
            self._open[id] = self._make(event, "step" if event.type == events.STEP_STARTED else "call", "running")
            return
        before.lost.append((before.at, before.end or event.timestamp_ms))
        before.at, before.end, before.status = event.timestamp_ms, None, "running"
        before.events.append(event)

    def _fail(self, event: RunEventRecord) -> None:
        call = self._open.get(_word(event.payload.get("call_id")))
        if call is not None:
            retry, took = (_told(event.payload.get(name)) for name in ("retry_in_ms", "duration_ms"))
            call.fails.append(Fail(event.timestamp_ms, retry, took))
            call.at = min(call.at, event.timestamp_ms - (took or 0.0))  # see _end
            call.events.append(event)

    def _end(self, event: RunEventRecord) -> None:
        payload = event.payload
        call = self._open.pop(_word(payload.get("call_id")), None)
        if call is not None:
            call.events.append(event)
        else:
            call = self._make(event, "step" if event.type == events.STEP_ENDED else "call", "success")
        call.end, call.facts = event.timestamp_ms, payload
        if not call.fails and not payload.get("cached"):  # the start may have been recorded with a delay
            call.at = min(call.at, call.end - _number(payload.get("duration_ms")))
        call.status = "cached" if payload.get("cached") is True else _word(payload.get("status")) or "success"

    def _single(self, event: RunEventRecord, kind: str, status: str) -> None:
        call = self._make(event, kind, status)
        call.end, call.facts = event.timestamp_ms, event.payload

    def _make(self, event: RunEventRecord, kind: str, status: str) -> Call:
        payload = event.payload
        parent = self._ids.get(_word(payload.get("parent")))
        name = event.type if kind == "mark" else _word(payload.get("tool")) or _word(payload.get("name")) or event.type
        depth = 0 if parent is None else parent.depth + 1
        call = Call(event.sequence, kind, name, event.timestamp_ms, status, depth, events=[event])
        if id := _word(payload.get("call_id")):
            self._ids[id] = call
        self.calls.append(call)
        return call


def bars(call: Call, now: float) -> list[Bar]:
    """The bars of a call until *now*: the wait before its start, its attempts, and the waits between them.

    The log has the ends of attempts and the planned waits, not when a later attempt began: that is computed from how
    long the attempt took. In old logs this is known only for the last attempt: the rest of the time inside the tool.
    """
    if call.status in NO_BAR:
        return []
    until = now if call.end is None else call.end
    made = [Bar("attempt", start, end, "unknown") for start, end in call.lost]
    tries, between = _tries(call, until)
    line = _number(call.facts.get("waited_ms")) - max(between, sum(fail.retry or 0.0 for fail in call.fails))
    first = [Bar("wait", call.at - line, call.at)] if line > 0.5 else []
    return [*first, *made, *tries]


def _tries(call: Call, until: float) -> tuple[list[Bar], float]:
    """The attempts and the waits between them, and how long the waits took in all."""
    ended = call.end is not None and call.status != "unknown"
    fails = [fail for fail in call.fails if fail.at >= call.at]
    made: list[Bar] = []
    start, between, inside = call.at, 0.0, 0.0
    for number, fail in enumerate(fails):
        made.append(Bar("attempt", start, fail.at, "failed"))
        inside += fail.at - start if fail.took is None else fail.took
        is_last = number == len(fails) - 1
        if fail.retry is None or (is_last and ended and _number(call.facts.get("attempts")) <= len(fails)):
            return made, between
        bound = until if is_last else fails[number + 1].at
        planned = min(fail.at + fail.retry, bound)
        if is_last:
            took = max(0.0, _number(call.facts.get("duration_ms")) - inside) if ended else None
        else:
            took = fails[number + 1].took
        start = planned if took is None else min(max(planned, bound - took), bound)
        made.append(Bar("backoff", fail.at, planned))
        if start - planned > 1:
            made.append(Bar("wait", planned, start))
        between += start - fail.at
    return [*made, Bar("attempt", start, until, call.status)], between


class Scale:
    """Maps times to places on a line of *width* places; long idle times are cut short."""

    def __init__(self, calls: Iterable[Call], now: float, width: int) -> None:
        busy = list(_merged(calls, now))
        total = sum(end - start for start, end in busy)
        idle = max(total * 0.1, 1.0)
        self._starts = [start for start, _ in busy]
        self._pieces: list[tuple[float, float, float]] = []  # start, end, place of the start with idle times cut short
        place, before = 0.0, busy[0][0] if busy else now
        for start, end in busy:
            place += min(start - before, idle)
            self._pieces.append((start, end, place))
            place, before = place + end - start, end
        self._by = width / place if place else 0.0
        self._width = width

    def place(self, at: float) -> int:
        """The place of a time, from 0 to below the width."""
        found = 0.0
        if number := bisect_right(self._starts, at):
            start, end, found = self._pieces[number - 1]
            found += min(at, end) - start
        return max(0, min(self._width - 1, int(found * self._by)))


def _merged(calls: Iterable[Call], now: float) -> Iterator[tuple[float, float]]:
    """The spans of time in which at least one call was going on."""
    start = end = None
    for call in sorted(calls, key=lambda each: each.at):
        waited = _number(call.facts.get("waited_ms")) if not call.fails else 0.0
        begin, until = call.at - waited, now if call.end is None else call.end
        begin = min([begin, *(lost for lost, _ in call.lost)])
        if start is None or end is None:
            start, end = begin, until
        elif begin > end:
            yield start, end
            start, end = begin, until
        else:
            start, end = min(start, begin), max(end, until)
    if start is not None and end is not None:
        yield start, end


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _told(value: object) -> float | None:
    return None if value is None else _number(value)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15 else 0.0
