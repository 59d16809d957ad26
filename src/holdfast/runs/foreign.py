"""The calls of an imported run, as its events tell of them. Their keys were made with the secret of another store: here
a call is known again by who made it, its name and its arguments, as far as these are shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeGuard

from holdfast import events
from holdfast.errors import RunNotFound
from holdfast.history import RunEventRecord
from holdfast.runs.identity import AMOUNT, STEP, TOOL, Identity, maker_of
from holdfast.runs.log import ELSEWHERE, LOST, OURS, SPENT
from holdfast.stores import RunStore
from holdfast.values.canonical import encode, untyped
from holdfast.values.said import Kept

Known = tuple[str, bytes]  # of a call that was made: its name, and its memo or what stands for it

AHEAD = 8  # numbers at which a call is looked for: one may have ended without a trace

_KINDS = {events.TOOL_STARTED: TOOL, events.STEP_STARTED: STEP, events.SPENT: AMOUNT}
_KEY = re.compile("[0-9a-f]{32}")


class Foreign:
    """Who the calls of an imported run are here; of any other run it knows nothing."""

    def __init__(self) -> None:
        self.elsewhere: dict[str, str] = {}  # the keys that calls had before the run was imported, by those of here
        self.steps: set[str] = set()  # the keys of those that are no tool's
        self._unclaimed: dict[tuple[str, str], dict[str, str]] = {}  # by name and maker, those nobody has asked for yet

    @classmethod
    def recognised(
        cls, calls: dict[str, Known], memos: Iterable[Kept], history: Iterable[RunEventRecord], identity: Identity
    ) -> Foreign:
        """Find out who is who; *calls* are then those that may be asked for."""
        found, told = cls(), dict[str, str]()  # the keys of here by those of elsewhere
        begun: Counter[bytes] = Counter()
        for key, name, kind, parent, sign in tell(history):
            base = identity.base(parent, name, untyped(sign), kind)
            numbers = range(begun[base], begun[base] + AHEAD)
            number = next((number for number in numbers if identity.key(base, parent, number) == key), numbers[0])
            begun[base] = number + 1
            own = identity.key(base, parent, number)
            if kind == AMOUNT:
                calls.setdefault(own, (name, SPENT))
            elif own != key:
                told[key] = own
            if kind == STEP:
                found.steps.add(key)
        kept = {key.hex(): outcome for key, _, outcome in memos}
        ours = {key for key, outcome in kept.items() if outcome == OURS}
        taken = {outcome[1:].decode(): key for key, outcome in kept.items() if outcome.startswith(ELSEWHERE)}
        for key in taken.values():
            del calls[key]
        for key in ours:
            calls[key] = (calls[key][0], LOST)
        in_doubt = {key for key, (_, outcome) in calls.items() if outcome == LOST and is_key(key)}
        for key in (*told, *in_doubt):
            if key in in_doubt and key not in ours and key not in taken:
                found._unclaimed.setdefault((calls[key][0], maker_of(key)), {})[key] = told.get(key, key)
        for key, own in told.items():
            if key in calls and taken.get(key, own) != own:
                calls.setdefault(own, (calls[key][0], LOST))
        found.elsewhere = {own: key for key, own in (*told.items(), *taken.items())}
        return found

    def claim(self, calls: dict[str, Known], own: str, name: str) -> None:
        """Have the oldest of *calls* that may be it stand for *own*: its arguments may not have been shown."""
        left = self._unclaimed.get((name, maker_of(own)), {})
        for key, other in list(left.items()):
            del left[key]
            if key in calls:
                calls[other] = (name, LOST)  # who has its arguments may be it, and must not be called unasked
                self.elsewhere[own] = key
                return


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
            if isinstance(unit, str) and isinstance(amount, int | float):
                yield Told("", unit, _KINDS[event.type], "", repr(amount).encode())
        elif event.type in (events.TOOL_STARTED, events.STEP_STARTED):
            key, name = payload.get("key"), payload.get("tool" if event.type == events.TOOL_STARTED else "name")
            parent = keys.get(str(payload.get("parent", "")))
            if is_key(key) and key[:16] not in keys and isinstance(name, str) and parent is not None:
                keys[key[:16]] = key
                yield Told(key, name, _KINDS[event.type], parent, encode(payload.get("arguments", ())) or b"")
