"""The tables of one document, and which of them apply to which tool.

A table is for one tool by name, or for all tools whose name matches a glob. A glob with more literal characters wins
over one with fewer, and a name over globs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import translate
from typing import Any, Final

import msgspec

from holdfast.errors import ConfigError
from holdfast.policy.layers import Layer, build
from holdfast.policy.mistakes import Place, quoted
from holdfast.policy.parsing import KEYS, parse

HIDES: Final = "hide_open_tools"  # the one setting of a proxied server that its tools do not have
_TOP: Final = ("on_outage", "policy", "redis", "server", "store", "tool")
OUTAGES: Final = ("local", "refuse")  # while Redis is away, local guards decide or calls are refused
_WILD: Final = re.compile(r"\[!?\]?[^\]]*\]|[*?]")


class Pattern(msgspec.Struct, frozen=True):
    """A table for all tools whose name it matches; *literals* is how many of its characters are not wild."""

    literals: int
    matches: Callable[[str], object]
    layer: Layer


def is_pattern(name: str) -> bool:
    """True if *name* is a glob rather than the name of one tool."""
    return _WILD.search(name) is not None


class Rules:
    """What one document says; never changed once it is read."""

    __slots__ = ("base", "hiding", "named", "on_outage", "patterns", "redis", "servers", "store")

    def __init__(self) -> None:
        self.base = Layer("", {})
        self.servers: dict[str, Layer] = {}
        self.hiding: dict[str, bool] = {}  # by server: are tools whose circuit is open left out of its list?
        self.patterns: list[Pattern] = []
        self.named: dict[str, list[Layer]] = {}
        self.store: str | None = None
        self.redis: str | None = None
        self.on_outage: str | None = None

    @classmethod
    def read(cls, document: Mapping[str, object], name: str, origin: str) -> Rules:
        """The rules of *document*; *name* is what errors call it, *origin* where its values are said to come from."""
        reader = _Reader(cls(), name, origin)
        reader.document(document)
        reader.top.settle()
        rules = reader.rules
        rules.patterns.sort(key=lambda pattern: pattern.literals)  # stable: of equals, the later one stays later
        return rules

    def above(self, tool: str) -> Iterator[Layer]:
        """Yield the layers for *tool* that win over its decorator's, lowest first."""
        for place, letter in enumerate(tool):
            if letter == "." and (server := self.servers.get(tool[:place])):
                yield server
        for pattern in self.patterns:
            if pattern.matches(tool):
                yield pattern.layer
        yield from self.named.get(tool, ())


class _Reader:
    """Reads a document into *rules*, and collects its mistakes."""

    def __init__(self, rules: Rules, name: str, origin: str) -> None:
        self.rules = rules
        self._name = name
        self._origin = origin
        self.top = Place(f"{name}:", [])

    def document(self, document: Mapping[str, object]) -> None:
        # The servers last, so that their tables win over other tables for the same tool.
        for key, value in sorted(document.items(), key=lambda item: item[0] == "server"):
            if key in {"store", "redis"}:
                self._address(key, value)
            elif key == "on_outage":
                self._on_outage(value)
            elif key == "policy":
                if (table := self._table("policy", value)) is not None:
                    self._base(table)
            elif key == "tool":
                self._tools("tool", value)
            elif key == "server":
                for server, table in self._tables("server", value):
                    self._server(server, table)
            elif key in KEYS:
                self.top.refuse(key, value, "unknown key here; settings of every tool belong in [policy]")
            else:
                self.top.unknown(key, value, _TOP)

    def _base(self, table: Mapping[str, object]) -> None:
        mistakes = self.top.mistakes
        known = len(mistakes)
        self.rules.base = self._layer("policy", table)
        if len(mistakes) == known:
            try:  # it has to be valid alone, for tools that have no other settings
                build([self.rules.base], f"{self._name}: [policy]")
            except ConfigError as error:
                mistakes.extend(error.problems)

    def _address(self, key: str, value: object) -> None:
        if isinstance(value, str) and value:
            setattr(self.rules, key, value)
        elif key == "store":
            self.top.refuse(key, value, "must be a path, or an address such as sqlite:///agent.db")
        else:
            self.top.refuse(key, value, "must be an address such as redis://host:6379")

    def _on_outage(self, value: object) -> None:
        if isinstance(value, str) and value in OUTAGES:
            self.rules.on_outage = value
        else:
            self.top.refuse("on_outage", value, f"must be one of {', '.join(OUTAGES)}")

    def _server(self, server: str, table: Mapping[str, object]) -> None:
        path = f"server.{quoted(server)}"
        hint = f"a tool of the server is [{path}.tool.NAME]"
        self.rules.servers[server] = self._layer(path, table, beside=("tool", HIDES), hint=hint)
        if isinstance(hides := table.get(HIDES, False), bool):
            self.rules.hiding[server] = hides
        else:
            self.top.refuse(f"{path}.{HIDES}", hides, "must be true or false")
        self._tools(f"{path}.tool", table.get("tool", {}), f"{server}.")

    def _tools(self, path: str, value: object, prefix: str = "") -> None:
        for name, table in self._tables(path, value):
            wild = is_pattern(name)
            hint = f"a name with dots needs quotes: [{path}.{quoted(f'{name}.NAME')}]"
            layer = self._layer(f"{path}.{quoted(name)}", table, tool=None if wild else prefix + name, hint=hint)
            self.rules.named.setdefault(prefix + name, []).append(layer)
            if wild:
                matches = re.compile(re.escape(prefix) + translate(name)).match
                literals = len(prefix) + len(_WILD.sub("", name))
                self.rules.patterns.append(Pattern(literals, matches, layer))

    def _layer(self, path: str, table: Mapping[str, object], **how: Any) -> Layer:
        place = Place(f"{self._name}: [{path}]", self.top.mistakes)
        return Layer(f"{self._origin} [{path}]", parse(table, place, **how))

    def _tables(self, path: str, value: object) -> Iterator[tuple[str, Mapping[str, object]]]:
        """The tables within a table, by name."""
        for name, inner in (self._table(path, value) or {}).items():
            if not isinstance(name, str) or not name:
                self.top.refuse(f"{path}.{quoted(name)}", inner, "must have a name that is a text and not empty")
            elif (table := self._table(f"{path}.{quoted(name)}", inner)) is not None:
                yield name, table

    def _table(self, path: str, value: object) -> Mapping[str, object] | None:
        if isinstance(value, Mapping):
            return value
        self.top.refuse(path, value, "must be a table")
        return None
