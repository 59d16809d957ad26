"""How the public names look to a type checker. mypy reads this file; nothing runs it.

An ignored error is an assertion too: mypy complains once the line is no error any more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from io import BufferedReader
from typing import Any, Generic, TypeVar, assert_type, overload

import holdfast
from holdfast import (
    AdaptiveRateLimiter,
    BreakerConfig,
    BreakerSnapshot,
    Check,
    CheckStatus,
    CircuitBreaker,
    CircuitDiagnostics,
    CircuitState,
    Clock,
    Denied,
    ErrorCategory,
    ExecutionRecord,
    ExecutionStats,
    ExecutionStatus,
    ExecutionTracker,
    Holdfast,
    Hook,
    HookContext,
    HookKind,
    InDoubt,
    Permit,
    Priority,
    RateLimiter,
    Report,
    Run,
    SystemClock,
    ToolResilience,
)
from holdfast.testing import ManualClock

T = TypeVar("T")

hf = holdfast.open(":memory:")
assert_type(hf, Holdfast)


# --- a decorated tool keeps its types ---


@hf.tool()
def function(query: str, *, limit: int = 10) -> list[str]:
    return [query] * limit


@hf.tool("search", timeout=5.0, read_only=True)
async def coroutine(query: str) -> bytes:
    return query.encode()


@hf.tool()
def generator(count: int) -> Iterator[int]:
    yield count


@hf.tool()
async def async_generator(count: int) -> AsyncIterator[str]:
    yield str(count)


settled = hf.tool(len, timeout=5.0)
assert_type(settled("a"), int)
assert_type(function("a", limit=2), list[str])
function(1)  # type: ignore[arg-type]
function("a", 2)  # type: ignore[call-arg]
function("a", limits=2)  # type: ignore[call-arg]


async def decorated() -> None:
    assert_type(await coroutine("a"), bytes)
    await coroutine(1)  # type: ignore[arg-type]
    async for text in async_generator(1):
        assert_type(text, str)
    for number in generator(1):
        assert_type(number, int)


class Shop(Generic[T]):
    def __init__(self, thing: T) -> None:
        self.thing = thing

    @hf.tool
    def sell(self, count: int) -> T:
        return self.thing

    @classmethod
    @hf.tool("shops", read_only=True)
    def shops(cls, city: str) -> int:
        return len(city)

    @hf.tool()
    @staticmethod
    async def greet(name: str) -> bytes:
        return name.encode()


@overload
def doubled(value: int) -> int: ...
@overload
def doubled(value: str) -> str: ...
@hf.tool
def doubled(value: int | str) -> int | str:
    return value * 2


@hf.tool(timeout=5.0)
def same(value: T) -> T:
    return value


@holdfast.retrying(attempts=3)
@holdfast.protecting(CircuitBreaker())
async def kept(city: str) -> int:
    return len(city)


@holdfast.retrying
def bare(city: str) -> int:
    return len(city)


async def more_decorated(shop: Shop[bytes]) -> None:
    assert_type(shop.sell(1), bytes)
    shop.sell("one")  # type: ignore[arg-type]
    assert_type(shop.shops("Kyoto"), int)
    assert_type(await Shop.greet("Ada"), bytes)
    assert_type(hf.call(shop.sell, 1), bytes)
    assert_type(doubled(1), int)
    assert_type(doubled("a"), str)
    assert_type(same([1]), list[int])
    assert_type(await kept("Kyoto"), int)
    assert_type(bare("Kyoto"), int)


# --- one call of anything ---


def plain(number: int) -> str:
    return str(number)


async def called() -> None:
    assert_type(hf.call(plain, 1), str)
    assert_type(hf.call(plain, 1, policy={"timeout": 1.0}), str)
    assert_type(hf.call("search", 1), Any)
    assert_type(await hf.acall(coroutine, "a"), bytes)
    assert_type(await hf.acall(plain, 1), str)
    assert_type(await hf.acall("search", 1), Any)
    assert_type(hf.stream(generator, 1), Generator[int, Any, Any])
    assert_type(hf.stream("search", 1), Generator[Any, Any, Any])
    assert_type(hf.astream(async_generator, 1), AsyncGenerator[str])
    assert_type(hf.astream(generator, 1), AsyncGenerator[int])
    assert_type(hf.astream("search", 1), AsyncGenerator[Any])
    assert_type(hf.call(function, "a", limit=2), list[str])
    assert_type(hf.call(same, [1]), list[int])
    assert_type(hf.call(open, "tea.txt", "rb"), BufferedReader)
    assert_type(await hf.acall(coroutine, "a", policy={"timeout": 1.0}), bytes)
    hf.call(plain, "one")  # type: ignore[call-overload]
    hf.call(function, "a", limits=2)  # type: ignore[call-arg]
    await hf.acall(coroutine)  # type: ignore[call-overload]
    await hf.acall(plain, "one")  # type: ignore[call-overload]
    hf.stream(generator, "one")  # type: ignore[call-overload]
    hf.astream(async_generator, "one")  # type: ignore[call-overload]
    with hf.run() as run:
        assert_type(run.step("plain", plain, 1), str)
        assert_type(await run.astep("plain", plain, 1), str)
        assert_type(await run.astep("coroutine", coroutine, "a"), bytes)
        assert_type(run.step("function", function, "a"), list[str])
        assert_type(run.step("same", same, [1]), list[int])
        run.step("plain", plain, "one")  # type: ignore[arg-type]
        run.step("plain", plain)  # type: ignore[arg-type]
        await run.astep("coroutine", coroutine, 1)  # type: ignore[arg-type]
    with hf.guard(tool_name="search") as block:
        block.fail("timeout")
    async with hf.guard("search"):
        pass
    with hf as entered:
        assert_type(entered, Holdfast)
    async with hf as entered:
        assert_type(entered, Holdfast)


# --- the parts by themselves ---


def parts(clock: Clock) -> None:
    breaker = CircuitBreaker(BreakerConfig(failure_threshold=3), clock=clock)
    BreakerConfig(trips={ErrorCategory.NETWORK})
    BreakerConfig(3)  # type: ignore[call-arg]
    assert_type(breaker.admit("search"), Permit)
    assert_type(breaker.allow_request("search"), bool)
    assert_type(breaker.state("search"), CircuitState)
    assert_type(breaker.remaining_backoff("search"), float | None)
    assert_type(breaker.diagnostics("search"), CircuitDiagnostics)
    assert_type(breaker.snapshot(), BreakerSnapshot)
    assert_type(breaker.snapshot().diagnostics, tuple[CircuitDiagnostics, ...])
    assert_type(breaker.snapshot().open_circuits, tuple[str, ...])

    assert_type(RateLimiter(20.0, clock=clock).try_acquire("search"), float)
    limiter = AdaptiveRateLimiter(clock=clock)
    assert_type(limiter.try_acquire("search", Priority.HIGH), float)
    assert_type(limiter.rate("search"), float)
    limiter.record_rate_limited("search", retry_after=1.0)

    tracker = ExecutionTracker(clock=clock)
    tracker.record("search", ExecutionStatus.SUCCESS, 0.1)
    assert_type(tracker.recent(1), list[ExecutionRecord])
    assert_type(tracker.stats(), ExecutionStats)
    assert_type(tracker.mean_duration("search"), float | None)
    assert_type(tracker.tools(), list[str])

    assert_type(hf.breaker, CircuitBreaker)
    assert_type(hf.tracker, ExecutionTracker)


async def facade(resilience: ToolResilience) -> None:
    with resilience.acquire("search", Priority.LOW) as permit:
        permit.succeed()
    with await resilience.aacquire("search"):
        pass
    assert_type(holdfast.default_resilience(), ToolResilience)
    assert_type(resilience.circuit_snapshot(), BreakerSnapshot)


def hooked(call: HookContext) -> str | None:
    return "too much" if call.arguments.get("amount", 0) > 100 else None


hooks = [Hook("before_tool", hooked), Hook(HookKind.BEFORE_TOOL, hooked)]


def verified(run: Run) -> None:
    run.verify(Report("tea", (Check("sweet", "passed"), Check("hot", CheckStatus.FAILED, required=False))))
    Check("sweet", True)  # type: ignore[arg-type]
    run.verify("sweet")  # type: ignore[arg-type]


async def doubted(doubt: InDoubt) -> None:
    answer: str = doubt.answer("receipt")
    answer = await doubt.aanswer("receipt")
    answer = doubt.repeat()
    answer = await doubt.repeat()
    assert_type(answer, str)


def errors(error: Denied) -> None:
    assert_type(error.tool, str)
    assert_type(error.reason, str)
    assert_type(error.retry_after, float | None)
    assert_type(error.for_model(), str)
    assert_type(holdfast.classify(error), ErrorCategory)
    assert_type(holdfast.classify(429), ErrorCategory)
    assert_type(holdfast.retry_after(error), float | None)
    assert_type(ErrorCategory.TIMEOUT.retryable, bool)


clocks: tuple[Clock, ...] = (SystemClock(), ManualClock())
