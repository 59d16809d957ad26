"""`hf.guard`: the same guards around a block of code; one attempt, no cache, no fallback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests import shapes
from tests.shapes import settled

from holdfast import (
    BudgetExceeded,
    CircuitOpen,
    CircuitState,
    ConcurrencyFull,
    ConfigError,
    ErrorCategory,
    Holdfast,
    RateLimited,
    ToolTimeout,
)
from holdfast.testing import ManualClock, Recorder, Script, ok

hf = shapes.hf

EASY = {"failure_threshold": 1, "min_backoff": 5.0, "jitter": 0.0}

Block = Callable[..., Any]


@pytest.fixture(params=["with", "async with"])
def block(request: pytest.FixtureRequest, hf: Holdfast) -> Block:
    """Runs *body* in a guarded block of the tool `web`, plain or async, and gives its answer."""

    def plain(body: Callable[[Any], Any], **policy: object) -> Any:
        with hf.guard("web", **policy) as attempt:
            return body(attempt)

    def asynchronous(body: Callable[[Any], Any], **policy: object) -> Any:
        async def main() -> Any:
            async with hf.guard("web", **policy) as attempt:
                return body(attempt)

        return asyncio.run(main())

    return plain if request.param == "with" else asynchronous


def fine(attempt: Any) -> str:
    return "fine"


def raising(error: BaseException | type[BaseException]) -> Callable[[Any], Any]:
    def body(attempt: Any) -> Any:
        raise error

    return body


def test_a_block_that_ends_is_a_success(block: Block, hf: Holdfast) -> None:
    assert block(fine) == "fine"
    assert hf.tracker.stats("web").successful == 1


def test_the_blocks_own_error_leaves_unchanged_and_is_counted(block: Block, hf: Holdfast) -> None:
    error = ConnectionError("the block's own")

    with pytest.raises(ConnectionError) as caught:
        block(raising(error))

    assert caught.value is error
    assert error.__notes__ == ["holdfast: web: 1 attempt"]
    assert hf.tracker.stats("web").failed == 1
    assert hf.breaker.diagnostics("web").failure_count == 1


def test_a_block_is_tried_once(block: Block, hf: Holdfast) -> None:
    tries = []

    def body(attempt: Any) -> None:
        tries.append(1)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        block(body, read_only=True, retry=5)

    assert len(tries) == 1


def test_a_block_that_is_told_to_have_failed_has_no_error_of_what_is_being_handled_around_it(hf: Holdfast) -> None:
    try:
        raise ValueError("of something else")
    except ValueError:
        with hf.guard("web") as attempt:
            attempt.fail(ErrorCategory.NETWORK)

    error = hf._box.tool("web").last_error
    assert error is not None
    assert error[1] == ErrorCategory.NETWORK.label


def test_an_open_circuit_keeps_the_block_from_running(block: Block, hf: Holdfast) -> None:
    with pytest.raises(ConnectionError):
        block(raising(ConnectionError), breaker=EASY)
    ran: list[object] = []

    with pytest.raises(CircuitOpen):
        block(ran.append, breaker=EASY)

    assert ran == []
    assert hf.tracker.stats("web").denied == 1


def test_a_block_waits_for_its_token(block: Block, clock: ManualClock) -> None:
    for _ in range(3):
        block(fine, rate={"per_second": 1, "burst": 1})

    assert clock.monotonic() == 2.0


def test_a_block_that_would_wait_too_long_is_refused(block: Block, hf: Holdfast) -> None:
    block(fine, rate={"per_second": 0.1, "burst": 1})

    with pytest.raises(RateLimited) as caught:
        block(fine, rate={"per_second": 0.1, "burst": 1})

    assert caught.value.retry_after == 10.0


def test_a_block_holds_a_slot_while_it_runs(block: Block, hf: Holdfast) -> None:
    def body(attempt: Any) -> None:
        with pytest.raises(ConcurrencyFull), hf.guard("web", concurrency=1, max_wait=0):
            pass

    block(body, concurrency=1, max_wait=0)

    assert block(fine, concurrency=1, max_wait=0) == "fine"


def test_a_block_and_a_tool_of_one_name_share_their_guards(block: Block, hf: Holdfast) -> None:
    tool = hf.tool("web", breaker=EASY)(Script(ok()).function)

    with pytest.raises(ConnectionError):
        block(raising(ConnectionError))

    with pytest.raises(CircuitOpen):
        tool()


def test_an_answer_that_is_an_error_in_disguise_can_be_counted_as_one(block: Block, hf: Holdfast) -> None:
    def body(attempt: Any) -> str:
        attempt.fail(ErrorCategory.SERVICE_UNAVAILABLE)
        return "<html>503</html>"

    assert block(body, breaker=EASY) == "<html>503</html>"
    assert hf.tracker.stats("web").failed == 1
    diagnostics = hf.breaker.diagnostics("web")
    assert (diagnostics.state, diagnostics.last_error_category) == (
        CircuitState.OPEN,
        ErrorCategory.SERVICE_UNAVAILABLE,
    )


def test_a_rate_limit_in_disguise_slows_the_rate_down(block: Block, clock: ManualClock) -> None:
    rate = {"per_second": 10, "burst": 10, "adaptive": True}
    block(lambda attempt: attempt.fail(ErrorCategory.RATE_LIMIT, retry_after=3.0), rate=rate)

    block(fine, rate=rate)

    assert 3.0 <= clock.monotonic() <= 3.3


@pytest.mark.parametrize("pause", ["20", -1.0, float("nan"), True])
def test_a_bad_pause_is_a_config_error_and_the_slot_comes_back(block: Block, pause: Any) -> None:
    with pytest.raises(ConfigError, match=r"retry_after = .*must be a number of at least 0"):
        block(lambda attempt: attempt.fail(ErrorCategory.RATE_LIMIT, pause), concurrency=1, max_wait=0)

    assert block(fine, concurrency=1, max_wait=0) == "fine"


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt])
def test_a_cancelled_block_is_neutral(block: Block, hf: Holdfast, error: type[BaseException]) -> None:
    with pytest.raises(error):
        block(raising(error), breaker=EASY, concurrency=1, max_wait=0)

    assert hf.tracker.stats("web").cancelled == 1
    assert block(fine, breaker=EASY, concurrency=1, max_wait=0) == "fine"


def test_a_block_counts_in_its_run(block: Block, hf: Holdfast) -> None:
    with hf.run(budget={"calls": 1}):
        block(fine)
        with pytest.raises(BudgetExceeded):
            block(fine)


def test_blocks_whose_arguments_nobody_knows_are_never_the_same_call(block: Block, hf: Holdfast) -> None:
    with hf.run():
        for _ in range(5):
            with pytest.raises(ConnectionError):
                block(raising(ConnectionError), breaker=False)


def test_failures_of_blocks_are_distinct_where_a_circuit_counts_distinct_arguments(block: Block, hf: Holdfast) -> None:
    for _ in range(2):
        with pytest.raises(ConnectionError):
            block(raising(ConnectionError), breaker={"failure_threshold": 2, "distinct_arguments": True})

    assert hf.breaker.state("web") is CircuitState.OPEN


def test_a_block_is_not_answered_from_a_cache(block: Block, hf: Holdfast) -> None:
    assert [block(fine, read_only=True, cache=60.0) for _ in range(2)] == ["fine", "fine"]
    assert hf.tracker.stats("web").cached_hits == 0


def test_a_block_has_no_fallback(block: Block, hf: Holdfast) -> None:
    with pytest.raises(ConnectionError):
        block(raising(ConnectionError), fallback={"value": "instead"})

    hf.breaker.force_open("web")
    with pytest.raises(CircuitOpen):
        block(fine, fallback={"value": "instead"})


def test_a_block_is_named_by_tool_name_and_its_failure_by_a_text(hf: Holdfast) -> None:
    with hf.guard(tool_name="web") as attempt:
        attempt.fail("timeout")

    assert hf.breaker.diagnostics("web").last_error_category is ErrorCategory.TIMEOUT


def test_a_bad_setting_of_a_block_is_refused(hf: Holdfast) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        hf.guard("web", tiemout=1)


def test_a_bad_setting_of_a_block_is_refused_before_it_is_entered_also_where_the_tool_is_known(hf: Holdfast) -> None:
    hf.guard("web")

    with pytest.raises(ConfigError, match="unknown key"):
        hf.guard("web", tiemout=1)


def test_a_block_is_told_from_start_to_end(block: Block, hf: Holdfast) -> None:
    recorder = Recorder()
    hf.bus.add(recorder)

    block(fine)

    assert recorder.types() == ["tool_started", "tool_ended"]


async def test_an_async_block_that_takes_too_long_is_cancelled(hf: Holdfast, clock: ManualClock) -> None:
    with pytest.raises(ToolTimeout):
        async with hf.guard("web", timeout=1.0):
            await clock.asleep(60.0)

    assert clock.monotonic() == 1.0
    assert hf.tracker.stats("web").timed_out == 1


async def test_an_async_block_waits_in_line(hf: Holdfast, clock: ManualClock) -> None:
    order: list[tuple[int, float]] = []

    async def use(who: int) -> None:
        async with hf.guard("web", concurrency=1):
            order.append((who, clock.monotonic()))
            await clock.asleep(1.0)

    await asyncio.gather(*map(use, range(3)))

    assert order == [(0, 0.0), (1, 1.0), (2, 2.0)]


async def test_an_async_block_cancelled_in_line_gives_its_place_back(hf: Holdfast, clock: ManualClock) -> None:
    async def use() -> None:
        async with hf.guard("web", concurrency=1):
            await clock.asleep(1.0)

    first, second, third = (asyncio.create_task(use()) for _ in range(3))
    await settled()
    second.cancel()
    await asyncio.gather(first, second, third, return_exceptions=True)

    assert clock.monotonic() == 2.0
    assert hf.tracker.stats("web").successful == 2


def test_a_block_inside_a_generator_may_stay_open(hf: Holdfast) -> None:
    @asynccontextmanager
    async def connection() -> AsyncIterator[str]:
        async with hf.guard("web", concurrency=1, max_wait=0):
            yield "connected"

    async def main() -> str:
        async with connection() as state:
            return state

    assert asyncio.run(main()) == "connected"
    assert hf.tracker.stats("web").successful == 1


def test_a_block_in_use_is_refused_to_others(hf: Holdfast) -> None:
    guard = hf.guard("web")

    with guard, ThreadPoolExecutor() as pool:
        error = pool.submit(guard.__enter__).exception()

    assert isinstance(error, ConfigError)
    assert str(error) == "the guarded block of 'web' is in use: call hf.guard again"
    assert hf.tracker.stats("web").total == 1


async def test_a_block_that_waits_for_its_turn_is_in_use(hf: Holdfast) -> None:
    guard = hf.guard("web", concurrency=1)
    async with hf.guard("web", concurrency=1):
        waiting = asyncio.create_task(guard.__aenter__())
        await settled()

        with pytest.raises(ConfigError, match="in use"):
            await guard.__aenter__()

    await waiting
    await guard.__aexit__(None, None, None)
    assert hf.tracker.stats("web").successful == 2


def test_a_block_is_free_again_however_it_was_left(hf: Holdfast) -> None:
    guard = hf.guard("web", breaker=EASY)
    with pytest.raises(ConnectionError), guard:
        raise ConnectionError
    with pytest.raises(CircuitOpen), guard:
        pass
    hf.breaker.reset("web")

    with guard:
        pass

    assert hf.tracker.stats("web").successful == 1
