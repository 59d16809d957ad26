"""Spans and metrics in memory, for tests: a real SDK around a Holdfast.

A test file takes the fixture up with `traces = traces_module.traces`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Tracer

import holdfast
from holdfast.telemetry.otel import instrument


class Traces:
    """What was traced and measured so far."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider(sampler=ALWAYS_ON, shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider(metric_readers=[self._reader], shutdown_on_exit=False)

    def of(self, hf: holdfast.Holdfast, *, record_payloads: bool = False) -> None:
        """Trace *hf*."""
        instrument(hf, self.tracers, self.meters, record_payloads=record_payloads)

    @property
    def tracer(self) -> Tracer:
        return self.tracers.get_tracer("the user's own")

    @property
    def spans(self) -> list[ReadableSpan]:
        """Those that have ended, in that order."""
        return list(self._exporter.get_finished_spans())

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.all(name)
        return span

    def points(self, metric: str) -> list[Any]:
        """The data points of a metric."""
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        ]

    def close(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()


@pytest.fixture
def traces() -> Iterator[Traces]:
    made = Traces()
    yield made
    made.close()


def is_child(span: ReadableSpan, of: ReadableSpan) -> bool:
    """Whether *span* is directly below *of*."""
    assert of.context is not None
    return span.parent is not None and (span.parent.trace_id, span.parent.span_id) == (
        of.context.trace_id,
        of.context.span_id,
    )


def facts(span: ReadableSpan) -> dict[str, Any]:
    """The attributes of a span."""
    return dict(span.attributes or {})
