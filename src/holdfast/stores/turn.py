"""Waits for the turn to write to an SQLite file, which one process at a time has.

SQLite's own wait favours the process that has just written, and grows; others starve for seconds. Here a process tries
more often the longer it waits, and `SqliteFile` lets others try first after a wait.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.clock import SystemClock
from holdfast.stores.trouble import PATIENCE

if TYPE_CHECKING:
    import sqlite3

PAUSE = 0.001  # seconds between two tries to begin a transaction, about
LONG = 0.25  # seconds that most waits for another process are shorter than


def begin_in_turn(cursor: sqlite3.Cursor, error: Exception, log_age: Callable[[], float]) -> float:
    """Begin when the other process has ended its transaction; raise *error* if it is not SQLITE_BUSY.

    Return for how many seconds no process could write; after a long wait, *log_age* tells since when none has.
    """
    import sqlite3

    begun, waited = SystemClock.monotonic(), 0.0  # real time: it waits for the system
    before: float | None = None  # seconds without a write of any process before this one began to wait
    while getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY and waited <= PATIENCE:
        SystemClock.sleep(max(2 * PAUSE - waited / 50, PAUSE / 5) * random.uniform(0.5, 1.5))
        waited = SystemClock.monotonic() - begun
        if before is None and waited > LONG:
            before = log_age() - waited
        try:
            cursor.execute("BEGIN IMMEDIATE")
            return waited + (before or 0.0)
        except sqlite3.OperationalError as again:
            error = again
    raise error
