"""A client and its server: every frame between them goes through here, and all but a few go through as they are.

From the client: `tools/call` becomes a guarded call, a cancel reaches the call it is for. From the server: answers
find who asked, `tools/list` tells which tools may be repeated. Nothing here waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.clock import Clock
from holdfast.mcp import frames
from holdfast.mcp.calling import Call
from holdfast.mcp.frames import LOST, Head, Id
from holdfast.mcp.handshake import Handshake
from holdfast.mcp.server import ProxiedServer
from holdfast.mcp.wire import Channel, Event, ServerLost, Upstream

MOST_STOPPED: Final = 1000  # cancelled calls whose answers are waited for
MOST_SENDS: Final = 3  # of a request that changes nothing, to one server after another
# Requests that change nothing, and may be sent to a new server if the old one died over them.
SAFE: Final = {
    "initialize", "ping", "tools/list", "resources/list", "resources/templates/list", "resources/read",
    "resources/subscribe", "resources/unsubscribe", "prompts/list", "prompts/get", "completion/complete",
    "logging/setLevel", "server/discover", "subscriptions/listen", "tasks/get", "tasks/list", "tasks/result",
}  # fmt: skip
_NOTED: Final = {
    "initialize", "notifications/initialized", "logging/setLevel", "resources/subscribe", "resources/unsubscribe",
}  # fmt: skip

_log = logging.getLogger("holdfast")


class Pending:
    """A request on its way to the server: of a guarded *call*, or one that only passes."""

    __slots__ = ("call", "channel", "data", "future", "head", "sends")

    def __init__(self, head: Head | None, data: bytes, channel: Channel, call: Call | None = None) -> None:
        self.head = head
        self.data = data
        self.channel = channel
        self.call = call
        self.future: asyncio.Future[tuple[Event, Head]] | None = None
        self.sends = 1


class Session:
    """The conversation of one client with one server."""

    def __init__(self, server: ProxiedServer, upstream: Upstream, channel: Channel, clock: Clock) -> None:
        self.server = server
        self.upstream = upstream
        self.channel = channel  # for what is no answer, and belongs to no request
        self.clock = clock
        self.handshake = Handshake()
        self.hold_client: Callable[[bool], object] = lambda held: None
        self._pending: dict[Id, Pending] = {}
        self._calls: dict[Id, Call] = {}
        self._tokens: dict[Id, Call] = {}
        self._asked: set[Id] = set()  # requests of the server that the client has not answered
        self._stopped: dict[Id, Call] = {}  # cancelled by the client, and not answered by the server, the oldest first
        self._idle = asyncio.Event()
        self._resent = 0
        self._listens: dict[Id, Channel] = {}  # `subscriptions/listen` requests

    def open(self) -> None:
        """Begin."""
        self.server.join(self)
        self.upstream.attach(self, self.handshake)

    async def close(self) -> None:
        """End calls and server."""
        calls = list(self._calls.values())
        for call in calls:
            call.stop()
        await asyncio.gather(*(call.task for call in calls if call.task is not None), return_exceptions=True)
        self.server.leave(self)
        await self.upstream.close()

    async def idle(self) -> None:
        """Wait until nobody waits for an answer."""
        while self._pending or self._calls:
            self._idle.clear()
            await self._idle.wait()

    def _settled(self) -> None:
        if not self._pending and not self._calls:
            self._idle.set()

    # -- from the client -----------------------------------------------------------------------------------------------

    def receive(self, data: bytes, channel: Channel) -> None:
        """A frame, or a batch of them, came from the client; answers go to *channel*."""
        try:
            if frames.is_batch(data):
                self._receive_batch(data, channel)
            else:
                self._receive(frames.head(data), data, channel)
        except msgspec.DecodeError:
            self.upstream.send(data, None, channel)  # the server will say what is wrong with it

    def _receive_batch(self, data: bytes, channel: Channel) -> None:
        parts = [(frames.head(part), part) for part in frames.batch(data)]
        requests = sum(head.is_request for head, _ in parts)
        answers = Batch(channel, requests) if requests else channel
        if any(head.method in ("tools/call", "notifications/cancelled") or head.is_answer for head, _ in parts):
            for head, part in parts:
                self._receive(head, part, answers)
            return
        for head, part in parts:
            self._note(head, part)
            if head.is_request:
                self._pending[_id(head)] = Pending(head, part, answers)
        self.upstream.send(data, None, channel)

    def _receive(self, head: Head, data: bytes, channel: Channel) -> None:
        if head.method == "tools/call" and head.is_request and self._call(head, data, channel):
            return
        if head.method == "notifications/cancelled":
            self._cancel(head, data, channel)
        elif head.is_answer:
            if head.id not in self._asked:  # of a server that has died meanwhile
                return
            self._asked.discard(_id(head))
            self.upstream.send(data, head, channel)
        else:
            self._note(head, data)
            if head.is_request:
                self._pending[_id(head)] = Pending(head, data, channel)
                if head.method == "subscriptions/listen":
                    self._listens[_id(head)] = channel
            self.upstream.send(data, head, channel)

    def _note(self, head: Head, data: bytes) -> None:
        if head.method in _NOTED or not self.handshake.is_known:
            self.handshake.note(head, data)

    def _call(self, head: Head, data: bytes, channel: Channel) -> bool:
        """Whether it could be read, and is a guarded call now."""
        try:
            params = frames.call_params(head)
        except msgspec.DecodeError:
            return False
        self._note(head, data)
        call = Call(self, head, params, data, channel)
        self._calls[call.id] = call
        if call.token is not None:
            self._tokens[call.token] = call
        call.task = asyncio.ensure_future(call.perform())
        return True

    def _cancel(self, head: Head, data: bytes, channel: Channel) -> None:
        id = frames.params(head).requestId
        call = self._calls.get(id) if id is not None else None
        if call is None:
            self.upstream.send(data, head, channel)
            return
        if call.on_wire:
            self.upstream.send(
                data if call.wire_id == id else frames.with_params(data, requestId=call.wire_id), head, channel
            )
            self._stopped[call.wire_id] = call  # the client may be told yet how it ended
            while len(self._stopped) > MOST_STOPPED:
                del self._stopped[next(iter(self._stopped))]
        call.stop()

    # -- for calls -----------------------------------------------------------------------------------------------------

    async def ask(self, id: Id, data: bytes, call: Call) -> tuple[Event, Head]:
        """Send a call to the server, and wait for its answer."""
        pending = self._pending[id] = Pending(None, data, call.channel, call)
        pending.future = asyncio.get_running_loop().create_future()
        try:
            self.upstream.send(data, frames.head(data), call.channel)
            return await pending.future
        finally:
            if self._pending.get(id) is pending:
                del self._pending[id]

    def is_taken(self, id: Id) -> bool:
        """Whether the server has a request of that id; a client should not use one twice, but may."""
        return id in self._pending

    def next_id(self) -> str:
        """An id for a call that cannot be sent under its own."""
        self._resent += 1
        return f"holdfast/{self._resent}"

    def forsake(self, id: Id) -> None:
        """A call took too long: tell the server that nobody waits, and see whether it lives."""
        facts = {"requestId": id, "reason": "holdfast: no answer in time"}
        data = frames.notification("notifications/cancelled", facts)
        self.upstream.send(data, frames.head(data))
        self.upstream.suspect()

    def over(self, call: Call) -> None:
        """A call has ended."""
        if self._calls.get(call.id) is call:
            del self._calls[call.id]
        self._settled()
        if call.token is not None and self._tokens.get(call.token) is call:
            del self._tokens[call.token]

    # -- from the server -----------------------------------------------------------------------------------------------

    def arrive(self, event: Event, channel: Channel | None = None) -> bool:
        """A frame came from the server; false if it is none."""
        data = event.data
        if not data:  # over HTTP, a place to resume from
            (channel or self.channel).send(event)
            return True
        try:
            if frames.is_batch(data):
                return self._arrive_batch(data, event, channel)
            self._arrive(frames.head(data), event, channel)
        except msgspec.DecodeError:
            return False
        return True

    def _arrive_batch(self, data: bytes, event: Event, channel: Channel | None) -> bool:
        parts = [(frames.head(part), part) for part in frames.batch(data)]
        if any(head.is_answer or head.method == "notifications/progress" for head, _ in parts):
            for head, part in parts:
                self._arrive(head, event._replace(data=part), channel)
        else:
            self._asked.update(_id(head) for head, _ in parts if head.is_request)
            (channel or self.channel).send(event)
        return True

    def _arrive(self, head: Head, event: Event, channel: Channel | None) -> None:
        if head.is_answer:
            self._answer(head, event)
            return
        if head.is_request:
            self._asked.add(_id(head))
        elif head.method == "notifications/progress" and self._tokens:
            told = frames.params(head)
            call = self._tokens.get(told.progressToken) if told.progressToken is not None else None
            if call is not None:
                if call.progress.passes(told.progress):
                    call.channel.send(event)
                return
        elif head.method == "notifications/tools/list_changed":
            self.server.forget()
        (channel or self.channel).send(event)

    def _answer(self, head: Head, event: Event) -> None:
        if head.id is None:  # the server could not tell what it answers
            self.channel.send(event)
            return
        pending = self._pending.pop(_id(head), None)
        if pending is None:
            self._answer_late(head, event)
        elif pending.future is not None:
            if not pending.future.done():
                pending.future.set_result((event, head))
        else:
            self._listens.pop(_id(head), None)
            pending.channel.send(self._learn(pending.head, head, event))
            self._settled()

    def _answer_late(self, head: Head, event: Event) -> None:
        """Pass on what a server says to a call that its client has cancelled; nobody waits for anything else."""
        call = self._stopped.pop(_id(head), None)
        if call is not None:
            call.channel.send(call.under_own_id(event))
        else:
            _log.debug("%s: an answer that nobody waits for was dropped", self.server.name)

    def _learn(self, asked: Head | None, head: Head, event: Event) -> Event:
        """Take from an answer what has to be known; it may be changed where tools are hidden."""
        method = asked.method if asked is not None else ""
        if method in ("initialize", "server/discover") and bytes(head.result):
            self.handshake.answered(head)
            self.changed()
            return self.server.announce(event)
        if method == "tools/list" and bytes(head.result):
            return self.server.learn(head, event)
        return event

    def failed(self, id: Id, error: ServerLost) -> None:
        """A request will not be answered."""
        pending = self._pending.pop(id, None)
        if pending is None:
            return
        self._listens.pop(id, None)
        if pending.future is None:
            pending.channel.refuse(id, frames.error(id, LOST, str(error)), error)
            self._settled()
        elif not pending.future.done():
            pending.future.set_exception(error)

    def lost(self, error: ServerLost) -> None:
        """The server died: what changes nothing is asked of the next one, the rest is answered by us."""
        for id in self._asked:
            data = frames.notification("notifications/cancelled", {"requestId": id, "reason": str(error)})
            self.channel.send(Event(data))
        self._asked.clear()
        self.server.settle(error.category)
        error.counted = True
        for id, pending in list(self._pending.items()):
            safe = pending.future is None and pending.head is not None and pending.head.method in SAFE
            if safe and pending.sends < MOST_SENDS:
                pending.sends += 1
                self.upstream.send(pending.data, pending.head, pending.channel)
            else:
                self.failed(id, error)

    def changed(self) -> None:
        """The state of the server is another."""
        self.server.publish()

    def hold(self, held: bool) -> None:
        """The server takes no more for the moment, or does again."""
        self.hold_client(held)

    # -- what we tell the client ourselves -----------------------------------------------------------------------------

    def tools_changed(self) -> None:
        """Tell the client that the list of tools is another."""
        method = "notifications/tools/list_changed"
        if not self.handshake.is_modern:
            if self.handshake.is_done:
                self.channel.send(Event(frames.notification(method)))
            return
        for id, channel in self._listens.items():
            meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": id}}
            channel.send(Event(frames.notification(method, meta)))


class Batch:
    """The answers to a batch, which the client gets as a batch; all else goes on at once."""

    def __init__(self, channel: Channel, requests: int) -> None:
        self._channel = channel
        self._missing = requests
        self._answers: list[bytes] = []

    @property
    def is_open(self) -> bool:
        """Whether the client still listens."""
        return self._channel.is_open

    def send(self, event: Event) -> None:
        """Keep an answer until all are there."""
        if not event.data or not frames.head(event.data).is_answer:
            self._channel.send(event)
            return
        self._answers.append(event.data)
        self._missing -= 1
        if not self._missing:
            self._channel.send(Event(frames.joined(self._answers)))

    def refuse(self, id: Id | None, data: bytes, error: Exception) -> None:
        """One of them has no answer of the server's."""
        self.send(Event(data))


def _id(head: Head) -> Any:
    """The id of a request or an answer."""
    return head.id
