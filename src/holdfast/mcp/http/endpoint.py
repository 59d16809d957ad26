"""A server's address, with one HTTP client for all that is asked of it; and what its silence or refusal means.

Nothing is sent to another origin than the one that was given, and nothing waits longer than it takes to connect:
how long an answer may take is for the guards to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.category import retry_after
from holdfast.errors import ConfigError, printable
from holdfast.mcp import frames
from holdfast.mcp.naming import shown_url
from holdfast.mcp.wire import Answer, ServerLost

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT: Final = 10.0
KEEP_ALIVE: Final = 4.0  # seconds an idle connection is kept: less than most servers keep theirs
MOST_IDLE: Final = 10  # connections that are kept: the pool looks at each of them for every request
LONGEST_ANSWER: Final = 64 * 2**20  # bytes
LONGEST_REFUSAL: Final = 2**20  # bytes of a body that comes with a status that says no
MOST_REDIRECTS: Final = 5
JSON: Final = "application/json"
SESSION: Final = "mcp-session-id"
VERSION: Final = "mcp-protocol-version"
LAST_EVENT: Final = "last-event-id"
# What is said between two neighbours: each of our two connections has its own.
HOP: Final = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade", "content-length",
})  # fmt: skip
NOT_TO_CLIENT: Final = frozenset({*HOP, "content-encoding", "date", "server", SESSION})

Headers = Mapping[str, str] | list[tuple[str, str]]


class Endpoint:
    """The server at *url*; *headers* go with all that is sent to it. Unless *keeps_cookies*, it is told none."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, *, keeps_cookies: bool = True) -> None:
        self._httpx = _httpx()
        try:
            self._url = self._given = self._httpx.URL(url)
        except (self._httpx.InvalidURL, TypeError) as error:
            raise ConfigError(f"{shown_url(url)}: {error}") from error
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise ConfigError(f"{shown_url(url)}: must be an address that begins with http:// or https://")
        self.target = shown_url(url)
        self.headers = dict(headers or {})
        self._client: httpx.AsyncClient | None = None
        self._keeps_cookies = keeps_cookies

    async def open(self, method: str, headers: Headers, data: bytes | None = None) -> httpx.Response:
        """Send a request; the answer's body is to be read, and it is to be closed. Raises `ServerLost`."""
        client = self._client
        if client is None:
            client = self._client = self._connect()
        try:
            request = client.build_request(method, self._url, headers=headers, content=data)
            request.headers.update(self.headers)
        except ValueError as error:  # a header that cannot be one
            raise ServerLost(f"{self.target} cannot be asked: {error}", sent=False) from error
        response = await self._send(client, request)
        for _ in range(MOST_REDIRECTS):
            following = response.next_request
            if following is None or not _is_within(request, following):
                break
            await response.aclose()
            self._url = following.url  # so that the next request costs one trip
            request = following
            response = await self._send(client, request)
        if response.status_code >= 400:
            self._url = self._given
        return response

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()

    def _connect(self) -> httpx.AsyncClient:
        from http.cookiejar import CookieJar, DefaultCookiePolicy

        jar = CookieJar() if self._keeps_cookies else CookieJar(DefaultCookiePolicy(allowed_domains=()))
        client: httpx.AsyncClient = self._httpx.AsyncClient(
            timeout=self._httpx.Timeout(None, connect=CONNECT_TIMEOUT),
            limits=self._httpx.Limits(
                max_connections=None, max_keepalive_connections=MOST_IDLE, keepalive_expiry=KEEP_ALIVE
            ),
            headers={"accept-encoding": "identity", "user-agent": "holdfast"},
            cookies=jar,
        )
        return client

    async def _send(self, client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        try:
            return await client.send(request, stream=True)
        except (self._httpx.HTTPError, OSError) as error:
            raise self.trouble(error) from error

    def trouble(self, error: Exception) -> ServerLost:
        """An error of the connection as what it means for a request."""
        httpx = self._httpx
        unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol)
        what = "cannot be reached" if unsent else "broke the connection"
        reason = printable(str(error) or type(error).__name__, 300)
        return ServerLost(f"{self.target} {what}: {reason}", sent=not unsent)

    async def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """The body of an answer as it comes; a `ServerLost` if it breaks off."""
        try:
            async for chunk in response.aiter_bytes():
                yield chunk
        except (self._httpx.HTTPError, OSError) as error:
            raise self.trouble(error) from error

    async def body(self, response: httpx.Response, limit: int = LONGEST_ANSWER) -> bytes:
        """The whole body of an answer; a `ServerLost` if it breaks off, or is longer than *limit*."""
        parts, size = [], 0
        async for chunk in self.chunks(response):
            size += len(chunk)
            if size > limit:
                raise ServerLost(f"{self.target} gave an answer of more than {limit} bytes")
            parts.append(chunk)
        return b"".join(parts)

    async def refusal(self, response: httpx.Response) -> ServerLost:
        """What a status that says no means; its body is read."""
        status = response.status_code
        try:
            body = await asyncio.wait_for(self.body(response, LONGEST_REFUSAL), CONNECT_TIMEOUT)
        except (ServerLost, TimeoutError):
            body = b""
        headers = response.headers
        place = f" to {shown_url(str(response.next_request.url))}" if response.next_request is not None else ""
        said = _message(body)
        return ServerLost(
            f"{self.target} answered with HTTP status {status} {response.reason_phrase}{place}"
            f"{': ' if said else ''}{said}",
            answer=Answer(status, dict(passed(headers.items(), NOT_TO_CLIENT)), body),
            retry_after=retry_after(headers),
        )


def media_type(headers: Mapping[str, str]) -> str:
    """What kind of body an answer has."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def passed(pairs: Iterable[tuple[str, str]], dropped: frozenset[str]) -> list[tuple[str, str]]:
    """The headers of a message that go on to the other side."""
    return [(name, value) for name, value in pairs if name.lower() not in dropped]


def rpc_error(answer: Answer) -> frames.Head | None:
    """The JSON-RPC error that a status that says no came with, if any."""
    try:
        head = frames.head(answer.body)
    except msgspec.DecodeError:
        return None
    return head if bytes(head.error) and not head.method else None


def _message(body: bytes) -> str:
    """What the body that came with a status says, in a few words."""
    try:
        head = frames.head(body)
    except msgspec.DecodeError:
        return printable(body[:300].decode(errors="replace"), 300) if body[:1] not in (b"<", b"{") else ""
    return printable(frames.rpc_error(head).message, 300) if bytes(head.error) else ""


def _is_within(request: httpx.Request, following: httpx.Request) -> bool:
    """Whether a redirect stays where all that we send was meant to go, as what it was."""
    old, new = request.url, following.url
    return (
        (old.scheme, old.host, old.port) == (new.scheme, new.host, new.port)
        and following.method == request.method
        and new.userinfo in (b"", old.userinfo)
    )


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise ConfigError("servers over HTTP need an extra: pip install 'holdfast[http]'") from error
    return httpx
