"""A proxied server as the guards know it: its tools, their annotations, and the server's own circuit.

All sessions with the same server share it. A proxied tool is named SERVER.TOOL everywhere except towards the client.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from holdfast import events
from holdfast.bus import Bus
from holdfast.calls.bound import Bound
from holdfast.category import ErrorCategory
from holdfast.clock import Clock, Timer
from holdfast.errors import CircuitOpen, printable
from holdfast.guards.circuit import Circuit, CircuitState
from holdfast.guards.names import short_key
from holdfast.mcp import frames
from holdfast.mcp.frames import Head
from holdfast.mcp.wire import Event
from holdfast.parts.breaker import CircuitBreaker
from holdfast.parts.permit import Permit
from holdfast.policy import PolicyBook
from holdfast.policy.book import ServerRules

if TYPE_CHECKING:
    from holdfast.calls.attempt import Attempt
    from holdfast.calls.execution import Execution
    from holdfast.mcp.calling import Call
    from holdfast.mcp.session import Session

DEFAULTS: Final = {"deadline": 50.0}  # most clients give up after a minute
MOST_TOOLS: Final = 10_000  # that are listed, and as many that are called
LONGEST_NAME: Final = 1000  # characters of a tool's name that is kept


class Home(Protocol):
    """The part of a `Holdfast` that a proxy needs."""

    @property
    def breaker(self) -> CircuitBreaker: ...

    @property
    def bus(self) -> Bus: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def policies(self) -> PolicyBook: ...

    def bind(self, name: str, fn: Callable[..., Any], given: Mapping[str, object]) -> Bound: ...

    def note(self, session: str, prompt: str) -> AbstractAsyncContextManager[Any]: ...

    def publish(self, *, kind: str, name: str, servers: Callable[[], list[dict[str, object]]]) -> None: ...

    def publish_soon(self) -> None: ...


class ProxiedServer:
    """One server called *name* behind the guards of *hf*; *hides*, or its policy, hides tools whose circuit is open."""

    def __init__(self, hf: Home, name: str, *, hides: bool = False) -> None:
        self.name = name
        self.publish = hf.publish_soon  # called when the server's state has changed, so that other processes see it
        self._hf = hf
        self._wants_hiding = hides
        self._edition: object = None  # of the policies that `_rules` are from
        self._rules: ServerRules
        self._circuit: Circuit | None = None
        self._bound: dict[str, Bound] = {}
        self._called: dict[str, Bound] = {}  # the same, and those whose annotations are forgotten; the oldest first
        self._hints: dict[str, _Hints] = {}  # the most recently listed tools are last
        self._sessions: set[Session] = set()
        self._is_watching = False  # it is told when a circuit changes
        self._hidden: frozenset[str] = frozenset()
        self._timer: Timer | None = None
        self._current_rules()

    # -- tools ---------------------------------------------------------------------------------------------------------

    def full_name(self, tool: str) -> str:
        """What *tool* is called in policies, statistics and events."""
        return printable(short_key(f"{self.name}.{tool}"), 200)

    def tool(self, name: str) -> Bound:
        """The guarded tool of that *name*."""
        bound = self._bound.get(name)
        if bound is None:
            bound = self._bound[name] = self._called[name] = self._bind(name)
            if len(name) > LONGEST_NAME:
                self._drop(name)
            elif len(self._called) > MOST_TOOLS:
                self._drop(next((each for each in self._called if each not in self._hints), next(iter(self._called))))
        return bound

    def _drop(self, name: str) -> None:
        """Forget a tool that was called: clients may call anything. A call that is under way still has it."""
        self._bound.pop(name, None)
        self._called.pop(name).drop()

    def _bind(self, name: str) -> Bound:
        def attempt(call: Call, execution: Execution, attempt: Attempt) -> object:
            return call.attempt(name, execution, attempt)  # a script, not an answer: only a `Call` can wait for it

        return self._hf.bind(self.full_name(name), attempt, dict.fromkeys(self._hints.get(name, _UNKNOWN).given, True))

    def bind_if_own(self, full_name: str) -> bool:
        """Bind the tool *full_name*, even if it was never called; False if it is a tool of another server."""
        own = f"{self.name}."
        if not full_name.startswith(own):
            return False
        self.tool(full_name.removeprefix(own))
        return True

    def learn(self, head: Head, event: Event, asker: bytes | None = None) -> Event:
        """Learn which tools may be repeated from the list that client *asker* gets; return it without hidden tools."""
        try:
            tools = frames.read(_LIST, head.result).tools
        except msgspec.DecodeError:
            return event
        for tool in tools[-MOST_TOOLS:]:
            if len(tool.name) <= LONGEST_NAME:
                self._learn(tool, asker)
        for name in list(itertools.islice(self._hints, max(0, len(self._hints) - MOST_TOOLS))):
            del self._hints[name]
            self._bound.pop(name, None)
        if not self._current_rules().hides:
            return event
        self._look()
        if not self._hidden:
            return event
        listed = zip(frames.read(_RAW_LIST, head.result).tools, tools, strict=True)
        kept = [raw for raw, tool in listed if self.full_name(tool.name) not in self._hidden]
        return event._replace(data=frames.with_result(event.data, tools=kept))

    def _learn(self, tool: _Tool, asker: bytes | None) -> None:
        """Note a tool's annotations; if clients are shown different ones, only those shown to all of them count."""
        said = tool.annotations if isinstance(tool.annotations, dict) else {}
        hints = _Hints(frozenset(key for key, hint in _HINTS.items() if said.get(hint) is True), asker)
        known = self._hints.pop(tool.name, None)
        if known is not None and known.asker != asker:
            hints = known if known.given <= hints.given else hints._replace(given=known.given & hints.given)
        if known is None or known.given != hints.given:
            self._bound.pop(tool.name, None)
        self._hints[tool.name] = hints

    def forget(self) -> None:
        """Forget the annotations, since the tools have changed."""
        self._hints.clear()
        self._bound.clear()

    # -- the server's circuit ------------------------------------------------------------------------------------------

    def admit(self, tool: str) -> Permit | None:
        """Ask the server's circuit, if it has one, whether *tool* may be called."""
        breaker = self._breaker()
        try:
            return breaker.admit(self.name) if breaker is not None else None
        except CircuitOpen as error:
            raise CircuitOpen(self.full_name(tool), f"its server {self.name!r} is down", error.retry_after) from None

    def settle(self, category: ErrorCategory | None, permit: Permit | None = None) -> None:
        """Tell the server's circuit, if it has one, how an attempt went: with the *permit* for it, if there was one."""
        if permit is not None:
            permit.succeed() if category is None else permit.fail(category)
        elif category is not ErrorCategory.CANCELLED and (breaker := self._breaker()) is not None:
            if category is None:
                breaker.record_success(self.name)
            else:
                breaker.record_failure(self.name, category)

    def _breaker(self) -> CircuitBreaker | None:
        """The breaker with the server's circuit, set up as its policy says; None if it has no circuit."""
        config, breaker = self._current_rules().breaker, self._hf.breaker
        if config is None:
            return None
        if self._circuit is None or self._circuit.evicted or self._circuit.config is not config:
            self._circuit = breaker.circuit(self.name, config)
        return breaker

    def _current_rules(self) -> ServerRules:
        """What the server's policy says, read again when the policies have changed."""
        policies = self._hf.policies
        if policies.edition is not self._edition:
            self._edition = policies.edition
            self._rules = policies.server(self.name)
            if self._wants_hiding:
                self._rules = msgspec.structs.replace(self._rules, hides=True)
            if self._rules.hides and not self._is_watching:
                self._watch()
        return self._rules

    # -- hiding --------------------------------------------------------------------------------------------------------

    def join(self, session: Session) -> None:
        """Add a session that begins."""
        self._sessions.add(session)

    def leave(self, session: Session) -> None:
        """Remove a session that has ended."""
        self._sessions.discard(session)
        if not self._sessions and self._timer is not None:
            self._timer.cancel()

    def announce(self, head: Head, event: Event) -> Event:
        """The answer to a handshake; if tools may be hidden, it promises `tools/list_changed` notifications."""
        if not self._current_rules().hides:
            return event
        try:
            capabilities = frames.read(_RESULT, head.result).get("capabilities")
        except msgspec.DecodeError:
            return event
        if not isinstance(capabilities, dict) or not isinstance(capabilities.get("tools"), dict):
            return event
        tools = {**capabilities["tools"], "listChanged": True}
        return event._replace(data=frames.with_result(event.data, capabilities={**capabilities, "tools": tools}))

    def _watch(self) -> None:
        """Listen to the events of circuits from now on."""
        self._is_watching = True
        loop = asyncio.get_running_loop()

        def tell(event: events.Event) -> None:
            if event.type.startswith("circuit_") and event.tool is not None:
                loop.call_soon_threadsafe(self._circuit_changed, event.tool)

        self._hf.bus.add(tell)

    def _circuit_changed(self, tool: str) -> None:
        if self._current_rules().hides and tool.startswith(f"{self.name}."):
            self._look_and_tell()

    def _look(self) -> bool:
        """Find out which tools are hidden now, and set a timer for the next to come back; True if they have changed."""
        clock, breaker = self._hf.clock, self._hf.breaker
        waits = {
            name: breaker.remaining_backoff(name)
            for name in map(self.full_name, self._hints)
            if breaker.state(name) is CircuitState.OPEN
        }
        hidden = frozenset(name for name, wait in waits.items() if wait is None or wait > 0)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        soonest = min((wait for wait in waits.values() if wait), default=None)
        if soonest is not None:
            self._timer = clock.call_at(clock.monotonic() + soonest, self._look_and_tell)
        changed, self._hidden = hidden != self._hidden, hidden
        return changed

    def _look_and_tell(self) -> None:
        """Tell the clients if other tools are hidden now; also called when a tool may be tried again, which is then
        shown, so that a client can try it.
        """
        if self._look():
            for session in self._sessions:
                session.tools_changed()


class _Hints(NamedTuple):
    """The annotations of a tool, and the client to which they were shown."""

    given: frozenset[str]
    asker: bytes | None


class _Tool(msgspec.Struct, frozen=True, gc=False):
    name: str
    annotations: Any = None  # checked for each tool by itself, so that odd ones do not spoil the whole list


class _List(msgspec.Struct, frozen=True, gc=False):
    tools: list[_Tool] = []


class _RawList(msgspec.Struct, frozen=True, gc=False):
    tools: list[msgspec.Raw] = []


_UNKNOWN: Final = _Hints(frozenset(), None)
_HINTS: Final = {"read_only": "readOnlyHint", "idempotent": "idempotentHint"}
_LIST = msgspec.json.Decoder(_List)
_RAW_LIST = msgspec.json.Decoder(_RawList)
_RESULT = msgspec.json.Decoder(dict[str, Any])
