"""One table of settings, from code or from a file, and every mistake in it, not only the first.

Shorthands become tables here. The result holds only what was given: the value of a plain setting, a dict with the
fields of a table, False for what was removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from holdfast.category import ErrorCategory
from holdfast.guards.breaking import NOT_CANCELLED
from holdfast.guards.budget import check_budget
from holdfast.guards.rate import Priority
from holdfast.policy.mistakes import Place, objection, quoted
from holdfast.policy.settings import Fallback, Policy
from holdfast.policy.tables import TABLES

KEYS: Final = Policy.__struct_fields__
SECONDS: Final = ("timeout", "deadline", "max_wait")
FLAGS: Final = ("read_only", "idempotent", "remember")  # for these, false is a value, and removes nothing


def parse(
    table: Mapping[str, object],
    place: Place,
    *,
    tool: str | None = None,
    beside: Sequence[str] = (),
    hint: str = "",
) -> dict[str, object]:
    """Return the settings given in *table*; valid only if *place* has no new mistakes afterwards.

    *tool* is the one tool that the table is for, if any; *beside* names keys that the caller reads itself.
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
    elif refused := table.objection(fields):
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
    if together := table.objection(present):
        _blame(key, present, together, place)
    return fields


def _blame(key: str, fields: Mapping[str, object], together: tuple[str, str], place: Place) -> None:
    """Note each field that is wrong by itself or, if none is, why they do not fit *together*."""
    table = TABLES[key]
    alone = {name: table.objection({name: value}) for name, value in fields.items()}
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
