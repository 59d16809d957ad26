"""A client and its server: every frame between them goes through here, and all except a few pass unchanged.

From the client: a `tools/call` becomes a guarded call, a cancel goes to its call. From the server: an answer goes to
its request, `tools/list` tells which tools may be repeated. Passing a frame on never waits.
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
from holdfast.mcp.handshake import NOTED, SET_UP, Handshake
from holdfast.mcp.ids import Ids
from holdfast.mcp.odd import TooOdd
from holdfast.mcp.passed import Passed, Unanswered
from holdfast.mcp.progress import Progress
from holdfast.mcp.questions import Questions
from holdfast.mcp.server import ProxiedServer
from holdfast.mcp.wire import Channel, Event, ServerLost, Upstream

MOST_STOPPED: Final = 1000  # cancelled requests whose late answers are still passed on
# Methods of the client that the session deals with, instead of only passing them on; then those of the server.
_TAKEN: Final = {"tools/call", "notifications/cancelled"}
_HEEDED: Final = {"notifications/progress", "notifications/tools/list_changed", "notifications/cancelled"}

_log = logging.getLogger("holdfast")


class Session:
    """The conversation of one client with one server; *tell* sends the client what belongs to no request."""

    def __init__(
        self, server: ProxiedServer, upstream: Upstream, tell: Callable[[Event], object], clock: Clock
    ) -> None:
        self.server = server
        self.upstream = upstream
        self.clock = clock
        self.transport = "tcp"  # between the client and us; pipe, if it is standard input and output
        self.handshake = Handshake()
        self.alarm = Alarm(clock)
        self.defers_calls = True  # a call begins in the next turn of the event loop: until then a client can cancel it
        self.hold: Callable[[bool], object] = lambda held: None  # stops reading from the client, or resumes
        self.changed = server.publish
        self.on_idle: Callable[[], object] = lambda: None  # called when the client waits for no answer any more
        self._tell = tell
        self._running: set[Call] = set()
        self._calls: dict[Any, Call] = {}  # the same by the client's id; the last of several with one id
        self._progress: dict[Any, Progress] = {}  # by token
        self._pending: dict[Any, Call | Passed] = {}  # what the server has to answer, by the id that it knows
        self._passed = Unanswered()  # those of them that are not calls
        # Cancelled by the client and not answered by the server, the oldest first; the client gets a late answer.
        self._stopped: dict[Any, Passed] = {}
        self._questions = Questions(self.alarm.hold)  # no time limit runs while a person or a model answers
        self._idle = asyncio.Event()
        self._ids = Ids()

    def open(self) -> None:
        """Begin the session, and start the server if it is a process."""
        self.server.join(self)
        self.upstream.attach(self, self.handshake)

    async def close(self) -> None:
        """End the calls and the server."""
        calls = list(self._running)
        for call in calls:
            call.stop()
        try:
            await asyncio.gather(*(call.task for call in calls if call.task is not None), return_exceptions=True)
        finally:  # also if this task is cancelled: no server process is left behind
            self.alarm.close()
            self.server.leave(self)
            await self.upstream.close()

    def facts(self) -> dict[str, object]:
        """The facts of the server for the dashboard and other processes."""
        return self.upstream.condition.facts(self.server.name, self.handshake)

    @property
    def is_idle(self) -> bool:
        """True if the client waits for no answer."""
        return not self._pending and not self._running

    async def idle(self) -> None:
        """Wait until the client waits for no answer."""
        while not self.is_idle:
            self._idle.clear()
            await self._idle.wait()

    def _settled(self) -> None:
        if self.is_idle:
            self._idle.set()
            self.on_idle()

    # -- from the client -----------------------------------------------------------------------------------------------

    def receive(self, data: bytes, channel: Channel) -> None:
        """Take a frame or a batch from the client; answers go to *channel*."""
        try:
            if frames.is_batch(data):
                self._receive_batch(data, channel)
            else:
                self._receive(frames.head(data), data, channel)
        except TooOdd as error:  # not passed on: if the server can read it, no one would know its answer
            channel.send(Event(frames.error(None, frames.PARSE_ERROR, str(error))))
        except msgspec.DecodeError:
            self.upstream.send(data, None, channel)  # the server will say what is wrong with it

    def _receive_batch(self, data: bytes, channel: Channel) -> None:
        parts = [(frames.peek(part), part) for part in frames.batch(data)]
        heads = [head for head, _ in parts if head is not None]
        ids = [head.id for head in heads if head.is_request]
        answers = Batch(channel, len(ids)) if ids else channel
        is_twice = len(set(ids)) < len(ids) or any(id in self._pending for id in ids)
        if is_twice or any(head.method in _TAKEN or head.is_answer for head in heads):
            for head, part in parts:
                if head is not None:
                    self._receive(head, part, answers)
                else:
                    self.upstream.send(part, None, channel)
            return
        for head, part in parts:
            if head is not None:
                self._note(head, part)
                if head.is_request:
                    self._expect(head.id, Passed(head.id, head.method, answers, part))
        self.upstream.send(data, None, channel)

    def _receive(self, head: Head, data: bytes, channel: Channel) -> None:
        if head.method == "tools/call" and isinstance(head.id, Id) and self._call(head, data, channel):
            return
        if head.method == "notifications/cancelled":
            self._cancel(head, data, channel)
        elif head.is_answer:
            self._answer_question(head, data, channel)
        elif head.is_request:
            self._pass(head, data, channel)
        else:
            self._note(head, data)
            self.upstream.send(data, head, channel)

    def _pass(self, head: Head, data: bytes, channel: Channel) -> None:
        """Pass on a request that is not a guarded call."""
        self._note(head, data)
        data, sent = frames.renamed(data, head, self.free_id(head.id))
        self._expect(sent.id, Passed(head.id, sent.method, channel, data))
        self.upstream.send(data, sent, channel)

    def _expect(self, id: Any, passed: Passed) -> None:
        """Note a request that the server has to answer under *id*; if there are too many, the oldest one fails."""
        self._pending[id] = passed
        for oldest in self._passed.add(id, passed):
            self.failed(oldest, ServerLost("the server has left too many requests unanswered; this was the oldest"))

    def _answer_question(self, head: Head, data: bytes, channel: Channel) -> None:
        """Pass on the client's answer to a request of the server."""
        if isinstance(head.id, Id):
            id = self._questions.answered(head.id)
            if id is None:
                return
            data, head = frames.renamed(data, head, id)
        self.upstream.send(data, head, channel)

    def _note(self, head: Head, data: bytes) -> None:
        if head.method in NOTED or not self.handshake.is_known:
            self.handshake.note(head, data)

    def _call(self, head: Head, data: bytes, channel: Channel) -> bool:
        """Begin a guarded call; False if its parameters cannot be read."""
        try:
            params = frames.call_params(head)
        except msgspec.DecodeError:
            return False
        self._note(head, data)
        call = Call(self, head, params, data, channel)
        self._running.add(call)
        self._calls[call.id] = call
        if call.progress is not None:
            self._progress[call.progress.token] = call.progress
        if self.defers_calls:
            asyncio.get_running_loop().call_soon(call.begin)
        else:
            call.begin()
        return True

    def _cancel(self, head: Head, data: bytes, channel: Channel) -> None:
        id = frames.params(head).requestId
        call = self._calls.get(id) or self._pending.get(id)  # the latter if there was another call with that id
        if isinstance(call, Call):
            if call.on_wire:
                named = data if call.wire_id == id else frames.with_params(data, requestId=call.wire_id)
                self.upstream.send(named, head, channel)
            call.channel = unbatched(call.channel)
            if call.on_wire:
                self._stopped[call.wire_id] = Passed(call.id, "tools/call", call.channel)
            call.stop()
        else:
            asked = self._pending.get(id)
            if isinstance(asked, Passed):
                self._stopped[id] = Passed(asked.id, asked.method, unbatched(asked.channel))
                self.drop(id)
            self.upstream.send(data, head, channel)
        while len(self._stopped) > MOST_STOPPED:
            del self._stopped[next(iter(self._stopped))]

    def is_asked(self, id: Any) -> bool:
        """True if the client waits for the answer to a request with that *id*."""
        return id in self._calls or id in self._pending

    def drop(self, id: Any) -> None:
        """Forget the request *id*, for whose answer the client no longer waits."""
        self._take(id)
        self._settled()

    def _take(self, id: Any) -> Call | Passed | None:
        """Forget the request *id*, and return it."""
        asked = self._pending.pop(id, None)
        if isinstance(asked, Passed):
            self._passed.remove(id)
        return asked

    # -- for calls -----------------------------------------------------------------------------------------------------

    def ask(self, call: Call, data: bytes, head: Head) -> None:
        """Send a call to the server; the answer goes to the call."""
        self._pending[call.wire_id] = call
        self.upstream.send(data, head, call.channel)

    def unask(self, call: Call) -> None:
        """Note that *call* no longer waits for its answer."""
        if self._pending.get(call.wire_id) is call:
            del self._pending[call.wire_id]

    def free_id(self, id: Any) -> Any:
        """*id*, or another if the server still has a request with that id: a client should not reuse an id, but may."""
        return id if id not in self._pending else self.next_id()

    def next_id(self) -> str:
        """An id for a request that cannot be sent under its own."""
        return self._ids.next()

    def forsake(self, id: Id) -> None:
        """Tell the server that a call took too long and is cancelled, and check whether the server lives."""
        data = frames.cancel(id, "holdfast: no answer in time")
        self.upstream.send(data, frames.head(data))
        self.upstream.suspect()

    def call_ended(self, call: Call) -> None:
        """Forget a call that has ended."""
        self._running.discard(call)
        if not self._running:
            self._questions.stop_pondering()
        if self._calls.get(call.id) is call:
            del self._calls[call.id]
        if call.progress is not None and self._progress.get(call.progress.token) is call.progress:
            del self._progress[call.progress.token]
        self._settled()

    # -- from the server -----------------------------------------------------------------------------------------------

    def arrive(self, event: Event, channel: Channel | None = None) -> bool:
        """Take a frame or a batch from the server; False if it is neither."""
        data = event.data
        if not data:  # over HTTP, only a place to resume from
            self._hand_on(event, channel)
            return True
        try:
            if frames.is_batch(data):
                return self._arrive_batch(data, event, channel)
            self._arrive(frames.head(data), event, channel)
        except msgspec.DecodeError:
            return False
        return True

    def expects(self, id: Any) -> bool:
        """True if the client waits for an answer to *id*, or has cancelled that request."""
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
            self._hand_on(event, channel)
        return bool(parts)

    def _arrive(self, head: Head, event: Event, channel: Channel | None) -> None:
        if head.is_answer:
            self._answer(head, event)
            return
        if head.is_request:
            event = self._question(head, event)
        elif head.method == "notifications/progress" and self._progress:
            told = frames.params(head)
            progress = self._progress.get(told.progressToken)
            if progress is not None and progress.is_on(channel):
                progress.hand_on(event, told.progress)
                return
        elif head.method == "notifications/tools/list_changed":
            self.server.forget()
        elif head.method == "notifications/cancelled":
            event = self._withdraw(head, event)
        self._hand_on(event, channel)

    def _hand_on(self, event: Event, channel: Channel | None) -> None:
        (self._tell if channel is None else channel.send)(event)

    def _question(self, head: Head, event: Event) -> Event:
        """Note a request of the server; return it as the client gets it."""
        return event.under(self._questions.ask(head.id, head.method), head) if isinstance(head.id, Id) else event

    def _withdraw(self, head: Head, event: Event) -> Event:
        """Note that the server cancels such a request; return the cancel as the client gets it."""
        own = frames.params(head).requestId
        if own is None or (id := self._questions.withdraw(own)) == own:
            return event
        return event._replace(data=frames.with_params(event.data, requestId=id))

    def _answer(self, head: Head, event: Event) -> None:
        asked = self._take(head.id)
        if isinstance(asked, Call):
            asked.take(event, head)
        elif asked is not None:
            asked.reply(self._learn(asked, head, event), head)
            self._settled()
        elif (stopped := self._stopped.pop(head.id, None)) is not None:
            stopped.reply(event, head)
        elif (number := frames.as_number(head.id)) is not None and self.expects(number):
            data, head = frames.renamed(event.data, head, number)
            self._answer(head, event._replace(data=data))
        elif head.id is None:  # the server could not read the id of what it answers
            self._tell(event)
        else:
            _log.debug("%s: an answer that nobody waits for was dropped", self.server.name)

    def _learn(self, asked: Passed, head: Head, event: Event) -> Event:
        """Learn from an answer about the server and its tools; return it, changed if tools are hidden."""
        method = asked.method
        if method in ("initialize", "server/discover") and head.result:
            self.handshake.answered(head)
            self.changed()
            return self.server.announce(head, event)
        if method == "tools/list" and head.result:
            return self.server.learn(head, event, self.upstream.asker(asked.channel))
        if method in SET_UP and asked.data is not None and not head.is_refusal:
            self.handshake.accepted(asked.data)
        return event

    def failed(self, id: Id, error: ServerLost) -> None:
        asked = self._take(id)
        if isinstance(asked, Call):
            asked.lose(error)
        elif asked is not None:
            asked.channel.send(Event(frames.error(asked.id, LOST, str(error)), said=error.answer))
            self._settled()

    def lost(self, error: ServerLost) -> None:
        """Note that the server died: requests that change nothing go to the next one, all others fail."""
        for id in self._questions.orphan():
            self._tell(Event(frames.cancel(id, str(error))))
        self._stopped.clear()
        self.server.settle(error.category)
        error.counted = True
        for id, asked in list(self._pending.items()):
            data = asked.again() if isinstance(asked, Passed) else None
            if data is not None:
                self.upstream.send(data, frames.head(data), asked.channel)
            else:
                self.failed(id, error)

    # -- what we tell the client ourselves -----------------------------------------------------------------------------

    def tools_changed(self) -> None:
        """Tell the client that the list of tools has changed."""
        method = "notifications/tools/list_changed"
        if not self.handshake.is_modern:
            if self.handshake.is_done:
                self._tell(Event(frames.notification(method)))
            return
        for asked in list(self._pending.values()):
            if isinstance(asked, Passed) and asked.method == "subscriptions/listen":
                meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": asked.id}}
                asked.channel.send(Event(frames.notification(method, meta)))
