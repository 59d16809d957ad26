"""Orders that others on the store give to circuits: each is taken up once, by whatever thread looks first."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.errors import HoldfastError
from holdfast.parts.breaker import CircuitBreaker
from holdfast.publishing.complaint import Complaint
from holdfast.stores import RunStore
from holdfast.stores.board import Board
from holdfast.stores.entries import Order


class Orders:
    """Does to *breaker* what is ordered on *store*, and tells *done* of the tools; what fails goes to *complain*."""

    def __init__(
        self, store: RunStore, breaker: CircuitBreaker, done: Callable[..., object], complain: Complaint
    ) -> None:
        self.seen = -1  # the number of the last that was taken up
        self._board = Board(store)
        self._ownership = store.ownership
        self._breaker = breaker
        self._done = done
        self._complain = complain
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: whoever was looking is not here."""
        self._looking = threading.Lock()
        self._again = False

    def look(self) -> None:
        """Take up those that are new; who comes while another does leaves it to that one."""
        self._again = True
        while self._again and self._looking.acquire(blocking=False):
            try:
                self._again = False
                self._take_up(self._board.orders(self.seen))
            except HoldfastError as error:
                self._complain(error)
            finally:
                self._looking.release()

    def are_announced(self) -> bool:
        """Whether another process has said, since this was last asked, that there are some."""
        try:
            return self._ownership.poked()
        except OSError as error:
            self._complain(error)
            return False

    def _take_up(self, orders: list[Order]) -> None:
        breaker, seen = self._breaker, self.seen
        for order in orders:
            if order.reset > seen >= 0:
                breaker.reset(order.tool)
            if order.state is not None:
                (breaker.force_open if order.state == "open" else breaker.force_closed)(order.tool)
            elif seen >= 0:  # what was before us is nothing to us
                breaker.auto(order.tool)
        self.seen = max([0, seen, *(order.number for order in orders)])
        if orders:
            self._done(*(order.tool for order in orders))
