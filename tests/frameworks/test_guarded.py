"""A framework's call of a tool as a guarded call, without a framework."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast
from holdfast import ConfigError, Holdfast, InDoubt, ToolTimeout
from holdfast.errors import ErrorCategory
from holdfast.frameworks.guarded import Aside, Failed, Guarded, decorated, text
from holdfast.testing import ManualClock, Script, fail, ok

Call = Callable[..., Any]
RETRIED = {"idempotent": True, "retry": {"initial": 0.001}}


class Pause(Exception):
    """How a framework steers itself."""


class Crash(Exception):
    """The end of a run, which is resumed then."""


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(tmp_path / "runs.db", policies={}) as hf:
        yield hf


@pytest.fixture(params=["call", "acall"])
def ask(request: pytest.FixtureRequest) -> Call:
    """Makes a call of a script by the guards of a tool, as plain code or as a task."""
    is_task = request.param == "acall"

    def ask(guarded: Guarded, script: Script, name: str = "pay", **arguments: Any) -> Any:
        fn = partial(_amade if is_task else _made, script)
        made = getattr(guarded, request.param)(name, fn, arguments, "refused: {}".format)
        return asyncio.run(made) if is_task else made

    return ask


def _made(script: Script, /, **arguments: object) -> str:
    return script.function()  # type: ignore[no-any-return]


async def _amade(script: Script, /, **arguments: object) -> str:
    return await script.coroutine()  # type: ignore[no-any-return]


def crash(run: holdfast.Run, *asked: Callable[[], object]) -> list[object]:
    """What came of the calls of a run that crashes after them."""
    came: list[object] = []
    with suppress(Crash), run:
        came += [each() for each in asked]
        raise Crash
    return came


# --- what goes back ---


def test_the_tools_own_answers_and_errors_go_back_as_they_are(hf: Holdfast, ask: Call) -> None:
    guarded, answer, error = Guarded(hf, {}), object(), ValueError("no such row")

    assert ask(guarded, Script(ok(answer))) is answer
    with pytest.raises(ValueError, match="no such row") as raised:
        ask(guarded, Script(fail(error)))
    assert raised.value is error


def test_a_failure_that_is_an_answer_counts_and_goes_back_as_it_is(hf: Holdfast, ask: Call) -> None:
    guarded, answer = Guarded(hf, RETRIED), object()
    script = Script(fail(Failed("connection refused", object())), fail(Failed("no such row", answer)))

    assert ask(guarded, script) is answer
    assert script.count == 2  # the first could be tried again
    assert hf.tracker.stats("pay").failed == 1


def test_such_a_failure_is_told_again_from_the_log(hf: Holdfast, ask: Call) -> None:
    failed = Script(fail(Failed("no such row", "answer", category=ErrorCategory.INVALID_PARAMETERS)))

    first = crash(hf.run(run_id="trip"), lambda: ask(Guarded(hf, {}), failed))
    with hf.resume("trip"):
        second = ask(Guarded(hf, {}), Script(ok("never")))

    assert first == ["answer"]
    assert second == "refused: no such row"


def test_a_refusal_is_told_and_nothing_is_called(hf: Holdfast, ask: Call) -> None:
    guarded, script = Guarded(hf, {}), Script(ok("paid"))
    hf.breaker.force_open("pay")

    assert ask(guarded, script).startswith("refused: The tool 'pay' was not called:")
    assert script.count == 0


@pytest.mark.parametrize(
    ("settings", "late", "advice"),
    [
        ({}, "pay", "Its outcome is unknown"),
        ({"read_only": True}, "pay", "It changes nothing"),
        ({"read_only": True}, "other", "Its outcome is unknown"),  # that the tool has called
    ],
)
def test_of_a_tool_that_hangs_the_model_is_told_what_it_can_do(
    hf: Holdfast, ask: Call, settings: dict[str, Any], late: str, advice: str
) -> None:
    script = Script(fail(ToolTimeout(late, 0.01)))

    said = ask(Guarded(hf, {"retry": False, **settings}), script)

    assert said.startswith(f"refused: The tool '{late}' gave no answer within 0.01 s. {advice}")


def test_a_refusal_of_another_tool_does_not_hide_that_this_one_was_called(hf: Holdfast, ask: Call) -> None:
    hf.tool("backup")(lambda **arguments: "instead")
    hf.breaker.force_open("backup")
    guarded = Guarded(hf, {"fallback": {"tool": "backup"}})

    said = ask(guarded, Script(fail(ConnectionError("connection refused"))))

    assert said.startswith("refused: The tool 'backup' was not called:")
    assert "a tool that had been called" in said
    assert "outcome is unknown" in said


def test_nor_does_one_inside_of_a_tool_with_guards_of_its_own(hf: Holdfast) -> None:
    hf.breaker.force_open("notify")

    @hf.tool
    async def pay() -> None:
        await hf.acall(notify)

    own = Guarded(hf, {}).guards(pay)
    assert own is not None
    said = asyncio.run(decorated(own, pay(), str))

    assert said.startswith("The tool 'notify' was not called:")
    assert "outcome is unknown" in said


async def notify() -> None:
    pytest.fail("was called")


# --- what says nothing about the tool ---


def test_a_framework_that_steers_itself_is_no_failure_of_the_tool(hf: Holdfast, ask: Call) -> None:
    guarded, error = Guarded(hf, {"idempotent": True}), Pause()
    script = Script(fail(Aside(error)))

    with pytest.raises(Pause) as raised:
        ask(guarded, script)

    assert raised.value is error
    assert script.count == 1
    assert hf.tracker.stats("pay").failed == 0


def test_to_a_run_such_a_call_is_in_doubt(hf: Holdfast, ask: Call) -> None:
    again = Script(ok("paid"))

    crash(hf.run(run_id="trip"), lambda: pause(hf, ask))
    with hf.resume("trip"), pytest.raises(InDoubt):
        ask(Guarded(hf, {}), again)

    assert again.count == 0


def test_a_call_in_doubt_that_is_made_again_has_the_arguments_of_the_model(hf: Holdfast) -> None:
    def call(script: Script) -> object:
        return Guarded(hf, {}).call("pay", partial(_made, script), {"amount": 5}, str)

    def cut() -> None:
        with pytest.raises(Pause):
            call(Script(fail(Aside(Pause()))))

    crash(hf.run(run_id="trip"), cut)
    with hf.resume("trip") as run:
        with pytest.raises(InDoubt) as doubt:
            call(Script(ok("paid")))
        answer = doubt.value.repeat()

    started = [each.payload["arguments"] for each in hf.runs.events(run.id) if each.type == "tool_started"]
    assert answer == "paid"
    assert started == [{"amount": 5}]


def test_one_that_is_called_again_by_rule_was_not_made(hf: Holdfast, ask: Call) -> None:
    again = Script(ok("paid"))

    crash(hf.run(run_id="trip"), lambda: pause(hf, ask, again=True))
    came = crash(hf.resume("trip"), lambda: ask(Guarded(hf, {}), again))

    assert came == ["paid"]
    assert again.count == 1
    assert hf.runs.snapshot("trip").tool_calls == 0


def test_but_if_it_had_failed_before_that_it_is_in_doubt(hf: Holdfast, ask: Call) -> None:
    def paused() -> None:
        retried = Guarded(hf, RETRIED)
        script = Script(fail(ConnectionError("connection reset")), fail(Aside(Pause(), again=True)))
        with pytest.raises(Pause):
            ask(retried, script)

    crash(hf.run(run_id="trip"), paused)
    with hf.resume("trip"), pytest.raises(InDoubt):
        ask(Guarded(hf, {}), Script(ok("never")))  # by now it is not idempotent any more


def test_a_call_that_went_on_is_known_and_the_pause_before_it_is_forgotten(hf: Holdfast, ask: Call) -> None:
    script = Script(ok("never"))

    crash(
        hf.run(run_id="trip"),
        lambda: pause(hf, ask, again=True),
        lambda: ask(Guarded(hf, {}), Script(ok("paid"))),
    )
    with hf.resume("trip"):
        assert ask(Guarded(hf, {}), script) == "paid"
    assert script.count == 0


def pause(hf: Holdfast, ask: Call, *, again: bool = False) -> None:
    """A call that the framework puts off."""
    with pytest.raises(Pause):
        ask(Guarded(hf, {}), Script(fail(Aside(Pause(), again=again))))


# --- calls that others make ---


def watch(guarded: Guarded, script: Script, **arguments: Any) -> Any:
    return asyncio.run(guarded.awatch("pay", partial(_amade, script), arguments, "refused: {}".format))


def test_a_call_that_others_make_is_not_repeated_nor_answered_in_its_place(hf: Holdfast) -> None:
    guarded = Guarded(hf, {**RETRIED, "read_only": True, "cache": 60.0, "fallback": {"value": "instead"}})
    script = Script(fail(Failed("connection refused", "down")), ok("paid"), ok("paid again"))

    came = [watch(guarded, script) for _ in range(3)]

    assert came == ["down", "paid", "paid again"]
    assert hf.tracker.stats("pay").failed == 1


def test_it_is_refused_like_any_other(hf: Holdfast) -> None:
    hf.breaker.force_open("pay")
    script = Script(ok("never"))

    assert watch(Guarded(hf, {}), script).startswith("refused: The tool 'pay' was not called:")
    assert script.count == 0


def test_it_is_in_the_log_of_its_run_and_not_known_again(hf: Holdfast) -> None:
    script = Script(ok("paid"), ok("paid again"))

    first = crash(hf.run(run_id="trip"), lambda: watch(Guarded(hf, {}), script, amount=5))
    with hf.resume("trip") as run:
        second = watch(Guarded(hf, {}), script, amount=5)

    assert (first, second) == (["paid"], "paid again")
    for id in ("trip", run.id):
        (started,) = [each.payload for each in hf.runs.events(id) if each.type == "tool_started"]
        assert started["arguments"] == {"amount": 5}


def test_one_that_fails_again_and_again_is_a_loop(hf: Holdfast) -> None:
    script = Script(*[fail(Failed("no such row", "failed"))] * 3)

    with hf.run():
        came = [watch(Guarded(hf, {}), script, amount=5) for _ in range(4)]

    assert came[:3] == ["failed"] * 3
    assert "keeps failing" in came[3]


# --- names ---


def test_a_decorated_tool_of_the_same_name_keeps_its_function_and_its_settings(hf: Holdfast, ask: Call) -> None:
    hf.tool("pay", max_wait=7.0)(lambda: "decorated")
    guarded = Guarded(hf, {"max_wait": 3.0})

    assert ask(guarded, Script(ok("the agent's"))) == "the agent's"
    assert hf.call("pay") == "decorated"
    assert _patience(hf) == 7.0
    assert hf.tracker.stats("pay").successful == 2


def test_one_that_is_decorated_later_takes_the_name(hf: Holdfast, ask: Call) -> None:
    guarded = Guarded(hf, {"max_wait": 3.0})
    ask(guarded, Script(ok("the agent's")))

    hf.tool("pay", max_wait=7.0)(lambda: "decorated")

    assert ask(guarded, Script(ok("the agent's"))) == "the agent's"
    assert hf.call("pay") == "decorated"
    assert _patience(hf) == 7.0


def test_of_two_agents_with_a_tool_of_the_same_name_the_later_has_its_settings(hf: Holdfast, ask: Call) -> None:
    first, second = Guarded(hf, {"max_wait": 3.0}), Guarded(hf, {"max_wait": 7.0})
    for each in (first, second, first):
        ask(each, Script(ok("paid")))

    assert _patience(hf) == 7.0
    assert hf.tracker.stats("pay").successful == 3


def test_an_agents_tool_is_not_called_by_its_name(hf: Holdfast, ask: Call) -> None:
    ask(Guarded(hf, {}), Script(ok("paid")))

    with pytest.raises(ConfigError, match="pay is a tool of an agent"):
        hf.call("pay")


def test_an_agents_tool_does_not_answer_for_another(ask: Call) -> None:
    with holdfast.open(":memory:", policies={"tool": {"pay": {"fallback": {"tool": "other"}}}}) as hf:
        guarded = Guarded(hf, {})
        ask(guarded, Script(ok("other")), "other")

        with pytest.raises(ConfigError, match="other is a tool of an agent"):
            ask(guarded, Script(fail(ConnectionError("connection refused"))))


def test_a_function_with_guards_of_its_own_is_known(hf: Holdfast) -> None:
    def pay() -> str:
        return "paid"

    decorated = hf.tool("billing")(pay)

    found = Guarded(hf, {}).guards(decorated)

    assert found is not None
    assert (found.tool.name, found.fn) == ("billing", pay)
    assert Guarded(hf, {}).guards(pay) is None
    assert Guarded(hf, {}).guards(None) is None
    with holdfast.open(":memory:", policies={}) as other:
        assert Guarded(other, {}).guards(decorated) is None  # those are another's


def _patience(hf: Holdfast) -> float:
    return next(each for each in hf._box._all() if each.name == "pay").policy.max_wait


# --- at once, and anew ---


def test_many_threads_make_their_first_calls_at_once(hf: Holdfast, hurried: None) -> None:
    guarded = Guarded(hf, {"concurrency": 50})
    begin = threading.Barrier(16)

    def call(number: int) -> None:
        begin.wait()
        for turn in range(20):
            guarded.call(f"tool{turn}", partial(_made, Script(ok("done"))), {"number": number}, str)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert [hf.tracker.stats(f"tool{turn}").successful for turn in range(20)] == [16] * 20


def test_a_changed_policy_file_is_taken_up(clock: ManualClock, tmp_path: Path, ask: Call) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text("")
    with holdfast.open(":memory:", policies=path, clock=clock) as hf:
        guarded = Guarded(hf, {})
        assert ask(guarded, Script(ok("paid"))) == "paid"
        path.write_text("[tool.pay]\nrate = { per_second = 0.001, burst = 1 }\nmax_wait = 0.0\n")
        os.utime(path, (1, 1))
        clock.advance(1.0)

        said = [ask(guarded, Script(ok("paid"))) for _ in range(3)]

    assert said[-1].startswith("refused: The tool 'pay' was not called: its rate limit")


# --- mistakes ---


@pytest.mark.parametrize("wrong", [None, "hf", holdfast, Holdfast])
def test_what_is_no_holdfast_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="must be a Holdfast"):
        Guarded(wrong, {})


def test_a_wrong_setting_is_refused_at_once(hf: Holdfast) -> None:
    with pytest.raises(ConfigError, match="did you mean timeout"):
        Guarded(hf, {"timout": 3.0})


def test_tools_that_are_no_list_are_refused_at_once(hf: Holdfast) -> None:
    with pytest.raises(ConfigError, match="must be a list of tools"):
        Guarded(hf, {}).each(None, _guarded)


def test_a_tool_that_is_guarded_already_is_refused_at_once(hf: Holdfast, tmp_path: Path) -> None:
    tool, left = SimpleNamespace(name="pay"), SimpleNamespace(name="hosted", is_left=True)
    guarded = Guarded(hf, {}).each([tool, left], _guarded)

    assert guarded[1] is left
    assert (vars(tool), vars(left)) == ({"name": "pay"}, {"name": "hosted", "is_left": True})
    assert len(Guarded(hf, {}).each([tool, left], _guarded)) == 2  # of another agent
    with pytest.raises(ConfigError, match="'pay': is guarded already"):
        Guarded(hf, {}).each(guarded, _guarded)
    with holdfast.open(tmp_path / "others.db", policies={}) as other:
        assert len(Guarded(other, {}).each(guarded, _guarded)) == 2


def _guarded(guarded: Guarded, tool: Any) -> Any:
    return tool if hasattr(tool, "is_left") else copy(tool)


@pytest.mark.parametrize(
    ("value", "said"), [("a", "a"), ({"a": [1]}, '{"a":[1]}'), (None, "null"), (["\ud800"], "['\\ud800']"), (1j, "1j")]
)
def test_an_answer_of_a_policy_is_told_as_text(value: object, said: str) -> None:
    assert text(value) == said


@pytest.mark.parametrize(
    ("framework", "missing", "package"),
    [
        ("agent_framework", "agent_framework", "agent-framework"),
        ("claude_agent", "claude_agent_sdk", "claude-agent-sdk"),
        ("fastmcp", "fastmcp.exceptions", "fastmcp"),
        ("google_adk", "google.adk", "google-adk"),
        ("langchain", "langchain.agents", "langchain"),
        ("llama_index", "llama_index.core", "llama-index-core"),
        ("openai_agents", "agents", "openai-agents"),
        ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("smolagents", "smolagents", "smolagents"),
    ],
)
def test_of_a_framework_that_is_not_there_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch, framework: str, missing: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(ModuleNotFoundError, match=rf"; pip install -U {package}$"):
        import_module(f"holdfast.frameworks.{framework}")
