"""Ends of runs that their store did not take, as it was away: written when it is back. Till then such a run seems to be
ours.
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

MOST_OWED = 10_000  # ends of runs; of those before, leases and the end of this process tell
MOST_AT_ONCE = 1_000  # of these in one write
Debt = Callable[[Ledger], object]  # writes the end of a run


class Debts:
    """What is owed to one store."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._owed: deque[Debt] = deque(maxlen=MOST_OWED)
        self._offers: list[_Offer] = []  # of what is owed, the last time

    def clear(self) -> None:
        """In a forked child: they are the parent's."""
        self._owed.clear()
        self._offers = []

    def owe(self, last: Last | None, trouble: BaseException | None) -> None:
        """Write the *last* of a run again, where its *trouble* was that the store was away."""
        if last is not None and isinstance(trouble, StoreError):
            self._owed.append(last.finish.write_late)

    def give_back(self, taken: list[Claim], trouble: BaseException | None = None, *, reason: str = STOPPED) -> None:
        """Give back what was claimed, without waiting for it."""
        write = GiveBack(taken, reason).write
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
