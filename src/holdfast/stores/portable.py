"""Runs as JSON lines: exports those that a store has at one moment, and imports them again, all or nothing.

An export has a first line that says what it is, one for each run and for each of its events, and a last one that counts
them and has their checksum. An import is staged and checked outside the store (`staging`), then added in one
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import IO, TYPE_CHECKING, Any

import msgspec

from holdfast.checks import shown
from holdfast.errors import ConfigError, RunNotFound, StoreError
from holdfast.history import RunEventRecord, RunHeader, RunSnapshot
from holdfast.stores.rows import unpack, unpack_header
from holdfast.stores.staging import FLAWS, Incoming, Staging, events_of, in_words
from holdfast.stores.trouble import errors_of, reads_rows

if TYPE_CHECKING:
    from holdfast.stores.database import Connection
    from holdfast.stores.store import RunStore

FORMAT = 1
LONGEST_LINE = 2**26  # characters
_ODD = "is not as an export has it"


class _Title(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    holdfast: str
    schema: int


class _Run(RunHeader, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    store: str  # the id of the store whose secret keys the digests of its calls
    first: int = 0
    base: RunSnapshot | None = None  # without the prompt, which only the header has


class _Event(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    sequence: int
    timestamp_ms: int
    type: str
    payload: msgspec.Raw  # as it is stored
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


def export(store: RunStore, fp: IO[str] | IO[bytes], run_ids: Sequence[str] | None = None) -> int:
    """Write all runs, or those in *run_ids*, as JSON lines without their memos; return the number of runs."""
    if run_ids is not None and (isinstance(run_ids, str) or not all(isinstance(each, str) for each in run_ids)):
        raise ConfigError(f"run_ids = {shown(run_ids)}: must be a list of ids")
    checksum, runs, events = blake2b(digest_size=32), 0, 0
    put = _into(fp)

    def write(lines: bytes) -> None:
        checksum.update(lines)
        put(lines)

    with store.file.consistent_reader() as connection:
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
    """Add runs from JSON lines as `export` writes them, all or nothing; return the number of new runs.

    A run that is in the store with the same events is left as it is; one that differs is an error.
    """
    with Staging(store.file) as staging:
        _Reader(staging).read(fp)
        if store.file.path is not None:  # comparing with what is there must not make others wait
            with store.file.consistent_reader() as connection, errors_of(store.file):
                staging.leave_out_known(connection)
        return store.writer.commit(staging.add) if staging.left else 0


# -- out ---------------------------------------------------------------------------------------------------------------


def _into(fp: Any) -> Callable[[bytes], object]:
    """A function that writes bytes to *fp*, a file of text or of bytes."""
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


def _lines(store: RunStore, connection: Connection, key: int) -> Iterator[tuple[bytes, int]]:
    """The lines of a run, some at a time, and how many of them are events."""
    sql = store.file.sql
    with errors_of(store.file):
        text, data, _, _, first, base, origin = connection.execute(sql("whole"), (key,)).fetchone()
        header = unpack_header(text).elsewhere()
        if origin is None:
            (origin,) = connection.execute(sql("meta"), ("store",)).fetchone()
        before = None if base is None else msgspec.structs.replace(unpack(base, text), prompt="")
        run = _Run(**msgspec.structs.asdict(header), store=origin, first=first, base=before)
        yield _JSON.encode(_Line(run=run)) + b"\n", 0
        missing = StoreError(f"{store.file.name}: is damaged: events of run {header.id!r} are missing")
        due = first
        for rows in events_of(connection, sql("page"), key):
            if [row[0] for row in rows] != list(range(due, due + len(rows))):
                raise missing
            due += len(rows)
            yield _JSON.encode_lines([_Line(event=_event(*row)) for row in rows]), len(rows)
        if due != unpack(data, text).event_count:
            raise missing


@reads_rows
def _event(sequence: int, at: int, type: str, late: int, payload: str) -> _Event:
    return _Event(int(sequence), int(at), str(type), _VALID.decode(payload), bool(late))


# -- in ----------------------------------------------------------------------------------------------------------------


class _Reader:
    """Reads an export into *staging*, line by line; the first flaw ends it with an error."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._number = 0
        self._checksum = blake2b(digest_size=32)
        self._run: Incoming | None = None
        self._run_at = 0  # the line number of the current run

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
                raise StoreError(f"{at} {self._number}: {in_words(flaw)}; nothing was imported") from flaw

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
        """Take in a line; return its content if it is the last one."""
        if not raw:
            raise ValueError("the file ends here, in the middle: it was cut short")
        line = _LINE.decode(raw)
        if [line.run, line.event, line.end].count(None) != 2:
            raise ValueError(_ODD)
        if line.event is not None:
            self._take_event(line.event)
        elif _JSON.encode(line) != raw.rstrip(b"\n"):
            raise ValueError(_ODD)
        elif line.run is not None:
            self._begin(line.run)
        else:
            return line.end
        self._checksum.update(raw)
        return None

    def _take_event(self, event: _Event) -> None:
        if self._run is None:
            raise ValueError("an event before the first run")
        payload = bytes(event.payload)
        record = RunEventRecord(event.sequence, event.timestamp_ms, event.type, _OBJECT.decode(payload), event.late)
        self._staging.take(self._run, record, payload.decode())

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
