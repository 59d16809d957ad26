"""The parts of a request that HTTP headers repeat from version 2026-07-28 on: method, name, and the arguments that a
tool asks to see there (`x-mcp-header` in its schema).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from holdfast.mcp import frames
from holdfast.mcp.frames import AnyParams, Head
from holdfast.mcp.http.incoming import TOKEN
from holdfast.mcp.wire import Event

METHOD: Final = "mcp-method"
NAME: Final = "mcp-name"
PARAM: Final = "mcp-param-"
MARK: Final = b"x-mcp-header"
MOST_DEEP: Final = 100
NAMED: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}

_TOKEN: Final = re.compile(TOKEN)
_PLAIN: Final = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")
_ENCODED: Final = re.compile(r"=\?base64\?(.*)\?=")
_PRIMITIVE: Final = ("string", "integer", "boolean")

Path = tuple[str, ...]


def mirrored(head: Head, params: AnyParams) -> dict[str, str]:
    """The headers that repeat the method and the name of a request."""
    headers = {METHOD: encoded(head.method or "")}
    if (named := name_in(head, params)) is not None:
        headers[NAME] = encoded(named)
    return headers


def name_in(head: Head, params: AnyParams) -> str | None:
    """The name or URI that a request is about, if its method has one."""
    field = NAMED.get(head.method or "")
    return None if field is None else params.name if field == "name" else params.uri


def encoded(value: str) -> str:
    """*value* as the value of a header; as Base64 if a header cannot hold it as it is."""
    if _PLAIN.fullmatch(value) and not _ENCODED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode('utf-8', 'replace')).decode()}?="


def decoded(value: str) -> str | None:
    """The text that the *value* of a header stands for; None if it cannot be decoded."""
    if (found := _ENCODED.fullmatch(value)) is None:
        return value
    try:
        return base64.b64decode(found[1], validate=True).decode()
    except ValueError:
        return None


class ToolHeaders:
    """Which arguments of which tools go into headers, as the last list of tools says."""

    def __init__(self) -> None:
        self._wanted: dict[str, dict[Path, str]] = {}

    def learn(self, head: Head, event: Event) -> Event:
        """Note what a list of tools asks for; return the list without tools that ask for something invalid."""
        tools = _tools(head)
        for tool in tools:
            self._wanted.pop(str(tool.get("name")), None)
        if MARK not in event.data:
            return event
        kept = []
        for tool in tools:
            wanted = wanted_by(tool.get("inputSchema"))
            if wanted is None:
                continue
            kept.append(tool)
            if wanted:
                self._wanted[str(tool.get("name"))] = wanted
        if len(kept) == len(tools):
            return event
        return event._replace(data=frames.with_result(event.data, tools=kept))

    def of(self, head: Head, name: str | None) -> dict[str, str]:
        """The headers for a call of the tool *name*."""
        wanted = self._wanted.get(name) if name is not None else None
        if not wanted:
            return {}
        try:
            arguments = frames.call_params(head).arguments or {}
        except msgspec.DecodeError:
            return {}
        found = {token: _at(arguments, path) for path, token in wanted.items()}
        return {PARAM + token: encoded(text) for token, value in found.items() if (text := _text(value)) is not None}


def wanted_by(schema: object) -> dict[Path, str] | None:
    """The arguments that *schema* wants in headers, by their path; None if it asks for something invalid."""
    wanted: dict[Path, str] = {}
    taken: set[str] = set()
    for path, node in _places(schema, (), 0):
        token = node["x-mcp-header"]
        if not path or not isinstance(token, str) or not _TOKEN.fullmatch(token) or node.get("type") not in _PRIMITIVE:
            return None
        if token.lower() in taken:
            return None
        taken.add(token.lower())
        wanted[path] = token
    return wanted


def _places(node: object, path: Path | None, depth: int) -> Iterator[tuple[Path | None, dict[str, Any]]]:
    """The parts of a schema that are marked; a path is None if it is not a chain of properties alone."""
    if depth > MOST_DEEP:
        return
    if isinstance(node, list):
        for part in node:
            yield from _places(part, None, depth + 1)
    elif isinstance(node, dict):
        if "x-mcp-header" in node:
            yield path, node
        for key, value in node.items():
            if key == "properties" and isinstance(value, dict):
                for name, part in value.items():
                    yield from _places(part, None if path is None else (*path, name), depth + 1)
            elif key not in ("default", "examples", "const", "enum"):  # not schemas
                yield from _places(value, None, depth + 1)


def _tools(head: Head) -> list[dict[str, Any]]:
    try:
        return frames.read(_LIST, head.result).tools
    except msgspec.DecodeError:
        return []


def _at(value: object, path: Path) -> object:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int) else None


class _List(msgspec.Struct, frozen=True):
    tools: list[dict[str, Any]] = []


_LIST = msgspec.json.Decoder(_List)
