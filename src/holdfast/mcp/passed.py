"""Requests that are not guarded calls, on their way to the server. They have no deadline, and a server may leave them
unanswered for ever: so there may be only so many of them, and only so much of them is kept to be sent again.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.mcp.frames import Head
from holdfast.mcp.wire import Channel, Event

MOST_OPEN: Final = 10_000  # unanswered requests; beyond that the oldest one fails
MOST_KEPT: Final = 64 * 2**20  # bytes of them that are kept; beyond that the oldest ones are not sent again
MOST_SENDS: Final = 3  # of one request that changes nothing, each to another server process
# Requests that change nothing, and may be sent to a new server if the old one died before it answered.
SAFE: Final = {
    "initialize", "ping", "tools/list", "resources/list", "resources/templates/list", "resources/read",
    "resources/subscribe", "resources/unsubscribe", "prompts/list", "prompts/get", "completion/complete",
    "logging/setLevel", "server/discover", "subscriptions/listen", "tasks/get", "tasks/list", "tasks/result",
}  # fmt: skip


class Passed:
    """A request on its way to the server; the client knows it under *id*. *data* is kept if it may be sent again."""

    __slots__ = ("channel", "data", "id", "method", "_sends")

    def __init__(self, id: Any, method: str | None, channel: Channel, data: bytes | None = None) -> None:
        self.id = id
        self.method = method
        self.channel = channel
        self.data = data if method in SAFE else None
        self._sends = 1

    def again(self) -> bytes | None:
        """The data to send to the next server, since this one died before it answered; None if it may not be sent."""
        if self._sends == MOST_SENDS:
            return None
        self._sends += 1
        return self.data

    def reply(self, event: Event, head: Head) -> None:
        """Send an answer of the server to the client, under the id that the client expects."""
        self.channel.send(event.under(self.id, head))


class Unanswered:
    """The requests that the server has not answered, by the ids that it knows."""

    def __init__(self) -> None:
        self._open: dict[Any, Passed] = {}  # the oldest first
        self._kept: dict[Any, Passed] = {}  # those whose data is kept
        self._size = 0  # bytes of that

    def add(self, id: Any, passed: Passed) -> list[Any]:
        """Note a request; return the ids of the oldest ones if there are too many."""
        self._let_go(id)  # a client may use an id again before it is answered
        self._open[id] = passed
        if passed.data is not None:
            self._kept[id] = passed
            self._size += len(passed.data)
            while self._size > MOST_KEPT:
                oldest = next(iter(self._kept))
                self._let_go(oldest)
                self._open[oldest].data = None
        return [next(iter(self._open))] if len(self._open) > MOST_OPEN else []

    def remove(self, id: Any) -> None:
        """Forget a request that waits no longer."""
        self._let_go(id)
        del self._open[id]

    def _let_go(self, id: Any) -> None:
        """Count the data of a request no longer."""
        passed = self._kept.pop(id, None)
        if passed is not None and passed.data is not None:
            self._size -= len(passed.data)
