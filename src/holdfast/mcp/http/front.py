"""Clients over HTTP: one path for each server, and nothing for those who should not be here.

A page in a browser must not reach servers on its user's machine: so the names by which we are called, and the pages
that call, are looked at before anything else.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from holdfast.mcp.http.endpoint import JSON
from holdfast.mcp.http.exchange import Exchange, Message
from holdfast.mcp.http.sites import Site

LONGEST_BODY: Final = 64 * 2**20  # bytes
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
TOKEN: Final = "x-holdfast-token"  # for those whose Authorization is for the server

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_log = logging.getLogger("holdfast")


class HttpFront:
    """An ASGI application in front of *sites*, for clients that call us by one of *hosts* and know the *token*.

    None for *hosts* are all; None for the *token* is that there is none.
    """

    def __init__(self, sites: Mapping[str, Site], *, hosts: frozenset[str] | None, token: str | None) -> None:
        self._sites = sites
        self._hosts = hosts
        self._token = token
        self._exchanges: set[Exchange] = set()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        exchange = Exchange(scope["method"], pairs)
        self._exchanges.add(exchange)
        try:
            site = self._admit(exchange, scope["path"])
            if site is not None and await _read(exchange, receive):
                await self._dispatch(site, exchange)
            await exchange.respond(receive, send)
        finally:
            self._exchanges.discard(exchange)

    def close(self) -> None:
        """End all answers."""
        for exchange in list(self._exchanges):
            exchange.end()

    # -- who may -------------------------------------------------------------------------------------------------------

    def _admit(self, exchange: Exchange, path: str) -> Site | None:
        """The server that a client wants; it is answered where there is none for it."""
        if not self._is_welcome(exchange.headers):
            exchange.answer(403, [("content-type", "text/plain")], b"this Host or Origin is not allowed\n")
            return None
        if path == "/healthz":
            _show(exchange, {"status": "ok"})
            return None
        if not self._has_token(exchange):
            exchange.answer(
                401, [("www-authenticate", "Bearer"), ("content-type", "text/plain")], b"a token is needed\n"
            )
            return None
        if path == "/":
            _show(exchange, {"servers": [_brief(name, site) for name, site in self._sites.items()]})
            return None
        name = path.strip("/").removesuffix("/mcp")
        site = self._sites.get(name)
        if site is None:
            exchange.fail(404, "there is no such server; / lists them")
        return site

    def _is_welcome(self, headers: Mapping[str, str]) -> bool:
        host = headers.get("host", "")
        if self._hosts is not None and _name_in(f"//{host}") not in self._hosts:
            return False
        origin = headers.get("origin")
        return origin is None or _name_in(origin) in LOOPBACK or origin.partition("://")[2] == host

    def _has_token(self, exchange: Exchange) -> bool:
        if self._token is None:
            return True
        given = exchange.headers.get(TOKEN)
        if given is None:
            kind, _, given = exchange.headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer":
                return False
            exchange.pairs = [(name, value) for name, value in exchange.pairs if name != "authorization"]  # it is ours
            exchange.headers = dict(exchange.pairs)
        return hmac.compare_digest(given.strip().encode(), self._token.encode())

    async def _dispatch(self, site: Site, exchange: Exchange) -> None:
        try:
            if exchange.method == "POST":
                await site.post(exchange)
            elif exchange.method == "GET":
                await site.get(exchange)
            elif exchange.method == "DELETE":
                await site.delete(exchange)
            else:
                exchange.answer(405, [("allow", "GET, POST, DELETE")])
        except Exception:
            _log.exception("a request could not be answered")
            exchange.fail(500, "the proxy has failed", code=-32603)
            exchange.end()


async def _read(exchange: Exchange, receive: Receive) -> bool:
    """Whether the body could be read."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            exchange.end()
            return False
        part = message.get("body", b"")
        size += len(part)
        if size > LONGEST_BODY:
            exchange.fail(413, f"a frame must not be longer than {LONGEST_BODY} bytes")
            return False
        parts.append(part)
        if not message.get("more_body", False):
            exchange.body = parts[0] if len(parts) == 1 else b"".join(parts)
            return True


def _name_in(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _brief(name: str, site: Site) -> dict[str, object]:
    facts = site.facts()
    states = [fact["state"] for fact in facts]
    state = next((state for state in states if state != "ready"), states[0])
    error = next((fact["last_error"] for fact in facts if fact["last_error"]), None)
    return {"name": name, "path": f"/{name}/mcp", "kind": facts[0]["kind"], "state": state, "last_error": error}


def _show(exchange: Exchange, value: object) -> None:
    if exchange.method == "GET":
        exchange.answer(200, [("content-type", JSON)], msgspec.json.encode(value))
    else:
        exchange.answer(405, [("allow", "GET")])
