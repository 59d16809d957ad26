"""What only FastMCP has: error results, questions to the client, contexts, output schemas, names that are made up."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_a_result_that_is_an_error_goes_to_the_client_as_it_is_and_counts(scenes: dict[str, Any]) -> None:
    failed, refused, counts = scenes["error_result"]

    assert failed == [True, [text("the service is unavailable")], {"item": "tea"}, None]
    assert refused[0] is True
    assert "The tool 'stock' was not called: it has failed repeatedly" in refused[1][0]["text"]
    assert counts == {"stock": [0, 1]}


def test_a_wrong_call_says_nothing_against_a_tool_and_a_name_that_is_made_up_is_none(scenes: dict[str, Any]) -> None:
    (made_up, invalid, right), counts = scenes["wrong_calls"]

    assert made_up == [True, [text("Unknown tool: 'made_up'")], None, None]
    assert "Input should be a valid integer" in invalid[1][0]["text"]
    assert right[1] == [text("3")]
    assert counts == {"stock": [1, 1]}


def test_a_question_is_no_answer_and_what_the_client_answers_is_an_argument(scenes: dict[str, Any]) -> None:
    answers, counts, started = scenes["question"]

    assert answers == ["a large tea", "a small tea", "a large tea"]
    assert counts == {"order": [3, 0]}
    asked, answered = {"item": "tea"}, ["large", "small"]
    assert [each for each in started if each == asked] == [asked] * 3
    assert [each["input_responses"]["size"]["content"]["value"] for each in started if each != asked] == answered


def test_the_answer_of_a_policy_fits_the_tool_by_the_name_that_clients_know(scenes: dict[str, Any]) -> None:
    assert scenes["fixed_answer"] == [[3, 0], {"shop_stock": [1, 0]}]


def test_the_model_is_told_of_a_function_that_hangs_though_details_are_masked(scenes: dict[str, Any]) -> None:
    is_error, (content,), _, _ = scenes["hanging_function"]

    assert is_error
    assert "The tool 'hang' gave no answer within 0.1 s." in content["text"]


def test_a_tool_that_is_decorated_is_guarded_once(scenes: dict[str, Any]) -> None:
    paid, refused, counts = scenes["decorated"]

    assert paid[1] == [text("paid 1")]
    assert refused[1][0]["text"].startswith("The tool 'pay' was not called: its rate limit is used up")
    assert counts == {"pay": [1, 0]}


def test_each_version_of_a_tool_has_its_own_answers_and_guards(scenes: dict[str, Any]) -> None:
    answers, counts = scenes["versions"]

    assert answers == ["tea: 3", "tea: 4 EUR", "tea: 5 EUR", "tea: 5 EUR", "tea: 3"]
    assert counts == {"price": [4, 0], "new": [1, 0]}


def test_what_the_page_of_an_app_calls_is_guarded_as_the_tool_that_it_is(scenes: dict[str, Any]) -> None:
    paid, refused, counts = scenes["app"]

    assert paid[1] == [text("paid 1")]
    assert refused[1][0]["text"].startswith("The tool 'till_pay' was not called: its rate limit is used up")
    assert counts == {"till_pay": [1, 0]}


def test_after_a_crash_a_client_is_told_the_same_of_all_that_a_tool_may_give(scenes: dict[str, Any]) -> None:
    assert scenes["after"] == scenes["before"]
    assert scenes["journal"] == ["picture", "parts", "fail"]


def test_a_call_in_doubt_is_an_error_of_the_protocol_and_no_result(scenes: dict[str, Any]) -> None:
    assert scenes["doubt"] == ["MCPError", "InDoubt"]


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}
