"""The queue: runs that were submitted and wait for a worker. It is the table of runs, and has no table of its own.

A worker takes a run by becoming its owner in the transaction that finds it, so two workers never have the same one.
Runs that have begun and lost their worker come first, then the highest priority, then the oldest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast import events
from holdfast.errors import RunConflict, StoreError
from holdfast.history import RunHeader, RunSnapshot
from holdfast.stores.ledger import Claim, Ledger, Live, OwnerRow
from holdfast.stores.store import RunStore

LEAST_PRIORITY, MOST_PRIORITY = -100, 100
ATTEMPTS = 20  # owners that a run may have before it is failed

Ask = Callable[..., list[tuple[Any, ...]]]
_JSON = msgspec.json.Encoder(order="sorted")


class Taken(NamedTuple):
    """A run that this process owns now and has still to call; *is_new* if no worker has begun it before."""

    claim: Claim
    header: RunHeader
    is_new: bool


class Search(NamedTuple):
    """Which runs a worker takes: those of *targets*, at most *per_session* of a session at once among all workers.

    A run that has had *attempts* owners and has not ended is failed instead.
    """

    targets: Sequence[str]
    per_session: int | None = None
    attempts: int = ATTEMPTS


# -- in ----------------------------------------------------------------------------------------------------------------


def submit(store: RunStore, header: RunHeader) -> RunSnapshot:
    """Put a run into the queue; if the same one was submitted before, return that, be it queued, running or done."""

    def put(ledger: Ledger) -> None:
        live = ledger.find(header.id)
        if live is None:
            ledger.add(header)
        elif _facts(live.header) != _facts(header):
            raise RunConflict(
                f"run {header.id!r} exists with another session, prompt, function, arguments or priority; "
                "choose another id"
            )

    store.writer.commit(put)
    return store.snapshot(header.id)


def _facts(header: RunHeader) -> tuple[object, ...]:
    entry = _JSON.encode(header.entry)  # in JSON 1, 1.0 and true differ; in Python they are equal
    return (header.session_id, header.prompt, entry, header.priority)


# -- out ---------------------------------------------------------------------------------------------------------------


def take(store: RunStore, search: Search, *, thorough: bool = True, unsure: list[Claim] | None = None) -> Taken | None:
    """Become the owner of the next run, if there is one; *thorough* also looks for runs whose owner has died.

    Runs that have had too many owners are failed on the way. Nothing is written if there is nothing to take. If the
    store fails in the middle of it, *unsure* gets the claims that may have been written all the same.
    """
    while _next(store, store.file.fetch, store.file.fetch, int(store.clock.time() * 1000), search, thorough):
        taking = _Taking(store, search, thorough, store.ownership.row(), [])
        try:
            found = store.writer.commit(taking.write)
        except StoreError:
            if unsure is not None:
                unsure += taking.claimed
            raise
        if found is None or isinstance(found, Taken):
            return found
    return None


def is_empty(store: RunStore, targets: Iterable[str]) -> bool:
    """True if no run waits for a worker: neither one that has not begun nor one that has lost its worker."""
    living = _list(_alive(store, store.file.fetch))
    return not any(
        store.file.fetch("next_queued", target, "[]") or store.file.fetch("any_begun", target, living)
        for target in targets
    )


def counts(store: RunStore) -> dict[str, int]:
    """The number of queued runs by target, the function that is to be called."""
    return {str(target): int(number) for target, number in store.file.fetch("count_queued")}


def give_back(store: RunStore, claims: Sequence[Claim], reason: str) -> None:
    """Leave runs to other workers: code here that still works on one of them may no longer write to it."""

    def release(ledger: Ledger) -> None:
        for claim in claims:
            live = ledger.find(claim.run_id)
            if live is not None and (live.owner, live.fence, live.key) == (claim.owner, claim.fence, claim.key):
                live.fence += 1
                ledger.say(live, events.RUN_INTERRUPTED, reason=reason)
                ledger.release(live)

    store.writer.commit(release)


# -- inside ------------------------------------------------------------------------------------------------------------


class _Taking(NamedTuple):
    """The write that takes the next run."""

    store: RunStore
    search: Search
    thorough: bool
    owner: OwnerRow
    claimed: list[Claim]

    def write(self, ledger: Ledger) -> Taken | bool | None:
        """Take the next run; True if one was cancelled or failed instead."""
        self.claimed.clear()
        ledger.step_aside()  # the search must see earlier writes of this transaction, and no cached run
        tables, file = ledger.tables, self.store.file
        if self.search.per_session is not None:
            file.writing().execute(file.sql("hold_queue"))
        run_id = _next(self.store, tables.ask, tables.pick, ledger.now_ms(), self.search, self.thorough)
        live = None if run_id is None else ledger.find(run_id)
        if live is None or live.snapshot.status.is_terminal or ledger.is_owned(live):
            return None
        if live.cancel is not None:  # asked of an owner that died before it did so
            ledger.cancel(live.header.id, live.cancel or None)
            return True
        if live.fence >= self.search.attempts:
            _give_up(ledger, live)
            return True
        self.claimed.append(ledger.claim(live, self.owner))
        return Taken(self.claimed[0], live.header, is_new=live.snapshot.event_count == 0)


def _give_up(ledger: Ledger, live: Live) -> None:
    live.fence += 1  # an owner that was taken for dead, and comes back, may not go on
    ledger.say(
        live,
        events.RUN_FAILED,
        error=f"it has changed hands {live.fence - 1} times, as its process died or gave it back; resume it by hand",
    )


def _next(store: RunStore, ask: Ask, pick: Ask, now: int, search: Search, thorough: bool) -> str | None:
    """The id of the run to take."""
    full = _full(store, ask, search.per_session)
    living = _list(_alive(store, ask)) if thorough else ""
    for target in search.targets:
        rows = pick("next_released", target, now, full)
        if not rows and thorough:
            rows = pick("next_abandoned", target, now, full, living)
        if rows:
            return str(rows[0][0])
    waiting = [row for target in search.targets for row in pick("next_queued", target, full)]
    first = min(waiting, key=lambda row: (-row[1], row[2], row[3]), default=None)
    return None if first is None else str(first[0])


def _alive(store: RunStore, ask: Ask) -> list[str]:
    """The ids of the owners that are alive."""
    return [row.id for row in (OwnerRow(*found) for found in ask("owning")) if store.ownership.is_alive(row)]


def _full(store: RunStore, ask: Ask, per_session: int | None) -> str:
    """The sessions that have *per_session* runs at work already, as a JSON list."""
    if per_session is None:
        return "[]"
    alive = set(_alive(store, ask))
    at_work: Counter[str] = Counter()
    for session, owner, number in ask("sessions_at_work"):
        at_work[session] += number if owner in alive else 0
    return _list(session for session, number in at_work.items() if number >= per_session)


def _list(values: Iterable[str]) -> str:
    return _JSON.encode(list(values)).decode()
