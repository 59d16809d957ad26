"""Scenes with what only the Claude Agent SDK has: tools that Claude Code calls itself, of which hooks hear."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    ResultMessage,
    create_sdk_mcp_server,
    query,
    tool,
)
from tests.frameworks.agents.claude_agent import HOME, results, results_in, scripted, text_of
from tests.frameworks.play import Ask
from tests.frameworks.scenes import play_tasks

import holdfast
from holdfast.frameworks.claude_agent import MOST, guard

ONE_AT_A_TIME = {"concurrency": 1, "max_wait": 0.0}

# An MCP server that Claude Code starts: what it is asked for is found, or its database is down.
OTHER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    match asked["method"]:
        case "initialize":
            given = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
            given["serverInfo"] = {"name": "other", "version": "1"}
        case "tools/list":
            given = {"tools": [{"name": "look", "inputSchema": {"type": "object", "properties": {}}}]}
        case "tools/call":
            is_down = asked["params"]["arguments"]["key"] == "milk"
            text = "the database is down: connection refused" if is_down else "found"
            given = {"content": [{"type": "text", "text": text}], "isError": is_down}
        case _:
            given = {}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": given}), flush=True)
"""


def agent(*turns: list[Ask], tools: Any = (), **options: Any) -> ClaudeAgentOptions:
    """One that may use Bash, Read, its own *tools* and those of another server, but not Write."""
    servers = {"my shop": create_sdk_mcp_server("shop", tools=list(tools)), **options.pop("mcp_servers", {})}
    return ClaudeAgentOptions(
        model=scripted(turns),
        mcp_servers=servers,
        allowed_tools=["Bash", "Read", "mcp__my_shop", "mcp__other"],
        tools=["Bash", "Read", "Write"],
        setting_sources=[],
        **options,
    )


def bash(command: str) -> Ask:
    return Ask("Bash", {"command": command})


async def told(options: ClaudeAgentOptions) -> list[str]:
    return [text_of(each) async for each in results(options)]


def counts(hf: holdfast.Holdfast) -> dict[str, tuple[int, int]]:
    stats = {name: hf.tracker.stats(name) for name in hf.tracker.tools()}
    return {name: (each.successful, each.failed + each.timed_out) for name, each in stats.items()}


async def what_claude_code_calls_is_guarded(hf: holdfast.Holdfast) -> object:
    """In a run: five commands fail, and one is asked for in vain for the fourth time."""
    heard: list[str] = []

    async def hear(given: Any, *_: object) -> dict[str, Any]:
        heard.append(given["tool_name"])
        return {}

    missing = Ask("Read", {"file_path": "/no/such/file"})
    turns = [[bash("echo hi")], *[[bash("exit 3")]] * 4, [missing], [bash("exit 4")], [bash("exit 5")], [bash("pwd")]]
    options = guard(hf, agent(*turns, hooks={"PreToolUse": [HookMatcher(hooks=[hear])]}))
    async with hf.run(run_id="trip"):
        said = await told(options)
    log = [each.payload for each in hf.runs.events("trip") if each.type in {"tool_started", "tool_ended"}]
    return [said, counts(hf), [heard.count("Bash"), heard.count("Read")], log[:2], hf.runs.snapshot("trip").status]


async def tools_of_other_servers_are_known_by_their_whole_names(hf: holdfast.Holdfast) -> object:
    """Their failures open a circuit."""
    turns = [[Ask("look", {"key": "tea"})], *[[Ask("look", {"key": "milk"})]] * 3]
    servers = {"other": {"command": sys.executable, "args": ["-c", OTHER]}}
    said = await told(guard(hf, agent(*turns, mcp_servers=servers), breaker={"failure_threshold": 2}))
    return [said, counts(hf)]


async def a_call_that_was_not_made_holds_nothing(hf: holdfast.Holdfast) -> object:
    """Somebody else said no, or it was interrupted."""
    begun = asyncio.Event()

    async def begin(given: Any, *_: object) -> dict[str, Any]:
        if "tail" in str(given["tool_input"]):
            begun.set()
        return {}

    write = Ask("Write", {"file_path": "tea", "content": "tea"})
    turns = [[write], [write], [bash("tail -f /dev/null")], [bash("echo hi")]]
    options = guard(hf, agent(*turns, hooks={"PreToolUse": [HookMatcher(hooks=[begin])]}), **ONE_AT_A_TIME)
    said: list[str] = []
    async with ClaudeSDKClient(options) as client:

        async def hear() -> None:
            async for message in client.receive_response():
                said.extend(text_of(each) for each in results_in(message))

        await client.query("go")
        hearing = asyncio.create_task(hear())
        await begun.wait()
        await client.interrupt()
        await hearing
        await client.query("go on")
        await hear()
    return [said, counts(hf)]


async def a_call_that_nobody_hears_of_holds_nothing(hf: holdfast.Holdfast) -> object:
    """The agent is cancelled while Claude Code makes a call; then another's takes too long."""
    endless, slow = (
        bash("echo begun > begun; tail -f /dev/null"),
        bash("python3 -c 'import time; time.sleep(0.3)'; echo hi"),
    )

    async def go() -> None:
        async with hf.run(run_id="trip"):
            await told(guard(hf, agent([endless]), concurrency=1))

    begun = Path(HOME.name) / "begun"
    os.mkfifo(begun)
    cancelled = asyncio.create_task(go())
    await asyncio.to_thread(begun.read_text)
    cancelled.cancel()
    await asyncio.wait({cancelled})
    said = await told(guard(hf, agent([slow]), concurrency=1, timeout=0.1))
    return [hf.runs.snapshot("trip").interrupted, said, counts(hf)]


async def a_run_that_is_cancelled_stops_what_is_left_of_it(hf: holdfast.Holdfast) -> object:
    """An agent in a task that nobody cancels; its server lives on."""
    made: list[int] = []
    ends: list[Any] = []

    @tool("stop", "Stop.", {})
    async def stop(given: dict[str, Any]) -> dict[str, Any]:
        assert hf.current_run is not None
        hf.current_run.cancel("enough")
        return {"content": [{"type": "text", "text": "stopped"}]}

    @tool("pay", "Pay.", {"amount": int})
    async def pay(given: dict[str, Any]) -> dict[str, Any]:
        made.append(given["amount"])
        return {"content": [{"type": "text", "text": "paid"}]}

    async def go() -> list[str]:
        said = []
        turns = [
            [Ask("stop")],
            [Ask("pay", {"amount": 1})],
            [Ask("pay", {"amount": 2})],
            [bash("echo hi")],
            [bash("pwd")],
        ]
        async for message in query(prompt="go", options=guard(hf, agent(*turns, tools=guard(hf, [stop, pay])))):
            said += [text_of(each) for each in results_in(message)]
            if isinstance(message, ResultMessage):
                ends.append(message.terminal_reason)
        return said

    with suppress(holdfast.RunCancelled):
        async with hf.run(run_id="trip"):
            left = asyncio.create_task(go())
            await asyncio.wait({left})
    return [await left, ends, made]


async def the_model_is_told_the_same_from_the_log(hf: holdfast.Holdfast) -> object:
    """Of errors, too, whichever way they were told, and of what a policy says instead."""
    made: list[str] = []

    class Strange(Exception):
        """Of which a log knows the name alone."""

    @tool("menu", "The menu.", {})
    async def menu(given: dict[str, Any]) -> dict[str, Any]:
        made.append("menu")
        return {"content": [{"type": "text", "text": each} for each in ("tea", "milk")]}

    @tool("refuse", "Refuse.", {})
    async def refuse(given: dict[str, Any]) -> dict[str, Any]:
        made.append("refuse")
        return {"content": [{"type": "text", "text": "no tea"}], "is_error": True}

    @tool("fail", "Fail.", {})
    async def fail(given: dict[str, Any]) -> dict[str, Any]:
        made.append("fail")
        raise Strange("no cups")

    @tool("down", "Down.", {})
    async def down(given: dict[str, Any]) -> dict[str, Any]:
        made.append("down")
        raise ConnectionError("connection refused")

    turns = [[Ask("menu")], [Ask("refuse")], [Ask("fail")], [Ask("down")]]
    came: list[Any] = []
    for run in (hf.run(run_id="trip"), hf.resume("trip")):
        with suppress(holdfast.StoreError):
            async with run:
                tools = guard(hf, [menu, refuse, fail]) + guard(hf, [down], fallback={"value": {"rows": []}})
                came.append(
                    [(each.content, each.is_error) async for each in results(guard(hf, agent(*turns, tools=tools)))]
                )
                raise holdfast.StoreError("the disk is gone")
    return [came[0], came[0] == came[1], made, counts(hf)]


async def calls_whose_end_nobody_tells_are_bounded(hf: holdfast.Holdfast) -> object:
    """As Claude Code would ask: it is not asked for this."""
    (before,) = guard(hf, ClaudeAgentOptions(), breaker=False).hooks["PreToolUse"][0].hooks
    said = [
        await before({"tool_name": "Bash", "tool_input": {}, "tool_use_id": str(n), "session_id": "s"}, str(n), {})
        for n in range(MOST + 10)
    ]
    await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for each in left:
        each.cancel()
    return [said == [{}] * (MOST + 10), len(left) - MOST]


async def what_is_no_tool_is_told(hf: holdfast.Holdfast) -> object:
    """At once."""
    came = []
    for wrong in (None, [print], guard(hf, ClaudeAgentOptions())):
        try:
            guard(hf, wrong)
        except holdfast.ConfigError as error:
            came.append(str(error))
    return came


SCENES = (
    what_claude_code_calls_is_guarded,
    tools_of_other_servers_are_known_by_their_whole_names,
    a_call_that_was_not_made_holds_nothing,
    a_call_that_nobody_hears_of_holds_nothing,
    a_run_that_is_cancelled_stops_what_is_left_of_it,
    the_model_is_told_the_same_from_the_log,
    calls_whose_end_nobody_tells_are_bounded,
    what_is_no_tool_is_told,
)


if __name__ == "__main__":
    play_tasks(SCENES)
