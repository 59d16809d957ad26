"""Any value as msgpack: types that msgpack does not know are written as extensions, at any depth.

Types that are not known here either are handed to a function that the packing code brings; it may raise.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from holdfast.values.said import gives_back

Other = Callable[[object], object]
Rebuild = Callable[[str, object], object]


class Tagger:
    """Packs values; *other* gives what stands for one of an unknown type. If it *sorts*, dicts have no order."""

    __slots__ = ("_encode", "_other", "_sorts")

    def __init__(self, other: Other, *, sorts: bool = False) -> None:
        self._other = other
        self._sorts = sorts
        self._encode = (_SORTED if sorts else _PACK).encode

    def pack(self, value: object) -> bytes:
        """The msgpack of *value*."""
        return self._encode(self._tag(value))

    def known_by(self, *parts: object) -> msgspec.msgpack.Ext:
        """The extension that stands for an object of these *parts*."""
        return self._ext(_OBJECT, list(parts))

    def _tag(self, value: Any) -> object:
        kind = type(value)
        if value is None or kind in {bool, float, bytes}:
            return value
        if kind is str:
            return value if is_utf8(value) else msgspec.msgpack.Ext(_TEXT, value.encode(errors="surrogatepass"))
        if kind is int:
            if -(2**63) <= value < 2**64:
                return value
            return msgspec.msgpack.Ext(_WHOLE, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
        if kind is list:
            return [self._tag(item) for item in value]
        if kind is dict:
            return self._tag_dict(value)
        return self._tag_kind(kind, value)

    def _tag_dict(self, value: dict[Any, Any]) -> object:
        if all(type(key) is str and is_utf8(key) for key in value):
            return {key: self._tag(item) for key, item in value.items()}
        if self._sorts:
            return self._unordered(_DICT, value.items())
        return self._ext(_DICT, [part for item in value.items() for part in item])

    def _tag_kind(self, kind: type, value: Any) -> object:
        if (code := _MANY.get(kind)) is not None:
            return self._ext(code, list(value)) if kind is tuple else self._unordered(code, value)
        if (known := _ONE.get(kind)) is not None:
            return self._ext(known[0], list(known[1](value)))
        if _LATE_KINDS.get(kind.__name__) == kind.__module__.partition(".")[0]:
            return self._ext(_LATE, [kind.__name__, str(value)])
        return self._other(value)

    def _ext(self, code: int, parts: list[Any]) -> msgspec.msgpack.Ext:
        return msgspec.msgpack.Ext(code, self.pack(parts))

    def _unordered(self, code: int, parts: Any) -> msgspec.msgpack.Ext:
        items = sorted(map(self.pack, parts))  # so that equal sets are written alike
        return msgspec.msgpack.Ext(code, _PACK.encode([msgspec.Raw(item) for item in items]))


def unpack(data: bytes | memoryview, rebuild: Rebuild) -> Any:
    """The value that a `Tagger` without *sorts* packed; *rebuild* makes the objects."""
    return msgspec.msgpack.decode(data, ext_hook=functools.partial(_untag, rebuild))


def pack_plain(value: object) -> bytes:
    """The msgpack of *value*, if msgpack knows all types in it; decoded, it may have other types."""
    return _PACK.encode(value)


def unpack_plain(data: bytes) -> Any:
    """The value of a plain msgpack."""
    return _UNPACK.decode(data)


def is_plain(value: object, data: bytes) -> bool:
    """True if *value* comes back exactly from *data*, its msgpack.

    False if bytes may be inside it: `gives_back` cannot tell them from other objects with a buffer.
    """
    return gives_back(_UNPACK.decode, data, value) and (
        type(value) is bytes or not any(mark in data for mark in _BYTES)
    )


def is_utf8(text: str) -> bool:
    """True if *text* has no lone surrogate in it, so that it can be written as UTF-8."""
    return text.isascii() or _HALF_A_PAIR.search(text) is None


def parts_of(value: object) -> tuple[object, ...] | None:
    """The parts of a date, a number or the like, or None; a subclass adds its text, since that may say more."""
    kind = next((each for each in type(value).__mro__ if each in _ONE), None)
    if kind is None:
        return None
    parts = _ONE[kind][1](value)
    return parts if kind is type(value) else (*parts, str(value))


def fields_of(value: object) -> dict[str, object] | None:
    """The fields of a dataclass, a struct or an attrs object, by name; None for any other object."""
    kind: Any = type(value)
    if isinstance(value, msgspec.Struct):
        names: Iterable[str] = kind.__struct_fields__
    elif hasattr(kind, "__dataclass_fields__"):
        import dataclasses

        names = [field.name for field in dataclasses.fields(kind)]
    elif (attributes := getattr(kind, "__attrs_attrs__", None)) is not None:
        names = [attribute.name for attribute in attributes]
    else:
        return None
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _untag(rebuild: Rebuild, code: int, data: memoryview) -> object:
    if code == _TEXT:
        return bytes(data).decode(errors="surrogatepass")
    if code == _WHOLE:
        return int.from_bytes(data, "big", signed=True)
    parts = unpack(data, rebuild)
    if code == _DICT:
        return dict(zip(parts[::2], parts[1::2], strict=True))
    if code == _OBJECT:
        return rebuild(*parts)
    if code == _LATE:
        name, text = parts
        return getattr(importlib.import_module(_LATE_KINDS[name]), name)(text)
    kind = _BY_CODE[code]
    if kind in _MANY:
        return kind(parts)
    return kind(*parts[:-1], fold=parts[-1]) if kind in {time, datetime} else kind(*parts)


_PACK = msgspec.msgpack.Encoder()
_SORTED = msgspec.msgpack.Encoder(order="deterministic")
_UNPACK = msgspec.msgpack.Decoder()
_HALF_A_PAIR = re.compile("[\ud800-\udfff]")
_BYTES = (b"\xc4", b"\xc5", b"\xc6")  # msgpack's marks of bytes; inside a text or a number they only cost a closer look

_TEXT, _WHOLE, _DICT, _OBJECT, _LATE = 1, 2, 3, 4, 5
_MANY: Final[dict[type, int]] = {tuple: 10, set: 11, frozenset: 12}
_ONE: Final[dict[type, tuple[int, Callable[[Any], tuple[object, ...]]]]] = {
    complex: (20, lambda v: (v.real, v.imag)),
    bytearray: (21, lambda v: (bytes(v),)),
    Decimal: (22, lambda v: (str(v),)),
    UUID: (23, lambda v: (None, v.bytes)),
    date: (24, lambda v: (v.year, v.month, v.day)),
    timedelta: (25, lambda v: (v.days, v.seconds, v.microseconds)),
    timezone: (26, lambda v: v.__getinitargs__()),
    time: (27, lambda v: (v.hour, v.minute, v.second, v.microsecond, v.tzinfo, v.fold)),
    datetime: (28, lambda v: (v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.tzinfo, v.fold)),
}
_BY_CODE: Final[dict[int, type]] = {code: kind for kind, (code, _) in _ONE.items()}
_BY_CODE.update({code: kind for kind, code in _MANY.items()})
# Written as text, and recognised by name, so that their modules are not imported before they are needed.
_LATE_KINDS = {"PosixPath": "pathlib", "PurePosixPath": "pathlib", "ZoneInfo": "zoneinfo", "Fraction": "fractions"}
_LATE_KINDS.update(dict.fromkeys(("IPv4Address", "IPv6Address", "IPv4Network", "IPv6Network"), "ipaddress"))
