"""The locks of processes on a PostgreSQL store: each is held by a session, so it ends with its process on any host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.stores.neighbours import News
from holdfast.stores.postgres.ears import Ears
from holdfast.stores.postgres.session import number


class ServerLock(NamedTuple):
    """The lock of this process."""

    ears: Ears
    owner: str

    @property
    def locked(self) -> bool:
        """True if others can check the lock."""
        return self.ears.holds(self.owner)

    def poked(self) -> bool:
        """True if another process has poked this one since the last call: there is something to read."""
        return self.ears.poked(self.owner)

    def mailbox(self) -> News:
        """News that wakes when another process has poked this one."""
        return self.ears.mailbox(self.owner)

    def close(self) -> None:
        """Release the lock."""
        self.ears.let_go(self.owner)

    def after_fork(self) -> None:
        """Do nothing: the session is the parent's, and the store lets go of it."""


class ServerLocks(NamedTuple):
    """The locks of all processes; *fetch* reads from the store."""

    ears: Ears
    fetch: Callable[..., list[tuple[Any, ...]]]

    def take(self, owner: str) -> ServerLock:
        """Take the lock of *owner*, which is this process."""
        self.ears.hold(owner)
        return ServerLock(self.ears, owner)

    def is_living(self, owner: str, host: str, *, locked: bool | None) -> bool | None:
        """True if *owner* is alive; None if that cannot be told: if it has no lock, its lease decides."""
        if locked:
            return self.ears.is_living(owner)
        if locked is None and (self.ears.holds(owner) or self.fetch("is_locked", number(owner)) == [(True,)]):
            return True
        return None

    def poke(self, owner: str) -> None:
        """Do nothing: *owner* was notified with the commit."""
