"""All runs that a store has at one moment, as records, and how to replace them; `portable` does the same with a file.

New records are staged and checked outside the store (`staging`), then replace everything in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.checks import shown
from holdfast.errors import StoreError
from holdfast.history import RunEventRecord, RunHeader, RunRecord, RunSnapshot
from holdfast.stores.rows import event, unpack
from holdfast.stores.staging import FLAWS, Staging, events_of, in_words
from holdfast.stores.trouble import errors_of

if TYPE_CHECKING:
    from holdfast.stores.database import Connection
    from holdfast.stores.ledger import Ledger
    from holdfast.stores.store import RunStore

_JSON = msgspec.json.Encoder()
_OBJECT = msgspec.json.Decoder(dict[str, Any])


class ShortenedRecord(RunRecord, frozen=True):
    """A run whose first events were deleted; *base* is its state before those that are left."""

    base: RunSnapshot


def records(store: RunStore) -> list[RunRecord]:
    """Every run with its events, oldest first, at one moment."""
    with store.file.consistent_reader() as connection, errors_of(store.file):
        keys = [key for (key,) in connection.execute(store.file.sql("oldest"))]
        return [_record(store, connection, key) for key in keys]


def replace_records(store: RunStore, records: Iterable[RunRecord]) -> None:
    """Replace everything in the store by *records*; all or nothing.

    A run that is in the store unchanged stays, with its memos; of any other, the finished calls count as in doubt.
    """
    origin = store.file.meta("store")
    with Staging(store.file, lack_headers=True) as staging:
        for number, record in enumerate(records, 1):
            with errors_of(store.file):
                try:
                    _stage(staging, record, origin)
                except FLAWS as flaw:
                    raise StoreError(f"record {number}: {in_words(flaw)}; nothing was replaced") from flaw

        def replace(ledger: Ledger) -> None:
            staging.replace(ledger, store.ownership.is_alive)

        store.writer.commit(replace)


def _record(store: RunStore, connection: Connection, key: int) -> RunRecord:
    header, data, owner, fence, _, base, _ = connection.execute(store.file.sql("whole"), (key,)).fetchone()
    (snapshot,) = store.snapshots([(header, data, owner, fence)])
    events = tuple(event(row) for rows in events_of(connection, store.file.sql("page"), key) for row in rows)
    return RunRecord(snapshot, events) if base is None else ShortenedRecord(snapshot, events, unpack(base, header))


def _stage(staging: Staging, record: RunRecord, origin: str) -> None:
    """Stage a record; its snapshot must be what its events fold to."""
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
        staging.take(run, msgspec.structs.replace(each, payload=_OBJECT.decode(payload)), payload.decode())
    if msgspec.structs.replace(given, owner=None, interrupted=False) != run.snapshot:
        raise ValueError(f"the snapshot of run {given.id!r} is not what its events give")
    run.is_interrupted = given.interrupted or given.owner is not None
    staging.end(run)
