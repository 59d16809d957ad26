"""Ends of runs that could not be written because the store was unreachable: written when it is back. Until then the
store says that this process still owns such a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from holdfast.category.looking import is_a
from holdfast.errors import HoldfastError, StoreError
from holdfast.runs.beginning import STOPPED, GiveBack
from holdfast.runs.ending import Last
from holdfast.stores import RunStore
from holdfast.stores.ledger import Claim, Ledger
from holdfast.stores.writer import Writer

MOST_OWED = 10_000  # ends of runs; older ones are dropped: their runs are free when this process or its lease ends
MOST_AT_ONCE = 1_000  # ends in one write
Debt = Callable[[Ledger], object]  # writes the end of a run


class Debts:
    """The writes that are owed to one store."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._owed: deque[Debt] = deque(maxlen=MOST_OWED)
        self._offers: list[_Offer] = []  # the writes that the last `pay` has queued

    def clear(self) -> None:
        """In a forked child: forget the debts, as they are the parent's."""
        self._owed.clear()
        self._offers = []

    def owe(self, last: Last | None, trouble: BaseException | None) -> None:
        """Write the *last* write of a run again later, if its *trouble* was that the store failed."""
        if last is not None and isinstance(trouble, StoreError):
            self._owed.append(last.finish.write_late)

    def give_back(self, taken: list[Claim], trouble: BaseException | None = None, *, reason: str = STOPPED) -> None:
        """Give back the claims in *taken* without waiting; again later if the *trouble* was that the store failed."""
        write = GiveBack(taken, reason).write
        self._store.writer.submit(write)
        if taken and isinstance(trouble, StoreError):
            self._owed.append(write)

    def pay(self) -> None:
        """Queue what is owed, before any later write; in few writes, as the store may still be unreachable."""
        offers = self._offers
        if not all(offer.pending.done for offer in offers):
            return
        for debt in [debt for offer in offers for debt in offer.paid()]:
            with suppress(ValueError):  # another thread has removed it already
                self._owed.remove(debt)
        debts, most = list(self._owed), 1 if any(offer.is_spoilt for offer in offers) else MOST_AT_ONCE
        batches = (debts[begin : begin + most] for begin in range(0, len(debts), most))
        self._offers = [_Offer(batch, self._store.writer) for batch in batches]


class _Offer:
    """Debts that are to be written together."""

    __slots__ = ("debts", "pending", "_was_begun")

    def __init__(self, debts: list[Debt], writer: Writer[Ledger]) -> None:
        self.debts = debts
        self._was_begun = False  # it was begun, so the store was reachable
        self.pending = writer.submit(self._write)

    @property
    def is_spoilt(self) -> bool:
        """True if one of the debts may have kept the others from being written."""
        return self._was_begun and self.pending.error is not None

    def paid(self) -> list[Debt]:
        """The debts that were written, or that can be dropped, since their runs have a new owner, say."""
        error = self.pending.error
        if error is None:
            return self.pending.value or []
        return self.debts if len(self.debts) == 1 and not is_a(error, StoreError) else []

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
