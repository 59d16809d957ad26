"""An MCP client of the demo: a real `holdfast wrap` around the travel office, spoken to in lines of JSON."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.demo import office
from holdfast.demo.children import PYTHON, child
from holdfast.errors import HoldfastError
from holdfast.mcp.refusals import META

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


class Gone(Exception):
    """The proxy has ended, and answers nobody."""


class Reply(NamedTuple):
    """What the client got for a call: the text that the model reads, and how long it took."""

    text: str
    failed: bool
    seconds: float
    facts: dict[str, Any]  # what Holdfast says of a failure; empty if the tool said something itself

    @property
    def refused(self) -> bool:
        """Whether a guard said no, and the tool was not called."""
        return self.failed and self.facts.get("called") is False

    @property
    def unknown(self) -> bool:
        """Whether the tool was called, and nobody knows what came of it."""
        return self.failed and "outcome is unknown" in self.text


class Client:
    """Speaks to the proxy *process*; several calls may be under way at once."""

    def __init__(self, process: asyncio.subprocess.Process, clock: Clock) -> None:
        self._process = process
        self._clock = clock
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._gone = False

    async def greet(self) -> None:
        """Shake hands, and learn what tools there are."""
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "demo", "version": "1"}}
        await self._ask("initialize", about)
        await self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await self._ask("tools/list", {})

    async def call(self, tool: str, subject: str) -> Reply:
        """Call a tool, and wait for the answer."""
        begun = self._clock.monotonic()
        answer = await self._ask("tools/call", {"name": tool, "arguments": {"subject": subject}})
        result = answer["result"]
        facts = result.get("_meta", {}).get(META, {})
        return Reply(result["content"][0]["text"], bool(result.get("isError")), self._clock.monotonic() - begun, facts)

    async def listen(self) -> None:
        """Hand answers to those who wait for them, until the proxy ends."""
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                frame = msgspec.json.decode(line)
                waiting = self._waiting.pop(frame.get("id"), None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(frame)
        finally:
            self._gone = True
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(Gone)

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        id = next(self._ids)
        self._waiting[id] = waiting = asyncio.get_running_loop().create_future()
        await self._send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        answer: dict[str, Any] = await waiting
        return answer

    async def _send(self, frame: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        if self._gone:
            raise Gone
        self._process.stdin.write(msgspec.json.encode(frame) + b"\n")
        try:
            await self._process.stdin.drain()
        except ConnectionError:
            raise Gone from None


@asynccontextmanager
async def wrapped(folder: Path) -> AsyncIterator[Client]:
    """A client of the travel office behind `holdfast wrap`; all that they write is in *folder*."""
    policies = folder / "office.toml"
    policies.write_text(POLICIES)
    said = folder / "office.err"
    server = [*PYTHON, "holdfast.demo.office", str(folder / "office.log")]
    options = ["--name", NAME, "--store", str(folder / "runs.db"), "--policy", str(policies)]
    async with child(said, "holdfast", "wrap", *options, "--", *server) as process:
        client = Client(process, SystemClock())
        listening = asyncio.create_task(client.listen())
        try:
            await client.greet()
            yield client
        except Gone:
            words = said.read_text(errors="replace").strip() or f"exit code {process.returncode}"
            raise HoldfastError(f"the proxy has ended: {words}") from None
        finally:
            listening.cancel()
            await asyncio.wait({listening})


def asked(folder: Path) -> list[str]:
    """What the office was asked, and what it did, line by line."""
    path = folder / "office.log"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
