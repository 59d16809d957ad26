"""OpenAI Agents SDK: `Agent(name="clerk", tools=guard(hf, [search, pay]))`.

Function tools are guarded. An agent that serves as a tool is not: guard that agent's own tools, so that a resumed run
recognises each of their calls. Left as they are: tools of the provider; custom, shell and computer tools and
`mcp_servers`, because the SDK reports whatever they raise to the model, even a call in doubt. For MCP servers use
`holdfast wrap`.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple, get_args, get_origin

from holdfast.checks import shown
from holdfast.errors import ConfigError, InDoubt, LeaseLost, RecordedError, RunCancelled, RunDiverged, StoreError
from holdfast.frameworks.guarded import Guarded, Holdfast, needing, returning

with needing("openai-agents"):
    from agents import AgentsException, FunctionTool, Tool, ToolOriginType, ToolTimeoutError, function_tool
    from agents import tool as sdk
    from agents.tool_context import ToolContext
    from agents.tracing import SpanError, get_current_span

TOOLS = tuple(get_origin(each) or each for each in get_args(Tool))
OUTPUTS = (sdk.ToolOutputText, sdk.ToolOutputImage, sdk.ToolOutputFileContent)
# The class of `on_invoke_tool` for all tools except those made by hand.
HANDLED = type(sdk.with_function_tool_failure_error_handler(print, print))
LATE = f"{ToolTimeoutError.__module__}.{ToolTimeoutError.__qualname__}"  # its name in a run's log
NOT_FOR_THE_MODEL = (ConfigError, InDoubt, LeaseLost, RunDiverged, StoreError)


def guard(hf: Holdfast, tools: Iterable[Tool], **policy: object) -> list[Tool]:
    """The *tools* of an agent, guarded; *policy* are settings of each."""
    return Guarded(hf, policy).each(tools, _guarded)


def _guarded(guarded: Guarded, tool: Tool) -> Tool:
    if not isinstance(tool, TOOLS):
        raise ConfigError(f"{shown(tool)}: must be a tool of the Agents SDK; @function_tool makes one of a function")
    if not isinstance(tool, FunctionTool):
        return tool
    made = copy.copy(tool)
    made.timeout_seconds = None  # enforced below the guards instead, so that they see it
    # Errors raised above the guards are for the user who runs the agent: the SDK must turn none into an answer, not
    # even a run's cancellation.
    sdk.set_function_tool_failure_error_function(made, None)
    made.on_invoke_tool = sdk.with_function_tool_failure_error_handler(Invoker(guarded, tool), lambda *_: None)
    return copy.copy(made)  # copying tells the handler which tool it belongs to


class Refusal(NamedTuple):
    """What the guards say in place of a tool's answer."""

    text: str


class Invoker:
    """The SDK calls this in place of *tool*: below the guards errors are raised, above them its settings apply."""

    def __init__(self, guarded: Guarded, tool: FunctionTool) -> None:
        self._guarded = guarded
        self._tool = tool
        self._name = tool.qualified_name
        bare = copy.copy(tool)
        bare.timeout_behavior = "raise_exception"
        sdk.set_function_tool_failure_error_function(bare, None)
        if own := guarded.guards(getattr(tool, "__wrapped__", None)):
            plain = function_tool(own.fn, name_override=tool.name, strict_mode=tool.strict_json_schema)
            self._name, bare.on_invoke_tool = own.tool.name, plain.on_invoke_tool
        self._bare = copy.copy(bare)

        async def call(ctx: ToolContext, given: str, /, **arguments: object) -> Any:
            return await self._invoke(ctx, given)

        call.__annotations__ = returning(getattr(tool, "__wrapped__", None), *OUTPUTS)
        self._call = call
        origin = sdk.get_function_tool_origin(tool)
        self._is_agent = origin is not None and origin.type is ToolOriginType.AGENT_AS_TOOL
        self._is_handled = isinstance(tool.on_invoke_tool, HANDLED)
        if self._is_handled:
            # The SDK looks for this name: it asks a `needs_approval` function only about arguments that this has
            # checked. Older versions of the SDK do not check.
            self.__agents_prepare_arguments__ = getattr(self._bare.on_invoke_tool, "prepare_arguments", None)

    async def __call__(self, ctx: ToolContext, given: str) -> Any:
        """Call the tool through its guards."""
        try:
            if self._is_agent:
                return await self._invoke(ctx, given)
            call = partial(self._call, ctx, given)
            answer = await self._guarded.acall(self._name, call, _arguments(given), Refusal)
        except NOT_FOR_THE_MODEL as error:
            _let_pass(error)
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if self._is_agent or isinstance(error, RunCancelled) or (task is not None and task.cancelling()):
                raise
            return await self._told(ctx, error)
        except Exception as error:
            return await self._told(ctx, error)
        return await self._said(ctx, answer.text) if isinstance(answer, Refusal) else answer

    async def _invoke(self, ctx: ToolContext, given: str) -> Any:
        return await sdk.invoke_function_tool(function_tool=self._bare, context=ctx, arguments=given)

    async def _told(self, ctx: ToolContext, error: BaseException) -> Any:
        """Return what the model is told of the tool's own *error*; raise it where the SDK would."""
        tool, told = self._tool, None
        if tool.timeout_seconds is not None and _is_late(error, tool.name):
            if tool.timeout_behavior == "raise_exception":
                raise error
            late, tell = ToolTimeoutError(tool.name, tool.timeout_seconds), tool.timeout_error_function
            words = self._said(ctx, str(late)) if tell is None else tell(ctx, late)
            return await words if inspect.isawaitable(words) else words
        if self._is_handled or not isinstance(error, Exception):
            told = await _failure(tool, ctx, error)
        if told is None:
            raise error
        if span := get_current_span():
            facts = {"tool_name": tool.name, "error": type(error).__name__}  # its text may not belong in a trace
            span.set_error(SpanError(message="Error running tool (non-fatal)", data=facts))
        return told

    async def _said(self, ctx: ToolContext, text: str) -> str:
        """Return *text* in place of an answer, even if the tool's answers must fit a schema."""
        if self._tool.output_json_schema is not None:
            plain = copy.copy(self._tool)
            plain.output_json_schema = None
            # This makes the SDK note that the answer reports an error. A CancelledError, because the SDK would show any
            # `Exception` to the run's formatter.
            await _failure(sdk.set_function_tool_failure_error_function(plain), ctx, asyncio.CancelledError())
        return text


async def _failure(tool: FunctionTool, ctx: ToolContext, error: BaseException) -> str | None:
    """Return what the tool's failure function makes of an *error*."""
    failure = sdk.maybe_invoke_function_tool_failure_error_function
    told: str | None = await failure(function_tool=tool, context=ctx, error=error)
    return told


def _arguments(given: str) -> dict[str, Any]:
    try:
        arguments = json.loads(given or "{}")
    except ValueError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"input": given}  # not an object: the tool will complain


def _is_late(error: BaseException, name: str) -> bool:
    if isinstance(error, RecordedError):
        return error.type == LATE
    return isinstance(error, ToolTimeoutError) and error.tool_name == name


def _let_pass(error: Any) -> None:
    """Make *error* an `AgentsException`: the SDK hides others in a `UserError`, and the run would count as failed."""
    if not isinstance(error, AgentsException):
        kind = type(error)
        error.__class__ = type(kind.__name__, (kind, AgentsException), {"__module__": kind.__module__})
        error.run_data = None
