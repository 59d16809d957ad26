"""One SQLite file: how it is made, opened, checked, written and read. The statements are in `sql/`.

The writer's connection belongs to whoever has the writer's turn; readers have one of their own. A store in memory has
a single connection for both.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.clock import SystemClock
from holdfast.errors import StoreError, printable
from holdfast.history import RunEventRecord, RunHeader, RunSnapshot, RunStatus
from holdfast.stores.ledger import EventRow, Live, MemoRow, OwnerRow
from holdfast.stores.schema import APPLICATION, SCHEMA, prepare, statements
from holdfast.stores.trouble import PATIENCE, errors_of, unreachable, unreadable

if TYPE_CHECKING:
    import sqlite3

__all__ = ["APPLICATION", "SCHEMA", "SqliteFile", "errors_of", "event", "pack", "standing", "unpack"]

PAUSE = 0.001  # seconds between two tries to begin, about
MOST_LOG = 64 * 2**20  # bytes of its log that SQLite keeps for the next time

_PACK = msgspec.msgpack.Encoder()
_UNPACK = msgspec.msgpack.Decoder(RunSnapshot)
_HEADER = msgspec.json.Decoder(RunHeader)
_JSON = msgspec.json.Encoder()
_PAYLOAD = msgspec.json.Decoder(dict[str, Any])


class SqliteFile:
    """The database at *path*, or one in memory if that is None; opened when it is first needed."""

    def __init__(self, path: str | None, *, synchronous: str = "FULL") -> None:
        self.path = path
        self.name = "the store in memory" if path is None else printable(path, 300)
        self._synchronous = synchronous
        self._sql = statements()
        self.reading = threading.RLock()
        self._write: sqlite3.Connection | None = None
        self._read: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None  # device and inode of the file that was opened
        self._version: int | None = None
        self._crowded = False  # others wanted to write when we last did
        self._abandoned: list[sqlite3.Connection | None] = []
        self._in_use: list[sqlite3.Connection] = []
        weakref.finalize(self, _close, self._in_use).atexit = False  # Python wants nobody to forget a connection

    # -- opening and closing -------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is anything to read yet."""
        return self._opened is not None or self.path is None or os.path.exists(self.path)

    def writing(self) -> sqlite3.Connection:
        """The connection to write with."""
        if self._write is None:
            self._drop()  # a reader made when the file could not be written would have the writer fail, too
            self._write = self._open()
            self._in_use.append(self._write)
            self._write.execute("PRAGMA busy_timeout = 0")  # `begin` waits, and more fairly
            self._version = None
        return self._write

    def reader(self) -> sqlite3.Connection:
        """The connection to read with; hold `reading` while using it."""
        if self.path is None:
            return self.writing()
        if self._read is None:
            self._read = self._open()
            self._in_use.append(self._read)
        return self._read

    def another(self) -> sqlite3.Connection:
        """A connection for one long piece of work; the caller closes it."""
        return self._open()

    def close(self) -> None:
        """Close both connections; a later use opens whatever is at the path by then."""
        self._drop()
        self._opened = None

    def _drop(self) -> None:
        with self.reading:
            self._read = self._write = None
            connections = self._in_use[:]
            self._in_use.clear()
        _close(connections)

    def after_fork(self) -> None:
        """In a forked child: connections to a file do not survive a fork; closing them could harm the parent's."""
        self.reading = threading.RLock()
        if self.path is not None:
            self._abandoned += (self._read, self._write)  # kept, so that nothing finalizes them
            self._in_use.clear()
            self._read = self._write = None

    def check_in_place(self) -> None:
        """That the file which was opened is still the one at its path; SQLite itself would not notice."""
        if self.path is not None and self._opened is not None:
            try:
                found = os.stat(self.path)
            except (FileNotFoundError, NotADirectoryError):
                raise StoreError(
                    f"{self.name}: was deleted or moved while in use; put it back, or close the store: its next use "
                    "begins a new file"
                ) from None
            except OSError as error:
                raise unreachable(self, error) from error
            if (found.st_dev, found.st_ino) != self._opened:
                raise StoreError(
                    f"{self.name}: was replaced by another file while in use; put it back, or close the store: its "
                    "next use opens the other one"
                )

    def _open(self) -> sqlite3.Connection:
        with errors_of(self):
            self.check_in_place()
            try:
                if self.path is not None:
                    self._make(self.path)
                connection = self._connect()
                try:
                    connection.execute(f"PRAGMA synchronous = {self._synchronous}")
                    connection.execute(f"PRAGMA journal_size_limit = {MOST_LOG}")
                    prepare(self, connection)
                    if self.path is not None:
                        found = os.stat(self.path)
                        self._opened = (found.st_dev, found.st_ino)
                except BaseException:
                    connection.close()
                    raise
            except OSError as error:
                raise unreachable(self, error) from error
        return connection

    def _make(self, path: str) -> None:
        """Make the file if there is none: empty, and for this user alone. SQLite takes an empty file for a new one."""
        if _size(path) == 0 and _size(f"{path}-wal") > 0 and _size(path) == 0:  # asked again: others make it, too
            raise StoreError(
                f"{self.name}: is gone or empty, but its log ({os.path.basename(self.name)}-wal) is there; put the "
                "database back, or delete the log if what is in it is not needed"
            )
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

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
        self.check_in_place()
        connection = self.writing()
        self._take_turn(connection)
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        before, self._version = self._version, version
        return bool(version != before)

    def _take_turn(self, connection: sqlite3.Connection) -> None:
        """Begin when no other process writes.

        SQLite's own wait favours whoever has just written, and grows; others starve for seconds. Here the longer one
        waits the oftener one asks, and who had to wait lets others ask first the next time.
        """
        import sqlite3

        begun = SystemClock.monotonic()  # what waits here is the system
        if self._crowded:
            SystemClock.sleep(PAUSE)
        self._crowded = False
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                waited = SystemClock.monotonic() - begun
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or waited > PATIENCE:
                    raise
                self._crowded = True
            SystemClock.sleep(max(2 * PAUSE - waited / 50, PAUSE / 5) * random.uniform(0.5, 1.5))

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction was begun and is not over."""
        return self._write is not None and bool(self._write.in_transaction)

    def commit(self) -> None:
        """On disk when it returns."""
        self.writing().execute("COMMIT")

    def rollback(self, *, afresh: bool) -> None:
        """As if nothing had been written; *afresh* on new connections: one made in trouble may never get out of it."""
        if afresh and self.path is not None:
            self._drop()  # which takes back, too
        elif self.in_transaction:
            self.writing().execute("ROLLBACK")

    def next_key(self) -> int:
        """The key of the next new run."""
        (key,) = self.writing().execute(self._sql["next_key"]).fetchone()
        return int(key)

    def load(self, run_id: str) -> Live | None:
        """A run as it is on disk."""
        try:
            row = self.writing().execute(self._sql["load"], (run_id,)).fetchone()
        except UnicodeEncodeError:  # nothing of that name can have been stored
            return None
        if row is None:
            return None
        key, header, snapshot, touched_at, first, owner, fence, cancel, origin = row
        try:
            live = Live(int(key), _HEADER.decode(header), unpack(snapshot, header), int(touched_at))
            live.first, live.fence = int(first), int(fence)
        except (TypeError, ValueError) as error:
            raise unreadable(error) from error
        live.owner, live.cancel, live.origin = owner, cancel, origin
        return live

    def write(self, lives: Iterable[Live], rows: list[EventRow], memos: list[MemoRow]) -> None:
        """Write what has changed of *lives*, and the new *rows* and *memos*."""
        connection, sql = self.writing(), self._sql
        if rows:
            connection.executemany(sql["add_event"], rows)
        if memos:
            connection.executemany(sql["add_memo"], memos)
        usual, used = [], []
        for live in lives:
            snapshot = live.snapshot
            used += [(tool, live.header.created_at_ms, live.key) for tool in live.new_tools]
            if live.is_new:
                self._add(connection, live)
            elif live.written == live.standing():
                usual.append((live.touched_at, pack(snapshot), live.key))
            else:
                standing = (snapshot.status, live.owner, live.fence, live.cancel)
                connection.execute(sql["change_standing"], (live.touched_at, pack(snapshot), *standing, live.key))
        if usual:
            connection.executemany(sql["change_run"], usual)
        if used:
            connection.executemany(sql["add_tool_of_run"], used)

    def _add(self, connection: sqlite3.Connection, live: Live) -> None:
        snapshot, header = live.snapshot, live.header
        row = (live.key, header.id, header.session_id, snapshot.status, header.created_at_ms, live.touched_at)
        text = _JSON.encode(header).decode()
        standing = (live.owner, live.fence, live.cancel, live.origin)
        connection.execute(self._sql["add_run"], (*row, text, pack(snapshot), *standing))

    def change_header(self, run: int, header: RunHeader) -> None:
        """Write the header of a run that is there anew."""
        self.writing().execute(self._sql["change_header"], (_JSON.encode(header).decode(), run))

    def forget_memos(self, run: int) -> None:
        """Delete the exact results of a run."""
        self.writing().execute(self._sql["forget_memos"], (run,))

    def copy_memos(self, source: int, target: int) -> None:
        """Let *target* know what *source* knew."""
        self.writing().execute(self._sql["copy_memos"], (target, source))

    def owner(self, owner: str) -> OwnerRow | None:
        """A process that has, or had, runs."""
        row = self.writing().execute(self._sql["owner"], (owner,)).fetchone()
        return OwnerRow(*row) if row is not None else None

    def keep_owner(self, row: OwnerRow) -> None:
        """Write down that a process lives, and until when at least."""
        self.writing().execute(self._sql["keep_owner"], row)

    def drop_owner(self, owner: str) -> None:
        """Forget a process, and what it shows of its tools."""
        for name in ("drop_owner", "drop_process", "drop_tools_of_process", "drop_details_of_process"):
            self.writing().execute(self._sql[name], (owner,))

    def drop_old_owners(self, now: int) -> None:
        """Forget the processes whose lease is over and that no run waits for."""
        self.writing().execute(self._sql["drop_old_owners"], (now,))

    # -- reading -------------------------------------------------------------------------------------------------------

    def fetch(self, name: str, *parameters: object) -> list[tuple[Any, ...]]:
        """All rows of the statement *name*; none while there is no file."""
        if not self.exists:
            return []
        with self.reading, errors_of(self):
            self.check_in_place()
            try:
                return self.reader().execute(self._sql[name], parameters).fetchall()
            except UnicodeEncodeError:  # nothing of that name can have been stored
                return []

    def meta(self, name: str) -> Any:
        """A fact about the store itself."""
        with self.reading, errors_of(self):
            row = self.reader().execute(self._sql["meta"], (name,)).fetchone()
        return row[0] if row is not None else None

    def sql(self, name: str) -> str:
        """The text of a statement."""
        return self._sql[name]


def _close(connections: list[sqlite3.Connection]) -> None:
    for connection in connections:
        connection.close()


def pack(snapshot: RunSnapshot) -> bytes:
    """A snapshot as it is stored: without the prompt, which stands in the header and may be long."""
    prompt, snapshot.prompt = snapshot.prompt, ""
    try:
        return _PACK.encode(snapshot)
    finally:
        snapshot.prompt = prompt


def unpack(data: bytes, header: str) -> RunSnapshot:
    """A snapshot as it was before it was stored."""
    try:
        snapshot = _UNPACK.decode(data)
        snapshot.prompt = _PROMPT.decode(header).prompt
    except (TypeError, ValueError) as error:
        raise unreadable(error) from error
    return snapshot


def event(row: tuple[Any, ...]) -> RunEventRecord:
    """An event from its row."""
    sequence, at, type, late, payload = row
    try:
        return RunEventRecord(int(sequence), int(at), str(type), _PAYLOAD.decode(payload), bool(late))
    except (TypeError, ValueError) as error:
        raise unreadable(error) from error


def standing(row: tuple[Any, ...]) -> tuple[int, bool]:
    """The first event that is kept of a run, and whether it has ended; from a row that begins with both."""
    try:
        return int(row[0]), RunStatus(row[1]).is_terminal
    except (TypeError, ValueError) as error:
        raise unreadable(error) from error


class _Prompt(msgspec.Struct):
    """The one thing of a header that its snapshot needs."""

    prompt: str


_PROMPT = msgspec.json.Decoder(_Prompt)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0
