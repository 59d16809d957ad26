"""The policies of a process: resolved for each tool, read again when their file changes.

No thread and no timer: the code that makes calls compares the time with `next_check` and calls `refresh` when due.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from holdfast import checks
from holdfast.errors import ConfigError
from holdfast.guards.breaking import BreakerConfig
from holdfast.policy.file import Signature, absolute_store, glance, read_file
from holdfast.policy.layers import DEFAULT, Layer, build, given_settings, origins
from holdfast.policy.mistakes import Place, broken, shown
from holdfast.policy.parsing import parse
from holdfast.policy.rules import Rules, is_pattern
from holdfast.policy.settings import Policy

CHECK_EVERY: Final = 1.0  # seconds between two looks at the file


class Reload(msgspec.Struct, frozen=True):
    """The file at *path* changed: its policies are in force, or *error* says why the old ones stay."""

    path: str
    error: ConfigError | None = None


class ServerRules(msgspec.Struct, frozen=True):
    """The rules of a proxied server: its own circuit, and whether tools whose circuit is open are left off its list."""

    breaker: BreakerConfig | None
    hides: bool


class _State(msgspec.Struct, frozen=True):
    """One object, so that rules and the signature of their file change together."""

    rules: Rules
    seen: Signature | None


class PolicyBook:
    """All policies that a process knows."""

    def __init__(self) -> None:
        self.path: str | None = None
        # From the first reading of the file: a process does not move to another store, or to another fleet.
        self.store: str | None = None
        self.redis: str | None = None
        self.on_outage: str | None = None
        self.next_check = math.inf
        self._name = ""
        self._defaults = Layer(DEFAULT, {})
        self._state = _State(Rules(), None)
        self._lock = threading.Lock()
        self._looking = False
        self._proxied: set[str] = set()  # servers whose tools have no decorators

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str] | Mapping[str, object] | None,
        *,
        defaults: Mapping[str, object] | None = None,
    ) -> PolicyBook:
        """The policies in the file or mapping *source*, over *defaults* that differ from Holdfast's own."""
        book = cls()
        place = Place("defaults:", [])
        book._defaults = Layer(DEFAULT, _in_code(defaults, None, place))
        place.settle()
        if isinstance(source, Mapping):
            book._state = _State(Rules.read(source, "policies", "policies"), None)
            book.store = book._state.rules.store
        elif isinstance(source, str | os.PathLike):
            book._name = os.fsdecode(source)
            book.path = os.path.abspath(book._name)  # a process may change its folder later
            book._state = _read(book.path, book._name)
            store = book._state.rules.store
            book.store = absolute_store(store, book.path) if store else None
            book.next_check = -math.inf
        elif source is not None:
            raise broken([f"policies = {checks.shown(source)}: must be the path of a file, or a mapping"])
        book.redis, book.on_outage = book._state.rules.redis, book._state.rules.on_outage
        return book

    @property
    def edition(self) -> object:
        """Another object after each reload, so that code that keeps a resolved policy can tell that it is old."""
        return self._state.rules

    def resolve(
        self, tool: str, given: Mapping[str, object] | None = None, call: Mapping[str, object] | None = None
    ) -> Policy:
        """Return the policy of *tool*; *given* are the settings of its decorator, *call* those of a single call."""
        return self._resolve(self._state.rules, tool, given, call)[0]

    def origins(
        self, tool: str, given: Mapping[str, object] | None = None, call: Mapping[str, object] | None = None
    ) -> dict[str, str]:
        """Return where each value of the resolved policy comes from; the fields of tables have dotted names."""
        policy, layers = self._resolve(self._state.rules, tool, given, call)
        return origins(layers, policy)

    def given_settings(self, tool: str, given: Mapping[str, object] | None = None) -> list[tuple[str, object, str]]:
        """Return name, value and origin of each setting given for *tool*, even if they make no valid policy."""
        place = Place("", [])
        return list(given_settings(self._layers(self._state.rules, tool, (_in_code(given, tool, place), {}))))

    @property
    def names(self) -> list[str]:
        """The tools, patterns and servers that the document names; a server as the pattern of its tools."""
        rules = self._state.rules
        return list(dict.fromkeys([*(f"{server}.*" for server in rules.servers), *rules.named]))

    @property
    def tools(self) -> list[str]:
        """Those of `names` that are tools, not patterns."""
        return sorted(name for name in self.names if not is_pattern(name))

    @property
    def servers(self) -> list[str]:
        """The servers that the document names."""
        return list(self._state.rules.servers)

    def hides(self, server: str) -> bool:
        """True if tools whose circuit is open are left out of the tool list of *server*."""
        return self._state.rules.hiding.get(server, False)

    def server(self, name: str) -> ServerRules:
        """Return the rules of a proxied server as a whole; from now on the document alone must do for its tools."""
        self._proxied.add(name)
        return ServerRules(self._check_server(self._state.rules, name).breaker, self.hides(name))

    def refresh(self, now: float, known: Iterable[tuple[str, Mapping[str, object] | None]] = ()) -> Reload | None:
        """Check, at most once a second of *now*, whether the file changed; if so, apply its policies or report why not.

        *known* are tools with the settings of their decorators: a file that does not fit them is a bad one.
        """
        path = self.path
        if path is None:
            return None
        with self._lock:
            if self._looking or now < self.next_check:
                return None
            self._looking = True
            self.next_check = now + CHECK_EVERY
        try:
            return self._look(path, known)
        finally:
            self._looking = False

    def after_fork(self) -> None:
        """Reset in a forked child: the thread that was checking the file does not exist there."""
        self._lock = threading.Lock()
        self._looking = False

    def _look(self, path: str, known: Iterable[tuple[str, Mapping[str, object] | None]]) -> Reload | None:
        seen = glance(path)
        if seen == self._state.seen:
            return None
        try:
            if seen is None:
                raise broken([f"{self._name}: is gone; the policies read from it stay in force"])
            new = _read(path, self._name)
            for tool, given in known:
                self._resolve(new.rules, tool, given, None)
            for server in tuple(self._proxied):
                self._check_server(new.rules, server)
        except ConfigError as error:
            self._state = msgspec.structs.replace(self._state, seen=seen)  # so that the error is reported once
            return Reload(path, error)
        self._state = new
        return Reload(path)

    def _check_server(self, rules: Rules, server: str) -> Policy:
        """Return the policy of a *server* itself; raise one error for all wrong policies of it and its named tools."""
        own = f"{server}."
        tools = [tool for tool in rules.named if tool.startswith(own) and not is_pattern(tool.removeprefix(own))]
        mistakes: list[str] = []
        for tool in (*tools, own):
            try:
                policy = self._resolve(rules, tool, None, None)[0]
            except ConfigError as error:
                mistakes.extend(error.problems)
        Place("", mistakes).settle()
        return policy

    def _resolve(
        self, rules: Rules, tool: str, given: Mapping[str, object] | None, call: Mapping[str, object] | None
    ) -> tuple[Policy, list[Layer]]:
        place = Place(f"policy of {checks.shown(tool)}:", [])
        decorator, one_call = _in_code(given, tool, place), _in_code(call, tool, place)
        marked = bool(decorator.get("read_only"))
        _check_cache(decorator, marked, place)
        place.settle()
        layers = self._layers(rules, tool, (decorator, one_call))
        policy = build(layers, place.name)
        _check_cache(one_call, marked or policy.read_only, place)
        place.settle()
        return policy, layers

    def _layers(self, rules: Rules, tool: str, code: tuple[Mapping[str, object], Mapping[str, object]]) -> list[Layer]:
        """Return all layers of settings for *tool*, lowest first; *code* is what its decorator and its call give."""
        decorator, call = code
        below, above = (self._defaults, rules.base, Layer("decorator", decorator)), rules.above(tool)
        return [_without_own_fallback(layer, tool) for layer in (*below, *above, Layer("call", call))]


def _read(path: str, name: str) -> _State:
    document, seen = read_file(path, name)
    return _State(Rules.read(document, name, f"file {name}"), seen)


def _in_code(given: object, tool: str | None, place: Place) -> dict[str, object]:
    if given is None or isinstance(given, Mapping):
        return parse(given or {}, place, tool=tool)
    place.mistakes.append(f"{place.name} {shown(given)}: must be a mapping of settings")
    return {}


def _check_cache(values: Mapping[str, object], read_only: bool, place: Place) -> None:
    """Code that asks for a cache must mark the tool read-only; a file that asks for an unmarked tool is ignored."""
    cache = values.get("cache")
    if isinstance(cache, dict) and not read_only:
        place.refuse("cache", cache, "needs read_only=True, as only what changes nothing may be answered from memory")


def _without_own_fallback(layer: Layer, tool: str) -> Layer:
    """Return *layer* without a fallback to *tool* itself: a pattern may match the very tool that it falls back to."""
    fallback = layer.values.get("fallback")
    if isinstance(fallback, dict) and fallback.get("tool") == tool:
        return layer._replace(values={key: value for key, value in layer.values.items() if key != "fallback"})
    return layer
