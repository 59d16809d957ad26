"""What an endpoint sends, to whom and how often; and what it makes of what comes back."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.children import descriptors
from tests.mcp.http.servers import Reply, server

from holdfast.errors import ConfigError
from holdfast.mcp.http.client import LARGE, LONGEST_FIELD, MOST_IDLE, Response
from holdfast.mcp.http.endpoint import MOST_REDIRECTS, Endpoint
from holdfast.mcp.wire import ServerLost

EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
PATIENCE = 20.0


async def fine(reply: Reply) -> None:
    await reply.whole(200, b"fine")


@asynccontextmanager
async def endpoint(
    url: str, headers: Mapping[str, str] | None = None, *, is_shared: bool = False
) -> AsyncIterator[Endpoint]:
    made = Endpoint(url, headers, is_shared=is_shared)
    try:
        yield made
    finally:
        await made.close()


async def ask(endpoint: Endpoint, method: str = "POST", **headers: str) -> bytes:
    """The body of the answer, read to its end."""
    response = await endpoint.open(method, headers, b"x" if method == "POST" else None)
    try:
        return await response.body()
    finally:
        response.close()


async def turns(count: int) -> None:
    """Let the loop do what there is to be done."""
    for _ in range(count):
        await asyncio.sleep(0)


async def rest(taken: socket.socket) -> None:
    """Read on to the end."""
    while await asyncio.get_running_loop().sock_recv(taken, 2**16):
        pass


class ByHand:
    """A server whose every step is the test's: between two of them the client's loop sees nothing."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"

    async def accept(self) -> socket.socket:
        taken, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(self.listening), PATIENCE)
        return taken

    async def serve(self, taken: socket.socket, answer: bytes = EMPTY) -> bytes:
        """Read a request, which comes in one piece, and answer it."""
        request = b""
        while not request.endswith(b"\r\n\r\nx"):
            request += await asyncio.get_running_loop().sock_recv(taken, 2**16)
        await asyncio.get_running_loop().sock_sendall(taken, answer)
        return request

    async def answer(self, asked: Endpoint, head: bytes) -> tuple[socket.socket, Response]:
        """Have *asked* ask, and answer with *head*; both ends of what goes on from there."""
        asking = asyncio.ensure_future(asked.open("POST", {}, b"x"))
        taken = await self.accept()
        await self.serve(taken, head)
        return taken, await asyncio.wait_for(asking, PATIENCE)


@pytest.fixture
def by_hand() -> Iterator[ByHand]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield ByHand(listening)


# --- how often ---


@pytest.mark.parametrize("end", ["closed", "reset"])
async def test_a_post_on_a_kept_connection_that_breaks_is_not_sent_again(end: str) -> None:
    async def answer(reply: Reply) -> None:
        if reply.request.headers["x-turn"] == "1":
            await fine(reply)
        elif end == "reset":
            reply.reset()
        else:
            reply.keeps = False

    async with server(answer) as made, endpoint(made.url) as asked:
        await ask(asked, **{"x-turn": "1"})
        with pytest.raises(ServerLost) as caught:
            await ask(asked, **{"x-turn": "2"})

        assert caught.value.sent
        assert [request.headers["x-turn"] for request in made.requests] == ["1", "2"]
        assert made.connections == 1


async def test_a_kept_connection_that_the_server_has_closed_is_not_used(by_hand: ByHand) -> None:
    async with endpoint(by_hand.url) as asked:
        first = asyncio.ensure_future(ask(asked))
        taken = await by_hand.accept()
        await by_hand.serve(taken)
        await first
        taken.close()  # and the client's loop does not run until it asks again

        second = asyncio.ensure_future(ask(asked))
        taken = await by_hand.accept()
        await by_hand.serve(taken)
        taken.close()

        assert await asyncio.wait_for(second, PATIENCE) == b""


async def test_what_a_server_says_unasked_is_no_answer_to_the_next_request(by_hand: ByHand) -> None:
    async with endpoint(by_hand.url) as asked:
        first = asyncio.ensure_future(ask(asked))
        old = await by_hand.accept()
        await by_hand.serve(old)
        await first
        old.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nunasked")
        await turns(20)

        second = asyncio.ensure_future(ask(asked))
        new = await by_hand.accept()
        await by_hand.serve(new)

        assert await asyncio.wait_for(second, PATIENCE) == b""
        old.close()
        new.close()


async def test_a_server_that_closes_without_an_answer_may_have_been_called() -> None:
    async def answer(reply: Reply) -> None:
        reply.keeps = False

    async with server(answer) as made, endpoint(made.url) as asked:
        with pytest.raises(ServerLost, match="broke the connection") as caught:
            await ask(asked)

        assert caught.value.sent


async def test_no_more_connections_are_kept_than_a_burst_needs() -> None:
    waiting, everybody = 0, asyncio.Event()
    count = MOST_IDLE + 20

    async def answer(reply: Reply) -> None:
        nonlocal waiting
        waiting += 1
        if waiting % count == 0:
            everybody.set()
        await everybody.wait()
        await fine(reply)

    async with server(answer) as made, endpoint(made.url) as asked:
        await asyncio.gather(*(ask(asked) for _ in range(count)))
        assert made.connections == count
        everybody.clear()
        await asyncio.gather(*(ask(asked) for _ in range(count)))

        assert made.connections == count + 20


# --- what is sent ---


async def test_a_request_says_no_more_than_it_must() -> None:
    async with server(fine) as made, endpoint(made.url) as asked:
        await ask(asked, **{"X-Mine": "1"})

        assert made.requests[0].headers == {
            "host": made.url.split("/")[2], "x-mine": "1", "accept-encoding": "identity", "user-agent": "holdfast",
            "accept": "*/*", "content-length": "1",
        }  # fmt: skip


async def test_headers_of_the_user_come_before_all_others(by_hand: ByHand) -> None:
    async with endpoint(by_hand.url, {"X-Team": "blue"}) as asked:
        asking = asyncio.ensure_future(asked.open("POST", [("x-team", "red"), ("X-Two", "1"), ("x-two", "2")], b"x"))
        taken = await by_hand.accept()
        request = await by_hand.serve(taken)
        (await asking).close()
        taken.close()

        lines = [line for line in request.lower().split(b"\r\n") if line.startswith(b"x-")]
        assert sorted(lines) == [b"x-team: blue", b"x-two: 1", b"x-two: 2"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("x-key", "s3cret\r\nx: y"), ("x-key", "s3cret é"), ("x-key", "s3cret\0"), ("x key", "s3cret"), ("", "s3cret")],
    ids=["line", "letter", "zero", "space", "empty"],
)
async def test_a_header_that_cannot_be_sent_is_named_and_nothing_is_sent(name: str, value: str) -> None:
    async with server(fine) as made, endpoint(made.url) as asked:
        with pytest.raises(ServerLost, match=rf"cannot be asked: the header {name} must") as caught:
            await asked.open("POST", {name: value}, b"x")

        assert not caught.value.sent
        assert "s3cret" not in str(caught.value)
        assert made.connections == 0


async def test_a_path_is_sent_as_it_was_given() -> None:
    async with server(fine) as made, endpoint(f"{made.url}/a%2Fb%7e/ü|?x=%2C+a%&y=/#part") as asked:
        await ask(asked)

        assert made.requests[0].path == "/mcp/a%2Fb%7e/%C3%BC%7C?x=%2C+a%25&y=/"


@pytest.mark.parametrize(
    ("user", "sent"), [("us%40er:pass%3Aword", b"us@er:pass:word"), ("user", b"user:"), (":word", b":word")]
)
async def test_user_and_password_of_an_address_are_sent_as_basic_authorization(user: str, sent: bytes) -> None:
    async with server(fine) as made:
        url = made.url.replace("://", f"://{user}@")
        async with endpoint(url, {"Authorization": "other"}) as asked:
            await ask(asked)

            assert made.requests[0].headers["authorization"] == f"Basic {b64encode(sent).decode()}"
            assert "word" not in asked.target


async def test_cookies_of_the_server_are_sent_back_as_they_came() -> None:
    async def answer(reply: Reply) -> None:
        await reply.whole(200, set_cookie='sticky="a/b=c, d"; Path=/; HttpOnly')

    async with server(answer) as made, endpoint(made.url) as asked:
        await ask(asked)
        await ask(asked)

        assert [request.headers.get("cookie") for request in made.requests] == [None, 'sticky="a/b=c, d"']


@pytest.mark.parametrize(("headers", "sent"), [({}, None), ({"Cookie": "mine=1"}, "mine=1")], ids=["none", "own"])
async def test_cookies_of_the_server_are_not_sent_back_where_there_are_many_clients_or_own_ones(
    headers: dict[str, str], sent: str | None
) -> None:
    async def answer(reply: Reply) -> None:
        await reply.whole(200, set_cookie="theirs=2")

    async with server(answer) as made, endpoint(made.url, headers, is_shared=not headers) as asked:
        await ask(asked)
        await ask(asked)

        assert [request.headers.get("cookie") for request in made.requests] == [sent, sent]


@pytest.mark.parametrize(
    "url",
    [
        "http://", "http://a b/", "http://[::1/", "//x/mcp", "http://x:99999/", "http://a..b/", "http://./",
        f"http://{'x' * 64}.example/",
    ],
)  # fmt: skip
async def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        Endpoint(url)


# --- where it goes ---


@pytest.mark.parametrize(
    ("method", "status", "follows"),
    [
        *(("POST", status, status in {307, 308}) for status in (300, 301, 302, 303, 307, 308)),
        *(("GET", status, True) for status in (301, 302, 303, 307, 308)),
        *(("DELETE", status, status in {301, 307, 308}) for status in (301, 302, 303, 307, 308)),
    ],
)
async def test_a_redirect_is_followed_where_the_method_stays(method: str, status: int, follows: bool) -> None:
    async def answer(reply: Reply) -> None:
        await (reply.whole(status, location="öther?a=1") if reply.request.path == "/mcp" else fine(reply))

    async with server(answer) as made, endpoint(made.url) as asked:
        response = await asked.open(method, {}, b"x" if method == "POST" else None)
        response.close()

        assert response.status == (200 if follows else status)
        assert [(request.method, request.path) for request in made.requests] == [
            (method, "/mcp"), *[(method, "/%C3%B6ther?a=1")] * follows
        ]  # fmt: skip


@pytest.mark.parametrize(
    "location",
    [
        "http://localhost:{port}/mcp", "http://127.0.0.1/mcp", "https://127.0.0.1:{port}/mcp", "//localhost:{port}/",
        "http://me:too@127.0.0.1:{port}/mcp", "ftp://127.0.0.1:{port}/", "http://[", "data:x",
    ],
)  # fmt: skip
async def test_a_redirect_to_another_origin_comes_through_as_the_refusal_it_is(location: str) -> None:
    async def answer(reply: Reply) -> None:
        await reply.whole(307, location=location.format(port=made.url.split(":")[2].split("/")[0]))

    async with server(answer) as made, endpoint(made.url, {"authorization": "secret"}) as asked:
        response = await asked.open("POST", {}, b"x")
        refused = await asked.refusal(response)
        response.close()

        assert refused.answer is not None
        assert refused.answer.status == 307
        assert len(made.requests) == 1


async def test_redirects_in_a_circle_come_to_an_end() -> None:
    async def answer(reply: Reply) -> None:
        await reply.whole(307, location="/mcp")

    async with server(answer) as made, endpoint(made.url) as asked:
        response = await asked.open("POST", {}, b"x")
        response.close()

        assert response.status == 307
        assert len(made.requests) == 1 + MOST_REDIRECTS


async def test_after_a_redirect_the_user_of_the_address_is_still_named() -> None:
    async def answer(reply: Reply) -> None:
        await (reply.whole(308, location=f"{made.url}/new") if reply.request.path == "/mcp" else fine(reply))

    async with server(answer) as made, endpoint(made.url.replace("://", "://me:too@")) as asked:
        await ask(asked)
        await ask(asked)

        assert [request.path for request in made.requests] == ["/mcp", "/mcp/new", "/mcp/new"]
        assert {request.headers.get("authorization") for request in made.requests} == {"Basic bWU6dG9v"}


async def test_a_place_that_was_remembered_is_forgotten_when_it_says_no() -> None:
    async def answer(reply: Reply) -> None:
        if reply.request.path == "/mcp":
            await reply.whole(308, location="/mcp/new")
        else:
            await reply.whole(404)

    async with server(answer) as made, endpoint(made.url) as asked:
        await ask(asked)
        await ask(asked)

        assert [request.path for request in made.requests] == ["/mcp", "/mcp/new"] * 2


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without proxies."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize("scheme", ["http://", ""])
@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
async def test_a_proxy_of_the_environment_is_asked(environment: pytest.MonkeyPatch, variable: str, scheme: str) -> None:
    async with server(fine) as made:
        environment.setenv(variable, made.url.replace("http://", f"{scheme}me:too@").removesuffix("/mcp"))
        async with endpoint("http://server.example/mcp?a=1") as asked:
            await ask(asked)
            await ask(asked)

        assert [request.path for request in made.requests] == ["http://server.example/mcp?a=1"] * 2
        assert {request.headers["host"] for request in made.requests} == {"server.example"}
        assert {request.headers["proxy-authorization"] for request in made.requests} == {"Basic bWU6dG9v"}
        assert made.connections == 1


@pytest.mark.parametrize("exempt", ["127.0.0.1", "example.com,127.0.0.1:{port}", "*"])
async def test_a_server_that_needs_no_proxy_is_asked_itself(environment: pytest.MonkeyPatch, exempt: str) -> None:
    async with server(fine) as made:
        environment.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        environment.setenv("NO_PROXY", exempt.format(port=made.url.split(":")[2].split("/")[0]))
        async with endpoint(made.url) as asked:
            assert await ask(asked) == b"fine"


@pytest.mark.parametrize(
    ("proxy", "why"),
    [
        ("socks5://127.0.0.1:1", "a proxy must be one of http:// or https://"),
        ("http://[", "the proxy's address is not valid"),
        ("http://a..b:1", "the proxy's address is not valid"),
        ("http://127.0.0.1:1", "Connect call failed"),
    ],
    ids=["socks", "nonsense", "no name", "closed"],
)
async def test_a_proxy_that_cannot_be_had_means_that_nothing_was_sent(
    environment: pytest.MonkeyPatch, proxy: str, why: str
) -> None:
    environment.setenv("https_proxy", proxy)
    async with endpoint("https://server.example/mcp") as asked:
        with pytest.raises(ServerLost, match=why) as caught:
            await ask(asked)

        assert not caught.value.sent


async def test_a_proxy_that_says_no_means_that_nothing_was_sent(environment: pytest.MonkeyPatch) -> None:
    async def answer(reply: Reply) -> None:
        reply.keeps = False
        await reply.whole(403)

    async with server(answer) as made:
        environment.setenv("https_proxy", made.url)
        async with endpoint("https://server.example/mcp") as asked:
            with pytest.raises(ServerLost, match="proxy answered with HTTP status 403") as caught:
                await ask(asked)

        assert not caught.value.sent
        assert [(request.method, request.path) for request in made.requests] == [("CONNECT", "server.example:443")]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for this machine that nobody trusts, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate")
    file = tmp_path_factory.mktemp("tls") / "own.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=holdfast"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(file), "-out", str(file.with_suffix(".crt"))]
    subprocess.run(command, check=True, capture_output=True)
    file.write_bytes(file.read_bytes() + file.with_suffix(".crt").read_bytes())
    return file


@asynccontextmanager
async def secure_server(certificate: Path) -> AsyncIterator[str]:
    """The address of a server that answers everything over TLS with nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /end"):
                writer.write(EMPTY)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with listening:
        yield f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"


async def test_a_certificate_that_nobody_trusts_means_that_nothing_was_sent(
    environment: pytest.MonkeyPatch, certificate: Path
) -> None:
    async with secure_server(certificate) as url, endpoint(url) as asked:
        with pytest.raises(ServerLost, match=r"cannot be reached: .*certificate verify failed") as caught:
            await ask(asked, "GET")

        assert not caught.value.sent


async def test_a_certificate_that_the_system_trusts_is_taken(
    environment: pytest.MonkeyPatch, certificate: Path
) -> None:
    environment.setenv("SSL_CERT_FILE", str(certificate.with_suffix(".crt")))
    async with secure_server(certificate) as url, endpoint(url) as asked:
        assert await ask(asked, "GET") == b""
        assert await ask(asked, "GET") == b""


# --- what comes back ---


async def test_headers_come_through_as_they_are(by_hand: ByHand) -> None:
    head = b"HTTP/1.1 200\r\nX-One: 1\r\nx-one: 2\r\nx-name: \xc3\xbc \xfc\r\ncontent-length: 0\r\n\r\n"
    async with endpoint(by_hand.url) as asked:
        taken, response = await by_hand.answer(asked, head)
        response.close()
        taken.close()

        assert response.pairs[:3] == [("x-one", "1"), ("x-one", "2"), ("x-name", "Ã¼ ü")]
        assert response.headers["x-one"] == "1, 2"
        assert response.reason == ""


async def test_long_headers_and_many_of_them_are_taken() -> None:
    more = {f"x_{number}": "y" * 100 for number in range(300)}

    async def answer(reply: Reply) -> None:
        await reply.whole(200, x_long="z" * (LONGEST_FIELD - 100), **more)

    async with server(answer) as made, endpoint(made.url) as asked:
        response = await asked.open("POST", {}, b"x")
        response.close()

        assert len(response.headers["x-long"]) == LONGEST_FIELD - 100
        assert sum(name.startswith("x-") for name in response.headers) == 301


BAD_HEADS: dict[str, Callable[[Reply], Awaitable[object]]] = {
    "long": lambda reply: reply.whole(200, x="y" * 10 * LONGEST_FIELD),
    "many": lambda reply: reply.whole(200, **{f"x_{number}": "y" for number in range(10_000)}),
    "status": lambda reply: reply.whole(1),
    "length": lambda reply: reply.whole(200, content_length="-5"),
}


@pytest.mark.parametrize("head", BAD_HEADS)
async def test_a_head_that_is_none_is_an_answer_that_broke_off(head: str) -> None:
    async with server(BAD_HEADS[head]) as made, endpoint(f"{made.url}?token=s3cret") as asked:
        with pytest.raises(ServerLost, match="broke the connection") as caught:
            await ask(asked)

        assert caught.value.sent
        assert "s3cret" not in str(caught.value)
        assert len(str(caught.value)) < 600


async def test_what_came_before_a_stream_broke_is_read_before_that_is_said(by_hand: ByHand) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    async with endpoint(by_hand.url) as asked:
        taken, response = await by_hand.answer(asked, head)
        taken.sendall(b"5\r\nfirst\r\n6\r\nsecond\r\n")
        taken.close()
        await turns(20)  # in which all of that arrives

        assert await response.read() == b"firstsecond"
        for _ in range(2):
            with pytest.raises(ServerLost, match="broke the connection"):
                await response.read()
        response.close()


async def test_parts_of_a_line_are_handed_on_as_they_come(by_hand: ByHand) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    async with endpoint(by_hand.url) as asked:
        taken, response = await by_hand.answer(asked, head)

        for part in (b"data: ha", b"lf"):
            taken.sendall(b"%x\r\n%s\r\n" % (len(part), part))
            assert await asyncio.wait_for(response.read(), PATIENCE) == part
        response.close()
        taken.close()


async def test_a_body_that_is_too_long_is_not_read_to_its_end() -> None:
    async def answer(reply: Reply) -> None:
        await reply.stream()
        while not reply.gone.is_set():
            await reply.event("x" * 10_000)

    async with server(answer) as made, endpoint(made.url) as asked:
        response = await asked.open("POST", {}, b"x")
        with pytest.raises(ServerLost, match="more than 100000 bytes"):
            await asyncio.wait_for(response.body(100_000), PATIENCE)
        response.close()


# --- giving up ---


async def test_after_its_end_nothing_is_sent() -> None:
    async with server(fine) as made:
        async with endpoint(made.url) as asked:
            await ask(asked)
        with pytest.raises(ServerLost, match="closed") as caught:
            await ask(asked)

        assert not caught.value.sent
        assert len(made.requests) == 1


async def test_an_answer_that_is_not_read_to_its_end_closes_its_connection() -> None:
    gone = asyncio.Event()

    async def answer(reply: Reply) -> None:
        await reply.stream("data: 1")
        await reply.gone.wait()
        gone.set()

    async with server(answer) as made, endpoint(made.url) as asked:
        response = await asked.open("POST", {}, b"x")
        await response.read()
        response.close()

        await asyncio.wait_for(gone.wait(), PATIENCE)


@pytest.mark.parametrize("size", [10, 64 * LARGE], ids=["taken", "not taken"])
async def test_a_request_that_is_cancelled_leaves_no_connection_behind(by_hand: ByHand, size: int) -> None:
    async with endpoint(by_hand.url) as asked:
        before = len(descriptors())
        asking = asyncio.ensure_future(asked.open("POST", {}, b"x" * size))
        taken = await by_hand.accept()
        await turns(3000)  # until all is written that there is room for
        assert len(os.listdir("/dev/fd")) == before + 2  # both ends

        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await turns(20)

        assert len(os.listdir("/dev/fd")) == before + 1
        taken.close()


async def test_what_has_not_reached_the_server_when_a_request_is_given_up_never_does(by_hand: ByHand) -> None:
    by_hand.listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the rest is kept on our side
    async with endpoint(by_hand.url) as asked:
        asking = asyncio.ensure_future(asked.open("POST", {}, b"x" * 2**15))
        taken = await by_hand.accept()
        await turns(300)

        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await turns(20)

        with taken, pytest.raises(ConnectionResetError):
            await rest(taken)
