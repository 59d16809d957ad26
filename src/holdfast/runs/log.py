"""The log of one run: what the run's owner writes to the store. Every write is fenced by the owner's claim.

What the store cannot take stops the run, or is reported and passed over, by the choice of whoever opened Holdfast.
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
from holdfast.stores.writer import Pending
from holdfast.values.said import CACHED

_log = logging.getLogger("holdfast")
_JSON = msgspec.json.Encoder()


class Outcome(msgspec.Struct, frozen=True):  # a Struct since a resumed run has one a call: it is made in C
    """The exact outcome of a call: its key, the name of what was called, and the memo, or what stands for it."""

    key: str
    name: str
    memo: bytes

    @property
    def counts(self) -> bool:
        """Whether it counts as a call of a tool."""
        return not self.memo.startswith(CACHED)

    @property
    def bare(self) -> bytes:
        """The memo itself, whether it counts or not."""
        return self.memo.removeprefix(CACHED)


# What stands in the place of a memo:
LOST: Final = b""  # the call ended, or may have, and nobody knows with what
UNKEPT: Final = b"u"  # it ended well, but its result could not be kept, or was not to be
AGAIN: Final = b"a"  # its failure ended the run: whoever forks the run makes it anew
SPENT: Final = b"$"  # it is no call, but an amount that was spent
OURS: Final = b"o"  # LOST, in a run whose keys were made elsewhere: but this one was made here
ELSEWHERE: Final = b"f"  # before the key that the call was given elsewhere, and keeps: all else stands there


class Write(msgspec.Struct, eq=False):
    """Something on its way to the store; whoever waits for it learns whether it got there.

    *result* is what a call gave: the error says so if only the write failed, since the call was made all the same.
    """

    log: Log
    pending: Pending[Ledger, Any]
    result: object = None

    def settle(self) -> None:
        """Wait as a thread."""
        self.log.store.writer.settle(self.pending)
        if self.pending.error is not None:
            self.log.judge(self.pending.error, self)

    async def asettle(self) -> None:
        """Wait as a task."""
        await self.log.store.writer.asettle(self.pending)
        if self.pending.error is not None:
            self.log.judge(self.pending.error, self)


class Log:
    """The way of one run to its store; *goes_on* if a store that fails is no reason to stop."""

    def __init__(self, store: RunStore, *, goes_on: bool) -> None:
        self.store = store
        self.claim: Claim | None = None
        self.lost: HoldfastError | None = None  # why nothing more can be written
        self.queued: Pending[Ledger, Any] | None = None  # the latest write
        self._goes_on = goes_on
        self._complained = False

    def emit(self, type: str, payload: Mapping[str, Any], outcome: Outcome | None = None) -> None:
        """Queue an event; it is written soon, and in any case before whatever is committed after it."""
        self.write(type, payload, outcome)

    def write(self, type: str, payload: Mapping[str, Any], outcome: Outcome | None = None) -> Write | None:
        """Begin to write an event; nothing if there is no log to write to."""
        if self.claim is None:
            return None
        op = partial(_append, self.claim, type, payload, _JSON.encode(payload).decode(), outcome)
        self.queued = pending = self.store.writer.submit(op)
        return Write(self, pending)

    def given(self, type: str, payload: Mapping[str, object]) -> Mapping[str, Any]:
        """What a user gave for an event's payload, as it may be kept: encoded once, redacted and cut."""
        plain: dict[str, Any] = _PAYLOAD.decode(self.store.encode(type, payload))
        return plain

    def judge(self, error: BaseException, write: Write) -> None:
        """Raise the *error* of a write, unless the run goes on without it."""
        if isinstance(error, StoreError):
            error.result = write.result
        if isinstance(error, StoreError) and self._goes_on:
            self.complain(error)
            return
        if isinstance(error, HoldfastError) and not isinstance(error, StoreError):
            self.lost = error
        write.pending.result()

    def complain(self, error: object) -> None:
        """Say once that the run is no longer recorded in full."""
        if not self._complained:
            self._complained = True
            _log.error("the run goes on, but it is not recorded in full: %s", error)

    def passes(self, error: BaseException) -> bool:
        """Whether the run goes on in spite of *error*."""
        return self._goes_on and isinstance(error, StoreError)


def _append(
    claim: Claim, type: str, payload: Mapping[str, Any], encoded: str, outcome: Outcome | None, ledger: Ledger
) -> None:
    live = ledger.claimed(claim)
    ledger.append(live, type, payload, encoded)
    if outcome is not None:
        ledger.remember(live, bytes.fromhex(outcome.key), outcome.name, outcome.memo)


_PAYLOAD = msgspec.json.Decoder(dict[str, Any])
