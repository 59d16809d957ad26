"""What users test their agents with: the clock moved by hand, the recorder, the scripted tools, and its document."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import inspect
import math
import os
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import testing
from holdfast.clock import Clock
from holdfast.errors import ConfigError
from holdfast.events import Event
from holdfast.testing import (
    ManualClock,
    Recorder,
    Script,
    Step,
    TooManyRequests,
    fail,
    fail_after,
    hang,
    hang_after,
    manual,
    ok,
    rate_limit,
    slow,
)
from holdfast.waiting.threads import Workers

LONG = 30.0  # real seconds after which a test gives up


@contextlib.asynccontextmanager
async def quickly(*, at_once: bool = False) -> AsyncIterator[None]:
    """Fails if the clock waits for a thread until it takes it for hanging; *at_once*, if it waits for any at all."""
    with pytest.MonkeyPatch.context() as endless:
        endless.setattr(manual, "_PATIENCE", math.inf)
        if at_once:
            endless.setattr(manual, "_GRACE", math.inf)
        async with asyncio.timeout(LONG):
            yield


async def entered(thread: threading.Thread, function: Callable[..., object]) -> None:
    """Wait until *thread* is in the midst of *function*, which does nothing but wait."""
    code = function.__code__  # type: ignore[attr-defined]
    while True:
        frame = sys._current_frames().get(thread.ident or 0)
        if frame is not None and frame.f_code is code and frame.f_lineno > code.co_firstlineno:
            return
        await asyncio.sleep(0.001)


def test_all_is_sorted_and_complete() -> None:
    public = {name for name, value in vars(testing).items() if getattr(value, "__module__", "").startswith("holdfast")}

    assert testing.__all__ == sorted(public)


# --- the manual clock: standing and moving ---


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="garbage is collected elsewhere since 3.12")
def test_no_garbage_is_collected_while_the_frames_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    frames, collects = sys._current_frames, []
    monkeypatch.setattr(sys, "_current_frames", lambda: (collects.append(gc.isenabled()), frames())[1])

    manual._threads()

    assert collects == [False]
    assert gc.isenabled()


def test_the_clock_stands_still_until_it_is_moved(clock: ManualClock) -> None:
    typed: Clock = clock

    assert [typed.monotonic(), typed.monotonic()] == [0.0, 0.0]
    assert typed.time() == 0.0


def test_the_clock_starts_where_it_is_told() -> None:
    clock = ManualClock(100.0, epoch=5.0)

    clock.advance(2)

    assert (clock.monotonic(), clock.time()) == (102.0, 7.0)


@pytest.mark.parametrize("seconds", [-1, -1e-9, math.nan, math.inf, "1"])
def test_advancing_by_what_is_no_length_of_time_is_a_config_error(clock: ManualClock, seconds: float) -> None:
    with pytest.raises(ConfigError, match="seconds"):
        clock.advance(seconds)

    assert clock.monotonic() == 0.0


@pytest.mark.parametrize("setting", ["start", "epoch"])
def test_a_clock_that_starts_at_no_number_is_a_config_error(setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        ManualClock(**{setting: math.nan})


def test_the_wall_clock_can_jump_while_the_monotonic_clock_does_not_notice(clock: ManualClock) -> None:
    fired: list[str] = []
    clock.call_at(1.0, lambda: fired.append("too early"))

    clock.shift_time(-3600)
    assert clock.time() == -3600
    clock.set_time(50.0)

    assert clock.time() == 50.0
    assert clock.monotonic() == 0.0
    assert fired == []


def test_the_wall_clock_goes_on_from_where_it_was_set(clock: ManualClock) -> None:
    clock.advance(10)
    clock.set_time(50.0)

    clock.advance(1)

    assert clock.time() == 51.0


def test_a_plain_sleep_moves_the_clock_and_is_listed(clock: ManualClock) -> None:
    clock.sleep(1.5)
    clock.sleep(0)
    clock.sleep(2)

    assert clock.monotonic() == 3.5
    assert clock.slept == [1.5, 0, 2]


async def test_sleeps_of_both_kinds_are_listed_in_order(clock: ManualClock) -> None:
    clock.sleep(1)
    await clock.asleep(2)
    clock.sleep(3)

    assert clock.slept == [1, 2, 3]


def test_a_refused_sleep_is_not_listed(clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="non-negative"):
        clock.sleep(-1)

    assert clock.slept == []


# --- the manual clock: timers ---


@given(st.lists(st.floats(0, 100, exclude_min=True)), st.lists(st.floats(0, 50), max_size=4))
def test_timers_fire_earliest_first_each_at_its_own_time(whens: list[float], moves: list[float]) -> None:
    clock = ManualClock()
    fired: list[tuple[float, int]] = []

    def note(number: int) -> None:
        fired.append((clock.monotonic(), number))

    for number, when in enumerate(whens):
        clock.call_at(when, partial(note, number))

    for seconds in moves:
        clock.advance(seconds)

    now = clock.monotonic()
    assert fired == sorted((when, number) for number, when in enumerate(whens) if when <= now)


def test_a_timer_fires_on_the_way_of_a_plain_sleep(clock: ManualClock) -> None:
    seen: list[float] = []
    clock.call_at(5.0, lambda: seen.append(clock.monotonic()))

    clock.sleep(60)

    assert seen == [5.0]
    assert clock.monotonic() == 60.0


def test_a_timer_does_not_fire_before_its_time_nor_twice(clock: ManualClock) -> None:
    fired: list[float] = []
    clock.call_at(5.0, lambda: fired.append(clock.monotonic()))

    clock.advance(4.999)
    assert fired == []
    clock.advance(0.001)
    clock.advance(100)

    assert fired == [5.0]


def test_a_timer_asked_for_by_a_timer_fires_in_the_same_move_if_it_falls_due(clock: ManualClock) -> None:
    fired: list[float] = []

    def tick() -> None:
        fired.append(clock.monotonic())
        clock.call_at(clock.monotonic() + 10, tick)

    clock.call_at(10, tick)

    clock.advance(35)

    assert fired == [10, 20, 30]
    assert clock.pending == 1


def test_a_timer_cancelled_by_an_earlier_one_does_not_fire(clock: ManualClock) -> None:
    fired: list[str] = []
    late = clock.call_at(2, lambda: fired.append("late"))
    clock.call_at(1, late.cancel)

    clock.advance(3)

    assert fired == []
    assert clock.pending == 0


def test_a_timer_that_moves_the_clock_itself_lets_it_end_at_the_later_time(clock: ManualClock) -> None:
    clock.call_at(1, lambda: clock.sleep(100))

    clock.advance(10)

    assert clock.monotonic() == 101.0


def test_a_timer_that_fails_is_logged_as_on_the_real_clock_and_the_next_one_fires(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    fired: list[str] = []
    clock.call_at(1, lambda: 1 / 0)
    clock.call_at(2, lambda: fired.append("next"))

    clock.advance(3)

    assert fired == ["next"]
    assert [record.getMessage() for record in caplog.records] == ["a timer's callback failed"]


def test_cancelled_timers_do_not_pile_up(clock: ManualClock) -> None:
    for _ in range(1000):
        clock.call_at(3600, print).cancel()

    assert clock.pending == 0
    assert len(clock._heap) < 100


asker: contextvars.ContextVar[str] = contextvars.ContextVar("asker", default="nobody")


async def test_a_timer_of_an_event_loop_sees_the_context_of_who_asked(clock: ManualClock) -> None:
    seen: list[str] = []
    asker.set("me")
    clock.call_at(1, lambda: seen.append(asker.get()))
    asker.set("somebody else")

    clock.advance(1)

    assert seen == ["me"]


def test_a_plain_timer_sees_no_context_neither_of_who_asked_nor_of_who_moves_the_clock(clock: ManualClock) -> None:
    seen: list[str] = []

    def ask() -> None:
        asker.set("the asker")
        clock.call_at(1, lambda: seen.append(asker.get()))

    def move() -> None:
        asker.set("the mover")
        clock.advance(1)

    contextvars.copy_context().run(ask)
    contextvars.copy_context().run(move)

    assert seen == ["nobody"]


# --- the manual clock: tasks ---


async def test_a_long_sleep_ends_at_once_when_nothing_else_can_run(clock: ManualClock) -> None:
    await asyncio.wait_for(clock.asleep(3600), LONG)

    assert clock.monotonic() == 3600.0


async def test_sleeping_tasks_wake_earliest_first_and_each_sees_its_own_time(clock: ManualClock) -> None:
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.asleep(nap)
            woken.append((name, clock.monotonic()))

    await asyncio.gather(sleeper("a", 3, 3), sleeper("b", 1, 1, 1, 1), sleeper("c", 3))

    assert woken == [("b", 1), ("b", 2), ("a", 3), ("c", 3), ("b", 3), ("b", 4), ("a", 6)]


async def test_the_clock_does_not_move_by_itself_while_another_task_can_run(clock: ManualClock) -> None:
    sleeper = asyncio.create_task(clock.asleep(1))

    for _ in range(100):
        await asyncio.sleep(0)
        assert clock.monotonic() == 0.0

    await sleeper
    assert clock.monotonic() == 1.0


async def test_advancing_wakes_the_tasks_that_are_due_and_no_others(clock: ManualClock) -> None:
    early, late = asyncio.create_task(clock.asleep(5)), asyncio.create_task(clock.asleep(6))
    await asyncio.sleep(0)

    clock.advance(5)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert (early.done(), late.done()) == (True, False)
    late.cancel()


async def test_an_idle_event_loop_fires_timers_too(clock: ManualClock) -> None:
    fired = asyncio.Event()
    clock.call_at(7, fired.set)

    await asyncio.wait_for(fired.wait(), LONG)

    assert clock.monotonic() == 7


async def test_a_cancelled_sleeper_is_parked_no_more_and_the_clock_does_not_move_for_it(clock: ManualClock) -> None:
    sleeper = asyncio.create_task(clock.asleep(60))
    await asyncio.sleep(0)
    assert clock.pending == 1

    sleeper.cancel()
    await asyncio.wait([sleeper])
    await clock.asleep(1)

    assert sleeper.cancelled()
    assert clock.pending == 0
    assert clock.monotonic() == 1.0


async def test_a_sleeper_whose_coroutine_is_closed_is_parked_no_more(clock: ManualClock) -> None:
    sleeper = clock.asleep(60)
    sleeper.send(None)
    assert clock.pending == 1

    sleeper.close()

    assert clock.pending == 0


async def test_the_clock_never_moves_to_the_end_of_an_endless_sleep(clock: ManualClock) -> None:
    endless = asyncio.create_task(clock.asleep(math.inf))

    await clock.asleep(5)
    await asyncio.sleep(0.01)  # time enough for an idle event loop

    assert clock.monotonic() == 5.0
    assert not endless.done()
    endless.cancel()


async def test_two_clocks_in_one_event_loop_both_move(clock: ManualClock) -> None:
    other = ManualClock()

    await asyncio.wait_for(asyncio.gather(clock.asleep(10), other.asleep(20)), LONG)

    assert (clock.monotonic(), other.monotonic()) == (10.0, 20.0)


def test_one_clock_serves_event_loops_one_after_another(clock: ManualClock) -> None:
    for _ in range(3):
        asyncio.run(clock.asleep(10))

    assert clock.monotonic() == 30.0
    assert clock.slept == [10, 10, 10]


def test_a_timer_of_a_closed_event_loop_is_gone(clock: ManualClock) -> None:
    fired: list[str] = []

    async def leave_one_behind() -> None:
        clock.call_at(5, lambda: fired.append("too late"))

    asyncio.run(leave_one_behind())
    assert clock.pending == 0
    clock.advance(10)

    assert fired == []


def test_event_loops_in_two_threads_share_the_clock(clock: ManualClock) -> None:
    async def naps(seconds: float) -> float:
        for _ in range(20):
            await clock.asleep(seconds)
        return clock.monotonic()

    ends: list[float] = []
    threads = [threading.Thread(target=lambda s=s: ends.append(asyncio.run(naps(s)))) for s in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)

    assert len(ends) == 2
    assert max(ends) >= 40.0


def test_an_idle_event_loop_does_not_move_the_clock_for_another_one(clock: ManualClock) -> None:
    async def park() -> None:
        clock.call_at(5, print)

    async def idle() -> None:
        endless = asyncio.create_task(clock.asleep(math.inf))
        await asyncio.sleep(0.01)  # time enough for an idle event loop
        endless.cancel()

    other = asyncio.new_event_loop()
    with contextlib.closing(other):
        other.run_until_complete(park())

        asyncio.run(idle())

        assert clock.monotonic() == 0.0


async def test_data_on_a_socket_arrives_before_the_clock_moves_on(clock: ManualClock) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        received = asyncio.create_task(asyncio.get_running_loop().sock_recv(ours, 10))
        timeout = asyncio.create_task(clock.asleep(5))
        await asyncio.sleep(0)

        theirs.send(b"hello")

        assert await received == b"hello"
        assert not timeout.done()
        timeout.cancel()


async def test_an_answer_on_its_way_to_a_socket_arrives_before_the_clock_moves_on(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manual, "_GRACE", 1000)
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        timeout = asyncio.create_task(clock.asleep(5))

        loop.call_later(0.005, theirs.send, b"hello")

        assert await loop.sock_recv(ours, 10) == b"hello"
        assert not timeout.done()
        timeout.cancel()


# --- the manual clock: threads ---


def test_a_plain_sleep_in_a_worker_fires_the_timer_its_caller_waits_for(clock: ManualClock) -> None:
    timed_out = threading.Event()
    clock.call_at(30, timed_out.set)
    worker = threading.Thread(target=clock.sleep, args=(60,))

    worker.start()

    assert timed_out.wait(LONG)
    worker.join(LONG)
    assert clock.monotonic() == 60.0


async def test_a_plain_sleep_in_a_worker_fires_the_timers_of_an_event_loop_in_that_loop(clock: ManualClock) -> None:
    threads: list[threading.Thread] = []
    clock.call_at(30, lambda: threads.append(threading.current_thread()))

    await asyncio.to_thread(clock.sleep, 60)
    await asyncio.sleep(0)  # from 3.14 on, a worker that was very quick is not waited for

    assert threads == [threading.current_thread()]


async def test_a_task_waiting_for_a_hanging_worker_is_timed_out_first(clock: ManualClock) -> None:
    def hanging() -> str:
        clock.sleep(60)
        return "answered"

    timeout = asyncio.create_task(clock.asleep(30))
    await asyncio.sleep(0)  # the limit is set before the work begins
    worker = asyncio.create_task(asyncio.to_thread(hanging))

    first, _ = await asyncio.wait({worker, timeout}, return_when=asyncio.FIRST_COMPLETED)

    assert timeout in first
    assert await worker == "answered"


async def test_moving_the_clock_from_another_thread_wakes_a_sleeping_task(clock: ManualClock) -> None:
    with clock.busy():
        sleeper = asyncio.create_task(clock.asleep(60))
        await asyncio.sleep(0)

        await asyncio.to_thread(clock.advance, 60)
        await asyncio.wait_for(sleeper, LONG)

    assert clock.monotonic() == 60.0


async def test_an_idle_event_loop_moves_the_clock_for_the_timer_of_a_thread_too(clock: ManualClock) -> None:
    def wait_in_thread() -> float:
        woken = threading.Event()
        clock.call_at(5, woken.set)
        assert woken.wait(LONG)
        return clock.monotonic()

    sleeper = asyncio.create_task(clock.asleep(60))

    assert await asyncio.to_thread(wait_in_thread) >= 5.0
    await sleeper


async def test_the_clock_does_not_move_by_itself_while_a_worker_is_at_work(clock: ManualClock) -> None:
    timeout = asyncio.create_task(clock.asleep(5))

    await asyncio.to_thread(time.sleep, 0.02)

    assert clock.monotonic() == 0.0
    assert not timeout.done()
    timeout.cancel()


async def test_work_handed_to_an_idle_thread_is_done_before_the_clock_moves_on(clock: ManualClock) -> None:
    timeout = asyncio.create_task(clock.asleep(5))
    await asyncio.to_thread(int)

    for _ in range(50):
        await asyncio.to_thread(int)

    assert clock.monotonic() == 0.0
    timeout.cancel()


async def test_a_worker_that_waits_for_somebody_else_does_not_hold_the_clock(clock: ManualClock) -> None:
    released = threading.Event()
    worker = asyncio.create_task(asyncio.to_thread(released.wait, LONG))

    async with quickly():
        await clock.asleep(5)

    assert clock.monotonic() == 5.0
    released.set()
    assert await worker is True


async def test_a_thread_that_sat_there_before_the_clock_was_made_does_not_hold_it() -> None:
    ours, theirs = socket.socketpair()

    def read() -> None:
        ours.recv(1)

    with ours, theirs:
        reader = threading.Thread(target=read)
        reader.start()
        await entered(reader, read)  # as the thread of a test runner does
        clock = ManualClock()

        async with quickly():
            await clock.asleep(60)

        theirs.send(b"x")
        reader.join(LONG)


async def test_idle_threads_of_the_event_loop_do_not_slow_the_clock(clock: ManualClock) -> None:
    await asyncio.to_thread(int)

    async with quickly(at_once=True):
        for _ in range(100):
            await clock.asleep(1)


async def test_idle_threads_of_another_pool_do_not_hold_the_clock(clock: ManualClock) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result(LONG)

        async with quickly():
            await clock.asleep(1)


async def test_a_thread_of_ours_that_waits_for_a_job_does_not_hold_the_clock(clock: ManualClock) -> None:
    jobs: queue.SimpleQueue[None] = queue.SimpleQueue()

    def serve() -> None:
        jobs.get()

    worker = threading.Thread(target=serve, name="holdfast-worker", daemon=True)
    worker.start()

    async with quickly():
        await clock.asleep(1)

    jobs.put(None)
    worker.join(LONG)


async def test_a_thread_of_ours_that_has_yet_to_wake_for_its_job_holds_the_clock(clock: ManualClock) -> None:
    wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
    inbox = SimpleNamespace(get=wakes.get, empty=lambda: False)  # there is a job in it, and the machine is busy
    worker = threading.Thread(target=Workers()._serve, args=(inbox,), name="holdfast-worker", daemon=True)
    worker.start()
    await entered(worker, Workers._serve)
    watch = manual._Watch(clock, asyncio.get_running_loop())
    watch._others_at_work()

    watch._looks = manual._GRACE

    assert watch._others_at_work()
    wakes.put(None)
    worker.join(LONG)


async def test_what_a_thread_has_done_since_the_loop_was_looked_at_comes_before_the_clock_moves_on(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[float] = []
    loop, threads = asyncio.get_running_loop(), manual._threads

    def slow() -> list[tuple[threading.Thread, FrameType]]:
        """A look at the threads in the midst of which one of them ends its work."""
        monkeypatch.setattr(manual, "_threads", threads)
        loop.call_soon_threadsafe(lambda: moved.append(clock.monotonic()))
        return threads()

    monkeypatch.setattr(manual, "_threads", slow)

    await clock.asleep(5)

    assert moved == [0.0]


async def test_what_looks_after_a_store_on_disk_does_not_hold_the_clock(clock: ManualClock, tmp_path: Path) -> None:
    async with holdfast.open(tmp_path / "runs.db", policies={}, clock=clock) as hf, hf.run():
        await hf.acall(Script(ok()).coroutine)

        async with quickly():
            await clock.asleep(1)


async def test_an_event_loop_whose_time_is_frozen_still_moves_the_clock(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: queue.SimpleQueue[None] = queue.SimpleQueue()
    worker = threading.Thread(target=jobs.get, daemon=True)  # so that the clock has something to wait for
    loop = asyncio.get_running_loop()
    now = loop.time()
    worker.start()

    with monkeypatch.context() as frozen:
        frozen.setattr(loop, "time", lambda: now)
        frozen.setattr(manual, "_PATIENCE", 20)
        await clock.asleep(5)

    assert clock.monotonic() == 5
    jobs.put(None)
    worker.join(LONG)


async def test_a_thread_that_stays_where_it_is_for_too_long_is_taken_to_hang(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manual, "_PATIENCE", 20)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = asyncio.create_task(asyncio.to_thread(ours.recv, 1))

        await asyncio.wait_for(clock.asleep(5), LONG)

        assert not worker.done()
        theirs.send(b"x")
        await worker


def test_a_thread_that_gets_on_with_its_work_holds_the_clock_as_long_as_it_takes(clock: ManualClock) -> None:
    ours, theirs = socket.socketpair()
    halfway = threading.Event()

    def work() -> None:
        ours.recv(1)
        halfway.set()
        ours.recv(1)

    watch = manual._Watch(clock, cast("asyncio.AbstractEventLoop", object()))  # of which nothing is known
    thread = threading.Thread(target=work)
    with ours, theirs:
        thread.start()
        assert watch._others_at_work()

        theirs.send(b"x")
        assert halfway.wait(LONG)
        watch._looks = manual._PATIENCE
        assert watch._others_at_work()
        watch._looks = manual._PATIENCE - 1
        assert watch._others_at_work()

        theirs.send(b"x")
        thread.join(LONG)


async def test_a_busy_clock_does_not_move_by_itself(clock: ManualClock) -> None:
    with clock.busy():
        sleeper = asyncio.create_task(clock.asleep(5))
        with clock.busy():
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)  # time enough for an idle event loop
        assert clock.monotonic() == 0.0

    await sleeper
    assert clock.monotonic() == 5.0


async def test_a_busy_clock_still_moves_by_hand(clock: ManualClock) -> None:
    with clock.busy():
        sleeper = asyncio.create_task(clock.asleep(5))
        await asyncio.sleep(0)
        clock.advance(5)
        await sleeper

    assert clock.monotonic() == 5.0


def test_threads_that_sleep_at_once_each_see_at_least_their_own_time_pass(clock: ManualClock) -> None:
    passed: list[float] = []
    at_once = threading.Barrier(8)

    def sleep(seconds: float) -> None:
        at_once.wait(LONG)
        for _ in range(50):
            start = clock.monotonic()
            clock.sleep(seconds)
            passed.append(clock.monotonic() - start - seconds)

    threads = [threading.Thread(target=sleep, args=(seconds,)) for seconds in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)

    assert len(passed) == len(clock.slept) == 400
    assert min(passed) >= 0
    assert 50 * 8 <= clock.monotonic() <= 50 * sum(range(1, 9))


def test_timers_asked_for_and_fired_by_many_threads_fire_once_each(clock: ManualClock) -> None:
    fired: list[int] = []

    def ask(number: int) -> None:
        for turn in range(100):
            clock.call_at(clock.monotonic() + turn % 3, partial(fired.append, number))
            clock.sleep(1)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    clock.advance(10)

    assert [fired.count(number) for number in range(4)] == [100] * 4


# --- the recorder ---


def event(name: str, tool: str | None = None) -> Event:
    return Event(name, 0, tool)


def test_the_recorder_keeps_events_in_order() -> None:
    recorder = Recorder()

    recorder(event("tool_started", "a"))
    recorder(event("tool_ended", "a"))
    recorder(event("tool_started", "b"))

    assert recorder.types() == ["tool_started", "tool_ended", "tool_started"]
    assert recorder.of("tool_started") == [event("tool_started", "a"), event("tool_started", "b")]
    assert recorder.events[1] == event("tool_ended", "a")


def test_a_cleared_recorder_starts_anew() -> None:
    recorder = Recorder()
    recorder(event("old"))

    recorder.clear()
    recorder(event("new"))

    assert recorder.types() == ["new"]


def test_the_recorder_forgets_the_oldest_beyond_its_limit() -> None:
    recorder = Recorder(limit=2)

    for name in ("a", "b", "c"):
        recorder(event(name))

    assert recorder.types() == ["b", "c"]


def test_a_recorder_without_room_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="limit"):
        Recorder(limit=0)


def test_what_the_recorder_gave_out_does_not_change() -> None:
    recorder = Recorder()
    recorder(event("a"))
    given_out = recorder.events

    recorder(event("b"))

    assert given_out == [event("a")]


def test_the_recorder_can_be_read_while_threads_record(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)  # so that they meet
    recorder = Recorder(limit=1000)

    def record() -> None:
        for _ in range(2000):
            recorder(event("a"))

    threads = [threading.Thread(target=record) for _ in range(2)]

    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        recorder.types()

    assert len(recorder.events) == 1000


# --- scripted tools ---

SHAPES = ["function", "coroutine", "generator", "async_generator"]
STREAMS = ["generator", "async_generator"]


def play(script: Script, shape: str, *args: object, **kwargs: object) -> object:
    """One call in that *shape*; of a stream the list of its items."""
    if shape == "function":
        return script.function(*args, **kwargs)
    if shape == "coroutine":
        return asyncio.run(script.coroutine(*args, **kwargs))
    if shape == "generator":
        return list(script.generator(*args, **kwargs))
    return asyncio.run(collect(script.async_generator(*args, **kwargs)))


async def collect(stream: AsyncIterator[object]) -> list[object]:
    return [item async for item in stream]


def test_each_shape_is_what_it_says() -> None:
    script = Script(ok())

    kinds = [
        (inspect.iscoroutinefunction(tool), inspect.isgeneratorfunction(tool), inspect.isasyncgenfunction(tool))
        for tool in (script.function, script.coroutine, script.generator, script.async_generator)
    ]

    assert kinds == [(False, False, False), (True, False, False), (False, True, False), (False, False, True)]


def test_each_shape_carries_the_name_of_the_tool() -> None:
    script = Script(ok(), name="search")

    names = {getattr(script, shape).__name__ for shape in SHAPES}

    assert names == {"search"}


@pytest.mark.parametrize("shape", ["function", "coroutine"])
def test_the_steps_are_played_in_order_and_the_last_for_ever(shape: str) -> None:
    script = Script(ok(1), ok(2), ok(3))

    assert [play(script, shape) for _ in range(5)] == [1, 2, 3, 3, 3]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_script_goes_on_with_then(shape: str) -> None:
    script = Script(ok(["a", "b"]), then=ok(["z"]))

    assert [play(script, shape) for _ in range(3)] == [["a", "b"], ["z"], ["z"]]


def test_the_shapes_share_one_script() -> None:
    script = Script(ok([1]), ok([2]), ok([3]), ok([4]))

    assert [play(script, shape) for shape in SHAPES] == [[1], [2], [3], [4]]
    assert script.count == 4


@pytest.mark.parametrize("shape", SHAPES)
def test_calls_are_listed_with_their_arguments(shape: str) -> None:
    script = Script(ok())

    play(script, shape, "tea", limit=3)
    play(script, shape)

    assert script.calls == [(("tea",), {"limit": 3}), ((), {})]
    assert script.count == 2


@pytest.mark.parametrize("shape", STREAMS)
@pytest.mark.parametrize(("value", "items"), [([1, 2], [1, 2]), ((1, 2), [1, 2]), ([], []), ("text", ["text"])])
def test_a_stream_gives_the_items_of_a_list_and_anything_else_as_one(shape: str, value: object, items: object) -> None:
    assert play(Script(ok(value)), shape) == items


@pytest.mark.parametrize("shape", SHAPES)
def test_a_failing_step_raises_the_very_error_it_was_given(shape: str) -> None:
    error = ConnectionError("gone")
    script = Script(fail(error))

    with pytest.raises(ConnectionError) as raised:
        play(script, shape)

    assert raised.value is error


@pytest.mark.parametrize("shape", SHAPES)
def test_a_failing_step_makes_a_new_error_of_a_class_each_time(shape: str) -> None:
    script = Script(fail(ConnectionError))
    errors = []

    for _ in range(2):
        with pytest.raises(ConnectionError) as raised:
            play(script, shape)
        errors.append(raised.value)

    assert errors[0] is not errors[1]


def test_an_error_raised_again_and_again_does_not_grow_its_traceback() -> None:
    script = Script(fail(ConnectionError("gone")))
    depths = []

    for _ in range(3):
        with pytest.raises(ConnectionError) as raised:
            script.function()
        depths.append(len(raised.traceback))

    assert len(set(depths)) == 1


def test_a_failing_step_needs_an_error() -> None:
    with pytest.raises(ConfigError, match="'oops': must be an exception"):
        fail("oops")  # type: ignore[arg-type]


def test_a_stream_fails_after_its_items() -> None:
    stream = Script(fail_after(["a", "b"], ConnectionError)).generator()

    assert [next(stream), next(stream)] == ["a", "b"]
    with pytest.raises(ConnectionError):
        next(stream)


async def test_an_async_stream_fails_after_its_items() -> None:
    stream = Script(fail_after(["a", "b"], ConnectionError)).async_generator()

    assert [await anext(stream), await anext(stream)] == ["a", "b"]
    with pytest.raises(ConnectionError):
        await anext(stream)


@pytest.mark.parametrize("shape", ["function", "coroutine"])
def test_without_a_stream_failing_after_items_is_failing(shape: str) -> None:
    with pytest.raises(ConnectionError):
        play(Script(fail_after(["a"], ConnectionError)), shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_hanging_step_sleeps_on_the_clock_and_then_answers(clock: ManualClock, shape: str) -> None:
    answer = play(Script(hang(60), clock=clock), shape)

    assert clock.slept == [60]
    assert answer == (None if shape in ("function", "coroutine") else [None])


@pytest.mark.parametrize(
    ("shape", "slept"), [("function", [2]), ("coroutine", [2]), ("generator", [2, 2]), ("async_generator", [2, 2])]
)
def test_a_slow_step_answers_after_a_while_each_item_of_a_stream(
    clock: ManualClock, shape: str, slept: list[float]
) -> None:
    assert play(Script(slow(2, ["a", "b"]), clock=clock), shape) == ["a", "b"]

    assert clock.slept == slept


def test_a_stream_hangs_after_its_items(clock: ManualClock) -> None:
    stream = Script(hang_after(["a"], 60), clock=clock).generator()

    assert next(stream) == "a"
    assert clock.slept == []
    with pytest.raises(StopIteration):
        next(stream)
    assert clock.slept == [60]


@pytest.mark.parametrize("shape", SHAPES)
def test_hanging_after_items_answers_them_all(clock: ManualClock, shape: str) -> None:
    assert play(Script(hang_after(["a", "b"], 60), clock=clock), shape) == ["a", "b"]

    assert clock.slept == [60]


@pytest.mark.parametrize("step", [hang(1), slow(1), hang_after([], 1)])
def test_a_step_that_takes_time_needs_a_clock(step: Step) -> None:
    with pytest.raises(ConfigError, match="clock"):
        Script(ok(), step, ok())


@pytest.mark.parametrize("make", [hang, slow, partial(hang_after, []), rate_limit])
@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf])
def test_a_step_that_takes_no_length_of_time_is_a_config_error(make: object, seconds: float) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match="must be a number"):
        make(seconds)


def test_a_script_without_steps_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        Script()


def test_a_script_of_something_else_than_steps_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"ok\(\)"):
        Script(ok(), 3)  # type: ignore[arg-type]


def test_then_alone_is_a_script() -> None:
    assert Script(then=ok(1)).function() == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_a_rate_limit_looks_like_the_error_of_an_http_client(shape: str) -> None:
    with pytest.raises(TooManyRequests, match="429") as raised:
        play(Script(rate_limit(retry_after=3)), shape)

    assert raised.value.status_code == 429
    assert raised.value.response.status_code == 429
    assert raised.value.response.headers == {"Retry-After": "3"}


@pytest.mark.parametrize(
    ("retry_after", "headers"),
    [
        (None, {}),
        (0.25, {"Retry-After": "0.25"}),
        (1234567, {"Retry-After": "1234567"}),
        ("Wed, 21 Oct 2015 07:28:00 GMT", {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
    ],
)
def test_a_rate_limit_says_when_to_come_back_if_it_is_told(
    retry_after: float | str | None, headers: dict[str, str]
) -> None:
    with pytest.raises(TooManyRequests) as raised:
        Script(rate_limit(retry_after)).function()

    assert raised.value.response.headers == headers


def test_a_coroutine_or_stream_that_never_runs_is_no_call() -> None:
    script = Script(ok())

    script.coroutine().close()
    script.generator().close()

    assert script.count == 0


def test_threads_that_call_at_once_play_each_step_once() -> None:
    script = Script(*[ok(number) for number in range(400)])
    answers: list[object] = []
    at_once = threading.Barrier(4)

    def call() -> None:
        at_once.wait(LONG)
        answers.extend(script.function() for _ in range(100))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)

    assert sorted(map(repr, answers)) == sorted(map(repr, range(400)))


# --- the document ---

DOCUMENT = Path(__file__).parents[2] / "docs" / "testing.md"


def blocks() -> Iterator[tuple[int, str]]:
    """The Python of the document, each block with the line it begins on."""
    text = DOCUMENT.read_text(encoding="utf-8")
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start(1)) + 1, match.group(1)


def name_of(code: str) -> str | None:
    """The file that a block is, if it says so in its first line."""
    named = re.match(r"# (\w+\.py)\n", code)
    return None if named is None else named[1]


ALONE = [pytest.param(*block, id=f"line-{block[0]}") for block in blocks() if name_of(block[1]) is None]


@pytest.mark.parametrize(("line", "code"), ALONE)
def test_the_tests_of_the_document_pass(line: int, code: str) -> None:
    names: dict[str, object] = {"__name__": "document"}
    exec(compile("\n" * (line - 1) + code, str(DOCUMENT), "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]

    assert tests, f"{DOCUMENT.name}:{line} shows no test"
    for test in tests:
        assert callable(test)
        answer = test()
        if inspect.iscoroutine(answer):
            asyncio.run(answer)


def test_the_files_of_the_document_pass_in_any_order(tmp_path: Path) -> None:
    files = {name: code for _, code in blocks() if (name := name_of(code))}
    for name, code in files.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    order = [f"test_shop.py::{name}" for name in re.findall(r"^def (test_\w+)", files["test_shop.py"], re.MULTILINE)]
    pytest_alone = [sys.executable, "-m", "pytest", "-qc", os.devnull, "-W", "error", "-p", "no:asyncio"]

    for tests in (order, order[::-1]):
        command = [*pytest_alone, "-p", "no:cacheprovider", *tests]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
