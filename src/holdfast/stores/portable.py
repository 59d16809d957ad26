"""All runs of a store at one moment, out of it and in again: as records, or as JSON lines that `export` writes.

An export has a first line that says what it is, one for each run and for each of its events, and a last one that counts
them and has their checksum. What comes in is staged and checked aside (`staging`), then added in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import IO, TYPE_CHECKING, Any

import msgspec

from holdfast.checks import shown
from holdfast.errors import ConfigError, RunNotFound, StoreError, printable
from holdfast.history import RunEventRecord, RunHeader, RunRecord, RunSnapshot
from holdfast.stores.rows import event, unpack, unpack_header
from holdfast.stores.staging import Incoming, Staging, events_of
from holdfast.stores.trouble import errors_of, reads_rows

if TYPE_CHECKING:
    from holdfast.stores.database import Connection
    from holdfast.stores.ledger import Ledger
    from holdfast.stores.store import RunStore

FORMAT = 1
LONGEST_LINE = 2**26  # characters
FLAWS = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)  # what bad data makes of a check


class ShortenedRecord(RunRecord, frozen=True):
    """A run whose first events are gone, and *base*, its state before those that are left."""

    base: RunSnapshot


class _Title(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    holdfast: str
    schema: int


class _Run(RunHeader, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    store: str  # whose secret keys the digests of its calls
    first: int = 0
    base: RunSnapshot | None = None  # its prompt stands in the header alone


class _Event(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    sequence: int
    timestamp_ms: int
    type: str
    payload: msgspec.Raw  # as it is kept
    late: bool = False


class _End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    runs: int
    events: int
    checksum: str  # of all lines before it


class _Line(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    run: _Run | None = None
    event: _Event | None = None
    end: _End | None = None


_JSON = msgspec.json.Encoder()
_TITLE = msgspec.json.Decoder(_Title)
_LINE = msgspec.json.Decoder(_Line)
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_VALID = msgspec.json.Decoder(msgspec.Raw)


def records(store: RunStore) -> list[RunRecord]:
    """Every run with its events, oldest first, at one moment."""
    with store.file.at_one_moment() as connection:
        return [_record(store, connection, key) for key in _keys(store, connection, None)]


def export(store: RunStore, fp: IO[str] | IO[bytes], run_ids: Sequence[str] | None = None) -> int:
    """Write all runs, or those named, as JSON lines; gives the number of runs. Memos stay."""
    if run_ids is not None and (isinstance(run_ids, str) or not all(isinstance(each, str) for each in run_ids)):
        raise ConfigError(f"run_ids = {shown(run_ids)}: must be a list of ids")
    checksum, runs, events = blake2b(digest_size=32), 0, 0
    put = _into(fp)

    def write(lines: bytes) -> None:
        checksum.update(lines)
        put(lines)

    with store.file.at_one_moment() as connection:
        keys = _keys(store, connection, run_ids)
        write(_JSON.encode(_Title("runs", FORMAT)) + b"\n")
        for key in keys:
            for lines, count in _lines(store, connection, key):
                write(lines)
                events += count
            runs += 1
        put(_JSON.encode(_Line(end=_End(runs, events, checksum.hexdigest()))) + b"\n")
    return runs


def import_(store: RunStore, fp: IO[str] | IO[bytes]) -> int:
    """Read runs from JSON lines as `export` writes them, all or nothing; gives the number of new runs.

    A run that is there with the same events is left as it is; one that differs is an error.
    """
    with Staging(store.file) as staging:
        _Reader(staging).read(fp)
        if store.file.path is not None:  # nobody need wait while what is there already is compared
            with store.file.at_one_moment() as connection, errors_of(store.file):
                staging.leave_out_known(connection)
        return store.writer.commit(staging.add) if staging.left else 0


def replace_records(store: RunStore, records: Iterable[RunRecord]) -> None:
    """Put *records* in the place of everything that is in the store; all or nothing.

    A run that is there unchanged stays, with what it remembers; of any other the finished calls count as in doubt.
    """
    origin = store.file.meta("store")
    with Staging(store.file, lack_headers=True) as staging:
        for number, record in enumerate(records, 1):
            with errors_of(store.file):
                try:
                    _stage(staging, record, origin)
                except FLAWS as flaw:
                    raise StoreError(f"record {number}: {_said(flaw)}; nothing was replaced") from flaw

        def replace(ledger: Ledger) -> None:
            staging.replace(ledger, store.ownership.is_alive)

        store.writer.commit(replace)


# -- out ---------------------------------------------------------------------------------------------------------------


def _into(fp: Any) -> Callable[[bytes], object]:
    """How to write to *fp*, a file of text or of bytes."""
    try:
        fp.write("")
    except TypeError:
        return fp.write  # type: ignore[no-any-return]
    return lambda lines: fp.write(lines.decode())


def _keys(store: RunStore, connection: Connection, run_ids: Sequence[str] | None) -> list[int]:
    """The keys of the runs, or of those named, oldest first."""
    sql = store.file.sql
    with errors_of(store.file):
        if run_ids is None:
            return [key for (key,) in connection.execute(sql("oldest"))]
        places = []
        for run_id in dict.fromkeys(run_ids):
            try:
                row = connection.execute(sql("place"), (run_id,)).fetchone()
            except UnicodeEncodeError:  # nothing of that name can have been stored
                row = None
            if row is None:
                raise RunNotFound(run_id)
            places.append((row[0], run_id, row[1]))
    return [key for _, _, key in sorted(places)]


def _record(store: RunStore, connection: Connection, key: int) -> RunRecord:
    with errors_of(store.file):
        header, data, owner, fence, _, base, _ = connection.execute(store.file.sql("whole"), (key,)).fetchone()
        (snapshot,) = store.snapshots([(header, data, owner, fence)])
        events = tuple(event(row) for rows in events_of(connection, store.file.sql("page"), key) for row in rows)
        return RunRecord(snapshot, events) if base is None else ShortenedRecord(snapshot, events, unpack(base, header))


def _lines(store: RunStore, connection: Connection, key: int) -> Iterator[tuple[bytes, int]]:
    """The lines of a run, some at a time, and how many of them are events."""
    sql = store.file.sql
    with errors_of(store.file):
        text, data, _, _, first, base, origin = connection.execute(sql("whole"), (key,)).fetchone()
        header = unpack_header(text)
        if origin is None:
            (origin,) = connection.execute(sql("meta"), ("store",)).fetchone()
        before = None if base is None else msgspec.structs.replace(unpack(base, text), prompt="")
        run = _Run(**msgspec.structs.asdict(header), store=origin, first=first, base=before)
        yield _JSON.encode(_Line(run=run)) + b"\n", 0
        due, rows = first, []
        for rows in events_of(connection, sql("page"), key):
            events = []
            for row in rows:
                if row[0] == due:
                    events.append(_Line(event=_event(*row)))
                due += 1
            if len(events) < len(rows):
                break
            yield _JSON.encode_lines(events), len(events)
        else:
            rows = []
        if due != unpack(data, text).event_count or rows:
            raise StoreError(f"{store.file.name}: is damaged: events of run {header.id!r} are missing")


@reads_rows
def _event(sequence: int, at: int, type: str, late: int, payload: str) -> _Event:
    return _Event(int(sequence), int(at), str(type), _VALID.decode(payload), bool(late))


# -- in ----------------------------------------------------------------------------------------------------------------


class _Reader:
    """Takes an export into *staging*, line by line; the first flaw is the end."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._number = 0
        self._checksum = blake2b(digest_size=32)
        self._run: Incoming | None = None
        self._run_at = 0  # the line of the run in hand

    def read(self, fp: IO[str] | IO[bytes]) -> None:
        """Read all of *fp*."""
        with errors_of(self._staging.file):
            try:
                self._check_title(self._next(fp))
                while (end := self._take(self._next(fp))) is None:
                    pass
                self._finish(end, rest=self._next(fp))
            except FLAWS as flaw:
                at = "at or after line" if isinstance(flaw, UnicodeError) else "line"
                raise StoreError(f"{at} {self._number}: {_said(flaw)}; nothing was imported") from flaw

    def _next(self, fp: IO[str] | IO[bytes]) -> bytes:
        self._number += 1
        try:
            line = fp.readline(LONGEST_LINE + 1)
        except OSError as error:
            raise ValueError(f"cannot be read: {error.strerror or error}") from error
        if not isinstance(line, str | bytes):
            raise TypeError("is neither text nor bytes: open a file that export wrote")
        if len(line) > LONGEST_LINE:
            raise ValueError(f"is longer than {LONGEST_LINE} characters")
        text = line if isinstance(line, str) else line.decode()
        if "\r" in text:
            raise ValueError("contains a carriage return: the file must be as it was written")
        return text.encode()

    def _check_title(self, line: bytes) -> None:
        try:
            given = _OBJECT.decode(line)
        except FLAWS:
            given = {}
        if given.get("holdfast") != "runs":
            raise ValueError("the file is not an export of runs")
        if isinstance(schema := given.get("schema"), int) and schema > FORMAT:
            raise ValueError(f"written by a newer Holdfast (schema {schema}; this one knows {FORMAT}): upgrade it")
        title = _TITLE.decode(line)
        if title != _Title("runs", FORMAT):
            raise ValueError(f"schema {title.schema} is unknown")
        self._checksum.update(line)

    def _take(self, raw: bytes) -> _End | None:
        """Take a line; gives the last one."""
        if not raw:
            raise ValueError("the file ends here, in the middle: it was cut short")
        line = _LINE.decode(raw)
        if (event := line.event) is not None and line.run is None and line.end is None:
            if self._run is None:
                raise ValueError("an event before the first run")
            payload = bytes(event.payload)
            self._staging.take(
                self._run,
                event.sequence,
                event.timestamp_ms,
                event.type,
                event.late,
                _OBJECT.decode(payload),
                payload.decode(),
            )
        elif _JSON.encode(line) != raw.rstrip(b"\n") or [line.run, line.event, line.end].count(None) != 2:
            raise ValueError("is not as an export has it")
        elif line.run is not None:
            self._begin(line.run)
        else:
            return line.end
        self._checksum.update(raw)
        return None

    def _begin(self, run: _Run) -> None:
        self._end_run()
        header = RunHeader(**{name: getattr(run, name) for name in RunHeader.__struct_fields__})
        base = run.base
        if base is not None:
            if base.prompt:
                raise ValueError("the prompt stands in the base too")
            base = msgspec.structs.replace(base, prompt=header.prompt)
        self._run_at = self._number
        self._run = self._staging.begin(header, origin=run.store, first=run.first, base=base)

    def _end_run(self) -> None:
        if self._run is not None:
            try:
                self._staging.end(self._run)
            except FLAWS:
                self._number = self._run_at
                raise
            self._run = None

    def _finish(self, end: _End, rest: bytes) -> None:
        if rest:
            raise ValueError("something follows after the last line")
        self._number -= 1
        found = _End(self._staging.runs, self._staging.events, self._checksum.hexdigest())
        if (end.runs, end.events) != (found.runs, found.events):
            raise ValueError(f"{end.runs} runs and {end.events} events said, {found.runs} and {found.events} found")
        if end != found:
            raise ValueError("the checksum does not match: the file was changed or damaged")
        self._end_run()


def _stage(staging: Staging, record: RunRecord, origin: str) -> None:
    """Take a record in; what its snapshot says must be what its events give."""
    if not isinstance(record, RunRecord) or not isinstance(record.snapshot, RunSnapshot):
        raise TypeError(f"{shown(record)} is not a RunRecord")
    given = record.snapshot
    header = RunHeader(
        id=given.id,
        session_id=given.session_id,
        prompt=given.prompt,
        created_at_ms=given.created_at_ms,
        forked_from=given.forked_from,
    )
    base = record.base if isinstance(record, ShortenedRecord) else None
    first = base.event_count if base is not None else 0
    run = staging.begin(header, origin=origin, first=first, base=base)
    for each in record.events:
        if not isinstance(each, RunEventRecord):
            raise TypeError(f"{shown(each)} is not a RunEventRecord")
        payload = _JSON.encode(each.payload)
        facts = (each.sequence, each.timestamp_ms, each.type, each.late)
        staging.take(run, *facts, _OBJECT.decode(payload), payload.decode())
    if msgspec.structs.replace(given, owner=None, interrupted=False) != run.snapshot:
        raise ValueError(f"the snapshot of run {given.id!r} is not what its events give")
    run.is_left = given.interrupted or given.owner is not None
    staging.end(run)


def _said(flaw: BaseException) -> str:
    if isinstance(flaw, UnicodeError):
        return "is not UTF-8 text"
    if isinstance(flaw, RecursionError):
        return "is nested too deep"
    return printable(str(flaw), 300)
