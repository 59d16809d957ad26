"""One server for every Python SDK: FastMCP, the official SDK from 2 on, or the one before, whichever is installed.

`python_server.py stdio` or `python_server.py http PORT`. Its tools do what a proxy may get wrong: they fail, report
progress, wait until they are cancelled, remember.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

try:
    from fastmcp import Context
    from fastmcp import FastMCP as Server
    from fastmcp.exceptions import ToolError
    from mcp.types import ToolAnnotations

    KIND = "fastmcp"
except ImportError:
    try:
        from mcp.server.mcpserver import Context
        from mcp.server.mcpserver import MCPServer as Server
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp_types import ToolAnnotations

        KIND = "sdk2"
    except ImportError:
        from mcp.server.fastmcp import Context
        from mcp.server.fastmcp import FastMCP as Server
        from mcp.server.fastmcp.exceptions import ToolError
        from mcp.types import ToolAnnotations

        KIND = "sdk1"

server: Any = Server(f"python-{KIND}", instructions="Ask me anything.")
NOTES: list[str] = []
STOPPED: list[str] = []


@server.tool(annotations=ToolAnnotations(**({"readOnlyHint": True} if KIND == "sdk1" else {"read_only_hint": True})))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def remember(note: str) -> list[str]:
    """Keep a note; the answer is all notes so far."""
    NOTES.append(note)
    return NOTES


@server.tool()
def fail(message: str) -> str:
    """Fail with a message for the model."""
    raise ToolError(message)


@server.tool()
def crash() -> str:
    """Fail with an error that nobody expected."""
    raise ZeroDivisionError("not for the model")


@server.tool()
async def steps(count: int, ctx: Context) -> str:
    """Report progress *count* times."""
    for n in range(count):
        await ctx.report_progress(n + 1, count, f"step {n + 1}")
    return f"{count} steps"


@server.tool()
async def wait(name: str, ctx: Context) -> str:
    """Say that it has begun, and wait until it is cancelled."""
    try:
        await ctx.report_progress(1, 2, "begun")
        await asyncio.sleep(60)
    except BaseException:
        STOPPED.append(name)
        raise
    return "never cancelled"


@server.tool()
def stopped(question: int) -> list[str]:
    """The waits that were cancelled so far; whoever asks again counts on, since the same question thrice is a loop."""
    return STOPPED


@server.tool()
async def announce(ctx: Context) -> str:
    """Tell whoever listens, in the stateless protocol, that the tools and the notes have changed."""
    await ctx.notify_tools_changed()
    await ctx.notify_resource_updated("notes://all")
    return "announced"


@server.tool()
def die() -> str:
    """End the whole server in mid-call."""
    os._exit(3)


@server.tool()
def big(size: int) -> str:
    """An answer of *size* characters."""
    return "ä" * size


@server.resource("notes://all")
def notes() -> str:
    """All notes."""
    return "\n".join(NOTES)


@server.resource("greeting://{name}")
def greeting(name: str) -> str:
    """A greeting."""
    return f"Hello, {name}!"


@server.prompt()
def review(code: str) -> str:
    """Ask for a review."""
    return f"Please review: {code}"


def main(transport: str, port: str = "0") -> None:
    if transport == "stdio":
        server.run("stdio", **({"show_banner": False} if KIND == "fastmcp" else {}))
    elif KIND == "sdk1":
        server.settings.port = int(port)
        server.run("streamable-http")
    elif KIND == "sdk2":
        server.run("streamable-http", port=int(port))
    else:
        server.run("http", port=int(port), show_banner=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
