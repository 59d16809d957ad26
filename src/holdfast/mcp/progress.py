"""Progress notifications for a client that asked for them: those of the server, and a sign of life every few seconds
while the call waits for its turn. By the protocol, progress may only grow, even if the call is sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.clock import Clock, Timer
from holdfast.mcp import frames
from holdfast.mcp.batch import line_of
from holdfast.mcp.frames import Id
from holdfast.mcp.wire import Channel, Event

if TYPE_CHECKING:
    from holdfast.mcp.calling import Call

KEEP_ALIVE: Final = 5.0  # seconds between two signs of life


class Progress:
    """The progress of a *call*, under the *token* that its client gave for it."""

    __slots__ = ("token", "_call", "_clock", "_last", "_ours", "_timer")

    def __init__(self, call: Call, token: Id, clock: Clock) -> None:
        self.token = token
        self._call = call
        self._clock = clock
        self._last = 0.0
        self._ours = False  # the client may have been told more than the server counts: by us, or before a repetition
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Send the client a sign of life from time to time, until `end`."""
        self._timer = self._clock.call_at(self._clock.monotonic() + KEEP_ALIVE, self._keep_alive)

    def end(self) -> None:
        """Send no more signs of life."""
        if self._timer is not None:
            self._timer.cancel()

    def restart(self) -> None:
        """Note that the server gets the call again, and counts from the beginning."""
        self._ours = True

    def is_on(self, channel: Channel | None) -> bool:
        """True if what comes on *channel* may be about the call; on that of another request, it is about that one."""
        return channel is None or line_of(channel) is line_of(self._call.channel)

    def hand_on(self, event: Event, progress: float | None) -> None:
        """Pass on a server's notification, unless the client was told as much before by us, or before a repetition."""
        if progress is not None:
            if self._ours and progress <= self._last:
                return
            self._last = max(self._last, progress)
        self._call.channel.send(event)

    def _keep_alive(self) -> None:
        if not self._call.on_wire:
            self._ours = True
            self._last += 1e-6
            facts = {"progressToken": self.token, "progress": self._last, "message": "waiting for its turn"}
            self._call.channel.send(Event(frames.notification("notifications/progress", facts)))
        self.begin()
