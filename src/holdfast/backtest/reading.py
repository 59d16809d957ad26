"""Reads the newest calls that the runs of a store have on record, in the order in which they were requested.

Runs are read one after the other, page by page; what is kept of a call is its times and outcomes, a few hundred bytes.
Records may be old, foreign or damaged: what does not make sense is skipped, never guessed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

import msgspec

from holdfast import checks, events
from holdfast.category import ErrorCategory
from holdfast.errors import RunNotFound
from holdfast.history import RunEventRecord
from holdfast.stores import RunStore
from holdfast.stores.searching import Wanted, every
from holdfast.values.redaction import MASK

MOST_CALLS: Final = 100_000  # calls that are kept
GRAIN: Final = 0.05  # seconds by which a time on record may be late, since it is the time of writing
_PAGE: Final = 1000
_KINDS: Final = {str(category): category for category in ErrorCategory}
_ENDS: Final = ("success", "failed", "timed_out", "cancelled")  # no set, as a status on record may be a list


class Attempt(msgspec.Struct, frozen=True):
    """One try: how many seconds it took, and how it failed (None: it succeeded).

    *pause* is how long its call waited before the next try, None if it was the last.
    """

    duration: float
    category: ErrorCategory | None = None
    pause: float | None = None


class Call(msgspec.Struct, frozen=True):
    """One call: when it was requested, in seconds since the epoch, and its *attempts*; none if its outcome is unknown.

    *sign* is equal for equal calls of a tool, None if its arguments are not all on record.
    """

    tool: str
    run: str
    at: float
    attempts: tuple[Attempt, ...] = ()
    sign: bytes | None = None
    waited: float = 0.0  # seconds in line before the first attempt
    refused: bool = False  # refused on record: it never reached the tool

    @property
    def category(self) -> ErrorCategory | None:
        """The error category that it ended with; None for a success, or if the outcome is unknown."""
        return self.attempts[-1].category if self.attempts else None

    @property
    def known(self) -> bool:
        """True if its outcome is known, and says something about the tool."""
        return bool(self.attempts) and self.category is not ErrorCategory.CANCELLED

    @property
    def failed(self) -> bool:
        """True if it is known to have failed."""
        return self.known and self.category is not None

    @property
    def duration(self) -> float:
        """The seconds spent in the tool."""
        return sum(attempt.duration for attempt in self.attempts)


class Recording(msgspec.Struct, frozen=True):
    """Calls sorted by time, how many runs they come from, and whether all were kept."""

    calls: list[Call]
    runs: int
    whole: bool


def read(store: RunStore, *, last: int = 1000, most: int = MOST_CALLS) -> Recording:
    """Return the calls of the *last* newest runs, at most *most* of them."""
    checks.whole("last", last)
    checks.whole("most", most)
    calls: list[Call] = []
    runs, whole = 0, True
    for run in islice(every(store, Wanted(), first=last), last):
        kept = deque(_calls(store, run.id), most - len(calls) + 1)
        runs += 1
        calls += kept
        if len(calls) > most:
            whole = False
            break
    calls.sort(key=lambda call: call.at)
    return Recording(calls[-most:], runs, whole)


def _calls(store: RunStore, run_id: str) -> Iterator[Call]:
    """Yield the calls of one run as they end, and then those whose end is not on record."""
    active: dict[str, _Active] = {}
    for event in _events(store, run_id):
        name = event.payload.get("tool")
        if not isinstance(name, str) or not name:
            continue
        if event.type == events.TOOL_DENIED:
            yield Call(name, run_id, event.timestamp_ms / 1000, refused=True)
            continue
        id = event.payload.get("call_id")
        if not isinstance(id, str):
            continue
        if event.type == events.TOOL_STARTED:
            if (lost := active.pop(id, None)) is not None:  # repeated after a crash
                yield lost.unknown(run_id)
            active[id] = _Active(name, event)
        elif event.type == events.TOOL_ATTEMPT_FAILED and id in active:
            active[id].failed(event)
        elif event.type == events.TOOL_ENDED and (begun := active.pop(id, None)) is not None:
            yield begun.ended(event, run_id)
    for lost in active.values():
        yield lost.unknown(run_id)


def _events(store: RunStore, run_id: str) -> Iterator[RunEventRecord]:
    after, more = -1, True
    while more:
        try:
            page = store.event_page(run_id, after, _PAGE)
        except RunNotFound:  # it was pruned meanwhile
            return
        yield from page.events
        after, more = page.next_after, page.has_more


class _Active:
    """A call that has begun and not ended."""

    def __init__(self, tool: str, event: RunEventRecord) -> None:
        self._tool = tool
        self._at = self._begun = event.timestamp_ms / 1000
        self._sign = _sign(event.payload.get("arguments"))
        self._attempts: list[Attempt] = []

    def failed(self, event: RunEventRecord) -> None:
        """Note a failed attempt; another follows if a pause is given."""
        now = event.timestamp_ms / 1000
        took, pause = (_seconds(event.payload, name) for name in ("duration_ms", "retry_in_ms"))
        if took is None:  # old records do not say
            took = max(0.0, now - self._begun)
        self._attempts.append(Attempt(took, _category(event.payload, "failed"), pause))
        self._begun = now + (pause or 0.0)

    def ended(self, event: RunEventRecord, run_id: str) -> Call:
        """Return the whole call; it was requested as long before it began as it waited in line."""
        payload, made = event.payload, event.payload.get("attempts")
        if payload.get("status") not in _ENDS or payload.get("cached") is True or made == 0:
            return self.unknown(run_id)
        now, attempts = event.timestamp_ms / 1000, self._attempts
        if not attempts or not isinstance(made, int) or made > len(attempts):
            spent = _seconds(payload, "duration_ms")  # in all attempts
            took = now - self._begun if spent is None else spent - sum(attempt.duration for attempt in attempts)
            attempts.append(Attempt(max(0.0, round(took, 3)), _category(payload, payload["status"])))
        else:  # the last failure ended it, whether or not another attempt was meant to follow
            attempts[-1] = msgspec.structs.replace(attempts[-1], pause=None)
        pauses = sum(attempt.pause or 0.0 for attempt in attempts)
        in_line = max(0.0, (_seconds(payload, "waited_ms") or 0.0) - pauses)
        begun = min(self._at, now - pauses - sum(attempt.duration for attempt in attempts))
        return Call(self._tool, run_id, round(begun - in_line, 3), tuple(attempts), self._sign, in_line)

    def unknown(self, run_id: str) -> Call:
        """Return a call whose outcome is unknown."""
        return Call(self._tool, run_id, self._at, sign=self._sign)


def _category(payload: dict[str, Any], status: str) -> ErrorCategory | None:
    if status == "success":
        return None
    if status == "cancelled":
        return ErrorCategory.CANCELLED
    named = payload.get("category")
    known = _KINDS.get(named) if isinstance(named, str) else None
    return known or (ErrorCategory.TIMEOUT if status == "timed_out" else ErrorCategory.EXECUTION_ERROR)


def _seconds(payload: dict[str, Any], name: str) -> float | None:
    value = payload.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
        return value / 1000
    return None


def _sign(arguments: object) -> bytes | None:
    """Return equal bytes for equal arguments; None if they were masked or cut, since they could be any."""
    if not isinstance(arguments, dict) or arguments.keys() == {"cut", "bytes"} or "redacted" in arguments:
        return None
    data = msgspec.json.encode(arguments, order="deterministic")
    return None if MASK.encode() in data else blake2b(data, digest_size=16).digest()
