"""Streams: items as they come, never begun again, and the consumer's time is not the tool's."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from tests import shapes
from tests.shapes import Call, Shape

import holdfast
from holdfast import CircuitOpen, CircuitState, ConcurrencyFull, ConfigError, Holdfast, ToolTimeout
from holdfast.testing import ManualClock, Recorder, Script, fail, fail_after, hang_after, ok, slow

hf = shapes.hf

AT_ONCE = {"attempts": 3, "initial": 0.0, "max": 0.0}
EASY = {"failure_threshold": 1, "min_backoff": 5.0, "jitter": 0.0}


class Stream(Shape):
    """A shape that is a stream, with a consumer that does something at each item and may leave."""

    def consume(self, guarded: Callable[..., Any], each: Callable[[Any], object], leave_at: object = None) -> list[Any]:
        """The items up to *leave_at*; *each* is called at every one."""
        got: list[Any] = []

        def take(item: Any) -> bool:
            got.append(item)
            each(item)
            return item == leave_at and leave_at is not None

        async def asynchronously() -> None:
            async with aclosing(guarded()) as items:
                async for item in items:
                    if take(item):
                        break

        if self.is_async:
            asyncio.run(asynchronously())
        else:
            with contextlib.closing(guarded()) as items:
                for item in items:
                    if take(item):
                        break
        return got


@pytest.fixture(params=["generator", "async_generator"])
def stream(request: pytest.FixtureRequest) -> Stream:
    return Stream(request.param)


def nothing(item: object) -> None:
    pass


# --- never begun again ---


def test_a_stream_that_fails_before_its_first_item_is_tried_again(stream: Stream, hf: Holdfast) -> None:
    script = Script(fail(ConnectionError), ok([1, 2]))

    assert stream(hf, script, retry=AT_ONCE)() == [1, 2]
    assert script.count == 2


def test_a_stream_is_never_begun_again_after_its_first_item(stream: Stream, hf: Holdfast) -> None:
    script = Script(fail_after([1], ConnectionError), ok([1, 2]))
    got: list[object] = []

    with pytest.raises(ConnectionError) as caught:
        stream.consume(hf.tool(retry=AT_ONCE)(getattr(script, stream.name)), got.append)

    assert got == [1]
    assert script.count == 1
    assert caught.value.__notes__ == ["holdfast: script: 1 attempt, not repeated: the stream had begun"]


def test_a_stream_that_times_out_after_its_first_item_is_not_begun_again(
    stream: Stream, hf: Holdfast, clock: ManualClock
) -> None:
    script = Script(hang_after([1], 1.0), ok([1, 2]), clock=clock)

    with pytest.raises(ToolTimeout):
        stream(hf, script, retry=AT_ONCE, timeout=1.0)()

    assert script.count == 1


def test_a_stream_that_broke_off_counts_as_one_failure(stream: Stream, hf: Holdfast) -> None:
    call = stream(hf, Script(fail_after([1, 2], ConnectionError)), breaker=EASY)

    with pytest.raises(ConnectionError):
        call()

    stats = hf.tracker.stats("script")
    assert (stats.failed, stats.total) == (1, 1)
    with pytest.raises(CircuitOpen):
        call()


def test_no_fallback_follows_after_the_first_item(stream: Stream, hf: Holdfast) -> None:
    call = stream(hf, Script(fail_after([1], ConnectionError)), fallback={"value": ["else"]})

    with pytest.raises(ConnectionError):
        call()


def test_nothing_is_asked_of_a_guard_before_the_first_item_is_wanted(stream: Stream, hf: Holdfast) -> None:
    script = Script(ok([1]))
    guarded = hf.tool(rate={"per_second": 0.01, "burst": 1}, max_wait=0)(getattr(script, stream.name))
    unused = guarded()

    assert stream.run(guarded)() == [1]
    assert script.count == 1
    del unused


# --- time ---


def test_the_timeout_is_that_of_an_item(stream: Stream, hf: Holdfast, clock: ManualClock) -> None:
    call = stream(hf, Script(slow(0.9, [1, 2, 3]), clock=clock), timeout=1.0)

    assert call() == [1, 2, 3]
    assert hf.tracker.stats("script").total_duration == pytest.approx(2.7)


def test_an_item_that_does_not_come_in_time_ends_the_stream(stream: Stream, hf: Holdfast, clock: ManualClock) -> None:
    got: list[object] = []
    guarded = hf.tool(timeout=1.0)(getattr(Script(hang_after([1, 2], 1.0), clock=clock), stream.name))

    with pytest.raises(ToolTimeout) as caught:
        stream.consume(guarded, got.append)

    assert got == [1, 2]
    assert caught.value.seconds == 1.0
    assert hf.tracker.stats("script").timed_out == 1


def test_all_items_are_under_one_deadline(stream: Stream, hf: Holdfast, clock: ManualClock) -> None:
    got: list[object] = []
    guarded = hf.tool(deadline=2.5)(getattr(Script(slow(1.0, [1, 2, 3]), clock=clock), stream.name))

    with pytest.raises(ToolTimeout):
        stream.consume(guarded, got.append)

    assert got == [1, 2]


@pytest.mark.parametrize("policy", [{"timeout": 1.0}, {"deadline": 2.0}, {}], ids=str)
def test_the_consumers_time_does_not_count(
    stream: Stream, hf: Holdfast, clock: ManualClock, policy: dict[str, object]
) -> None:
    guarded = hf.tool(None, **policy)(getattr(Script(slow(0.5, [1, 2, 3]), clock=clock), stream.name))

    got = stream.consume(guarded, lambda item: clock.advance(100.0))

    assert got == [1, 2, 3]
    assert hf.tracker.stats("script").total_duration == pytest.approx(1.5)


def test_the_time_before_the_first_item_is_wanted_does_not_count(hf: Holdfast, clock: ManualClock) -> None:
    items = hf.stream(Script(ok([1])).generator, policy={"deadline": 1.0})

    clock.advance(5.0)

    assert list(items) == [1]


def test_a_function_that_is_streamed_has_its_time_limit_too(hf: Holdfast, clock: ManualClock) -> None:
    script = Script(slow(1.0, [1, 2]), clock=clock)

    with pytest.raises(ToolTimeout):
        list(hf.stream(script.function, policy={"timeout": 1.0}))


# --- leaving ---


def test_leaving_early_is_a_success(stream: Stream, hf: Holdfast) -> None:
    guarded = hf.tool(breaker=EASY)(getattr(Script(ok([1, 2, 3])), stream.name))

    got = stream.consume(guarded, nothing, leave_at=2)

    assert got == [1, 2]
    stats = hf.tracker.stats("script")
    assert (stats.successful, stats.total) == (1, 1)
    assert hf.breaker.state("script") is CircuitState.CLOSED


def test_leaving_early_frees_the_slot(stream: Stream, hf: Holdfast) -> None:
    guarded = hf.tool(concurrency=1, max_wait=0)(getattr(Script(ok([1, 2])), stream.name))

    for _ in range(3):
        assert stream.consume(guarded, nothing, leave_at=1) == [1]


def test_a_stream_holds_its_slot_until_its_end(stream: Stream, hf: Holdfast) -> None:
    guarded = hf.tool(concurrency=1, max_wait=0)(getattr(Script(ok([1, 2])), stream.name))
    refused = []

    def ask(item: object) -> None:
        with pytest.raises(ConcurrencyFull), hf.guard("script"):
            pass
        refused.append(item)

    stream.consume(guarded, ask)

    assert refused == [1, 2]
    with hf.guard("script"):
        pass


def test_leaving_early_closes_the_tools_stream(stream: Stream, hf: Holdfast) -> None:
    closed = []

    def generator() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append("closed")

    async def async_generator() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    stream.consume(hf.tool(async_generator if stream.is_async else generator), nothing, leave_at=1)

    assert closed == ["closed"]


def test_leaving_early_closes_also_a_stream_that_the_tool_keeps(hf: Holdfast) -> None:
    kept = Script(ok([1, 2])).generator()
    items = hf.stream(lambda: kept)
    next(items)

    items.close()

    assert kept.gi_frame is None


def test_the_consumers_own_error_is_no_failure_of_the_tool(stream: Stream, hf: Holdfast) -> None:
    guarded = hf.tool(breaker=EASY, concurrency=1, max_wait=0)(getattr(Script(ok([1, 2])), stream.name))

    def trip(item: object) -> None:
        raise ConnectionError("the consumer's")

    with pytest.raises(ConnectionError, match="the consumer's"):
        stream.consume(guarded, trip)

    assert hf.tracker.stats("script").successful == 1
    assert stream.run(guarded)() == [1, 2]


def test_a_probe_that_was_left_early_closes_the_circuit(stream: Stream, hf: Holdfast, clock: ManualClock) -> None:
    script = Script(fail(ConnectionError), ok([1, 2]))
    guarded = hf.tool(breaker=EASY)(getattr(script, stream.name))
    with pytest.raises(ConnectionError):
        stream.run(guarded)()
    clock.advance(5.0)

    stream.consume(guarded, nothing, leave_at=1)

    assert hf.breaker.state("script") is CircuitState.CLOSED


def test_a_stream_that_was_never_begun_can_be_closed(stream: Stream, hf: Holdfast) -> None:
    script = Script(ok([1]))
    tool: Call = getattr(script, stream.name)
    items = hf.tool(tool)()

    if stream.is_async:
        asyncio.run(items.aclose())
    else:
        items.close()

    assert script.count == 0
    assert hf.tracker.stats("script").total == 0


def test_a_stream_left_early_inside_a_tool_that_runs_in_a_thread_is_over_at_once(hf: Holdfast) -> None:
    inner = hf.tool("inner", concurrency=1, max_wait=0)(Script(ok([1, 2])).generator)

    @hf.tool(timeout=1.0)
    def outer() -> list[object]:
        got = []
        for _ in range(50):
            items = inner()
            got.append(next(items))
            items.close()
        return got

    assert outer() == [1] * 50


def test_a_generator_that_is_forgotten_frees_its_slot(hf: Holdfast) -> None:
    guarded = hf.tool(concurrency=1, max_wait=0)(Script(ok([1, 2])).generator)
    items = guarded()
    next(items)

    del items
    gc.collect()

    assert list(guarded()) == [1, 2]


async def test_an_async_generator_left_by_break_is_over_when_it_is_closed(hf: Holdfast) -> None:
    guarded = hf.tool(concurrency=1, max_wait=0)(Script(ok([1, 2])).async_generator)
    items = guarded()
    async for item in items:
        assert item == 1
        break
    with pytest.raises(ConcurrencyFull):
        await anext(guarded())

    await items.aclose()

    assert [item async for item in guarded()] == [1, 2]
    assert hf.tracker.stats("script").successful == 2


async def test_a_consumer_that_is_cancelled_at_an_item_is_neutral(hf: Holdfast, clock: ManualClock) -> None:
    guarded = hf.tool(concurrency=1, breaker=EASY)(Script(slow(10.0, [1]), ok([1]), clock=clock).async_generator)

    async def consume() -> list[object]:
        return [item async for item in guarded()]

    task = asyncio.create_task(consume())
    await shapes.settled()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert task.cancelled()
    assert hf.tracker.stats("script").cancelled == 1
    assert await consume() == [1]


async def test_leaving_a_plain_generator_early_in_a_coroutine_frees_the_slot(hf: Holdfast) -> None:
    policy = {"concurrency": 1, "max_wait": 0}
    script = Script(ok([1, 2]))

    for _ in range(2):
        items = hf.astream(script.generator, policy=policy)
        assert await anext(items) == 1
        await items.aclose()

    assert hf.tracker.stats("script").successful == 2


# --- what a generator can do besides ---


def test_what_is_sent_reaches_the_tool(hf: Holdfast) -> None:
    @hf.tool
    def echo() -> Generator[object, object, str]:
        heard = yield "ready"
        while heard:
            heard = yield f"heard {heard}"
        return "over"

    items = echo()

    assert next(items) == "ready"
    assert items.send("one") == "heard one"
    assert items.send("two") == "heard two"
    with pytest.raises(StopIteration) as end:
        next(items)
    assert end.value.value == "over"


def patient() -> Generator[object, None, None]:
    for number in range(3):
        try:
            yield number
        except KeyError as error:
            yield error


async def apatient() -> AsyncGenerator[object]:
    for number in range(3):
        try:
            yield number
        except KeyError as error:
            yield error


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_what_is_thrown_reaches_the_tool(hf: Holdfast, timeout: float | None) -> None:
    items = hf.tool("patient", **({} if timeout is None else {"timeout": timeout}))(patient)()
    thrown = KeyError("skip")

    assert [next(items), items.throw(thrown), next(items)] == [0, thrown, 1]
    with pytest.raises(ValueError, match="enough"):
        items.throw(ValueError("enough"))
    assert hf.tracker.stats("patient").successful == 1  # the consumer went away


@pytest.mark.parametrize("tool", [patient, apatient])
@pytest.mark.parametrize("timeout", [{}, {"timeout": 5.0}])
async def test_what_is_thrown_reaches_an_async_tool_and_one_in_a_thread(
    hf: Holdfast, tool: Any, timeout: dict[str, float]
) -> None:
    guarded = hf.tool("patient", **timeout)(tool)
    items = hf.astream(guarded) if tool is patient else guarded()
    thrown = KeyError("skip")

    assert [await anext(items), await items.athrow(thrown), await anext(items)] == [0, thrown, 1]
    with pytest.raises(ValueError, match="enough"):
        await items.athrow(ValueError("enough"))
    assert hf.tracker.stats("patient").successful == 1


def test_what_is_thrown_at_what_takes_nothing_comes_back(hf: Holdfast) -> None:
    items = hf.stream(hf.tool("list")(lambda: [1, 2]))
    next(items)

    with pytest.raises(ValueError, match="enough"):
        items.throw(ValueError("enough"))

    assert hf.tracker.stats("list").successful == 1


def test_what_is_sent_reaches_a_tool_with_a_time_limit(hf: Holdfast) -> None:
    @hf.tool(timeout=5.0)
    def echo() -> Generator[object, object, None]:
        heard = yield "ready"
        yield f"heard {heard}"

    items = echo()
    next(items)

    assert items.send("one") == "heard one"


def test_the_return_value_comes_through_yield_from(hf: Holdfast) -> None:
    @hf.tool
    def counted() -> Generator[int, None, str]:
        yield 1
        return "the end"

    def outer() -> Generator[int, None, None]:
        result = yield from counted()
        yield len(result)

    assert list(outer()) == [1, 7]


def test_an_endless_stream_is_made_item_by_item(stream: Stream, hf: Holdfast) -> None:
    made: list[int] = []

    def generator() -> Iterator[int]:
        while True:
            made.append(len(made))
            yield made[-1]

    async def async_generator() -> AsyncIterator[int]:
        for item in generator():
            yield item

    stream.consume(hf.tool("endless")(async_generator if stream.is_async else generator), nothing, leave_at=3)

    assert made == [0, 1, 2, 3]


def test_a_stream_cannot_be_cached(stream: Stream, hf: Holdfast) -> None:
    with pytest.raises(ConfigError, match="a stream cannot be cached"):
        hf.tool(read_only=True, cache=60.0)(getattr(Script(ok([1])), stream.name))


def test_what_a_file_or_a_call_says_of_a_cache_does_not_reach_a_stream(clock: ManualClock) -> None:
    hf = holdfast.open(":memory:", policies={}, clock=clock)
    script = Script(ok([1, 2]))

    for _ in range(2):
        assert list(hf.stream(script.generator, policy={"read_only": True, "cache": 60.0})) == [1, 2]

    assert script.count == 2


def test_streaming_a_cached_function_leaves_its_cache_alone(hf: Holdfast) -> None:
    script = Script(ok([1, 2]))
    guarded = hf.tool(read_only=True, cache=60.0)(script.function)

    assert list(hf.stream(guarded)) == [1, 2]
    assert guarded() == [1, 2]
    assert script.count == 2


def test_one_record_and_one_event_are_written_when_a_stream_ends(stream: Stream, hf: Holdfast) -> None:
    recorder = Recorder()
    hf.bus.add(recorder)
    seen: list[list[str]] = []

    stream.consume(hf.tool(getattr(Script(ok([1, 2])), stream.name)), lambda item: seen.append(recorder.types()))

    assert seen == [["tool_started"], ["tool_started"]]
    assert recorder.types() == ["tool_started", "tool_ended"]


def test_a_cache_for_all_tools_passes_over_streams(clock: ManualClock) -> None:
    hf = holdfast.open(":memory:", policies={"policy": {"cache": 60.0, "read_only": True}}, clock=clock)
    made: list[int] = []

    @hf.tool
    def numbers() -> Iterator[int]:
        made.append(1)
        yield 1

    assert [list(numbers()), list(numbers())] == [[1], [1]]
    assert len(made) == 2


def test_a_stream_that_is_closed_within_a_step_has_ended_by_then(hf: Holdfast) -> None:
    items = hf.tool("items", concurrency=1, max_wait=0.0)(Script(ok([1, 2]), ok([1, 2])).generator)

    def first_twice() -> list[Any]:
        found = []
        for _ in range(2):
            with contextlib.closing(items()) as stream:
                found.append(next(stream))
        return found

    with hf.run() as run:
        assert run.step("first twice", first_twice) == [1, 1]
