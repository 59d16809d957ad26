"""The client on standard input and output: one frame a line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import IO, Any

from holdfast.mcp.frames import Id
from holdfast.mcp.pipes import LineReader, Writer
from holdfast.mcp.session import Session
from holdfast.mcp.wire import Event

LAST_ANSWERS = 10.0  # seconds for what is under way when the client says no more


class StdioFront:
    """A client that is the process at the other end of our standard streams."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._over = asyncio.Event()
        self._in = LineReader(self._receive, self._end)
        self._out = Writer(self._hold_server, self._end)

    @property
    def is_open(self) -> bool:
        """Whether the client still listens."""
        return self._out.is_open

    def send(self, event: Event) -> None:
        """Hand a frame to the client."""
        if event.data:
            self._out.write(event.data + b"\n")

    def refuse(self, id: Id | None, data: bytes, error: Exception) -> None:
        """Tell the client that its request has no answer of the server's."""
        self.send(Event(data))

    async def serve(
        self, make: Callable[[StdioFront], Session], stdin: IO[bytes], stdout: IO[bytes], stop: asyncio.Event
    ) -> None:
        """Relay until the client goes away, or until *stop*."""
        session = self._session = make(self)
        session.hold_client = self._in.hold
        session.open()
        await self._out.open(stdout)
        await self._in.open(stdin)
        try:
            await _first(self._over.wait(), stop.wait())
            if not stop.is_set() and self.is_open:  # it says no more, and may listen still
                await _first(session.idle(), stop.wait(), timeout=LAST_ANSWERS)
        finally:
            await session.close()
            self._in.close()
            self._out.close()

    def _receive(self, line: bytes) -> None:
        assert self._session is not None
        self._session.receive(line, self)

    def _hold_server(self, held: bool) -> None:
        if self._session is not None:
            self._session.upstream.hold(held)

    def _end(self) -> None:
        self._over.set()


async def _first(*waits: Coroutine[Any, Any, object], timeout: float | None = None) -> None:
    """Wait for one of several things."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
