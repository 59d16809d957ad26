"""Time limits: a coroutine is cancelled, a plain function is abandoned in its thread."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests import shapes
from tests.shapes import Thread, eventually, settled

import holdfast
from holdfast import CircuitState, ConcurrencyFull, ConfigError, Holdfast, ToolTimeout
from holdfast.clock import SystemClock
from holdfast.guards.line import Signal
from holdfast.testing import ManualClock, Recorder, Script, hang, ok
from holdfast.waiting import threads
from holdfast.waiting.threads import MOST_ABANDONED, Job, Workers
from holdfast.waiting.waits import Wait, pause

hf = shapes.hf

ALIKE = {"failure_threshold": 1, "jitter": 0.0}


class Stuck:
    """Plain tools that let the clock pass their time limit and then do not come back until they are released."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self.released = threading.Event()

    def function(self) -> str:
        self._clock.advance(self._seconds)
        assert self.released.wait(shapes.PATIENCE)
        return "too late"

    def generator(self) -> Iterator[str]:
        yield "first"
        yield self.function()


@pytest.fixture
def stuck(clock: ManualClock) -> Iterator[Stuck]:
    tool = Stuck(clock, 1.0)
    yield tool
    tool.released.set()


# --- coroutines ---


async def test_a_coroutine_that_takes_too_long_is_cancelled_and_cleans_up(hf: Holdfast, clock: ManualClock) -> None:
    done = []

    @hf.tool(timeout=1.0)
    async def tool() -> None:
        try:
            await clock.asleep(60.0)
        except asyncio.CancelledError:
            done.append("cancelled")
            raise
        finally:
            await asyncio.sleep(0)
            done.append("cleaned up")

    with pytest.raises(ToolTimeout):
        await tool()

    assert done == ["cancelled", "cleaned up"]
    assert clock.monotonic() == 1.0


async def test_the_callers_task_is_not_cancelled_by_a_timeout(hf: Holdfast, clock: ManualClock) -> None:
    tool = hf.tool(timeout=1.0)(Script(hang(), clock=clock).coroutine)

    with pytest.raises(ToolTimeout):
        await tool()

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_somebody_elses_cancel_is_not_turned_into_a_timeout(hf: Holdfast, clock: ManualClock) -> None:
    tool = hf.tool(timeout=1.0, breaker=ALIKE)(Script(hang(), clock=clock).coroutine)
    task = asyncio.create_task(tool())
    await settled()

    task.cancel("by the user")

    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    stats = hf.tracker.stats("script")
    assert (stats.cancelled, stats.timed_out) == (1, 0)
    assert hf.breaker.state("script") is CircuitState.CLOSED


@pytest.mark.parametrize("first", ["user", "limit"])
async def test_when_both_want_it_to_end_the_cancel_from_outside_wins(
    hf: Holdfast, clock: ManualClock, first: str
) -> None:
    tool = hf.tool(timeout=1.0)(Script(hang(), clock=clock).coroutine)
    task = asyncio.create_task(tool())
    await settled()

    for who in ("user", "limit") if first == "user" else ("limit", "user"):
        if who == "user":
            task.cancel()
        else:
            clock.advance(1.0)

    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == 1
    assert hf.tracker.stats("script").cancelled == 1


async def test_a_cancel_during_the_cleanup_after_a_timeout_is_kept(hf: Holdfast, clock: ManualClock) -> None:
    cleaning = asyncio.Event()

    @hf.tool(timeout=1.0)
    async def tool() -> None:
        try:
            await clock.asleep(60.0)
        finally:
            cleaning.set()
            await clock.asleep(60.0)

    task = asyncio.create_task(tool())
    await cleaning.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_tool_that_swallows_the_cancellation_has_its_result_used(hf: Holdfast, clock: ManualClock) -> None:
    @hf.tool(timeout=1.0)
    async def tool() -> str:
        try:
            await clock.asleep(60.0)
        except asyncio.CancelledError:
            return "what there was"
        return "never"

    assert await tool() == "what there was"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert hf.tracker.stats("tool").successful == 1


async def test_a_tool_that_answers_the_cancellation_with_its_own_error_has_timed_out(
    hf: Holdfast, clock: ManualClock
) -> None:
    @hf.tool(timeout=1.0)
    async def tool() -> None:
        try:
            await clock.asleep(60.0)
        except asyncio.CancelledError:
            raise ValueError("lost my place") from None

    with pytest.raises(ToolTimeout) as caught:
        await tool()

    assert isinstance(caught.value.__cause__, ValueError)


def test_an_interrupt_during_the_cleanup_after_a_timeout_is_not_swallowed(hf: Holdfast, clock: ManualClock) -> None:
    @hf.tool(timeout=1.0)
    async def tool() -> None:
        try:
            await clock.asleep(60.0)
        finally:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(tool())


async def test_a_cancelled_inner_task_is_no_timeout(hf: Holdfast, clock: ManualClock) -> None:
    @hf.tool(timeout=1.0)
    async def tool() -> None:
        inner = asyncio.create_task(clock.asleep(60.0))
        await asyncio.sleep(0)
        inner.cancel()
        await inner

    with pytest.raises(asyncio.CancelledError):
        await tool()

    assert hf.tracker.stats("tool").timed_out == 0


@pytest.mark.parametrize("same_tool", [False, True])
async def test_of_nested_limits_with_equal_seconds_the_outer_one_speaks(
    hf: Holdfast, clock: ManualClock, same_tool: bool
) -> None:
    async def tool(depth: int) -> None:
        await (outer if same_tool else inner)(depth - 1) if depth else await clock.asleep(60.0)

    outer = hf.tool("outer", timeout=1.0)(tool)
    inner = hf.tool("inner", timeout=1.0)(tool)

    with pytest.raises(ToolTimeout) as caught:
        await outer(1)

    assert caught.value.tool == "outer"
    assert clock.monotonic() == 1.0
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_an_inner_limit_that_is_shorter_leaves_the_outer_tool_to_go_on(hf: Holdfast, clock: ManualClock) -> None:
    inner = hf.tool("inner", timeout=1.0)(Script(hang(), clock=clock).coroutine)

    @hf.tool(timeout=2.0)
    async def outer() -> str:
        with pytest.raises(ToolTimeout):
            await inner()
        await clock.asleep(0.5)
        return "went on"

    assert await outer() == "went on"


async def test_a_limit_does_not_disturb_a_timeout_of_asyncio_around_it(hf: Holdfast, clock: ManualClock) -> None:
    tool = hf.tool(timeout=1.0)(Script(hang(), clock=clock).coroutine)

    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0):  # which is over as soon as the tool waits
            await tool()

    assert not isinstance(caught.value, ToolTimeout)
    assert hf.tracker.stats("script").cancelled == 1


@pytest.mark.parametrize("path", ["quick", "long"])
async def test_a_thousand_coroutines_with_limits_share_one_timer(hf: Holdfast, clock: ManualClock, path: str) -> None:
    if path == "long":
        hf.bus.add(Recorder())
    timers = []

    @hf.tool(timeout=10.0, breaker=False)
    async def tool(number: int) -> int:
        if number == 999:
            timers.append(clock.pending)
        if number % 2:
            await parked
        await asyncio.sleep(0)
        return number

    parked = asyncio.get_running_loop().create_future()

    answers = await asyncio.gather(*(tool(number) for number in range(1000)), return_exceptions=True)

    assert timers == [1]
    assert [answer for answer in answers if isinstance(answer, int)] == list(range(0, 1000, 2))
    assert sum(isinstance(answer, ToolTimeout) for answer in answers) == 500
    assert clock.monotonic() == 10.0


async def test_each_of_many_coroutines_has_its_own_time(hf: Holdfast, clock: ManualClock) -> None:
    ends: list[float] = []
    tool = hf.tool(timeout=10.0, breaker=False)(Script(hang(), clock=clock).coroutine)

    async def begin_at(seconds: float) -> None:
        if seconds:
            await clock.asleep(seconds)
        with pytest.raises(ToolTimeout):
            await tool()
        ends.append(clock.monotonic())

    await asyncio.gather(*map(begin_at, [0.0, 1.0, 2.5, 9.0]))

    assert ends == [10.0, 11.0, 12.5, 19.0]


def test_a_limit_holds_in_every_event_loop_anew(hf: Holdfast, clock: ManualClock) -> None:
    tool = hf.tool(timeout=1.0, breaker=False)(Script(hang(), clock=clock).coroutine)

    for _ in range(3):
        with pytest.raises(ToolTimeout):
            asyncio.run(tool())


def test_event_loops_that_take_turns_have_one_timer_each(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(*[ok()] * 100, hang(), clock=clock)
    tool = hf.tool(timeout=600.0)(script.coroutine)

    with asyncio.Runner() as one, asyncio.Runner() as other:
        for _ in range(50):
            one.run(tool())
            other.run(tool())
        timers = clock.pending
        with pytest.raises(ToolTimeout):
            one.run(tool())

    assert timers == 2
    assert clock.monotonic() == 600.0


async def test_a_timed_out_attempt_gives_its_slot_back(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(hang(), ok("now"), clock=clock)
    tool = hf.tool(timeout=1.0, concurrency=1, max_wait=0)(script.coroutine)

    with pytest.raises(ToolTimeout):
        await tool()

    assert await tool() == "now"


async def test_the_limit_of_one_call_is_over_the_tools_own(hf: Holdfast, clock: ManualClock) -> None:
    tool = hf.tool(timeout=10.0)(Script(hang(), clock=clock).coroutine)

    with pytest.raises(ToolTimeout) as caught:
        await hf.acall(tool, policy={"timeout": 0.25})

    assert caught.value.seconds == 0.25
    assert clock.monotonic() == 0.25


async def test_the_limit_of_one_call_leaves_no_timer_behind(hf: Holdfast, clock: ManualClock) -> None:
    await hf.acall(Script(ok()).coroutine, policy={"timeout": 0.25})

    assert clock.pending == 0


# --- plain functions ---


def test_a_function_that_takes_too_long_is_abandoned_in_its_thread(hf: Holdfast, stuck: Stuck) -> None:
    tool = hf.tool(timeout=1.0)(stuck.function)

    with pytest.raises(ToolTimeout):
        tool()

    assert hf._kit.workers.abandoned == 1
    stuck.released.set()
    eventually(lambda: hf._kit.workers.abandoned == 0)


def test_the_thread_of_a_function_does_not_keep_the_process_from_ending(hf: Holdfast) -> None:
    tool = hf.tool(timeout=1.0)(threading.current_thread)

    assert tool().daemon


def test_a_generator_that_takes_too_long_is_abandoned_in_its_thread(hf: Holdfast, stuck: Stuck) -> None:
    items = hf.tool(timeout=1.0)(stuck.generator)()

    assert next(items) == "first"
    with pytest.raises(ToolTimeout):
        next(items)

    assert hf._kit.workers.abandoned == 1


async def test_a_function_that_blocks_the_event_loop_has_its_limit_all_the_same(hf: Holdfast, stuck: Stuck) -> None:
    tool = hf.tool(timeout=1.0)(stuck.function)

    with pytest.raises(ToolTimeout):
        tool()

    assert hf._kit.workers.abandoned == 1


async def test_a_function_called_from_a_coroutine_has_its_limit_too(hf: Holdfast, stuck: Stuck) -> None:
    with pytest.raises(ToolTimeout):
        await hf.acall(stuck.function, policy={"timeout": 1.0})

    assert hf._kit.workers.abandoned == 1


async def test_a_generator_streamed_in_a_coroutine_has_its_limit_too(hf: Holdfast, stuck: Stuck) -> None:
    items = hf.astream(stuck.generator, policy={"timeout": 1.0})

    assert await anext(items) == "first"
    with pytest.raises(ToolTimeout):
        await anext(items)

    assert hf._kit.workers.abandoned == 1


async def test_a_function_whose_caller_is_cancelled_is_abandoned(hf: Holdfast, clock: ManualClock) -> None:
    inside, leave = threading.Event(), threading.Event()

    def tool() -> None:
        inside.set()
        assert leave.wait(shapes.PATIENCE)

    task = asyncio.create_task(hf.acall(tool))
    await asyncio.to_thread(inside.wait, shapes.PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert hf._kit.workers.abandoned == 1
    assert hf.tracker.stats("tool").cancelled == 1
    leave.set()
    eventually(lambda: hf._kit.workers.abandoned == 0)


def test_no_more_than_64_functions_are_abandoned(hf: Holdfast, stuck: Stuck) -> None:
    tool = hf.tool(timeout=1.0, breaker=False)(stuck.function)
    for _ in range(MOST_ABANDONED):
        with pytest.raises(ToolTimeout):
            tool()

    with pytest.raises(ConcurrencyFull, match="too many timed-out calls still run in threads"):
        tool()

    assert MOST_ABANDONED == 64
    assert hf._kit.workers.abandoned == 64


async def test_nor_are_more_when_they_are_called_from_a_coroutine(hf: Holdfast, stuck: Stuck) -> None:
    for _ in range(MOST_ABANDONED):
        with pytest.raises(ToolTimeout):
            await hf.acall(stuck.function, policy={"timeout": 1.0, "breaker": False})
    script = Script(ok(["never"]))

    with pytest.raises(ConcurrencyFull):
        await hf.acall(script.function)
    with pytest.raises(ConcurrencyFull):
        await anext(hf.astream(script.generator))

    assert script.count == 0


def test_abandoned_threads_do_not_hinder_what_needs_no_thread(hf: Holdfast, stuck: Stuck) -> None:
    tool = hf.tool(timeout=1.0, breaker=False)(stuck.function)
    for _ in range(MOST_ABANDONED):
        with pytest.raises(ToolTimeout):
            tool()

    assert hf.call(Script(ok("here")).function) == "here"
    assert asyncio.run(hf.acall(Script(ok("there")).coroutine)) == "there"


def test_when_abandoned_functions_end_others_may_begin(hf: Holdfast, stuck: Stuck) -> None:
    tool = hf.tool("tool", timeout=1.0, breaker=False)(stuck.function)
    for _ in range(MOST_ABANDONED):
        with pytest.raises(ToolTimeout):
            tool()

    stuck.released.set()
    eventually(lambda: hf._kit.workers.abandoned == 0)

    assert hf.call(Script(ok("again")).function, policy={"timeout": 1.0}) == "again"


def test_a_thread_that_cannot_be_started_is_not_counted_as_abandoned(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = hf.tool(timeout=1.0)(Script(ok()).function)

    def full(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    with pytest.raises(ConcurrencyFull):
        tool()

    assert hf._kit.workers.abandoned == 0


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)


@pytest.mark.usefixtures("no_threads")
def test_a_call_for_which_no_thread_can_be_started_is_refused_and_says_nothing_about_the_tool(hf: Holdfast) -> None:
    script = Script(ok())
    tool = hf.tool(timeout=1.0, concurrency=1, breaker=ALIKE)(script.function)

    for _ in range(2):
        with pytest.raises(ConcurrencyFull, match="no thread can be started"):
            tool()

    stats = hf.tracker.stats("script")
    assert (stats.denied, stats.total, script.count) == (2, 0, 0)
    assert hf.breaker.state("script") is CircuitState.CLOSED


@pytest.mark.usefixtures("no_threads")
async def test_a_plain_tool_called_from_a_coroutine_is_refused_where_no_thread_can_be_started(hf: Holdfast) -> None:
    script = Script(ok())
    tool = hf.tool(breaker=ALIKE)(script.function)

    with pytest.raises(ConcurrencyFull, match="no thread can be started"):
        await hf.acall(tool)

    assert script.count == 0
    assert hf.breaker.state("script") is CircuitState.CLOSED


@pytest.mark.usefixtures("no_threads")
def test_a_stream_for_which_no_thread_can_be_started_says_nothing_about_the_tool(hf: Holdfast) -> None:
    tool = hf.tool(timeout=1.0, breaker=ALIKE)(Script(ok([1])).generator)

    with pytest.raises(ConcurrencyFull, match="no thread can be started"):
        list(tool())

    assert hf.breaker.state("script") is CircuitState.CLOSED


def test_a_stream_that_gets_no_thread_for_its_next_item_was_called(
    hf: Holdfast, request: pytest.FixtureRequest
) -> None:
    hf._kit.workers.close()  # no thread is used again
    items = hf.tool(timeout=60.0)(Script(ok([1, 2])).generator)()
    next(items)
    request.getfixturevalue("no_threads")

    with pytest.raises(ConcurrencyFull, match="no thread can be started"):
        next(items)

    stats = hf.tracker.stats("script")
    assert (stats.total, stats.denied) == (1, 0)


def test_a_failure_that_cannot_be_repeated_for_want_of_a_thread_leaves_as_it_is(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf._kit.workers.close()  # no thread is used again
    failure = ConnectionError("down")

    def full(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    @hf.tool(timeout=60.0, read_only=True, retry={"attempts": 2, "initial": 0, "max": 0})
    def tool() -> None:
        monkeypatch.setattr(threading.Thread, "start", full)
        raise failure

    with pytest.raises(ConnectionError) as caught:
        tool()

    assert caught.value is failure
    assert hf.breaker.diagnostics("tool").failure_count == 1


def test_a_call_that_is_not_repeated_for_want_of_a_thread_was_called_all_the_same(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf._kit.workers.close()  # no thread is used again

    def full(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    @hf.tool(timeout=60.0, read_only=True, retry={"attempts": 2, "initial": 0, "max": 0})
    def tool() -> None:
        monkeypatch.setattr(threading.Thread, "start", full)
        raise ConnectionError("down")

    with hf.run() as run:
        with pytest.raises(ConnectionError):
            tool()
        monkeypatch.undo()

        assert [event.payload.get("uncalled") for event in run.events() if event.type == "tool_ended"] == [None]


def test_a_job_that_is_abandoned_before_a_thread_takes_it_up_is_not_begun(clock: ManualClock) -> None:
    class Late(Workers):
        def start(self, job: Job) -> None:
            """The thread is not there yet."""

    workers, ran = Late(), []
    job = Job(workers, clock, lambda: ran.append("ran"))
    job.start()

    job.abandon()
    job.run()

    assert not ran
    assert workers.abandoned == 0


def test_closing_leaves_no_thread_behind(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LINGER", 3600.0)
    hf = holdfast.open(":memory:", policies={}, clock=clock)
    tool = hf.tool("tool", timeout=1.0)(threading.current_thread)
    before = tool()

    hf.close()
    after = tool()

    for thread in (before, after):
        thread.join(shapes.PATIENCE)
        assert not thread.is_alive()


def test_an_interrupt_while_a_thread_is_given_its_job_loses_no_thread(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "LINGER", 3600.0)
    workers, seen = Workers(), []
    Job(workers, clock, lambda: seen.append(threading.current_thread())).start()
    eventually(lambda: workers._idle)

    class Struck(list[Any]):
        """As when a signal comes after a call of ours."""

        def pop(self, *at: Any) -> Any:
            super().pop(*at)
            raise KeyboardInterrupt

    workers._idle = Struck(workers._idle)
    with suppress(KeyboardInterrupt):
        Job(workers, clock, lambda: None).start()
    workers.close()

    seen[0].join(shapes.PATIENCE)
    assert not seen[0].is_alive()


def test_an_interrupt_while_a_thread_waits_keeps_nobody_from_waking_it(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal = Signal()
    take = threading.Condition.__enter__

    def struck(condition: threading.Condition) -> bool:
        """As when a signal comes once the lock is taken, and before the `with` block is entered."""
        take(condition)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(threading.Condition, "__enter__", struck)
        pause(clock, Wait(signal=signal, begin=signal.fire))

    assert Thread(signal.fire).result() is None


ENDING = """
import builtins, holdfast

hf = holdfast.open(":memory:", policies={})


@hf.tool(timeout=60)
def goodbye():
    return "done"


class Late:
    def __del__(self, goodbye=goodbye, Denied=holdfast.Denied, print=print):
        try:
            print(goodbye(), flush=True)
        except Denied as denied:
            print(denied, flush=True)


goodbye()
builtins.late = Late()  # which is there until the interpreter has ended all threads
"""


def test_a_call_that_needs_a_thread_when_the_interpreter_ends_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=50, check=False)

    assert done.returncode == 0, done.stderr
    assert "no thread can be started" in done.stdout


def test_a_plain_tool_called_outside_an_event_loop_says_what_is_missing(hf: Holdfast) -> None:
    call = hf.acall(lambda: None)

    with pytest.raises(ConfigError, match=r"no running event loop: .* needs asyncio"):
        call.send(None)


def test_a_time_limit_outside_an_event_loop_says_what_is_missing_and_nothing_about_the_tool(hf: Holdfast) -> None:
    @hf.tool(timeout=1.0)
    async def stream() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(ConfigError, match=r"no running event loop: .* needs asyncio"):
        anext(stream()).__await__().send(None)

    assert hf.breaker.diagnostics("stream").failure_count == 0


def test_an_idle_thread_is_used_again(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LINGER", 3600.0)
    tool = hf.tool("tool", timeout=1.0)(threading.get_ident)

    first = tool()
    eventually(lambda: hf._kit.workers._idle)

    assert tool() == first


def test_an_idle_thread_keeps_no_result_alive(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LINGER", 3600.0)

    class Result:
        pass

    tool = hf.tool("tool", timeout=1.0)(Result)

    result = weakref.ref(tool())
    eventually(lambda: hf._kit.workers._idle)
    gc.collect()

    assert result() is None


def test_a_thread_that_is_idle_for_long_ends(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LINGER", 0.0)
    tool = hf.tool("tool", timeout=1.0)(threading.current_thread)

    first = tool()
    first.join(shapes.PATIENCE)

    assert not first.is_alive()
    assert tool() is not first


def test_the_callers_context_is_visible_in_the_thread(hf: Holdfast) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    tool = hf.tool("tool", timeout=1.0)(variable.get)

    variable.set("the caller's")

    assert tool() == "the caller's"


def test_the_run_is_visible_in_the_thread(hf: Holdfast) -> None:
    inner = hf.tool("inner")(Script(ok()).function)

    @hf.tool(timeout=1.0)
    def outer() -> object:
        return inner()

    with hf.run(budget={"calls": 3}):
        outer()
        with pytest.raises(holdfast.BudgetExceeded) as caught:
            outer()

    assert caught.value.tool == "inner"


async def test_the_callers_context_is_visible_when_called_from_a_coroutine(hf: Holdfast) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("the task's")

    assert await hf.acall(variable.get) == "the task's"


@pytest.mark.parametrize("how", ["function", "acall"])
def test_an_error_in_a_thread_leaves_with_its_own_traceback(hf: Holdfast, how: str) -> None:
    def failing() -> None:
        raise LookupError("inside")

    ways = {
        "function": lambda: hf.call(failing, policy={"timeout": 1.0}),
        "acall": lambda: asyncio.run(hf.acall(failing)),
    }

    with pytest.raises(LookupError, match="inside") as caught:
        ways[how]()

    assert caught.traceback[-1].name == "failing"


def test_a_limit_holds_on_the_real_clock() -> None:
    released = threading.Event()
    with holdfast.open(":memory:", policies={}, clock=SystemClock()) as hf:
        tool = hf.tool("tool", timeout=0.01)(released.wait)

        with pytest.raises(ToolTimeout):
            tool()

        released.set()


def test_many_threads_with_limits_each_get_their_own_answer(hf: Holdfast) -> None:
    tool = hf.tool("tool", timeout=1.0)(lambda number: number)

    def work(number: int) -> list[Any]:
        return [tool(number) for _ in range(20)]

    working = [Thread(work, number) for number in range(8)]

    assert [thread.result() for thread in working] == [[number] * 20 for number in range(8)]
