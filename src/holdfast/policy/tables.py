"""The settings that are tables: the record each one becomes, its fields, and the shorthand that may replace it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.concurrency import ConcurrencyConfig
from holdfast.guards.loop import MOST_WINDOW, LoopConfig
from holdfast.guards.rate import RateConfig
from holdfast.guards.retry import RetryConfig
from holdfast.policy.mistakes import objection
from holdfast.policy.settings import CacheConfig

_RATE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*/\s*([smh])\s*")
_UNITS: Final[Mapping[str, float]] = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Table(msgspec.Struct, frozen=True):
    """A setting that is a table: the record it becomes, and the shorthand that may replace it."""

    config: Callable[..., msgspec.Struct]
    forms: str
    short: Callable[[object], dict[str, object] | None]
    agreeable: Mapping[str, object]  # fits any valid value of the other fields: to check some without the rest
    fields: tuple[str, ...]
    required: frozenset[str]
    removable: frozenset[str]

    def objection(self, fields: Mapping[str, object]) -> tuple[str, str] | None:
        """Return which of *fields* is refused, and why; None if all are valid, alone and together."""
        settings = {**self.agreeable, **fields}
        return objection(partial(self.config, **settings), settings)


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
