"""The line before a tool: the calls that wait, in their order. Only its head may ask for a token or a slot.

A waiter rises one class of priority for each second it has waited. That is the same as having come one second earlier
for each class, so the order of two waiters never changes, a heap is enough, and no waiter starves.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from weakref import WeakValueDictionary


class Signal:
    """Wakes one waiter. Firing before the waiter listens is not lost; firing twice is harmless."""

    __slots__ = ("fired", "_wake")

    def __init__(self) -> None:
        self.fired = False
        self._wake: Callable[[], object] | None = None

    def fire(self) -> None:
        """Wake the waiter, now or as soon as it listens."""
        self.fired = True
        if (wake := self._wake) is not None:
            wake()

    def listen(self, wake: Callable[[], object]) -> None:
        """Call *wake* when fired; both sides set their mark before they read the other's, so no firing is missed."""
        self._wake = wake
        if self.fired:
            wake()

    def rearm(self) -> None:
        """Make the signal ready to be fired again."""
        self._wake = None
        self.fired = False


class Ticket:
    """A place in line; its *signal* tells the holder to ask again, for *cost* tokens.

    The place is free as soon as no call holds the ticket: a call that was interrupted before it could leave blocks no
    other. Nor does a holder for which *can_ask* is false: a task whose event loop stands still.
    """

    __slots__ = ("can_ask", "cost", "signal", "_place", "__weakref__")

    def __init__(self, place: tuple[float, int], cost: float) -> None:
        self._place: tuple[float, int] | None = place
        self.can_ask: Callable[[], bool] = _always
        self.cost = cost
        self.signal = Signal()


def _always() -> bool:
    return True


class Line:
    """The waiters of one tool, the one whose turn it is first. It has no lock: its owner holds one.

    *heap* is empty when no call waits; whether it is empty may be read without the lock.
    """

    __slots__ = ("heap", "_costs", "_order", "_tickets", "_wanted")

    def __init__(self) -> None:
        self._order = itertools.count()
        self.heap: list[tuple[float, int]] = []
        self._tickets: WeakValueDictionary[int, Ticket] = WeakValueDictionary()
        self._costs: dict[int, float] = {}  # of all tickets, and of those dropped without `leave`
        self._wanted = 0.0  # their sum

    def __len__(self) -> int:
        return len(self._tickets)

    def join(self, now: float, rank: int, cost: float = 1.0) -> Ticket:
        """Take a place; a higher *rank* stands further ahead."""
        place = (now - rank, next(self._order))
        self._costs[place[1]] = cost
        self._wanted += cost
        ticket = self._tickets[place[1]] = Ticket(place, cost)
        heapq.heappush(self.heap, place)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give up the place; harmless if it was given up already."""
        if ticket._place is not None:
            self._tickets.pop(ticket._place[1], None)
            cost = self._costs.pop(ticket._place[1], 0.0)
            self._wanted = self._wanted - cost if self._costs else 0.0
            ticket._place = None
            self.tidy()
            if len(self.heap) > 2 * len(self) + 64:  # while a head waits long, places left behind it must not pile up
                self.heap[:] = sorted(place for place in self.heap if place[1] in self._tickets)

    def head(self) -> Ticket | None:
        """Return the ticket whose turn it is, if any; like *heap*, this may be read without the lock."""
        return next((ticket for ticket in self._standing() if ticket.can_ask()), None)

    def called(self) -> list[Ticket]:
        """Return the tickets to wake: the one whose turn it is, and those before it that cannot ask yet."""
        called = []
        for ticket in self._standing():
            called.append(ticket)
            if ticket.can_ask():
                break
        return called

    def tidy(self) -> None:
        """Remove the places at the head whose tickets are gone."""
        while self.heap and self.heap[0][1] not in self._tickets:
            heapq.heappop(self.heap)

    def ahead(self, ticket: Ticket | None) -> float:
        """Return how many tokens the waiters before *ticket* want; without a ticket, how many all waiters want."""
        place = ticket._place if ticket is not None else None
        if place is None:
            return self._in_all()
        places = ((other._place, other.cost) for other in self._tickets.values())
        return sum(cost for its, cost in places if its is not None and its < place)

    def _standing(self) -> Iterator[Ticket]:
        """Yield the tickets in line, in their order."""
        for _, order in self.heap[:1]:  # a copy: for a reader without the lock, the heap may become empty meanwhile
            if (first := self._tickets.get(order)) is not None:
                yield first
        for _, order in sorted(self.heap)[1:]:
            if (ticket := self._tickets.get(order)) is not None:
                yield ticket

    def _in_all(self) -> float:
        """Return how many tokens all waiters want."""
        if len(self._costs) != len(self._tickets):  # some tickets were dropped without `leave`
            self._costs = {order: ticket.cost for order, ticket in self._tickets.items()}
            self._wanted = sum(self._costs.values())
        return self._wanted
