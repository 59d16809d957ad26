"""When to try again: delays, reasons not to, the budget of a tool, and the note on its error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.category import ErrorCategory
from holdfast.errors import ConfigError
from holdfast.guards.retry import LONGEST, MOST, RESERVE, RetryBudget, RetryConfig, note

NETWORK = ErrorCategory.NETWORK
FAILED = ErrorCategory.EXECUTION_ERROR


def one() -> float:
    """The longest draw."""
    return 1.0


def half() -> float:
    return 0.5


# --- delays ---


def test_the_longest_wait_doubles_from_the_first_to_the_bound() -> None:
    config = RetryConfig(attempts=10)

    assert [config.delay(failed, one) for failed in range(1, 7)] == [0.2, 0.4, 0.8, 1.6, 3.0, 3.0]


def test_each_wait_is_drawn_between_nothing_and_the_bound() -> None:
    config = RetryConfig()

    assert config.delay(1, half) == 0.1
    assert config.delay(2, lambda: 0.0) == 0.0


@pytest.mark.parametrize("factor", [2, 2.0, 1e300])
def test_a_wait_that_overflows_is_the_longest(factor: float) -> None:
    config = RetryConfig(factor=factor)

    assert config.delay(5000, one) == 3.0


@given(
    initial=st.floats(0, 1e6),
    more=st.floats(0, 1e6),
    factor=st.floats(1, 1e100) | st.integers(1, 50),
    failed=st.integers(1, 2000),
    draw=st.floats(0, 1),
)
def test_a_wait_is_never_outside_its_bounds(
    initial: float, more: float, factor: float, failed: int, draw: float
) -> None:
    config = RetryConfig(initial=initial, max=initial + more, factor=factor)

    assert 0.0 <= config.delay(failed, lambda: draw) <= config.max


# --- again, or why not ---


def test_a_failure_worth_repeating_is_repeated_after_its_delay() -> None:
    assert RetryConfig().next_delay(NETWORK, 2, None, math.inf, half) == 0.2


@pytest.mark.parametrize("category", list(ErrorCategory))
def test_only_retryable_categories_are_repeated(category: ErrorCategory) -> None:
    answer = RetryConfig().next_delay(category, 1, None, math.inf, half)

    assert answer == (0.1 if category.retryable else category.label)


@pytest.mark.parametrize(("failed", "answer"), [(1, 0.1), (2, 0.2), (3, ""), (4, "")])
def test_three_attempts_are_all(failed: int, answer: float | str) -> None:
    assert RetryConfig().next_delay(NETWORK, failed, None, math.inf, half) == answer


def test_what_the_tool_asked_for_wins_over_the_computed_delay() -> None:
    config = RetryConfig()

    assert config.next_delay(NETWORK, 1, 7.0, math.inf, half) == 7.0
    assert config.next_delay(NETWORK, 1, 0.0, math.inf, half) == 0.0


@pytest.mark.parametrize(("left", "answer"), [(7.1, 7.0), (7.0, "the deadline is too near")])
def test_there_is_no_retry_that_the_deadline_would_cut_off(left: float, answer: float | str) -> None:
    assert RetryConfig().next_delay(NETWORK, 1, 7.0, left, half) == answer


def test_there_is_no_retry_after_the_deadline() -> None:
    assert RetryConfig().next_delay(NETWORK, 1, None, -1.0, half) == "the deadline is too near"


def test_a_tool_that_asks_for_an_hour_is_waited_for_only_if_a_deadline_allows_it() -> None:
    config = RetryConfig()

    assert config.next_delay(NETWORK, 1, LONGEST, math.inf, half) == LONGEST
    assert config.next_delay(NETWORK, 1, 3600.0, math.inf, half) == "the tool asks to wait 3600 s"
    assert config.next_delay(NETWORK, 1, 3600.0, 7200.0, half) == 3600.0


# --- settings ---

HUGE = 10**400


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("attempts", bad) for bad in (0, -1, 1.5, math.nan, HUGE, "3", True, None)],
        *[("initial", bad) for bad in (-0.1, math.nan, math.inf, HUGE, "1", True)],
        *[("max", bad) for bad in (0.1, -1.0, math.nan, math.inf, HUGE, "1", True)],
        *[("factor", bad) for bad in (0.9, -1.0, math.nan, math.inf, HUGE, "2", True)],
        *[("budget", bad) for bad in (-0.1, math.nan, math.inf, HUGE, "1", True)],
    ],
)
def test_a_bad_setting_is_a_config_error_that_says_which_what_and_why(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} = .+: must be a (whole )?number of at least"):
        RetryConfig(**{name: value})


def test_a_longest_wait_below_the_first_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"max = 3\.0: must be a number of at least 5"):
        RetryConfig(initial=5.0)


def test_the_defaults_are_those_of_the_contract() -> None:
    assert RetryConfig() == RetryConfig(attempts=3, initial=0.2, max=3.0, factor=2.0, budget=0.2)


# --- the budget ---


def taken(budget: RetryBudget, share: float, calls: int, asked: int) -> int:
    return sum(budget.take(share, calls) for _ in range(asked))


def test_a_new_tool_may_retry_a_little_before_it_has_earned_anything() -> None:
    assert taken(RetryBudget(), 0.2, 0, 100) == RESERVE


def test_retries_are_a_share_of_calls_in_the_long_run() -> None:
    budget = RetryBudget()

    retried = sum(budget.take(0.2, calls) for calls in range(1, 10_001))

    assert retried == pytest.approx(10_000 * 0.2, abs=RESERVE + 1)


def test_a_storm_is_stopped() -> None:
    budget = RetryBudget()
    taken(budget, 0.2, 0, 100)

    assert not budget.take(0.2, 4)
    assert budget.take(0.2, 5)
    assert not budget.take(0.2, 5)


def test_a_long_quiet_spell_saves_up_only_so_much() -> None:
    assert taken(RetryBudget(), 0.2, 10**9, 1000) == MOST


def test_a_budget_of_nothing_is_no_bound() -> None:
    assert taken(RetryBudget(), 0.0, 0, 10_000) == 10_000


def test_statistics_that_were_cleared_do_not_make_a_debt() -> None:
    budget = RetryBudget()
    taken(budget, 0.2, 1000, 1000)

    assert not budget.take(0.2, 0)
    assert taken(budget, 0.2, 50, 100) == 10


# --- the note ---


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"attempts": 1}, "holdfast: search: 1 attempt"),
        ({"attempts": 3}, "holdfast: search: 3 attempts"),
        ({"attempts": 3, "waited": 1.234}, "holdfast: search: 3 attempts, 1.2 s of waiting"),
        ({"attempts": 1, "why": "not repeated: stuck"}, "holdfast: search: 1 attempt, not repeated: stuck"),
        ({"attempts": 2, "waited": 0.5, "why": "late"}, "holdfast: search: 2 attempts, 0.5 s of waiting, late"),
    ],
)
def test_the_note_says_what_was_tried(arguments: dict[str, Any], text: str) -> None:
    error = ValueError("of the tool")

    note(error, "search", **arguments)

    assert error.__notes__ == [text]


def test_an_error_object_that_comes_again_keeps_only_the_last_note_of_ours() -> None:
    error = ValueError("of the tool")
    error.add_note("the tool's own")

    note(error, "search", 1)
    note(error, "search", 2)

    assert error.__notes__ == ["the tool's own", "holdfast: search: 2 attempts"]


def test_an_error_that_takes_no_notes_is_left_as_it_is() -> None:
    @dataclass(frozen=True)
    class Frozen(Exception):
        code: int

    error, odd = Frozen(5), ValueError("of the tool")
    odd.__notes__ = "no list"  # type: ignore[assignment]

    note(error, "search", 1)
    note(odd, "search", 1)

    assert not hasattr(error, "__notes__")
    assert vars(odd) == {"__notes__": "no list"}


def test_an_error_that_will_not_have_a_note_is_no_other_error() -> None:
    class Proud(Exception):
        def add_note(self, note: str) -> None:
            raise RuntimeError(f"no notes: {note}")

    note(Proud(), "search", 1)


def test_the_notes_of_nested_tools_stand_side_by_side() -> None:
    error = RuntimeError("down")

    note(error, "inner", 3)
    note(error, "outer", 1)
    note(error, "inner", 2)

    assert error.__notes__ == ["holdfast: outer: 1 attempt", "holdfast: inner: 2 attempts"]
