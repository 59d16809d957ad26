"""The system's clock, and what every clock promises. Real waits are milliseconds, where a real timer is meant."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial

import pytest
from tests.children import fork

from holdfast import clock as clock_module
from holdfast.clock import Clock, SystemClock
from holdfast.testing import ManualClock

SOON = 0.005  # seconds ahead for a timer that is to fire
LONG = 30.0  # seconds after which a test gives up


class Callback:
    """Notes each time it is called, when and in which thread."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.threads: list[threading.Thread] = []
        self._called = threading.Event()

    def __call__(self) -> None:
        self.times.append(time.monotonic())
        self.threads.append(threading.current_thread())
        self._called.set()

    def wait(self) -> bool:
        return self._called.wait(LONG)


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module, "_LINGER", 0.01)


@pytest.fixture
def system() -> SystemClock:
    return SystemClock()


@contextlib.contextmanager
def held(system: SystemClock) -> Iterator[None]:
    """While inside, the timer thread is kept from looking at its timers, however slow the machine is."""
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        holding.set()
        release.wait(LONG)

    system.call_at(system.monotonic(), hold)
    assert holding.wait(LONG)
    try:
        yield
    finally:
        release.set()


@pytest.fixture(params=[SystemClock, ManualClock])
def any_clock(request: pytest.FixtureRequest) -> Clock:
    made: Clock = request.param()
    return made


# --- every clock ---


async def test_a_sleep_takes_its_seconds_by_name(any_clock: Clock) -> None:
    any_clock.sleep(seconds=0)
    await any_clock.asleep(seconds=0)


@pytest.mark.parametrize("seconds", [-1, -1e-9, math.nan])
def test_a_sleep_of_less_than_nothing_is_a_value_error(any_clock: Clock, seconds: float) -> None:
    with pytest.raises(ValueError, match=r"non-negative|NaN"):
        any_clock.sleep(seconds)


@pytest.mark.parametrize("seconds", [-1, -1e-9, math.nan])
async def test_an_async_sleep_of_less_than_nothing_is_a_value_error(any_clock: Clock, seconds: float) -> None:
    with pytest.raises(ValueError, match="non-negative"):
        await any_clock.asleep(seconds)


def test_an_endless_plain_sleep_is_an_overflow_error(any_clock: Clock) -> None:
    with pytest.raises(OverflowError):
        any_clock.sleep(math.inf)


def test_a_timer_at_no_number_is_a_value_error(any_clock: Clock) -> None:
    with pytest.raises(ValueError, match="not a number"):
        any_clock.call_at(math.nan, print)


async def test_an_async_sleep_of_nothing_lets_others_run(any_clock: Clock) -> None:
    ran: list[str] = []
    asyncio.get_running_loop().call_soon(ran.append, "other")

    await any_clock.asleep(0)

    assert ran == ["other"]


def test_a_plain_timer_that_is_due_already_fires_without_the_clock_moving(any_clock: Clock) -> None:
    fired = Callback()

    any_clock.call_at(any_clock.monotonic() - 1, fired)

    assert fired.wait()


async def test_a_timer_asked_for_in_an_event_loop_fires_in_its_thread(any_clock: Clock) -> None:
    fired = Callback()
    done = asyncio.Event()
    when = any_clock.monotonic() + SOON

    any_clock.call_at(when, fired)
    any_clock.call_at(when, done.set)
    await asyncio.wait_for(done.wait(), LONG)

    assert fired.threads == [threading.current_thread()]


async def test_a_timer_of_an_event_loop_does_not_fire_early(any_clock: Clock) -> None:
    fired: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    when = any_clock.monotonic() + SOON

    any_clock.call_at(when, lambda: fired.set_result(any_clock.monotonic()))

    assert await asyncio.wait_for(fired, LONG) >= when - 1e-6  # an event loop fires within its clock's resolution


async def test_a_timer_of_an_event_loop_never_fires_inside_call_at(any_clock: Clock) -> None:
    fired = asyncio.Event()

    any_clock.call_at(any_clock.monotonic() - 1, fired.set)

    assert not fired.is_set()
    await asyncio.wait_for(fired.wait(), LONG)


async def test_a_due_timer_of_an_event_loop_can_still_be_cancelled(any_clock: Clock) -> None:
    fired: list[str] = []

    any_clock.call_at(any_clock.monotonic() - 1, lambda: fired.append("cancelled")).cancel()
    await any_clock.asleep(SOON)

    assert fired == []


async def test_cancelling_a_timer_that_has_fired_is_harmless(any_clock: Clock) -> None:
    fired = asyncio.Event()
    timer = any_clock.call_at(any_clock.monotonic(), fired.set)
    await fired.wait()

    timer.cancel()


# --- the system's clock ---


def test_the_system_clock_reads_the_system() -> None:
    before = time.monotonic(), time.time()

    read = SystemClock().monotonic(), SystemClock().time()

    assert before <= read
    assert read[0] <= time.monotonic()
    assert read[1] <= time.time()


def test_the_system_clock_sleeps_as_a_thread(system: SystemClock) -> None:
    start = time.monotonic()

    system.sleep(SOON)

    assert time.monotonic() - start >= SOON


async def test_the_system_clock_sleeps_as_a_task(system: SystemClock) -> None:
    start = time.monotonic()

    await system.asleep(SOON)

    assert time.monotonic() - start >= SOON - 0.001  # an event loop may wake within its clock's resolution


async def test_who_freezes_the_time_of_a_test_makes_no_timer_fire_early(
    system: SystemClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fired = Callback()
    when = system.monotonic() + SOON

    with monkeypatch.context() as frozen:
        frozen.setattr(clock_module, "monotonic", lambda: 1_704_067_200.0)  # as freezegun does, with names it can reach
        system.call_at(when, fired)
    await asyncio.sleep(2 * SOON)

    assert fired.times[0] >= when - 0.001  # an event loop may wake within its clock's resolution


def test_a_plain_timer_fires_in_another_thread_and_not_early(system: SystemClock) -> None:
    fired = Callback()
    when = system.monotonic() + SOON

    system.call_at(when, fired)

    assert fired.wait()
    assert fired.times[0] >= when
    assert fired.threads[0].name == "holdfast-timers"


def test_plain_timers_fire_earliest_first_whatever_the_order_they_were_asked_for(system: SystemClock) -> None:
    done = Callback()
    fired: list[str] = []
    now = system.monotonic()

    with held(system):
        system.call_at(now + 3 * SOON, done)
        system.call_at(now + SOON, lambda: fired.append("early"))
        system.call_at(now + 2 * SOON, lambda: fired.append("between"))

    assert done.wait()
    assert fired == ["early", "between"]


def test_timers_for_the_same_time_fire_in_the_order_they_were_asked_for(system: SystemClock) -> None:
    done = threading.Event()
    fired: list[int] = []
    when = system.monotonic() + SOON

    with held(system):
        for number in range(10):
            system.call_at(when, partial(fired.append, number))
        system.call_at(when, done.set)

    assert done.wait(LONG)
    assert fired == list(range(10))


def test_a_cancelled_plain_timer_does_not_fire(system: SystemClock) -> None:
    done = threading.Event()
    fired: list[str] = []
    when = system.monotonic() + SOON

    with held(system):
        system.call_at(when, lambda: fired.append("cancelled")).cancel()
        system.call_at(when, done.set)

    assert done.wait(LONG)
    assert fired == []


@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(1), asyncio.CancelledError()])
def test_a_timer_that_fails_is_logged_and_the_next_one_fires(
    system: SystemClock, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    done = threading.Event()

    def broken() -> None:
        raise error

    with caplog.at_level(logging.ERROR, logger="holdfast"):
        system.call_at(system.monotonic(), broken)
        system.call_at(system.monotonic(), done.set)

        assert done.wait(LONG)
    assert "a timer's callback failed" in caplog.text


def test_a_timer_that_never_falls_due_does_not_stop_the_others(system: SystemClock) -> None:
    never, done = Callback(), Callback()
    timer = system.call_at(math.inf, never)
    time.sleep(SOON)  # by now the thread waits for it

    system.call_at(system.monotonic() + SOON, done)

    assert done.wait()
    assert never.times == []
    timer.cancel()


def test_an_earlier_timer_wakes_the_thread_that_waits_for_a_later_one(
    system: SystemClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_module, "_LINGER", 4 * LONG)  # so that it does not wake by itself
    early, last = Callback(), Callback()
    late = system.call_at(system.monotonic() + 3600, print)
    time.sleep(SOON)  # by now the thread waits for it

    system.call_at(system.monotonic() + SOON, early)

    assert early.wait()
    late.cancel()
    monkeypatch.setattr(clock_module, "_LINGER", 0.01)
    system.call_at(system.monotonic(), last)
    assert last.wait()


def test_the_timer_thread_ends_when_idle_and_starts_again_when_needed(system: SystemClock) -> None:
    for _ in range(2):
        fired = Callback()

        system.call_at(system.monotonic(), fired)

        assert fired.wait()
        fired.threads[0].join(LONG)
        assert not fired.threads[0].is_alive()


def test_a_cancelled_timer_does_not_keep_the_timer_thread(system: SystemClock) -> None:
    fired = Callback()
    system.call_at(system.monotonic(), fired)
    assert fired.wait()

    system.call_at(system.monotonic() + 3600, print).cancel()

    fired.threads[0].join(LONG)
    assert not fired.threads[0].is_alive()


def test_one_timer_thread_serves_all(system: SystemClock) -> None:
    done, fired = Callback(), Callback()
    when = system.monotonic() + SOON

    with held(system):
        for _ in range(20):
            system.call_at(when, fired)
        system.call_at(when, done)

    assert done.wait()
    assert len(set(fired.threads)) == 1


def test_cancelled_timers_do_not_pile_up(system: SystemClock) -> None:
    keep = system.call_at(system.monotonic() + 3600, print)

    for _ in range(10_000):
        system.call_at(system.monotonic() + 3600, print).cancel()

    assert len(system._timers._heap) < 200
    keep.cancel()


def test_a_timer_that_has_fired_keeps_nothing_alive(system: SystemClock) -> None:
    fired, after = Callback(), Callback()
    gone = weakref.ref(fired)
    timer = system.call_at(system.monotonic(), fired)
    assert fired.wait()
    system.call_at(system.monotonic(), after)  # once this one has fired, the thread is done with the other
    assert after.wait()

    del fired
    gc.collect()

    assert gone() is None
    timer.cancel()


def test_the_timers_of_a_forked_child_fire(system: SystemClock) -> None:
    keep = system.call_at(system.monotonic() + 3600, print)
    child = fork()
    if child == 0:
        failed = 1
        try:
            fired = Callback()
            system.call_at(system.monotonic(), fired)
            failed = 0 if fired.wait() else 1
        finally:
            os._exit(failed)

    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    keep.cancel()


def test_an_interrupt_while_a_timer_is_asked_for_keeps_nobody_else_from_asking(
    system: SystemClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers = [system.call_at(system.monotonic() + 3600, print)]  # so that there is a thread
    take = threading.Condition.__enter__

    def struck(condition: threading.Condition) -> bool:
        """As when a signal comes once the lock is taken, and before the `with` block is entered."""
        taken = take(condition)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return taken

    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(threading.Condition, "__enter__", struck)
        timers.append(system.call_at(system.monotonic() + 3600, print))

    fired = Callback()
    threading.Thread(target=system.call_at, args=(system.monotonic(), fired), daemon=True).start()
    assert fired.wait()
    for timer in timers:
        timer.cancel()


def test_timers_asked_for_by_many_threads_all_fire(system: SystemClock) -> None:
    fired: list[int] = []

    def ask(number: int) -> None:
        for _ in range(50):
            system.call_at(system.monotonic(), partial(fired.append, number))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    done = Callback()
    system.call_at(system.monotonic(), done)

    assert done.wait()
    assert sorted(fired) == [0] * 50 + [1] * 50 + [2] * 50 + [3] * 50
