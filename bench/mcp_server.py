"""The same tool behind the official SDK, in an environment of its own: `mcp_server.py stdio`, or `http PORT`.

Over HTTP requests are counted as `mcp_quick.py` does it: by the first part of their path, and told at `/counts`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from mcp.server.mcpserver import MCPServer

server = MCPServer("bench", log_level="ERROR")


@server.tool()
def echo(text: str) -> str:
    """Say it again."""
    return text


class Counted:
    """*app*, and how often each path was asked for."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.counts: Counter[str] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Part of the ASGI protocol."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif scope["path"] == "/counts":
            body = json.dumps(self.counts).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        else:
            self.counts[scope["path"].split("/")[1]] += 1
            await self.app({**scope, "path": "/mcp", "raw_path": b"/mcp"}, receive, send)


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        import uvicorn

        app = Counted(server.streamable_http_app())
        uvicorn.run(app, port=int(sys.argv[2]), log_level="error", access_log=False)
