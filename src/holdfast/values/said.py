"""Results in events: if the JSON of an event gives back the exact result of a call, no memo is kept besides.

Such an event has the `key` of its call, and a resumed run reads the result from it. If a memo was kept as well, the
memo counts, since it says more.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from holdfast import events

SAID: Final = b"j"  # the first byte of a memo, before the JSON; alone, it means that the event has the result
CACHED: Final = b"c"  # before a memo that does not count as a call: it is from the cache, or of a step
ENDS: Final = frozenset({events.TOOL_ENDED, events.STEP_ENDED})

Kept = tuple[bytes, str, bytes]  # the key of a call, its name, its memo


def gives_back(decode: Callable[[bytes], Any], data: bytes, value: Any) -> bool:
    """True if *decode* turns *data* into exactly *value* again, with the same types throughout.

    Both are compared as marshal writes them: it knows only the builtin types, not their subclasses, writes each in its
    own way, at the speed of C, and raises an error for all others, except that objects with a buffer become bytes.
    """
    try:
        return marshal.dumps(value, 2) == marshal.dumps(decode(data), 2)
    except Exception:  # not made of builtin types, before or after
        return False


def load_said(memo: bytes) -> Any:
    """The value of a memo that begins with `SAID`; a `LookupError` if it is damaged."""
    try:
        return _ANY.decode(memo[1:])
    except ValueError as error:
        raise LookupError(f"the result cannot be read: {error}") from error


def known(ended: Iterable[str], memos: Iterable[Kept]) -> list[Kept]:
    """What is known of the calls of a run, from the payloads *ended* of its `ENDS` events and from its *memos*."""
    found = {each[0]: each for payload in ended if (each := _said(payload)) is not None}
    found.update((memo[0], memo) for memo in memos)
    return list(found.values())


class _Ended(msgspec.Struct):
    key: str
    result: msgspec.Raw
    tool: str | None = None
    name: str | None = None
    cached: bool = False


def _said(payload: str) -> Kept | None:
    """The memo that an event stands for; None for a user's own event, and if a memo was kept instead."""
    try:
        ended = _ENDED.decode(payload)
        key = bytes.fromhex(ended.key)
    except ValueError:
        return None
    uncounted = ended.cached or ended.tool is None
    return key, ended.tool or ended.name or "", (CACHED if uncounted else b"") + SAID + bytes(ended.result)


_ANY = msgspec.json.Decoder()
_ENDED = msgspec.json.Decoder(_Ended)
