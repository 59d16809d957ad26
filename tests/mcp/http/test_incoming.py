"""Requests as bytes: the same however they are cut, nothing that could be read in two ways, and no more than a bit."""

from __future__ import annotations

import pytest

from holdfast.mcp.http import incoming
from holdfast.mcp.http.incoming import LONGEST_HEAD, Incoming, Refused, Request

HOST = b"Host: localhost\r\n"
POST = b"POST /a/mcp HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def read(*parts: bytes) -> list[tuple[Request, bytes]]:
    """The whole requests in what comes in *parts*."""
    requests = Incoming()
    found: list[tuple[Request, bytes]] = []
    request: Request | None = None
    for part in parts:
        requests.feed(part)
        while True:
            request = request or requests.head()
            body = requests.body() if request is not None else None
            if request is None or body is None:
                break
            found.append((request, body))
            request = None
    return found


def test_a_request_is_its_method_its_path_its_headers_and_its_body() -> None:
    [(request, body)] = read(
        b"POST /a%20b?c=%20 HTTP/1.1\r\nHOST: x\r\nA:  1 2\t\r\na:\r\nContent-Length: 3\r\n\r\n{.}"
    )

    assert (request.method, request.path, body) == ("POST", "/a b", b"{.}")
    assert request.pairs == [("host", "x"), ("a", "1 2"), ("a", ""), ("content-length", "3")]


def test_headers_are_latin_1_whatever_they_are() -> None:
    [(request, _)] = read(b"GET / HTTP/1.1\r\n" + HOST + b"X: \xc3\xa4\xff\x80\r\n\r\n")

    assert request.headers["x"].encode("latin-1") == b"\xc3\xa4\xff\x80"


STREAM = (
    b"\r\n" + POST + b"Content-Length: 5\r\n\r\nhello"
    + CHUNKED + b"3;x=y\r\nabc\r\n0000A \r\n0123456789\r\n0\r\nT: 1\r\n\r\n"
    b"GET / HTTP/1.0\r\n\r\n" + POST + b"Content-Length: 0\r\n\r\n"
)  # fmt: skip
BODIES = [b"hello", b"abc0123456789", b"", b""]


def test_requests_are_the_same_wherever_the_stream_is_cut() -> None:
    for at in range(len(STREAM) + 1):
        assert [body for _, body in read(STREAM[:at], STREAM[at:])] == BODIES


def test_requests_are_the_same_byte_by_byte() -> None:
    assert [body for _, body in read(*(STREAM[at : at + 1] for at in range(len(STREAM))))] == BODIES


@pytest.mark.parametrize(
    ("stream", "status"),
    [
        (b"\x16\x03\x01\x02\x00", 400),
        (b"hello\n", 400),
        (b"hello\r\n", 400),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /\x7f HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /\xe4 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + 2 * HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Origin: http://x\r\nOrigin: http://localhost\r\n\r\n", 400),
        (POST + b"no colon\r\n\r\n", 400),
        (POST + b"name : value\r\n\r\n", 400),
        (POST + b" folded: value\r\n\r\n", 400),
        (POST + b"a: b\r\n folded\r\n\r\n", 400),
        (POST + b": value\r\n\r\n", 400),
        (POST + b"a: b\nc: d\r\n\r\n", 400),
        (POST + b"a: b\rc: d\r\n\r\n", 400),
        (POST + b"a: \0\r\n\r\n", 400),
        (POST + b"Content-Length: -1\r\n\r\n", 400),
        (POST + b"Content-Length: +1\r\n\r\n", 400),
        (POST + b"Content-Length: 1_0\r\n\r\n", 400),
        (POST + b"Content-Length: \xb2\r\n\r\n", 400),
        (POST + b"Content-Length: 1, 1\r\n\r\n", 400),
        (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (CHUNKED + b"x\r\n", 400),
        (CHUNKED + b"-1\r\n", 400),
        (CHUNKED + b"0x1\r\n", 400),
        (CHUNKED + b"1\r\nab\r\n", 400),
        (CHUNKED + b"1\r\na\n", 400),
        (CHUNKED + b"1" * 2000, 400),
        (CHUNKED + b"0\r\nno colon\r\n", 400),
        (CHUNKED + b"0\r\na: b\nc: d\r\n", 400),
        (CHUNKED + b"0\r\n" + b"a: b\r\n" * LONGEST_HEAD, 431),
        (b"A" * (LONGEST_HEAD + 1), 431),
        (POST + b"a: " + b"a" * LONGEST_HEAD + b"\r\n\r\n", 431),
    ],
    ids=lambda value: repr(value[-24:]) if isinstance(value, bytes) else None,
)
def test_what_is_not_plainly_a_request_is_refused(stream: bytes, status: int) -> None:
    with pytest.raises(Refused) as refused:
        read(*([stream] if len(stream) > 200 else [stream[at : at + 1] for at in range(len(stream))]), b"\r\n\r\n")

    assert refused.value.status == status


@pytest.mark.parametrize(
    "stream",
    [POST + b"Content-Length: 9\r\n\r\n", POST + b"Content-Length: 9" + b"0" * 16 + b"\r\n\r\n",
     CHUNKED + b"9\r\n", CHUNKED + b"8\r\n12345678\r\n1\r\n", CHUNKED + b"f" * 15 + b"\r\n"],
    ids=["length", "huge-length", "chunk", "chunks", "huge-chunk"],
)  # fmt: skip
def test_a_body_that_is_too_long_is_refused_before_it_is_read(stream: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "LONGEST_BODY", 8)

    with pytest.raises(Refused) as refused:
        read(stream)

    assert refused.value.status == 413


def test_of_a_body_that_nobody_wants_nothing_is_kept() -> None:
    requests = Incoming()
    requests.feed(POST + b"Content-Length: 8\r\n\r\n1234")
    requests.head()
    requests.skip()

    assert requests.body() is None
    requests.feed(b"5678GET / HTTP/1.1\r\n" + HOST + b"\r\n")
    assert requests.body() == b""
    assert (following := requests.head()) is not None
    assert following.method == "GET"


@pytest.mark.parametrize(
    ("line", "said", "keeps"),
    [
        (b"HTTP/1.1", b"", True),
        (b"HTTP/1.1", b"Connection: keep-alive\r\n", True),
        (b"HTTP/1.1", b"Connection: Upgrade, Close\r\n", False),
        (b"HTTP/1.0", b"Connection: keep-alive\r\n", False),
    ],
    ids=["nothing", "keep-alive", "close", "old"],
)
def test_a_connection_is_kept_unless_somebody_says_otherwise(line: bytes, said: bytes, keeps: bool) -> None:
    [(request, _)] = read(b"GET / " + line + b"\r\n" + HOST + said + b"\r\n")

    assert request.keeps is keeps
