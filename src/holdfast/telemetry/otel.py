"""OpenTelemetry: spans and metrics of calls and runs, by the conventions for GenAI and MCP.

A span is current while the tool's own code runs, so what the tool traces itself is below it. An error in here is
logged, and never reaches a call. Without `instrument`, none of this is imported, and calls cost nothing extra.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from holdfast.bus import Bus, Call, Run, WatchedCall, WatchedRun
from holdfast.clock import Clock
from holdfast.errors import ConfigError, HoldfastError
from holdfast.parts.breaker import CircuitBreaker
from holdfast.stores import RunStore

try:
    from opentelemetry import context, metrics, trace
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, SpanContext, Tracer, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError("telemetry needs an extra: pip install 'holdfast[otel]'") from error

from holdfast.telemetry.meters import Meters
from holdfast.telemetry.spans import CallSpan, Instruments, fail, quietly, type_of

TRACED: Final = "run_traced"  # the event of a run that holds the context of its trace
EARLY: Final = 32  # first events of a run, among which that one is searched for

_log = logging.getLogger("holdfast")
_W3C: Final = TraceContextTextMapPropagator()


class Instrumented(Protocol):
    """The part of a Holdfast that is needed here."""

    @property
    def bus(self) -> Bus: ...
    @property
    def breaker(self) -> CircuitBreaker: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def runs(self) -> RunStore: ...


def instrument(
    hf: Instrumented,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    record_payloads: bool = False,
) -> None:
    """Trace and measure the calls and runs of *hf* from now on; without providers, with the program's global ones.

    *record_payloads* puts arguments and results into the spans, redacted as in events.
    """
    if hf.bus.watcher is not None:
        raise ConfigError("it is instrumented already: call uninstrument first")
    tracer = (tracer_provider or trace.get_tracer_provider()).get_tracer("holdfast")
    meters = Meters((meter_provider or metrics.get_meter_provider()).get_meter("holdfast"), hf.breaker)

    def shown(value: object) -> str:
        return bytes(hf.runs.payloads.shown(value)).decode()

    hf.bus.add(meters)
    hf.bus.watch(Tracing(Instruments(tracer, meters, hf.clock, shown if record_payloads else None), hf.runs))


def uninstrument(hf: Instrumented) -> None:
    """Undo `instrument`; harmless if nothing is instrumented."""
    if isinstance(tracing := hf.bus.watcher, Tracing):
        hf.bus.watch(None)
        hf.bus.remove(tracing.meters)
        quietly(tracing.meters.uncount_open)


class Tracing:
    """Makes spans of calls and runs."""

    def __init__(self, instruments: Instruments, store: RunStore) -> None:
        self.meters = instruments.meters
        self._instruments = instruments
        self._store = store

    def call(self, call: Call) -> WatchedCall | None:
        """Begin the span of a call; None if that fails."""
        return quietly(CallSpan, self._instruments, call)

    def run(self, run: Run, *, resumed: bool) -> WatchedRun | None:
        """Begin the span of a run; None if that fails."""
        return quietly(RunSpan, self._instruments.tracer, self._store, run, resumed=resumed)


# -- runs --------------------------------------------------------------------------------------------------------------


class RunSpan:
    """The span of a run, current until the run is left; that of a resumed run is linked to where the run began."""

    def __init__(self, tracer: Tracer, store: RunStore, run: Run, *, resumed: bool) -> None:
        origin = _began(store, run) if resumed else None
        attributes = {"holdfast.run.id": run.id, "gen_ai.conversation.id": run.session_id}
        links = [] if origin is None else [Link(origin)]
        span = tracer.start_span("run", attributes=attributes, links=links)
        span.set_attribute("holdfast.run.resumed", resumed)
        here = trace.set_span_in_context(span)
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, here)
        if carrier:
            run.emit(TRACED, **carrier)
        self._span: Span | None = span
        self._token = context.attach(here)

    def end(self, error: BaseException | None, *, here: bool) -> None:
        """End the span; not *here*, if the run is left in another task or thread than it was entered in."""
        if (span := self._span) is None:
            return
        self._span = None
        if here:
            context.detach(self._token)
        if isinstance(error, Exception):
            fail(span, type_of(error), error)
        quietly(span.end)


def _began(store: RunStore, run: Run) -> SpanContext | None:
    """Return where a resumed run, or the run it was forked from, was traced before, if it was."""
    for id in (run.id, run.forked_from):
        try:
            events = store.event_page(id, -1, EARLY).events if id is not None else []
        except HoldfastError as error:
            _log.warning("the trace of a run could not be found: %s", error)
            return None
        for event in events:
            if event.type == TRACED:
                found = trace.get_current_span(_W3C.extract(event.payload)).get_span_context()
                return found if found.is_valid else None
    return None
