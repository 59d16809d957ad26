"""The breaker: one circuit a tool, permits, controls, diagnostics, bounded memory and many threads."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest
from tests.interrupts import interrupted_at

from holdfast.category import ErrorCategory
from holdfast.errors import CircuitOpen, ConfigError, RateLimited
from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.circuit import CircuitState
from holdfast.parts.breaker import BreakerMetrics, CircuitBreaker, CircuitDiagnostics
from holdfast.testing import ManualClock

CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN
CANCELLED, TIMEOUT, FAILED = ErrorCategory.CANCELLED, ErrorCategory.TIMEOUT, ErrorCategory.EXECUTION_ERROR
STEADY = BreakerConfig(jitter=0.0)
PATIENCE = 30.0  # seconds for other threads

T = TypeVar("T")


@pytest.fixture
def breaker(clock: ManualClock) -> CircuitBreaker:
    return CircuitBreaker(STEADY, clock=clock)


def steady(
    clock: ManualClock, *, max_tools: int = 10_000, on_transition: Any = None, **settings: Any
) -> CircuitBreaker:
    config = BreakerConfig(**{"jitter": 0.0, **settings})
    return CircuitBreaker(config, clock=clock, max_tools=max_tools, on_transition=on_transition)


def fail(breaker: CircuitBreaker, tool: str = "t", times: int = 7) -> None:
    for _ in range(times):
        breaker.record_failure(tool)


def open_then_wait(breaker: CircuitBreaker, clock: ManualClock, tool: str = "t") -> None:
    """Leave the circuit open with its wait just over."""
    fail(breaker, tool)
    clock.advance(5.0)


def names(breaker: CircuitBreaker) -> list[str]:
    return [diagnostics.tool for diagnostics in breaker.snapshot().diagnostics]


# --- one circuit a tool ---


def test_one_bad_tool_does_not_disable_the_others(breaker: CircuitBreaker) -> None:
    fail(breaker, "bad")

    assert not breaker.allow_request("bad")
    assert breaker.allow_request("good")


def test_a_refusal_says_which_tool_and_how_long_to_wait(breaker: CircuitBreaker, clock: ManualClock) -> None:
    fail(breaker)
    clock.advance(1.5)

    with pytest.raises(CircuitOpen) as caught:
        breaker.admit("t")

    assert (caught.value.tool, caught.value.retry_after) == ("t", 3.5)


def test_a_call_that_waits_as_told_passes(breaker: CircuitBreaker, clock: ManualClock) -> None:
    fail(breaker)
    clock.advance(0.1)
    with pytest.raises(CircuitOpen) as caught:
        breaker.admit("t")

    clock.sleep(caught.value.retry_after or math.nan)

    assert breaker.admit("t")


def test_waiting_for_the_remaining_backoff_is_enough() -> None:
    clock = ManualClock(start=0.1)
    breaker = steady(clock, min_backoff=0.6)
    fail(breaker)
    clock.advance(0.2)

    clock.sleep(breaker.remaining_backoff("t") or math.nan)

    assert breaker.remaining_backoff("t") == 0.0
    assert breaker.allow_request("t")


def test_a_category_may_be_given_by_its_name(breaker: CircuitBreaker) -> None:
    breaker.record_failure("t", "timeout")  # type: ignore[arg-type]

    assert breaker.diagnostics("t").last_error_category is TIMEOUT


def test_a_category_that_does_not_exist_is_an_error(breaker: CircuitBreaker) -> None:
    with pytest.raises(ValueError, match="bogus"):
        breaker.record_failure("t", "bogus")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bogus"):
        breaker.admit("t").fail("bogus")  # type: ignore[arg-type]


@pytest.mark.parametrize("ask", ["admit", "allow_request", "record_success", "record_failure", "state", "force_open"])
@pytest.mark.parametrize("name", [5, ["t"]], ids=repr)
def test_a_name_that_is_no_text_is_a_config_error(breaker: CircuitBreaker, ask: str, name: object) -> None:
    with pytest.raises(ConfigError, match=r"name = .*: must be a text"):
        getattr(breaker, ask)(name)


def test_a_very_long_name_is_kept_short_and_still_found(breaker: CircuitBreaker) -> None:
    name = "x" * 100_000
    fail(breaker, name)

    assert not breaker.allow_request(name)
    assert len(names(breaker)[0]) < 200
    assert breaker.allow_request(name + "y")


@pytest.mark.parametrize("max_tools", [0, -1, 1.5, math.nan, "10", True, None, 10**400])
def test_max_tools_must_be_a_whole_number_of_at_least_one(max_tools: Any) -> None:
    with pytest.raises(ConfigError, match=r"max_tools = .+: must be a whole number of at least 1"):
        CircuitBreaker(max_tools=max_tools)


def test_a_breaker_works_with_no_settings_at_all() -> None:
    breaker = CircuitBreaker()

    fail(breaker)

    remaining = breaker.remaining_backoff("t")
    assert remaining is not None
    assert 4.0 < remaining <= 5.5


# --- late, lost and doubled outcomes ---


def test_a_late_failure_does_not_move_the_deadline_of_an_open_circuit(
    breaker: CircuitBreaker, clock: ManualClock
) -> None:
    late = [breaker.admit("t") for _ in range(5)]
    fail(breaker)
    for permit in late:
        clock.advance(0.5)
        permit.fail()
        breaker.record_failure("t")

    assert breaker.remaining_backoff("t") == 2.5
    assert breaker.diagnostics("t").times_opened == 1


def test_a_late_success_does_not_close_an_open_circuit(breaker: CircuitBreaker) -> None:
    late = breaker.admit("t")
    fail(breaker)

    late.succeed()
    breaker.record_success("t")

    assert breaker.state("t") is OPEN


def test_a_call_begun_before_the_outage_does_not_close_an_open_circuit(
    breaker: CircuitBreaker, clock: ManualClock
) -> None:
    early = breaker.admit("t")
    open_then_wait(breaker, clock)
    breaker.admit("t")
    assert breaker.state("t") is HALF_OPEN

    early.succeed()

    assert breaker.state("t") is HALF_OPEN


def test_a_call_begun_before_the_outage_does_not_open_the_circuit_again(
    breaker: CircuitBreaker, clock: ManualClock
) -> None:
    early = [breaker.admit("t") for _ in range(10)]
    open_then_wait(breaker, clock)
    breaker.admit("t").succeed()
    assert breaker.state("t") is CLOSED

    for permit in early:
        permit.fail()

    assert breaker.diagnostics("t").failure_count == 0


def test_half_open_lets_only_the_probe_through(breaker: CircuitBreaker, clock: ManualClock) -> None:
    open_then_wait(breaker, clock)

    passed = [breaker.allow_request("t") for _ in range(1000)]

    assert passed == [True] + [False] * 999


def test_half_open_refuses_with_a_real_wait(breaker: CircuitBreaker, clock: ManualClock) -> None:
    open_then_wait(breaker, clock)
    breaker.admit("t")
    clock.advance(10.0)

    with pytest.raises(CircuitOpen) as caught:
        breaker.admit("t")

    assert caught.value.retry_after == 20.0


def test_a_probe_whose_outcome_never_comes_gives_its_slot_back(breaker: CircuitBreaker, clock: ManualClock) -> None:
    open_then_wait(breaker, clock)
    breaker.admit("t")

    clock.advance(29.9)
    assert not breaker.allow_request("t")
    clock.advance(0.1)

    assert breaker.allow_request("t")


@pytest.mark.parametrize("outcome", ["succeed", "fail", "release"])
def test_the_answer_of_a_probe_after_its_lease_changes_nothing(
    breaker: CircuitBreaker, clock: ManualClock, outcome: str
) -> None:
    open_then_wait(breaker, clock)
    lost = breaker.admit("t")
    clock.advance(30.0)

    getattr(lost, outcome)()

    assert breaker.state("t") is HALF_OPEN
    assert breaker.diagnostics("t").times_opened == 1


def test_the_late_answer_of_a_lost_probe_does_not_answer_for_the_next(
    breaker: CircuitBreaker, clock: ManualClock
) -> None:
    open_then_wait(breaker, clock)
    lost = breaker.admit("t")
    clock.advance(30.0)
    breaker.admit("t")

    lost.succeed()

    assert breaker.state("t") is HALF_OPEN
    assert breaker.diagnostics("t").probes_in_flight == 1


def test_an_outcome_without_a_permit_answers_the_probe(breaker: CircuitBreaker, clock: ManualClock) -> None:
    open_then_wait(breaker, clock)
    breaker.allow_request("t")

    breaker.record_success("t")

    assert breaker.state("t") is CLOSED


@pytest.mark.parametrize("tell", ["record_success", "record_failure"])
def test_an_outcome_without_a_permit_and_without_a_probe_out_changes_nothing(
    breaker: CircuitBreaker, clock: ManualClock, tell: str
) -> None:
    open_then_wait(breaker, clock)
    breaker.admit("t").release()
    assert breaker.state("t") is HALF_OPEN

    getattr(breaker, tell)("t")

    assert breaker.state("t") is HALF_OPEN


@pytest.mark.parametrize("second", ["succeed", "fail", "release"])
@pytest.mark.parametrize("first", ["succeed", "fail", "release"])
def test_answering_twice_is_harmless(breaker: CircuitBreaker, clock: ManualClock, first: str, second: str) -> None:
    open_then_wait(breaker, clock)
    permit = breaker.admit("t")
    getattr(permit, first)()
    before = breaker.diagnostics("t")

    getattr(permit, second)()

    assert breaker.diagnostics("t") == before


def test_one_permit_counts_one_failure(breaker: CircuitBreaker) -> None:
    permit = breaker.admit("t")

    for _ in range(20):
        permit.fail()

    assert breaker.diagnostics("t").failure_count == 1


def test_a_success_among_parallel_first_calls_breaks_the_row_of_failures(breaker: CircuitBreaker) -> None:
    permits = [breaker.admit("new") for _ in range(8)]
    for permit in permits[:6]:
        permit.fail()

    permits[6].succeed()
    permits[7].fail()

    assert breaker.diagnostics("new").failure_count == 1


def test_parallel_first_calls_of_a_new_name_share_one_circuit(breaker: CircuitBreaker) -> None:
    permits = [breaker.admit("new") for _ in range(7)]

    for permit in permits:
        permit.fail()

    assert breaker.state("new") is OPEN


def test_a_reset_makes_the_outcomes_of_before_void(breaker: CircuitBreaker) -> None:
    fail(breaker, times=1)
    permits = [breaker.admit("t") for _ in range(7)]

    breaker.reset("t")
    for permit in permits:
        permit.fail()

    assert breaker.diagnostics("t").failure_count == 0


# --- cancellation ---


def test_seven_user_cancels_do_not_open_the_circuit(breaker: CircuitBreaker) -> None:
    for _ in range(7):
        with pytest.raises(asyncio.CancelledError), breaker.admit("t"):
            raise asyncio.CancelledError
        with pytest.raises(KeyboardInterrupt), breaker.admit("t"):
            raise KeyboardInterrupt
        breaker.admit("t").fail(CANCELLED)
        breaker.record_failure("t", CANCELLED)

    assert breaker.state("t") is CLOSED
    assert breaker.diagnostics("t").failure_count == 0


def test_a_user_cancel_does_not_close_the_circuit(breaker: CircuitBreaker, clock: ManualClock) -> None:
    open_then_wait(breaker, clock)

    with pytest.raises(asyncio.CancelledError), breaker.admit("t"):
        raise asyncio.CancelledError

    assert breaker.state("t") is HALF_OPEN


def test_a_user_cancel_does_not_break_a_row_of_failures(breaker: CircuitBreaker) -> None:
    fail(breaker, times=6)

    breaker.admit("t").fail(CANCELLED)
    fail(breaker, times=1)

    assert breaker.state("t") is OPEN


def test_a_cancelled_probe_gives_its_slot_back(breaker: CircuitBreaker, clock: ManualClock) -> None:
    open_then_wait(breaker, clock)

    for _ in range(50):
        with pytest.raises(asyncio.CancelledError), breaker.admit("t"):
            raise asyncio.CancelledError
    breaker.allow_request("t")
    breaker.record_failure("t", CANCELLED)

    assert breaker.diagnostics("t").probes_in_flight == 0
    assert breaker.allow_request("t")


def test_a_timeout_trips_though_it_cancels_too(breaker: CircuitBreaker) -> None:
    for _ in range(7):
        with pytest.raises(TimeoutError), breaker.admit("t"):
            raise TimeoutError

    assert breaker.state("t") is OPEN
    assert breaker.diagnostics("t").last_error_category is TIMEOUT


def test_a_probe_that_ends_with_a_fault_of_the_caller_gives_its_slot_back(
    breaker: CircuitBreaker, clock: ManualClock
) -> None:
    open_then_wait(breaker, clock)

    breaker.admit("t").fail(ErrorCategory.INVALID_PARAMETERS)

    assert breaker.state("t") is HALF_OPEN
    assert breaker.allow_request("t")


# --- the permit as a context manager ---


def test_leaving_a_permit_cleanly_is_a_success(breaker: CircuitBreaker) -> None:
    fail(breaker, times=6)

    with breaker.admit("t") as permit:
        assert permit.tool == "t"

    assert breaker.diagnostics("t").failure_count == 0


def test_leaving_a_permit_with_an_exception_classifies_and_records_it(breaker: CircuitBreaker) -> None:
    with pytest.raises(ConnectionError), breaker.admit("t"):
        raise ConnectionError

    assert breaker.diagnostics("t").last_error_category is ErrorCategory.NETWORK


def test_a_permit_answered_inside_its_block_is_not_answered_again(breaker: CircuitBreaker) -> None:
    with breaker.admit("t") as permit:
        permit.fail()

    assert breaker.diagnostics("t").failure_count == 1


def test_a_refusal_from_further_in_is_no_failure_of_the_tool(breaker: CircuitBreaker, clock: ManualClock) -> None:
    open_then_wait(breaker, clock)

    with pytest.raises(RateLimited), breaker.admit("t"):
        raise RateLimited("t")

    assert breaker.state("t") is HALF_OPEN
    assert breaker.diagnostics("t").probes_in_flight == 0


def test_refusals_from_further_in_do_not_open_a_circuit_that_counts_rate_limits(clock: ManualClock) -> None:
    breaker = steady(clock, trips=["rate_limit"], failure_threshold=1)

    with pytest.raises(RateLimited), breaker.admit("t"):
        raise RateLimited("t")

    assert breaker.state("t") is CLOSED


# --- rates through the breaker ---


def test_successes_of_a_new_name_count_where_a_rate_is_judged(clock: ManualClock) -> None:
    breaker = steady(clock, failure_rate=0.5, minimum_calls=4)
    for _ in range(3):
        breaker.admit("t").succeed()
    breaker.record_success("t")
    for _ in range(3):
        breaker.admit("t").fail()
    assert breaker.state("t") is CLOSED

    breaker.record_failure("t")

    assert breaker.state("t") is OPEN


def test_a_success_without_a_permit_makes_a_circuit_where_a_rate_is_judged(clock: ManualClock) -> None:
    breaker = steady(clock, failure_rate=0.5, minimum_calls=4)

    breaker.record_success("t")

    assert names(breaker) == ["t"]


def test_how_long_a_permit_is_held_tells_slow_calls(clock: ManualClock) -> None:
    breaker = steady(clock, slow_call=2.0, slow_call_rate=1.0, minimum_calls=3)
    for _ in range(3):
        with breaker.admit("t"):
            clock.advance(2.0)

    assert breaker.state("t") is OPEN


def test_quick_calls_are_not_slow(clock: ManualClock) -> None:
    breaker = steady(clock, slow_call=2.0, slow_call_rate=0.5, minimum_calls=3)
    for _ in range(30):
        with breaker.admit("t"):
            clock.advance(1.9)

    assert breaker.state("t") is CLOSED


# --- controls ---


def test_reset_closes_one_and_reset_all_closes_all(breaker: CircuitBreaker) -> None:
    for tool in "abc":
        fail(breaker, tool)

    breaker.reset("a")
    assert [breaker.state(tool) for tool in "abc"] == [CLOSED, OPEN, OPEN]
    breaker.reset_all()

    assert [breaker.state(tool) for tool in "abc"] == [CLOSED, CLOSED, CLOSED]


def test_lifetime_counters_survive_a_reset(breaker: CircuitBreaker) -> None:
    fail(breaker)
    breaker.allow_request("t")

    breaker.reset("t")

    after = breaker.diagnostics("t")
    assert (after.times_opened, after.denied_requests) == (1, 1)
    assert (after.failure_count, after.opened_at, after.last_error_category) == (0, None, None)


def test_a_tool_forced_open_is_refused_until_it_is_automatic_again(breaker: CircuitBreaker, clock: ManualClock) -> None:
    breaker.force_open("t")
    clock.advance(1e6)
    with pytest.raises(CircuitOpen) as caught:
        breaker.admit("t")
    assert caught.value.retry_after is None
    assert caught.value.reason == "it is switched off by hand"
    assert breaker.remaining_backoff("t") is None

    breaker.auto("t")

    assert breaker.allow_request("t")


def test_a_tool_forced_closed_passes_though_it_fails(breaker: CircuitBreaker) -> None:
    breaker.force_closed("t")

    for _ in range(20):
        breaker.admit("t").fail()

    assert breaker.allow_request("t")
    assert breaker.diagnostics("t").failure_count == 0


def test_outcomes_without_a_permit_do_not_open_a_circuit_behind_the_hand_that_holds_it(breaker: CircuitBreaker) -> None:
    breaker.force_open("t")

    fail(breaker)
    breaker.auto("t")

    assert breaker.state("t") is CLOSED
    assert breaker.diagnostics("t").times_opened == 0


def test_controls_of_an_unknown_tool_leave_no_trace(breaker: CircuitBreaker) -> None:
    breaker.auto("unknown")
    breaker.reset("unknown")
    breaker.reset_all()

    assert names(breaker) == []


@pytest.mark.parametrize(("limit", "pause"), [(0, False), (1, True), (2, True), (3, False)])
def test_it_is_time_to_pause_when_so_many_circuits_refuse(breaker: CircuitBreaker, limit: int, pause: bool) -> None:
    fail(breaker, "a")
    breaker.force_open("b")

    assert breaker.should_pause_for_recovery(limit) is pause


def test_with_no_circuit_open_it_is_never_time_to_pause(breaker: CircuitBreaker) -> None:
    assert not breaker.should_pause_for_recovery(0)
    assert not breaker.should_pause_for_recovery(1)


@pytest.mark.parametrize("limit", [-1, 1.5, "2", True])
def test_a_bad_number_of_circuits_to_pause_at_is_a_config_error(breaker: CircuitBreaker, limit: Any) -> None:
    with pytest.raises(ConfigError, match=r"max_open_circuits = .+: must be a whole number of at least 0"):
        breaker.should_pause_for_recovery(limit)


# --- diagnostics ---


def test_diagnostics_of_an_unknown_tool_are_those_of_a_new_one(breaker: CircuitBreaker) -> None:
    assert breaker.diagnostics("unknown") == CircuitDiagnostics(
        tool="unknown",
        state=CLOSED,
        is_open=False,
        failure_count=0,
        current_backoff=0.0,
        remaining_backoff=None,
        opened_at=None,
        times_opened=0,
        denied_requests=0,
        last_denied_at=None,
        last_error_category=None,
        probes_in_flight=0,
    )
    assert names(breaker) == []


def test_diagnostics_of_an_open_circuit(breaker: CircuitBreaker, clock: ManualClock) -> None:
    clock.advance(100.0)
    opened = clock.time()
    fail(breaker)
    clock.advance(1.0)
    breaker.allow_request("t")
    clock.advance(1.0)

    assert breaker.diagnostics("t") == CircuitDiagnostics(
        tool="t",
        state=OPEN,
        is_open=True,
        failure_count=7,
        current_backoff=5.0,
        remaining_backoff=3.0,
        opened_at=opened,
        times_opened=1,
        denied_requests=1,
        last_denied_at=opened + 1.0,
        last_error_category=FAILED,
        probes_in_flight=0,
    )


def test_diagnostics_of_a_half_open_circuit(breaker: CircuitBreaker, clock: ManualClock) -> None:
    open_then_wait(breaker, clock)
    breaker.admit("t")

    half_open = breaker.diagnostics("t")

    assert (half_open.state, half_open.is_open, half_open.probes_in_flight) == (HALF_OPEN, True, 1)
    assert (half_open.current_backoff, half_open.remaining_backoff) == (5.0, None)
    assert half_open.opened_at == clock.time() - 5.0


def test_wall_times_follow_a_clock_that_was_set(breaker: CircuitBreaker, clock: ManualClock) -> None:
    fail(breaker)
    clock.shift_time(3600.0)

    assert breaker.diagnostics("t").opened_at == clock.time()


class Meddling(ManualClock):
    """A clock whose time of day, when a snapshot reckons with it, lets a test change circuits in the midst of that."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        super().__init__()
        self.meddle = meddle

    def time(self) -> float:
        return MeddlingTime(self)


class MeddlingTime(float):
    clock: Meddling

    def __new__(cls, clock: Meddling) -> MeddlingTime:
        self = super().__new__(cls, ManualClock.time(clock))
        self.clock = clock
        return self

    def __sub__(self, other: float) -> float:
        self.clock.meddle()
        return float(self) - other


def test_a_snapshot_shows_all_circuits_at_one_instant() -> None:
    def the_other() -> None:
        clock.meddle = lambda: None
        breaker.force_open("first")
        breaker.reset("second")

    clock = Meddling(the_other)
    breaker = steady(clock, failure_threshold=1)
    fail(breaker, "middle", 1)
    breaker.force_closed("first")
    breaker.force_open("second")

    assert breaker.snapshot().open_circuits == ("first", "middle")


def test_a_snapshot_ends_though_circuits_change_without_pause() -> None:
    clock = Meddling(lambda: breaker.reset("t"))
    breaker = steady(clock, failure_threshold=1)
    fail(breaker, "middle", 1)
    breaker.force_closed("t")

    assert breaker.snapshot().open_circuits == ("middle",)


def test_the_snapshot_is_sorted_by_name_and_names_those_that_refuse_now(
    breaker: CircuitBreaker, clock: ManualClock
) -> None:
    fail(breaker, "waits-no-longer")
    clock.advance(5.0)
    fail(breaker, "open")
    fail(breaker, "closed", 1)
    breaker.force_open("forced")

    snapshot = breaker.snapshot()

    assert [d.tool for d in snapshot.diagnostics] == ["closed", "forced", "open", "waits-no-longer"]
    assert snapshot.open_circuits == ("forced", "open")
    assert snapshot.open_count == 2


def test_a_circuit_whose_wait_is_over_does_not_count_as_open(breaker: CircuitBreaker, clock: ManualClock) -> None:
    fail(breaker)
    assert breaker.snapshot().open_count == 1

    clock.advance(5.0)

    assert breaker.snapshot().open_count == 0
    assert not breaker.should_pause_for_recovery(1)
    assert breaker.state("t") is OPEN


def test_a_half_open_circuit_counts_as_open_while_its_slots_are_taken(
    breaker: CircuitBreaker, clock: ManualClock
) -> None:
    open_then_wait(breaker, clock)
    permit = breaker.admit("t")
    assert breaker.snapshot().open_circuits == ("t",)

    permit.release()

    assert breaker.snapshot().open_circuits == ()
    assert breaker.state("t") is HALF_OPEN


def test_metrics_count_what_circuits_did(breaker: CircuitBreaker, clock: ManualClock) -> None:
    assert breaker.metrics() == BreakerMetrics(opened=0, half_opened=0, closed=0, refused=0)
    for tool in "ab":
        fail(breaker, tool)
        breaker.allow_request(tool)
    clock.advance(5.0)
    breaker.admit("a").succeed()
    breaker.admit("b").fail()
    breaker.allow_request("b")

    assert breaker.metrics() == BreakerMetrics(opened=3, half_opened=2, closed=1, refused=3)


# --- transitions ---


def test_every_transition_is_told_with_the_tool_and_its_diagnostics(clock: ManualClock) -> None:
    told: list[tuple[object, ...]] = []
    breaker = steady(clock, on_transition=lambda *args: told.append(args))

    open_then_wait(breaker, clock)
    breaker.admit("t").succeed()

    assert [args[:3] for args in told] == [("t", CLOSED, OPEN), ("t", OPEN, HALF_OPEN), ("t", HALF_OPEN, CLOSED)]
    diagnostics = told[0][3]
    assert isinstance(diagnostics, CircuitDiagnostics)
    assert (diagnostics.tool, diagnostics.state, diagnostics.remaining_backoff) == ("t", OPEN, 5.0)


def test_a_transition_is_told_also_where_no_permit_is_kept(clock: ManualClock) -> None:
    told: list[tuple[object, ...]] = []
    breaker = steady(clock, on_transition=lambda *args: told.append(args[1:3]))

    open_then_wait(breaker, clock)
    breaker.allow_request("t")
    breaker.record_success("t")

    assert told == [(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, CLOSED)]


def test_controls_are_told_too_unless_nothing_changes(clock: ManualClock) -> None:
    told: list[tuple[object, ...]] = []
    breaker = steady(clock, on_transition=lambda *args: told.append(args[1:3]))

    breaker.force_open("t")
    breaker.force_open("t")
    breaker.force_closed("t")
    breaker.auto("t")
    fail(breaker)
    breaker.reset("t")
    breaker.reset("t")

    assert told == [(CLOSED, OPEN), (OPEN, CLOSED), (CLOSED, OPEN), (OPEN, CLOSED)]


def test_an_on_transition_that_raises_is_logged_and_never_raised(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def on_transition(*_: object) -> None:
        raise RuntimeError("listener is broken")

    breaker = steady(clock, on_transition=on_transition)
    with caplog.at_level(logging.ERROR, logger="holdfast"):
        fail(breaker, "t\n")

    assert breaker.state("t\n") is OPEN
    assert "on_transition failed for t\\n" in caplog.text
    assert "listener is broken" in caplog.text


def test_on_transition_is_called_outside_every_lock(clock: ManualClock) -> None:
    breaker: CircuitBreaker
    seen: list[tuple[CircuitState, CircuitState, int]] = []

    def on_transition(tool: str, old: CircuitState, new: CircuitState, _: CircuitDiagnostics) -> None:
        seen.append((old, new, breaker.snapshot().open_count))
        breaker.metrics()
        breaker.record_failure("another")
        if new is OPEN:
            breaker.reset(tool)

    breaker = steady(clock, on_transition=on_transition)
    fail(breaker)

    assert seen == [(CLOSED, OPEN, 1), (OPEN, CLOSED, 0)]
    assert breaker.state("t") is CLOSED


def test_on_transition_may_use_the_breaker_from_another_thread(clock: ManualClock) -> None:
    def on_transition(tool: str, *_: object) -> None:
        thread = threading.Thread(target=breaker.diagnostics, args=(tool,), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        stuck.append(thread.is_alive())

    stuck: list[bool] = []
    breaker = steady(clock, on_transition=on_transition)
    fail(breaker)

    assert stuck == [False]


def test_what_changes_while_a_transition_is_told_is_told_after_it(clock: ManualClock) -> None:
    def on_transition(tool: str, _: CircuitState, new: CircuitState, __: CircuitDiagnostics) -> None:
        if new is OPEN:
            other = threading.Thread(target=breaker.force_closed, args=(tool,), daemon=True)
            other.start()
            other.join(PATIENCE)
        told.append(new)

    told: list[CircuitState] = []
    breaker = steady(clock, on_transition=on_transition)
    breaker.force_open("t")

    assert told == [OPEN, CLOSED]


def test_transitions_are_told_although_who_told_one_was_interrupted(clock: ManualClock) -> None:
    def on_transition(*args: Any) -> None:
        told.append(args[2])
        if len(told) == 1:
            raise KeyboardInterrupt

    told: list[CircuitState] = []
    breaker = steady(clock, on_transition=on_transition)
    with pytest.raises(KeyboardInterrupt):
        breaker.force_open("t")
    breaker.reset("t")

    assert told == [OPEN, CLOSED]


def test_an_interrupt_while_it_is_told_that_a_probe_may_go_gives_the_probe_back(clock: ManualClock) -> None:
    def on_transition(tool: str, old: CircuitState, new: CircuitState, diagnostics: CircuitDiagnostics) -> None:
        if new is CircuitState.HALF_OPEN:
            raise KeyboardInterrupt

    breaker = steady(clock, on_transition=on_transition)
    fail(breaker)
    clock.advance(5.0)

    with pytest.raises(KeyboardInterrupt):
        breaker.admit("t")

    assert breaker.diagnostics("t").probes_in_flight == 0
    assert breaker.admit("t")


def test_transitions_are_told_wherever_an_interrupt_came_while_one_was_told(clock: ManualClock) -> None:
    at, struck = 0, True
    while struck:
        told: list[CircuitState] = []
        breaker = steady(clock, on_transition=lambda _, __, new, ___, told=told: told.append(new))

        struck = interrupted_at(at, CircuitBreaker._report_all, partial(breaker.force_open, "t"))
        breaker.reset("t")

        assert told[-1] is CLOSED
        at += 1
    assert at > 3


def test_a_forked_child_tells_transitions_although_a_thread_of_its_parent_was_telling_one(clock: ManualClock) -> None:
    def on_transition(_: str, __: CircuitState, new: CircuitState, ___: CircuitDiagnostics) -> None:
        if new is OPEN:
            telling.set()
            leave.wait(PATIENCE)
        told.append(new)

    telling, leave = threading.Event(), threading.Event()
    told: list[CircuitState] = []
    breaker = steady(clock, on_transition=on_transition)
    parents = threading.Thread(target=breaker.force_open, args=("t",), daemon=True)
    parents.start()
    assert telling.wait(PATIENCE)
    breaker.after_fork()
    breaker.force_closed("t")
    in_child = list(told)
    leave.set()
    parents.join(PATIENCE)

    assert in_child == [CLOSED]


# --- bounded memory ---


def test_a_clean_success_of_a_new_name_makes_no_entry(breaker: CircuitBreaker) -> None:
    for n in range(100):
        breaker.admit(f"a{n}").succeed()
        breaker.record_success(f"b{n}")
        breaker.allow_request(f"c{n}")
        with breaker.admit(f"d{n}"):
            pass
        breaker.admit(f"e{n}").release()

    assert names(breaker) == []


def test_a_failure_that_does_not_trip_makes_no_entry(breaker: CircuitBreaker) -> None:
    breaker.admit("a").fail(ErrorCategory.INVALID_PARAMETERS)
    breaker.record_failure("b", ErrorCategory.AUTHENTICATION)

    assert names(breaker) == []


@pytest.mark.parametrize(("threshold", "number"), [(7, 50_000), (1, 20_000)])
def test_hostile_names_stay_within_max_tools(clock: ManualClock, threshold: int, number: int) -> None:
    breaker = steady(clock, failure_threshold=threshold, max_tools=1000)

    for n in range(number):
        breaker.record_failure(f"hostile-{n}")

    assert 900 < len(names(breaker)) <= 1000


def test_hostile_names_do_not_drive_out_a_circuit_that_is_open(clock: ManualClock) -> None:
    breaker = steady(clock, max_tools=100)
    fail(breaker, "down")
    breaker.force_open("held open")
    breaker.force_closed("held closed")

    for n in range(5000):
        breaker.record_failure(f"hostile-{n}")

    assert {"down", "held open", "held closed"} <= set(names(breaker))
    assert breaker.snapshot().open_circuits == ("down", "held open")


def test_the_least_recently_used_healthy_circuit_goes_first(clock: ManualClock) -> None:
    breaker = steady(clock, max_tools=3)
    fail(breaker, "open")
    breaker.record_failure("old")
    breaker.record_failure("fresh")
    breaker.record_failure("old")

    breaker.record_failure("new")

    assert names(breaker) == ["new", "old", "open"]


def test_asking_for_a_calm_circuit_is_a_use_of_it(clock: ManualClock) -> None:
    breaker = steady(clock, max_tools=2)
    for tool in ("busy", "idle"):
        breaker.record_failure(tool)
        breaker.record_success(tool)

    breaker.admit("busy").succeed()
    breaker.record_failure("new")

    assert names(breaker) == ["busy", "new"]


def test_asking_for_a_circuit_that_counts_failures_is_a_use_of_it(clock: ManualClock) -> None:
    breaker = steady(clock, max_tools=2)
    breaker.record_failure("busy")
    breaker.record_failure("idle")

    breaker.admit("busy")
    breaker.record_failure("new")

    assert names(breaker) == ["busy", "new"]


def test_where_no_circuit_is_healthy_the_least_recently_used_automatic_one_goes(clock: ManualClock) -> None:
    breaker = steady(clock, max_tools=3, failure_threshold=1)
    breaker.force_open("held")
    breaker.record_failure("older")
    breaker.record_failure("newer")

    breaker.record_failure("new")

    assert names(breaker) == ["held", "new", "newer"]


def test_where_all_circuits_are_held_by_hand_the_least_recently_used_goes(clock: ManualClock) -> None:
    breaker = steady(clock, max_tools=2)
    breaker.force_open("older")
    breaker.force_open("newer")

    breaker.force_open("new")

    assert names(breaker) == ["new", "newer"]


def test_an_evicted_circuit_made_again_matches_no_old_permit(clock: ManualClock) -> None:
    breaker = steady(clock, max_tools=1, failure_threshold=2)
    breaker.record_failure("t")
    old = [breaker.admit("t") for _ in range(2)]
    breaker.record_failure("other")
    breaker.record_failure("t")
    assert names(breaker) == ["t"]

    for permit in old:
        permit.fail()

    assert breaker.diagnostics("t").failure_count == 1


def test_whoever_holds_an_evicted_circuit_can_see_it_and_change_nothing(clock: ManualClock) -> None:
    told: list[object] = []
    breaker = steady(clock, max_tools=1, failure_threshold=2, on_transition=lambda *args: told.append(args))
    held = breaker.circuit("t")
    permits = [breaker.admit("t") for _ in range(2)]
    breaker.record_failure("other")

    for permit in permits:
        permit.fail()

    assert held.evicted
    assert not held.calm
    assert told == []


def test_an_evicted_circuit_made_again_matches_no_permit_of_its_first_calls(clock: ManualClock) -> None:
    breaker = steady(clock, max_tools=1, failure_threshold=3)
    old = [breaker.admit("t") for _ in range(3)]
    old[0].fail()
    breaker.record_failure("other")
    breaker.record_failure("t")

    old[1].fail()
    old[2].succeed()

    assert breaker.diagnostics("t").failure_count == 1


def test_a_first_call_from_before_an_eviction_makes_no_circuit(clock: ManualClock) -> None:
    breaker = steady(clock, max_tools=1)
    old = breaker.admit("t")
    breaker.record_failure("a")
    breaker.record_failure("b")

    old.fail()

    assert names(breaker) == ["b"]


def test_refusals_of_an_evicted_circuit_stay_in_the_metrics(clock: ManualClock) -> None:
    breaker = steady(clock, max_tools=1, failure_threshold=1)
    breaker.record_failure("t")
    breaker.allow_request("t")

    breaker.record_failure("other")

    assert breaker.metrics() == BreakerMetrics(opened=2, half_opened=0, closed=0, refused=1)


def test_refusals_of_a_circuit_that_is_evicted_while_the_metrics_are_read_count_once(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker = steady(clock, max_tools=1, failure_threshold=1)
    breaker.record_failure("t")
    breaker.allow_request("t")
    lock = breaker._lock

    class Late:
        """The lock, but before the first caller has it, another thread makes a circuit."""

        def __enter__(self) -> None:
            monkeypatch.setattr(breaker, "_lock", lock)
            breaker.circuit("other")
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    monkeypatch.setattr(breaker, "_lock", Late())

    assert breaker.metrics().refused == 1
    assert breaker.metrics().refused == 1


def test_a_tool_may_have_settings_of_its_own(breaker: CircuitBreaker) -> None:
    own = BreakerConfig(failure_threshold=1)

    circuit = breaker.circuit("t", own)
    assert breaker.circuit("t", BreakerConfig(failure_threshold=2)) is circuit
    assert circuit.config.failure_threshold == 2
    breaker.circuit("t", own)
    fail(breaker, "t", 1)

    assert breaker.state("t") is OPEN


def test_a_child_process_inherits_circuits_and_no_held_lock(breaker: CircuitBreaker) -> None:
    fail(breaker)
    circuit = breaker.circuit("t")
    breaker._lock.acquire()
    circuit._lock.acquire()

    breaker.after_fork()

    assert breaker.snapshot().open_circuits == ("t",)


# --- threads ---


def at_once(number: int, job: Callable[[int], T]) -> list[T]:
    """Run *job* in so many threads that begin together; answers in the order of the threads."""
    barrier = threading.Barrier(number)
    answers: dict[int, T] = {}

    def run(n: int) -> None:
        barrier.wait(PATIENCE)
        answers[n] = job(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[n] for n in range(number)]


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("round_", range(50))
def test_of_32_threads_after_the_wait_exactly_one_probes(
    breaker: CircuitBreaker, clock: ManualClock, round_: int
) -> None:
    open_then_wait(breaker, clock)

    passed = at_once(32, lambda _: breaker.allow_request("t"))

    assert sum(passed) == 1
    assert breaker.diagnostics("t").denied_requests == 31


def test_nobody_slips_in_while_a_request_becomes_the_probe(breaker: CircuitBreaker, clock: ManualClock) -> None:
    passed: list[bool] = []
    thread = threading.Thread(target=lambda: passed.append(breaker.allow_request("t")))

    def intrude() -> None:
        circuit.on_mark = None
        thread.start()
        thread.join(0.05)  # it must not get further than the lock

    open_then_wait(breaker, clock)
    circuit = breaker.circuit("t")
    circuit.on_mark = intrude

    assert breaker.allow_request("t")
    thread.join()

    assert passed == [False]


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("round_", range(20))
def test_many_threads_failing_open_a_new_circuit_once_and_tell_it_once(clock: ManualClock, round_: int) -> None:
    told: list[tuple[object, ...]] = []
    breaker = steady(clock, on_transition=lambda *args: told.append(args[:3]))

    at_once(16, lambda _: breaker.record_failure("t"))

    assert told == [("t", CLOSED, OPEN)]
    assert breaker.diagnostics("t").times_opened == 1


@pytest.mark.usefixtures("hurried")
def test_each_transition_is_told_once_and_in_order_however_many_threads_make_them(clock: ManualClock) -> None:
    told: list[tuple[CircuitState, CircuitState]] = []
    breaker = steady(clock, on_transition=lambda _, old, new, __: told.append((old, new)), failure_threshold=1)

    def work(n: int) -> None:
        dice = random.Random(n)
        for _ in range(150):
            try:
                permit = breaker.admit("t")
            except CircuitOpen:
                dice.choice([breaker.reset, breaker.force_closed, breaker.auto])("t")
            else:
                dice.choice([permit.succeed, permit.fail, permit.release])()

    at_once(8, work)
    breaker.reset("t")

    metrics = breaker.metrics()
    assert metrics.opened == sum(new is OPEN for _, new in told)
    assert metrics.half_opened == sum(new is HALF_OPEN for _, new in told)
    assert metrics.closed == sum(new is CLOSED for _, new in told)
    assert metrics.opened > 0
    assert [old for old, _ in told] == [CLOSED, *(new for _, new in told[:-1])]


@pytest.mark.usefixtures("hurried")
def test_cancelled_probes_of_many_threads_give_every_slot_back(clock: ManualClock) -> None:
    breaker = steady(clock, half_open_probes=2)
    open_then_wait(breaker, clock)
    inside, most = [0], [0]
    lock = threading.Lock()

    def work(_: int) -> None:
        for _ in range(100):
            try:
                with breaker.admit("t"):
                    with lock:
                        inside[0] += 1
                        most[0] = max(most[0], inside[0])
                    with lock:
                        inside[0] -= 1
                    raise asyncio.CancelledError
            except (CircuitOpen, asyncio.CancelledError):
                pass

    at_once(8, work)

    assert most[0] <= 2
    assert breaker.diagnostics("t").probes_in_flight == 0
    assert breaker.state("t") is HALF_OPEN


@pytest.mark.usefixtures("hurried")
def test_hostile_names_from_many_threads_stay_within_max_tools() -> None:
    breaker = steady(ManualClock(), max_tools=50)

    def work(n: int) -> None:
        for i in range(150):
            breaker.admit(f"{n}-{i}").fail()
            breaker.record_failure(f"{i}")
            breaker.force_open(f"{n}-{i}")
            breaker.snapshot()

    at_once(4, work)

    assert len(names(breaker)) <= 50


@pytest.mark.usefixtures("hurried")
def test_refusals_of_many_threads_are_all_counted(breaker: CircuitBreaker) -> None:
    fail(breaker)

    def work(_: int) -> None:
        for _ in range(2000):
            breaker.allow_request("t")

    at_once(4, work)

    assert breaker.diagnostics("t").denied_requests == 8000
    assert breaker.metrics().refused == 8000


@pytest.mark.parametrize("config", [5, {"failure_threshold": 3}, "default"])
def test_settings_that_are_none_are_a_config_error(config: Any) -> None:
    with pytest.raises(ConfigError, match=r"config = .*: must be a BreakerConfig"):
        CircuitBreaker(config)
