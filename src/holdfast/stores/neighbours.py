"""What processes on one store need to notice each other; each kind of database has its own way.

A lock shows that its owner is alive, news that there may be something to read. Both are hints: leases decide where
locks cannot be checked, and a process that was woken reads the store itself.
"""

from __future__ import annotations

import os
from typing import Protocol

from holdfast.errors import printable


def this_host() -> str:
    """The name of this machine in printable characters: the system allows any bytes."""
    return printable(os.uname().nodename)


class News(Protocol):
    """Wakes when there may be something to read; one thread waits, any thread may wake or close."""

    @property
    def closed(self) -> bool:
        """True if it will report nothing more."""

    def wait(self, timeout: float | None) -> bool:
        """Block until there may be news since the last wait: True. False at the *timeout*, when woken or closed."""

    def wake(self) -> None:
        """Make `wait` return False: the one in progress, otherwise the next."""

    def close(self) -> None:
        """End, and wake the thread that waits; harmless when it has ended."""


class Lock(Protocol):
    """The lock of this process: shows others that it is alive."""

    @property
    def locked(self) -> bool:
        """True if others can check the lock; otherwise only the lease shows that this process is alive."""

    def poked(self) -> bool:
        """True if another process has poked this one since the last call: there is something to read."""

    def mailbox(self) -> News:
        """News that wakes when another process has poked this one."""

    def close(self) -> None:
        """Release the lock; harmless when done already."""

    def after_fork(self) -> None:
        """In a forked child: let go of the lock, which is the parent's and must not outlive it."""


class Locks(Protocol):
    """The locks of all processes that use a store."""

    def take(self, owner: str) -> Lock:
        """Take the lock of *owner*, which is this process."""

    def is_living(self, owner: str, host: str, *, locked: bool | None) -> bool | None:
        """True if *owner* on *host* is alive, None if that cannot be told; *locked* if its row says it has a lock."""

    def poke(self, owner: str) -> None:
        """Tell *owner* that there is something for it, unless the commit itself has told it."""
