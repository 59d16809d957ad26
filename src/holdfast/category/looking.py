"""Reading foreign exceptions: none of their attributes, texts or chains makes these functions raise or run for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeGuard, TypeVar

MOST_TEXT: Final = 4000  # characters of a text that are read
_MOST_LINKS: Final = 16

_T = TypeVar("_T")


def attribute(thing: object, name: str, kind: type[_T]) -> _T | None:
    """Return the attribute *name* of *thing* if it is there and of that *kind*; an int, float or str as a plain one."""
    try:
        value = getattr(thing, name, None)
        return _PLAIN.get(kind, _same)(value) if isinstance(value, kind) else None
    except Exception:  # a property that raises, or a value that lies about its class and cannot be converted
        return None


def _same(value: Any) -> Any:
    return value


_PLAIN: Final[dict[type, Callable[[Any], Any]]] = {int: int.__index__, float: float.__float__, str: str.__str__}


def entry(value: object, kind: type[_T], *path: str) -> _T | None:
    """Return the value in nested dicts under the keys of *path*, if it is there and of that *kind*."""
    try:
        for key in path:
            value = dict.get(value, key) if isinstance(value, dict) else None
        return value if isinstance(value, kind) else None
    except Exception:
        return None


def is_a(error: object, kinds: type[_T] | tuple[type[_T], ...]) -> TypeGuard[_T]:
    """True if *error* is of one of these *kinds*; `isinstance` would ask the error itself, which may raise or lie."""
    return issubclass(type(error), kinds)


def text_of(error: BaseException) -> str:
    """Return the text of *error*; empty if `str` of it fails."""
    try:
        return str.__str__(str(error))  # a plain str: a subclass may do anything when it is cut
    except Exception:
        return ""


def cut(text: str) -> str:
    """Return the beginning and the end of a long *text*, where the important words are."""
    if len(text) <= MOST_TEXT:
        return text
    half = MOST_TEXT // 2
    return f"{text[:half]}x x{text[-half:]}"  # the x's keep the rest of a cut word or number from being read as one


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield *error*, then the exception it was raised from or wraps, and so on inwards."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < _MOST_LINKS:
        yield link
        seen.add(id(link))
        cause = attribute(link, "__cause__", BaseException)
        link = cause if cause is not None else _wrapped(link)


def _wrapped(error: BaseException) -> BaseException | None:
    # urllib and urllib3 keep the first error as `reason`, requests and many tools as the first argument.
    reason = attribute(error, "reason", BaseException)
    if reason is not None:
        return reason
    args = attribute(error, "args", tuple)
    return args[0] if args and is_a(args[0], BaseException) else None


def context(error: BaseException) -> BaseException | None:
    """Return the exception that was being handled when *error* was raised without `from`."""
    replaced = attribute(error, "__context__", BaseException)
    return None if replaced is None or attribute(error, "__suppress_context__", bool) else replaced


def leaves(error: BaseException, most: int = 64) -> list[BaseException]:
    """Return the first *most* exceptions of a group and of the groups in it; for any other exception, itself."""
    found: list[BaseException] = []
    rest, left = [error], 16 * most  # bounded, as a group may claim to hold itself
    while rest and len(found) < most and left:
        left -= 1
        node = rest.pop()
        if is_a(node, BaseExceptionGroup):
            rest.extend(reversed(inside(node)[:most]))
        else:
            found.append(node)
    return found


def inside(group: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions that a group claims to hold; for any other exception, none."""
    return attribute(group, "exceptions", tuple) or () if is_a(group, BaseExceptionGroup) else ()
