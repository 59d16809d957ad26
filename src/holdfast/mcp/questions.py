"""Questions: the requests that a server sends to its client, and which of them an answer of the client is for.

A restarted server counts its ids from the beginning. The client may still answer a question of the previous server
that had the same id, so the new question goes to the client under another id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.mcp.frames import Id, as_number
from holdfast.mcp.ids import Ids

MOST_OPEN: Final = 10_000  # unanswered questions that are kept: some servers go on asking a client that never answers
PONDERED: Final = frozenset({"elicitation/create", "sampling/createMessage"})  # answered by a person or a model
MOST_LATE: Final = 1000  # withdrawn questions, and as many of dead servers, that the client may still answer


class Questions:
    """The requests of a server that its client has not answered; *on_ponder* is called with True while one of them
    waits for a person or a model, and with False when none does.
    """

    def __init__(self, on_ponder: Callable[[bool], object] = lambda ponders: None) -> None:
        self._open: dict[Id, Id] = {}  # the server's ids by the client's
        self._known: dict[Id, Id] = {}  # the client's ids by the server's
        self._withdrawn: dict[Id, Id] = {}  # like `_open`, for withdrawn questions; the oldest first
        self._orphaned: dict[Id, None] = {}  # the client's ids of questions whose server died, the oldest first
        self._pondered: set[Id] = set()  # the client's ids of open questions for a person or a model
        self._on_ponder = on_ponder
        self._ids = Ids()

    def ask(self, id: Id, method: str | None) -> Id:
        """Note that the server asks a question under *id*; return the id under which the client gets it."""
        known = self._ids.next() if id in self._orphaned else id
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
        """Note that the server withdraws its question *id*; return the id under which the client has it."""
        known = self._known.pop(id, None)
        if known is None:
            return id
        self._withdrawn[known] = self._open.pop(known)
        _bound(self._withdrawn)
        self._settle(known)
        return known

    def answered(self, known: Id) -> Id | None:
        """Note that the client answers *known*; return the id under which the server asked. None if that server has
        died, or withdrew the question long ago.
        """
        if not self._is_ours(known) and (number := as_number(known)) is not None:
            known = number  # the client sent the number back as a text
        self._orphaned.pop(known, None)
        id = self._open.pop(known, None)
        if id is None:
            return self._withdrawn.pop(known, None)
        self._settle(known)
        if self._known.get(id) == known:  # otherwise the server has asked again under the same id
            del self._known[id]
        return id

    def orphan(self) -> list[Id]:
        """Note that the server died; return the client's ids of the questions that need no answer any more."""
        orphaned = list(self._open)
        self._orphaned.update(dict.fromkeys([*self._withdrawn, *orphaned]))
        _bound(self._orphaned)
        for each in (self._open, self._known, self._withdrawn):
            each.clear()
        self._settle(*orphaned)
        return orphaned

    def stop_pondering(self) -> None:
        """Stop waiting for people and models, since no call is left: not every server withdraws its questions."""
        self._settle(*self._pondered)

    def _settle(self, *known: Id) -> None:
        """Note that no person or model has to answer *known* any more."""
        if self._pondered:
            self._pondered.difference_update(known)
            self._on_ponder(bool(self._pondered))

    def _is_ours(self, known: Id) -> bool:
        return known in self._open or known in self._withdrawn or known in self._orphaned

    @property
    def are_orphaned(self) -> bool:
        """True if the client may still answer questions of a dead server."""
        return bool(self._orphaned)


def _bound(late: dict[Id, Any]) -> None:
    """Forget the oldest questions beyond `MOST_LATE`."""
    while len(late) > MOST_LATE:
        del late[next(iter(late))]
