"""A server over streamable HTTP, for a client that does not speak HTTP: sessions, streams and their resumption are
handled here. One request of the client is one request on the wire.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine
from contextlib import closing
from functools import partial
from typing import Any, Final

import msgspec

from holdfast.clock import Clock
from holdfast.mcp import frames
from holdfast.mcp.frames import Head, Id
from holdfast.mcp.handshake import Handshake
from holdfast.mcp.http.client import Response, Sending
from holdfast.mcp.http.endpoint import JSON, LAST_EVENT, SESSION, VERSION, Endpoint, rpc_error
from holdfast.mcp.http.mirrored import ToolHeaders, mirrored, name_in
from holdfast.mcp.http.session import ACCEPT, HttpSession, forgo_later, one_line, says_lost, take_off
from holdfast.mcp.http.sse import MEDIA_TYPE
from holdfast.mcp.wire import Channel, Condition, Event, Listener, ServerLost

RETRY: Final = 1.0  # seconds before a stream is resumed, if the server names no pause
SHORTEST_RETRY: Final = 0.1  # seconds, if the server names less
LONGEST_RETRY: Final = 30.0  # seconds that a pause may reach by growing with each failure
LONGEST_NAMED: Final = 300.0  # seconds of a pause that the server names
MOST_RESUMES: Final = 5  # resumptions in a row that bring no new event
GRACE: Final = 2.0  # seconds for a server to end a stream after its answer, or to end the session
HEARING: Final = 1.0  # seconds for a server to open the stream of frames that belong to no request
IN_ORDER: Final = 5.0  # seconds that a frame waits until the server has accepted the notification before it
# Advice for a refused handshake; a server that speaks only the HTTP+SSE of 2024-11-05 accepts no POST.
OAUTH: Final = "give a token with --header-env, or have Holdfast wrap `npx -y mcp-remote URL`, which can sign in"
HTTP_SSE: Final = "if it speaks HTTP+SSE only: Holdfast does not, but can wrap `npx -y mcp-remote URL`, which does"
ADVICE: Final = {401: OAUTH, 404: HTTP_SSE, 405: HTTP_SSE}
MOST_POSTS: Final = 2000  # frames on their way before the client is asked to pause

_log = logging.getLogger("holdfast")


class Post:
    """A frame of the client, or a batch, on its way; what the server answers goes to *channel*."""

    def __init__(self, data: bytes, head: Head | None, channel: Channel | None) -> None:
        self.data = data
        self.head = head
        self.channel = channel
        self.method = head.method if head is not None else ""
        self.waiting = frames.asked(data, head)  # ids that are not answered
        self.params = frames.params(head) if head is not None and head.method else frames.AnyParams()
        self.version = self.params.protocol  # None if it belongs to a session
        self.last_id: str | None = None
        self.retry: float | None = None
        self.sending = Sending()  # the last try
        self.task: asyncio.Task[None] | None = None


class HttpUpstream:
    """A server over HTTP, and its session with the client."""

    ready = None

    def __init__(self, endpoint: Endpoint, clock: Clock) -> None:
        self.condition = Condition(clock, "http", endpoint.target, "ready")
        self._endpoint = endpoint
        self._clock = clock
        self._listener: Listener  # from `attach` on
        self._tools = ToolHeaders()
        self._session = HttpSession(endpoint, self.condition, on_renewed=self._renewed)
        self._posts: dict[Id, Post] = {}  # by the ids of their requests
        self._tasks: set[asyncio.Task[None]] = set()
        self._ordered: asyncio.Task[None] | None = None  # sends the last notification
        self._listening: asyncio.Task[None] | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._holds = False

    def attach(self, listener: Listener, handshake: Handshake) -> None:
        self._listener = listener
        self.condition.on_change = listener.changed
        self._session.handshake = handshake

    def send(self, data: bytes, head: Head | None, channel: Channel | None = None) -> None:
        if head is not None and head.method == "notifications/cancelled" and self._cancel(head):
            return
        post = Post(data, head, channel)
        post.task = self._start(self._perform(post, self._ordered))
        for id in post.waiting:
            self._posts[id] = post
            post.task.add_done_callback(partial(self._forget, id, post))
        if not post.waiting:
            self._ordered = post.task

    def take_back(self, id: Id) -> bool:
        post = self._posts.get(id)
        if post is None or post.task is None or post.sending.has_begun:
            return False
        return post.task.cancel()

    def asker(self, channel: Channel) -> None:
        """None: the server has one client only."""

    def suspect(self) -> None:
        """Do nothing: the next request shows whether a server over HTTP still lives."""

    def hold(self, held: bool) -> None:
        """Stop reading streams for the moment, or go on."""
        if held:
            self._flows.clear()
        else:
            self._flows.set()

    async def close(self) -> None:
        """End the session."""
        if self._ordered is not None and not self._ordered.done():  # it may cancel a call
            await asyncio.wait({self._ordered}, timeout=GRACE)
        tasks = [*self._tasks, *([self._listening] if self._listening is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self._session.close(), return_exceptions=True)
        if self._session.id is not None:
            try:
                await asyncio.wait_for(self._farewell(), GRACE)
            except (TimeoutError, ServerLost) as error:
                _log.debug("%s: the session was not ended: %s", self._endpoint.target, error)
        await self._endpoint.close()
        self.condition.turn("stopped")

    # -- a frame of the client -----------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        if len(self._tasks) > MOST_POSTS and not self._holds:
            self._holds = True
            self._listener.hold(True)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._holds and len(self._tasks) < MOST_POSTS // 2:
            self._holds = False
            self._listener.hold(False)

    async def _perform(self, post: Post, before: asyncio.Task[None] | None) -> None:
        if before is not None and not before.done():
            await asyncio.wait({before}, timeout=IN_ORDER)
        try:
            if post.method == "notifications/initialized" and self._listening is None:
                await self._listen()  # before the server sends anything there
            await self._deliver(post)
            if post.waiting:
                raise ServerLost(f"{self._endpoint.target} did not answer the request")
        except ServerLost as error:
            self._fail(post, error)
        except Exception as error:  # a fault of ours: the client is answered all the same
            _log.exception("%s: an answer was lost", self._endpoint.target)
            self._fail(post, ServerLost(f"the proxy has failed: {error}"))
        else:
            self.condition.judge(None)

    def _forget(self, id: Id, post: Post, task: asyncio.Task[None]) -> None:
        """Forget a post whose *task* has ended, also one that was cancelled before it began."""
        if self._posts.get(id) is post:
            del self._posts[id]

    def _fail(self, post: Post, error: ServerLost) -> None:
        self._blame(error)
        for id in post.waiting:
            self._listener.failed(id, error)

    async def _deliver(self, post: Post) -> None:
        """Send a frame and pass on the answer; do it again if the server has forgotten the session."""
        session = self._session
        await session.settled()
        id = session.id if post.method != "initialize" else None
        refusal = await self._ask(post)
        if id is not None and refusal is not None and says_lost(refusal):
            await session.renew(id, refusal, {})
            if (post.head is not None and post.head.is_answer) or post.method == "notifications/cancelled":
                return  # it was for the old session
            if post.data is session.handshake.initialized:
                return  # the new session was told that as it began
            refusal = await self._ask(post)
            if session.id is not None and refusal is not None and says_lost(refusal):
                raise refusal
        if refusal is not None:
            if post.method == "initialize" and refusal.answer is not None and refusal.answer.status in ADVICE:
                refusal.args = (f"{refusal}; {ADVICE[refusal.answer.status]}",)
            self._hand_on_own(post, refusal)

    async def _ask(self, post: Post) -> ServerLost | None:
        """Send a frame and pass on the answer; return the refusal if the status is an error."""
        post.sending = Sending()  # what the server refused before does not count
        response = await self._endpoint.open("POST", self._headers(post), post.data, post.sending)
        if not response.is_success:
            return await self._endpoint.refusal(response)
        with closing(response):
            await self._take(post, response)
        return None

    def _headers(self, post: Post) -> dict[str, str]:
        if post.version is not None and post.head is not None:
            headers = {**ACCEPT, VERSION: post.version, **mirrored(post.head, post.params)}
            if post.method == "tools/call":
                headers.update(self._tools.of(post.head, name_in(post.head, post.params)))
            return headers
        return dict(ACCEPT) if post.method == "initialize" else {**ACCEPT, **self._session.headers}

    def _hand_on_own(self, post: Post, refusal: ServerLost) -> None:
        """Give the client the server's own error for the request, if *refusal* came with one; else raise *refusal*."""
        assert refusal.answer is not None
        status, _, body = refusal.answer
        head = rpc_error(refusal.answer)
        if head is None or post.head is None or len(post.waiting) != 1:
            raise refusal
        (id,) = post.waiting
        answer = one_line(body)
        if head.id != id or type(head.id) is not type(id):
            if not 400 <= status < 500 or status in (401, 403, 429):
                raise refusal
            answer = frames.with_id(answer, id)  # the server could not tell which request it refused
        post.waiting.clear()
        self._listener.arrive(Event(answer), post.channel)

    # -- an answer of the server ---------------------------------------------------------------------------------------

    async def _take(self, post: Post, response: Response) -> None:
        if post.method == "initialize":
            self._session.id = response.headers.get(SESSION)
        if not post.waiting:
            await response.body()
        elif response.is_stream:
            await self._follow(post, response)
        elif response.media_type == JSON:
            self._hand_on(post, Event(await response.body()))
        else:
            raise ServerLost(
                f"{self._endpoint.target} answered a request with HTTP status {response.status} "
                f"and {response.media_type or 'nothing'}, which is no answer"
            )

    async def _follow(self, post: Post, response: Response) -> None:
        """Pass on what a stream brings until the request is answered; resume the stream if it ends before that."""
        failures = 0
        stream: Response | None = response
        while True:
            place = post.last_id
            try:
                if stream is None:
                    stream = await self._resume(place)
                await self._read(post, stream)
                error = ServerLost(f"{self._endpoint.target} ended the stream before the answer")
            except ServerLost as broken:
                if stream is not None:
                    error = broken
                elif broken.answer is not None:
                    broken.sent = True  # the request itself was sent; only its stream could not be resumed
                    raise
            if not post.waiting:
                return
            failures = failures + 1 if post.last_id == place else 0
            if post.last_id is None or post.version is not None or failures > MOST_RESUMES:
                raise error
            stream = None
            await self._clock.asleep(RETRY if post.retry is None else post.retry)

    async def _read(self, post: Post, response: Response) -> None:
        """Pass on what a stream brings, and close it.

        After the answer the server has a moment to end the stream, so that its connection can be kept.
        """
        farewell: asyncio.TimerHandle | None = None
        try:
            async for event in response.events(self._flow):
                post.last_id = event.id if event.id is not None else post.last_id
                if event.retry is not None:
                    post.retry = min(event.retry / 1000, LONGEST_NAMED)
                if event.data:
                    self._hand_on(post, event)
                if post.task is not None and not post.waiting and farewell is None:
                    farewell = asyncio.get_running_loop().call_later(GRACE, post.task.cancel)
        finally:
            response.close()
            if farewell is not None:
                farewell.cancel()

    async def _flow(self) -> None:
        if not self._flows.is_set():
            await self._flows.wait()

    async def _resume(self, last_id: str | None) -> Response:
        """Open a stream of frames that belong to no request, or of the events after *last_id*."""
        headers = {"accept": MEDIA_TYPE, **self._session.headers}
        if last_id is not None:
            headers[LAST_EVENT] = last_id
        response = await self._endpoint.open("GET", headers)
        if response.is_stream:
            return response
        raise await self._endpoint.refusal(response)

    def _hand_on(self, post: Post, event: Event) -> None:
        event = event._replace(data=one_line(event.data))
        try:
            ids = frames.answered(event.data)
        except msgspec.DecodeError as error:
            _log.warning("%s: no frame, dropped: %s", self._endpoint.target, error)
            return
        if ids and post.method == "tools/list" and post.version is not None:
            event = self._tools.learn(frames.head(event.data), event)
        self._listener.arrive(event, post.channel)
        take_off(post.waiting, ids)

    # -- what belongs to no request ------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Begin to listen; wait a moment until the server has opened the stream, or says that it has none."""
        if self._listening is not None:
            self._listening.cancel()
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listening = asyncio.ensure_future(self._keep_listening(opened))
        await asyncio.wait({opened, self._listening}, timeout=HEARING, return_when=asyncio.FIRST_COMPLETED)

    async def _keep_listening(self, opened: asyncio.Future[None]) -> None:
        """Read the stream of frames that belong to no request, and reopen it as long as the server has one."""
        stream = Post(b"", None, None)
        failures = 0
        while True:
            id = self._session.id
            try:
                response = await self._resume(stream.last_id)
                if not opened.done():
                    opened.set_result(None)
                failures = 0
                await self._read(stream, response)
            except ServerLost as error:
                failures += 1
                if error.answer is not None and error.answer.status < 500:
                    # If there never was a stream, the refusal says just that, and not that the session is forgotten.
                    if id is not None and opened.done() and says_lost(error):
                        self._start(self._renew_quietly(id, error))
                    return
            pause = RETRY if stream.retry is None else max(stream.retry, SHORTEST_RETRY)
            grown = min(pause * 2 ** min(failures, 10), max(pause, LONGEST_RETRY))
            await self._clock.asleep(grown * random.uniform(0.8, 1.0))

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _renewed(self) -> None:
        if self._listening is not None:
            self._start(self._listen())
        self._listener.changed()

    async def _renew_quietly(self, id: str, lost: ServerLost) -> None:
        try:
            await self._session.renew(id, lost, {})
        except ServerLost as error:
            self._blame(error)

    async def _farewell(self) -> None:
        response = await self._endpoint.open("DELETE", self._session.headers)
        response.close()

    # -- cancelling ----------------------------------------------------------------------------------------------------

    def _cancel(self, head: Head) -> bool:
        """End the request that a cancel is for; True if the server needs no further notice."""
        id = frames.params(head).requestId
        post = self._posts.get(id) if id is not None else None
        if post is None or post.task is None:
            return self._session.handshake.is_modern
        if post.version is not None:  # the server learns of it by the end of the stream
            post.task.cancel()
            return True
        forgo_later(post.waiting, id, post.task.cancel)
        return False

    # -- its state -----------------------------------------------------------------------------------------------------

    def _blame(self, error: ServerLost) -> None:
        self.condition.judge(error)
        if error.circuit_category is not None:
            _log.warning("%s", error)
