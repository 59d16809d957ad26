"""What processes on one store need to notice each other; each kind of database has its own way.

A lock says that its owner lives, news that there is something to look at. Both are hints: leases decide where locks
cannot be told, and whoever looks finds what there is.
"""

from __future__ import annotations

import os
from typing import Protocol

from holdfast.errors import printable


def this_host() -> str:
    """The name of this machine as it can be written down: the system lets it be any bytes."""
    return printable(os.uname().nodename)


class News(Protocol):
    """Wakes when there may be something to see; one thread waits, any may wake or close."""

    @property
    def closed(self) -> bool:
        """Whether it will tell nothing more."""

    def wait(self, timeout: float | None) -> bool:
        """Block until there may be news since the last wait: then true. False at the *timeout*, woken and closed."""

    def wake(self) -> None:
        """Let `wait` return false: the one that runs now, else the next."""

    def close(self) -> None:
        """End, and let whoever waits go; harmless when it has ended."""


class Lock(Protocol):
    """Our own: tells others that this process lives."""

    @property
    def locked(self) -> bool:
        """Whether others can tell by it; else only the lease tells."""

    def poked(self) -> bool:
        """Whether another process has something for this one; says so once."""

    def mailbox(self) -> News:
        """Wakes when another process has something for this one."""

    def close(self) -> None:
        """Let go of it; harmless when done already."""

    def after_fork(self) -> None:
        """In a forked child: it is the parent's, and must not outlive it here."""


class Locks(Protocol):
    """The locks of all who use a store."""

    def take(self, owner: str) -> Lock:
        """Have it be known that *owner*, this process, lives."""

    def is_living(self, owner: str, host: str, *, locked: bool | None) -> bool | None:
        """Whether *owner* on *host* lives; None if that cannot be told. *locked* if it said that it has a lock."""

    def poke(self, owner: str) -> None:
        """Tell *owner* that there is something for it, if it has not been told by the commit itself."""
