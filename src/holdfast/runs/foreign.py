"""Recognises the calls of a foreign run, whose keys were made elsewhere: with the secret of another store, if it was
imported, or in the way of another version. Events tell of these calls; each is recognised by the call that made it, its
name, and its arguments as far as events show them.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeGuard

from holdfast import events
from holdfast.errors import RunNotFound
from holdfast.history import RunEventRecord
from holdfast.runs.identity import AMOUNT, STEP, TOOL, Identity, ahead, maker_of
from holdfast.runs.log import ELSEWHERE, LOST, OURS, SPENT, Outcome
from holdfast.stores import RunStore
from holdfast.values.canonical import encode, untyped
from holdfast.values.said import CACHED, Kept

_KINDS = {events.TOOL_STARTED: TOOL, events.STEP_STARTED: STEP, events.SPENT: AMOUNT}
_KEY = re.compile("[0-9a-f]{32}")


class Foreign:
    """Which keys the calls of a foreign run have here; empty for any other run."""

    def __init__(self, *, imported: bool = False) -> None:
        self._imported = imported  # only events tell of its earlier calls; if of another version, memos tell of all
        self.elsewhere: dict[str, str] = {}  # the keys that calls got elsewhere, by the keys they have here
        self._alike: dict[str, str] = {}  # the reverse, where events show which call it is
        self._unclaimed: dict[tuple[str, str], deque[str]] = {}  # keys without a match yet, by name and maker

    @classmethod
    def recognised(
        cls,
        calls: dict[str, Outcome],
        memos: Iterable[Kept],
        history: Iterable[RunEventRecord],
        identity: Identity,
        *,
        imported: bool,
    ) -> Foreign:
        """Match the keys from elsewhere with the keys here, and change *calls* to those that the code may ask for."""
        found = cls(imported=imported)
        ours, claimed = set[str](), dict[str, str]()
        for digest, name, memo in memos:
            key = digest.hex()
            if memo == OURS:
                ours.add(key)
                calls[key] = Outcome(key, name, LOST)
            elif memo.startswith(ELSEWHERE):
                claimed[key] = memo.removeprefix(ELSEWHERE).decode()
                del calls[key]
        recorded = (call for call in recorded_calls(history) if imported or call.kind == AMOUNT or call.key in calls)
        certain = found._match(calls, recorded, identity)
        asked = {*ours, *claimed.values()} if imported else certain  # marks of another version are about its own keys
        for key in dict.fromkeys((*found._alike, *calls)):  # the oldest first, as far as events tell
            may_be_any = calls[key].bare == LOST or not (imported or calls[key].bare == SPENT)
            if may_be_any and is_key(key) and key not in asked:
                found._unclaimed.setdefault((calls[key].name, maker_of(key)), deque()).append(key)
        for own, key in claimed.items():
            found._take_for(calls, own, key)
        return found

    def shows(self, own: str, key: str) -> bool:
        """True if events will always show that the call *own* is *key*."""
        return not self._imported and self._alike.get(key) == own

    def claim(self, calls: dict[str, Outcome], own: str, name: str) -> None:
        """Match *own* with the oldest of *calls* that may be it, in doubt: events may not show its arguments."""
        left = self._unclaimed.get((name, maker_of(own)))
        while left:
            if (key := left.popleft()) in calls:
                calls[key] = Outcome(key, name, LOST if calls[key].counts else CACHED + LOST)
                self._take_for(calls, own, key)
                return

    def _match(self, calls: dict[str, Outcome], recorded: Iterable[RecordedCall], identity: Identity) -> set[str]:
        """Match each call in *recorded* with the key that it has here; return the keys that are the same in both."""
        begun: Counter[bytes] = Counter()
        certain = set[str]()
        for key, name, kind, parent, sign in recorded:
            base = identity.base(parent, name, untyped(sign), kind)
            keys = [identity.key(base, parent, number) for number in ahead(begun[base])]
            place = keys.index(key) if key in keys else 0  # the call may have been made here
            own = keys[place]
            begun[base] += place + 1
            if kind == AMOUNT:
                calls.setdefault(own, Outcome(own, name, SPENT))
                continue
            if own == key:
                certain.add(key)
            else:
                self._alike[key], self.elsewhere[own] = own, key
            # A fork's own events do not tell of the calls that it knows from the runs before it: *recorded* adds them.
            known = calls.setdefault(key, Outcome(key, name, LOST))
            if kind == STEP:
                calls[key] = Outcome(key, name, CACHED + known.bare)
        return certain

    def _take_for(self, calls: dict[str, Outcome], own: str, key: str) -> None:
        """Match *own* with *key*; the call that events match with *key* may be it, too, and is put in doubt."""
        self.elsewhere[own] = key
        alike = self._alike.get(key, own)
        if alike != own:
            calls.setdefault(alike, Outcome(alike, calls[key].name, LOST))


class RecordedCall(NamedTuple):
    """A call that an event tells of, or an amount that was spent outside of any call, which has no key."""

    key: str
    name: str
    kind: bytes
    parent: str
    sign: bytes  # its arguments, encoded as the event shows them


def is_key(key: object) -> TypeGuard[str]:
    """True if a call can have *key*; a user's event may hold anything there."""
    return isinstance(key, str) and _KEY.fullmatch(key) is not None


def history(store: RunStore, run_id: str) -> list[RunEventRecord]:
    """The events of a run and, before them, of the runs that it is a fork of, as far as the store has them."""
    found: list[RunEventRecord] = []
    seen: set[str] = set()
    before: str | None = run_id
    with suppress(RunNotFound):
        while before is not None and before not in seen:
            seen.add(before)
            found[:0] = store.events(before)
            before = store.snapshot(before).forked_from
    return found


def begun(log: Iterable[RunEventRecord]) -> set[str]:
    """The keys of the calls that began in *log*."""
    return {key for event in log if event.type in _KINDS and is_key(key := event.payload.get("key"))}


def recorded_calls(history: Iterable[RunEventRecord]) -> Iterator[RecordedCall]:
    """The calls and amounts that *history* tells of, each once, in the order in which they began."""
    keys = {"": ""}  # of calls, by call id
    for event in history:
        payload = event.payload
        if event.type == events.SPENT and not event.late and not payload.keys() & {"parent", "carried"}:
            unit, amount = payload.get("unit"), payload.get("amount")
            if isinstance(unit, str):
                yield RecordedCall("", unit, _KINDS[event.type], "", repr(amount).encode())
        elif event.type in (events.TOOL_STARTED, events.STEP_STARTED):
            key, name = payload.get("key"), payload.get("tool" if event.type == events.TOOL_STARTED else "name")
            parent = keys.get(str(payload.get("parent", "")))
            if is_key(key) and key[:16] not in keys and isinstance(name, str) and parent is not None:
                keys[key[:16]] = key
                yield RecordedCall(key, name, _KINDS[event.type], parent, encode(payload.get("arguments", ())) or b"")
