"""The client on standard input and output: one frame a line."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import IO, Final

from holdfast.mcp import frames
from holdfast.mcp.session import Session
from holdfast.mcp.stdio.pipes import LONGEST_LINE, LineReader, Writer, first, same
from holdfast.mcp.wire import Event

LAST_ANSWERS: Final = 10.0  # seconds for requests that are under way when the client closes our input
LAST_BYTES: Final = 10.0  # seconds for a client to read the last frames


class StdioFront:
    """A client that is the process at the other end of our standard streams."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._said_all, self._gone = asyncio.Event(), asyncio.Event()
        self._out = Writer(self._hold_server, self._gone.set)

    def send(self, event: Event) -> None:
        if event.data:
            self._out.write(event.data + b"\n")

    async def serve(self, session: Session, stdin: IO[bytes], stdout: IO[bytes], stop: asyncio.Event) -> None:
        """Relay between the client and *session* until the client goes away, or until *stop*."""
        self._session = session
        session.transport = "pipe"
        session.defers_calls = False
        receive = partial(session.receive, channel=self)
        reader = LineReader(receive, self._said_all.set, on_data=self._look, on_long=self._refuse_line)
        session.hold = reader.hold
        await self._out.open(stdout, shared=same(stdin, stdout))
        try:
            session.open()
            await reader.open(stdin)
            await first(self._said_all.wait(), self._gone.wait(), stop.wait())
            if not self._gone.is_set() and not stop.is_set():  # the client sends no more, but may still read
                await first(session.idle(), self._gone.wait(), stop.wait(), timeout=LAST_ANSWERS)
        finally:
            reader.close()
            await self._end(session, stop)

    async def _end(self, session: Session, stop: asyncio.Event) -> None:
        closing = asyncio.ensure_future(session.close())
        try:
            await first(asyncio.wait({closing}), stop.wait())
            if not closing.done():  # the process that signalled us will not wait for long
                await session.upstream.close()
            await closing
        finally:
            await first(self._out.finish(LAST_BYTES), stop.wait())
            await self._out.finish(0)

    def _look(self, data: bytes) -> None:
        """If *data* holds a cancel, delay its calls by one turn of the loop: a cancelled call never gets sent."""
        assert self._session is not None
        self._session.defers_calls = b'"notifications/cancelled"' in data

    def _refuse_line(self) -> None:
        """Answer a line that was too long to be read; its id is unknown, so the error has none."""
        self.send(Event(frames.error(None, frames.PARSE_ERROR, f"a line may have {LONGEST_LINE} bytes at most")))

    def _hold_server(self, held: bool) -> None:
        if self._session is not None:
            self._session.upstream.hold(held)
