"""Sending the servers of a client's configuration through Holdfast, and back.

An entry is changed in place and holds all that is needed to change it back: its command, its address and its headers
only move. So unwrapping needs no backup, and whatever was edited meanwhile stays.

    {"command": C, "args": A}              → {"command": HOLDFAST, "args": ["wrap", "--name", NAME, "--", C, *A]}
    {"type": "http", "url": U, "headers": {"Authorization": V}}
                                           → {"type": "stdio", "command": HOLDFAST,
                                              "args": ["wrap", "--name", NAME, "--url", U,
                                                       "--header-env", "Authorization=HOLDFAST_HEADER_AUTHORIZATION"],
                                              "env": {"HOLDFAST_HEADER_AUTHORIZATION": V}}

A header's value goes into the environment, since every user of the machine can see arguments.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from holdfast.errors import ConfigError, printable
from holdfast.mcp.clients.configs import HTTP, SSE, STDIO, Listed, OtherFormat, ServerEntry, Wrapping, entries, server
from holdfast.mcp.clients.jsonc import Array, Edit, Member, Object, Value, apply, instead, plain, quoted, removal
from holdfast.mcp.http.client import require
from holdfast.mcp.http.incoming import TOKEN
from holdfast.mcp.naming import LOOPBACK

WRAPPED: Final = "wrapped"
UNWRAPPED: Final = "unwrapped"
ALREADY: Final = "already"
NOT_WRAPPED: Final = "not wrapped"
LEFT_ALONE: Final = "left alone"
# Keys that say how the client signs in to the server.
SIGN_IN: Final = frozenset({"auth", "oauth", "headersHelper", "authProviderId", "authProviderType"})
BY_HAND: Final = "put `holdfast wrap --name NAME --` before the command of each server by hand"

_HEADER: Final = re.compile(TOKEN)
_NO_VARIABLE: Final = re.compile(r"[^0-9A-Z]+")


class Outcome(NamedTuple):
    """What became of one server; *why* is the reason if it was left alone, or what its user should know."""

    name: str
    project: str | None
    outcome: str
    why: str | None = None


Change = tuple[list[Edit], str, str | None]  # edits, and the outcome with its reason


class Rewritten(NamedTuple):
    """The new text, and what became of each server that was asked for."""

    text: str
    outcomes: list[Outcome]


def wrap(text: str, name: str, executable: Sequence[str], only: Collection[str] = ()) -> Rewritten:
    """*text* with its servers, or those named in *only*, going through *executable*; *name* is the file's."""
    try:
        listed = entries(text, name)
    except OtherFormat as error:
        raise ConfigError(f"{error}; {BY_HAND}") from None
    return _rewritten(text, _chosen(listed, name, only), _Wrapper(text, executable))


def unwrap(text: str, name: str, only: Collection[str] = ()) -> Rewritten:
    """*text* with its servers, or those named in *only*, run by the client itself again."""
    return _rewritten(text, _chosen(entries(text, name), name, only), _Unwrapper(text))


class UnknownServer(ConfigError):
    """The file lists no server with a name that was asked for."""


def _chosen(listed: Iterable[Listed], name: str, only: Collection[str]) -> list[Listed]:
    there = list(listed)
    known = sorted({entry.name for entry in there})
    for wanted in only:
        if wanted not in known:
            names = f"only {', '.join(map(printable, known))}" if known else "none at all"
            raise UnknownServer(f"{name}: lists no server {printable(wanted)!r}, {names}")
    return [entry for entry in there if not only or entry.name in only]


def _rewritten(text: str, chosen: Sequence[Listed], change: _Wrapper | _Unwrapper) -> Rewritten:
    edits: list[Edit] = []
    outcomes = []
    for listed in chosen:
        try:
            made, outcome, why = change.entry(listed)
        except ConfigError as error:
            made, outcome, why = [], LEFT_ALONE, str(error)
        edits += made
        outcomes.append(Outcome(listed.name, listed.project, outcome, why))
    return Rewritten(apply(text, edits), outcomes)


class _Wrapper:
    """Makes the edits that wrap an entry of *text*; a `ConfigError` says why one is better left alone."""

    __slots__ = ("text", "executable")

    def __init__(self, text: str, executable: Sequence[str]) -> None:
        self.text = text
        self.executable = executable

    def entry(self, listed: Listed) -> Change:
        """The edits of one entry, and what becomes of it."""
        found = server(listed)
        body = listed.member.value
        assert isinstance(body, Object)
        if found.wrapping is not None:
            return [], ALREADY, None
        _check_name(listed.name)
        name = _raw(self.text, listed.member.key)
        start = [*map(quoted, self.executable[1:]), '"wrap"', '"--name"', name]
        if found.transport == STDIO:
            return self._command(body, start), WRAPPED, None
        note = _check_url(found, body)
        return self._url(body, found, start), WRAPPED, note

    def _command(self, body: Object, start: list[str]) -> list[Edit]:
        command, args = body.member("command"), body.member("args")
        assert command is not None
        words = [*start, '"--"', _raw(self.text, command.value)]
        if args is None:
            return self._arguments(command, words)
        assert isinstance(args.value, Array)
        path = instead(command.value, quoted(self.executable[0]))
        if not args.value.items:
            # The space tells `unwrap` that there was an empty list of arguments, not a missing one.
            return [path, Edit(args.value.start + 1, args.value.start + 1, f" {', '.join(words)}")]
        first = args.value.items[0].start
        comma = f",{_between_items(self.text, args.value)}"
        return [path, Edit(first, first, "".join(word + comma for word in words))]

    def _url(self, body: Object, found: ServerEntry, start: list[str]) -> list[Edit]:
        url, kind, headers = body.member("url"), body.member("type"), body.member("headers")
        assert url is not None
        words = [*start, '"--url"', _raw(self.text, url.value)]
        edits = []
        if kind is not None and found.type is not None:
            edits.append(instead(kind.value, '"stdio"'))
            words += [] if found.type == HTTP else ['"--type"', _raw(self.text, kind.value)]
        if headers is not None and isinstance(headers.value, Object) and headers.value.members:
            edits.append(instead(headers.key, '"env"'))
            variables = _variables([member.name for member in headers.value.members])
            for member in headers.value.members:
                variable = variables[member.name]
                edits.append(instead(member.key, quoted(variable)))
                words += ['"--header-env"', quoted(f"{member.name}={variable}")]
        return edits + self._arguments(url, words)

    def _arguments(self, member: Member, words: list[str]) -> list[Edit]:
        """The edits that turn *member* into a command and its arguments, which are *words*.

        The colon of *member*, and the comments around it, stay where they are.
        """
        colon = _colon(self.text, member)
        comma = f",{_between_members(self.text, member)}"
        between = "," if colon == ":" else ", "
        command = f'"command"{colon}{quoted(self.executable[0])}{comma}"args"'
        return [
            instead(member.key, command),
            instead(member.value, f"[{between.join(words)}]"),
        ]


class _Unwrapper:
    """Makes the edits that unwrap an entry of *text*; a `ConfigError` says why one is better left alone."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def entry(self, listed: Listed) -> Change:
        """The edits of one entry, and what becomes of it."""
        wrapping = server(listed).wrapping
        if wrapping is None:
            return [], NOT_WRAPPED, None
        body = listed.member.value
        assert isinstance(body, Object)
        command, args = body.member("command"), body.member("args")
        assert command is not None
        assert args is not None
        if wrapping.url is not None:
            edits = self._url(body, command, args, wrapping)
        else:
            assert wrapping.command is not None
            edits = self._command(body, command, args, wrapping.command)
        return edits, UNWRAPPED, None

    def _command(self, body: Object, command: Member, args: Member, at: int) -> list[Edit]:
        array = args.value
        assert isinstance(array, Array)
        raw = _raw(self.text, array.items[at])
        path = instead(command.value, raw)
        if at + 1 < len(array.items):
            return [path, *removal(self.text, array.items, range(at + 1))]
        before = self.text[array.start + 1 : array.items[0].start]
        if before:
            (edit,) = removal(self.text, array.items, range(at + 1))
            after = self.text[edit.end : array.end - 1]
            if before == " ":  # the space that `_Wrapper` wrote into an empty list
                return [path, Edit(array.start + 1, edit.end, "")]
            blank = not before.strip() and not after.strip()
            return [path, Edit(array.start + 1, array.end - 1, "") if blank else edit]
        if _follows(self.text, command, args):
            key = _raw(self.text, command.key)
            return [Edit(command.start, args.key.end, key), instead(array, raw)]
        return [path, *removal(self.text, body.members, [body.members.index(args)])]

    def _url(self, body: Object, command: Member, args: Member, wrapping: Wrapping) -> list[Edit]:
        array = args.value
        assert isinstance(array, Array)
        assert wrapping.url is not None
        url = array.items[wrapping.url]
        raw = _raw(self.text, url)
        if raw.startswith('"--url='):
            raw = f'"{raw.removeprefix(chr(34) + "--url=")}'
        edits = [instead(array, raw), *self._headers(body, args, wrapping)]
        kind = body.member("type")
        if kind is not None and plain(kind.value) == STDIO:
            edits.append(instead(kind.value, quoted(wrapping.type or HTTP)))
        edits.append(instead(args.key, '"url"'))
        return edits + removal(self.text, body.members, [body.members.index(command)])

    def _headers(self, body: Object, args: Member, wrapping: Wrapping) -> list[Edit]:
        """The edits that turn arguments and variables back into the headers that they hold; other variables stay."""
        if not wrapping.headers and not wrapping.header_envs:
            return []
        env = body.member("env")
        members = env.value.members if env is not None and isinstance(env.value, Object) else ()
        headers = {variable: header for header, variable in wrapping.header_envs.items()}
        for variable, header in headers.items():
            if all(member.name != variable for member in members):
                raise ConfigError(f"env does not hold {printable(variable)}, from which its header {header!r} comes")
        if env is not None and len(members) == len(headers) and not wrapping.headers:
            renamed = [instead(member.key, quoted(headers[member.name])) for member in members]
            return [instead(env.key, '"headers"'), *renamed]
        ours = [index for index, member in enumerate(members) if member.name in headers]
        values = {header: quoted(value) for header, value in wrapping.headers.items()}
        values |= {headers[members[at].name]: _raw(self.text, members[at].value) for at in ours}
        text = ", ".join(f"{quoted(header)}: {value}" for header, value in values.items())
        comma = f",{_between_members(self.text, args)}"
        return [
            Edit(args.end, args.end, f'{comma}"headers"{_colon(self.text, args)}{{{text}}}'),
            *removal(self.text, members, ours),
        ]


# -- what is better left alone -----------------------------------------------------------------------------------------


def _check_name(name: str) -> None:
    if not name or "\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise ConfigError("its name cannot be an argument of a command")


def _check_url(found: ServerEntry, body: Object) -> str | None:
    """Raise a `ConfigError` if a server at an address cannot be wrapped; return what its user should know."""
    if found.transport == SSE:
        raise ConfigError("HTTP+SSE is not spoken by Holdfast; if the server knows streamable HTTP, use type http")
    if sign_in := sorted(SIGN_IN & {member.name for member in body.members}):
        raise ConfigError(f"the client signs in to it ({', '.join(sign_in)}), which a proxy cannot do for it")
    if body.member("command") is not None or body.member("args") is not None:
        raise ConfigError("it has a url, and arguments of a command as well")
    if found.headers and body.member("env") is not None:
        raise ConfigError("it has both headers and env")
    for header in found.headers:
        if not _HEADER.fullmatch(header):
            raise ConfigError(f"{printable(header)!r} cannot be the name of a header")
    headers = body.get("headers")
    if isinstance(headers, Object) and len(headers.members) != len(found.headers):
        raise ConfigError("a header is there twice, or null")
    require()
    scheme, host = _address(found.url or "")
    if scheme not in {"http", "https", None}:
        raise ConfigError(f"Holdfast speaks http and https, not {printable(scheme or 'without either')}")
    if found.headers or host in LOOPBACK:
        return None
    return "if the client used to sign in there (OAuth), it no longer can: uninstall this one"


def _address(url: str) -> tuple[str | None, str | None]:
    """Scheme and host of *url*; no scheme if it begins with a placeholder, which the client fills in."""
    try:
        parts = urlsplit(url)
        return None if url.startswith("${") else parts.scheme, parts.hostname
    except ValueError:
        raise ConfigError("its url is not valid") from None


def _variables(headers: Sequence[str]) -> dict[str, str]:
    """The names of variables for *headers*, all different."""
    found: dict[str, str] = {}
    for header in headers:
        name = variable = f"HOLDFAST_HEADER_{_NO_VARIABLE.sub('_', header.upper())}"
        number = 1
        while variable in found.values():
            number += 1
            variable = f"{name}_{number}"
        found[header] = variable
    return found


# -- how the file is written -------------------------------------------------------------------------------------------


def _raw(text: str, value: Value) -> str:
    """A value as it is written."""
    return text[value.start : value.end]


def _between_items(text: str, array: Array) -> str:
    """The space after a comma between the items of an array, as the file is written."""
    line = _line_before(text, array.items[0].start)
    if line:
        return line
    tight = len(array.items) > 1 and text[array.items[0].end : array.items[1].start] == ","
    return "" if tight else " "


def _between_members(text: str, member: Member) -> str:
    """The space after the comma before a member, as the file is written."""
    return _line_before(text, member.start) or ("" if _colon(text, member) == ":" else " ")


def _line_before(text: str, at: int) -> str:
    """The line break and the indentation before *at*; empty if something else is before it on its line."""
    start = at
    while start and text[start - 1] in " \t":
        start -= 1
    ends = [end for end in ("\r\n", "\n", "\r") if text.endswith(end, 0, start)]
    return ends[0] + text[start:at] if ends else ""


def _colon(text: str, member: Member) -> str:
    """The colon behind the key of *member*, with the spaces that are the style of the file."""
    colon = text[member.key.end : member.value.start]
    return colon if colon.strip() == ":" and "\n" not in colon else ": "


def _follows(text: str, first: Member, second: Member) -> bool:
    """Whether *second* comes right behind *first*, with nothing but a comma in between."""
    return text[first.end : second.start].strip() == ","
