"""Orders that other processes on the store give to circuits: each is carried out once, by the first thread to look.

A call has a thread look for it, since the store may be a server that says nothing for long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.errors import HoldfastError
from holdfast.parts.breaker import CircuitBreaker
from holdfast.publishing.complaint import Complaint
from holdfast.solo import Solo
from holdfast.stores import RunStore
from holdfast.stores.board import Board
from holdfast.stores.entries import Order

PATIENCE = 1.0  # seconds that a call waits for a look


class Orders:
    """Carries out on *breaker* what is ordered on *store*, and tells *done* the tools; failures go to *complain*."""

    def __init__(
        self, store: RunStore, breaker: CircuitBreaker, done: Callable[..., object], complain: Complaint
    ) -> None:
        self.seen = -1  # number of the last order that was carried out; -1 before the first look
        self._board = Board(store)
        self._ownership = store.ownership
        self._breaker = breaker
        self._done = done
        self._complain = complain
        self.after_fork()

    def after_fork(self) -> None:
        """Reset in a forked child: a thread that was looking exists only in the parent."""
        self._looking = threading.Lock()
        self._again = False
        self._is_answered = True  # the store has answered the last look
        self._solo = Solo("holdfast-orders", self.look, lambda: self._again and not self._looking.locked())

    def look_soon(self) -> None:
        """Have a thread carry out new orders, and wait for it, but not long, and only if the store answered last time:
        a call must not wait for a store that is away.
        """
        is_waited_for, self._is_answered = self._is_answered, False
        self._again = True
        try:
            self._solo.start()
        except RuntimeError:  # no more threads, or the interpreter ends
            self.look()
            return
        if is_waited_for:
            self._solo.join(PATIENCE)

    def look(self) -> None:
        """Carry out new orders; a thread that comes while another is at it leaves them to that one."""
        self._again = True
        while self._again and self._looking.acquire(blocking=False):
            try:
                self._again = False
                self._take_up(self._board.orders(self.seen))
                self._is_answered = True
            except HoldfastError as error:
                self._complain(error)
            finally:
                self._looking.release()

    def are_announced(self) -> bool:
        """True if another process has announced orders since this was last asked."""
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
            elif seen >= 0:  # at the first look there is nothing to undo
                breaker.auto(order.tool)
        self.seen = max([0, seen, *(order.number for order in orders)])
        if orders:
            self._done(*(order.tool for order in orders))
