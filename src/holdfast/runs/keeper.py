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
from holdfast.stores.ledger import Claim, Ledger
from holdfast.stores.neighbours import News
from holdfast.stores.writer import Writer

if TYPE_CHECKING:
    from holdfast.runs.run import Run

SIGNS = 3  # of life, in the time of one lease
LINGER = 0.5  # seconds that the thread waits for the next run
MOST_EARLY = 1_000  # runs to be cancelled that have just begun, or are just ending
MOST_OWED = 10_000  # ends of runs; of those before, leases and the end of this process tell
MOST_AT_ONCE = 1_000  # of these in one write
Debt = Callable[[Ledger], object]  # writes the end of a run that is yet to be written

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
        self._complained = False  # of a store that is away
        self._early: dict[str, str] = {}  # why runs are to be cancelled that are not here yet
        self._owed: deque[Debt] = deque(maxlen=MOST_OWED)
        self._offers: list[_Offer] = []  # of what is owed, the last time
        store.ownership.on_wake = self.look

    def after_fork(self) -> None:
        """In a forked child: the runs, and the thread that looks after them, are the parent's."""
        self._lock = threading.Lock()
        runs, self._runs = self._runs, {}
        self._mailbox = None
        self._early.clear()
        self._owed.clear()
        self._offers = []
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

    def owe(self, last: Last | None, trouble: BaseException | None) -> None:
        """Write the end of a run when its store, which was away, is back: until then it seems to be ours."""
        if last is not None and isinstance(trouble, StoreError):
            self._owed.append(last.finish.write_late)

    def give_back(self, taken: list[Claim], trouble: BaseException | None = None) -> None:
        """Give back what was claimed, without waiting for it."""
        write = GiveBack(taken).write
        self._store.writer.submit(write)
        if taken and isinstance(trouble, StoreError):
            self._owed.append(write)

    def pay(self) -> None:
        """Have what is owed written, before whatever is written next; in few writes, as the store may still be away."""
        offers = self._offers
        if not all(offer.pending.done for offer in offers):
            return
        for debt in [debt for offer in offers for debt in offer.paid()]:
            with suppress(ValueError):  # somebody else has seen it, too
                self._owed.remove(debt)
        debts, most = list(self._owed), 1 if any(offer.is_spoilt for offer in offers) else MOST_AT_ONCE
        batches = (debts[begin : begin + most] for begin in range(0, len(debts), most))
        self._offers = [_Offer(batch, self._store.writer) for batch in batches]

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
        before, mailbox = self._mailbox, self._store.ownership.mailbox()
        self._mailbox, self._owner, self._resting = mailbox, owner, False
        try:
            if before is not None:
                before.wake()
            if mailbox is not None:
                threading.Thread(target=self._serve, args=(mailbox,), name="holdfast-keeper", daemon=True).start()
        except BaseException as error:  # the next run tries again; a thread that was started nevertheless ends
            self._mailbox = None
            if not isinstance(error, RuntimeError):
                raise
            raise StoreError(f"nobody can look after the run: {error}") from error

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
            with self._lock:
                if self._mailbox is mailbox:  # whatever ended it: the next run starts another
                    self._mailbox = None
            mailbox.close()

    def _rest(self, mailbox: News) -> None:
        """Rest while there is no run; if there was none since the last time either, the thread ends."""
        with self._lock:
            if self._mailbox is mailbox:
                if self._resting and not self._used:
                    self._mailbox = None
                self._resting, self._used = not self._runs, False

    def _try(self, fn: Callable[[], object]) -> None:
        try:
            fn()
            self._complained = False
        except HoldfastError as error:  # the store may be back for the next sign of life
            if not self._complained:
                self._complained = True
                _log.warning("the owner of runs could not reach the store: %s", error)


class _Offer:
    """Debts that are to be written together."""

    __slots__ = ("debts", "pending", "_was_begun")

    def __init__(self, debts: list[Debt], writer: Writer[Ledger]) -> None:
        self.debts = debts
        self._was_begun = False  # so the store was not away
        self.pending = writer.submit(self._write)

    @property
    def is_spoilt(self) -> bool:
        """Whether one of them may have kept the others from being written."""
        return self._was_begun and self.pending.error is not None

    def paid(self) -> list[Debt]:
        """Those that were written, or that there is no point in any more."""
        error = self.pending.error
        if error is None:
            return self.pending.value or []
        return self.debts if len(self.debts) == 1 and not isinstance(error, StoreError) else []

    def _write(self, ledger: Ledger) -> list[Debt]:
        self._was_begun = True
        paid = []
        for debt in self.debts:
            before = ledger.changes
            try:
                debt(ledger)
            except HoldfastError as error:
                if ledger.changes != before:
                    raise
                if isinstance(error, StoreError):
                    continue
            paid.append(debt)
        return paid
