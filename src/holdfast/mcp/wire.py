"""The two ends of a session as it sees them: channels to the client, an upstream to the server, and its failure.

Sending neither blocks nor raises: an end that cannot pass a frame on keeps it, or reports its request as failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol

from holdfast.category import ErrorCategory, classify
from holdfast.clock import Clock
from holdfast.mcp import frames
from holdfast.mcp.frames import Head, Id
from holdfast.mcp.handshake import Handshake

Pairs = list[tuple[str, str]]  # HTTP headers, with lower-case names


class Event(NamedTuple):
    """A frame on its way to the client; over HTTP it may have an *id* to resume from, a *retry* time, or no data.

    *said* is the HTTP response that the server gave instead, if this is our answer in its place.
    """

    data: bytes
    id: str | None = None
    retry: int | None = None
    said: Answer | None = None

    def under(self, id: Id, head: Head) -> Event:
        """The same frame under *id*; unchanged if its *head* has that id already."""
        return self if head.id == id else self._replace(data=frames.with_id(self.data, id))


class Channel(Protocol):
    """A way to the client: standard output, or the answer to one of its HTTP requests."""

    def send(self, event: Event) -> None:
        """Hand a frame to the client."""


class Listener(Protocol):
    """The session, as its upstream sees it."""

    def arrive(self, event: Event, channel: Channel | None = None) -> bool:
        """Take a frame from the server; *channel* is where the client expects it, if the transport tells.

        Return False if it is not a frame.
        """

    def expects(self, id: object) -> bool:
        """True if an answer to *id* may still be wanted."""

    def failed(self, id: Id, error: ServerLost) -> None:
        """Note that the server will not answer the request *id*."""

    def lost(self, error: ServerLost) -> None:
        """Note that the server will answer no pending request, and wants no answers to its own requests any more."""

    @property
    def changed(self) -> Callable[[], object]:
        """The function to call when the state of the server has changed."""

    @property
    def hold(self) -> Callable[[bool], object]:
        """The function to call with True when the server takes no more frames, and with False when it does again."""


class Upstream(Protocol):
    """A server, however it is reached."""

    @property
    def condition(self) -> Condition: ...

    @property
    def ready(self) -> Callable[[], Awaitable[object]] | None:
        """What to await before sending a call, if anything; raises a `ServerLost` if the server does not get ready."""

    def attach(self, listener: Listener, handshake: Handshake) -> None:
        """Begin; all frames of the server go to *listener*. A new process or HTTP session is told *handshake*."""

    def send(self, data: bytes, head: Head | None, channel: Channel | None = None) -> None:
        """Hand a frame to the server, now or when it is ready; a batch has no *head*."""

    def take_back(self, id: Id) -> bool:
        """Take back the request *id*; False if the server may have got a part of it."""

    def asker(self, channel: Channel) -> bytes | None:
        """The identity of the client at *channel*; None if the server cannot tell its clients apart."""

    def suspect(self) -> None:
        """Check whether the server still lives, since a request was not answered in time."""

    def hold(self, held: bool) -> None:
        """Stop reading from the server while *held*, since the client takes no more, or resume."""

    async def close(self) -> None:
        """End the process or HTTP session, and all requests on their way."""


class Answer(NamedTuple):
    """An HTTP response that a server gave instead of an answer."""

    status: int
    headers: Pairs
    body: bytes


class ServerLost(Exception):
    """The server gave no answer: it died, cannot be reached, broke the connection, or refused by an HTTP status."""

    category = ErrorCategory.NETWORK

    def __init__(
        self, message: str, *, sent: bool = True, answer: Answer | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.sent = sent  # the request may have reached the server, and was not refused
        self.answer = answer  # the HTTP response that came instead, if there was one
        self.retry_after = retry_after  # seconds that the server asks for
        self.counted = False  # by the server's circuit: one death is one failure, however many calls it ended
        if answer is not None:
            self.category = classify(answer.status)

    @property
    def circuit_category(self) -> ErrorCategory | None:
        """The category for the server's circuit; None below status 500: a server that says what is wrong is healthy."""
        if self.answer is not None and self.answer.status < 500:
            return None
        return ErrorCategory.CANCELLED if self.counted else self.category


class Condition:
    """What kind of server it is, its state, and since when; `on_change` is called when the state has changed.

    *pid* returns the id of its process, *said* has the last lines of its stderr.
    """

    def __init__(
        self,
        clock: Clock,
        kind: str,
        target: str,
        state: str,
        *,
        pid: Callable[[], int | None] = lambda: None,
        said: Iterable[str] = (),
    ) -> None:
        self.kind = kind
        self.target = target
        self.state = state
        self.restarts = 0
        self.last_error: str | None = None
        self.on_change: Callable[[], object] = lambda: None
        self._clock = clock
        self._pid = pid
        self._said = said
        self._since = clock.time()

    def turn(self, state: str) -> None:
        """Change to *state*."""
        if state != self.state:
            self.state = state
            self._since = self._clock.time()
            self.on_change()

    def judge(self, error: ServerLost | None) -> None:
        """Note that the server has answered a request, or failed with *error*."""
        if error is not None:
            self.last_error = str(error)
        self.turn("ready" if error is None or error.circuit_category is None else "failed")

    def facts(self, name: str, handshake: Handshake) -> dict[str, object]:
        """The server's facts for the dashboard and other processes, under its *name*."""
        return {
            "name": name,
            "kind": self.kind,
            "target": self.target,
            "protocol": handshake.protocol,
            "server_info": handshake.server_info,
            "state": self.state,
            "pid": self._pid(),
            "restarts": self.restarts,
            "since_ms": round(self._since * 1000),
            "last_error": self.last_error,
            "stderr": list(self._said),
        }
