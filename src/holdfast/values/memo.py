"""The exact outcome of a finished call, for resume only: msgpack, never pickle.

Exact means that what comes back compares equal and has the same types, all the way down. It is tried when the memo is
made: where it does not hold, there is no memo. Objects are rebuilt only as classes that the tool's return annotation
names, so that what stands in a store does not choose what is called.
"""

from __future__ import annotations

import builtins
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
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from holdfast.category import ErrorCategory
from holdfast.category.looking import attribute
from holdfast.errors import RecordedError, ToolTimeout
from holdfast.shape import annotations_of
from holdfast.values.said import SAID, load_said
from holdfast.values.tagged import Tagger, fields_of, is_plain, is_utf8, pack_plain, unpack, unpack_plain

LIMIT: Final = 4 * 2**20  # bytes
_VALUE, _ITEMS, _ERROR = b"v", b"s", b"e"  # the first byte says what it is; a capital letter, that it is tagged


class Memo:
    """Keeps what *fn* returned; its return annotation says which objects can be given back."""

    __slots__ = ("limit", "_classes", "_fn")

    def __init__(self, fn: Callable[..., object] | None, *, limit: int = LIMIT) -> None:
        self.limit = limit
        self._fn = fn
        self._classes: dict[str, _Class] | None = None  # found when first needed: most values are plain data

    def dump(self, value: object) -> bytes | None:
        """The memo of *value*; None if it could not be given back exactly or is over the limit."""
        return self._dump(_VALUE, value)

    def dump_items(self, items: list[object], returned: object = None) -> bytes | None:
        """The memo of a stream that was exhausted: its *items*, and what it *returned*."""
        return self._dump(_ITEMS, [items, returned])

    def load(self, data: bytes) -> object:
        """The value; a `LookupError` if it cannot be rebuilt, as when the annotation has changed."""
        return self._load(_VALUE, data)

    def load_items(self, data: bytes) -> tuple[list[object], object]:
        """The items of a stream, and what it returned; a `LookupError` if they cannot be rebuilt."""
        match self._load(_ITEMS, data):
            case [list() as items, returned]:
                return items, returned
        raise LookupError("the memo holds no stream")

    def _dump(self, mark: bytes, value: object) -> bytes | None:
        try:
            data = pack_plain(value)
        except Exception:  # an object, half a surrogate pair, a huge number: a tag may do
            return self._dump_tagged(mark.upper(), value)
        if len(data) > self.limit:
            return None
        return mark + data if is_plain(value, data) else self._dump_tagged(mark.upper(), value)

    def _dump_tagged(self, mark: bytes, value: object) -> bytes | None:
        try:
            data = Tagger(self._taken_apart).pack(value)
            if len(data) > self.limit or _IMAGE.pack(value) != _IMAGE.pack(unpack(data, self._rebuilt)):
                return None
        except Exception:  # of the value's own code too: what cannot be kept is called again, or in doubt
            return None
        return mark + data

    def _load(self, mark: bytes, data: bytes) -> Any:
        try:
            if data[:1] == SAID and mark == _VALUE:
                return load_said(data)
            if data[:1] == mark:
                return unpack_plain(data[1:])
            if data[:1] == mark.upper():
                return unpack(data[1:], self._rebuilt)
        except Exception as error:
            raise LookupError(f"the result cannot be rebuilt: {type(error).__name__}: {error}") from error
        raise LookupError("the memo holds no such result")

    def _taken_apart(self, value: object) -> object:
        found = self._named().get(type(value).__qualname__)
        if found is None or found.kind is not type(value):
            raise TypeError(f"{type(value).__qualname__}: not in the return annotation")
        return _TREES.known_by(type(value).__qualname__, _apart(value))

    def _rebuilt(self, name: str, tree: object) -> object:
        if (found := self._named().get(name)) is None:
            raise LookupError(f"{name}: not in the return annotation")
        return _together(found, tree)

    def _named(self) -> dict[str, _Class]:
        if self._classes is None:
            with _PREPARING:
                self._classes = _classes(_returned(self._fn))
        return self._classes


def dump_error(error: Exception, category: ErrorCategory) -> bytes:
    """The memo of a failure; never fails itself."""
    name, message = _name(type(error)), _message(error)
    if type(error) is RecordedError:  # told again from the log of an earlier run
        category, name, message = error.category, error.type, error.message
    notes = [_utf8(note) for note in attribute(error, "__notes__", list) or () if isinstance(note, str)]
    try:
        body = _error_body(error, category)
        if len(body) > LIMIT or type(_error_of(name, body)) is not type(error):
            body = b""
    except Exception:  # an error of the user's, or one that cannot be made again from its arguments
        body = b""
    return _ERROR + pack_plain([str(category), _utf8(name), _utf8(message)[:_LONGEST_MESSAGE], notes, body])


def load_error(data: bytes) -> Exception:
    """The failure: a builtin error or a `ToolTimeout` as itself, any other as `RecordedError`."""
    if not is_error(data):
        raise LookupError("the memo holds no error")
    try:
        category, name, message, notes, body = unpack_plain(data[1:])
        if category not in ErrorCategory.__members__.values():  # of a later version
            category = ErrorCategory.EXECUTION_ERROR
        error = _error_of(name, body) if body else RecordedError(name, message, ErrorCategory(category))
        for note in notes:
            error.add_note(note)
    except Exception as failure:
        raise LookupError(f"the error cannot be rebuilt: {type(failure).__name__}: {failure}") from failure
    return error


def is_error(data: bytes) -> bool:
    """Whether the memo holds a failure."""
    return data[:1] == _ERROR


# --- objects ---


class _Class(NamedTuple):
    kind: type
    annotation: Any  # with the type arguments of a generic class


_SUBCLASSED = (str, bytes, int, float, tuple, list, dict, set, frozenset)
_KEPT_WHOLE = (bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal)  # by a tag, exactly
_PREPARING = threading.RLock()  # msgspec must not read one class for the first time in two threads at once


def _apart(value: Any) -> object:
    """Builtin data from which `_together` makes an object again."""
    if isinstance(value, Enum):
        return value.value if isinstance(value, Flag) else value.name
    return msgspec.to_builtins(_known(value), builtin_types=_KEPT_WHOLE, enc_hook=_known)


def _known(value: Any) -> Any:
    if (base := _base(type(value))) is not None:
        return base(value)
    if callable(dump := getattr(type(value), "model_dump", None)):  # pydantic's way, without importing it
        given = dump(value, by_alias=True, round_trip=True, exclude_unset=True)  # it knows what it was not given
        return given if _makes(type(value), given, value) else dump(value, by_alias=True, round_trip=True)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _makes(kind: Any, tree: Any, value: Any) -> bool:
    try:
        return bool(kind.model_validate(tree) == value)
    except Exception:  # it wants what it was not given: the tag of a union, say, or its own code says no
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
    return kind(tree) if _base(kind) is not None or issubclass(kind, os.PathLike) else _refuse(kind)


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
        return _refuse(kind)
    return _IMAGE.known_by(kind.__module__, kind.__qualname__, facts)


def _refuse(value: object, tree: object = None) -> object:
    raise TypeError(f"{value}: cannot be kept")


_TREES = Tagger(_refuse)
_IMAGE = Tagger(_portrait)  # bytes that are the same only for equal values of the same types, all the way down


def _returned(fn: Any) -> object:
    """What *fn* says that it returns, or None."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if fn is None or isinstance(fn, type):
        return fn
    try:
        fn = inspect.unwrap(fn)
        fn = inspect.unwrap(fn if inspect.isroutine(fn) else type(fn).__call__)
        # Only the answer counts: an argument's annotation may name what only a type checker imports.
        answer = SimpleNamespace(__annotations__={"return": annotations_of(fn).get("return")})
        return typing.get_type_hints(answer, globalns=fn.__globals__, include_extras=True)["return"]
    except Exception:  # the annotation is the user's: a name that cannot be found, or anything
        return None


def _classes(annotation: object) -> dict[str, _Class]:
    """The classes that *annotation* names, however deep in it, ready to be rebuilt."""
    found: dict[str, _Class] = {}
    unclear: set[str] = set()
    for each in _walk(annotation, set()):
        name = each.kind.__qualname__
        if found.setdefault(name, each).kind is not each.kind:
            unclear.add(name)  # two of one name
        if _base(each.kind) is None and not issubclass(each.kind, Enum):
            try:
                msgspec.msgpack.Decoder(each.annotation, dec_hook=_made)
            except Exception:  # of the class's own annotations: msgspec cannot rebuild it
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


# --- errors ---

_LONGEST_MESSAGE = 10_000  # characters


def _error_body(error: Any, category: ErrorCategory) -> bytes:
    """What `_error_of` needs to make the error again; raises if that is not possible."""
    kind = type(error)
    if kind is ToolTimeout:
        return _TREES.pack([[error.tool, error.seconds], {}])
    if getattr(builtins, kind.__name__, None) is not kind:
        raise TypeError("not builtin")
    if kind is ExceptionGroup:
        return _TREES.pack([[error.message, [dump_error(each, category) for each in error.exceptions]], {}])
    _, arguments, *state = error.__reduce__()
    own = state[0] if state else {}
    attributes = {name: value for name, value in own.items() if name != "__notes__" and _keeps(value)}
    return _TREES.pack([[each if _keeps(each) else _message(each) for each in arguments], attributes])


def _error_of(name: str, body: bytes) -> Exception:
    arguments, state = unpack(body, _refuse)
    if name == _name(ToolTimeout):
        return ToolTimeout(*arguments)
    kind = getattr(builtins, name)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise LookupError(f"{name}: no error")
    if kind is ExceptionGroup:
        message, members = arguments
        return ExceptionGroup(message, [load_error(member) for member in members])
    error: Exception = kind(*arguments)
    if state:
        error.__setstate__(state)
    return error


def _keeps(value: object) -> bool:
    try:
        _TREES.pack(value)
    except Exception:
        return False
    return True


def _message(error: object) -> str:
    try:
        return _utf8(str(error))
    except Exception:  # whoever wrote the error wrote its text
        return f"<{type(error).__name__}>"


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _utf8(text: str) -> str:
    return text if is_utf8(text) else text.encode(errors="backslashreplace").decode()
