"""The breaker against a model: late, lost and doubled outcomes, cancels, resets, holds by hand, evictions, time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from holdfast.category import ErrorCategory
from holdfast.errors import CircuitOpen
from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.circuit import CircuitState
from holdfast.parts.breaker import BreakerMetrics, CircuitBreaker, CircuitDiagnostics
from holdfast.parts.permit import Permit
from holdfast.testing import ManualClock

CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN
CANCELLED, TIMEOUT, FAILED = ErrorCategory.CANCELLED, ErrorCategory.TIMEOUT, ErrorCategory.EXECUTION_ERROR


@dataclass
class Slip:
    """What the model keeps of a permit."""

    tool: str
    epoch: object
    probe: object | None = None
    answered: bool = False


@dataclass
class Record:
    """One circuit as the model sees it. Its epoch is a new object whenever outcomes of before are void."""

    epoch: object
    state: CircuitState = CLOSED
    forced: CircuitState | None = None
    failures: list[float] = field(default_factory=list)
    error: ErrorCategory | None = None
    probes: dict[object, float] = field(default_factory=dict)
    good_probes: int = 0
    opened_at: float = 0.0
    closed_at: float = -math.inf
    opened_in_a_row: int = 0
    wait: float = 0.0
    times_opened: int = 0
    denied: int = 0
    last_denied: float | None = None

    @property
    def shown(self) -> CircuitState:
        return self.forced or self.state

    @property
    def healthy(self) -> bool:
        return self.shown is CLOSED and self.forced is None


class Model:
    """The table of behaviour, without locks, marks or generations."""

    def __init__(self, config: BreakerConfig) -> None:
        self.config = config
        self.now = 0.0
        self.records: dict[str, Record] = {}
        self.unborn: object = object()  # the epoch of tools that have no circuit
        self.told: list[tuple[str, CircuitState, CircuitState]] = []
        self.refused = 0

    def ask(self, tool: str) -> Slip | float:
        record = self.records.get(tool)
        if record is None:
            return Slip(tool, self.unborn)
        wait = self.refuses_for(record)
        if wait:
            record.denied += 1
            record.last_denied = self.now
            self.refused += 1
            return wait
        if record.shown is CLOSED:
            return Slip(tool, record.epoch)
        self.change(tool, record, HALF_OPEN)
        number = object()
        record.probes[number] = self.now + self.config.probe_lease
        return Slip(tool, record.epoch, number)

    def refuses_for(self, record: Record) -> float:
        if record.forced:
            return math.inf if record.forced is OPEN else 0.0
        if record.state is OPEN:
            return max(0.0, record.opened_at + record.wait - self.now)
        if record.state is HALF_OPEN and len(self.live(record)) >= self.config.half_open_probes:
            return min(record.probes[number] for number in self.live(record)) - self.now
        return 0.0

    def live(self, record: Record) -> list[object]:
        return [number for number, end in record.probes.items() if end > self.now]

    def counted(self, record: Record) -> list[float]:
        return [at for at in record.failures if at > self.now - self.config.window]

    def tell(self, tool: str, slip: Slip | None, outcome: ErrorCategory | None) -> None:
        """*outcome* None is a success; the caller has made the record where one was needed."""
        record = self.records.get(tool)
        if record is None or record.forced or (slip is not None and slip.epoch is not record.epoch):
            return
        trips = outcome is not None and outcome in self.config.trips
        if record.state is CLOSED and (slip is None or slip.probe is None):
            if outcome is None:
                record.failures, record.error = [], None
            elif trips:
                record.failures = [*self.counted(record), self.now]
                record.error = outcome
                if len(record.failures) >= self.config.failure_threshold:
                    self.open(tool, record)
        elif record.state is HALF_OPEN:
            live = self.live(record)
            number = slip.probe if slip is not None else next(iter(live), None)
            if number not in live:
                return
            del record.probes[number]
            if outcome is None:
                record.good_probes += 1
                if record.good_probes >= self.config.successes_to_close:
                    self.close(tool, record)
            elif trips:
                record.error = outcome
                self.open(tool, record)

    def open(self, tool: str, record: Record) -> None:
        again = record.state is HALF_OPEN or self.now - record.closed_at <= self.config.max_backoff
        record.opened_in_a_row = record.opened_in_a_row + 1 if again else 1
        record.wait = self.config.min_backoff
        for _ in range(record.opened_in_a_row - 1):
            record.wait = min(record.wait * self.config.backoff_factor, self.config.max_backoff)
        record.opened_at = self.now
        record.times_opened += 1
        self.change(tool, record, OPEN)

    def close(self, tool: str, record: Record) -> None:
        record.failures, record.error = [], None
        record.closed_at = self.now
        self.change(tool, record, CLOSED)

    def reset(self, tool: str) -> None:
        if record := self.records.get(tool):
            before = record.shown
            fresh = Record(object())
            fresh.times_opened, fresh.denied, fresh.last_denied = record.times_opened, record.denied, record.last_denied
            self.records[tool] = fresh
            self.note(tool, before, fresh.shown)

    def force(self, tool: str, state: CircuitState | None) -> None:
        record = self.records[tool]
        if record.forced is not state:
            before = record.shown
            record.forced = state
            record.epoch, record.probes = object(), {}
            self.note(tool, before, record.shown)

    def change(self, tool: str, record: Record, state: CircuitState) -> None:
        before = record.shown
        if state is not record.state:
            record.state = state
            record.epoch, record.probes, record.good_probes = object(), {}, 0
        self.note(tool, before, record.shown)

    def note(self, tool: str, before: CircuitState, after: CircuitState) -> None:
        if before is not after:
            self.told.append((tool, before, after))

    def make(self, tool: str) -> bool:
        """Make a record if there is none; says whether it did."""
        if tool in self.records:
            return False
        self.records[tool] = Record(self.unborn)
        return True

    def evict(self, tool: str) -> None:
        del self.records[tool]
        self.unborn = object()


TOOLS = st.integers(0, 5)  # which of the tools there are
OUTCOMES = st.sampled_from([None, None, FAILED, TIMEOUT, ErrorCategory.INVALID_PARAMETERS, CANCELLED])


class BreakerMachine(RuleBasedStateMachine):
    """Breaker and model side by side; after every step they say the same."""

    permits: Bundle[tuple[Permit, Slip]] = Bundle("permits")

    @initialize(
        threshold=st.integers(1, 3),
        probes=st.integers(1, 2),
        successes=st.integers(1, 2),
        tools=st.sampled_from(["a", "a", "ab", "abc"]),
        max_tools=st.sampled_from([1, 3, 10]),
    )
    def begin(self, threshold: int, probes: int, successes: int, tools: str, max_tools: int) -> None:
        config = BreakerConfig(
            failure_threshold=threshold,
            half_open_probes=probes,
            successes_to_close=successes,
            min_backoff=2.0,
            max_backoff=10.0,
            probe_lease=7.0,
            window=20.0,
            jitter=0.0,
        )
        self.tools = tools
        self.max_tools = max_tools
        self.clock = ManualClock()
        self.told: list[tuple[str, CircuitState, CircuitState]] = []
        self.breaker = CircuitBreaker(
            config, clock=self.clock, max_tools=max_tools, on_transition=lambda *args: self.told.append(args[:3])
        )
        self.model = Model(config)

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 4.0, 7.0, 20.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now += seconds

    @rule(which=TOOLS)
    def fail_until_it_opens_and_let_it_rest(self, which: int) -> None:
        tool = self._named(which)
        for _ in range(self.model.config.failure_threshold):
            self._tell(tool, FAILED)
        self.pass_time(self.breaker.remaining_backoff(tool) or 0.0)

    @precondition(lambda self: len(self.tools) > 1)
    @rule()
    def let_other_tools_fail(self) -> None:
        for tool in ("x", "y", "z"):
            self._tell(tool, FAILED)

    @rule(target=permits, which=TOOLS)
    def ask(self, which: int) -> Any:
        tool = self._named(which)
        expected = self.model.ask(tool)
        if isinstance(expected, Slip):
            return self.breaker.admit(tool), expected
        with pytest.raises(CircuitOpen) as caught:
            self.breaker.admit(tool)
        assert caught.value.retry_after == (None if expected == math.inf else expected)
        return multiple()

    @rule(which=TOOLS, outcome=OUTCOMES)
    def ask_and_answer(self, which: int, outcome: ErrorCategory | None) -> None:
        tool = self._named(which)
        slip = self.model.ask(tool)
        if isinstance(slip, Slip):
            self.answer((self.breaker.admit(tool), slip), outcome)
        else:
            assert not self.breaker.allow_request(tool)

    @rule(which=TOOLS)
    def ask_and_lose_the_permit(self, which: int) -> None:
        tool = self._named(which)
        assert self.breaker.allow_request(tool) is isinstance(self.model.ask(tool), Slip)

    @rule(pair=permits, outcome=OUTCOMES)
    def answer(self, pair: tuple[Permit, Slip], outcome: ErrorCategory | None) -> None:
        permit, slip = pair
        if outcome is None:
            permit.succeed()
        else:
            permit.fail(outcome)
        if slip.answered:
            return
        slip.answered = True
        if outcome is CANCELLED:
            self._give_back(slip)
            return
        if outcome is not None and outcome in self.model.config.trips and slip.epoch is self.model.unborn:
            self._make(slip.tool)
        self.model.tell(slip.tool, slip, outcome)

    @rule(pair=consumes(permits))
    def release(self, pair: tuple[Permit, Slip]) -> None:
        permit, slip = pair
        permit.release()
        if not slip.answered:
            slip.answered = True
            self._give_back(slip)

    @rule(which=TOOLS, outcome=OUTCOMES)
    def tell_without_a_permit(self, which: int, outcome: ErrorCategory | None) -> None:
        self._tell(self._named(which), outcome)

    @rule(which=TOOLS, held=st.sampled_from([OPEN, CLOSED, None]))
    def hold_or_give_back(self, which: int, held: CircuitState | None) -> None:
        tool = self._named(which)
        {OPEN: self.breaker.force_open, CLOSED: self.breaker.force_closed, None: self.breaker.auto}[held](tool)
        if held is not None:
            self._make(tool)
        if tool in self.model.records:
            self.model.force(tool, held)

    @rule(which=st.none() | TOOLS)
    def reset(self, which: int | None) -> None:
        if which is None:
            self.breaker.reset_all()
        else:
            self.breaker.reset(self._named(which))
        for tool in list(self.model.records) if which is None else [self._named(which)]:
            self.model.reset(tool)

    @invariant()
    @precondition(lambda self: hasattr(self, "model"))
    def they_agree(self) -> None:
        snapshot = self.breaker.snapshot()
        records = self.model.records
        assert [shown.tool for shown in snapshot.diagnostics] == sorted(records)
        assert len(records) <= self.max_tools
        for shown in snapshot.diagnostics:
            self._agree(shown, records[shown.tool])
        refusing = tuple(tool for tool in sorted(records) if self.model.refuses_for(records[tool]))
        assert snapshot.open_circuits == refusing
        assert self.breaker.should_pause_for_recovery(1) is bool(refusing)

    @invariant()
    @precondition(lambda self: hasattr(self, "model"))
    def every_transition_was_told_once(self) -> None:
        assert self.told == self.model.told
        counts = {state: sum(new is state for *_, new in self.told) for state in CircuitState}
        assert self.breaker.metrics() == BreakerMetrics(
            opened=counts[OPEN], half_opened=counts[HALF_OPEN], closed=counts[CLOSED], refused=self.model.refused
        )

    def _named(self, which: int) -> str:
        return self.tools[which % len(self.tools)]

    def _tell(self, tool: str, outcome: ErrorCategory | None) -> None:
        if outcome is None:
            self.breaker.record_success(tool)
        else:
            self.breaker.record_failure(tool, outcome)
            if outcome in self.model.config.trips:
                self._make(tool)
        self.model.tell(tool, None, outcome)

    def _agree(self, shown: CircuitDiagnostics, record: Record) -> None:
        config, now = self.model.config, self.model.now
        assert shown.state is record.shown
        assert shown.is_open is (self.model.refuses_for(record) > 0)
        assert shown.failure_count == len(self.model.counted(record))
        assert shown.last_error_category is record.error
        assert shown.probes_in_flight == len(self.model.live(record)) <= config.half_open_probes
        assert shown.times_opened == record.times_opened
        assert shown.denied_requests == record.denied
        assert shown.last_denied_at == (
            None if record.last_denied is None else self.clock.time() - (now - record.last_denied)
        )
        assert shown.current_backoff == (0.0 if record.state is CLOSED else record.wait)
        if record.forced is None and record.state is OPEN:
            assert shown.remaining_backoff == max(0.0, record.opened_at + record.wait - now)
            assert shown.opened_at == self.clock.time() - (now - record.opened_at)
        else:
            assert shown.remaining_backoff is None

    def _give_back(self, slip: Slip) -> None:
        if record := self.model.records.get(slip.tool):
            record.probes.pop(slip.probe, None)

    def _make(self, tool: str) -> None:
        """Make the record, and let one go where the breaker did: a healthy one, if there was any."""
        kept = {shown.tool for shown in self.breaker.snapshot().diagnostics}
        if not self.model.make(tool):
            return
        gone = set(self.model.records) - kept
        assert len(gone) <= 1
        for other in gone:
            others = [record for name, record in self.model.records.items() if name != tool]
            victim = self.model.records[other]
            assert victim.healthy or not any(record.healthy for record in others)
            assert victim.forced is None or all(record.forced for record in others)
            self.model.evict(other)


BreakerMachine.TestCase.settings = settings(max_examples=250, stateful_step_count=50)
TestTheBreakerDoesWhatTheModelDoes = BreakerMachine.TestCase
