"""Claude Agent SDK: `create_sdk_mcp_server("shop", tools=guard(hf, tools))` for tools of your own, and
`guard(hf, options)` for all tools that Claude Code itself calls: its built-in ones and those of MCP servers.

Holdfast learns of the latter only through hooks. The guards admit or refuse such a call before it is made, and are told
how it ended; the call cannot be repeated, cut off or answered in the tool's place, and a resumed run makes it again.
The SDK reports every error that leaves a tool of your own to the model, even a call in doubt or a failing store.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from holdfast.category import ErrorCategory
from holdfast.checks import shown
from holdfast.errors import ConfigError, RecordedError, RunCancelled
from holdfast.frameworks.guarded import Failed, Guarded, Holdfast, needing, text
from holdfast.runs import Run, running

with needing("claude-agent-sdk"):
    from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, SdkMcpTool

T = TypeVar("T")

REMOTE = ("mcp__", "WebFetch", "WebSearch")  # name prefixes of tools that may fail through no fault of the model
MOST = 1000  # calls whose end is awaited at one time; beyond that the oldest is dropped
LONGEST = 600.0  # seconds to wait for a call's end: Claude Code does not report the end of a call that was cut off
GLANCE = 1.0  # seconds between checks whether the run that a call was made in is still open


def guard(hf: Holdfast, given: T, **policy: object) -> T:
    """Return *given*, guarded: options of an agent, with hooks for what Claude Code calls, or a list of tools of your
    own; *policy* are settings of each tool.
    """
    guarded = Guarded(hf, policy)
    made: Any
    if isinstance(given, ClaudeAgentOptions):
        made = guarded.guard_once(given, _hooked)
    elif isinstance(given, Iterable):
        made = guarded.each(given, _tool)
    else:
        raise ConfigError(f"must be ClaudeAgentOptions, or a list of tools as @tool makes them, not {shown(given)}")
    return cast("T", made)


def _hooked(guarded: Guarded, options: ClaudeAgentOptions) -> ClaudeAgentOptions:
    return replace(options, hooks=Hooks(guarded, _own(options)).beside(options.hooks or {}))


# --- the user's own tools ---


def _tool(guarded: Guarded, tool: SdkMcpTool) -> SdkMcpTool:
    if not isinstance(tool, SdkMcpTool):
        raise ConfigError(f"tools: must be tools of the SDK, as @tool makes them, not {type(tool).__name__}")
    own = guarded.guards(tool.handler)
    name, handler = (tool.name, tool.handler) if own is None else (own.tool.name, own.fn)
    return replace(tool, handler=partial(_run, guarded, name, handler))


class Told(Exception):
    """An error whose text the SDK tells the model."""


async def _run(guarded: Guarded, name: str, handler: Callable[..., Awaitable[Any]], given: Mapping[str, Any]) -> Any:
    try:
        answer = await guarded.acall(name, partial(_call, handler), given, _refused)
    except RecordedError as error:  # the tool's own error, read from the run's log
        raise Told(error.message) from error
    except RunCancelled as end:  # raised as a cancellation, it would end the whole server
        raise Told(str(end)) from end
    return answer if isinstance(answer, dict) and "content" in answer else _result(text(answer))


async def _call(handler: Callable[..., Awaitable[Any]], /, **arguments: Any) -> Any:
    result = await handler(arguments)
    if isinstance(result, dict) and result.get("is_error"):
        said = [each["text"] for each in result.get("content", ()) if each.get("type") == "text"]
        raise Failed("\n".join(said), result)
    return result


def _result(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def _refused(reason: str) -> dict[str, Any]:
    return {**_result(reason), "is_error": True}


# --- tools that Claude Code calls ---


class Denial(NamedTuple):
    """The guards' refusal, for the model; if *final*, an error that ends the agent, for the user who runs it."""

    text: str
    final: bool = False


class Call(NamedTuple):
    """A call that Claude Code makes: *task* holds its guards until *end* is set."""

    task: asyncio.Task[Denial | None]
    end: asyncio.Future[Any]
    session: str
    is_inner: bool  # made by an agent within the agent


class Hooks:
    """The hooks that Claude Code calls before and after a tool call; tools whose names begin with a prefix in *own* are
    skipped, since they are guarded where they are defined.
    """

    def __init__(self, guarded: Guarded, own: tuple[str, ...]) -> None:
        self._guarded = guarded
        self._own = own
        self._calls: dict[str, Call] = {}

    def beside(self, hooks: Mapping[Any, list[HookMatcher]]) -> dict[Any, list[HookMatcher]]:
        """Return *hooks* with these added."""
        both = {event: list(matchers) for event, matchers in hooks.items()}
        for event, hook in {
            "PreToolUse": self.before,
            "PostToolUse": self.after,
            "PostToolUseFailure": self.after,
            "PostToolBatch": self.drop_unmade,
            "UserPromptSubmit": self.interrupted,
        }.items():
            # A call that waits for its turn longer than hooks may take is refused.
            both.setdefault(event, []).append(HookMatcher(hooks=[hook], timeout=LONGEST))
        return both

    async def before(self, given: Any, *_: object) -> dict[str, Any]:
        """Ask the guards whether a call may be made."""
        if given["tool_name"].startswith(self._own):
            return {}
        loop = asyncio.get_running_loop()
        admitted, end = loop.create_future(), loop.create_future()
        task = loop.create_task(self._hold(given["tool_name"], given["tool_input"], admitted, end))
        try:
            await asyncio.wait({task, admitted}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # Claude Code no longer waits for the answer
            task.cancel()
            raise
        if admitted.done():
            self._keep(given["tool_use_id"], Call(task, end, given["session_id"], "agent_id" in given))
            return {}
        denial = task.result()
        assert denial is not None
        no = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": denial.text}
        return {"hookSpecificOutput": no, **_stop(denial)}

    async def after(self, given: Any, *_: object) -> dict[str, Any]:
        """Tell the guards how a call ended; the end is on disk when this returns."""
        call = self._calls.pop(given["tool_use_id"], None)
        if call is None:
            return {}
        if given.get("is_interrupt"):
            call.task.cancel()
            return {}
        call.end.set_result(_failed(given) if "error" in given else given["tool_response"])
        return _stop(await call.task)

    async def drop_unmade(self, given: Any, *_: object) -> dict[str, Any]:
        """Drop admitted calls of a batch that were not made, because something other than these guards refused them."""
        self._drop(each["tool_use_id"] for each in given["tool_calls"])
        return {}

    async def interrupted(self, given: Any, *_: object) -> dict[str, Any]:
        """Drop the session's earlier calls: a new prompt means that they have ended or were cut off."""
        calls = self._calls.items()
        self._drop([id for id, call in calls if call.session == given["session_id"] and not call.is_inner])
        return {}

    async def _hold(
        self, name: str, given: Mapping[str, Any], admitted: asyncio.Future[None], end: asyncio.Future[Any]
    ) -> Denial | None:
        try:
            answer = await self._guarded.awatch(name, partial(_made, admitted, end, running()), given, Denial)
        except (Exception, RunCancelled) as error:  # if the guards cannot be asked, the call is not made
            return Denial(str(error), final=True)
        return answer if isinstance(answer, Denial) else None

    def _keep(self, id: str, call: Call) -> None:
        self._drop([id] if id in self._calls or len(self._calls) < MOST else [next(iter(self._calls))])
        self._calls[id] = call

        def over(_: object) -> None:
            if self._calls.get(id) is call:
                del self._calls[id]

        call.task.add_done_callback(over)

    def _drop(self, ids: Iterable[str]) -> None:
        for id in ids:
            if (call := self._calls.pop(id, None)) is not None:
                call.task.cancel()


async def _made(
    admitted: asyncio.Future[None], end: asyncio.Future[Any], run: Run | None, /, **arguments: object
) -> Any:
    """Let Claude Code make the call, and wait for its end."""
    admitted.set_result(None)
    clock = asyncio.get_running_loop().time
    until = clock() + LONGEST
    while not end.done():
        if clock() >= until or (run is not None and not run.is_open):
            raise asyncio.CancelledError("its end was not reported")
        await asyncio.wait({end}, timeout=GLANCE)
    if isinstance(outcome := end.result(), Failed):
        raise outcome
    return outcome


def _failed(given: Any) -> Failed:
    """Return the failure; a local tool fails because of its arguments: a command that exits with 1, a missing file."""
    is_remote = given["tool_name"].startswith(REMOTE)
    return Failed(given["error"], None, category=None if is_remote else ErrorCategory.INVALID_PARAMETERS)


def _stop(denial: Denial | None) -> dict[str, Any]:
    return {"continue_": False, "stopReason": denial.text} if denial is not None and denial.final else {}


def _own(options: ClaudeAgentOptions) -> tuple[str, ...]:
    """Return the name prefixes of the tools that run in this process."""
    servers = options.mcp_servers if isinstance(options.mcp_servers, dict) else {}  # otherwise it is the name of a file
    own = [name for name, server in servers.items() if server.get("type") == "sdk"]
    return tuple(f"mcp__{re.sub('[^a-zA-Z0-9_-]', '_', name)}__" for name in own)
