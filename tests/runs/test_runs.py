"""A run: its calls share a loop guard and budgets, follow it into tasks and threads, and are nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import (
    BudgetExceeded,
    ConfigError,
    Event,
    Holdfast,
    LeaseLost,
    LoopDetected,
    RateLimited,
    Run,
    RunConflict,
)
from holdfast.testing import ManualClock, Recorder, Script, fail, ok

Caller = Callable[..., Any]


@pytest.fixture
def hf(clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.open(policies={"policy": {"breaker": False}}, clock=clock) as hf:
        yield hf


def failing(hf: Holdfast, name: str = "search", **policy: object) -> tuple[Caller, Script]:
    script = Script(fail(RuntimeError), name=name)
    return hf.tool(None, **policy)(script.function), script


def fails(tool: Caller, *args: object, times: int = 1, **kwargs: object) -> None:
    for _ in range(times):
        with pytest.raises(RuntimeError):
            tool(*args, **kwargs)


def refused(tool: Caller, *args: object, **kwargs: object) -> LoopDetected:
    with pytest.raises(LoopDetected) as caught:
        tool(*args, **kwargs)
    return caught.value


# --- the loop guard ---


def test_a_call_that_failed_three_times_of_late_is_refused_without_touching_the_tool(hf: Holdfast) -> None:
    search, script = failing(hf)

    with hf.run():
        fails(search, "x", times=3)
        denied = refused(search, "x")

    assert script.count == 3
    assert denied.tool == "search"
    assert "Change the arguments" in denied.for_model()


class Host:
    def ping(self, port: int) -> None:
        raise RuntimeError("down")


@pytest.mark.parametrize("part", [lambda method: method, functools.partial], ids=["method", "partial"])
def test_the_same_method_of_another_object_is_another_call(hf: Holdfast, part: Callable[..., Any]) -> None:
    one, other = Host(), Host()

    with hf.run():
        fails(lambda: hf.call(part(one.ping), 22), times=3)
        refused(lambda: hf.call(part(one.ping), 22))
        fails(lambda: hf.call(part(other.ping), 22))


@pytest.mark.parametrize("shape", ["function", "coroutine", "generator", "async_generator"])
async def test_the_loop_guard_works_for_all_four_shapes(hf: Holdfast, shape: str) -> None:
    script = Script(fail(RuntimeError))
    tool: Caller = hf.tool()(getattr(script, shape))

    async def call() -> None:
        if shape == "coroutine":
            await tool("x")
        elif shape == "async_generator":
            await anext(tool("x"))
        else:
            list(tool("x") or ())

    async with hf.run():
        for _ in range(3):
            with pytest.raises(RuntimeError):
                await call()
        with pytest.raises(LoopDetected):
            await call()

    assert script.count == 3


def test_different_arguments_are_never_the_same_call(hf: Holdfast) -> None:
    search, script = failing(hf)

    with hf.run():
        for number in range(20):
            fails(search, number)

    assert script.count == 20


def test_the_same_arguments_are_the_same_call_however_they_are_spelt(hf: Holdfast) -> None:
    @hf.tool()
    def search(query: str, limit: int = 10) -> None:
        raise RuntimeError

    with hf.run():
        fails(search, "x")
        fails(search, query="x")
        fails(search, limit=10, query="x")

        refused(search, "x", 10)


def test_the_same_arguments_of_another_tool_are_another_call(hf: Holdfast) -> None:
    search, _ = failing(hf)
    fetch, _ = failing(hf, "fetch")

    with hf.run():
        fails(search, "x", times=3)

        fails(fetch, "x")


def test_failures_that_lie_more_than_eight_calls_back_do_not_count(hf: Holdfast) -> None:
    search, _ = failing(hf)
    other = hf.tool("other")(lambda number: number)

    with hf.run():
        fails(search, "x", times=3)
        for number in range(5):
            other(number)
        refused(search, "x")
        other(5)

        fails(search, "x")


def test_a_call_that_succeeds_may_be_repeated_for_ever(hf: Holdfast) -> None:
    script = Script(ok(1))
    search = hf.tool()(script.function)

    with hf.run():
        for _ in range(20):
            search("x")

    assert script.count == 20


def test_attempts_of_one_call_count_once(hf: Holdfast) -> None:
    script = Script(fail(ConnectionError), name="search")
    search = hf.tool(retry={"attempts": 3, "initial": 0.0, "budget": 0.0})(script.function)

    with hf.run():
        for _ in range(3):
            with pytest.raises(ConnectionError):
                search("x")
        refused(search, "x")

    assert script.count == 9


def test_refusals_do_not_count_as_failures(hf: Holdfast) -> None:
    search, script = failing(hf, rate={"per_second": 1.0, "burst": 2.0}, max_wait=0.0)

    with hf.run():
        fails(search, "x", times=2)
        for _ in range(10):
            with pytest.raises(RateLimited):
                search("x")

    assert script.count == 2


async def test_cancelled_calls_do_not_count_as_failures(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(fail(asyncio.CancelledError), name="search")
    search = hf.tool()(script.coroutine)

    async with hf.run():
        for _ in range(6):
            with pytest.raises(asyncio.CancelledError):
                await search("x")

    assert script.count == 6


def test_a_call_whose_arguments_cannot_be_compared_is_the_same_as_no_other(hf: Holdfast) -> None:
    search, script = failing(hf)

    with hf.run():
        handle = object()
        for _ in range(10):
            fails(search, handle)

    assert script.count == 10


def test_guarded_blocks_are_never_the_same_call_since_nobody_knows_their_arguments(hf: Holdfast) -> None:
    with hf.run():
        for _ in range(10):
            with pytest.raises(RuntimeError), hf.guard("search"):
                raise RuntimeError


def test_every_run_has_a_loop_guard_of_its_own(hf: Holdfast) -> None:
    search, _ = failing(hf)

    with hf.run():
        fails(search, "x", times=3)
    with hf.run():
        fails(search, "x", times=3)
        refused(search, "x")


def test_the_loop_guard_can_be_switched_off_for_one_tool(hf: Holdfast) -> None:
    search, _ = failing(hf, loop=False)
    fetch, _ = failing(hf, "fetch")

    with hf.run():
        fails(search, "x", times=20)
        fails(fetch, "x", times=3)
        refused(fetch, "x")


def test_the_loop_guard_can_be_switched_off_in_all(clock: ManualClock) -> None:
    hf = holdfast.open(policies={"policy": {"loop": False, "breaker": False}}, clock=clock)
    search, script = failing(hf)

    with hf.run():
        fails(search, "x", times=20)

    assert script.count == 20


def test_repeats_and_window_can_be_set(hf: Holdfast) -> None:
    search, _ = failing(hf, loop={"repeats": 2, "window": 3})
    other = hf.tool("other")(lambda number: number)

    with hf.run():
        fails(search, "x", times=2)
        refused(search, "x")
        other(1)
        refused(search, "x")
        other(2)
        fails(search, "x")


def test_the_second_refusal_of_a_call_records_that_a_loop_was_detected_once(hf: Holdfast, recorder: Recorder) -> None:
    search, _ = failing(hf)

    with hf.run(run_id="r") as run:
        fails(search, "x", times=3)
        refused(search, "x")
        before = recorder.of("loop_detected")
        for _ in range(5):
            refused(search, "x")

    assert before == []
    [event] = recorder.of("loop_detected")
    assert (event.tool, event.run, event.payload) == ("search", run.id, {"stopped": False})


def test_a_refusal_for_looping_is_an_event_with_its_reason_and_run(hf: Holdfast, recorder: Recorder) -> None:
    search, _ = failing(hf)

    with hf.run() as run:
        fails(search, "x", times=3)
        refused(search, "x")

    [event] = recorder.of("tool_denied")
    assert (event.tool, event.run) == ("search", run.id)
    assert event.payload["kind"] == "LoopDetected"
    assert event.payload["retry_after_ms"] is None
    assert hf.tracker.stats("search").denied == 1


def test_a_hard_stop_refuses_every_later_call_of_the_run(hf: Holdfast, recorder: Recorder) -> None:
    search, _ = failing(hf, loop={"stop": True})
    other = hf.tool("other")(lambda argument: argument)

    with hf.run():
        fails(search, "x", times=3)
        refused(search, "x")
        other(1)
        refused(search, "x")

        assert refused(other, 2).for_model() == (
            "The tool 'other' was not called: the run was stopped for looping. "
            "Do not repeat this call. Finish with what you have and report the result."
        )
        refused(other, object())  # although it is the same as no other call
    other(3)

    assert [event.payload["stopped"] for event in recorder.of("loop_detected")] == [True]


class Naive:
    """The rule in the plainest words, to compare with."""

    def __init__(self) -> None:
        self.settled: list[tuple[object, bool]] = []

    def refuses(self, call: object) -> bool:
        return sum(other == call and failed for other, failed in self.settled[-8:]) >= 3


@given(st.lists(st.tuples(st.sampled_from("fg"), st.integers(0, 2), st.booleans()), max_size=60))
def test_exactly_the_calls_that_failed_three_times_within_eight_are_refused(
    calls: list[tuple[str, int, bool]],
) -> None:
    hf = holdfast.open(policies={"policy": {"breaker": False}}, clock=ManualClock())
    naive = Naive()
    outcome = {"fails": False}

    def tool(argument: int) -> None:
        if outcome["fails"]:
            raise RuntimeError

    tools = {name: hf.tool(name)(tool) for name in "fg"}

    with hf.run():
        for name, argument, outcome["fails"] in calls:
            if naive.refuses((name, argument)):
                refused(tools[name], argument)
                continue
            if outcome["fails"]:
                fails(tools[name], argument)
            else:
                tools[name](argument)
            naive.settled.append(((name, argument), outcome["fails"]))


# --- budgets of calls ---


def test_a_run_makes_as_many_calls_as_its_budget_has_and_no_more(hf: Holdfast) -> None:
    script = Script(ok(1), name="search")
    search = hf.tool()(script.function)

    with hf.run(budget={"calls": 3}):
        for number in range(3):
            search(number)
        with pytest.raises(BudgetExceeded) as denied:
            search(3)

    assert script.count == 3
    assert denied.value.reason == "the run's budget of 3 calls is used up (3 used)"
    assert denied.value.retry_after is None
    assert "Finish with what you have" in denied.value.for_model()


def test_calls_of_all_tools_and_all_outcomes_count(hf: Holdfast) -> None:
    search, _ = failing(hf)
    other = hf.tool("other")(lambda: None)

    with hf.run(budget={"calls": 3}):
        fails(search, 1, times=2)
        other()
        with pytest.raises(BudgetExceeded):
            other()
        with pytest.raises(BudgetExceeded):
            search(2)


def test_attempts_do_not_use_up_a_budget_of_calls(hf: Holdfast) -> None:
    script = Script(fail(ConnectionError), fail(ConnectionError), ok(1), name="search")
    search = hf.tool(retry={"attempts": 3, "initial": 0.0, "budget": 0.0})(script.function)

    with hf.run(budget={"calls": 2}):
        search()
        search()

    assert script.count == 4


def test_refusals_do_not_use_up_a_budget_of_calls(hf: Holdfast, clock: ManualClock) -> None:
    search = hf.tool("search", rate={"per_second": 1.0, "burst": 1.0}, max_wait=0.0)(lambda: None)

    with hf.run(budget={"calls": 2}):
        search()
        for _ in range(5):
            with pytest.raises(RateLimited):
                search()
        clock.advance(1.0)
        search()
        with pytest.raises(BudgetExceeded):
            search()


def test_answers_from_the_cache_do_not_use_up_a_budget(hf: Holdfast) -> None:
    search = hf.tool("search", read_only=True, cache=60.0)(lambda query: query)

    with hf.run(budget={"calls": 1}):
        for _ in range(5):
            search("x")
        with pytest.raises(BudgetExceeded):
            search("y")


def test_a_tool_may_have_a_budget_of_its_own_in_each_run(hf: Holdfast) -> None:
    search = hf.tool("search", budget={"calls": 2})(lambda: None)
    other = hf.tool("other")(lambda: None)

    for _ in range(2):
        with hf.run():
            other()
            search()
            search()
            with pytest.raises(BudgetExceeded) as denied:
                search()
            other()
    search()

    assert denied.value.tool == "search"


def test_a_tool_that_has_used_up_its_own_budget_leaves_the_others_to_the_model(hf: Holdfast) -> None:
    search = hf.tool("search", budget={"calls": 1})(lambda: None)

    with hf.run(budget={"calls": 5}):
        search()
        with pytest.raises(BudgetExceeded) as denied:
            search()

    assert denied.value.for_model() == (
        "The tool 'search' was not called: its budget of 1 calls a run is used up (1 used). "
        "Do not repeat this call. Use another tool or go on without it."
    )


def test_the_budget_of_the_run_and_of_the_tool_both_hold(hf: Holdfast) -> None:
    search = hf.tool("search", budget={"calls": 5})(lambda: None)

    with hf.run(budget={"calls": 2}):
        search()
        search()
        with pytest.raises(BudgetExceeded, match="budget of 2 calls"):
            search()


def test_threads_of_one_run_share_its_budget_exactly(hf: Holdfast) -> None:
    made = Counter[str]()
    search = hf.tool("search")(lambda: made.update(["call"]))

    def work() -> None:
        for _ in range(20):
            try:
                search()
            except BudgetExceeded:
                made["refused"] += 1

    with hf.run(budget={"calls": 50}):
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(work,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert made["call"] == 50
    assert hf.tracker.stats("search").denied == 70


# --- budgets of time and of anything else ---


def test_a_run_may_call_only_within_its_time(hf: Holdfast, clock: ManualClock) -> None:
    search = hf.tool("search")(lambda: None)

    with hf.run(budget={"seconds": 60.0}):
        clock.advance(59.9)
        search()
        clock.advance(0.1)
        with pytest.raises(BudgetExceeded, match="budget of 60 seconds is used up"):
            search()


def test_what_is_spent_of_a_unit_counts_against_its_budget(hf: Holdfast) -> None:
    search = hf.tool("search")(lambda: None)

    with hf.run(budget={"usd": 0.05}) as run:
        run.spend("usd", 0.04)
        run.spend("tokens", 1_000_000)
        search()
        run.spend("usd", 0.01)
        with pytest.raises(BudgetExceeded, match=r"budget of 0\.05 usd is used up \(0\.05 used\)"):
            search()

    assert run.spent == {"usd": 0.05, "tokens": 1_000_000}


def test_a_large_budget_is_told_in_digits(hf: Holdfast) -> None:
    search = hf.tool("search")(lambda: None)

    with hf.run(budget={"tokens": 2_000_000}) as run:
        run.spend("tokens", 2_345_678)
        with pytest.raises(BudgetExceeded, match=r"budget of 2,000,000 tokens is used up \(2,345,678 used\)"):
            search()


def test_ten_tenths_are_one(hf: Holdfast, recorder: Recorder) -> None:
    search = hf.tool("search")(lambda: None)

    with hf.run(budget={"usd": 1.0}) as run:
        for _ in range(10):
            search()
            run.spend("usd", 0.1)
        with pytest.raises(BudgetExceeded, match=r"\(1 used\)"):
            search()

    assert [event.payload["used"] for event in recorder.of("budget_warning")] == [0.8]


def test_a_tool_may_have_a_budget_of_a_unit(hf: Holdfast) -> None:
    search = hf.tool("search", budget={"usd": 1.0})(lambda: None)
    other = hf.tool("other")(lambda: None)

    with hf.run() as run:
        search()
        run.spend("usd", 1.0)
        other()
        with pytest.raises(BudgetExceeded):
            search()


def test_spending_is_exact_from_many_threads(hf: Holdfast) -> None:
    def work() -> None:
        for _ in range(1000):
            run.spend("tokens", 1)

    with hf.run() as run:
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert run.spent == {"tokens": 6000}


def test_what_was_spent_cannot_be_changed_from_outside(hf: Holdfast) -> None:
    with hf.run() as run:
        run.spend("usd", 1.0)

    run.spent["usd"] = 0.0

    assert run.spent == {"usd": 1.0}


# --- warnings ---


def warnings(recorder: Recorder) -> list[Event]:
    return recorder.of("budget_warning")


def test_a_warning_comes_once_when_four_fifths_of_the_calls_are_made(hf: Holdfast, recorder: Recorder) -> None:
    search = hf.tool("search")(lambda: None)

    with hf.run(budget={"calls": 10}) as run:
        for _ in range(7):
            search()
        early = warnings(recorder)
        for _ in range(3):
            search()

    assert early == []
    [event] = warnings(recorder)
    assert (event.tool, event.run) == (None, run.id)
    assert event.payload == {"unit": "calls", "used": 8, "limit": 10}


def test_the_warning_comes_before_the_call_that_reaches_four_fifths_begins(hf: Holdfast, recorder: Recorder) -> None:
    search = hf.tool("search")(lambda: None)

    with hf.run(budget={"calls": 1}):
        search()

    assert recorder.types() == ["run_started", "budget_warning", "tool_started", "tool_ended", "run_completed"]


def test_each_unit_warns_by_itself_and_at_the_moment_it_is_spent(hf: Holdfast, recorder: Recorder) -> None:
    with hf.run(budget={"usd": 1.0, "tokens": 100}) as run:
        run.spend("usd", 0.79)
        early = warnings(recorder)
        run.spend("usd", 0.01)
        run.spend("tokens", 500)
        run.spend("usd", 5)

    assert early == []
    assert [event.payload["unit"] for event in warnings(recorder)] == ["usd", "tokens"]
    assert warnings(recorder)[1].payload == {"unit": "tokens", "used": 500, "limit": 100}


def test_time_that_runs_out_warns_at_the_next_call(hf: Holdfast, recorder: Recorder, clock: ManualClock) -> None:
    search = hf.tool("search")(lambda: None)

    with hf.run(budget={"seconds": 10.0}):
        search()
        clock.advance(8.0)
        search()

    assert [event.payload for event in warnings(recorder)] == [{"unit": "seconds", "used": 8.0, "limit": 10.0}]


def test_a_budget_that_is_passed_in_one_go_warns_before_it_refuses(
    hf: Holdfast, recorder: Recorder, clock: ManualClock
) -> None:
    search = hf.tool("search")(lambda: None)

    with hf.run(budget={"seconds": 10.0}):
        search()
        clock.advance(12.0)
        with pytest.raises(BudgetExceeded):
            search()

    assert recorder.types()[3:5] == ["budget_warning", "tool_denied"]
    assert [event.payload for event in warnings(recorder)] == [{"unit": "seconds", "used": 12.0, "limit": 10.0}]


def test_what_is_spent_warns_at_once_of_the_budgets_of_tools(hf: Holdfast, recorder: Recorder) -> None:
    search = hf.tool("search", budget={"usd": 1.0})(lambda: None)

    with hf.run() as run:
        search()
        run.spend("usd", 1.2)
        told = [(event.tool, event.payload) for event in warnings(recorder)]
        with pytest.raises(BudgetExceeded):
            search()

    assert told == [("search", {"unit": "usd", "used": 1.2, "limit": 1.0})]
    assert len(warnings(recorder)) == 1


def test_the_warning_of_a_tool_s_own_budget_names_the_tool(hf: Holdfast, recorder: Recorder) -> None:
    search = hf.tool("search", budget={"calls": 5})(lambda: None)

    with hf.run() as run:
        for _ in range(5):
            search()

    [event] = warnings(recorder)
    assert (event.tool, event.run) == ("search", run.id)
    assert event.payload == {"unit": "calls", "used": 4, "limit": 5}


# --- which run a call belongs to ---


def run_of(recorder: Recorder, tool: str) -> set[str | None]:
    return {event.run for event in recorder.of("tool_ended") if event.tool == tool}


async def test_a_run_is_a_sync_and_an_async_context_manager(hf: Holdfast, recorder: Recorder) -> None:
    search = hf.tool("search")(lambda: None)

    with hf.run(run_id="one") as one:
        search()
    async with hf.run(run_id="two") as two:
        search()
    search()

    assert (one.id, two.id) == ("one", "two")
    assert [event.run for event in recorder.of("tool_ended")] == ["one", "two", None]


def test_a_call_belongs_to_the_innermost_run_and_after_it_to_the_outer_one_again(
    hf: Holdfast, recorder: Recorder
) -> None:
    search = hf.tool("search")(lambda: None)

    with hf.run(run_id="outer", budget={"calls": 2}):
        search()
        with hf.run(run_id="inner", budget={"calls": 1}):
            search()
            with pytest.raises(BudgetExceeded):
                search()
        search()
        with pytest.raises(BudgetExceeded):
            search()

    assert [event.run for event in recorder.of("tool_ended")] == ["outer", "inner", "outer"]


def test_a_run_that_is_left_by_an_error_is_left(hf: Holdfast, recorder: Recorder) -> None:
    search = hf.tool("search")(lambda: None)

    with pytest.raises(KeyError), hf.run():
        raise KeyError
    search()

    assert run_of(recorder, "search") == {None}


async def test_a_task_that_is_created_in_a_run_belongs_to_it(hf: Holdfast, recorder: Recorder) -> None:
    @hf.tool()
    async def search() -> None:
        await asyncio.sleep(0)

    async with hf.run() as run:
        await asyncio.create_task(search())

    assert run_of(recorder, "search") == {run.id}


async def test_gathered_calls_share_the_budget_of_the_run(hf: Holdfast) -> None:
    @hf.tool()
    async def search(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async with hf.run(budget={"calls": 5}):
        answers = await asyncio.gather(*map(search, range(8)), return_exceptions=True)

    assert answers[:5] == [0, 1, 2, 3, 4]
    assert [type(answer) for answer in answers[5:]] == [BudgetExceeded] * 3


async def test_runs_in_parallel_tasks_do_not_mix(hf: Holdfast, recorder: Recorder) -> None:
    @hf.tool()
    async def search(name: str) -> None:
        await asyncio.sleep(0)

    async def work(name: str) -> None:
        async with hf.run(run_id=name, budget={"calls": 3}):
            for _ in range(3):
                await search(name)
            with pytest.raises(BudgetExceeded):
                await search(name)

    await asyncio.gather(*map(work, "abcdef"))

    assert Counter(event.run for event in recorder.of("tool_ended")) == dict.fromkeys("abcdef", 3)


async def test_a_call_in_asyncio_to_thread_belongs_to_the_run(hf: Holdfast, recorder: Recorder) -> None:
    search = hf.tool("search")(lambda: None)

    async with hf.run() as run:
        await asyncio.to_thread(search)

    assert run_of(recorder, "search") == {run.id}


async def test_a_call_that_a_tool_makes_in_our_own_thread_belongs_to_the_run(hf: Holdfast, recorder: Recorder) -> None:
    inner = hf.tool("inner")(lambda: None)
    outer = hf.tool("outer", timeout=5.0)(inner)

    async with hf.run() as run:
        outer()
        await hf.acall(outer)

    assert run_of(recorder, "inner") == run_of(recorder, "outer") == {run.id}


def test_a_thread_started_by_hand_is_in_no_run_unless_it_brings_the_context(hf: Holdfast, recorder: Recorder) -> None:
    bare, brought = hf.tool("bare")(lambda: None), hf.tool("brought")(lambda: None)

    with hf.run() as run:
        threads = [
            threading.Thread(target=bare),
            threading.Thread(target=contextvars.copy_context().run, args=(brought,)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert run_of(recorder, "bare") == {None}
    assert run_of(recorder, "brought") == {run.id}


async def test_a_run_may_be_left_in_another_context_than_it_was_entered_in(hf: Holdfast, recorder: Recorder) -> None:
    search = hf.tool("search")(lambda: None)
    run = hf.run()

    await asyncio.create_task(run.__aenter__())
    await asyncio.create_task(run.__aexit__(None, None, None))
    search()

    assert run_of(recorder, "search") == {None}


# --- runs of one Holdfast and calls of another ---


@pytest.fixture
def other(clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.open(policies={"policy": {"breaker": False}}, clock=clock) as other:
        yield other


def test_a_run_counts_the_calls_of_another_holdfast_too(hf: Holdfast, other: Holdfast) -> None:
    search, script = failing(other)
    heard = Recorder()
    other.bus.add(heard)

    with hf.run() as run:
        fails(search, "x", times=3)
        refused(search, "x")

    assert script.count == 3
    assert run_of(heard, "search") == {run.id}


def test_a_call_counts_for_the_innermost_run_whosever_it_is(hf: Holdfast, other: Holdfast) -> None:
    search = hf.tool("search")(lambda: None)

    with hf.run(budget={"calls": 1}), other.run(budget={"calls": 2}):
        search()
        search()
        with pytest.raises(BudgetExceeded):
            search()


def test_a_run_that_is_open_elsewhere_has_nothing_to_do_with_it(hf: Holdfast, other: Holdfast) -> None:
    search = other.tool("search")(lambda: None)
    elsewhere = contextvars.copy_context()
    theirs = other.run(budget={"calls": 1})
    elsewhere.run(theirs.__enter__)

    with hf.run(budget={"calls": 2}):
        search()
        search()

    elsewhere.run(search)
    with pytest.raises(BudgetExceeded):
        elsewhere.run(search)
    elsewhere.run(theirs.__exit__, None, None, None)


async def test_a_task_that_outlives_its_run_belongs_to_none(hf: Holdfast) -> None:
    search = hf.tool("search")(lambda: None)
    over = asyncio.Event()

    async def late() -> None:
        await over.wait()
        search()

    async with hf.run(budget={"calls": 1}):
        task = asyncio.create_task(late())
        search()
    async with hf.run():
        over.set()
        await task


@pytest.mark.parametrize("end", [ValueError, asyncio.CancelledError, None])
async def test_a_task_that_is_left_over_from_an_unfinished_run_can_call_nothing_more(
    hf: Holdfast, end: type[BaseException] | None
) -> None:
    script = Script(ok("charged"))
    charge = hf.tool("charge")(script.function)
    over = asyncio.Event()

    async def late() -> None:
        await over.wait()
        charge()

    with pytest.raises(end) if end is not None else contextlib.nullcontext():
        async with hf.run() as run:
            task = asyncio.create_task(late())
            if end is not None:
                raise end
            await run.afail("no use")
    over.set()

    with pytest.raises(LeaseLost, match="left unfinished"):
        await task
    assert script.count == 0
    charge()


# --- what a run says of itself ---


def test_a_run_emits_events_of_its_own_under_its_id(hf: Holdfast, recorder: Recorder) -> None:
    with hf.run() as run:
        run.emit("turn_started", tool="not ours", type="user", number=1)

    [event] = recorder.of("turn_started")
    assert (event.tool, event.run) == (None, run.id)
    assert event.payload == {"tool": "not ours", "type": "user", "number": 1}


@pytest.mark.parametrize(
    "say",
    [
        lambda run: run.emit("noted"),
        lambda run: run.commit("noted"),
        lambda run: asyncio.run(run.acommit("noted")),
        lambda run: run.spend("usd", 1.0),
    ],
    ids=["emit", "commit", "acommit", "spend"],
)
def test_nothing_happens_in_a_run_before_it_is_entered(
    hf: Holdfast, recorder: Recorder, say: Callable[[Run], None]
) -> None:
    run = hf.run()

    with pytest.raises(RunConflict, match="is not open: this belongs inside its `with`"):
        say(run)

    assert (run.spent, recorder.types()) == ({}, [])


@pytest.mark.parametrize(
    "say", [lambda run: run.commit("noted"), lambda run: asyncio.run(run.acommit("noted"))], ids=["commit", "acommit"]
)
def test_nothing_is_committed_to_a_run_that_was_left(hf: Holdfast, say: Callable[[Run], None]) -> None:
    with hf.run() as run:
        pass

    with pytest.raises(RunConflict, match="is not open: this belongs inside its `with`"):
        say(run)


def test_runs_have_different_ids_and_keep_session_and_prompt(hf: Holdfast) -> None:
    one, two = hf.run("s", "p"), hf.run()

    assert one.id != two.id
    assert (one.session_id, one.prompt) == ("s", "p")
    assert (two.session_id, two.prompt) == ("default", "")


@pytest.mark.parametrize("run_id", ["", "x" * 201, "a\nb", "\x00", 5, b"r"])
def test_a_run_id_is_1_to_200_printable_characters(hf: Holdfast, run_id: Any) -> None:
    with pytest.raises(ConfigError, match=r"run_id .* must be 1 to 200 printable characters"):
        hf.run(run_id=run_id)


def test_the_longest_run_id_is_taken(hf: Holdfast) -> None:
    assert hf.run(run_id="x" * 200).id == "x" * 200


@pytest.mark.parametrize(
    "budget",
    [
        {"calls": 0}, {"calls": -1}, {"calls": 1.5}, {"calls": float("nan")}, {"calls": True},
        {"seconds": 0}, {"seconds": float("inf")}, {"usd": -1.0}, {"usd": "1"}, {"usd": None},
        {"": 1}, {"two words": 1}, {5: 1}, 5, [("calls", 5)], "calls",
    ],
)  # fmt: skip
def test_a_budget_that_is_none_is_a_config_error_that_names_it(hf: Holdfast, budget: Any) -> None:
    with pytest.raises(ConfigError, match="budget"):
        hf.run(budget=budget)


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf"), "1", None, True])
def test_an_amount_that_cannot_be_spent_is_a_config_error_and_changes_nothing(hf: Holdfast, amount: Any) -> None:
    run = hf.run()

    with pytest.raises(ConfigError, match="amount"):
        run.spend("usd", amount)

    assert run.spent == {}


@pytest.mark.parametrize("unit", ["calls", "seconds", "", "two words", "a\nb", 5, None])
def test_a_unit_that_cannot_be_spent_is_a_config_error(hf: Holdfast, unit: Any) -> None:
    with pytest.raises(ConfigError, match="unit"):
        hf.run().spend(unit, 1.0)


@pytest.mark.parametrize("run_id", [None, 5, b"r"])
def test_only_a_text_can_be_resumed(hf: Holdfast, run_id: Any) -> None:
    with pytest.raises(ConfigError, match=r"run_id = .*must be a text"):
        hf.resume(run_id)


@pytest.mark.parametrize("wrong", [{"session": 5}, {"prompt": None}])
def test_session_and_prompt_are_texts(hf: Holdfast, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be a text"):
        hf.run(**wrong)


def test_the_result_of_a_step_may_be_a_proxy_that_has_every_attribute(hf: Holdfast) -> None:
    class Proxy:
        def __getattr__(self, name: str) -> object:
            return lambda *_: name

    with hf.run() as run:
        proxy = run.step("connect", Proxy)

    assert isinstance(proxy, Proxy)
