"""The exact result of a finished call, for resume only: msgpack, never pickle. Failed calls are in `failures`.

Exact means that the value that comes back compares equal and has the same types, all the way down. This is tested when
the memo is made: if it does not hold, there is no memo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.values.objects import Objects, image
from holdfast.values.said import SAID, load_said
from holdfast.values.tagged import Tagger, is_plain, pack_plain, unpack, unpack_plain

LIMIT: Final = 4 * 2**20  # bytes
_VALUE, _ITEMS = b"v", b"s"  # the first byte says what a memo holds; in upper case, that it is tagged


class Memo(msgspec.Struct, eq=False):  # a Struct, built in C: each step has one
    """Encodes what *fn* returned, and decodes it; the return annotation says which objects can be rebuilt."""

    _fn: Callable[..., object] | None
    limit: int = LIMIT
    _found: Objects | None = None

    def dump(self, value: object) -> bytes | None:
        """The memo of *value*; None if it could not be given back exactly or is over the limit."""
        return self._dump(_VALUE, value)

    def dump_items(self, items: list[object], returned: object = None) -> bytes | None:
        """The memo of a stream that was exhausted: its *items*, and what it *returned*."""
        return self._dump(_ITEMS, [items, returned])

    def load(self, data: bytes) -> object:
        """The value; a `LookupError` if it cannot be rebuilt, as when the annotation has changed."""
        return load_said(data) if data[:1] == SAID else self._load(_VALUE, data)

    def load_items(self, data: bytes) -> tuple[list[object], object]:
        """The items of a stream, and what it returned; a `LookupError` if they cannot be rebuilt."""
        match self._load(_ITEMS, data):
            case [list() as items, returned]:
                return items, returned
        raise LookupError("the memo holds no stream")

    @property
    def _objects(self) -> Objects:
        if self._found is None:  # most values are plain data
            self._found = Objects(self._fn)
        return self._found

    def _dump(self, mark: bytes, value: object) -> bytes | None:
        try:
            data = pack_plain(value)
        except Exception:  # an object, a lone surrogate, a huge number: it may work with a tag
            return self._dump_tagged(mark.upper(), value)
        if len(data) > self.limit:
            return None
        return mark + data if is_plain(value, data) else self._dump_tagged(mark.upper(), value)

    def _dump_tagged(self, mark: bytes, value: object) -> bytes | None:
        try:
            data = Tagger(self._objects.apart).pack(value)
            if len(data) > self.limit or image(value) != image(unpack(data, self._objects.together)):
                return None
        except Exception:  # perhaps in the value's own code; without a memo, the call is made again, or in doubt
            return None
        return mark + data

    def _load(self, mark: bytes, data: bytes) -> Any:
        try:
            if data[:1] == mark:
                return unpack_plain(data[1:])
            if data[:1] == mark.upper():
                return unpack(data[1:], self._objects.together)
        except Exception as error:
            raise LookupError(f"the result cannot be rebuilt: {type(error).__name__}: {error}") from error
        raise LookupError("the memo holds no such result")
