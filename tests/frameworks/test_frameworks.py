"""Every framework, guarded: the same scenes, played by a real agent with a scripted model in an environment of its own.

What differs between them is in `agents/`; nothing here knows more of a framework than its name.
"""

from __future__ import annotations

import re
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests import worlds
from tests.frameworks.play import Answer, Ask, Order

import holdfast

pytestmark = pytest.mark.slow


class Troupe:
    """A process in which agents of one framework are played, each by a fork of it."""

    def __init__(self, framework: str, python: Path, log: Path) -> None:
        self.framework = framework.replace("-", "_")
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [python, "-m", "tests.frameworks.play"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, env=worlds.environment(),
            )  # fmt: skip

    def play(self, order: Order) -> Answer | None:
        """What came of it; None if it was killed."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, self._log.read_text()[-3000:]
        return msgspec.json.decode(line, type=Answer | None)

    def close(self) -> None:
        """Let it end."""
        self._process.communicate()


class Stage:
    """A framework, and a place to play."""

    def __init__(self, troupe: Troupe, folder: Path) -> None:
        self.store = folder / "runs.db"
        self._journal = folder / "journal"
        self._troupe = troupe

    @property
    def journal(self) -> list[str]:
        """The calls that reached a tool."""
        return self._journal.read_text().splitlines() if self._journal.exists() else []

    def play(self, *turns: list[Ask], **order: Any) -> Answer:
        """What came of *turns*."""
        answer = self._play(turns, order)
        assert answer is not None
        return answer

    def die(self, *turns: list[Ask], **order: Any) -> None:
        """Play *turns*, in one of which the process is killed."""
        assert self._play(turns, order) is None

    def _play(self, turns: tuple[list[Ask], ...], order: dict[str, Any]) -> Answer | None:
        places = str(self.store), str(self._journal)
        return self._troupe.play(Order(self._troupe.framework, *places, list(turns), **order))


@pytest.fixture(scope="module", params=worlds.FRAMEWORKS)
def troupe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Troupe]:
    """Each framework in turn."""
    python = worlds.had(lambda: worlds.python(request.param))
    troupe = Troupe(request.param, python, tmp_path_factory.mktemp("troupe") / "log")
    yield troupe
    troupe.close()


@pytest.fixture
def stage(troupe: Troupe, tmp_path: Path) -> Stage:
    return Stage(troupe, tmp_path)


EXAMPLE = re.compile(r"^```python (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_example_of_the_documents_runs(troupe: Troupe, stage: Stage, tmp_path: Path) -> None:
    text = (worlds.ROOT / "docs" / "frameworks.md").read_text("utf-8")
    examples = {name.replace("-", "_"): code for name, code in EXAMPLE.findall(text)}
    file = tmp_path / "example.py"
    file.write_text("async def main(hf, model):\n" + textwrap.indent(examples[troupe.framework], "    "))

    answer = stage.play([Ask("search", {"query": "tea"})], example=str(file))

    assert answer.error is None
    assert answer.calls == {"search": (1, 0)}
    with holdfast.open(stage.store, policies={}) as hf:
        (run,) = hf.runs.list_runs()
        assert (run.session_id, run.status, run.tool_calls) == ("tea-shop", "completed", 1)


def ask(tool: str, value: object) -> Ask:
    names = {"weather": "city", "pay": "amount", "stop": "reason"}
    return Ask(tool, {names.get(tool, "key"): value})


@pytest.mark.parametrize("plain", [False, True], ids=["coroutines", "functions"])
def test_the_model_is_told_what_a_tool_gave(stage: Stage, plain: bool) -> None:
    answer = stage.play([ask("weather", "Oslo")], [ask("pay", 5)], plain=plain)

    assert answer.error is None
    assert answer.told == ["sunny in Oslo", "paid 5"]
    assert answer.calls == {"weather": (1, 0), "pay": (1, 0)}
    assert stage.journal == ["weather Oslo", "pay 5"]


def test_calls_of_one_turn_are_told_apart(stage: Stage) -> None:
    answer = stage.play([ask("weather", "Oslo"), ask("weather", "Bergen"), ask("pay", 5)])

    assert answer.told == ["sunny in Oslo", "sunny in Bergen", "paid 5"]


def test_a_failure_that_passes_is_not_for_the_model(stage: Stage) -> None:
    policies = {"tool": {"flaky": {"read_only": True, "retry": {"attempts": 3, "initial": 0.01}}}}

    answer = stage.play([ask("flaky", "tea")], policies=policies)

    assert answer.told == ["came through for tea"]
    assert stage.journal == ["flaky tea"] * 3


def test_a_tool_that_must_not_be_repeated_is_not(stage: Stage) -> None:
    stage.play([ask("flaky", "tea")])

    assert stage.journal == ["flaky tea"]


def test_the_model_is_told_of_a_refusal_and_the_tool_is_not_called(stage: Stage) -> None:
    policies = {"tool": {"pay": {"rate": {"per_second": 0.001, "burst": 1}, "max_wait": 0.0}}}

    answer = stage.play([ask("pay", 1)], [ask("pay", 2)], [ask("weather", "Oslo")], policies=policies)

    assert answer.error is None
    assert answer.told is not None
    paid, refused, weather = answer.told
    assert (paid, weather) == ("paid 1", "sunny in Oslo")
    assert "The tool 'pay' was not called: its rate limit is used up" in refused
    assert stage.journal == ["pay 1", "weather Oslo"]


def test_the_model_is_told_of_a_tool_that_hangs(stage: Stage) -> None:
    policies = {"tool": {"hang": {"timeout": 0.2}}}

    answer = stage.play([ask("hang", "tea")], [ask("weather", "Oslo")], policies=policies)

    assert answer.told is not None
    late, weather = answer.told
    assert "The tool 'hang' gave no answer within 0.2 s." in late
    assert weather == "sunny in Oslo"
    assert answer.calls["hang"] == (0, 1)


def test_a_tools_own_failure_goes_the_way_of_the_framework_and_counts(stage: Stage) -> None:
    bare = stage.play([ask("broken", "tea")], guarded=False)

    answer = stage.play([ask("broken", "tea")])

    assert (answer.told, answer.error) == (bare.told, bare.error)
    assert answer.calls["broken"] == (0, 1)
    assert stage.journal == ["broken tea"] * 2


def test_settings_of_all_tools_lie_below_those_of_a_policy(stage: Stage) -> None:
    policies = {"tool": {"flaky": {"retry": False}}}
    settings = {"idempotent": True, "retry": {"attempts": 3, "initial": 0.01}}

    stage.play([ask("flaky", "tea")], settings=settings)
    stage.play([ask("flaky", "milk")], settings=settings, policies=policies)

    assert stage.journal == ["flaky tea"] * 3 + ["flaky milk"]


def test_an_answer_is_kept_where_a_policy_says_so(stage: Stage) -> None:
    policies = {"tool": {"weather": {"read_only": True, "cache": 60.0}}}

    answer = stage.play([ask("weather", "Oslo")], [ask("weather", "Oslo")], policies=policies)

    assert answer.told == ["sunny in Oslo"] * 2
    assert stage.journal == ["weather Oslo"]


@pytest.mark.parametrize("plain", [False, True], ids=["coroutines", "functions"])
def test_a_function_that_is_decorated_is_guarded_once(stage: Stage, plain: bool) -> None:
    policies = {"tool": {"pay": {"rate": {"per_second": 0.001, "burst": 1}, "max_wait": 0.0}}}
    turns = [ask("pay", 1)], [ask("pay", 2)], [ask("weather", "Oslo")]

    answer = stage.play(*turns, policies=policies, run="trip", plain=plain, decorated=True)

    assert answer.error is None
    assert answer.told is not None
    paid, refused, weather = answer.told
    assert (paid, weather) == ("paid 1", "sunny in Oslo")
    assert "The tool 'pay' was not called: its rate limit is used up" in refused
    assert answer.calls == {"pay": (1, 0), "weather": (1, 0)}
    with holdfast.open(stage.store, policies={}) as hf:
        snapshot = hf.runs.snapshot("trip")
        assert (snapshot.tool_calls, snapshot.tool_denials) == (2, 1)


@pytest.mark.parametrize("plain", [False, True], ids=["coroutines", "functions"])
def test_tools_know_the_run_that_their_agent_is_in(stage: Stage, plain: bool) -> None:
    answer = stage.play([ask("whose", "it")], run="trip", plain=plain)

    assert answer.told == ["trip's"]
    with holdfast.open(stage.store, policies={}) as hf:
        assert hf.runs.snapshot("trip").tool_calls == 1
        assert hf.runs.snapshot("trip").status == "completed"


@pytest.mark.parametrize("plain", [False, True], ids=["coroutines", "functions"])
def test_an_agent_that_was_killed_goes_on_and_repeats_nothing(stage: Stage, plain: bool) -> None:
    policies = {"tool": {"die": {"idempotent": True}, "hang": {"timeout": 0.2}}}
    slow = (
        "weather" if plain else "hang"
    )  # some frameworks call functions in the event loop, where nothing cuts them off
    turns = (
        [ask("pay", 1), ask("pay", 2), ask("pay", 1)],
        [ask(slow, "tea")],
        [ask("die", "now")],
        [ask("pay", 3)],
    )
    stage.die(*turns, policies=policies, run="trip", plain=plain)

    answer = stage.play(*turns, policies=policies, resume="trip", plain=plain)

    assert answer.error is None
    assert answer.told is not None
    late = answer.told.pop(3)
    assert answer.told == ["paid 1", "paid 2", "paid 1", "survived now", "paid 3"]
    assert ("sunny in tea" if plain else "The tool 'hang' gave no answer within 0.2 s.") in late
    made = sorted(each for each in stage.journal if not each.startswith("die"))
    assert made == sorted([f"{slow} tea", "pay 1", "pay 1", "pay 2", "pay 3"])


def test_a_call_in_doubt_is_never_made_again_in_silence(stage: Stage) -> None:
    stage.die([ask("die", "now")], run="trip")

    stage.play([ask("die", "now")], resume="trip")

    assert stage.journal == ["die now"]


def test_a_run_that_is_cancelled_ends_its_agent(stage: Stage) -> None:
    answer = stage.play([ask("stop", "enough")], [ask("pay", 1)], [ask("pay", 2)], run="trip")

    assert answer.told is None
    assert answer.error is not None
    assert stage.journal == []
    with holdfast.open(stage.store, policies={}) as hf:
        assert hf.runs.snapshot("trip").status == "cancelled"
