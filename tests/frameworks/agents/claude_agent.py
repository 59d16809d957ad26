"""An agent of the Claude Agent SDK: Claude Code itself, with a model on a loopback address that speaks its API."""

from __future__ import annotations

import inspect
import json
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from claude_agent_sdk import (
    ClaudeAgentOptions,
    Message,
    SdkMcpTool,
    ToolResultBlock,
    UserMessage,
    create_sdk_mcp_server,
    query,
    tool,
)
from tests.frameworks.play import Ask

from holdfast import Holdfast
from holdfast.frameworks.claude_agent import guard

HOME = tempfile.TemporaryDirectory()  # of all agents that are played; it goes with the process that forks them


class Scripted(ThreadingHTTPServer):
    """A model that makes the calls of one turn after the other, for as long as the process lives."""

    daemon_threads = True

    def __init__(self, turns: Iterable[list[Ask]]) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.turns = iter(turns)
        self.said = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """The blocks of the next message."""
        names = [each["name"] for each in request.get("tools", ())]
        turn = next(self.turns, []) if names else []  # else Claude Code wants a title, say
        self.said += 1
        return [
            {"type": "tool_use", "id": f"{self.said}-{n}", "name": _named(names, each.tool), "input": each.arguments}
            for n, each in enumerate(turn)
        ] or [{"type": "text", "text": "done"}]


class Answering(BaseHTTPRequestHandler):
    """One connection of Claude Code."""

    server: Scripted
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.partition("?")[0] != "/v1/messages":
            self.send_error(404)
            return
        message = _stream(self.server.answer(request))
        events = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in message)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(events)))
        self.end_headers()
        self.wfile.write(events.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _stream(blocks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A message as it is streamed."""
    whole = {"id": "m", "type": "message", "role": "assistant", "model": "scripted", "content": []}
    usage = {"input_tokens": 1, "output_tokens": 1}
    yield {"type": "message_start", "message": {**whole, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    for index, block in enumerate(blocks):
        is_call = block["type"] == "tool_use"
        begun = {**block, "input": {}} if is_call else {**block, "text": ""}
        given = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])} if is_call else None
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        yield {"type": "content_block_delta", "index": index, "delta": given or {**block, "type": "text_delta"}}
        yield {"type": "content_block_stop", "index": index}
    why = "tool_use" if blocks[0]["type"] == "tool_use" else "end_turn"
    yield {"type": "message_delta", "delta": {"stop_reason": why, "stop_sequence": None}, "usage": usage}
    yield {"type": "message_stop"}


def _named(names: list[str], tool: str) -> str:
    """The *tool* as Claude Code calls it."""
    return next((each for each in names if each == tool or each.endswith(f"__{tool}")), tool)


def scripted(turns: Iterable[list[Ask]]) -> str:
    """The name of a model that Claude Code, if this process starts it, gets its answers from."""
    os.environ |= {
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{Scripted(turns).server_port}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CONFIG_DIR": HOME.name,
        "ENABLE_TOOL_SEARCH": "false",  # by which a model finds tools that it was not told of
        "HOME": HOME.name,
        "NO_PROXY": "127.0.0.1",
    }
    os.chdir(HOME.name)
    return "claude-sonnet-5"  # Claude Code complains of those that it has not heard of


async def results(options: ClaudeAgentOptions) -> AsyncIterator[ToolResultBlock]:
    """What the model was told of its calls."""
    async for message in query(prompt="go", options=options):
        for each in results_in(message):
            yield each


def results_in(message: Message) -> list[ToolResultBlock]:
    content = message.content if isinstance(message, UserMessage) else ()
    return [each for each in content if isinstance(each, ToolResultBlock)]


def text_of(result: ToolResultBlock) -> str:
    content = result.content
    return content if isinstance(content, str) else "".join(each.get("text", "") for each in content or ())


def made(hf: Holdfast, function: Callable[..., Any]) -> SdkMcpTool[Any]:
    """A tool out of a function; if that is decorated, so is what the tool calls."""
    bare = inspect.unwrap(function) if hasattr(function, "__holdfast__") else function

    async def handler(given: dict[str, Any]) -> dict[str, Any]:
        answer = bare(**given)
        if inspect.isawaitable(answer):
            answer = await answer
        return {"content": [{"type": "text", "text": answer}]}

    name, hints = function.__name__, function.__annotations__
    schema = {name: kind for name, kind in hints.items() if name != "return"}
    return tool(name, function.__doc__ or "", schema)(handler if bare is function else hf.tool(name)(handler))


async def play(
    hf: Holdfast, tools: list[Callable[..., Any]], turns: list[list[Ask]], settings: dict[str, Any] | None
) -> list[str]:
    own = [made(hf, each) for each in tools]
    server = create_sdk_mcp_server("shop", tools=own if settings is None else guard(hf, own, **settings))
    model = scripted(turns)
    options = ClaudeAgentOptions(
        model=model, mcp_servers={"shop": server}, allowed_tools=["mcp__shop"], tools=[], setting_sources=[]
    )
    guarded = options if settings is None else guard(hf, options, **settings)
    return [text_of(each) async for each in results(guarded)]
