"""The four shapes of a tool: how a callable is called, and what it is called."""

from __future__ import annotations

import functools
import inspect
from enum import Enum
from typing import Final

from holdfast.errors import ConfigError, printable


class Shape(Enum):
    """How a tool is called."""

    FUNCTION = "a plain function"
    COROUTINE = "a coroutine function"
    GENERATOR = "a generator function"
    ASYNC_GENERATOR = "an async generator function"


# What each driver can call: one shape natively, plain code too, in a thread or as it is.
DRIVES: Final = {
    Shape.FUNCTION: frozenset({Shape.FUNCTION}),
    Shape.COROUTINE: frozenset({Shape.COROUTINE, Shape.FUNCTION}),
    Shape.GENERATOR: frozenset({Shape.GENERATOR, Shape.FUNCTION}),
    Shape.ASYNC_GENERATOR: frozenset(Shape),
}


def shape_of(fn: object) -> Shape:
    """How *fn* is called; a `ConfigError` if it cannot be."""
    if not callable(fn):
        raise ConfigError(f"a tool must be callable, not {printable(repr(fn))}")
    while isinstance(fn, functools.partial):
        fn = fn.func
    for each in (fn, getattr(type(fn), "__call__", None)):  # noqa: B004 - its kind is asked, not whether it is there
        if inspect.isasyncgenfunction(each):
            return Shape.ASYNC_GENERATOR
        if inspect.iscoroutinefunction(each):
            return Shape.COROUTINE
        if inspect.isgeneratorfunction(each):
            return Shape.GENERATOR
    return Shape.FUNCTION


def name_of(fn: object) -> str:
    """The name of a tool that was given none."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__name__", None)
    return name if isinstance(name, str) else type(fn).__name__
