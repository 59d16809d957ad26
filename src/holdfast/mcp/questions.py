"""What a server asks of its client, and whom an answer is for.

A server that is started again counts from the beginning. The client may yet answer what the one before it has asked
under the same id: so the new question goes to the client under another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.mcp.frames import Id, as_number

MOST_OPEN: Final = 10_000  # questions that are waited for: some servers ask on, whoever answers
PONDERED: Final = frozenset({"elicitation/create", "sampling/createMessage"})  # which people answer, or models
MOST_LATE: Final = 1000  # questions that were taken back, or whose server died, and that may be answered yet


class Questions:
    """The requests of a server that its client has not answered; *on_ponder* is told while there are some that take
    as long as somebody takes to think.
    """

    def __init__(self, on_ponder: Callable[[bool], object] = lambda ponders: None) -> None:
        self._open: dict[Id, Id] = {}  # the server's ids by the client's
        self._known: dict[Id, Id] = {}  # the client's ids by the server's
        self._withdrawn: dict[Id, Id] = {}  # as those that are open, the oldest first
        self._orphaned: dict[Id, None] = {}  # by the client's ids, the oldest first
        self._pondered: set[Id] = set()  # of those that are open, by the client's ids
        self._on_ponder = on_ponder
        self._renamed = 0

    def ask(self, id: Id, method: str | None) -> Id:
        """The id under which the client gets a question that the server asks under *id*."""
        known = id
        if id in self._orphaned:
            self._renamed += 1
            known = f"holdfast/{self._renamed}"
        self._withdrawn.pop(known, None)
        self._open[known] = id
        self._known[id] = known
        if method in PONDERED:
            self._pondered.add(known)
            self._on_ponder(True)
        if len(self._open) > MOST_OPEN:
            self.answered(next(iter(self._open)))
        return known

    def withdraw(self, id: Id) -> Id:
        """The id under which the client has the question *id*, which the server takes back."""
        known = self._known.pop(id, None)
        if known is None:
            return id
        self._withdrawn[known] = self._open.pop(known)
        _bound(self._withdrawn)
        self._settle(known)
        return known

    def answered(self, known: Id) -> Id | None:
        """The id under which the server waits for the client's answer to *known*; None if it has died meanwhile, or
        took the question back long ago.
        """
        if not self._is_ours(known) and (number := as_number(known)) is not None:
            known = number  # it has come back as a text
        self._orphaned.pop(known, None)
        id = self._open.pop(known, None)
        if id is None:
            return self._withdrawn.pop(known, None)
        self._settle(known)
        if self._known.get(id) == known:  # else it has asked anew under the same id
            del self._known[id]
        return id

    def orphan(self) -> list[Id]:
        """The server has died; the ids of what its client need not answer any more."""
        orphaned = list(self._open)
        self._orphaned.update(dict.fromkeys([*self._withdrawn, *orphaned]))
        _bound(self._orphaned)
        for each in (self._open, self._known, self._withdrawn):
            each.clear()
        self._settle(*orphaned)
        return orphaned

    def rest(self) -> None:
        """No call is left for which anybody would have to think: not every server takes back what it has asked."""
        self._settle(*self._pondered)

    def _settle(self, *known: Id) -> None:
        """Nobody has to think about them any more."""
        if self._pondered:
            self._pondered.difference_update(known)
            self._on_ponder(bool(self._pondered))

    def _is_ours(self, known: Id) -> bool:
        return known in self._open or known in self._withdrawn or known in self._orphaned

    @property
    def are_orphaned(self) -> bool:
        """Whether there are questions of servers that died."""
        return bool(self._orphaned)


def _bound(late: dict[Id, Any]) -> None:
    """Forget the oldest, if there are too many."""
    while len(late) > MOST_LATE:
        del late[next(iter(late))]
