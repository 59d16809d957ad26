"""Collects the answers to a client's batch into one batch; all other frames pass at once."""

from __future__ import annotations

from holdfast.mcp import frames
from holdfast.mcp.wire import Channel, Event


class Batch:
    """A channel to the client that collects the answers to a batch; *requests* is their number."""

    def __init__(self, channel: Channel, requests: int) -> None:
        self.channel = channel
        self._missing = requests
        self._answers: list[bytes] = []

    def send(self, event: Event) -> None:
        """Keep an answer until all are there; pass any other frame at once."""
        if not event.data or not frames.head(event.data).is_answer:
            self.channel.send(event)
            return
        self._answers.append(event.data)
        self.forgo()

    def forgo(self) -> None:
        """Expect one answer less, and send the batch if none is missing."""
        self._missing -= 1
        if not self._missing and self._answers:
            self.channel.send(Event(frames.joined(self._answers)))


def line_of(channel: Channel) -> Channel:
    """The channel that a batch is answered on; *channel* itself if it is not a batch."""
    return channel.channel if isinstance(channel, Batch) else channel


def unbatched(channel: Channel) -> Channel:
    """The channel for an answer that its batch no longer waits for; *channel* itself if it is not a batch."""
    if isinstance(channel, Batch):
        channel.forgo()
        return channel.channel
    return channel
