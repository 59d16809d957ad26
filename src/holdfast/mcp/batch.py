"""The answers to a batch of the client, which it gets as a batch; all else goes on at once."""

from __future__ import annotations

from holdfast.mcp import frames
from holdfast.mcp.wire import Channel, Event


class Batch:
    """A channel to the client for the answers to as many *requests*."""

    def __init__(self, channel: Channel, requests: int) -> None:
        self.channel = channel
        self._missing = requests
        self._answers: list[bytes] = []

    def send(self, event: Event) -> None:
        """Keep an answer until all are there."""
        if not event.data or not frames.head(event.data).is_answer:
            self.channel.send(event)
            return
        self._answers.append(event.data)
        self.forgo()

    def forgo(self) -> None:
        """Expect one answer less."""
        self._missing -= 1
        if not self._missing and self._answers:
            self.channel.send(Event(frames.joined(self._answers)))


def unbatched(channel: Channel) -> Channel:
    """The way to the client for an answer that its batch does not wait for any more."""
    if isinstance(channel, Batch):
        channel.forgo()
        return channel.channel
    return channel
