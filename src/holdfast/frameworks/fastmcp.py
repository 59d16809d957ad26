"""FastMCP: `server.add_middleware(guard(hf))`, after other middleware, so that it is next to the tools.

It guards the server's own tools, and those of mounted servers, proxied servers and apps. A cached answer is served to
all clients: set no `cache` for a tool whose answer depends on who asks.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from holdfast.calls.bound import Bound
from holdfast.errors import HoldfastError, RecordedError
from holdfast.frameworks.guarded import Answer, Aside, Failed, Guarded, Holdfast, decorated, needing

with needing("fastmcp"):
    from fastmcp.exceptions import ToolError
    from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
    from fastmcp.server.providers.addressing import parse_hashed_backend_name
    from fastmcp.tools import InputRequiredToolResult, Tool, ToolResult
    from fastmcp.utilities.versions import VersionSpec
    from mcp.types import CallToolResult, TextContent

# A client's answers to a question of the tool: a call with them is not the same call as the one that asked.
CONTINUED = {"input_responses", "request_state"}


def guard(hf: Holdfast, **policy: object) -> Guards:
    """A middleware that guards all tools of a server; *policy* are settings of each."""
    return Guards(hf, **policy)


class Guards(Middleware):
    """Calls tools through the guards of *hf*."""

    def __init__(self, hf: Holdfast, **policy: object) -> None:
        self._guarded = Guarded(hf, policy)
        self._kit = hf._kit

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        """Call the tool through its guards."""
        version = _version(context)
        tool = await _called(context, version)
        if tool is None:  # the client invented the tool, and the server tells it so
            return await call_next(context)
        if (own := self._own(tool)) is not None:
            return await decorated(own, _made(context, call_next), _refused)
        asked = context.message.model_dump(mode="json", include=CONTINUED, exclude_none=True)
        if version is not None:
            asked["_meta"] = {"fastmcp": {"version": asdict(version)}}  # a call of another version is another call
        given = {**(context.message.arguments or {}), **asked}
        made = partial(_call, context, call_next)
        try:
            answer = await self._guarded.acall(tool.name, made, given, _refused)
        except RecordedError as error:  # the tool's own error, read from the run's log
            raise ToolError(error.message) from error
        if isinstance(answer, Answer):
            return answer.given(_read)
        return tool.convert_result(answer)  # the policy's fixed fallback, or the answer of a fallback tool

    def _own(self, tool: Tool) -> Bound | None:
        """Return the guards that the function of *tool* is decorated with, or that of the tool which it transforms."""
        while tool is not None:
            bound = getattr(getattr(tool, "fn", None), "__holdfast__", None)
            if isinstance(bound, Bound) and bound.kit is self._kit:
                return bound
            tool = getattr(tool, "parent_tool", None)
        return None


def _version(context: MiddlewareContext) -> VersionSpec | None:
    """Return the tool version that a call asks for; a malformed one counts as not given, as it does for the server."""
    match context.message.meta:
        case {"fastmcp": {"version": str(version)}}:
            return VersionSpec(eq=version)
        case {"fastmcp": {"version": dict(bounds)}} if all(isinstance(bound, str) for bound in bounds.values()):
            return VersionSpec(gte=bounds.get("gte"), lt=bounds.get("lt"), eq=bounds.get("eq"))
    return None


async def _called(context: MiddlewareContext, version: VersionSpec | None) -> Tool | None:
    """Return the tool that is called: by its listed name, or by the hashed name that the page of an app uses for it."""
    server, name = context.fastmcp_context.fastmcp, context.message.name
    tool = await server.get_tool(name, version)
    if tool is None and (hashed := parse_hashed_backend_name(name)) is not None:
        tool = await server.get_tool_by_hash(*hashed)
    return tool


async def _call(context: MiddlewareContext, call_next: CallNext, /, **arguments: object) -> Answer:
    result = await _made(context, call_next)
    if not isinstance(result, ToolResult) or isinstance(result, InputRequiredToolResult):
        # The tool asks the client something first, or goes on as a task.
        raise Aside(answer=Answer.of(result, {}), again=isinstance(result, InputRequiredToolResult))
    if result.is_error:
        raise Failed("\n".join(each.text for each in result.content if isinstance(each, TextContent)), result)
    made = {"content": result.content, "structured_content": result.structured_content, "_meta": result.meta}
    try:
        return Answer.of(result, CallToolResult(**made).model_dump(mode="json", by_alias=True))
    except Exception:  # it cannot be serialized; the framework will notice that itself
        return result  # type: ignore[no-any-return]


def _read(written: dict[str, Any]) -> ToolResult:
    made = CallToolResult.model_validate(written)
    return ToolResult(made.content, made.structured_content, made.meta)


async def _made(context: MiddlewareContext, call_next: CallNext) -> Any:
    try:
        return await call_next(context)
    except ToolError as error:
        cause = error.__cause__
        if isinstance(cause, HoldfastError) and not isinstance(cause, RecordedError):
            raise cause from None  # raised by guards inside the tool: not a failure of the tool
        raise


def _refused(reason: str) -> ToolResult:
    return ToolResult(reason, is_error=True)
