"""Stages runs that are to be added to a store: checked one by one, then added all at once or not at all.

Everything that can be folded from the events is folded, not taken from the input. Staged runs are in a temporary
database, however many they are; the write that adds them can be made again if it fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import events
from holdfast.checks import is_name, shown
from holdfast.errors import StoreError, printable
from holdfast.history import RunEventRecord, RunHeader, RunSnapshot, apply, begin
from holdfast.stores.ledger import USES, Ledger, OwnerRow
from holdfast.stores.rows import event, pack, pack_header, unpack, unpack_header
from holdfast.stores.schema import statements
from holdfast.stores.trouble import errors_of
from holdfast.values.as_json import DEEPEST, check_depth
from holdfast.values.said import ENDS

if TYPE_CHECKING:
    from holdfast.stores.database import Connection, Database

CHUNK = 500  # events that are read at once
BATCH = 1000  # rows that are written to the temporary database at once
MOST = 2**62  # largest time or count: everything that is calculated from them fits into the tables
FLAWS = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)  # errors that bad data may raise

_COPIED = {  # the statement that writes rows to the store, and the one that reads them from the staged ones
    "add_event": "staged_events",
    "put_run": "staged_runs",
    "add_memo": "staged_memos",
    "add_tool_of_run": "staged_tools",
}
_COUNTS = ("event_count", "tool_calls", "tool_failures", "tool_denials", "cached_hits")


class Incoming:
    """One run that is being staged."""

    __slots__ = ("at", "base", "cancel", "first", "header", "is_interrupted", "number", "origin", "snapshot", "start")

    def __init__(self, header: RunHeader, origin: str, first: int, base: RunSnapshot | None) -> None:
        _check_header(header, origin)
        if base is None and first != 0:
            raise ValueError(f"the events before {first} are missing, and the state that they led to")
        if base is not None:
            _check_base(base, header, first)
        self.header = header
        self.origin = origin
        self.first = first
        self.base = None if base is None else pack(base)
        self.snapshot = begin(header) if base is None else unpack(pack(base), pack_header(header))
        self.at = self.snapshot.updated_at_ms
        self.cancel: str | None = None
        self.is_interrupted = True  # counts as interrupted: the process that ran it does not run it here
        self.number = self.start = 0

    def take(self, event: RunEventRecord) -> tuple[str, str] | None:
        """Apply an event to the run's state; return the key and name of the call that it ended, if any."""
        at, type, payload = event.timestamp_ms, event.type, event.payload
        if event.sequence != self.snapshot.event_count:
            raise ValueError(f"sequence {event.sequence!r} where {self.snapshot.event_count} should follow")
        if not isinstance(at, int) or not self.at <= at <= MOST:
            raise ValueError(f"timestamp_ms {at!r} after {self.at}: must not go back")
        if not is_name(type):
            raise ValueError("type must be 1 to 200 printable characters")
        self.at = at
        call = None
        if type in ENDS and isinstance(call_id := payload.get("call_id"), str):
            call = self.snapshot.active_calls.get(call_id)
        if apply(self.snapshot, type, payload, at) is not event.late:
            said, had = str(event.late).lower(), "not " if event.late else ""
            raise ValueError(f"late is {said}, but the run had {had}ended before")
        if type == events.RUN_CANCEL_REQUESTED:
            reason = payload.get("reason")
            self.cancel = reason if isinstance(reason, str) else ""
        return (call.key, call.name) if call is not None else None

    def row(self) -> tuple[object, ...]:
        """The run's row, without its key."""
        header, snapshot = self.header, self.snapshot
        ended = snapshot.status.is_terminal
        fence = int(not ended and snapshot.event_count > 0 and self.is_interrupted)
        head = (header.id, header.session_id, str(snapshot.status), header.created_at_ms, self.at)
        state = (pack_header(header), pack(snapshot), self.first, self.base)
        return (*head, *state, fence, None if ended else self.cancel, self.origin)


class Staging:
    """Runs to be added to *file*; with *lack_headers*, only the header fields that snapshots have are known."""

    def __init__(self, file: Database, *, lack_headers: bool = False) -> None:
        import sqlite3

        self.file = file
        self._sql = statements()
        self.runs = self.events = 0
        self._lack_headers = lack_headers
        self._events: list[tuple[object, ...]] = []
        self._memos: list[tuple[object, ...]] = []
        self._tools: list[tuple[int, str]] = []
        with errors_of(file):
            self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)  # a temporary file
            for statement in ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", *self._tables(), "BEGIN"):
                self._db.execute(statement)

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    # -- staging -------------------------------------------------------------------------------------------------------

    def begin(self, header: RunHeader, *, origin: str, first: int = 0, base: RunSnapshot | None = None) -> Incoming:
        """Begin the next run, whose events from *first* on follow; *base* is the state that those before led to."""
        run = Incoming(header, origin, first, base)
        self.runs += 1
        run.number, run.start = self.runs, self.events
        return run

    def take(self, run: Incoming, event: RunEventRecord, encoded: str) -> None:
        """Add the next event of *run*; *encoded* is its payload as JSON."""
        check_depth(encoded.encode(), 2 * DEEPEST)
        ended = run.take(event)
        self.events += 1
        row = (self.events, run.number, event.sequence, event.timestamp_ms, event.type, event.late, encoded)
        self._events.append(row)
        if ended is not None and (key := _from_hex(ended[0])):  # a guarded block has none, as resume never looks it up
            self._memos.append((run.number, key, ended[1]))
        if event.type in USES and isinstance(tool := event.payload.get("tool"), str):
            self._tools.append((run.number, tool))
        if len(self._events) >= BATCH:
            self._flush()

    def end(self, run: Incoming) -> None:
        """End *run*: it has all its events."""
        import sqlite3

        self._flush()
        try:
            self._db.execute(self._sql["stage_run"], (run.number, run.start, self.events, *run.row()))
        except sqlite3.IntegrityError:
            raise ValueError(f"run {run.header.id!r} is there a second time") from None

    # -- adding --------------------------------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """The number of staged runs that are not in the store already."""
        (count,) = self._db.execute(self._sql["staged_new"]).fetchone()
        return int(count)

    def leave_out_known(self, connection: Connection) -> None:
        """Drop the staged runs that are in the store already; raise a `StoreError` if one is there and differs."""
        self._find_known(connection)
        self._db.execute(self._sql["leave_out_known"])

    def add(self, ledger: Ledger) -> int:
        """Add the staged runs, as a write; return the number of new runs."""
        began = ledger.now_ms()
        ledger.step_aside()
        connection = self.file.writing()
        self._find_known(connection)
        self._copy(connection)
        ledger.excuse_silence(began)
        return self.left

    def replace(self, ledger: Ledger, is_alive: Callable[[OwnerRow], bool]) -> None:
        """Replace everything in the store by the staged runs, as a write; raise if a living process owns runs there."""
        ledger.step_aside()
        connection, sql = self.file.writing(), self.file.sql
        connection.execute(sql("hold_still"))
        for row in map(OwnerRow._make, connection.execute(sql("owning")).fetchall()):
            if is_alive(row):
                who = f"process {row.pid} on {row.host}"
                raise StoreError(f"{self.file.name}: {who} has runs of it in hand; nothing was replaced")
        self._compare(connection)
        kept = {key for (key,) in self._db.execute(self._sql["staged_known"])}
        for (key,) in connection.execute(sql("oldest")).fetchall():
            if key not in kept:
                ledger.erase(key)
        self._copy(connection)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _tables(self) -> list[str]:
        return [self._sql[f"stage_{name}"] for name in ("runs", "events", "memos", "tools")]

    def _flush(self) -> None:
        for name, rows in (("event", self._events), ("memo", self._memos), ("tool", self._tools)):
            self._db.executemany(self._sql[f"stage_{name}"], rows)
            rows.clear()

    def _copy(self, connection: Connection) -> None:
        """Copy the staged runs that are not known into the store."""
        new = [number for (number,) in self._db.execute(self._sql["staged_numbers"])]
        self._db.executemany(self._sql["stage_key"], zip(self.file.new_keys(len(new)), new, strict=False))
        for put, staged in _COPIED.items():
            connection.executemany(self.file.sql(put), self._db.execute(self._sql[staged]))

    def _find_known(self, connection: Connection) -> None:
        if (run_id := self._compare(connection)) is not None:
            raise StoreError(f"run {run_id!r} is in the store already and differs from this one; nothing was imported")

    def _compare(self, connection: Connection) -> str | None:
        """Mark the staged runs that the store has just the same as known; return the id of one that differs, if any."""
        sql = self.file.sql
        known, differs = [], None
        for number, start, stop, run_id, *mine in self._db.execute(self._sql["staged_heads"]).fetchall():
            row = connection.execute(sql("head"), (run_id,)).fetchone()
            if row is None:
                continue
            key, *theirs = row
            if self._is_same_head(mine, theirs) and _are_same_events(
                self._db.execute(self._sql["staged_page"], (start, stop)),
                chain.from_iterable(events_of(connection, sql("page"), key)),
            ):
                known.append((key, number))
            else:
                differs = run_id
        self._db.execute(self._sql["stage_unknown"])  # an earlier try of this write may have marked some
        self._db.executemany(self._sql["stage_known"], known)
        return differs

    def _is_same_head(self, mine: Sequence[Any], theirs: Sequence[Any]) -> bool:
        ours, others = unpack_header(mine[0]).elsewhere(), unpack_header(theirs[0]).elsewhere()
        same = begin(ours) == begin(others) if self._lack_headers else ours == others
        return same and _base(*mine) == _base(*theirs)


def in_words(flaw: BaseException) -> str:
    """What one of `FLAWS` says of the data."""
    if isinstance(flaw, UnicodeError):
        return "is not UTF-8 text"
    if isinstance(flaw, RecursionError):
        return "is nested too deep"
    return printable(str(flaw), 300)


def events_of(connection: Connection, sql: str, key: int) -> Iterator[list[tuple[Any, ...]]]:
    """The rows of a run's events, some at a time; *sql* reads a page of them."""
    after = -1
    while rows := connection.execute(sql, (key, after, CHUNK)).fetchall():
        yield rows
        if len(rows) < CHUNK:
            return
        after = rows[-1][0]


def _base(header: str, first: int, base: bytes | None) -> tuple[int, RunSnapshot | None]:
    return first, None if base is None else unpack(base, header)


def _are_same_events(mine: Iterable[tuple[Any, ...]], theirs: Iterable[tuple[Any, ...]]) -> bool:
    """True if both have the same events; the JSON of a payload may be spelt in two ways."""
    return all(
        one == other or (one is not None and other is not None and event(one) == event(other))
        for one, other in zip_longest(mine, theirs)
    )


def _check_header(header: RunHeader, origin: str) -> None:
    needed = {"id": header.id, "store": origin}
    for name, value in {**needed, "forked_from": header.forked_from, "root": header.root}.items():
        if not is_name(value) and (value is not None or name in needed):
            raise ValueError(f"{name} must be 1 to 200 printable characters")
    if not isinstance(header.session_id, str) or not isinstance(header.prompt, str):
        raise ValueError("session_id and prompt must be texts")
    if not isinstance(header.created_at_ms, int) or not -MOST <= header.created_at_ms <= MOST:
        raise ValueError(f"created_at_ms {shown(header.created_at_ms)} is not a time")


def _check_base(base: RunSnapshot, header: RunHeader, first: int) -> None:
    """Raise a `ValueError` unless *base* can be the state of the run before its event *first*."""
    start = begin(header)
    fixed = ("id", "session_id", "prompt", "created_at_ms", "forked_from", "owner", "interrupted")
    if any(getattr(base, name) != getattr(start, name) for name in fixed):
        raise ValueError("base is of another run")
    if first < 1 or base.event_count != first:
        raise ValueError(f"base is the state after {base.event_count} events, but {first} are missing")
    if not all(0 <= getattr(base, name) <= MOST for name in _COUNTS):
        raise ValueError("base has a count that is not valid")
    if not all(map(math.isfinite, base.spend.values())):
        raise ValueError("base has a spend that is not a number")
    if not header.created_at_ms <= base.updated_at_ms <= MOST:
        raise ValueError("base was not updated after the run was created")


def _from_hex(key: str) -> bytes:
    try:
        return bytes.fromhex(key)
    except ValueError:  # an event that a user recorded
        return b""
