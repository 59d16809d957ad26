"""Google's ADK: `Agent(model=model, name=name, tools=guard(hf, [search, pay, toolset]))`.

What a tool does to its context (state, a transfer, an escalation) is kept with its answer, and done again when the
answer comes from the log or a cache. An answer with `error` (ADK's own tools) or `isError` (MCP servers) is a failure.
Agents and workflows among the tools, and tools that the model's provider runs, stay as they are.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import copy
from functools import partial
from inspect import isasyncgen
from typing import Any

from holdfast.category import ErrorCategory
from holdfast.checks import shown
from holdfast.errors import ConfigError
from holdfast.frameworks.guarded import Aside, Failed, Guarded, Holdfast, needing, returning, text

with needing("google-adk"):
    from google.adk.events import EventActions
    from google.adk.tools import BaseTool, FunctionTool, ToolContext
    from google.adk.tools.base_toolset import BaseToolset
    from google.adk.workflow import BaseNode

ACTIONS = "__holdfast_actions__"  # the key, beside the answer, for what the tool did to its context


def guard(hf: Holdfast, tools: Iterable[Any], **policy: object) -> list[Any]:
    """The *tools* of an agent (functions, tools, toolsets), guarded; *policy* are settings of each."""
    return Guarded(hf, policy).each(tools, _tool)


def _tool(guarded: Guarded, tool: Any) -> Any:
    if isinstance(tool, BaseToolset):
        # The new class has the name of the toolset's class, by which the framework tells credential requests apart.
        return type(type(tool).__name__, (Toolset,), {})(guarded, tool)
    if isinstance(tool, BaseNode):
        return tool
    if not isinstance(tool, BaseTool):
        if not callable(tool):
            raise ConfigError(f"{shown(tool)}: must be a function, or a tool or a toolset of ADK")
        tool = FunctionTool(tool)
    if type(tool).run_async is BaseTool.run_async:  # the model's provider runs it
        return tool
    made = copy(tool)  # of the same class, which tells the framework what else to do with the tool
    own = guarded.guards(getattr(tool, "func", None))
    if own is not None:
        tool = copy(tool)
        tool.func = own.fn
    made.run_async = partial(_run, guarded, tool.name if own is None else own.tool.name, _calling(tool))
    return made


class Toolset(BaseToolset):
    """A toolset whose tools are guarded."""

    def __init__(self, guarded: Guarded, toolset: BaseToolset) -> None:
        super().__init__()
        self._guarded = guarded
        self._toolset = toolset

    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        """Return the toolset's tools, guarded, under the names that the model knows."""
        return [_tool(self._guarded, each) for each in await self._toolset.get_tools_with_prefix(readonly_context)]

    get_tools_with_prefix = get_tools  # the base class caches tools, which is for *toolset* to decide

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: Any) -> None:
        """Let the toolset change a request."""
        await self._toolset.process_llm_request(tool_context=tool_context, llm_request=llm_request)

    def get_auth_config(self) -> Any:
        """Return what the toolset needs to authenticate."""
        return self._toolset.get_auth_config()

    async def close(self) -> None:
        """Close the toolset."""
        await self._toolset.close()


Call = Callable[..., Awaitable[Any]]


async def _run(guarded: Guarded, name: str, call: Call, *, args: Mapping[str, Any], tool_context: ToolContext) -> Any:
    answer = await guarded.acall(name, partial(call, tool_context), args, _refused)
    if not isinstance(answer, dict) or ACTIONS not in answer:
        return answer
    for action, value in answer[ACTIONS].items():
        if action == "state_delta":
            tool_context.state.update(value)
        elif isinstance(value, dict):
            getattr(tool_context.actions, action).update(value)
        else:
            setattr(tool_context.actions, action, value)
    return answer["answer"]


def _calling(tool: BaseTool) -> Call:
    async def call(context: ToolContext, /, **arguments: Any) -> Any:
        return await _call(tool, context, arguments)

    call.__annotations__ = returning(getattr(tool, "func", tool.run_async))
    return call


async def _call(tool: BaseTool, context: ToolContext, arguments: dict[str, Any]) -> Any:
    before = {name: copy(getattr(context.actions, name)) for name in EventActions.model_fields}
    try:
        answer = await tool.run_async(args=arguments, tool_context=context)
    except (Exception, CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a workflow waits for a human
        raise Aside(error) from error
    actions = {name: _new(old, getattr(context.actions, name)) for name, old in before.items()}
    if isasyncgen(answer) or actions["requested_auth_configs"] or actions["requested_tool_confirmations"]:
        # A human must confirm the call or log in, or a live stream has begun.
        raise Aside(answer=answer, again=not isasyncgen(answer))
    if isinstance(answer, dict) and (answer.get("error") or answer.get("isError")):
        raise _failed(tool, text(answer.get("error") or answer.get("content")), answer)
    done = {name: value for name, value in actions.items() if value is not None}
    return {"answer": answer, ACTIONS: done} if done else answer


def _failed(tool: BaseTool, why: str, answer: dict[str, Any]) -> Failed:
    is_argument = why.startswith(f"Invoking `{tool.name}()` failed")  # the framework's words for wrong arguments
    return Failed(why, answer, category=ErrorCategory.INVALID_PARAMETERS if is_argument else None)


def _new(old: Any, now: Any) -> Any:
    """Return what of *now* is new or different from *old*; None if nothing is."""
    if isinstance(now, dict):
        return {key: value for key, value in now.items() if key not in old or old[key] is not value} or None
    return None if now == old else now


def _refused(message: str) -> dict[str, str]:
    return {"error": message}
