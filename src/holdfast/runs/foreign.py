"""The calls of an imported run, as its events tell of them. Their keys were made with the secret of another store: here
a call is known again by who made it, its name and its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeGuard

from holdfast import events
from holdfast.errors import RunNotFound
from holdfast.history import RunEventRecord
from holdfast.stores import RunStore
from holdfast.values.canonical import encode

KINDS = {events.TOOL_STARTED: b"t", events.STEP_STARTED: b"s", events.SPENT: b"$"}
_KEY = re.compile("[0-9a-f]{32}")


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
    return {key for event in log if event.type in KINDS and is_key(key := event.payload.get("key"))}


def tell(history: Iterable[RunEventRecord]) -> Iterator[Told]:
    """The calls and amounts, each once, in the order in which they began."""
    keys = {"": ""}  # by call id
    for event in history:
        payload = event.payload
        if event.type == events.SPENT and not event.late and not payload.keys() & {"parent", "carried"}:
            unit, amount = payload.get("unit"), payload.get("amount")
            if isinstance(unit, str) and isinstance(amount, int | float):
                yield Told("", unit, KINDS[event.type], "", repr(amount).encode())
        elif event.type in (events.TOOL_STARTED, events.STEP_STARTED):
            key, name = payload.get("key"), payload.get("tool" if event.type == events.TOOL_STARTED else "name")
            parent = keys.get(str(payload.get("parent", "")))
            if is_key(key) and key[:16] not in keys and isinstance(name, str) and parent is not None:
                keys[key[:16]] = key
                yield Told(key, name, KINDS[event.type], parent, encode(payload.get("arguments", ())) or b"")
