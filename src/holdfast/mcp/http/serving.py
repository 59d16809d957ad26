"""The connections of clients over HTTP: requests are read one at a time, and their answers written as they come.

One request is answered before the next is read, and little of what a client sends ahead is buffered. A connection
without a complete request for a while is closed, sooner if there are too many. Bad requests are answered, not logged.
"""

from __future__ import annotations

import asyncio
import re
import resource
import socket
from collections import OrderedDict
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from holdfast.clock import Clock, Timer
from holdfast.mcp.http.exchange import Exchange, Start
from holdfast.mcp.http.front import HttpFront
from holdfast.mcp.http.incoming import LONGEST_BODY, Incoming, Refused, Request
from holdfast.mcp.http.sites import Site

KEEP_ALIVE: Final = 75.0  # seconds for a client to send a request, or the next part of its body
LINGER: Final = 2.0  # seconds for a client to read why it was refused; if we closed at once, it could not
LAST_ANSWERS: Final = 3.0  # seconds for clients to take their last answers when the server closes
MOST_AHEAD: Final = 64 * 2**10  # bytes that a client may send ahead before we stop reading
BUFFER: Final = 64 * 2**10  # bytes that are read at once
TURNS: Final = 4  # turns of the event loop after which an accepted client has become a connection
MOST_CONNECTIONS: Final = 4000

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_BODYLESS: Final = frozenset({204, 304})
_UNSAFE: Final = re.compile(r"[\x00\r\n]")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpServer:
    """Clients of *front*, from `start` until `close`."""

    def __init__(self, front: HttpFront, clock: Clock) -> None:
        self.front = front
        self.clock = clock
        self.is_stopping = False
        self.most = _most_connections()
        # Shared by all connections: each read is copied before the next one. asyncio would make a buffer for each read.
        self.buffer = memoryview(bytearray(BUFFER))
        self._connections: OrderedDict[Connection, None] = OrderedDict()  # the one used last is the last
        self._empty = asyncio.Event()
        self._empty.set()
        self._listening: asyncio.Server | None = None
        self._date = (0, b"")

    async def start(self, listening: socket.socket) -> None:
        """Accept connections; the socket is ours from now on."""
        loop = asyncio.get_running_loop()
        # Accept one at a time. When no file descriptor is left, asyncio tries again later. Most versions then schedule
        # as many tries as *backlog* allows, each of which leads to as many again: soon the loop does nothing else.
        self._listening = await loop.create_server(lambda: Connection(self), sock=listening, backlog=1)
        listening.listen(self.most // 2)  # so many may wait to be accepted

    def stop(self) -> None:
        """Accept nothing more; close connections that are not being answered now, and the others after their answer."""
        self.is_stopping = True
        if self._listening is not None:
            loop = asyncio.get_running_loop()
            for listening in self._listening.sockets:
                loop.remove_reader(listening)
            # Later, when clients that were just accepted have become connections: otherwise nothing would close them.
            loop.call_soon(loop.call_soon, self._listening.close)
        for connection in list(self._connections):
            connection.close_when_answered()

    async def close(self) -> None:
        """End all answers, and wait until clients have taken them, for LAST_ANSWERS seconds at most."""
        self.stop()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.end_answer()
        try:
            await asyncio.wait_for(self._empty.wait(), LAST_ANSWERS)
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
            await self._empty.wait()

    def join(self, connection: Connection) -> None:
        """Add a new connection; if there are too many, the one that has been idle for longest is closed."""
        self._connections[connection] = None
        self._empty.clear()
        if len(self._connections) > self.most:
            while not (first := next(iter(self._connections))).is_idle:  # at least the new one is
                self._connections.move_to_end(first)
            first.abort()

    def heard(self, connection: Connection) -> None:
        """Mark *connection* as the one used last."""
        self._connections.move_to_end(connection)

    def leave(self, connection: Connection) -> None:
        """Remove a connection that is closed."""
        del self._connections[connection]
        if not self._connections:
            self._empty.set()

    def date(self) -> bytes:
        """The `date` header, encoded."""
        now = int(self.clock.time())
        if now != self._date[0]:
            self._date = now, f"date: {formatdate(now, usegmt=True)}\r\n".encode()
        return self._date[1]


class Connection(asyncio.BufferedProtocol):
    """The connection of one client, on which its present request is answered."""

    def __init__(self, server: HttpServer) -> None:
        self.is_full = False  # True while the client reads slower than we write
        self._server = server
        self._incoming = Incoming()
        self._transport: asyncio.Transport
        self._request: Request | None = None
        self._exchange: Exchange | None = None  # the request whose answer is not complete
        self._site: Site | None = None  # to be asked once the body of the request is complete
        self._reads = False  # True while a body is being read
        self._keeps = True
        self._is_over = False  # True if data that comes now is ignored
        self._is_chunked = self._is_bare = False  # the answer is written in chunks, or without a body
        self._timer: Timer | None = None
        self._heard = 0.0  # when it was last used

    @property
    def is_idle(self) -> bool:
        """True if no complete request is being answered; False once the connection is closing."""
        return not self._is_answering and not self._transport.is_closing()

    @property
    def _is_answering(self) -> bool:
        return self._exchange is not None and not self._reads

    # -- from the client -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.join(self)
        self._hear()
        self._watch()
        if self._server.is_stopping:
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_over:
            return
        if self._reads:
            self._hear()
        self._incoming.feed(bytes(self._server.buffer[:nbytes]))
        self._proceed()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        if self._exchange is not None:
            self._exchange.flush()
        else:
            self._proceed()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._server.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.lost()

    def _proceed(self) -> None:
        """Handle the data that has come, up to the end of the present request."""
        try:
            while not self._is_over:
                if self._reads:
                    body = self._incoming.body()
                    if body is None:
                        break
                    self._reads = False
                    self._ask(body)
                elif self._exchange is None and not self.is_full:
                    request = self._incoming.head()
                    if request is None:
                        break
                    self._begin(request)
                else:
                    break
        except Refused as refused:
            self._refuse(refused)
        if not self._reads and self._incoming.ahead > MOST_AHEAD:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _begin(self, request: Request) -> None:
        """Begin a request whose head is there; a client that may not ask is refused before its body is read."""
        self._request = request
        # A client that waits to send its body and is refused may send it all the same, or the next request: we cannot
        # tell which, so the connection is not kept.
        self._keeps = request.keeps and not request.expects and not self._server.is_stopping
        self._reads = request.length != 0
        exchange = self._exchange = Exchange(request.method, request.pairs, request.headers, self)
        self._site = self._server.front.admit(exchange, request.path)
        if self._site is None:
            self._incoming.skip()
        elif not self._reads:
            self._ask(b"")
        elif request.expects:
            self._keeps = request.keeps and not self._server.is_stopping
            if not self._incoming.ahead and (request.length is None or request.length <= LONGEST_BODY):
                self._transport.write(_CONTINUE)

    def _ask(self, body: bytes) -> None:
        site, self._site = self._site, None
        if site is not None and self._exchange is not None:
            self._exchange.body = body
            self._server.front.serve(site, self._exchange)

    def _refuse(self, refused: Refused) -> None:
        """Say why the data is not a request, and close: it is not known where the next request begins."""
        self._keeps = False
        self._site = None  # no server is asked, whatever else comes
        exchange = self._exchange
        if exchange is None and not self._reads:
            self._request = None
            exchange = self._exchange = Exchange("", [], {}, self)
        self._reads = True
        if exchange is None:  # it is answered already
            self._linger()
        else:
            exchange.fail(refused.status, str(refused))

    # -- to the client -------------------------------------------------------------------------------------------------

    def write(self, start: Start | None, data: bytes, *, ended: bool) -> None:
        """Write *data* to the client, after the *start* of the answer if that was not written before."""
        head = b""
        if start is not None:
            head = self._head(start, len(data) if ended else None)
            self._is_bare = start[0] in _BODYLESS or (self._request is not None and self._request.method == "HEAD")
        if self._is_bare:
            data = b""
        elif self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else data
            data = data + b"0\r\n\r\n" if ended else data
        if head and data:
            self._transport.writelines((head, data))
        else:
            self._transport.write(head or data)
        if ended:
            self._finish()

    def _head(self, start: Start, length: int | None) -> bytes:
        """The head of an answer; without a *length* the last chunk, or closing the connection, ends the answer."""
        status, pairs = start
        is_old = self._request is not None and self._request.is_old
        lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n"]
        lines += [f"{name.lower()}: {value}\r\n" for name, value in pairs]
        self._is_chunked = length is None and not is_old
        if self._is_chunked:
            lines.append("transfer-encoding: chunked\r\n")
        elif length is None:
            self._keeps = False
        elif status not in _BODYLESS:
            lines.append(f"content-length: {length}\r\n")
        if not self._keeps:
            lines.append("connection: close\r\n")
        text = "".join(lines)
        if not text.count("\r") == text.count("\n") == len(lines) or "\0" in text:  # a header has a line break in it
            text = "".join(_UNSAFE.sub(" ", line[:-2]) + "\r\n" for line in lines)
        return text.encode("latin-1") + self._server.date() + b"\r\n"

    def _finish(self) -> None:
        """End a request whose answer is written."""
        self._exchange = None
        self._hear()
        if self._is_over:
            return
        if not self._keeps and self._reads:
            self._linger()
        elif not self._keeps:
            self._transport.close()
        elif self._incoming.ahead:  # later, as the code that answered is not done
            asyncio.get_running_loop().call_soon(self._proceed)

    # -- its end -------------------------------------------------------------------------------------------------------

    def close_when_answered(self) -> None:
        """Take no further request; close now, unless a complete one is being answered."""
        self._keeps = False
        if not self._is_answering:
            self._is_over = True
            self._transport.close()

    def end_answer(self) -> None:
        """End the present answer early."""
        if self._exchange is not None:
            self._exchange.abandon()

    def abort(self) -> None:
        """Close at once; what is not written is lost."""
        self._transport.abort()

    def _linger(self) -> None:
        """Send end-of-file and close later: closing while the client still sends would make it lose our answer."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._transport.write_eof()
        clock = self._server.clock
        self._timer = clock.call_at(clock.monotonic() + LINGER, self._transport.abort)

    def _watch(self) -> None:
        """Close the connection when the client has asked nothing for too long."""
        clock = self._server.clock
        if self._is_answering or self._transport.get_write_buffer_size():
            self._hear()
        if clock.monotonic() - self._heard >= KEEP_ALIVE:
            self._is_over = True
            self._transport.abort()
            return
        self._timer = clock.call_at(self._heard + KEEP_ALIVE, self._watch)

    def _hear(self) -> None:
        """Note that the connection is used now."""
        self._heard = self._server.clock.monotonic()
        self._server.heard(self)


def _most_connections() -> int:
    """Half of the files that the process may open: a server on stdio needs some for each of its clients."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, files // 2)
