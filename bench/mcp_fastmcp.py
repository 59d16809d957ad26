"""FastMCP as a proxy, by its documentation, in an environment of its own.

`mcp_fastmcp.py stdio|PORT fresh|MODE URL|COMMAND…`: with `fresh` it is `create_proxy(target)`, which opens a session
for each request; else one client is connected beforehand, in the era that MODE names, and used for all.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp.server import create_proxy


async def main(front: str, mode: str, *target: str) -> None:
    """Serve until the client is gone, or somebody ends it."""
    is_url = target[0].startswith("http://")
    back = StreamableHttpTransport(target[0]) if is_url else StdioTransport(target[0], list(target[1:]))
    async with AsyncExitStack() as stack:
        if mode == "fresh":
            proxy = create_proxy(back)
        else:
            proxy = create_proxy(await stack.enter_async_context(Client(back, mode=mode)))
        if front == "stdio":
            await proxy.run_async("stdio", show_banner=False, log_level="ERROR")
        else:
            quiet = {"access_log": False, "log_level": "error"}
            await proxy.run_async(
                "http", host="127.0.0.1", port=int(front), show_banner=False, log_level="ERROR", uvicorn_config=quiet
            )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
