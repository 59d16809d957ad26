"""The screen Servers: MCP servers behind proxies, with their handshake, restarts and what they say on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.text import Text

from holdfast.errors import printable
from holdfast.stores.entries import ServerLine
from holdfast.top.reading import Picture
from holdfast.top.sheet import Contents
from holdfast.top.signs import outcome
from holdfast.wording import age, moment, one_line, plural
from holdfast.wording.columns import Column

COLUMNS: Final = (
    Column("server", most=32),
    Column("state", most=40),
    Column("since", right=True, need=7),
    Column("handshake", most=44, need=4),
    Column("restarts", right=True, need=6),
    Column("pid", right=True, need=3),
    Column("proxy", most=30, need=2),
    Column("last error, or what it said"),
)
NOTHING: Final = (
    "No MCP server is behind a proxy on this store.",
    "",
    "Put one there:",
    "",
    "    holdfast wrap -- COMMAND",
    "    holdfast wrap --url URL",
    "",
    "Or send all servers of a client through Holdfast:  holdfast install CLIENT",
)
AT_EASE: Final = ("ready", "idle")  # idle: behind a gateway, and no client uses it
NO_MATCH: Final = ("No server is like this; esc shows all of them.",)


def contents(picture: Picture) -> Contents:
    """The lines of the servers that the filter lets through."""
    text, failed = picture.look.text.casefold(), picture.look.failed
    lines = [
        line
        for line in picture.servers or []
        if (not failed or line.server.state not in AT_EASE)
        and text in f"{line.server.name} {line.server.target}".casefold()
    ]
    return Contents(
        COLUMNS,
        [key(line) for line in lines],
        lambda at: _cells(lines[at], picture.at),
        NO_MATCH if picture.servers else NOTHING,
    )


def summary(picture: Picture) -> Text:
    """The servers in one line."""
    lines = picture.servers or []
    if not lines:
        return Text("no servers")
    text = Text(plural(len(lines), "server"))
    if bad := sum(line.server.state not in AT_EASE for line in lines):
        text.append(" · ").append(f"{bad} not ready", style="bold yellow")
    return text


def key(line: ServerLine) -> tuple[str, str]:
    """The key of a server's line: the process of its proxy, and its name."""
    return line.process, line.server.name


def detail(line: ServerLine) -> Iterator[Text]:
    """All that is known of a server."""
    server = line.server
    facts = [
        ("state", outcome(server.state)),
        ("since", Text("" if server.since_ms is None else moment(server.since_ms))),
        ("kind", Text(printable(server.kind, 200))),
        ("target", Text(one_line(server.target))),
        ("handshake", Text(_handshake(line))),
        ("restarts", Text(f"{server.restarts}")),
        ("process", Text("" if server.pid is None else f"{server.pid}")),
        ("proxy", Text(f"{printable(line.proxy, 200)}, process {line.proxy_pid} on {printable(line.host, 200)}")),
        ("last error", Text(one_line(server.last_error or ""), style="red")),
    ]
    for label, value in facts:
        if value.plain:
            yield Text.assemble((f"{label:<12}", "bold"), value)
    if server.stderr:
        yield Text("")
        yield Text("what it said on stderr, last", style="bold")
    for said in server.stderr:
        yield Text(f"  {one_line(said, 500)}")


def _cells(line: ServerLine, now: float) -> list[Text]:
    server = line.server
    said = server.last_error or (server.stderr[-1] if server.stderr else "")
    return [
        Text(printable(server.name, 200)),
        outcome(server.state),
        Text("" if server.since_ms is None else age(server.since_ms, now), style="dim"),
        Text(_handshake(line)),
        Text(f"{server.restarts}", style="yellow" if server.restarts else "dim"),
        Text("" if server.pid is None else f"{server.pid}", style="dim"),
        Text(f"{printable(line.proxy, 100)} ({line.proxy_pid})", style="dim"),
        Text(one_line(said, 300), style="red" if server.last_error else "dim"),
    ]


def _handshake(line: ServerLine) -> str:
    """What the server says it is, and which protocol it speaks."""
    info = line.server.server_info or {}
    parts = [str(info.get("name", "")), str(info.get("version", "")), f"MCP {line.server.protocol}"]
    return one_line(" ".join(part for part in parts[: 3 if line.server.protocol else 2] if part), 200)
