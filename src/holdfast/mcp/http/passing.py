"""A server over HTTP as clients over HTTP get it: one request of a client is one request to the server, and what the
server answers, its status, its headers and the places to resume from, goes through as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import msgspec

from holdfast.mcp import frames
from holdfast.mcp.batch import Batch
from holdfast.mcp.frames import Head
from holdfast.mcp.handshake import Handshake
from holdfast.mcp.http.client import Response
from holdfast.mcp.http.endpoint import (
    HOP,
    JSON,
    LAST_EVENT,
    NOT_TO_CLIENT,
    SESSION,
    VERSION,
    Endpoint,
    media_type,
    passed,
    rpc_error,
)
from holdfast.mcp.http.exchange import Exchange
from holdfast.mcp.http.incoming import Pairs
from holdfast.mcp.http.mirrored import NAME, mirrored
from holdfast.mcp.http.session import HttpSession, events, forgo_later, says_lost, take_off
from holdfast.mcp.http.sse import MEDIA_TYPE
from holdfast.mcp.wire import Answer, Channel, Condition, Event, Listener, ServerLost

MOST_BROKEN: Final = 100  # answers that a client may want to take up again

# Origin and its kind say where a web page lives, and were checked here.
NOT_TO_SERVER: Final = frozenset(
    {*HOP, "host", "accept-encoding", "expect", "origin", "referer", "x-holdfast-token", SESSION}
    | {"sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "forwarded", "x-forwarded-for", "x-forwarded-host"}
)

_log = logging.getLogger("holdfast")


class Link:
    """A session between a client and a server: the client's name for it, and the server's; *on_named* tells of both."""

    def __init__(self, endpoint: Endpoint, id: str | None, on_named: Callable[[], object]) -> None:
        self.id = id
        self.on_named = on_named
        self.http = HttpSession(endpoint)
        self.http.id = id
        self.broken: deque[Exchange] = deque(maxlen=MOST_BROKEN)  # streams that ended before the answer


class Place(Protocol):
    """The server behind a path of a gateway."""

    condition: Condition
    endpoint: Endpoint
    tasks: set[asyncio.Task[None]]

    def facts(self) -> list[dict[str, object]]: ...


class Passing:
    """The server, as the session of one client sees it, or of one request where there are no sessions."""

    is_ready = True

    def __init__(self, site: Place, link: Link | None) -> None:
        self._site = site
        self._endpoint = site.endpoint
        self._link = link
        self._listener: Listener  # from `attach` on
        self._tasks: dict[asyncio.Task[None], set[Any]] = {}  # with the ids that are not answered
        self._last: Exchange | None = None  # whose headers go with what we say ourselves

    def attach(self, listener: Listener, handshake: Handshake) -> None:
        """Begin."""
        self._listener = listener

    async def ready(self) -> None:
        """Wait until frames can be sent."""

    def send(self, data: bytes, head: Head | None, channel: Channel | None = None) -> None:
        """Hand a frame to the server."""
        while isinstance(channel, Batch):
            channel = channel.channel
        exchange = channel if isinstance(channel, Exchange) else None
        if head is not None and head.method == "notifications/cancelled" and self._cancel(head, exchange):
            return
        if exchange is not None:
            exchange.is_taken = True
            self._last = exchange
        waiting = frames.asked(data, head)
        self._start(self._perform(data, head, exchange, waiting), waiting)

    def listen(self, exchange: Exchange) -> None:
        """A client asks for a stream."""
        exchange.is_taken = True
        task = self._start(self.follow(exchange), set())
        exchange.on_closed = task.cancel

    def suspect(self) -> None:
        """There is nothing to be seen of a server over HTTP that the next request would not show."""

    def hold(self, held: bool) -> None:
        """A stream is read as fast as its client takes it; there is nothing else to hold."""

    def facts(self) -> dict[str, object]:
        """What is to be known of the server."""
        return self._site.facts()[0]

    async def close(self) -> None:
        """End all that is on its way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None], waiting: set[Any]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks[task] = waiting
        task.add_done_callback(self._tasks.pop)
        self._site.tasks.add(task)
        task.add_done_callback(self._site.tasks.discard)
        return task

    def _cancel(self, head: Head, exchange: Exchange | None) -> bool:
        """End the request that a cancel is for; whether that says all."""
        id = frames.params(head).requestId
        task = next((task for task, waiting in self._tasks.items() if id in waiting), None)
        if self._link is None and (exchange is None or exchange.is_modern):  # the end of the stream is the message
            if task is not None:
                task.cancel()
            return True
        if task is not None:
            forgo_later(self._tasks[task], id, task.cancel)
        return False

    # -- a frame of the client -----------------------------------------------------------------------------------------

    async def _perform(self, data: bytes, head: Head | None, exchange: Exchange | None, waiting: set[Any]) -> None:
        asks = bool(waiting)
        try:
            response = await self._open("POST", exchange or self._last, data, head)
            try:
                await self._take(response, exchange, waiting)
            finally:
                response.close()
            self._site.condition.judge(None)
        except ServerLost as error:
            self._fail(error, exchange, waiting, asks=asks)
        except Exception as error:  # a fault of ours: the client is answered all the same
            _log.exception("%s: an answer was lost", self._endpoint.target)
            self._fail(ServerLost(f"the proxy has failed: {error}"), exchange, waiting, asks=asks)
        if exchange is not None and self._is_over(exchange, waiting):
            exchange.end()

    def _fail(self, error: ServerLost, exchange: Exchange | None, waiting: set[Any], *, asks: bool) -> None:
        self._site.condition.judge(error)
        for id in waiting:
            self._listener.failed(id, error)
        if not asks and exchange is not None and not exchange.due:
            _pass_refusal(exchange, error)

    def _is_over(self, exchange: Exchange, waiting: set[Any]) -> bool:
        """Whether a client is to take its stream up again."""
        if not waiting or not exchange.is_open or not exchange.ids or self._link is None:
            return False
        self._link.broken.append(exchange)
        return True

    async def _open(
        self, method: str, exchange: Exchange | None, data: bytes | None, head: Head | None = None
    ) -> Response:
        """Send a request for that of a client; once more if the server has forgotten the session."""
        given = passed(exchange.pairs, NOT_TO_SERVER) if exchange is not None else []
        if exchange is not None and data is not None and data is not exchange.body and NAME in exchange.headers:
            assert head is not None  # it is another tool that is called
            changed = mirrored(head, frames.params(head))
            given = [(name, changed.get(name, value)) for name, value in given]
        http = self._link.http if self._link is not None else None
        if http is None:
            return await self._endpoint.open(method, given, data)
        await http.settled()
        id = http.id
        response = await self._endpoint.open(method, given if id is None else [*given, (SESSION, id)], data)
        if id is None or response.status not in (400, 404):
            return response
        try:
            error = await self._endpoint.refusal(response)
        finally:
            response.close()
        assert error.answer is not None
        if not says_lost(error.answer):
            raise error
        auth = {name: value for name, value in given if name.lower() not in (LAST_EVENT, VERSION)}
        await http.renew(id, error, auth)
        return await self._endpoint.open(method, given if http.id is None else [*given, (SESSION, http.id)], data)

    # -- an answer of the server ---------------------------------------------------------------------------------------

    async def _take(self, response: Response, exchange: Exchange | None, waiting: set[Any]) -> None:
        headers = self._headers(response)
        kind = media_type(response.headers)
        if waiting and response.is_success and kind == MEDIA_TYPE:
            if exchange is not None:
                exchange.stream(headers)
            await self._relay(response, exchange, waiting)
            return
        if waiting and not response.is_success:
            await self._refused(response, exchange, headers, waiting)
            return
        body = await response.body()
        if not waiting:
            if exchange is not None and not exchange.due:
                exchange.answer(response.status, headers, body)
            return
        if kind != JSON or not self._hand_on(Event(body), exchange, waiting, (200, headers)):
            raise ServerLost(f"{self._endpoint.target} answered with HTTP status {response.status} and no answer")

    async def _refused(self, response: Response, exchange: Exchange | None, headers: Pairs, waiting: set[Any]) -> None:
        """A status that says no: with the server's own error for the request, if it gives one."""
        error = await self._endpoint.refusal(response)
        assert error.answer is not None
        status, _, body = error.answer
        error.answer = error.answer._replace(headers=dict(headers))
        head = rpc_error(error.answer)
        if (
            head is None
            or not {head.id, frames.as_number(head.id)} & waiting
            or not self._hand_on(Event(body), exchange, waiting, (status, headers))
        ):
            raise error

    async def _relay(self, response: Response, exchange: Exchange | None, waiting: set[Any]) -> None:
        resumable = False
        task, link = asyncio.current_task(), self._link
        if exchange is not None and link is not None:

            def left() -> None:  # the client will come back for the rest
                if resumable and task is not None:
                    link.broken.append(exchange)
                    task.cancel()

            exchange.on_closed = left
        async for event in events(self._endpoint, response, exchange.drained if exchange is not None else None):
            resumable = resumable or event.id is not None
            self._hand_on(event, exchange, waiting)
        if waiting and not resumable:
            raise ServerLost(f"{self._endpoint.target} ended the stream before the answer")

    def _hand_on(
        self, event: Event, exchange: Exchange | None, waiting: set[Any], met: tuple[int, Pairs] | None = None
    ) -> bool:
        """Give what the server says to the session; whether all is answered now."""
        try:
            ids = frames.answered(event.data) if event.data else []
        except msgspec.DecodeError:
            return False
        if met is not None and exchange is not None:
            exchange.meet(*met)
        self._listener.arrive(event, exchange)
        take_off(waiting, ids)
        return not waiting

    async def follow(self, exchange: Exchange) -> None:
        """Pass on what a client asks for without a frame: a stream, or the end of its session."""
        link = self._link
        last = exchange.headers.get(LAST_EVENT)
        if last is not None and link is not None:
            for broken in link.broken:
                if last in broken.ids:
                    broken.successor = exchange
        try:
            response = await self._open(exchange.method, exchange, None)
            try:
                headers = self._headers(response)
                if response.is_success and media_type(response.headers) == MEDIA_TYPE:
                    exchange.stream(headers)
                    async for event in events(self._endpoint, response, exchange.drained):
                        if last is None or not self._repeat(event, exchange):
                            self._hand_on(event, exchange, set())
                else:
                    exchange.answer(response.status, headers, await response.body())
            finally:
                response.close()
        except ServerLost as error:
            self._site.condition.judge(error)
            _pass_refusal(exchange, error)
        finally:
            exchange.end()

    def _repeat(self, event: Event, exchange: Exchange) -> bool:
        """Whether an answer is said again, to a client that has missed it; guards and records have had it before."""
        head = frames.peek(event.data)
        if head is None or not head.is_answer or self._listener.expects(head.id):
            return False
        exchange.send(event)
        return True

    def _headers(self, response: Response) -> Pairs:
        """The headers that go on to the client, who knows the session by its first name."""
        headers = passed(response.pairs, NOT_TO_CLIENT)
        link, id = self._link, response.headers.get(SESSION)
        if link is not None and response.is_success:
            if link.id is None and id is not None:
                link.id = link.http.id = id
            if link.id is not None:
                link.on_named()
        if id is None:
            return headers
        return [*headers, (SESSION, link.id if link is not None and link.id is not None else id)]


def _pass_refusal(exchange: Exchange, error: ServerLost) -> None:
    """Tell a client what came of a request to which there is no answer in the protocol."""
    answer: Answer | None = error.answer
    if answer is None:
        exchange.fail(502, str(error), code=frames.LOST)
    else:
        exchange.answer(answer.status, list(answer.headers.items()), answer.body)
