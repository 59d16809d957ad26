"""A proxied call is a guarded call: what refuses it, what repeats it, what answers in its place, and what is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.stdio.client import INITIALIZE, Stage, failure, settle, text, within

import holdfast
from holdfast import CircuitState, ErrorCategory
from holdfast.mcp import frames
from holdfast.mcp.server import ProxiedServer
from holdfast.mcp.wire import Event
from holdfast.testing import ManualClock


def policies(**tool: Any) -> dict[str, Any]:
    return {"server": {"srv": {"tool": {"*": tool}}}}


# --- refusals ---


async def test_tools_whose_long_names_begin_alike_have_guards_of_their_own(journal: Path, clock: ManualClock) -> None:
    one, other = "x" * 250 + "1", "x" * 250 + "2"
    async with Stage(journal, clock=clock, policies=policies(breaker={"failure_threshold": 1}, retry=False)) as client:
        await client.initialize()
        await client.result(one, do="error connection refused")

        assert failure(await client.result(one, n=1))["kind"] == "CircuitOpen"
        assert text(await client.result(other)) == other


async def test_an_open_circuit_of_a_tool_is_a_result_and_no_error(
    journal: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(journal, clock=clock, policies=policies(breaker={"failure_threshold": 1})) as client:
        await client.initialize()
        await client.result("write", do="error connection refused")

        result = await client.result("write", n=1)

        facts = failure(result)
        assert facts["kind"] == "CircuitOpen"
        assert facts["tool"] == "write"  # as the client knows it
        assert result["content"][0]["text"].startswith("The tool 'write' was not called")
        assert facts["called"] is False
        assert facts["retry_after_ms"] > 0
        assert client.effects("write") == 1
        assert text(await client.result("put")) == "put"
        assert "a call was lost" not in caplog.text


async def test_an_open_circuit_of_a_server_refuses_all_its_tools(journal: Path, clock: ManualClock) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        client.hf.breaker.force_open("srv")

        results = [await client.result(tool) for tool in ("read", "write", "put")]

        assert {failure(result)["kind"] for result in results} == {"CircuitOpen"}
        assert not client.journal("tools/call")


async def test_a_call_over_its_rate_is_a_result_that_says_when(journal: Path, clock: ManualClock) -> None:
    async with Stage(journal, clock=clock, policies=policies(rate={"per_second": 0.1, "burst": 1.0})) as client:
        await client.initialize()
        await client.result("write")

        result = await client.result("write", n=1)

        assert failure(result)["kind"] == "RateLimited"
        assert failure(result)["retry_after_ms"] == 10_000
        assert client.effects("write") == 1


async def test_a_tool_whose_policy_is_wrong_was_not_called(journal: Path) -> None:
    rules = {"server": {"srv": {"tool": {"wr*": {"rate": {"burst": 5}}}}}}
    async with Stage(journal, policies=rules) as client:
        await client.initialize()

        result = await client.result("write")

        assert (failure(result)["kind"], failure(result)["called"]) == ("ConfigError", False)
        assert "per_second is missing" in text(result)
        assert "The tool was not called" in text(result)
        assert client.effects("write") == 0


async def test_a_loop_is_a_result_that_tells_the_model(journal: Path, clock: ManualClock) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()

        results = [await client.result("write", do="error no such file") for _ in range(4)]

        assert [text(result) for result in results[:3]] == ["no such file"] * 3
        assert failure(results[3])["kind"] == "LoopDetected"
        assert client.effects("write") == 3


async def test_a_spent_budget_is_a_result(journal: Path, clock: ManualClock) -> None:
    async with Stage(journal, clock=clock, policies=policies(budget={"calls": 2})) as client:
        await client.initialize()

        results = [await client.result("write", n=n) for n in range(3)]

        assert failure(results[-1])["kind"] == "BudgetExceeded"
        assert client.effects("write") == 2


async def test_a_full_line_is_a_result(journal: Path, clock: ManualClock) -> None:
    async with Stage(journal, clock=clock, policies=policies(concurrency=1, max_wait=0)) as client:
        await client.initialize()
        client.call("write", do="hold a")
        await client.next("notifications/holds")

        result = await client.result("write")

        assert failure(result)["kind"] == "ConcurrencyFull"


# --- what counts ---


async def test_errors_of_tools_never_trip_the_circuit_of_their_server(journal: Path, clock: ManualClock) -> None:
    async with Stage(journal, clock=clock, policies=policies(loop=False)) as client:
        await client.initialize()

        for n in range(12):
            await client.result("write", n=n, do="error 503 service unavailable")
            await within(client.call("put", n=n, do="rpc -32603 internal error"))

        assert client.hf.breaker.state("srv") is CircuitState.CLOSED
        assert client.hf.breaker.diagnostics("srv").failure_count == 0
        assert client.hf.breaker.state("srv.write") is CircuitState.OPEN
        assert text(await client.result("read")) == "read"


@pytest.mark.parametrize(
    ("do", "category"),
    [
        ("error 429 Too Many Requests", ErrorCategory.RATE_LIMIT),
        ("error connection refused", ErrorCategory.NETWORK),
        ("rpc -32602 bad", ErrorCategory.INVALID_PARAMETERS),
        ("rpc -32601 what?", ErrorCategory.TOOL_NOT_FOUND),
    ],
)
async def test_an_error_is_classified_and_passes_as_it_came(do: str, category: ErrorCategory, journal: Path) -> None:
    async with Stage(journal, policies=policies(retry=False)) as client:
        await client.initialize()

        answer = await within(client.call("write", do=do))

        assert "holdfast" not in json.dumps(answer)
        assert client.hf.tracker.recent(1)[0].category == category


async def test_a_429_in_a_result_slows_the_adaptive_limiter(journal: Path, clock: ManualClock) -> None:
    adaptive = {"per_second": 10.0, "burst": 10.0, "adaptive": True}
    async with Stage(journal, clock=clock, policies=policies(rate=adaptive, retry=False, max_wait=0)) as client:
        await client.initialize()
        await client.result("read")

        await client.result("read", do="error 429 Too Many Requests: retry after 2 seconds")
        refused = await client.result("read", n=1)

        assert failure(refused)["kind"] == "RateLimited"
        assert failure(refused)["retry_after_ms"] >= 2_000
        clock.advance(failure(refused)["retry_after_ms"] / 1000)
        assert text(await client.result("read", n=2)) == "read"


async def test_a_wait_that_the_server_asks_for_is_kept_before_the_retry(journal: Path, clock: ManualClock) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        call = client.call("read", do=["error 429 Too Many Requests: retry after 2 seconds", "answer"])
        while not clock.slept:
            await client.ask("ping")

        clock.advance(1.9)
        await client.ask("ping")
        assert client.effects("read") == 1
        clock.advance(0.2)

        assert text((await within(call))["result"]) == "read"


async def test_a_call_that_is_answered_closes_the_circuit_of_its_server(journal: Path, clock: ManualClock) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        try_out(client, clock)

        await client.result("write", do="error no such file")

        assert client.hf.breaker.state("srv") is CircuitState.CLOSED


async def test_a_call_that_its_client_takes_back_leaves_it_to_the_next_to_try_the_server_out(
    journal: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        try_out(client, clock)
        client.call("write", do="hang", id="x")
        await client.next("notifications/hangs")

        client.cancel("x")

        assert text(await client.result("put")) == "put"


async def test_a_call_that_its_tool_s_circuit_refuses_leaves_it_to_the_next_to_try_the_server_out(
    journal: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        try_out(client, clock)
        client.hf.breaker.force_open("srv.write")

        refused = await client.result("write")

        assert failure(refused)["tool"] == "write"
        assert text(await client.result("put")) == "put"


async def test_what_a_changed_file_says_of_circuits_holds_for_that_of_the_server(
    journal: Path, tmp_path: Path, clock: ManualClock
) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text("", "utf-8")
    async with Stage(journal, clock=clock, policies=file) as client:
        await client.initialize()
        await client.result("read")
        file.write_text("[server.srv]\nbreaker = { failure_threshold = 1 }\n", "utf-8")
        clock.advance(2.0)

        await client.result("read")
        await client.result("write", do="kill")

        assert client.hf.breaker.state("srv") is CircuitState.OPEN


def try_out(client: Stage, clock: ManualClock) -> None:
    """The server has failed so often that one call may see how it is, and no other until that is over."""
    for _ in range(7):
        client.server.settle(ErrorCategory.NETWORK)
    clock.advance(6.0)


# --- annotations and policies ---


@pytest.mark.parametrize(("tool", "times"), [("read", 2), ("put", 2), ("write", 1), ("unlisted", 1)])
async def test_annotations_decide_what_is_repeated(tool: str, times: int, journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        result = await client.result(tool, do=["error connection refused", "answer"])

        assert client.effects(tool) == times
        assert ("isError" in result) == (times == 1)


async def test_a_tool_with_odd_annotations_does_not_spoil_those_of_the_others(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize(lists=False)
        await client.result("write", do="add_tool odd")
        listed = await client.ask("tools/list")

        await client.result("read", do=["error connection refused", "answer"])

        assert listed["result"]["tools"][-1] == {"name": "odd", "inputSchema": {}, "annotations": []}
        assert client.effects("read") == 2


async def test_without_a_list_of_tools_nothing_is_repeated(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize(lists=False)

        await client.result("read", do=["error connection refused", "answer"])

        assert client.effects("read") == 1


@pytest.mark.parametrize(("tool", "said", "times"), [("read", False, 1), ("write", True, 2)])
async def test_a_policy_overrides_what_a_tool_says_of_itself(tool: str, said: bool, times: int, journal: Path) -> None:
    async with Stage(journal, policies=policies(read_only=said, idempotent=said)) as client:
        await client.initialize()

        await client.result(tool, do=["error connection refused", "answer"])

        assert client.effects(tool) == times


async def test_tools_that_changed_are_not_repeated_until_they_are_listed_again(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        await client.result("write", do="add_tool new")
        await client.next("notifications/tools/list_changed")

        await client.result("read", do=["error connection refused", "answer"])
        assert client.effects("read") == 1
        await client.ask("tools/list")
        await client.result("put", do=["error connection refused", "answer"])

        assert client.effects("put") == 2


def test_of_tools_that_are_listed_under_ever_new_names_the_last_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.mcp.server.MOST_TOOLS", 4)
    with holdfast.open(":memory:", policies={}) as hf:
        server = ProxiedServer(hf, "srv")

        for number in range(10):
            tools = [{"name": name, "annotations": {"readOnlyHint": True}} for name in ("same", f"t{number}")]
            data = frames.result(number, {"tools": tools})
            server.learn(frames.head(data), Event(data))
            server.tool(f"t{number}")

        assert list(server._hints) == ["t7", "t8", "same", "t9"]
        assert set(server._bound) == {"t7", "t8", "t9"}
        assert server.tool("same").tool.policy.read_only


def test_of_tools_that_are_called_those_that_no_list_names_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.mcp.server.MOST_TOOLS", 3)
    with holdfast.open(":memory:", policies={}) as hf:
        server = ProxiedServer(hf, "srv")
        data = frames.result(1, {"tools": [{"name": "listed"}]})
        server.learn(frames.head(data), Event(data))

        for name in ("listed", "a", "b", "c", "d"):
            server.tool(name)
        server.forget()

        assert hf._box.names() == ["srv.listed", "srv.c", "srv.d"]


def test_a_tool_whose_name_is_far_too_long_is_guarded_but_not_kept() -> None:
    with holdfast.open(":memory:", policies={}) as hf:
        server = ProxiedServer(hf, "srv")
        name = "n" * 10_000
        data = frames.result(1, {"tools": [{"name": name}, {"name": "short"}]})

        server.learn(frames.head(data), Event(data))
        called = server.tool(name)

        assert called.tool.name == server.full_name(name)
        assert not server._bound
        assert list(server._hints) == ["short"]


async def test_a_batch_may_say_that_the_tools_have_changed(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.call("write", do='raw [{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}]')
        await client.next("notifications/tools/list_changed")

        await client.result("read", do=["error connection refused", "answer"])

        assert client.effects("read") == 1


async def test_the_policies_of_a_file_hold_per_server_per_tool_and_by_pattern(
    journal: Path, tmp_path: Path, clock: ManualClock
) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text(
        """
        [policy]
        deadline = 40.0
        [server.srv]
        deadline = 30.0
        [server.srv.tool."w*"]
        deadline = 20.0
        [server.srv.tool.write]
        deadline = 10.0
        [server.other]
        deadline = 1.0
        """,
        "utf-8",
    )
    async with Stage(journal, clock=clock, policies=file) as client:
        await client.initialize()

        for tool, seconds in [("write", 10.0), ("wipe", 20.0), ("read", 30.0)]:
            call = client.call(tool, do="hang")
            await client.next("notifications/hangs")
            clock.advance(seconds)
            assert f"no answer within {seconds:g} s" in text((await within(call))["result"])
            await client.ask("ping")


async def test_a_deadline_of_every_tool_overrides_the_fifty_seconds(journal: Path, clock: ManualClock) -> None:
    async with Stage(journal, clock=clock, policies={"policy": {"deadline": 7.0}}) as client:
        await client.initialize()
        call = client.call("write", do="hang")
        await client.next("notifications/hangs")

        clock.advance(7.1)

        assert "no answer within 7 s" in text((await within(call))["result"])


# --- answers in its place ---


async def test_the_cache_answers_a_tool_that_only_reads_under_the_new_id(journal: Path) -> None:
    async with Stage(journal, policies=policies(cache=60)) as client:
        await client.initialize()

        first = await within(client.call("read", id="a", say="x"))
        second = await within(client.call("read", id="b", say="x"))
        await client.result("write", say="x")
        await client.result("write", say="x")

        assert (first["id"], second["id"]) == ("a", "b")
        assert first["result"] == second["result"]
        assert client.effects("read") == 1
        assert client.effects("write") == 2


@pytest.mark.parametrize("tool", [b"read", b"away"], ids=["itself", "in place of another"])
@pytest.mark.parametrize(
    ("odd", "other"),
    [(rb'"\ud800"', rb'"\udfff"'), (b"NaN", b'"NaN"'), (b'"NaN"', b"NaN")],
    ids=["half", "nan", "text"],
)
async def test_arguments_that_cannot_be_read_as_they_are_are_neither_kept_nor_answered_from_the_cache(
    odd: bytes, other: bytes, tool: bytes, journal: Path
) -> None:
    rules = policies(cache=60)
    rules["server"]["srv"]["tool"]["away"] = {"fallback": {"tool": "srv.read"}}
    async with Stage(journal, policies=rules) as client:
        await client.initialize()
        client.hf.breaker.force_open("srv.away")

        for id, value in ((8, odd), (9, other)):
            answer = client.expect(id)
            params = b'{"name":"%b","arguments":{"x":%b}}' % (tool, value)
            client.say(b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%b}' % (id, params))
            await within(answer)

        assert client.effects("read") == 2


async def test_identical_reads_at_the_same_time_are_made_once(journal: Path) -> None:
    async with Stage(journal, policies=policies(cache=60, loop=False)) as client:
        await client.initialize()
        calls = [client.call("read", do="hold a") for _ in range(5)]
        await client.next("notifications/holds")

        await client.result("put", do="release a")

        assert [text((await within(call))["result"]) for call in calls] == ["released a"] * 5
        assert client.effects("read") == 1


async def test_who_waits_for_the_answer_to_an_identical_read_is_told_that_it_was_called(journal: Path) -> None:
    async with Stage(journal, policies=policies(cache=60, retry=False)) as client:
        await client.initialize()
        calls = [client.call("read", do="hold a") for _ in range(2)]
        await client.next("notifications/holds")

        client.call("write", do="kill")

        assert [failure((await within(call))["result"])["called"] for call in calls] == [True, True]


@pytest.mark.parametrize("do", ["error no such file", "rpc -32602 no such argument"])
async def test_who_waits_for_the_answer_to_an_identical_read_gets_the_server_s_own_error(
    do: str, journal: Path
) -> None:
    async with Stage(journal, policies=policies(cache=60, loop=False)) as client:
        await client.initialize()

        first, second = [await within(call) for call in [client.call("read", do=do) for _ in range(2)]]

        assert second == {**first, "id": second["id"]}
        assert second["id"] != first["id"]
        assert client.effects("read") == 1


async def test_a_failure_is_not_kept(journal: Path) -> None:
    async with Stage(journal, policies=policies(cache=60, retry=False)) as client:
        await client.initialize()
        await client.result("read", do=["error connection refused", "answer"])

        assert text(await client.result("read", do=["error connection refused", "answer"])) == "read"


@pytest.mark.parametrize(
    ("value", "said"),
    [("nothing", "nothing"), ({"content": [{"type": "text", "text": "x"}]}, "x"), ({"found": 0}, '{"found":0}')],
)
async def test_a_fixed_value_answers_for_a_tool_that_cannot(value: object, said: str, journal: Path) -> None:
    async with Stage(journal, policies=policies(fallback={"value": value}, retry=False)) as client:
        await client.initialize()

        refused = await within(client.call("write", do="error connection refused"))
        died = await client.result("put", do="kill")

        assert text(refused["result"]) == said
        assert text(died) == said


async def test_another_tool_of_the_server_answers_for_one_that_cannot(journal: Path) -> None:
    rules: dict[str, Any] = {"server": {"srv": {"tool": {"read": {"fallback": {"tool": "srv.other"}, "retry": False}}}}}
    rules["server"]["srv"]["tool"]["other"] = {"retry": False}
    async with Stage(journal, policies=rules) as client:
        await client.initialize()

        answer = await within(client.call("read", id="a", do=["error connection refused"], secret="hunter2"))

        assert answer["id"] == "a"
        assert answer["result"]["isError"] is True  # it was told the same, and failed as well
        assert client.effects("other") == 1
        assert client.journal("tools/call")[-1]["params"]["arguments"] == {
            "do": ["error connection refused"],
            "secret": "hunter2",
        }
        client.hf.breaker.force_open("srv.read")
        assert text(await client.result("read", say="by the other")) == "by the other"
        client.hf.runs.writer.flush()
        (run,) = client.hf.runs.list_runs()
        begun = [event.payload for event in client.hf.runs.events(run.id) if event.type == "tool_started"]
        assert (begun[-1]["tool"], begun[-1]["arguments"]) == ("srv.other", {"say": "by the other"})


async def test_no_other_tool_of_a_server_that_is_down_answers_for_one(journal: Path) -> None:
    rules = {"server": {"srv": {"tool": {"write": {"fallback": {"tool": "srv.other"}}}}}}
    async with Stage(journal, policies=rules) as client:
        await client.initialize()
        client.hf.breaker.force_open("srv")

        result = await client.result("write")

        assert (failure(result)["kind"], failure(result)["tool"]) == ("CircuitOpen", "write")
        assert "its server 'srv' is down" in text(result)
        assert not client.journal("tools/call")


async def test_another_tool_may_try_the_server_out_for_one_that_its_circuit_refuses(
    journal: Path, clock: ManualClock
) -> None:
    rules = {"server": {"srv": {"tool": {"write": {"fallback": {"tool": "srv.other"}}}}}}
    async with Stage(journal, clock=clock, policies=rules) as client:
        await client.initialize()
        try_out(client, clock)
        client.hf.breaker.force_open("srv.write")

        assert text(await client.result("write", say="by the other")) == "by the other"
        assert client.hf.breaker.state("srv") is CircuitState.CLOSED


@pytest.mark.parametrize(("to", "answers"), [("srv.other", True), ("elsewhere.other", False)], ids=["own", "another's"])
async def test_who_answers_for_a_tool_that_cannot_is_as_the_changed_file_has_it(
    to: str, answers: bool, journal: Path, clock: ManualClock, tmp_path: Path
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("")
    async with Stage(journal, clock=clock, policies=file) as client:
        await client.initialize()
        await client.result("read")
        ProxiedServer(client.hf, "elsewhere").tool("other")
        client.hf.breaker.force_open("srv.read")

        file.write_text(f'[server.srv.tool.read]\nfallback = {{ tool = "{to}" }}\n')
        clock.advance(2.0)
        await client.result("read")

        assert client.effects("other") == answers


async def test_a_refusal_of_the_tool_that_answers_for_another_says_that_the_other_was_called(journal: Path) -> None:
    rules = {"server": {"srv": {"tool": {"write": {"fallback": {"tool": "srv.other"}}}}}}
    async with Stage(journal, policies=rules) as client:
        await client.initialize()
        client.hf.breaker.force_open("srv.other")

        result = await client.result("write", do="kill")

        assert (failure(result)["kind"], failure(result)["called"]) == ("CircuitOpen", True)
        assert "outcome is unknown" in text(result)


# --- progress ---


async def test_the_servers_progress_reaches_the_client_who_asked_for_it(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        await client.result("write", do="progress 0 1 2", token="t")

        assert [each["params"]["progress"] for each in client.unheard("notifications/progress")] == [0.0, 1.0, 2.0]


async def test_progress_only_grows_when_a_call_is_begun_anew(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        await client.result("read", do=["progress 1 2 exit", "progress 1 2 3"], token="t")

        assert [each["params"]["progress"] for each in client.unheard("notifications/progress")] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("token", ["t", 0, None])
async def test_a_call_that_waits_shows_a_sign_of_life_only_to_who_asked_for_it(
    token: object, journal: Path, clock: ManualClock
) -> None:
    rules = policies(rate={"per_second": 0.05, "burst": 1.0}, max_wait=40)
    async with Stage(journal, clock=clock, policies=rules) as client:
        await client.initialize()
        await client.result("write")
        call = client.call("write", n=1, token=token, do="answer" if token is None else "progress 0 5")
        await settle()

        for _ in range(4):
            clock.advance(5.0)
            await settle()
        await within(call)

        told = [each["params"] for each in client.unheard("notifications/progress")]
        values = [each["progress"] for each in told]
        assert values == sorted(set(values))
        assert len(values) == (0 if token is None else 4) or len(values) == 5
        assert all(each["progressToken"] == token for each in told)


async def test_a_call_that_is_answered_shows_no_more_signs_of_life(journal: Path, clock: ManualClock) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        await client.result("write", token="t")

        clock.advance(20.0)

        assert not client.unheard("notifications/progress")
        assert not client.session._progress


# --- hiding ---


@pytest.mark.parametrize("hides", [True, False], ids=["by wish", "by policy"])
async def test_an_open_tool_leaves_the_list_and_comes_back_when_it_may_be_tried(
    hides: bool, journal: Path, clock: ManualClock
) -> None:
    rules = policies(breaker={"failure_threshold": 1, "min_backoff": 5.0, "jitter": 0.0})
    rules["server"]["srv"]["hide_open_tools"] = not hides
    async with Stage(journal, clock=clock, policies=rules, hides=hides) as client:
        shaken = await client.initialize()
        assert shaken["result"]["capabilities"]["tools"] == {"listChanged": True}

        await client.result("write", do="error connection refused")
        await client.next("notifications/tools/list_changed")
        assert await names(client) == ["read", "other", "put"]

        clock.advance(5.1)
        await client.next("notifications/tools/list_changed")
        assert await names(client) == ["read", "other", "put", "write"]
        assert text(await client.result("write")) == "write"


async def test_of_several_open_tools_each_comes_back_when_it_may_be_tried(journal: Path, clock: ManualClock) -> None:
    waits = {"write": 5.0, "put": 50.0}
    breakers = {tool: {"failure_threshold": 1, "min_backoff": wait, "jitter": 0.0} for tool, wait in waits.items()}
    tools = {tool: {"breaker": breaker, "retry": False} for tool, breaker in breakers.items()}
    async with Stage(journal, clock=clock, policies={"server": {"srv": {"tool": tools}}}, hides=True) as client:
        await client.initialize()
        for tool in waits:
            await client.result(tool, do="error connection refused")
            await client.next("notifications/tools/list_changed")

        for wait, back in ((5.1, ["write"]), (50.0, ["put", "write"])):
            clock.advance(wait)
            await client.next("notifications/tools/list_changed")
            assert await names(client) == ["read", "other", *back]


async def test_a_tool_that_is_opened_by_hand_leaves_the_list_until_it_is_left_to_itself(journal: Path) -> None:
    async with Stage(journal, hides=True) as client:
        await client.initialize()

        client.hf.breaker.force_open("srv.write")
        await client.next("notifications/tools/list_changed")
        assert await names(client) == ["read", "other", "put"]

        client.hf.breaker.auto("srv.write")
        await client.next("notifications/tools/list_changed")
        assert await names(client) == ["read", "other", "put", "write"]


async def test_a_policy_that_hides_open_tools_from_now_on_is_heeded(
    journal: Path, tmp_path: Path, clock: ManualClock
) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text("[server.srv]\n", "utf-8")
    async with Stage(journal, clock=clock, policies=file) as client:
        await client.initialize()
        await client.result("read")
        file.write_text("[server.srv]\nhide_open_tools = true\nbreaker = { failure_threshold = 1 }\n", "utf-8")
        clock.advance(2.0)

        await client.result("read")
        await client.result("write", do="error connection refused")

        await client.next("notifications/tools/list_changed")
        assert await names(client) == ["read", "other", "put"]


@pytest.mark.parametrize("result", ["null", "[]", '{"capabilities":{"tools":{}},"instructions":"cut \\ud83d"}'])
async def test_an_odd_answer_to_the_handshake_reaches_the_client_all_the_same(result: str, journal: Path) -> None:
    said = f'{{"jsonrpc":"2.0","id":1,"result":{result}}}'
    code = f"import sys; sys.stdin.readline(); print({said!r}, flush=True); sys.stdin.read()"
    async with Stage(journal, words=[sys.executable, "-IS", "-c", code], hides=True) as client:
        assert "result" in await client.ask("initialize", INITIALIZE)


async def test_without_the_wish_to_hide_the_list_is_the_servers_byte_for_byte(journal: Path) -> None:
    async with Stage(journal, policies=policies(breaker={"failure_threshold": 1})) as client:
        await client.initialize()
        before = client.heard[-1]
        await client.result("write", do="error connection refused")

        await client.ask("tools/list", id=2)

        assert client.heard[-1] == before
        assert not client.unheard("notifications/tools/list_changed")


async def test_the_tools_that_stay_in_the_list_are_the_servers_byte_for_byte(journal: Path) -> None:
    kept = r'{"inputSchema": {"maximum": 1e400, "title": "\u00e9"}, "name": "kept"}'
    listed = f'{{"capabilities":{{"tools":{{}}}},"tools":[{kept},{{"name":"gone"}}]}}'
    code = f"""import json, sys
for line in sys.stdin:
    if "id" in (asked := json.loads(line)):
        print('{{"jsonrpc":"2.0","id":%d,"result":%s}}' % (asked["id"], {listed!r}), flush=True)
"""
    async with Stage(journal, words=[sys.executable, "-IS", "-c", code], hides=True) as client:
        await client.initialize()
        client.hf.breaker.force_open("srv.gone")

        assert await names(client) == ["kept"]

        assert kept.encode() in client.heard[-1]


async def names(client: Stage) -> list[str]:
    return [tool["name"] for tool in (await client.ask("tools/list"))["result"]["tools"]]


# --- the run ---


async def test_a_session_is_a_run_and_its_calls_are_events_without_secrets(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        await client.result("write", say="x", api_key="hunter2", nested={"password": "hunter2"})
        await client.result("read", do="error 401 unauthorized")
        client.hf.breaker.force_open("srv.put")
        await client.result("put")
        while client.hf.runs.snapshot(client.run.id).tool_denials < 1:  # it is written by and by
            await client.ask("ping")
        snapshot, events = client.hf.runs.snapshot(client.run.id), client.hf.runs.events(client.run.id)

    assert (snapshot.session_id, snapshot.tool_calls, snapshot.tool_failures) == ("srv", 2, 1)
    started = next(event for event in events if event.type == "tool_started")
    assert started.payload["tool"] == "srv.write"
    assert started.payload["arguments"]["say"] == "x"
    assert "hunter2" not in str(events)
