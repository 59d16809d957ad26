"""What only Microsoft's Agent Framework has: failures that it would tell the model, approvals, streams, contexts."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_what_is_for_whoever_runs_the_agent_ends_it_and_the_run_can_go_on(scenes: Any) -> None:
    error, interrupted, in_doubt, interrupted_again, told, made = scenes["a_call_in_doubt_ends_the_agent"]

    assert error == "the disk is gone"
    assert interrupted
    assert in_doubt == "pay"
    assert interrupted_again
    painted, paid = told
    assert [each["type"] for each in painted] == ["text", "data"]
    assert painted[1]["uri"] == "data:image/png;base64,iVBORw=="
    assert paid[0]["text"] == "paid by hand"
    assert made == ["a cup"]


def test_a_call_that_waits_for_approval_is_none_yet(scenes: Any) -> None:
    assert scenes["a_call_is_approved_of"] == [[0, 0], ["paid 5"], [1, 0]]


def test_what_steers_the_framework_is_no_failure_of_the_tool(scenes: Any) -> None:
    told, *counts = scenes["what_steers_the_framework_is_no_failure"]

    assert told == [["who are you?", "done"], ["closed for today"], ["function_approval_request"]]
    assert counts == [[0, 0]] * 3


def test_calls_of_a_stream_are_guarded(scenes: Any) -> None:
    paid, refused = scenes["calls_of_a_stream_are_guarded"]

    assert paid == "paid 1"
    assert "The tool 'pay' was not called: its rate limit is used up" in refused


def test_a_context_is_no_argument_and_agents_as_tools_are_guarded(scenes: Any) -> None:
    told, arguments, kept, ask, who = scenes["a_context_is_no_argument"]

    assert told == ["Ann for tea"]
    assert arguments == {"key": "tea"}
    assert kept == "Ann for tea"
    assert (ask, who) == ([1, 0], [2, 0])


def test_an_answer_that_the_framework_leaves_alone_is_left_alone(scenes: Any) -> None:
    seen, made = scenes["an_answer_that_the_framework_leaves_alone_is_left_alone"]

    assert seen == [{"degrees": 21}] * 2
    assert made == ["Oslo"]
