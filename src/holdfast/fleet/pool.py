"""Connections that are ready to be used: a few a node, opened ahead of time by the service.

Taking one and giving it back are single operations on a deque while there is one to take. Who finds none opens another
one, up to a bound: the service opens one after the other, too slowly for many who come at once. Past that bound one
waits.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from holdfast.fleet.address import Address, Place
from holdfast.fleet.link import Away, Link
from holdfast.fleet.places import Node

MOST = 32  # connections a node that threads share
KEPT = 8  # of them that stay when they are not needed
SPARE = 2  # that lie ready

Give = Callable[[Link], object]  # of somebody who waits for a connection: called with it, once, in any thread


class Room:
    """The place of a connection that is about to be opened; it is kept as long as this is."""

    __slots__ = ("__weakref__",)


class Pool:
    """The connections of one process to *node*; *wanted* is called when another one would be of use."""

    def __init__(self, node: Node, address: Address, wanted: Callable[[], object]) -> None:
        self.node = node
        self._address = address
        self._wanted = wanted
        self._free: deque[Link] = deque()
        self._waiters: deque[Give] = deque()
        self._lock = threading.Lock()
        # Those that are free, lent or about to be: what an interrupt lets fall counts no more.
        self._open: weakref.WeakSet[Link | Room] = weakref.WeakSet()
        self._reached = False  # one was opened
        self._place: Place | None = None  # where it led
        self.closed = False
        self.trouble: Away | None = None  # why there is none, and none is waited for
        self.full_until = 0.0  # a server that takes no more is left alone

    def lend(self) -> Link | None:
        """A connection for a thread; None if there is none in time."""
        return self.take() or self._one_more() or self.wait(self._address.wait)

    async def alend(self) -> Link | None:
        """The same for a task, which opens none: all of its loop need but one."""
        return self.take() or await self._await_one(self._address.wait)

    def take(self) -> Link | None:
        """A connection, if one is free."""
        try:
            link = self._free.pop()
        except IndexError:
            return None
        if not self._free:
            self._wanted()
        return link

    def wait(self, seconds: float) -> Link | None:
        """A connection, as soon as one is free."""
        arrived: Future[Link] = Future()
        self._queue(arrived.set_result)
        try:
            return arrived.result(seconds)
        except TimeoutError:
            if not self._leave(arrived.set_result):
                return arrived.result()
            self._check()
            return None
        except BaseException:  # of a signal, say
            if not self._leave(arrived.set_result):
                self.give(arrived.result())
            raise

    async def _await_one(self, seconds: float) -> Link | None:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[Link | None] = loop.create_future()

        def arrive(link: Link | None) -> None:
            if not arrived.done():
                arrived.set_result(link)
            elif link is not None:
                self.give(link)

        def give(link: Link) -> None:
            try:
                loop.call_soon_threadsafe(arrive, link)
            except RuntimeError:  # the loop is closed, and the waiter gone with it
                self.give(link)

        self._queue(give)
        timer = loop.call_later(seconds, arrive, None)
        try:
            if (found := await arrived) is None:
                self._check()
            return found
        except asyncio.CancelledError:
            if not arrived.cancelled() and (link := arrived.result()) is not None:  # it has come in the same turn
                self.give(link)
            raise
        finally:
            timer.cancel()
            self._leave(give)

    def _queue(self, give: Give) -> None:
        """Have *give* called with the next connection that is free."""
        self._check()
        self._waiters.append(give)
        self._wanted()
        if (link := self.take()) is not None:
            self.give(link)

    def _check(self) -> None:
        """That there may be a connection soon."""
        if self.trouble is not None:
            raise Away(str(self.trouble))

    def _leave(self, give: Give) -> bool:
        """Wait no more; false if a connection is on its way all the same."""
        try:
            self._waiters.remove(give)
        except ValueError:
            return False
        return True

    def give(self, link: Link) -> None:
        """Put a connection back."""
        self._free.append(link)
        while self._waiters or self.closed:  # looked at when it lies there: who comes to wait looks there after that
            try:
                link = self._free.pop()
            except IndexError:
                return
            try:
                give = self._waiters.popleft()
            except IndexError:
                if self.closed:
                    link.close()
                else:
                    self._free.append(link)
                continue
            give(link)

    def add(self, link: Link) -> None:
        """Put a new connection in."""
        self._count(link)
        self._reached, self._place = True, link.place or self._place
        self.give(link)

    def _one_more(self) -> Link | None:
        """Another connection, if a caller may open one and it can be had."""
        room = Room()
        with self._lock:
            if self.is_full or not self._reached or self.closed:
                return None
            self._open.add(room)
        try:
            link = Link(self.node, self._address, bound=self._address.wait, place=self._place)
        except Away:
            return None
        self._count(link)
        return link

    def _count(self, link: Link) -> None:
        with self._lock:
            self._open.add(link)
            self.trouble = None

    def part_with(self, link: Link) -> Link:
        """*link*, which was taken, is another's from now on."""
        with self._lock:
            self._open.discard(link)
        return link

    def drop(self, link: Link) -> None:
        """One that was taken is of no use any more."""
        self.part_with(link).close()

    def sweep(self) -> None:
        """Drop those that were closed while nobody used them, and one of those that are too many."""
        one_too_many = self.size > KEPT
        for _ in range(len(self._free)):
            try:
                link = self._free.popleft()
            except IndexError:
                return
            if link.is_stale or one_too_many:
                one_too_many = False
                self.drop(link)
            else:
                self.give(link)

    @property
    def is_full(self) -> bool:
        """Whether callers may open no more; the service may be at it, too."""
        return self.size >= MOST - SPARE

    @property
    def size(self) -> int:
        """How many connections it has."""
        return len(self._open)

    @property
    def lacks(self) -> int:
        """How many connections should be opened now."""
        if self.trouble is not None:
            return 0
        return max(0, min(SPARE + len(self._waiters) - len(self._free), MOST - self.size))

    def close(self) -> None:
        """Close what is free, and what is given back later."""
        self.closed = True
        while self._free:
            try:
                self._free.pop().close()
            except IndexError:
                return
