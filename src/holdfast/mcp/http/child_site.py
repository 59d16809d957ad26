"""A stdio server for clients over HTTP: one process for each client session. The gateway makes the session ids.

Clients of protocol versions without sessions share a process if they have the same tokens and name. Since they choose
ids and progress tokens independently of each other, these are made unique on the way.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec

from holdfast.mcp import frames
from holdfast.mcp.frames import AnyParams, Head, Id
from holdfast.mcp.handshake import Handshake
from holdfast.mcp.http.conversation import Conversation
from holdfast.mcp.http.endpoint import SESSION, VERSION
from holdfast.mcp.http.exchange import MOST_QUEUED, Exchange
from holdfast.mcp.http.mirrored import METHOD, NAME, decoded, name_in
from holdfast.mcp.http.session import one_line
from holdfast.mcp.http.sites import LEFT, cancelled, client_key, forget, read, refuse
from holdfast.mcp.server import Home, ProxiedServer
from holdfast.mcp.session import Session
from holdfast.mcp.stdio.upstream import ChildUpstream
from holdfast.mcp.wire import Event

VERSIONS: Final = frozenset({"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"})
MOST_CLIENTS: Final = 100  # of one server, since each has a process; more only while all have open requests
MOST_KEPT: Final = 1000  # frames kept for a client that does not listen; at most MOST_QUEUED bytes together
SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"


class ChildClient:
    """One client and its process."""

    def __init__(self, site: ChildSite, name: str, on_end: Callable[[], object]) -> None:
        self.upstream = site.make()
        self.session = Session(site.server, self.upstream, self.send, site.hf.clock)
        target = self.upstream.condition.target
        self.conversation = Conversation(
            site.hf, name, target, begin=self.session.open, on_end=on_end, close=self.session.close, alive=site.alive
        )
        self.getter: Exchange | None = None
        self.asked = 0  # requests of clients without session so far; the process knows each by its number
        self.translated: dict[Any, Translated] = {}  # those that have not ended, by that number
        self._kept: deque[Event] = deque()
        self._kept_size = 0  # bytes in it
        self._full = 0
        self._useful = False

    def send(self, event: Event) -> None:
        """Send a frame that belongs to no request to the stream where the client listens, or to its newest request."""
        if self.asked and (id := _owner(event.data)) is not None:
            if (owner := self.translated.get(id)) is not None:  # else its request has ended, and others must not get it
                owner.send(event)
        elif self.getter is not None and self.getter.is_open:
            self.getter.send(event)
        elif (post := self._newest()) is not None:
            post.send(event)
        else:
            self._keep(event)

    def listen(self, exchange: Exchange) -> None:
        """Send frames that belong to no request to *exchange* from now on, beginning with those that were kept."""
        self.getter = exchange
        self.join(exchange)
        exchange.stream()
        while self._kept:
            exchange.send(self._kept.popleft())
        self._kept_size = 0

    def join(self, exchange: Exchange) -> None:
        """Add a request of the client."""
        self.conversation.join(exchange)
        exchange.on_full = self._hold
        exchange.when_done(lambda: self._leave(exchange))

    def _newest(self) -> Exchange | None:
        exchanges = reversed(self.conversation.exchanges)
        return next((exchange for exchange in exchanges if exchange.is_open and exchange.due), None)

    def _keep(self, event: Event) -> None:
        """Keep a frame until the client listens; if there are too many, the oldest are dropped."""
        self._kept.append(event)
        self._kept_size += len(event.data)
        while len(self._kept) > MOST_KEPT or self._kept_size > MOST_QUEUED:
            self._kept_size -= len(self._kept.popleft().data)

    def _leave(self, exchange: Exchange) -> None:
        self._useful = self._useful or self.session.handshake.is_done or (exchange.is_modern and exchange.status < 400)
        if not self._useful and not self.conversation.exchanges:
            # The client only asked whether the server speaks a version, or the process cannot be started.
            self.conversation.conclude()

    def _hold(self, held: bool) -> None:
        self._full += 1 if held else -1
        self.upstream.hold(self._full > 0)


class Translated:
    """A request of a client without session: the process gets another id and progress token for it."""

    def __init__(self, client: ChildClient, exchange: Exchange, head: Head, params: AnyParams) -> None:
        self.exchange = exchange
        self.wire_id = client.asked = client.asked + 1
        self._id = head.id
        self._token = params.meta.progressToken if params.meta is not None else None
        client.translated[self.wire_id] = self

    def outward(self, data: bytes) -> bytes:
        """The request as the process gets it."""
        data = frames.with_id(data, self.wire_id)
        if self._token is None:
            return data
        return frames.with_meta(data, {"progressToken": self.wire_id})

    def send(self, event: Event) -> None:
        if event.data:
            event = event._replace(data=self._inward(event.data))
        self.exchange.send(event)

    def _inward(self, data: bytes) -> bytes:
        head = frames.head(data)
        if head.is_answer:
            data = frames.with_id(data, self._id) if head.id == self.wire_id else data  # type: ignore[arg-type]
            return self._with_subscription(data, frames.head(data).result, frames.with_result)
        if head.method == "notifications/progress" and self._token is not None:
            return frames.with_params(data, progressToken=self._token)
        return self._with_subscription(data, head.params, frames.with_params)

    def _with_subscription(self, data: bytes, part: msgspec.Raw, change: Callable[..., bytes]) -> bytes:
        if SUBSCRIPTION.encode() not in bytes(part):
            return data
        meta = frames.meta(part)
        if meta.get(SUBSCRIPTION) != self.wire_id:
            return data
        return change(data, _meta={**meta, SUBSCRIPTION: self._id})


class ChildSite:
    """The server, behind one path of a gateway; *make* returns a process that is not started."""

    def __init__(self, hf: Home, server: ProxiedServer, make: Callable[[], ChildUpstream]) -> None:
        self.hf = hf
        self.server = server
        self.make = make
        self._clients: dict[str, ChildClient] = {}  # by session id
        self._known: dict[str, ChildClient] = {}  # of clients without session, by `client_key`
        self.alive: set[Conversation] = set()
        idle = make().condition
        idle.turn("idle")
        self._idle = idle.facts(server.name, Handshake())
        self._failed: dict[str, object] | None = None  # of the last process, if that could not be started

    def facts(self) -> list[dict[str, object]]:
        clients = [*self._clients.values(), *self._known.values()]
        return [client.session.facts() for client in clients] or [self._failed or self._idle]

    async def close(self) -> None:
        await asyncio.gather(*(each.end(interrupted=True) for each in self.alive))

    def post(self, exchange: Exchange) -> Awaitable[None] | None:
        try:
            heads = read(exchange)
        except msgspec.DecodeError as error:
            refuse(exchange, error)
            return None
        if exchange.is_modern:
            return self._post_modern(exchange, heads)
        if any(head.method == "initialize" for head in heads):
            return self._begin(exchange, heads)
        if (client := self._found(exchange)) is not None:
            return self._enter(client, exchange, heads)
        return None

    def get(self, exchange: Exchange) -> None:
        client = self._found(exchange)
        if client is None:
            return
        if client.getter is not None and client.getter.is_open:
            exchange.fail(409, "there is a stream already")
            return
        exchange.due = None
        exchange.pings = True
        client.listen(exchange)

    async def delete(self, exchange: Exchange) -> None:
        if (client := self._found(exchange)) is not None:
            await client.conversation.end()
            exchange.answer(204)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _new(self, clients: dict[str, ChildClient], key: str) -> ChildClient:
        """A new client, at *key* of *clients* until it ends; if there are too many, the one idle for longest ends."""

        def ended() -> None:
            forget(clients, key, client)
            self._failed = client.session.facts() if client.upstream.condition.state == "failed" else None

        if len(self.alive) >= MOST_CLIENTS:
            longest = min(self.alive, key=lambda each: each.idle_since)
            if not longest.exchanges:
                longest.interrupt()
        client = clients[key] = ChildClient(self, key, ended)
        return client

    def _begin(self, exchange: Exchange, heads: list[Head]) -> Awaitable[None] | None:
        id = secrets.token_urlsafe(24)
        client = self._new(self._clients, id)
        exchange.more = [(SESSION, id)]
        return self._enter(client, exchange, heads)

    def _found(self, exchange: Exchange) -> ChildClient | None:
        """The client's session; if there is none, the request is answered with an error."""
        id = exchange.headers.get(SESSION)
        if id is None:
            exchange.fail(400, f"the header {SESSION} is missing: begin with initialize")
            return None
        client = self._clients.get(id)
        if client is None or not client.conversation.is_open:
            exchange.fail(404, "there is no such session: begin a new one with initialize", code=frames.NO_SESSION)
            return None
        version = exchange.headers.get(VERSION)
        if version is not None and version not in VERSIONS and version != client.session.handshake.protocol:
            exchange.fail(400, f"the version in {VERSION} is not known")
            return None
        return client

    def _enter(self, client: ChildClient, exchange: Exchange, heads: list[Head]) -> Awaitable[None] | None:
        if exchange.due:
            client.join(exchange)
        return client.conversation.perform(partial(self._receive, client, exchange, heads))

    def _receive(self, client: ChildClient, exchange: Exchange, heads: list[Head]) -> None:
        for id in cancelled(heads):
            for asked in client.conversation.exchanges:
                asked.forgo(id)
        client.session.receive(one_line(exchange.body), exchange)
        if not exchange.due:
            exchange.answer(202)

    # -- without sessions ----------------------------------------------------------------------------------------------

    def _post_modern(self, exchange: Exchange, heads: list[Head]) -> Awaitable[None] | None:
        if frames.is_batch(exchange.body) or not heads[0].method:
            exchange.fail(400, "this must be one request or notification")
            return None
        head = heads[0]
        params = frames.params(head)
        if not head.is_request:
            exchange.answer(202)  # ignored: the end of a stream cancels a request, and there is nothing else to notify
            return None
        if (wrong := _mismatch(exchange, head, params)) is not None:
            exchange.fail(400, wrong, id=head.id, code=frames.HEADER_MISMATCH)  # type: ignore[arg-type]
            return None
        key = client_key(self.server.name, exchange.headers, params)
        client = self._known.get(key)
        if client is None or not client.conversation.is_open:
            client = self._new(self._known, key)
        client.join(exchange)
        return client.conversation.perform(partial(self._receive_modern, client, exchange, head, params))

    def _receive_modern(self, client: ChildClient, exchange: Exchange, head: Head, params: AnyParams) -> None:
        channel = Translated(client, exchange, head, params)
        exchange.pings = True

        def done() -> None:
            del client.translated[channel.wire_id]
            if exchange.is_left:
                client.session.receive(frames.cancel(channel.wire_id, LEFT), channel)
                client.session.drop(channel.wire_id)

        exchange.when_done(done)
        client.session.receive(channel.outward(one_line(exchange.body)), channel)


def _owner(data: bytes) -> Id | None:
    """The process's id of the request that a notification belongs to; None if it belongs to none."""
    head = frames.peek(data)
    if head is None:
        return None
    token = frames.params(head).progressToken
    id = token if token is not None else frames.meta(head.params).get(SUBSCRIPTION)
    return id if isinstance(id, Id) else None


def _mismatch(exchange: Exchange, head: Head, params: AnyParams) -> str | None:
    """How the headers contradict the request; None if they agree."""
    wanted = {VERSION: params.protocol, METHOD: head.method, NAME: name_in(head, params)}
    for name, value in wanted.items():
        found = exchange.headers.get(name)
        if value is not None and (found is None or decoded(found) != value):
            return f"Header mismatch: {name} does not say what the request says"
    if wanted[VERSION] is None:
        return f"Header mismatch: the request does not say {exchange.headers.get(VERSION)}"
    return None
