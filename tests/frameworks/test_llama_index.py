"""What only LlamaIndex has: contexts, questions, outputs that are errors, handoffs; errors that get past an agent."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_a_call_in_doubt_is_for_whoever_runs_the_agent(scenes: dict[str, Any]) -> None:
    error, journal = scenes["doubt"]

    assert error.startswith("InDoubt: die: it began before the run was interrupted")
    assert journal == "called\n"


def test_a_run_that_is_cancelled_ends_an_agent_that_is_in_no_task_of_it(scenes: dict[str, Any]) -> None:
    error, status = scenes["cancelled"]

    assert error == "WorkflowCancelledByUser: run 'cancelled' was cancelled: enough"
    assert status == "cancelled"


def test_a_tool_gets_its_context_which_is_no_argument(scenes: dict[str, Any]) -> None:
    told, arguments = scenes["context"]

    assert told == [["kept tea", False]]
    assert arguments == [{"what": "tea"}]


def test_a_tool_that_asks_somebody_has_not_failed(scenes: dict[str, Any]) -> None:
    told, counts = scenes["question"]

    assert told == ["paid 5: yes"]
    assert counts == [1, 0]


def test_an_output_that_is_an_error_goes_back_as_it_is_and_counts(scenes: dict[str, Any]) -> None:
    told, counts = scenes["own_error"]

    assert told == [["no tea", True]]
    assert counts == [0, 1]


def test_a_refusal_is_not_what_an_agent_returns_directly(scenes: dict[str, Any]) -> None:
    assert scenes["direct"] == ["tea it is", "done"]


def test_what_an_output_was_made_of_stays_and_what_was_said_of_it_is_said_again(scenes: dict[str, Any]) -> None:
    is_same, said, given, made = scenes["raw"]

    assert is_same
    assert said == ["Page(title='tea')"] * 2
    assert given["kwargs"] == {"title": "tea"}
    assert made == ["tea"]


def test_an_agent_hands_over_to_one_with_guarded_tools(scenes: dict[str, Any]) -> None:
    assert scenes["team"] == [["paid 5"], [1, 0]]


def test_tools_that_an_agent_looks_for_are_guarded(scenes: dict[str, Any]) -> None:
    paid, refused = scenes["retrieved"]

    assert paid == "paid 1"
    assert refused.startswith("The tool 'pay' was not called: its rate limit is used up")


def test_a_function_with_guards_of_its_own_is_not_guarded_twice(scenes: dict[str, Any]) -> None:
    (paid, refused), counts, names = scenes["decorated"]

    assert paid == ["paid 1!", False]
    assert "The tool 'payment' was not called: its rate limit is used up" in refused[0]
    assert refused[1]
    assert counts == [1, 0]
    assert names == ["payment"]


def test_what_is_no_tool_is_refused(scenes: dict[str, Any]) -> None:
    assert scenes["bad"] == "tools: must be tools of LlamaIndex or functions, not str"
