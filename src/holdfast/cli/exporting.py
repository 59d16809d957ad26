"""Telemetry of long-running commands: on if OpenTelemetry's environment variables name an exporter.

Trouble with it is reported on stderr, and the command goes on: no tool may depend on its telemetry.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from holdfast.cli.showing import say
from holdfast.clock import SystemClock
from holdfast.errors import in_words

if TYPE_CHECKING:
    from holdfast.app import Holdfast

PATIENCE = 3.0  # seconds to send the rest at the end: a client that stops a proxy does not wait for long
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_{}_ENDPOINT")
_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


@contextmanager
def exporting(hf: Holdfast) -> Iterator[None]:
    """Trace and measure the calls of *hf*, if the environment names an exporter; on leaving, send what is left."""
    traces, metrics = _wanted("TRACES"), _wanted("METRICS")
    if (not traces and not metrics) or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        yield
        return
    try:
        providers = _providers(traces, metrics)
        from holdfast.telemetry.otel import instrument

        instrument(hf, *providers)
    except Exception as error:  # OpenTelemetry and exporters may raise anything if a variable is wrong
        why = error.args[0] if isinstance(error, ImportError | LookupError) else in_words(error)
        say(f"no telemetry: {why}")
        yield
        return
    try:
        yield
    finally:
        _send_rest(providers)


def _send_rest(providers: Sequence[Any]) -> None:
    """Send what is left, unless it takes too long."""
    senders = [
        threading.Thread(target=_shut, args=(each,), name="holdfast-exporting", daemon=True) for each in providers
    ]
    for sender in senders:
        sender.start()
    end = SystemClock.monotonic() + PATIENCE
    for sender in senders:
        sender.join(max(0.0, end - SystemClock.monotonic()))
    if any(sender.is_alive() for sender in senders):
        say(f"telemetry took too long: the last of it was not sent within {PATIENCE:g} s")


def _shut(provider: Any) -> None:
    try:
        provider.shutdown()
    except Exception as error:  # an exporter is foreign code and may raise anything
        say(f"the last telemetry was not sent: {in_words(error)}")


def _wanted(signal: str) -> list[str]:
    """The exporters for TRACES or METRICS; an address alone means OTLP."""
    named = os.environ.get(f"OTEL_{signal}_EXPORTER")
    if named is None:
        return ["otlp"] if any(os.environ.get(name.format(signal)) for name in _ENDPOINTS) else []
    return [name for each in named.split(",") if (name := each.strip()) and name != "none"]


def _providers(traces: list[str], metrics: list[str]) -> tuple[Any, Any]:
    try:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ImportError("it needs an extra: pip install 'holdfast[otel]'") from error
    spans = [BatchSpanProcessor(_exporter("TRACES", name)) for name in traces]
    readers = [PeriodicExportingMetricReader(_exporter("METRICS", name)) for name in metrics]
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {"service.name": "holdfast"})
    tracing = TracerProvider(resource=resource, shutdown_on_exit=False)
    for processor in spans:
        tracing.add_span_processor(processor)
    return tracing, MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)


def _exporter(signal: str, name: str) -> Any:
    if name == "console":  # to stderr: stdout belongs to the MCP client
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr) if signal == "TRACES" else ConsoleMetricExporter(out=sys.stderr)
    names = [name]
    if name == "otlp":
        asked = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        names = [_PROTOCOLS.get(asked, asked)] if asked else list(_PROTOCOLS.values())
    for wanted in names:
        for found in entry_points(group=f"opentelemetry_{signal.lower()}_exporter", name=wanted):
            return found.load()()
    package = "pip install opentelemetry-exporter-otlp" if name == "otlp" else "is it installed?"
    raise LookupError(f"there is no exporter {name!r} for {signal.lower()}: {package}")
