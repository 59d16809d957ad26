"""A proxied server as the guards know it: its tools, what they say of themselves, and its own circuit.

All sessions with the same server share it. A proxied tool is named SERVER.TOOL everywhere but towards the client.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from holdfast.calls.bound import Bound
from holdfast.category import ErrorCategory
from holdfast.clock import Clock, Timer
from holdfast.errors import printable
from holdfast.guards.circuit import Circuit, CircuitState
from holdfast.mcp import frames
from holdfast.mcp.frames import Head
from holdfast.mcp.wire import Event
from holdfast.parts.breaker import CircuitBreaker
from holdfast.parts.permit import Permit
from holdfast.policy import PolicyBook
from holdfast.policy.book import ServerRules

DEFAULTS: Final = {"deadline": 50.0}  # most clients give up after a minute
MOST_TOOLS: Final = 10_000


class Guards(Protocol):
    """What is needed of a Holdfast."""

    @property
    def breaker(self) -> CircuitBreaker: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def policies(self) -> PolicyBook: ...

    def bind(self, name: str, fn: Callable[..., Any], given: Mapping[str, object]) -> Bound: ...


class Told(Protocol):
    """A session, as its server sees it."""

    def tools_changed(self) -> None: ...


class ProxiedServer:
    """One server behind *guards*, as *name*; with *hides*, or by its policy, open tools leave the list of tools.

    *publish* is called when there is news for those who watch from elsewhere; *watch* once, when tools may be hidden:
    from then on `circuit_changed` is to be told.
    """

    def __init__(
        self,
        guards: Guards,
        name: str,
        *,
        hides: bool = False,
        publish: Callable[[], object] = lambda: None,
        watch: Callable[[], object] = lambda: None,
    ) -> None:
        self.name = name
        self.publish = publish
        self._watch: Callable[[], object] | None = watch
        self._guards = guards
        self._wants_hiding = hides
        self._edition = guards.policies.edition
        self._rules = guards.policies.server(name)
        self._circuit: Circuit | None = None
        self._bound: dict[str, Bound] = {}
        self._hints: dict[str, dict[str, object]] = {}  # those that were listed last are the last
        self._sessions: set[Told] = set()
        self._hidden: frozenset[str] = frozenset()
        self._timer: Timer | None = None
        self._watch_if_hiding()

    # -- tools ---------------------------------------------------------------------------------------------------------

    def full_name(self, tool: str) -> str:
        """What *tool* is called in policies, statistics and events."""
        return printable(f"{self.name}.{tool}", 190)

    def tool(self, name: str) -> Bound:
        """The guarded tool of that *name*."""
        bound = self._bound.get(name)
        if bound is None:
            bound = self._bind(name)
            if len(self._bound) < MOST_TOOLS:
                self._bound[name] = bound
                self._bind_fallback(bound)
        return bound

    def _bind(self, name: str) -> Bound:
        def attempt(call: Any) -> Any:
            return call.attempt(name)  # a script, not an answer: only a `Call` knows how to wait for it

        return self._guards.bind(self.full_name(name), attempt, self._hints.get(name, {}))

    def _bind_fallback(self, bound: Bound) -> None:
        """Have the tool at hand that is to answer in place of another, though nobody has called it yet."""
        fallback = bound.tool.policy.fallback
        if fallback is not None and fallback.tool is not None and fallback.tool.startswith(f"{self.name}."):
            name = fallback.tool.removeprefix(f"{self.name}.")
            if name not in self._bound:
                self._bound[name] = self._bind(name)

    def learn(self, head: Head, event: Event) -> Event:
        """Take from a list of tools which may be repeated; without the hidden ones, if tools are hidden."""
        try:
            tools = frames.read(_LIST, head.result).tools
        except msgspec.DecodeError:
            return event
        for tool in tools:
            said = tool.annotations if isinstance(tool.annotations, dict) else {}
            given: dict[str, object] = {key: True for key, hint in _HINTS.items() if said.get(hint) is True}
            if self._hints.pop(tool.name, None) != given:
                self._bound.pop(tool.name, None)
            self._hints[tool.name] = given
        for name in list(itertools.islice(self._hints, max(0, len(self._hints) - MOST_TOOLS))):
            del self._hints[name]
            self._bound.pop(name, None)
        if self._hides:
            self._look()
            if self._hidden:
                kept = [
                    raw
                    for raw, tool in zip(frames.read(_RESULT, head.result)["tools"], tools, strict=True)
                    if self.full_name(tool.name) not in self._hidden
                ]
                return event._replace(data=frames.with_result(event.data, tools=kept))
        return event

    def forget(self) -> None:
        """The tools have changed: what they said of themselves no longer counts."""
        self._hints.clear()
        self._bound.clear()

    # -- the server's circuit ------------------------------------------------------------------------------------------

    def admit(self) -> Permit | None:
        """Ask the server's circuit, if it has one."""
        config = self._known().breaker
        if config is None:
            return None
        circuit = self._circuit
        if circuit is None or circuit.evicted or circuit.config is not config:
            self._circuit = self._guards.breaker.circuit(self.name, config)
        return self._guards.breaker.admit(self.name)

    def settle(self, category: ErrorCategory | None) -> None:
        """Tell the server's circuit, if it has one."""
        config = self._known().breaker
        if config is None:
            return
        self._guards.breaker.circuit(self.name, config)
        if category is None:
            self._guards.breaker.record_success(self.name)
        else:
            self._guards.breaker.record_failure(self.name, category)

    def _known(self) -> ServerRules:
        """What its policy says, also when that has changed."""
        if self._guards.policies.edition is not self._edition:
            self._edition = self._guards.policies.edition
            self._rules = self._guards.policies.server(self.name)
            self._watch_if_hiding()
        return self._rules

    def _watch_if_hiding(self) -> None:
        if self._watch is not None and (self._wants_hiding or self._rules.hides):
            watch, self._watch = self._watch, None
            watch()

    @property
    def _hides(self) -> bool:
        return self._wants_hiding or self._known().hides

    # -- hiding --------------------------------------------------------------------------------------------------------

    def join(self, session: Told) -> None:
        """A session begins."""
        self._sessions.add(session)

    def leave(self, session: Told) -> None:
        """A session has ended."""
        self._sessions.discard(session)
        if not self._sessions and self._timer is not None:
            self._timer.cancel()

    def announce(self, head: Head, event: Event) -> Event:
        """The answer to a handshake, which promises news of the list of tools if tools are hidden."""
        if not self._hides:
            return event
        try:
            capabilities = frames.read(_RESULT, head.result).get("capabilities")
        except msgspec.DecodeError:
            return event
        if not isinstance(capabilities, dict) or not isinstance(capabilities.get("tools"), dict):
            return event
        tools = {**capabilities["tools"], "listChanged": True}
        return event._replace(data=frames.with_result(event.data, capabilities={**capabilities, "tools": tools}))

    def circuit_changed(self, tool: str) -> None:
        """The circuit of *tool* has changed its state."""
        if self._hides and tool.startswith(f"{self.name}."):
            self._look_and_tell()

    def _look(self) -> bool:
        """See which tools are hidden now; whether they are others than before."""
        clock, breaker = self._guards.clock, self._guards.breaker
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
        """Also when a tool may be tried again: it is shown, so that somebody tries it."""
        if self._look():
            for session in self._sessions:
                session.tools_changed()


class _Tool(msgspec.Struct, frozen=True, gc=False):
    name: str
    annotations: Any = None  # of each by itself, so that an odd one is no loss for the others


class _List(msgspec.Struct, frozen=True, gc=False):
    tools: list[_Tool] = []


_HINTS: Final = {"read_only": "readOnlyHint", "idempotent": "idempotentHint"}
_LIST = msgspec.json.Decoder(_List)
_RESULT = msgspec.json.Decoder(dict[str, Any])
