"""Admits clients over HTTP: there is one path for each server.

A page in a browser must not reach servers on its user's machine. So the host name that was called (`Host`) and the page
that calls (`Origin`, `Sec-Fetch-Site`) are checked before anything else.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Mapping
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec

from holdfast.mcp import frames
from holdfast.mcp.http.endpoint import JSON
from holdfast.mcp.http.exchange import Exchange
from holdfast.mcp.http.sites import Site
from holdfast.mcp.naming import LOOPBACK

TOKEN: Final = "x-holdfast-token"  # for clients whose Authorization header is meant for the server

_log = logging.getLogger("holdfast")


class HttpFront:
    """Passes requests to *sites*, from clients that call us by one of *hosts* and know the *token*.

    If *hosts* is None, any name will do; if *token* is None, none is needed.
    """

    def __init__(self, sites: Mapping[str, Site], *, hosts: frozenset[str] | None, token: str | None) -> None:
        self._sites = sites
        self._hosts = hosts
        self._token = token
        self._tasks: set[asyncio.Task[None]] = set()

    def admit(self, exchange: Exchange, path: str) -> Site | None:
        """The server that a client may ask; None if the request is answered here, with a refusal or a list."""
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

    def serve(self, site: Site, exchange: Exchange) -> None:
        """Have *site* answer a request, whose body is complete."""
        try:
            work = _ask(site, exchange)
        except Exception:
            _fail(exchange)
            return
        if work is not None:
            task = asyncio.ensure_future(_wait(work, exchange))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _is_welcome(self, headers: Mapping[str, str]) -> bool:
        host = headers.get("host", "")
        if self._hosts is not None and _name_in(f"//{host}") not in self._hosts:
            return False
        origin = headers.get("origin")
        if origin is None:  # browsers leave it out if a page only embeds what is here, but say that it is foreign
            return headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        return _name_in(origin) in LOOPBACK or origin.partition("://")[2] == host

    def _has_token(self, exchange: Exchange) -> bool:
        if self._token is None:
            return True
        given = exchange.headers.get(TOKEN)
        if given is None:
            kind, _, given = exchange.headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer":
                return False
            # This token is for us: the server must not get it.
            exchange.pairs = [(name, value) for name, value in exchange.pairs if name != "authorization"]
            exchange.headers = dict(exchange.pairs)
        return hmac.compare_digest(given.strip().encode(), self._token.encode())


def path_of(name: str) -> str:
    """The path of the server *name*."""
    return f"/{quote(name, safe='/@:')}/mcp"


def _ask(site: Site, exchange: Exchange) -> Awaitable[None] | None:
    if exchange.method == "POST":
        return site.post(exchange)
    if exchange.method == "GET":
        return site.get(exchange)
    if exchange.method == "DELETE":
        return site.delete(exchange)
    exchange.answer(405, [("allow", "GET, POST, DELETE")])
    return None


async def _wait(work: Awaitable[None], exchange: Exchange) -> None:
    try:
        await work
    except Exception:
        _fail(exchange)


def _fail(exchange: Exchange) -> None:
    _log.exception("a request could not be answered")
    exchange.fail(500, "the proxy has failed", code=frames.INTERNAL_ERROR)
    exchange.end()


def _name_in(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _brief(name: str, site: Site) -> dict[str, object]:
    facts = site.facts()
    states = [fact["state"] for fact in facts]
    state = next((state for state in states if state != "ready"), states[0])
    # While a server is ready, its last error was about the request of one client and does not concern others.
    error = next((fact["last_error"] for fact in facts if fact["last_error"] and fact["state"] != "ready"), None)
    return {"name": name, "path": path_of(name), "kind": facts[0]["kind"], "state": state, "last_error": error}


def _show(exchange: Exchange, value: object) -> None:
    if exchange.method in ("GET", "HEAD"):
        exchange.answer(200, [("content-type", JSON)], msgspec.json.encode(value))
    else:
        exchange.answer(405, [("allow", "GET, HEAD")])
