"""How a run ends: what leaving its block means. One write: the last events, and the claim given back."""

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
from holdfast.stores.writer import Pending

# What says nothing about the run's own work, as a cut from outside does not either: it can be resumed.
INTERRUPTING = (InDoubt, RunDiverged, LeaseLost, StoreError)
STRONGER = (KeyboardInterrupt, SystemExit, LeaseLost, StoreError)  # than a cancel that was requested
_MOST_LEAVES = 4096  # errors of a group that are looked at
MOST_NAMED = 100  # calls in a `run_diverged` event


class End(NamedTuple):
    """The last event of a run, or of an owner's time with it."""

    type: str
    payload: Mapping[str, Any]


def ending(error: BaseException | None, *, cancelled: bool, reason: str | None, text: object) -> End:
    """What leaving the block with *error*, or else with *text* for its result, means."""
    if cancelled and gives_way(error):
        return End(events.RUN_CANCELLED, {"reason": reason})
    if error is None:
        return End(events.RUN_COMPLETED, {"text": text})
    if _is_only(error, _interrupts):
        return End(events.RUN_INTERRUPTED, {"reason": in_lines(error)})
    return End(events.RUN_FAILED, {"error": in_lines(error)})


def gives_way(error: BaseException | None) -> bool:
    """Whether a cancel that was requested is what leaving the block with *error* means."""
    return not _is_only(error, lambda each: is_a(each, STRONGER))


def completed(text: object) -> End:
    """What a user means who says that the run is complete."""
    if not isinstance(text, str):
        raise ConfigError(f"text = {shown(text)}: the result of a run must be a text")
    return End(events.RUN_COMPLETED, {"text": text})


def failed(error: object) -> End:
    """What a user means who says that the run has failed."""
    if not isinstance(error, str | BaseException):
        raise ConfigError(f"error = {shown(error)}: must be a text or an exception")
    return End(events.RUN_FAILED, {"error": error if isinstance(error, str) else in_lines(error)})


class Finish(msgspec.Struct, frozen=True):
    """Write how a run ended and give it back."""

    claim: Claim
    end: End
    unasked: list[str]  # finished calls that the resumed run has not asked for
    fatal: Sequence[tuple[str, str]]  # the keys and names of the calls whose failure ended the run
    yields: bool  # to a cancel that was requested, and that its owner has not heard of

    def said(self) -> list[End]:
        """Its last events."""
        if not self.unasked:
            return [self.end]
        return [End(events.RUN_DIVERGED, {"calls": self.unasked[:MOST_NAMED], "count": len(self.unasked)}), self.end]

    def write(self, ledger: Ledger) -> str | None:
        """End it; where it yields to a cancel, nothing is written, and this is why somebody wants it cancelled."""
        live = ledger.claimed(self.claim)
        if live.snapshot.status.is_terminal and self.end.type == events.RUN_INTERRUPTED:
            return None  # it had ended before it was interrupted
        if self.yields and live.cancel is not None:
            return live.cancel
        for key, name in self.fatal:  # whoever forks the run wants it made again, not told again
            ledger.remember(live, bytes.fromhex(key), name, AGAIN)
        for type, payload in self.said():
            ledger.say(live, type, **payload)
        ledger.release(live)
        return None

    def write_late(self, ledger: Ledger) -> None:
        """The same if nobody heard whether that was written: only if it was not, and nobody is here to be told more."""
        if ledger.claimed(self.claim).owner is not None and (wish := self.write(ledger)) is not None:
            end = End(events.RUN_CANCELLED, {"reason": wish or None})
            Finish(self.claim, end, [], [], yields=False).write(ledger)


class Last(msgspec.Struct, frozen=True):
    """The last write of a run, on its way."""

    finish: Finish
    pending: Pending[Ledger, str | None]

    @property
    def end(self) -> End:
        """What it says."""
        return self.finish.end

    def tell(self, bus: Bus) -> None:
        """Tell the sinks what it says."""
        for type, payload in self.finish.said():
            bus.emit(type, None, self.finish.claim.run_id, **payload)

    @staticmethod
    def of(store: RunStore, finish: Finish) -> Last:
        """Begin to write it."""
        return Last(finish, store.writer.submit(finish.write))


def is_lasting(error: BaseException) -> bool:
    """Whether a failure is an outcome to be remembered; a refusal or a cut is asked anew."""
    return all(map(_lasts, leaves(error, _MOST_LEAVES)))


def _lasts(error: BaseException) -> bool:
    return is_a(error, RecordedError) or (is_a(error, Exception) and not is_a(error, (Denied, RunError, StoreError)))


def _interrupts(error: BaseException) -> bool:
    """Whether *error* is no word about the run's work: among others, what ends a task, a greenlet or the process."""
    is_cut = not is_a(error, Exception) and classify(error) is ErrorCategory.CANCELLED
    return is_cut or is_a(error, INTERRUPTING)


def _is_only(error: BaseException | None, kind: Callable[[BaseException], bool]) -> bool:
    """Whether *error*, or all that is in the group, is of this *kind*."""
    found = [] if error is None else leaves(error, _MOST_LEAVES)
    return bool(found) and all(map(kind, found))
