"""`protecting`: a breaker around a function decides as one that is asked at each call, though successes only tick."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import typing
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.shapes import Call, Gate, Shape, Thread, eventually, settled

from holdfast import (
    BreakerConfig,
    BreakerMetrics,
    CircuitBreaker,
    CircuitDiagnostics,
    CircuitOpen,
    CircuitState,
    ConfigError,
    ErrorCategory,
    RateLimited,
    protecting,
)
from holdfast.testing import ManualClock

CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN
DOWN = ConnectionError("down")
RATED: dict[str, Any] = {"failure_threshold": 10_000, "failure_rate": 0.5}

Protect = Callable[..., Call]


class Service:
    """What is protected: answers, or fails with *error*, after *takes* seconds; *meanwhile* happens during a call."""

    def __init__(self, clock: ManualClock) -> None:
        self.error: BaseException | None = None
        self.takes = 0.0
        self.count = 0
        self._clock = clock

    def __call__(self, answer: object = None, *, meanwhile: Callable[[], object] | None = None) -> object:
        self.count += 1
        error = self.error
        if meanwhile is not None:
            meanwhile()
        self._clock.advance(self.takes)
        if error is not None:
            raise error
        return answer


@pytest.fixture
def service(clock: ManualClock) -> Service:
    return Service(clock)


@pytest.fixture(params=["function", "coroutine"])
def protect(request: pytest.FixtureRequest) -> Protect:
    """Puts a plain function into a shape, protects it, and has it called to its end."""
    shape = Shape(request.param)

    def make(breaker: CircuitBreaker, fn: Call, tool: str = "t") -> Call:
        protected = protecting(breaker, tool)(shape.of(fn))
        return awaited(protected) if shape.is_async else protected

    return make


def awaited(fn: Callable[..., Coroutine[Any, Any, object]]) -> Call:
    """Call the coroutine function *fn* to its end without an event loop: protecting waits for nothing."""

    def call(*args: Any, **kwargs: Any) -> object:
        coroutine = fn(*args, **kwargs)
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("it waited")

    return call


def steady(clock: ManualClock, *, max_tools: int = 10_000, **config: Any) -> CircuitBreaker:
    return CircuitBreaker(BreakerConfig(**{"jitter": 0.0, **config}), clock=clock, max_tools=max_tools)


def outcome(call: Call, *args: Any, **kwargs: Any) -> str:
    """The name of what *call* raises, empty if it succeeds."""
    try:
        call(*args, **kwargs)
    except BaseException as error:
        return type(error).__name__
    return ""


def fail(call: Call, service: Service, times: int = 7) -> None:
    """Have *service* fail so often, then be well again."""
    service.error = DOWN
    for _ in range(times):
        assert outcome(call) == "ConnectionError"
    service.error = None


def succeed(call: Call, times: int) -> None:
    for _ in range(times):
        call()


# --- closed ---


def test_a_closed_circuit_lets_calls_pass_with_their_arguments(protect: Protect, clock: ManualClock) -> None:
    call = protect(steady(clock), lambda *args, **kwargs: (args, kwargs))

    assert call() == ((), {})
    assert call(1, 2) == ((1, 2), {})
    assert call(1, cups=2) == ((1,), {"cups": 2})


def test_successes_change_nothing_that_the_breaker_shows(
    protect: Protect, service: Service, clock: ManualClock
) -> None:
    breaker = steady(clock, **RATED)
    call = protect(breaker, service)
    before = breaker.snapshot(), breaker.metrics()

    succeed(call, 1000)

    assert (breaker.snapshot(), breaker.metrics()) == before


def test_failures_in_a_row_open_it(protect: Protect, service: Service, clock: ManualClock) -> None:
    breaker = steady(clock)
    call = protect(breaker, service)

    fail(call, service, 6)
    assert breaker.state("t") is CLOSED
    fail(call, service, 1)

    assert breaker.state("t") is OPEN


def test_a_success_in_between_starts_the_count_anew(protect: Protect, service: Service, clock: ManualClock) -> None:
    breaker = steady(clock)
    call = protect(breaker, service)

    for _ in range(3):
        fail(call, service, 6)
        call()

    assert (breaker.state("t"), breaker.diagnostics("t").failure_count) == (CLOSED, 0)


def test_the_tools_own_error_leaves_as_it_is(protect: Protect, service: Service, clock: ManualClock) -> None:
    call = protect(steady(clock), service)
    service.error = DOWN

    with pytest.raises(ConnectionError) as caught:
        call()

    assert caught.value is DOWN
    assert not hasattr(DOWN, "__notes__")


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),
        KeyboardInterrupt(),
        SystemExit(),
        GeneratorExit(),
        CircuitOpen("inner", None, 1.0),
        RateLimited("inner"),
        PermissionError(),
    ],
    ids=repr,
)
def test_what_says_nothing_about_the_tool_neither_counts_nor_resets_the_count(
    protect: Protect, service: Service, clock: ManualClock, error: BaseException
) -> None:
    breaker = steady(clock)
    call = protect(breaker, service)
    fail(call, service, 6)
    before = breaker.diagnostics("t")
    service.error = error

    assert {outcome(call) for _ in range(20)} == {type(error).__name__}

    assert breaker.diagnostics("t") == before


# --- open, half-open, closed again ---


def test_an_open_circuit_refuses_without_calling(protect: Protect, service: Service, clock: ManualClock) -> None:
    breaker = steady(clock)
    call = protect(breaker, service)
    fail(call, service)
    clock.advance(1.5)

    with pytest.raises(CircuitOpen) as caught:
        call()

    assert (caught.value.tool, caught.value.retry_after) == ("t", 3.5)
    assert service.count == 7
    assert breaker.diagnostics("t").denied_requests == 1


def test_a_probe_that_succeeds_closes_it(protect: Protect, service: Service, clock: ManualClock) -> None:
    breaker = steady(clock)
    call = protect(breaker, service)
    fail(call, service)
    clock.advance(5)

    call()

    assert breaker.state("t") is CLOSED
    assert breaker.metrics() == BreakerMetrics(opened=1, half_opened=1, closed=1, refused=0)


def test_a_probe_that_fails_doubles_the_wait(protect: Protect, service: Service, clock: ManualClock) -> None:
    breaker = steady(clock)
    call = protect(breaker, service)
    fail(call, service)
    clock.advance(5)

    fail(call, service, 1)

    assert breaker.remaining_backoff("t") == 10.0


@pytest.mark.parametrize("error", [asyncio.CancelledError(), RateLimited("inner")], ids=repr)
def test_a_probe_without_an_outcome_gives_its_place_back(
    protect: Protect, service: Service, clock: ManualClock, error: BaseException
) -> None:
    breaker = steady(clock)
    call = protect(breaker, service)
    fail(call, service)
    clock.advance(5)
    service.error = error

    outcome(call)

    assert (breaker.state("t"), breaker.diagnostics("t").probes_in_flight) == (HALF_OPEN, 0)


def test_a_circuit_that_was_closed_again_opens_again(protect: Protect, service: Service, clock: ManualClock) -> None:
    breaker = steady(clock)
    call = protect(breaker, service)
    for _ in range(3):
        fail(call, service)
        clock.advance(breaker.remaining_backoff("t") or 0.0)
        succeed(call, 20)

    assert (breaker.state("t"), breaker.diagnostics("t").times_opened) == (CLOSED, 3)


def test_of_many_threads_one_is_the_probe(clock: ManualClock) -> None:
    breaker, gate = steady(clock), Gate()
    call = protecting(breaker, "t")(gate)
    for _ in range(7):
        breaker.record_failure("t")
    clock.advance(5)

    threads = [Thread(outcome, call) for _ in range(32)]
    eventually(lambda: breaker.diagnostics("t").denied_requests == 31)
    gate.let_out()

    assert sorted(thread.result() for thread in threads) == [""] + ["CircuitOpen"] * 31
    assert len(gate.entered) == 1
    assert breaker.state("t") is CLOSED


async def test_of_many_coroutines_one_is_the_probe(clock: ManualClock) -> None:
    breaker, opened, entered = steady(clock), asyncio.Event(), 0

    @protecting(breaker, "t")
    async def call() -> None:
        nonlocal entered
        entered += 1
        await opened.wait()

    for _ in range(7):
        breaker.record_failure("t")
    clock.advance(5)

    calls = [asyncio.ensure_future(call()) for _ in range(200)]
    await settled()
    opened.set()
    results = await asyncio.gather(*calls, return_exceptions=True)

    assert (entered, sum(isinstance(result, CircuitOpen) for result in results)) == (1, 199)
    assert breaker.state("t") is CLOSED


async def test_a_coroutine_that_is_cancelled_says_nothing_about_the_tool(clock: ManualClock) -> None:
    breaker = steady(clock, failure_threshold=1)
    call = asyncio.ensure_future(protecting(breaker, "t")(asyncio.Event().wait)())
    await settled()

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert (breaker.state("t"), breaker.diagnostics("t").failure_count) == (CLOSED, 0)


async def test_a_coroutine_that_nobody_awaits_to_its_end_says_nothing_about_the_tool(clock: ManualClock) -> None:
    breaker = steady(clock, failure_threshold=1)
    call = protecting(breaker, "t")(asyncio.Event().wait)()
    call.send(None)

    call.close()

    assert (breaker.state("t"), breaker.diagnostics("t").failure_count) == (CLOSED, 0)


# --- calls that are under way while the circuit changes ---


@pytest.mark.parametrize("error", [None, DOWN], ids=repr)
@pytest.mark.parametrize("calls_before", [0, 3])
def test_a_call_begun_before_the_outage_changes_nothing_after_it(
    protect: Protect, service: Service, clock: ManualClock, error: Exception | None, calls_before: int
) -> None:
    breaker = steady(clock)
    call = protect(breaker, service)
    succeed(call, calls_before)
    service.error = error

    def outage() -> None:
        for _ in range(7):
            breaker.record_failure("t")
        clock.advance(2)

    outcome(call, meanwhile=outage)

    report = breaker.diagnostics("t")
    assert (report.state, report.times_opened, report.remaining_backoff) == (OPEN, 1, 3.0)


def test_a_success_begun_before_a_failure_still_starts_the_count_anew(
    protect: Protect, service: Service, clock: ManualClock
) -> None:
    breaker = steady(clock)
    call = protect(breaker, service)
    call()

    call(meanwhile=lambda: breaker.record_failure("t"))

    assert breaker.diagnostics("t").failure_count == 0


def test_a_success_begun_before_a_reset_does_not_count_after_it(
    protect: Protect, service: Service, clock: ManualClock
) -> None:
    breaker = steady(clock, **RATED, minimum_calls=2)
    call = protect(breaker, service)
    call()

    def reset() -> None:
        breaker.reset("t")
        call()

    call(meanwhile=reset)
    fail(call, service, 1)

    assert breaker.state("t") is OPEN  # one success and one failure since then


def test_a_failure_is_judged_by_all_successes_that_came_before_it_ended(
    protect: Protect, service: Service, clock: ManualClock
) -> None:
    breaker = steady(clock, **RATED, minimum_calls=1)
    call = protect(breaker, service)

    def others() -> None:
        service.error = None
        succeed(call, 30)

    service.error = DOWN
    outcome(call, meanwhile=others)

    assert breaker.state("t") is CLOSED


# --- rates ---


def test_a_failure_rate_counts_the_successes_that_only_ticked(protect: Protect, clock: ManualClock) -> None:
    breaker, made = steady(clock, **RATED, minimum_calls=20), 0

    def flaky() -> None:
        nonlocal made
        made += 1
        if made > 30 and made % 3:
            raise DOWN

    call = protect(breaker, flaky)

    outcomes = [outcome(call) for _ in range(200)]

    assert made - 30 == 86
    assert outcomes[made:] == ["CircuitOpen"] * (200 - made)


def test_successes_of_many_threads_all_count(service: Service, clock: ManualClock) -> None:
    breaker = steady(clock, **RATED)
    call = protecting(breaker, "t")(service)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    try:
        for thread in [Thread(succeed, call, 50) for _ in range(8)]:
            thread.result()
    finally:
        sys.setswitchinterval(interval)

    fail(call, service, 399)
    assert breaker.state("t") is CLOSED
    fail(call, service, 1)
    assert breaker.state("t") is OPEN


@pytest.mark.parametrize(("later", "state"), [(99.0, CLOSED), (101.0, OPEN), (10_000.0, OPEN)])
def test_successes_older_than_the_window_do_not_count(
    protect: Protect, service: Service, clock: ManualClock, later: float, state: CircuitState
) -> None:
    breaker = steady(clock, **RATED, minimum_calls=4, window=100)
    call = protect(breaker, service)
    succeed(call, 30)
    clock.advance(later)

    fail(call, service, 4)

    assert breaker.state("t") is state


def test_successes_leave_the_window_in_the_order_they_came(
    protect: Protect, service: Service, clock: ManualClock
) -> None:
    breaker = steady(clock, **RATED, minimum_calls=4, window=100)
    call = protect(breaker, service)
    for _ in range(20):
        succeed(call, 10)
        clock.advance(10)

    fail(call, service, 89)  # of the last hundred seconds there are nine times ten left
    assert breaker.state("t") is CLOSED
    fail(call, service, 1)

    assert breaker.state("t") is OPEN


def test_a_long_call_counts_from_its_end(protect: Protect, service: Service, clock: ManualClock) -> None:
    breaker = steady(clock, **RATED, minimum_calls=3, window=100)
    call = protect(breaker, service)
    call()
    service.takes = 1000.0
    call()
    service.takes = 0.0

    fail(call, service, 1)
    assert breaker.state("t") is CLOSED  # two calls: there is nothing to judge yet
    fail(call, service, 1)

    assert breaker.state("t") is OPEN


def test_slow_calls_open_it(protect: Protect, service: Service, clock: ManualClock) -> None:
    breaker = steady(clock, slow_call=1.0, slow_call_rate=0.5, minimum_calls=20)
    call = protect(breaker, service)
    succeed(call, 30)
    service.takes = 1.0

    succeed(call, 29)
    assert breaker.state("t") is CLOSED
    succeed(call, 1)

    assert breaker.state("t") is OPEN


def test_calls_that_are_not_quite_slow_do_not(protect: Protect, service: Service, clock: ManualClock) -> None:
    breaker = steady(clock, slow_call=1.0, slow_call_rate=0.1, minimum_calls=1)
    call = protect(breaker, service)
    service.takes = 0.75  # a binary fraction: no rounding makes it longer

    succeed(call, 100)

    assert breaker.state("t") is CLOSED


# --- controls and eviction ---


def test_a_circuit_forced_open_refuses_the_next_call(protect: Protect, service: Service, clock: ManualClock) -> None:
    breaker = steady(clock)
    call = protect(breaker, service)
    succeed(call, 3)

    breaker.force_open("t")

    assert (outcome(call), service.count) == ("CircuitOpen", 3)


def test_a_circuit_forced_closed_passes_and_counts_nothing(
    protect: Protect, service: Service, clock: ManualClock
) -> None:
    breaker = steady(clock)
    call = protect(breaker, service)
    fail(call, service)

    breaker.force_closed("t")
    fail(call, service, 20)
    breaker.auto("t")

    assert outcome(call) == "CircuitOpen"
    assert breaker.diagnostics("t").times_opened == 1


@pytest.mark.parametrize("control", ["reset", "auto"])
def test_a_circuit_given_back_lets_the_next_call_pass(
    protect: Protect, service: Service, clock: ManualClock, control: str
) -> None:
    breaker = steady(clock)
    call = protect(breaker, service)
    breaker.force_open("t")
    outcome(call)

    getattr(breaker, control)("t")

    assert outcome(call) == ""
    fail(call, service)
    assert breaker.state("t") is OPEN


def test_successes_before_a_reset_are_forgotten(protect: Protect, service: Service, clock: ManualClock) -> None:
    breaker = steady(clock, **RATED, minimum_calls=4)
    call = protect(breaker, service)
    succeed(call, 30)

    breaker.reset("t")
    fail(call, service, 4)

    assert breaker.state("t") is OPEN


def test_successes_under_force_do_not_count(protect: Protect, service: Service, clock: ManualClock) -> None:
    breaker = steady(clock, **RATED, minimum_calls=4)
    call = protect(breaker, service)

    breaker.force_closed("t")
    succeed(call, 30)
    breaker.auto("t")
    fail(call, service, 4)

    assert breaker.state("t") is OPEN


def test_an_evicted_circuit_is_taken_up_again(protect: Protect, service: Service, clock: ManualClock) -> None:
    breaker = steady(clock, max_tools=1)
    call = protect(breaker, service)
    succeed(call, 3)
    breaker.record_failure("other")

    call()
    assert [report.tool for report in breaker.snapshot().diagnostics] == ["t"]
    fail(call, service)

    assert (breaker.state("t"), outcome(call)) == (OPEN, "CircuitOpen")


def test_a_call_during_which_its_circuit_was_evicted_changes_nothing(
    protect: Protect, service: Service, clock: ManualClock
) -> None:
    breaker = steady(clock, max_tools=1, failure_threshold=1)
    call = protect(breaker, service)
    succeed(call, 3)
    service.error = DOWN

    def evict() -> None:
        breaker.force_closed("other")
        breaker.auto("other")

    outcome(call, meanwhile=evict)

    assert (breaker.state("t"), breaker.metrics().opened) == (CLOSED, 0)


# --- the same as asking for a permit at each call ---


class Move(NamedTuple):
    """A call of so many seconds that ends with *error*, *control* and *inner* calls during it, and a pause after it."""

    error: BaseException | None
    takes: float
    control: str | None
    inner: tuple[Move, ...]
    pause: float


class End(NamedTuple):
    """Where a series of calls has led."""

    results: list[str]
    reports: list[CircuitDiagnostics]
    metrics: BreakerMetrics


PLAIN = [
    {"failure_threshold": 1, "min_backoff": 0.5},
    {"failure_threshold": 2, "min_backoff": 3.0, "half_open_probes": 2, "successes_to_close": 2, "probe_lease": 1.0},
    {"failure_threshold": 3, "slow_call": 1.0},
    {"failure_threshold": 2, "trips": ["permission_denied", "network"], "window": 6.0},
]
WITH_RATES = [
    {"failure_threshold": 99, "failure_rate": 0.4, "minimum_calls": 4},
    {"failure_threshold": 3, "failure_rate": 0.5, "minimum_calls": 3, "window_calls": 5},
    {"failure_threshold": 99, "slow_call": 1.0, "slow_call_rate": 0.3, "failure_rate": 0.6, "minimum_calls": 2},
    {"failure_threshold": 99, "slow_call": 0.5, "slow_call_rate": 0.5, "minimum_calls": 3, "window_calls": 4},
]
ERRORS = [None, None, None, DOWN, DOWN, PermissionError(), asyncio.CancelledError(), RateLimited("inner")]


def moves(*controls: str) -> st.SearchStrategy[list[Move]]:
    """Calls within calls. All pauses but the longest fit into one window, so that slices of it make no difference."""

    def move(inner: st.SearchStrategy[tuple[Move, ...]]) -> st.SearchStrategy[Move]:
        return st.builds(
            Move,
            st.sampled_from(ERRORS),
            st.sampled_from([0.0, 0.0, 0.25, 2.0, 1000.0]),
            st.sampled_from([None, None, None, *controls]),
            inner,
            st.sampled_from([0.0, 0.0, 0.25, 1.0, 7.0, 1000.0]),
        )

    flat = move(st.just(()))
    return st.lists(st.one_of(flat, flat, move(st.lists(flat, max_size=6).map(tuple))), max_size=12)


def played(through: str, config: dict[str, Any], series: list[Move]) -> End:
    """Play *series* through `protecting` in a shape, or through a permit for each call."""
    clock = ManualClock()
    breaker = steady(clock, **config)
    breaker.circuit("t")
    end = End([], [], breaker.metrics())

    def tool(move: Move) -> None:
        if move.control is not None:
            getattr(breaker, move.control)("t")
        for inner in move.inner:
            make(inner)
        clock.advance(move.takes)
        if move.error is not None:
            raise move.error

    def permitted(move: Move) -> None:
        with breaker.admit("t"):
            tool(move)

    async def coroutine(move: Move) -> None:
        tool(move)

    def make(move: Move) -> None:
        end.results.append(outcome(call, move))
        end.reports.append(breaker.diagnostics("t"))
        clock.advance(move.pause)

    ways: dict[str, Call] = {
        "permit": permitted,
        "function": protecting(breaker, "t")(tool),
        "coroutine": awaited(protecting(breaker, "t")(coroutine)),
    }
    call = ways[through]
    for move in series:
        make(move)
    return end._replace(metrics=breaker.metrics())


SUCCESS, FAILURE = Move(None, 0.0, None, (), 0.0), Move(DOWN, 0.0, None, (), 0.0)


@pytest.mark.parametrize("shape", ["function", "coroutine"])
@given(
    st.one_of(
        st.tuples(st.sampled_from(PLAIN), moves("force_open", "force_closed", "auto", "reset")),
        # While a circuit is held by hand it counts nothing, nor successes that ticked before and were not told yet.
        st.tuples(st.sampled_from(WITH_RATES), moves("reset")),
    )
)
@example((WITH_RATES[0], [SUCCESS] * 30 + [FAILURE, FAILURE, SUCCESS] * 30))
@example((WITH_RATES[0], [SUCCESS, SUCCESS, FAILURE._replace(inner=(SUCCESS,) * 6), FAILURE, FAILURE]))
@example((WITH_RATES[0], [SUCCESS, SUCCESS._replace(takes=1000.0), FAILURE, FAILURE, FAILURE, FAILURE]))
@settings(max_examples=150)
def test_a_protected_function_does_what_a_permit_for_each_call_does(
    shape: str, case: tuple[dict[str, Any], list[Move]]
) -> None:
    config, series = case

    assert played(shape, config, series) == played("permit", config, series)


# --- decorating ---


def test_a_protected_function_keeps_its_name_and_signature() -> None:
    def fetch(url: str, *, limit: int = 3) -> bytes:
        """Get it."""
        return url.encode() * limit

    protected = protecting(CircuitBreaker())(fetch)

    assert (protected.__name__, protected.__doc__) == ("fetch", "Get it.")
    assert inspect.signature(protected) == inspect.signature(fetch)
    assert inspect.unwrap(protected) is fetch
    assert protected("x", limit=2) == b"xx"


def test_a_protected_coroutine_function_is_one_still() -> None:
    async def fetch(url: str) -> str:
        return url

    protected = protecting(CircuitBreaker())(fetch)

    assert inspect.iscoroutinefunction(protected)
    assert (protected.__name__, inspect.signature(protected)) == ("fetch", inspect.signature(fetch))
    assert asyncio.run(protected("x")) == "x"


def test_a_circuit_is_named_after_its_function_unless_a_name_is_given() -> None:
    breaker = CircuitBreaker()

    @protecting(breaker)
    def fetch() -> None:
        raise DOWN

    for call in (fetch, protecting(breaker, "web.fetch")(fetch)):
        with suppress(ConnectionError):
            call()

    reports = breaker.snapshot().diagnostics
    assert {report.tool: report.failure_count for report in reports} == {"fetch": 2, "web.fetch": 1}
    assert reports[0].last_error_category is ErrorCategory.NETWORK


def test_functions_of_one_name_share_a_circuit(protect: Protect, service: Service, clock: ManualClock) -> None:
    breaker = steady(clock)
    read, write = (protect(breaker, service, "github") for _ in range(2))

    fail(read, service)

    assert outcome(write) == "CircuitOpen"


def test_a_method_can_be_protected(clock: ManualClock) -> None:
    class Shop:
        @protecting(steady(clock))
        def order(self, item: str) -> tuple[Shop, str]:
            return self, item

    shop = Shop()

    assert [shop.order("tea") for _ in range(3)] == [(shop, "tea")] * 3


async def send() -> str:
    return "sent"


def test_what_is_no_function_keeps_its_name_and_signature() -> None:
    protected = protecting(CircuitBreaker())(functools.partial(sorted, reverse=True))

    assert (protected.__name__, protected([1, 2])) == ("sorted", [2, 1])
    assert inspect.signature(protected) == inspect.signature(functools.partial(sorted, reverse=True))
    assert typing.get_type_hints(protected) == {}


async def test_a_static_method_stays_static_and_is_awaited() -> None:
    class Mail:
        send = protecting(CircuitBreaker())(staticmethod(send))

    assert inspect.iscoroutinefunction(Mail.send)
    assert (await Mail.send(), await Mail().send()) == ("sent", "sent")


def test_a_plain_function_that_gives_something_to_await_is_a_config_error() -> None:
    protected = protecting(CircuitBreaker())(functools.partial(lambda fn: fn(), send))

    for _ in range(2):
        with pytest.raises(ConfigError, match="gives something to await, but is not a coroutine function"):
            protected()


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (generator, "generator is a generator function; hf.tool guards streams"),
        (async_generator, "async_generator is an async generator function"),
        (5, "a tool must be callable, not 5"),
    ],
)
def test_what_cannot_be_protected_is_a_config_error(fn: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        protecting(CircuitBreaker())(fn)


def test_a_name_that_is_no_text_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="name = 5: must be a text"):
        protecting(CircuitBreaker(), 5)(outcome)  # type: ignore[arg-type]


def test_a_decorator_without_a_breaker_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"must be a CircuitBreaker, as in @protecting\(breaker\)"):
        protecting(outcome)  # type: ignore[arg-type]
