"""The two ends of a session as it sees them: channels to the client, an upstream to the server, and what goes wrong.

Neither blocks nor raises: who cannot hand a frame on keeps it, or reports the request that it belongs to as failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol

from holdfast.category import ErrorCategory, classify
from holdfast.clock import Clock
from holdfast.mcp import frames
from holdfast.mcp.frames import Head, Id
from holdfast.mcp.handshake import Handshake

Pairs = list[tuple[str, str]]  # headers of HTTP, with their names in small letters


class Event(NamedTuple):
    """A frame on its way to the client; over HTTP it may have an *id* to resume from, a *retry* time, or no data.

    *said* is what the server said instead, where this is our answer in its place.
    """

    data: bytes
    id: str | None = None
    retry: int | None = None
    said: Answer | None = None

    def under(self, id: Id, head: Head) -> Event:
        """The same under another *id*; as it is, if its *head* has that one."""
        return self if head.id == id else self._replace(data=frames.with_id(self.data, id))


class Channel(Protocol):
    """A way to the client: standard output, or the answer to one of its HTTP requests."""

    def send(self, event: Event) -> None:
        """Hand a frame to the client."""


class Listener(Protocol):
    """The session, as its upstream sees it."""

    def arrive(self, event: Event, channel: Channel | None = None) -> bool:
        """A frame came from the server; *channel* is where the client expects it, if the transport tells.

        False if it is no frame.
        """

    def expects(self, id: object) -> bool:
        """Whether an answer to *id* may be of interest."""

    def failed(self, id: Id, error: ServerLost) -> None:
        """A request will not be answered."""

    def lost(self, error: ServerLost) -> None:
        """Nothing that is on its way will be answered, and requests of the server are no longer of interest."""

    @property
    def changed(self) -> Callable[[], object]:
        """To be called when the state of the server is another."""

    @property
    def hold(self) -> Callable[[bool], object]:
        """To be called when the server takes no more for the moment, and when it does again."""


class Upstream(Protocol):
    """A server, however it is reached."""

    @property
    def condition(self) -> Condition: ...

    @property
    def ready(self) -> Callable[[], Awaitable[object]] | None:
        """What to wait for before a call is sent, if anything; a `ServerLost` is that this will not be over soon."""

    def attach(self, listener: Listener, handshake: Handshake) -> None:
        """Begin; whatever comes from the server goes to *listener*. A server that begins anew is told *handshake*."""

    def send(self, data: bytes, head: Head | None, channel: Channel | None = None) -> None:
        """Hand a frame to the server, now or when it is ready; a batch has no *head*."""

    def asker(self, channel: Channel) -> bytes | None:
        """Who asks by *channel*, if the server may give each of its clients another answer to the same."""

    def suspect(self) -> None:
        """A request was not answered in time: see whether the server still lives."""

    def hold(self, held: bool) -> None:
        """The client takes no more for the moment, or does again."""

    async def close(self) -> None:
        """End it."""


class Answer(NamedTuple):
    """What an HTTP server said instead of answering a request."""

    status: int
    headers: Pairs
    body: bytes


class ServerLost(Exception):
    """The server gave no answer: it died, cannot be reached, broke the connection, or says no by an HTTP status."""

    category = ErrorCategory.NETWORK

    def __init__(
        self, message: str, *, sent: bool = True, answer: Answer | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.sent = sent  # the request may have reached the server, and was not refused
        self.answer = answer  # of HTTP, with a status that says no
        self.retry_after = retry_after  # seconds
        self.counted = False  # the server's circuit knows of it: one death is one failure, however many calls it took
        if answer is not None:
            self.category = classify(answer.status)

    @property
    def blame(self) -> ErrorCategory | None:
        """What the server's circuit is to be told: a server that says what is wrong with a request is well."""
        if self.answer is not None and self.answer.status < 500:
            return None
        return ErrorCategory.CANCELLED if self.counted else self.category


class Condition:
    """What a server is, how it is, and since when; `on_change` is called when that is another.

    *pid* gives the number of its process, *said* is what came from that on stderr.
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
        """It is *state* from now on."""
        if state != self.state:
            self.state = state
            self._since = self._clock.time()
            self.on_change()

    def judge(self, error: ServerLost | None) -> None:
        """It has answered a request, or has not."""
        if error is not None:
            self.last_error = str(error)
        self.turn("ready" if error is None or error.blame is None else "failed")

    def facts(self, name: str, handshake: Handshake) -> dict[str, object]:
        """What is to be known of it, under the *name* of the server."""
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
