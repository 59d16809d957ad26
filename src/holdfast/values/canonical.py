"""Canonical arguments: the same call gives the same bytes, however its arguments were spelt."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Hashable, Mapping
from hashlib import blake2b
from types import MethodType
from typing import Any, TypeVar
from weakref import ref

import msgspec

from holdfast.shape import signature_of
from holdfast.values.as_json import is_flat
from holdfast.values.said import gives_back
from holdfast.values.telling import exact

LONG = 64  # bytes; a digest stands for a longer call, since loop guard and cache keep many of them
_DIGEST, _TYPED = b"\xc1d", b"\xc1t"  # prefixes that no encoding has
_TYPED_SIZE = 32
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_MOST_KNOWN = 1024  # functions of which something is remembered

T = TypeVar("T")


def canonical(fn: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes | None:
    """The bytes of a call of *fn*: the same for positional and named arguments, in any order, with or without defaults.

    None if an argument cannot be compared (an open file, say): then the call is identical to no other.
    """
    return encode(bind(fn, args, kwargs))


def bind(fn: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    """The arguments of a call of *fn* by name, with defaults; as they were given if their names cannot be found.

    The arguments that a partial holds are included.
    """
    while isinstance(fn, functools.partial):
        args, kwargs, fn = (*fn.args, *args), {**fn.keywords, **kwargs}, fn.func
    function, is_method = _function(fn)
    try:
        binder = None if function is None else _binder(function, is_method)
        return (args, dict(kwargs)) if binder is None else binder(args, kwargs)
    except Exception:  # the call does not fit *fn*, or *fn* cannot be hashed or inspected
        return (args, dict(kwargs))  # the tool itself will raise what is wrong with them


def takes(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True if *fn* can be called so, or has no signature; a wrapper counts by its own, since it may add arguments."""
    try:
        signature = inspect.signature(fn, follow_wrapped=False)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def without_object(fn: Callable[..., Any] | None, arguments: object) -> object:
    """What `bind` gave for a call of *fn*, with the object of a method replaced by its type: each process has another
    object, and what it holds was never meant to be an argument.
    """
    fn = _whole(fn)
    try:
        subject = None if fn is None or isinstance(fn, MethodType) else _subject(fn, False)
    except Exception:  # no signature, or the function cannot be hashed
        return arguments
    if subject is None:
        return arguments
    match arguments:
        case dict() if subject in arguments:
            return {**arguments, subject: _type(arguments[subject])}
        case ((first, *others), dict() as named):  # a call that does not fit the signature
            return ((_type(first), *others), named)
    return arguments


def without_defaults(fn: Callable[..., Any] | None, arguments: object) -> object:
    """What `bind` gave for a call of *fn*, less the arguments that equal their defaults.

    The keys of a run's calls are made of this, so a tool can gain parameters with defaults between crash and resume.
    """
    function, is_method = _function(_whole(fn))
    try:
        defaults = {} if function is None else _defaults(function, is_method)
    except Exception:  # no signature, or the function cannot be hashed
        return arguments
    if not defaults or not isinstance(arguments, dict):  # no dict: the call does not fit the signature
        return arguments
    told = {
        name: value for name, value in arguments.items() if name not in defaults or not _same(value, defaults[name])
    }
    return told if len(told) < len(arguments) else arguments


def encode(call: object) -> bytes | None:
    """The bytes of what `bind` gives: equal only for equal values of the same types; None if one cannot be compared."""
    if type(call) is tuple:  # a call that does not fit the signature
        call = [list(part) if type(part) is tuple else part for part in call]
    try:
        loose = _ENCODER.encode(call)
        if len(loose) > LONG:
            loose = _DIGEST + blake2b(loose, digest_size=32).digest()
        if is_flat(call, _SCALARS) or _is_plain(call):
            return loose
    except Exception:  # anything that an argument's own code may raise, too
        loose = b""
    try:
        return _TYPED + blake2b(exact(call), digest_size=_TYPED_SIZE).digest() + loose
    except Exception:
        return None


def untyped(sign: bytes) -> bytes:
    """*sign* without its part about types: what `encode` gives for the same values after they were JSON."""
    return sign[len(_TYPED) + _TYPED_SIZE :] if sign.startswith(_TYPED) else sign


def owner(fn: Callable[..., Any] | None) -> tuple[Hashable, ...]:
    """The object that *fn* is a method of, if any, wrapped so that only the same object equals it."""
    fn = _whole(fn)
    return (_itself(fn.__self__),) if isinstance(fn, MethodType) else ()


def itself(fn: Callable[..., Any] | None) -> tuple[Hashable, ...]:
    """A key that equals only that of the same function, or of the same method of the same object."""
    fn = _whole(fn)
    return (_itself(fn.__func__ if isinstance(fn, MethodType) else fn), *owner(fn))


def _remembered(make: Callable[[Callable[..., Any], bool], T]) -> Callable[[Callable[..., Any], bool], T]:
    """Call *make* once for each function, and remember what it gave as long as that lives: it may have captured much.

    For a method it is given the function, and True: no object is kept alive because its method was called.
    """
    lasting = functools.lru_cache(_MOST_KNOWN)(make)
    known: tuple[dict[ref[Any], T], dict[ref[Any], T]] = ({}, {})

    def remembered(fn: Callable[..., Any], is_method: bool) -> T:
        made = known[is_method]
        try:
            return made[ref(fn)]
        except KeyError:
            pass
        except TypeError:  # an object that cannot be referred to weakly, or not be hashed
            return lasting(fn, is_method)
        value = make(fn, is_method)
        if len(made) >= _MOST_KNOWN:
            made.clear()
        made[ref(fn, made.__delitem__)] = value  # not a function of ours: an interrupt within it would be lost
        return value

    return remembered


_Binder = Callable[[tuple[Any, ...], Mapping[str, Any]], dict[str, Any]]


@_remembered
def _binder(fn: Callable[..., Any], is_method: bool) -> _Binder | None:
    """A function that gives the arguments of a call of *fn* by name, with defaults, or raises `TypeError` if they do
    not fit.
    """
    try:
        signature = _signature(fn, is_method)
    except (TypeError, ValueError):
        return None

    def bound(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        found = signature.bind(*args, **kwargs)
        found.apply_defaults()
        return found.arguments

    names, parameters = tuple(signature.parameters), signature.parameters.values()
    needed = sum(each.default is each.empty for each in parameters)
    defaults = {each.name: each.default for each in parameters}  # those without a default are always overwritten

    def bound_quickly(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        given = len(args)
        usual = needed <= given <= len(names) and not kwargs
        if usual or (given <= len(names) and set(names[given:needed]) <= kwargs.keys() <= set(names[given:])):
            return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        return bound(args, kwargs)  # raises an error that says what is wrong

    is_plain = all(each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters)
    return bound_quickly if is_plain else bound


@_remembered
def _defaults(fn: Callable[..., Any], is_method: bool) -> dict[str, Any]:
    """What `bind` gives for each parameter of *fn* that a call may leave out."""
    parameters = _signature(fn, is_method).parameters.values()
    empty: dict[Any, Any] = {inspect.Parameter.VAR_POSITIONAL: (), inspect.Parameter.VAR_KEYWORD: {}}
    given = {each.name: empty.get(each.kind, each.default) for each in parameters}
    return {name: default for name, default in given.items() if default is not inspect.Parameter.empty}


def _same(value: object, default: object) -> bool:
    """True if *value* is the *default*, or has the same type and encoding; no `__eq__` of a user's type is called."""
    if value is default:
        return True
    if type(value) is not type(default) or (type(value) in _SCALARS and value != default):  # quick, however long it is
        return False
    return (sign := encode([value])) is not None and sign == encode([default])


@_remembered
def _subject(fn: Callable[..., Any], is_method: bool) -> str | None:
    """The name of the parameter that takes the object, if *fn* is the function of a method."""
    within, _, _ = getattr(fn, "__qualname__", "").rpartition(".")
    if not within or within.endswith("<locals>"):
        return None
    first = next(iter(signature_of(fn).parameters), None)
    return first if first in ("self", "cls") else None


def _type(thing: object) -> str:
    return f"<{(thing if isinstance(thing, type) else type(thing)).__qualname__}>"


def _whole(fn: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """The function inside a partial."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def _function(fn: Callable[..., Any] | None) -> tuple[Callable[..., Any] | None, bool]:
    """The function of a method, and whether *fn* is one: a cache keyed by methods would keep their objects alive."""
    return (fn.__func__, True) if isinstance(fn, MethodType) else (fn, False)


def _signature(fn: Callable[..., Any], is_method: bool) -> inspect.Signature:
    return signature_of(MethodType(fn, fn) if is_method else fn)


def _itself(thing: object) -> Hashable:
    """Wrap *thing* as a method, which compares it by identity, not by `__eq__`, and keeps it alive: no id is reused."""
    return MethodType(id, thing)


def _is_plain(call: object) -> bool:
    if type(call) in _SCALARS:
        return True
    try:
        return gives_back(_FROM_JSON, _TO_JSON(call), call)
    except Exception:  # a path, say, which JSON does not know
        return False


def _plain(value: object) -> object:
    """What stands for a value that msgspec does not know: a path's text, a pydantic model's fields."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    dump = getattr(type(value), "model_dump", None)
    if callable(dump):
        return dump(value)
    raise NotImplementedError(type(value).__qualname__)


_ENCODER = msgspec.msgpack.Encoder(order="deterministic", enc_hook=_plain)
_TO_JSON, _FROM_JSON = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode  # only plain data comes back
