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
from holdfast.mcp.alarm import Alarm
from holdfast.mcp.batch import Batch, unbatched
from holdfast.mcp.calling import Call
from holdfast.mcp.frames import LOST, Head, Id
from holdfast.mcp.handshake import NOTED, Handshake
from holdfast.mcp.questions import Questions
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
# What a server tells, and is not only for its client.
_HEEDED: Final = {"notifications/progress", "notifications/tools/list_changed", "notifications/cancelled"}

_log = logging.getLogger("holdfast")


class Pending:
    """A request on its way to the server, which the client knows under *id*: of a guarded *call*, or a mere request."""

    __slots__ = ("call", "channel", "data", "head", "id", "sends")

    def __init__(self, id: Any, head: Head, data: bytes, channel: Channel, call: Call | None = None) -> None:
        self.id = id
        self.head = head
        self.data = data
        self.channel = channel
        self.call = call
        self.sends = 1


class Session:
    """The conversation of one client with one server."""

    def __init__(self, server: ProxiedServer, upstream: Upstream, channel: Channel, clock: Clock) -> None:
        self.server = server
        self.upstream = upstream
        self.channel = channel  # for what is no answer, and belongs to no request
        self.clock = clock
        self.transport = "tcp"  # between the client and us; pipe, if it is standard input and output
        self.handshake = Handshake()
        self.alarm = Alarm(clock)
        self.is_patient = True  # a call begins with the next turn of the loop: the client may take it back till then
        self.hold_client: Callable[[bool], object] = lambda held: None
        self._pending: dict[Any, Pending] = {}  # by the id that the server knows
        self._calls: dict[Any, Call] = {}  # of calls with the same id, the last
        self._running: set[Call] = set()
        self._tokens: dict[Any, Call] = {}
        self._questions = Questions()
        # Cancelled by the client and not answered by the server, the oldest first; the client may be told yet.
        self._stopped: dict[Any, Callable[[Event], object]] = {}
        self._idle = asyncio.Event()
        self._resent = 0
        self._listens: dict[Any, Channel] = {}  # `subscriptions/listen` requests

    def open(self) -> None:
        """Begin."""
        self.server.join(self)
        self.upstream.attach(self, self.handshake)

    async def close(self) -> None:
        """End calls and server."""
        calls = list(self._running)
        for call in calls:
            call.stop()
        await asyncio.gather(*(call.task for call in calls if call.task is not None), return_exceptions=True)
        self.alarm.close()
        self.server.leave(self)
        await self.upstream.close()

    async def idle(self) -> None:
        """Wait until nobody waits for an answer."""
        while self._pending or self._running:
            self._idle.clear()
            await self._idle.wait()

    def _settled(self) -> None:
        if not self._pending and not self._running:
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
        parts = [(frames.peek(part), part) for part in frames.batch(data)]
        heads = [head for head, _ in parts if head is not None]
        ids = [head.id for head in heads if head.is_request and isinstance(head.id, Id)]
        answers = Batch(channel, len(ids)) if ids else channel
        is_twice = len(set(ids)) < len(ids) or any(map(self.is_taken, ids))
        if is_twice or any(
            head.method in ("tools/call", "notifications/cancelled") or head.is_answer for head in heads
        ):
            for head, part in parts:
                if head is not None:
                    self._receive(head, part, answers)
                else:
                    self.upstream.send(part, None, channel)
            return
        for head, part in parts:
            if head is not None:
                self._note(head, part)
                if head.is_request and head.id is not None:
                    self._pending[head.id] = Pending(head.id, head, part, answers)
        self.upstream.send(data, None, channel)

    def _receive(self, head: Head, data: bytes, channel: Channel) -> None:
        if head.method == "tools/call" and isinstance(head.id, Id) and self._call(head, data, channel):
            return
        if head.method == "notifications/cancelled":
            self._cancel(head, data, channel)
        elif head.is_answer:
            self._answer_question(head, data, channel)
        elif head.is_request and head.id is not None:
            self._pass(head, data, channel)
        else:
            self._note(head, data)
            self.upstream.send(data, head, channel)

    def _pass(self, head: Head, data: bytes, channel: Channel) -> None:
        """Hand on a request that is no call."""
        self._note(head, data)
        id = head.id
        if self.is_taken(id):
            data = frames.with_id(data, self.next_id())
            head = frames.head(data)
        self._pending[head.id] = Pending(id, head, data, channel)
        if head.method == "subscriptions/listen":
            self._listens[head.id] = channel
        self.upstream.send(data, head, channel)

    def _answer_question(self, head: Head, data: bytes, channel: Channel) -> None:
        """Hand on what the client answers to a request of the server."""
        if isinstance(head.id, Id):
            id = self._questions.answered(head.id)
            if id is None:
                return
            if id != head.id:
                data = frames.with_id(data, id)
                head = frames.head(data)
        self.upstream.send(data, head, channel)

    def _note(self, head: Head, data: bytes) -> None:
        if head.method in NOTED or not self.handshake.is_known:
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
        self._running.add(call)
        if call.token is not None:
            self._tokens[call.token] = call
        if self.is_patient:
            asyncio.get_running_loop().call_soon(call.begin)
        else:
            call.begin()
        return True

    def _cancel(self, head: Head, data: bytes, channel: Channel) -> None:
        id = frames.params(head).requestId
        call = self._calls.get(id)
        if call is None:
            pending = self._pending.get(id)
            if pending is not None:
                self._stopped[id] = unbatched(pending.channel).send
                self.drop(id)
            self.upstream.send(data, head, channel)
        else:
            if call.on_wire:
                named = data if call.wire_id == id else frames.with_params(data, requestId=call.wire_id)
                self.upstream.send(named, head, channel)
                self._stopped[call.wire_id] = call.reply
            call.channel = unbatched(call.channel)
            call.stop()
        while len(self._stopped) > MOST_STOPPED:
            del self._stopped[next(iter(self._stopped))]

    # -- for calls -----------------------------------------------------------------------------------------------------

    def ask(self, call: Call, data: bytes, head: Head) -> None:
        """Send a call to the server; the answer goes to the call."""
        self._pending[call.wire_id] = Pending(call.id, head, data, call.channel, call)
        self.upstream.send(data, head, call.channel)

    def unask(self, id: Any, call: Call) -> None:
        """A call no longer waits for the answer to *id*."""
        pending = self._pending.get(id)
        if pending is not None and pending.call is call:
            del self._pending[id]

    def is_asked(self, id: Any) -> bool:
        """Whether the client waits for an answer to a request of that id."""
        return id in self._calls or id in self._pending

    def drop(self, id: Any) -> None:
        """Nobody waits for the answer to a request any more."""
        self._pending.pop(id, None)
        self._listens.pop(id, None)
        self._settled()

    def is_taken(self, id: Any) -> bool:
        """Whether the server has a request of that id; a client should not use one twice, but may."""
        return id in self._pending

    def next_id(self) -> str:
        """An id for a call that cannot be sent under its own."""
        self._resent += 1
        return f"holdfast/{self._resent}"

    def forsake(self, id: Id) -> None:
        """A call took too long: tell the server that nobody waits, and see whether it lives."""
        data = frames.cancel(id, "holdfast: no answer in time")
        self.upstream.send(data, frames.head(data))
        self.upstream.suspect()

    def over(self, call: Call) -> None:
        """A call has ended."""
        if self._calls.get(call.id) is call:
            del self._calls[call.id]
        self._running.discard(call)
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

    def expects(self, id: Any) -> bool:
        """Whether the client waits for an answer to *id*, or has cancelled what it is the answer to."""
        return any(each in self._pending or each in self._stopped for each in (id, frames.as_number(id)))

    def _arrive_batch(self, data: bytes, event: Event, channel: Channel | None) -> bool:
        all_parts = [(frames.peek(part), part) for part in frames.batch(data)]
        parts = [(head, part) for head, part in all_parts if head is not None]
        is_mixed = any(head.is_answer or head.method in _HEEDED for head, _ in parts)
        if is_mixed or self._questions.are_orphaned or len(parts) < len(all_parts):
            for head, part in parts:
                self._arrive(head, event._replace(data=part), channel)
        elif parts:
            for head, part in parts:
                self._question(head, event._replace(data=part))
            (channel or self.channel).send(event)
        return bool(parts)

    def _arrive(self, head: Head, event: Event, channel: Channel | None) -> None:
        if head.is_answer:
            self._answer(head, event)
            return
        if head.is_request:
            event = self._question(head, event)
        elif head.method == "notifications/progress" and self._tokens:
            told = frames.params(head)
            call = self._tokens.get(told.progressToken)
            if call is not None:
                if call.progress is None or call.progress.passes(told.progress):
                    call.channel.send(event)
                return
        elif head.method == "notifications/tools/list_changed":
            self.server.forget()
        elif head.method == "notifications/cancelled":
            event = self._withdraw(head, event)
        (channel or self.channel).send(event)

    def _question(self, head: Head, event: Event) -> Event:
        """A request of the server, as the client is to get it."""
        if not isinstance(head.id, Id):
            return event
        id = self._questions.ask(head.id)
        return event if id == head.id else event._replace(data=frames.with_id(event.data, id))

    def _withdraw(self, head: Head, event: Event) -> Event:
        """A cancel of such a request, as the client is to get it."""
        own = frames.params(head).requestId
        if own is None or (id := self._questions.withdraw(own)) == own:
            return event
        return event._replace(data=frames.with_params(event.data, requestId=id))

    def _answer(self, head: Head, event: Event) -> None:
        if head.id is None:  # the server could not tell what it answers
            self.channel.send(event)
            return
        pending = self._pending.pop(head.id, None)
        if pending is None:
            number = frames.as_number(head.id)
            if number is not None and self.expects(number):
                event = event._replace(data=frames.with_id(event.data, number))
                self._answer(frames.head(event.data), event)
            else:
                self._answer_late(head, event)
        elif pending.call is not None:
            pending.call.take(event, head)
        else:
            self._listens.pop(head.id, None)
            if pending.id != head.id:
                event = event._replace(data=frames.with_id(event.data, pending.id))
            pending.channel.send(self._learn(pending.head, head, event))
            self._settled()

    def _answer_late(self, head: Head, event: Event) -> None:
        """Pass on what a server says to a call that its client has cancelled; nobody waits for anything else."""
        reply = self._stopped.pop(head.id, None)
        if reply is not None:
            reply(event)
        else:
            _log.debug("%s: an answer that nobody waits for was dropped", self.server.name)

    def _learn(self, asked: Head, head: Head, event: Event) -> Event:
        """Take from an answer what has to be known; it may be changed where tools are hidden."""
        if asked.method in ("initialize", "server/discover") and head.result:
            self.handshake.answered(head)
            self.changed()
            return self.server.announce(head, event)
        if asked.method == "tools/list" and head.result:
            return self.server.learn(head, event)
        return event

    def failed(self, id: Id, error: ServerLost) -> None:
        """A request will not be answered."""
        pending = self._pending.pop(id, None)
        if pending is None:
            return
        self._listens.pop(id, None)
        if pending.call is not None:
            pending.call.lose(error)
        else:
            pending.channel.refuse(frames.error(pending.id, LOST, str(error)), error)
            self._settled()

    def lost(self, error: ServerLost) -> None:
        """The server died: what changes nothing is asked of the next one, the rest is answered by us."""
        for id in self._questions.orphan():
            self.channel.send(Event(frames.cancel(id, str(error))))
        self._stopped.clear()
        self.server.settle(error.category)
        error.counted = True
        for id, pending in list(self._pending.items()):
            if pending.head.method in SAFE and pending.sends < MOST_SENDS:
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
