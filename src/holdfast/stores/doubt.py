"""Finds out whether a group whose commit failed is in its SQLite file all the same.

SQLite writes to its log, asks the system to put that on disk, and then notes it in the index of the log: so what a new
connection sees is on disk, as long as the index stays in use (`SqliteFile.commit` sees to that); or it is synced after
this check, if the commit was a hasty one. No marker is written for it: it looks for what the group was to write.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from holdfast.errors import StoreError
from holdfast.stores.ledger import EventRow, Live
from holdfast.stores.trouble import errors_of

if TYPE_CHECKING:
    import sqlite3

    from holdfast.stores.sqlite import SqliteFile


def was_written(file: SqliteFile, trace: EventRow | Live | None) -> bool:
    """True if the *trace* of a group is in *file*: an event, or a run that it added or whose standing it changed.

    A group without a trace counts as not written: it can be made again.
    """
    if trace is None:
        return False
    with errors_of(file):
        return _has_run(file, trace) if isinstance(trace, Live) else _has_event(file, trace)


def empty_log(connection: sqlite3.Connection, kept: list[sqlite3.Connection]) -> None:
    """Empty the log, as the disk may have failed to write it; if that fails, *connection* must be *kept* to the end.

    The first connection to a log takes all that is in it for written. But the system takes data that it failed to
    sync for synced from then on: if commits followed such data in the log, a power cut would take them, too.
    """
    import sqlite3

    with contextlib.suppress(sqlite3.Error):
        connection.rollback()
        kept.append(connection)
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if not busy:
            kept.clear()


def _has_event(file: SqliteFile, row: EventRow) -> bool:
    run, sequence, *_ = row
    return file.ask("page", run, sequence - 1, 1) == [row[1:]]


def _has_run(file: SqliteFile, live: Live) -> bool:
    found = file.load(live.header.id)
    if found is None or found.key != live.key or found.standing() == live.written:
        return False
    if found.standing() != live.standing():
        raise StoreError(f"{file.name}: another process has written to the same run since")
    return True
