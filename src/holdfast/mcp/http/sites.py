"""What the servers behind a gateway have in common, however they are reached."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from holdfast.mcp import frames
from holdfast.mcp.frames import AnyParams, Head, Id
from holdfast.mcp.handshake import MODERN
from holdfast.mcp.http.endpoint import VERSION
from holdfast.mcp.http.exchange import Exchange
from holdfast.mcp.http.mirrored import PARAM
from holdfast.values.redaction import names_secret

LONGEST_ODD: Final = 2**20  # bytes of a body that is a batch, or not plain JSON: reading those is slow
MOST_FRAMES: Final = 1000  # frames in a batch
LEFT: Final = "the client closed the stream"  # this is how requests without sessions are cancelled


class Site(Protocol):
    """A server behind one path; `post`, `get` and `delete` each have *exchange* answered.

    They return an awaitable if this cannot be done at once.
    """

    def post(self, exchange: Exchange) -> Awaitable[None] | None:
        """A client sends a frame, or a batch."""

    def get(self, exchange: Exchange) -> Awaitable[None] | None:
        """A client listens for frames that belong to no request, or resumes a stream that broke."""

    def delete(self, exchange: Exchange) -> Awaitable[None] | None:
        """A client ends its session."""

    def facts(self) -> list[dict[str, object]]:
        """The state of the server, or of each of its processes."""

    async def close(self) -> None:
        """End all sessions and requests."""


def read(exchange: Exchange) -> list[Head]:
    """The heads of a client's frames; notes which answers are due. Raise a `DecodeError` if it sends no frame."""
    if is_long(exchange) and not frames.is_plain(exchange.body):
        raise msgspec.DecodeError(f"a body of more than {LONGEST_ODD} bytes must be one frame, and plain JSON")
    parts = frames.parts(exchange.body)
    if len(parts) > MOST_FRAMES:
        raise msgspec.DecodeError(f"a batch must not have more than {MOST_FRAMES} frames")
    heads = [frames.head(part) for part in parts]
    exchange.due = [head.id for head in heads if head.is_request]
    exchange.is_modern = _is_modern(exchange.headers, heads)
    return heads


def is_long(exchange: Exchange) -> bool:
    """True if the body is so long that it must be one frame, and plain JSON."""
    return len(exchange.body) > LONGEST_ODD


def refuse(exchange: Exchange, error: msgspec.DecodeError) -> None:
    """Tell a client that its body is not a frame."""
    exchange.fail(400, f"this is no frame: {error}", code=frames.PARSE_ERROR)


def _is_modern(headers: Mapping[str, str], heads: Sequence[Head]) -> bool:
    """True if a request is of a protocol version without sessions, as a header or its own metadata says."""
    if headers.get(VERSION, "") >= MODERN:
        return True
    if len(heads) != 1 or not heads[0].is_request or heads[0].method == "initialize":
        return False
    return frames.params(heads[0]).protocol is not None


def cancelled(heads: Sequence[Head]) -> list[Id]:
    """The ids of the requests that a client cancels."""
    ids = [frames.params(head).requestId for head in heads if head.method == "notifications/cancelled"]
    return [id for id in ids if id is not None]


def forget(known: dict[str, Any], key: str, gone: object) -> None:
    """Remove *gone*, which has ended, from *known*, unless another has taken its place."""
    if known.get(key) is gone:
        del known[key]


def client_key(server: str, headers: Mapping[str, str], params: AnyParams) -> str:
    """The key of a client without session: its name for itself, and a digest that covers its tokens."""
    info: Any = params.meta.client if params.meta is not None else None
    name = info.get("name") if isinstance(info, dict) else None
    who = [tokens(headers), info if info is not None else headers.get("user-agent")]
    digest = hashlib.sha256(msgspec.json.encode(who, order="sorted")).hexdigest()[:16]
    return f"{server}/{name if isinstance(name, str) else 'client'}/{digest}"[:200]


def tokens(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that tell who a client is; cookies do not, since load balancers set another with each answer."""
    named = {name: value for name, value in headers.items() if names_secret(name) and not name.startswith(PARAM)}
    named.pop("cookie", None)
    return named
