"""Connections that are ready to be used: a few a node, opened ahead of time by the service.

Taking one and giving it back are single operations on a deque while there is one to take. Who finds none opens another
one, up to a bound: the service opens one after the other, too slowly for many who come at once. Past that bound one
waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from holdfast.fleet.address import Place
from holdfast.fleet.link import Link
from holdfast.fleet.places import Node

MOST = 32  # connections a node that threads share
KEPT = 8  # of them that stay when they are not needed
SPARE = 2  # that lie ready

Give = Callable[[Link], object]  # of somebody who waits for a connection: called with it, once, in any thread


class Pool:
    """The connections of one process to *node*; *wanted* is called when another one would be of use."""

    def __init__(self, node: Node, wanted: Callable[[], object]) -> None:
        self.node = node
        self._wanted = wanted
        self._free: deque[Link] = deque()
        self._waiters: deque[Give] = deque()
        self._lock = threading.Lock()
        self._open = 0  # that are free or lent
        self._reached = False  # one was opened
        self.place: Place | None = None  # where it led
        self.closed = False

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
        arrived = threading.Lock()
        arrived.acquire()
        box: list[Link] = []

        def give(link: Link) -> None:
            box.append(link)
            arrived.release()

        self.queue(give)
        if not arrived.acquire(timeout=seconds) and not self.leave(give):
            arrived.acquire()  # it is on its way
        return box[0] if box else None

    def queue(self, give: Give) -> None:
        """Have *give* called with the next connection that is free."""
        self._waiters.append(give)
        self._wanted()
        if (link := self.take()) is not None:
            self.give(link)

    def leave(self, give: Give) -> bool:
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
        with self._lock:
            self._open += 1
        self._reached, self.place = True, link.place or self.place
        self.give(link)

    def grow(self) -> bool:
        """Whether a caller may open one more; it counts from now on, so whoever fails to drops it."""
        with self._lock:
            grows = self._open < MOST - SPARE and self._reached and not self.closed  # the service may be at it, too
            self._open += grows
        return grows

    def drop(self, link: Link | None = None) -> None:
        """One that was taken does not come back: it is of no use any more, or another's now."""
        with self._lock:
            self._open -= 1
        if link is not None:
            link.close()

    def sweep(self) -> None:
        """Drop those that were closed while nobody used them, and one of those that are too many."""
        one_too_many = self._open > KEPT
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
    def lacks(self) -> int:
        """How many connections should be opened now."""
        return max(0, min(SPARE + len(self._waiters) - len(self._free), MOST - self._open))

    def close(self) -> None:
        """Close what is free, and what is given back later."""
        self.closed = True
        while self._free:
            try:
                self._free.pop().close()
            except IndexError:
                return
