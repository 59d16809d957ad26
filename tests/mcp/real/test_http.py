"""The same talk over HTTP, directly and through the gateway: each stream holds the same frames in the same order."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests import worlds
from tests.mcp.real import everything, modern
from tests.mcp.real.sameness import differences, normal
from tests.mcp.real.through import proxy_to, surroundings
from tests.mcp.real.web import ACCEPT, PATIENCE, Web, byte_relay, events, gateway, hang_up, running
from tests.mcp.real.wire import Answers, Pipe, Talk
from tests.servers.finding import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

VERSIONS = ["2025-03-26", "2025-06-18", "2025-11-25"]  # 2024-11-05 knew no streamable HTTP
SERVER = Path(__file__).parent / "servers" / "python_server.py"


def hold(url: str, say: Callable[[Talk], None], answers: Answers) -> tuple[Talk, int]:
    talk = Talk(Web(url), answers)
    try:
        say(talk)
    finally:
        ended = talk.close()
    return talk, ended


def assert_same(direct: str, other: str, say: Callable[[Talk], None], answers: Answers) -> None:
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(hold, url, say, answers) for url in (direct, other)]
        (mine, mine_ended), (theirs, theirs_ended) = (run.result() for run in runs)
    found = differences(mine, theirs)
    assert not found, "\n".join(found[:10])
    assert theirs_ended == mine_ended


@contextmanager
def two(command: Callable[[int], list[str]]) -> Iterator[list[str]]:
    """The addresses of two servers of one kind: one would remember the first talk in the second."""
    ports = [free_port(), free_port()]
    with ExitStack() as stack:
        for port in ports:
            stack.enter_context(running(command(port), port, {"PORT": str(port)}))
        yield [f"http://127.0.0.1:{port}/mcp" for port in ports]


@pytest.fixture
def reference(node: worlds.Node) -> Iterator[list[str]]:
    with two(lambda _: node.command("server-everything", "streamableHttp")) as urls:
        yield urls


def test_a_relay_of_bytes_leaves_the_talk_as_it_is(reference: list[str]) -> None:
    with byte_relay(httpx.URL(reference[1]).port or 0) as port:
        relayed = f"http://127.0.0.1:{port}/mcp"
        assert_same(reference[0], relayed, lambda talk: everything.converse(talk, VERSIONS[-1]), everything.ANSWERS)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_method_of_server_everything_is_the_same_through_the_gateway(
    reference: list[str], tmp_path: Path, version: str
) -> None:
    with gateway(tmp_path, {"everything": {"type": "http", "url": reference[1]}}) as address:
        there = address("everything")
        assert_same(reference[0], there, lambda talk: everything.converse(talk, version), everything.ANSWERS)


def test_the_stateless_version_is_the_same_through_the_gateway(sdk2: Path, tmp_path: Path) -> None:
    with (
        two(lambda port: [str(sdk2), str(SERVER), "http", str(port)]) as (direct, upstream),
        gateway(tmp_path, {"python": {"type": "http", "url": upstream}}) as address,
    ):
        assert_same(direct, address("python"), modern.converse, modern.ANSWERS)


@pytest.mark.parametrize("version", VERSIONS[-1:])
def test_a_client_on_stdio_is_told_what_the_server_says_over_http(reference: list[str], version: str) -> None:
    direct, _ = hold(reference[0], lambda talk: everything.converse(talk, version), everything.ANSWERS)

    with Talk(Pipe(proxy_to(reference[1]), env=surroundings()), everything.ANSWERS) as proxied:
        everything.converse(proxied, version)

    assert said(direct) - said(proxied) == Counter()
    assert said(proxied) - said(direct) == Counter()


def said(talk: Talk) -> Counter[bytes]:
    """What the server said; where it refused a whole POST without naming the request, the proxy may name it."""
    frames = [frame.raw for frame in talk.frames if frame.sender == "server" and frame.message is not None]
    return Counter(normal(raw.replace(b'"id":"with more"', b'"id":null')) for raw in frames)


# --- a stream that broke is taken up again where it was ---


def resumed(url: str) -> list[tuple[str, bytes]]:
    """The events of a call whose stream is dropped after the first step: what came before, and what comes after."""
    seen: list[tuple[str, bytes]] = []
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": everything.CLIENT}
    with httpx.Client(timeout=30.0, trust_env=False, headers=ACCEPT) as client:
        first = client.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
        session = {"Mcp-Session-Id": first.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
        client.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
        with client.stream("POST", url, json=_long_call(id=2, seconds=0.4, token="p"), headers=session) as response:
            last = _until(seen, response, lambda message: message.get("method") == "notifications/progress")
        client.post(url, json=_long_call(id=3, seconds=0.6), headers=session)  # by then the first has ended too
        with client.stream("GET", url, headers={**session, "Last-Event-ID": last}) as response:
            assert response.status_code == 200
            _until(seen, response, lambda message: message.get("id") == 2)
        client.delete(url, headers=session)
    return [("after", normal(data)) for _, data in seen]


def _long_call(*, id: int, seconds: float, token: str | None = None) -> dict[str, Any]:
    params = {"name": "trigger-long-running-operation", "arguments": {"duration": seconds, "steps": 4}}
    meta = {"_meta": {"progressToken": token}} if token else {}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {**params, **meta}}


def _until(seen: list[tuple[str, bytes]], response: httpx.Response, last: Callable[[Any], bool]) -> str:
    timer = threading.Timer(PATIENCE, hang_up, [response])  # signs of life may come for ever
    timer.start()
    try:
        return _seek(seen, events(response), last)
    finally:
        timer.cancel()
        timer.join()


def _seek(seen: list[tuple[str, bytes]], stream: Iterator[tuple[str, bytes]], last: Callable[[Any], bool]) -> str:
    for id, data in stream:
        if data:
            seen.append((id, data))
            if last(json.loads(data)):
                return id
    raise AssertionError(f"the stream ended early: {seen}")


def test_a_dropped_stream_is_resumed_through_the_gateway_as_without(reference: list[str], tmp_path: Path) -> None:
    with gateway(tmp_path, {"everything": {"type": "http", "url": reference[1]}}) as address:
        direct, proxied = resumed(reference[0]), resumed(address("everything"))

    assert proxied == direct
    assert b"Long running operation completed" in proxied[-1][1]


def test_a_session_that_nobody_knows_is_refused_as_without(reference: list[str], tmp_path: Path) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    headers = {**ACCEPT, "Mcp-Session-Id": "nobody-knows-it", "MCP-Protocol-Version": "2025-11-25"}

    with (
        gateway(tmp_path, {"everything": {"type": "http", "url": reference[1]}}) as address,
        httpx.Client(trust_env=False) as client,
    ):
        direct, proxied = (
            client.post(url, json=ping, headers=headers) for url in (reference[0], address("everything"))
        )

    assert (proxied.status_code, proxied.json()) == (direct.status_code, direct.json())
