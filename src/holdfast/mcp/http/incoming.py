"""Reads HTTP/1.1 requests from a stream of bytes: a head, its body, the next head. All sizes are bounded.

Anything that is not plainly a request is refused: one that could be read in two ways can smuggle another past a check.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Final
from urllib.parse import unquote

from holdfast.mcp.wire import Pairs

LONGEST_HEAD: Final = 64 * 2**10  # bytes of a request's line and headers; also of the headers after a body in chunks
LONGEST_BODY: Final = 64 * 2**20  # bytes
LONGEST_LINE: Final = 1024  # bytes before a chunk: its size, and extensions, which are not read

TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"  # the name of a method or a header
_LINE: Final = re.compile(rf"({TOKEN}) ([!-~]++) HTTP/1\.([01])")
_FIELD: Final = re.compile(rf"^({TOKEN}):([^\x00-\x08\x0a-\x1f\x7f]*+)\r\n", re.MULTILINE)
_BEGINNING: Final = re.compile(TOKEN.encode())
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*+(?:;[^\x00-\x08\x0a-\x1f\x7f]*+)?")
# Headers that decide which host is meant, which page asks, and where a body ends.
_ONCE: Final = ("host", "origin", "content-length", "transfer-encoding")


class Refused(Exception):
    """The data is not a request, or one that is too long; *status* says which."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Request:
    """The head of a request; *length* is that of its body, None if the body comes in chunks. Headers are latin-1."""

    __slots__ = ("headers", "is_old", "length", "method", "pairs", "target")

    def __init__(self, method: str, target: str, pairs: Pairs, *, is_old: bool = False) -> None:
        self.method = method
        self.target = target
        self.pairs = pairs  # all headers, with their names in small letters
        self.headers = dict(pairs)
        self.is_old = is_old  # HTTP/1.0, which has no chunks and one request per connection
        self.length = self._length()

    @property
    def path(self) -> str:
        """The path that is asked for, without the query."""
        path = self.target.partition("?")[0]
        return unquote(path) if "%" in path else path

    @property
    def keeps(self) -> bool:
        """True if the client may send another request on the same connection."""
        said = self.headers.get("connection")
        return not self.is_old and (said is None or "close" not in _words(said))

    @property
    def expects(self) -> bool:
        """True if the client waits to be told to send the body."""
        return not self.is_old and self.headers.get("expect", "").lower() == "100-continue"

    def _length(self) -> int | None:
        headers = self.headers
        if len(headers) < len(self.pairs):
            names = [name for name, _ in self.pairs]
            for name in _ONCE:
                if names.count(name) > 1:
                    raise Refused(400, f"the header {name} must not be given twice")
        if not self.is_old and "host" not in headers:
            raise Refused(400, "the header host is missing")
        length, coding = headers.get("content-length"), headers.get("transfer-encoding")
        if coding is not None:
            if length is not None or self.is_old:
                raise Refused(400, "transfer-encoding goes with HTTP/1.1, and without content-length")
            if coding.lower() != "chunked":
                raise Refused(501, "a body is taken as it is, or in chunks; there is no other transfer-encoding")
            return None
        if length is None:
            return 0
        if _DIGITS.fullmatch(length) is None:
            raise Refused(400, "content-length must be a number")
        return int(length)


class Incoming:
    """The requests of one connection: after each `head`, its `body`; both are None until enough data has come."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0  # data before this index has been read
        self._seen = 0  # no head ends before this index
        self._body = bytearray()
        self._left = 0  # bytes still to be read of the body, or of the present chunk
        self._chunks: Iterator[None] | None = None  # reads a body that comes in chunks
        self._skips = False

    def feed(self, data: bytes) -> None:
        """Add *data* that has come."""
        if self._at == len(self._data):
            self._data = data
        else:
            self._data = self._data[self._at :] + data
        self._seen = max(0, self._seen - self._at)
        self._at = 0

    @property
    def ahead(self) -> int:
        """How many bytes have come and are not read."""
        return len(self._data) - self._at

    def head(self) -> Request | None:
        """The next request, without its body."""
        while self._data.startswith(b"\r\n", self._at):  # some clients send one too many
            self._at += 2
        end = self._data.find(b"\r\n\r\n", max(self._at, self._seen))
        if (end if end >= 0 else len(self._data)) - self._at > LONGEST_HEAD:
            raise Refused(431, f"the head of a request must not be longer than {LONGEST_HEAD} bytes")
        if end < 0:
            self._seen = max(0, len(self._data) - 3)
            self._check_beginning()
            return None
        text = self._data[self._at : end + 2].decode("latin-1")
        self._at, self._seen = end + 4, 0
        line, _, rest = text.partition("\r\n")
        match, found = _LINE.fullmatch(line), _FIELD.findall(rest)
        if match is None or len(found) != rest.count("\n"):  # a line is not a header
            raise Refused(400, "this is no request of HTTP/1.1")
        method, target, minor = match.groups()
        request = Request(
            method, target, [(name.lower(), value.strip(" \t")) for name, value in found], is_old=minor == "0"
        )
        self._left = request.length or 0
        self._chunks = self._take_chunks() if request.length is None else None
        self._skips = False
        return request

    def skip(self) -> None:
        """Read the body without keeping it."""
        self._skips = True

    def body(self) -> bytes | None:
        """The body of the last request, as soon as it is complete."""
        if self._left > LONGEST_BODY:
            raise _too_long()
        if self._chunks is None and not self._skips and not self._body and self.ahead >= self._left:  # nearly always
            start, self._at = self._at, self._at + self._left
            self._left = 0
            return self._data[start : self._at]
        for _ in self._chunks if self._chunks is not None else self._take():
            return None
        body = bytes(self._body)
        self._body.clear()
        return body

    # The generators below read the data that is there, and yield when they need more.

    def _take(self) -> Iterator[None]:
        """Read the body, or a chunk of it."""
        while True:
            size = min(self._left, self.ahead)
            if not self._skips:
                self._body += memoryview(self._data)[self._at : self._at + size]
            self._at += size
            self._left -= size
            if not self._left:
                return
            yield

    def _take_chunks(self) -> Iterator[None]:
        size = 0
        while True:
            self._left = _chunk_size((yield from self._line()))
            if not self._left:
                break
            size += self._left
            if size > LONGEST_BODY:
                raise _too_long()
            yield from self._take()
            if (yield from self._line()):
                raise Refused(400, "a chunk is longer than it says")
        tail = 0
        while line := (yield from self._line()):  # a header after the body, which is ignored
            if _FIELD.fullmatch(line.decode("latin-1") + "\r\n") is None:
                raise Refused(400, "what follows a body must be headers")
            tail += len(line)
            if tail > LONGEST_HEAD:
                raise Refused(431, f"what follows a body must not be longer than {LONGEST_HEAD} bytes")

    def _line(self) -> Generator[None, None, bytes]:
        """Read a line between chunks."""
        while (end := self._data.find(b"\r\n", self._at, self._at + LONGEST_LINE + 2)) < 0:
            if self.ahead > LONGEST_LINE:
                raise Refused(400, f"a line between chunks must not be longer than {LONGEST_LINE} bytes")
            yield
        line = self._data[self._at : end]
        self._at = end + 2
        return line

    def _check_beginning(self) -> None:
        """Refuse data that cannot become a request, whatever follows: the client speaks another protocol."""
        end = self._data.find(b"\n", self._at)
        if end >= 0:
            line = self._data[self._at : end + 1].decode("latin-1")
            is_one = line.endswith("\r\n") and _LINE.fullmatch(line[:-2]) is not None
        else:
            rest = self._data[self._at : self._at + 1]
            is_one = rest in (b"", b"\r") or _BEGINNING.match(rest) is not None
        if not is_one:
            raise Refused(400, "this is no request of HTTP/1.1")


def _words(value: str) -> list[str]:
    return [word.strip().lower() for word in value.split(",")]


def _chunk_size(line: bytes) -> int:
    match = _CHUNK.fullmatch(line)
    if match is None:
        raise Refused(400, "a chunk must begin with its size")
    return int(match[1], 16)


def _too_long() -> Refused:
    return Refused(413, f"a frame must not be longer than {LONGEST_BODY} bytes")
