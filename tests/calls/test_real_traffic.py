"""Tool calls of real agents played again, each agent's run in a run of ours; `data/README.md` says whose they are.

What holds must hold whether calls of unknown outcome count as successes or as failures.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Denied, Holdfast
from holdfast.testing import ManualClock, Recorder

DATA = Path(__file__).parents[1] / "data" / "tool_calls.jsonl.gz"

Key = tuple[str, str]


class Call(msgspec.Struct):
    """One line of the recording."""

    source: str
    run: str
    seq: int
    tool: str
    arguments: dict[str, Any]
    status: str

    @property
    def key(self) -> Key:
        return self.tool, json.dumps(self.arguments, sort_keys=True)


class Played(msgspec.Struct):
    """A call and what became of it: ok, error, timeout, or the name of the refusal."""

    call: Call
    ended: str


@pytest.fixture(scope="module")
def runs() -> list[list[Call]]:
    found: dict[tuple[str, str], list[Call]] = {}
    decode = msgspec.json.Decoder(Call).decode
    with gzip.open(DATA) as lines:
        for line in lines:
            call = decode(line)
            found.setdefault((call.source, call.run), []).append(call)
    return list(found.values())


@pytest.fixture(params=["ok", "error"], ids=["unknown-is-success", "unknown-is-failure"])
def unknown(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def hf(clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.open(policies={}, clock=clock) as hf:
        yield hf


@pytest.fixture
def lenient(clock: ManualClock) -> Iterator[Holdfast]:
    """Without circuits, so that the loop guard alone refuses."""
    with holdfast.open(policies={"policy": {"breaker": False}}, clock=clock) as hf:
        yield hf


class Player:
    """Plays runs with guarded fake tools that answer as it was recorded."""

    def __init__(self, hf: Holdfast, clock: ManualClock, unknown: str) -> None:
        self.played: list[list[Played]] = []
        self._hf = hf
        self._clock = clock
        self._unknown = unknown
        self._tools: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {}
        self._answer = "ok"

    def one_after_another(self, runs: list[list[Call]]) -> None:
        async def play() -> None:
            for run in runs:
                self.played.append(await self._play(run))

        asyncio.run(play())

    def all_at_once(self, runs: list[list[Call]]) -> None:
        async def play() -> None:
            self.played.extend(await asyncio.gather(*map(self._play, runs)))

        asyncio.run(play())

    async def _play(self, run: list[Call]) -> list[Played]:
        played = []
        async with self._hf.run(session=run[0].source, run_id=run[0].run):
            for call in run:
                played.append(Played(call, await self._make(call)))
                await asyncio.sleep(0)  # lets another run have its turn
        return played

    async def _make(self, call: Call) -> str:
        self._clock.advance(1.0)
        self._answer = self._unknown if call.status == "unknown" else call.status
        try:
            await self._tool(call.tool)(**call.arguments)
        except Denied as denied:
            return type(denied).__name__
        except TimeoutError:
            return "timeout"
        except RuntimeError:
            return "error"
        return "ok"

    def _tool(self, name: str) -> Callable[..., Coroutine[Any, Any, None]]:
        async def tool(**arguments: object) -> None:
            if self._answer == "timeout":
                raise TimeoutError
            if self._answer == "error":
                raise RuntimeError("the tool said no")

        if name not in self._tools:
            self._tools[name] = self._hf.tool(name)(tool)
        return self._tools[name]

    def counts(self) -> Counter[str]:
        return Counter(each.ended for run in self.played for each in run)


def looping(run: list[Played]) -> list[bool]:
    """For each call of a run whether it failed three times within the last eight that were made, by plain counting."""
    made: list[tuple[Key, bool]] = []
    verdicts = []
    for each in run:
        verdicts.append(sum(key == each.call.key and failed for key, failed in made[-8:]) >= 3)
        if each.ended in {"ok", "error", "timeout"}:
            made.append((each.call.key, each.ended != "ok"))
    return verdicts


def test_the_recording_is_what_its_description_says(runs: list[list[Call]]) -> None:
    calls = [call for run in runs for call in run]

    assert len(runs) == 782
    assert Counter((call.source.partition("/")[0], call.status) for call in calls) == {
        ("tau-bench", "ok"): 1091,
        ("tau-bench", "error"): 73,
        ("StableToolBench", "ok"): 580,
        ("StableToolBench", "error"): 164,
        ("StableToolBench", "timeout"): 46,
        ("StableToolBench", "unknown"): 1918,
    }
    assert len({call.tool for call in calls}) == 1159
    assert all([call.seq for call in run] == list(range(len(run))) for run in runs)


def test_the_four_statuses_and_the_refusals_add_up_to_the_calls(
    runs: list[list[Call]], hf: Holdfast, clock: ManualClock, unknown: str
) -> None:
    player = Player(hf, clock, unknown)

    player.one_after_another(runs)

    ended = player.counts()
    stats = hf.tracker.stats()
    assert stats.total == stats.successful + stats.failed + stats.timed_out + stats.cancelled
    assert stats.total + stats.denied == sum(map(len, runs))
    assert (stats.successful, stats.failed, stats.timed_out) == (ended["ok"], ended["error"], ended["timeout"])
    assert stats.denied == ended["LoopDetected"] + ended["CircuitOpen"]
    assert stats.cancelled == stats.cached_hits == 0


def test_the_statistics_of_the_tools_add_up_to_those_in_all(
    runs: list[list[Call]], hf: Holdfast, clock: ManualClock, unknown: str
) -> None:
    player = Player(hf, clock, unknown)

    player.one_after_another(runs)

    by_tool = {name: hf.tracker.stats(name) for name in hf.tracker.tools()}
    calls = Counter(call.tool for run in runs for call in run)
    assert {name: stats.total + stats.denied for name, stats in by_tool.items()} == calls
    whole = hf.tracker.stats()
    for count in ("total", "successful", "failed", "timed_out", "denied"):
        assert sum(getattr(stats, count) for stats in by_tool.values()) == getattr(whole, count)


def test_every_call_is_told_as_ended_or_denied_under_its_run(
    runs: list[list[Call]], hf: Holdfast, clock: ManualClock, unknown: str
) -> None:
    recorder = Recorder(limit=100_000)
    hf.bus.add(recorder)
    player = Player(hf, clock, unknown)

    player.one_after_another(runs)

    told = Counter(event.run for event in recorder.events if event.type in {"tool_ended", "tool_denied"})
    assert told == {run[0].run: len(run) for run in runs}
    assert len(recorder.of("tool_started")) == len(recorder.of("tool_ended")) == hf.tracker.stats().total


@pytest.mark.parametrize("order", ["one_after_another", "all_at_once"])
def test_exactly_the_calls_that_failed_three_times_within_eight_are_refused(
    runs: list[list[Call]], lenient: Holdfast, clock: ManualClock, unknown: str, order: str
) -> None:
    player = Player(lenient, clock, unknown)

    getattr(player, order)(runs)

    refused = [[each.ended == "LoopDetected" for each in run] for run in player.played]
    assert refused == [looping(run) for run in player.played]
    assert player.counts()["LoopDetected"] > 0


def test_with_circuits_too_the_loop_guard_refuses_only_what_failed_three_times_within_eight(
    runs: list[list[Call]], hf: Holdfast, clock: ManualClock, unknown: str
) -> None:
    player = Player(hf, clock, unknown)

    player.one_after_another(runs)

    for run in player.played:
        for each, is_loop in zip(run, looping(run), strict=True):
            assert (each.ended == "LoopDetected") == is_loop


def test_different_arguments_are_never_refused_for_looping(
    runs: list[list[Call]], lenient: Holdfast, clock: ManualClock, unknown: str
) -> None:
    distinct = [list({call.key: call for call in run}.values()) for run in runs]
    player = Player(lenient, clock, unknown)

    player.one_after_another(distinct)

    assert player.counts()["LoopDetected"] == 0
    assert lenient.tracker.stats().denied == 0


def test_runs_that_are_played_at_once_end_as_when_they_are_played_alone(
    runs: list[list[Call]], lenient: Holdfast, clock: ManualClock, unknown: str
) -> None:
    other = holdfast.open(policies={"policy": {"breaker": False}}, clock=clock)
    alone, together = Player(lenient, clock, unknown), Player(other, clock, unknown)

    alone.one_after_another(runs)
    together.all_at_once(runs)

    assert together.played == alone.played


def test_a_loop_is_reported_once_for_each_call_that_was_refused_twice(
    runs: list[list[Call]], lenient: Holdfast, clock: ManualClock
) -> None:
    recorder = Recorder(limit=100_000)
    lenient.bus.add(recorder)
    player = Player(lenient, clock, "error")

    player.one_after_another(runs)

    refusals = Counter(
        (run[0].call.run, each.call.key) for run in player.played for each in run if each.ended == "LoopDetected"
    )
    twice = Counter(run for (run, _), times in refusals.items() if times >= 2)
    assert Counter(event.run for event in recorder.of("loop_detected")) == twice
    assert twice


def test_a_circuit_opens_only_after_seven_failures_in_a_row(
    runs: list[list[Call]], hf: Holdfast, clock: ManualClock, unknown: str
) -> None:
    player = Player(hf, clock, unknown)

    player.one_after_another(runs)

    in_a_row: Counter[str] = Counter()
    for run in player.played:
        for each in run:
            tool = each.call.tool
            if each.ended == "CircuitOpen":
                assert in_a_row[tool] >= 7
            elif each.ended in {"error", "timeout"}:
                in_a_row[tool] += 1
            elif each.ended == "ok":
                in_a_row[tool] = 0
    assert player.counts()["CircuitOpen"] > 0


def test_outside_a_run_nothing_is_a_loop(runs: list[list[Call]], lenient: Holdfast, clock: ManualClock) -> None:
    def tool(**arguments: object) -> None:
        raise RuntimeError

    tools = {call.tool: lenient.tool(call.tool)(tool) for run in runs for call in run}

    for run in runs:
        for call in run:
            with pytest.raises(RuntimeError):
                tools[call.tool](**call.arguments)

    assert lenient.tracker.stats().denied == 0
