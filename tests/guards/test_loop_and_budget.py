"""The loop guard and the budgets of a run."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.guards import loop as loops
from holdfast.guards.budget import Budget, Spent, check_budget
from holdfast.guards.loop import LoopConfig, LoopGuard, LoopVerdict

PASS, REFUSED, DETECTED = LoopVerdict.PASS, LoopVerdict.REFUSED, LoopVerdict.DETECTED
THREE_OF_EIGHT = LoopConfig()
CALL = ("search", b"same arguments")


def fail(guard: LoopGuard, call: object = CALL, times: int = 3) -> None:
    for _ in range(times):
        guard.settle(call, failed=True)


def others(guard: LoopGuard, times: int) -> None:
    for n in range(times):
        guard.settle(("another", n), failed=False)


# --- loops ---


def test_the_same_call_failing_three_times_is_refused() -> None:
    guard = LoopGuard()

    verdicts = []
    for _ in range(4):
        verdicts.append(guard.admit(CALL, THREE_OF_EIGHT))
        fail(guard, times=1)

    assert verdicts == [PASS, PASS, PASS, REFUSED]


def test_different_arguments_are_never_the_same_call() -> None:
    guard = LoopGuard()
    fail(guard, ("search", b"one"), 8)

    assert guard.admit(("search", b"two"), THREE_OF_EIGHT) is PASS
    assert guard.admit(("find", b"one"), THREE_OF_EIGHT) is PASS


def test_calls_that_succeed_are_no_loop() -> None:
    guard = LoopGuard()

    for _ in range(100):
        assert guard.admit(CALL, THREE_OF_EIGHT) is PASS
        guard.settle(CALL, failed=False)


@pytest.mark.parametrize(("between", "verdict"), [(5, REFUSED), (6, PASS)])
def test_only_failures_within_the_last_eight_calls_count(between: int, verdict: LoopVerdict) -> None:
    guard = LoopGuard()
    fail(guard)

    others(guard, between)

    assert guard.admit(CALL, THREE_OF_EIGHT) is verdict


def test_refusals_do_not_make_the_run_forget() -> None:
    guard = LoopGuard()
    fail(guard)

    verdicts = {guard.admit(CALL, THREE_OF_EIGHT) for _ in range(100)}

    assert PASS not in verdicts


def test_after_two_refusals_of_the_same_call_the_loop_is_reported_once() -> None:
    guard = LoopGuard()
    fail(guard)

    verdicts = [guard.admit(CALL, THREE_OF_EIGHT) for _ in range(5)]

    assert verdicts == [REFUSED, DETECTED, REFUSED, REFUSED, REFUSED]
    assert not guard.stopped


def test_refusals_of_different_calls_are_counted_apart() -> None:
    guard = LoopGuard()
    fail(guard, "one")
    fail(guard, "two")

    verdicts = [guard.admit(call, THREE_OF_EIGHT) for call in ("one", "two", "one", "two")]

    assert verdicts == [REFUSED, REFUSED, DETECTED, DETECTED]


def test_a_call_that_has_succeeded_since_may_be_reported_anew() -> None:
    guard = LoopGuard()
    fail(guard)
    assert [guard.admit(CALL, THREE_OF_EIGHT) for _ in range(2)] == [REFUSED, DETECTED]

    guard.settle(CALL, failed=False)
    fail(guard)

    assert [guard.admit(CALL, THREE_OF_EIGHT) for _ in range(2)] == [REFUSED, DETECTED]


def test_with_stop_every_later_call_of_the_run_is_refused() -> None:
    guard, config = LoopGuard(), LoopConfig(stop=True)
    fail(guard)
    assert guard.admit(CALL, config) is REFUSED
    assert guard.admit("another", config) is PASS

    assert guard.admit(CALL, config) is DETECTED

    assert guard.stopped
    assert guard.admit("another", config) is REFUSED
    assert guard.admit("another", THREE_OF_EIGHT) is REFUSED


def test_each_tool_may_have_its_own_numbers() -> None:
    guard = LoopGuard()
    fail(guard, times=2)
    others(guard, 3)

    assert guard.admit(CALL, LoopConfig(repeats=2, window=5)) is REFUSED
    assert guard.admit(CALL, LoopConfig(repeats=2, window=4)) is PASS
    assert guard.admit(CALL, LoopConfig(repeats=3)) is PASS


def test_a_loop_over_the_widest_window_is_seen() -> None:
    guard, config = LoopGuard(), LoopConfig(repeats=2, window=1000)
    fail(guard, times=1)
    others(guard, 998)
    fail(guard, times=1)

    assert guard.admit(CALL, config) is REFUSED


def test_a_run_of_endless_different_loops_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "MOST_WINDOW", 50)
    guard = LoopGuard()
    for n in range(1000):
        fail(guard, n)
        assert guard.admit(n, THREE_OF_EIGHT) is REFUSED

    assert len(guard._refusals) <= 50
    assert len(guard._recent) <= 50
    assert guard.admit(999, THREE_OF_EIGHT) is DETECTED


@given(
    calls=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40),
    repeats=st.integers(1, 4),
    more=st.integers(0, 6),
)
def test_a_call_is_refused_just_when_it_failed_so_often_of_late(
    calls: list[tuple[int, bool]], repeats: int, more: int
) -> None:
    guard, config = LoopGuard(), LoopConfig(repeats=repeats, window=repeats + more)
    made: deque[tuple[int, bool]] = deque(maxlen=config.window)
    for call, fails in calls:
        looping = made.count((call, True)) >= repeats
        assert (guard.admit(call, config) is not PASS) is looping
        if not looping:
            guard.settle(call, failed=fails)
            made.append((call, fails))


HUGE = 10**400


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        *[
            ({"repeats": bad}, "repeats = .+: must be a whole number")
            for bad in (0, -1, 1.5, math.nan, HUGE, "3", True)
        ],
        *[({"window": bad}, "window = .+: must be a whole number") for bad in (0, -1, 8.5, math.nan, HUGE, "8", True)],
        ({"repeats": 9}, "window = 8: must be a whole number of at least 9 and at most 1000"),
        ({"window": 1001}, "window = 1001: must be a whole number of at least 3 and at most 1000"),
        ({"repeats": 1001, "window": 1001}, "repeats = 1001: must be a whole number of at least 1 and at most 1000"),
        ({"stop": 1}, "stop = 1: must be true or false"),
    ],
)
def test_a_bad_setting_of_the_loop_guard_is_a_config_error(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{text}"):
        LoopConfig(**settings)


def test_the_defaults_of_the_loop_guard_are_three_of_eight() -> None:
    assert LoopConfig() == LoopConfig(repeats=3, window=8, stop=False)


# --- budgets ---


def test_a_budget_refuses_when_a_line_is_used_up() -> None:
    budget = Budget({"calls": 10, "usd": 2.0})

    assert budget.admit({"calls": 9, "usd": 1.99}) is None
    assert budget.admit({"calls": 10, "usd": 0.0}) == Spent("calls", 10, 10)
    assert budget.admit({"calls": 0, "usd": 2.5}) == Spent("usd", 2.5, 2.0)


def test_the_first_line_that_is_used_up_is_named() -> None:
    budget = Budget({"seconds": 60.0, "calls": 5})

    assert budget.admit({"calls": 9, "seconds": 61.0}) == Spent("seconds", 61.0, 60.0)


def test_a_unit_that_was_never_reported_is_not_used() -> None:
    budget = Budget({"usd": 1e-9})

    assert budget.admit({"calls": 1000}) is None
    assert budget.warnings({"calls": 1000}) == []


def test_an_empty_budget_refuses_nothing() -> None:
    budget = Budget({})

    assert budget.admit({"calls": 10**9}) is None
    assert budget.warnings({"calls": 10**9}) == []


@pytest.mark.parametrize(("used", "warned"), [(7, False), (8, True), (12, True)])
def test_a_budget_warns_at_four_fifths(used: float, warned: bool) -> None:
    budget = Budget({"calls": 10})

    lines = budget.warnings({"calls": used})

    assert lines == ([Spent("calls", used, 10)] if warned else [])


def test_each_line_warns_once() -> None:
    budget = Budget({"calls": 10, "usd": 1.0})

    told = [
        [line.unit for line in budget.warnings(used)]
        for used in (
            {"calls": 8, "usd": 0.5},
            {"calls": 9, "usd": 0.5},
            {"calls": 9, "usd": 0.9},
            {"calls": 10, "usd": 1.0},
        )
    ]

    assert told == [["calls"], [], ["usd"], []]


def test_a_budget_keeps_its_limits_when_the_table_it_was_given_changes() -> None:
    table = {"usd": 1.0}
    budget = Budget(table)

    table["usd"] = 100.0

    assert budget.admit({"usd": 1.0}) == Spent("usd", 1.0, 1.0)


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        *[({"calls": bad}, "budget.calls = .+: must be a whole number") for bad in (0, -1, 1.5, math.nan, HUGE, "9")],
        *[
            ({"usd": bad}, "budget.usd = .+: must be a number above 0")
            for bad in (0, -1, math.nan, math.inf, HUGE, "2")
        ],
        *[({"seconds": bad}, "budget.seconds = .+: must be a number above 0") for bad in (0.0, True, None, [1])],
        ({"us dollars": 1}, "budget: the unit 'us dollars' must be a plain word"),
        ({"": 1}, "budget: the unit '' must be a plain word"),
        ({5: 1}, "budget: the unit 5 must be a plain word"),
        (5, "budget = 5: must be a table"),
        (["calls"], "budget = .+: must be a table"),
        ("calls", "budget = 'calls': must be a table"),
    ],
)
def test_a_bad_budget_is_a_config_error(budget: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{text}"):
        check_budget(budget)
    with pytest.raises(ConfigError, match=f"^{text}"):
        Budget(budget)


def test_any_plain_word_may_be_a_unit() -> None:
    check_budget({"calls": 1, "seconds": 0.5, "usd": 2, "tokens": 1e9, "géld": 3.5})
