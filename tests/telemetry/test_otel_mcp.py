"""A client, the proxy and a server that says what it was sent: spans end to end, over real pipes."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import propagate
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from tests.telemetry import traces as tracing
from tests.telemetry.traces import Traces, facts, is_child

import holdfast
from holdfast.cli import exporting
from holdfast.mcp import frames
from holdfast.mcp.answers import ASKS_FIRST
from holdfast.mcp.proxy import wrap
from holdfast.mcp.server import DEFAULTS
from holdfast.mcp.stdio.child import Command
from holdfast.mcp.stdio.upstream import ChildUpstream

traces = tracing.traces

SERVER = Path(__file__).parents[1] / "mcp" / "stdio" / "server.py"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


class Client:
    """Speaks to a proxy that runs in this process, or in one of its own."""

    def __init__(self, to: Any, of: Any) -> None:
        self._to = to
        self._of = of

    def ask(self, id: int | str, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self.say({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        while True:
            frame: dict[str, Any] = json.loads(self._of.readline())
            if frame.get("id") == id:
                return frame

    def call(self, id: int | str, tool: str, meta: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
        more = {} if meta is None else {"_meta": meta}
        return self.ask(id, "tools/call", {"name": tool, "arguments": arguments, **more})

    def say(self, frame: dict[str, Any]) -> None:
        self._to.write(json.dumps(frame).encode() + b"\n")
        self._to.flush()


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path

    def metas(self) -> list[dict[str, str] | None]:
        """The metadata of the calls that the server got."""
        entries = [json.loads(line) for line in self.path.read_text("utf-8").splitlines()]
        return [each["params"].get("_meta") for each in entries if each["method"] == "tools/call"]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def conversation(traces: Traces | None, journal: Journal, talk: Any, policies: dict[str, object] | None = None) -> None:
    """Have a client *talk* to the server through a proxy in this process."""
    import asyncio
    import threading

    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    trouble: list[BaseException] = []

    def client() -> None:
        with open(in_write, "wb") as to, open(out_read, "rb") as of:
            try:
                each = Client(to, of)
                each.ask("begin", "initialize", INITIALIZE)
                each.say({"jsonrpc": "2.0", "method": "notifications/initialized"})
                talk(each)
            except BaseException as error:
                trouble.append(error)

    async def proxy() -> None:
        with holdfast.open(":memory:", policies=policies or {}, defaults=DEFAULTS) as hf:
            if traces is not None:
                traces.of(hf)
            upstream = ChildUpstream(Command([sys.executable, str(SERVER), str(journal.path)]), hf.clock)
            with os.fdopen(in_read, "rb") as stdin, os.fdopen(out_write, "wb") as stdout:
                await wrap(hf, "srv", upstream, stdin, stdout)

    thread = threading.Thread(target=client)
    thread.start()
    asyncio.run(proxy())
    thread.join()
    if trouble:
        raise trouble[0]


def test_a_proxied_call_is_a_server_span_in_the_clients_trace_and_a_client_span_below(
    traces: Traces, journal: Journal
) -> None:
    def talk(client: Client) -> None:
        client.call(7, "read", {"traceparent": f"00-{TRACE}-{PARENT}-01", "kept": "as it is"})

    conversation(traces, journal, talk)

    onward, asked = traces.all("tools/call read")
    assert (asked.kind, onward.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert asked.parent is not None
    assert (f"{asked.parent.trace_id:032x}", f"{asked.parent.span_id:016x}") == (TRACE, PARENT)
    assert is_child(onward, asked)
    for span in (asked, onward):
        found = facts(span)
        assert found["mcp.method.name"] == "tools/call"
        assert found["gen_ai.operation.name"] == "execute_tool"
        assert found["gen_ai.tool.name"] == "read"
        assert found["jsonrpc.request.id"] == "7"
        assert found["network.transport"] == "pipe"
        assert found["mcp.protocol.version"] == "2025-06-18"
        assert found["holdfast.server.name"] == "srv"
    assert onward.context is not None
    (meta,) = journal.metas()
    assert meta == {"traceparent": f"00-{TRACE}-{onward.context.span_id:016x}-01", "kept": "as it is"}


def test_a_call_without_a_trace_begins_one_and_hands_it_on(traces: Traces, journal: Journal) -> None:
    conversation(traces, journal, lambda client: client.call(1, "read"))

    onward, asked = traces.all("tools/call read")
    assert asked.parent is None
    assert onward.context is not None
    (meta,) = journal.metas()
    assert meta is not None
    assert meta["traceparent"].split("-")[1:3] == [f"{onward.context.trace_id:032x}", f"{onward.context.span_id:016x}"]


@pytest.fixture(params=[1, -1])
def propagators(request: pytest.FixtureRequest) -> Iterator[None]:
    """The usual ones, in either order: one alone begins with what is around, where nothing else is said."""
    before = propagate.get_global_textmap()
    usual = [TraceContextTextMapPropagator(), W3CBaggagePropagator()]
    propagate.set_global_textmap(CompositePropagator(usual[:: request.param]))
    yield
    propagate.set_global_textmap(before)


@pytest.mark.usefixtures("propagators")
def test_a_call_without_a_trace_is_linked_to_what_the_proxy_runs_in_and_no_part_of_it(
    traces: Traces, journal: Journal
) -> None:
    with traces.tracer.start_as_current_span("the program around the proxy") as around:
        conversation(traces, journal, lambda client: client.call(1, "read"))

    _, asked = traces.all("tools/call read")
    assert asked.parent is None
    assert [link.context.span_id for link in asked.links] == [around.get_span_context().span_id]


def test_a_result_that_is_an_error_is_a_tool_error(traces: Traces, journal: Journal) -> None:
    conversation(traces, journal, lambda client: client.call(1, "write", do="error it is broken"))

    for span in traces.all("tools/call write"):
        assert facts(span)["error.type"] == "tool_error"
        assert span.status.status_code is StatusCode.ERROR


def test_an_error_of_the_protocol_has_its_code(traces: Traces, journal: Journal) -> None:
    conversation(traces, journal, lambda client: client.call(1, "write", do="rpc -32602 no"))

    for span in traces.all("tools/call write"):
        assert facts(span)["error.type"] == "-32602"
        assert facts(span)["rpc.response.status_code"] == "-32602"


def test_a_server_that_only_asks_for_something_first_has_not_failed(traces: Traces, journal: Journal) -> None:
    conversation(traces, journal, lambda client: client.call(1, "write", do=f"rpc {ASKS_FIRST} go there first"))

    for span in traces.all("tools/call write"):
        assert "error.type" not in facts(span)
        assert span.status.status_code is not StatusCode.ERROR


def test_every_attempt_is_a_request_of_its_own(traces: Traces, journal: Journal) -> None:
    def talk(client: Client) -> None:
        client.ask("list", "tools/list", {})  # by which the proxy learns that it may repeat `read`
        client.call(1, "read", do=["error connection refused", "answer"])

    conversation(traces, journal, talk)

    *attempts, asked = traces.all("tools/call read")
    assert [facts(span).get("error.type") for span in attempts] == ["tool_error", None]
    assert len({facts(span)["jsonrpc.request.id"] for span in attempts}) == 2
    assert all(is_child(span, asked) for span in attempts)
    assert "error.type" not in facts(asked)
    sent = [meta["traceparent"].split("-")[2] for meta in journal.metas() if meta is not None]
    assert sent == [f"{span.context.span_id:016x}" for span in attempts if span.context is not None]


def test_a_refused_call_is_a_span_that_never_went_on(traces: Traces, journal: Journal) -> None:
    policies: dict[str, object] = {"policy": {"breaker": {"failure_threshold": 1}}}

    def talk(client: Client) -> None:
        client.call(1, "write", do="error connection refused")
        client.call(2, "write")

    conversation(traces, journal, talk, policies)

    assert [span.kind for span in traces.all("tools/call write")] == [SpanKind.CLIENT, SpanKind.SERVER, SpanKind.SERVER]
    assert facts(traces.all("tools/call write")[-1])["error.type"] == "CircuitOpen"
    assert len(journal.metas()) == 1


def test_requests_are_measured_on_both_sides(traces: Traces, journal: Journal) -> None:
    conversation(traces, journal, lambda client: client.call(1, "read"))

    for metric in ("mcp.server.operation.duration", "mcp.client.operation.duration"):
        (point,) = traces.points(metric)
        assert point.count == 1
        assert dict(point.attributes) == {
            "mcp.method.name": "tools/call",
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "read",
            "network.transport": "pipe",
            "mcp.protocol.version": "2025-06-18",
        }


def test_without_telemetry_frames_pass_as_the_bytes_they_are(journal: Journal) -> None:
    meta = {"traceparent": f"00-{TRACE}-{PARENT}-01"}

    conversation(None, journal, lambda client: client.call(1, "read", meta))

    assert journal.metas() == [meta]


# --- holdfast wrap ---


@pytest.fixture
def wrapped(journal: Journal, tmp_path: Path) -> Iterator[Any]:
    """Starts `holdfast wrap` with variables of the environment; all of them are ended."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**variables: str) -> tuple[Client, subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "holdfast", "wrap", "--name", "srv", "--"]
        server = [sys.executable, str(SERVER), str(journal.path)]
        env = {**os.environ, **variables}
        pipe = subprocess.PIPE
        child = subprocess.Popen([*command, *server], stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=tmp_path)
        started.append(child)
        client = Client(child.stdin, child.stdout)
        client.ask("begin", "initialize", INITIALIZE)
        return client, child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def test_wrap_exports_where_the_environment_says_and_keeps_standard_output_for_the_client(wrapped: Any) -> None:
    client, child = wrapped(OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="none")

    client.call(1, "read")
    out, said = child.communicate(timeout=30)

    assert out == b""
    assert b'"name": "tools/call read"' in said
    assert b'"service.name": "holdfast"' in said


def test_wrap_without_those_variables_traces_nothing(wrapped: Any, journal: Journal) -> None:
    client, child = wrapped()

    client.call(1, "read")
    child.communicate(timeout=30)

    assert journal.metas() == [None]


def test_an_exporter_that_is_not_there_is_said_and_the_proxy_works(wrapped: Any) -> None:
    client, child = wrapped(OTEL_TRACES_EXPORTER="no_such_exporter")

    answer = client.call(1, "read")
    _, said = child.communicate(timeout=30)

    assert answer["result"]["content"][0]["text"] == "read"
    assert b"no telemetry: there is no exporter 'no_such_exporter'" in said


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1", b"ValueError: max_queue_size must be a positive integer"),
        ("OTEL_PROPAGATORS", "pigeon", b"ValueError: Propagator pigeon not found"),
    ],
)
def test_a_bad_variable_of_opentelemetry_is_said_and_the_proxy_works(
    wrapped: Any, variable: str, value: str, why: bytes
) -> None:
    client, child = wrapped(OTEL_TRACES_EXPORTER="console", **{variable: value})

    answer = client.call(1, "read")
    _, said = child.communicate(timeout=30)

    assert answer["result"]["content"][0]["text"] == "read"
    assert b"no telemetry: " + why in said


EXPORTER = """
import threading
ANSWERS = threading.Event()

class Exporter:
    def export(self, spans):
        ANSWERS.wait()
    def shutdown(self):
        raise OSError("no route")
"""


def test_a_collector_that_does_not_answer_keeps_no_command_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    about = tmp_path / "stuck-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stuck\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[opentelemetry_traces_exporter]\nstuck = stuck:Exporter\n")
    (tmp_path / "stuck.py").write_text(EXPORTER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "stuck")
    monkeypatch.setattr(exporting, "PATIENCE", 0.05)

    with holdfast.open(":memory:", policies={}) as hf, exporting.exporting(hf):
        hf.tool("search")(lambda: "found")()

    assert "telemetry took too long" in capsys.readouterr().err
    importlib.import_module("stuck").ANSWERS.set()
    for thread in threading.enumerate():
        if thread.name == "holdfast-exporting":
            thread.join()
    assert "the last telemetry was not sent: OSError: no route" in capsys.readouterr().err


# --- frames ---


def test_metadata_is_added_to_what_is_there() -> None:
    data = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{"progressToken":1.50}}}'

    more = frames.with_meta(data, {"traceparent": "x"})

    assert json.loads(more)["params"] == {"name": "t", "_meta": {"progressToken": 1.5, "traceparent": "x"}}
    assert b"1.50" in more, "what is not ours stays the bytes it was"


@pytest.mark.parametrize("meta", [b"", b',"_meta":null', b',"_meta":{}'])
def test_metadata_is_made_where_there_is_none(meta: bytes) -> None:
    data = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"%s}}' % meta

    assert json.loads(frames.with_meta(data, {"a": "b"}))["params"]["_meta"] == {"a": "b"}
    assert frames.with_meta(data, {}) is data


@pytest.mark.parametrize("params", [b"{}", b'{"_meta":1}', b'{"_meta":{"traceparent":5}}', b"[]", b"7"])
def test_metadata_that_holds_no_texts_carries_nothing(params: bytes) -> None:
    head = frames.head(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%s}' % params)

    assert frames.carried(head) == {}
