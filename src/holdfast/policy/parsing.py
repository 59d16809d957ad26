"""One table of settings, from code or from a file, and every mistake in it, not only the first.

Shorthands become tables here. What comes out holds only what was given: the value of a plain setting, a dict with the
fields of a table, False for what was removed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from holdfast import checks
from holdfast.category import ErrorCategory
from holdfast.errors import ConfigError, printable
from holdfast.guards.breaking import NOT_CANCELLED, BreakerConfig
from holdfast.guards.budget import check_budget
from holdfast.guards.concurrency import ConcurrencyConfig
from holdfast.guards.loop import MOST_WINDOW, LoopConfig
from holdfast.guards.rate import Priority, RateConfig
from holdfast.guards.retry import RetryConfig
from holdfast.policy.settings import CacheConfig, Fallback, Policy

KEYS: Final = Policy.__struct_fields__
SECONDS: Final = ("timeout", "deadline", "max_wait")
_RATE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*/\s*([smh])\s*")
_UNITS: Final[Mapping[str, float]] = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Place(NamedTuple):
    """Where settings are written, and the list that takes the mistakes found there."""

    name: str
    mistakes: list[str]

    def refuse(self, key: str, value: object, why: str) -> None:
        """Note that *key* cannot be *value*."""
        self.mistakes.append(f"{self.name} {key} = {shown(value)}: {why}")

    def unknown(
        self, key: object, value: object, allowed: Collection[str], *, within: str = "", hint: str = ""
    ) -> None:
        """Note that nothing is called *key*, and what is; *hint* is for those who meant a table."""
        import difflib  # costs a fifth of the whole import, and only mistakes need it

        near = difflib.get_close_matches(str(key), allowed, 1)
        guess = f", did you mean {near[0]}?" if near else ";"
        more = f"; {hint}" if hint and isinstance(value, Mapping) else ""
        self.refuse(within + quoted(key), value, f"unknown key{guess} allowed: {', '.join(sorted(allowed))}{more}")

    def settle(self) -> None:
        """Raise one error for all mistakes, if there are any."""
        if self.mistakes:
            raise broken(self.mistakes)


class Table(NamedTuple):
    """A setting that is a table: what it makes, and what may stand for it."""

    config: Callable[..., msgspec.Struct]
    forms: str
    short: Callable[[object], dict[str, object] | None]
    agreeable: Mapping[str, object]  # goes with any good value of the other fields: checks some without the rest
    fields: tuple[str, ...]
    required: frozenset[str]
    removable: frozenset[str]


def parse(
    table: Mapping[str, object],
    place: Place,
    *,
    tool: str | None = None,
    beside: Sequence[str] = (),
    hint: str = "",
) -> dict[str, object]:
    """The settings given in *table*; of use only if *place* has no new mistakes afterwards.

    *tool* is the one tool it is about, where there is one; *beside* names keys that somebody else reads.
    """
    values: dict[str, object] = {}
    for key, value in table.items():
        if key in TABLES:
            values[key] = _table(key, value, place)
        elif key == "budget":
            values[key] = _budget(value, place)
        elif key == "fallback":
            values[key] = _fallback(value, place, tool)
        elif key in KEYS:
            values[key] = _plain(key, value, place)
        elif key not in beside:
            place.unknown(key, value, (*KEYS, *beside), hint=hint)
    return values


def objection(check: Callable[[], object], settings: Mapping[str, object]) -> tuple[str, str] | None:
    """Which of *settings* the *check* refuses, and why; None if it takes them all."""
    try:
        check()
    except ConfigError as error:
        return reason(error, settings)
    return None


def reason(error: ConfigError, settings: Mapping[str, object]) -> tuple[str, str]:
    """The setting that a check refused, and why, from its text `name = value: why`."""
    name, _, rest = str(error).partition(" = ")
    value = checks.shown(settings[name]) if name in settings else rest.partition(": ")[0]
    return name, rest.removeprefix(f"{value}: ")


def broken(mistakes: Sequence[str]) -> ConfigError:
    """One error for all *mistakes*, a line each; they are its `problems` too."""
    error = ConfigError("\n".join(mistakes))
    error.problems = tuple(mistakes)
    return error


def shown(value: object) -> str:
    """*value* as one would write it in a file, short and printable."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return printable(json.dumps(value, ensure_ascii=False))
    return checks.shown(value)


def quoted(key: object) -> str:
    """*key* as one would write it in a file."""
    text = str(key)
    return printable(text) if re.fullmatch(r"[A-Za-z0-9_-]+", text) else shown(text)


def _plain(key: str, value: object, place: Place) -> object:
    removable = key in {"timeout", "deadline"}
    if removable and value is False:
        return None
    alone: dict[str, Any] = {key: value}
    if refused := objection(partial(Policy, **alone), alone):
        place.refuse(key, value, f"{refused[1]}{', or false' if removable else ''}")
        return value
    if key == "priority":
        return next(priority for priority in Priority if priority == value)
    return float(value) if key in SECONDS and isinstance(value, int) else value


def _table(key: str, value: object, place: Place) -> object:
    table = TABLES[key]
    if value is None or value is False:
        return False
    if isinstance(value, msgspec.Struct) and type(value) is table.config:
        value = msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        return _fields(key, value, place)
    fields = table.short(value)
    if fields is None:
        place.refuse(key, value, f"must be {table.forms}, false, or a table of {', '.join(table.fields)}")
    elif refused := _objection(table, fields):
        place.refuse(key, value, refused[1])
    return fields


def _fields(key: str, given: Mapping[str, object], place: Place) -> dict[str, object]:
    table = TABLES[key]
    fields: dict[str, object] = {}
    for name, value in given.items():
        if name not in table.fields:
            place.unknown(name, value, table.fields, within=f"{key}.")
        elif name == "trips":
            fields[name] = _trips(value, place)
        else:
            fields[name] = None if value is False and name in table.removable else value
    present = {name: value for name, value in fields.items() if value is not None or name not in table.removable}
    if together := _objection(table, present):
        _blame(key, present, together, place)
    return fields


def _objection(table: Table, fields: Mapping[str, object]) -> tuple[str, str] | None:
    settings = {**table.agreeable, **fields}
    return objection(partial(table.config, **settings), settings)


def _blame(key: str, fields: Mapping[str, object], together: tuple[str, str], place: Place) -> None:
    """Note each field that is wrong by itself or, if none is, why they do not go *together*."""
    table = TABLES[key]
    alone = {name: _objection(table, {name: value}) for name, value in fields.items()}
    wrong = {name: refused for name, refused in alone.items() if refused} or {together[0]: together}
    for name, (culprit, why) in wrong.items():
        text = why if culprit in {name, ""} else f"then {culprit} {why}"
        place.refuse(f"{key}.{name}", fields.get(name), text)


def _trips(value: object, place: Place) -> object:
    allowed = sorted(NOT_CANCELLED)
    if not isinstance(value, list | tuple | set | frozenset) or any(name not in allowed for name in value):
        place.refuse("breaker.trips", value, f"must be a list of {', '.join(allowed)}")
        return frozenset()
    return frozenset(map(ErrorCategory, value))


def _budget(value: object, place: Place) -> object:
    if value is None or value is False:
        return False
    if not isinstance(value, Mapping):
        place.refuse("budget", value, "must be false or a table of limits, such as { calls = 100, seconds = 60.0 }")
        return False
    limits = {unit: False if limit is None or limit is False else limit for unit, limit in value.items()}
    for unit, limit in limits.items():
        if not isinstance(unit, str) or not unit.isidentifier():
            place.refuse(f"budget.{quoted(unit)}", limit, "must have a plain word for a name, like calls or usd")
            continue
        name = f"budget.{unit}"
        if limit is not False and (refused := objection(partial(check_budget, {unit: limit}), {name: limit})):
            place.refuse(name, limit, refused[1])
    return limits


def _fallback(value: object, place: Place, tool: str | None) -> object:
    if value is None or value is False:
        return False
    if isinstance(value, Fallback):
        value = {"value": value.value} if value.tool is None else {"tool": value.tool}
    if not isinstance(value, Mapping):
        place.refuse("fallback", value, 'must be { tool = "name" }, { value = … }, or false')
        return False
    known = {name: given for name, given in value.items() if name in Fallback.__struct_fields__}
    for name, given in value.items():
        if name not in known:
            place.unknown(name, given, Fallback.__struct_fields__, within="fallback.")
    if len(known) > 1 or not value:
        place.refuse("fallback", value, "must have either tool or value")
    elif known and (refused := objection(partial(Fallback, **known), known)):
        place.refuse("fallback.tool", known.get("tool"), refused[1])
    elif tool is not None and known.get("tool") == tool:
        place.refuse("fallback.tool", tool, "must be another tool: one that failed cannot stand in for itself")
    return known


def _number_of(name: str) -> Callable[[object], dict[str, object] | None]:
    def short(value: object) -> dict[str, object] | None:
        return {name: value} if isinstance(value, int | float) and not isinstance(value, bool) else None

    return short


def _switch(value: object) -> dict[str, object] | None:
    return {} if value is True else None


def _attempts(value: object) -> dict[str, object] | None:
    return {} if value is True else _number_of("attempts")(value)


def _rate(value: object) -> dict[str, object] | None:
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None or not float(match[1]):
        return None
    return {"per_second": float(match[1]) / _UNITS[match[2]]}


def _described(
    config: type[msgspec.Struct],
    forms: str,
    short: Callable[[object], dict[str, object] | None],
    **agreeable: object,
) -> Table:
    fields = msgspec.structs.fields(config)
    required = frozenset(field.name for field in fields if field.required)
    removable = frozenset(field.name for field in fields if field.default is None)
    return Table(config, forms, short, agreeable, config.__struct_fields__, required, removable)


_LEAST, _MOST = sys.float_info.min, sys.float_info.max

TABLES: Final[Mapping[str, Table]] = {
    "concurrency": _described(ConcurrencyConfig, "a whole number", _number_of("limit"), limit=1),
    "rate": _described(RateConfig, 'like "10/s", "100/m" or "1000/h"', _rate, per_second=1.0),
    "breaker": _described(BreakerConfig, "true", _switch, min_backoff=_LEAST, max_backoff=_MOST, slow_call=1.0),
    "retry": _described(RetryConfig, "a number of attempts, true", _attempts, initial=0.0, max=_MOST),
    "cache": _described(CacheConfig, "a number of seconds", _number_of("ttl"), ttl=1.0),
    "loop": _described(LoopConfig, "true", _switch, repeats=1, window=MOST_WINDOW),
}
