"""The keeper: gives signs of life for the runs of this process, and hears when somebody wants one cancelled.

One thread for all runs of a store, and none a moment after the last: to end it takes longer than a short run, as the
system is slow to give back what it watches with. A store in memory needs no thread: whoever cancels there is in this
process.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, StoreError
from holdfast.runs.beginning import GiveBack
from holdfast.runs.ending import Last
from holdfast.stores import RunStore
from holdfast.stores.ledger import Claim, Ledger, OwnerRow
from holdfast.stores.neighbours import News
from holdfast.stores.writer import Pending

if TYPE_CHECKING:
    from holdfast.runs.run import Run

SIGNS = 3  # of life, in the time of one lease
LINGER = 0.5  # seconds that the thread waits for the next run
MOST_EARLY = 1_000  # runs to be cancelled that have just begun, or are just ending
MOST_OWED = 10_000  # ends of runs; of those before, leases and the end of this process tell
_log = logging.getLogger("holdfast")


class Keeper:
    """Looks after the open runs of one store."""

    def __init__(self, store: RunStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, Run] = {}
        self._mailbox: News | None = None  # of the thread
        self._owner = ""  # whose it is
        self._resting = False  # the thread has seen that there is no run, and looks again soon
        self._used = False  # there was one since
        self._early: dict[str, str] = {}  # why runs are to be cancelled that are not here yet
        self._owed: deque[_Debt] = deque(maxlen=MOST_OWED)
        store.ownership.on_wake = self.look

    def after_fork(self) -> None:
        """In a forked child: the runs, and the thread that looks after them, are the parent's."""
        self._lock = threading.Lock()
        runs, self._runs = self._runs, {}
        self._mailbox = None
        self._early.clear()
        self._owed.clear()
        for run in runs.values():
            run.disown()

    def add(self, run: Run) -> None:
        """Look after *run*, too."""
        owner = self._store.ownership.row().id  # without an owner there is no mailbox
        with self._lock:
            if not run.is_open:
                return
            self._runs[run.id] = run
            self._used = True
            reason = self._early.pop(run.id, None)
            if self._mailbox is None or self._owner != owner:
                self._start(owner)
        if reason is not None:
            run.stop(reason)

    def remove(self, run: Run) -> None:
        """It is over."""
        with self._lock:
            self._runs.pop(run.id, None)
            mailbox = self._mailbox if not self._runs and not self._resting else None
        if mailbox is not None:
            mailbox.wake()

    def close(self) -> None:
        """Let the thread end now, if there is no run for it."""
        with self._lock:
            if self._runs:
                return
            mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            mailbox.wake()

    def owner(self) -> OwnerRow:
        """The row of this process, for a run that begins; what is owed is written before it."""
        self.pay()
        return self._store.ownership.row()

    def owe(self, last: Last | None, trouble: BaseException | None) -> None:
        """Write the end of a run when its store, which was away, is back: until then it seems to be ours."""
        if last is not None and isinstance(trouble, StoreError):
            self._owed.append(_Debt(last.finish.write_late))

    def give_back(self, taken: list[Claim], trouble: BaseException | None = None) -> None:
        """Give back what was claimed, without waiting for it."""
        write = GiveBack(taken).write
        self._store.writer.submit(write)
        if taken and isinstance(trouble, StoreError):
            self._owed.append(_Debt(write))

    def pay(self) -> None:
        """Have what is owed written, before whatever is written next."""
        for debt in list(self._owed):
            if debt.is_paid:
                with suppress(ValueError):  # somebody else has seen it, too
                    self._owed.remove(debt)
            elif debt.pending is None or debt.pending.done:
                debt.pending = self._store.writer.submit(debt.write)

    def look(self) -> None:
        """See which runs somebody wants cancelled, and tell them; without a lock, as a signal's handler may cancel."""
        for run_id, reason in self._store.cancels():
            if run_id not in self._runs:
                if len(self._early) >= MOST_EARLY:
                    self._early.clear()  # they are seen again the next time
                self._early[run_id] = reason
            if (run := self._runs.get(run_id)) is not None:  # also one that came at this moment, and found nothing
                run.stop(reason)

    def _start(self, owner: str) -> None:
        before, self._mailbox = self._mailbox, self._store.ownership.mailbox()
        self._owner = owner
        self._resting = False
        if before is not None:
            before.wake()
        if self._mailbox is not None:
            name = "holdfast-keeper"
            threading.Thread(target=self._serve, args=(self._mailbox,), name=name, daemon=True).start()

    def _serve(self, mailbox: News) -> None:
        pause = self._store.lease / SIGNS
        due = self._clock.monotonic() + pause
        try:
            self._try(self.look)  # somebody may have come before it was watched
            while self._mailbox is mailbox:
                left = min(LINGER, pause) if self._resting else due - self._clock.monotonic()
                if mailbox.wait(max(0.0, left)):
                    self._try(self.look)
                    self.pay()
                self._rest(mailbox)
                if self._runs and self._mailbox is mailbox and self._clock.monotonic() >= due:
                    self._try(self._store.renew)
                    self._try(self.look)  # the store may have been away when there was something to see
                    self.pay()
                    due = self._clock.monotonic() + pause
        finally:
            mailbox.close()

    def _rest(self, mailbox: News) -> None:
        """Rest while there is no run; if there was none since the last time either, the thread ends."""
        with self._lock:
            if self._mailbox is mailbox:
                if self._resting and not self._used:
                    self._mailbox = None
                self._resting, self._used = not self._runs, False

    @staticmethod
    def _try(fn: object) -> None:
        assert callable(fn)
        try:
            fn()
        except HoldfastError as error:  # the store may be back for the next sign of life
            _log.warning("the owner of runs could not reach the store: %s", error)


class _Debt:
    """The end of a run that is yet to be written."""

    __slots__ = ("pending", "write")

    def __init__(self, write: Callable[[Ledger], object]) -> None:
        self.write = write
        self.pending: Pending[Ledger, object] | None = None

    @property
    def is_paid(self) -> bool:
        """Whether it was written, or there is no point in it any more."""
        pending = self.pending
        return pending is not None and pending.done and not isinstance(pending.error, StoreError)
