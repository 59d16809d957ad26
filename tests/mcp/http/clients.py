"""The other end of what is tested: a client behind `Session` and `HttpUpstream`, and one of a gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import holdfast
from holdfast.app import Holdfast
from holdfast.clock import Clock
from holdfast.mcp.clients.configs import ServerEntry
from holdfast.mcp.frames import Id
from holdfast.mcp.http.endpoint import Endpoint
from holdfast.mcp.http.exchange import Start
from holdfast.mcp.http.gateway import Address
from holdfast.mcp.http.gateway import gateway as serve
from holdfast.mcp.http.upstream import HttpUpstream
from holdfast.mcp.server import ProxiedServer
from holdfast.mcp.session import Session
from holdfast.mcp.wire import Event

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
PATIENCE = 20.0


class Client:
    """A client that knows nothing of HTTP."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.came: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, event: Event) -> None:
        if event.data:
            assert b"\n" not in event.data  # standard output has one frame a line
            self.came.put_nowait(json.loads(event.data))

    def say(self, **frame: object) -> None:
        self.session.receive(json.dumps({"jsonrpc": "2.0", **frame}).encode(), self)

    async def next(self) -> Any:
        return await asyncio.wait_for(self.came.get(), PATIENCE)

    async def ask(self, method: str, id: Id = 1, **params: object) -> Any:
        self.say(id=id, method=method, params=params)
        return await self.next()

    async def call(self, tool: str = "work", id: Id = 9, **arguments: object) -> Any:
        return await self.ask("tools/call", id, name=tool, arguments=arguments)

    async def begin(self) -> None:
        info = {"name": "test", "version": "1"}
        answer = await self.ask("initialize", 0, protocolVersion="2025-11-25", capabilities={}, clientInfo=info)
        assert answer["result"]["protocolVersion"] == "2025-11-25"
        self.say(method="notifications/initialized")


@asynccontextmanager
async def wrapped(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    policies: Mapping[str, object] | None = None,
    begins: bool = True,
    clock: Clock | None = None,
) -> AsyncIterator[Client]:
    """A client of the server at *url*, which has begun its session."""
    with holdfast.open(":memory:", policies=policies or {}, clock=clock) as hf:
        upstream = HttpUpstream(Endpoint(url, headers), hf.clock)
        client = Client(None)  # type: ignore[arg-type]
        client.session = Session(ProxiedServer(hf, "server"), upstream, client.send, hf.clock)
        client.session.open()
        try:
            if begins:
                await client.begin()
            yield client
        finally:
            await client.session.close()


@asynccontextmanager
async def gateway(
    *entries: ServerEntry, hf: Holdfast | None = None, token: str | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[str]:
    """The address of a gateway."""
    made = hf or holdfast.open(":memory:", policies={})
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    address = Address(host, 0, token)
    serving = asyncio.ensure_future(serve(made, entries, address, stop=stop, on_ready=ready.set_result))
    try:
        await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        yield ready.result() if ready.done() else serving.result()  # type: ignore[func-returns-value]
    finally:
        stop.set()
        await serving
        if hf is None:
            made.close()


class Line:
    """A connection of a client that takes whatever is written."""

    is_full = False

    def __init__(self) -> None:
        self.data = b""
        self.ended = asyncio.Event()

    def write(self, start: Start | None, data: bytes, *, ended: bool) -> None:
        self.data += data
        if ended:
            self.ended.set()


def text_of(answer: Any) -> str:
    """The text of a tool's result."""
    return str(answer["result"]["content"][0]["text"])


def failure_of(answer: Any) -> dict[str, Any]:
    """What a refusal says in structure."""
    result = answer["result"]
    assert result["isError"] is True
    facts: dict[str, Any] = result["_meta"]["holdfast/failure"]
    return facts


def frame(method: str, id: Id | None = 1, **params: object) -> dict[str, object]:
    """A frame of a client."""
    return {"jsonrpc": "2.0", **({} if id is None else {"id": id}), "method": method, "params": params}
