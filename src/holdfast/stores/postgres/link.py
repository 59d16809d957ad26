"""One connection to PostgreSQL. Statements are sent ahead and answered in order, so a transaction is one round trip.

One thread at a time uses it. Every wait has a bound; a connection that broke or was interrupted is closed and replaced.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from holdfast.clock import SystemClock
from holdfast.errors import ConfigError
from holdfast.stores.postgres.address import parameters
from holdfast.stores.postgres.values import decode, encode
from holdfast.stores.trouble import PATIENCE

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

CANCELLING = 2.0  # seconds that a request to cancel may take
AHEAD = 200  # statements that are sent before answers are read
EXTRA = "a store on PostgreSQL needs psycopg: pip install 'holdfast[postgres]'"

_DONE, _ROWS, _SYNC, _SKIPPED = 1, 2, 10, 11  # the status of a result, from libpq-fe.h


class Limits(NamedTuple):
    """How many seconds something may take."""

    connecting: float  # unless the address says it
    answer: float
    gone: float  # until the server must have acknowledged what was sent


USUAL = Limits(connecting=10.0, answer=PATIENCE, gone=30.0)


class ServerError(Exception):
    """An error that the server reported; *code* is its SQLSTATE, *link* the connection."""

    def __init__(self, code: str, message: str, link: Link) -> None:
        super().__init__(message)
        self.code = code
        self.link = link


class Broken(Exception):
    """The connection could not be made or, if *link* is given, is gone."""

    def __init__(self, message: str, link: Link | None = None) -> None:
        super().__init__(message)
        self.link = link


class Silent(Broken):
    """The server has not answered in time; if it was reached, it may still be at work on the statement."""


class Answer:
    """The rows of one statement; asking for them waits until they are there."""

    __slots__ = ("_at", "_link", "is_there", "prepares", "rows")

    def __init__(self, link: Link, prepares: str | None = None) -> None:
        self._link = link
        self._at = 0
        self.prepares = prepares  # the statement whose preparation it answers; then it has no rows
        self.is_there = False
        self.rows: list[tuple[Any, ...]] = []

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row."""
        self._link.wait_for(self)
        if self._at >= len(self.rows):
            return None
        self._at += 1
        return self.rows[self._at - 1]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rest of the rows."""
        self._link.wait_for(self)
        at, self._at = self._at, len(self.rows)
        return self.rows[at:]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.fetchall())


class Link:
    """A connection to *dsn*, begun; `connect` waits for it. If *dsn* names several hosts, *turn* says which is first.

    It is *pooled* if a pool may give it another server connection for each transaction: the caller says so, or
    `connect` finds out. If it *cancels*, the server is asked to stop a statement that took too long. That must never be
    a commit: one that waits for a standby would be done without the standby. All waits end once the file *stop* can be
    read.
    """

    def __init__(
        self,
        dsn: str,
        *,
        pooled: bool = False,
        cancels: bool = False,
        limits: Limits = USUAL,
        turn: int = 0,
        stop: int | None = None,
    ) -> None:
        try:
            from psycopg import pq
        except ImportError as error:
            raise ConfigError(EXTRA) from error
        self.is_broken = False
        self.pooled = True  # no statement is prepared until `connect` knows whether it is
        self._is_said_pooled = pooled
        self._cancels = cancels
        self._limits = limits
        self._stop = stop
        self._names: dict[str, bytes] = {}  # of statements that are prepared on the server
        self._numbers = 0
        self._due: deque[Answer | None] = deque()  # answers still to come; None for the end of a batch
        self._pending = 0  # batches whose end was not answered yet
        self._trouble: ServerError | None = None  # the first error of a batch: the server skips the rest of it
        self._rows: list[tuple[Any, ...]] | None = None
        given, self._connecting = parameters(dsn, limits.connecting, gone=limits.gone, turn=turn)
        self._pgconn = pq.PGconn.connect_start(given)

    def connect(self) -> None:
        """Wait until connected, and find out whether it is to a pool, which reports process ids of its own making."""
        pgconn = self._pgconn
        try:
            if not _reached(pgconn.connect_poll, lambda: pgconn.socket, self._connecting, self._stop):
                raise Broken(_words(pgconn.error_message.decode(errors="replace")))
            pgconn.nonblocking = 1
            pgconn.enter_pipeline_mode()
            self._ready = _polling(pgconn.socket, select.POLLIN, self._stop)
            pid = self.ask("SELECT pg_catalog.pg_backend_pid()")
            self.pooled = pid != [(pgconn.backend_pid,)] or self._is_said_pooled
        except _psycopg_error() as error:
            self.close()
            raise Broken(_words(str(error))) from error
        except BaseException:
            self.close()
            raise

    @property
    def encoding(self) -> str:
        """The encoding of the texts in the database."""
        return (self._pgconn.parameter_status(b"server_encoding") or b"").decode()

    @property
    def server_version(self) -> int:
        """The server's version: 150004 is 15.4."""
        return self._pgconn.server_version

    # -- asking --------------------------------------------------------------------------------------------------------

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Answer:
        """Send a statement with the placeholders $1, $2 …; its answer is waited for only when its rows are read."""
        values, formats = encode(parameters)
        answer = Answer(self)
        try:
            if self.pooled:
                self._pgconn.send_query_params(sql.encode(), values, None, formats, 1)
            else:
                name = self._names.get(sql) or self._prepare(sql)
                self._pgconn.send_query_prepared(name, values, formats, 1)
        except Exception as error:  # libpq raises only if it cannot send
            self._break(error)
        self._due.append(answer)
        if len(self._due) >= AHEAD:
            self._pgconn.send_flush_request()
            self._pump(lambda: len(self._due) < AHEAD // 2)
        return answer

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]]) -> None:
        """Send a statement once for each of *parameters*."""
        for each in parameters:
            self.execute(sql, each)

    def ask(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """All rows of one statement, in the transaction that was begun, otherwise in one of its own."""
        answer = self.execute(sql, parameters)
        self.sync()
        return answer.fetchall()

    def wait_for(self, answer: Answer) -> None:
        """Wait until *answer* is there; raise the error because of which it cannot be."""
        if not answer.is_there:
            self.end_batch()  # does not end a transaction, but lets the server notice if we do not go on
            self._pump(lambda: not self._pending)
        if self._trouble is not None:
            raise self._trouble

    def end_batch(self) -> None:
        """Make the server answer what was sent; an error in it does not affect what follows."""
        try:
            self._pgconn.pipeline_sync()
        except Exception as error:
            self._break(error)
        self._due.append(None)
        self._pending += 1

    def sync(self) -> None:
        """Wait until everything that was sent is done; the first error is raised."""
        self.end_batch()
        self.finish()

    def finish(self, left: int = 0) -> None:
        """Wait for the end of the batches that were sent, except the *left* last ones; the first error is raised."""
        self._pump(lambda: self._pending <= left)
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble

    def offset(self) -> float:
        """The offset, in seconds, of the server's clock from our monotonic clock."""
        before = SystemClock.monotonic()
        ((now,),) = self.ask("SELECT extract(epoch FROM clock_timestamp())::float8")
        return float(now) - (before + SystemClock.monotonic()) / 2

    def check(self) -> None:
        """Read what has arrived since the last use; raises if that is an error, or the server has hung up."""
        if self._due:
            self.finish()
        elif self._ready.poll(0):
            try:
                self._pgconn.consume_input()
            except Exception as error:
                self._break(error)

    def clear(self) -> None:
        """Read all answers still to come and ignore errors among them; the last batch need not be ended yet."""
        self.end_batch()
        self._pump(lambda: not self._pending)
        self._trouble = None

    # -- hearing -------------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """The socket, which can be read when something has arrived; then call `check`."""
        return self._pgconn.socket

    def heard(self) -> list[str]:
        """The notifications that have arrived since the last call."""
        found = []
        while (notification := self._pgconn.notifies()) is not None:
            found.append(notification.extra.decode(errors="replace"))
        return found

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection; harmless when it is closed."""
        self.is_broken = True
        self._pgconn.finish()

    def abandon(self) -> None:
        """In a forked child: close the socket without telling the server, as the connection is the parent's.

        Held open here it would outlive the parent, and others would take the parent for alive.
        """
        self.is_broken = True
        with contextlib.suppress(OSError, _psycopg_error()):  # half made, or broken: there is nothing to close
            os.close(self._pgconn.socket)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _prepare(self, sql: str) -> bytes:
        self._numbers += 1
        name = b"h%d" % self._numbers
        self._pgconn.send_prepare(name, sql.encode())
        self._due.append(Answer(self, sql))
        self._names[sql] = name
        return name

    def _pump(self, done: Callable[[], bool]) -> None:
        """Send and receive until *done* says so."""
        pgconn, seconds = self._pgconn, self._limits.answer
        end = SystemClock.monotonic() + seconds
        try:
            while not done():
                is_full = pgconn.flush()
                if self._take(done):
                    continue
                if is_full:
                    self._ready.modify(pgconn.socket, select.POLLIN | select.POLLOUT)
                _wait(self._ready, seconds, end, self._stop)
                if is_full:
                    self._ready.modify(pgconn.socket, select.POLLIN)
                pgconn.consume_input()
        except (Broken, OSError, _psycopg_error()) as error:
            self._break(error)

    def _take(self, done: Callable[[], bool]) -> bool:
        """Take in the results that have arrived, without waiting, until *done* says so; False if none has."""
        pgconn, found = self._pgconn, False
        while not done() and not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                if self._rows is None:
                    return found
                self._answered(self._rows)
                self._rows = None
            else:
                self._taken(result)
            found = True
        return found

    def _taken(self, result: PGresult) -> None:
        status = result.status
        if status == _ROWS:
            self._rows = decode(result)
        elif status == _DONE:
            self._rows = []
        elif status == _SYNC:
            self._due.popleft()
            self._pending -= 1
        else:
            if status != _SKIPPED and self._trouble is None:
                self._trouble = _trouble(result, self)
            first = self._due[0]
            if first is None:  # it failed at the end of its batch, whose own answer is still to come
                return
            self._rows = []
            if first.prepares is not None:
                self._names.pop(first.prepares, None)

    def _answered(self, rows: list[tuple[Any, ...]]) -> None:
        answer = self._due.popleft()
        if answer is not None:
            answer.rows = rows
            answer.is_there = True

    def _break(self, error: BaseException) -> NoReturn:
        said, kind = self._trouble, Silent if isinstance(error, Silent) else Broken
        if kind is Silent and self._cancels:
            _cancel(self._pgconn)
        self.close()
        if said is not None:  # the server said why before it hung up
            raise said from error
        raise kind(_words(str(error)), self) from error


def _trouble(result: PGresult, link: Link) -> ServerError:
    from psycopg.pq import DiagnosticField

    code = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
    said = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    return ServerError(code, said.decode(errors="replace"), link)


# -- waiting -----------------------------------------------------------------------------------------------------------


def _reached(poll: Callable[[], int], socket: Callable[[], int], seconds: float, stop: int | None = None) -> bool:
    """Poll until the server is reached; false if it cannot be."""
    from psycopg.pq import PollingStatus

    end = SystemClock.monotonic() + seconds
    while (status := poll()) != PollingStatus.OK:
        if status == PollingStatus.FAILED:
            return False
        wanted = select.POLLIN if status == PollingStatus.READING else select.POLLOUT
        _wait(_polling(socket(), wanted, stop), seconds, end, stop)
    return True


def _polling(socket: int, events: int, stop: int | None) -> select.poll:
    waiting = select.poll()
    waiting.register(socket, events)
    if stop is not None:
        waiting.register(stop, select.POLLIN)
    return waiting


def _wait(waiting: select.poll, seconds: float, end: float, stop: int | None) -> None:
    """Wait until something is ready, up to the time *end*; *seconds* is how long that is in all, for the error."""
    ready = waiting.poll(1000 * max(0.0, end - SystemClock.monotonic()))
    if not ready:
        raise Silent(f"no answer from the server for {seconds:g} s")
    if stop is not None and any(fd == stop for fd, _ in ready):
        raise Broken("nobody waits for it any more")


def _cancel(pgconn: PGconn) -> None:
    """Ask the server to stop what it is doing. Nothing is asked with libpq before 17, where that wait has no bound."""
    try:
        asking = pgconn.cancel_conn()
        asking.start()
        _reached(asking.poll, lambda: asking.socket, CANCELLING)
        asking.finish()
    except (Broken, _psycopg_error()):
        return  # the server does not answer this request either


def _psycopg_error() -> type[Exception]:
    import psycopg

    return psycopg.Error


def _words(said: str) -> str:
    return " ".join(said.split())
