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
from holdfast.mcp.http.passing import Passing
from holdfast.mcp.http.session import HttpSession
from holdfast.mcp.http.sites import LEFT, cancelled, client_key, forget, is_long, read, refuse
from holdfast.mcp.server import Home, ProxiedServer
from holdfast.mcp.session import Session
from holdfast.mcp.wire import Condition, Event


class Talk:
    """A client's session, and what was begun in it."""

    def __init__(self, site: HttpSite, id: str | None) -> None:
        self.http = HttpSession(site.endpoint, site.condition, id)
        self.passing = Passing(site.endpoint, site.condition, site.tasks, self.http, lambda: site.keep(self))
        self.session = Session(site.server, self.passing, self.send, site.hf.clock)
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
        self._talks: dict[str, Talk] = {}  # by the session id that the client knows
        self._known: dict[str, Conversation] = {}  # of clients without session, by `client_key`
        self._alive: set[Conversation] = set()
        self._single: dict[Exchange, Session] = {}  # each is for one request

    def facts(self) -> list[dict[str, object]]:
        shake = next((talk.session.handshake for talk in reversed(self._talks.values())), Handshake())
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
        talk = self._talk(None if begins else id)
        if talk.conversation is None and talk.passing.id is not None and _calls(heads):
            self._begin(talk, talk.passing.id)
        return self._receive(exchange, heads, talk)

    def get(self, exchange: Exchange) -> None:
        exchange.due = None
        talk = self._talk(exchange.headers.get(SESSION))

        def listens() -> None:
            if exchange.headers.get(LAST_EVENT) is None:
                talk.getter = exchange

        self._enter(talk, exchange)
        talk.passing.listen(exchange, listens)

    async def delete(self, exchange: Exchange) -> None:
        talk = self._talk(exchange.headers.get(SESSION))
        self._enter(talk, exchange)
        await talk.passing.follow(exchange)
        if talk.conversation is not None and (exchange.status < 300 or exchange.status == 404):  # it has ended
            await talk.conversation.end()

    def _receive(self, exchange: Exchange, heads: list[Head], talk: Talk) -> Awaitable[None] | None:
        """Handle a frame within a session."""
        self._enter(talk, exchange)
        if cancelled(heads) and talk.is_known and talk.passing.is_strange(exchange):
            return self._receive_strange(exchange, heads, talk)

        def hand_on() -> None:
            talk.session.receive(exchange.body, exchange)
            for id in cancelled(heads):
                for each in talk.exchanges:
                    each.forgo(id)
            _pass_rest(exchange, talk.passing)

        return _within(talk.conversation, hand_on)

    async def _receive_strange(self, exchange: Exchange, heads: list[Head], talk: Talk) -> None:
        """Handle a cancel with new tokens, perhaps another client's: nothing ends here unless the server accepts it."""
        if exchange.due:
            exchange.fail(403, "this client may not cancel here: send the cancel by itself")
        elif await talk.passing.is_taken(exchange):
            for id in cancelled(heads):
                talk.session.receive(frames.cancel(id, LEFT), exchange)
                for each in talk.exchanges:
                    each.forgo(id)

    def _receive_single(self, exchange: Exchange, heads: list[Head]) -> Awaitable[None] | None:
        """Handle a frame that belongs to no session."""
        passing = Passing(self.endpoint, self.condition, self.tasks)
        session = Session(self.server, passing, exchange.send, self.hf.clock)
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
            _pass_rest(exchange, passing)

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

    def _talk(self, id: str | None) -> Talk:
        """The session *id*; one that is unknown here may still be known to the server."""
        talk = self._talks.get(id) if id is not None else None
        if talk is None or (talk.conversation is not None and not talk.conversation.is_open):
            talk = Talk(self, id)
            talk.session.open()
            if id is not None:
                self._talks[id] = talk  # until it turns out that the server does not know it either
        return talk

    def keep(self, talk: Talk) -> None:
        """Note that the server knows a session; it is a run from now on."""
        id = talk.passing.id
        assert id is not None
        talk.is_known = True
        if talk.conversation is None:
            self._begin(talk, id)

    def _begin(self, talk: Talk, id: str) -> None:
        """Begin the run of a session."""
        self._talks[id] = talk
        ended = partial(forget, self._talks, id, talk)
        talk.conversation = Conversation(
            self.hf, id, self.endpoint.target, on_end=ended, close=talk.close, alive=self._alive
        )
        for exchange in talk.exchanges:
            talk.conversation.join(exchange)

    def _enter(self, talk: Talk, exchange: Exchange) -> None:
        talk.exchanges.add(exchange)
        if talk.conversation is not None:
            talk.conversation.join(exchange)

        def done() -> None:
            talk.exchanges.discard(exchange)
            if talk.is_known or talk.exchanges:
                return
            if talk.conversation is None:  # the server does not know it
                self.server.leave(talk.session)
                if talk.passing.id is not None:
                    self._talks.pop(talk.passing.id, None)
            elif exchange.status in (400, 404):
                talk.conversation.conclude()

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
        left: list[Session] = []  # those in which calls may be under way when the run ends

        def ended() -> None:
            forget(self._known, key, conversation)
            left.extend(self._single[each] for each in conversation.exchanges if each in self._single)

        async def close() -> None:
            await asyncio.gather(*(session.close() for session in left))

        conversation = Conversation(self.hf, key, self.endpoint.target, on_end=ended, close=close, alive=self._alive)
        return conversation

    def _key(self, exchange: Exchange, params: AnyParams = NO_PARAMS) -> str:
        return client_key(self.server.name, exchange.headers, params)


def _calls(heads: list[Head]) -> list[Head]:
    return [head for head in heads if head.method == "tools/call"]


def _pass_rest(exchange: Exchange, passing: Passing) -> None:
    """Handle a frame without requests that the session did not pass on.

    An answer goes to the server, which may have asked in another session; anything else only gets status 202.
    """
    if exchange.due or exchange.is_taken:
        return
    head = frames.head(exchange.body) if not frames.is_batch(exchange.body) else None
    if head is not None and head.is_answer:
        passing.send(exchange.body, head, exchange)
    else:
        exchange.answer(202)


def _within(conversation: Conversation | None, do: Callable[[], None]) -> Awaitable[None] | None:
    """Call *do* in the run of *conversation*, if there is one."""
    if conversation is not None:
        return conversation.perform(do)
    do()
    return None
