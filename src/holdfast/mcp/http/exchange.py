"""One HTTP request of a client, and the response to it: JSON if the answer comes first, a stream as soon as another
frame comes before it. It is a channel to the client like any other.

An exchange is open until its response is complete. What was sent is queued until the client takes it, and the exchange
is done when the client has all of it, or has left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from holdfast.mcp import frames
from holdfast.mcp.frames import Id
from holdfast.mcp.http.endpoint import JSON
from holdfast.mcp.http.session import forgo_later
from holdfast.mcp.http.sse import MEDIA_TYPE, encode
from holdfast.mcp.wire import Answer, Event, Pairs

MOST_QUEUED: Final = 2**20  # bytes queued for a client that reads slowly, before the server is asked to pause
MOST_IDS: Final = 1000  # ids of events from which a client may want to resume
PING: Final = 15.0  # seconds between two signs of life on a stream of ours
ENDED: Final = "the session, or the proxy, ended before the answer: what was asked for may have been done or not"
TOLD_TO_MODEL: Final = {
    408,
    425,
    429,
}  # statuses below 500: the model is told of them in a result, rather than its client

STREAM_HEADERS: Final = [
    ("content-type", MEDIA_TYPE), ("cache-control", "no-cache, no-transform"), ("x-accel-buffering", "no"),
]  # fmt: skip
# The statuses that go with the errors of a request, from version 2026-07-28 on.
STATUSES: Final = {
    **dict.fromkeys((frames.PARSE_ERROR, frames.INVALID_REQUEST, frames.INVALID_PARAMS), 400),
    **dict.fromkeys((frames.HEADER_MISMATCH, -32021, -32022), 400),
    frames.METHOD_NOT_FOUND: 404,
}

Start = tuple[int, Pairs]  # the status and the headers of a response


class Line(Protocol):
    """The connection of the client, as an exchange sees it."""

    @property
    def is_full(self) -> bool:
        """True while the client has not taken what was written; `flush` is called when it has."""

    def write(self, start: Start | None, data: bytes, *, ended: bool) -> None:
        """Write *data* to the client, after the *start* of the response if that was not written before."""


class Exchange:
    """A request of a client, answered on *line*; without one, the response goes nowhere.

    `due` are the ids that the response has to answer before it ends; None if it is a stream without an end.
    """

    def __init__(self, method: str, pairs: Pairs, headers: dict[str, str], line: Line | None) -> None:
        self.method = method
        self.pairs = pairs
        self.headers = headers
        self.body = b""
        self.due: list[Any] | None = []
        self.is_modern = False
        self.is_taken = False  # True once it is passed on to the server, whose response is the answer
        self.is_open = True
        self.is_left = False  # True if the client has left before the end of the response
        self.status = 200
        self.more: Pairs = []  # additional headers for the response
        self.pings = False
        self.ids: deque[str] = deque(maxlen=MOST_IDS)
        self.successor: Exchange | None = None  # with which the client has resumed this one
        self.on_full: Callable[[bool], object] = lambda held: None
        self._met: Start | None = None  # of the server's response
        self._begun = False
        self._start: Start | None = None  # of a response that has begun, until it is written
        self._line = line
        self._queue: list[bytes] = []
        self._queued = 0  # bytes in it
        self._full: asyncio.Event | None = None  # while too much is queued; set when it was written
        self._flushes = False  # True if a flush is scheduled
        self._pinging: asyncio.TimerHandle | None = None
        self._on_done: list[Callable[[], object]] | None = []  # None once they were called

    # -- for the code that answers -------------------------------------------------------------------------------------

    def send(self, event: Event) -> None:
        if not self.is_open:
            if self.successor is not None:
                self.successor.send(event)
            return
        if event.said is not None and self._says_more(event.said, event.data):
            self.answer(*event.said)
            return
        is_last = self._take_off(event.data)
        if is_last and not self._begun:
            self.answer(*self._whole(event.data), event.data)
            return
        self.stream()
        if event.id is not None:
            self.ids.append(event.id)
        self._put(encode(event))
        if is_last:
            self.end()

    def meet(self, status: int, headers: Pairs) -> None:
        """Note that the server's response has *status* and *headers*."""
        self._met = status, headers

    def stream(self, headers: Pairs = STREAM_HEADERS) -> None:
        """Begin a stream, unless a response has begun."""
        if self._begin(200, headers):
            if self.pings:
                self._ping_later()
            self._flush_soon()

    def answer(self, status: int, headers: Pairs | None = None, body: bytes = b"") -> None:
        """Send a whole response; do nothing if one has begun."""
        if self._begin(status, headers or []):
            self.is_open = False
            self._queue.append(body)
            self.flush()

    def fail(self, status: int, message: str, *, id: Id | None = None, code: int = frames.INVALID_REQUEST) -> None:
        """Respond with an error of our own."""
        self.answer(status, [("content-type", JSON)], frames.error(id, code, message))

    def end(self) -> None:
        """End the response: no more frames will come."""
        self.stream()
        self.is_open = False
        self._flush_soon()

    def abandon(self) -> None:
        """End with an error for each answer that is due: a stream that just ended would leave the client waiting."""
        for id in list(self.due or ()):
            self.send(Event(frames.error(id, frames.LOST, ENDED)))
        self.end()

    def forgo(self, id: Id) -> None:
        """Stop waiting, after a moment, for the answer to *id*: the client has cancelled it, so it may never come."""
        if self.due and id in self.due:
            forgo_later(self.due, id, self.end)

    def when_done(self, tell: Callable[[], object]) -> None:
        """Call *tell* when the client has its response, or has left; in a moment, if that is so already."""
        if self._on_done is None:
            asyncio.get_running_loop().call_soon(tell)
        else:
            self._on_done.append(tell)

    async def drained(self) -> None:
        """Wait while too much is queued for the client."""
        if self._full is not None:
            await self._full.wait()

    def _says_more(self, said: Answer, data: bytes) -> bool:
        """True if what the server *said* can be passed on, and tells the client more than our *data*.

        If *data* is a result, which a model reads, a status of 500 and above or in TOLD_TO_MODEL is not passed on: the
        client could do nothing about it.
        """
        if self._begun or len(self.due or ()) != 1:
            return False
        return not frames.head(data).result or (said.status < 500 and said.status not in TOLD_TO_MODEL)

    def _take_off(self, data: bytes) -> bool:
        """Remove from `due` what a frame or a batch answers; True if nothing is due any more."""
        if not self.due or not data:
            return False
        try:
            heads = [frames.head(part) for part in frames.parts(data)]
        except msgspec.DecodeError:
            return False
        for head in heads:
            if head.is_answer and head.id in self.due:
                self.due.remove(head.id)
            elif head.is_refusal and head.id is None and self.due:  # the server cannot tell what it refuses
                del self.due[0]
        return not self.due

    def _whole(self, data: bytes) -> Start:
        """The start of a response that is *data* and nothing else: that of the server's response, if there was one."""
        if self._met is not None:
            return self._met
        status = STATUSES.get(frames.rpc_error(frames.head(data)).code, 200) if self.is_modern else 200
        return status, [("content-type", JSON)]

    def _begin(self, status: int, headers: Pairs) -> bool:
        """Begin the response; False if one has begun before, or the client has left."""
        if self._begun:
            return False
        self._begun = True
        self.status = status
        self._start = status, [*headers, *self.more]
        return self.is_open

    # -- for the connection --------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what is queued, if the client has taken what was written before."""
        line = self._line
        if line is None or line.is_full or not self._begun:
            return
        start, self._start = self._start, None
        data = b"".join(self._queue)
        self._queue.clear()
        line.write(start, data, ended=not self.is_open)
        if self._queued:
            self._count(0)
        if not self.is_open:
            self._close()

    def lost(self) -> None:
        """Note that the client has left."""
        self.is_left, self.is_open = self.is_open, False
        self._queue.clear()
        self._count(0)
        self._close()

    def _close(self) -> None:
        self._line = None
        if self._pinging is not None:
            self._pinging.cancel()
        asyncio.get_running_loop().call_soon(self._tell_done)  # later, as the code that answered is not done

    def _tell_done(self) -> None:
        tells, self._on_done = self._on_done, None
        for tell in tells or ():
            tell()

    # -- what waits for the client -------------------------------------------------------------------------------------

    def _put(self, data: bytes) -> None:
        self._queue.append(data)
        self._count(self._queued + len(data))
        self._flush_soon()

    def _count(self, queued: int) -> None:
        """Note that *queued* bytes wait; the sender is told when that is too much, and when all is written again."""
        self._queued = queued
        if queued > MOST_QUEUED and self._full is None:
            self._full = asyncio.Event()
            self.on_full(True)
        elif not queued and self._full is not None:
            self._full.set()
            self._full = None
            self.on_full(False)

    def _flush_soon(self) -> None:
        """Write in the next turn of the loop, with whatever else comes until then."""
        if not self._flushes:
            self._flushes = True
            asyncio.get_running_loop().call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flushes = False
        self.flush()

    def _ping_later(self) -> None:
        self._pinging = asyncio.get_running_loop().call_later(PING, self._ping)

    def _ping(self) -> None:
        self._put(encode(Event(b"")))
        self._ping_later()
