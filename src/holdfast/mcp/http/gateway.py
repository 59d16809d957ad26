"""`holdfast gateway`: several servers behind one port, one path each; a fault of one does not affect the others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address

from holdfast.clock import Clock
from holdfast.errors import ConfigError, printable
from holdfast.mcp import frames
from holdfast.mcp.clients.configs import HTTP, SSE, STDIO, ServerEntry
from holdfast.mcp.handshake import Handshake
from holdfast.mcp.http.child_site import ChildSite
from holdfast.mcp.http.endpoint import Endpoint
from holdfast.mcp.http.exchange import Exchange
from holdfast.mcp.http.front import HttpFront
from holdfast.mcp.http.http_site import HttpSite
from holdfast.mcp.http.serving import HttpServer
from holdfast.mcp.http.sites import Site
from holdfast.mcp.naming import LOOPBACK, shown_url
from holdfast.mcp.proxy import stopping
from holdfast.mcp.server import Home, ProxiedServer
from holdfast.mcp.stdio.child import Command
from holdfast.mcp.stdio.pipes import Echo
from holdfast.mcp.stdio.upstream import ChildUpstream
from holdfast.mcp.wire import Condition, Event


class Address:
    """Where a gateway listens, and for whom; raise a `ConfigError` if other machines could use it without a token, or
    nobody could with it.
    """

    def __init__(self, host: str, port: int, token: str | None, names: Sequence[str] = ()) -> None:
        self.host = host
        self.port = port
        self.token = token
        if not is_loopback(host) and not token:
            raise ConfigError(
                f"host = {printable(host)!r}: a gateway that others can reach needs a token: "
                "give --token, or set $HOLDFAST_TOKEN"
            )
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise ConfigError("the token must be ASCII characters without spaces: a client shows it in a header")
        self.hosts = None if _is_wildcard(host) else LOOPBACK | {host.lower(), *(name.lower() for name in names)}

    def listen(self) -> socket.socket:
        """The socket to serve on; raise a `ConfigError` if it cannot be opened."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # asyncio sends small answers at once (TCP_NODELAY) only if the protocol is named.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self.host, self.port))
        except OSError as error:
            listening.close()
            raise ConfigError(
                f"{printable(self.host)}:{self.port} cannot be listened on: {error.strerror}; "
                "choose another port, or 0 for any that is free"
            ) from error
        return listening


async def gateway(
    hf: Home,
    entries: Sequence[ServerEntry],
    address: Address,
    *,
    hides: bool = False,
    stderr: Echo | None = None,
    env: Mapping[str, str] | None = None,
    on_ready: Callable[[str], object] = lambda url: None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve *entries* at *address* until *stop* is set or, if that is None, until a signal.

    *env* are the variables that servers get besides their own. An entry with a `problem` is answered with that.
    """
    stop = stop if stop is not None else stopping()
    sites = {entry.name: _site(hf, entry, env or {}, hides=hides, stderr=stderr) for entry in entries}
    server = HttpServer(HttpFront(sites, hosts=address.hosts, token=address.token), hf.clock)
    listening = address.listen()
    hf.publish(kind="proxy", name="gateway", servers=lambda: [fact for site in sites.values() for fact in site.facts()])
    try:
        port = listening.getsockname()[1]
        await server.start(listening)
        on_ready(f"http://{f'[{address.host}]' if ':' in address.host else address.host}:{port}")
        await stop.wait()
    finally:
        server.stop()
        await asyncio.gather(*(site.close() for site in sites.values()), return_exceptions=True)
        await server.close()
        listening.close()


def is_loopback(host: str) -> bool:
    """True if only this machine can reach *host*."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _is_wildcard(host: str) -> bool:
    try:
        return not host or ip_address(host).is_unspecified
    except ValueError:
        return False


def problem(entry: ServerEntry) -> str | None:
    """Why the server that *entry* lists can never be served; None if it can."""
    if entry.transport == SSE:
        return "servers of type sse cannot be served; give its http address"
    if entry.url is not None:
        try:
            Endpoint(entry.url)
        except ConfigError as error:
            return str(error)
    return entry.problem


def _site(hf: Home, entry: ServerEntry, env: Mapping[str, str], *, hides: bool, stderr: Echo | None) -> Site:
    if (why := problem(entry)) is not None:
        return Unserved(entry, why, hf.clock)
    server = ProxiedServer(hf, entry.name, hides=hides)
    if entry.url is not None:
        return HttpSite(hf, server, Endpoint(entry.url, entry.headers, is_shared=True))
    assert entry.command is not None
    words = [entry.command, *entry.args]
    variables = {**env, **entry.env}

    def make() -> ChildUpstream:
        command = Command(words, env=variables, cwd=entry.cwd, stderr=stderr, label=entry.name)
        return ChildUpstream(command, hf.clock)

    return ChildSite(hf, server, make)


class Unserved:
    """The path of *entry*, which cannot be served: each request is answered with *why*."""

    def __init__(self, entry: ServerEntry, why: str, clock: Clock) -> None:
        kind, target = (HTTP, shown_url(entry.url)) if entry.url is not None else (STDIO, "")
        self._name = entry.name
        self._why = why
        self._condition = Condition(clock, kind, target, "failed")
        self._condition.last_error = why

    def post(self, exchange: Exchange) -> None:
        exchange.due = list(frames.asked(exchange.body, None))
        for id in list(exchange.due):
            exchange.send(Event(frames.error(id, frames.LOST, self._why)))
        self.get(exchange)

    def get(self, exchange: Exchange) -> None:
        exchange.fail(502, self._why, code=frames.LOST)

    delete = get

    def facts(self) -> list[dict[str, object]]:
        return [self._condition.facts(self._name, Handshake())]

    async def close(self) -> None:
        """There is nothing to end."""
