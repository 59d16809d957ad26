"""Makes a group of writes in one transaction. If one write spoils it for all, it is found by making halves alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, StoreError
from holdfast.stores.database import Again, Database, Lost, NotNow
from holdfast.stores.ledger import Ledger
from holdfast.stores.pending import Pending
from holdfast.stores.trouble import unreachable

MOST_TRIES = 10  # tries of a group while other processes write first
SEARCH = 4.0  # seconds to find the write that spoils a group; the cause may be a lock that each try waits for

Group = Sequence[Pending[Ledger, Any]]


class Transactions:
    """Makes groups of writes on *file*.

    If no process could write for *stall* seconds, no owner is taken for dead because its lease ran out meanwhile.
    *crash* is called at each point of the protocol: tests kill the process there.
    """

    def __init__(
        self, file: Database, ledger: Ledger, *, stall: float, crash: Callable[[str], object] | None = None
    ) -> None:
        self._file = file
        self._ledger = ledger
        self._stall = stall
        self._crash = crash
        self._begun = 0.0
        self._lasted = 0.0  # seconds for which the last transaction kept all others from writing
        self._committing = False
        self._search_until: float | None = None

    def make(self, group: Group) -> None:
        """Make a group of writes, and set the value or the error of each.

        An interrupt (no `Exception`) is passed on: a write that is not *made* is not on disk, and may be made again.
        """
        self._search_until = None
        with self._file.alone:
            self._make(group)

    def make_hastily(self, group: Group, start: Callable[[int], object]) -> bool:
        """Make a group of fenced writes without waiting for the disk, and *start* to sync the log of that handle.

        False if nothing was made, as it would take longer: `make` does it then. An `OSError` if it is made, but cannot
        be synced here. Only if a write or the commit fails, that is looked into here, however long it takes.
        """
        self._search_until = None
        with self._file.alone:
            if self._file.later is None or not self._make(group, hasty=True):
                return False
            start(self._file.later.log())
            return True

    def sync(self, failure: OSError | None) -> StoreError | None:
        """Put on disk what was committed hastily, unless the system has tried and told of a *failure*.

        If that fails, return an error: as with a commit that fails, it is not known how much of it is on disk.
        """
        with self._file.alone:
            if (later := self._file.later) is None:
                return None
            try:
                if failure is not None:
                    raise failure
                later.sync()
            except OSError as error:
                trouble = unreachable(self._file.name, error)
                later.distrust()
                self._undo(trouble)
                return unknown(trouble)
        return None

    def _make(self, group: Group, *, hasty: bool = False) -> bool:
        """Make the group, again and again while other processes write first; False if it is *hasty* and would wait."""
        lost: list[Lost] = []
        for tries in range(MOST_TRIES):
            try:
                self._try(group, lost, trusting=tries == 0 and _are_fenced(group), hasty=hasty and tries == 0)
                if lost:
                    _doubt(group)
                return True
            except NotNow:
                return False
            except Again as again:
                if hasty and not isinstance(again, Lost):
                    self._undo(again)
                    return False
                self._undo(again)
                if isinstance(again, Lost):
                    again.outcomes = [(pending.value, pending.error) for pending in group]
                    lost.append(again)
                if self._was_made(group, lost):
                    return True
                if isinstance(again, Lost) and again.failure is not None:
                    self._spoilt(group, again.failure)
                    return True
                trouble = again
        _fail(
            group,
            StoreError(
                f"{self._file.name}: other processes wrote first, {MOST_TRIES} times in a row: {trouble}; try again"
            ),
        )
        return True

    def _was_made(self, group: Group, lost: list[Lost]) -> bool:
        """True if the group must not be made again: a commit whose answer was *lost* did it, or that is not known."""
        try:
            for each in lost:
                if each.was_committed():
                    self._undo(each)
                    for pending, (value, error) in zip(group, each.outcomes, strict=True):
                        pending.value, pending.error = value, error
                    self._settle(group)
                    return True
        except StoreError as error:
            self._undo(error)
            _fail(group, unknown(error))
            return True
        except Again:
            raise
        except BaseException:  # the next leader must not make it again
            _fail(group, unknown(StoreError(f"{self._file.name}: interrupted")))
            raise
        return False

    def _try(self, group: Group, lost: list[Lost], *, trusting: bool, hasty: bool) -> None:
        self._committing = False
        try:
            self._begin(trusting, hasty)
        except Again:
            raise
        except Exception as error:  # nothing can be written now: no use in trying each write alone
            trouble = self._explained(error)
            self._undo(trouble)
            _fail(group, trouble)
            return
        except BaseException as error:
            self._undo(error)
            raise
        try:
            self._write(group, lost, trusting)
        except Again:
            raise
        except Exception as error:
            if self._committing:  # it is on disk, and only the note of that failed: made again, it would be there twice
                self._settle(group)
            else:
                self._spoilt(group, error)
        except BaseException as error:
            self._interrupted(group, error)
            raise
        else:
            if self._crash is not None:
                self._crash("committed")

    def _spoilt(self, group: Group, error: Exception) -> None:
        """Nothing was written because of *error*: one write may be to blame, unless the error would hit all."""
        trouble = self._explained(error)
        self._undo(trouble)
        now = SystemClock.monotonic()  # not the store's clock: it is the system that takes long here
        if self._search_until is None:
            self._search_until = now + SEARCH
        if len(group) == 1 or now > self._search_until or self._file.concerns_all(error):
            _fail(group, trouble)
            return
        half = len(group) // 2
        self._make(group[:half])
        self._make(group[half:])

    def _interrupted(self, group: Group, error: BaseException) -> None:
        """Settle or undo the group after an interrupt, which may have come anywhere."""
        try:
            made = self._committing and self._file.is_committed()
        except StoreError as trouble:
            self._undo(error)
            _fail(group, unknown(trouble))
            return
        if made:
            self._settle(group)
        else:
            self._undo(error)

    def _begin(self, trusting: bool, hasty: bool) -> None:
        if self._crash is not None:
            self._crash("begin")
        file, ledger = self._file, self._ledger
        if hasty and file.later is not None:
            file.later.begin()
        elif file.begin(trusting=trusting):
            ledger.forget()
        now = ledger.begin()
        if file.blocking:
            self._begun = now
            if self._lasted >= self._stall or file.silence >= self._stall:
                silence = max(self._lasted, file.silence)
                ledger.excuse_silence(int((now - silence) * 1000))

    def _write(self, group: Group, lost: list[Lost], trusting: bool) -> None:
        """Make the group; a write that raises before it has changed anything does not affect the others."""
        ledger = self._ledger
        for pending in group:
            if pending.error is not None:
                pending.error = None
            before = ledger.changes
            try:
                pending.value = pending.op(ledger)
            except HoldfastError as error:
                if ledger.changes != before:
                    raise
                if trusting:  # what was trusted may be outdated
                    raise Again(str(error)) from error
                pending.error = error
        # A lost commit may have arrived late, and be what these writes saw; if it arrives after this, it is too late.
        if lost and self._was_made(group, lost):
            lost.clear()
            return
        ledger.write()
        if self._crash is not None:
            self._crash("written")
        self._committing = True
        try:
            self._file.commit()
        except Exception:
            self._committing = False
            raise
        if self._file.blocking:
            self._lasted = self._ledger.time() - self._begun
        self._settle(group)

    def _explained(self, error: Exception) -> Exception:
        """What *error* means, as an error of ours if the database raised it; raise that if it is an `Again`."""
        told = self._file.explained(error)
        if isinstance(told, Again):
            raise told from error
        if told is None:
            return error
        told.__cause__ = error
        return told

    def _settle(self, group: Group) -> None:
        """Note that the group is on disk, and must not be made again."""
        for pending in group:
            pending.made = True
        self._ledger.written()

    def _undo(self, error: BaseException) -> None:
        """Roll back, and have the ledger forget what was changed."""
        self._ledger.forget()
        ours = isinstance(error, HoldfastError | Again) and not isinstance(error, StoreError)
        self._file.rollback(afresh=not ours)


def _are_fenced(group: Group) -> bool:
    """True if what is in memory may be trusted, as each write of the group fails if that is outdated."""
    for pending in group:
        if not pending.fenced:
            return False
    return True


def unknown(error: StoreError) -> StoreError:
    """The error of a write of which it cannot be told whether it was made."""
    told = StoreError(
        f"{error}; the end of a commit is not known, so it may have been written or not: check before you repeat it"
    )
    told.__cause__ = error.__cause__
    return told


def _doubt(group: Group) -> None:
    """Say in the errors of a group that failed at last that an earlier try may have been written."""
    for pending in group:
        if isinstance(pending.error, StoreError):
            pending.error = unknown(pending.error)


def _fail(group: Group, error: Exception) -> None:
    """Fail each write with an error of its own, as several threads are about to raise them."""
    for pending in group[1:]:
        own = StoreError(str(error) if isinstance(error, StoreError) else f"nothing was written: {error!r}")
        own.__cause__ = error.__cause__
        pending.fail(own)
    group[0].fail(error)
