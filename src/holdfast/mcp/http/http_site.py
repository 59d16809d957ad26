"""A server over HTTP behind one path of a gateway. The server makes the session ids. If it forgets a session whose
handshake is known here, a new one is begun for which the client keeps its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from holdfast.mcp import frames
from holdfast.mcp.frames import NO_PARAMS, AnyParams, Head
from holdfast.mcp.handshake import Handshake
from holdfast.mcp.http.conversation import Conversation
from holdfast.mcp.http.endpoint import LAST_EVENT, SESSION, Endpoint
from holdfast.mcp.http.exchange import Exchange
from holdfast.mcp.http.relay import Relay
from holdfast.mcp.http.session import HttpSession
from holdfast.mcp.http.sites import LEFT, cancelled, client_key, forget, is_long, read, refuse
from holdfast.mcp.server import Home, ProxiedServer
from holdfast.mcp.session import Session
from holdfast.mcp.wire import Condition, Event


class SessionClient:
    """A client's session, and what was begun in it."""

    def __init__(self, site: HttpSite, id: str | None) -> None:
        self.http = HttpSession(site.endpoint, site.condition, id)
        self.relay = Relay(site.endpoint, site.condition, site.tasks, self.http, lambda: site.keep(self))
        self.session = Session(site.server, self.relay, self.send, site.hf.clock)
        self.http.handshake = self.session.handshake
        self.getter: Exchange | None = None
        self.exchanges: set[Exchange] = set()  # requests that are being answered
        self.is_known = False  # True once the server has shown that it knows the session
        self.conversation: Conversation | None = None  # set once a tool is called, or the server knows the session

    def send(self, event: Event) -> None:
        """Send a frame that belongs to no request to the stream where the client listens."""
        if self.getter is not None:
            self.getter.send(event)

    async def close(self) -> None:
        """End its calls and requests."""
        await self.session.close()
        await self.http.close()


class HttpSite:
    """The server, behind one path of a gateway."""

    def __init__(self, hf: Home, server: ProxiedServer, endpoint: Endpoint) -> None:
        self.hf = hf
        self.server = server
        self.endpoint = endpoint
        self.tasks: set[asyncio.Task[None]] = set()
        self.condition = Condition(hf.clock, "http", endpoint.target, "idle")
        self.condition.on_change = server.publish
        self._clients: dict[str, SessionClient] = {}  # by the session id that the client knows
        self._known: dict[str, Conversation] = {}  # of clients without session, by `client_key`
        self._alive: set[Conversation] = set()
        self._single: dict[Exchange, Session] = {}  # each is for one request

    def facts(self) -> list[dict[str, object]]:
        shake = next((client.session.handshake for client in reversed(self._clients.values())), Handshake())
        return [self.condition.facts(self.server.name, shake)]

    async def close(self) -> None:
        while self._alive or self.tasks:  # a request that is on its way may begin another conversation
            for task in self.tasks:
                task.cancel()
            ends = (each.end(interrupted=True) for each in self._alive)
            await asyncio.gather(*self.tasks, *ends, return_exceptions=True)
        await self.endpoint.close()

    # -- from a client -------------------------------------------------------------------------------------------------

    def post(self, exchange: Exchange) -> Awaitable[None] | None:
        try:
            heads = read(exchange)
        except msgspec.DecodeError as error:
            if is_long(exchange) or frames.is_batch(exchange.body):
                refuse(exchange, error)
                return None
            heads = []  # the server will say what is wrong with it
        id, begins = exchange.headers.get(SESSION), bool(heads) and heads[0].method == "initialize"
        if exchange.is_modern or (id is None and not begins):
            return self._receive_single(exchange, heads)
        client = self._client(None if begins else id)
        if client.conversation is None and client.relay.id is not None and _calls(heads):
            self._begin(client, client.relay.id)
        return self._receive(exchange, heads, client)

    def get(self, exchange: Exchange) -> None:
        exchange.due = None
        client = self._client(exchange.headers.get(SESSION))

        def listens() -> None:
            if exchange.headers.get(LAST_EVENT) is None:
                client.getter = exchange

        self._enter(client, exchange)
        client.relay.listen(exchange, listens)

    async def delete(self, exchange: Exchange) -> None:
        client = self._client(exchange.headers.get(SESSION))
        self._enter(client, exchange)
        await client.relay.follow(exchange)
        if client.conversation is not None and (exchange.status < 300 or exchange.status == 404):  # it has ended
            await client.conversation.end()

    def _receive(self, exchange: Exchange, heads: list[Head], client: SessionClient) -> Awaitable[None] | None:
        """Handle a frame within a session."""
        self._enter(client, exchange)
        if cancelled(heads) and client.is_known and client.relay.is_strange(exchange):
            return self._receive_strange(exchange, heads, client)

        def hand_on() -> None:
            client.session.receive(exchange.body, exchange)
            for id in cancelled(heads):
                for each in client.exchanges:
                    each.forgo(id)
            _pass_rest(exchange, client.relay)

        return _within(client.conversation, hand_on)

    async def _receive_strange(self, exchange: Exchange, heads: list[Head], client: SessionClient) -> None:
        """Handle a cancel with new tokens, perhaps another client's: nothing ends here unless the server accepts it."""
        if exchange.due:
            exchange.fail(403, "this client may not cancel here: send the cancel by itself")
        elif await client.relay.pass_on(exchange):
            for id in cancelled(heads):
                client.session.receive(frames.cancel(id, LEFT), exchange)
                for each in client.exchanges:
                    each.forgo(id)

    def _receive_single(self, exchange: Exchange, heads: list[Head]) -> Awaitable[None] | None:
        """Handle a frame that belongs to no session."""
        relay = Relay(self.endpoint, self.condition, self.tasks)
        session = Session(self.server, relay, exchange.send, self.hf.clock)
        session.open()
        self._single[exchange] = session
        conversation = self._conversation(exchange, heads)

        def done() -> None:
            if exchange.is_left and exchange.is_modern:
                for id in list(exchange.due or ()):
                    session.receive(frames.cancel(id, LEFT), exchange)
            del self._single[exchange]
            self.server.leave(session)

        def hand_on() -> None:
            exchange.when_done(done)  # not before there is something to cancel
            self._receiver(session, heads, exchange).receive(exchange.body, exchange)
            if conversation is not None and not session.is_idle:  # its calls may outlive the client's connection
                conversation.sessions.add(session)
                session.on_idle = partial(conversation.sessions.discard, session)
            _pass_rest(exchange, relay)

        return _within(conversation, hand_on)

    def _receiver(self, session: Session, heads: list[Head], exchange: Exchange) -> Session:
        """The session that a frame is for: *session*, unless it cancels another request of the same client.

        If several requests have that id, it goes to none of them: they may come from different clients that look alike.
        """
        for id in cancelled(heads):
            who = self._key(exchange)
            posts = [post for post, asker in self._single.items() if asker.is_asked(id) and self._key(post) == who]
            if len(posts) == 1:
                session = self._single[posts[0]]
                posts[0].forgo(id)
        return session

    # -- sessions and runs of clients ----------------------------------------------------------------------------------

    def _client(self, id: str | None) -> SessionClient:
        """The session *id*; one that is unknown here may still be known to the server."""
        client = self._clients.get(id) if id is not None else None
        if client is None or (client.conversation is not None and not client.conversation.is_open):
            client = SessionClient(self, id)
            client.session.open()
            if id is not None:
                self._clients[id] = client  # until it turns out that the server does not know it either
        return client

    def keep(self, client: SessionClient) -> None:
        """Note that the server knows a session; it is a run from now on."""
        id = client.relay.id
        assert id is not None
        client.is_known = True
        if client.conversation is None:
            self._begin(client, id)

    def _begin(self, client: SessionClient, id: str) -> None:
        """Begin the run of a session."""
        self._clients[id] = client
        ended = partial(forget, self._clients, id, client)
        client.conversation = Conversation(
            self.hf, id, self.endpoint.target, on_end=ended, close=client.close, alive=self._alive
        )
        for exchange in client.exchanges:
            client.conversation.join(exchange)

    def _enter(self, client: SessionClient, exchange: Exchange) -> None:
        client.exchanges.add(exchange)
        if client.conversation is not None:
            client.conversation.join(exchange)

        def done() -> None:
            client.exchanges.discard(exchange)
            if client.is_known or client.exchanges:
                return
            if client.conversation is None:  # the server does not know it
                self.server.leave(client.session)
                if client.relay.id is not None:
                    self._clients.pop(client.relay.id, None)
            elif exchange.status in (400, 404):
                client.conversation.conclude()

        exchange.when_done(done)

    def _conversation(self, exchange: Exchange, heads: list[Head]) -> Conversation | None:
        """The run of a client without session, if it calls a tool."""
        if not (calls := _calls(heads)):
            return None
        key = self._key(exchange, frames.params(calls[0]))
        conversation = self._known.get(key)
        if conversation is None or not conversation.is_open:
            conversation = self._known[key] = self._new_conversation(key)
        conversation.join(exchange)
        return conversation

    def _new_conversation(self, key: str) -> Conversation:
        def ended() -> None:
            forget(self._known, key, conversation)

        async def close() -> None:
            await asyncio.gather(*(session.close() for session in conversation.sessions))

        conversation = Conversation(self.hf, key, self.endpoint.target, on_end=ended, close=close, alive=self._alive)
        return conversation

    def _key(self, exchange: Exchange, params: AnyParams = NO_PARAMS) -> str:
        return client_key(self.server.name, exchange.headers, params)


def _calls(heads: list[Head]) -> list[Head]:
    return [head for head in heads if head.method == "tools/call"]


def _pass_rest(exchange: Exchange, relay: Relay) -> None:
    """Handle a frame without requests that the session did not pass on.

    An answer goes to the server, which may have asked in another session; anything else only gets status 202.
    """
    if exchange.due or exchange.is_taken:
        return
    head = frames.head(exchange.body) if not frames.is_batch(exchange.body) else None
    if head is not None and head.is_answer:
        relay.send(exchange.body, head, exchange)
    else:
        exchange.answer(202)


def _within(conversation: Conversation | None, do: Callable[[], None]) -> Awaitable[None] | None:
    """Call *do* in the run of *conversation*, if there is one."""
    if conversation is not None:
        return conversation.perform(do)
    do()
    return None
