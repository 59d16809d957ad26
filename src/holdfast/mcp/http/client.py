"""The HTTP client behind an endpoint: its connections, its proxy, its certificates. No other module calls aiohttp.

A POST is written to one connection at most. So before a kept connection is used again, it is checked whether the server
has closed it: what is written to a closed one is lost. And what the server has not received of a request when that is
given up is taken back: otherwise the system would deliver it as soon as the network lets it, minutes later perhaps.
"""

from __future__ import annotations

import asyncio
import fcntl
import re
import select
import socket
import struct
import termios
from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from holdfast.errors import ConfigError, printable
from holdfast.mcp.http.sse import MEDIA_TYPE, Parser, TooLong
from holdfast.mcp.wire import Event, Pairs, ServerLost

if TYPE_CHECKING:
    import ssl

    import aiohttp
    from aiohttp.connector import Connection
    from yarl import URL

CONNECT_TIMEOUT: Final = 10.0
KEEP_ALIVE: Final = 4.0  # seconds an idle connection is kept: less than most servers keep theirs
MOST_IDLE: Final = 100  # idle connections that are kept: many calls at once give back many at once
LONGEST_ANSWER: Final = 64 * 2**20  # bytes
LONGEST_FIELD: Final = 2**16  # bytes of a header, or of the line with the status
MOST_FIELDS: Final = 500
LARGE: Final = 2**20  # bytes from which on a body is written in pieces, so that other tasks have their turn

# A name or an IPv6 address. An empty or a longer part of a name would be an error of the codec, not of the connection.
_HOST: Final = re.compile(r"[\w%-]{1,63}(?:\.[\w%-]{1,63})*\.?|[\w.%-]*:[\w.:%-]*", re.ASCII)
_AT_ONCE: Final = struct.pack("ii", 1, 0)  # linger for no time: closing resets, and drops what was not received
_UNSAFE: Final = re.compile(r"[^!$&-;=?-Z_a-z~%]|%(?![0-9A-Fa-f]{2})")  # in a path or a query


class Address(NamedTuple):
    """The URL for requests, and the `Authorization` made from the user and password of the address, if it has any."""

    url: URL
    auth: str | None


class Response:
    """The response of a server; the caller must read its body and close it."""

    __slots__ = ("status", "reason", "pairs", "headers", "media_type", "_answer", "_target", "_broken")

    def __init__(self, answer: aiohttp.ClientResponse, target: str) -> None:
        self.status = answer.status
        self.reason = answer.reason or ""
        self.pairs: Pairs = [(name.lower(), _as_sent(value)) for name, value in answer.headers.items()]
        self.headers = dict(self.pairs)  # repeated ones are joined
        if len(self.headers) < len(self.pairs):
            self.headers = {}
            for name, value in self.pairs:
                self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self.media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        self._answer = answer
        self._target = target
        self._broken: Exception | None = None

    @property
    def is_success(self) -> bool:
        """True if the status is one of success."""
        return 200 <= self.status < 300

    @property
    def is_stream(self) -> bool:
        """True if the server answers with a stream of events."""
        return self.is_success and self.media_type == MEDIA_TYPE

    @property
    def url(self) -> str:
        """The address that was asked."""
        return str(self._answer.url)

    async def read(self) -> bytes:
        """The next bytes of the body, as they come; empty at its end. Raise `ServerLost` if it breaks off."""
        if self._broken is not None:
            raise lost(self._target, self._broken) from self._broken
        content = self._answer.content
        try:
            return await content.readany()
        except _errors() as error:
            # Data that came before the error is still there, but aiohttp would not return it any more.
            self._broken = error
            content.set_exception(None)  # type: ignore[arg-type]
            return content.read_nowait() or await self.read()

    async def body(self, limit: int = LONGEST_ANSWER) -> bytes:
        """The whole body; raise `ServerLost` if it breaks off, or is longer than *limit*."""
        parts, size = [], 0
        while data := await self.read():
            size += len(data)
            if size > limit:
                raise ServerLost(f"{self._target} gave an answer of more than {limit} bytes")
            parts.append(data)
        return b"".join(parts)

    async def events(self, flows: Callable[[], Awaitable[object]] | None = None) -> AsyncGenerator[Event, None]:
        """The events of a stream as they come; raises like `read`. *flows* is awaited before more is read."""
        parser = Parser()
        try:
            while chunk := await self.read():
                for event in parser.feed(chunk):
                    yield event
                if flows is not None:
                    await flows()
        except TooLong as error:
            raise ServerLost(f"{self._target}: {error}") from error

    def close(self) -> None:
        """Release the connection; it is closed if the body was not read to its end."""
        self._answer.close()


class Sending:
    """One try to send a request. It knows nothing of the request, as a connection keeps the context in which it was
    opened, and with it this object.
    """

    __slots__ = ("has_begun",)

    def __init__(self) -> None:
        self.has_begun = False  # True once there is a connection, before the first byte is written


class Client:
    """The connections to the server at *url*, which messages call *target*; for one event loop."""

    def __init__(self, target: str, url: URL, *, keeps_cookies: bool) -> None:
        import aiohttp

        self._target = target
        self._proxy = _proxy(target, url)
        is_secure = "https" in (url.scheme, self._proxy.scheme if self._proxy is not None else "")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=KEEP_ALIVE,
                resolver=aiohttp.ThreadedResolver(),  # the system's: it also knows names that are not in DNS
                ssl=_trust() if is_secure else True,
            ),
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT),
            cookie_jar=aiohttp.CookieJar(unsafe=True) if keeps_cookies else aiohttp.DummyCookieJar(),
            request_class=_requests(set()),
            max_line_size=LONGEST_FIELD,
            max_field_size=LONGEST_FIELD,
            max_headers=MOST_FIELDS,
        )

    async def send(
        self, method: str, url: URL, headers: Pairs, data: bytes | None, sending: Sending | None = None
    ) -> Response:
        """Send a request, whose *headers* the caller has checked; no redirect is followed."""
        _sending.set(sending or Sending())
        skipped = None if data is None or any(name == "content-type" for name, _ in headers) else ("content-type",)
        if self._session.closed:
            raise ServerLost(f"{self._target} cannot be asked: the connections to it are closed", sent=False)
        while True:
            try:
                answer = await self._session.request(
                    method,
                    url,
                    headers=headers,
                    data=data if data is None or len(data) < LARGE else BytesIO(data),
                    allow_redirects=False,
                    proxy=self._proxy,
                    skip_auto_headers=skipped,
                )
            except _Stale:
                continue  # this ends: only so many connections were kept
            except _errors() as error:
                raise lost(self._target, error) from error
            return Response(answer, self._target)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


def address(text: str) -> Address:
    """Parse the address *text*; path and query stay as they are. Raise a `ValueError` if it is no server's address."""
    from yarl import URL

    given = URL(text)
    if given.scheme not in ("http", "https") or not _has_host(given):
        raise ValueError("must be an address that begins with http:// or https://")
    parts = urlsplit(text)
    target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    target = _UNSAFE.sub(lambda found: quote(found[0], safe=""), target)
    auth = None
    if given.user is not None or given.password is not None:
        pair = f"{given.user or ''}:{given.password or ''}"
        auth = f"Basic {b64encode(pair.encode()).decode()}"
    return Address(URL(f"{given.origin()}{target}", encoded=True), auth)


def require() -> None:
    """Raise a `ConfigError` that says what to install, if a package for HTTP is missing."""
    try:
        import aiohttp  # noqa: F401
        import certifi  # noqa: F401
    except ImportError as error:
        raise ConfigError("servers over HTTP need an extra: pip install 'holdfast[http]'") from error


def lost(target: str, error: Exception) -> ServerLost:
    """An error of the connection as a `ServerLost`, which says whether the request may have been sent."""
    import aiohttp

    unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.InvalidURL)
    unsent = unsent or isinstance(error, aiohttp.ClientHttpProxyError)
    what = "cannot be reached" if unsent else "broke the connection"
    return ServerLost(f"{target} {what}: {printable(_reason(error), 300)}", sent=not unsent)


def _reason(error: Exception) -> str:
    """What *error* says, without the address, which may hold secrets."""
    import aiohttp

    match error:
        case aiohttp.ConnectionTimeoutError():
            return f"no connection within {CONNECT_TIMEOUT:g} seconds"
        case aiohttp.ClientConnectorCertificateError():
            return str(error.certificate_error)
        case aiohttp.ClientConnectorError():
            return str(error.os_error)
        case aiohttp.ClientHttpProxyError():
            return f"the proxy answered with HTTP status {error.status} {error.message}"
        case aiohttp.ClientResponseError():
            return error.message
        case aiohttp.InvalidURL():
            return "no address"
    return str(error) or type(error).__name__


def _errors() -> tuple[type[Exception], ...]:
    from aiohttp import ClientError
    from aiohttp.http_exceptions import HttpProcessingError

    return (ClientError, HttpProcessingError, OSError)


def _as_sent(value: str) -> str:
    """The value of a header, with one character for each byte."""
    return value if value.isascii() else value.encode("utf-8", "surrogateescape").decode("latin-1")


# -- connections -------------------------------------------------------------------------------------------------------

# Of the request that the current task sends: aiohttp makes the object for it, and has no place for more.
_sending: Final[ContextVar[Sending]] = ContextVar("holdfast_sending")


class _Stale(Exception):
    """The server has closed a kept connection, or sent data that was not asked for; nothing was written to it."""


def _requests(idle: set[asyncio.Transport]) -> type[aiohttp.ClientRequest]:
    """The class of requests that check their connection before and after use; *idle* are the kept connections."""
    from aiohttp import ClientRequest

    class Request(ClientRequest):
        async def send(self, conn: Connection) -> aiohttp.ClientResponse:
            transport: Any = conn.transport
            if transport in idle:
                idle.discard(transport)
                if conn.protocol is None or conn.protocol.should_close or _is_readable(transport):
                    raise _Stale
            conn.add_callback(partial(_given_back, conn, idle))
            _sending.get().has_begun = True
            return await super().send(conn)

    return Request


def _given_back(conn: Connection, idle: set[asyncio.Transport]) -> None:
    """Keep or close the connection of a request that is over."""
    transport: Any = conn.transport
    if transport is None or conn.protocol is None:
        return
    if transport.get_write_buffer_size() or _is_on_its_way(transport):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        transport.abort()  # a server that reads no more would keep it open for ever
        return
    if len(idle) >= MOST_IDLE:
        idle.difference_update([each for each in idle if each.is_closing()])
    if len(idle) < MOST_IDLE:
        idle.add(transport)
    else:
        conn.protocol.force_close()


def _is_on_its_way(transport: asyncio.Transport) -> bool:
    """True if the server's host has not acknowledged all that was written; False where the system does not tell."""
    descriptor: int = transport.get_extra_info("socket").fileno()
    try:
        return any(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    except (OSError, ValueError):
        return False


def _is_readable(transport: asyncio.Transport) -> bool:
    """True if something came on an idle connection: usually its end, which the event loop has not seen yet."""
    descriptor: int = transport.get_extra_info("socket").fileno()
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _trust() -> ssl.SSLContext:
    """Trusts the certificates of the system and those of browsers, because some systems have none."""
    import ssl

    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


def _proxy(target: str, url: URL) -> URL | None:
    """The proxy that the user has set for *url*, by `HTTP_PROXY`, `NO_PROXY` and the like."""
    from urllib.request import getproxies, proxy_bypass

    from yarl import URL

    proxies = getproxies()
    found = proxies.get(url.scheme) or proxies.get("all")
    bypass: Callable[[str], object] = proxy_bypass
    if not found or bypass(f"{url.host}:{url.port}") or bypass(str(url.host)):
        return None
    try:
        proxy = URL(found if "://" in found else f"http://{found}")
        if not _has_host(proxy):
            raise ValueError("it has no host")
    except ValueError as error:
        raise ServerLost(
            f"{target} cannot be reached: the proxy's address is not valid: {error}", sent=False
        ) from error
    if proxy.scheme not in ("http", "https"):
        raise ServerLost(f"{target} cannot be reached: a proxy must be one of http:// or https://", sent=False)
    return proxy


def _has_host(url: URL) -> bool:
    return _HOST.fullmatch(url.raw_host or "") is not None
