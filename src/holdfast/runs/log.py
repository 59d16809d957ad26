"""The log of one run: what the run's owner writes to the store. Every write is fenced by the owner's claim.

A write that fails stops the run, or is logged and passed over: `on_store_error` of `holdfast.open` decides.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec

from holdfast.errors import HoldfastError, StoreError
from holdfast.stores import RunStore
from holdfast.stores.ledger import Claim, Ledger
from holdfast.stores.pending import Pending
from holdfast.values.said import CACHED

_log = logging.getLogger("holdfast")
_JSON = msgspec.json.Encoder()


class Outcome(msgspec.Struct, frozen=True, gc=False):  # built in C, and quickly: a resumed run has one for each call
    """The exact outcome of a call: its key, the name of the tool or step, and its memo or one of the marks below."""

    key: str
    name: str
    memo: bytes

    @property
    def counts(self) -> bool:
        """True if it counts as a call of a tool; steps and answers from the cache do not."""
        return not self.memo.startswith(CACHED)

    @property
    def bare(self) -> bytes:
        """The memo without the mark that it does not count."""
        return self.memo.removeprefix(CACHED)


# Marks that stand in the place of a memo:
LOST: Final = b""  # the call ended, or may have ended, and its result is not known
UNKEPT: Final = b"u"  # it ended well, but its result could not be kept, or was not to be kept
AGAIN: Final = b"a"  # its failure ended the run: a fork of the run makes the call anew
SPENT: Final = b"$"  # not a call, but an amount that was spent
OURS: Final = b"o"  # LOST, for a key that was made here, in a run whose other keys were made elsewhere
ELSEWHERE: Final = b"f"  # before the key that the call got elsewhere, and keeps: its outcome is stored under that key


class Write(Pending[Ledger, Any], eq=False, kw_only=True):
    """A write of a run's *log* on its way to the store; waiting for it raises the error if it failed.

    *returned* is what a call has returned: the `StoreError` of a failed write carries it, as the call was made.
    """

    log: Log
    returned: object = None

    def settle(self, *, has_room: bool = False) -> None:
        """Block the thread until it is done; it *has room* on the stack for that if a call has checked it before."""
        self.log.store.writer.settle(self, has_room=has_room)
        if self.error is not None:
            self.log.judge(self.error, self)

    async def asettle(self) -> None:
        """Suspend the task until it is done."""
        await self.log.store.writer.asettle(self)
        if self.error is not None:
            self.log.judge(self.error, self)


class Log:
    """Writes the events of one run to its store; *survives_store_errors* if the run goes on when the store fails."""

    def __init__(self, store: RunStore, *, survives_store_errors: bool) -> None:
        self.store = store
        self.claim: Claim | None = None
        self.lost: HoldfastError | None = None  # why nothing more can be written
        self._survives_store_errors = survives_store_errors
        self._complained = False

    def emit(self, type: str, payload: Mapping[str, Any], outcome: Outcome | None = None) -> None:
        """Queue an event; it is written soon, and always before anything that is committed after it."""
        self.write(type, payload, outcome)

    def write(self, type: str, payload: Mapping[str, Any], outcome: Outcome | None = None) -> Write | None:
        """Queue an event and return the write to wait for; None if this process has no claim to the run."""
        if self.claim is None:
            return None
        op = partial(_append, self.claim, type, payload, _JSON.encode(payload).decode(), outcome)
        write = Write(op, True, log=self)
        self.store.writer.put(write)
        return write

    def given(self, type: str, payload: Mapping[str, object]) -> Mapping[str, Any]:
        """The payload that a user gave for an event, as it may be kept: encoded once, redacted and cut."""
        plain: dict[str, Any] = _PAYLOAD.decode(self.store.encode(type, payload))
        return plain

    def judge(self, error: BaseException, write: Write) -> None:
        """Raise the *error* of a write, unless the run goes on without it."""
        if isinstance(error, StoreError):
            error.result = write.returned
        if isinstance(error, StoreError) and self._survives_store_errors:
            self.complain(error)
            return
        if isinstance(error, HoldfastError) and not isinstance(error, StoreError):
            self.lost = error
        write.result()

    def complain(self, error: object) -> None:
        """Log, once, that the run is no longer recorded in full."""
        if not self._complained:
            self._complained = True
            _log.error("the run goes on, but it is not recorded in full: %s", error)

    def passes(self, error: BaseException) -> bool:
        """True if the run goes on in spite of *error*."""
        return self._survives_store_errors and isinstance(error, StoreError)


def _append(
    claim: Claim, type: str, payload: Mapping[str, Any], encoded: str, outcome: Outcome | None, ledger: Ledger
) -> None:
    live = ledger.claimed(claim)
    late = ledger.append(live, type, payload, encoded)
    if outcome is not None and not (late and outcome.memo == SPENT):  # an amount that comes late has not been counted
        ledger.remember(live, bytes.fromhex(outcome.key), outcome.name, outcome.memo)


_PAYLOAD = msgspec.json.Decoder(dict[str, Any])
