"""Cancelling a run: from anywhere, at any time, any number of times; what its work sees of it, and what is left."""

# ruff: noqa: PT012 (what leaves the block of a run is what is tested, so the block is within `raises`)

from __future__ import annotations

import _thread
import asyncio
import functools
import operator
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import pytest
from tests.runs import durable
from tests.runs.durable import Entering, Killed, Place, of, stopped, types
from tests.shapes import PATIENCE, Gate, Thread, eventually

from holdfast import CancelResult, CircuitState, Holdfast, Hook, LeaseLost, Run, RunCancelled, RunConflict, StoreError
from holdfast.guards.line import Signal
from holdfast.testing import ManualClock, Script, ok
from holdfast.waiting.waits import Wait

place, disk, memory, entering = durable.place, durable.disk, durable.memory, durable.entering


@pytest.fixture
def hf(place: Place) -> Holdfast:
    return place.open()


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        await asyncio.sleep(0)


# --- what cancel answers ---


def test_the_handler_of_a_signal_may_cancel_in_the_middle_of_a_write(place: Place) -> None:
    armed: list[Run] = []

    def interrupt(point: str) -> None:
        if point == "written" and armed:
            answers.append(armed.pop().cancel("shutdown"))

    answers: list[CancelResult] = []
    hf = place.open(crash=interrupt)

    with pytest.raises(RunCancelled), hf.run() as run:
        armed.append(run)
        run.commit("noted")
        run.check()

    assert answers == [CancelResult.REQUESTED]
    assert hf.runs.snapshot(run.id).status == "cancelled"
    assert hf.runs.snapshot(run.id).error == "shutdown"


def test_the_handler_of_a_signal_may_cancel_at_the_moment_in_which_a_write_begins(place: Place) -> None:
    hf = place.open()
    answers: list[CancelResult] = []

    with pytest.raises(RunCancelled), hf.run() as run:
        turn = hf.runs.writer.turn

        def handle(*_: object) -> None:
            hf.runs.writer.turn = turn
            answers.append(run.cancel("shutdown"))

        with _on_signal(handle):
            hf.runs.writer.turn = _Struck(turn)  # type: ignore[assignment]
            run.commit("noted")
        run.check()

    assert answers == [CancelResult.REQUESTED]
    assert hf.runs.snapshot(run.id).error == "shutdown"


def test_an_interrupt_at_the_moment_in_which_a_write_begins_leaves_others_their_turn(place: Place) -> None:
    hf = place.open()
    run = hf.runs.create_run("shop", "tea")
    turn = hf.runs.writer.turn

    def interrupt(*_: object) -> None:
        hf.runs.writer.turn = turn
        raise KeyboardInterrupt

    with _on_signal(interrupt):
        hf.runs.writer.turn = _Struck(turn)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            hf.runs.record_event(run.id, "noted")
    with ThreadPoolExecutor() as pool:
        pool.submit(hf.runs.record_event, run.id, "noted too").result()

    assert [each.type for each in hf.runs.events(run.id)][-2:] == ["noted", "noted too"]


def test_the_handler_of_a_signal_may_cancel_while_the_store_is_closed(disk: Place) -> None:
    hf = disk.open()
    hf.runs.create_run("shop", "tea", run_id="r")
    answers: list[CancelResult] = []
    close = hf.runs.file.close

    def closed_meanwhile() -> None:
        answers.append(hf.runs.cancel("r", "shutdown"))
        close()

    hf.runs.file.close = closed_meanwhile  # type: ignore[method-assign]
    hf.close()

    assert answers == [CancelResult.REQUESTED]
    hf.runs.file.close = close  # type: ignore[method-assign]
    assert hf.runs.cancel("r") is CancelResult.ALREADY_FINISHED


def test_the_handler_of_a_signal_cannot_close_the_store_in_the_middle_of_a_write(disk: Place) -> None:
    armed: list[bool] = []

    def interrupt(point: str) -> None:
        if point == "written" and armed:
            armed.clear()
            with pytest.raises(StoreError, match="try again when that is made"):
                hf.runs.close()

    hf = disk.open(crash=interrupt)
    hf.runs.create_run("shop", "tea", run_id="r")

    armed.append(True)
    hf.runs.record_event("r", "noted")

    assert armed == []
    assert [each.type for each in hf.runs.events("r")][-1] == "noted"
    hf.runs.close()
    assert hf.runs.record_event("r", "noted too").event_count == 2


def test_the_handler_of_a_signal_may_cancel_while_the_process_forks(disk: Place) -> None:
    hf = disk.open()
    hf.runs.create_run("shop", "tea", run_id="r")

    let_go = hf.runs.hold()
    answer = hf.runs.cancel("r", "shutdown")
    let_go()

    assert answer is CancelResult.REQUESTED
    assert hf.runs.cancel("r") is CancelResult.ALREADY_FINISHED


class _Struck:
    """A lock during whose taking a signal comes: it is handled as soon as the interpreter looks for one."""

    def __init__(self, lock: Any) -> None:
        self.release = lock.release
        steps: list[Callable[[], object]] = [lock.acquire, functools.partial(_thread.interrupt_main, signal.SIGUSR1)]
        taken: Iterator[object] = map(operator.call, steps)
        # All in one call of C, as the interpreter looks after each call of ours. What `acquire` is given, `next` takes.
        self.acquire = functools.partial(next, map(list, [taken]))


@contextmanager
def _on_signal(handle: Callable[..., None]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_handler_of_a_signal_cannot_wait_for_a_write_in_the_middle_of_another(place: Place) -> None:
    armed: list[Run] = []

    def interrupt(point: str) -> None:
        if point == "written" and armed:
            with pytest.raises(StoreError, match="cannot be waited for here"):
                armed.pop().commit("from the handler")

    hf = place.open(crash=interrupt)

    with hf.run() as run:
        armed.append(run)
        run.commit("noted")

    assert not armed
    assert sorted(types(hf, run.id)[1:3]) == ["from the handler", "noted"]


def test_who_ends_a_run_from_outside_stops_its_owner(place: Place) -> None:
    hf = place.open()
    work = hf.tool("work")(lambda: 1)

    with pytest.raises(LeaseLost, match="was ended from elsewhere"), hf.run() as run:
        work()
        hf.runs.mark_failed(run.id, "an operator says so")
        work()
        work()

    assert hf.runs.snapshot(run.id).status == "failed"


def test_cancel_answers_what_became_of_the_wish(hf: Holdfast) -> None:
    with hf.run() as done:
        pass
    waiting = stopped(hf, lambda: None)
    hf.runs.create_run("shop", "tea", run_id="created")

    assert hf.runs.handle("nobody").cancel() is CancelResult.NOT_FOUND
    assert hf.runs.handle(done.id).cancel() is CancelResult.ALREADY_FINISHED
    assert hf.runs.handle(waiting).cancel("enough") is CancelResult.REQUESTED
    assert hf.runs.handle(waiting).cancel("enough") is CancelResult.ALREADY_FINISHED
    assert hf.runs.handle("created").cancel() is CancelResult.REQUESTED


def test_a_run_that_was_not_entered_or_has_completed_is_not_stopped(hf: Holdfast) -> None:
    unknown = hf.run()
    with hf.run() as done:
        done.complete("tea")

        assert done.cancel() is CancelResult.ALREADY_FINISHED
        assert not done.cancelled.is_set()
    assert unknown.cancel() is CancelResult.NOT_FOUND
    assert not unknown.cancelled.is_set()


def test_a_run_that_nobody_owns_is_cancelled_at_once(hf: Holdfast) -> None:
    run_id = stopped(hf, lambda: None)

    hf.runs.handle(run_id).cancel("enough")

    snapshot = hf.runs.snapshot(run_id)
    assert (snapshot.status, snapshot.error) == ("cancelled", "enough")
    assert types(hf, run_id)[-1] == "run_cancelled"


def test_a_run_can_be_cancelled_before_it_has_begun_and_begins_no_more(hf: Holdfast) -> None:
    hf.runs.create_run("shop", "tea", run_id="order")

    hf.runs.handle("order").cancel()

    assert hf.runs.snapshot("order").status == "cancelled"
    with pytest.raises(RunConflict):
        hf.run("shop", "tea", run_id="order").__enter__()


def test_the_run_of_a_dead_owner_is_cancelled_at_once(place: Place) -> None:
    hf = place.open()
    with pytest.raises(Killed), hf.run() as run:
        place.die(hf)
    hf = place.open()

    assert hf.runs.handle(run.id).cancel() is CancelResult.REQUESTED
    assert hf.runs.snapshot(run.id).status == "cancelled"


# --- plain code ---


def test_plain_code_learns_of_it_from_its_next_call(hf: Holdfast, entering: Entering) -> None:
    script = Script(ok(1), name="work")
    work = hf.tool()(script.function)

    def body(run: Run) -> None:
        assert hf.runs.handle(run.id).cancel("enough") is CancelResult.REQUESTED
        assert hf.runs.handle(run.id).cancel("again") is CancelResult.REQUESTED
        assert run.cancelled.is_set()
        work()

    run = hf.run()
    with pytest.raises(RunCancelled, match="enough") as caught:
        entering(run, body)

    assert (caught.value.run_id, caught.value.reason) == (run.id, "enough")
    assert script.count == 0
    assert types(hf, run.id) == ["run_started", "run_cancel_requested", "run_cancelled"]
    snapshot = hf.runs.snapshot(run.id)
    assert (snapshot.status, snapshot.error, snapshot.owner) == ("cancelled", "enough", None)


@pytest.mark.parametrize("what", ["tool", "step", "guard", "stream"])
def test_every_way_to_go_on_raises(hf: Holdfast, what: str) -> None:
    work = hf.tool("work")(lambda: pytest.fail("was called"))

    @hf.tool
    def numbers() -> Iterator[int]:
        yield pytest.fail("was called")

    with pytest.raises(RunCancelled), hf.run() as run:
        run.cancel()
        match what:
            case "tool":
                work()
            case "step":
                run.step("plan", lambda: pytest.fail("was called"))
            case "guard":
                with hf.guard("block"):
                    pytest.fail("was entered")
            case "stream":
                next(numbers())


@pytest.mark.parametrize("what", ["tool", "guard", "stream", "in a thread", "as a task"])
def test_a_call_whose_run_is_cancelled_while_its_begin_is_written_is_not_made(place: Place, what: str) -> None:
    def interrupt(point: str) -> None:
        if point == "written" and "tool_started" in [type for _, _, _, type, *_ in hf.runs._ledger._rows]:
            run.cancel("enough")

    hf = place.open(crash=interrupt)
    work = hf.tool("work")(lambda: pytest.fail("was called"))
    run = hf.run()

    @hf.tool(name="work")
    def numbers() -> Iterator[int]:
        yield pytest.fail("was called")

    async def alone() -> None:
        with suppress(RunCancelled):
            await hf.acall(work)

    async def agent(call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with run:
            await asyncio.gather(call())

    with pytest.raises(RunCancelled):
        match what:
            case "in a thread":
                asyncio.run(agent(functools.partial(asyncio.to_thread, work)))
            case "as a task":
                asyncio.run(agent(alone))
            case _:
                with run:
                    match what:
                        case "tool":
                            work()
                        case "stream":
                            next(numbers())
                        case "guard":
                            with hf.guard("work"):
                                pytest.fail("was entered")

    eventually(lambda: of(hf, run.id, "tool_ended"))
    (ended,) = of(hf, run.id, "tool_ended")
    assert (ended.payload["status"], ended.payload["uncalled"]) == ("cancelled", True)
    assert hf.runs.snapshot(run.id).status == "cancelled"


def test_it_is_no_exception_that_could_be_caught_by_accident(hf: Holdfast) -> None:
    work = hf.tool("work")(lambda: 1)

    def agent() -> None:
        try:
            work()
        except Exception:
            pytest.fail("was caught")

    with pytest.raises(RunCancelled), hf.run() as run:
        run.cancel()
        agent()


def test_running_code_is_not_interrupted_and_its_result_is_recorded(hf: Holdfast) -> None:
    gate = Gate()
    work = hf.tool("work")(gate)
    runs: list[Run] = []
    answers: list[Any] = []

    def agent() -> None:
        with hf.run() as run:
            runs.append(run)
            answers.append(work("x"))
            work("y")

    thread = Thread(agent)
    eventually(lambda: gate.entered)
    runs[0].cancel("enough")
    gate.let_out()

    assert isinstance(thread.error, RunCancelled)
    assert answers == [["x"]]
    assert gate.entered == ["x"]
    assert of(hf, runs[0].id, "tool_ended")[0].payload["status"] == "success"


def test_a_clean_end_after_the_cancel_is_a_cancelled_run(hf: Holdfast, entering: Entering) -> None:
    run = hf.run()

    entering(run, lambda run: run.cancel())

    assert hf.runs.snapshot(run.id).status == "cancelled"


def test_another_error_after_the_cancel_is_a_cancelled_run(hf: Holdfast) -> None:
    with pytest.raises(ValueError, match="no"), hf.run() as run:
        run.cancel()
        raise ValueError("no")

    assert hf.runs.snapshot(run.id).status == "cancelled"


def cancel_unheard(hf: Holdfast, run: Run) -> None:
    """A cancel of another process that is on disk just before the end of the run is written."""
    hf.runs.writer.submit(lambda ledger: ledger.cancel(run.id, "enough"))


@pytest.mark.parametrize("error", [None, ValueError("no"), asyncio.CancelledError()], ids=["clean", "error", "deploy"])
def test_a_cancel_that_its_owner_has_not_heard_of_when_it_ends_is_a_cancelled_run(
    disk: Place, entering: Entering, error: BaseException | None
) -> None:
    told: list[Any] = []
    hf = disk.open(hooks=[Hook("on_cancel", lambda call: told.append(hf.runs.snapshot(call.run_id).status))])
    run = hf.run()

    def body(run: Run) -> None:
        cancel_unheard(hf, run)
        if error is not None:
            raise error

    with nullcontext() if error is None else pytest.raises(type(error)):
        entering(run, body)

    assert types(hf, run.id) == ["run_started", "run_cancel_requested", "run_cancelled"]
    snapshot = hf.runs.snapshot(run.id)
    assert (snapshot.status, snapshot.error, snapshot.owner) == ("cancelled", "enough", None)
    assert told == ["executing"]
    assert run.cancelled.is_set()


def test_an_interrupt_is_stronger_than_a_cancel_that_nobody_has_heard_of(disk: Place) -> None:
    hf = disk.open()
    with pytest.raises(KeyboardInterrupt), hf.run() as run:
        cancel_unheard(hf, run)
        raise KeyboardInterrupt

    assert hf.runs.snapshot(run.id).interrupted
    assert not run.cancelled.is_set()


def test_who_says_that_the_run_is_complete_is_believed_though_a_cancel_was_requested(hf: Holdfast) -> None:
    with hf.run() as run:
        run.cancel()
        run.complete("done all the same")

    assert hf.runs.snapshot(run.id).status == "completed"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_stronger_than_the_cancel(hf: Holdfast, error: type[BaseException]) -> None:
    with pytest.raises(error), hf.run() as run:
        run.cancel()
        raise error

    assert hf.runs.snapshot(run.id).interrupted


def test_who_waits_in_line_is_woken_at_once(hf: Holdfast) -> None:
    gate = Gate()
    work = hf.tool("work", concurrency=1, max_wait=1000.0)(gate)
    runs: list[Run] = []

    def agent() -> None:
        with hf.run() as run:
            runs.append(run)
            work("second")

    holder = Thread(work, "first")
    eventually(lambda: gate.entered)
    waiter = Thread(agent)
    eventually(lambda: runs and runs[0]._cancelling._waiting)

    runs[0].cancel("enough")

    assert isinstance(waiter.error, RunCancelled)
    gate.let_out()
    holder.result()
    assert gate.entered == ["first"]
    assert types(hf, runs[0].id)[-1] == "run_cancelled"
    assert "tool_started" not in types(hf, runs[0].id)


def test_who_waits_for_the_next_try_sees_it_soon(memory: Place, clock: ManualClock) -> None:
    hf = memory.open()

    def work() -> None:
        assert hf.current_run is not None
        hf.current_run.cancel()
        calls.append(1)
        raise ConnectionError

    calls: list[int] = []
    tool = hf.tool("work", retry={"attempts": 5, "initial": 60.0, "max": 600.0})(work)

    with pytest.raises(RunCancelled), hf.run():
        tool()

    assert len(calls) == 1
    assert clock.monotonic() <= 1.0


def test_who_waits_for_the_answer_of_an_identical_call_is_woken(hf: Holdfast) -> None:
    gate = Gate()
    fetch = hf.tool("fetch", read_only=True, cache=60.0)(gate)
    runs: list[Run] = []

    def agent() -> None:
        with hf.run() as run:
            runs.append(run)
            fetch("x")

    leader = Thread(fetch, "x")
    eventually(lambda: gate.entered)
    follower = Thread(agent)
    eventually(lambda: runs and runs[0]._cancelling._waiting)

    runs[0].cancel()

    assert isinstance(follower.error, RunCancelled)
    gate.let_out()
    assert leader.result() == ["x"]


# --- tasks ---


async def test_the_task_that_entered_the_run_is_cancelled_in_the_middle_of_a_wait(hf: Holdfast) -> None:
    async def agent(run: Run) -> None:
        async with run:
            await asyncio.Event().wait()

    run = hf.run()
    task = asyncio.create_task(agent(run))
    await until(lambda: run.is_open)

    await asyncio.to_thread(hf.runs.handle(run.id).cancel, "enough")

    with pytest.raises(RunCancelled, match="enough"):
        await task
    assert types(hf, run.id) == ["run_started", "run_cancel_requested", "run_cancelled"]


async def test_a_task_that_catches_it_is_not_left_cancelled(hf: Holdfast) -> None:
    task = asyncio.current_task()
    assert task is not None

    with pytest.raises(RunCancelled):
        async with hf.run() as run:
            asyncio.get_running_loop().call_soon(run.cancel)
            await asyncio.Event().wait()

    assert task.cancelling() == 0
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await asyncio.sleep(0)


async def test_a_body_that_swallows_the_cancellation_is_left_cleanly_and_cancelled(hf: Holdfast) -> None:
    task = asyncio.current_task()
    assert task is not None

    async with hf.run() as run:
        asyncio.get_running_loop().call_soon(run.cancel)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert run.cancelled.is_set()

    assert task.cancelling() == 0
    await asyncio.sleep(0)
    assert hf.runs.snapshot(run.id).status == "cancelled"


async def test_a_plain_block_in_a_task_is_cancelled_and_uncancelled_too(hf: Holdfast) -> None:
    task = asyncio.current_task()
    assert task is not None

    with pytest.raises(RunCancelled), hf.run() as run:
        asyncio.get_running_loop().call_soon(run.cancel)
        await asyncio.Event().wait()

    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_cancel_at_the_last_moment_does_not_hit_what_comes_after_the_block(hf: Holdfast) -> None:
    async with hf.run() as run:
        run.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    with hf.run() as plain:
        plain.cancel()
    for _ in range(5):
        await asyncio.sleep(0)

    assert hf.runs.snapshot(run.id).status == hf.runs.snapshot(plain.id).status == "cancelled"


async def test_gathered_calls_are_cancelled_with_their_run(hf: Holdfast) -> None:
    ended: list[str] = []

    @hf.tool
    async def work(name: str) -> None:
        begun.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    begun: list[str] = []

    async def canceller(run: Run) -> None:
        await until(lambda: len(begun) == 3)
        run.cancel()

    with pytest.raises(RunCancelled):
        async with hf.run() as run:
            await asyncio.gather(*map(work, "abc"), canceller(run))

    assert sorted(ended) == ["a", "b", "c"]
    assert [event.payload["status"] for event in of(hf, run.id, "tool_ended")] == ["cancelled"] * 3


async def test_a_group_of_tasks_is_cancelled_with_its_run(hf: Holdfast) -> None:
    @hf.tool
    async def work(name: str) -> None:
        begun.append(name)
        await asyncio.Event().wait()

    begun: list[str] = []

    with pytest.raises(RunCancelled):
        async with hf.run() as run, asyncio.TaskGroup() as tasks:
            tasks.create_task(work("a"))
            tasks.create_task(work("b"))
            await until(lambda: len(begun) == 2)
            run.cancel()
            await asyncio.Event().wait()

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert hf.runs.snapshot(run.id).status == "cancelled"


async def test_a_task_that_nobody_awaits_learns_of_it_from_its_next_call(hf: Holdfast) -> None:
    work = hf.tool("work")(lambda: pytest.fail("was called"))

    async def aside() -> None:
        await asyncio.to_thread(run.cancelled.wait, PATIENCE)
        work()

    with pytest.raises(RunCancelled):
        async with hf.run() as run:
            task = asyncio.create_task(aside())
            asyncio.get_running_loop().call_soon(run.cancel)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                with pytest.raises(asyncio.CancelledError):
                    await task
                raise


async def test_a_cancellation_by_others_leaves_the_run_interrupted(hf: Holdfast) -> None:
    async def agent(run: Run) -> None:
        async with run:
            await asyncio.Event().wait()

    run = hf.run()
    task = asyncio.create_task(agent(run))
    await until(lambda: run.is_open)

    task.cancel()

    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert not isinstance(caught.value, RunCancelled)
    assert hf.runs.snapshot(run.id).interrupted


async def test_a_time_limit_around_the_run_is_a_timeout_and_leaves_it_interrupted(hf: Holdfast) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            async with hf.run() as run:
                limit.reschedule(asyncio.get_running_loop().time())
                await asyncio.Event().wait()

    assert hf.runs.snapshot(run.id).interrupted


async def test_a_time_limit_inside_the_run_is_the_users_own_affair(hf: Holdfast) -> None:
    async with hf.run() as run:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()

    assert hf.runs.snapshot(run.id).status == "completed"


async def test_a_cancel_inside_a_time_limit_is_no_timeout(hf: Holdfast) -> None:
    with pytest.raises(RunCancelled):
        async with asyncio.timeout(PATIENCE):
            async with hf.run() as run:
                async with asyncio.timeout(PATIENCE):
                    asyncio.get_running_loop().call_soon(run.cancel)
                    await asyncio.Event().wait()

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_time_limit_around_a_run_that_is_cancelled_as_well_is_still_a_timeout(hf: Holdfast) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            async with hf.run() as run:
                asyncio.get_running_loop().call_soon(run.cancel)
                limit.reschedule(asyncio.get_running_loop().time())
                await asyncio.Event().wait()

    assert hf.runs.snapshot(run.id).status == "cancelled"


async def test_a_cancel_of_the_inner_run_leaves_the_outer_one_alone(hf: Holdfast) -> None:
    async with hf.run() as outer:
        with pytest.raises(RunCancelled):
            async with hf.run() as inner:
                asyncio.get_running_loop().call_soon(inner.cancel)
                await asyncio.Event().wait()
        await asyncio.sleep(0)
        assert not outer.cancelled.is_set()

    assert hf.runs.snapshot(outer.id).status == "completed"
    assert hf.runs.snapshot(inner.id).status == "cancelled"


async def test_a_cancel_of_the_outer_run_interrupts_the_inner_one(hf: Holdfast) -> None:
    with pytest.raises(RunCancelled) as caught:
        async with hf.run() as outer, hf.run() as inner:
            asyncio.get_running_loop().call_soon(outer.cancel)
            await asyncio.Event().wait()

    assert caught.value.run_id == outer.id
    assert hf.runs.snapshot(outer.id).status == "cancelled"
    assert hf.runs.snapshot(inner.id).interrupted


async def test_a_blocking_tool_in_a_thread_ends_and_the_task_is_cancelled_meanwhile(hf: Holdfast) -> None:
    gate = Gate()
    work = hf.tool("work")(gate)
    run = hf.run()

    async def agent() -> None:
        async with run:
            await hf.acall(work, "x")

    task = asyncio.create_task(agent())
    await until(lambda: gate.entered)

    await asyncio.to_thread(run.cancel)

    with pytest.raises(RunCancelled):
        await task
    gate.let_out()
    assert hf.runs.snapshot(run.id).status == "cancelled"


# --- a wish that comes early ---


def test_a_wish_that_the_dead_owner_never_heard_meets_who_resumes(place: Place, entering: Entering) -> None:
    hf = place.open()
    work = hf.tool("work")(lambda: pytest.fail("was called"))
    with pytest.raises(Killed), hf.run() as run:
        hf.runs.handle(run.id).cancel("enough")
        place.die(hf)
    hf = place.open()
    work = hf.tool("work")(lambda: pytest.fail("was called"))

    with pytest.raises(RunCancelled, match="enough"):
        entering(hf.resume(run.id), lambda run: work())

    assert hf.runs.snapshot(run.id).status == "cancelled"


async def test_a_wish_that_the_dead_owner_never_heard_cancels_the_task_of_who_resumes(memory: Place) -> None:
    hf = memory.open()
    with pytest.raises(Killed):
        async with hf.run() as run:
            hf.runs.handle(run.id).cancel("enough")
            memory.die(hf)
    hf = memory.open()

    with pytest.raises(RunCancelled, match="enough"):
        async with hf.resume(run.id):
            await asyncio.Event().wait()


@pytest.mark.parametrize("others", [0, 1])
def test_a_wish_that_comes_while_the_run_is_entered_is_heard(place: Place, others: int) -> None:
    hf = place.open()
    add = hf._home.keeper.add

    def late(run: Run) -> None:
        if run.id == "order":
            hf.runs.handle("order").cancel("enough")
        add(run)

    hf._home.keeper.add = late  # type: ignore[method-assign]
    open_ones = [hf.run() for _ in range(others)]
    for other in open_ones:
        other.__enter__()

    with hf.run(run_id="order") as run:
        assert run.cancelled.is_set()

    for other in open_ones:
        other.__exit__(None, None, None)


# --- from another process ---


CANCEL = """
    import holdfast, sys
    with holdfast.open_store(sys.argv[1]) as store:
        print(store.handle(sys.argv[2]).cancel("from elsewhere"))
"""


def cancel_elsewhere(place: Place, run_id: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(CANCEL), str(place.path), run_id]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


async def test_a_task_is_cancelled_from_another_process(disk: Place) -> None:
    hf = disk.open(clock=ManualClock(epoch=4e9))

    with pytest.raises(RunCancelled, match="from elsewhere"):
        async with hf.run() as run:
            asker = asyncio.create_task(asyncio.to_thread(cancel_elsewhere, disk, run.id))
            await asyncio.wait_for(asyncio.Event().wait(), PATIENCE)

    assert await asker == "requested"
    assert types(hf, run.id) == ["run_started", "run_cancel_requested", "run_cancelled"]


def test_plain_code_is_told_from_another_process(disk: Place) -> None:
    hf = disk.open(clock=ManualClock(epoch=4e9))
    work = hf.tool("work")(lambda: pytest.fail("was called"))

    with pytest.raises(RunCancelled, match="from elsewhere"), hf.run() as run:
        assert cancel_elsewhere(disk, run.id) == "requested"
        assert run.cancelled.wait(PATIENCE)
        work()


def test_the_second_run_of_a_process_is_told_too(disk: Place) -> None:
    hf = disk.open(clock=ManualClock(epoch=4e9))

    with hf.run() as other, hf.run() as run:
        cancel_elsewhere(disk, run.id)
        assert run.cancelled.wait(PATIENCE)
        assert not other.cancelled.is_set()


# --- hooks ---


def test_cancel_hooks_are_called_once_and_before_the_run_is_over(
    memory: Place, entering: Entering, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []

    def clean_up(call: Any) -> None:
        told.append((call.kind, call.run_id, call.reason, hf.runs.snapshot(call.run_id).status))

    hf = memory.open(hooks=[Hook("on_cancel", clean_up)])
    run = hf.run()

    def body(run: Run) -> None:
        threads = [threading.Thread(target=run.cancel, args=("enough",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    entering(run, body)

    assert told == [("on_cancel", run.id, "enough", "executing")]
    assert caplog.records == []


def test_a_block_that_is_left_as_soon_as_the_token_is_set_waits_for_the_cancel_hooks(
    memory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.runs import run as module

    told: list[str] = []
    hf = memory.open(hooks=[Hook("on_cancel", lambda call: told.append(hf.runs.snapshot(call.run_id).status))])
    leaves = threading.Event()  # the block is left, or waits for the hooks
    pause = module.pause
    monkeypatch.setattr(module, "pause", lambda *args: (leaves.set(), pause(*args)))

    with hf.run() as run:
        set_token = run.cancelled.set
        monkeypatch.setattr(run.cancelled, "set", lambda: (set_token(), leaves.wait(PATIENCE)))
        canceller = Thread(run.cancel)
        assert run.cancelled.wait(PATIENCE)
    leaves.set()

    canceller.result()
    eventually(lambda: told)
    assert told == ["executing"]


def test_a_cancel_hook_has_a_time_limit(memory: Place) -> None:
    stuck = threading.Event()
    clock = memory.clock
    hf = memory.open(hooks=[Hook("on_cancel", lambda call: stuck.wait(PATIENCE), timeout=5.0)])

    def agent() -> None:
        with hf.run() as run:
            run.cancel()

    thread = Thread(agent)
    eventually(lambda: clock.pending)
    clock.advance(5.0)

    thread.result()
    stuck.set()


def test_a_cancel_hook_that_fails_is_passed_over(memory: Place, caplog: pytest.LogCaptureFixture) -> None:
    hf = memory.open(hooks=[Hook("on_cancel", lambda call: 1 / 0)])

    with hf.run() as run:
        run.cancel()

    assert hf.runs.snapshot(run.id).status == "cancelled"
    assert "on_cancel" in caplog.text


def test_no_cancel_hook_is_called_where_nobody_cancels(memory: Place) -> None:
    told: list[Any] = []
    hf = memory.open(hooks=[Hook("on_cancel", told.append)])

    with hf.run():
        pass
    with pytest.raises(KeyboardInterrupt), hf.run():
        raise KeyboardInterrupt

    assert told == []


def test_an_interrupt_while_the_hooks_work_leaves_the_run_to_others_and_the_wish_stands(memory: Place) -> None:
    from holdfast.runs import run as module

    hf = memory.open(hooks=[Hook("on_cancel", lambda call: None)])
    pause = module.pause

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt), hf.run() as run:
            run.cancel()
            module.pause = interrupted  # type: ignore[assignment]
    finally:
        module.pause = pause

    hf.runs.writer.flush()
    assert hf.runs.snapshot(run.id).interrupted
    with pytest.raises(RunCancelled), hf.resume(run.id):
        hf.call(lambda: pytest.fail("was called"))
    assert hf.runs.snapshot(run.id).status == "cancelled"


def test_a_block_does_not_wait_for_hooks_that_an_interrupt_kept_from_being_called(
    memory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = memory.open(hooks=[Hook("on_cancel", lambda call: None)])

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), hf.run() as run:
        monkeypatch.setattr(hf._kit.workers, "start", interrupted)
        run.cancel()

    assert hf.runs.snapshot(run.id).interrupted


async def test_a_call_left_over_from_a_cancelled_run_tells_of_the_circuit_it_opens_and_gives_its_slot_back(
    hf: Holdfast,
) -> None:
    begun, going = asyncio.Event(), asyncio.Event()

    @hf.tool("fetch", concurrency=1, breaker={"failure_threshold": 1})
    async def fetch() -> None:
        begun.set()
        await going.wait()
        raise ConnectionError("down")

    with pytest.raises(RunCancelled):
        async with hf.run() as run:
            left = asyncio.create_task(fetch())
            await begun.wait()
            run.cancel()
            run.check()

    going.set()
    with pytest.raises(ConnectionError):
        await left

    slots = hf._box.tool("fetch").limiting.slots
    assert slots is not None
    assert slots.in_flight == 0
    assert hf.breaker.state("fetch") is CircuitState.OPEN


def test_a_run_keeps_nothing_of_what_it_has_waited_for(hf: Holdfast) -> None:
    with hf.run() as run:
        waits = [run.patiently(Wait(0.0, Signal())) for _ in range(2)]
        for waiting in waits:
            next(waiting)
        assert len(run._cancelling._waiting) == 2

        list(waits[0])
        waits[1].close()  # type: ignore[attr-defined]

        assert not run._cancelling._waiting
