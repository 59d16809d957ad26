"""The connections of a store on PostgreSQL: one to write with and a few to read with, made anew when they fail.

Whoever has the writer's turn has the first, one thread at a time each of the others, which are kept for the next time.
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

MOST = 4  # that read at a time
HELD = 8.0  # seconds to wait for what another process holds: a lease outlives that
SILENCE = 20.0  # seconds for which nobody who reads asks a server again that did not answer

T = TypeVar("T")
_log = logging.getLogger("holdfast")


class Connections:
    """Those to *address*, whose statements are *sql*; *clock* is set by the way."""

    def __init__(self, address: Address, sql: Mapping[str, str], clock: ServerClock) -> None:
        self._address = address
        self._sql = sql
        self._clock = clock
        self._is_ready = False  # the tables are there, as this version knows them
        self._untold = ""  # why others could not be told to look, last time
        self._silence = ""  # what was said of a server that let the last one who connected wait for nothing
        self._silent_until = 0.0
        self._closings = 0  # what was lent before the last one is not kept
        self._reset()

    def _reset(self) -> None:
        self.write: Link | None = None
        self.idle: list[Link] = []
        self._lock = threading.Lock()  # guards the list alone
        self._seats: queue.SimpleQueue[_Seat] = queue.SimpleQueue()
        for _ in range(MOST):
            self._seats.put(_Seat(weakref.ref(self._seats)))

    # -- to write with -------------------------------------------------------------------------------------------------

    def writer(self) -> Link:
        """The one to write with."""
        if self.write is None or self.write.is_broken:
            self.write = self.connect()
        return self.write

    def fresh_writer(self) -> Link:
        """The same, about which nothing speaks against its being alive."""
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
        """That the server has not hung up on *link*, and has taken what was left to it."""
        try:
            link.check()
        except ServerError as error:  # of what was left unread
            if self._untold != str(error):
                self._untold = str(error)
                _log.warning("%s: others could not be told to look: %s", self._address.name, error)

    def drop(self, link: Link) -> None:
        """Write with another one from now on."""
        link.close()
        if self.write is link:
            self.write = None

    # -- to read with --------------------------------------------------------------------------------------------------

    def ask(self, name: str, *parameters: object, create: bool = False) -> list[tuple[Any, ...]]:
        """All rows of the statement *name*; none while there are no tables and *create* is not said."""

        def ask(link: Link) -> list[tuple[Any, ...]]:
            if not self.has_tables(link, create=create):
                return []
            if not self._clock.is_fresh:
                self._clock.set(link.offset())
            if link.pooled:
                link.execute(self._sql["wait_at_most"], (milliseconds(HELD),))  # in one transaction with what is asked
            return link.ask(self._sql[name], *parameters)

        return self.use(ask)

    def use(self, fn: Callable[[Link], T]) -> T:
        """What *fn* gives on one of them; on another if that was gone, but not if it is only silent."""
        try:
            return self._use(fn)
        except (ServerError, Broken) as error:
            if error.link is None or isinstance(error, Silent) or not is_gone(error):
                raise
        self._close_readers()  # it may have been gone for long, and with it the others
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
            link.close()  # gone, cut short with answers on their way, or in a transaction that has failed
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
        """A new one; who only *reads* with it sees to the tables itself, and asks no server that is known to be silent.

        Whoever writes asks again in any case, and by that finds out for all when the server is back.
        """
        if self._silence:
            now = SystemClock.monotonic()
            if reads and now < self._silent_until:
                raise Silent(self._silence)
            self._silent_until = now + SILENCE  # nobody else need wait while we do
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
        """Whether they are there, or were made if *create* is said."""
        if not self._is_ready:
            self._is_ready = prepare(link, self._address.schema, self._address.name, create=create)
        return self._is_ready

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close them all, one that reads as soon as it has done so; a later use makes new ones."""
        self._close_readers()
        if self.write is not None:
            self.drop(self.write)
        self._is_ready = False

    def hold(self, patience: float) -> bool:
        """Let no other thread have the list of readers in hand."""
        return self._lock.acquire(timeout=patience)

    def let_go(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork(self) -> None:
        """In a forked child: they are the parent's."""
        for link in self.idle:
            link.abandon()
        if self.write is not None:
            self.write.abandon()
        self._reset()


class _Seat:
    """Room for one who reads; where an interrupt lets it fall, another takes its place."""

    __slots__ = ("_seats",)

    def __init__(self, seats: weakref.ref[queue.SimpleQueue[_Seat]]) -> None:
        self._seats = seats

    def __del__(self) -> None:
        if (seats := self._seats()) is not None:
            seats.put(_Seat(self._seats))


def milliseconds(seconds: float) -> str:
    """As a setting of the server takes them."""
    return str(int(1000 * seconds))
