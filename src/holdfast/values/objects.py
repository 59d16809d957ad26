"""Objects within memos: taken apart into builtin data, and put together again.

They are rebuilt only as classes that the tool's return annotation names, so that the contents of a store cannot choose
which code is called.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import typing
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from holdfast.shape import annotations_of
from holdfast.values.tagged import Tagger, fields_of

_SUBCLASSED = (str, bytes, int, float, tuple, list, dict, set, frozenset)
_KEPT_WHOLE = (bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal)  # kept exactly, by a tag
_PREPARING = threading.RLock()  # msgspec must not read one class for the first time in two threads at once


class Objects:
    """The objects that *fn* may return, by its annotation."""

    __slots__ = ("_classes", "_fn")

    def __init__(self, fn: Callable[..., object] | None) -> None:
        self._fn = fn
        self._classes: dict[str, _Class] | None = None  # found when first needed: most values are plain data

    def apart(self, value: object) -> object:
        """What stands for *value* in a memo; a `TypeError` if it could not be rebuilt."""
        name = type(value).__qualname__
        found = self._named().get(name)
        if found is None or found.kind is not type(value):
            raise TypeError(f"{name}: not in the return annotation")
        return TREES.known_by(name, _apart(value))

    def together(self, name: str, tree: object) -> object:
        """The object of the class *name* that `apart` turned into *tree*."""
        if (found := self._named().get(name)) is None:
            raise LookupError(f"{name}: not in the return annotation")
        return _together(found, tree)

    def _named(self) -> dict[str, _Class]:
        if self._classes is None:
            with _PREPARING:
                self._classes = _classes(_returned(self._fn))
        return self._classes


def image(value: object) -> bytes:
    """Bytes that are the same only for equal values of the same types, all the way down."""
    return _IMAGE.pack(value)


def refuse(value: object, tree: object = None) -> object:
    """Raise a `TypeError` for an object where none is allowed."""
    raise TypeError(f"{value}: cannot be kept")


# -- one object --------------------------------------------------------------------------------------------------------


def _apart(value: Any) -> object:
    """Builtin data from which `_together` makes an object again."""
    if isinstance(value, Enum):
        return value.value if isinstance(value, Flag) else value.name
    return msgspec.to_builtins(_known(value), builtin_types=_KEPT_WHOLE, enc_hook=_known)


def _known(value: Any) -> Any:
    if (base := _base(type(value))) is not None:
        return base(value)
    if callable(dump := getattr(type(value), "model_dump", None)):  # pydantic's way, without importing it
        given = dump(value, by_alias=True, round_trip=True, exclude_unset=True)  # a model knows which fields are set
        return given if _makes(type(value), given, value) else dump(value, by_alias=True, round_trip=True)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _makes(kind: Any, tree: Any, value: Any) -> bool:
    try:
        return bool(kind.model_validate(tree) == value)
    except Exception:  # it needs a field that was not set, such as the tag of a union, or its own code refuses
        return False


def _together(found: _Class, tree: Any) -> object:
    kind = found.kind
    if issubclass(kind, Enum):
        return kind(tree) if issubclass(kind, Flag) else kind[tree]
    if _base(kind) is not None or callable(getattr(kind, "model_validate", None)):
        return _made(kind, tree)
    return msgspec.convert(tree, found.annotation, builtin_types=_KEPT_WHOLE, dec_hook=_made)


def _made(kind: Any, tree: Any) -> object:
    if callable(validate := getattr(kind, "model_validate", None)):
        return validate(tree)
    kind = typing.get_origin(kind) or kind
    if kind is object:  # a field that may hold anything
        return tree
    return kind(tree) if _base(kind) is not None or issubclass(kind, os.PathLike) else refuse(kind)


def _base(kind: type) -> Any:
    """The builtin that *kind* is a subclass of; None if msgspec knows how to take it apart."""
    if hasattr(kind, "_fields") or issubclass(kind, Enum):
        return None
    return next((base for base in _SUBCLASSED if issubclass(kind, base)), None)


def _portrait(value: Any) -> object:
    kind: Any = type(value)
    facts: object
    if isinstance(value, Enum):
        facts = value.value if isinstance(value, Flag) else value.name
    elif (fields := fields_of(value)) is not None:
        facts = fields
    elif callable(getattr(kind, "model_dump", None)):
        facts = [[getattr(value, name) for name in kind.model_fields], value.model_extra, value.__pydantic_private__]
    elif (base := tuple if hasattr(kind, "_fields") else _base(kind)) is not None:
        facts = [base(value), getattr(value, "__dict__", None)]
    else:
        return refuse(kind)
    return _IMAGE.known_by(kind.__module__, kind.__qualname__, facts)


# -- which classes an annotation names ---------------------------------------------------------------------------------


class _Class(NamedTuple):
    kind: type
    annotation: Any  # with the type arguments of a generic class


def _returned(fn: Any) -> object:
    """The return annotation of *fn*, or None."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if fn is None or isinstance(fn, type):
        return fn
    try:
        fn = inspect.unwrap(fn)
        fn = inspect.unwrap(fn if inspect.isroutine(fn) else type(fn).__call__)
        # Only the return annotation is read: an argument's may name what only a type checker imports.
        answer = SimpleNamespace(__annotations__={"return": annotations_of(fn).get("return")})
        return typing.get_type_hints(answer, globalns=fn.__globals__, include_extras=True)["return"]
    except Exception:  # an unknown name, or anything else that a user's annotation raises
        return None


def _classes(annotation: object) -> dict[str, _Class]:
    """The classes that *annotation* names, however deep in it, ready to be rebuilt."""
    found: dict[str, _Class] = {}
    unclear: set[str] = set()
    for each in _walk(annotation, set()):
        name = each.kind.__qualname__
        if found.setdefault(name, each).kind is not each.kind:
            unclear.add(name)  # two classes of one name
        if _base(each.kind) is None and not issubclass(each.kind, Enum):
            try:
                msgspec.msgpack.Decoder(each.annotation, dec_hook=_made)
            except Exception:  # because of its own annotations, msgspec cannot rebuild the class
                unclear.add(name)
    return {name: each for name, each in found.items() if name not in unclear}


def _walk(annotation: Any, seen: set[int]) -> Iterator[_Class]:
    if id(annotation) in seen:
        return
    seen.add(id(annotation))
    origin = typing.get_origin(annotation)
    kind = origin if isinstance(origin, type) else annotation
    if isinstance(kind, type):
        if typing.is_typeddict(kind):
            for hint in typing.get_type_hints(kind).values():
                yield from _walk(hint, seen)
        elif kind.__module__ not in {"builtins", "types", "typing"} and not inspect.isabstract(kind):
            yield _Class(kind, annotation)
    for name in ("__supertype__", "__value__", "__bound__"):  # of NewType, type X = …, and TypeVar
        if not isinstance(annotation, type) and (meant := getattr(annotation, name, None)) is not None:
            yield from _walk(meant, seen)
    for argument in typing.get_args(annotation):
        yield from _walk(type(argument) if isinstance(argument, Enum) else argument, seen)


TREES = Tagger(refuse)  # builtin data alone
_IMAGE = Tagger(_portrait)
