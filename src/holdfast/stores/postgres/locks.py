"""The locks of all who use a store on PostgreSQL: held by a session each, so they end with the process, on any host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.stores.neighbours import News
from holdfast.stores.postgres.ears import Ears
from holdfast.stores.postgres.session import number


class ServerLock(NamedTuple):
    """Our own."""

    ears: Ears
    owner: str

    @property
    def locked(self) -> bool:
        """Whether others can tell by it."""
        return self.ears.holds(self.owner)

    def poked(self) -> bool:
        """Whether another process has something for this one; says so once."""
        return self.ears.poked(self.owner)

    def mailbox(self) -> News:
        """Wakes when another process has something for this one."""
        return self.ears.mailbox(self.owner)

    def close(self) -> None:
        """Let go of it."""
        self.ears.let_go(self.owner)

    def after_fork(self) -> None:
        """The session is the parent's: the store sees to it."""


class ServerLocks(NamedTuple):
    """All of them; *fetch* reads from the store."""

    ears: Ears
    fetch: Callable[..., list[tuple[Any, ...]]]

    def take(self, owner: str) -> ServerLock:
        """Have it be known that *owner*, this process, lives."""
        self.ears.hold(owner)
        return ServerLock(self.ears, owner)

    def is_living(self, owner: str, host: str, *, locked: bool | None) -> bool | None:
        """Whether *owner* lives; None if that cannot be told: where it has no lock its lease decides."""
        if locked:
            return self.ears.is_living(owner)
        if locked is None and (self.ears.holds(owner) or self.fetch("is_locked", number(owner)) == [(True,)]):
            return True
        return None

    def poke(self, owner: str) -> None:
        """It was told with the commit."""
