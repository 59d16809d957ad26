"""One `tools/call` of a client as a guarded call: sent to the server once per attempt, answered in any case.

The server's own circuit is asked before the tool's guards. Only a missing answer is a failure there: what a tool
answers says nothing against its server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.bus import Origin, WatchedCall
from holdfast.calls.attempt import Attempt
from holdfast.calls.bound import Bound
from holdfast.calls.drivers import ONE_HOP
from holdfast.calls.execution import Execution
from holdfast.category import ErrorCategory
from holdfast.errors import HoldfastError, ToolTimeout
from holdfast.mcp import frames
from holdfast.mcp.answers import ToolFailed, judge
from holdfast.mcp.frames import CallParams, Head, Id
from holdfast.mcp.progress import Progress
from holdfast.mcp.refusals import refusal
from holdfast.mcp.script import Script, Steps
from holdfast.mcp.wire import Channel, Event, ServerLost
from holdfast.parts.permit import Permit
from holdfast.waiting.waits import Wait

if TYPE_CHECKING:
    from holdfast.mcp.session import Session

NOT_KEPT: Final = {"cache": False}  # for a call that is more than its arguments, or whose arguments had to be repaired
AT_ONCE: Final = Wait(0.0)  # nothing to wait for, but a task makes the rest of the call

_OUTSIDE: AbstractContextManager[None] = nullcontext()

_log = logging.getLogger("holdfast")


class Call:
    """A client's call, from its frame to the answer.

    It is a script that the server's answer wakes. So most calls need no task: the client's frame reaches the server,
    and the answer reaches the client, within the callbacks that read them.
    """

    __slots__ = (
        "channel", "id", "on_wire", "progress", "wire_id", "_data", "_head", "_is_answered", "_is_called", "_is_late",
        "_is_sent", "_is_stopped", "_outcome", "_params", "_permit", "_script", "_session",
    )  # fmt: skip

    def __init__(self, session: Session, head: Head, params: CallParams, data: bytes, channel: Channel) -> None:
        token = params.meta.progressToken if params.meta is not None else None
        self.id: Id = head.id  # type: ignore[assignment]
        self.wire_id: Id = self.id  # the id under which the server knows it
        self.channel = channel
        self.progress = Progress(self, token, session.clock) if token is not None else None
        self.on_wire = False  # an attempt waits for the server's answer
        self._session = session
        self._head = head
        self._params = params
        self._data = data
        self._script = Script(session.clock, self._perform())
        self._permit: Permit | None = None  # of the server's circuit, until it is settled
        self._outcome: msgspec.Raw | ToolFailed | ServerLost | None = None  # of the current attempt, once it has one
        self._is_late = False  # an attempt has reached its time limit
        self._is_sent = False  # to the server, at least once
        self._is_called = False  # an attempt may have reached the tool, even if later ones did not
        self._is_answered = False
        self._is_stopped = False  # by the client, or by the end of the session

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task that makes the call, if it has to wait for anything except the server's answer."""
        return self._script.task

    def begin(self) -> None:
        """Make the call, and answer the client."""
        if self._is_stopped:
            self._session.call_ended(self)
            return
        if self.progress is not None:
            self.progress.begin()
        self._script.play()

    def stop(self) -> None:
        """Cancel the call, which the client no longer wants."""
        self._is_stopped = True
        self._script.cancel()

    def expire(self) -> None:
        """Cancel the current attempt, whose time is up."""
        if self._outcome is None:  # otherwise the server has answered at the last moment
            self._is_late = True
            self._session.unask(self)  # an answer from now on is dropped, even before the call's task is cancelled
            self._script.cancel()

    # -- the script ----------------------------------------------------------------------------------------------------

    def _perform(self) -> Steps[None]:
        session = self._session
        repeatable = False
        try:
            tool = session.server.tool(self._params.name)
            execution = self._prepare(tool)
            if execution.is_watched or tool.kit.hooks is not None:
                yield AT_ONCE  # watchers and hooks are foreign code, which needs a task with one context throughout
            repeatable = execution.policy.read_only or execution.policy.idempotent
            value = yield from self._drive(execution, tool)
        except ToolFailed as failure:  # of this call, or of an identical one that it waited for
            self.reply(*failure.answer)
        except (HoldfastError, ServerLost) as error:
            self._refuse(error, repeatable=repeatable)
        except Exception as error:  # a fault of ours: the client is answered all the same
            _log.exception("%s: a call was lost", session.server.name)
            self._refuse(error, repeatable=repeatable)
        else:
            if not self._is_answered:  # the value is from the cache, or the fixed fallback of a policy
                self.channel.send(Event(frames.result(self.id, _as_result(value))))
        finally:
            if self.progress is not None:
                self.progress.end()
            if self._permit is not None:
                self._permit.release()
            session.call_ended(self)

    def _prepare(self, tool: Bound) -> Execution:
        arguments = self._params.arguments or {}
        execution = self._execution(tool, {}, arguments)
        fallback = execution.policy.fallback
        if fallback is not None and fallback.tool is not None and not self._session.server.bind_if_own(fallback.tool):
            execution = self._execution(tool, ONE_HOP, arguments)  # the fallback's server is not the session's
        if execution.is_watched:
            execution.origin = self._origin()
        return execution

    def _execution(self, tool: Bound, settings: Mapping[str, object], arguments: object) -> Execution:
        if self._head.mended or not self._params.is_plain:
            settings = {**settings, **NOT_KEPT}
        execution = tool.execution((self,), {}, settings, arguments)
        execution.gate = self._ask_circuit
        if execution.policy.cache is not None:
            execution.subject.asker = self._session.upstream.asker(self.channel)
        return execution

    def _drive(self, execution: Execution, tool: Bound) -> Steps[Any]:
        """One guarded call, as `calls.adrive` makes it."""
        execution.as_task = True
        try:
            with execution:
                try:
                    for wait in execution.lookup():
                        yield wait
                except ToolTimeout:
                    self._is_called = True  # perhaps, by an identical call that this one waited for
                    raise
                for attempt in execution:
                    with attempt:
                        for wait in attempt.waits():
                            yield wait
                        self._outcome, self._is_late = None, False
                        with execution.inside() if execution.watched is not None else _OUTSIDE:
                            execution.value = yield from tool.fn(self, execution, attempt)
        finally:
            for wait in execution.after():
                yield wait
        if execution.fallback is None:
            return execution.value
        yield AT_ONCE  # the fallback's call finds its run in the context of the task
        other = tool.fallback_of(execution)
        again = self._execution(other, ONE_HOP, execution.given)
        return (yield from self._drive(again, other))

    def attempt(self, name: str, execution: Execution, attempt: Attempt) -> Steps[msgspec.Raw]:
        """Send it to the server as a call of the tool *name*, its own or a fallback's, and wait for the answer."""
        session, seconds = self._session, attempt.limit(attempt.begun)
        if seconds is not None:
            session.alarm.enter(self, attempt.begun + seconds)
        try:
            if (ready := session.upstream.ready) is not None:
                yield ready
            self._send(name, execution.watched)
            if self._outcome is None:
                yield None
            if isinstance(self._outcome, Exception):
                raise self._outcome
            assert self._outcome is not None  # only `take` and `lose` wake the script, and both set it
            return self._outcome
        except ServerLost as error:
            self._tell_circuit(error.circuit_category)
            raise
        except asyncio.CancelledError as error:
            self._cut_short()
            if not self._is_late or self._script.uncancel() or self._is_stopped:
                raise  # the call was cancelled, perhaps besides being late
            raise ToolTimeout(execution.tool.name, seconds or 0.0) from error
        finally:
            self.on_wire = False
            session.alarm.leave(self)
            session.unask(self)

    def _send(self, name: str, watched: WatchedCall | None) -> None:
        session, data = self._session, self._data
        if name != self._params.name:
            data = frames.with_params(data, name=name)
        if self._is_sent:  # the server knows the old id, and may still answer it
            self.wire_id = session.next_id()
            if self.progress is not None:
                self.progress.restart()
        else:
            self.wire_id = session.free_id(self.id)
        if self.wire_id != self.id:
            data = frames.with_id(data, self.wire_id)
        if watched is not None:
            data = frames.with_meta(data, watched.carried(str(self.wire_id)))
        self.on_wire = self._is_sent = True
        session.ask(self, data, self._head if data is self._data else frames.head(data))

    def _cut_short(self) -> None:
        """Note that an attempt ends without an answer: the server has failed, unless the client cancelled the call."""
        if not self._is_stopped and self._outcome is None:
            self._tell_circuit(ErrorCategory.TIMEOUT)
            if self.on_wire and not self._session.upstream.take_back(self.wire_id):
                self._is_called = True
                self._session.forsake(self.wire_id)

    # -- the answer ----------------------------------------------------------------------------------------------------

    def take(self, event: Event, head: Head) -> None:
        """Take the server's answer; a success goes to the client at once, before any later frame of the server."""
        self._is_called = True
        try:
            self._outcome = judge(head)
        except ToolFailed as failure:  # not sent to the client yet, since the call may be tried again
            failure.answer = (event, head)
            self._outcome = failure
        else:
            self._is_answered = True
            self.reply(event, head)
        self._tell_circuit(None)
        self._script.wake()

    def lose(self, error: ServerLost) -> None:
        """End the current attempt with *error*, since the server will not answer."""
        self._is_called = self._is_called or error.sent
        self._outcome = error
        self._script.wake()

    def reply(self, event: Event, head: Head) -> None:
        """Send an answer of the server to the client, under the id that the client expects."""
        self.channel.send(event.under(self.id, head))

    def _refuse(self, error: Exception, *, repeatable: bool) -> None:
        if self._is_answered:  # the server's answer went to the client before anything went wrong
            return
        modern = self._session.handshake.is_modern
        server = self._session.server.name
        result = refusal(error, server, called=self._is_called, repeatable=repeatable, modern=modern)
        said = error.answer if isinstance(error, ServerLost) else None
        self.channel.send(Event(frames.result(self.id, result), said=said))

    # -- the server's circuit, and the watcher -------------------------------------------------------------------------

    def _ask_circuit(self) -> None:
        if self._permit is None:  # otherwise this is a fallback: the tool was refused, and its permit is unused
            self._permit = self._session.server.admit(self._params.name)

    def _tell_circuit(self, category: ErrorCategory | None) -> None:
        """Tell the server's circuit how an attempt went: the first settles the permit, later ones count without one."""
        permit, self._permit = self._permit, None
        self._session.server.settle(category, permit)

    def _origin(self) -> Origin:
        """Where the call comes from and goes to, for the watcher."""
        session = self._session
        onward = "pipe" if session.upstream.condition.kind == "stdio" else "tcp"
        server, protocol = session.server.name, session.handshake.protocol
        carried = frames.carried(self._head)
        return Origin(server, self._params.name, str(self.id), protocol, session.transport, onward, carried)


def _as_result(value: object) -> object:
    """A fixed answer of a policy as the result of a tool."""
    if isinstance(value, msgspec.Raw) or (isinstance(value, dict) and "content" in value):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return {"content": [{"type": "text", "text": text}]}
