"""Connections to an SQLite database, with the settings that all of ours have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.stores.trouble import PATIENCE

if TYPE_CHECKING:
    import sqlite3

MOST_LOG = 64 * 2**20  # bytes of its log that SQLite keeps for reuse


def connect(path: str | None, synchronous: str) -> sqlite3.Connection:
    """Connect to the file at *path*, which exists, or to a new database in memory if that is None."""
    import sqlite3

    connection = sqlite3.connect(
        ":memory:" if path is None else path,
        timeout=PATIENCE,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=64,
    )
    try:
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        if synchronous == "FULL":  # on macOS synced data may still be in the disk's own memory
            connection.execute("PRAGMA fullfsync = ON")
        connection.execute(f"PRAGMA journal_size_limit = {MOST_LOG}")
    except BaseException:
        connection.close()
        raise
    return connection
