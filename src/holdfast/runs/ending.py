"""How a run ends: which event leaving its block results in. One write adds the last events and gives the claim back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast import events
from holdfast.bus import Bus
from holdfast.category import ErrorCategory, classify
from holdfast.category.looking import is_a, leaves
from holdfast.checks import shown
from holdfast.errors import (
    ConfigError,
    Denied,
    InDoubt,
    LeaseLost,
    RecordedError,
    RunDiverged,
    RunError,
    StoreError,
    in_lines,
)
from holdfast.runs.log import AGAIN
from holdfast.stores import RunStore
from holdfast.stores.ledger import Claim, Ledger
from holdfast.stores.pending import Pending

# Errors that say nothing about the run's own work, as an interrupt from outside does not: the run can be resumed.
INTERRUPTING = (InDoubt, RunDiverged, LeaseLost, StoreError)
STRONGER = (KeyboardInterrupt, SystemExit, LeaseLost, StoreError)  # these count for more than a requested cancel
_MOST_LEAVES = 4096  # errors of a group that are looked at
MOST_NAMED = 100  # calls in a `run_diverged` event


class End(NamedTuple):
    """The last event of a run, or of an owner's time with it."""

    type: str
    payload: Mapping[str, Any]


def ending(error: BaseException | None, *, cancelled: bool, reason: str | None, text: object) -> End:
    """The event for leaving the block with *error*, or without an error and with *text* for the run's result."""
    if cancelled and gives_way(error):
        return End(events.RUN_CANCELLED, {"reason": reason})
    if error is None:
        return End(events.RUN_COMPLETED, {"text": text})
    if _is_only(error, _interrupts):
        return End(events.RUN_INTERRUPTED, {"reason": in_lines(error)})
    return End(events.RUN_FAILED, {"error": in_lines(error)})


def gives_way(error: BaseException | None) -> bool:
    """True if a run that is left with *error* ends as cancelled, should a cancel have been requested."""
    return not _is_only(error, lambda each: is_a(each, STRONGER))


def completed(text: object) -> End:
    """The event for a run that the user's code completes with *text* for its result."""
    if not isinstance(text, str):
        raise ConfigError(f"text = {shown(text)}: the result of a run must be a text")
    return End(events.RUN_COMPLETED, {"text": text})


def failed(error: object) -> End:
    """The event for a run that the user's code ends as failed."""
    if not isinstance(error, str | BaseException):
        raise ConfigError(f"error = {shown(error)}: must be a text or an exception")
    return End(events.RUN_FAILED, {"error": error if isinstance(error, str) else in_lines(error)})


class Finish(msgspec.Struct, frozen=True):
    """The write that says how a run ended and gives its claim back."""

    claim: Claim
    end: End
    unasked: list[str]  # finished calls that the resumed run has not asked for
    fatal: Sequence[tuple[str, str]]  # the keys and names of the calls whose failure ended the run
    yields: bool  # it gives way to a requested cancel that the owner has not heard of

    def said(self) -> list[End]:
        """Its last events."""
        if not self.unasked:
            return [self.end]
        return [End(events.RUN_DIVERGED, {"calls": self.unasked[:MOST_NAMED], "count": len(self.unasked)}), self.end]

    def write(self, ledger: Ledger) -> str | None:
        """End the run; if it yields to a requested cancel, write nothing and return the reason for the cancel."""
        live = ledger.claimed(self.claim)
        if live.snapshot.status.is_terminal and self.end.type == events.RUN_INTERRUPTED:
            return None  # it had ended before it was interrupted
        if self.yields and live.cancel is not None:
            return live.cancel
        for key, name in self.fatal:  # a fork of the run makes these again, and raises no error from the log
            ledger.remember(live, bytes.fromhex(key), name, AGAIN)
        for type, payload in self.said():
            ledger.say(live, type, **payload)
        ledger.release(live)
        return None

    def write_late(self, ledger: Ledger) -> None:
        """The same for an end of which it is not known whether it was written: does nothing if it was.

        If it yields to a requested cancel, that is written at once: no caller is left to act on it.
        """
        if ledger.claimed(self.claim).owner is not None and (wish := self.write(ledger)) is not None:
            end = End(events.RUN_CANCELLED, {"reason": wish or None})
            Finish(self.claim, end, [], [], yields=False).write(ledger)


class Last(msgspec.Struct, frozen=True):
    """The last write of a run, on its way."""

    finish: Finish
    pending: Pending[Ledger, str | None]

    @property
    def end(self) -> End:
        """The event that says how the run ended."""
        return self.finish.end

    def tell(self, bus: Bus) -> None:
        """Tell the sinks the events that it writes."""
        for type, payload in self.finish.said():
            bus.emit(type, None, self.finish.claim.run_id, **payload)

    @staticmethod
    def of(store: RunStore, finish: Finish) -> Last:
        """Queue the write."""
        return Last(finish, store.writer.submit(finish.write))


def is_lasting(error: BaseException) -> bool:
    """True if a failure is an outcome to remember; a call that was refused or cut off is made anew."""
    return all(map(_lasts, leaves(error, _MOST_LEAVES)))


def _lasts(error: BaseException) -> bool:
    return is_a(error, RecordedError) or (is_a(error, Exception) and not is_a(error, (Denied, RunError, StoreError)))


def _interrupts(error: BaseException) -> bool:
    """True if *error* says nothing about the run's work: among others, what ends a task, a greenlet or the process."""
    is_cut = not is_a(error, Exception) and classify(error) is ErrorCategory.CANCELLED
    return is_cut or is_a(error, INTERRUPTING)


def _is_only(error: BaseException | None, kind: Callable[[BaseException], bool]) -> bool:
    """True if *error*, or every error of the group, is of this *kind*; False if there is none."""
    found = [] if error is None else leaves(error, _MOST_LEAVES)
    return bool(found) and all(map(kind, found))
