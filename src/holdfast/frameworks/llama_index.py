"""LlamaIndex: `FunctionAgent(tools=guard(hf, tools), llm=llm)`, or any other agent.

What the guards say reaches the model as a tool output that is marked as an error. Errors for the user who runs the
agent (a call in doubt, a failing store, a cancelled run) end the agent, and are raised where it is awaited.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

import msgspec

from holdfast.errors import ConfigError, HoldfastError, RecordedError, RunCancelled
from holdfast.frameworks.guarded import Aside, Failed, Guarded, Holdfast, needing, text

with needing("llama-index-core"):
    from llama_index.core.tools import (
        AsyncBaseTool,
        BaseTool,
        FunctionTool,
        ToolMetadata,
        ToolOutput,
        adapt_to_async_tool,
    )
    from llama_index.core.workflow.errors import WorkflowCancelledByUser
    from workflows.runtime.types.results import WaitingForEvent

_PASSING: Final[ContextVar[Exception | None]] = ContextVar("holdfast_llama_index", default=None)


def guard(hf: Holdfast, tools: Iterable[BaseTool | Callable[..., Any]], **policy: object) -> list[Any]:
    """Return guarded stand-ins for *tools*; *policy* are settings of each."""
    # The result is a `list[Any]` since lists are invariant: agents take lists of tools, or of tools and functions.
    return Guarded(hf, policy).each(tools, GuardedTool)


class GuardedTool(FunctionTool):
    """Calls *tool* through its guards; it is a `FunctionTool`, since an agent passes its context only to those."""

    def __init__(self, guarded: Guarded, tool: object) -> None:
        if not isinstance(tool, BaseTool):
            if not callable(tool):
                raise ConfigError(f"tools: must be tools of LlamaIndex or functions, not {type(tool).__name__}")
            tool = FunctionTool.from_defaults(tool)
        self._guarded = guarded
        self._name, self._tool = _undecorated(guarded, adapt_to_async_tool(tool))
        bare = self._tool
        super().__init__(bare.real_fn if isinstance(bare, FunctionTool) else bare.call, bare.metadata)

    @property
    def metadata(self) -> ToolMetadata:
        """The tool's description for the model.

        An agent turns every error into an output, and reads the tool's name from here to do so. An error that is not
        for the model is raised again at that moment, to get past the agent.
        """
        error = _PASSING.get()
        if error is not None and error is sys.exc_info()[1]:
            raise error
        return self._tool.metadata

    def call(self, *args: Any, **kwargs: Any) -> ToolOutput:
        """Call the tool through its guards, from synchronous code."""
        one = Call(self._tool, args, kwargs)
        with _passing():
            answer = self._guarded.call(self._name, partial(_call, one), one.arguments, one.refused)
        return one.output(answer)

    async def acall(self, *args: Any, **kwargs: Any) -> ToolOutput:
        """Call the tool through its guards, for an agent."""
        one = Call(self._tool, args, kwargs)
        with _passing():
            try:
                answer = await self._guarded.acall(self._name, partial(_acall, one), one.arguments, one.refused)
            except RunCancelled as end:  # an agent ignores it, and would wait for the tool for ever
                raise WorkflowCancelledByUser(str(end)) from end
        return one.output(answer)


def _undecorated(guarded: Guarded, tool: AsyncBaseTool) -> tuple[str, AsyncBaseTool]:
    """Return the name by which the guards know the tool, and the tool with its own guards removed."""
    own = guarded.guards(tool.real_fn) if isinstance(tool, FunctionTool) else None
    if own is None:
        return tool.metadata.get_name(), tool
    if not hasattr(tool, "_callback") or not hasattr(tool, "_async_callback"):  # private, but nothing else gives them
        raise ConfigError(f"{own.tool.name}: its callbacks cannot be found: guard the function without @hf.tool")
    coroutine = guarded.guards(tool.async_fn) if tool.async_fn is not tool.real_fn else None
    return own.tool.name, FunctionTool(
        own.fn,
        tool.metadata,
        None if coroutine is None else coroutine.fn,
        callback=tool._callback,
        async_callback=tool._async_callback,
        partial_params=tool.partial_params,
    )


@contextmanager
def _passing() -> Iterator[None]:
    """Note an error that is not for the model, for `metadata` to raise."""
    try:
        yield
    except (HoldfastError, WorkflowCancelledByUser) as error:
        if not isinstance(error, RecordedError):  # the tool's own error
            _PASSING.set(error)
        raise


class Call:
    """One call of *tool*, and its output if the call was made."""

    def __init__(self, tool: AsyncBaseTool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.tool = tool
        self.args = args
        self.kwargs = kwargs
        self.name: str = tool.metadata.get_name()
        self._made: tuple[ToolOutput, ToolOutput] | None = None  # what is kept of the output, and the output itself
        context = tool.ctx_param_name if isinstance(tool, FunctionTool) else None
        names = tool.metadata.get_parameters_dict()["properties"]
        self.arguments: dict[str, Any] = dict(zip(names, args, strict=False))
        self.arguments |= {name: value for name, value in kwargs.items() if name != context}
        self._input = {"args": (), "kwargs": self.arguments}

    def keep(self, output: ToolOutput) -> ToolOutput:
        """Return what is remembered of *output*: what the model is told, and the raw value if that is plain data."""
        if output.is_error:
            raise Failed(output.content, output)
        raw = output.raw_output if _is_plain(output.raw_output) else output.content
        kept = ToolOutput(self.name, blocks=output.blocks, raw_input={}, raw_output=raw)
        self._made = kept, output
        return kept

    def output(self, answer: Any) -> ToolOutput:
        """Return the output of this very call: the tool's own, or one from the log, the cache or the policy."""
        if self._made is not None and self._made[0] is answer:
            return self._made[1]
        if not isinstance(answer, ToolOutput):
            return ToolOutput(self.name, text(answer), raw_input=self._input, raw_output=answer)
        return answer if answer.raw_input else answer.model_copy(update={"raw_input": self._input})

    def refused(self, words: str) -> ToolOutput:
        """What the model is told in place of an answer."""
        return ToolOutput(self.name, words, raw_input=self._input, raw_output=words, is_error=True)


def _call(one: Call, /, **arguments: object) -> ToolOutput:
    return one.keep(one.tool.call(*one.args, **one.kwargs))


async def _acall(one: Call, /, **arguments: object) -> ToolOutput:
    try:
        return one.keep(await one.tool.acall(*one.args, **one.kwargs))
    except WaitingForEvent as pause:  # the tool waits for an event, and is called again when it comes
        raise Aside(pause, again=True) from pause


def _is_plain(value: object) -> bool:
    try:
        return bool(msgspec.json.decode(msgspec.json.encode(value)) == value)
    except Exception:  # raised by the value's own code, too
        return False
