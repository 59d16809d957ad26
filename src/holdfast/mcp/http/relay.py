"""Passes requests of clients over HTTP to a server over HTTP: one request of a client is one request to the server, and
the status, headers and event ids of the server's response go through as they are.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any, Final

import msgspec

from holdfast.mcp import frames
from holdfast.mcp.batch import line_of
from holdfast.mcp.frames import Head, Id
from holdfast.mcp.handshake import Handshake
from holdfast.mcp.http.client import Response, Sending
from holdfast.mcp.http.endpoint import (
    COOKIE,
    HOP,
    JSON,
    LAST_EVENT,
    NOT_TO_CLIENT,
    SESSION,
    VERSION,
    Endpoint,
    passed,
    rpc_error,
)
from holdfast.mcp.http.exchange import Exchange, Start
from holdfast.mcp.http.mirrored import METHOD, NAME, PARAM, mirrored
from holdfast.mcp.http.session import HttpSession, forgo_later, says_lost, take_off
from holdfast.mcp.http.sites import tokens
from holdfast.mcp.wire import Channel, Condition, Event, Listener, Pairs, ServerLost

MOST_BROKEN: Final = 100  # broken streams that a client may want to resume

# Headers of a client that do not tell who it is; nor do those that repeat its arguments.
IMPERSONAL: Final = frozenset(
    {"accept", "content-type", "user-agent", "traceparent", "tracestate", "x-request-id"}
    | {LAST_EVENT, VERSION, METHOD, NAME}
)

# Origin and the like say which web page asks, and were checked here.
NOT_TO_SERVER: Final = frozenset(
    {*HOP, "host", "accept-encoding", "expect", "origin", "referer", "x-holdfast-token", SESSION}
    | {"sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "forwarded", "x-forwarded-for", "x-forwarded-host"}
)

_log = logging.getLogger("holdfast")


class Post:
    """What a client sends, on its way: a frame, a batch, or nothing; `asks` is True if there are requests in it.

    `waiting` are the ids of those that are not answered.
    """

    __slots__ = ("asks", "data", "exchange", "head", "sending", "waiting")

    def __init__(self, exchange: Exchange, data: bytes | None = None, head: Head | None = None) -> None:
        self.exchange = exchange
        self.data = data
        self.head = head
        self.waiting = frames.asked(data, head) if data is not None else set()
        self.asks = bool(self.waiting)
        self.sending = Sending()  # the last try


class Relay:
    """The server for one client in its session *http*, or for one request if there are no sessions.

    Its tasks are also in *tasks*. *on_named* is called whenever the server shows that it knows the session.
    """

    ready = None

    def __init__(
        self,
        endpoint: Endpoint,
        condition: Condition,
        tasks: set[asyncio.Task[None]],
        http: HttpSession | None = None,
        on_named: Callable[[], object] = lambda: None,
    ) -> None:
        self.id = http.id if http is not None else None  # the id that the client knows; the server may use another
        self.condition = condition
        self._endpoint = endpoint
        self._tasks = tasks
        self._http = http
        self._on_named = on_named
        self._listener: Listener  # from `attach` on
        self._posts: dict[asyncio.Task[None], Post] = {}
        self._broken: deque[Exchange] = deque(maxlen=MOST_BROKEN)  # streams that ended before the answer
        # The client's headers, for frames of our own: the first that came, then the last that the server accepted.
        self._client: tuple[Pairs, dict[str, str]] | None = None
        self._welcome: dict[str, str] = {}  # the last headers with which the server accepted a request

    def attach(self, listener: Listener, handshake: Handshake) -> None:
        self._listener = listener

    def send(self, data: bytes, head: Head | None, channel: Channel | None = None) -> None:
        exchange = _exchange(channel)
        if exchange is None:  # a frame of our own: no client waits for the response
            exchange = Exchange("POST", *(self._client or ([], {})), None)
            exchange.is_modern = self._http is None
        elif self._client is None:
            self._client = exchange.pairs, exchange.headers
        if head is not None and head.method == "notifications/cancelled" and self._cancel(head, exchange):
            return
        exchange.is_taken = True
        post = Post(exchange, data, head)
        self._start(self._perform(post), post)

    def take_back(self, id: Id) -> bool:
        task, post = self._asking(id)
        return task is not None and post is not None and not post.sending.has_begun and task.cancel()

    def asker(self, channel: Channel) -> bytes | None:
        """A digest of what tells the server who a client is: its token, its cookies, any other header of its own."""
        exchange = _exchange(channel)
        shown = passed(exchange.pairs, NOT_TO_SERVER) if exchange is not None else []
        personal = [pair for pair in shown if pair[0] not in IMPERSONAL and not pair[0].startswith(PARAM)]
        return hashlib.sha256(msgspec.json.encode(personal)).digest() if personal else None

    def is_strange(self, exchange: Exchange) -> bool:
        """True if the request has other tokens than the last one that the server accepted: it may be another client."""
        return tokens(exchange.headers) != tokens(self._welcome)

    async def pass_on(self, exchange: Exchange) -> bool:
        """Pass on a body without requests, and wait for the response; True if the server accepted it."""
        await self._perform(Post(exchange, exchange.body))
        return exchange.status < 300

    def listen(self, exchange: Exchange, on_stream: Callable[[], object]) -> None:
        """Pass on a client's request for a stream; *on_stream* is called when the server opens it."""
        exchange.when_done(self._start(self.follow(exchange, on_stream), Post(exchange)).cancel)

    def suspect(self) -> None:
        """Do nothing: the next request shows whether a server over HTTP still lives."""

    def hold(self, held: bool) -> None:
        """Do nothing: each stream is read only as fast as its client takes it."""

    async def close(self) -> None:
        """Cancel all requests that are on their way."""
        for task in self._posts:
            task.cancel()
        await asyncio.gather(*self._posts, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None], post: Post) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._posts[task] = post
        task.add_done_callback(self._posts.pop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _cancel(self, head: Head, exchange: Exchange) -> bool:
        """End the request that a cancel is for; True if the server needs no further notice."""
        id = frames.params(head).requestId
        task, post = self._asking(id)
        is_all = self._http is None and exchange.is_modern  # the server learns of it by the end of the stream
        if task is not None and post is not None:
            task.cancel() if is_all else forgo_later(post.waiting, id, task.cancel)
        return is_all

    def _asking(self, id: Id | None) -> tuple[asyncio.Task[None], Post] | tuple[None, None]:
        """The request *id* that is on its way, with its task."""
        return next((each for each in self._posts.items() if id in each[1].waiting), (None, None))

    # -- a frame of the client -----------------------------------------------------------------------------------------

    async def _perform(self, post: Post) -> None:
        try:
            with closing(await self._open("POST", post)) as response:
                await self._take(post, response)
            self.condition.judge(None)
        except ServerLost as error:
            self._fail(post, error)
        except Exception as error:  # a fault of ours: the client is answered all the same
            _log.exception("%s: an answer was lost", self._endpoint.target)
            self._fail(post, ServerLost(f"the proxy has failed: {error}"))
        exchange = post.exchange
        if post.waiting and exchange.is_open and exchange.ids and self._http is not None:
            self._broken.append(exchange)
            exchange.end()

    def _fail(self, post: Post, error: ServerLost) -> None:
        self.condition.judge(error)
        for id in post.waiting:
            self._listener.failed(id, error)
        if not post.asks and not post.exchange.due:
            _pass_refusal(post.exchange, error)

    async def _open(self, method: str, post: Post) -> Response:
        """Send a client's request to the server; do it again in a new session if the server has forgotten this one."""
        given, http = self._given(post), self._http
        if http is None:
            return await self._ask(method, given, post)
        await http.settled()
        id = http.id
        response = await self._ask(method, _within(id, given), post)
        if id is None or response.status not in (400, 404):
            return response
        error = await self._endpoint.refusal(response)
        if not says_lost(error) or self.is_strange(post.exchange):
            raise error  # the server may refuse another client in the same words, though it knows the session
        await http.renew(id, error, {name: value for name, value in given if name not in (LAST_EVENT, VERSION)})
        return await self._ask(method, _within(http.id, given), post)

    async def _ask(self, method: str, headers: Pairs, post: Post) -> Response:
        """Send it once; cookies and the session's id are for this client, which gets the id that it knows."""
        post.sending = Sending()  # what the server refused before does not count
        response = await self._endpoint.open(method, headers, post.data, post.sending)
        if response.is_success:
            self._client, self._welcome = (post.exchange.pairs, post.exchange.headers), post.exchange.headers
        own = [pair for pair in response.pairs if pair[0] == COOKIE]
        if (id := response.headers.get(SESSION)) is not None:
            own.append((SESSION, self.id or id))
        if own:
            post.exchange.more = own
        return response

    def _given(self, post: Post) -> Pairs:
        """The client's headers, as the server gets them."""
        exchange, given = post.exchange, passed(post.exchange.pairs, NOT_TO_SERVER)
        if post.head is None or post.data is exchange.body or NAME not in exchange.headers:
            return given
        changed = mirrored(post.head, frames.params(post.head))  # it may call another tool
        return [(name, changed.get(name, value)) for name, value in given]

    # -- an answer of the server ---------------------------------------------------------------------------------------

    async def _take(self, post: Post, response: Response) -> None:
        headers = self._headers(response)
        if not post.waiting:
            body = await response.body()
            if not post.exchange.due:
                post.exchange.answer(response.status, headers, body)
        elif not response.is_success:
            await self._refused(post, response)
        elif response.is_stream:
            post.exchange.stream(headers)
            await self._relay_stream(post, response)
        else:
            body = await response.body()
            if response.media_type != JSON or not self._hand_on(post, Event(body), (200, headers)):
                raise ServerLost(f"{self._endpoint.target} answered with HTTP status {response.status} and no answer")

    async def _refused(self, post: Post, response: Response) -> None:
        """Pass on the server's own error for the request, if the error status came with one; else raise."""
        error = await self._endpoint.refusal(response)
        said = error.answer
        assert said is not None
        head = rpc_error(said)
        is_for_it = head is not None and {head.id, frames.as_number(head.id)} & post.waiting
        if not is_for_it or not self._hand_on(post, Event(said.body), (said.status, said.headers)):
            raise error

    async def _relay_stream(self, post: Post, response: Response) -> None:
        exchange, task = post.exchange, asyncio.current_task()
        resumable = False

        def done() -> None:
            is_broken = exchange.is_left or exchange.successor is not None
            if is_broken and resumable and self._http is not None and task is not None:
                self._broken.append(exchange)  # the client will come back for the rest, or has done so
                task.cancel()

        exchange.when_done(done)
        async for event in response.events(exchange.drained):
            resumable = resumable or event.id is not None
            self._hand_on(post, event)
        if post.waiting and not resumable:
            raise ServerLost(f"{self._endpoint.target} ended the stream before the answer")

    def _hand_on(self, post: Post, event: Event, met: Start | None = None) -> bool:
        """Pass an event of the server to the session; True if all requests are answered now."""
        try:
            ids = frames.answered(event.data) if event.data else []
        except msgspec.DecodeError:
            return False
        if met is not None:
            post.exchange.meet(*met)
        self._listener.arrive(event, post.exchange)
        take_off(post.waiting, ids)
        return not post.waiting

    async def follow(self, exchange: Exchange, on_stream: Callable[[], object] = lambda: None) -> None:
        """Pass on a request without a frame: for a stream, or for the end of the session."""
        post = Post(exchange)
        last = exchange.headers.get(LAST_EVENT)
        if last is not None and self._http is not None:
            self._take_up(last, exchange)
        try:
            with closing(await self._open(exchange.method, post)) as response:
                headers = self._headers(response)
                if not response.is_stream:
                    exchange.answer(response.status, headers, await response.body())
                    return
                exchange.stream(headers)
                on_stream()
                if last is not None:
                    self._go_on(last, exchange)
                async for event in response.events(exchange.drained):
                    if last is None or not self._repeat(event, exchange):
                        self._hand_on(post, event)
        except ServerLost as error:
            self.condition.judge(error)
            _pass_refusal(exchange, error)
        finally:
            exchange.end()

    def _take_up(self, last: str, exchange: Exchange) -> None:
        """A client wants to resume after the event *last*: until the server agrees, *exchange* succeeds the broken
        stream only if no other does.
        """
        for broken in self._broken:
            if last in broken.ids and (broken.successor is None or not broken.successor.is_open):
                broken.successor = exchange

    def _go_on(self, last: str, exchange: Exchange) -> None:
        """The server resumes after *last*: end the old stream, whose break the client may have noticed before us. The
        new one may break in its turn.
        """
        for broken in [*self._broken, *(post.exchange for post in self._posts.values())]:
            if last in broken.ids:
                broken.successor = exchange
                broken.end()
        self._broken.append(exchange)

    def _repeat(self, event: Event, exchange: Exchange) -> bool:
        """Pass a repeated answer to a client that missed it, past guards and records, which saw it before.

        False if the event is not a repeated answer.
        """
        head = frames.peek(event.data)
        if head is None or not head.is_answer or self._listener.expects(head.id):
            return False
        exchange.send(event)
        return True

    def _headers(self, response: Response) -> Pairs:
        """The headers that go on to any client; also notes the session that they name."""
        if self._http is not None and response.is_success:
            if self.id is None:
                self.id = self._http.id = response.headers.get(SESSION)
            if self.id is not None:
                self._on_named()
        return passed(response.pairs, NOT_TO_CLIENT)


def _exchange(channel: Channel | None) -> Exchange | None:
    """The request of a client that is answered by *channel*."""
    line = line_of(channel) if channel is not None else None
    return line if isinstance(line, Exchange) else None


def _within(session: str | None, given: Pairs) -> Pairs:
    """The headers of a request, with the id of its session if there is one."""
    return given if session is None else [*given, (SESSION, session)]


def _pass_refusal(exchange: Exchange, error: ServerLost) -> None:
    """Answer a request that gets no JSON-RPC answer: with the server's refusal, or with status 502."""
    if error.answer is None:
        exchange.fail(502, str(error), code=frames.LOST)
    else:
        exchange.answer(*error.answer)
