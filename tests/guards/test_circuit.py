"""The circuit of one tool, told the time by the test: ladder, windows, rates, marks and settings."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.category import ErrorCategory
from holdfast.errors import ConfigError
from holdfast.guards import circuit as circuits
from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.circuit import Circuit, CircuitState, Grant
from holdfast.guards.window import SLICES, Window

FAILED = ErrorCategory.EXECUTION_ERROR
CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN
LADDER = [5.0, 10.0, 20.0, 40.0, 80.0, 120.0, 120.0]


def circuit(*, draw: float = 0.0, **settings: Any) -> Circuit:
    config = BreakerConfig(**{"jitter": 0.0, **settings})
    return Circuit(config, itertools.count(1), 0, lambda: draw)


def fail(it: Circuit, now: float, times: int = 1, **more: Any) -> None:
    for _ in range(times):
        it.settle(None, now, FAILED, **more)


def succeed(it: Circuit, now: float, times: int = 1, **more: Any) -> None:
    for _ in range(times):
        it.settle(None, now, **more)


def admitted(it: Circuit, now: float) -> Grant:
    answer = it.admit(now)
    assert isinstance(answer, Grant)
    return answer


def refused(it: Circuit, now: float) -> float:
    answer = it.admit(now)
    assert not isinstance(answer, Grant)
    return answer


def probe(it: Circuit, now: float) -> Grant:
    """Let a probe through and check that it is one."""
    answer = admitted(it, now)
    assert answer.probe is not None
    return answer


# --- closed and open ---


def test_seven_failures_in_a_row_open_it() -> None:
    it = circuit()

    fail(it, 0.0, 6)
    assert it.state is CLOSED
    fail(it, 0.0)

    assert it.state is OPEN


def test_a_success_sets_the_failure_count_back_to_nothing() -> None:
    it = circuit()
    fail(it, 0.0, 6)

    succeed(it, 0.0)
    fail(it, 0.0, 6)

    assert it.state is CLOSED
    assert it.look(0.0).failures == 6


def test_a_success_makes_it_forget_the_last_error() -> None:
    it = circuit()
    fail(it, 0.0)
    assert it.look(0.0).last_category is FAILED

    succeed(it, 0.0)

    assert it.look(0.0).last_category is None


@pytest.mark.parametrize("category", [category for category in ErrorCategory if not category.trips_breaker])
def test_an_outcome_that_does_not_trip_changes_nothing(category: ErrorCategory) -> None:
    it = circuit()
    fail(it, 0.0, 6)
    before = it.look(0.0)

    for _ in range(20):
        it.settle(admitted(it, 0.0), 0.0, category)

    assert it.look(0.0) == before


def test_trips_decides_what_counts() -> None:
    it = circuit(trips={"rate_limit"})

    fail(it, 0.0, 20)
    assert it.state is CLOSED
    for _ in range(7):
        it.settle(None, 0.0, ErrorCategory.RATE_LIMIT)

    assert it.state is OPEN
    assert it.last_category is ErrorCategory.RATE_LIMIT


def test_without_anything_that_trips_it_never_opens() -> None:
    it = circuit(trips=())

    fail(it, 0.0, 100)

    assert it.state is CLOSED


def test_it_refuses_until_the_wait_is_over_and_says_how_long() -> None:
    it = circuit()
    fail(it, 100.0, 7)

    assert refused(it, 100.0) == 5.0
    assert refused(it, 104.5) == 0.5
    assert admitted(it, 105.0).probe is not None


@given(opened=st.floats(0, 1e9), after=st.floats(0, 4.999))
def test_a_refused_request_that_waits_as_told_is_admitted(opened: float, after: float) -> None:
    it = circuit()
    fail(it, opened, 7)

    now = opened + after
    wait = refused(it, now)

    assert admitted(it, now + wait).probe is not None


# --- the ladder ---


def test_the_wait_doubles_with_each_failed_probe_up_to_the_longest() -> None:
    it = circuit()
    now, waits = 0.0, []
    fail(it, now, 7)
    for _ in LADDER:
        waits.append(refused(it, now))
        now += waits[-1]
        it.settle(probe(it, now), now, FAILED)

    assert waits == LADDER


@pytest.mark.parametrize(
    ("factor", "waits"),
    [
        (1.0, [5.0, 5.0, 5.0]),
        (3.0, [5.0, 15.0, 45.0, 120.0]),
        (3, [5.0, 15.0, 45.0, 120.0]),
        (math.inf, [5.0, 120.0, 120.0]),
        (math.nan, [5.0, 120.0, 120.0]),
        (1e308, [5.0, 120.0, 120.0]),
    ],
)
def test_the_factor_makes_the_ladder(factor: float, waits: list[float]) -> None:
    config = BreakerConfig(backoff_factor=factor)

    assert [config.backoff(rung) for rung in range(len(waits))] == waits


@pytest.mark.parametrize("factor", [2, 2.0, 1e200, math.inf])
def test_a_ladder_that_overflows_ends_at_the_longest_wait(factor: float) -> None:
    config = BreakerConfig(backoff_factor=factor)

    assert config.backoff(100_000) == 120.0


@given(
    least=st.floats(0.001, 1e6),
    more=st.floats(0, 1e6),
    factor=st.floats(1, 1e300) | st.integers(1, 100),
    rung=st.integers(0, 3000),
)
def test_a_wait_is_never_outside_its_bounds_and_never_shrinks(
    least: float, more: float, factor: float, rung: int
) -> None:
    config = BreakerConfig(min_backoff=least, max_backoff=least + more, backoff_factor=factor)

    assert least <= config.backoff(rung) <= config.backoff(rung + 1) <= least + more


@pytest.mark.parametrize(("draw", "wait"), [(0.0, 5.0), (0.5, 5.25), (1.0, 5.5)])
def test_jitter_lengthens_a_wait_by_up_to_its_share_and_the_nominal_wait_stays(draw: float, wait: float) -> None:
    it = circuit(jitter=0.1, draw=draw)

    fail(it, 0.0, 7)

    assert refused(it, 0.0) == pytest.approx(wait)
    assert it.look(0.0).backoff == 5.0


def test_a_flapping_tool_continues_the_ladder() -> None:
    it = circuit(failure_threshold=1)
    now, waits = 0.0, []
    for _ in LADDER:
        fail(it, now)
        waits.append(refused(it, now))
        now += waits[-1]
        it.settle(probe(it, now), now)
        now += 119.0

    assert waits == LADDER


def test_a_circuit_that_opens_long_after_it_closed_starts_the_ladder_anew() -> None:
    it = circuit(failure_threshold=1)
    fail(it, 0.0)
    it.settle(probe(it, 5.0), 5.0)

    fail(it, 5.0 + 120.0 + 0.001)

    assert it.look(5.0 + 120.001).backoff == 5.0


def test_the_ladder_continues_up_to_the_last_moment() -> None:
    it = circuit(failure_threshold=1)
    fail(it, 0.0)
    it.settle(probe(it, 5.0), 5.0)

    fail(it, 125.0)

    assert it.look(125.0).backoff == 10.0


def test_a_reset_forgets_that_the_circuit_has_just_closed() -> None:
    it = circuit(failure_threshold=1)
    fail(it, 0.0)
    it.settle(probe(it, 5.0), 5.0)

    it.reset()
    fail(it, 6.0)

    assert refused(it, 6.0) == 5.0


def test_a_reset_forgets_the_ladder() -> None:
    it = circuit(failure_threshold=1)
    fail(it, 0.0)
    it.settle(probe(it, 5.0), 5.0, FAILED)

    it.reset()
    fail(it, 6.0)

    assert refused(it, 6.0) == 5.0


# --- half open ---


def test_as_many_probes_pass_as_there_are_slots() -> None:
    it = circuit(half_open_probes=3)
    fail(it, 0.0, 7)

    for _ in range(3):
        probe(it, 5.0)

    assert refused(it, 6.0) == 29.0
    assert it.look(6.0).probes == 3


def test_a_probe_that_comes_back_makes_room_for_another() -> None:
    it = circuit(half_open_probes=2, successes_to_close=9)
    fail(it, 0.0, 7)
    first, second = probe(it, 5.0), probe(it, 6.0)

    it.settle(first, 7.0)
    probe(it, 8.0)
    it.release(second)
    probe(it, 9.0)

    assert refused(it, 10.0) == 28.0


def test_so_many_successes_close_it_as_it_takes() -> None:
    it = circuit(successes_to_close=3)
    fail(it, 0.0, 7)
    for now in (5.0, 6.0):
        it.settle(probe(it, now), now)
        assert it.state is HALF_OPEN

    it.settle(probe(it, 7.0), 7.0)

    assert it.state is CLOSED


def test_a_failed_probe_makes_the_successes_before_it_void() -> None:
    it = circuit(successes_to_close=2)
    fail(it, 0.0, 7)
    it.settle(probe(it, 5.0), 5.0)
    it.settle(probe(it, 5.0), 5.0, FAILED)

    it.settle(probe(it, 15.0), 15.0)

    assert it.state is HALF_OPEN


def test_a_failed_probe_makes_the_answers_of_the_others_void() -> None:
    it = circuit(half_open_probes=2)
    fail(it, 0.0, 7)
    first, second = probe(it, 5.0), probe(it, 5.0)

    it.settle(first, 5.0, FAILED)
    it.settle(second, 5.0)

    assert it.state is OPEN
    assert refused(it, 5.0) == 10.0


def test_a_circuit_that_opens_again_has_all_its_slots_for_the_next_probes() -> None:
    it = circuit(half_open_probes=2)
    fail(it, 0.0, 7)
    first, _ = probe(it, 5.0), probe(it, 5.0)
    it.settle(first, 5.0, FAILED)

    probe(it, 15.0)
    probe(it, 15.0)

    assert it.look(15.0).probes == 2


def test_a_grant_of_before_the_outage_answers_no_probe() -> None:
    it = circuit()
    early = admitted(it, 0.0)
    fail(it, 0.0, 7)
    probe(it, 5.0)

    it.settle(early, 6.0)

    assert it.look(6.0).state is HALF_OPEN
    assert it.look(6.0).probes == 1


def test_a_probe_of_an_earlier_half_open_answers_none_of_now() -> None:
    it = circuit()
    fail(it, 0.0, 7)
    early = probe(it, 5.0)
    it.force(OPEN)
    it.force(None)
    probe(it, 10.0)

    it.settle(early, 10.0)

    assert it.look(10.0).state is HALF_OPEN
    assert it.look(10.0).probes == 1


def test_the_answer_of_an_old_probe_is_not_counted_when_the_circuit_is_closed() -> None:
    it = circuit(failure_threshold=1, half_open_probes=2)
    fail(it, 0.0)
    first, second = probe(it, 5.0), probe(it, 5.0)
    it.settle(first, 5.0)

    it.settle(second, 5.0, FAILED)

    assert it.state is CLOSED


# --- windows and rates ---


def test_a_failure_older_than_the_window_does_not_count_each_by_itself() -> None:
    it = circuit(failure_threshold=3, window=10.0)
    fail(it, 0.0)
    fail(it, 5.0)

    fail(it, 11.0)
    assert it.state is CLOSED
    assert it.look(11.0).failures == 2
    fail(it, 12.0)

    assert it.state is OPEN


def test_a_failure_as_old_as_the_window_does_not_count() -> None:
    it = circuit(failure_threshold=2, window=10.0)
    fail(it, 0.0)

    fail(it, 10.0)

    assert it.state is CLOSED


def test_failures_that_have_grown_old_are_not_shown() -> None:
    it = circuit(window=10.0)
    fail(it, 0.0)
    fail(it, 5.0)

    assert it.look(9.0).failures == 2
    assert it.look(10.0).failures == 1
    assert it.look(15.0).failures == 0


def test_a_threshold_beyond_memory_costs_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuits, "MOST_SIGNS", 10)
    it = circuit(failure_threshold=1000)

    fail(it, 0.0, 50)

    assert it.look(0.0).failures == 10


def test_a_failure_rate_opens_it_though_the_failures_are_not_in_a_row() -> None:
    it = circuit(failure_rate=0.5, minimum_calls=10)
    for now in range(4):
        fail(it, now)
        succeed(it, now)
    succeed(it, 4.0)

    fail(it, 5.0)

    assert it.state is OPEN


def test_a_failure_rate_below_the_bound_leaves_it_closed() -> None:
    it = circuit(failure_rate=0.5, minimum_calls=10)
    for now in range(100):
        succeed(it, now, 2)
        fail(it, now)

    assert it.state is CLOSED


def test_a_rate_is_judged_from_the_minimum_of_calls_on() -> None:
    it = circuit(failure_rate=0.1, minimum_calls=10, failure_threshold=100)

    fail(it, 0.0, 9)
    assert it.state is CLOSED
    fail(it, 0.0)

    assert it.state is OPEN


def test_a_window_that_holds_fewer_calls_than_the_minimum_is_judged_when_it_is_full() -> None:
    it = circuit(failure_rate=0.5, window_calls=4, minimum_calls=20, failure_threshold=100)

    fail(it, 0.0, 3)
    assert it.state is CLOSED
    fail(it, 0.0)

    assert it.state is OPEN


def test_a_rate_forgets_what_is_older_than_the_window() -> None:
    it = circuit(failure_rate=0.5, minimum_calls=4, window=100.0, failure_threshold=100)
    succeed(it, 0.0, 50)

    fail(it, 50.0, 3)
    assert it.state is CLOSED
    fail(it, 101.0)

    assert it.state is OPEN


def test_a_rate_over_the_last_calls_forgets_the_calls_before() -> None:
    it = circuit(failure_rate=0.5, window_calls=10, minimum_calls=10, failure_threshold=100)
    succeed(it, 0.0, 1000)

    fail(it, 1.0, 4)
    assert it.state is CLOSED
    fail(it, 1.0)

    assert it.state is OPEN


def test_a_rate_counts_the_successes_that_were_only_noted() -> None:
    it = circuit(failure_rate=0.5, minimum_calls=4, failure_threshold=100)
    it.succeeded_many(0.0, 5)

    fail(it, 0.0, 4)

    assert it.state is CLOSED
    assert it.window is not None
    assert (it.window.calls, it.window.failures) == (9, 4)


@pytest.mark.parametrize("break_it", [lambda it: fail(it, 0.0, 7), lambda it: it.force(CLOSED)], ids=["open", "forced"])
def test_noted_successes_count_for_a_circuit_that_judges_by_itself_only(break_it: Callable[[Circuit], None]) -> None:
    it = circuit(failure_rate=1.0, minimum_calls=100)
    break_it(it)
    assert it.window is not None
    before = it.window.calls

    it.succeeded_many(0.0, 5)

    assert it.window.calls == before


def test_noted_successes_are_nothing_to_a_circuit_without_rates() -> None:
    it = circuit()

    it.succeeded_many(0.0, 5)

    assert it.window is None


@pytest.mark.parametrize("outcome", [None, FAILED, ErrorCategory.TIMEOUT])
def test_slow_calls_open_it_whether_they_succeed_or_fail(outcome: ErrorCategory | None) -> None:
    it = circuit(slow_call=2.0, slow_call_rate=0.5, minimum_calls=4, failure_threshold=100)
    succeed(it, 0.0, 2, duration=0.1)

    it.settle(None, 0.0, outcome, duration=2.0)
    assert it.state is CLOSED
    it.settle(None, 0.0, outcome, duration=3.0)

    assert it.state is OPEN


def test_slow_calls_below_the_rate_leave_it_closed() -> None:
    it = circuit(slow_call=2.0, slow_call_rate=0.5, minimum_calls=4)

    for now in range(50):
        succeed(it, now, 2, duration=1.9)
        succeed(it, now, duration=5.0)

    assert it.state is CLOSED


def test_failures_that_are_not_slow_leave_a_rate_of_slow_calls_alone() -> None:
    it = circuit(slow_call=2.0, slow_call_rate=0.5, minimum_calls=4, failure_threshold=100)

    for now in range(50):
        it.settle(None, now, FAILED, duration=0.1)

    assert it.state is CLOSED


def test_slow_calls_alone_open_nothing() -> None:
    it = circuit(slow_call=2.0, failure_rate=0.5, minimum_calls=4)

    succeed(it, 0.0, 50, duration=5.0)

    assert it.state is CLOSED


def test_a_circuit_that_closes_judges_the_rate_from_the_start() -> None:
    it = circuit(failure_rate=0.5, minimum_calls=4, failure_threshold=100)
    fail(it, 0.0, 4)
    it.settle(probe(it, 5.0), 5.0)

    fail(it, 5.0, 3)

    assert it.state is CLOSED


# --- distinct arguments ---


def test_with_distinct_arguments_the_same_arguments_failing_are_one_sign() -> None:
    it = circuit(distinct_arguments=True, failure_threshold=3)

    fail(it, 0.0, 50, sign=b"stuck")

    assert it.state is CLOSED
    assert it.look(0.0).failures == 1


def test_with_distinct_arguments_different_ones_failing_open_it() -> None:
    it = circuit(distinct_arguments=True, failure_threshold=3)

    for sign in (b"one", b"two", b"one"):
        fail(it, 0.0, sign=sign)
    assert it.state is CLOSED
    fail(it, 0.0, sign=b"three")

    assert it.state is OPEN


def test_with_distinct_arguments_a_repeated_failure_stays_fresh() -> None:
    it = circuit(distinct_arguments=True, failure_threshold=3, window=10.0)
    fail(it, 0.0, sign=b"one")
    fail(it, 4.0, sign=b"two")

    fail(it, 8.0, sign=b"one")
    fail(it, 13.0, sign=b"three")

    assert it.state is OPEN


def test_failures_whose_arguments_nobody_knows_are_each_a_sign() -> None:
    it = circuit(distinct_arguments=True, failure_threshold=3)

    fail(it, 0.0, 3)

    assert it.state is OPEN


def test_without_distinct_arguments_the_same_arguments_failing_count_each_time() -> None:
    it = circuit(failure_threshold=3)

    fail(it, 0.0, 3, sign=b"same")

    assert it.state is OPEN


# --- held by hand ---


def test_held_open_it_refuses_without_end() -> None:
    it = circuit()

    it.force(OPEN)

    assert refused(it, 1e9) == math.inf
    assert it.look(1e9).remaining is None


def test_held_closed_it_passes_everything_and_counts_nothing() -> None:
    it = circuit()
    it.force(CLOSED)

    for _ in range(20):
        it.settle(admitted(it, 0.0), 0.0, FAILED)
    it.force(None)

    assert it.look(0.0).failures == 0


@pytest.mark.parametrize("held", [OPEN, CLOSED])
def test_outcomes_that_come_while_it_is_held_do_not_change_what_it_was(held: CircuitState) -> None:
    it = circuit()
    fail(it, 0.0, 3)
    before = it.look(0.0)
    it.force(held)

    fail(it, 0.0, 20)
    succeed(it, 0.0)
    it.force(None)

    assert it.look(0.0) == before


@pytest.mark.parametrize("held", [OPEN, CLOSED])
def test_an_outcome_of_before_it_was_held_is_void(held: CircuitState) -> None:
    it = circuit(failure_threshold=1)
    early = admitted(it, 0.0)
    it.force(held)
    it.force(None)

    it.settle(early, 0.0, FAILED)

    assert it.state is CLOSED


def test_held_closed_an_open_circuit_passes_requests_that_are_no_probes() -> None:
    it = circuit()
    fail(it, 0.0, 7)

    it.force(CLOSED)

    assert admitted(it, 1.0).probe is None


def test_given_back_it_is_as_open_as_it_was() -> None:
    it = circuit()
    fail(it, 0.0, 7)
    it.force(CLOSED)

    it.force(None)

    assert refused(it, 1.0) == 4.0


def test_giving_back_what_nobody_holds_does_not_free_a_probe() -> None:
    it = circuit()
    fail(it, 0.0, 7)
    grant = probe(it, 5.0)

    it.force(None)

    assert refused(it, 6.0) == 29.0
    it.settle(grant, 6.0)
    assert it.state is CLOSED


def test_a_reset_ends_the_holding() -> None:
    it = circuit()
    it.force(OPEN)

    it.reset()

    assert it.look(0.0).state is CLOSED
    assert admitted(it, 0.0)


# --- marks for those who do not ask ---


def test_it_is_calm_while_there_is_nothing_to_ask_or_tell() -> None:
    it = circuit()
    seen = [it.calm]
    for step in (
        lambda: fail(it, 0.0),
        lambda: succeed(it, 0.0),
        lambda: fail(it, 0.0, 7),
        lambda: it.admit(5.0),
        lambda: succeed(it, 5.0),
        lambda: it.force(OPEN),
        lambda: it.force(CLOSED),
        lambda: it.force(None),
        it.evict,
    ):
        step()
        seen.append(it.calm)

    assert seen == [True, False, True, False, False, True, False, True, True, False]


def test_it_is_shut_until_its_wait_is_over() -> None:
    it = circuit()
    seen = [it.shut_until]
    for step in (
        lambda: fail(it, 0.0, 7),
        lambda: it.force(OPEN),
        lambda: it.force(None),
        lambda: it.admit(5.0),
        lambda: succeed(it, 5.0),
    ):
        step()
        seen.append(it.shut_until)

    assert seen == [-math.inf, 5.0, math.inf, 5.0, -math.inf, -math.inf]


def test_whoever_rests_on_its_marks_hears_when_they_may_have_changed() -> None:
    it = circuit(failure_threshold=2)
    seen: list[bool] = []
    it.on_mark = lambda: seen.append(it.calm)

    fail(it, 0.0)
    succeed(it, 0.0)
    it.evict()

    assert seen == [False, True, False]


def test_who_turns_a_request_away_says_when_to_come_back() -> None:
    it = circuit()
    fail(it, 0.0, 7)

    assert it.turn_away(2.0) == 3.0
    assert it.denied == 1


def test_who_turns_a_request_away_names_no_time_that_falls_short() -> None:
    it = circuit()
    fail(it, 0.22, 7)
    assert 1.1 + (5.22 - 1.1) < 5.22  # by the last digit

    wait = it.turn_away(1.1)

    assert wait == pytest.approx(4.12)
    assert wait is not None
    assert admitted(it, 1.1 + wait)


def test_a_request_turned_away_while_the_circuit_was_reset_may_come_back_at_once() -> None:
    it = circuit()
    fail(it, 0.0, 7)
    it.reset()

    assert it.turn_away(1.0) == 0.0


def test_who_turns_a_request_away_from_a_circuit_held_open_names_no_time() -> None:
    it = circuit()
    it.force(OPEN)

    assert it.turn_away(2.0) == math.inf


def test_requests_turned_away_do_not_pile_up() -> None:
    it = circuit()
    fail(it, 0.0, 7)

    for _ in range(10_000):
        it.turn_away(1.0)

    assert len(it.turned_away) < 1000
    assert it.denied == 10_000


def test_the_last_refusal_is_the_last_whoever_refused() -> None:
    it = circuit()
    fail(it, 0.0, 7)
    it.turn_away(4.0)
    probe(it, 5.0)

    refused(it, 6.0)

    assert it.look(7.0).last_denied == 6.0
    assert it.look(7.0).denied == 2


def test_the_last_refusal_is_the_last_of_those_turned_away() -> None:
    it = circuit()
    fail(it, 0.0, 7)
    refused(it, 1.0)

    it.turn_away(2.0)
    it.turn_away(3.0)

    assert it.look(3.0).last_denied == 3.0


def test_each_change_of_state_is_noted_once() -> None:
    it = circuit()
    fail(it, 0.0, 7)
    it.settle(probe(it, 5.0), 5.0)
    it.force(CLOSED)
    it.force(OPEN)
    it.force(OPEN)
    it.reset()
    it.reset()

    assert list(it.moves) == [(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, CLOSED), (CLOSED, OPEN), (OPEN, CLOSED)]


def test_an_evicted_circuit_takes_no_answer_to_what_it_granted() -> None:
    it = circuit(failure_threshold=1)
    grant = admitted(it, 0.0)

    it.evict()
    it.settle(grant, 0.0, FAILED)

    assert it.state is CLOSED


def test_an_evicted_circuit_takes_no_answer_of_a_probe() -> None:
    it = circuit()
    fail(it, 0.0, 7)
    grant = probe(it, 5.0)

    it.evict()
    it.settle(grant, 5.0)

    assert it.state is HALF_OPEN


# --- other settings in mid-life ---


def test_other_settings_keep_state_counts_and_a_running_wait() -> None:
    it = circuit()
    fail(it, 0.0, 7)

    it.configure(BreakerConfig(failure_threshold=2, min_backoff=60.0, jitter=0.0))

    assert refused(it, 1.0) == 4.0
    it.settle(probe(it, 5.0), 5.0, FAILED)
    assert refused(it, 5.0) == 120.0


def test_a_lower_threshold_is_seen_at_the_next_failure() -> None:
    it = circuit()
    fail(it, 0.0, 5)

    it.configure(BreakerConfig(failure_threshold=3))
    assert it.state is CLOSED
    fail(it, 0.0)

    assert it.state is OPEN


def test_other_settings_with_the_same_window_keep_what_it_holds() -> None:
    it = circuit(failure_rate=0.5)
    succeed(it, 0.0, 5)
    window = it.window

    it.configure(BreakerConfig(failure_rate=0.9))

    assert it.window is window


@pytest.mark.parametrize("settings", [{"failure_rate": 0.5, "window": 10.0}, {}])
def test_settings_that_come_and_go_leave_a_window_what_it_holds(settings: dict[str, Any]) -> None:
    it = circuit(failure_rate=0.5)
    succeed(it, 0.0, 5)

    it.configure(BreakerConfig(**settings))
    it.configure(BreakerConfig(failure_rate=0.5))

    assert it.window is not None
    assert it.window.calls == 5


def test_a_shorter_window_forgets_what_is_too_old_for_it() -> None:
    it = circuit(failure_rate=0.5)
    succeed(it, 0.0, 5)

    it.configure(BreakerConfig(failure_rate=0.5, window=10.0))
    succeed(it, 10.0)

    assert it.window is not None
    assert it.window.calls == 1


def test_a_window_of_the_last_calls_starts_empty() -> None:
    it = circuit(failure_rate=0.5)
    succeed(it, 0.0, 5)

    it.configure(BreakerConfig(failure_rate=0.5, window_calls=9))

    assert it.window is not None
    assert it.window.calls == 0


def test_a_child_process_does_not_inherit_a_held_lock() -> None:
    it = circuit()
    it._lock.acquire()

    it.after_fork()

    assert admitted(it, 0.0)


# --- the window of rates, against a list of all calls ---


class WindowMachine(RuleBasedStateMachine):
    """Beside the window a list of every call; the window may drop a call early by a slice, never keep one late."""

    @initialize(most=st.none() | st.integers(1, 12), seconds=st.sampled_from([1.0, 10.0, 60.0]))
    def begin(self, most: int | None, seconds: float) -> None:
        self.most, self.seconds = most, seconds
        self.window = Window(seconds, most)
        self.calls: list[tuple[float, bool, bool]] = []
        self.now = 0.0

    @rule(share=st.floats(0, 0.6))
    def pass_time(self, share: float) -> None:
        self.now += share * self.seconds
        self.window.forget(self.now)

    @rule(failed=st.booleans(), slow=st.booleans())
    def one_call(self, failed: bool, slow: bool) -> None:
        self.window.add(self.now, 1, failures=failed, slow=slow)
        self.calls.append((self.now, failed, slow))

    @rule(number=st.integers(1, 15))
    def many_successes(self, number: int) -> None:
        self.window.add(self.now, number)
        self.calls += [(self.now, False, False)] * number

    @rule()
    def forget_everything(self) -> None:
        self.window.clear()
        self.calls = []

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        surely = self._last(self.seconds * (1 - 1 / SLICES))
        perhaps = self._last(self.seconds)
        for count, which in ((self.window.calls, None), (self.window.failures, 1), (self.window.slow, 2)):
            low, high = (sum(which is None or bool(call[which]) for call in calls) for calls in (surely, perhaps))
            assert low <= count <= high

    def _last(self, seconds: float) -> list[tuple[float, bool, bool]]:
        fresh = [call for call in self.calls if call[0] > self.now - seconds]
        return fresh if self.most is None else fresh[-self.most :]


TestTheWindowHoldsWhatAListHolds = WindowMachine.TestCase


def test_a_window_does_not_keep_one_entry_a_call() -> None:
    window = Window(300.0)

    for now in range(100_000):
        window.add(now / 100, 1, failures=now % 2)

    assert len(window._entries) <= SLICES + 1


# --- settings ---

HUGE = 10**400
NUMBERS = [
    "min_backoff",
    "max_backoff",
    "backoff_factor",
    "jitter",
    "probe_lease",
    "window",
    "failure_rate",
    "slow_call",
]
WHOLES = ["failure_threshold", "half_open_probes", "successes_to_close", "window_calls", "minimum_calls"]
BAD = [
    *[(name, math.nan) for name in NUMBERS if name != "backoff_factor"],  # it means the longest wait, as infinity does
    *[(name, value) for name in NUMBERS for value in (-math.inf, -1.0, HUGE, -HUGE, "5", True, [5.0])],
    *[(name, math.inf) for name in NUMBERS if name != "backoff_factor"],
    *[(name, value) for name in WHOLES for value in (math.nan, math.inf, 0, -1, HUGE, 1.0, 1.5, "5", True, [5])],
    ("min_backoff", 0.0),
    ("min_backoff", 121.0),
    ("max_backoff", 4.9),
    ("backoff_factor", 0.99),
    ("jitter", 1.01),
    ("probe_lease", 0.0),
    ("window", 0.0),
    ("failure_rate", 0.0),
    ("failure_rate", 1.01),
    ("slow_call", 0.0),
    ("distinct_arguments", 1),
    ("distinct_arguments", "yes"),
    ("trips", {"bogus"}),
    ("trips", {"cancelled"}),
    ("trips", {ErrorCategory.CANCELLED}),
    ("trips", [["network"]]),
    ("trips", {5}),
    ("trips", "network"),
    ("trips", None),
    ("trips", 5),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda value: repr(value)[:30])
def test_a_bad_setting_is_a_config_error_that_says_which_what_and_why(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        BreakerConfig(**{name: value})

    text = str(caught.value)
    named, _, allowed = text.partition(": must be ")
    blamed = "max_backoff" if (name, value) == ("min_backoff", 121.0) else name
    assert re.fullmatch(rf"{blamed} = .+", named)
    assert allowed
    assert len(text) < 400


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, 1.01, HUGE, "half"])
def test_a_bad_slow_call_rate_is_a_config_error(rate: Any) -> None:
    with pytest.raises(ConfigError, match=r"slow_call_rate = .*: must be a number above 0 and at most 1"):
        BreakerConfig(slow_call=1.0, slow_call_rate=rate)


def test_a_slow_call_rate_needs_to_know_what_is_slow() -> None:
    with pytest.raises(ConfigError, match=r"slow_call_rate = 0\.5: needs slow_call"):
        BreakerConfig(slow_call_rate=0.5)


def test_the_least_settings_pass() -> None:
    config = BreakerConfig(
        failure_threshold=1,
        min_backoff=1e-9,
        max_backoff=1e-9,
        backoff_factor=1,
        jitter=0,
        half_open_probes=1,
        probe_lease=1e-9,
        successes_to_close=1,
        window=1e-9,
        window_calls=1,
        failure_rate=1e-9,
        slow_call=1e-9,
        slow_call_rate=1,
        minimum_calls=1,
        trips=frozenset(),
    )

    assert config.trips == frozenset()


def test_trips_may_be_any_collection_of_names() -> None:
    config = BreakerConfig(trips=["network", ErrorCategory.TIMEOUT])  # type: ignore[arg-type]

    assert config.trips == {ErrorCategory.NETWORK, ErrorCategory.TIMEOUT}


def test_the_defaults_are_those_of_the_contract() -> None:
    assert BreakerConfig() == BreakerConfig(
        failure_threshold=7,
        min_backoff=5.0,
        max_backoff=120.0,
        backoff_factor=2.0,
        jitter=0.1,
        half_open_probes=1,
        probe_lease=30.0,
        successes_to_close=1,
        window=300.0,
        window_calls=None,
        trips=frozenset(category for category in ErrorCategory if category.trips_breaker),
        failure_rate=None,
        slow_call=None,
        slow_call_rate=None,
        minimum_calls=20,
        distinct_arguments=False,
    )


def test_settings_are_frozen_and_named() -> None:
    with pytest.raises(AttributeError):
        BreakerConfig().jitter = 0.5  # type: ignore[misc]
    with pytest.raises(TypeError):
        BreakerConfig(7)  # type: ignore[call-arg]


@pytest.mark.timeout(10)
def test_a_probe_can_be_given_back_while_the_lock_is_held() -> None:
    it = circuit(half_open_probes=2)
    fail(it, 0.0, 7)
    given_back, kept = it.admit(5.0), it.admit(5.0)
    assert isinstance(given_back, Grant)
    assert isinstance(kept, Grant)
    it.on_mark = lambda: it.release(given_back)  # called under the lock, as the garbage collector may be

    it.settle(kept, 5.0, ErrorCategory.INVALID_PARAMETERS)

    assert it.look(5.0).probes == 0
