"""The demo's MCP client: talks to a real `holdfast wrap` around the travel office, in lines of JSON."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.clock import SystemClock
from holdfast.demo import office
from holdfast.demo.children import PYTHON, Child, child
from holdfast.errors import HoldfastError

NAME: Final = "office"
POLICIES: Final = f"""
[server.{NAME}]
deadline = 20.0

[server.{NAME}.tool.trains]
deadline = 1.5

[server.{NAME}.tool.visa_rules]
retry = false
breaker = {{ failure_threshold = {office.DOWN}, min_backoff = 6.0, max_backoff = 6.0 }}

[server.{NAME}.tool.exchange_rate]
rate = {{ per_second = 8, burst = 8, adaptive = true }}
max_wait = 15.0
"""


class Gone(HoldfastError):
    """The proxy has ended, and answers no more calls."""


class Reply(NamedTuple):
    """What the client got for a call: the text that the model reads, and how long it took."""

    text: str
    failed: bool
    seconds: float

    @property
    def refused(self) -> bool:
        """True if a guard refused the call, and the tool was not called."""
        return self.failed and "was not called" in self.text

    @property
    def unknown(self) -> bool:
        """True if the tool was called, and its outcome is unknown."""
        return self.failed and "outcome is unknown" in self.text


class Client:
    """Talks to the *proxy*; several calls may be in flight at once. The file *errors* has the proxy's stderr."""

    def __init__(self, proxy: Child, errors: Path) -> None:
        self._proxy = proxy
        self._errors = errors
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._gone: Gone | None = None

    async def greet(self) -> None:
        """Initialize the session, and list the tools."""
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "demo", "version": "1"}}
        await self._ask("initialize", about)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await self._ask("tools/list", {})

    async def call(self, tool: str, subject: str) -> Reply:
        """Call a tool, and wait for the answer."""
        begun = SystemClock.monotonic()
        result = await self._ask("tools/call", {"name": tool, "arguments": {"subject": subject}})
        took = SystemClock.monotonic() - begun
        return Reply(result["content"][0]["text"], bool(result.get("isError")), took)

    async def listen(self) -> None:
        """Hand answers to the calls that wait for them, until the proxy ends, or tells of an error as it ends."""
        async for line in self._proxy.output:
            frame = msgspec.json.decode(line)
            if "error" in frame:
                break
            waiting = self._waiting.pop(frame.get("id"), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(frame["result"])
        self._gone = Gone(f"the proxy has ended: {self._errors.read_text(errors='replace').strip()}")
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._gone)

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if self._gone is not None:
            raise self._gone
        id = next(self._ids)
        self._waiting[id] = waiting = asyncio.get_running_loop().create_future()
        self._send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        result: dict[str, Any] = await waiting
        return result

    def _send(self, frame: dict[str, Any]) -> None:
        self._proxy.input.write(msgspec.json.encode(frame) + b"\n")  # a few hundred bytes, which the pipe can hold


@asynccontextmanager
async def wrapped(folder: Path) -> AsyncIterator[Client]:
    """Yield a client of the travel office behind `holdfast wrap`; both write their files into *folder*."""
    policies, said = folder / "office.toml", folder / "office.err"
    policies.write_text(POLICIES)
    server = [*PYTHON, "holdfast.demo.office", str(folder / "office.log")]
    options = ["--name", NAME, "--store", str(folder / "runs.db"), "--policy", str(policies)]
    with said.open("wb") as errors:
        async with child("holdfast", "wrap", *options, "--", *server, errors=errors) as proxy:
            client = Client(proxy, said)
            listening = asyncio.create_task(client.listen())
            try:
                await client.greet()
                yield client
            finally:
                listening.cancel()
                await asyncio.wait({listening})


def asked(folder: Path) -> list[str]:
    """Return what the office was asked and what it did, line by line."""
    return (folder / "office.log").read_text(encoding="utf-8").splitlines()
