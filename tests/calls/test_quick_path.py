"""The quick path is the long path, only quicker: nobody can tell by results, statistics or circuits which was taken.

A sink forces the long way, so the same calls with and without one must come to the same end.
"""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests import shapes
from tests.shapes import Call, Shape, Thread, eventually, settled

import holdfast
from holdfast import BudgetExceeded, CircuitState, ConcurrencyFull, ExecutionStats, Holdfast, bus
from holdfast.parts.breaker import CircuitDiagnostics
from holdfast.testing import ManualClock, Recorder, Script, Step, fail, hang, ok, rate_limit, slow
from holdfast.tools import limiting
from holdfast.tracking.tracker import BATCH

shape, hf = shapes.shape, shapes.hf

EASY = {"failure_threshold": 1, "min_backoff": 5.0, "jitter": 0.0}
SLOW = {"failure_threshold": 99, "failure_rate": 0.4, "slow_call": 1.0, "slow_call_rate": 0.3, "minimum_calls": 4}

STEPS = st.one_of(
    st.integers(0, 5).map(ok),
    st.sampled_from([ConnectionError, ValueError, PermissionError, asyncio.CancelledError]).map(fail),
    st.sampled_from([0.5, 2.0]).map(lambda seconds: slow(seconds, "slow")),
    st.sampled_from([None, 0.0, 1.0, 90.0]).map(rate_limit),
    st.sampled_from([Step(lead=0.25, error=ConnectionError), hang(30.0)]),
)
MOVES = st.lists(st.tuples(STEPS, st.sampled_from([0.0, 0.1, 1.0, 7.0])), min_size=1, max_size=40)
POLICIES = st.fixed_dictionaries(
    {
        "breaker": st.sampled_from(
            [
                {"failure_threshold": 2, "min_backoff": 3.0},
                {"failure_threshold": 1, "min_backoff": 0.5, "half_open_probes": 2, "successes_to_close": 2},
                SLOW,
                {"failure_threshold": 3, "distinct_arguments": True, "trips": ["rate_limit", "network"]},
                False,
            ]
        ),
    },
    optional={
        "rate": st.sampled_from(
            ["2/s", {"per_second": 1, "burst": 2}, {"per_second": 2, "burst": 3, "adaptive": True}]
        ),
        "concurrency": st.sampled_from([1, 3, {"limit": 4, "adaptive": True}]),
        "timeout": st.sampled_from([1.0, 10.0]),
        "deadline": st.sampled_from([1.5, 20.0]),
        "max_wait": st.sampled_from([0.0, 0.7]),
        "read_only": st.just(True),
        "fallback": st.just({"value": "instead"}),
        "priority": st.sampled_from(["low", "critical"]),
    },
)


class End(NamedTuple):
    """Where a series of calls has led."""

    results: list[str]
    stats: ExecutionStats
    history: Sequence[object]
    circuits: tuple[CircuitDiagnostics, ...]
    at: float
    made: int


def play(moves: list[tuple[Step, float]], policy: dict[str, Any], name: str, way: str) -> End:
    random.seed(0)
    clock = ManualClock()
    results: list[str] = []

    async def main() -> End:
        for number, (_, pause) in enumerate(moves):
            try:
                answer = call(number % 3)
                results.append(str(await answer if name == "coroutine" else answer))
            except BaseException as error:
                results.append(f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}")
            clock.advance(pause)
        history = [
            (record.status, round(record.duration, 6), round(record.at, 6), record.attempts, record.category)
            for record in hf.tracker.recent(100)
        ]
        circuits = hf.breaker.snapshot().diagnostics
        return End(results, hf.tracker.stats("script"), history, circuits, clock.monotonic(), script.count)

    with holdfast.open(":memory:", policies={}, clock=clock) as hf:
        if way != "quick":
            hf.bus.add(Recorder())
        script = Script(*(step for step, _ in moves), clock=clock)
        call = guarded = hf.tool(**policy)(getattr(script, name))
        if way == "settled":  # under settings of its own, even the same, every call is settled with every guard
            same = {"max_wait": policy.get("max_wait", 5.0)}
            call = functools.partial(hf.acall if name == "coroutine" else hf.call, guarded, policy=same)
        return asyncio.run(main())


@pytest.mark.parametrize("name", ["function", "coroutine"])
@settings(max_examples=120)
@given(moves=MOVES, policy=POLICIES)
@example(moves=[(ok(1), 0.0)] * 5 + [(fail(ConnectionError), 0.0)] * 4, policy={"breaker": {"failure_threshold": 2}})
@example(moves=[(ok(1), 0.0)] + [(slow(2.0), 0.0)] * 9, policy={"breaker": SLOW})
def test_the_quick_path_leads_where_the_long_one_leads(
    name: str, moves: list[tuple[Step, float]], policy: dict[str, Any]
) -> None:
    if name == "function":  # its time limits take a thread and so the long way
        policy = {key: value for key, value in policy.items() if key not in {"timeout", "deadline"}}

    settled = play(moves, policy, name, "settled")
    for way in ("quick", "noted"):
        end = play(moves, policy, name, way)
        assert end.results == settled.results
        assert end.history == settled.history
        assert end.circuits == settled.circuits
        assert (end.at, end.made) == (settled.at, settled.made)
        assert end.stats.total_duration == pytest.approx(settled.stats.total_duration)
        for counter in ("total", "successful", "failed", "timed_out", "cancelled", "denied", "p50", "p99"):
            assert getattr(end.stats, counter) == getattr(settled.stats, counter)


def test_a_sink_that_is_added_later_is_told_from_then_on(shape: Shape, hf: Holdfast) -> None:
    recorder = Recorder()
    call = shape(hf, Script(ok()))
    call()

    hf.bus.add(recorder)
    call()
    hf.bus.remove(recorder)
    call()

    assert recorder.types() == ["tool_started", "tool_ended"]
    assert hf.tracker.stats("script").successful == 3


def test_a_watcher_that_comes_later_is_told_from_then_on(shape: Shape, hf: Holdfast) -> None:
    class Watching:
        told: ClassVar[list[str]] = []

        def call(self, call: bus.Call) -> None:
            self.told.append(call.tool.name)

        def run(self, run: bus.Run, *, resumed: bool) -> None:
            raise AssertionError("there is no run")

    call = shape(hf, Script(ok()))
    call()

    hf.bus.watch(Watching())
    call()
    hf.bus.watch(None)
    call()

    assert Watching.told == ["script"]


def test_a_run_that_is_entered_later_counts_from_then_on(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(ok()))
    call()

    with hf.run(budget={"calls": 1}):
        call()
        with pytest.raises(holdfast.BudgetExceeded):
            call()
    call()

    assert hf.tracker.stats("script").successful == 3


def test_a_run_counts_the_calls_of_any_holdfast(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    other = holdfast.open(":memory:", policies={}, clock=clock)
    call = shape(hf, Script(ok()))

    with other.run(budget={"calls": 1}) as run:
        call()
        with pytest.raises(BudgetExceeded):
            call()

    assert hf.tracker.stats("script").successful == 1
    assert other.runs.snapshot(run.id).tool_calls == 1


def test_thousands_of_successes_are_all_counted(shape: Shape, hf: Holdfast) -> None:
    tool: Call = getattr(Script(ok(["fine"])), shape.name)
    guarded = hf.tool(tool)

    async def many() -> None:
        for _ in range(BATCH * 3 + 1):
            if shape.is_stream:
                assert [item async for item in guarded()] == ["fine"]
            else:
                await guarded()

    if shape.is_async:
        asyncio.run(many())
    else:
        for _ in range(BATCH * 3 + 1):
            shape.run(guarded)()

    assert hf.tracker.stats("script").successful == BATCH * 3 + 1
    assert len(hf.tracker.recent(2000)) == hf.tracker.max_history


def test_cleared_statistics_begin_anew(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(ok()))
    call(), call()

    hf.tracker.clear()
    call()

    assert hf.tracker.stats("script").total == 1


@pytest.mark.parametrize("undivided", [True, False])
def test_many_threads_take_no_more_tokens_than_there_are(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, undivided: bool
) -> None:
    monkeypatch.setattr(limiting, "UNDIVIDED", undivided)
    script = Script(ok())
    guarded = hf.tool(rate={"per_second": 1, "burst": 100}, max_wait=0)(script.function)

    def work() -> None:
        for _ in range(50):
            with suppress(holdfast.RateLimited):
                guarded()

    for thread in [Thread(work) for _ in range(8)]:
        thread.result()

    assert script.count == 100
    assert hf.tracker.stats("script").denied == 300


def test_refusals_of_an_open_circuit_are_all_counted(shape: Shape, hf: Holdfast) -> None:
    guarded = hf.tool(breaker={"failure_threshold": 1})(getattr(Script(fail(ConnectionError)), shape.name))
    call = shape.run(guarded)
    with pytest.raises(ConnectionError):
        call()

    for _ in range(600):
        with pytest.raises(holdfast.CircuitOpen):
            call()

    assert hf.tracker.stats("script").denied == hf.breaker.diagnostics("script").denied_requests == 600


def test_a_tool_whose_circuit_had_to_be_forgotten_gets_another(hf: Holdfast) -> None:
    hf.breaker._max_tools = 2
    guarded = [hf.tool(f"tool {n}", breaker=EASY)(Script(ok(), fail(ConnectionError)).function) for n in range(5)]

    for tool in guarded:
        tool()
        with pytest.raises(ConnectionError):
            tool()
        with pytest.raises(holdfast.CircuitOpen):
            tool()

    assert len(hf.breaker.snapshot().diagnostics) <= 2


@pytest.mark.usefixtures("path")
def test_a_tool_whose_circuit_had_to_be_forgotten_rests_on_the_one_that_is_seen(hf: Holdfast) -> None:
    hf.breaker._max_tools = 1
    tool = hf.tool("tool")(Script(ok()).function)
    tool()
    hf.breaker.record_failure("other")

    hf.breaker.force_open("tool")

    with pytest.raises(holdfast.CircuitOpen):
        tool()


def test_no_call_of_many_threads_is_lost(hf: Holdfast) -> None:
    def tool(number: int) -> int:
        if number % 5 == 0:
            raise ConnectionError
        return number

    guarded = hf.tool(breaker={"failure_threshold": 3, "min_backoff": 0.001}, concurrency=16)(tool)
    barrier = threading.Barrier(8)
    outcomes: list[str] = []

    def work() -> None:
        barrier.wait(shapes.PATIENCE)
        for number in range(300):
            try:
                guarded(number)
            except (ConnectionError, holdfast.CircuitOpen) as error:
                outcomes.append(type(error).__name__)
            else:
                outcomes.append("success")

    for thread in [Thread(work) for _ in range(8)]:
        thread.result()

    stats = hf.tracker.stats("tool")
    assert stats.successful == outcomes.count("success")
    assert stats.failed == outcomes.count("ConnectionError")
    assert stats.denied == hf.breaker.diagnostics("tool").denied_requests == outcomes.count("CircuitOpen")
    assert len(outcomes) == 2400


# --- calls that began before something changed ---


@pytest.fixture(params=["quick", "long"])
def path(request: pytest.FixtureRequest, hf: Holdfast) -> str:
    if request.param == "long":
        hf.bus.add(Recorder())
    return str(request.param)


def test_a_tool_that_is_held_open_says_so_and_not_that_it_has_failed(shape: Shape, hf: Holdfast, path: str) -> None:
    call = shape.run(hf.tool()(getattr(Script(ok()), shape.name)))
    call()
    hf.breaker.force_open("script")

    with pytest.raises(holdfast.CircuitOpen, match="script: it is switched off by hand") as refused:
        call()

    assert refused.value.retry_after is None
    assert "failed" not in refused.value.for_model()


async def begun(hf: Holdfast, path: str, tool: Call) -> asyncio.Task[Any]:
    """A call of *tool* in flight on that path; the first call of a tool always goes the long way."""
    await tool()
    assert (hf._box.tool("script").plan is not None) is (path == "quick")
    task = asyncio.create_task(tool())
    await settled()
    return task


async def test_a_success_that_began_before_the_outage_does_not_close_the_circuit(
    hf: Holdfast, clock: ManualClock, path: str
) -> None:
    tool = hf.tool(breaker=EASY)(Script(ok(), slow(2.0, "old"), fail(ConnectionError), clock=clock).coroutine)
    old = await begun(hf, path, tool)
    with pytest.raises(ConnectionError):
        await tool()

    assert await old == "old"

    assert hf.breaker.state("script") is CircuitState.OPEN
    assert hf.breaker.remaining_backoff("script") == 3.0


async def test_a_failure_that_began_before_the_outage_does_not_move_its_end(
    hf: Holdfast, clock: ManualClock, path: str
) -> None:
    late = Step(lead=2.0, error=ConnectionError)
    tool = hf.tool(breaker=EASY)(Script(ok(), late, fail(ConnectionError), clock=clock).coroutine)
    old = await begun(hf, path, tool)
    with pytest.raises(ConnectionError):
        await tool()

    with pytest.raises(ConnectionError):
        await old

    diagnostics = hf.breaker.diagnostics("script")
    assert (diagnostics.remaining_backoff, diagnostics.times_opened) == (3.0, 1)
    assert hf.tracker.stats("script").failed == 2


async def test_a_success_that_began_before_the_outage_does_not_answer_for_the_probe(
    hf: Holdfast, clock: ManualClock, path: str
) -> None:
    script = Script(ok(), slow(6.0, "old"), fail(ConnectionError), slow(10.0, "probe"), clock=clock)
    tool = hf.tool(breaker=EASY)(script.coroutine)
    old = await begun(hf, path, tool)
    with pytest.raises(ConnectionError):
        await tool()
    await clock.asleep(5.0)
    probe = asyncio.create_task(tool())

    await old

    assert hf.breaker.state("script") is CircuitState.HALF_OPEN
    assert await probe == "probe"
    assert hf.breaker.state("script") is CircuitState.CLOSED


async def test_a_failure_that_began_before_the_outage_does_not_count_after_it(
    hf: Holdfast, clock: ManualClock, path: str
) -> None:
    old_one = Step(lead=8.0, error=ConnectionError)
    tool = hf.tool(breaker=EASY)(Script(ok(), old_one, fail(ConnectionError), ok("well again"), clock=clock).coroutine)
    old = await begun(hf, path, tool)
    with pytest.raises(ConnectionError):
        await tool()
    await clock.asleep(5.0)
    await tool()

    with pytest.raises(ConnectionError):
        await old

    diagnostics = hf.breaker.diagnostics("script")
    assert (diagnostics.state, diagnostics.failure_count) == (CircuitState.CLOSED, 0)


async def test_a_success_that_began_before_the_outage_does_not_forget_failures_after_it(
    hf: Holdfast, clock: ManualClock, path: str
) -> None:
    down = fail(ConnectionError)
    script = Script(ok(), slow(8.0), down, ok(), down, clock=clock)
    tool = hf.tool(breaker={"failure_threshold": 1, "min_backoff": 5.0, "jitter": 0.0})(script.coroutine)
    old = await begun(hf, path, tool)
    with pytest.raises(ConnectionError):
        await tool()
    await clock.asleep(5.0)
    await tool()
    hf.tool("script", breaker={"failure_threshold": 2})(script.coroutine)
    with pytest.raises(ConnectionError):
        await tool()

    await old

    assert hf.breaker.diagnostics("script").failure_count == 1


async def test_after_a_call_with_settings_of_its_own_the_tools_own_hold_again(
    hf: Holdfast, clock: ManualClock, path: str
) -> None:
    tool = hf.tool(concurrency=2, max_wait=0)(Script(ok(), slow(1.0), clock=clock).coroutine)
    await (await begun(hf, path, tool))

    await hf.acall(tool, policy={"concurrency": 5})
    answers = await asyncio.gather(*(tool() for _ in range(3)), return_exceptions=True)

    assert [type(answer) for answer in answers] == [type(None), type(None), ConcurrencyFull]


async def test_a_success_among_failures_that_run_at_once_forgets_them(
    hf: Holdfast, clock: ManualClock, path: str
) -> None:
    script = Script(ok(), slow(2.0, "fine"), fail(ConnectionError), fail(ConnectionError), clock=clock)
    tool = hf.tool(breaker={"failure_threshold": 3})(script.coroutine)
    fine = await begun(hf, path, tool)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await tool()

    await fine

    assert hf.breaker.diagnostics("script").failure_count == 0


def test_a_function_that_succeeds_after_a_failure_inside_it_forgets_that(hf: Holdfast, path: str) -> None:
    @hf.tool("script")
    def tool(how: str) -> None:
        if how == "fails":
            raise ConnectionError
        if how == "calls itself":
            with pytest.raises(ConnectionError):
                tool("fails")
            assert hf.breaker.diagnostics("script").failure_count == 1

    tool("is fine")
    assert (hf._box.tool("script").plan is not None) is (path == "quick")

    tool("calls itself")

    assert hf.breaker.diagnostics("script").failure_count == 0


async def test_a_call_that_runs_while_its_tool_gets_other_slots_gives_its_own_back(
    hf: Holdfast, clock: ManualClock, path: str
) -> None:
    script = Script(ok(), slow(2.0, "first"), ok("second"), clock=clock)
    tool = hf.tool(concurrency=1)(script.coroutine)
    first = await begun(hf, path, tool)

    hf.tool("script", concurrency=2, max_wait=0)(script.coroutine)
    assert await tool() == "second"
    await first

    slots = hf._box.tool("script").limiting.slots
    assert slots is not None
    assert (slots.in_flight, slots.limit) == (0, 2)


def test_successes_that_were_noted_are_read_and_taken_over_in_one_go(hf: Holdfast, clock: ManualClock) -> None:
    """Else two threads that do so at the same time bring the counts out of order, and all of them count once more."""
    hf.tool("tool", breaker={"failure_rate": 0.5})(Script(ok()).function)
    tool = hf._box.tool("tool")

    with hf.tracker._lock:
        draining = Thread(tool.drain, clock.monotonic())
        eventually(tool._lock.locked)

    draining.result()
