"""Pydantic AI: `Agent(model, tools=tools, capabilities=[guard(hf)])`.

It guards everything that the agent itself calls: functions, toolsets, MCP servers. Output tools and tools that the
model's provider runs are not guarded. A `ModelRetry` asks the model for other arguments: it does not mean that the tool
is broken, unless its text says so, or it was raised from another error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from holdfast.category import ErrorCategory, classify
from holdfast.errors import RecordedError
from holdfast.frameworks.guarded import Answer, Aside, Guarded, Holdfast, needing
from holdfast.values.memo import Memo

with needing("pydantic-ai"):
    from pydantic import TypeAdapter, ValidationError
    from pydantic_ai import ApprovalRequired, CallDeferred, ModelRetry, RunContext, ToolFailed, ToolReturn
    from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
    from pydantic_ai.exceptions import RunCancelled
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

ASIDE = (ApprovalRequired, CallDeferred, RunCancelled)  # RunCancelled: an agent inside the tool was told to stop


def guard(hf: Holdfast, **policy: object) -> Capability:
    """A capability that guards all tools of an agent; *policy* are settings of each."""
    return Capability(hf, **policy)


class Capability(AbstractCapability):
    """Makes an agent call its tools through the guards of *hf*."""

    id = "holdfast"  # one per agent, or its run's own instead: nothing is guarded twice

    def __init__(self, hf: Holdfast, **policy: object) -> None:
        self._guarded = Guarded(hf, policy)

    def get_ordering(self) -> CapabilityOrdering:
        """Place this next to the tools: what others do around a call (ask, recover, search tools) is not the tool."""
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset) -> Toolset:
        """Return the guarded tools of one run of the agent."""
        return Toolset(toolset, self._guarded)

    @classmethod
    def get_serialization_name(cls) -> None:
        """Return None: a `Holdfast` cannot be written into a file."""


@dataclass
class Toolset(WrapperToolset):
    """A toolset whose tools are called through their guards."""

    guarded: Guarded

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext, tool: ToolsetTool) -> Any:
        """Call the tool through its guards."""
        own, tool = _bare(self.guarded, tool)
        made = partial(_call, self.wrapped, name, ctx, tool)
        try:
            answer = await self.guarded.acall(own or name, made, tool_args, _refuse)
        except RecordedError as error:  # the tool's own error, read from the run's log
            if (kind := _TOLD.get(error.type)) is not None:
                raise kind(error.message) from error
            raise
        return answer.given(_read) if isinstance(answer, Answer) else answer


async def _call(toolset: AbstractToolset, name: str, ctx: RunContext, tool: ToolsetTool, /, **arguments: Any) -> Answer:
    try:
        value = await toolset.call_tool(name, arguments, ctx, tool)
    except ASIDE as error:
        raise Aside(error, again=isinstance(error, ApprovalRequired)) from error
    except ModelRetry as error:
        if error.__cause__ is None and classify(error) is ErrorCategory.EXECUTION_ERROR:  # cause and text say no more
            error.category = ErrorCategory.INVALID_PARAMETERS
        raise
    try:
        return value if _PLAIN.dump(value) is not None else Answer.of(value, _written(value))
    except Exception:  # it cannot be serialized; the framework will notice that itself
        return value  # type: ignore[no-any-return]


def _written(value: Any) -> dict[str, Any]:
    """Return a value that is not plain data as Pydantic writes it: another process can tell the model the same."""
    whole = value if isinstance(value, ToolReturn) else ToolReturn(value)
    return {**_WRITTEN.dump_python(whole, mode="json", by_alias=True), "bare": whole is not value}


def _read(written: dict[str, Any]) -> Any:
    whole = _WRITTEN.validate_python(written)
    return whole.return_value if written["bare"] else whole


def _refuse(text: str) -> NoReturn:
    raise ToolFailed(text)


def _bare(guarded: Guarded, tool: ToolsetTool) -> tuple[str | None, ToolsetTool]:
    """Return the name of the guards that the function of *tool* is decorated with, and *tool* without these guards.

    The name is None if there are none. Toolsets wrap their tools, and a tool has no public way to its function: if the
    function is not found, neither are its guards.
    """
    if (inner := getattr(tool, "source_tool", None)) is not None:
        name, bare = _bare(guarded, inner)
        return name, tool if name is None else replace(tool, source_tool=bare)
    schema: Any = getattr(getattr(tool, "call_func", None), "__self__", None)
    own = guarded.guards(getattr(schema, "function", None))
    if own is None:
        return None, tool
    return own.tool.name, replace(tool, call_func=replace(schema, function=own.fn).call)


_PLAIN = Memo(None)
_WRITTEN = TypeAdapter(ToolReturn)
# The errors that the framework reports to the model, by their names in a run's log.
_TOLD = {
    f"{kind.__module__}.{kind.__qualname__}": told
    for kind, told in ((ModelRetry, ModelRetry), (ToolFailed, ToolFailed), (ValidationError, ModelRetry))
}
