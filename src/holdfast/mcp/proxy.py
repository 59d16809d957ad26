"""`holdfast wrap`: one client on standard input and output, one server behind the guards, one run for both."""

from __future__ import annotations

import asyncio
import signal
from typing import IO

from holdfast.mcp.server import Home, ProxiedServer
from holdfast.mcp.session import Session
from holdfast.mcp.stdio.front import StdioFront
from holdfast.mcp.wire import Upstream


async def wrap(
    hf: Home, name: str, upstream: Upstream, stdin: IO[bytes], stdout: IO[bytes], *, hides: bool = False
) -> None:
    """Relay between the client at *stdin* and *stdout* and the server at *upstream*.

    Return once the client has hung up, or a signal has asked the process to end.
    """
    front = StdioFront()
    session = Session(ProxiedServer(hf, name, hides=hides), upstream, front.send, hf.clock)
    stop = stopping()
    hf.publish(kind="proxy", name=name, servers=lambda: [session.facts()])
    async with hf.note(name, upstream.condition.target):
        await front.serve(session, stdin, stdout, stop)


def stopping() -> asyncio.Event:
    """Return an event that SIGTERM, SIGINT and SIGHUP set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    return stop
