"""One client for every Python SDK: `python_client.py TARGETS`, a JSON list of {"command": […]} or {"url": …}.

For each target it lists, calls, fails, cancels and gives up, and prints what it saw as one line of JSON, so that two
targets that should look alike can be compared. Every exception is told with its category, judged where it was raised.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[4] / "src"))

try:
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

    KIND = "fastmcp"
except ImportError:
    try:
        from mcp import Client, StdioServerParameters

        KIND = "sdk2"
    except ImportError:
        from mcp.client.stdio import stdio_client
        from mcp.client.streamable_http import streamablehttp_client

        from mcp import ClientSession, StdioServerParameters

        KIND = "sdk1"

from holdfast.category import classify

PATIENCE = 30.0


@asynccontextmanager
async def connected(target: dict[str, Any]) -> Any:
    async with AsyncExitStack() as stack:
        if KIND == "sdk1":
            yield await _sdk1(stack, target)
        elif KIND == "sdk2":
            command = target.get("command")
            where = StdioServerParameters(command=command[0], args=command[1:]) if command else target["url"]
            yield await stack.enter_async_context(Client(where, mode=target.get("mode", "auto"), cache=None))
        else:
            command = target.get("command")
            where = StdioTransport(command[0], command[1:]) if command else StreamableHttpTransport(target["url"])
            yield await stack.enter_async_context(Client(where))


async def _sdk1(stack: AsyncExitStack, target: dict[str, Any]) -> Any:
    if command := target.get("command"):
        streams = await stack.enter_async_context(
            stdio_client(StdioServerParameters(command=command[0], args=command[1:]))
        )
    else:
        streams = (await stack.enter_async_context(streamablehttp_client(target["url"])))[:2]
    session = await stack.enter_async_context(ClientSession(*streams))
    await session.initialize()
    return session


async def call(
    client: Any, name: str, arguments: dict[str, Any], *, seconds: float = PATIENCE, progress: Any = None
) -> Any:
    if KIND == "fastmcp":
        return await client.call_tool_mcp(name, arguments, timeout=seconds, progress_handler=progress)
    limit = timedelta(seconds=seconds) if KIND == "sdk1" else seconds
    return await client.call_tool(name, arguments, limit, progress)


async def visit(target: dict[str, Any], seen: dict[str, Any]) -> None:
    async with connected(target) as client:
        seen["tools"] = names(await client.list_tools(), "tools")
        seen["resources"] = names(await client.list_resources(), "resources")
        seen["templates"] = names(await client.list_resource_templates(), "resource_templates", "resourceTemplates")
        seen["prompts"] = names(await client.list_prompts(), "prompts")
        seen["add"] = told(await call(client, "add", {"a": 2, "b": 3}))
        seen["remember"] = [told(await call(client, "remember", {"note": note})) for note in ("one", "zwölf")]
        seen["read"] = told(await client.read_resource("notes://all"))
        seen["greeting"] = told(await client.read_resource("greeting://Ada"))
        seen["prompt"] = told(await client.get_prompt("review", {"code": "x = 1"}))
        seen["big"] = len(told(await call(client, "big", {"size": 100_000}))["content"][0]["text"])
        seen["progress"] = await progress(client)
        seen["cancel"] = await cancelled(client)
        seen["errors"] = await errors(client)
        seen["after"] = told(await call(client, "add", {"a": 20, "b": 30}))
        seen["version"] = version(client)
        seen["complete"] = True


async def trouble(target: dict[str, Any], seen: dict[str, Any]) -> None:
    """What a client gets from a server that dies in mid-call, or from an address where nobody answers."""
    try:
        async with connected(target) as client:
            seen["trouble"] = await outcome(call(client, "die", {}))
    except Exception as error:
        seen.setdefault("trouble", described(error))


async def progress(client: Any) -> Any:
    got: list[Any] = []

    async def take(done: float, total: float | None, message: str | None) -> None:
        got.append([done, total, message])

    answer = told(await call(client, "steps", {"count": 3}, progress=take))
    for _ in range(1000):  # the callbacks are tasks of their own; the answer may overtake them inside the SDK
        if len(got) == 3:
            break
        await asyncio.sleep(0.02)
    return [sorted(got), answer]


async def cancelled(client: Any) -> Any:
    begun = asyncio.Event()

    async def take(*_: Any) -> None:
        begun.set()

    task = asyncio.create_task(call(client, "wait", {"name": "cancelled"}, progress=take))
    await asyncio.wait_for(begun.wait(), PATIENCE)
    task.cancel()
    outcome = (await asyncio.gather(task, return_exceptions=True))[0]
    question = 0
    while KIND != "sdk1":  # which never tells the server
        question += 1
        if "cancelled" in str(told(await call(client, "stopped", {"question": question}))["content"]):
            break
        assert question < 1000, "the cancel did not reach the server"
        await asyncio.sleep(0.02)
    return [type(outcome).__name__, told(await call(client, "add", {"a": 1, "b": 1}))]


async def errors(client: Any) -> dict[str, Any]:
    attempts = {
        "fail": lambda: call(client, "fail", {"message": "no such city"}),
        "crash": lambda: call(client, "crash", {}),
        "arguments": lambda: call(client, "add", {"a": "x"}),
        "unknown tool": lambda: call(client, "nothing", {}),
        "unknown resource": lambda: client.read_resource("nothing://here"),
        "unknown prompt": lambda: client.get_prompt("nothing", {}),
        "timeout": lambda: call(client, "wait", {"name": "timeout"}, seconds=0.3),
    }
    return {name: await outcome(attempt()) for name, attempt in attempts.items()}


async def outcome(work: Any) -> Any:
    try:
        return told(await work)
    except Exception as error:
        return described(error)


def described(error: BaseException) -> dict[str, Any]:
    data = getattr(error, "error", None)
    kind = type(error)
    return {
        "type": f"{kind.__module__}.{kind.__qualname__}",
        "code": getattr(data, "code", None),
        "text": str(error),
        "category": classify(error).value if isinstance(error, Exception) else "",
    }


def names(listed: Any, *fields: str) -> list[str]:
    found = (
        listed
        if isinstance(listed, list)
        else next(getattr(listed, field) for field in fields if hasattr(listed, field))
    )
    return sorted(json.dumps(told(each), sort_keys=True) for each in found)


def told(value: Any) -> Any:
    if isinstance(value, list):
        return [told(each) for each in value]
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


def version(client: Any) -> str:
    if KIND == "sdk2":
        return str(client.protocol_version)
    return "" if KIND == "sdk1" else str(client.initialize_result.protocol_version if client.initialize_result else "")


async def main() -> None:
    for target in json.loads(sys.argv[1]):
        seen: dict[str, Any] = {}
        try:
            await asyncio.wait_for((trouble if "trouble" in target else visit)(target, seen), 2 * PATIENCE)
        except Exception as error:
            if "complete" not in seen:  # the SDK before 2 stumbles over what a server says while it is closed
                seen["failed"] = [described(error), repr(error)]
        sys.stdout.write(json.dumps(seen, ensure_ascii=False) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
