"""One connection that lasts, for what needs a session: notifications and locks. One thread uses it, any may wake that.

Nothing waits without a bound: a server that hangs, or is gone without a word, is an error after a few seconds.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.clock import SystemClock
from holdfast.errors import StoreError, printable
from holdfast.stores.postgres.address import parameters

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

CONNECTING = 5.0  # seconds that a connection may take
ANSWER = 3.0  # seconds that an answer may take
GONE = 10.0  # seconds until what was sent must have come there
_LONGEST = 86_400.0


class Waker:
    """A pipe to wake a thread that waits for the network; closed when nobody holds it any more. Takes no lock."""

    def __init__(self) -> None:
        self._fds = os.pipe()
        for fd in self._fds:
            os.set_blocking(fd, False)

    def fileno(self) -> int:
        """What can be read once it has been woken."""
        return self._fds[0]

    def wake(self) -> None:
        """Let the thread go on: now, or when it next waits."""
        with contextlib.suppress(BlockingIOError):  # full of wakes that nobody has read yet
            os.write(self._fds[1], b"\0")

    def wait(self, seconds: float) -> None:
        """Until it is woken, which is forgotten, or the time is over."""
        waiting = select.poll()
        waiting.register(self.fileno(), select.POLLIN)
        if waiting.poll(1000 * seconds):
            self.forget()

    def forget(self) -> None:
        """Take back all wakes."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._fds[0], 4096)

    def __del__(self) -> None:
        for fd in getattr(self, "_fds", ()):
            os.close(fd)


class Session:
    """A connection to *dsn*, not made yet; *ending* says that nobody wants it any more, which ends every wait."""

    def __init__(self, dsn: str, waker: Waker, ending: Callable[[], bool]) -> None:
        self._dsn = dsn
        self._waker = waker
        self._ending = ending
        self._pgconn: PGconn | None = None

    def connect(self, turn: int = 0) -> None:
        """Make the connection; where *dsn* names several hosts, the *turn* says which of them is asked first."""
        from psycopg import pq

        given, seconds = parameters(self._dsn, CONNECTING, gone=GONE, turn=turn)
        connection = self._pgconn = pq.PGconn.connect_start(given)
        end = SystemClock.monotonic() + seconds
        while (status := connection.connect_poll()) != pq.PollingStatus.OK:
            if status == pq.PollingStatus.FAILED:
                raise StoreError(_words(connection.error_message))
            self._wait(select.POLLIN if status == pq.PollingStatus.READING else select.POLLOUT, end)
        connection.nonblocking = 1

    @property
    def is_direct(self) -> bool:
        """Whether the server itself is at the other end: a pool answers with a number of its own making."""
        ((pid,),) = self.ask("SELECT pg_backend_pid()")
        return self._pgconn is not None and pid == str(self._pgconn.backend_pid)

    def ask(self, sql: str, *parameters: object) -> list[tuple[str | None, ...]]:
        """The rows of one statement with the placeholders $1, $2 …, all as texts."""
        import psycopg
        from psycopg.pq import ExecStatus

        connection, end = self._connected(), SystemClock.monotonic() + ANSWER
        rows: list[tuple[str | None, ...]] = []
        try:
            connection.send_query_params(sql.encode(), [str(each).encode() for each in parameters])
            while connection.flush():
                self._wait(select.POLLIN | select.POLLOUT, end)
                connection.consume_input()
            while True:
                while connection.is_busy():
                    self._wait(select.POLLIN, end)
                    connection.consume_input()
                if (result := connection.get_result()) is None:
                    return rows
                if result.status not in {ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK}:
                    raise StoreError(_words(result.error_message))
                columns = range(result.nfields)
                rows += [tuple(_text(result.get_value(row, at)) for at in columns) for row in range(result.ntuples)]
        except psycopg.Error as error:
            raise StoreError(_words(str(error).encode())) from error

    def hear(self, seconds: float) -> list[str]:
        """The notifications that have come; waits for the first, but not when woken and no longer than *seconds*."""
        import psycopg

        connection = self._connected()
        try:
            if not (heard := _notifications(connection)):
                self._wait(select.POLLIN, SystemClock.monotonic() + seconds, patient=True)
                connection.consume_input()
                heard = _notifications(connection)
        except psycopg.Error as error:
            raise StoreError(_words(str(error).encode())) from error
        return heard

    def close(self) -> None:
        """Tell the server and end; harmless when it has ended."""
        connection, self._pgconn = self._pgconn, None
        if connection is not None:
            connection.finish()

    def abandon(self) -> None:
        """In a forked child: let go of it without a word to the server, to whom it is the parent's.

        Held open here it would outlive the parent, and others would take that for alive.
        """
        if self._pgconn is not None:
            import psycopg

            with contextlib.suppress(psycopg.Error, OSError):  # half made, or broken: there is nothing to let go of
                os.close(self._pgconn.socket)

    def _connected(self) -> PGconn:
        if self._pgconn is None:
            raise StoreError("the session is closed")
        return self._pgconn

    def _wait(self, events: int, end: float, *, patient: bool = False) -> None:
        """Until the socket is ready; a wake ends only a *patient* wait, which may also end with nothing."""
        waiting = select.poll()
        waiting.register(self._connected().socket, events)
        waiting.register(self._waker.fileno(), select.POLLIN)
        while not self._ending():
            left = end - SystemClock.monotonic()
            ready = {fd for fd, _ in waiting.poll(1000 * min(max(0.0, left), _LONGEST))}
            woken = self._waker.fileno() in ready
            if woken:
                self._waker.forget()
            if patient or len(ready) > woken:
                return
            if left <= 0:
                raise StoreError("no answer from the server")
        raise StoreError("the session is ending")


def _notifications(connection: PGconn) -> list[str]:
    heard = []
    while (notification := connection.notifies()) is not None:
        heard.append(notification.extra.decode(errors="replace"))
    return heard


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _words(message: bytes) -> str:
    return printable(" ".join(message.decode(errors="replace").split()), 500) or "the connection is broken"
