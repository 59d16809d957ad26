"""Who owns runs: this process, and whether others that do are alive, by their leases and sooner by their locks."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.errors import StoreError
from holdfast.stores import owners
from holdfast.stores.ledger import OwnerRow
from holdfast.stores.watch import Watch

POLL = 0.25  # seconds between two looks at the mailbox where the system does not notify

_log = logging.getLogger("holdfast")


class Ownership:
    """One owner a process and store; its lock file lies in *folder*, None if nobody else can open the store."""

    def __init__(self, folder: str | None, clock: Clock, lease: float) -> None:
        self.id: str | None = None
        self._folder = folder
        self._clock = clock
        self._lease = lease
        self._host = os.uname().nodename
        self._lock = threading.Lock()
        self._file: owners.OwnerFile | None = None
        self.on_wake: Callable[[], object] | None = None  # called when there is something for this process
        self.on_order: Callable[[], object] | None = None  # the same; one looks after runs, the other after tools

    def row(self) -> OwnerRow:
        """The row of this process, alive for one lease from now."""
        with self._lock:
            if self.id is None:
                owner = uuid.uuid4().hex
                if self._folder is not None:
                    with contextlib.suppress(OSError):  # what is wrong with it, the file will say
                        os.makedirs(os.path.dirname(self._folder), 0o700, exist_ok=True)  # we may be the first here
                    self._file = owners.OwnerFile(self._folder, owner)
                    _tidy(self._folder)
                self.id = owner
            until = int((self._clock.time() + self._lease) * 1000)
            return OwnerRow(self.id, self._host, os.getpid(), until)

    def is_alive(self, row: OwnerRow | None) -> bool:
        """Whether an owner is: it has given a sign of life, and its lock, where that can be told, is held."""
        if row is None:
            return False
        if row.id == self.id:
            return True
        if row.until <= self._clock.time() * 1000:
            return False
        if self._folder is None or row.host != self._host:
            return True
        return not owners.is_gone(self._folder, row.id)

    def is_there(self, owner: str, host: str, until: int) -> bool:
        """Whether a process that shows its tools still does: by its lock, else by the time of its last sign of life."""
        if owner == self.id:
            return True
        living = owners.is_living(self._folder, owner) if self._folder is not None else None
        if living is True or (living is False and host == self._host):
            return living
        return until > self._clock.time() * 1000

    @property
    def is_locked(self) -> bool:
        """Whether others can tell by a lock that this process lives, without a sign from it now and then."""
        return self._folder is None or (self._file is not None and self._file.locked)

    def poked(self) -> bool:
        """Whether another process has something for this one; says so once."""
        with self._lock:  # nobody may close the file meanwhile, as its number may then be another file's
            return self._file is not None and self._file.poked()

    def wake(self, owner: str) -> None:
        """Tell an owner that there is something for it."""
        if owner == self.id:
            for call in (self.on_wake, self.on_order):
                if call is not None:
                    call()
        elif self._folder is not None:
            owners.poke(self._folder, owner)

    def mailbox(self) -> Watch | None:
        """Wakes when another process has something for this one; None where nobody else can."""
        return Watch(self._file.path, poll=POLL) if self._file is not None else None

    def end(self) -> str | None:
        """Own nothing any more; gives the id under which this process was known."""
        with self._lock:
            owner, self.id = self.id, None
            file, self._file = self._file, None
        if file is not None:
            file.close()
        return owner

    def after_fork(self) -> None:
        """In a forked child: what was owned is the parent's."""
        self._lock = threading.Lock()
        if self._file is not None:
            self._file.after_fork()
        self.id = self._file = None


def _tidy(folder: str) -> None:
    """Remove what dead owners have left; that it cannot be removed is no reason not to work."""
    try:
        owners.sweep(folder)
    except StoreError as error:
        _log.warning("files of dead owners could not be removed: %s", error)
