"""One `tools/call` of a client as a guarded call: sent to the server once an attempt, answered in any case.

The server's own circuit is asked before the tool's guards, and told of nothing but its silence: what a tool answers
says nothing about its server.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.bus import Origin
from holdfast.calls.bound import Bound
from holdfast.calls.drivers import ONE_HOP
from holdfast.calls.execution import Execution
from holdfast.category import ErrorCategory
from holdfast.clock import Timer
from holdfast.errors import CircuitOpen, Denied, HoldfastError, ToolTimeout
from holdfast.mcp import frames
from holdfast.mcp.answers import ToolFailed, judge
from holdfast.mcp.frames import CallParams, Head, Id
from holdfast.mcp.refusals import refusal
from holdfast.mcp.script import Script, Steps
from holdfast.mcp.wire import Channel, Event, ServerLost
from holdfast.parts.permit import Permit
from holdfast.shape import Shape
from holdfast.waiting.waits import Wait

if TYPE_CHECKING:
    from holdfast.mcp.session import Session

KEEP_ALIVE: Final = 5.0  # seconds between two signs of life to a client that waits for its turn
NOT_KEPT: Final = {"cache": False}  # a call that is more than its arguments, or has others than we could read
AT_ONCE: Final = Wait(0.0)  # nothing to wait for, but from here on a task does the rest

_OUTSIDE: AbstractContextManager[None] = nullcontext()

_log = logging.getLogger("holdfast")


class Call:
    """A client's call, from its frame to the answer.

    It is a script whose news are the server's answer. So most calls make no task: the client's frame reaches the
    server, and the answer the client, within the very callbacks that read them.
    """

    __slots__ = (
        "arguments", "channel", "data", "head", "id", "is_plain", "name", "on_wire", "progress", "stopped", "token",
        "wire_id", "_attempts", "_execution", "_is_answered", "_is_called", "_is_late", "_limit", "_outcome", "_permit",
        "_script", "_session", "_timer",
    )  # fmt: skip

    def __init__(self, session: Session, head: Head, params: CallParams, data: bytes, channel: Channel) -> None:
        self.id: Id = head.id  # type: ignore[assignment]
        self.name = params.name
        self.arguments = params.arguments or {}
        self.is_plain = params.is_plain and not head.mended
        self.token = params.meta.progressToken if params.meta is not None else None
        self.head = head
        self.data = data
        self.channel = channel
        self.wire_id: Id = self.id  # under which the server knows it
        self.on_wire = False
        self.stopped = False  # by the client
        self.progress = Progress() if self.token is not None else None
        self._attempts = 0
        self._execution: Execution | None = None
        self._is_answered = False
        self._is_called = False  # an attempt may have reached the tool, whatever became of later ones
        self._limit: tuple[str, float | None, float] = ("", None, 0.0)  # of an attempt: tool, seconds, and since when
        self._is_late = False  # it has reached that
        self._outcome: msgspec.Raw | ToolFailed | ServerLost | None = None  # of an attempt, once it has one
        self._permit: Permit | None = None
        self._script = Script(session.clock, self._perform())
        self._session = session
        self._timer: Timer | None = None

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What makes it, if it has to wait for anything but the server's answer."""
        return self._script.task

    def begin(self) -> None:
        """Make it, and answer."""
        if self.stopped:
            self._session.over(self)
            return
        if self.token is not None:
            self._wake_later()
        self._script.play()

    def stop(self) -> None:
        """The client no longer wants it."""
        self.stopped = True
        self._script.cancel()

    def expire(self) -> None:
        """An attempt has no time left."""
        if self._outcome is None:  # else it was answered at the last moment
            self._is_late = True
            self._script.cancel()

    # -- the script ----------------------------------------------------------------------------------------------------

    def _perform(self) -> Steps[None]:
        session = self._session
        repeatable = False
        try:
            tool = session.server.tool(self.name)
            execution = tool.execution((self,), {}, None if self.is_plain else NOT_KEPT, arguments=self.arguments)
            execution.gate = self._gate
            if execution.is_watched:
                self._execution = execution
                execution.origin = self._origin()
            if execution.is_watched or tool.kit.hooks is not None:
                yield AT_ONCE  # the code of others wants a task, whose context stays the same
            repeatable = execution.policy.read_only or execution.policy.idempotent
            value = yield from self._drive(execution, tool)
        except ToolFailed as failure:
            self._pass_failure(failure)
        except (Denied, ToolTimeout, ServerLost, HoldfastError) as error:
            self._refuse(error, repeatable=repeatable)
        except Exception as error:  # a fault of ours: the client is answered all the same
            _log.exception("%s: a call was lost", session.server.name)
            self._refuse(error, repeatable=repeatable)
        else:
            if not self._is_answered:  # from a cache, or with the fixed answer of a policy
                self._is_answered = True
                self.channel.send(Event(frames.result(self.id, _as_result(value))))
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._permit is not None:
                self._permit.release()
            session.over(self)

    def _drive(self, execution: Execution, tool: Bound) -> Steps[Any]:
        """One guarded call, as `calls.adrive` makes it."""
        execution.driver = Shape.COROUTINE
        execution.as_task = True
        try:
            with execution:
                for wait in execution.lookup():
                    yield wait
                for attempt in execution:
                    with attempt:
                        for wait in attempt.waits():
                            yield wait
                        self._limit = (tool.tool.name, attempt.limit(attempt.begun), attempt.begun)
                        self._outcome, self._is_late = None, False
                        with execution.inside() if execution.watched is not None else _OUTSIDE:
                            execution.value = yield from tool.fn(self)
        finally:
            for wait in execution.after():
                yield wait
        if execution.fallback is None:
            return execution.value
        yield AT_ONCE  # the next call finds its run in the context
        other = tool.instead(execution)
        again = other.execution((self,), {}, ONE_HOP, execution.given)
        return (yield from self._drive(again, other))

    def attempt(self, name: str) -> Steps[msgspec.Raw]:
        """Send it to the server as a call of the tool *name*, its own or a fallback's, and wait for the answer."""
        session, (tool, seconds, begun) = self._session, self._limit
        self._attempts += 1
        if seconds is not None:
            session.alarm.enter(self, begun + seconds)
        try:
            if not session.upstream.is_ready:
                yield session.upstream.ready
            self._send(name)
            if self._outcome is None:
                yield None
            if isinstance(self._outcome, Exception):
                raise self._outcome
            assert self._outcome is not None  # nobody else brings news
            return self._outcome
        except ServerLost as error:
            self._tell_circuit(error.blame)
            raise
        except asyncio.CancelledError as error:
            self._cut_short()
            if not self._is_late or self._script.uncancel() or self.stopped:
                raise  # somebody wants it to end, perhaps besides
            raise ToolTimeout(tool, seconds or 0.0) from error
        finally:
            self.on_wire = False
            session.alarm.leave(self)
            session.unask(self.wire_id, self)

    def _cut_short(self) -> None:
        """An attempt ends without an answer; it is the server's fault unless the client wanted that."""
        if not self.stopped and self._outcome is None:
            self._tell_circuit(ErrorCategory.TIMEOUT)
            if self.on_wire:
                self._is_called = True
                self._session.forsake(self.wire_id)

    def _send(self, name: str) -> None:
        session, data, head = self._session, self.data, self.head
        if name != self.name:
            data = frames.with_params(data, name=name)
        if self._attempts > 1 and self.progress is not None:
            self.progress.restart()
        if self._attempts > 1 or session.is_taken(self.id):  # the server knows it already, and may answer it yet
            self.wire_id = session.next_id()
            data = frames.with_id(data, self.wire_id)
        if self._execution is not None and self._execution.watched is not None:
            data = frames.with_meta(data, self._execution.watched.carried(str(self.wire_id)))
        self.on_wire = True
        session.ask(self, data, head if data is self.data else frames.head(data))

    # -- the answer ----------------------------------------------------------------------------------------------------

    def take(self, event: Event, head: Head) -> None:
        """The server has answered; a success goes on at once, before anything that the server says after it."""
        self._is_called = True
        try:
            self._outcome = judge(head)
        except ToolFailed as failure:  # it may be tried again
            failure.answer = event
            self._outcome = failure
        else:
            self._is_answered = True
            self.reply(event)
        self._tell_circuit(None)
        self._script.wake()

    def lose(self, error: ServerLost) -> None:
        """The server will not answer."""
        self._is_called = self._is_called or error.sent
        self._outcome = error
        self._script.wake()

    def reply(self, event: Event) -> None:
        """Hand the server's answer to the client, under the id that it expects."""
        own = event if self.wire_id == self.id else event._replace(data=frames.with_id(event.data, self.id))
        self.channel.send(own)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _origin(self) -> Origin:
        """Who asks for it, for those who watch."""
        session = self._session
        onward = "pipe" if session.upstream.facts().get("kind") == "stdio" else "tcp"
        carried = frames.carried(frames.head(self.data))
        server, protocol = session.server.name, session.handshake.protocol
        return Origin(server, self.name, str(self.id), protocol, session.transport, onward, carried)

    def _gate(self) -> None:
        """Ask the server's circuit."""
        server = self._session.server
        try:
            self._permit = server.admit()
        except CircuitOpen as error:
            raise CircuitOpen(
                server.full_name(self.name), f"its server {server.name!r} is down", error.retry_after
            ) from None

    def _tell_circuit(self, category: ErrorCategory | None) -> None:
        """Tell the server's circuit; the first attempt answers for the permit, later ones count by themselves."""
        permit, self._permit = self._permit, None
        if permit is not None:
            permit.succeed() if category is None else permit.fail(category)
        elif category is not ErrorCategory.CANCELLED:
            self._session.server.settle(category)

    def _pass_failure(self, failure: ToolFailed) -> None:
        """Hand on what the server answered: to this call, or to an identical one that it waited for."""
        if failure is self._outcome:
            self.reply(failure.answer)
        else:
            self.channel.send(Event(frames.with_id(failure.answer.data, self.id)))

    def _refuse(self, error: Exception, *, repeatable: bool) -> None:
        if self._is_answered:  # it came at the last moment, and has gone to the client
            return
        self._is_answered = True
        modern = self._session.handshake.is_modern
        server = self._session.server.name
        result = refusal(error, server, called=self._is_called, repeatable=repeatable, modern=modern)
        self.channel.refuse(frames.result(self.id, result), error)

    def _wake_later(self) -> None:
        clock = self._session.clock
        self._timer = clock.call_at(clock.monotonic() + KEEP_ALIVE, self._keep_alive)

    def _keep_alive(self) -> None:
        """Show a client that asked for progress that its call is not forgotten while it waits."""
        if not self.on_wire and self.progress is not None:
            facts = {"progressToken": self.token, "progress": self.progress.nudge(), "message": "waiting for its turn"}
            self.channel.send(Event(frames.notification("notifications/progress", facts)))
        self._wake_later()


class Progress:
    """The progress that a client was told of, which may only grow."""

    __slots__ = ("_last", "_ours")

    def __init__(self) -> None:
        self._last = 0.0
        self._ours = False  # we have told of some ourselves, or the call was begun anew

    def nudge(self) -> float:
        """A little more than was told last."""
        self._ours = True
        self._last += 1e-6
        return self._last

    def restart(self) -> None:
        """The server begins anew, and counts from the beginning."""
        self._ours = True

    def passes(self, progress: float | None) -> bool:
        """Whether the client may be told of *progress* of the server's."""
        if progress is None:
            return True
        if self._ours and progress <= self._last:
            return False
        self._last = max(self._last, progress)
        return True


def _as_result(value: object) -> object:
    """A fixed answer of a policy as the result of a tool."""
    if isinstance(value, msgspec.Raw) or (isinstance(value, dict) and "content" in value):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return {"content": [{"type": "text", "text": text}]}
