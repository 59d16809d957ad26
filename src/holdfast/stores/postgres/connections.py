"""The connections of a store on PostgreSQL: one to write with and a few to read with, replaced when they fail.

The thread that has the writer's turn uses the first; the others are lent to one thread at a time each, and kept for the
next one.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from holdfast.clock import SystemClock
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.clock import ServerClock
from holdfast.stores.postgres.link import Broken, Link, ServerError, Silent
from holdfast.stores.postgres.schema import prepare
from holdfast.stores.postgres.trouble import is_gone

MOST = 4  # connections that read at a time
HELD = 8.0  # seconds to wait for a lock of another process; shorter than a lease
SILENCE = 20.0  # seconds for which readers do not try again to connect to a server that did not answer

T = TypeVar("T")
_log = logging.getLogger("holdfast")


class Connections:
    """The connections to *address*, with the statements *sql*; *clock* is set along the way."""

    def __init__(self, address: Address, sql: Mapping[str, str], clock: ServerClock) -> None:
        self._address = address
        self._sql = sql
        self._clock = clock
        self._is_ready = False  # the tables exist, as this version knows them
        self._untold = ""  # why other processes could not be notified, last time
        self._silence = ""  # the last error of connecting, if the server did not answer
        self._silent_until = 0.0
        self._closings = 0  # a connection that was lent before the last one is not kept
        self._reset()

    def _reset(self) -> None:
        self.write: Link | None = None
        self.idle: list[Link] = []
        self._lock = threading.Lock()  # guards only the list `idle`
        self._seats: queue.SimpleQueue[_Seat] = queue.SimpleQueue()
        for _ in range(MOST):
            self._seats.put(_Seat(weakref.ref(self._seats)))

    # -- to write with -------------------------------------------------------------------------------------------------

    def writer(self) -> Link:
        """The connection to write with."""
        if self.write is None or self.write.is_broken:
            self.write = self.connect()
        return self.write

    def fresh_writer(self) -> Link:
        """The connection to write with, checked: as far as can be seen the server has not hung up on it."""
        for _ in range(2):
            link = self.writer()
            try:
                self.check(link)
                if not self._clock.is_fresh:
                    self._clock.set(link.offset())
                return link
            except (ServerError, Broken) as error:
                self.drop(link)
                trouble = error
        raise trouble

    def check(self, link: Link) -> None:
        """Raise if the server has hung up on *link*; log if it refused a notification that was not waited for."""
        try:
            link.check()
        except ServerError as error:  # from an answer that was not waited for
            if self._untold != str(error):
                self._untold = str(error)
                _log.warning("%s: others could not be told to look: %s", self._address.name, error)

    def drop(self, link: Link) -> None:
        """Close *link*; the next write uses another one."""
        link.close()
        if self.write is link:
            self.write = None

    # -- to read with --------------------------------------------------------------------------------------------------

    def ask(self, name: str, *parameters: object, create: bool = False) -> list[tuple[Any, ...]]:
        """All rows of the statement *name*; none if there are no tables, unless *create* makes them."""

        def ask(link: Link) -> list[tuple[Any, ...]]:
            if not self.has_tables(link, create=create):
                return []
            if not self._clock.is_fresh:
                self._clock.set(link.offset())
            if link.pooled:
                link.execute(self._sql["wait_at_most"], (milliseconds(HELD),))  # in the same transaction
            return link.ask(self._sql[name], *parameters)

        return self.use(ask)

    def use(self, fn: Callable[[Link], T]) -> T:
        """Call *fn* with a connection to read with; again with another if that was gone, but not if it was silent."""
        try:
            return self._use(fn)
        except (ServerError, Broken) as error:
            if error.link is None or isinstance(error, Silent) or not is_gone(error):
                raise
        self._close_readers()  # it may have been gone for long, and the others with it
        return self._use(fn)

    def _use(self, fn: Callable[[Link], T]) -> T:
        seat = self._seats.get()
        try:
            return self._lend(fn)
        finally:
            self._seats.put(seat)

    def _lend(self, fn: Callable[[Link], T]) -> T:
        closings, link = self._closings, self._take()
        try:
            return fn(link)
        except BaseException:
            link.close()  # gone, interrupted with answers on their way, or in a transaction that has failed
            raise
        finally:
            self._put_back(link, closings)

    def _take(self) -> Link:
        with self._lock:
            if self.idle:
                return self.idle.pop()
        return self.connect(reads=True)

    def _put_back(self, link: Link, closings: int) -> None:
        with self._lock:
            is_kept = closings == self._closings and not link.is_broken
            if is_kept:
                self.idle.append(link)
        if not is_kept:
            link.close()

    def _close_readers(self) -> None:
        with self._lock:
            self._closings += 1
            links, self.idle = self.idle, []
        for link in links:
            link.close()

    # -- making them ---------------------------------------------------------------------------------------------------

    def connect(self, *, reads: bool = False) -> Link:
        """Make a connection; if it only *reads*, no tables are made, and a server known to be silent is not tried.

        A writer tries in any case, and so finds out for all when the server is back.
        """
        if self._silence:
            now = SystemClock.monotonic()
            if reads and now < self._silent_until:
                raise Silent(self._silence)
            self._silent_until = now + SILENCE  # no reader need wait while this thread does
        try:
            link = Link(self._address.dsn, pooled=self._address.pooled, cancels=reads)
            link.connect()
        except BaseException as error:
            self._silence = str(error) if isinstance(error, Silent) else ""
            self._silent_until = SystemClock.monotonic() + SILENCE
            raise
        self._silence = ""
        try:
            if not link.pooled:
                link.ask(self._sql["settle"], milliseconds(HELD))
            if not reads:
                self.has_tables(link, create=True)
        except BaseException:
            link.close()
            raise
        return link

    def has_tables(self, link: Link, *, create: bool = False) -> bool:
        """True if the tables exist, or *create* has made them."""
        if not self._is_ready:
            self._is_ready = prepare(link, self._address.schema, self._address.name, create=create)
        return self._is_ready

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all connections, one that is lent as soon as it comes back; a later use makes new ones."""
        self._close_readers()
        if self.write is not None:
            self.drop(self.write)
        self._is_ready = False

    def hold(self, patience: float) -> bool:
        """Keep other threads from the list of readers; False if one used it for more than *patience* seconds."""
        return self._lock.acquire(timeout=patience)

    def let_go(self) -> None:
        """Let other threads use the list again."""
        self._lock.release()

    def after_fork(self) -> None:
        """In a forked child: let go of the connections, which are the parent's."""
        for link in self.idle:
            link.abandon()
        if self.write is not None:
            self.write.abandon()
        self._reset()


class _Seat:
    """The right of one thread to read; if an interrupt drops it, its end puts another one in its place."""

    __slots__ = ("_seats",)

    def __init__(self, seats: weakref.ref[queue.SimpleQueue[_Seat]]) -> None:
        self._seats = seats

    def __del__(self) -> None:
        if (seats := self._seats()) is not None:
            seats.put(_Seat(self._seats))


def milliseconds(seconds: float) -> str:
    """*seconds* in milliseconds, as a setting of the server takes them."""
    return str(int(1000 * seconds))
