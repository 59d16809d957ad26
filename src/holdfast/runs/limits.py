"""What the calls of one run share: its loop guard, its budgets, what it has spent."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Protocol

import msgspec

from holdfast import checks, events
from holdfast.clock import Clock
from holdfast.errors import BudgetExceeded, ConfigError, Denied, LoopDetected, in_digits
from holdfast.guards.budget import Budget, Spent
from holdfast.guards.loop import LoopGuard, LoopVerdict
from holdfast.policy import Policy

_PLACES = 9  # decimal places that count: the errors of float sums are smaller


class Tell(Protocol):
    """Reports an event of a tool, or of the run itself if *tool* is None."""

    def __call__(self, type: str, tool: str | None, /, **payload: object) -> object: ...


class _Line(msgspec.Struct, frozen=True):
    """A line of a budget that a warning was given for; *tool* is None for the run's own budget."""

    unit: str
    limit: float
    tool: str | None = None


class Limits:
    """The loop guard and the budgets of a run; *tell* is called when one detects a loop or warns."""

    def __init__(self, clock: Clock, budget: Mapping[str, float] | None, tell: Tell) -> None:
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._begun = clock.monotonic()
        self._budget = Budget({} if budget is None else budget)
        self._tool_budgets: dict[str, Budget] = {}
        self._calls = 0
        self._tool_calls: Counter[str] = Counter()  # calls of tools that have a budget of their own
        self._inner: Counter[str] = Counter()  # calls of each tool made within calls that are answered from the log
        self._warned: set[_Line] = set()
        self._spend: dict[str, float] = {}
        self._loop = LoopGuard()

    @property
    def spent(self) -> dict[str, float]:
        """What was spent, by unit."""
        with self._lock:
            return dict(self._spend)

    def restart(self, budget: Mapping[str, float] | None, spend: Mapping[str, float], warned: Iterable[str]) -> None:
        """Go on with the *budget*, the *spend* and the warnings (*warned*) that a run had before it was interrupted."""
        with self._lock:
            self._begun = self._clock.monotonic()
            self._budget = Budget({} if budget is None else budget)
            self._spend = dict(spend)
            self._warned = {line for payload in warned if (line := _read(payload)) is not None}

    def spend(self, unit: str, amount: float, record: Callable[[str, float], bool]) -> None:
        """Count *amount* of *unit* if *record* says that it is new."""
        if not isinstance(unit, str) or not unit.isidentifier() or unit in ("calls", "seconds"):
            raise ConfigError(
                f"unit = {checks.shown(unit)}: must be a plain word; calls and seconds are counted anyway"
            )
        checks.number("amount", amount, least=0)
        if not record(unit, amount):
            return
        with self._lock:
            self._spend[unit] = self._spend.get(unit, 0.0) + amount
            tools = list(self._tool_budgets)
        self._warn(*tools)

    def admit(self, tool: str, call: Hashable | None, policy: Policy) -> None:
        """Count a call in, or refuse it for looping or for a budget that is used up."""
        spent, own = None, False
        with self._lock:
            verdict = LoopVerdict.PASS
            if policy.loop is not None and (call is not None or self._loop.stopped):
                verdict = self._loop.admit(call, policy.loop)
            stopped = self._loop.stopped
            if verdict is LoopVerdict.PASS:
                spent = self._budget.admit(self._used()) if self._budget.limits else None
                if spent is None and policy.budget:
                    spent, own = self._tool_budget(tool, policy).admit(self._used(tool)), True
                if spent is None:
                    self._count(tool, 1)
        if verdict is LoopVerdict.DETECTED:
            self._tell(events.LOOP_DETECTED, tool, stopped=stopped)
        if verdict is not LoopVerdict.PASS:
            raise _looping(tool, stopped=stopped)
        if self._budget.limits or policy.budget:
            self._warn(tool)
        if spent is not None:
            raise _used_up(tool, spent, own=own)

    def recount(self, tool: str, call: Hashable | None, policy: Policy, *, failed: bool) -> None:
        """Count a call that was made before the run was resumed, and is answered from its log."""
        with self._lock:
            if policy.budget:
                self._tool_budget(tool, policy)
            self._count(tool, 1)
            if call is not None:
                self._loop.settle(call, failed=failed)

    def count(self, tools: Iterable[str]) -> None:
        """Count calls of *tools* that are not made again, since the call that made them is answered from the log.

        Their arguments are not known: to the loop guard they equal no other call, and only move its window on.
        """
        with self._lock:
            for tool in tools:
                self._inner[tool] += 1
                self._loop.settle(None, failed=False)

    def forget(self, tool: str) -> None:
        """Take back the count of a call that a later guard refused."""
        with self._lock:
            self._count(tool, -1)

    def settle(self, call: Hashable | None, *, failed: bool) -> None:
        """Tell the loop guard how a call ended."""
        if call is not None:
            with self._lock:
                self._loop.settle(call, failed=failed)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _used(self, tool: str | None = None) -> dict[str, float]:
        """What was used of each unit; with *tool*, `calls` are those of that tool."""
        calls = self._calls if tool is None else self._tool_calls[tool]
        inner = self._inner.total() if tool is None else self._inner[tool]
        used = {unit: round(amount, _PLACES) for unit, amount in self._spend.items()}
        return {**used, "calls": calls + inner, "seconds": self._clock.monotonic() - self._begun}

    def _count(self, tool: str, by: int) -> None:
        self._calls += by
        if tool in self._tool_budgets:
            self._tool_calls[tool] += by

    def _tool_budget(self, tool: str, policy: Policy) -> Budget:
        budget = self._tool_budgets.get(tool)
        if budget is None or budget.limits != policy.budget:
            budget = self._tool_budgets[tool] = Budget(policy.budget)
        return budget

    def _warn(self, *tools: str) -> None:
        """Warn, once for each line of the run's budget and of those of *tools*, when four fifths are used up."""
        with self._lock:
            budgets: list[tuple[str | None, Budget]] = [(None, self._budget)]
            budgets += [(tool, self._tool_budgets[tool]) for tool in tools if tool in self._tool_budgets]
            near = [(tool, line) for tool, budget in budgets for line in budget.warnings(self._used(tool))]
            lines = [(tool, line) for tool, line in near if _Line(line.unit, line.limit, tool) not in self._warned]
        for whose, line in lines:
            self._tell(events.BUDGET_WARNING, whose, unit=line.unit, used=line.used, limit=line.limit)


def _looping(tool: str, *, stopped: bool) -> LoopDetected:
    refusal = LoopDetected(tool, "the run was stopped for looping" if stopped else None)
    if stopped:  # other arguments and other tools are refused as well
        refusal.advice = BudgetExceeded.advice
    return refusal


def _used_up(tool: str, spent: Spent, *, own: bool) -> BudgetExceeded:
    """The refusal of a budget; *own* if it is the tool's own budget, so that other tools can still be used."""
    line = f"{in_digits(spent.limit)} {spent.unit}"
    budget = f"its budget of {line} a run" if own else f"the run's budget of {line}"
    refusal = BudgetExceeded(tool, f"{budget} is used up ({in_digits(spent.used)} used)")
    if own:
        refusal.advice = Denied.advice
    return refusal


def _read(payload: str) -> _Line | None:
    """The line that an event warned of; None if the event is a user's own, or of `seconds`, which start anew."""
    try:
        line = _LINE.decode(payload)
    except ValueError:
        return None
    return None if line.unit == "seconds" else line


_LINE = msgspec.json.Decoder(_Line)
