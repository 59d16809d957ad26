"""FastMCP: `server.add_middleware(guard(hf))`, after other middleware, so that it is next to the tools.

It guards the tools of a server, those of mounted and proxied ones and of apps too. An answer that a policy keeps is for
all clients: no `cache` for a tool that looks at who is asking.
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

CONTINUED = {"input_responses", "request_state"}  # what a client has answered: another call than the one that asked


def guard(hf: Holdfast, **policy: object) -> Guards:
    """A middleware that guards all tools of a server; *policy* are settings of each."""
    return Guards(hf, **policy)


class Guards(Middleware):
    """Calls tools by the guards of *hf*."""

    def __init__(self, hf: Holdfast, **policy: object) -> None:
        self._guarded = Guarded(hf, policy)
        self._kit = hf._kit

    async def on_call_tool(self, context: MiddlewareContext, call_next: CallNext) -> Any:
        """Make a call."""
        version = _version(context)
        tool = await _called(context, version)
        if tool is None:  # whatever a client makes up, and is told so
            return await call_next(context)
        if (own := self._own(tool)) is not None:
            return await decorated(own, _made(context, call_next), _refused)
        asked = context.message.model_dump(mode="json", include=CONTINUED, exclude_none=True)
        if version is not None:
            asked["_meta"] = {"fastmcp": {"version": asdict(version)}}  # the same call of another version is another
        given = {**(context.message.arguments or {}), **asked}
        made = partial(_call, context, call_next)
        try:
            answer = await self._guarded.acall(tool.name, made, given, _refused)
        except RecordedError as error:  # the tool's own, in another process
            raise ToolError(error.message) from error
        if isinstance(answer, Answer):
            return answer.given(_read)
        return tool.convert_result(answer)  # a policy's answer, or that of a tool in place of this one

    def _own(self, tool: Tool) -> Bound | None:
        """What guards the function of *tool* already, or that of the tool which it transforms."""
        while tool is not None:
            bound = getattr(getattr(tool, "fn", None), "__holdfast__", None)
            if isinstance(bound, Bound) and bound.kit is self._kit:
                return bound
            tool = getattr(tool, "parent_tool", None)
        return None


def _version(context: MiddlewareContext) -> VersionSpec | None:
    """The version of its tool that a call asks for; what is none counts as not said, as it does for the server."""
    match context.message.meta:
        case {"fastmcp": {"version": str(version)}}:
            return VersionSpec(eq=version)
        case {"fastmcp": {"version": dict(bounds)}} if all(isinstance(bound, str) for bound in bounds.values()):
            return VersionSpec(gte=bounds.get("gte"), lt=bounds.get("lt"), eq=bounds.get("eq"))
    return None


async def _called(context: MiddlewareContext, version: VersionSpec | None) -> Tool | None:
    """The tool that is meant: by the name that it is listed under, or by the one that the page of an app has for it."""
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
    except Exception:  # it cannot be written: so will the framework find
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
            raise cause from None  # of guards inside of the tool: no failure of it
        raise


def _refused(reason: str) -> ToolResult:
    return ToolResult(reason, is_error=True)
