"""What only Pydantic AI has: retries by the model, approvals, contexts, output tools, answers that are objects."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_a_tool_that_wants_other_arguments_is_not_broken(scenes: dict[str, Any]) -> None:
    told, counts = scenes["other_arguments"]

    assert told == ["go", ["retried", '{"error":"give the whole name"}'], ["success", "found Ann Lee"]]
    assert counts == {"find": [1, 1]}


def test_a_retry_that_comes_from_an_error_counts_as_that(scenes: dict[str, Any]) -> None:
    _, retried, refused = scenes["broken_below"]

    assert retried[0] == "retried"
    assert refused[0] == "failed"
    assert "The tool 'find' was not called: it has failed repeatedly" in refused[1]


def test_a_call_that_waits_for_approval_is_no_failure_and_is_made_once_approved(scenes: dict[str, Any]) -> None:
    metadata, told, counts, status = scenes["approval"]

    assert metadata == [{"why": "money"}]
    assert told == [["success", "paid 5"]]
    assert counts == {"pay": [1, 0]}
    assert status == "completed"


def test_a_tool_goes_by_the_name_that_the_model_knows_and_its_context_is_no_argument(scenes: dict[str, Any]) -> None:
    told, started = scenes["names_and_arguments"]

    assert told == ["go", ["success", "Ann has 42"]]
    assert started == [["bank_add", {"person": {"name": "Ann", "age": 30}, "amount": 1}]]


def test_an_output_is_no_tool(scenes: dict[str, Any]) -> None:
    assert scenes["output"] == ["Person", {"look": [1, 0]}]


def test_what_others_do_around_a_call_is_not_repeated_with_it(scenes: dict[str, Any]) -> None:
    assert scenes["work_of_others"] == ["other", "tool", "tool", "tool"]


def test_the_model_is_told_of_a_function_that_hangs(scenes: dict[str, Any]) -> None:
    _, (outcome, text) = scenes["hanging_function"]

    assert outcome == "failed"
    assert "The tool 'hang' gave no answer within 0.1 s." in text


def test_a_tool_that_is_decorated_is_guarded_once(scenes: dict[str, Any]) -> None:
    (_, paid, refused), counts, started = scenes["decorated"]

    assert paid == ["success", "paid 1"]
    assert "The tool 'pay' was not called: its rate limit is used up" in refused[1]
    assert counts == {"pay": [1, 0]}
    assert started == [["pay", {"amount": 1}]]


def test_after_a_crash_the_model_is_told_the_same_of_all_that_a_tool_may_give(scenes: dict[str, Any]) -> None:
    told, doubtful = scenes["after"]

    assert told == scenes["before"]
    assert doubtful == "die"
    assert sorted(scenes["journal"]) == ["fail", "find", "person", "picture"]
