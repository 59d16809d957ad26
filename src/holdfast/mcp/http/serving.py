"""The connections of clients over HTTP: requests are read one at a time, and their answers written as they come.

One request is answered before the next is read, nothing is kept of what a client sends ahead beyond a little, and a
connection on which nothing whole is asked for a while is let go; sooner where there are too many. Bad requests are an
answer, and nobody's trouble.
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

KEEP_ALIVE: Final = 75.0  # seconds for a client to ask, or to go on with the body of what it asks
LINGER: Final = 2.0  # seconds for a client to read why it was refused, which it could not if we hung up on it
LAST_ANSWERS: Final = 3.0  # seconds for what is being written when the server ends
MOST_AHEAD: Final = 64 * 2**10  # bytes of requests that have to wait for their turn
BUFFER: Final = 64 * 2**10  # bytes that are read at once
TURNS: Final = 4  # of the event loop, in which a client that was taken has become a connection
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
        # Of all connections, since it is read from before another may write; asyncio would make one for every read.
        self.buffer = memoryview(bytearray(BUFFER))
        self._connections: OrderedDict[Connection, None] = OrderedDict()  # that was of use last is the last
        self._empty = asyncio.Event()
        self._empty.set()
        self._listening: asyncio.Server | None = None
        self._date = (0, b"")

    async def start(self, listening: socket.socket) -> None:
        """Take connections; the socket is ours from now on."""
        loop = asyncio.get_running_loop()
        # One at a time. Where no file is left asyncio tries again later, and most versions as often as they may take at
        # once, each try leading to as many: soon they do nothing else.
        self._listening = await loop.create_server(lambda: Connection(self), sock=listening, backlog=1)
        listening.listen(self.most // 2)  # so many may wait for that

    def stop(self) -> None:
        """Take nothing more: who is not being answered is let go, the others when they are."""
        self.is_stopping = True
        if self._listening is not None:
            loop = asyncio.get_running_loop()
            for listening in self._listening.sockets:
                loop.remove_reader(listening)
            loop.call_soon(loop.call_soon, self._listening.close)  # once who was taken has begun: else nobody lets go
        for connection in list(self._connections):
            connection.stop()

    async def close(self) -> None:
        """End all answers, and wait until clients have taken them; not for long."""
        self.stop()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.end()
        try:
            await asyncio.wait_for(self._empty.wait(), LAST_ANSWERS)
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
            await self._empty.wait()

    def join(self, connection: Connection) -> None:
        """A client has connected; of too many, the one goes that has asked for nothing for longest."""
        self._connections[connection] = None
        self._empty.clear()
        if len(self._connections) > self.most:
            while not (first := next(iter(self._connections))).is_idle:  # at least the new one is
                self._connections.move_to_end(first)
            first.abort()

    def heard(self, connection: Connection) -> None:
        """A client is of use now."""
        self._connections.move_to_end(connection)

    def leave(self, connection: Connection) -> None:
        """A client has gone."""
        del self._connections[connection]
        if not self._connections:
            self._empty.set()

    def date(self) -> bytes:
        """The header that says when this is."""
        now = int(self.clock.time())
        if now != self._date[0]:
            self._date = now, f"date: {formatdate(now, usegmt=True)}\r\n".encode()
        return self._date[1]


class Connection(asyncio.BufferedProtocol):
    """One client; a line for the answer to the request that it is at."""

    def __init__(self, server: HttpServer) -> None:
        self.is_full = False  # the client reads slower than we write
        self._server = server
        self._incoming = Incoming()
        self._transport: asyncio.Transport
        self._request: Request | None = None
        self._exchange: Exchange | None = None  # that is not answered yet
        self._site: Site | None = None  # that the exchange is for, once its body is there
        self._reads = False  # a body
        self._keeps = True
        self._is_over = False  # what comes now is not looked at
        self._is_chunked = self._is_bare = False  # the answer
        self._timer: Timer | None = None
        self._heard = 0.0  # when it was last of use

    @property
    def is_idle(self) -> bool:
        """Whether nothing whole is asked for: no, once it has been let go."""
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
        """Read as far as it goes."""
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
        """A head is there: who may not ask is told so before the body."""
        self._request = request
        # Who is refused a body that it has not sent may send it, or the next request instead: nobody can tell.
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
        """Say why this is no request; where the next one begins is not known."""
        self._keeps = False
        self._site = None  # nobody is asked, whatever else comes
        exchange = self._exchange
        if exchange is None and not self._reads:
            self._request = None
            exchange = self._exchange = Exchange("", [], {}, self)
        self._reads = True
        if exchange is None:  # it has its answer
            self._linger()
        else:
            exchange.fail(refused.status, str(refused))

    # -- to the client -------------------------------------------------------------------------------------------------

    def write(self, start: Start | None, data: bytes, *, ended: bool) -> None:
        """Hand the client *data*, after the *start* of the answer if that was not given before."""
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
        """The head of an answer; without a *length* it goes on until somebody says so."""
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
        if not text.count("\r") == text.count("\n") == len(lines) or "\0" in text:  # the server's, or somebody else's
            text = "".join(_UNSAFE.sub(" ", line[:-2]) + "\r\n" for line in lines)
        return text.encode("latin-1") + self._server.date() + b"\r\n"

    def _finish(self) -> None:
        """The answer is written."""
        self._exchange = None
        self._hear()
        if self._is_over:
            return
        if not self._keeps and self._reads:
            self._linger()
        elif not self._keeps:
            self._transport.close()
        elif self._incoming.ahead:  # later, since those who answered are not done
            asyncio.get_running_loop().call_soon(self._proceed)

    # -- its end -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """There is no next request, nor one that is not there as a whole."""
        self._keeps = False
        if not self._is_answering:
            self._is_over = True
            self._transport.close()

    def end(self) -> None:
        """There is no more to answer."""
        if self._exchange is not None:
            self._exchange.abandon()

    def abort(self) -> None:
        """Hang up."""
        self._transport.abort()

    def _linger(self) -> None:
        """Say that there is no more, and let the client find that out before its own words are lost."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._transport.write_eof()
        clock = self._server.clock
        self._timer = clock.call_at(clock.monotonic() + LINGER, self._transport.abort)

    def _watch(self) -> None:
        """Let the client go when it has asked nothing for too long."""
        clock = self._server.clock
        if self._is_answering or self._transport.get_write_buffer_size():
            self._hear()
        if clock.monotonic() - self._heard >= KEEP_ALIVE:
            self._is_over = True
            self._transport.abort()
            return
        self._timer = clock.call_at(self._heard + KEEP_ALIVE, self._watch)

    def _hear(self) -> None:
        """It is of use now."""
        self._heard = self._server.clock.monotonic()
        self._server.heard(self)


def _most_connections() -> int:
    """Half of the files that the process may have: a server on stdio needs some for each of its clients."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, files // 2)
