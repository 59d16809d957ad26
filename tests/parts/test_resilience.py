"""The facade: circuit first, then limiter, both or neither; a permit that answers by itself; refusals that say why."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast import (
    AdaptiveRateLimiter,
    BreakerConfig,
    CallOutcome,
    CircuitBreaker,
    CircuitOpen,
    CircuitState,
    ConfigError,
    Denied,
    ErrorCategory,
    LoopDetected,
    Permit,
    Priority,
    RateLimited,
    RateLimiter,
    ToolResilience,
    default_resilience,
)
from holdfast.parts import resilience
from holdfast.testing import ManualClock, TooManyRequests

CONFIG = BreakerConfig(failure_threshold=3, jitter=0)
BACKOFF = CONFIG.min_backoff


@pytest.fixture
def breaker(clock: ManualClock) -> CircuitBreaker:
    return CircuitBreaker(CONFIG, clock=clock)


@pytest.fixture
def limiter(clock: ManualClock) -> AdaptiveRateLimiter:
    return AdaptiveRateLimiter(10.0, 2.0, clock=clock, random=lambda: 0.0)


@pytest.fixture
def facade(limiter: AdaptiveRateLimiter, breaker: CircuitBreaker, clock: ManualClock) -> ToolResilience:
    return ToolResilience(limiter, breaker, clock=clock)


def trip(facade: ToolResilience, tool: str = "search") -> None:
    for _ in range(CONFIG.failure_threshold):
        facade.record_outcome(tool, CallOutcome.EXECUTION_ERROR)


def drain(limiter: AdaptiveRateLimiter | RateLimiter, tool: str = "search") -> None:
    while limiter.try_acquire(tool) == 0.0:
        pass


def tokens(limiter: AdaptiveRateLimiter | RateLimiter, tool: str = "search", full: float = 10.0) -> float:
    state = limiter.snapshot().get(tool)
    return full if state is None else state.tokens


def probes(facade: ToolResilience, tool: str = "search") -> int:
    return sum(each.probes_in_flight for each in facade.circuit_snapshot().diagnostics if each.tool == tool)


def together(number: int, fn: Callable[[], object]) -> None:
    threads = [threading.Thread(target=fn) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- both or neither ---


def test_a_permit_takes_one_token_of_its_tool(facade: ToolResilience, limiter: AdaptiveRateLimiter) -> None:
    permit = facade.acquire("search")

    assert permit.tool == "search"
    assert tokens(limiter) == 9.0
    assert tokens(limiter, "other") == 10.0


def test_the_circuit_is_asked_first_and_an_open_one_costs_no_token(
    facade: ToolResilience, limiter: AdaptiveRateLimiter
) -> None:
    trip(facade)
    drain(limiter)

    with pytest.raises(CircuitOpen):
        facade.acquire("search")

    assert tokens(limiter) == 0.0


def test_a_refusal_by_the_limiter_gives_a_granted_probe_back(
    facade: ToolResilience, limiter: AdaptiveRateLimiter, clock: ManualClock
) -> None:
    trip(facade)
    clock.advance(BACKOFF)
    drain(limiter)

    with pytest.raises(RateLimited):
        facade.acquire("search")

    assert probes(facade) == 0
    clock.advance(0.5)
    with facade.acquire("search"):
        assert probes(facade) == 1
    assert facade.circuit_snapshot().diagnostics[0].state is CircuitState.CLOSED


def test_a_call_that_fits_no_bucket_is_a_config_error_and_gives_a_granted_probe_back(
    breaker: CircuitBreaker, clock: ManualClock
) -> None:
    facade = ToolResilience(RateLimiter(1.0, 1.0, clock=clock), breaker, clock=clock)
    trip(facade)
    clock.advance(BACKOFF)

    with pytest.raises(ConfigError, match="larger burst"):
        facade.acquire("search", Priority.LOW)

    assert probes(facade) == 0


def test_one_bad_tool_never_disables_another(facade: ToolResilience) -> None:
    trip(facade, "bad")

    with pytest.raises(CircuitOpen):
        facade.acquire("bad")
    with facade.acquire("good"):
        pass

    assert facade.circuit_snapshot().open_circuits == ("bad",)


class BothOrNeither(RuleBasedStateMachine):
    """A refusal leaves both sides as they were, whoever refused; a permit is out with both."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.breaker = CircuitBreaker(
            BreakerConfig(failure_threshold=2, jitter=0, half_open_probes=2, probe_lease=7.0), clock=self.clock
        )
        self.limiter = RateLimiter(1.0, 3.0, clock=self.clock)
        self.facade = ToolResilience(self.limiter, self.breaker, clock=self.clock)
        self.out: list[Permit] = []

    @rule(priority=st.sampled_from(Priority))
    def acquire(self, priority: Priority) -> None:
        before = tokens(self.limiter, full=3.0), probes(self.facade)
        try:
            self.out.append(self.facade.acquire("search", priority))
        except Denied:
            assert (tokens(self.limiter, full=3.0), probes(self.facade)) == before
        else:
            assert tokens(self.limiter, full=3.0) == pytest.approx(before[0] - priority.cost)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        permit = data.draw(st.sampled_from(self.out))
        answer = data.draw(st.sampled_from([permit.succeed, permit.fail, permit.release]))
        answer()
        answer()
        self.out.remove(permit)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def no_probe_is_out_without_its_permit(self) -> None:
        assert 0 <= probes(self.facade) <= min(2, len(self.out))


TestBothOrNeither = BothOrNeither.TestCase


# --- how a permit is answered ---


def test_leaving_cleanly_records_a_success(facade: ToolResilience, breaker: CircuitBreaker) -> None:
    facade.record_outcome("search", CallOutcome.TIMED_OUT)

    with facade.acquire("search"):
        pass

    assert breaker.diagnostics("search").failure_count == 0


def test_leaving_with_an_exception_classifies_and_records_it_and_lets_it_go_on(
    facade: ToolResilience, breaker: CircuitBreaker
) -> None:
    error = ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError) as caught, facade.acquire("search"):
        raise error

    assert caught.value is error
    assert breaker.diagnostics("search").failure_count == 1
    assert breaker.diagnostics("search").last_error_category is ErrorCategory.NETWORK


def test_failures_through_permits_open_the_circuit(facade: ToolResilience) -> None:
    for _ in range(CONFIG.failure_threshold):
        with pytest.raises(TimeoutError), facade.acquire("search"):
            raise TimeoutError

    with pytest.raises(CircuitOpen):
        facade.acquire("search")


def test_a_failure_of_a_kind_that_does_not_trip_leaves_the_circuit_closed(
    facade: ToolResilience, breaker: CircuitBreaker
) -> None:
    for _ in range(10):
        with pytest.raises(PermissionError), facade.acquire("search"):
            raise PermissionError

    assert breaker.state("search") is CircuitState.CLOSED


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt])
def test_leaving_by_cancellation_is_neutral(
    facade: ToolResilience, breaker: CircuitBreaker, error: type[BaseException]
) -> None:
    for _ in range(CONFIG.failure_threshold):
        with pytest.raises(error), facade.acquire("search"):
            raise error

    assert breaker.state("search") is CircuitState.CLOSED
    assert breaker.diagnostics("search").failure_count == 0


def test_a_cancelled_probe_gives_its_slot_back_and_neither_opens_nor_closes(
    facade: ToolResilience, breaker: CircuitBreaker, clock: ManualClock
) -> None:
    trip(facade)
    clock.advance(BACKOFF)

    with pytest.raises(asyncio.CancelledError), facade.acquire("search"):
        raise asyncio.CancelledError

    assert breaker.state("search") is CircuitState.HALF_OPEN
    assert probes(facade) == 0


def test_a_refusal_by_a_guard_further_in_is_no_failure_of_the_tool(
    facade: ToolResilience, breaker: CircuitBreaker
) -> None:
    for _ in range(CONFIG.failure_threshold):
        with pytest.raises(LoopDetected), facade.acquire("search"):
            raise LoopDetected("inner")
        with pytest.raises(OSError, match="no page"), facade.acquire("search"):
            raise OSError("no page") from CircuitOpen("inner")

    assert breaker.diagnostics("search").failure_count == 0


def test_a_permit_never_answered_expires(facade: ToolResilience, clock: ManualClock) -> None:
    trip(facade)
    clock.advance(BACKOFF)
    facade.acquire("search")
    with pytest.raises(CircuitOpen) as refused:
        facade.acquire("search")

    clock.advance(refused.value.retry_after or 0.0)

    assert refused.value.retry_after == CONFIG.probe_lease
    with facade.acquire("search"):
        pass


def test_only_the_first_answer_of_a_permit_counts(facade: ToolResilience, breaker: CircuitBreaker) -> None:
    permit = facade.acquire("search")

    permit.fail(ErrorCategory.TIMEOUT)
    permit.fail(ErrorCategory.TIMEOUT)
    permit.succeed()
    permit.release()

    assert breaker.diagnostics("search").failure_count == 1


def test_a_permit_answered_inside_its_block_is_not_answered_again_on_leaving(
    facade: ToolResilience, breaker: CircuitBreaker
) -> None:
    with facade.acquire("search") as permit:
        permit.fail(ErrorCategory.SERVICE_UNAVAILABLE)

    assert breaker.diagnostics("search").failure_count == 1


def test_a_success_begun_before_the_outage_does_not_close_the_circuit(
    facade: ToolResilience, breaker: CircuitBreaker
) -> None:
    early = facade.acquire("search")
    trip(facade)

    early.succeed()

    assert breaker.state("search") is CircuitState.OPEN


# --- without a permit ---


TRIPPING = {CallOutcome.EXECUTION_ERROR, CallOutcome.TIMED_OUT}


@pytest.mark.parametrize("outcome", CallOutcome)
def test_only_execution_errors_and_timeouts_open_the_circuit(
    facade: ToolResilience, breaker: CircuitBreaker, outcome: CallOutcome
) -> None:
    for _ in range(CONFIG.failure_threshold):
        facade.record_outcome("search", outcome)

    assert (breaker.state("search") is CircuitState.OPEN) == (outcome in TRIPPING)


def test_the_plain_text_of_an_outcome_will_do(facade: ToolResilience, breaker: CircuitBreaker) -> None:
    facade.record_outcome("search", "timed_out")  # type: ignore[arg-type]

    assert breaker.diagnostics("search").last_error_category is ErrorCategory.TIMEOUT


def test_an_unknown_outcome_is_a_config_error_that_lists_the_known(facade: ToolResilience) -> None:
    with pytest.raises(ConfigError, match=r"outcome = 'exploded'.*execution_error.*timed_out"):
        facade.record_outcome("search", "exploded")  # type: ignore[arg-type]


def test_record_success_without_a_permit_answers_the_probe(
    facade: ToolResilience, breaker: CircuitBreaker, clock: ManualClock
) -> None:
    trip(facade)
    clock.advance(BACKOFF)
    facade.acquire("search")

    facade.record_success("search")

    assert breaker.state("search") is CircuitState.CLOSED


def test_record_success_without_a_probe_out_does_not_close_an_open_circuit(
    facade: ToolResilience, breaker: CircuitBreaker
) -> None:
    trip(facade)

    facade.record_success("search")

    assert breaker.state("search") is CircuitState.OPEN


def test_a_rate_limited_outcome_slows_the_limiter_instead(facade: ToolResilience, limiter: AdaptiveRateLimiter) -> None:
    facade.record_outcome("search", CallOutcome.RATE_LIMITED)

    assert limiter.rate("search") == 1.0
    assert tokens(limiter) == 0.0


# --- what the limiter learns from permits ---


def test_a_429_through_a_permit_pauses_the_tool_for_as_long_as_the_server_asked(
    facade: ToolResilience, limiter: AdaptiveRateLimiter, breaker: CircuitBreaker
) -> None:
    with pytest.raises(TooManyRequests), facade.acquire("search"):
        raise TooManyRequests("30")

    with pytest.raises(RateLimited) as refused:
        facade.acquire("search")
    assert refused.value.retry_after == pytest.approx(30.0)
    assert breaker.diagnostics("search").failure_count == 0


def test_refusals_of_calls_admitted_before_the_last_cut_count_once(
    facade: ToolResilience, limiter: AdaptiveRateLimiter, clock: ManualClock
) -> None:
    admitted = [facade.acquire("search") for _ in range(5)]
    clock.advance(1.0)

    for permit in admitted:
        permit.fail(ErrorCategory.RATE_LIMIT)

    assert limiter.rate("search") == pytest.approx(1.0)


@pytest.mark.parametrize("told", ["by permits", "without"])
def test_a_cut_rate_recovers_sooner_with_successes_than_with_time_alone(
    facade: ToolResilience, limiter: AdaptiveRateLimiter, clock: ManualClock, told: str
) -> None:
    limiter.record_success("other")  # from now on only a success that was told counts as one
    facade.record_outcome("search", CallOutcome.RATE_LIMITED)
    facade.record_outcome("silent", CallOutcome.RATE_LIMITED)

    for _ in range(100):
        clock.advance(1.0)
        facade.acquire("silent")
        permit = facade.acquire("search")
        if told == "by permits":
            permit.succeed()
        else:
            facade.record_success("search")

    assert limiter.rate("silent") < limiter.rate("search")


def test_a_fixed_limiter_stays_as_it_is_when_the_server_refuses(breaker: CircuitBreaker, clock: ManualClock) -> None:
    limiter = RateLimiter(20.0, 5.0, clock=clock)
    facade = ToolResilience(limiter, breaker, clock=clock)

    with facade.acquire("search") as permit:
        permit.fail(ErrorCategory.RATE_LIMIT)
    facade.record_outcome("search", CallOutcome.RATE_LIMITED)

    assert tokens(limiter, full=5.0) == 4.0


# --- priorities ---


def test_the_priority_belongs_to_the_call(facade: ToolResilience, limiter: AdaptiveRateLimiter) -> None:
    for priority in Priority:
        facade.acquire("search", priority)

    assert tokens(limiter) == pytest.approx(10.0 - 2.0 - 1.0 - 0.5 - 0.1)


def test_the_plain_text_of_a_priority_will_do(facade: ToolResilience, limiter: AdaptiveRateLimiter) -> None:
    facade.acquire("search", "high")  # type: ignore[arg-type]

    assert tokens(limiter) == 9.5


def test_an_unknown_priority_is_a_config_error_and_takes_nothing(
    facade: ToolResilience, limiter: AdaptiveRateLimiter, clock: ManualClock
) -> None:
    trip(facade)
    clock.advance(BACKOFF)

    with pytest.raises(ConfigError, match=r"priority = 3.*critical, high, low, normal"):
        facade.acquire("search", 3)  # type: ignore[arg-type]

    assert probes(facade) == 0
    assert tokens(limiter) == 10.0


# --- refusals ---


def test_a_refusal_says_who_refused_why_how_long_and_what_to_tell_the_model(facade: ToolResilience) -> None:
    trip(facade)

    with pytest.raises(CircuitOpen) as refused:
        facade.acquire("search")

    assert refused.value.tool == "search"
    assert refused.value.retry_after == BACKOFF
    assert "failed repeatedly" in refused.value.reason
    assert refused.value.for_model() == (
        "The tool 'search' was not called: it has failed repeatedly and is temporarily disabled; "
        "available in about 5 s. Do not repeat this call before then. "
        "Use another tool, or tell the user that this one is down."
    )


def test_a_refusal_by_the_limiter_says_when_the_call_will_be_admitted(
    facade: ToolResilience, limiter: AdaptiveRateLimiter, clock: ManualClock
) -> None:
    drain(limiter)
    with pytest.raises(RateLimited) as refused:
        facade.acquire("search")

    clock.advance(refused.value.retry_after or 0.0)

    assert refused.value.retry_after == 0.5
    assert "rate limit" in refused.value.for_model()
    facade.acquire("search")


def test_without_max_wait_a_refusal_comes_at_once(
    facade: ToolResilience, limiter: AdaptiveRateLimiter, clock: ManualClock
) -> None:
    drain(limiter)

    with pytest.raises(RateLimited):
        facade.acquire("search")

    assert clock.slept == []


# --- waiting, as a thread and as a task ---


async def acquire(facade: ToolResilience, way: str, priority: Priority = Priority.NORMAL) -> Permit:
    return facade.acquire("search", priority) if way == "acquire" else await facade.aacquire("search", priority)


both_ways = pytest.mark.parametrize("way", ["acquire", "aacquire"])


@pytest.fixture
def patient(limiter: AdaptiveRateLimiter, breaker: CircuitBreaker, clock: ManualClock) -> ToolResilience:
    return ToolResilience(limiter, breaker, max_wait=0.5, clock=clock)


@both_ways
async def test_a_wait_within_max_wait_is_waited_for(
    patient: ToolResilience, limiter: AdaptiveRateLimiter, clock: ManualClock, way: str
) -> None:
    drain(limiter)

    with await acquire(patient, way):
        assert clock.monotonic() == 0.5

    assert clock.slept == [0.5]


async def test_a_permit_is_an_async_context_manager_too(facade: ToolResilience, breaker: CircuitBreaker) -> None:
    with pytest.raises(OSError, match="down"):
        async with await facade.aacquire("search"):
            raise OSError("down")

    assert breaker.diagnostics("search").failure_count == 1


async def test_an_async_permit_is_there_to_be_answered(facade: ToolResilience, breaker: CircuitBreaker) -> None:
    async with await facade.aacquire("search") as permit:
        permit.fail(ErrorCategory.NETWORK)

    assert breaker.diagnostics("search").last_error_category is ErrorCategory.NETWORK


@pytest.mark.parametrize("per_second", [3.0, 7.0, 10.0])
@both_ways
async def test_a_wait_of_just_max_wait_is_waited_for_whatever_its_last_digit(
    breaker: CircuitBreaker, clock: ManualClock, way: str, per_second: float
) -> None:
    limiter = AdaptiveRateLimiter(1.0, per_second, clock=clock)
    patient = ToolResilience(limiter, breaker, max_wait=1 / per_second, clock=clock)

    for _ in range(30):
        (await acquire(patient, way)).succeed()

    assert len(clock.slept) == 29


@both_ways
async def test_a_wait_longer_than_max_wait_is_refused_at_once(
    patient: ToolResilience, limiter: AdaptiveRateLimiter, clock: ManualClock, way: str
) -> None:
    drain(limiter)

    with pytest.raises(RateLimited) as refused:
        await acquire(patient, way, Priority.LOW)

    assert refused.value.retry_after == 1.0
    assert clock.slept == []


@both_ways
async def test_waits_add_up_to_max_wait_and_no_further(
    limiter: AdaptiveRateLimiter, breaker: CircuitBreaker, clock: ManualClock, way: str
) -> None:
    patient = ToolResilience(limiter, breaker, max_wait=0.8, clock=clock)
    drain(limiter)
    clock.call_at(0.5, lambda: drain(limiter))  # somebody else is quicker

    with pytest.raises(RateLimited) as refused:
        await acquire(patient, way)

    assert clock.slept == [0.5]
    assert refused.value.retry_after == 0.5


@both_ways
async def test_a_waiter_that_finds_the_circuit_open_is_refused_and_takes_no_token(
    patient: ToolResilience, limiter: AdaptiveRateLimiter, clock: ManualClock, way: str
) -> None:
    drain(limiter)
    clock.call_at(0.25, lambda: trip(patient))

    with pytest.raises(CircuitOpen):
        await acquire(patient, way)

    assert tokens(limiter) == pytest.approx(1.0)


async def test_a_waiter_keeps_no_probe_from_others(
    patient: ToolResilience, limiter: AdaptiveRateLimiter, clock: ManualClock
) -> None:
    trip(patient)
    clock.advance(BACKOFF)
    drain(limiter)
    waiter = asyncio.create_task(patient.aacquire("search"))
    await asyncio.sleep(0)
    limiter.reset("search")

    with patient.acquire("search"):
        pass

    assert patient.circuit_snapshot().open_count == 0
    await waiter


def test_a_wait_outside_an_event_loop_says_what_is_missing() -> None:
    facade = ToolResilience(AdaptiveRateLimiter(capacity=1.0), max_wait=60.0)
    facade.acquire("search").succeed()

    with pytest.raises(ConfigError, match=r"no running event loop: .* needs asyncio"):
        facade.aacquire("search").send(None)


async def test_a_cancelled_waiter_keeps_neither_token_nor_probe(
    patient: ToolResilience, limiter: AdaptiveRateLimiter, clock: ManualClock
) -> None:
    trip(patient)
    clock.advance(BACKOFF)
    drain(limiter)
    waiter = asyncio.create_task(patient.aacquire("search"))
    await asyncio.sleep(0)

    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter

    assert probes(patient) == 0
    assert clock.pending == 0
    clock.advance(0.5)
    assert tokens(limiter) == pytest.approx(1.0)


# --- defaults ---


def test_none_means_the_default_of_its_kind(clock: ManualClock) -> None:
    facade = ToolResilience(clock=clock)

    admitted = [facade.acquire("search") for _ in range(10)]

    with pytest.raises(RateLimited) as refused:
        facade.acquire("search")
    assert refused.value.retry_after == 0.5
    for permit in admitted[:6]:
        permit.fail()
    assert facade.circuit_snapshot().open_count == 0
    admitted[6].fail()
    assert facade.circuit_snapshot().open_circuits == ("search",)


@pytest.mark.parametrize("given", ["breaker", "limiter"])
def test_without_a_clock_it_waits_on_that_of_the_part_it_is_given(
    breaker: CircuitBreaker, limiter: AdaptiveRateLimiter, clock: ManualClock, given: str
) -> None:
    parts: dict[str, Any] = {"breaker": breaker, "limiter": limiter}
    facade = ToolResilience(**{given: parts[given]}, max_wait=0.5)

    for _ in range(11):  # one more than there are tokens
        facade.acquire("search")

    assert clock.slept == [0.5]


def test_without_a_clock_it_measures_calls_on_that_of_its_breaker() -> None:
    config = BreakerConfig(slow_call=1.0, slow_call_rate=1.0, minimum_calls=1)
    facade = ToolResilience(breaker=CircuitBreaker(config, clock=ManualClock(start=1e12)))

    facade.acquire("search").succeed()

    assert facade.circuit_snapshot().open_count == 0


@pytest.mark.parametrize("max_wait", [-1.0, float("nan"), float("inf"), "5", None, True])
def test_a_max_wait_that_is_no_length_of_time_is_a_config_error(max_wait: float) -> None:
    with pytest.raises(ConfigError, match="max_wait"):
        ToolResilience(max_wait=max_wait)


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"limiter": CircuitBreaker()}, "limiter = .*must be a RateLimiter or an AdaptiveRateLimiter"),
        ({"breaker": RateLimiter()}, "breaker = .*must be a CircuitBreaker"),
        ({"breaker": 5}, "breaker = 5: must be a CircuitBreaker"),
    ],
)
def test_what_is_no_limiter_or_breaker_is_a_config_error(parts: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ToolResilience(**parts)


def test_the_default_instance_is_one_a_process() -> None:
    assert default_resilience() is default_resilience()


def test_threads_that_ask_first_at_the_same_time_get_the_same_default_instance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [first_asked_by(8, monkeypatch) for _ in range(30)]

    assert {len(instances) for instances in found} == {1}


def first_asked_by(number: int, monkeypatch: pytest.MonkeyPatch) -> set[ToolResilience]:
    """The default instances that so many threads get in a process that has none yet."""
    monkeypatch.setattr(resilience, "_DEFAULT", {})
    found: set[ToolResilience] = set()
    start = threading.Barrier(number)

    def ask() -> None:
        start.wait()
        found.add(default_resilience())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        together(number, ask)
    finally:
        sys.setswitchinterval(interval)
    return found


# --- many threads ---


def test_threads_get_exactly_as_many_permits_as_there_are_tokens(clock: ManualClock) -> None:
    facade = ToolResilience(RateLimiter(1.0, 50.0, clock=clock), clock=clock)
    granted: list[Permit] = []

    def ask() -> None:
        for _ in range(20):
            try:
                granted.append(facade.acquire("search"))
            except RateLimited:
                continue

    together(8, ask)

    assert len(granted) == 50


def test_of_many_threads_one_gets_the_probe(facade: ToolResilience, clock: ManualClock) -> None:
    trip(facade)
    clock.advance(BACKOFF)
    granted: list[Permit] = []
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait()
        try:
            granted.append(facade.acquire("search"))
        except CircuitOpen:
            return

    together(8, ask)

    assert len(granted) == 1
