"""What only the Claude Agent SDK has: tools that Claude Code calls itself, of which hooks hear; a server in here."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_what_claude_code_calls_is_guarded_and_in_the_log_of_the_run(scenes: dict[str, Any]) -> None:
    said, counts, heard, log, status = scenes["what_claude_code_calls_is_guarded"]

    assert said[:4] == ["hi", *["Exit code 3"] * 3]
    assert "The tool 'Bash' was not called: the same call with the same arguments keeps failing" in said[4]
    assert said[6:8] == ["Exit code 4", "Exit code 5"]
    assert counts == {"Bash": [2, 5], "Read": [0, 1]}
    assert heard == [8, 1]  # by a hook of the user's
    assert log[0]["arguments"] == {"command": "echo hi"}
    assert log[1]["result"]["stdout"] == "hi"
    assert status == "completed"


def test_a_command_that_fails_says_nothing_about_the_shell(scenes: dict[str, Any]) -> None:
    said, *_ = scenes["what_claude_code_calls_is_guarded"]

    assert said[8].startswith("/")  # the circuit is closed after five failures in a row


def test_tools_of_other_servers_are_known_by_their_whole_names_and_can_be_broken(scenes: dict[str, Any]) -> None:
    said, counts = scenes["tools_of_other_servers_are_known_by_their_whole_names"]

    assert said[:3] == ["found", *["the database is down: connection refused"] * 2]
    assert "The tool 'mcp__other__look' was not called: it has failed repeatedly" in said[3]
    assert counts == {"mcp__other__look": [1, 2]}


def test_a_call_that_somebody_else_refuses_or_interrupts_holds_nothing(scenes: dict[str, Any]) -> None:
    (first, second, _, after), counts = scenes["a_call_that_was_not_made_holds_nothing"]

    assert "haven't granted" in first
    assert "haven't granted" in second
    assert after == "hi"
    assert counts == {"Bash": [1, 0], "Write": [0, 0]}


def test_a_call_that_nobody_hears_of_holds_nothing_and_one_that_is_late_has_failed(
    scenes: dict[str, Any],
) -> None:
    assert scenes["a_call_that_nobody_hears_of_holds_nothing"] == [True, ["hi"], {"Bash": [0, 1]}]


def test_a_run_that_is_cancelled_stops_what_is_left_of_it_and_not_the_server(scenes: dict[str, Any]) -> None:
    said, ends, made = scenes["a_run_that_is_cancelled_stops_what_is_left_of_it"]

    assert said[:3] == ["stopped", *["run 'trip' was cancelled: enough"] * 2]
    assert said[3].endswith("run 'trip' was cancelled: enough")
    assert len(said) == 4
    assert ends == ["hook_stopped"]
    assert made == []


def test_the_model_is_told_the_same_from_the_log(scenes: dict[str, Any]) -> None:
    came, is_same, made, counts = scenes["the_model_is_told_the_same_from_the_log"]

    (menu, _), *failures = came
    assert [each["text"] for each in menu] == ["tea", "milk"]
    assert failures == [["no tea", True], ["no cups", True], [[{"type": "text", "text": '{"rows":[]}'}], None]]
    assert is_same
    assert made == ["menu", "refuse", "fail", "down"]
    assert counts == {"menu": [1, 0], "refuse": [0, 1], "fail": [0, 1], "down": [0, 1]}


def test_calls_whose_end_nobody_tells_are_bounded(scenes: dict[str, Any]) -> None:
    assert scenes["calls_whose_end_nobody_tells_are_bounded"] == [True, 0]


def test_what_is_no_tool_is_told(scenes: dict[str, Any]) -> None:
    nothing, function, twice = scenes["what_is_no_tool_is_told"]

    assert nothing == "must be ClaudeAgentOptions, or a list of tools as @tool makes them, not None"
    assert function == "tools: must be tools of the SDK, as @tool makes them, not builtin_function_or_method"
    assert twice.endswith(": is guarded already; give it to guard() as it was before")
