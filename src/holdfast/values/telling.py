"""Bytes that identify a value: they are the same only for equal values of the same types, all the way down.

A class counts by its name, since its module may have another name in another process of the same run. Only what can be
read again is read: no iterator is used up. A subclass of a builtin is read as the builtin, not by its own conversions.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import operator
import os
import re
import typing
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import tzinfo
from enum import Enum, Flag
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any, Final

from holdfast.values.tagged import Tagger, fields_of, parts_of

_DEEPEST = 20  # levels that are looked into if a value has no exact bytes as a whole
_MOST_PARTS = 10_000  # of one value that are looked into then
_LIKE = b"\xc1l"  # a prefix that no other encoding has


def exact(value: object) -> bytes:
    """The bytes of *value*; raises if something in it cannot be compared (an open file, say)."""
    return _EXACT.pack(value)


def likeness(value: object) -> bytes:
    """The bytes of *value* as far as it can be compared: for any other part of it stands its type, or its name."""
    return _Likeness().of(value)


class _Likeness:
    def __init__(self) -> None:
        self._path: set[int] = set()  # the ids of the values around the current one
        self._left = _MOST_PARTS

    def of(self, value: object) -> bytes:
        self._left -= 1
        if self._left < 0 or id(value) in self._path or len(self._path) >= _DEEPEST:
            return _like(value, ())
        try:
            return exact(value)
        except Exception:  # raised perhaps by the value's own code, or because of its depth
            return self._by_parts(value)

    def _by_parts(self, value: object) -> bytes:
        try:
            facts = _roughly(value)
        except Exception:  # then it counts like any other object of its type
            return _like(value, ())
        self._path.add(id(value))
        parts = [self.of(part) for part in (facts.items() if isinstance(facts, dict) else facts)]
        self._path.discard(id(value))
        return _like(value, sorted(parts) if isinstance(facts, dict | set | frozenset) else parts)


def _like(value: object, parts: Iterable[bytes]) -> bytes:
    digest = blake2b(type(value).__qualname__.encode("utf-8", "surrogatepass"), digest_size=16)
    for part in parts:
        digest.update(blake2b(part, digest_size=16).digest())
    return _LIKE + digest.digest()


def _roughly(value: Any) -> Any:
    """The parts of *value*, or its name; not all of the parts can be compared."""
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, type) or inspect.isroutine(value):
        return [value.__qualname__]
    if typing.get_origin(value) is not None:
        return [typing.get_origin(value), *typing.get_args(value)]
    if isinstance(value, BaseException):
        return value.args
    if type(value) in {dict, list, tuple, set, frozenset}:
        return value
    if (parts := parts_of(value)) is not None:
        return parts
    facts = _facts(value)
    return facts if isinstance(facts, dict | list | tuple | set | frozenset) else [facts]


def _told(value: object) -> object:
    return _EXACT.known_by(type(value).__qualname__, _facts(value))


def _facts(value: Any) -> object:
    """What identifies a value, besides its type, for which `Tagger` has no tag; raises if nothing does."""
    if isinstance(value, Enum):
        return value.value if isinstance(value, Flag) else value.name
    if (fields := fields_of(value)) is not None:
        return fields
    facts = next((facts for kind, facts in _FACTS if isinstance(value, kind)), _facts_of_object)
    return facts(value)


def _facts_of_object(value: Any) -> object:
    kind: Any = type(value)
    if (parts := parts_of(value)) is not None:
        return parts
    if callable(dump := getattr(kind, "model_dump", None)):  # pydantic's way, without importing it
        names = getattr(kind, "model_fields", None)
        return dump(value) if names is None else [{name: getattr(value, name) for name in names}, value.model_extra]
    for name in ("get_secret_value", "unicode_string"):  # of pydantic's secrets and addresses
        if callable(said := getattr(kind, name, None)):
            return said(value)
    if isinstance(value, tzinfo) and kind.__repr__ is not object.__repr__:
        return repr(value)
    return _number(value)


def _number(value: Any) -> object:
    try:
        with memoryview(value) as view:  # an array, or a number of numpy
            if _NUMBERS.fullmatch(view.format):
                return [view.format, view.shape, view.tobytes()]
    except (TypeError, ValueError, BufferError):
        pass
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and (number := float(value)) == value:  # otherwise a float has too few digits
        return number
    raise TypeError(f"{type(value).__qualname__}: has no value that can be compared")


_EXACT = Tagger(_told, sorts=True)
_NUMBERS = re.compile(r"[@=<>!^]?(?:[?cbBhHiIlLqQnNefd]|Z[fd]|\d*[sw])")  # or texts; without padding or pointers

_bounds = operator.attrgetter("start", "stop", "step")
_FACTS: Final[list[tuple[type, Callable[[Any], object]]]] = [
    (str, str.__str__),
    (bytes, bytes.__bytes__),
    (int, int.__index__),
    (float, float.__float__),
    *((kind, lambda v, kind=kind: kind(kind.__iter__(v))) for kind in (tuple, list, set, frozenset)),
    (OrderedDict, lambda v: list(OrderedDict.items(v))),
    (dict, lambda v: dict(dict.items(v))),
    (Mapping, dict),
    (deque, lambda v: [list(v), v.maxlen]),
    (range, _bounds),
    (slice, _bounds),
    (re.Pattern, operator.attrgetter("pattern", "flags")),
    (SimpleNamespace, vars),
    (os.PathLike, os.fspath),
]
