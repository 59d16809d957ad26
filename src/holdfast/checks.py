"""Checks of settings: each passes, or raises a `ConfigError` that names the setting, the value and what is allowed."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any

from holdfast.clock import Clock, SystemClock
from holdfast.errors import ConfigError, printable

MOST = sys.float_info.max
MOST_WHOLE = 2**63 - 1
DEEPEST = 100  # levels of lists and objects in plain data


def number(
    name: str, value: object, *, least: float | None = None, above: float | None = None, most: float = math.inf
) -> None:
    """A finite number, at least *least* (or above *above*) and at most *most*."""
    if isinstance(value, int | float) and not isinstance(value, bool) and -MOST <= value <= min(most, MOST):
        if (least is None or value >= least) and (above is None or value > above):
            return
    bounds = [f"of at least {least:g}"] if least is not None else []
    bounds += [f"above {above:g}"] if above is not None else []
    bounds += [f"at most {most:g}"] if math.isfinite(most) else []
    raise ConfigError(f"{name} = {shown(value)}: must be a number {' and '.join(bounds)}".rstrip())


def whole(name: str, value: object, *, least: int = 1, most: int = MOST_WHOLE) -> None:
    """A whole number of at least *least* and at most *most*."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        bound = f" and at most {most}" if most < MOST_WHOLE or (isinstance(value, int) and value > most) else ""
        raise ConfigError(f"{name} = {shown(value)}: must be a whole number of at least {least}{bound}")


def flag(name: str, value: object) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} = {shown(value)}: must be true or false")


def choice(name: str, value: object, allowed: Collection[str]) -> None:
    """One of *allowed*."""
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(f"{name} = {shown(value)}: must be one of {', '.join(sorted(allowed))}")


def plain(name: str, value: object, depth: int = 0) -> Any:
    """*value* as JSON would give it back; raises if JSON cannot hold it, or would turn it into something else."""
    if depth > DEEPEST:
        raise ConfigError(f"{printable(name, 60)}: is nested deeper than {DEEPEST} levels")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, str) and is_text(value):
        return str.__str__(value)
    if isinstance(value, float) and math.isfinite(value):
        return float.__float__(value)
    if isinstance(value, list | tuple):
        return [plain(f"{name}[{at}]", each, depth + 1) for at, each in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) and is_text(key) for key in value):
        return {str.__str__(key): plain(f"{name}[{shown(key)}]", each, depth + 1) for key, each in value.items()}
    raise ConfigError(
        f"{name} = {shown(value)}: must be what JSON can hold: a text, a number, true, false, null, or a list or "
        "object of these"
    )


def text(name: str, value: object) -> None:
    """A text."""
    if not isinstance(value, str):
        raise ConfigError(f"{name} = {shown(value)}: must be a text")


def name(setting: str, value: object) -> None:
    """A text that may name something."""
    if not is_name(value):
        raise ConfigError(f"{setting} = {shown(value)}: must be 1 to 200 printable characters")


def tool_name(value: object) -> None:
    """The name of a tool."""
    if not is_name(value):
        raise ConfigError(f"the tool name {shown(value)} must be 1 to 200 printable characters")


def is_name(value: object) -> bool:
    """True if *value* may name something: 1 to 200 printable characters."""
    return isinstance(value, str) and 1 <= len(value) <= 200 and value.isprintable()


def clock(given: Clock | None) -> Clock:
    """The clock that was *given*, else the system's; a class instead of an object is refused."""
    if given is None:
        return SystemClock()
    if isinstance(given, type) or not all(callable(getattr(given, name, None)) for name in _CLOCK):
        raise ConfigError(f"clock = {shown(given)}: must be an object with the methods {', '.join(_CLOCK)}")
    return given


_CLOCK = ("monotonic", "time", "sleep", "asleep", "call_at")


def is_text(value: str) -> bool:
    """True if *value* can be written as UTF-8: it has no lone surrogates, which may also come from file names."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_path(name: str) -> bool:
    """True if *name* is meant as a path, and is not a mistyped address of a store, which may have a password in it."""
    return os.path.isabs(name) or name.startswith(("~", "./", "../")) or _ADDRESS.search(name) is None


_ADDRESS = re.compile(
    r"^\s*(postgres|postgresql|sqlite3?|file)(:|//)"
    r"|^\s*(:memory:?|memory:)\s*$"
    r"|:[^/\\]*@"  # USER:PASSWORD@HOST
    r"|(^|\s)(host|hostaddr|port|dbname|user|password|service)\s*=",  # as libpq takes them
    re.IGNORECASE,
)


def shown(value: object) -> str:
    """*value* as it may stand in an error text: short, printable, and without the login of an address."""
    try:
        return printable(without_login(repr(value)))
    except Exception:  # a number of thousands of digits, or an object whose `__repr__` fails
        return f"a value of type {printable(type(value).__name__)}"


def without_login(text: str) -> str:
    """*text* without the user and the password of addresses in it."""

    def masked(found: re.Match[str]) -> str:
        _, login, host = found[0].rpartition("@")
        return f"://…@{host}" if login else host

    return _BEHIND_SCHEME.sub(masked, text)


_BEHIND_SCHEME = re.compile(r"://[^\s'\"]*+")  # whether or not there is a login, so that nothing is scanned twice
