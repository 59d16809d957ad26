"""The queue: runs that were submitted and wait for a worker. It is the table of runs; there is no other.

A run is taken in the transaction that finds it, by becoming its owner: so two workers never have the same one. What was
begun and has lost its worker comes first, then the highest priority, then the oldest.
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
ATTEMPTS = 20  # owners that a run may have before it is given up

Ask = Callable[..., list[tuple[Any, ...]]]
_JSON = msgspec.json.Encoder(order="sorted")


class Taken(NamedTuple):
    """A run that this process owns now, and has yet to call; *is_new* if nobody has begun it before."""

    claim: Claim
    header: RunHeader
    is_new: bool


class Search(NamedTuple):
    """What a worker takes: runs of these *targets*, at most *per_session* at once of a session in the whole fleet.

    One that had *attempts* owners and has not ended is failed instead.
    """

    targets: Sequence[str]
    per_session: int | None = None
    attempts: int = ATTEMPTS


# -- in ----------------------------------------------------------------------------------------------------------------


def submit(store: RunStore, header: RunHeader) -> RunSnapshot:
    """Put a run into the queue; the same again gives the one that is there, queued, running or done."""

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
    entry = _JSON.encode(header.entry)  # in which 1, 1.0 and true are three
    return (header.session_id, header.prompt, entry, header.priority)


# -- out ---------------------------------------------------------------------------------------------------------------


def take(store: RunStore, search: Search, *, thorough: bool = True, unsure: list[Claim] | None = None) -> Taken | None:
    """Own the next run, if there is any; *thorough* also looks for those whose owner died without a word.

    What has to be given up is failed on the way. Nothing is written where there is nothing to take. If the store fails
    in the middle of it, *unsure* gets what may be ours all the same.
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
    """Whether nothing waits for a worker: neither what was never begun nor what has lost its worker."""
    living = _list(_alive(store, store.file.fetch))
    return not any(
        store.file.fetch("next_queued", target, "[]") or store.file.fetch("any_begun", target, living)
        for target in targets
    )


def counts(store: RunStore) -> dict[str, int]:
    """How many runs are queued, by the function that they wait for."""
    return {str(target): int(number) for target, number in store.file.fetch("count_queued")}


def give_back(store: RunStore, claims: Sequence[Claim], reason: str) -> None:
    """Leave runs to others: whoever still works on one of them may write no more."""

    def release(ledger: Ledger) -> None:
        for claim in claims:
            live = ledger.find(claim.run_id)
            if live is not None and live.fence == claim.fence and live.owner == claim.owner:
                live.fence += 1
                ledger.say(live, events.RUN_INTERRUPTED, reason=reason)
                ledger.release(live)

    store.writer.commit(release)


# -- inside ------------------------------------------------------------------------------------------------------------


class _Taking(NamedTuple):
    """Take the next run."""

    store: RunStore
    search: Search
    thorough: bool
    owner: OwnerRow
    claimed: list[Claim]

    def write(self, ledger: Ledger) -> Taken | bool | None:
        """Take it; true if one was given up instead."""
        self.claimed.clear()
        ledger.step_aside()  # what came before in this transaction must be seen, and nothing at hand be believed
        tables, file = ledger.tables, self.store.file
        if self.search.per_session is not None:
            file.writing().execute(file.sql("hold_queue"))
        run_id = _next(self.store, tables.ask, tables.pick, ledger.now_ms(), self.search, self.thorough)
        live = None if run_id is None else ledger.find(run_id)
        if live is None or live.snapshot.status.is_terminal or ledger.is_owned(live):
            return None
        if live.cancel is not None:  # asked of an owner who died before it was done
            ledger.cancel(live.header.id, live.cancel or None)
            return True
        if live.fence >= self.search.attempts:
            _give_up(ledger, live)
            return True
        is_new = live.fence == 0 and live.snapshot.event_count == 0
        self.claimed.append(ledger.claim(live, self.owner))
        return Taken(self.claimed[0], live.header, is_new)


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
    """The owners that are."""
    return [row.id for row in (OwnerRow(*found) for found in ask("owning")) if store.ownership.is_alive(row)]


def _full(store: RunStore, ask: Ask, per_session: int | None) -> str:
    """The sessions of which as many runs are at work as may be."""
    if per_session is None:
        return "[]"
    alive = set(_alive(store, ask))
    at_work: Counter[str] = Counter()
    for session, owner, number in ask("sessions_at_work"):
        at_work[session] += number if owner in alive else 0
    return _list(session for session, number in at_work.items() if number >= per_session)


def _list(values: Iterable[str]) -> str:
    return _JSON.encode(list(values)).decode()
