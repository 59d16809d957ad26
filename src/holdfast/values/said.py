"""Results that the log says: where the JSON of an event gives back exactly what a call gave, no memo is kept beside it.

Such an event has the `key` of its call; whoever resumes the run reads it there. A memo that was kept says more: it
counts.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from holdfast import events

SAID: Final = b"j"  # the first byte of a memo, before the JSON; by itself: the event says it
CACHED: Final = b"c"  # before a memo: it counts for no call, for it came from the cache, or is of a step
ENDS: Final = frozenset({events.TOOL_ENDED, events.STEP_ENDED})

Kept = tuple[bytes, str, bytes]  # the key of a call, its name, its memo


def gives_back(decode: Callable[[bytes], Any], data: bytes, value: Any) -> bool:
    """Whether *decode* makes of *data* the very same *value*, all types the same.

    Both are compared as marshal writes them: it knows only the very builtin types, no subclass, writes each in its own
    way and at the speed of C, and raises an error for all else. It takes some other things for bytes.
    """
    try:
        return marshal.dumps(value, 2) == marshal.dumps(decode(data), 2)
    except Exception:  # no builtin, or no longer one
        return False


def load_said(memo: bytes) -> Any:
    """The value of a memo that begins with `SAID`; a `LookupError` if it is damaged."""
    try:
        return _ANY.decode(memo[1:])
    except ValueError as error:
        raise LookupError(f"the result cannot be read: {error}") from error


def known(ended: Iterable[str], memos: Iterable[Kept]) -> list[Kept]:
    """What is known of the calls of a run from the payloads of its `ENDS`, and from its *memos*."""
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
    """The memo that an event says; none where it is a user's own, or its memo was kept."""
    try:
        ended = _ENDED.decode(payload)
        key = bytes.fromhex(ended.key)
    except ValueError:
        return None
    uncounted = ended.cached or ended.tool is None
    return key, ended.tool or ended.name or "", (CACHED if uncounted else b"") + SAID + bytes(ended.result)


_ANY = msgspec.json.Decoder()
_ENDED = msgspec.json.Decoder(_Ended)
