"""A group of writes in one transaction. What spoils it for the group is found by making its halves alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import HoldfastError, StoreError
from holdfast.stores.ledger import Ledger
from holdfast.stores.sqlite import SqliteFile, errors_of
from holdfast.stores.writer import Pending

Group = Sequence[Pending[Ledger, Any]]


class Transactions:
    """Makes groups of writes on *file*.

    *crash* is called at each point of the protocol: tests kill the process there.
    """

    def __init__(self, file: SqliteFile, ledger: Ledger, crash: Callable[[str], object] | None) -> None:
        self._file = file
        self._ledger = ledger
        self._crash = crash or (lambda point: None)
        self._committing = False

    def make(self, group: Group) -> None:
        """Make a group of writes, each of which is given its value or its error.

        An error that is none (an interrupt) is passed on: then the group is on disk, or is as if it had never been.
        """
        # A store in memory has one connection for all, and nobody may see half of a group.
        with self._file.reading if self._file.path is None else contextlib.nullcontext():
            self._make(group)

    def _make(self, group: Group) -> None:
        self._committing = False
        try:
            self._begin()
        except Exception as error:  # nobody can write now: no use in asking for each
            self._undo(error)
            _fail(group, error)
            return
        except BaseException as error:
            self._undo(error)
            raise
        try:
            self._write(group)
        except Exception as error:
            self._undo(error)
            if len(group) == 1:
                _fail(group, error)
                return
            half = len(group) // 2
            self._make(group[:half])
            self._make(group[half:])
        except BaseException as error:
            if self._committing and not self._file.in_transaction:
                self._settle(group)
            else:
                self._undo(error)
            raise
        else:
            self._crash("committed")

    def _begin(self) -> None:
        self._crash("begin")
        with errors_of(self._file):
            if self._file.begin():
                self._ledger.forget()

    def _write(self, group: Group) -> None:
        with errors_of(self._file):
            for pending in group:
                self._apply(pending)
            self._ledger.write()
            self._crash("written")
            self._committing = True
            try:
                self._file.commit()
            except Exception:
                self._committing = False
                raise
        self._settle(group)

    def _apply(self, pending: Pending[Ledger, Any]) -> None:
        """Make one write; what it refuses before it has changed anything is no trouble for the others."""
        pending.value = pending.error = None
        before = self._ledger.changes
        try:
            pending.value = pending.op(self._ledger)
        except HoldfastError as error:
            if self._ledger.changes != before:
                raise
            pending.error = error

    def _settle(self, group: Group) -> None:
        """It is on disk, and must not be made again; but in a file that nobody can find any more it does not count."""
        for pending in group:
            pending.made = True
        self._ledger.written()
        try:
            self._file.check_in_place()
        except StoreError as error:
            _fail(group, error)

    def _undo(self, error: BaseException) -> None:
        """Be as before."""
        self._ledger.forget()
        self._file.rollback(afresh=not isinstance(error, HoldfastError) or isinstance(error, StoreError))


def _fail(group: Group, error: Exception) -> None:
    """Give each an error of its own: several threads are about to raise it."""
    for pending in group[1:]:
        own = StoreError(str(error) if isinstance(error, StoreError) else f"nothing was written: {error!r}")
        own.__cause__ = error.__cause__
        pending.fail(own)
    group[0].fail(error)
