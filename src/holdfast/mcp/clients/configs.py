"""The MCP servers that a client's configuration lists: `mcpServers`, or the `servers` of VS Code.

An entry that goes through Holdfast already is read as the server behind it. Placeholders such as `${input:token}` are
for the client to fill in; they stay as they are, unless a gateway is to run the servers in the client's place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import ConfigError, printable
from holdfast.mcp.clients.jsonc import Member, Object, Scalar, Value, parse, plain
from holdfast.mcp.clients.placeholders import filled

STDIO: Final = "stdio"
HTTP: Final = "http"
SSE: Final = "sse"  # HTTP with two endpoints, from before protocol version 2025-03-26
TRANSPORTS: Final[Mapping[str, str]] = {
    "stdio": STDIO,
    "local": STDIO,
    "http": HTTP,
    "streamable-http": HTTP,
    "streamable_http": HTTP,
    "streamableHttp": HTTP,
    "sse": SSE,
}
OTHERS: Final[Mapping[str, str]] = {".toml": "TOML", ".yaml": "YAML", ".yml": "YAML"}  # not JSON, by file ending
# Options of `wrap` that have a value.
VALUED: Final = frozenset({"--name", "--policy", "--store", "--url", "--type", "--header", "--header-env"})

_ELSEWHERE: Final = re.compile("mcp|context_servers", re.IGNORECASE)  # keys of the server tables of other clients
_ADDRESS: Final = re.compile("ur[il]$", re.IGNORECASE)  # keys that other clients use for an address


class OtherFormat(ConfigError):
    """The file belongs to a client that lists its servers in a way that is not read here."""


class Wrapping(NamedTuple):
    """The arguments of `holdfast wrap`, parsed; *command* and *url* are indexes into the arguments of the entry."""

    type: str | None
    command: int | None
    url: int | None
    headers: Mapping[str, str]
    header_envs: Mapping[str, str]  # header to variable


class ServerEntry(Struct, frozen=True, kw_only=True):
    """One server; *project* is the folder it is meant for, where the file has servers of several projects.

    *wrapping* is how it goes through Holdfast, if it does. *problem* is why the entry cannot be read or filled in.
    """

    name: str
    project: str | None = None
    transport: str = STDIO
    type: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = {}
    disabled: bool = False
    wrapping: Wrapping | None = None
    problem: str | None = None


class Listed(NamedTuple):
    """An entry as it stands in the file, in a *table* of the whole file, or of one *project*."""

    table: str
    project: str | None
    member: Member

    @property
    def name(self) -> str:
        """The name of the server."""
        return self.member.name


def servers(text: str, name: str, env: Mapping[str, str] | None = None) -> list[ServerEntry]:
    """The servers that *text* lists; raise a `ConfigError` with the *name* of the file if it is not a configuration.

    A mistake in one entry is the `problem` of that server. *env* is the environment of the process that is to run the
    servers: with it, headers are read from its variables, and placeholders are filled in.
    """
    return [_server_or_problem(listed, env) for listed in entries(text, name)]


def entries(text: str, name: str) -> list[Listed]:
    """The entries that count, in the order of the file; of two with the same name the client takes the later one."""
    if (kind := OTHERS.get(os.path.splitext(name)[1].lower())) is not None:
        raise OtherFormat(f"{name}: is {kind}, and only JSON is read")
    root = parse(text, name)
    if not isinstance(root, Object):
        raise ConfigError(f"{name}: must be an object {{…}} with mcpServers or servers in it")
    found = []
    tables = list(_tables(root))
    if not tables and (key := _elsewhere(root)) is not None:
        raise OtherFormat(f"{name}: servers are read from mcpServers, or VS Code's servers, not from {printable(key)}")
    for table, project, value in tables:
        if not isinstance(value, Object):
            place = f" of {printable(project)}" if project is not None else ""
            raise ConfigError(f"{name}: {table}{place}: must be an object of servers by name")
        found += [Listed(table, project, member) for member in value.members if value.member(member.name) is member]
    return found


def server(listed: Listed, env: Mapping[str, str] | None = None) -> ServerEntry:
    """The server that an entry stands for; raise a `ConfigError` if the entry has a mistake."""
    entry = listed.member.value
    if not isinstance(entry, Object):
        raise ConfigError("must be an object")
    twice = {member.name for member in entry.members if entry.member(member.name) is not member}
    if twice:
        raise ConfigError(f"{printable(min(twice))} is there twice")
    if _text(entry, "command") is None and _text(entry, "url") is None:
        others = [member.name for member in entry.members if _ADDRESS.search(member.name)]
        raise ConfigError("has neither command nor url" + (f"; {printable(others[0])} is not read" if others else ""))
    return _behind(
        ServerEntry(
            name=listed.name,
            project=listed.project,
            type=_text(entry, "type"),
            command=_text(entry, "command"),
            args=tuple(_texts(entry, "args")),
            env=_pairs(entry, "env"),
            cwd=_text(entry, "cwd"),
            url=_text(entry, "url"),
            headers=_pairs(entry, "headers"),
            disabled=_flag(entry, "disabled"),
        ),
        env,
    )


def _server_or_problem(listed: Listed, env: Mapping[str, str] | None) -> ServerEntry:
    try:
        found = server(listed, env)
        return found if env is None or found.disabled else _filled(found, env)
    except ConfigError as error:
        entry = listed.member.value
        disabled = isinstance(entry, Object) and _flag(entry, "disabled")
        return ServerEntry(name=listed.name, project=listed.project, disabled=disabled, problem=str(error))


def wrapping_of(command: str, args: Sequence[str]) -> Wrapping | None:
    """The arguments of `holdfast wrap` in this command line; None if it does not run `holdfast wrap` by any path."""
    before = command
    for index, word in enumerate(args):
        if word == "wrap" and is_holdfast(before):
            return _wrap_arguments(args, index + 1)
        if word == "--":
            break
        before = word
    return None


def is_holdfast(word: str) -> bool:
    """Whether *word* names our executable: by any path, or as the package in `python -m`, `uvx` and the like."""
    return os.path.basename(word).partition("[")[0].partition("@")[0].removesuffix(".exe") == "holdfast"


def _behind(entry: ServerEntry, env: Mapping[str, str] | None) -> ServerEntry:
    """The server behind *entry*, or *entry* itself if it does not go through Holdfast, with its transport."""
    wrapping = None if entry.command is None else wrapping_of(entry.command, entry.args)
    if wrapping is None:
        return replace(entry, transport=_transport(entry))
    if wrapping.url is not None:
        ours, held = wrapping.header_envs, {**(env or {}), **entry.env}
        if env is not None and (missing := sorted({*ours.values()} - {*held})):
            raise ConfigError(f"the variable {printable(missing[0])} is not set, from which a header comes")
        behind = replace(
            entry,
            type=wrapping.type or HTTP,
            command=None,
            args=(),
            url=entry.args[wrapping.url].removeprefix("--url="),
            headers={**wrapping.headers, **{header: held[name] for header, name in ours.items() if name in held}},
            env={variable: value for variable, value in entry.env.items() if variable not in ours.values()},
        )
    elif wrapping.command is not None:
        behind = replace(entry, command=entry.args[wrapping.command], args=entry.args[wrapping.command + 1 :])
    else:
        raise ConfigError("its arguments of `holdfast wrap` have neither -- COMMAND nor --url URL")
    return replace(behind, transport=_transport(behind), wrapping=wrapping)


def _filled(entry: ServerEntry, env: Mapping[str, str]) -> ServerEntry:
    """*entry* with its placeholders filled in."""

    def fill(text: str | None) -> str | None:
        return None if text is None else filled(text, env)

    return replace(
        entry,
        command=fill(entry.command),
        args=tuple(filled(word, env) for word in entry.args),
        env={name: filled(text, env) for name, text in entry.env.items()},
        cwd=fill(entry.cwd),
        url=fill(entry.url),
        headers={name: filled(text, env) for name, text in entry.headers.items()},
    )


def _tables(root: Object) -> Iterator[tuple[str, str | None, Value]]:
    for table in ("mcpServers", "servers"):
        if (value := root.get(table)) is not None:
            yield table, None, value
    projects = root.get("projects")
    if isinstance(projects, Object):  # the private settings of Claude Code
        for member in projects.members:
            if isinstance(member.value, Object) and (value := member.value.get("mcpServers")) is not None:
                yield "mcpServers", member.name, value


def _elsewhere(root: Object) -> str | None:
    """The key under which a file seems to list its servers, if that is one which we do not read."""
    for member in root.members:
        if _ELSEWHERE.search(member.name) and isinstance(member.value, Object):
            if any(isinstance(inner.value, Object) for inner in member.value.members):
                return member.name
    return None


def _wrap_arguments(args: Sequence[str], at: int) -> Wrapping:
    kind = url = command = None
    headers: dict[str, str] = {}
    header_envs: dict[str, str] = {}
    while at < len(args):
        option, given, value = args[at].partition("=")
        if args[at] == "--":
            command = at + 1 if at + 1 < len(args) else None
            break
        if not given and at + 1 < len(args) and (option in VALUED or not args[at + 1].startswith("-")):
            at += 1
            value = args[at]
        if option == "--type":
            kind = value
        elif option == "--url":
            url = at
        elif option == "--header-env":
            header, _, variable = value.partition("=")
            header_envs[header] = variable
        elif option == "--header":
            header, _, text = value.partition(":")
            headers[header.strip()] = text.strip()
        at += 1
    return Wrapping(kind, command, url, headers, header_envs)


def _transport(entry: ServerEntry) -> str:
    if entry.command is not None and entry.url is not None:
        raise ConfigError("has both command and url")
    if entry.type is None:
        if entry.url is None:
            return STDIO
        return SSE if _path(entry.url).rstrip("/").endswith("/sse") else HTTP
    transport = TRANSPORTS.get(entry.type)
    if transport is None:
        raise ConfigError(f"type {printable(entry.type)!r} is not one of {', '.join(TRANSPORTS)}")
    if (transport == STDIO) is not (entry.url is None):
        raise ConfigError(f"type {printable(entry.type)!r} needs {'a command' if transport == STDIO else 'a url'}")
    return transport


def _path(url: str) -> str:
    try:
        return urlsplit(url).path
    except ValueError:
        return url


def _text(entry: Object, key: str) -> str | None:
    value = entry.get(key)
    if value is None or (isinstance(value, Scalar) and value.value is None):
        return None
    if not isinstance(value, Scalar) or not isinstance(value.value, str):
        raise ConfigError(f"{key} must be a text")
    return value.value


def _flag(entry: Object, key: str) -> bool:
    value = entry.get(key)
    return isinstance(value, Scalar) and value.value is True


def _texts(entry: Object, key: str) -> list[str]:
    value = entry.get(key)
    items = [] if value is None else plain(value)
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ConfigError(f"{key} must be a list of texts")
    return items


def _pairs(entry: Object, key: str) -> dict[str, str]:
    """Texts by name; as in VS Code, numbers are taken as texts, and nulls are left out."""
    value = entry.get(key)
    pairs = {} if value is None else plain(value)
    if not isinstance(pairs, dict):
        raise ConfigError(f"{key} must be an object of texts")
    found = {}
    for name, text in pairs.items():
        if isinstance(text, bool | dict | list):
            raise ConfigError(f"{key}.{printable(name)} must be a text")
        if text is not None:
            found[name] = str(text)
    return found
