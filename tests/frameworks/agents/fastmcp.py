"""A server of FastMCP, and a client in the place of an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastmcp import Client, FastMCP
from mcp.types import TextContent
from tests.frameworks.play import Ask

from holdfast import Holdfast
from holdfast.frameworks.fastmcp import guard


def scripted(turns: list[list[Ask]]) -> None:
    """There is no model."""


async def play(
    hf: Holdfast, tools: list[Callable[..., Any]], turns: list[list[Ask]], settings: dict[str, Any] | None
) -> list[str]:
    server = FastMCP("tools", middleware=[] if settings is None else [guard(hf, **settings)], tools=tools)
    told = []
    async with Client(server) as client:

        async def call(ask: Ask) -> str:
            result = await client.call_tool(ask.tool, ask.arguments, raise_on_error=False)
            return "".join(each.text for each in result.content if isinstance(each, TextContent))

        for turn in turns:
            told += await asyncio.gather(*map(call, turn))
    return told
