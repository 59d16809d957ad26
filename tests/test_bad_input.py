"""Wrong settings, hostile names, callbacks that raise: a clear error or safe handling, and nothing lost by it."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import holdfast
from holdfast import (
    AdaptiveRateLimiter,
    BreakerConfig,
    Bus,
    CallOutcome,
    CircuitBreaker,
    CircuitDiagnostics,
    CircuitOpen,
    CircuitState,
    ConfigError,
    ErrorCategory,
    ExecutionStatus,
    ExecutionTracker,
    Holdfast,
    MemoryRunStore,
    PostgresRunStore,
    Priority,
    RateLimiter,
    SqliteRunStore,
    SystemClock,
    ToolResilience,
    open_store,
    retrying,
)
from holdfast.testing import ManualClock, Recorder, Script, fail, ok

NAN, INF = math.nan, math.inf
HUGE = 10**400  # an int that no float can hold
NEVER_A_NUMBER: list[Any] = [NAN, INF, -INF, HUGE, "5", b"5", [], {}, True, 1j, object()]
MEGABYTE = "x" * 1_000_000


@pytest.fixture
def hf(clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.open(policies={}, clock=clock) as hf:
        yield hf


def problem(make: Callable[[], object]) -> str:
    """The text of the error: short enough to read, safe to print."""
    with pytest.raises(ConfigError) as caught:
        make()
    text = str(caught.value)
    assert len(text) < 2000
    assert all(line.isprintable() for line in text.splitlines())
    return text


# --- settings of the parts ---


BREAKER_NUMBERS = [
    "failure_threshold", "min_backoff", "max_backoff", "jitter", "half_open_probes", "probe_lease",
    "successes_to_close", "window", "window_calls", "failure_rate", "slow_call", "minimum_calls",
]  # fmt: skip


@pytest.mark.parametrize("value", [*NEVER_A_NUMBER, -1, -0.5])
@pytest.mark.parametrize("field", BREAKER_NUMBERS)
def test_a_breaker_setting_that_is_no_such_number_is_named(field: str, value: Any) -> None:
    settings: dict[str, Any] = {field: value}

    assert problem(lambda: BreakerConfig(**settings)).startswith(f"{field} = ")


@pytest.mark.parametrize(
    "settings",
    [
        {"min_backoff": 10.0, "max_backoff": 5.0},
        {"min_backoff": 0.0},
        {"failure_threshold": 0},
        {"failure_threshold": 2.5},
        {"min_backoff": NAN},
        {"backoff_factor": 0.5},
        {"jitter": 1.5},
        {"failure_rate": 0.0},
        {"failure_rate": 1.1},
        {"slow_call_rate": 0.5},
        {"trips": {"explosion"}},
        {"trips": {ErrorCategory.CANCELLED}},
        {"trips": 5},
        {"distinct_arguments": "yes"},
    ],
)
def test_breaker_settings_that_make_no_sense_are_named(settings: dict[str, Any]) -> None:
    assert any(field in problem(lambda: BreakerConfig(**settings)) for field in settings)


@pytest.mark.parametrize("value", [*NEVER_A_NUMBER, 0, -1, None])
def test_a_limiter_setting_that_is_no_such_number_is_named(value: Any) -> None:
    assert "capacity" in problem(lambda: AdaptiveRateLimiter(value))
    assert "refill_per_second" in problem(lambda: AdaptiveRateLimiter(10.0, value))
    assert "floor" in problem(lambda: AdaptiveRateLimiter(floor=value))
    assert "per_second" in problem(lambda: RateLimiter(value))
    assert "max_keys" in problem(lambda: RateLimiter(max_keys=value))
    if value is not None:
        assert "burst" in problem(lambda: RateLimiter(20.0, value))


def test_a_cost_above_the_capacity_is_a_config_error_and_no_endless_wait(clock: ManualClock) -> None:
    for limiter in (AdaptiveRateLimiter(1.0, clock=clock), RateLimiter(1.0, 1.0, clock=clock)):
        assert "larger burst" in problem(partial(limiter.try_acquire, "t", Priority.LOW))
        assert limiter.try_acquire("t") == 0.0


@pytest.mark.parametrize("clock", [ManualClock, SystemClock, time, 0, False, "now", object()])
@pytest.mark.parametrize(
    "part",
    [
        holdfast.open, partial(open_store, ":memory:"), partial(SqliteRunStore, "runs.db"), MemoryRunStore,
        partial(PostgresRunStore, "postgresql://h/db"), AdaptiveRateLimiter, RateLimiter, CircuitBreaker,
        ExecutionTracker, partial(ExecutionTracker.from_dict, ExecutionTracker().to_dict()), ToolResilience, Bus,
        lambda clock: retrying(clock=clock)(print),
    ],
)  # fmt: skip
def test_what_is_no_clock_is_refused_wherever_one_is_taken(part: Callable[..., object], clock: Any) -> None:
    text = problem(lambda: part(clock=clock))

    assert text.startswith("clock = ")
    assert text.endswith(": must be an object with the methods monotonic, time, sleep, asleep, call_at")


def test_a_clock_is_taken_though_it_may_be_false() -> None:
    class Empty(ManualClock):
        def __len__(self) -> int:
            return 0

    with holdfast.open(policies={}, clock=(clock := Empty())) as hf, MemoryRunStore(clock=clock) as store:
        assert hf.runs.clock is store.clock is clock


@pytest.mark.parametrize("duration", [NAN, INF, -1.0, HUGE, "1", None, True])
def test_a_duration_that_is_none_is_refused_and_counts_nothing(clock: ManualClock, duration: Any) -> None:
    tracker = ExecutionTracker(clock=clock)

    assert "duration" in problem(lambda: tracker.record("t", ExecutionStatus.SUCCESS, duration))

    assert tracker.stats().total == 0
    assert tracker.recent(10) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("status", "exploded"), ("status", None), ("category", "odd"), ("attempts", 0), ("was_cached", 1)],
)
def test_a_record_with_a_wrong_fact_is_refused_and_counts_nothing(clock: ManualClock, field: str, value: Any) -> None:
    tracker = ExecutionTracker(clock=clock)
    facts: dict[str, Any] = {"status": ExecutionStatus.SUCCESS, "duration": 1.0} | {field: value}

    assert field in problem(lambda: tracker.record("t", **facts))

    assert tracker.stats().total == 0


@pytest.mark.parametrize("value", [0, -1, 1.5, NAN, "5", None, True])
def test_a_number_of_tools_that_is_none_is_refused(value: Any) -> None:
    assert "max_tools" in problem(lambda: ExecutionTracker(max_tools=value))
    assert "max_tools" in problem(lambda: CircuitBreaker(max_tools=value))


@pytest.mark.parametrize(
    "data", [{}, {"version": 2}, {"version": 1, "tools": "none"}, [], 5, None, {"history": [{"tool": 5}]}]
)
def test_what_is_not_the_data_of_a_tracker_is_refused(data: Any) -> None:
    assert "not the data of a tracker" in problem(lambda: ExecutionTracker.from_dict(data))


@pytest.mark.parametrize("category", ["explosion", 5, None])
def test_a_category_that_is_none_is_refused_and_counts_nothing(clock: ManualClock, category: Any) -> None:
    breaker = CircuitBreaker(clock=clock)
    permit = breaker.admit("t")

    with pytest.raises(ConfigError, match=f"category = {category!r}: must be one of authentication, .*, timeout"):
        breaker.record_failure("t", category)
    with pytest.raises(ConfigError, match=f"category = {category!r}: must be one of authentication, .*, timeout"):
        permit.fail(category)

    assert breaker.diagnostics("t").failure_count == 0


@pytest.mark.parametrize("pause", [NAN, INF, -5.0, 1e300])
def test_an_absurd_retry_after_stops_a_limiter_for_a_day_at_most(clock: ManualClock, pause: float) -> None:
    limiter = AdaptiveRateLimiter(clock=clock)

    limiter.record_rate_limited("t", pause)

    assert 0.0 < limiter.try_acquire("t") <= 1.1 * 86_400


@pytest.mark.parametrize("argument", ["retry_after", "admitted_at"])
def test_a_refusal_with_a_time_that_is_no_number_is_refused_and_teaches_nothing(
    clock: ManualClock, argument: str
) -> None:
    limiter = AdaptiveRateLimiter(clock=clock)
    limiter.try_acquire("t")
    before = limiter.snapshot()

    assert problem(lambda: limiter.record_rate_limited("t", **{argument: "5"})).startswith(f"{argument} = '5'")  # type: ignore[arg-type]

    assert limiter.snapshot() == before


@pytest.mark.parametrize("priority", ["urgent", 5, None])
def test_a_limiter_names_a_priority_that_is_none(clock: ManualClock, priority: Any) -> None:
    assert "priority" in problem(lambda: AdaptiveRateLimiter(clock=clock).try_acquire("t", priority))
    assert "priority" in problem(lambda: RateLimiter(clock=clock).try_acquire("t", priority))


# --- settings of tools ---


WRONG_POLICIES: list[tuple[str, dict[str, Any]]] = [
    ("timeout", {"timeout": 0}),
    ("timeout", {"timeout": NAN}),
    ("timeout", {"timeout": "5"}),
    ("deadline", {"deadline": -1.0}),
    ("deadline", {"deadline": INF}),
    ("max_wait", {"max_wait": -0.1}),
    ("max_wait", {"max_wait": NAN}),
    ("priority", {"priority": "urgent"}),
    ("read_only", {"read_only": 1}),
    ("concurrency", {"concurrency": 0}),
    ("concurrency", {"concurrency": 1.5}),
    ("concurrency", {"concurrency": HUGE}),
    ("rate", {"rate": "fast"}),
    ("rate", {"rate": "0/s"}),
    ("rate", {"rate": -1}),
    ("per_second", {"rate": {"per_second": NAN}}),
    ("rate.burst", {"rate": {"per_second": 1.0, "burst": 0}}),
    ("breaker.min_backoff", {"breaker": {"min_backoff": NAN}}),
    ("max_backoff", {"breaker": {"min_backoff": 10.0, "max_backoff": 1.0}}),
    ("breaker.failure_treshold", {"breaker": {"failure_treshold": 5}}),
    ("retry", {"retry": 0}),
    ("retry", {"retry": {"initial": 5.0, "max": 1.0}}),
    ("retry.factor", {"retry": {"factor": 0.5}}),
    ("cache", {"read_only": True, "cache": -1}),
    ("window", {"loop": {"repeats": 5, "window": 2}}),
    ("budget.calls", {"budget": {"calls": 0}}),
    ("budget.usd", {"budget": {"usd": NAN}}),
    ("fallback", {"fallback": {"tool": "a", "value": 1}}),
    ("fallback", {"fallback": "a"}),
    ("mode", {"mode": "psychic"}),
    ("burst", {"rate": {"per_second": 1.0, "burst": 1.0}, "priority": "low"}),
    ("did you mean timeout?", {"timeot": 5}),
    ("unknown key", {"no_such_setting": None}),
]


@pytest.mark.parametrize("how", ["tool", "guard", "call", "file"])
@pytest.mark.parametrize(("named", "policy"), WRONG_POLICIES, ids=lambda value: str(value)[:50])
def test_a_wrong_setting_is_named_wherever_it_is_given(
    hf: Holdfast, how: str, named: str, policy: dict[str, Any]
) -> None:
    calls = Script(ok())
    make: dict[str, Callable[[], object]] = {
        "tool": lambda: hf.tool("t", **policy)(calls.function),
        "guard": lambda: hf.guard("t", **policy),
        "call": lambda: hf.call(calls.function, policy=policy),
        "file": lambda: holdfast.open(policies={"policy": policy}),
    }

    assert named in problem(make[how])

    assert calls.count == 0
    assert hf.tracker.stats().total == 0


def test_code_that_gives_a_cache_to_a_tool_that_is_not_read_only_is_refused(hf: Holdfast) -> None:
    assert "needs read_only=True" in problem(lambda: hf.tool("t", cache=60.0)(lambda: 1))
    assert "needs read_only=True" in problem(lambda: hf.call(lambda: 1, policy={"cache": 60.0}))


@pytest.mark.parametrize("policy", [5, "timeout", [("timeout", 5)], [], 0])
async def test_the_policy_of_one_call_must_be_a_mapping(hf: Holdfast, policy: Any) -> None:
    script = Script(ok())

    assert "policy" in problem(lambda: hf.call(script.function, policy=policy))
    assert "policy" in problem(lambda: list(hf.stream(script.generator, policy=policy)))
    with pytest.raises(ConfigError, match="policy"):
        await hf.acall(script.coroutine, policy=policy)

    assert script.count == 0


def test_a_setting_with_a_key_that_is_no_text_is_a_config_error(hf: Holdfast) -> None:
    assert "5 = 1: unknown key" in problem(lambda: hf.call(lambda: 1, policy={5: 1}))  # type: ignore[dict-item]


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError

    __str__ = __repr__


def test_a_value_that_cannot_be_shown_is_a_config_error_all_the_same(hf: Holdfast) -> None:
    assert "timeout" in problem(lambda: hf.guard("t", timeout=Unshowable()))
    assert "the tool name" in problem(lambda: hf.guard(Unshowable()))  # type: ignore[arg-type]


def test_a_value_of_a_megabyte_is_cut_in_the_error(hf: Holdfast) -> None:
    assert "…" in problem(lambda: hf.guard("t", rate=MEGABYTE))
    assert "…" in problem(lambda: hf.call(MEGABYTE))
    assert "…" in problem(lambda: hf.run(run_id=MEGABYTE))
    assert "…" in problem(lambda: holdfast.open(MEGABYTE))


def test_a_key_of_a_megabyte_is_cut_in_the_error(hf: Holdfast) -> None:
    assert "…" in problem(lambda: hf.guard("t", **{MEGABYTE: 1}))
    assert "…" in problem(lambda: holdfast.open(policies={"tool": {MEGABYTE: {"timeout": -1}}}))


def test_control_characters_are_escaped_in_the_error(hf: Holdfast) -> None:
    hostile = "a\x1b[2J\nforged: line\x00"

    assert "forged" in problem(lambda: hf.guard("t", priority=hostile))
    assert "forged" in problem(lambda: hf.guard("t", **{hostile: 1}))
    assert "forged" in problem(lambda: hf.guard(hostile))
    assert "forged" in problem(lambda: hf.call(hostile))
    assert "forged" in problem(lambda: hf.run(run_id=hostile))


# --- what is no tool ---


@pytest.mark.parametrize("thing", [None, 5, [], object(), NotImplemented])
async def test_what_cannot_be_called_is_no_tool(hf: Holdfast, thing: Any) -> None:
    assert "callable" in problem(lambda: hf.tool("t")(thing))
    assert "callable" in problem(lambda: hf.call(thing))
    assert "callable" in problem(lambda: hf.stream(thing))
    with pytest.raises(ConfigError, match="callable"):
        await hf.acall(thing)


def test_a_name_that_is_not_decorated_is_no_tool(hf: Holdfast) -> None:
    hf.tool("search")(lambda: None)

    assert problem(lambda: hf.call("serch")) == "'serch' is not a decorated tool; known are: search"


# --- names ---


HOSTILE_NAMES = ["", MEGABYTE, "a\nb", "\x1b[2J", "\x00", "\u202e", "\ud800", "é" * 201]


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, 5, None, b"t", ["t"], object()], ids=lambda name: repr(name)[:12])
def test_a_guarded_tool_s_name_is_1_to_200_printable_characters(hf: Holdfast, name: Any) -> None:
    assert "must be 1 to 200 printable characters" in problem(lambda: hf.guard(name))
    if name is not None:
        assert "must be 1 to 200 printable characters" in problem(lambda: hf.tool(name)(lambda: 1))
    if isinstance(name, str):
        script = Script(ok(), name=name)
        assert "must be 1 to 200 printable characters" in problem(partial(hf.call, script.function))

    assert hf.tracker.tools() == []
    assert hf.breaker.snapshot().diagnostics == ()


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=lambda name: repr(name)[:12])
def test_the_parts_take_any_text_for_a_name(clock: ManualClock, name: str) -> None:
    breaker, tracker = CircuitBreaker(BreakerConfig(failure_threshold=2), clock=clock), ExecutionTracker(clock=clock)
    facade = ToolResilience(AdaptiveRateLimiter(1.0, clock=clock), breaker, clock=clock)

    with facade.acquire(name):
        pass
    facade.record_outcome(name, CallOutcome.TIMED_OUT)
    facade.record_outcome(name, CallOutcome.TIMED_OUT)
    tracker.record(name, ExecutionStatus.SUCCESS, 1.0)

    with pytest.raises(CircuitOpen) as denied:
        facade.acquire(name)
    assert breaker.state(name) is CircuitState.OPEN
    assert tracker.stats(name).total == 1
    assert str(denied.value).isprintable()
    assert denied.value.for_model().isprintable()
    assert len(denied.value.for_model()) < 500


def test_two_names_of_a_megabyte_that_differ_at_the_end_are_two_tools(clock: ManualClock) -> None:
    breaker = CircuitBreaker(BreakerConfig(failure_threshold=1), clock=clock)

    breaker.record_failure(MEGABYTE + "a")

    assert breaker.state(MEGABYTE + "a") is CircuitState.OPEN
    assert breaker.state(MEGABYTE + "b") is CircuitState.CLOSED


@pytest.mark.parametrize("name", [5, None, b"t"])
def test_the_parts_refuse_a_name_that_is_no_text(clock: ManualClock, name: Any) -> None:
    facade = ToolResilience(clock=clock)

    assert "must be a text" in problem(lambda: facade.acquire(name))
    assert "must be a text" in problem(lambda: facade.record_outcome(name, CallOutcome.TIMED_OUT))
    assert "must be a text" in problem(lambda: CircuitBreaker(clock=clock).force_open(name))
    assert "must be a text" in problem(lambda: RateLimiter(clock=clock).try_acquire(name))
    assert "must be a text" in problem(lambda: ExecutionTracker(clock=clock).record(name, ExecutionStatus.FAILED, 1.0))


def test_a_long_name_in_the_data_of_a_tracker_is_kept_short(clock: ManualClock) -> None:
    tracker = ExecutionTracker(clock=clock)
    tracker.record("t", ExecutionStatus.SUCCESS, 1.0)
    data: Any = tracker.to_dict()
    data["history"][0]["tool"] = data["tools"][0]["tool"] = MEGABYTE

    restored = ExecutionTracker.from_dict(data, clock=clock)

    assert [len(record.tool) for record in restored.recent(1)] == [117]
    assert restored.stats(MEGABYTE).total == 1


def test_thousands_of_names_of_a_hundred_kilobytes_cost_little_memory(clock: ManualClock) -> None:
    facade = ToolResilience(clock=clock)
    tracker = ExecutionTracker(clock=clock)
    tail = "x" * 100_000
    tracemalloc.start()
    try:
        for number in range(1000):
            name = f"{number}{tail}"
            facade.acquire(name).fail(ErrorCategory.TIMEOUT)
            tracker.record(name, ExecutionStatus.FAILED, 1.0)
        del name
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert used < 10_000_000  # a tenth of the names alone


@pytest.mark.slow
def test_ever_new_tool_names_stay_bounded_in_memory(hf: Holdfast) -> None:
    """20,000 names, twice what is kept; a million would take minutes and show the same."""

    def fail_with(numbers: range) -> int:
        for number in numbers:
            with pytest.raises(ConnectionError), hf.guard(f"tool-{number}-{'x' * 150}"):
                raise ConnectionError
        gc.collect()
        return sys.getallocatedblocks()

    full = fail_with(range(12_000))
    later = fail_with(range(12_000, 20_000))

    assert later < full * 1.1
    assert len(hf.tracker.tools()) <= 10_000
    assert len(hf.breaker.snapshot().diagnostics) <= 10_000
    assert hf.tracker.stats().failed == 20_000


def test_a_tool_in_trouble_is_not_forgotten_because_of_ever_new_names(clock: ManualClock) -> None:
    breaker = CircuitBreaker(BreakerConfig(failure_threshold=2, jitter=0), clock=clock, max_tools=100)
    breaker.record_failure("bad")
    breaker.record_failure("bad")

    for number in range(10_000):
        breaker.record_failure(f"new-{number}")

    assert breaker.state("bad") is CircuitState.OPEN


# --- callbacks that raise ---


def test_an_on_transition_that_cannot_be_called_is_a_config_error() -> None:
    assert problem(lambda: CircuitBreaker(on_transition="x")).startswith("on_transition = 'x': must be callable")  # type: ignore[arg-type]


def test_a_failing_on_transition_is_logged_and_changes_nothing(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(tool: str, old: CircuitState, new: CircuitState, diagnostics: CircuitDiagnostics) -> None:
        raise RuntimeError("no")

    breaker = CircuitBreaker(BreakerConfig(failure_threshold=1, jitter=0), clock=clock, on_transition=broken)

    breaker.record_failure("t\n\x1b")
    clock.advance(5.0)
    with breaker.admit("t\n\x1b"):
        pass

    assert breaker.state("t\n\x1b") is CircuitState.CLOSED
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    assert all(record.getMessage().isprintable() for record in caplog.records)


class Rude(Exception):
    """An error that answers every question with another error."""

    def __getattr__(self, name: str) -> object:
        raise AttributeError(name) if name.startswith("__") else RuntimeError(name)

    @property
    def status_code(self) -> int:
        raise RuntimeError

    response = headers = retry_after = status_code


def test_an_error_that_cannot_be_asked_anything_leaves_as_it_is_and_is_counted(
    hf: Holdfast, clock: ManualClock
) -> None:
    error = Rude("whatever")
    tool = hf.tool("t", concurrency=1, max_wait=0.0, retry=2)(Script(fail(error)).function)

    for _ in range(3):
        with pytest.raises(Rude) as caught:
            tool()

    assert caught.value is error
    assert hf.tracker.stats("t").failed == 3
    assert hf.breaker.diagnostics("t").failure_count == 3


class Wordless(Exception):
    """An error that cannot be put into words."""

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "heard"])
def test_an_error_that_cannot_be_put_into_words_leaves_as_it_is(hf: Holdfast, heard: bool) -> None:
    if heard:
        hf.bus.add(Recorder())

    with pytest.raises(Wordless):
        hf.call(Script(fail(Wordless())).function)


def test_an_error_that_cannot_be_put_into_words_costs_no_slot(hf: Holdfast) -> None:
    tool = hf.tool("t", concurrency=1, max_wait=0.0)(Script(*[fail(Wordless())] * 5, ok("in")).function)

    for _ in range(5):
        with pytest.raises((Wordless, RuntimeError)):
            tool()

    assert tool() == "in"


def test_errors_that_caused_each_other_in_a_circle_are_harmless(hf: Holdfast) -> None:
    one, two = ConnectionError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one

    with pytest.raises(ValueError, match="two"):
        hf.call(Script(fail(two)).function)

    assert hf.tracker.stats().failed == 1


# --- odd arguments ---


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


def circular() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


ODD_ARGUMENTS: dict[str, Callable[[], Any]] = {
    "a circle": circular,
    "nested too deeply": lambda: nested(100_000),
    "ten megabytes": lambda: "x" * 10_000_000,
    "half a surrogate pair": lambda: "\ud800",
    "a number of five thousand digits": lambda: 10**5000,
    "not a number": lambda: NAN,
    "keys of all kinds": lambda: {(1, 2): 3, object(): 4, None: 5},
    "unshowable": Unshowable,
    "an iterator": lambda: iter([]),
    "a module": lambda: sys,
}


@pytest.mark.parametrize("argument", ODD_ARGUMENTS)
def test_an_odd_argument_reaches_the_tool_though_calls_are_compared_and_cached(hf: Holdfast, argument: str) -> None:
    script = Script(ok("answer"))
    tool = hf.tool("t", read_only=True, cache=60.0, breaker={"distinct_arguments": True})(script.function)
    value = ODD_ARGUMENTS[argument]()

    with hf.run():
        answers = [tool(value), tool(key=value)]

    assert answers == ["answer", "answer"]
    assert script.calls[0][0][0] is value


def test_an_odd_argument_of_a_tool_that_fails_changes_nothing_about_its_error(hf: Holdfast) -> None:
    tool = hf.tool("t", breaker={"distinct_arguments": True})(Script(fail(KeyError("mine"))).function)

    with hf.run():
        for make in ODD_ARGUMENTS.values():
            hf.breaker.reset("t")
            with pytest.raises(KeyError, match="mine"):
                tool(make())


def test_a_call_with_wrong_arguments_raises_what_the_tool_itself_would(hf: Holdfast) -> None:
    @hf.tool(read_only=True, cache=60.0)
    def search(query: str) -> str:
        return query

    with hf.run(), pytest.raises(TypeError, match=r"search\(\) got an unexpected keyword argument 'limit'"):
        search("x", limit=5)  # type: ignore[call-arg]


# --- misuse ---


def test_a_guard_that_was_never_entered_can_be_left(hf: Holdfast) -> None:
    hf.guard("t").__exit__(None, None, None)

    assert hf.tracker.stats().total == 0


async def test_a_coroutine_that_is_never_awaited_costs_nothing(hf: Holdfast) -> None:
    script = Script(ok())
    tool = hf.tool("t", concurrency=1, max_wait=0.0)(script.coroutine)

    tool().close()
    await tool()

    assert script.count == 1


async def test_streams_that_are_never_begun_or_left_early_give_everything_back(hf: Holdfast) -> None:
    script = Script(ok([1, 2, 3]))
    stream: Callable[[], Any] = hf.tool("t", concurrency=1, max_wait=0.0)(script.generator)
    astream: Callable[[], Any] = hf.tool("a", concurrency=1, max_wait=0.0)(script.async_generator)

    for _ in range(3):
        stream()
        begun = stream()
        next(begun)
        begun.close()
        async_begun = astream()
        await anext(async_begun)
        await async_begun.aclose()

    assert list(stream()) == [1, 2, 3]
    assert [item async for item in astream()] == [1, 2, 3]


async def test_a_thousand_cancelled_waiters_leave_nothing_behind(hf: Holdfast, clock: ManualClock) -> None:
    release = asyncio.Event()

    @hf.tool(concurrency=1, max_wait=100.0)
    async def busy() -> str:
        await release.wait()
        return "done"

    with clock.busy():
        first = asyncio.create_task(busy())
        await asyncio.sleep(0)
        waiters = [asyncio.create_task(busy()) for _ in range(1000)]
        await asyncio.sleep(0)
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        release.set()

        assert await first == "done"
        assert await busy() == "done"
    assert clock.pending == 0
    assert hf.tracker.stats("busy").cancelled == 1000
