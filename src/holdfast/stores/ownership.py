"""The process as an owner of runs, and whether other owners are alive: by their leases, and sooner by their locks."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.stores.ledger import OwnerRow
from holdfast.stores.neighbours import Lock, Locks, News, this_host


class Ownership:
    """The one owner that this process is on a store; *locks* is None if no other process can open the store."""

    def __init__(self, locks: Locks | None, clock: Clock, lease: float) -> None:
        self.id: str | None = None
        self._locks = locks
        self._clock = clock
        self._lease = lease
        self._host = this_host()
        self._lock = threading.Lock()
        self._held: Lock | None = None
        self.on_wake: Callable[[], object] | None = None  # called when there is something for this process
        self.on_order: Callable[[], object] | None = None  # the same, for tools; `on_wake` is for runs

    def row(self) -> OwnerRow:
        """The row of this process, alive for one lease from now; the first call takes the lock."""
        with self._lock:
            if self.id is None:
                owner = uuid.uuid4().hex
                if self._locks is not None:
                    self._held = self._locks.take(owner)
                self.id = owner
            until = int((self._clock.time() + self._lease) * 1000)
            awake_until = int((self._clock.monotonic() + self._lease) * 1000)
            locked = self._held is not None and self._held.locked
            return OwnerRow(self.id, self._host, os.getpid(), until, locked, awake_until)

    def is_alive(self, row: OwnerRow | None) -> bool:
        """True if an owner is alive: its lease has not run out, and its lock, if that can be checked, is held.

        If the lock is seen to be held on this host, the lease may also be valid by the monotonic clock alone: the wall
        clock jumps when a machine wakes from sleep, and a living owner needs a moment to renew its lease.
        """
        if row is None:
            return False
        if row.id == self.id:
            return True
        is_valid = row.until > self._clock.time() * 1000
        is_awake = row.host == self._host and row.awake_until > self._clock.monotonic() * 1000
        if self._locks is None or not (is_valid or is_awake):
            return is_valid
        living = self._locks.is_living(row.id, row.host, locked=row.locked)
        return is_valid if living is None else living

    def is_process_alive(self, owner: str, host: str, until: int) -> bool:
        """True if a process that shows its tools is alive: by its lock, or by *until* if that cannot be checked."""
        if owner == self.id:
            return True
        living = self._locks.is_living(owner, host, locked=None) if self._locks is not None else None
        return until > self._clock.time() * 1000 if living is None else living

    @property
    def is_locked(self) -> bool:
        """True if this process need not give signs of life: it has a lock, or no other process can look."""
        return self._locks is None or (self._held is not None and self._held.locked)

    def poked(self) -> bool:
        """True if another process has poked this one since the last call: there is something to read."""
        with self._lock:  # no thread may close the file meanwhile: its descriptor may then be another's
            return self._held is not None and self._held.poked()

    def wake(self, owner: str) -> None:
        """Tell an owner that there is something for it."""
        if owner == self.id:
            for call in (self.on_wake, self.on_order):
                if call is not None:
                    call()
        elif self._locks is not None:
            self._locks.poke(owner)

    def mailbox(self) -> News | None:
        """News that wakes when another process has poked this one; None if this process has no lock."""
        return self._held.mailbox() if self._held is not None else None

    def end(self) -> str | None:
        """Stop being an owner and release the lock; return the id that this process had, if any."""
        with self._lock:
            owner, self.id = self.id, None
            held, self._held = self._held, None
        if held is not None:
            held.close()
        return owner

    def after_fork(self) -> None:
        """In a forked child: what was owned is the parent's."""
        self._lock = threading.Lock()
        if self._held is not None:
            self._held.after_fork()
        self.id = self._held = None
