"""Canonical arguments: the same call gives the same bytes, however its arguments were spelt."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec


def canonical(fn: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes | None:
    """The bytes of a call of *fn*: positional or named, in any order, with defaults given or not.

    None if an argument has no value that can be compared (an open file, say): then it is the same as no other call.
    """
    signature = _signature(fn)
    if signature is not None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            pass  # a wrong call still has arguments; the tool itself will say what is wrong with them
        else:
            bound.apply_defaults()
            args, kwargs = (), bound.arguments
    try:
        return _ENCODER.encode((args, dict(kwargs)))
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError):
        return None


@functools.lru_cache(maxsize=1024)
def _signature(fn: Callable[..., Any] | None) -> inspect.Signature | None:
    try:
        return inspect.signature(fn) if fn is not None else None
    except (TypeError, ValueError):
        return None


def _plain(value: object) -> object:
    """What stands for a value that msgspec does not know: a path's text, a pydantic model's fields."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    dump = getattr(type(value), "model_dump", None)
    if callable(dump):
        return (type(value).__qualname__, dump(value))
    raise NotImplementedError(type(value).__qualname__)


_ENCODER = msgspec.msgpack.Encoder(order="deterministic", enc_hook=_plain)
