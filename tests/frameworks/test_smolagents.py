"""What only smolagents has: code that calls tools, in a thread of its own; turns that one error throws away."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_code_is_in_the_run_of_its_agent_and_what_it_gives_by_position_has_a_name(scenes: dict[str, Any]) -> None:
    said, arguments, calls = scenes["code"]

    assert said == "code's"
    assert arguments == [{"amount": 5, "to": "us"}, {"amount": 6}, {}]
    assert calls == 3


def test_code_that_is_run_again_after_a_crash_gets_the_objects_that_it_got(scenes: dict[str, Any]) -> None:
    said, calls, begun = scenes["resumed"]

    assert said == 6
    assert calls == begun == 2


def test_a_refusal_is_an_error_to_code(scenes: dict[str, Any]) -> None:
    [error] = scenes["refused_code"]

    assert "'bill = pay(2)' due to: NoAnswer: The tool 'pay' was not called: its rate limit is used up" in error


def test_a_refusal_leaves_the_other_answers_of_its_turn(scenes: dict[str, Any]) -> None:
    refused, other = scenes["refused_call"].splitlines()

    assert refused.startswith("The tool 'pay' was not called: its rate limit is used up")
    assert other == "nobody's"


def test_code_that_may_be_in_either_of_two_runs_calls_nothing(scenes: dict[str, Any]) -> None:
    unclear, *clear = scenes["shared"]

    assert unclear.startswith("whose: agents in 2 runs have this tool, and it cannot be told which of them calls")
    assert clear == ["unlimited's", "nobody's", "outer's"]


def test_a_function_with_guards_of_its_own_is_not_guarded_twice(scenes: dict[str, Any]) -> None:
    (spent, refused, _), counts, names = scenes["decorated"]

    assert spent == "spent 1"
    assert refused.startswith("The tool 'payment' was not called: its rate limit is used up")
    assert counts == [1, 0]
    assert names == ["payment"]


def test_what_is_no_tool_is_refused(scenes: dict[str, Any]) -> None:
    assert scenes["bad"].startswith("tools: must be tools of smolagents")
