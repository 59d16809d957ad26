"""One HTTP request of a client, and the answer to it: JSON if the answer comes first, a stream as soon as something
else comes before it. A channel to the client like any other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

import msgspec

from holdfast.mcp import frames
from holdfast.mcp.frames import Id
from holdfast.mcp.http.endpoint import JSON
from holdfast.mcp.http.session import answered
from holdfast.mcp.http.sse import MEDIA_TYPE, encode
from holdfast.mcp.wire import Event, ServerLost

MOST_QUEUED: Final = 2**20  # bytes for a client that reads slowly, before the server is asked to pause
MOST_IDS: Final = 1000  # of events, from which a client may want to go on
PING: Final = 15.0  # seconds between two signs of life on a stream of ours
PATIENT: Final = {408, 425, 429}  # statuses below 500 that a model is told of rather than its client

STREAM_HEADERS: Final = [
    ("content-type", MEDIA_TYPE), ("cache-control", "no-cache, no-transform"), ("x-accel-buffering", "no"),
]  # fmt: skip
# The statuses that go with the errors of a request, from version 2026-07-28 on.
STATUSES: Final = {-32700: 400, -32600: 400, -32602: 400, -32020: 400, -32021: 400, -32022: 400, -32601: 404}

Message = MutableMapping[str, Any]
Pairs = list[tuple[str, str]]


class Exchange:
    """A request of a client; *due* answers are expected in the answer to it, and None if there is no end to them."""

    def __init__(self, method: str, headers: Pairs, body: bytes = b"", *, due: int | None = 0) -> None:
        self.method = method
        self.pairs = headers
        self.headers = dict(headers)
        self.body = body
        self.due = due
        self.is_open = True
        self.is_taken = False  # somebody will answer it
        self.is_modern = False
        self.pings = False
        self.more: Pairs = []  # headers of ours, for the answer
        self.ids: deque[str] = deque(maxlen=MOST_IDS)
        self.successor: Exchange | None = None  # where the client listens now
        self.on_done: Callable[[], object] = lambda: None
        self.on_closed: Callable[[], object] = lambda: None
        self.on_full: Callable[[bool], object] = lambda held: None
        self.status = 200
        self._met: Pairs | None = None  # headers of the server's answer
        self._begun = self._ended = False
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()

    # -- for those who answer ------------------------------------------------------------------------------------------

    def send(self, event: Event) -> None:
        """Hand a frame to the client."""
        if not self.is_open:
            if self.successor is not None:
                self.successor.send(event)
            return
        count = _answers(event.data) if self.due is not None else 0
        if self.due is not None:
            self.due -= count
        if count and not self.due and not self._begun:
            self._answer_whole(event.data)
            return
        self.stream()
        if event.id is not None:
            self.ids.append(event.id)
        self._put(encode(event))
        if count and not self.due:
            self.end()

    def refuse(self, id: Id | None, data: bytes, error: Exception) -> None:
        """Tell the client that its request has no answer: by the server's own status, if that says more."""
        answer = error.answer if isinstance(error, ServerLost) else None
        if answer is None or self._begun or not self.is_open or (self.due or 0) > 1:
            self.send(Event(data))
        elif bytes(frames.head(data).result) and (answer.status >= 500 or answer.status in PATIENT):
            self.send(Event(data))  # for the model to read
        else:
            self.answer(answer.status, list(answer.headers.items()), answer.body)

    def meet(self, status: int, headers: Pairs) -> None:
        """The server answers with *status* and *headers*."""
        self.status, self._met = status, headers

    def stream(self, headers: Pairs | None = None) -> None:
        """Answer with a stream, if that has not begun."""
        if self._begun or not self.is_open:
            return
        self._begun = True
        self.status = 200
        self._met = headers if headers is not None else STREAM_HEADERS
        self._wake.set()

    def answer(self, status: int, headers: Pairs | None = None, body: bytes = b"") -> None:
        """Answer as a whole; nothing happens where an answer has begun."""
        if self._begun or not self.is_open:
            return
        self._begun = True
        self.status, self._met = status, headers or []
        self._put(body)
        self.end()

    def fail(self, status: int, message: str, *, id: Id | None = None, code: int = -32600) -> None:
        """Answer with an error of ours."""
        self.answer(status, [("content-type", JSON)], frames.error(id, code, message))

    def end(self) -> None:
        """There is no more to come."""
        if not self._begun:
            self.stream()
        self.is_open = False
        self._ended = True
        self._wake.set()

    async def drained(self) -> None:
        """Wait until the client has taken most of what there is."""
        if self._queued > MOST_QUEUED:
            self._drained.clear()
            await self._drained.wait()

    def _answer_whole(self, data: bytes) -> None:
        met = self._met if self._met is not None else [("content-type", JSON)]
        if self.is_modern and self._met is None:
            self.status = STATUSES.get(frames.rpc_error(frames.head(data)).code, 200)
        self.answer(self.status, met, data)

    def _put(self, data: bytes) -> None:
        if data:
            self._queue.append(data)
            before, self._queued = self._queued, self._queued + len(data)
            if before <= MOST_QUEUED < self._queued:
                self.on_full(True)
        self._wake.set()

    # -- for the server ------------------------------------------------------------------------------------------------

    async def respond(
        self, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Write the answer as it comes, until it is complete or the client has gone."""
        watching = asyncio.ensure_future(self._watch(receive))
        try:
            await self._wait()
            if not self._begun:  # the client has gone
                return
            await send(self._start())
            while True:
                data, self._queue, size, self._queued = self._queue, deque(), self._queued, 0
                ended = self._ended
                await send({"type": "http.response.body", "body": b"".join(data), "more_body": not ended})
                self._drained.set()
                if size > MOST_QUEUED:
                    self.on_full(False)
                if ended:
                    return
                if not self._queue:
                    await self._wait()
        except OSError:  # the client has gone
            return
        finally:
            watching.cancel()
            self._close()
            self.on_done()

    def _start(self) -> Message:
        headers: Iterable[tuple[str, str]] = [*(self._met or []), *self.more]
        pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        if self._ended:
            pairs.append((b"content-length", b"%d" % self._queued))
        return {"type": "http.response.start", "status": self.status, "headers": pairs}

    async def _wait(self) -> None:
        while True:
            if self._begun and self.pings:
                try:
                    await asyncio.wait_for(self._wake.wait(), PING)
                except TimeoutError:
                    self._put(encode(Event(b"")))
            else:
                await self._wake.wait()
            self._wake.clear()
            return

    async def _watch(self, receive: Callable[[], Awaitable[Message]]) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self._close()

    def _close(self) -> None:
        """The client has its answer, or has gone."""
        was_open, self.is_open, self._ended = self.is_open, False, True
        self._queue.clear()
        if self._queued > MOST_QUEUED:
            self.on_full(False)
        self._queued = 0
        self._drained.set()
        self._wake.set()
        if was_open:
            self.on_closed()


def _answers(data: bytes) -> int:
    """How many answers are in a frame or a batch."""
    try:
        return len(answered(data)) if data else 0
    except msgspec.DecodeError:
        return 0
