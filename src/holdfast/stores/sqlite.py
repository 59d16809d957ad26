"""One SQLite file: how it is opened, written and read. The statements are in `sql/`.

The writer's connection belongs to whoever has the writer's turn; readers have one of their own. A store in memory has
a single connection for both.
"""

from __future__ import annotations

import contextlib
import random
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
from holdfast.stores.database import Again, Lost
from holdfast.stores.doubt import was_written
from holdfast.stores.ledger import EventRow, Live, MemoRow
from holdfast.stores.owners import LockFiles
from holdfast.stores.place import Place
from holdfast.stores.room import Room
from holdfast.stores.rows import pack, pack_header
from holdfast.stores.schema import prepare, statements, use_log
from holdfast.stores.trouble import PATIENCE, concerns_all, errors_of, explained, unreachable
from holdfast.stores.watch import Watch

if TYPE_CHECKING:
    import sqlite3

PAUSE = 0.001  # seconds between two tries to begin, about
MOST_LOG = 64 * 2**20  # bytes of its log that SQLite keeps for the next time
SETTLE = 4.0  # seconds that SQLite may take from writing a commit to showing it


class SqliteFile:
    """The database at *path*, or one in memory if that is None; opened when it is first needed."""

    def __init__(self, path: str | None, *, synchronous: str = "FULL") -> None:
        self.path = path
        self.name = "the store in memory" if path is None else printable(path, 300)
        self.url = ":memory:" if path is None else path
        self.crowded = False  # while it writes, nobody else does; and it hears whether anybody has
        self.blocking = path is not None
        self._place = None if path is None else Place(path, self.name)
        self._room = Room(f"{path}-wal" if path is not None and synchronous == "FULL" else None)
        self._synchronous = synchronous
        self._sql = statements()
        self._make_locks()
        self._write: sqlite3.Connection | None = None
        self._read: sqlite3.Connection | None = None
        self._cursor: sqlite3.Cursor | None = None
        self._version: int | None = None
        self._contended = False  # others wanted to write when we last did
        self._trace: EventRow | Live | None = None  # by which one can tell whether the group was committed
        self._in_use: list[sqlite3.Connection | sqlite3.Cursor] = []
        self._apart: list[sqlite3.Connection] = []  # those of whoever looks at one moment
        self._abandoned: list[object] = []  # what a fork has torn apart
        weakref.finalize(self, _close, self._in_use).atexit = False  # Python wants nobody to forget a connection

    # -- opening and closing -------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is anything to read yet; what may not be looked at is an error, not nothing."""
        return self._place is None or self._place.exists()

    def writing(self) -> sqlite3.Connection:
        """The connection to write with."""
        if self._write is None:
            self._drop()  # a reader made when the file could not be written would have the writer fail, too
            connection = self._open()
            self._in_use.append(connection)
            if self.path is not None:
                use_log(self, connection)  # a copy that was made by VACUUM INTO, say, has none
            connection.execute("PRAGMA busy_timeout = 0")  # `begin` waits, and more fairly
            self._version = None
            self._room.begin()
            self._write = connection
        return self._write

    def _pen(self) -> sqlite3.Cursor:
        """What every transaction is written with: a cursor for each statement would cost as much as the statement."""
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
    def at_one_moment(self) -> Iterator[sqlite3.Connection]:
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
            with contextlib.suppress(ValueError):  # it was lost in a fork
                self._apart.remove(connection)

    def explained(self, error: BaseException) -> StoreError | None:
        """What an error of the database means, if it is one."""
        return explained(self.name, error)

    concerns_all = staticmethod(concerns_all)

    # -- others who use it ---------------------------------------------------------------------------------------------

    def clock(self, given: Clock | None) -> Clock:
        """The clock that everything goes by: all who use a file are on one host."""
        return checks.clock(given)

    def locks(self) -> LockFiles | None:
        """The locks of all who use it; None if nobody else can."""
        return None if self.path is None else LockFiles(f"{self.path}-owners")

    def watch(self) -> Watch:
        """Wakes when somebody has written."""
        return Watch(f"{self.path}-wal", settle=SETTLE)

    def tell(self, owners: Iterable[str]) -> None:
        """Their files are poked after the commit."""

    def confirm(self, lives: Iterable[Live]) -> None:
        """Nobody else writes meanwhile."""

    # -- ending --------------------------------------------------------------------------------------------------------

    def hold(self, patience: float) -> bool:
        """Let no other thread read; false if one did so for too long."""
        if self.path is not None:
            inotify.load()
        return self.reading.acquire(timeout=patience)

    def put_away(self) -> None:
        """Have nothing open while the process is forked: SQLite in the child would go by the parent's file locks, which
        it does not have, and others would delete the log in which it writes.
        """
        if self.path is not None:
            self._drop()

    def let_go(self) -> None:
        """Let others read again."""
        self.reading.release()

    def close(self) -> None:
        """Close both connections; a later use opens whatever is at the path by then."""
        with self.reading:  # who opens it after this notes which file that is
            self._drop()
            if self._place is not None:
                self._place.forget()

    def _drop(self) -> None:
        with self.reading:
            self._read = self._write = self._cursor = None
            in_use = self._in_use[:]
            self._in_use.clear()
            if self._place is not None:
                self._place.forget_log()
        _close(in_use)

    def after_fork(self) -> None:
        """In a forked child: what could not be put away belongs to the parent, and to close it could harm that."""
        self._make_locks()
        if self.path is not None:
            self._abandoned += [*self._in_use, *self._apart]  # kept, so that nothing finalizes them
            self._in_use.clear()
            self._apart.clear()
            self._read = self._write = self._cursor = None

    def _make_locks(self) -> None:
        """A store in memory has one connection for all, and nobody may see half of a group; of a file all may read."""
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
        connection = self._connect()
        try:
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            if self._synchronous == "FULL":  # on macOS the disk itself would keep in memory what was synced
                connection.execute("PRAGMA fullfsync = ON")
            connection.execute(f"PRAGMA journal_size_limit = {MOST_LOG}")
            prepare(self, connection)
            if self._place is not None:
                self._place.note()
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self) -> sqlite3.Connection:
        import sqlite3

        return sqlite3.connect(
            ":memory:" if self.path is None else self.path,
            timeout=PATIENCE,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
        )

    # -- a transaction -------------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Begin to write; true if somebody else has written since our last transaction."""
        cursor = self._cursor if self._cursor is not None else self._pen()
        if self._contended:
            SystemClock.sleep(PAUSE)
            self._contended = False
        try:
            cursor.execute("BEGIN IMMEDIATE")
        except Exception as error:
            self._wait_for_turn(cursor, error)
        if (room := self._room).events >= room.enough:
            room.make()
        (version,) = cursor.execute("PRAGMA data_version").fetchone()
        before, self._version = self._version, version
        self._trace = None
        return bool(version != before)

    def _wait_for_turn(self, cursor: sqlite3.Cursor, error: Exception) -> None:
        """Begin when the other process that writes has done so; raises an *error* that is another.

        SQLite's own wait favours whoever has just written, and grows; others starve for seconds. Here the longer one
        waits the oftener one asks, and who had to wait lets others ask first the next time.
        """
        import sqlite3

        begun, waited = SystemClock.monotonic(), 0.0  # what waits here is the system
        while getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY and waited <= PATIENCE:
            self._contended = True
            SystemClock.sleep(max(2 * PAUSE - waited / 50, PAUSE / 5) * random.uniform(0.5, 1.5))
            try:
                cursor.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as again:
                error, waited = again, SystemClock.monotonic() - begun
        raise error

    def is_committed(self) -> bool:
        """Whether a commit that was cut short was made."""
        return self._write is None or not self._write.in_transaction

    def commit(self) -> None:
        """On disk when it returns; in a file, or a log of it, that nobody can find any more it would not count."""
        if self._place is not None:
            self._place.check()
            if not self._place.has_log():
                self._drop()
                raise Again("its log was deleted while in use; close all that this process has open of it")
        try:
            self._pen().execute("COMMIT")
        except Exception as error:
            if self.path is None:
                raise
            self._drop()  # what it has written of it all the same shows on a new connection
            raise Lost(partial(was_written, self, self._trace), str(error), error) from error

    def rollback(self, *, afresh: bool) -> None:
        """As if nothing had been written; *afresh* on new connections: one made in trouble may never get out of it."""
        if afresh and self.path is not None:
            self._drop()  # which takes back, too
        elif not self.is_committed():
            self.writing().execute("ROLLBACK")

    def give_back(self, most: int) -> int:
        """Let the file shrink by at most so many pages that are no longer used; gives how many are left."""
        connection = self.writing()
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        for _ in range(min(free, most)):  # each time Python takes one step: one page
            connection.execute("PRAGMA incremental_vacuum(1)")
        (left,) = connection.execute("PRAGMA freelist_count").fetchone()
        return int(left) if left < free else 0

    def new_keys(self, most: int) -> Iterator[int]:
        """Keys for new runs, as many as are wanted while nobody else writes."""
        (key,) = self.writing().execute(self._sql["next_key"]).fetchone()
        return count(int(key))

    def load(self, run_id: str) -> Live | None:
        """A run as it is on disk."""
        try:
            row = self.writing().execute(self._sql["load"], (run_id,)).fetchone()
        except UnicodeEncodeError:  # nothing of that name can have been stored
            return None
        return columns.live(row) if row is not None else None

    def write(self, lives: Iterable[Live], rows: list[EventRow], memos: list[MemoRow]) -> None:
        """Write what has changed of *lives*, and the new *rows* and *memos*."""
        # Plain tuples, whole numbers and bytearrays: of all else the module asks first how it wants to be stored.
        pen, sql = self._pen(), self._sql
        if rows:
            pen.executemany(sql["add_event"], rows)
            self._room.events += len(rows)
            self._trace = rows[-1]
        if memos:
            pen.executemany(sql["add_memo"], memos)
        usual, used = [], []
        for live in lives:
            snapshot = live.snapshot
            if live.new_tools:
                used += [(tool, live.header.created_at_ms, live.key) for tool in live.new_tools]
            if not live.is_new and live.written == live.standing():
                usual.append((live.touched_at, bytearray(pack(snapshot)), live.key))
                continue
            self._trace = self._trace or live
            if live.is_new:
                self._add(pen, live)
            else:
                standing = (snapshot.status, live.owner, live.fence, live.cancel)
                pen.execute(sql["change_standing"], (live.touched_at, pack(snapshot), *standing, live.key))
        if usual:
            pen.executemany(sql["change_run"], usual)
        if used:
            pen.executemany(sql["add_tool_of_run"], used)

    def _add(self, pen: sqlite3.Cursor, live: Live) -> None:
        snapshot, header = live.snapshot, live.header
        row = (live.key, header.id, header.session_id, snapshot.status, header.created_at_ms, live.touched_at)
        standing = (live.owner, live.fence, live.cancel, live.origin)
        pen.execute(self._sql["add_run"], (*row, pack_header(header), pack(snapshot), *standing))
        if header.priority is not None and header.entry is not None:
            pen.execute(self._sql["queue_run"], (header.entry.get("target"), header.priority, live.key))

    def ask(self, name: str, *parameters: object) -> list[tuple[Any, ...]]:
        """All rows of the statement *name*, as this transaction sees them."""
        return self.writing().execute(self._sql[name], parameters).fetchall()

    pick = ask  # of runs that no other transaction has picked: here there is no other

    def put(self, name: str, *parameters: object, is_news: bool = True) -> None:
        """Make the statement *name*."""
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
        """Have all use the log that is here; in the middle of a transaction, its commit will see to it."""
        with self.alone:
            if self.is_committed():
                self._drop()

    def meta(self, name: str) -> Any:
        """A fact about the store itself."""
        with self.reading, errors_of(self):
            row = self.reader().execute(self._sql["meta"], (name,)).fetchone()
        return row[0] if row is not None else None

    def sql(self, name: str) -> str:
        """The text of a statement."""
        return self._sql[name]


def _close(in_use: list[sqlite3.Connection | sqlite3.Cursor]) -> None:
    for each in reversed(in_use):  # a cursor before its connection, which would stay half open for it
        each.close()
