"""Results in events: if the JSON of an event gives back the exact result of a call, no memo is kept besides.

Such an event has the `key` of its call, and a resumed run reads the result from it. If a memo was kept as well, the
memo counts, since it says more.
"""

from __future__ import annotations

import contextlib
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
    found: dict[bytes, Kept] = {}
    for each in _read(list(ended)):
        try:
            key = bytes.fromhex(each.key)
        except ValueError:  # in a user's own event
            continue
        if key and (result := bytes(each.result)):  # otherwise a memo was kept instead
            mark = _UNCOUNTED if each.cached or each.tool is None else SAID
            found[key] = key, each.tool or each.name or "", mark + result
    found.update((memo[0], memo) for memo in memos)
    return list(found.values())


class _Ended(msgspec.Struct, gc=False):
    key: str = ""
    result: msgspec.Raw = msgspec.Raw()
    tool: str | None = None
    name: str | None = None
    cached: bool = False


def _read(payloads: list[str]) -> list[_Ended]:
    """The payloads that can be read: all in one go, which is quicker, unless a user's own event cannot be."""
    try:
        found = _ALL_ENDED.decode(f"[{','.join(payloads)}]")
        if len(found) == len(payloads):
            return found
    except ValueError:
        pass
    found = []
    for payload in payloads:
        with contextlib.suppress(ValueError):
            found.append(_ENDED.decode(payload))
    return found


_UNCOUNTED: Final = CACHED + SAID
_ANY = msgspec.json.Decoder()
_ENDED = msgspec.json.Decoder(_Ended)
_ALL_ENDED = msgspec.json.Decoder(list[_Ended])
