"""A connection of a client: what it asks is answered in order, whatever it does meanwhile, and it is let go in time."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.children import no_file_left

from holdfast.clock import Clock, SystemClock
from holdfast.errors import ConfigError
from holdfast.mcp.http import incoming
from holdfast.mcp.http.exchange import MOST_QUEUED, Exchange
from holdfast.mcp.http.front import HttpFront
from holdfast.mcp.http.gateway import Address
from holdfast.mcp.http.serving import KEEP_ALIVE, LINGER, Connection, HttpServer
from holdfast.mcp.wire import Event, Pairs
from holdfast.testing import ManualClock

PATIENCE = 20.0
HEAD = b"POST /it/mcp HTTP/1.1\r\nHost: localhost\r\n"


class It:
    """A site that does what a test wants; *post* gets every request that is admitted."""

    def __init__(self, post: Callable[[Exchange], Awaitable[None] | None]) -> None:
        self._post = post
        self.bodies: list[bytes] = []
        self._came: asyncio.Queue[Exchange] = asyncio.Queue()

    def post(self, exchange: Exchange) -> Awaitable[None] | None:
        self.bodies.append(exchange.body)
        self._came.put_nowait(exchange)
        return self._post(exchange)

    async def next(self) -> Exchange:
        """The next request that came."""
        return await asyncio.wait_for(self._came.get(), PATIENCE)

    get = delete = post

    def facts(self) -> list[dict[str, object]]:
        return [{"kind": "test", "state": "ready", "last_error": None}]

    async def close(self) -> None:
        """There is nothing to close."""


class Client:
    """A connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of the next answer."""
        text = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)).decode("latin-1")
        first, *lines = text.strip().split("\r\n")
        return int(first.split(" ")[1]), dict(line.split(": ", 1) for line in lines)

    async def answer(self) -> tuple[int, bytes]:
        """The status and the body of the next answer."""
        status, headers = await self.head()
        return status, await self.bytes(int(headers.get("content-length", 0)))

    async def bytes(self, count: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(count), PATIENCE)

    async def rest(self) -> bytes:
        """All until the server hangs up."""
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE)
        except ConnectionError:
            return b""


class Served:
    """A server with one site."""

    def __init__(self, server: HttpServer, site: It, port: int) -> None:
        self.server, self.site = server, site
        self.port = port
        self._clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**24))
        self._clients.append(client)
        return client

    async def empty(self) -> None:
        """Wait until nobody is connected."""
        await asyncio.wait_for(self.server._empty.wait(), PATIENCE)

    async def close(self) -> None:
        await self.server.close()
        for client in self._clients:
            client.writer.close()


@asynccontextmanager
async def served(
    post: Callable[[Exchange], Awaitable[None] | None], *, clock: Clock | None = None, token: str | None = None
) -> AsyncIterator[Served]:
    site = It(post)
    address = Address("127.0.0.1", 0, token)
    server = HttpServer(HttpFront({"it": site}, hosts=address.hosts, token=token), clock or SystemClock())
    listening = address.listen()
    await server.start(listening)
    made = Served(server, site, listening.getsockname()[1])
    try:
        yield made
    finally:
        await made.close()


def echoes(exchange: Exchange) -> None:
    exchange.answer(200, [("content-type", "text/plain")], exchange.body)


def waits(exchange: Exchange) -> None:
    """The test answers."""


def streams(exchange: Exchange) -> None:
    """The test goes on."""
    exchange.due = None
    exchange.stream()


def request(body: bytes, more: bytes = b"") -> bytes:
    return HEAD + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


# --- requests ---


async def test_requests_that_are_sent_ahead_are_answered_one_by_one_in_order() -> None:
    async with served(waits) as it:
        client = await it.connect()
        client.say(request(b"one") + request(b"two") + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        first = await it.site.next()
        assert it.site.bodies == [b"one"]
        echoes(first)
        assert await client.answer() == (200, b"one")
        echoes(await it.site.next())

        assert await client.answer() == (200, b"two")
        assert (await client.answer())[0] == 200


async def test_what_is_sent_far_ahead_is_answered_too() -> None:
    async with served(waits) as it:
        client = await it.connect()
        body = b"x" * 100_000
        for _ in range(40):
            client.say(request(body))
        for _ in range(40):
            echoes(await it.site.next())
            assert await client.answer() == (200, body)


async def test_a_body_in_chunks_is_taken() -> None:
    async with served(echoes) as it:
        client = await it.connect()
        client.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        client.say(b"2\r\nde\r\n0\r\n\r\n" + request(b"next"))

        assert await client.answer() == (200, b"abcde")
        assert await client.answer() == (200, b"next")


async def test_a_client_that_waits_to_be_told_sends_its_body_then() -> None:
    async with served(echoes) as it:
        client = await it.connect()
        client.say(HEAD + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert (await client.head())[0] == 100
        client.say(b"body" + request(b"next"))

        assert await client.answer() == (200, b"body")
        assert await client.answer() == (200, b"next")


async def test_a_client_that_waits_to_be_told_is_not_told_where_it_may_not_ask() -> None:
    async with served(echoes, token="secret") as it:
        client = await it.connect()
        client.say(HEAD + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\n")

        status, headers = await client.head()
        assert (status, headers["connection"]) == (401, "close")
        assert await client.rest() == b"a token is needed\n"


@pytest.mark.parametrize("how", [b"Content-Length: 9\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n9\r\n123"])
async def test_a_body_that_is_too_long_is_refused_before_it_is_there(
    how: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "LONGEST_BODY", 8)
    async with served(echoes) as it:
        client = await it.connect()
        client.say(HEAD + how)

        status, headers = await client.head()
        assert (status, headers["connection"], headers["content-type"]) == (413, "close", "application/json")
        assert b"must not be longer than 8 bytes" in await client.rest()
        assert it.site.bodies == []


async def test_a_connection_lives_on_after_a_refusal_whose_body_comes_later() -> None:
    async with served(echoes) as it:
        client = await it.connect()
        client.say(b"POST /other/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n")
        assert (await client.answer())[0] == 404
        client.say(b"body" + request(b"next"))

        assert await client.answer() == (200, b"next")


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01", b"hello\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", HEAD + b"Content-Length: x\r\n\r\n"],
    ids=["tls", "word", "line", "length"],
)
async def test_garbage_is_told_so_and_is_nobody_else_s_trouble(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with served(echoes) as it:
        client = await it.connect()
        client.say(request(b"one") + garbage)
        assert await client.answer() == (200, b"one")

        status, headers = await client.head()
        assert (status, headers["connection"]) == (400, "close")
        assert b"error" in await client.rest()
        assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


async def test_a_chunk_that_is_none_is_told_so() -> None:
    async with served(echoes) as it:
        client = await it.connect()
        client.say(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n")

        assert (await client.head())[0] == 400
        assert it.site.bodies == []


# --- answers ---


async def test_a_whole_answer_has_its_length_and_what_the_server_said_twice() -> None:
    pairs: Pairs = [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("x", "\xe4")]
    async with served(lambda exchange: exchange.answer(299, pairs, b"body")) as it:
        client = await it.connect()
        client.say(request(b""))

        head = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), PATIENCE)
        lines = head.split(b"\r\n")
        assert lines[:5] == [
            b"HTTP/1.1 299 ", b"set-cookie: a=1", b"set-cookie: b=2", b"x: \xe4", b"content-length: 4",
        ]  # fmt: skip
        assert await client.bytes(4) == b"body"


async def test_a_header_cannot_become_two() -> None:
    pairs: Pairs = [("x", "1\r\ny: 2\0")]
    async with served(lambda exchange: exchange.answer(200, pairs)) as it:
        client = await it.connect()
        client.say(request(b""))

        _, headers = await client.head()
        assert "y" not in headers
        assert headers["x"] == "1  y: 2 "


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_that_has_no_body_says_nothing_of_one(status: int) -> None:
    async with served(lambda exchange: exchange.answer(status, [], b"body")) as it:
        client = await it.connect()
        client.say(2 * request(b""))

        assert "content-length" not in (await client.head())[1]
        assert (await client.head())[0] == status


@pytest.mark.parametrize(("path", "expected"), [("/healthz", 200), ("/other", 404)])
async def test_a_client_that_asks_for_the_head_gets_no_body(path: str, expected: int) -> None:
    async with served(echoes) as it:
        client = await it.connect()
        client.say(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() + request(b"next"))

        status, headers = await client.head()
        assert (status, int(headers["content-length"]) > 0) == (expected, True)
        assert await client.answer() == (200, b"next")


async def test_a_stream_is_chunks_that_come_at_once() -> None:
    async with served(streams) as it:
        client = await it.connect()
        client.say(request(b""))
        exchange = await it.site.next()
        exchange.send(Event(b"1"))
        assert (await client.head())[1]["transfer-encoding"] == "chunked"
        assert await client.bytes(14) == b"9\r\ndata: 1\n\n\r\n"
        exchange.send(Event(b"2"))
        assert await client.bytes(14) == b"9\r\ndata: 2\n\n\r\n"
        exchange.send(Event(b"3"))
        exchange.end()

        assert await client.bytes(19) == b"9\r\ndata: 3\n\n\r\n0\r\n\r\n"
        client.say(request(b""))
        assert (await client.head())[0] == 200


async def test_a_client_of_http_1_0_gets_a_stream_until_the_connection_ends() -> None:
    async with served(streams) as it:
        client = await it.connect()
        client.say(b"POST /it/mcp HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        exchange = await it.site.next()
        exchange.send(Event(b"1"))
        headers = (await client.head())[1]
        exchange.end()

        assert headers["connection"] == "close"
        assert "transfer-encoding" not in headers
        assert await client.rest() == b"data: 1\n\n"


async def test_a_stream_that_nobody_reads_fills_up_and_goes_on_when_it_is_read() -> None:
    full: list[bool] = []
    async with served(streams) as it:
        client = await it.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.say(request(b""))
        exchange = await it.site.next()
        exchange.on_full = full.append
        while full != [True]:  # the system has room for some
            full.clear()
            exchange.send(Event(b"x" * MOST_QUEUED))
            await asyncio.sleep(0)
        waiting = asyncio.ensure_future(exchange.drained())
        exchange.end()
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]

        while not (await asyncio.wait_for(client.reader.read(2**20), PATIENCE)).endswith(b"0\r\n\r\n"):
            pass
        await asyncio.wait_for(waiting, PATIENCE)
        assert full == [True, False]


# --- clients that leave ---


@pytest.mark.parametrize("answer", [waits, streams])
async def test_a_client_that_leaves_is_noticed_at_once(answer: Callable[[Exchange], None]) -> None:
    done = asyncio.Event()
    async with served(answer) as it:
        client = await it.connect()
        client.say(request(b""))
        exchange = await it.site.next()
        exchange.when_done(done.set)
        client.writer.close()

        await asyncio.wait_for(done.wait(), PATIENCE)
        assert exchange.is_left


async def test_that_a_client_leaves_before_its_request_is_taken_up_is_told_then() -> None:
    done, go = asyncio.Event(), asyncio.Event()

    async def takes_up(exchange: Exchange) -> None:
        await go.wait()
        exchange.when_done(done.set)

    async with served(takes_up) as it:
        client = await it.connect()
        client.say(request(b""))
        exchange = await it.site.next()
        client.writer.transport.abort()
        await it.empty()
        go.set()

        await asyncio.wait_for(done.wait(), PATIENCE)
        assert exchange.is_left


async def test_a_client_that_leaves_in_the_middle_of_a_body_has_asked_nothing() -> None:
    async with served(echoes) as it:
        client = await it.connect()
        client.say(HEAD + b"Content-Length: 9\r\n\r\nhalf")
        client.writer.write_eof()

        assert await client.rest() == b""
        assert it.site.bodies == []


# --- time ---


@pytest.mark.parametrize("said", [b"", b"GET", HEAD + b"a: b"], ids=["nothing", "word", "lines"])
async def test_a_client_that_never_says_what_it_wants_is_let_go(said: bytes) -> None:
    clock = ManualClock()
    with clock.busy():
        async with served(echoes, clock=clock) as it:
            client = await it.connect()
            client.say(request(b"one") + said)
            assert await client.answer() == (200, b"one")
            clock.advance(KEEP_ALIVE - 1)
            assert len(it.server._connections) == 1
            clock.advance(1)

            assert await client.rest() == b""


async def test_drops_of_a_head_win_no_time_and_pieces_of_a_body_do() -> None:
    clock = ManualClock()
    with clock.busy():
        async with served(echoes, clock=clock) as it:
            drops, pieces = await it.connect(), await it.connect()
            drops.say(HEAD)
            pieces.say(HEAD + b"Content-Length: 9\r\n\r\n123")
            await _heard(it)
            for piece in (b"456", b"78"):
                clock.advance(KEEP_ALIVE / 2)
                drops.say(b"a: b\r\n")
                pieces.say(piece)
                await _heard(it)

            assert await drops.rest() == b""
            pieces.say(b"9")
            assert await pieces.answer() == (200, b"123456789")


async def _heard(it: Served) -> None:
    """Wait until the server has read what was said before: somebody else is answered only then."""
    client = await it.connect()
    for _ in range(3):
        client.say(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await client.answer()
    client.writer.close()


async def test_a_client_that_waits_for_its_answer_is_not_let_go() -> None:
    clock = ManualClock()
    with clock.busy():
        async with served(waits, clock=clock) as it:
            client = await it.connect()
            client.say(request(b"late"))
            exchange = await it.site.next()
            clock.advance(10 * KEEP_ALIVE)
            echoes(exchange)

            assert await client.answer() == (200, b"late")


async def test_of_too_many_the_one_goes_that_has_asked_for_nothing_for_longest() -> None:
    async with served(waits) as it:
        it.server.most = 3
        asking, silent, other = [await it.connect() for _ in range(3)]
        asking.say(request(b"one"))
        first = await it.site.next()
        silent.say(HEAD)  # and never the rest
        other.say(request(b"two"))
        echoes(await it.site.next())
        assert await other.answer() == (200, b"two")

        last = await it.connect()

        assert await asyncio.wait_for(silent.reader.read(), PATIENCE) == b""
        last.say(request(b"three"))
        echoes(await it.site.next())
        assert await last.answer() == (200, b"three")
        echoes(first)
        assert await asking.answer() == (200, b"one")


async def test_of_too_many_the_one_that_goes_is_found_without_a_look_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def is_idle(connection: Connection) -> bool:
        nonlocal looks
        looks += 1
        return bool(own.fget(connection))

    own = Connection.is_idle
    monkeypatch.setattr(Connection, "is_idle", property(is_idle))
    async with served(waits) as it:
        it.server.most = 20
        before = [await it.connect() for _ in range(20)]
        before[0].say(request(b"one"))
        await it.site.next()

        for _ in range(19):
            await it.connect()

        assert [await client.rest() for client in before[1:]] == [b""] * 19
        assert looks < 20 * 4


async def test_where_all_are_being_answered_nobody_else_is_taken() -> None:
    async with served(waits) as it:
        it.server.most = 1
        asking = await it.connect()
        asking.say(request(b"one"))
        first = await it.site.next()

        other = await it.connect()

        assert await asyncio.wait_for(other.reader.read(), PATIENCE) == b""
        echoes(first)
        assert await asking.answer() == (200, b"one")


async def test_where_no_file_is_left_a_client_waits_and_is_tried_once_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncio.constants.ACCEPT_RETRY_DELAY", 0.1)
    loop, failed, tries = asyncio.get_running_loop(), asyncio.Event(), 0

    def count(_: object, told: dict[str, Any]) -> None:
        nonlocal tries
        tries += "out of system resource" in told["message"]
        failed.set()

    loop.set_exception_handler(count)
    async with served(echoes) as it:
        with socket.socket() as client:
            client.setblocking(False)
            with no_file_left():
                await loop.sock_connect(client, ("127.0.0.1", it.port))
                await failed.wait()
                at_once = tries
            await loop.sock_sendall(client, request(b"at last"))

            assert (await asyncio.wait_for(loop.sock_recv(client, 1000), PATIENCE)).endswith(b"at last")
    assert 1 <= at_once <= 2  # some Pythons take one more than they are told to


def test_there_are_half_as_many_connections_as_there_may_be_files() -> None:
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))\n"
        "from holdfast.clock import SystemClock\n"
        "from holdfast.mcp.http.front import HttpFront\n"
        "from holdfast.mcp.http.serving import HttpServer\n"
        "print(HttpServer(HttpFront({}, hosts=frozenset(), token=None), SystemClock()).most)"
    )

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"60\n"


async def test_a_client_that_goes_on_after_a_refusal_is_let_go() -> None:
    clock = ManualClock()
    with clock.busy():
        async with served(echoes, clock=clock) as it:
            client = await it.connect()
            client.say(b"garbage\r\n")
            assert (await client.answer())[0] == 400
            client.say(b"and more")
            clock.advance(LINGER)

            await it.empty()


async def test_who_sends_nonsense_after_an_early_refusal_is_let_go() -> None:
    clock = ManualClock()
    with clock.busy():
        async with served(echoes, clock=clock) as it:
            client = await it.connect()
            client.say(b"POST /none/mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            assert (await client.answer())[0] == 404
            client.say(b"nonsense\r\n")

            assert await client.rest() == b""


async def test_a_request_that_waits_until_the_answer_before_it_is_read_is_answered_then() -> None:
    async with served(waits) as it:
        client = await it.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.say(request(b"one") + request(b"two"))
        (await it.site.next()).answer(200, [], b"x" * 2**23)
        await asyncio.sleep(0)  # it has been written, as far as the client takes it
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]

        assert (await client.answer())[1] == b"x" * 2**23
        echoes(await it.site.next())
        assert await client.answer() == (200, b"two")


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("line", "allowed"),
    [(b"PUT /it/mcp", "GET, POST, DELETE"), (b"POST /", "GET, HEAD"), (b"PUT /healthz", "GET, HEAD")],
)
async def test_what_is_not_to_be_done_somewhere_is_told_with_what_is(line: bytes, allowed: str) -> None:
    async with served(echoes) as it:
        client = await it.connect()
        client.say(line + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        status, headers = await client.head()

        assert (status, headers["allow"]) == (405, allowed)
        assert it.site.bodies == []


def fails(exchange: Exchange) -> None:
    raise RuntimeError("ours")


async def fails_later(exchange: Exchange) -> None:
    raise RuntimeError("ours")


@pytest.mark.parametrize("post", [fails, fails_later])
async def test_a_fault_of_ours_is_answered_and_told_to_the_log(
    post: Callable[[Exchange], Awaitable[None] | None], caplog: pytest.LogCaptureFixture
) -> None:
    async with served(post) as it:
        client = await it.connect()
        client.say(request(b"{}"))
        status, body = await client.answer()

        assert (status, json.loads(body)["error"]["code"]) == (500, -32603)
        assert [record.message for record in caplog.records] == ["a request could not be answered"]


async def test_a_fault_of_ours_ends_a_stream_that_has_begun() -> None:
    def post(exchange: Exchange) -> None:
        streams(exchange)
        raise RuntimeError("ours")

    async with served(post) as it:
        client = await it.connect()
        client.say(request(b"{}", b"Connection: close\r\n"))

        assert (await client.head())[0] == 200
        assert await client.rest() == b""


async def test_nothing_is_kept_of_a_stream_with_signs_of_life_that_has_ended() -> None:
    async with served(waits) as it:
        client = await it.connect()
        client.say(request(b"{}"))
        exchange = await it.site.next()
        exchange.pings = True
        exchange.stream()
        await client.head()
        exchange.end()
        assert await client.bytes(5) == b"0\r\n\r\n"

        kept = weakref.ref(exchange)
        del exchange
        gc.collect()
        assert kept() is None


async def test_a_port_that_is_taken_is_told() -> None:
    async with served(echoes) as it:
        with pytest.raises(ConfigError, match=f"127.0.0.1:{it.port} cannot be listened on: .*choose another port"):
            Address("127.0.0.1", it.port, None).listen()


# --- the end ---


@pytest.mark.parametrize("turns", range(4))
async def test_who_is_just_being_accepted_at_the_end_is_let_go(turns: int) -> None:
    async with served(echoes) as it:
        clients = [socket.create_connection(("127.0.0.1", it.port), PATIENCE) for _ in range(20)]
        for _ in range(turns):  # of the loop, in one of which they are taken
            await asyncio.sleep(0)

        await it.server.close()

        heard = [await asyncio.to_thread(last_words, client) for client in clients]
    assert heard == [b""] * 20


def last_words(client: socket.socket) -> bytes:
    """What the server says until it hangs up."""
    with client:
        try:
            return client.recv(1)
        except ConnectionError:
            return b""


async def test_at_the_end_who_is_being_answered_gets_an_answer_and_others_are_let_go() -> None:
    async with served(waits) as it:
        busy, idle, halfway = [await it.connect() for _ in range(3)]
        idle.say(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await idle.answer()
        halfway.say(HEAD + b"Content-Length: 9\r\n\r\n123")
        busy.say(request(b"one") + request(b"two"))
        exchange = await it.site.next()
        it.server.stop()
        assert await idle.rest() == b""
        assert await halfway.rest() == b""
        echoes(exchange)

        status, headers = await busy.head()
        assert (status, headers["connection"]) == (200, "close")
        assert await busy.rest() == b"one"
        with pytest.raises(ConnectionError):
            await it.connect()


async def test_at_the_end_nobody_waits_long_for_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.mcp.http.serving.LAST_ANSWERS", 0.01)
    done = asyncio.Event()
    async with served(streams) as it:
        client = await it.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.say(request(b""))
        exchange = await it.site.next()
        exchange.when_done(done.set)
        exchange.send(Event(b"x" * 2**24))

        await asyncio.wait_for(it.server.close(), PATIENCE)
        await it.empty()
        await asyncio.wait_for(done.wait(), PATIENCE)
