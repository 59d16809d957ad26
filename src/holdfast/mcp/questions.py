"""What a server asks of its client, and whom an answer is for.

A server that is started again counts from the beginning. The client may yet answer what the one before it has asked
under the same id: so the new question goes to the client under another.
"""

from __future__ import annotations

from typing import Final

from holdfast.mcp.frames import Id, as_number

MOST_ORPHANED: Final = 1000  # questions of servers that died


class Questions:
    """The requests of a server that its client has not answered."""

    def __init__(self) -> None:
        self._open: dict[Id, Id] = {}  # the server's ids by the client's
        self._orphaned: dict[Id, None] = {}  # by the client's ids, the oldest first
        self._renamed = 0

    def ask(self, id: Id) -> Id:
        """The id under which the client gets a question that the server asks under *id*."""
        known = id
        if id in self._orphaned:
            self._renamed += 1
            known = f"holdfast/{self._renamed}"
        self._open[known] = id
        return known

    def known(self, id: Id) -> Id:
        """The id under which the client has the server's question *id*."""
        return next((known for known, own in self._open.items() if own == id), id)

    def answered(self, known: Id) -> Id | None:
        """The id under which the server waits for the client's answer to *known*; None if it has died meanwhile."""
        if known not in self._open and known not in self._orphaned and (number := as_number(known)) is not None:
            known = number  # it has come back as a text
        self._orphaned.pop(known, None)
        return self._open.pop(known, None)

    def orphan(self) -> list[Id]:
        """The server has died; the ids of what its client need not answer any more."""
        orphaned = list(self._open)
        self._open.clear()
        self._orphaned.update(dict.fromkeys(orphaned))
        while len(self._orphaned) > MOST_ORPHANED:
            del self._orphaned[next(iter(self._orphaned))]
        return orphaned

    @property
    def are_orphaned(self) -> bool:
        """Whether there are questions of servers that died."""
        return bool(self._orphaned)
