"""Any value as JSON: strictly, where a value without a form in JSON is an error, or as much of it as can be shown.

It is never deeper than `DEEPEST`, so that every reader can decode it. Fields have the names that they have in Python.
"""

from __future__ import annotations

import base64
import os
import re
from collections import deque
from collections.abc import Container, Iterable, Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from holdfast import checks
from holdfast.errors import ConfigError, printable
from holdfast.values.said import gives_back
from holdfast.values.tagged import fields_of

DEEPEST = 100  # levels; the stack of a process that reads an event is limited, and partly used
_MOST_NODES = 1_000_000  # in a value that has to be taken apart piece by piece
EXACT: Final = frozenset({type(None), bool, int, str})  # JSON gives back the same, or cannot hold them at all
_NAMELESS = EXACT | {float, bytes}
_MOST_COPIED = 2**22  # bytes of JSON that are decoded again to see whether nothing was lost


def lenient(value: object) -> bytes:
    """What can be shown of *value*; a short text stands for each part that JSON does not know."""
    try:
        data = _LENIENT.encode(value)
        return data if is_flat(value) else _readable(data, value)
    except Exception:  # surrogates, cycles, odd keys, an object's own code: piece by piece something can be shown
        return PLAIN.encode(_Pieces(strict=False).plain(value))


def members(payload: Mapping[str, object]) -> bytes:
    """All of *payload* as a JSON object; a `ConfigError` names the key that cannot be encoded."""
    try:
        plain = payload if type(payload) is dict else dict(payload)
        return _readable(_STRICT.encode(plain), plain)
    except Exception:  # one of the values is unusual, or wrong: then the error names its key
        return _by_parts(payload.items())


def check_depth(data: bytes, deepest: int = DEEPEST) -> None:
    """Raise a `ValueError` if the JSON *data* is nested deeper than *deepest* levels."""
    if len(data) > 2 * deepest and data.count(b"[") + data.count(b"{") > deepest:
        brackets = _TEXTS.sub(b"", data).translate(None, _NO_BRACKETS)
        for _ in range(deepest):  # each round takes off the innermost level
            if not brackets:
                break
            brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if brackets:
            raise ValueError(f"nested deeper than {deepest} levels")


def _strict(value: object) -> bytes:
    try:
        return _readable(_STRICT.encode(value), value)
    except Exception:  # piece by piece, sets of mixed types and numbers as keys can be encoded
        return PLAIN.encode(_Pieces(strict=True).plain(value))


def _readable(data: bytes, value: object) -> bytes:
    """The JSON *data* of *value*, if every reader can decode it and it hides no names; else raise a `ValueError`."""
    if is_flat(value):
        return data
    if len(data) <= _MOST_COPIED and gives_back(READ, data, value):  # so it can be read, and hides no names
        check_depth(data)
        return data
    if _hides_names(value):
        raise ValueError("names that may say what is secret would be left out")
    return _checked(data)


def is_flat(value: object, scalars: Container[type] = _NAMELESS) -> bool:
    """True if *value* is a list of *scalars*, or a dict of them by texts, as most arguments and results are."""
    if type(value) is dict:
        for name, inner in value.items():  # a loop, since most have few: a set would have to be filled first
            if type(name) is not str or type(inner) not in scalars:
                return False
        return True
    if type(value) is list:
        for inner in value:
            if type(inner) not in scalars:
                return False
        return True
    return False


def _hides_names(value: object) -> bool:
    """True if msgspec would show something in *value* without its name, or by another name than it has in Python."""
    todo, seen = [value], set[int]()
    for each in todo:  # the list grows meanwhile
        kind: Any = type(each)
        if kind in _NAMELESS or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, dict):
            if any(isinstance(key, bytes) for key in each):
                return True
            todo += each.values()
        elif isinstance(each, list | tuple | set | frozenset | deque):
            if hasattr(kind, "_fields"):
                return True
            todo += each
        elif isinstance(each, msgspec.Struct) and (
            kind.__struct_config__.array_like or kind.__struct_encode_fields__ != kind.__struct_fields__
        ):
            return True
        elif not isinstance(each, type | Enum) and (fields := fields_of(each)) is not None:
            todo += fields.values()
    return False


def _checked(data: bytes) -> bytes:
    """*data* if it can be read as JSON; raises if not: a user's `msgspec.Raw` may be anything, a value too deep."""
    _SKIP.decode(data)
    if not data.isascii():
        data.decode()
    check_depth(data)
    return data


class _Pieces:
    """Takes a value apart into plain data; a part without a form in JSON raises if *strict*, else its type is named."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._path: set[int] = set()  # the ids of the values around the current one
        self._left = _MOST_NODES

    def plain(self, value: object) -> object:
        self._left -= 1
        try:
            if self._left < 0:
                raise ValueError(f"more than {_MOST_NODES} values")
            if isinstance(value, str):
                return self._text(value)
            inner = _inner(value)
            return self._leaf(value) if inner is None else self._within(value, inner)
        except Exception:
            if self._strict:
                raise
            return f"<{_kind(value)}>"

    def _within(self, value: object, inner: Mapping[object, object] | Iterable[object]) -> object:
        if id(value) in self._path:
            raise ValueError("it contains itself")
        if len(self._path) >= DEEPEST:
            raise ValueError(f"nested deeper than {DEEPEST} levels")
        self._path.add(id(value))
        try:
            if isinstance(inner, Mapping):
                return {self._key(key): self.plain(item) for key, item in inner.items()}
            items = [self.plain(item) for item in inner]
            return sorted(items, key=PLAIN.encode) if isinstance(value, set | frozenset) else items
        finally:
            self._path.discard(id(value))

    def _key(self, key: object) -> str:
        if isinstance(key, str) and not isinstance(key, Enum):
            return self._text(key)
        if isinstance(key, bytes) and key.isascii():
            return key.decode()
        text = self.plain(key)
        return text if isinstance(text, str) else PLAIN.encode(text).decode()

    def _text(self, value: str) -> str:
        text = str.__str__(value.value if isinstance(value, Enum) else value)
        if not text.isascii() and not self._strict:
            return text.encode(errors="backslashreplace").decode()
        return text

    def _leaf(self, value: object) -> object:
        return msgspec.json.decode(_checked((_STRICT if self._strict else _LENIENT).encode(value)))


def _inner(value: object) -> Mapping[object, object] | Iterable[object] | None:
    """The parts of *value*, by name or one after the other; None if it is one piece."""
    if isinstance(value, tuple) and (names := getattr(type(value), "_fields", None)) is not None:
        return dict(zip(names, value, strict=True))
    if isinstance(value, Mapping | list | tuple | set | frozenset | deque):
        return value
    if isinstance(value, type | Enum):
        return None
    if (fields := fields_of(value)) is not None:
        return fields
    dump = getattr(type(value), "model_dump", None)  # pydantic's way, without importing it
    return dict(dump(value)) if callable(dump) else None


def _known(value: object) -> object:
    """What stands for a value that msgspec does not know."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        return base64.b64encode(path).decode() if isinstance(path, bytes) else path
    inner = _inner(value)
    if inner is None:
        raise TypeError(f"a value of type {printable(_kind(value))} has no form in JSON")
    return inner if isinstance(inner, dict | list) else dict(inner) if isinstance(inner, Mapping) else list(inner)


def _known_or_named(value: object) -> object:
    try:
        return _known(value)
    except Exception:  # an error in one object's own code must not hide the rest
        return f"<{_kind(value)}>"


def _kind(value: object) -> str:
    try:
        return str(type(value).__name__)
    except Exception:  # a metaclass may compute the name, and fail
        return "object"


def _by_parts(items: Iterable[tuple[object, object]]) -> bytes:
    parts: dict[str, msgspec.Raw] = {}
    for key, value in items:
        if not isinstance(key, str):
            raise ConfigError(f"payload: the name {checks.shown(key)} must be a text")
        try:
            parts[msgspec.json.decode(_strict(key))] = msgspec.Raw(_strict(value))
        except Exception as error:
            raise ConfigError(
                f"payload: {printable(key)!r} cannot be encoded: {printable(str(error), 300)}; "
                "allowed are texts, numbers, true, false, null, and lists and mappings of them"
            ) from error
    return PLAIN.encode(parts)


PLAIN = msgspec.json.Encoder(order="deterministic")
READ = msgspec.json.Decoder().decode
_STRICT = msgspec.json.Encoder(order="deterministic", enc_hook=_known)
_LENIENT = msgspec.json.Encoder(order="deterministic", enc_hook=_known_or_named)
_SKIP = msgspec.json.Decoder(msgspec.Raw)
_TEXTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
