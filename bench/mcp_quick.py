"""A server that costs next to nothing, so that what stands before it shows: `mcp_quick.py stdio`, or `http PORT`.

It knows one tool, `echo`, in the handshake and in the stateless era. Over HTTP it counts the requests by the first part
of their path, `/NAME/mcp`, and tells them at `/counts`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any

MODERN = "2026-07-28"
TOOL = {
    "name": "echo",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
SERVER = {"name": "quick", "version": "1"}
PHRASES = {200: "OK", 202: "Accepted", 405: "Method Not Allowed"}


def answer(message: dict[str, Any]) -> bytes | None:
    """What is said to *message*: nothing, if it is no request."""
    if "id" not in message or "method" not in message:
        return None
    params = message.get("params", {})
    result = _result(message["method"], params)
    if "io.modelcontextprotocol/protocolVersion" in params.get("_meta", ()):
        result["resultType"] = "complete"
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}, separators=(",", ":")).encode()


def _result(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "tools/call":
        return {"content": [{"type": "text", "text": params["arguments"]["text"]}], "isError": False}
    fresh = {"ttlMs": 0, "cacheScope": "private"}
    if method == "tools/list":
        return {"tools": [TOOL], **fresh}
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": SERVER}
    if method == "server/discover":
        meta = {"io.modelcontextprotocol/serverInfo": SERVER}
        return {"supportedVersions": [MODERN], "capabilities": {"tools": {}}, "_meta": meta, **fresh}
    return {}


def stdio() -> None:
    """Answer lines until there are no more."""
    for line in sys.stdin.buffer:
        if said := answer(json.loads(line)):
            sys.stdout.buffer.write(said + b"\n")
            sys.stdout.buffer.flush()


class Connection(asyncio.Protocol):
    """One HTTP connection: requests with a Content-Length, each answered at once."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of the loop's protocol."""
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Part of the loop's protocol."""
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            first, *headers = self.buffer[:end].decode().split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in headers)}
            stop = end + 4 + int(fields.get("content-length", 0))
            if len(self.buffer) < stop:
                return
            body, self.buffer = self.buffer[end + 4 : stop], self.buffer[stop:]
            method, path, _ = first.split(" ")
            self._handle(method, path, body)

    def _handle(self, method: str, path: str, body: bytes) -> None:
        if path == "/counts":
            self._send(200, json.dumps(self.counts).encode())
            return
        self.counts[path.split("/")[1]] += 1
        if method != "POST":
            self._send(200 if method == "DELETE" else 405)
        elif said := answer(json.loads(body)):
            self._send(200, said)
        else:
            self._send(202)

    def _send(self, status: int, body: bytes = b"") -> None:
        head = f"HTTP/1.1 {status} {PHRASES[status]}\r\nContent-Type: application/json\r\nMcp-Session-Id: quick\r\n"
        self.transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


async def http(port: int) -> None:
    """Serve on the loopback until somebody ends it."""
    counts: Counter[str] = Counter()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(counts), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        stdio()
    else:
        asyncio.run(http(int(sys.argv[2])))
