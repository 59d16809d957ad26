"""What only LangChain and LangGraph have: plain agents, nodes, interrupts, commands, injected arguments, middlewares.

The scenes are in `agents/langchain_more.py`; one child plays them all.
"""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_a_plain_agent_is_guarded_too(scenes: dict[str, Any]) -> None:
    told, last, refused_last, refused, status = scenes["plain_agent"]

    assert "The tool 'wait' gave no answer within 0.05 s." in told[0]
    assert told[1] == "trip"
    assert (last, refused_last) == ("tool", "tool")  # a tool that returns directly does so, whoever answers for it
    assert "The tool 'whose' was not called" in refused[0]
    assert status == "error"


def test_a_node_of_ones_own_is_guarded(scenes: dict[str, Any]) -> None:
    plain, task, ids, stats = scenes["node_alone"]

    assert plain == task == ["2", "4"]
    assert ids == ["1", "2"]
    assert stats == [4, 0]


def test_a_tool_that_asks_somebody_was_not_called_and_is_called_again(scenes: dict[str, Any]) -> None:
    scene = scenes["interrupted"]

    assert scene["log"] == [["cancelled", True]] * 2  # the second got an answer that was none
    assert scene["asked"] == [True, True, False]  # a run that was interrupted asks again; one that knows, does not
    assert scene["told"] == ["paid 5", "paid 5"]
    assert scene["journal"] == [["asks"] * 2, ["asks", "asks", "True: paid 5"] * 2]
    assert scene["calls"] == 1
    assert scene["stats"] == [2, 0]


def test_what_a_tool_gave_is_known_again_whatever_its_form(scenes: dict[str, Any]) -> None:
    scene = scenes["kept"]
    first, [_, *second] = scene["first"], scene["second"]

    assert [each.pop("tool_call_id") for each in first] == ["1-0", "1-1", "4-0"]
    assert [each.pop("tool_call_id") for each in second] == ["3-0", "3-1", "6-0"]
    assert second == first
    assert first[0]["artifact"] == {"rows": [1, 2], "mean": 1.5}
    assert [each["type"] for each in first[0]["content"]] == ["text", "image"]
    assert [each["content"] for each in first[1:]] == ["moved", "both"]
    assert scene["called"] == 3
    assert scene["journal"][3:] == ["look row"]  # its artifact is no plain data: in doubt, not repeated, not dropped
    assert scene["doubt"]


def test_what_is_injected_is_no_argument(scenes: dict[str, Any]) -> None:
    told, started, ids, different = scenes["injected"]

    assert told == ["a 2 1-0 1-0"] * 2  # the second from the cache
    assert started == [{"key": "a"}]
    assert ids == ["1-0", "3-0"]
    assert different == 2


def test_a_failure_that_was_made_an_answer_counts_and_a_wrong_argument_does_not(scenes: dict[str, Any]) -> None:
    scene = scenes["failing"]

    assert [each[:12] for each in scene["told"][:6]] == ["no tea", *["Error invoki"] * 3, "no number", "taken"]
    assert scene["statuses"] == [*["error"] * 5, "success", "error", "error"]
    assert scene["log"][0] == ["refuse", "execution_error", 1]
    assert scene["log"][1:4] == [["take", "invalid_parameters", 1]] * 3
    assert scene["log"][5] == ["take", None, 1]
    assert scene["same"]


def test_a_tool_that_the_model_made_up_is_none(scenes: dict[str, Any]) -> None:
    assert all("is not a valid tool" in each for each in scenes["failing"]["told"][6:])
    assert scenes["failing"]["tools"] == ["gentle", "refuse", "take"]


def test_it_goes_with_other_middlewares_in_either_order(scenes: dict[str, Any]) -> None:
    scene = scenes["company"]

    assert (scene["outside"], scene["outside seen"]) == (["came through"], [1, 2])  # each try is a call
    assert (scene["inside"], scene["inside seen"]) == (["came through"], [2, 2])  # all tries are one call
    assert scene["limit outside"] == scene["limit inside"] == ["success", "error"]
    assert scene["human outside"] == scene["human inside"] == [True, ["came through"]]
    assert scene["denied"] == [3, ["success", "error"]]  # nobody repeats a refusal


def test_agents_are_streamed_cancelled_and_shared(scenes: dict[str, Any]) -> None:
    scene = scenes["tasks"]

    assert scene["streamed"] == ["nobody's"]
    assert scene["at once"] == [["one"] * 3, ["two"] * 3]
    assert scene["ends"] == ["CancelledError"]
    assert scene["cancelled"] == ["a"]
    assert scene["log"] == ["cancelled"]
    assert scene["stats"][0] == [0, 0]


def test_a_policy_or_a_tool_of_ones_own_answers_instead(scenes: dict[str, Any]) -> None:
    scene = scenes["fallbacks"]

    for how in ("plain", "task"):
        assert scene[f"value, {how}"] == ['{"rows":[]}', "success"]
        assert scene[f"tool, {how}"] == ['{"from backup":"b"}', "success"]
        error, text = scene[f"agent's, {how}"]
        assert error == "ConfigError"
        assert text.startswith("other is a tool of an agent")


def test_a_decorated_function_is_guarded_once_by_its_own_name(scenes: dict[str, Any]) -> None:
    scene = scenes["decorated"]

    assert scene["first"][:2] == ["about tea, 1-0", "paid 1 True"]
    assert "The tool 'pay' was not called: its rate limit is used up" in scene["first"][2]
    assert scene["second"] == scene["first"][:2]
    assert scene["log"] == [{"query": "tea"}, {"amount": 1}, {"amount": 1}]  # it asks first, and is called again
    assert scene["calls"] == ["tea", "down", "down"]
    assert scene["error"] == "connection refused"
    assert scene["stats"] == [[1, 1], [1, 0], False]


def test_arguments_that_are_no_json_are_known_again(scenes: dict[str, Any]) -> None:
    assert scenes["odd"] == [True, 6, 6]
