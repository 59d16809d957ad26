"""Ids for requests that cannot go under the id of their sender, or that have none because they are ours.

The peer may be another proxy of ours, which makes such ids too, so no two of them may ever be the same.
"""

from __future__ import annotations

import secrets
from typing import Final

OURS: Final = "holdfast/"  # how each of these ids begins


class Ids:
    """Makes ids that nothing else makes."""

    __slots__ = ("count", "_prefix")

    def __init__(self) -> None:
        self.count = 0  # ids that were made
        self._prefix = f"{OURS}{secrets.token_hex(4)}/"

    def next(self) -> str:
        """An id that is not in use."""
        self.count += 1
        return f"{self._prefix}{self.count}"

    def has_made(self, id: object) -> bool:
        """True if *id* was made here."""
        return isinstance(id, str) and id.startswith(self._prefix)
