"""Layers of settings merged in order, lowest first: key by key, tables field by field, False removes.

`merge` knows nothing of what the values mean, so that it can also tell where each of them comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.errors import ConfigError
from holdfast.policy.mistakes import Place, broken, reason
from holdfast.policy.parsing import FLAGS, KEYS
from holdfast.policy.settings import Fallback, Policy
from holdfast.policy.tables import TABLES

DEFAULT: Final = "default"


class Layer(NamedTuple):
    """Settings that were given in one place; *origin* says where."""

    origin: str
    values: Mapping[str, object]


def merge(layers: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """The settings of all *layers*, later ones over earlier ones."""
    merged: dict[str, object] = {}
    for layer in layers:
        for key, value in layer.items():
            below = merged.get(key)
            # The two fields of a fallback exclude each other, so a fallback is replaced as a whole.
            if isinstance(value, dict) and isinstance(below, dict) and key != "fallback":
                merged[key] = below | value
            else:
                merged[key] = value
    return merged


def build(layers: Sequence[Layer], where: str) -> Policy:
    """The policy that *layers* make over the defaults; *where* begins the text of an error."""
    values = merge(layer.values for layer in layers)
    place = Place(where, [])
    settings: dict[str, Any] = {key: value for key, value in values.items() if key not in TABLES}
    for key in TABLES:
        fields = values.get(key, _default(key, values))
        settings[key] = _config(key, fields, layers, place) if isinstance(fields, dict) else None
    place.settle()
    if not settings.get("read_only"):
        settings["cache"] = None
    settings["budget"] = {unit: limit for unit, limit in _dict(values.get("budget")).items() if limit is not False}
    fallback = _dict(values.get("fallback"))
    settings["fallback"] = Fallback(**fallback) if fallback else None
    try:
        return Policy(**settings)
    except ConfigError as error:  # settings that are valid alone, but not together
        given = [
            f"{name}: {origin}" for name, _, origin in given_settings(layers) if name.startswith(("priority", "rate"))
        ]
        raise broken([f"{where} {error} ({', '.join(given)})"]) from None


def origins(layers: Sequence[Layer], policy: Policy) -> dict[str, str]:
    """Where each value of *policy*, which *layers* made, comes from; the fields of tables have dotted names."""
    traces = _traces(layers)
    found: dict[str, str] = {}
    for key in KEYS:
        trace = traces.get(key, DEFAULT)
        given = _dict(trace)
        names = _names(getattr(policy, key))
        found.update({f"{key}.{name}": given.get(name, DEFAULT) for name in names})
        if not names:
            found[key] = trace if isinstance(trace, str) else ", ".join(dict.fromkeys(given.values())) or DEFAULT
            if key == "cache" and given:
                found[key] += "; ignored, as the tool is not read_only"
    return found


def given_settings(layers: Sequence[Layer]) -> Iterator[tuple[str, object, str]]:
    """Yield name, value and origin of each setting that *layers* give, even if they make no valid policy."""
    traces = _traces(layers)
    for key, value in merge(layer.values for layer in layers).items():
        trace = traces[key]
        if isinstance(trace, dict):
            yield from ((f"{key}.{name}", field, trace[name]) for name, field in _dict(value).items())
        else:
            yield key, None if value is False and key not in FLAGS else value, str(trace)


def _names(value: object) -> Iterable[str]:
    """Return the names of the fields of a setting that is a table."""
    if isinstance(value, Fallback):
        return ("value",) if value.tool is None else ("tool",)
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    return value if isinstance(value, Mapping) else ()


def _traces(layers: Iterable[Layer]) -> dict[str, object]:
    """Merge *layers* with each value replaced by its origin."""
    return merge(
        {key: dict.fromkeys(value, origin) if isinstance(value, dict) else origin for key, value in values.items()}
        for origin, values in layers
    )


def _default(key: str, values: Mapping[str, object]) -> object:
    repeatable = values.get("read_only") or values.get("idempotent")
    return {} if key in {"breaker", "loop"} or (key == "retry" and repeatable) else False


def _config(key: str, fields: dict[str, Any], layers: Sequence[Layer], place: Place) -> msgspec.Struct | None:
    """Return the settings of one guard; or None and note a mistake, as fields valid alone may not fit together."""
    table = TABLES[key]
    missing = sorted(table.required - fields.keys())
    if missing:
        why = f"{missing[0]} is missing"
    else:
        try:
            return table.config(**fields)
        except ConfigError as error:
            why = " ".join(reason(error, fields))
    given = [f"{name}: {origin}" for name, origin in _dict(_traces(layers)[key]).items()]
    empty = [origin for origin, values in layers if values.get(key) == {}]
    place.refuse(key, fields, f"{why} ({', '.join(given or empty)})")
    return None


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
