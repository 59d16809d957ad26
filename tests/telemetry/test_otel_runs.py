from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode
from tests.runs import durable
from tests.runs.durable import Place
from tests.telemetry import traces as tracing
from tests.telemetry.traces import Traces, facts, is_child

import holdfast
from holdfast import Holdfast
from holdfast.telemetry.otel import TRACED

place, traces = durable.place, tracing.traces


def test_a_run_is_a_span_and_its_calls_are_below_it(place: Place, traces: Traces) -> None:
    hf = place.open()
    traces.of(hf)
    tool = hf.tool("t")(lambda: 1)

    with traces.tracer.start_as_current_span("caller") as caller:
        with hf.run("session", "prompt") as run:
            tool()
        assert trace.get_current_span() is caller

    span = traces.one("run")
    assert is_child(traces.one("execute_tool t"), span)
    assert is_child(span, traces.one("caller"))
    assert facts(span)["holdfast.run.id"] == run.id
    assert facts(span)["gen_ai.conversation.id"] == "session"
    assert facts(traces.one("execute_tool t"))["holdfast.run.id"] == run.id


async def test_the_same_in_a_task(place: Place, traces: Traces) -> None:
    hf = place.open()
    traces.of(hf)

    @hf.tool()
    async def tool() -> None:
        await asyncio.sleep(0)

    async with hf.run():
        await asyncio.gather(tool(), tool())

    assert [is_child(span, traces.one("run")) for span in traces.all("execute_tool tool")] == [True, True]


def test_a_run_that_fails_is_a_span_that_failed(place: Place, traces: Traces) -> None:
    hf = place.open()
    traces.of(hf)

    with pytest.raises(ValueError, match="x"), hf.run():
        raise ValueError("x")

    assert facts(traces.one("run"))["error.type"] == "ValueError"
    assert traces.one("run").status.status_code is StatusCode.ERROR


def test_a_resumed_run_is_linked_to_the_trace_it_began_in(place: Place, traces: Traces) -> None:
    run_id = interrupted(place, traces)
    began = traces.one("run").context
    hf = place.open()
    traces.of(hf)

    with hf.resume(run_id):
        pass

    resumed = traces.all("run")[1]
    assert resumed.context is not None
    assert began is not None
    (link,) = resumed.links
    assert (link.context.trace_id, link.context.span_id) == (began.trace_id, began.span_id)
    assert resumed.context.trace_id != began.trace_id
    assert facts(resumed)["holdfast.run.resumed"] is True


def test_a_run_made_of_one_that_failed_is_linked_to_that(place: Place, traces: Traces) -> None:
    hf = place.open()
    traces.of(hf)
    with pytest.raises(ValueError, match="x"), hf.run() as run:
        raise ValueError("x")

    with hf.resume(run.id):
        pass

    began = traces.all("run")[0].context
    (link,) = traces.all("run")[1].links
    assert began is not None
    assert link.context.span_id == began.span_id


def test_a_call_that_is_answered_from_the_log_is_no_span(place: Place, traces: Traces) -> None:
    run_id = interrupted(place, traces)
    before = len(traces.all("execute_tool t"))
    hf = place.open()
    traces.of(hf)
    tool = hf.tool("t")(lambda: 1)

    with hf.resume(run_id):
        assert tool() == 1

    assert len(traces.all("execute_tool t")) == before == 1
    assert [point.count for point in traces.points("gen_ai.execute_tool.duration")] == [1]


def test_where_the_trace_is_stands_among_the_runs_events(place: Place, traces: Traces) -> None:
    hf = place.open()
    traces.of(hf)

    with hf.run() as run:
        pass

    (event,) = [event for event in run.events() if event.type == TRACED]
    context = traces.one("run").context
    assert context is not None
    where = f"{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert event.payload["traceparent"] == f"00-{where}"


def test_a_run_that_was_not_traced_can_be_resumed_with_tracing(place: Place, traces: Traces) -> None:
    run_id = interrupted(place, None)
    hf = place.open()
    traces.of(hf)

    with hf.resume(run_id):
        pass

    assert traces.one("run").links == ()


def test_a_noted_run_is_no_span(traces: Traces) -> None:
    with holdfast.open(":memory:", policies={}) as hf:
        traces.of(hf)
        tool = hf.tool("t")(lambda: 1)

        with hf.note("proxy"):
            tool()

    assert traces.all("run") == []
    assert traces.one("execute_tool t").parent is None


def interrupted(place: Place, traces: Traces | None) -> str:
    """A run that was stopped after one call."""
    hf: Holdfast = place.open()
    if traces is not None:
        traces.of(hf)
    tool = hf.tool("t")(lambda: 1)
    with suppress(KeyboardInterrupt), hf.run() as run:
        tool()
        raise KeyboardInterrupt
    return run.id
