"""One HTTP request of a client, and the answer to it: JSON if the answer comes first, a stream as soon as something
else comes before it. A channel to the client like any other.
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
from holdfast.mcp.http.incoming import Pairs
from holdfast.mcp.http.session import forgo_later
from holdfast.mcp.http.sse import MEDIA_TYPE, encode
from holdfast.mcp.wire import Event, ServerLost

MOST_QUEUED: Final = 2**20  # bytes for a client that reads slowly, before the server is asked to pause
MOST_IDS: Final = 1000  # of events, from which a client may want to go on
PING: Final = 15.0  # seconds between two signs of life on a stream of ours
ENDED: Final = "the session ended before the answer: what was asked for may have been done or not"
PATIENT: Final = {408, 425, 429}  # statuses below 500 that a model is told of rather than its client

STREAM_HEADERS: Final = [
    ("content-type", MEDIA_TYPE), ("cache-control", "no-cache, no-transform"), ("x-accel-buffering", "no"),
]  # fmt: skip
# The statuses that go with the errors of a request, from version 2026-07-28 on.
STATUSES: Final = {
    **dict.fromkeys((frames.PARSE_ERROR, frames.INVALID_REQUEST, frames.INVALID_PARAMS), 400),
    **dict.fromkeys((frames.HEADER_MISMATCH, -32021, -32022), 400),
    frames.METHOD_NOT_FOUND: 404,
}

Start = tuple[int, Pairs]  # the status and the headers of an answer


class Line(Protocol):
    """The connection of the client, as an answer sees it."""

    @property
    def is_full(self) -> bool:
        """Whether the client has yet to take what was written; `flush` is called when it has."""

    def write(self, start: Start | None, data: bytes, *, ended: bool) -> None:
        """Hand the client *data*, after the *start* of the answer if that was not given before."""


class Exchange:
    """A request of a client, answered on *line*.

    The answers to `due` are expected in the answer to it; None if there is no end to them.
    """

    def __init__(self, method: str, pairs: Pairs, headers: dict[str, str], line: Line) -> None:
        self.method = method
        self.pairs = pairs
        self.headers = headers
        self.body = b""
        self.due: list[Any] | None = []
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
        self._begun = False
        self._line: Line | None = line
        self._started = False  # the client has the beginning of the answer
        self._settled = self._closed = False
        self._flushes = False  # in a moment
        self._queue: list[bytes] = []
        self._queued = 0
        self._pinging: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event | None = None  # for those who wait

    # -- for those who answer ------------------------------------------------------------------------------------------

    def send(self, event: Event) -> None:
        """Hand a frame to the client."""
        if not self.is_open:
            if self.successor is not None:
                self.successor.send(event)
            return
        is_last = self._take_off(event.data)
        if is_last and not self._begun:
            self._answer_whole(event.data)
            return
        self.stream()
        if event.id is not None:
            self.ids.append(event.id)
        self._put(encode(event))
        if is_last:
            self.end()

    def refuse(self, data: bytes, error: Exception) -> None:
        """Tell the client that its request has no answer: by the server's own status, if that says more."""
        answer = error.answer if isinstance(error, ServerLost) else None
        if answer is None or self._begun or not self.is_open or len(self.due or ()) > 1:
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
        self._flush_soon()

    def answer(self, status: int, headers: Pairs | None = None, body: bytes = b"") -> None:
        """Answer as a whole; nothing happens where an answer has begun."""
        if self._begun or not self.is_open:
            return
        self._begun = True
        self.status, self._met = status, headers or []
        self.is_open = False
        self._queue.append(body)
        self.flush()

    def fail(self, status: int, message: str, *, id: Id | None = None, code: int = frames.INVALID_REQUEST) -> None:
        """Answer with an error of ours."""
        self.answer(status, [("content-type", JSON)], frames.error(id, code, message))

    def end(self) -> None:
        """There is no more to come."""
        if not self._begun:
            self.stream()
        self.is_open = False
        self._flush_soon()

    def abandon(self) -> None:
        """The session ends before the answer: a stream that only ended would leave the client waiting."""
        for id in list(self.due or ()):
            self.send(Event(frames.error(id, frames.LOST, ENDED)))
        self.end()

    def forgo(self, id: Id) -> None:
        """The client has cancelled a request, which nobody may answer ever."""
        if self.due and id in self.due:
            forgo_later(self.due, id, self.end)

    async def drained(self) -> None:
        """Wait until the client has taken most of what there is."""
        if self._queued > MOST_QUEUED:
            if self._drained is None:
                self._drained = asyncio.Event()
            await self._drained.wait()

    def _take_off(self, data: bytes) -> bool:
        """Expect no more what is answered in a frame or a batch; whether that is all."""
        if not self.due or not data:
            return False
        try:
            heads = [frames.head(part) for part in frames.parts(data)]
        except msgspec.DecodeError:
            return False
        for head in heads:
            if head.is_answer and head.id in self.due:
                self.due.remove(head.id)
            elif head.is_refusal and head.id is None and self.due:  # the server does not know what it refuses
                del self.due[0]
        return not self.due

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
            self._flush_soon()

    # -- for the server ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what there is, as far as the client takes it."""
        line = self._line
        if line is None or line.is_full or not self._begun:
            return
        data, size = b"".join(self._queue), self._queued
        if not data and self._started and self.is_open:
            return
        self._queue.clear()
        self._queued = 0
        start: Start | None = None
        if not self._started:
            self._started = True
            start = self.status, [*(self._met or []), *self.more]
            if self.pings and self.is_open:
                self._pinging = asyncio.get_running_loop().call_later(PING, self._ping)
        ended = not self.is_open
        line.write(start, data, ended=ended)
        if size > MOST_QUEUED:
            self._tell_drained()
        if ended:
            self._line = None
            self._close_when_settled()

    def lost(self) -> None:
        """The client has gone."""
        self._line = None
        self._close_when_settled()

    def settle(self) -> None:
        """Whoever answers it has arranged to be told of its end, or nobody will answer it."""
        self._settled = True
        if self._line is None:
            self._close_when_settled()

    def _close_when_settled(self) -> None:
        if self._settled and not self._closed:
            self._closed = True
            self._close()
            asyncio.get_running_loop().call_soon(self._done)  # later, since those who answered are not done

    def _close(self) -> None:
        """The client has its answer, or has gone."""
        was_open, self.is_open = self.is_open, False
        if self._pinging is not None:
            self._pinging.cancel()
        self._queue.clear()
        size, self._queued = self._queued, 0
        if size > MOST_QUEUED:
            self._tell_drained()
        if was_open:
            self.on_closed()

    def _tell_drained(self) -> None:
        if self._drained is not None:
            self._drained.set()
            self._drained = None
        self.on_full(False)

    def _done(self) -> None:
        self.on_done()

    def _flush_soon(self) -> None:
        """Write in a moment, with whatever else comes until then."""
        if not self._flushes:
            self._flushes = True
            asyncio.get_running_loop().call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flushes = False
        self.flush()

    def _ping(self) -> None:
        self._put(encode(Event(b"")))
        self._pinging = asyncio.get_running_loop().call_later(PING, self._ping)
