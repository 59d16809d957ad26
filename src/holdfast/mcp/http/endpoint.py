"""A server's address, with one HTTP client for all requests to it; and what it means if the server refuses one.

Nothing is sent to another origin than the one that was given. Only connecting, and reading a refusal, have a time limit
here: how long an answer may take is for the guards to decide.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin

from holdfast.category import retry_after
from holdfast.errors import ConfigError, printable
from holdfast.mcp import frames
from holdfast.mcp.http.client import CONNECT_TIMEOUT, Client, Response, Sending, address, require
from holdfast.mcp.http.incoming import TOKEN
from holdfast.mcp.naming import shown_url
from holdfast.mcp.wire import Answer, Pairs, ServerLost

if TYPE_CHECKING:
    from yarl import URL

LONGEST_REFUSAL: Final = 2**20  # bytes of a body that comes with an error status
MOST_REDIRECTS: Final = 5
REQUEST_TIMEOUT: Final = 408  # some proxies answer so when the server behind them took too long
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
DEFAULTS: Final = (("accept-encoding", "identity"), ("user-agent", "holdfast"))
JSON: Final = "application/json"
SESSION: Final = "mcp-session-id"
VERSION: Final = "mcp-protocol-version"
LAST_EVENT: Final = "last-event-id"
# Headers of one connection alone: our connections to the client and to the server have their own.
HOP: Final = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade", "content-length",
})  # fmt: skip
# A server sets cookies for one client: others may share a refusal, and must not get its cookies with it.
COOKIE: Final = "set-cookie"
NOT_TO_CLIENT: Final = frozenset({*HOP, "content-encoding", "date", "server", SESSION, COOKIE})

Headers = Mapping[str, str] | Pairs

_NAME: Final = re.compile(TOKEN)
_VALUE: Final = re.compile(r"[\t -~]*")


class Endpoint:
    """The server at *url*; *headers* go with every request.

    If it *is_shared* by several clients, a cookie or redirect that one of them got does not apply to the others.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, *, is_shared: bool = False) -> None:
        require()
        try:
            self._url, self._auth = address(url)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{shown_url(url)}: {error}") from error
        self._given = self._url
        self.target = shown_url(url)
        self._fixed = {name.lower(): value for name, value in (headers or {}).items()}
        if self._auth is not None:
            self._fixed["authorization"] = self._auth
        self._client: Client | None = None
        self._is_shared = is_shared
        self._keeps_cookies = not is_shared and "cookie" not in self._fixed

    async def open(
        self, method: str, headers: Headers, data: bytes | None = None, sending: Sending | None = None
    ) -> Response:
        """Send a request; the caller must read and close the response. Raise `ServerLost` if there is none."""
        pairs = self._pairs(headers)
        client = self._client
        if client is None:
            client = self._client = Client(self.target, self._given, keeps_cookies=self._keeps_cookies)
        response = await client.send(method, self._url, pairs, data, sending)
        for _ in range(MOST_REDIRECTS):
            following = self._following(method, response)
            if following is None:
                break
            response.close()
            if not self._is_shared:
                self._url = following  # so that the next request takes one round trip
            response = await client.send(method, following, pairs, data)
        if response.status >= 400:
            self._url = self._given
        return response

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.close()

    async def refusal(self, response: Response) -> ServerLost:
        """The error that an error status means; reads and closes the response."""
        try:
            body = await asyncio.wait_for(response.body(LONGEST_REFUSAL), CONNECT_TIMEOUT)
        except (ServerLost, TimeoutError):
            body = b""
        finally:
            response.close()
        place = _place(response)
        to = f" to {shown_url(place)}" if place is not None else ""
        said = _message(body)
        return ServerLost(
            f"{self.target} answered with HTTP status {response.status} {printable(response.reason)}{to}"
            f"{': ' if said else ''}{said}",
            sent=response.status >= 500 or response.status == REQUEST_TIMEOUT,
            answer=Answer(response.status, passed(response.pairs, NOT_TO_CLIENT), body),
            retry_after=retry_after(response.headers),
        )

    def _pairs(self, headers: Headers) -> Pairs:
        """The headers of a request: those that the user has configured replace all others."""
        fixed = self._fixed
        given = headers if isinstance(headers, list) else headers.items()
        pairs = [pair for name, value in given if (pair := (name.lower(), value))[0] not in fixed]
        pairs += fixed.items()
        for name, value in pairs:
            if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                raise ServerLost(
                    f"{self.target} cannot be asked: the header {printable(name)} must have a name of letters, digits "
                    "and dashes, and a value of printable ASCII characters",
                    sent=False,
                )
        names = {name for name, _ in pairs}
        pairs += [default for default in DEFAULTS if default[0] not in names]
        return pairs

    def _following(self, method: str, response: Response) -> URL | None:
        """Where a redirect leads, if origin, credentials and method stay the same; otherwise None."""
        place = _place(response)
        if place is None or not _is_kept(method, response.status):
            return None
        try:
            url, auth = address(place)
        except ValueError:
            return None
        return url if url.origin() == self._given.origin() and auth in (None, self._auth) else None


def passed(pairs: Iterable[tuple[str, str]], dropped: frozenset[str]) -> list[tuple[str, str]]:
    """The headers that go on to the other side: all except those *dropped*."""
    return [(name, value) for name, value in pairs if name.lower() not in dropped]


def rpc_error(answer: Answer) -> frames.Head | None:
    """The JSON-RPC error that came with an error status, if any."""
    head = frames.peek(answer.body)
    return head if head is not None and head.error and not head.method else None


def _message(body: bytes) -> str:
    """What the body that came with an error status says, in a few words."""
    if (head := frames.peek(body)) is not None:
        return printable(frames.rpc_error(head).message, 300)
    return printable(body[:300].decode(errors="replace"), 300) if body[:1] not in (b"<", b"{") else ""


def _place(response: Response) -> str | None:
    """Where a redirect leads; None if the response is not one."""
    location = response.headers.get("location")
    if location is None or response.status not in REDIRECTS:
        return None
    try:
        return urljoin(response.url, location.encode("latin-1").decode(errors="replace"))
    except ValueError:
        return None


def _is_kept(method: str, status: int) -> bool:
    """True if a redirect keeps the method; with other statuses browsers send a GET instead."""
    return status in (307, 308) or method == "GET" or (status == 301 and method != "POST")
