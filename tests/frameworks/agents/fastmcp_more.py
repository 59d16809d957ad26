"""Scenes with what only FastMCP has; in the last its process is killed."""

# No `from __future__ import annotations`: the framework reads those of the tools, which stand inside functions.
import os
import signal
import threading
from pathlib import Path
from typing import Any

from fastmcp import Client, Context, FastMCP, FastMCPApp
from fastmcp.exceptions import ToolError
from fastmcp.server.middleware import Middleware
from fastmcp.server.providers.addressing import hashed_backend_name
from fastmcp.tools import Tool, ToolResult
from mcp.types import AudioContent, ElicitRequest, ElicitRequestFormParams, InputRequiredResult, TextContent
from tests.frameworks.scenes import play_tasks, show

import holdfast
from holdfast.frameworks.fastmcp import guard

TRIPPING = {"failure_threshold": 1}
FORM = {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]}


async def told(client: Client[Any], tool: str, **arguments: Any) -> Any:
    """All that a client learns of a call."""
    result = await client.call_tool(tool, arguments, raise_on_error=False)
    content = [each.model_dump(mode="json", exclude_none=True) for each in result.content]
    return [result.is_error, content, result.structured_content, (result.meta or {}).get("note")]


def counts(hf: holdfast.Holdfast) -> dict[str, list[int]]:
    stats = {name: hf.tracker.stats(name) for name in hf.tracker.tools()}
    return {name: [each.successful, each.failed + each.timed_out] for name, each in stats.items()}


async def error_result(hf: holdfast.Holdfast) -> Any:
    server = FastMCP("shop", middleware=[guard(hf, breaker=TRIPPING)])

    @server.tool
    def stock(item: str) -> ToolResult:
        return ToolResult("the service is unavailable", structured_content={"item": item}, is_error=True)

    async with Client(server) as client:
        return await told(client, "stock", item="tea"), await told(client, "stock", item="milk"), counts(hf)


async def wrong_calls(hf: holdfast.Holdfast) -> Any:
    server = FastMCP("shop", middleware=[guard(hf, breaker=TRIPPING)])

    @server.tool
    def stock(item: str, least: int = 0) -> int:
        return 3

    async with Client(server) as client:
        calls = [("made_up", {}), ("stock", {"item": "tea", "least": "many"}), ("stock", {"item": "tea"})]
        return [await told(client, name, **given) for name, given in calls], counts(hf)


async def question(hf: holdfast.Holdfast) -> Any:
    server = FastMCP("shop", middleware=[guard(hf, read_only=True, cache=60.0)])

    @server.tool
    async def order(item: str, ctx: Context) -> str | InputRequiredResult:
        if ctx.input_responses is None:
            params = ElicitRequestFormParams(message="which size?", requested_schema=FORM)
            return InputRequiredResult(input_requests={"size": ElicitRequest(params=params)})
        return f"a {ctx.input_responses['size'].content['value']} {item}"

    sizes = iter(["large", "small", "large"])

    async def answer(message: str, response_type: Any, params: Any, context: Any) -> Any:
        return {"value": next(sizes)}

    async with hf.run() as run, Client(server, elicitation_handler=answer) as client:
        answers = [(await client.call_tool("order", {"item": "tea"})).data for _ in range(3)]
    started = [event.payload["arguments"] for event in hf.runs.events(run.id) if event.type == "tool_started"]
    return answers, counts(hf), started


async def fixed_answer(hf: holdfast.Holdfast) -> Any:
    settings = {"rate": {"per_second": 0.001, "burst": 1}, "max_wait": 0.0, "fallback": {"value": 0}}
    inner = FastMCP("inner")

    @inner.tool
    def stock(item: str) -> int:
        return 3

    server = FastMCP("outer", middleware=[guard(hf, **settings)])
    server.mount(inner, namespace="shop")
    async with Client(server) as client:
        return [(await client.call_tool("shop_stock", {"item": item})).data for item in ("tea", "milk")], counts(hf)


async def hanging_function(hf: holdfast.Holdfast) -> Any:
    released = threading.Event()
    server = FastMCP("shop", middleware=[guard(hf, timeout=0.1)], mask_error_details=True)

    @server.tool
    def hang() -> str:
        released.wait(30)
        return "late"

    async with Client(server) as client:
        try:
            return await told(client, "hang")
        finally:
            released.set()


async def decorated(hf: holdfast.Holdfast) -> Any:
    server = FastMCP("shop", middleware=[guard(hf)])

    @hf.tool(concurrency=1, max_wait=0.0, rate={"per_second": 0.001, "burst": 1})
    async def pay(amount: int, ctx: Context) -> str:
        """Pay an amount."""
        return f"paid {amount}"

    server.add_tool(Tool.from_tool(Tool.from_function(pay), description="Pay what is due."))
    async with Client(server) as client:
        return await told(client, "pay", amount=1), await told(client, "pay", amount=2), counts(hf)


async def versions(hf: holdfast.Holdfast) -> Any:
    server = FastMCP("shop", middleware=[guard(hf, read_only=True, cache=60.0)])

    @server.tool(name="price", version="1")
    def old(item: str) -> str:
        return f"{item}: 3"

    @server.tool(name="price", version="2")
    @hf.tool
    def new(item: str) -> str:
        return f"{item}: 4 EUR"

    @server.tool(name="price", version="3")
    def newest(item: str) -> str:
        return f"{item}: 5 EUR"

    wanted = ("1", "2", "3", None, "1")
    async with Client(server) as client:
        return [(await client.call_tool("price", {"item": "tea"}, version=each)).data for each in wanted], counts(hf)


async def app(hf: holdfast.Holdfast) -> Any:
    desk = FastMCPApp("desk")

    @desk.tool
    def pay(amount: int) -> str:
        return f"paid {amount}"

    server = FastMCP("shop", middleware=[guard(hf, rate={"per_second": 0.001, "burst": 1}, max_wait=0.0)])
    server.add_provider(desk, namespace="till")
    async with Client(server) as client:
        page = hashed_backend_name("desk", "pay")  # as the page of the app calls it, and the model
        return await told(client, page, amount=1), await told(client, "till_pay", amount=2), counts(hf)


async def interrupted(hf: holdfast.Holdfast, journal: Path, *, resume: bool) -> None:
    """All that a tool may give, before and after the death of the process."""

    class Seen(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            try:
                return await call_next(context)
            except Exception as error:
                errors.append(type(error).__name__)
                raise

    errors: list[str] = []
    server = FastMCP("shop", middleware=[Seen(), guard(hf)])

    def note(name: str) -> None:
        with journal.open("a") as file:
            file.write(f"{name}\n")

    @server.tool
    def picture() -> ToolResult:
        note("picture")
        content = [TextContent(text="a cat"), AudioContent(data="AAAA", mime_type="audio/wav")]
        return ToolResult(content, structured_content={"name": "cat", "owner": None}, meta={"note": "free"})

    @server.tool
    def parts() -> dict[str, int]:
        note("parts")
        return {"legs": 4}

    @server.tool
    def fail() -> str:
        note("fail")
        raise ToolError("it is sold out")

    @server.tool
    def die() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    async with hf.resume("trip") if resume else hf.run(run_id="trip"), Client(server) as client:
        answers = [await told(client, name) for name in ("picture", "parts", "fail")]
        show("after" if resume else "before", [answers, errors])
        try:
            await told(client, "die")
        except Exception as error:
            show("doubt", [type(error).__name__, errors[-1]])


SCENES = (error_result, wrong_calls, question, fixed_answer, hanging_function, decorated, versions, app)


if __name__ == "__main__":
    play_tasks(SCENES, killed=interrupted)
