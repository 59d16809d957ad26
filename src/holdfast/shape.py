"""The four shapes of a tool: how a callable is called, its name, and how its guarded function gets to look like it."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, TypeVar

from holdfast.errors import ConfigError, printable

D = TypeVar("D", bound=Callable[..., Any])

if sys.version_info >= (3, 14):  # annotations are evaluated late, and may name what does not exist
    from annotationlib import Format

    signature_of = functools.partial(inspect.signature, annotation_format=Format.FORWARDREF)
    annotations_of = functools.partial(inspect.get_annotations, format=Format.FORWARDREF)
else:
    signature_of, annotations_of = inspect.signature, inspect.get_annotations


class Shape(Enum):
    """How a tool is called."""

    FUNCTION = "a plain function"
    COROUTINE = "a coroutine function"
    GENERATOR = "a generator function"
    ASYNC_GENERATOR = "an async generator function"

    @property
    def is_stream(self) -> bool:
        """True if it gives items, not one answer."""
        return self in (Shape.GENERATOR, Shape.ASYNC_GENERATOR)


# The shapes that each driver can call: its own, and those of plain code, which runs in a thread or as it is.
DRIVES: Final = {
    Shape.FUNCTION: frozenset({Shape.FUNCTION}),
    Shape.COROUTINE: frozenset({Shape.COROUTINE, Shape.FUNCTION}),
    Shape.GENERATOR: frozenset({Shape.GENERATOR, Shape.FUNCTION}),
    Shape.ASYNC_GENERATOR: frozenset(Shape),
}
# By id, as comparing a type may call code of its metaclass. In Python 3.11 each `hasattr` of a type that does not have
# the attribute makes an error and drops it, which costs almost as much as the circuit of a call.
_PLAIN: Final = frozenset(map(id, (dict, list, tuple, str, bytes, int, float, bool, type(None))))
_MARKED: Final = getattr(asyncio.coroutines, "_is_coroutine", object())  # how `unittest.mock` marks coroutine functions


def shape_of(fn: object) -> Shape:
    """How *fn* is called; a `ConfigError` if it cannot be called."""
    if not callable(fn):
        hint = f": put the decorator below @{type(fn).__name__}" if hasattr(fn, "__get__") else ""
        raise ConfigError(f"a tool must be callable, not {printable(repr(fn))}{hint}")
    fn = whole(fn)
    for each in (fn, getattr(type(fn), "__call__", None)):  # noqa: B004 - its kind is asked, not whether it is there
        if inspect.isasyncgenfunction(each):
            return Shape.ASYNC_GENERATOR
        if inspect.iscoroutinefunction(each) or getattr(each, "_is_coroutine", None) is _MARKED:
            return Shape.COROUTINE
        if inspect.isgeneratorfunction(each):
            return Shape.GENERATOR
    return Shape.FUNCTION


def name_of(fn: object) -> str:
    """The name of a tool that was given none: that of its function, or of its class."""
    fn = whole(fn)
    name = getattr(fn, "__name__", None)
    return name if isinstance(name, str) else type(fn).__name__


def whole(fn: object) -> object:
    """The function inside partials and static methods."""
    while isinstance(fn, functools.partial | staticmethod):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__func__
    return fn


def dressed(fn: Callable[..., Any], made: Callable[..., Any]) -> Callable[..., Any]:
    """*made*, which calls *fn*, with the name, signature and annotations of *fn*."""
    made = functools.wraps(fn)(made)
    if not hasattr(fn, "__name__"):  # a partial, or an object that can be called
        made.__name__ = made.__qualname__ = name_of(fn)
    if not inspect.isroutine(fn) or not (hasattr(fn, "__annotate__") or hasattr(fn, "__annotations__")):
        made.__annotations__ = {}  # neither ours nor the fields of a class describe it
    elif getattr(fn, "__annotate__", None) is None:  # set by hand: from 3.14 on `wraps` does not copy them
        made.__annotations__ = fn.__annotations__
    return made


def static_too(decorate: D) -> D:
    """Make *decorate* work for static methods as well: the function inside is decorated, and made static again."""

    def either(fn: Any) -> Any:
        return staticmethod(decorate(fn.__func__)) if isinstance(fn, staticmethod) else decorate(fn)

    return either  # type: ignore[return-value]


def is_unawaited(answer: object) -> bool:
    """True if *answer* must still be awaited; a coroutine is closed, as no code will do that."""
    kind = type(answer)  # which is asked, as a proxy has any attribute
    if id(kind) in _PLAIN or not hasattr(kind, "__await__"):
        return False
    if inspect.iscoroutine(answer):
        answer.close()
    return True


def kind_of(answer: object, name: str) -> type:
    """The type of *answer*, which the plain function *name* returned; a `ConfigError` if it must still be awaited: then
    it is unknown how the call ends.
    """
    if is_unawaited(answer):
        raise ConfigError(
            f"{printable(name)}: gives something to await, but is not a coroutine function: call it in an `async def` "
            "that awaits it, and guard that"
        )
    return type(answer)
