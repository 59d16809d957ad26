"""Guarded calls: what every shape of a tool has in common, and the verbs and decorators by which they are made."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import random
import subprocess
import sys
import threading
import typing
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import create_autospec

import pytest
from tests import shapes
from tests.runs.durable import stopped
from tests.shapes import Call, Shape, Thread, settled

import holdfast
from holdfast import (
    BudgetExceeded,
    CircuitOpen,
    CircuitState,
    ConfigError,
    Denied,
    ErrorCategory,
    Holdfast,
    LoopDetected,
    RateLimited,
    ToolTimeout,
)
from holdfast.testing import ManualClock, Recorder, Script, Step, TooManyRequests, fail, hang, ok, rate_limit
from holdfast.tools.tool import Tool

shape, hf = shapes.shape, shapes.hf

NOW = {"initial": 0.0, "max": 0.0}  # a retry that does not wait
AT_ONCE = {"attempts": 3, **NOW}
EASY = {"failure_threshold": 1, "min_backoff": 5.0, "jitter": 0.0}  # a circuit that opens at once, for five seconds


class Unavailable(Exception):
    status_code = 503


class SlowDown(Exception):
    status_code = 429


def called_with(error: type[BaseException], call: Call, *args: object) -> BaseException:
    with pytest.raises(error) as caught:
        call(*args)
    return caught.value


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


# --- the answer and the error ---


def test_the_answer_comes_back_and_is_counted(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(ok(["an answer"])))

    answer = call()

    assert answer == ["an answer"]
    assert hf.tracker.stats("script").successful == hf.tracker.stats("script").total == 1


def test_arguments_reach_the_tool_as_they_were_given(shape: Shape, hf: Holdfast) -> None:
    script = Script(ok())

    shape(hf, script)(1, "two", three=3)

    assert script.calls == [((1, "two"), {"three": 3})]


def test_the_duration_is_the_time_inside_the_tool(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    call = shape(hf, Script(Step(value=["late"], items=("late",), lead=2.5), clock=clock))

    call()

    assert hf.tracker.stats("script").total_duration == 2.5


@pytest.mark.parametrize("retry", [False, AT_ONCE])
def test_the_tools_own_exception_leaves_unchanged(shape: Shape, hf: Holdfast, retry: object) -> None:
    error = ConnectionError("the tool's own")
    call = shape(hf, Script(fail(error)), retry=retry)

    caught = called_with(ConnectionError, call)

    assert caught is error
    assert str(caught) == "the tool's own"
    assert caught.__cause__ is caught.__context__ is None


@pytest.mark.parametrize("timeout", [False, 5.0])
def test_the_end_of_an_iterator_that_a_tool_ran_into_leaves_unchanged(hf: Holdfast, timeout: object) -> None:
    first = hf.tool("first", timeout=timeout)(lambda items: next(iter(items)))

    assert first(["tea"]) == "tea"
    assert called_with(StopIteration, first, []).__cause__ is None


def test_the_end_of_an_iterator_is_raised_again_when_its_run_is_resumed(hf: Holdfast) -> None:
    first = hf.tool("first")(lambda items: next(iter(items)))
    run_id = stopped(hf, lambda: called_with(StopIteration, first, []))

    with hf.resume(run_id):
        assert called_with(StopIteration, first, []).__cause__ is None
    assert hf.tracker.stats("first").total == 1


def test_a_note_says_how_often_it_was_tried_and_how_long_it_waited(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(rate_limit(2.0)), retry=2)

    error = called_with(TooManyRequests, call)

    assert notes(error) == ["holdfast: script: 2 attempts, 2 s of waiting"]


def test_a_note_says_why_a_failure_was_not_repeated(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(fail(ConnectionError)))

    error = called_with(ConnectionError, call)

    assert notes(error) == ["holdfast: script: 1 attempt, not repeated: neither read-only nor idempotent"]


def test_an_error_object_that_comes_again_keeps_one_note(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(fail(ValueError("always the same object"))))
    called_with(ValueError, call)

    error = called_with(ValueError, call)

    assert len(notes(error)) == 1


def test_a_failed_call_keeps_nothing_alive(shape: Shape, hf: Holdfast) -> None:
    class Big(Exception):
        pass

    def tool() -> list[int]:
        raise Big

    call = shape(hf, tool, retry=2)

    def failing() -> weakref.ref[BaseException]:
        return weakref.ref(called_with(Big, call))

    error = failing()
    gc.collect()

    assert error() is None


# --- retry ---


@pytest.mark.parametrize("policy", [{"read_only": True}, {"idempotent": True}, {"retry": 3}, {"retry": True}], ids=str)
def test_what_may_be_repeated_is_tried_three_times(shape: Shape, hf: Holdfast, policy: dict[str, object]) -> None:
    script = Script(fail(ConnectionError), fail(ConnectionError), ok(["at last"]))

    answer = shape(hf, script, **policy)()

    assert answer == ["at last"]
    assert script.count == 3
    assert hf.tracker.stats("script").total == 1
    assert hf.tracker.recent(1)[0].attempts == 3


@pytest.mark.parametrize("policy", [{}, {"read_only": True, "retry": False}], ids=str)
def test_what_may_not_be_repeated_is_tried_once(shape: Shape, hf: Holdfast, policy: dict[str, object]) -> None:
    script = Script(fail(ConnectionError), ok())

    called_with(ConnectionError, shape(hf, script, **policy))

    assert script.count == 1


@pytest.mark.parametrize("error", [ConnectionError, TimeoutError, Unavailable, SlowDown])
def test_a_retryable_category_is_repeated(shape: Shape, hf: Holdfast, error: type[Exception]) -> None:
    script = Script(fail(error), ok(["fine"]))

    assert shape(hf, script, retry=AT_ONCE)() == ["fine"]
    assert script.count == 2


@pytest.mark.parametrize(
    "error", [ValueError, PermissionError, FileNotFoundError, RuntimeError, asyncio.CancelledError]
)
def test_another_category_is_not_repeated(shape: Shape, hf: Holdfast, error: type[BaseException]) -> None:
    script = Script(fail(error), ok())

    called_with(error, shape(hf, script, retry=AT_ONCE))

    assert script.count == 1


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_no_more_attempts_are_made_than_allowed(shape: Shape, hf: Holdfast, attempts: int) -> None:
    script = Script(fail(ConnectionError))

    called_with(ConnectionError, shape(hf, script, retry={"attempts": attempts, **NOW}))

    assert script.count == attempts
    assert hf.tracker.stats("script").failed == 1


def test_waits_have_full_jitter_below_a_bound_that_doubles(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    random.seed(1)
    bounds = (0.2, 0.4, 0.8, 0.8)
    call = shape(
        hf, Script(fail(ConnectionError)), breaker=False, retry={"attempts": 5, "initial": 0.2, "max": 0.8, "budget": 0}
    )

    for _ in range(50):
        called_with(ConnectionError, call)

    for nth, bound in enumerate(bounds):
        waits = clock.slept[nth :: len(bounds)]
        assert len(waits) == 50
        assert max(waits) <= bound
        assert max(waits) > 0.8 * bound
        assert min(waits) < 0.2 * bound


def test_retry_after_wins_over_the_computed_delay(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    call = shape(hf, Script(rate_limit(7.5), ok(["fine"])), read_only=True)

    call()

    assert clock.slept == [7.5]


def test_a_retry_after_beyond_the_deadline_is_not_waited_for(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    script = Script(rate_limit(30.0))

    error = called_with(TooManyRequests, shape(hf, script, read_only=True, deadline=20.0))

    assert script.count == 1
    assert clock.monotonic() == 0.0
    assert "the deadline is too near" in notes(error)[0]


def test_all_attempts_are_under_one_deadline(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    script = Script(Step(lead=1.0, error=ConnectionError), clock=clock)
    call = shape(hf, script, deadline=4.5, breaker=False, retry={"attempts": 100, **NOW})

    error = called_with(ToolTimeout, call)

    assert script.count == 5
    assert isinstance(error, ToolTimeout)
    assert error.seconds == 0.5
    assert clock.monotonic() <= 5.0


def test_a_wait_before_the_last_attempt_cannot_pass_the_deadline(
    shape: Shape, hf: Holdfast, clock: ManualClock
) -> None:
    script = Script(Step(lead=1.0, error=lambda: TooManyRequests("3")), clock=clock)
    call = shape(hf, script, deadline=3.9, retry=100)

    called_with(TooManyRequests, call)

    assert script.count == 1
    assert clock.slept == [1.0]


def test_a_retry_budget_of_a_fifth_of_the_calls_stops_a_storm(shape: Shape, hf: Holdfast) -> None:
    script = Script(fail(ConnectionError))
    call = shape(hf, script, breaker=False, retry=AT_ONCE)

    errors = [called_with(ConnectionError, call) for _ in range(100)]

    assert 20 <= script.count - 100 <= 30
    assert "retry budget is used up" in notes(errors[-1])[0]


def test_successes_earn_retries(shape: Shape, hf: Holdfast) -> None:
    script = Script(*[fail(ConnectionError)] * 40, *[ok()] * 50, then=fail(ConnectionError))
    call = shape(hf, script, breaker=False, retry=AT_ONCE)
    while script.count < 40:
        called_with(ConnectionError, call)
    for _ in range(50):
        call()

    before = script.count
    for _ in range(5):
        called_with(ConnectionError, call)

    assert script.count - before == 15


def test_a_later_attempt_that_is_refused_lets_the_tools_last_exception_leave(shape: Shape, hf: Holdfast) -> None:
    script = Script(fail(ConnectionError("first")), fail(ConnectionError("second")), ok())
    call = shape(hf, script, breaker={"failure_threshold": 2}, retry={"attempts": 5, **NOW})

    error = called_with(ConnectionError, call)

    assert str(error) == "second"
    assert script.count == 2
    assert "temporarily disabled" in notes(error)[0]
    assert (hf.tracker.stats("script").failed, hf.tracker.stats("script").denied) == (1, 0)


# --- refusals ---


def test_an_open_circuit_refuses_and_the_call_does_not_repeat_it(
    shape: Shape, hf: Holdfast, clock: ManualClock
) -> None:
    script = Script(ok())
    call = shape(hf, script, retry=5)
    hf.breaker.force_open("script")

    called_with(CircuitOpen, call)

    assert script.count == 0
    assert clock.slept == []
    assert hf.breaker.diagnostics("script").denied_requests == 1


def test_a_used_up_rate_refuses_and_the_call_does_not_repeat_it(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    script = Script(ok())
    call = shape(hf, script, retry=5, rate={"per_second": 0.1, "burst": 1})
    call()

    called_with(RateLimited, call)

    assert script.count == 1
    assert clock.slept == []


def test_a_refusal_is_counted_apart(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(ok()))
    hf.breaker.force_open("script")

    called_with(CircuitOpen, call)

    stats = hf.tracker.stats("script")
    assert (stats.denied, stats.total, stats.mean) == (1, 0, None)
    assert hf.tracker.recent(1) == []


def test_a_refusal_says_who_until_when_and_what_to_do(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    call = shape(hf, Script(fail(ConnectionError)), breaker=EASY)
    called_with(ConnectionError, call)
    clock.advance(1.5)

    error = called_with(CircuitOpen, call)

    assert isinstance(error, Denied)
    assert (error.tool, error.retry_after) == ("script", 3.5)
    assert "'script' was not called" in error.for_model()
    assert "Do not repeat this call before then" in error.for_model()


def test_a_call_that_comes_back_when_it_was_told_is_let_through(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    call = shape(hf, Script(fail(ConnectionError), ok(["well again"])), breaker={**EASY, "jitter": 1.0})
    called_with(ConnectionError, call)
    error = called_with(CircuitOpen, call)

    clock.advance(error.retry_after)  # type: ignore[attr-defined]

    assert call() == ["well again"]
    assert hf.breaker.state("script") is CircuitState.CLOSED


def test_without_a_breaker_nothing_opens(shape: Shape, hf: Holdfast) -> None:
    script = Script(fail(ConnectionError))
    call = shape(hf, script, breaker=False)

    for _ in range(20):
        called_with(ConnectionError, call)

    assert script.count == 20
    assert hf.breaker.snapshot().diagnostics == ()


def test_one_bad_tool_does_not_disable_another(shape: Shape, hf: Holdfast) -> None:
    bad = shape(hf, Script(fail(ConnectionError), name="bad"), breaker=EASY)
    good = shape(hf, Script(ok(["fine"]), name="good"), breaker=EASY)
    called_with(ConnectionError, bad)

    called_with(CircuitOpen, bad)

    assert good() == ["fine"]


def test_seven_failures_in_a_row_open_the_circuit_by_default(shape: Shape, hf: Holdfast) -> None:
    script = Script(*[fail(RuntimeError)] * 6, ok(), then=fail(RuntimeError))
    call = shape(hf, script)
    for _ in range(6):
        called_with(RuntimeError, call)
    call()

    for _ in range(7):
        called_with(RuntimeError, call)

    assert hf.breaker.diagnostics("script").times_opened == 1
    called_with(CircuitOpen, call)


# --- what says nothing about the tool ---


def test_seven_cancellations_by_the_user_do_not_open_the_circuit(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(fail(asyncio.CancelledError)))

    for _ in range(7):
        called_with(asyncio.CancelledError, call)

    assert hf.breaker.state("script") is CircuitState.CLOSED
    assert hf.breaker.diagnostics("script").failure_count == 0
    stats = hf.tracker.stats("script")
    assert (stats.cancelled, stats.total, stats.failed, stats.mean) == (7, 7, 0, None)


def test_a_cancelled_call_does_not_forget_the_failures_before_it(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(fail(RuntimeError), fail(asyncio.CancelledError), ok()))
    called_with(RuntimeError, call)

    called_with(asyncio.CancelledError, call)

    assert hf.breaker.diagnostics("script").failure_count == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_inside_a_tool_is_neutral_and_leaves_no_slot_taken(
    shape: Shape, hf: Holdfast, error: type[BaseException]
) -> None:
    call = shape(hf, Script(fail(error), ok(["goes on"])), concurrency=1, max_wait=0, breaker=EASY, retry=3)

    called_with(error, call)

    assert hf.breaker.diagnostics("script").failure_count == 0
    assert hf.tracker.stats("script").cancelled == 1
    assert call() == ["goes on"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError])
def test_a_cancelled_probe_gives_its_slot_back(
    shape: Shape, hf: Holdfast, clock: ManualClock, error: type[BaseException]
) -> None:
    call = shape(hf, Script(fail(ConnectionError), fail(error), ok(["well again"])), breaker=EASY)
    called_with(ConnectionError, call)
    clock.advance(5.0)

    called_with(error, call)

    assert hf.breaker.state("script") is CircuitState.HALF_OPEN
    assert hf.breaker.diagnostics("script").probes_in_flight == 0
    assert call() == ["well again"]


def test_a_refusal_of_an_inner_tool_is_no_failure_of_the_outer_one(shape: Shape, hf: Holdfast) -> None:
    inner = hf.tool("inner")(Script(ok()).function)
    hf.breaker.force_open("inner")
    tried = []

    def outer() -> object:
        tried.append(1)
        return inner()

    call = shape(hf, outer, breaker=EASY, retry=AT_ONCE)

    error = called_with(CircuitOpen, call)

    assert isinstance(error, CircuitOpen)
    assert error.tool == "inner"
    assert len(tried) == 1
    assert hf.breaker.state("outer") is CircuitState.CLOSED
    assert hf.breaker.diagnostics("outer").failure_count == 0
    assert (hf.tracker.stats("outer").denied, hf.tracker.stats("inner").denied) == (0, 1)


def passed_on(denied: Denied) -> Exception:
    return denied


def wrapped(denied: Denied) -> Exception:
    error = RuntimeError("the page cannot be read")
    error.__cause__ = denied
    return error


def grouped(denied: Denied) -> Exception:
    return ExceptionGroup("of tasks", [denied, wrapped(denied)])


@pytest.mark.parametrize("how", [passed_on, wrapped, grouped])
def test_a_refusal_of_an_inner_tool_slows_no_outer_one_and_is_not_repeated(
    shape: Shape, hf: Holdfast, clock: ManualClock, how: Callable[[Denied], Exception]
) -> None:
    calls = 0

    def outer() -> list[object]:
        nonlocal calls
        calls += 1
        raise how(RateLimited("inner", None, 1.0))

    rate = {"per_second": 10, "adaptive": True}
    call = shape(hf, outer, read_only=True, rate=rate, breaker={"failure_threshold": 1})
    for _ in range(3):
        with pytest.raises((Denied, RuntimeError, ExceptionGroup)):
            call()

    assert calls == 3
    assert clock.slept == []
    assert hf._box.tool("outer").limits(clock.monotonic()).rate == 10
    assert hf.breaker.state("outer") is CircuitState.CLOSED
    assert hf.tracker.stats("outer").failed == 3


def test_a_failure_beside_a_refusal_is_one(shape: Shape, hf: Holdfast) -> None:
    def outer() -> list[object]:
        raise ExceptionGroup("of tasks", [RateLimited("inner", None, 1.0), ConnectionError("dead")])

    call = shape(hf, outer, breaker={"failure_threshold": 1})
    with pytest.raises(ExceptionGroup):
        call()

    assert hf.breaker.state("outer") is CircuitState.OPEN


def test_an_outer_probe_whose_inner_tool_was_refused_gives_its_slot_back(
    shape: Shape, hf: Holdfast, clock: ManualClock
) -> None:
    inner = hf.tool("inner", breaker={"failure_threshold": 1, "min_backoff": 60.0})(
        Script(fail(ConnectionError)).function
    )

    def outer() -> object:
        return inner()

    call = shape(hf, outer, breaker=EASY)
    called_with(ConnectionError, call)
    clock.advance(5.0)

    called_with(CircuitOpen, call)

    diagnostics = hf.breaker.diagnostics("outer")
    assert (diagnostics.state, diagnostics.probes_in_flight) == (CircuitState.HALF_OPEN, 0)


# --- time limits ---


def test_a_hanging_tool_ends_in_a_tool_timeout(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    call = shape(hf, Script(hang(1.0), clock=clock), timeout=1.0)

    error = called_with(TimeoutError, call)

    assert isinstance(error, ToolTimeout)
    assert (error.tool, error.seconds) == ("script", 1.0)
    assert str(error) == "script: no answer within 1 s"


def test_a_timeout_is_counted_as_one_and_trips(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    call = shape(hf, Script(hang(1.0), clock=clock), timeout=1.0, breaker=EASY)

    called_with(ToolTimeout, call)

    stats = hf.tracker.stats("script")
    assert (stats.timed_out, stats.failed, stats.total) == (1, 0, 1)
    diagnostics = hf.breaker.diagnostics("script")
    assert (diagnostics.state, diagnostics.last_error_category) == (CircuitState.OPEN, ErrorCategory.TIMEOUT)


def test_the_timeout_is_that_of_an_attempt(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    script = Script(hang(1.0), hang(1.0), Step(value=["slowly"], items=("slowly",), lead=0.9), clock=clock)

    answer = shape(hf, script, timeout=1.0, retry=AT_ONCE)()

    assert answer == ["slowly"]
    assert script.count == 3


def test_the_deadline_cuts_the_last_attempt_short(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    script = Script(hang(2.0), hang(0.5), clock=clock)

    error = called_with(ToolTimeout, shape(hf, script, timeout=2.0, deadline=2.5, retry=AT_ONCE))

    assert isinstance(error, ToolTimeout)
    assert error.seconds == 0.5
    assert script.count == 2
    assert clock.monotonic() == 2.5


def test_a_tool_that_answers_in_time_leaves_no_timer_that_fires(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    call = shape(hf, Script(ok(["quick"])), timeout=1.0)
    call()

    assert clock.pending == 0
    clock.advance(2.0)
    assert call() == ["quick"]
    assert hf.tracker.stats("script").timed_out == 0


# --- rates ---


def test_a_call_waits_for_its_token(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    call = shape(hf, Script(ok()), rate={"per_second": 2, "burst": 1})

    times = []
    for _ in range(4):
        call()
        times.append(clock.monotonic())

    assert times == [0.0, 0.5, 1.0, 1.5]


def test_a_wait_longer_than_allowed_is_refused_with_the_exact_time(
    shape: Shape, hf: Holdfast, clock: ManualClock
) -> None:
    script = Script(ok())
    call = shape(hf, script, rate={"per_second": 0.3, "burst": 1}, max_wait=3.0)
    call()

    error = called_with(RateLimited, call)

    assert isinstance(error, RateLimited)
    assert error.retry_after == pytest.approx(1 / 0.3)
    assert clock.monotonic() == 0.0
    clock.advance(error.retry_after or 0.0)
    call()
    assert (script.count, clock.slept) == (2, [])


def test_a_wait_for_a_token_is_in_the_note_and_not_in_the_duration(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(ok(), fail(ValueError)), rate={"per_second": 0.5, "burst": 1})
    call()

    error = called_with(ValueError, call)

    assert notes(error) == ["holdfast: script: 1 attempt, 2 s of waiting"]
    assert hf.tracker.stats("script").total_duration == 0.0


def test_each_attempt_takes_a_token(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    call = shape(hf, Script(fail(ConnectionError)), rate={"per_second": 1, "burst": 1}, retry=AT_ONCE)

    called_with(ConnectionError, call)

    assert clock.monotonic() == 2.0


def test_a_deadline_ends_the_wait_for_a_token(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    script = Script(ok())
    call = shape(hf, script, rate={"per_second": 0.5, "burst": 1}, deadline=1.0)
    call()

    called_with(RateLimited, call)

    assert script.count == 1
    assert clock.monotonic() == 0.0


def test_a_429_slows_an_adaptive_rate_down_and_does_not_trip(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    script = Script(rate_limit(4.0), ok())
    call = shape(hf, script, rate={"per_second": 10, "burst": 10, "adaptive": True}, breaker=EASY)
    called_with(TooManyRequests, call)

    call()

    assert 4.0 <= clock.monotonic() <= 4.4
    assert hf.breaker.state("script") is CircuitState.CLOSED


@pytest.mark.parametrize(
    ("step", "limit"),
    [
        (fail(TimeoutError), 16),
        (rate_limit(None), 16),
        (fail(RuntimeError("HTTP 503")), 16),
        (fail(ValueError), 20),
        (ok(), 20),
    ],
)
def test_an_overload_lowers_an_adaptive_limit_and_no_other_failure_does(
    shape: Shape, hf: Holdfast, clock: ManualClock, step: Step, limit: int
) -> None:
    call = shape(hf, Script(step), concurrency={"limit": 100, "adaptive": True})
    with suppress(Exception):
        call()

    assert hf._box.tool("script").limits(clock.monotonic()).limit == limit


# --- in a run ---


def test_the_same_call_that_failed_three_times_in_a_run_is_refused(shape: Shape, hf: Holdfast) -> None:
    script = Script(fail(ValueError))
    call = shape(hf, script)

    with hf.run():
        for _ in range(3):
            called_with(ValueError, call, "same")
        called_with(LoopDetected, call, "same")
        called_with(ValueError, call, "other")

    assert script.count == 4
    assert hf.tracker.stats("script").denied == 1


def test_the_same_call_of_a_method_is_one_of_the_same_object(shape: Shape, hf: Holdfast) -> None:
    class Client:
        def ask(self, what: str) -> None:
            raise ValueError(what)

        guarded = hf.tool("ask", breaker=False)(shape.of(ask))

    one, other = Client(), Client()

    with hf.run():
        for _ in range(3):
            called_with(ValueError, shape.run(one.guarded), "same")
        called_with(LoopDetected, shape.run(one.guarded), "same")
        called_with(ValueError, shape.run(one.guarded), "other")
        called_with(ValueError, shape.run(other.guarded), "same")


def test_where_a_circuit_counts_distinct_arguments_the_object_of_a_method_is_none(shape: Shape, hf: Holdfast) -> None:
    class Client:
        def ask(self, what: str) -> None:
            raise ConnectionError(what)

        guarded = hf.tool("ask", breaker={"distinct_arguments": True})(shape.of(ask))

    for what in ("same", "same", "other"):
        called_with(ConnectionError, shape.run(Client().guarded), what)

    assert hf.breaker.diagnostics("ask").failure_count == 2


def test_outside_a_run_there_is_no_loop_guard(shape: Shape, hf: Holdfast) -> None:
    script = Script(fail(ValueError))
    call = shape(hf, script, breaker=False)

    for _ in range(10):
        called_with(ValueError, call, "same")

    assert script.count == 10


def test_the_loop_guard_counts_calls_and_not_attempts(shape: Shape, hf: Holdfast) -> None:
    script = Script(fail(ConnectionError))
    call = shape(hf, script, retry=AT_ONCE, breaker=False)

    with hf.run():
        for _ in range(3):
            called_with(ConnectionError, call)
        called_with(LoopDetected, call)

    assert script.count == 9


def test_the_loop_guard_does_not_count_refusals(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(ok(["fine"])))

    with hf.run():
        hf.breaker.force_open("script")
        for _ in range(5):
            called_with(CircuitOpen, call)
        hf.breaker.auto("script")

        assert call() == ["fine"]


def test_the_loop_guard_does_not_count_cancelled_calls(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(*[fail(asyncio.CancelledError)] * 5, ok(["fine"])))

    with hf.run():
        for _ in range(5):
            called_with(asyncio.CancelledError, call)

        assert call() == ["fine"]


def test_the_loop_guard_can_be_switched_off(shape: Shape, hf: Holdfast) -> None:
    script = Script(fail(ValueError))
    call = shape(hf, script, loop=False, breaker=False)

    with hf.run():
        for _ in range(10):
            called_with(ValueError, call)

    assert script.count == 10


def test_the_loop_guard_is_asked_before_the_circuit(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(fail(ConnectionError)), breaker={"failure_threshold": 3})

    with hf.run():
        for _ in range(3):
            called_with(ConnectionError, call)
        assert hf.breaker.state("script") is CircuitState.OPEN

        called_with(LoopDetected, call)


def test_after_two_refusals_the_loop_is_reported(shape: Shape, hf: Holdfast) -> None:
    recorder = Recorder()
    hf.bus.add(recorder)
    call = shape(hf, Script(fail(ValueError)))

    with hf.run() as run:
        for _ in range(3):
            called_with(ValueError, call)
        for _ in range(3):
            called_with(LoopDetected, call)

    assert [event.run for event in recorder.of("loop_detected")] == [run.id]


def test_the_runs_budget_counts_calls_and_not_attempts(shape: Shape, hf: Holdfast) -> None:
    script = Script(*[fail(ConnectionError), ok()] * 2)
    call = shape(hf, script, retry=AT_ONCE)

    with hf.run(budget={"calls": 2}):
        call(1)
        call(2)
        error = called_with(BudgetExceeded, call, 3)

    assert script.count == 4
    assert "2 calls" in str(error)


def test_the_runs_budget_does_not_count_refusals(shape: Shape, hf: Holdfast) -> None:
    script = Script(ok())
    call = shape(hf, script)

    with hf.run(budget={"calls": 2}):
        call(1)
        hf.breaker.force_open("script")
        for _ in range(5):
            called_with(CircuitOpen, call, 2)
        hf.breaker.auto("script")
        call(2)
        called_with(BudgetExceeded, call, 3)

    assert script.count == 2


def test_a_tools_own_budget_is_per_run(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(ok()), budget={"calls": 1})

    for _ in range(2):
        with hf.run():
            call()
            called_with(BudgetExceeded, call)
    call()

    assert hf.tracker.stats("script").successful == 3


def test_a_run_ends_the_budget_of_seconds(shape: Shape, hf: Holdfast, clock: ManualClock) -> None:
    call = shape(hf, Script(ok()))

    with hf.run(budget={"seconds": 60}):
        clock.advance(59.0)
        call()
        clock.advance(1.0)
        called_with(BudgetExceeded, call)


# --- events ---


def test_a_call_is_told_from_start_to_end(shape: Shape, hf: Holdfast) -> None:
    recorder = Recorder()
    hf.bus.add(recorder)
    call = shape(hf, Script(rate_limit(2.0), ok()), read_only=True)

    call()

    assert recorder.types() == ["tool_started", "tool_attempt_failed", "tool_ended"]
    _, failed, ended = (event.payload for event in recorder.events)
    assert (failed["attempt"], failed["category"], failed["retry_in_ms"]) == (1, "rate_limit", 2000)
    assert (ended["status"], ended["attempts"], ended["waited_ms"], ended["cached"]) == ("success", 2, 2000, False)
    assert len({event.payload["call_id"] for event in recorder.events}) == 1


def test_a_cancelled_call_is_told_as_ended_and_not_as_failed(shape: Shape, hf: Holdfast) -> None:
    recorder = Recorder()
    hf.bus.add(recorder)
    call = shape(hf, Script(fail(asyncio.CancelledError)))

    called_with(asyncio.CancelledError, call)

    assert recorder.types() == ["tool_started", "tool_ended"]
    assert recorder.events[-1].payload["status"] == "cancelled"


def test_a_refusal_is_told_with_its_wait(shape: Shape, hf: Holdfast) -> None:
    recorder = Recorder()
    hf.bus.add(recorder)
    call = shape(hf, Script(fail(ConnectionError)), breaker=EASY)
    called_with(ConnectionError, call)

    called_with(CircuitOpen, call)

    (denied,) = recorder.of("tool_denied")
    assert (denied.payload["kind"], denied.payload["retry_after_ms"]) == ("CircuitOpen", 5000)


# --- one probe at a time ---


def test_of_200_coroutines_that_come_when_the_wait_is_over_one_reaches_the_tool(
    hf: Holdfast, clock: ManualClock
) -> None:
    script = Script(fail(ConnectionError), Step(lead=1.0, error=ConnectionError), clock=clock)
    guarded = hf.tool(breaker=EASY)(script.coroutine)

    async def main() -> list[Any]:
        with pytest.raises(ConnectionError):
            await guarded()
        await clock.asleep(5.0)
        return await asyncio.gather(*(guarded() for _ in range(200)), return_exceptions=True)

    errors = asyncio.run(main())

    assert script.count == 2
    assert sorted(type(error).__name__ for error in errors) == ["CircuitOpen"] * 199 + ["ConnectionError"]
    assert all(error.retry_after for error in errors if isinstance(error, CircuitOpen))


def test_of_32_threads_that_come_when_the_wait_is_over_one_reaches_the_tool(
    shape: Shape, hf: Holdfast, clock: ManualClock
) -> None:
    reached = []
    barrier = threading.Barrier(32)
    refused = threading.Semaphore(0)

    def tool(first: bool = False) -> list[object]:
        reached.append(1)
        if not first:
            for _ in range(31):
                assert refused.acquire(timeout=shapes.PATIENCE)
        raise ConnectionError

    call = shape(hf, tool, breaker=EASY)
    called_with(ConnectionError, call, True)
    clock.advance(5.0)

    def come() -> None:
        barrier.wait(shapes.PATIENCE)
        try:
            call()
        except CircuitOpen:
            refused.release()
            raise

    kinds = [type(thread.error) for thread in [Thread(come) for _ in range(32)]]

    assert len(reached) == 2
    assert kinds.count(ConnectionError) == 1
    assert kinds.count(CircuitOpen) == 31


def test_a_task_that_is_cancelled_while_it_probes_gives_the_slot_back(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(fail(ConnectionError), hang(), ok(["well again"]), clock=clock)
    guarded = hf.tool(breaker=EASY)(script.coroutine)

    async def main() -> object:
        with pytest.raises(ConnectionError):
            await guarded()
        await clock.asleep(5.0)
        probe = asyncio.create_task(guarded())
        await settled()
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        return await guarded()

    assert asyncio.run(main()) == ["well again"]


def test_eight_threads_are_never_refused_below_the_limit_of_eight(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(ok(["fine"])), concurrency=8, max_wait=0)
    barrier = threading.Barrier(8)

    def work() -> list[object]:
        barrier.wait(shapes.PATIENCE)
        return [call() for _ in range(100)]

    answers = [thread.result() for thread in [Thread(work) for _ in range(8)]]

    assert answers == [[["fine"]] * 100] * 8
    assert hf.tracker.stats("script").successful == 800


# --- the decorator ---


def plain(a: int, /, b: str = "b", *, c: float = 1.0) -> list[str]:
    """What it does."""
    return [f"{a}{b}{c}"]


def test_a_guarded_tool_keeps_its_face(shape: Shape, hf: Holdfast) -> None:
    fn = shape.of(plain)

    guarded = hf.tool("another_name")(fn)

    assert inspect.signature(guarded) == inspect.signature(plain)
    assert inspect.get_annotations(guarded, eval_str=True) == inspect.get_annotations(plain, eval_str=True)
    assert guarded.__wrapped__ is fn  # type: ignore[attr-defined]
    assert (guarded.__name__, guarded.__qualname__, guarded.__module__) == ("plain", "plain", __name__)
    assert guarded.__doc__ == "What it does."


def test_annotations_that_were_set_by_hand_are_kept(hf: Holdfast) -> None:
    def made(*args: object) -> object:
        return args

    made.__annotations__ = {"city": str, "return": int}

    assert typing.get_type_hints(hf.tool(made)) == {"city": str, "return": int}


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are read where they are written")
def test_an_annotation_may_name_what_only_a_type_checker_imports(hf: Holdfast) -> None:
    names: dict[str, Any] = {}
    exec(compile("def fn(a: Missing, b: int = 1) -> int: return b", "fn.py", "exec", dont_inherit=True), names)
    fn = names["fn"]

    guarded = hf.tool(fn, read_only=True, cache=10)

    assert guarded(1) == hf.call(fn, 1) == holdfast.retrying(attempts=2)(fn)(1) == 1
    assert holdfast.Hook("after_tool", fn).name == "fn"


def has_shape(shape: Shape, fn: object) -> bool:
    found = {
        "coroutine": inspect.iscoroutinefunction(fn),
        "generator": inspect.isgeneratorfunction(fn),
        "async_generator": inspect.isasyncgenfunction(fn),
    }
    return [name for name, is_it in found.items() if is_it] == ([] if shape.name == "function" else [shape.name])


def test_a_guarded_tool_is_what_it_was_to_inspect(shape: Shape, hf: Holdfast) -> None:
    guarded = hf.tool()(shape.of(plain))

    assert has_shape(shape, guarded)


def test_the_decorator_needs_no_parentheses(shape: Shape, hf: Holdfast) -> None:
    guarded = hf.tool(shape.of(plain))

    assert shape.run(guarded)(1, c=2.0) == ["1b2.0"]
    assert hf.tracker.tools() == ["plain"]


def test_settings_given_with_the_function_hold(hf: Holdfast) -> None:
    guarded = hf.tool(plain, rate={"per_second": 1, "burst": 1}, max_wait=0)
    guarded(1)

    with pytest.raises(RateLimited):
        guarded(1)
    with pytest.raises(ConfigError, match="did you mean timeout"):
        hf.tool(plain, timout=0.05)


def test_a_tool_has_the_name_it_was_given(shape: Shape, hf: Holdfast) -> None:
    guarded = hf.tool("search.web")(shape.of(plain))

    shape.run(guarded)(1)

    assert hf.tracker.stats("search.web").successful == 1


def test_decorated_methods_know_their_object(shape: Shape, hf: Holdfast) -> None:
    class Client:
        def __init__(self, name: str) -> None:
            self.name = name

        def ask(self, what: str) -> list[str]:
            return [f"{self.name}: {what}"]

        guarded = hf.tool("ask")(shape.of(ask))

    one, two = Client("one"), Client("two")

    assert shape.run(one.guarded)("a") == ["one: a"]
    assert shape.run(two.guarded)("b") == ["two: b"]
    assert hf.tracker.stats("ask").successful == 2


def test_a_partial_is_a_tool(shape: Shape, hf: Holdfast) -> None:
    guarded = hf.tool(functools.partial(shape.of(plain), 7, c=0.5))

    assert has_shape(shape, guarded)
    assert shape.run(guarded)("x") == ["7x0.5"]
    assert guarded.__name__ == "plain"
    assert inspect.signature(guarded) == inspect.signature(functools.partial(plain, 7, c=0.5))
    assert hf.tracker.tools() == ["plain"]


class Answering:
    number: int  # of the class, and no argument

    def __call__(self, what: str) -> str:
        return what


@pytest.mark.parametrize("fn", [functools.partial(plain, 7), Answering(), len], ids=["partial", "object", "builtin"])
def test_a_tool_that_is_no_function_has_no_annotations_of_somebody_else(hf: Holdfast, fn: Call) -> None:
    guarded = hf.tool(fn)

    assert typing.get_type_hints(guarded) == {}
    assert inspect.signature(guarded) == inspect.signature(fn)


def test_a_static_method_is_a_tool_and_stays_static(shape: Shape, hf: Holdfast) -> None:
    class Client:
        ask = hf.tool("ask")(staticmethod(shape.of(plain)))

    assert has_shape(shape, Client.ask)
    assert shape.run(Client.ask)(1) == shape.run(Client().ask)(1) == ["1b1.0"]
    assert hf.tracker.stats("ask").successful == 2


@pytest.mark.parametrize("thing", [classmethod(plain), functools.partialmethod(plain)], ids=["class", "partial"])
def test_what_only_a_class_can_call_says_where_the_decorator_belongs(hf: Holdfast, thing: Any) -> None:
    for decorate in (hf.tool, hf.tool("name")):
        with pytest.raises(ConfigError, match=f"put the decorator below @{type(thing).__name__}"):
            decorate(thing)


# --- a coroutine in disguise ---


def logged(fn: Call) -> Call:
    @functools.wraps(fn)
    def inner(*args: Any) -> Any:
        return fn(*args)

    return inner


async def send(what: str) -> str:
    raise ConnectionError(what)


async def test_what_is_marked_as_a_coroutine_function_is_one(hf: Holdfast) -> None:
    guarded = hf.tool("send")(create_autospec(send, side_effect=ConnectionError))

    with pytest.raises(ConnectionError):
        await guarded("x")

    assert hf.tracker.stats("send").failed == 1


@pytest.mark.parametrize(
    "policy",
    [{}, {"timeout": 5.0}, {"read_only": True, "cache": 60.0}, {"concurrency": 1}],
    ids=["quick", "thread", "cache", "slots"],
)
def test_a_plain_function_that_gives_a_coroutine_is_a_config_error_and_no_success(
    hf: Holdfast, policy: dict[str, object]
) -> None:
    guarded = hf.tool("send", **policy)(logged(send))

    for _ in range(2):
        with pytest.raises(ConfigError, match="send: gives something to await, but is not a coroutine function"):
            guarded("x")

    stats = hf.tracker.stats("send")
    assert (stats.successful, stats.failed) == (0, 2)


def test_what_gave_an_answer_before_may_not_give_something_to_await_later(hf: Holdfast) -> None:
    answers: list[Any] = ["fine", "fine"]
    guarded = hf.tool("send")(lambda: answers.pop() if answers else send("x"))

    assert [guarded(), guarded()] == ["fine", "fine"]
    with pytest.raises(ConfigError, match="something to await"):
        guarded()


def test_a_stream_of_something_to_await_is_a_config_error(hf: Holdfast) -> None:
    with pytest.raises(ConfigError, match="something to await"):
        list(hf.stream(logged(send), "x"))


# --- what is refused leaves nothing behind ---


REFUSED: list[Callable[[Holdfast], object]] = [
    lambda hf: hf.guard("new", timout=3),
    lambda hf: hf.call(plain, 1, policy={"timout": 3}),
    lambda hf: hf.call(send, "x"),
    lambda hf: hf.tool("new", timout=3)(plain),
    lambda hf: hf.tool("new", read_only=True, cache=3)(Script(ok([1])).generator),
]


@pytest.mark.parametrize("refused", REFUSED, ids=["guard", "policy", "verb", "setting", "cached stream"])
def test_what_is_refused_leaves_no_tool_behind(hf: Holdfast, refused: Callable[[Holdfast], object]) -> None:
    with pytest.raises(ConfigError):
        refused(hf)

    assert hf.entries() == []
    assert hf.breaker.snapshot().diagnostics == ()


def test_a_decorator_that_is_refused_does_not_change_the_tool_of_that_name(hf: Holdfast) -> None:
    guarded = hf.tool("search", read_only=True, rate={"per_second": 1, "burst": 1}, max_wait=0)(plain)
    hf.guard("block")

    for name, wrong in (("search", {"read_only": True, "cache": 60.0}), ("block", {"timout": 3})):
        with pytest.raises(ConfigError):
            hf.tool(name, **wrong)(Script(ok([1])).generator)

    guarded(1)
    with pytest.raises(RateLimited):
        guarded(1)
    assert {entry.name for entry in hf.entries()} == {"search", "block"}


def test_a_callable_object_is_a_tool(shape: Shape, hf: Holdfast) -> None:
    class Base:
        async def coroutine(self, what: str) -> list[str]:
            return [what]

        def generator(self, what: str) -> Iterator[str]:
            yield what

        async def async_generator(self, what: str) -> AsyncIterator[str]:
            yield what

        def function(self, what: str) -> list[str]:
            return [what]

        __call__ = locals()[shape.name]

    class Searcher(Base):
        """Its `__call__` is inherited."""

    guarded = hf.tool(Searcher())

    assert has_shape(shape, guarded)
    assert shape.run(guarded)("found") == ["found"]
    assert guarded.__name__ == "Searcher"
    assert hf.tracker.tools() == ["Searcher"]


@pytest.mark.parametrize("thing", [None, 42, "text", object()], ids=["None", "number", "text", "object"])
def test_what_cannot_be_called_is_no_tool(hf: Holdfast, thing: Any) -> None:
    with pytest.raises(ConfigError, match="must be callable"):
        hf.tool("name")(thing)


@pytest.mark.parametrize("name", ["", "x" * 201, "line\nbreak"], ids=["empty", "long", "unprintable"])
def test_a_bad_name_is_refused(hf: Holdfast, name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 200 printable characters"):
        hf.tool(name)(plain)


def test_a_bad_setting_is_refused_where_it_is_written(hf: Holdfast) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        hf.tool(timeout=-1.0)(plain)


def test_a_tool_decorated_anew_has_the_new_settings(hf: Holdfast) -> None:
    script = Script(fail(ConnectionError))
    hf.tool("same", retry=False)(script.function)

    again = hf.tool("same", retry=AT_ONCE)(script.function)

    called_with(ConnectionError, again)
    assert script.count == 3


# --- the verbs ---


def test_any_function_can_be_called(hf: Holdfast) -> None:
    script = Script(ok("fine"))

    assert hf.call(script.function, 1, key=2) == "fine"
    assert script.calls == [((1,), {"key": 2})]
    assert hf.tracker.stats("script").successful == 1


def test_a_decorated_tool_can_be_called_by_its_name(hf: Holdfast) -> None:
    script = Script(fail(ConnectionError))
    hf.tool("search", retry=AT_ONCE)(script.function)

    called_with(ConnectionError, lambda: hf.call("search"))

    assert script.count == 3


def test_an_unknown_name_is_refused_with_those_that_are_known(hf: Holdfast) -> None:
    hf.tool("search")(plain)

    with pytest.raises(ConfigError, match="'serach' is not a decorated tool; known are: search"):
        hf.call("serach")


def test_calling_a_guarded_function_guards_it_once(hf: Holdfast) -> None:
    guarded = hf.tool("search")(plain)

    assert hf.call(guarded, 1) == ["1b1.0"]
    assert hf.tracker.stats().total == 1


def test_a_guarded_method_can_be_called(hf: Holdfast) -> None:
    class Client:
        name = "one"

        @hf.tool("ask")
        def ask(self, what: str) -> str:
            return f"{self.name}: {what}"

    assert hf.call(Client().ask, "a") == "one: a"
    assert hf.tracker.tools() == ["ask"]


@pytest.mark.parametrize("verb", ["call", "acall", "stream", "astream"])
async def test_what_wraps_a_guarded_function_is_not_skipped(hf: Holdfast, verb: str) -> None:
    class Client:
        ask = logged(hf.tool("ask")(lambda self, what: what))

    class Loud:
        def __init__(self, fn: Call) -> None:
            functools.update_wrapper(self, fn)

        def __call__(self, what: str) -> str:
            return what.upper()

    wrapped = logged(hf.tool("delete")(lambda what: what))
    for each in (wrapped, Client().ask, functools.partial(wrapped), Loud(wrapped)):
        with pytest.raises(ConfigError, match="is guarded already, inside of what wraps it"):
            await getattr(hf, verb)(each, "x")

    assert hf.tracker.stats().total == 0


def test_what_another_holdfast_guards_inside_of_what_wraps_it_is_called_as_a_whole(
    hf: Holdfast, clock: ManualClock
) -> None:
    other = holdfast.open(":memory:", policies={}, clock=clock)

    @logged
    @other.tool("search")
    def search(what: str) -> str:
        return what

    assert hf.call(search, "tea") == "tea"
    assert (hf.tracker.stats("search").total, other.tracker.stats("search").total) == (1, 1)


def test_a_partial_of_a_guarded_function_is_guarded_once(shape: Shape, hf: Holdfast) -> None:
    verbs = {"function": "call", "coroutine": "acall", "generator": "stream", "async_generator": "astream"}
    guarded = hf.tool(concurrency=1, max_wait=0)(shape.of(plain))
    part = functools.partial(functools.partial(guarded, 7), c=0.5)

    assert shape.run(getattr(hf, verbs[shape.name]))(part, "x") == ["7x0.5"]
    assert hf.tracker.stats().total == 1


def test_a_function_guarded_by_another_holdfast_is_a_function_like_any_other(hf: Holdfast, clock: ManualClock) -> None:
    other = holdfast.open(":memory:", policies={}, clock=clock)
    guarded = other.tool("search")(plain)

    hf.call(guarded, 1)

    assert (hf.tracker.stats("plain").total, other.tracker.stats("search").total) == (1, 1)


def test_the_policy_of_one_call_is_over_the_tools_own(hf: Holdfast) -> None:
    script = Script(fail(ConnectionError))
    guarded = hf.tool("search", retry={"attempts": 2, **NOW})(script.function)

    called_with(ConnectionError, lambda: hf.call(guarded, policy={"retry": {"attempts": 4}}))
    assert script.count == 4

    called_with(ConnectionError, guarded)
    assert script.count == 6


def test_the_policy_of_one_call_does_not_empty_what_others_share(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(ok())
    guarded = hf.tool("search", rate={"per_second": 0.1, "burst": 1})(script.function)
    guarded()

    hf.call(guarded, policy={"rate": False})

    called_with(RateLimited, guarded)
    assert script.count == 2


async def tried_again(call: Coroutine[Any, Any, Any], clock: ManualClock, meanwhile: Callable[[], Any]) -> None:
    """Begin *call*, do something *meanwhile* before it is tried again, and let it fail for good."""
    with clock.busy():
        task = asyncio.create_task(call)
        await settled()
        meanwhile()
    with pytest.raises(ConnectionError):
        await task


async def test_a_call_without_a_breaker_that_is_tried_again_leaves_the_others_theirs(
    hf: Holdfast, clock: ManualClock
) -> None:
    script = Script(fail(ConnectionError))
    guarded = hf.tool("search", breaker={"failure_threshold": 1})(script.coroutine)
    plain = hf.tool("search", breaker={"failure_threshold": 1})(script.function)
    called_with(ConnectionError, plain)

    bold = hf.acall(guarded, policy={"breaker": False, "retry": {"attempts": 2}})
    await tried_again(bold, clock, lambda: called_with(CircuitOpen, plain))

    called_with(CircuitOpen, plain)
    assert script.count == 3


async def test_a_call_that_is_tried_again_asks_a_circuit_that_is_set_as_the_newest_policy_says(
    hf: Holdfast, clock: ManualClock
) -> None:
    script = Script(fail(ConnectionError))
    guarded = hf.tool("search", breaker={"failure_threshold": 9}, retry=2)(script.coroutine)

    again = hf.tool("search", breaker={"failure_threshold": 2})
    await tried_again(guarded(), clock, lambda: again(script.coroutine))

    assert hf.breaker.state("search") is CircuitState.OPEN


def test_of_two_calls_that_begin_at_once_the_same_one_sets_all_guards(clock: ManualClock) -> None:
    def begun_at(line: int) -> bool:
        """Whether there was such a *line*: a plain call begins there, while one without a breaker does."""
        with holdfast.open(":memory:", policies={}, clock=clock) as hf:
            search = hf.tool("search")(Script(ok()).function)
            tool = hf._box.tool("search")
            lines = 0

            def trace(frame: FrameType, event: str, arg: object) -> Any:
                nonlocal lines
                if frame.f_code not in (Tool.use.__code__, Tool._attach.__code__):
                    return None
                if not tool._lock.locked():  # else the other one has to wait
                    lines += 1
                    if lines == line:
                        hf.call(search)
                return trace

            before = sys.gettrace()
            sys.settrace(trace)
            try:
                hf.call(search, policy={"breaker": False})
            finally:
                sys.settrace(before)
            hf.breaker.force_open("search")
            called_with(CircuitOpen, search)
            return lines >= line

    reached = [begun_at(line) for line in range(1, 40)]

    assert reached[0]
    assert not reached[-1]


RATED = {"failure_rate": 0.5, "failure_threshold": 1000}


def test_calls_with_another_window_leave_the_others_their_rate(hf: Holdfast) -> None:
    search = hf.tool("search", breaker=RATED)(Script(fail(ConnectionError)).function)

    for _ in range(2):
        for _ in range(9):
            called_with(ConnectionError, search)
        called_with(ConnectionError, functools.partial(hf.call, search, policy={"breaker": {"window": 60.0}}))

    called_with(CircuitOpen, search)


def test_calls_without_a_breaker_do_not_let_old_successes_stay_in_the_rate(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(*[ok()] * 102, then=fail(ConnectionError))
    search = hf.tool("search", breaker=RATED)(script.function)
    for _ in range(2):
        hf.call(search, policy={"breaker": False})
        clock.advance(400.0)
    for _ in range(100):
        search()
    clock.advance(400.0)

    for _ in range(20):
        called_with(ConnectionError, search)

    called_with(CircuitOpen, search)


@pytest.mark.parametrize("heard", [False, True], ids=["quick", "long"])
def test_a_call_goes_by_the_policy_that_it_began_with(hf: Holdfast, heard: bool) -> None:
    if heard:
        hf.bus.add(lambda event: None)
    script = Script(ok(), fail(ConnectionError))

    def work() -> None:
        script.function()

    def meanwhile() -> None:
        if script.count:
            hf.tool("search", retry=False, breaker=False)(work)
        work()

    guarded = hf.tool("search", retry=AT_ONCE, breaker=False)(meanwhile)
    guarded()

    called_with(ConnectionError, guarded)

    assert script.count == 1 + AT_ONCE["attempts"]


@pytest.mark.parametrize("verb", ["call", "acall", "stream", "astream"])
async def test_a_tool_may_have_any_argument_but_policy(hf: Holdfast, verb: str) -> None:
    def take(tool: str, self: str) -> list[str]:
        return [tool, self]

    given = getattr(hf, verb)(take, tool="hammer", self="me")
    answer = [item async for item in given] if verb == "astream" else list(await given if verb == "acall" else given)

    assert answer == ["hammer", "me"]


def test_a_bad_policy_of_one_call_is_refused(hf: Holdfast) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        hf.call(plain, 1, policy={"tiemout": 1})


async def test_a_plain_function_called_from_a_coroutine_runs_in_a_thread(hf: Holdfast) -> None:
    def where() -> str:
        return threading.current_thread().name

    assert await hf.acall(where) == "holdfast-worker"


async def test_a_coroutine_function_is_awaited_in_the_callers_task(hf: Holdfast) -> None:
    async def who() -> object:
        return asyncio.current_task()

    assert await hf.acall(who) is asyncio.current_task()


async def test_a_plain_function_that_gives_an_awaitable_is_awaited(hf: Holdfast) -> None:
    assert await hf.acall(lambda: asyncio.sleep(0, "slept")) == "slept"


def test_a_function_that_gives_an_iterable_can_be_streamed(hf: Holdfast) -> None:
    assert list(hf.stream(lambda: [1, 2, 3])) == [1, 2, 3]


async def test_the_items_of_a_plain_generator_are_made_in_a_thread(hf: Holdfast) -> None:
    def where() -> Iterator[str]:
        for _ in range(3):
            yield threading.current_thread().name

    assert [name async for name in hf.astream(where)] == ["holdfast-worker"] * 3


async def test_a_function_that_gives_an_iterable_is_called_in_a_thread_too(hf: Holdfast) -> None:
    def where() -> list[str]:
        return [threading.current_thread().name]

    assert [name async for name in hf.astream(where)] == ["holdfast-worker"]


async def test_a_coroutine_that_gives_an_async_iterator_can_be_streamed(hf: Holdfast) -> None:
    async def connect() -> AsyncIterator[object]:
        return Script(ok([1, 2])).async_generator()

    assert [item async for item in hf.astream(connect)] == [1, 2]


WRONG = [
    ("call", "coroutine", "acall"),
    ("call", "generator", "stream"),
    ("call", "async_generator", "astream"),
    ("acall", "generator", "astream"),
    ("acall", "async_generator", "astream"),
    ("stream", "coroutine", "acall"),
    ("stream", "async_generator", "astream"),
]


@pytest.mark.parametrize(("verb", "name", "right"), WRONG)
async def test_a_verb_that_does_not_fit_the_tool_names_the_right_one(
    hf: Holdfast, verb: str, name: str, right: str
) -> None:
    script = Script(ok())

    with pytest.raises(ConfigError, match=f"'script' is .*: use {right}, not {verb}"):
        await getattr(hf, verb)(getattr(script, name))

    assert script.count == 0


@pytest.mark.parametrize("verb", ["call", "acall", "stream", "astream"])
async def test_what_cannot_be_called_is_refused_by_every_verb(hf: Holdfast, verb: str) -> None:
    with pytest.raises(ConfigError, match="must be callable"):
        await getattr(hf, verb)(42)


def test_a_closed_holdfast_still_guards(shape: Shape, hf: Holdfast) -> None:
    call = shape(hf, Script(ok(["fine"])), timeout=1.0)

    hf.close()

    assert call() == ["fine"]


# --- policies that change ---


@pytest.mark.parametrize("path", ["quick", "long", "refused", "stream"])
def test_a_changed_policy_file_is_taken_up(tmp_path: Path, clock: ManualClock, path: str) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text("[policy]\nmax_wait = 1.0\n")
    hf = holdfast.open(":memory:", policies=file, clock=clock)
    if path == "long":
        hf.bus.add(Recorder())
    script = Script(fail(RuntimeError) if path == "refused" else ok())
    call = Shape("generator" if path == "stream" else "function")(hf, script, breaker={"failure_threshold": 1})
    for _ in range(2):
        with suppress(RuntimeError, CircuitOpen):
            call()

    file.write_text("[policy]\nmax_wait = 0.25\n")
    clock.advance(1.1)
    with suppress(RuntimeError, CircuitOpen):
        call()

    assert hf._box.tool("script").policy.max_wait == 0.25


# --- after a fork ---

FORKED = """
import multiprocessing, signal, threading, holdfast

hf = holdfast.open(":memory:", policies={})
doors = []

@hf.tool(concurrency=2, max_wait=0)
def held(*barriers):
    for barrier in barriers:
        barrier.wait(30)

@hf.tool(timeout=30.0)
def timed():
    return threading.current_thread().name

@hf.tool(timeout=0.01)
def late():
    threading.Event().wait(30)

@hf.tool(read_only=True, cache=60.0)
def cached():
    for barrier in doors:
        barrier.wait(30)
    return "made"

def child(answers):
    signal.alarm(30)
    doors.clear()
    inside, leave = threading.Barrier(3), threading.Barrier(3)
    threads = [threading.Thread(target=held, args=(inside, leave)) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(30)
    try:
        held()
    except holdfast.ConcurrencyFull as error:
        answers.put(str(error))
    leave.wait(30)
    for thread in threads:
        thread.join()
    answers.put(timed())
    answers.put(cached())
    try:
        late()
    except holdfast.ToolTimeout as error:
        answers.put(str(error))

if __name__ == "__main__":
    signal.alarm(40)
    inside, leave = doors[:] = threading.Barrier(3), threading.Barrier(3)
    timed()
    held()
    threads = [threading.Thread(target=held, args=doors), threading.Thread(target=cached)]
    for thread in threads:
        thread.start()
    inside.wait(30)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=child, args=(answers,))
    process.start()
    for _ in range(4):
        print(answers.get())
    process.join(30)
    leave.wait(30)
    for thread in threads:
        thread.join()
    held()
    print(process.exitcode)
"""


def test_calls_work_in_a_forked_child() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=50, check=False)

    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "held: too many calls of it are running",
        "holdfast-worker",
        "made",
        "late: no answer within 0.01 s",
        "0",
    ]


def test_objects_whose_methods_were_called_are_not_kept(hf: Holdfast) -> None:
    class Request:
        def read(self, part: int) -> int:
            return part

        @hf.tool
        def parse(self, part: int) -> int:
            return part

    made: list[weakref.ref[Request]] = []

    with hf.run():
        for part in range(10):
            request = Request()
            made.append(weakref.ref(request))
            hf.call(request.read, part)
            hf.call(request.parse, part)
        del request
        gc.collect()

        assert [each() for each in made] == [None] * 10


def test_what_functions_made_for_one_call_have_captured_is_not_kept(hf: Holdfast) -> None:
    class Request:
        def __call__(self, part: int) -> int:
            return part

    made: list[weakref.ref[Request]] = []

    with hf.run():
        for part in range(10):
            request = Request()
            made.append(weakref.ref(request))
            hf.call(lambda part, request=request: request(part), part)
            hf.call(request, part)
        del request
        gc.collect()

        assert [each() for each in made] == [None] * 10


def test_a_callable_object_that_cannot_be_referred_to_weakly_is_called_with_its_arguments_by_name(hf: Holdfast) -> None:
    class Read:
        __slots__ = ()

        def __call__(self, part: int = 1) -> int:
            return part

    with hf.run() as run:
        assert hf.call(Read(), 5) == 5

    assert [event.payload["arguments"] for event in run.events() if event.type == "tool_started"] == [{"part": 5}]
