"""What only Google's ADK has: state, transfers, confirmations, live sessions, callbacks, toolsets, agents as tools."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_what_a_tool_did_to_its_context_is_done_again_where_its_answer_comes_from_the_log(scenes: Any) -> None:
    first, (answers, seat, authors), made = scenes["what_a_tool_did_is_done_again"]

    assert first == "the disk is gone"
    assert answers == [{"result": "booked"}, {"result": "calm"}]
    assert seat == "12A"
    assert authors == ["player", "player", "clerk", "clerk", "clerk"]
    assert made == ["12A"]


def test_and_where_it_comes_from_a_cache(scenes: Any) -> None:
    answers, seen, made = scenes["a_kept_answer_does_what_the_call_did"]

    assert answers == [[{"degrees": 21}], [{"degrees": 21}]]
    assert seen == ["Oslo", "Oslo"]
    assert made == ["Oslo"]


def test_an_answer_that_is_no_plain_data_comes_from_the_log_too(scenes: Any) -> None:
    same, answers, made = scenes["an_answer_is_known_again"]

    assert same
    assert answers == "[{'result': Seat(row=12, place='A')}, {'result': [Seat(row=13, place='B')]}]"
    assert sorted(made) == [12, 13]


def test_a_call_that_waits_for_a_confirmation_is_none_yet_and_guarded_once_it_is_made(scenes: Any) -> None:
    before, answers, *after = scenes["a_call_waits_for_somebody"]

    assert before == [[0, 0], [0, 0], []]
    assert answers == [{"result": "paid 5"}, {"result": "sent to Ann"}]
    assert after == [[1, 0], [1, 0], ["pay 5", "send Ann"]]


def test_a_request_to_log_in_and_a_live_stream_are_no_answers_of_the_tool(scenes: Any) -> None:
    answers, asked, stream, *counts = scenes["somebody_is_to_log_in_or_to_listen"]

    assert answers == [{"result": "log in first"}]
    assert asked == ["mail", "adk_request_credential"]
    assert stream == [0, 1, 2]
    assert counts == [[0, 0], [0, 0]]


def test_tools_of_a_live_session_are_guarded_and_known_again(scenes: Any) -> None:
    (found, refused, late), again, made = scenes["a_session_is_live"]

    assert found == {"result": "found tea"}
    assert refused["error"].startswith("The tool 'look' was not called: its rate limit is used up")
    assert late["error"].startswith("The tool 'hang' gave no answer within 0.1 s.")  # a function, in a pool of threads
    assert (again[0], again[2]) == (found, late)
    assert made == ["tea", "cup"]


def test_callbacks_of_the_agent_are_called_as_without_guards(scenes: Any) -> None:
    same, heard_the_same, heard, bad = scenes["callbacks_are_called"]

    assert same
    assert heard_the_same
    assert "failed bad: RuntimeError bad tea" in heard
    assert bad == [0, 1]


def test_toolsets_agents_and_long_running_tools_are_guarded_and_those_of_the_provider_left_alone(scenes: Any) -> None:
    answers, counts, closed, hosted_is_the_same = scenes["tools_of_all_kinds"]

    assert answers == [{"result": "found cup"}, {"result": "done"}]  # none yet of the one that takes long
    assert counts == {"shelf_find": [1, 0], "inner": [1, 0], "find": [1, 0], "wait": [1, 0]}
    assert closed == ["shelf"]
    assert hosted_is_the_same


def test_an_answer_that_says_error_is_a_failure_but_arguments_are_not_the_tools_fault(scenes: Any) -> None:
    same, answer, last, lookup, need = scenes["an_answer_that_says_error_is_a_failure"]

    assert same
    assert answer == {"error": "connection refused", "hint": "call later"}
    assert last == {"result": "tea"}  # after 7 calls without an argument, which open no circuit
    assert lookup == [0, 1]
    assert need == [1, 7]


def test_what_is_no_tool_is_told(scenes: Any) -> None:
    assert scenes["what_is_no_tool_is_told"] == [
        "'look': must be a function, or a tool or a toolset of ADK",
        "tools = <function what_is_no_tool_is_told.<locals>.look",
        "'look': is guarded already; give it to guard() as it was before",
    ]
