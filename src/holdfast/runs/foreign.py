"""The calls of a run whose keys were made elsewhere, as its events tell of them: with the secret of another store, if
it was imported, or in the way of another version. Here a call is known again by who made it, its name and its
arguments, as far as these are shown.
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
    """Who the calls of a foreign run are here; of any other run it knows nothing."""

    def __init__(self, *, imported: bool = False) -> None:
        self._imported = imported  # events alone tell of the calls from before; of any other run, memos tell of all
        self.elsewhere: dict[str, str] = {}  # the keys that calls have had elsewhere, by those of here
        self._alike: dict[str, str] = {}  # the same the other way round, where events show who a call is
        self._unclaimed: dict[tuple[str, str], deque[str]] = {}  # by name and maker, those nobody has asked for yet

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
        """Find out who is who; *calls* are then those that may be asked for."""
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
        heard = (told for told in tell(history) if imported or told.kind == AMOUNT or told.key in calls)
        certain = found._hear(calls, heard, identity)
        asked = {*ours, *claimed.values()} if imported else certain  # in another version, they were other keys
        for key in dict.fromkeys((*found._alike, *calls)):  # the oldest first, as far as events tell
            may_be_any = calls[key].bare == LOST or not (imported or calls[key].bare == SPENT)
            if may_be_any and is_key(key) and key not in asked:
                found._unclaimed.setdefault((calls[key].name, maker_of(key)), deque()).append(key)
        for own, key in claimed.items():
            found._take_for(calls, own, key)
        return found

    def shows(self, own: str, key: str) -> bool:
        """Whether events tell, for good, that *own* is the call *key*."""
        return not self._imported and self._alike.get(key) == own

    def claim(self, calls: dict[str, Outcome], own: str, name: str) -> None:
        """Have the oldest of *calls* that may be it stand for *own*, in doubt: its arguments may not be shown."""
        left = self._unclaimed.get((name, maker_of(own)))
        while left:
            if (key := left.popleft()) in calls:
                calls[key] = Outcome(key, name, LOST if calls[key].counts else CACHED + LOST)
                self._take_for(calls, own, key)
                return

    def _hear(self, calls: dict[str, Outcome], heard: Iterable[Told], identity: Identity) -> set[str]:
        """Give each call the key that the same call has here; gives those that have it already."""
        begun: Counter[bytes] = Counter()
        certain = set[str]()
        for key, name, kind, parent, sign in heard:
            base = identity.base(parent, name, untyped(sign), kind)
            keys = [identity.key(base, parent, number) for number in ahead(begun[base])]
            place = keys.index(key) if key in keys else 0  # it may have been made here
            own = keys[place]
            begun[base] += place + 1
            if kind == AMOUNT:
                calls.setdefault(own, Outcome(own, name, SPENT))
                continue
            if own == key:
                certain.add(key)
            else:
                self._alike[key], self.elsewhere[own] = own, key
            # What a fork had from others is in none of its own events.
            known = calls.setdefault(key, Outcome(key, name, LOST))
            if kind == STEP:
                calls[key] = Outcome(key, name, CACHED + known.bare)
        return certain

    def _take_for(self, calls: dict[str, Outcome], own: str, key: str) -> None:
        """The call *own* of here is *key*; another that is like it may be it, too, and must not be called unasked."""
        self.elsewhere[own] = key
        alike = self._alike.get(key, own)
        if alike != own and key in calls:
            calls.setdefault(alike, Outcome(alike, calls[key].name, LOST))


class Told(NamedTuple):
    """A call, or an amount that was spent outside of any: it has no key."""

    key: str
    name: str
    kind: bytes
    parent: str
    sign: bytes  # its arguments, if they are shown as they were


def is_key(key: object) -> TypeGuard[str]:
    """Whether a call can have *key*; anybody may have written it."""
    return isinstance(key, str) and _KEY.fullmatch(key) is not None


def history(store: RunStore, run_id: str) -> list[RunEventRecord]:
    """The events of a run and of those that it is a fork of, as far as they are there."""
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


def tell(history: Iterable[RunEventRecord]) -> Iterator[Told]:
    """The calls and amounts, each once, in the order in which they began."""
    keys = {"": ""}  # by call id
    for event in history:
        payload = event.payload
        if event.type == events.SPENT and not event.late and not payload.keys() & {"parent", "carried"}:
            unit, amount = payload.get("unit"), payload.get("amount")
            if isinstance(unit, str):
                yield Told("", unit, _KINDS[event.type], "", repr(amount).encode())
        elif event.type in (events.TOOL_STARTED, events.STEP_STARTED):
            key, name = payload.get("key"), payload.get("tool" if event.type == events.TOOL_STARTED else "name")
            parent = keys.get(str(payload.get("parent", "")))
            if is_key(key) and key[:16] not in keys and isinstance(name, str) and parent is not None:
                keys[key[:16]] = key
                yield Told(key, name, _KINDS[event.type], parent, encode(payload.get("arguments", ())) or b"")
