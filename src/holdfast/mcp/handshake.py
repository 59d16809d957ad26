"""What a client told its server for the whole session; a new server process or a new HTTP session is told it again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from holdfast.mcp import frames
from holdfast.mcp.frames import Head
from holdfast.mcp.ids import Ids

# Methods that `note` always has to see; other frames only while the client's protocol version is unknown.
NOTED: Final = frozenset({"initialize", "notifications/initialized"})
SET_UP: Final = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})  # for `accepted`
MOST_SUBSCRIBED: Final = 10_000  # subscriptions that a new server is told; beyond that the oldest are not
LONGEST_SUBSCRIBED: Final = 10_000  # bytes of a request for one; a longer one is not told
MODERN: Final = "2026-07-28"  # from this version on there is no handshake: each request carries its version


class Handshake:
    """The handshake of one session, and what its client has set up since: log level and subscriptions."""

    def __init__(self) -> None:
        self.protocol: str | None = None
        self.server_info: Any = None
        self.is_done = False
        self.meta: Any = None  # metadata of the last noted request that needed no handshake
        self._initialize: bytes | None = None
        self.initialized: bytes | None = None  # the notification; `restores` tells it
        self._level: bytes | None = None
        self._subscribed: dict[str, bytes] = {}  # by uri
        self._ids = Ids()

    @property
    def is_known(self) -> bool:
        """Whether it is known which version the client speaks."""
        return self.is_done or self.meta is not None

    @property
    def is_modern(self) -> bool:
        """Whether the client speaks a version without handshake."""
        return self.protocol is not None and self.protocol >= MODERN

    def note(self, head: Head, data: bytes) -> None:
        """Remember a frame of the client if a new server must be told it, or if it names the protocol version."""
        if head.method == "initialize":
            self._initialize = data
        elif head.method == "notifications/initialized":
            self.initialized = data
        elif self._initialize is None and head.is_request:
            if (protocol := frames.params(head).protocol) is not None:
                self.protocol, self.meta = protocol, frames.meta(head.params)

    def accepted(self, data: bytes) -> None:
        """Remember a request of the client for a log level or a subscription, which the server has accepted."""
        head = frames.head(data)
        uri = frames.params(head).uri
        if head.method == "logging/setLevel":
            self._level = data
        elif uri is not None:
            self._subscribed.pop(uri, None)
            if head.method == "resources/subscribe" and len(data) <= LONGEST_SUBSCRIBED:
                self._subscribed[uri] = data
            if len(self._subscribed) > MOST_SUBSCRIBED:
                del self._subscribed[next(iter(self._subscribed))]

    def answered(self, head: Head) -> None:
        """Note the server's answer to `initialize` or `server/discover`."""
        try:
            result = frames.read(_INITIALIZED, head.result)
        except msgspec.DecodeError:
            return
        self.protocol = result.protocolVersion or self.protocol
        self.server_info = result.serverInfo
        self.is_done = True

    @property
    def begins(self) -> bytes | None:
        """The `initialize` to repeat, under an id of ours; None if no handshake was done, or the protocol has none."""
        if self._initialize is None or not self.is_done:
            return None
        return frames.with_id(self._initialize, self._ids.next())

    def restores(self) -> Iterator[bytes]:
        """The frames that follow it: `notifications/initialized`, the log level, the subscriptions."""
        if self.initialized is not None:
            yield self.initialized
        for data in filter(None, (self._level, *self._subscribed.values())):
            yield frames.with_id(data, self._ids.next())

    def ping(self) -> bytes | None:
        """A request that every server answers at once; None if its protocol version is unknown."""
        if self.is_modern and self.meta is not None:
            return frames.request(self._ids.next(), "server/discover", {"_meta": self.meta})
        return frames.request(self._ids.next(), "ping") if self.is_done else None

    @property
    def has_asked(self) -> bool:
        """True if we have sent requests of our own, which the server may answer."""
        return self._ids.count > 0

    def is_own(self, id: object) -> bool:
        """True if *id* belongs to a request of our own."""
        return self._ids.has_made(id)


class _Initialized(msgspec.Struct, frozen=True):
    protocolVersion: str | None = None  # noqa: N815 - the protocol's name
    serverInfo: Any = None  # noqa: N815


_INITIALIZED = msgspec.json.Decoder(_Initialized)
