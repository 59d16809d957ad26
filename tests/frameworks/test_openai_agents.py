"""The OpenAI Agents SDK: what no other framework has. One child plays all scenes of `agents/openai_agents_more.py`."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_errors_go_the_way_of_their_tool_and_count(scenes: dict[str, Any]) -> None:
    differ, counts, own_words, late_in_words = scenes["errors_go_the_way_of_their_tool"]

    assert differ == []
    assert counts.pop("stray") == [0, 0]  # a cancellation says nothing about the tool
    assert list(counts.values()) == [[0, 2]] * 9
    assert own_words == ["told ['ConnectionError, sorry: reset by peer']"] * 2
    assert late_in_words[0].startswith("told [\"ToolTimeoutError, sorry: Tool 'late_in_words' timed out")


def test_a_refusal_is_told_where_answers_have_a_form(scenes: dict[str, Any]) -> None:
    leaf, refused = scenes["a_refusal_is_told_where_answers_have_a_form"]

    assert leaf == '{"name":"tea"}'
    assert refused.startswith("The tool 'leaf' was not called: its rate limit is used up")


def test_a_call_waits_for_approval_as_it_did_without_guards(scenes: dict[str, Any]) -> None:
    asked, before, told, made, counts = scenes["a_call_waits_for_approval"]

    assert asked == ["pay", "tip"]  # of two tips the one whose amount the function for approvals would not see
    assert before == [[2], [0, 0]]
    assert told == ["paid 1", "tipped 2", "tipped 5"]
    assert made == [1, 2, 5]
    assert counts == [1, 0]


def test_an_agent_serves_as_a_tool_and_hides_nothing_from_whoever_runs_it(scenes: dict[str, Any]) -> None:
    waiting, approved, pay, helper, stopped, lost = scenes["an_agent_serves_as_a_tool"]

    assert (waiting, approved) == ([], ["done"])
    assert (pay, helper) == ([1, 0], [0, 0])
    assert stopped == "RunCancelled: run 'stopped' was cancelled: enough"
    assert lost == "StoreError: the disk is gone"


def test_what_is_not_for_the_model_ends_the_agent_as_itself(scenes: dict[str, Any]) -> None:
    tries, made = scenes["what_is_not_for_the_model_ends_the_agent"]

    assert tries == ["InDoubt of pay", "InDoubt of pay", ["paid in another way"]]
    assert made == [1]


def test_answers_come_back_from_the_log_as_they_were(scenes: dict[str, Any]) -> None:
    first, told, kinds, made = scenes["answers_come_back_from_the_log_as_they_were"]

    assert first == "the disk is gone"
    assert told[:2] == ['{"name":"tea"}', [{"type": "input_image", "image_url": "data:,"}]]
    assert told[2:] == ["sorry: Tool 'late' timed out after 0.05 seconds.", "calm"]
    assert kinds == ["Leaf", "list", "str", "str"]
    assert made == ["leaf", "picture", "late"]


def test_a_decorated_function_is_guarded_once_by_its_own_name(scenes: dict[str, Any]) -> None:
    asked, told, counts = scenes["a_function_is_decorated"]

    assert asked == ["pay"]
    assert told[0] == "paid 1 for Ann"
    assert told[1].startswith("The tool 'billing' was not called: its rate limit is used up")
    assert told[2] == "An error occurred while running the tool. Please try again."
    assert counts == {"billing": [1, 0], "refund": [0, 1]}


def test_the_rest_of_the_sdk_works_as_before(scenes: dict[str, Any]) -> None:
    plain, streamed, events, arguments, counts, off, same = scenes["the_rest_of_the_sdk_works_as_before"]

    assert (plain, streamed) == (["no tea", "milk for Ann"], ["no tea", "milk for Bob"])
    assert events == 5
    assert arguments == [{"key": "milk"}]  # no context, and no call that a guardrail stopped
    assert counts == [2, 0]
    assert off == "ModelBehaviorError"
    assert same is True


def test_a_trace_says_that_a_tool_failed_and_not_in_which_words(scenes: dict[str, Any]) -> None:
    (error,) = scenes["a_trace_says_that_a_tool_failed"]

    assert error["data"] == {"tool_name": "default", "error": "ConnectionError"}


def test_what_is_no_tool_is_told_at_once(scenes: dict[str, Any]) -> None:
    nobody, nothing, function = scenes["what_is_no_tool_is_told"]

    assert nobody == "ConfigError: hf = None: must be a Holdfast, as holdfast.open() gives it"
    assert nothing == "ConfigError: tools = None: must be a list of tools"
    assert function.endswith("must be a tool of the Agents SDK; @function_tool makes one of a function")


def test_an_older_sdk_will_do(scenes: dict[str, Any]) -> None:
    assert scenes["the_sdk_is_an_older_one"] == [["a page about tea"], [1, 0]]
