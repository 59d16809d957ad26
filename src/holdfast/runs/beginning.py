"""How a run begins: anew, resumed where it was interrupted, or as a fork of one that has ended. Each is one write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import msgspec

from holdfast import events
from holdfast.errors import RunConflict
from holdfast.history import RunHeader, RunStatus
from holdfast.runs.identity import KEY_SCHEME, SEVERAL
from holdfast.runs.log import AGAIN, LOST, SPENT
from holdfast.stores import RunStore
from holdfast.stores.ledger import Claim, Ledger, Live, OwnerRow

STOPPED = "it was stopped while it began or ended"
PATIENCE = 2.0  # seconds to wait for the writes of runs that are only noted, when they end or the store is closed

_ALL = b""  # not a call's key: among the memos of an imported run's fork, it says that they tell of all earlier calls


class Begun(msgspec.Struct, frozen=True):
    """A run that was begun, and the right to write to it."""

    claim: Claim
    header: RunHeader
    spend: dict[str, float]
    cancel: str | None  # the reason, if a cancel was requested before


class Start(msgspec.Struct, frozen=True):
    """Begin a run that has no event yet."""

    header: RunHeader
    prompt: Mapping[str, Any]  # redacted and cut
    owner: Callable[[], OwnerRow]  # called within the write: where there can be no owner, the store has failed
    taken: list[Claim]  # what it has claimed, for the caller to give back if need be

    def write(self, ledger: Ledger) -> Begun:
        """Begin it."""
        self.taken.clear()  # a claim from a transaction that failed does not count
        header, owner = self.header, self.owner()
        live = ledger.find(header.id)
        if live is not None:
            if live.snapshot.status.is_terminal and live.snapshot.started_at_ms is None:
                raise RunConflict(f"run {header.id!r} was {live.snapshot.status} before it began: choose another id")
            if live.snapshot.event_count:
                raise RunConflict(f"run {header.id!r} has begun before: use resume")
            if (live.header.session_id, live.header.prompt) != (header.session_id, header.prompt):
                raise RunConflict(f"run {header.id!r} exists with another session or prompt; choose another id")
        else:
            live = ledger.add(header)
        ledger.add_to_header(live, entry=header.entry, budget=header.budget, keys=KEY_SCHEME)
        claim = ledger.claim(live, owner)
        self.taken[:] = [claim]
        ledger.say(live, events.RUN_STARTED, **self.prompt)
        return Begun(claim, live.header, {}, live.cancel)


def note(store: RunStore, header: RunHeader, prompt: Mapping[str, Any]) -> Claim:
    """Begin a new run without waiting for the write: the first claim to a run is known beforehand."""
    store.writer.patience = PATIENCE
    store.writer.submit(Start(header, prompt, store.ownership.row, []).write)
    return Claim(header.id, "", 1)


class Resume(msgspec.Struct, frozen=True):
    """Resume a run that was interrupted; if it failed or was cancelled, make its fork, or resume that.

    A run has one fork at most, whose id follows from its own: so no finished call is made twice, however often the
    same run is resumed, fails, and its process dies.
    """

    run_id: str
    owner: Callable[[], OwnerRow]
    taken: list[Claim]
    claim: Claim | None = None  # the claim to it, if a worker has taken it before
    prompt: Mapping[str, Any] = {}  # redacted and cut
    forks: bool = True  # False: a run that has ended is a conflict

    def write(self, ledger: Ledger) -> Begun:
        """Begin it."""
        self.taken.clear()
        owner = self.owner()
        live = ledger.run(self.run_id) if self.claim is None else ledger.claimed(self.claim)
        if not self.forks and live.snapshot.status.is_terminal:
            raise RunConflict(f"run {self.run_id!r} has ended meanwhile")
        if live.header.noted:
            raise RunConflict(f"run {self.run_id!r} was only noted, as the sessions of proxies are: begin a new one")
        while live.snapshot.status.is_terminal:
            if live.snapshot.status is RunStatus.COMPLETED:
                which = "" if live.header.id == self.run_id else f", as {live.header.id!r}"
                raise RunConflict(f"run {self.run_id!r} has completed{which}: there is nothing to resume")
            if (fork := ledger.find(_fork_id(live.header.id))) is None:
                return self._begin(ledger, owner, _fork(ledger, live, _check_known(ledger, live)), live)
            live = fork
        _check_known(ledger, live)
        return self._begin(ledger, owner, live, None)

    def _begin(self, ledger: Ledger, owner: OwnerRow, live: Live, forked: Live | None) -> Begun:
        claim = self.claim or ledger.claim(live, owner)
        self.taken[:] = [claim]
        is_new = forked is None and not live.snapshot.event_count
        ledger.add_to_header(live, keys=KEY_SCHEME if is_new or live.header.keys == KEY_SCHEME else SEVERAL)
        if is_new:
            ledger.say(live, events.RUN_STARTED, **self.prompt, host=owner.host, pid=owner.pid)
        elif forked is None:
            ledger.say(live, events.RUN_RESUMED, host=owner.host, pid=owner.pid)
        else:
            ledger.say(live, events.RUN_STARTED, **self.prompt, forked_from=forked.header.id)
            for unit, amount in forked.snapshot.spend.items():
                ledger.say(live, events.SPENT, unit=unit, amount=amount, carried=True)
        return Begun(claim, live.header, dict(live.snapshot.spend), live.cancel)


def _check_known(ledger: Ledger, run: Live) -> list[Live]:
    """Raise a conflict if *run* was imported, and this store cannot know all calls that it may have finished.

    Return the runs that it is a fork of, the latest first: they tell of calls that it does not tell of itself.
    """
    found: list[Live] = []
    if run.origin is None:
        return found
    if run.first:
        raise _unknown(run, f"its first {run.first} events")
    if ledger.has_memo(run, _ALL):
        return found
    seen, before = {run.header.id}, run.header.forked_from
    while before is not None and before not in seen:
        seen.add(before)
        if (live := ledger.find(before)) is None:
            raise _unknown(run, f"run {before!r}, which it is a fork of", "import that, too, or ")
        if live.first:
            raise _unknown(run, f"the first {live.first} events of run {before!r}, which it is a fork of")
        found.append(live)
        before = live.header.forked_from
    return found


def _unknown(run: Live, lacks: str, instead: str = "") -> RunConflict:
    return RunConflict(
        f"run {run.header.id!r} was imported, and lacks {lacks}: nobody can tell which calls it has finished; "
        f"{instead}begin a new one"
    )


def _fork(ledger: Ledger, old: Live, others: Sequence[Live]) -> Live:
    """Add the fork of *old*: it knows what *old* knew, and the calls that the *others* tell of."""
    header = msgspec.structs.replace(
        old.header,
        id=_fork_id(old.header.id),
        created_at_ms=ledger.now_ms(),
        forked_from=old.header.id,
        root=old.header.root or old.header.id,
    )
    new = ledger.add(header)
    new.origin = old.origin
    for other in others:
        for key, name, outcome in ledger.memos_of(other):
            ledger.remember(new, key, name, outcome if outcome == SPENT else LOST)
    outcomes = ledger.copy_memos(old, new)  # after those of the others, as these count for more
    for call in (call for run in (old, *others) for call in run.snapshot.active_calls.values()):
        with suppress(ValueError):  # a user's own event may hold a key that is not a call's
            key = bytes.fromhex(call.key)
            if key and outcomes.get(key, LOST) in (LOST, AGAIN):  # otherwise it ended after the run did
                ledger.remember(new, key, call.name, LOST)
    if old.origin is not None:
        ledger.remember(new, _ALL, "", LOST)
    return new


def _fork_id(run_id: str) -> str:
    return blake2b(run_id.encode("utf-8", "surrogatepass"), digest_size=16, person=b"fork").hexdigest()


class GiveBack(msgspec.Struct, frozen=True):
    """Give back what was claimed, or is about to be, for a caller that was interrupted and cannot run or end it."""

    taken: list[Claim]
    reason: str = STOPPED

    def write(self, ledger: Ledger) -> None:
        """Give it back."""
        for claim in self.taken:
            live = ledger.claimed(claim)
            if live.owner is not None:  # it has not been given back yet
                ledger.say(live, events.RUN_INTERRUPTED, reason=self.reason)
                ledger.release(live)
