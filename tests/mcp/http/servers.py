"""A server that does over HTTP whatever a test wants, and a stdio server of a few lines for the gateway."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

STDIO = [sys.executable, str(Path(__file__).with_name("stdio_server.py"))]


class Request(NamedTuple):
    """What a client sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def frame(self) -> Any:
        return json.loads(self.body)

    @property
    def asks(self) -> str:
        """The method of the frame; empty if it has none."""
        return self.frame.get("method", "") if self.body else ""


class Reply:
    """The answer to a request, as far as a test lets it come."""

    def __init__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        self.request = request
        self._writer = writer
        self.keeps = True
        self.gone = asyncio.Event()  # the client has closed the connection

    async def whole(self, status: int, body: bytes = b"", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await self._writer.drain()

    async def json(self, value: object, status: int = 200, **headers: str) -> None:
        await self.whole(status, json.dumps(value).encode(), content_type="application/json", **headers)

    async def result(self, result: object, **headers: str) -> None:
        await self.json({"jsonrpc": "2.0", "id": self.request.frame["id"], "result": result}, **headers)

    async def text(self, text: str = "done") -> None:
        await self.result({"content": [{"type": "text", "text": text}]})

    async def stream(self, *events: str, **headers: str) -> None:
        """Begin a stream of events, as chunks."""
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{more}transfer-encoding: chunked\r\n\r\n"
        self._writer.write(head.encode())
        for event in events:
            await self.event(event)

    async def event(self, text: str) -> None:
        data = text.encode() + b"\n\n"
        self._writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self._writer.drain()

    async def frame(self, at: str | None = None, /, **frame: object) -> None:
        place = "" if at is None else f"id: {at}\n"
        await self.event(f"{place}data: {json.dumps({'jsonrpc': '2.0', **frame})}")

    async def answer(self, text: str = "done") -> None:
        """The answer to the call, as an event; and the end of the stream."""
        content = {"content": [{"type": "text", "text": text}]}
        await self.frame(id=self.request.frame["id"], result=content)
        await self.end()

    async def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def reset(self) -> None:
        """Break the connection."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        self.keeps = False


class Server:
    """What came, in order; *answer* is what the test makes of it."""

    def __init__(self, answer: Callable[[Reply], Awaitable[object]]) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.connections = 0
        self.url = ""
        self.stop: Callable[[], object] = lambda: None  # hang up on all, for good

    def asked(self, method: str) -> list[Request]:
        """The requests with a frame of that *method*."""
        return [request for request in self.requests if request.method == "POST" and request.asks == method]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (request := await _read(reader)) is not None:
                self.requests.append(request)
                reply = Reply(request, writer)
                work = asyncio.ensure_future(self.answer(reply))  # type: ignore[arg-type]
                watch = asyncio.ensure_future(_gone(reader, reply))
                try:
                    await work
                finally:
                    watch.cancel()
                if not reply.keeps:
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


async def _gone(reader: asyncio.StreamReader, reply: Reply) -> None:
    while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110 - a stream tells nobody of its end
        await asyncio.sleep(0.005)
    reply.gone.set()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body)


@asynccontextmanager
async def server(answer: Callable[[Reply], Awaitable[object]]) -> AsyncIterator[Server]:
    """A server on a port of its own."""
    made = Server(answer)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(made.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(lambda _: writer.close())  # also of one that was cancelled before it had begun

    listening = await asyncio.start_server(accept, "127.0.0.1", 0, limit=2**26)
    made.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"

    def stop() -> None:
        listening.close()
        for task in list(tasks):
            task.cancel()

    made.stop = stop
    try:
        yield made
    finally:
        stop()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def silent() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """The address of a server that accepts connections and says nothing, and the event that one has ended."""
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        gone.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp", gone


INITIALIZED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "s", "version": "1"},
}


def plain(
    call: Callable[[Reply], Awaitable[object]], *, session: str | None = "one"
) -> Callable[[Reply], Awaitable[object]]:
    """A server that takes the handshake, has no stream of its own, and answers other requests by *call*."""

    async def answer(reply: Reply) -> None:
        request = reply.request
        if request.method == "GET":
            await reply.whole(405)
        elif request.method == "DELETE":
            await reply.whole(200)
        elif request.asks == "initialize":
            await reply.result(INITIALIZED, **({"mcp_session_id": session} if session else {}))
        elif "id" not in request.frame or not request.asks:
            await reply.whole(202)
        else:
            await call(reply)

    return answer
