"""A run: one piece of an agent's work, with its loop guard and its budgets. It lives in memory.

Guarded calls find the current run through a context variable, so it follows tasks and `asyncio.to_thread`.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar, Token
from types import TracebackType

from holdfast import checks, events
from holdfast.bus import Bus
from holdfast.clock import Clock
from holdfast.errors import BudgetExceeded, ConfigError, LoopDetected
from holdfast.guards.budget import Budget
from holdfast.guards.loop import LoopGuard, LoopVerdict
from holdfast.policy import Policy

current_run: ContextVar[Run | None] = ContextVar("holdfast_run", default=None)

Call = tuple[str, bytes]  # a tool and its canonical arguments


class Run:
    """One run, as a sync or async context manager; calls inside it count against its budgets and loop guard."""

    def __init__(
        self,
        runs: list[Run],
        bus: Bus,
        clock: Clock,
        *,
        session: str,
        prompt: str,
        run_id: str | None,
        budget: Mapping[str, float] | None,
    ) -> None:
        self.id = run_id if run_id is not None else uuid.uuid4().hex
        if not isinstance(self.id, str) or not 1 <= len(self.id) <= 200 or not self.id.isprintable():
            raise ConfigError(f"run_id = {checks.shown(run_id)}: must be 1 to 200 printable characters")
        for name, text in (("session", session), ("prompt", prompt)):
            if not isinstance(text, str):
                raise ConfigError(f"{name} = {checks.shown(text)}: must be a text")
        self.session_id = session
        self.prompt = prompt
        self.runs = runs  # the open runs of the Holdfast it belongs to
        self.outer: Run | None = None  # the run within which it was entered
        self._bus = bus
        self._clock = clock
        self._lock = threading.Lock()
        self._begun = clock.monotonic()
        self._budget = Budget({} if budget is None else budget)
        self._tool_budgets: dict[str, Budget] = {}
        self._calls = 0
        self._tool_calls: Counter[str] = Counter()  # of tools that have a budget of their own
        self._spend: dict[str, float] = {}
        self._loop = LoopGuard()
        self._tokens: list[Token[Run | None]] = []

    @property
    def spent(self) -> dict[str, float]:
        """What was reported with `spend`, by unit."""
        with self._lock:
            return dict(self._spend)

    def spend(self, unit: str, amount: float) -> None:
        """Report that the run has used up *amount* of *unit*, dollars or tokens say; its budget counts it."""
        if not isinstance(unit, str) or not unit.isidentifier() or unit in ("calls", "seconds"):
            raise ConfigError(
                f"unit = {checks.shown(unit)}: must be a plain word; calls and seconds are counted anyway"
            )
        checks.number("amount", amount, least=0)
        with self._lock:
            self._spend[unit] = self._spend.get(unit, 0.0) + amount
        self._warn()

    def emit(self, type: str, /, **payload: object) -> None:
        """Tell the sinks of something that happened in this run; never blocks."""
        self._bus.emit(type, None, self.id, **payload)

    # -- for the guarded call ------------------------------------------------------------------------------------------

    def admit(self, tool: str, call: Call | None, policy: Policy) -> None:
        """Count a call in, or refuse it for looping or for a budget that is used up."""
        spent = None
        with self._lock:
            verdict = LoopVerdict.PASS
            if policy.loop is not None and (call is not None or self._loop.stopped):
                verdict = self._loop.admit(call, policy.loop)
            stopped = self._loop.stopped
            if verdict is LoopVerdict.PASS:
                spent = self._budget.admit(self._used())
                if spent is None and policy.budget:
                    spent = self._tool_budget(tool, policy).admit(self._used(tool))
                if spent is None:
                    self._count(tool, 1)
        if verdict is LoopVerdict.DETECTED:
            self._bus.emit(events.LOOP_DETECTED, tool, self.id, stopped=stopped)
        if verdict is not LoopVerdict.PASS:
            raise LoopDetected(tool, "the run was stopped for looping" if stopped else None)
        if spent is not None:
            raise BudgetExceeded(
                tool, f"the run's budget of {spent.limit:g} {spent.unit} is used up ({spent.used:g} used)"
            )
        self._warn(tool)

    def forget(self, tool: str) -> None:
        """The call was refused further in: it does not count."""
        with self._lock:
            self._count(tool, -1)

    def settle(self, call: Call | None, *, failed: bool) -> None:
        """Tell the loop guard how a call ended."""
        if call is not None:
            with self._lock:
                self._loop.settle(call, failed=failed)

    # -- as a context manager ------------------------------------------------------------------------------------------

    def __enter__(self) -> Run:
        outer = current_run.get()
        if outer is not self:
            self.outer = outer
        self._tokens.append(current_run.set(self))
        self.runs.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.runs.remove(self)
        for token in self._tokens[::-1]:
            try:
                current_run.reset(token)
            except ValueError:  # entered in another task or thread: not this one's to put back
                continue
            self._tokens.remove(token)
            return

    async def __aenter__(self) -> Run:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _used(self, tool: str | None = None) -> dict[str, float]:
        """What was used of each unit; with *tool*, its calls stand for the calls."""
        calls = self._calls if tool is None else self._tool_calls[tool]
        return {**self._spend, "calls": calls, "seconds": self._clock.monotonic() - self._begun}

    def _count(self, tool: str, by: int) -> None:
        self._calls += by
        if tool in self._tool_budgets:
            self._tool_calls[tool] += by

    def _tool_budget(self, tool: str, policy: Policy) -> Budget:
        budget = self._tool_budgets.get(tool)
        if budget is None or budget.limits != policy.budget:
            budget = self._tool_budgets[tool] = Budget(policy.budget)
        return budget

    def _warn(self, tool: str | None = None) -> None:
        """Say of each budget once that four fifths of it are gone."""
        with self._lock:
            lines = [(None, line) for line in self._budget.warnings(self._used())]
            if tool is not None and tool in self._tool_budgets:
                lines += [(tool, line) for line in self._tool_budgets[tool].warnings(self._used(tool))]  # type: ignore[misc]
        for whose, line in lines:
            self._bus.emit(events.BUDGET_WARNING, whose, self.id, unit=line.unit, used=line.used, limit=line.limit)
