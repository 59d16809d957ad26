from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from tests import shapes
from tests.shapes import Shape
from tests.telemetry import traces as tracing
from tests.telemetry.traces import Traces, facts, is_child

import holdfast
from holdfast import Holdfast
from holdfast.telemetry.otel import instrument, uninstrument
from holdfast.testing import ManualClock, Script, fail, ok

shape, hf, traces = shapes.shape, shapes.hf, tracing.traces


# --- the span of a call ---


def test_a_call_is_a_span_with_what_the_conventions_require(shape: Shape, hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)
    call = shape(hf, Script(ok([1, 2])))

    call()

    span = traces.one("execute_tool script")
    assert span.kind is SpanKind.INTERNAL
    assert facts(span)["gen_ai.operation.name"] == "execute_tool"
    assert facts(span)["gen_ai.tool.name"] == "script"
    assert facts(span)["gen_ai.tool.call.id"]
    assert "error.type" not in facts(span)
    assert span.status.status_code is StatusCode.UNSET


def test_the_tools_own_spans_are_below_its_call_and_that_is_below_the_callers(
    shape: Shape, hf: Holdfast, traces: Traces
) -> None:
    traces.of(hf)

    def tool() -> list[int]:
        with traces.tracer.start_as_current_span("own"):
            return [1, 2]

    call = shape(hf, tool)

    with traces.tracer.start_as_current_span("caller"):
        call()

    assert is_child(traces.one("own"), traces.one("execute_tool tool"))
    assert is_child(traces.one("execute_tool tool"), traces.one("caller"))


def test_a_span_is_no_longer_current_when_the_call_is_over(shape: Shape, hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)
    call = shape(hf, Script(ok([1]), fail(ValueError("x"))))

    with traces.tracer.start_as_current_span("caller") as caller:
        call()
        with pytest.raises(ValueError, match="x"):
            call()

        assert trace.get_current_span() is caller


def test_between_two_items_of_a_stream_the_consumers_span_is_current(hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)

    @hf.tool()
    def count() -> Iterator[int]:
        for number in range(2):
            with traces.tracer.start_as_current_span(f"item {number}"):
                pass
            yield number

    with traces.tracer.start_as_current_span("consumer") as consumer:
        for _ in count():
            assert trace.get_current_span() is consumer

    for number in range(2):
        assert is_child(traces.one(f"item {number}"), traces.one("execute_tool count"))


async def test_between_two_items_of_an_async_stream_the_consumers_span_is_current(hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)

    @hf.tool()
    async def count() -> AsyncIterator[int]:
        for number in range(2):
            with traces.tracer.start_as_current_span(f"item {number}"):
                await asyncio.sleep(0)
            yield number

    with traces.tracer.start_as_current_span("consumer") as consumer:
        async for _ in count():
            assert trace.get_current_span() is consumer

    for number in range(2):
        assert is_child(traces.one(f"item {number}"), traces.one("execute_tool count"))


def test_a_function_that_runs_in_a_thread_has_its_span_there(hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)

    @hf.tool(timeout=30.0)
    def tool() -> None:
        with traces.tracer.start_as_current_span("own"):
            pass

    tool()
    asyncio.run(hf.acall(tool))

    calls = traces.all("execute_tool tool")
    assert [is_child(own, call) for own, call in zip(traces.all("own"), calls, strict=True)] == [True, True]


def test_a_guarded_block_is_a_span_too(hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)

    async def block() -> None:
        async with hf.guard("async block"):
            with traces.tracer.start_as_current_span("async own"):
                pass

    with hf.guard("block"), traces.tracer.start_as_current_span("own"):
        pass
    asyncio.run(block())

    assert is_child(traces.one("own"), traces.one("execute_tool block"))
    assert is_child(traces.one("async own"), traces.one("execute_tool async block"))


def test_tools_that_call_tools_nest(hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)

    @hf.tool()
    def inner() -> int:
        return 1

    @hf.tool()
    async def outer() -> int:
        return inner()

    asyncio.run(outer())

    assert is_child(traces.one("execute_tool inner"), traces.one("execute_tool outer"))


async def test_calls_side_by_side_keep_their_own_spans(hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)

    @hf.tool()
    async def tool(name: str) -> None:
        await asyncio.sleep(0)
        with traces.tracer.start_as_current_span(name):
            await asyncio.sleep(0)

    async def agent(name: str) -> None:
        with traces.tracer.start_as_current_span(f"agent {name}"):
            await tool(name)

    await asyncio.gather(*(agent(name) for name in "abc"))

    for name in "abc":
        call = next(span for span in traces.all("execute_tool tool") if is_child(traces.one(name), span))
        assert is_child(call, traces.one(f"agent {name}"))


# --- what goes wrong ---


def test_a_failure_has_its_type_and_its_category(shape: Shape, hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)
    call = shape(hf, Script(fail(ConnectionError("gone"))))

    with pytest.raises(ConnectionError):
        call()

    span = traces.one("execute_tool script")
    assert facts(span)["error.type"] == "ConnectionError"
    assert facts(span)["holdfast.error.category"] == "network"
    assert facts(span)["holdfast.outcome"] == "failed"
    assert span.status.status_code is StatusCode.ERROR
    assert "gone" in (span.status.description or "")


def test_attempts_are_events_of_one_span(shape: Shape, hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)
    call = shape(hf, Script(fail(ConnectionError("one")), fail(ConnectionError("two")), ok([3])), idempotent=True)

    call()

    span = traces.one("execute_tool script")
    failed = [dict(event.attributes or {}) for event in span.events if event.name == "holdfast.attempt_failed"]
    assert [each["holdfast.attempt"] for each in failed] == [1, 2]
    assert all(each["error.type"] == "ConnectionError" and each["holdfast.retry.delay"] >= 0 for each in failed)
    assert facts(span)["holdfast.attempts"] == 3
    assert facts(span)["holdfast.outcome"] == "success"
    assert [point.value for point in traces.points("holdfast.retries")] == [2]


def test_a_retry_that_is_refused_is_none(shape: Shape, hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)
    script = Script(fail(ConnectionError("one")), ok([2]))
    call = shape(hf, script, idempotent=True, breaker={"failure_threshold": 1})

    with pytest.raises(ConnectionError):
        call()

    assert not traces.points("holdfast.retries")


def test_a_refusal_is_a_span_that_says_who_refused(shape: Shape, hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)
    call = shape(hf, Script(fail(ConnectionError("x"))), breaker={"failure_threshold": 1, "jitter": 0.0})
    with pytest.raises(ConnectionError):
        call()

    with pytest.raises(holdfast.CircuitOpen):
        call()

    span = traces.all("execute_tool script")[-1]
    assert facts(span)["error.type"] == "CircuitOpen"
    assert facts(span)["holdfast.outcome"] == "denied"
    assert facts(span)["holdfast.retry_after"] == 5.0
    assert span.status.status_code is StatusCode.ERROR
    (point,) = traces.points("holdfast.refusals")
    assert (point.value, dict(point.attributes)) == (1, {"gen_ai.tool.name": "script", "error.type": "CircuitOpen"})


def test_a_wait_for_the_limiter_is_in_the_span_and_measured(hf: Holdfast, traces: Traces, clock: ManualClock) -> None:
    traces.of(hf)
    call = hf.tool("paced", rate={"per_second": 1.0, "burst": 1})(lambda: None)

    call()
    call()

    span = traces.all("execute_tool paced")[1]
    assert facts(span)["holdfast.wait.duration"] == 1.0
    assert [event.name for event in span.events] == ["holdfast.admitted"]
    (point,) = traces.points("holdfast.wait.duration")
    assert (point.count, point.sum) == (1, 1.0)


def test_a_call_that_is_let_in_at_once_has_not_waited(traces: Traces) -> None:
    with holdfast.open(":memory:", policies={}) as hf:  # on the system's clock, which moves on all the time
        traces.of(hf)

        hf.tool("quick")(lambda: None)()

    (span,) = traces.all("execute_tool quick")
    assert facts(span)["holdfast.wait.duration"] == 0.0
    assert not span.events
    assert not traces.points("holdfast.wait.duration")


def test_durations_are_told_apart_in_parts_of_a_second(hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)

    hf.tool("quick")(lambda: None)()

    (point,) = traces.points("gen_ai.execute_tool.duration")
    assert point.explicit_bounds[0] == 0.01


def test_the_key_of_a_traced_stream_is_not_that_of_who_reads_it(hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)

    @hf.tool("items")
    def items() -> Iterator[str | None]:
        yield run.idempotency_key
        yield run.idempotency_key

    with hf.run() as run:
        for inside in items():
            assert (inside is None, run.idempotency_key) == (False, None)


def test_a_timeout_says_so(traces: Traces) -> None:
    async def main() -> None:
        with holdfast.open(":memory:", policies={}) as hf:
            traces.of(hf)

            @hf.tool(timeout=0.001)
            async def slow() -> None:
                await asyncio.Event().wait()

            with pytest.raises(holdfast.ToolTimeout):
                await slow()

    asyncio.run(main())

    assert facts(traces.one("execute_tool slow"))["error.type"] == "ToolTimeout"
    assert facts(traces.one("execute_tool slow"))["holdfast.outcome"] == "timed_out"


async def test_a_cancelled_call_is_no_error(hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)
    begun = asyncio.Event()

    @hf.tool()
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(endless())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    span = traces.one("execute_tool endless")
    assert facts(span)["holdfast.outcome"] == "cancelled"
    assert "error.type" not in facts(span)
    assert traces.points("gen_ai.execute_tool.duration") == []


def test_a_fallback_is_named_and_has_a_span_of_its_own(hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)
    hf.tool("other")(lambda: 2)

    @hf.tool(fallback={"tool": "other"})
    def first() -> int:
        raise ConnectionError

    with traces.tracer.start_as_current_span("caller"):
        assert first() == 2

    assert facts(traces.one("execute_tool first"))["holdfast.fallback"] == "other"
    assert is_child(traces.one("execute_tool other"), traces.one("caller"))


def test_an_answer_by_a_fixed_value_is_marked_and_counted(hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)

    @hf.tool(fallback={"value": 2})
    def first() -> int:
        raise ConnectionError

    assert first() == 2

    assert facts(traces.one("execute_tool first"))["holdfast.fallback"] == "a fixed value"
    assert [point.value for point in traces.points("holdfast.fallbacks")] == [1]


# --- what is measured ---


def test_durations_are_in_seconds_by_tool_and_error(hf: Holdfast, traces: Traces, clock: ManualClock) -> None:
    traces.of(hf)

    @hf.tool()
    def tool(by: int) -> float:
        clock.advance(0.5)
        return 1 / by

    tool(1)
    with pytest.raises(ZeroDivisionError):
        tool(0)

    good, bad = sorted(traces.points("gen_ai.execute_tool.duration"), key=lambda point: len(point.attributes))
    assert (good.count, good.sum) == (1, 0.5)
    assert dict(good.attributes) == {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "tool"}
    assert bad.attributes["error.type"] == "ZeroDivisionError"


def test_a_cached_answer_is_marked_and_not_measured_as_an_execution(hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)
    tool = hf.tool("fact", read_only=True, cache=60.0)(lambda: 1)

    tool()
    tool()

    made, cached = traces.all("execute_tool fact")
    assert "holdfast.cached" not in facts(made)
    assert facts(cached)["holdfast.cached"] is True
    assert [point.count for point in traces.points("gen_ai.execute_tool.duration")] == [1]
    assert [point.value for point in traces.points("holdfast.cached")] == [1]


def test_circuits_are_counted_as_they_change(hf: Holdfast, traces: Traces, clock: ManualClock) -> None:
    hf.breaker.force_open("before")
    traces.of(hf)
    script = Script(fail(ConnectionError("x")), ok(1))
    tool = hf.tool("t", breaker={"failure_threshold": 1, "jitter": 0.0})(script.function)
    with pytest.raises(ConnectionError):
        tool()

    def open_now() -> dict[str, int]:
        return {point.attributes["gen_ai.tool.name"]: point.value for point in traces.points("holdfast.circuit.open")}

    opened = open_now()
    clock.advance(6.0)
    tool()

    assert opened == {"before": 1, "t": 1}
    assert open_now() == {"before": 1, "t": 0}
    states = {point.attributes["holdfast.circuit.state"] for point in traces.points("holdfast.circuit.transitions")}
    assert states == {"open", "half_open", "closed"}


# --- arguments and results ---


def test_payloads_are_recorded_only_if_asked_for(shape: Shape, hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)
    shape(hf, lambda city: [city])("Kyiv")

    (span,) = traces.spans
    assert "Kyiv" not in str(facts(span))


def test_payloads_that_are_recorded_are_redacted(hf: Holdfast, traces: Traces) -> None:
    traces.of(hf, record_payloads=True)

    @hf.tool()
    def login(user: str, password: str) -> dict[str, str]:
        return {"user": user, "token": "abc"}

    login("ann", password="hunter2")

    found = facts(traces.one("execute_tool login"))
    assert '"user":"ann"' in found["gen_ai.tool.call.arguments"]
    assert "hunter2" not in found["gen_ai.tool.call.arguments"]
    assert '"user":"ann"' in found["gen_ai.tool.call.result"]
    assert "abc" not in found["gen_ai.tool.call.result"]


def test_the_object_of_a_method_is_recorded_by_its_type_alone(hf: Holdfast, traces: Traces) -> None:
    traces.of(hf, record_payloads=True)

    @dataclasses.dataclass
    class Client:
        address: str

        @hf.tool("ask")
        def ask(self, what: str) -> str:
            return what

    Client("postgres://u:hunter2@h").ask("a")

    assert "hunter2" not in facts(traces.one("execute_tool ask"))["gen_ai.tool.call.arguments"]


# --- on, off, and in trouble ---


def test_without_telemetry_calls_take_the_quick_path_and_with_it_they_do_not(hf: Holdfast, traces: Traces) -> None:
    hf.tool("t")(lambda: None)()
    tool = hf._box.tool("t")
    plans = [tool.plan]

    traces.of(hf)
    plans.append(tool.plan)
    uninstrument(hf)
    plans.append(tool.plan)

    assert [plan is not None for plan in plans] == [True, False, True]


def test_after_uninstrument_nothing_is_traced_and_it_may_begin_again(hf: Holdfast, traces: Traces) -> None:
    tool = hf.tool("t")(lambda: None)
    traces.of(hf)
    uninstrument(hf)
    uninstrument(hf)

    tool()
    assert traces.spans == []
    traces.of(hf)
    tool()

    assert len(traces.spans) == 1


def test_an_open_circuit_is_counted_once_however_often_telemetry_is_switched_off_and_on(
    hf: Holdfast, traces: Traces
) -> None:
    hf.breaker.force_open("t")
    counts = []

    for _ in range(2):
        traces.of(hf)
        counts += [point.value for point in traces.points("holdfast.circuit.open")]
        uninstrument(hf)
        counts += [point.value for point in traces.points("holdfast.circuit.open")]

    assert counts == [1, 0, 1, 0]


def test_instrumenting_twice_is_an_error(hf: Holdfast, traces: Traces) -> None:
    traces.of(hf)

    with pytest.raises(holdfast.ConfigError, match="uninstrument"):
        traces.of(hf)


def test_without_providers_the_programs_own_are_used(hf: Holdfast) -> None:
    instrument(hf)  # none is set up: spans lead nowhere

    assert hf.tool("t")(lambda: 1)() == 1


class Broken(SpanProcessor):
    def __init__(self, when: str) -> None:
        self._when = when

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        if self._when == "start":
            raise RuntimeError("broken")

    def on_end(self, span: ReadableSpan) -> None:
        if self._when == "end":
            raise RuntimeError("broken")


@pytest.mark.parametrize("when", ["start", "end"])
def test_telemetry_that_fails_is_logged_and_no_call_notices(
    shape: Shape, hf: Holdfast, traces: Traces, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    traces.of(hf)
    traces.tracers.add_span_processor(Broken(when))
    call = shape(hf, Script(ok([1]), fail(ValueError("mine"))))

    answer = call()
    with pytest.raises(ValueError, match="mine"):
        call()

    assert answer == [1]
    assert "telemetry failed" in caplog.text


def test_importing_holdfast_does_not_import_opentelemetry() -> None:
    import subprocess

    code = "import sys, holdfast; holdfast.open(':memory:', policies={}); print('opentelemetry' in sys.modules)"

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert said == "False\n"


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith("holdfast.telemetry."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    with pytest.raises(ImportError, match=r"holdfast\[otel\]"):
        __import__("holdfast.telemetry.otel")
