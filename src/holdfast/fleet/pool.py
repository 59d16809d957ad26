"""Connections that are ready to be used: a few per node, opened ahead of time by the service.

While one is free, taking it and giving it back are single operations on a deque. A thread that finds none opens another
one, up to a bound, because the service opens them one by one, too slowly for many threads that come at once. Past that
bound the thread waits.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from holdfast.clock import SystemClock
from holdfast.fleet.address import Address, Place
from holdfast.fleet.link import Away, Link
from holdfast.fleet.topology import Node

MOST = 32  # connections to one node, at most, that threads share
KEPT = 8  # connections that stay open when they are not needed
SPARE = 2  # free connections to keep ready

Give = Callable[[Link], object]  # a waiter's callback: called once, in any thread, with a free connection


class Room:
    """Counts as a connection while one is about to be opened, as long as this object is referenced."""

    __slots__ = ("__weakref__",)


class Pool:
    """The connections of one process to *node*; *wanted* is called when another one would be useful."""

    def __init__(self, node: Node, address: Address, wanted: Callable[[], object]) -> None:
        self.node = node
        self._address = address
        self._wanted = wanted
        self._free: deque[Link] = deque()
        self._waiters: deque[Give] = deque()
        self._lock = threading.Lock()
        # Connections that are free, lent or being opened. Weak: one that an interrupt drops no longer counts.
        self._open: weakref.WeakSet[Link | Room] = weakref.WeakSet()
        self._reached = False  # True once the service has opened a connection
        self._place: Place | None = None  # the address of the node, once it was looked up
        self.closed = False
        self.trouble: Away | None = None  # why there is no connection; while it is set, no caller waits for one
        self.full_until = 0.0  # until then the service opens none: the server took no more

    def lend(self) -> Link | None:
        """A connection for a thread; None if none is free in time."""
        return self.take() or self._find()

    def _find(self) -> Link | None:
        until = SystemClock.monotonic() + self._address.wait
        return self._one_more() or self.wait(max(0.0, until - SystemClock.monotonic()))

    async def alend(self) -> Link | None:
        """The same for a task, which opens none itself, because all tasks of its loop share one."""
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
        """A connection, as soon as one is free; None after *seconds*."""
        arrived: Future[Link] = Future()
        self._queue(arrived.set_result)
        try:
            return arrived.result(seconds)
        except TimeoutError:
            if not self._leave(arrived.set_result):
                return arrived.result()
            self._check()
            return None
        except BaseException:  # raised by a signal handler, for example
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
            if not arrived.cancelled() and (link := arrived.result()) is not None:  # it came in the same turn
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
        """Raise `Away` if no connection is to be expected."""
        if self.trouble is not None:
            raise Away(str(self.trouble))

    def _leave(self, give: Give) -> bool:
        """Stop waiting; False if another thread is already calling *give* with a connection."""
        try:
            self._waiters.remove(give)
        except ValueError:
            return False
        return True

    def give(self, link: Link) -> None:
        """Put a connection back."""
        self._free.append(link)
        while self._waiters or self.closed:  # checked after the append: a waiter enqueues first, then looks for a link
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
        """Another connection, opened by the calling thread; None if it may not open one, or that fails."""
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
        """Stop counting *link*, which was taken: from now on it belongs to another owner."""
        with self._lock:
            self._open.discard(link)
        return link

    def drop(self, link: Link) -> None:
        """Close *link*, which was taken and is no longer usable."""
        self.part_with(link).close()

    def sweep(self) -> None:
        """Drop free connections that the server has closed; if there are more than KEPT in all, drop at least one."""
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
        """True if callers may open no more; some room is left for what the service is opening."""
        return self.size >= MOST - SPARE

    @property
    def size(self) -> int:
        """How many connections are open or being opened."""
        return len(self._open)

    @property
    def lacks(self) -> int:
        """How many connections should be opened now."""
        if self.trouble is not None:
            return 0
        return max(0, min(SPARE + len(self._waiters) - len(self._free), MOST - self.size))

    def close(self) -> None:
        """Close free connections now, and lent ones when they are given back."""
        self.closed = True
        while self._free:
            try:
                self._free.pop().close()
            except IndexError:
                return
