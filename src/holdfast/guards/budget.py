"""Budgets of a run: how many calls, how many seconds, and how much of any unit that the agent reports."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast import checks
from holdfast.errors import ConfigError

WARN_AT = 0.8


class Spent(msgspec.Struct, frozen=True):
    """One line of a budget that is used up, or nearly: *used* of *limit* *unit*."""

    unit: str
    used: float
    limit: float


def check_budget(budget: Mapping[str, float]) -> None:
    """Raise a `ConfigError` unless `calls` is a whole number, other limits are above 0, and units are plain words."""
    if not isinstance(budget, Mapping):
        raise ConfigError(f"budget = {checks.shown(budget)}: must be a table, such as {{'calls': 100, 'usd': 2.0}}")
    for unit, limit in budget.items():
        if not isinstance(unit, str) or not unit.isidentifier():
            raise ConfigError(
                f"budget: the unit {checks.shown(unit)} must be a plain word, such as calls, seconds or usd"
            )
        if unit == "calls":
            checks.whole("budget.calls", limit)
        else:
            checks.number(f"budget.{unit}", limit, above=0)


class Budget:
    """What one run, or one tool within it, may use up. It has no lock: its owner holds one."""

    __slots__ = ("limits", "_warned")

    def __init__(self, limits: Mapping[str, float]) -> None:
        check_budget(limits)
        self.limits = dict(limits)
        self._warned: set[str] = set()

    def admit(self, used: Mapping[str, float]) -> Spent | None:
        """Return the first line that is used up, if any; *used* maps every unit to what the run has used of it."""
        for unit, limit in self.limits.items():
            if used.get(unit, 0.0) >= limit:
                return Spent(unit, used.get(unit, 0.0), limit)
        return None

    def warnings(self, used: Mapping[str, float]) -> list[Spent]:
        """Return the lines that have reached four fifths of their limit since the last call; each line only once."""
        near = [
            Spent(unit, used.get(unit, 0.0), limit)
            for unit, limit in self.limits.items()
            if unit not in self._warned and used.get(unit, 0.0) >= limit * WARN_AT
        ]
        self._warned.update(line.unit for line in near)
        return near
