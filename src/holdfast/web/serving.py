"""Runs the app: one socket, one event loop, until a signal comes; then everything ends at once, streams too."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.errors import HoldfastError
from holdfast.web.app import App

PATIENCE = 2  # seconds that answers under way may take when the server ends
BACKLOG = 128  # connections that wait to be accepted
LONGEST_HEAD = 32_768  # bytes of a request before its body
MOST_CONNECTIONS = 200  # each needs a file descriptor, of which a process may have few


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on *host* and *port*, any free port for 0; not shared with other processes."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise HoldfastError(f"{host} is not an address of this machine: {error}") from error
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise HoldfastError(
            f"port {port} on {host} cannot be used: {error.strerror}; choose another, or 0 for any that is free"
        ) from error
    return made


class Connection(H11Protocol):
    """One connection; if there are too many, the one that has been idle for longest is closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the connection; called by uvicorn."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        if len(self.connections) > MOST_CONNECTIONS:
            idle = [each for each in self.connections if isinstance(each, Connection) and each._is_idle()]
            longest = min(idle, key=lambda each: each._idle_since)
            self.connections.discard(longest)
            longest.transport.abort()

    def on_response_complete(self) -> None:
        """Note that a request was answered, and that the connection is idle now; called by uvicorn."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete


class Server(uvicorn.Server):
    """Serves *app*; at the end, tells it to close its streams before waiting for them."""

    def __init__(self, app: App, *, on_ready: Callable[[], object] | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                lifespan="on",
                backlog=1,  # accepts in a row: with more, asyncio only repeats failing ones if descriptors run out
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=PATIENCE,
                h11_max_incomplete_event_size=LONGEST_HEAD,
            )
        )
        self._app = app
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None

    def answer(self, listening: socket.socket) -> None:
        """Answer requests until SIGINT, SIGTERM or `stop`; closes the socket."""
        with listening:
            asyncio.run(self.serve(sockets=[listening]))

    def stop(self) -> None:
        """End the server; may be called from any thread."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._app.desk.closing.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call *on_ready*; called by uvicorn."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)
        if self._on_ready is not None:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal, which may come at any point of the program; called by uvicorn."""
        if sig == signal.SIGINT:  # uvicorn raises it again at the end; other signals are a normal way to end a service
            super().handle_exit(sig, frame)
        self.stop()
