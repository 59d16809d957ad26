"""One SQLite file: how it is opened, written and read. The statements are in `sql/`.

The thread that has the writer's turn uses the writer's connection; readers share another one. A store in memory has a
single connection for both.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from holdfast import checks
from holdfast.clock import Clock, SystemClock
from holdfast.errors import StoreError, printable
from holdfast.stores import inotify
from holdfast.stores import rows as columns
from holdfast.stores.connecting import connect
from holdfast.stores.database import Again, Later, Lost
from holdfast.stores.doubt import empty_log, was_written
from holdfast.stores.haste import Haste
from holdfast.stores.ledger import EventRow, Live, MemoRow
from holdfast.stores.log_space import LogSpace
from holdfast.stores.owners import LockFiles
from holdfast.stores.place import Place
from holdfast.stores.rows import pack, pack_header
from holdfast.stores.schema import prepare, statements, use_log
from holdfast.stores.trouble import (
    concerns_all,
    errors_of,
    explained,
    is_conflict,
    is_read_only,
    unreachable,
)
from holdfast.stores.turn import PAUSE, begin_in_turn
from holdfast.stores.watch import Watch

if TYPE_CHECKING:
    import sqlite3

OUTDATED = "another process has written to the same run"
SETTLE = 4.0  # seconds that SQLite may take from writing a commit to its log until readers see it


class SqliteFile:
    """The database at *path*, or one in memory if that is None; opened when it is first needed."""

    def __init__(self, path: str | None, *, synchronous: str = "FULL") -> None:
        self.path = path
        self.name = "the store in memory" if path is None else printable(path, 300)
        self.url = ":memory:" if path is None else path
        if path is not None and synchronous != "FULL":
            self.url = f"sqlite:///{path}?synchronous={synchronous}"
        # No other process writes during a transaction, and `begin` tells if one has before.
        self.has_concurrent_writers = False
        self.blocking = path is not None
        self._place = None if path is None else Place(path, self.name)
        self._log_space = LogSpace(f"{path}-wal" if path is not None and synchronous == "FULL" else None)
        self._synchronous = synchronous
        self._sql = statements()
        self._make_locks()
        self._write: sqlite3.Connection | None = None
        self._read: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        self._version: int | None = None
        self._trusting = False
        self._haste = Haste(self) if path is not None and synchronous == "FULL" else None
        self.later: Later | None = self._haste
        self._contended = False  # the last transaction had to wait for another process, or failed
        self.silence = 0.0
        self._trace: EventRow | Live | None = None  # shows whether the group was committed
        self._in_use: list[sqlite3.Connection | sqlite3.Cursor] = []
        self._has_failed = False  # whether the last commit has
        self._kept: list[sqlite3.Connection] = []  # one of those in use, if a commit has failed
        self._apart: list[sqlite3.Connection] = []  # the connections of `consistent_reader`
        self._abandoned: list[object] = []  # connections that were open during a fork
        weakref.finalize(self, _close, self._in_use).atexit = False  # Python warns of unclosed connections

    # -- opening and closing -------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """True if there is anything to read yet; raises a `StoreError` if the path cannot be examined."""
        return self._place is None or self._place.exists()

    def writing(self) -> sqlite3.Connection:
        """The connection to write with."""
        if self._write is None:
            connection = self._open()
            self._in_use.append(connection)
            if self.path is not None:
                use_log(self, connection)  # a copy made by VACUUM INTO, say, has no log
            connection.execute("PRAGMA busy_timeout = 0")  # `begin` waits itself, and more fairly
            self._version = None
            self._log_space.begin()
            self._write = connection
        return self._write

    def _write_cursor(self) -> sqlite3.Cursor:
        """The cursor that writes all transactions: one for each statement would cost as much as the statement."""
        if self._cursor is None:
            self._cursor = self.writing().cursor()
            self._in_use.append(self._cursor)
        return self._cursor

    def reader(self) -> sqlite3.Connection:
        """The connection to read with; hold `reading` while using it."""
        if self.path is None:
            return self.writing()
        if self._read is None:
            self._read = self._open()
            self._in_use.append(self._read)
        return self._read

    @contextlib.contextmanager
    def consistent_reader(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees everything as it is now, whatever is written meanwhile."""
        connection = (self if self.path is not None and self.exists else SqliteFile(None))._open()
        self._apart.append(connection)
        try:
            with errors_of(self):
                if self.path is None:
                    with self.reading:
                        self.reader().backup(connection)
                connection.execute("BEGIN")
            yield connection
        finally:
            connection.close()
            with contextlib.suppress(ValueError):  # `after_fork` has removed it
                self._apart.remove(connection)

    def explained(self, error: BaseException) -> Exception | None:
        """Return what *error* means: `Again` if what was trusted is outdated; None if the database did not raise it."""
        if self._trusting and is_conflict(error):
            return Again(OUTDATED)
        return explained(self.name, error)

    concerns_all = staticmethod(concerns_all)

    # -- others who use it ---------------------------------------------------------------------------------------------

    def clock(self, given: Clock | None) -> Clock:
        """The clock that dates everything: *given* or the host's, as all processes that use a file are on one host."""
        return checks.clock(given)

    def locks(self) -> LockFiles | None:
        """The locks of all processes that use the file; None for a store in memory."""
        return None if self.path is None else LockFiles(f"{self.path}-owners")

    def watch(self) -> Watch:
        """A watch that wakes when any process has written."""
        return Watch(f"{self.path}-wal", settle=SETTLE)

    def tell(self, owners: Iterable[str]) -> None:
        """Do nothing: the files of *owners* are poked after the commit."""

    def confirm(self, lives: Iterable[Live]) -> None:
        """Do nothing: no other process writes during the transaction."""

    # -- ending --------------------------------------------------------------------------------------------------------

    def hold(self, patience: float) -> bool:
        """Keep other threads from reading; False if one went on for more than *patience* seconds."""
        if self.path is not None:
            inotify.load()
        return self.reading.acquire(timeout=patience)

    def put_away(self) -> None:
        """Close everything before the process forks: SQLite in the child would rely on the parent's file locks, which
        the child does not have, and other processes would delete the log that it writes to.
        """
        if self.path is not None:
            self._drop_all()

    def let_go(self) -> None:
        """Let other threads read again."""
        self.reading.release()

    def close(self) -> None:
        """Close both connections; a later use opens whatever is at the path by then."""
        with self.reading:  # no thread may open a file in between: it would be forgotten
            self._drop_all()
            if self._place is not None:
                self._place.forget()

    def _drop_all(self) -> None:
        self._kept.clear()
        self._has_failed = False
        self._drop()

    def _drop(self) -> None:
        """Close all connections but one that is kept."""
        if self._has_failed and self._write is not None and not self._kept:
            empty_log(self._write, self._kept)
        with self.reading:
            self._read = self._write = self._cursor = None
            if self._haste is not None:
                self._haste.forget()
            in_use = [each for each in self._in_use if each not in self._kept]
            self._in_use[:] = self._kept
            if self._place is not None and not self._kept:
                self._place.forget_log()
        _close(in_use)

    def after_fork(self) -> None:
        """In a forked child: connections still open belong to the parent, and closing them could harm it."""
        self._make_locks()
        if self.path is not None:
            self._abandoned += [*self._in_use, *self._apart]  # kept, so that nothing finalizes them
            self._in_use.clear()
            self._kept.clear()
            self._apart.clear()
            self._read = self._write = self._cursor = None
            if self._haste is not None:
                self._haste.forget()

    def _make_locks(self) -> None:
        """In memory one lock serves both, as no reader may see half a group; a file may be read while it is written."""
        self.reading = threading.RLock()
        self.alone: contextlib.AbstractContextManager[object] = self.reading if self.path is None else threading.RLock()

    def _open(self) -> sqlite3.Connection:
        if self._abandoned:
            raise StoreError(
                f"{self.name}: this process was forked while the file was being written or exported, and cannot use "
                "it; start a new process, or fork at another time"
            )
        with errors_of(self):
            if self._place is not None:
                self._place.check()
            try:
                return self._made_and_opened()
            except OSError as error:
                raise unreachable(self.name, error) from error

    def _made_and_opened(self) -> sqlite3.Connection:
        if self._place is not None:
            self._place.make()
        connection = connect(self.path, self._synchronous)
        try:
            prepare(self, connection)
            if self._place is not None:
                self._place.note()
        except BaseException:
            connection.close()
            raise
        return connection

    # -- a transaction -------------------------------------------------------------------------------------------------

    def begin(self, *, trusting: bool = False) -> bool:
        """Begin a transaction; True if another process may have written since we last looked.

        If it is *trusting*, we do not look: that would cost as much as all other statements but the commit. Then it is
        made again if another process turns out to have written to the same runs.
        """
        cursor = self._cursor if self._cursor is not None else self._write_cursor()
        if self._haste is not None and self._haste.is_on:
            self._haste.turn_off(cursor)
        if self._contended:
            SystemClock.sleep(PAUSE)
            self._contended, self.silence = False, 0.0
        try:
            cursor.execute("BEGIN IMMEDIATE")
        except Exception as error:
            cursor = self._begin_after(cursor, error)
        if (space := self._log_space).events >= space.enough:
            space.make()
        self.note_begin(trusting=trusting and self._version is not None)
        if self._trusting:
            return False
        (version,) = cursor.execute("PRAGMA data_version").fetchone()
        before, self._version = self._version, version
        return bool(version != before)

    def ready(self) -> sqlite3.Cursor | None:
        """The cursor that writes; None if something else than a transaction is to be done first."""
        space = self._log_space
        return None if self._contended or self._version is None or space.events >= space.enough else self._cursor

    def note_begin(self, *, trusting: bool) -> None:
        """Note that a transaction has begun."""
        self._trace = None
        self._has_failed = False
        self._trusting = trusting

    def _begin_after(self, cursor: sqlite3.Cursor, error: Exception) -> sqlite3.Cursor:
        """Begin all the same, if the cause of *error* is gone or goes away; return the cursor that did it."""
        if self._read is not None and is_read_only(error):
            self._drop()  # a reader that was opened while the file was read-only makes the writer fail, too
            cursor = self._write_cursor()
        try:
            cursor.execute("BEGIN IMMEDIATE")
        except Exception as another:
            self._contended = True
            self.silence = begin_in_turn(cursor, another, self._log_age)
        return cursor

    def _log_age(self) -> float:
        return 0.0 if self._place is None else self._place.log_age()

    def is_committed(self) -> bool:
        """True if a commit that was interrupted was made; one that failed has ended its transaction, too."""
        return not self._in_transaction() and (not self._has_failed or was_written(self, self._trace))

    def _in_transaction(self) -> bool:
        return self._write is not None and self._write.in_transaction

    def commit(self) -> None:
        """Put the group on disk before returning, in a file and a log that other processes can still find."""
        if self._place is not None and not self._place.is_whole():
            self._drop_all()
            raise Again("its log was deleted while in use; close all that this process has open of it")
        cursor = self._cursor if self._cursor is not None else self._write_cursor()
        try:
            cursor.execute("COMMIT")
        except Exception as error:
            self._has_failed = self.path is not None  # at once, before an interrupt comes
            if self.path is None:
                raise
            self._drop()  # a new connection shows whether it was written all the same
            raise Lost(partial(was_written, self, self._trace), str(error), error) from error

    def distrust(self) -> None:
        """Begin a new log, as the disk may have failed to write this one."""
        self._has_failed = True
        self._drop()

    def rollback(self, *, afresh: bool) -> None:
        """Undo the transaction; *afresh* also drops the connections, as one made in trouble may never recover."""
        if afresh and self.path is not None:
            self._drop()  # which also rolls back
        elif self._in_transaction():
            self.writing().execute("ROLLBACK")

    def give_back(self, most: int) -> int:
        """Shrink the file by at most *most* unused pages; return how many are left, 0 if it did not shrink."""
        execute = self.writing().execute
        (free,) = execute("PRAGMA freelist_count").fetchone()
        for _ in range(min(free, most)):
            execute("PRAGMA incremental_vacuum(1)")  # Python steps a statement once: one page
        (left,) = execute("PRAGMA freelist_count").fetchone()
        return int(left) if left < free else 0

    def new_keys(self, most: int) -> Iterator[int]:
        """Keys for new runs, any number of them, valid until another process writes."""
        (key,) = self.writing().execute(self._sql["next_key"]).fetchone()
        return count(int(key))

    def load(self, run_id: str) -> Live | None:
        """Read a run from disk; None if there is none."""
        try:
            row = self.writing().execute(self._sql["load"], (run_id,)).fetchone()
        except UnicodeEncodeError:  # nothing of that name can have been stored
            return None
        return columns.live(row) if row is not None else None

    def write(self, lives: Iterable[Live], rows: list[EventRow], memos: list[MemoRow]) -> None:
        """Write what has changed of *lives*, and the new *rows* and *memos*."""
        # Plain tuples of int, str and bytearray: for any other type the sqlite3 module first looks for an adapter.
        cursor, sql = self._cursor if self._cursor is not None else self._write_cursor(), self._sql
        if rows:
            cursor.executemany(sql["add_event"], rows)
            self._log_space.events += len(rows)
            self._trace = rows[-1]
        if memos:
            cursor.executemany(sql["add_memo"], memos)
        usual, used = [], []
        for live in lives:
            snapshot = live.snapshot
            if live.new_tools:
                used += [(tool, live.header.created_at_ms, live.key) for tool in live.new_tools]
            if not live.is_new and live.written == live.standing():
                usual.append((live.touched_at, bytearray(pack(snapshot)), live.key, live.fence))
                continue
            self._trace = self._trace or live
            if live.is_new:
                self._add(cursor, live)
            else:
                standing = (snapshot.status, live.owner, live.fence, live.cancel)
                before = live.written[2]  # the fence
                cursor.execute(sql["change_standing"], (live.touched_at, pack(snapshot), *standing, live.key, before))
                if self._trusting and cursor.rowcount != 1:
                    raise Again(OUTDATED)
        if usual:
            cursor.executemany(sql["change_run"], usual)
            if self._trusting and cursor.rowcount != len(usual):
                raise Again(OUTDATED)
        if used:
            cursor.executemany(sql["add_tool_of_run"], used)

    def _add(self, cursor: sqlite3.Cursor, live: Live) -> None:
        snapshot, header = live.snapshot, live.header
        row = (live.key, header.id, header.session_id, snapshot.status, header.created_at_ms, live.touched_at)
        standing = (live.owner, live.fence, live.cancel, live.origin)
        cursor.execute(self._sql["add_run"], (*row, pack_header(header), pack(snapshot), *standing))
        if header.priority is not None and header.entry is not None:
            cursor.execute(self._sql["queue_run"], (header.entry.get("target"), header.priority, live.key))

    def ask(self, name: str, *parameters: object) -> list[tuple[Any, ...]]:
        """All rows of the statement *name*, as this transaction sees them."""
        return self.writing().execute(self._sql[name], parameters).fetchall()

    pick = ask  # must skip runs that another transaction has picked: here there is no other

    def put(self, name: str, *parameters: object, is_news: bool = True) -> None:
        """Execute the statement *name*."""
        self.writing().execute(self._sql[name], parameters)

    # -- reading -------------------------------------------------------------------------------------------------------

    def fetch(self, name: str, *parameters: object) -> list[tuple[Any, ...]]:
        """All rows of the statement *name*; none while there is no file."""
        if not self.exists:
            return []
        if self._place is not None and self._place.has_lost_log():
            self._leave_log()
        with self.reading, errors_of(self):
            if self._place is not None:
                self._place.check()
            try:
                return self.reader().execute(self._sql[name], parameters).fetchall()
            except UnicodeEncodeError:  # nothing of that name can have been stored
                return []

    def _leave_log(self) -> None:
        """Drop the connections to the lost log; in the middle of a transaction, its commit does that."""
        with self.alone:
            if not self._in_transaction():
                self._drop_all()

    def meta(self, name: str) -> Any:
        """A value that the store keeps about itself; None if it is not set."""
        with self.reading, errors_of(self):
            row = self.reader().execute(self._sql["meta"], (name,)).fetchone()
        return row[0] if row is not None else None

    def sql(self, name: str) -> str:
        """The text of a statement."""
        return self._sql[name]


def _close(in_use: list[sqlite3.Connection | sqlite3.Cursor]) -> None:
    for each in reversed(in_use):  # a cursor before its connection, which would otherwise stay half open
        each.close()
