"""The metrics of OpenTelemetry: durations by the conventions for GenAI and MCP, and what these do not define."""

from __future__ import annotations

from typing import Final

from opentelemetry.metrics import Histogram, Meter

from holdfast import events
from holdfast.events import Event
from holdfast.parts.breaker import CircuitBreaker

TOOL: Final = "gen_ai.tool.name"
_GENAI_BOUNDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_MCP_BOUNDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_STATES: Final = {
    events.CIRCUIT_OPENED: "open",
    events.CIRCUIT_HALF_OPENED: "half_open",
    events.CIRCUIT_CLOSED: "closed",
}


class Meters:
    """The meters; also an event sink, which counts what circuits do."""

    def __init__(self, meter: Meter, breaker: CircuitBreaker) -> None:
        self.executions = _seconds(meter, "gen_ai.execute_tool.duration", "Time inside a tool.", _GENAI_BOUNDS)
        self.requests = _seconds(
            meter, "mcp.server.operation.duration", "Time from a client's request to its answer.", _MCP_BOUNDS
        )
        self.onward = _seconds(
            meter, "mcp.client.operation.duration", "Time from a request to a server to its answer.", _MCP_BOUNDS
        )
        self.waits = _seconds(meter, "holdfast.wait.duration", "Time that a call waited for its turn.", _GENAI_BOUNDS)
        self.refusals = meter.create_counter("holdfast.refusals", "{call}", "Calls refused without touching the tool.")
        self.retries = meter.create_counter("holdfast.retries", "{attempt}", "Attempts after a failed one.")
        self.cached = meter.create_counter("holdfast.cached", "{call}", "Calls answered from the cache.")
        self.fallbacks = meter.create_counter("holdfast.fallbacks", "{call}", "Calls that a fallback answered.")
        self._transitions = meter.create_counter(
            "holdfast.circuit.transitions", "{transition}", "Changes of a circuit's state, by the new one."
        )
        self._open = meter.create_up_down_counter("holdfast.circuit.open", "{circuit}", "Circuits that are open.")
        self._breaker = breaker
        self._count_open(1)

    def uncount_open(self) -> None:
        """Uncount the circuits that are open now: from here on nothing counts that they close."""
        self._count_open(-1)

    def __call__(self, event: Event) -> None:
        """Count a circuit's change of state."""
        state = _STATES.get(event.type)
        if state is None or event.tool is None:
            return
        self._transitions.add(1, {TOOL: event.tool, "holdfast.circuit.state": state})
        was_open, is_open = event.payload.get("before") == "open", state == "open"
        if was_open != is_open:
            self._open.add(1 if is_open else -1, {TOOL: event.tool})

    def _count_open(self, each: int) -> None:
        for circuit in self._breaker.snapshot().diagnostics:
            if circuit.state == "open":
                self._open.add(each, {TOOL: circuit.tool})


def _seconds(meter: Meter, name: str, meaning: str, bounds: tuple[float, ...]) -> Histogram:
    return meter.create_histogram(name, "s", meaning, explicit_bucket_boundaries_advisory=list(bounds))
