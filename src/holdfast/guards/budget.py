"""Budgets of a run: how many calls, how long, and how much of any unit its owner reports."""

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
    """`calls` is a whole number, everything else a number above 0; names are plain words."""
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
    """What one run, or one tool within it, may use up; not locked, its owner is."""

    __slots__ = ("limits", "_warned")

    def __init__(self, limits: Mapping[str, float]) -> None:
        check_budget(limits)
        self.limits = dict(limits)
        self._warned: set[str] = set()

    def admit(self, used: Mapping[str, float]) -> Spent | None:
        """The first line that is used up, if any; *used* maps every unit to what the run has used of it."""
        for unit, limit in self.limits.items():
            if used.get(unit, 0.0) >= limit:
                return Spent(unit, used.get(unit, 0.0), limit)
        return None

    def warnings(self, used: Mapping[str, float]) -> list[Spent]:
        """The lines that have reached four fifths since this was last asked, each once."""
        near = [
            Spent(unit, used.get(unit, 0.0), limit)
            for unit, limit in self.limits.items()
            if unit not in self._warned and used.get(unit, 0.0) >= limit * WARN_AT
        ]
        self._warned.update(line.unit for line in near)
        return near
