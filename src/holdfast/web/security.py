"""Decides which requests are allowed: by the name in their Host header, by the site they come from, and by the token
that was printed when the server started. All others are refused.

The Host name guards against foreign pages whose name resolves to this machine (DNS rebinding), the origin and the
cookie's SameSite against foreign pages that post here, the token against other users of the machine.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.web.answers import Problem, refusal

OPEN = frozenset({"/healthz"})
SAFE = frozenset({"GET", "HEAD"})
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

WITHOUT_TOKEN = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Holdfast</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<h1>This page needs its token</h1>
<p>Open the address that <code>holdfast ui</code> has printed; the token is in it, and another with each start.</p>
<p>If you have just done so from a link on another page, <a href="/">go on</a>.</p>
</html>
"""


class Rules(NamedTuple):
    """What is allowed: a Host header must be one of *hosts*, or, with *any_address*, an IP address; requests must show
    the *token*, unless it is None; *read_only* forbids all changes. In the address of the page, *once* is accepted in
    place of the token a single time.
    """

    hosts: frozenset[str]
    port: int
    token: str | None
    read_only: bool = False
    any_address: bool = False
    once: str | None = None

    @property
    def cookie(self) -> str:
        """The name of the cookie, with the port in it: browsers share cookies between the ports of a host."""
        return f"holdfast_{self.port}"

    @property
    def ticket(self) -> str:
        """The value of the cookie: proof that the client knew the token, not the token itself."""
        return hmac.new((self.token or "").encode(), b"holdfast ui cookie", hashlib.sha256).hexdigest()


def rules(
    host: str,
    port: int,
    *,
    token: str | None,
    read_only: bool = False,
    names: Iterable[str] = (),
    once: str | None = None,
) -> Rules:
    """The rules for a server bound to *host*; Host headers may be that, the local names and *names*."""
    everywhere = not is_local(host)
    hosts = LOCAL | {host.lower().strip("[]"), *(name.lower().strip("[]") for name in names)}
    return Rules(frozenset(hosts), port, token, read_only, everywhere, once)


def is_local(host: str) -> bool:
    """True if *host* can be reached only from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Gate:
    """Passes requests that *rules* allow to *app*, and answers the others itself."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules
        self._once = rules.once

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, and pass it on or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer = self._check(scope)
        await (self._app if answer is None else answer)(scope, receive, secured)

    def _check(self, scope: Scope) -> Response | None:
        """The answer to a request that is not passed on, else None."""
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            if (entered := self._enter(scope)) is not None:
                return entered
            bearer = self._check_token(scope, headers)
            if scope["method"] in SAFE:
                self._check_reader(scope, headers, bearer=bearer)
            else:
                self._check_changer(headers, bearer=bearer)
        except Problem as problem:
            answer = refusal(problem)
            if problem.status == 401:
                if scope["path"] == "/":
                    answer = HTMLResponse(WITHOUT_TOKEN, 401)
                answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        return None

    def _check_host(self, headers: Headers) -> None:
        found = headers.getlist("host")
        if len(found) != 1 or not self._is_ours(host_of(found[0])):
            raise Problem(
                403,
                "host_not_allowed",
                "the server was asked under a name that is not its own",
                "use the address that holdfast ui printed, or start it with --allow-host NAME",
            )

    def _is_ours(self, host: str | None) -> bool:
        if host in self._rules.hosts:
            return True
        if host is None or not self._rules.any_address:
            return False
        try:
            ipaddress.ip_address(host)  # an IP address is not resolved, so it cannot be rebound
        except ValueError:
            return False
        return True

    def _enter(self, scope: Scope) -> Response | None:
        """Turn the token in the address of the page into a cookie, and redirect to the address without it."""
        query = scope["query_string"]
        if scope["path"] != "/" or scope["method"] not in SAFE or b"token=" not in query:
            return None
        given = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("token", [""])
        if self._once is not None and same(given[-1], self._once):
            self._once = None
        elif self._rules.token is not None and not same(given[-1], self._rules.token):
            return None
        answer = RedirectResponse("/", 303)
        if self._rules.token is not None:
            answer.set_cookie(self._rules.cookie, self._rules.ticket, httponly=True, samesite="strict", path="/")
        return answer

    def _check_token(self, scope: Scope, headers: Headers) -> bool:
        """True if the token was shown in a header, which no foreign page can do; raise a Problem if it is missing."""
        if self._rules.token is None:
            return False
        kind, _, given = headers.get("authorization", "").partition(" ")
        is_bearer = kind.lower() == "bearer"
        if is_bearer and same(given.strip(), self._rules.token):
            return True
        if scope["path"] in OPEN:
            return False
        cookie = cookie_parser(headers.get("cookie", "")).get(self._rules.cookie, "")
        if is_bearer or not same(cookie, self._rules.ticket):
            raise Problem(
                401,
                "token_wrong" if is_bearer or cookie else "token_missing",
                "this server needs its token",
                "open the address that holdfast ui printed, or send the header Authorization: Bearer TOKEN",
            )
        return False

    def _check_reader(self, scope: Scope, headers: Headers, *, bearer: bool) -> None:
        """Refuse foreign pages, although they could not read the answer."""
        if scope["path"] not in {"/", *OPEN} and not bearer and not _is_own_site(headers):
            raise _foreign()

    def _check_changer(self, headers: Headers, *, bearer: bool) -> None:
        if self._rules.read_only:
            raise Problem(403, "read_only", "this server changes nothing", "start holdfast ui without --read-only")
        origin = headers.get("origin")
        is_ours = bearer if origin is None else _is_same(origin, headers["host"])  # None: not a browser
        if not is_ours or not _is_own_site(headers):
            raise _foreign()


def host_of(header: str) -> str | None:
    """The name in a Host header, without its port; None if it is not valid."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port  # raises ValueError if it is not a port
    except ValueError:
        return None
    return parts.hostname if parts.netloc == header and parts.hostname and "@" not in header else None


def same(given: str, wanted: str) -> bool:
    """True if two secrets are equal; the time it takes does not reveal where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _is_own_site(headers: Headers) -> bool:
    return headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}


def _is_same(origin: str, host: str) -> bool:
    scheme, _, rest = origin.partition("://")
    return scheme in {"http", "https"} and rest.lower() == host.lower()


def _foreign() -> Problem:
    return Problem(
        403,
        "origin_not_allowed",
        "the request comes from another site, or does not say from where",
        "send the header Origin with the server's own address, or Authorization: Bearer TOKEN",
    )
