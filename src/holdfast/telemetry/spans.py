"""Spans of calls: one for the call as a whole, current while the tool's own code runs; attempts and waits are events.

A call that a client makes through a proxy has two kinds of spans, as the MCP conventions say: one for the client's
request (SERVER), and within it one for each request to the server behind the proxy (CLIENT).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, NamedTuple, ParamSpec, TypeVar

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from holdfast.bus import Call, Origin, Verdict
from holdfast.clock import Clock
from holdfast.errors import Denied, HoldfastError, in_words
from holdfast.mcp.answers import ToolFailed
from holdfast.telemetry.meters import TOOL, Meters

ERROR: Final = "error.type"
METHOD: Final = "tools/call"
P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger("holdfast")
_FAILED: Final = ("failed", "timed_out", "denied")


class Instruments(NamedTuple):
    """What spans are made with; *shown* gives the redacted JSON of arguments and results, None if not wanted."""

    tracer: Tracer
    meters: Meters
    clock: Clock
    shown: Callable[[object], str] | None


def quietly(fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Call *fn*; if it fails, log the error and return None."""
    try:
        return fn(*args, **kwargs)
    except Exception:
        _log.exception("telemetry failed")
        return None


def _quiet(fn: Callable[P, None]) -> Callable[P, None]:
    def called(*args: P.args, **kwargs: P.kwargs) -> None:
        quietly(fn, *args, **kwargs)

    return called


class CallSpan:
    """The span of one call; once it is made, none of its errors reaches the call."""

    __slots__ = ("_begun", "_call", "_instruments", "_origin", "_span")

    def __init__(self, instruments: Instruments, call: Call) -> None:
        self._instruments = instruments
        self._call = call
        self._origin = call.origin
        self._begun = instruments.clock.monotonic()
        attributes: dict[str, str] = {"gen_ai.operation.name": "execute_tool", TOOL: call.tool.name}
        if call.run_id is not None:
            attributes["holdfast.run.id"] = call.run_id
        if self._origin is None:
            attributes["gen_ai.tool.type"] = "function"
            self._span = instruments.tracer.start_span(f"execute_tool {call.tool.name}", attributes=attributes)
        else:
            self._span = _asked(instruments.tracer, self._origin, attributes)
            # Never detached, since the task is this call's alone: a fallback tool's call is part of the request, too.
            context.attach(trace.set_span_in_context(self._span))
        if instruments.shown is not None and (arguments := call.told()) is not None:
            self._span.set_attribute("gen_ai.tool.call.arguments", instruments.shown(arguments))

    def inside(self, inner: AbstractContextManager[None]) -> AbstractContextManager[None]:
        """Return a context manager for the tool's own code, in which the span is current."""
        if self._origin is None:
            return _Current(self._span, inner)
        return quietly(_Onward, self._instruments, self._origin, self._span, inner) or inner

    @_quiet
    def admitted(self) -> None:
        """Note that an attempt was admitted; the first one only if it had to wait."""
        call = self._call
        if call.attempts > 1:
            self._instruments.meters.retries.add(1, {TOOL: call.tool.name})
        if call.waited or call.attempts > 1:
            facts = {"holdfast.attempt": call.attempts, "holdfast.wait.duration": call.waited}
            self._span.add_event("holdfast.admitted", facts)

    @_quiet
    def failed(self, error: BaseException, category: str, retry_in: float | None) -> None:
        """Note that an attempt failed."""
        facts: dict[str, str | int | float] = {
            "holdfast.attempt": self._call.attempts,
            ERROR: type_of(error),
            "holdfast.error.category": str(category),
        }
        if retry_in is not None:
            facts["holdfast.retry.delay"] = retry_in
        self._span.add_event("holdfast.attempt_failed", facts)

    def carried(self, id: str) -> Mapping[str, str]:
        """Return the trace context to send along with the request *id*."""
        return quietly(_carried, id) or {}

    @_quiet
    def end(self, error: BaseException | None, verdict: Verdict) -> None:
        """Record how the call ended, and measure it."""
        call, span = self._call, self._span
        span.set_attribute("gen_ai.tool.call.id", str(call.call_id))
        span.set_attribute("holdfast.outcome", verdict.status)
        span.set_attribute("holdfast.attempts", call.attempts)
        span.set_attribute("holdfast.wait.duration", call.waited)
        if verdict.cached:
            span.set_attribute("holdfast.cached", True)
        if verdict.category is not None:
            span.set_attribute("holdfast.error.category", str(verdict.category))
        if call.substitute is not None:
            span.set_attribute("holdfast.fallback", call.substitute)
        failure = None
        if verdict.status in _FAILED:
            failure = type_of(error) if error is not None else str(verdict.category)
            fail(span, failure, error)
            if isinstance(error, Denied) and error.retry_after is not None:
                span.set_attribute("holdfast.retry_after", error.retry_after)
        elif self._instruments.shown is not None and verdict.status == "success" and call.value is not None:
            span.set_attribute("gen_ai.tool.call.result", self._instruments.shown(call.value))
        span.end()
        self._measure(verdict, failure)

    def _measure(self, verdict: Verdict, failure: str | None) -> None:
        call, meters = self._call, self._instruments.meters
        tool = {TOOL: call.tool.name}
        kind = {} if failure is None else {ERROR: failure}
        if self._origin is not None:
            seconds = self._instruments.clock.monotonic() - self._begun
            meters.requests.record(seconds, {**_measured(self._origin, self._origin.transport), **kind})
        if verdict.status == "denied":
            meters.refusals.add(1, {**tool, **kind})
        elif verdict.cached:
            meters.cached.add(1, tool)
        elif verdict.status != "cancelled" and self._origin is None:
            meters.executions.record(verdict.spent, {"gen_ai.operation.name": "execute_tool", **tool, **kind})
        if call.substitute is not None:
            meters.fallbacks.add(1, tool)
        if call.waited:
            meters.waits.record(call.waited, tool)


def type_of(error: BaseException) -> str:
    """Return what the conventions call `error.type`: one of few values, the same for the same kind of trouble."""
    if isinstance(error, ToolFailed):
        return "tool_error" if error.code is None else str(error.code)
    kind = type(error)
    if kind.__module__ == "builtins" or isinstance(error, HoldfastError):
        return kind.__name__
    return f"{kind.__module__}.{kind.__qualname__}"


class _Current:
    """Makes a span the current one."""

    __slots__ = ("_inner", "_span", "_token")

    def __init__(self, span: Span, inner: AbstractContextManager[None]) -> None:
        self._span = span
        self._inner = inner

    def __enter__(self) -> None:
        self._token = context.attach(trace.set_span_in_context(self._span))
        self._inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, traceback)
        context.detach(self._token)


class _Onward:
    """The span of one request to the server behind the proxy."""

    __slots__ = ("_begun", "_current", "_instruments", "_origin", "_span")

    def __init__(
        self, instruments: Instruments, origin: Origin, outer: Span, inner: AbstractContextManager[None]
    ) -> None:
        self._instruments = instruments
        self._origin = origin
        self._begun = instruments.clock.monotonic()
        self._span = instruments.tracer.start_span(
            f"{METHOD} {origin.tool}",
            trace.set_span_in_context(outer),
            SpanKind.CLIENT,
            attributes={**_measured(origin, origin.onward), "holdfast.server.name": origin.server},
        )
        self._current = _Current(self._span, inner)

    def __enter__(self) -> None:
        self._current.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._current.__exit__(kind, error, traceback)
        quietly(self._end, error)

    def _end(self, error: BaseException | None) -> None:
        attributes = _measured(self._origin, self._origin.onward)
        if error is not None and not _is_question(error):
            attributes[ERROR] = type_of(error) if isinstance(error, Exception) else "cancelled"
            fail(self._span, attributes[ERROR], error)
        self._span.end()
        self._instruments.meters.onward.record(self._instruments.clock.monotonic() - self._begun, attributes)


def _asked(tracer: Tracer, origin: Origin, attributes: dict[str, str]) -> Span:
    """Return the span of a client's request: in the client's trace, if it sent one, and linked to the current span."""
    ambient = trace.get_current_span().get_span_context()
    # An empty context, since some propagators would otherwise begin with the current span.
    parent = propagate.extract(origin.carried, context=Context())
    links = [Link(ambient)] if ambient.is_valid else []
    more = {"jsonrpc.request.id": origin.id, "holdfast.server.name": origin.server}
    known = {**attributes, **_measured(origin, origin.transport), **more}
    return tracer.start_span(f"{METHOD} {origin.tool}", parent, SpanKind.SERVER, attributes=known, links=links)


def _carried(id: str) -> dict[str, str]:
    carrier: dict[str, str] = {}
    trace.get_current_span().set_attribute("jsonrpc.request.id", id)
    propagate.inject(carrier)
    return carrier


def _measured(origin: Origin, transport: str) -> dict[str, str]:
    """Return the attributes that spans and metrics of a request share."""
    attributes = {
        "mcp.method.name": METHOD,
        "gen_ai.operation.name": "execute_tool",
        TOOL: origin.tool,
        "network.transport": transport,
    }
    if origin.protocol is not None:
        attributes["mcp.protocol.version"] = origin.protocol
    return attributes


def _is_question(error: BaseException) -> bool:
    """True if the server only asks for something first."""
    return isinstance(error, ToolFailed) and error.category == "cancelled"


def fail(span: Span, kind: str, error: BaseException | None) -> None:
    """Mark *span* as failed, with this *kind* of error."""
    span.set_attribute(ERROR, kind)
    if isinstance(error, ToolFailed) and error.code is not None:
        span.set_attribute("rpc.response.status_code", str(error.code))
    span.set_status(Status(StatusCode.ERROR, None if error is None else in_words(error)))
