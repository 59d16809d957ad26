"""smolagents: `ToolCallingAgent(guard(hf, tools), model)`, or a `CodeAgent`.

Agents report every `Exception` that leaves a tool to the model: also a call in doubt, a run that another process has
taken over, a failing store. A cancelled run ends them. A tool that a remote executor runs elsewhere cannot be guarded.
Agents in several runs at once need `executor_kwargs={"timeout_seconds": None}`, or a `guard` each.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterable, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, NoReturn

from holdfast.errors import ConfigError
from holdfast.frameworks.guarded import Guarded, Holdfast, needing
from holdfast.runs import Run, running
from holdfast.shape import signature_of

with needing("smolagents"):
    from smolagents import Tool

# Set when a CodeAgent describes its tools to its model: in the agent's own context, but in no thread that runs the
# model's code.
_KNOWN: Final[ContextVar[bool]] = ContextVar("holdfast_smolagents", default=False)


def guard(hf: Holdfast, tools: Iterable[Tool], **policy: object) -> list[Tool]:
    """Return guarded stand-ins for *tools*; *policy* are settings of each."""
    told = dict[Run, Context]()
    return Guarded(hf, policy).each(tools, functools.partial(GuardedTool, told=told))


class NoAnswer(Exception):
    """A guard said no, or the tool took too long; the text is for the model."""


class GuardedTool(Tool):
    """Calls *tool* through its guards, and is described like it; *told* has an agent's context per run that saw it."""

    skip_forward_signature_validation = True  # the tool itself has passed this check

    def __init__(self, guarded: Guarded, tool: Tool, told: dict[Run, Context]) -> None:
        if not isinstance(tool, Tool):
            raise ConfigError(f"tools: must be tools of smolagents, as @tool makes them, not {type(tool).__name__}")
        super().__init__()
        self.name, self.description = tool.name, tool.description
        self.inputs, self.output_type, self.output_schema = tool.inputs, tool.output_type, tool.output_schema
        self._guarded = guarded
        self._told = told
        below = getattr(tool.forward, "__wrapped__", None)  # the function below @tool
        own = guarded.guards(below if hasattr(below, "__holdfast__") else tool.forward)
        self._known_as = tool.name if own is None else own.tool.name
        self._tool = tool if own is None else copy.copy(tool)
        if own is not None:
            self._tool.forward = own.fn

    def __call__(self, *args: Any, sanitize_inputs_outputs: bool = False, **kwargs: Any) -> Any:
        """Call the tool: for a model if inputs and outputs are sanitized, else for code that a model wrote."""
        try:
            return super().__call__(*args, sanitize_inputs_outputs=sanitize_inputs_outputs, **kwargs)
        except NoAnswer as refusal:
            if sanitize_inputs_outputs:  # an error would throw away the answers to all other calls of the turn
                return str(refusal)
            raise

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Make a guarded call, in the run of the agent."""
        return self._context().run(self._call, args, kwargs)

    def to_code_prompt(self) -> str:
        """Describe the tool to a model that writes code, and note its agent's context; called for each new task."""
        _KNOWN.set(True)
        for each in [each for each in tuple(self._told) if not each.is_open]:
            self._told.pop(each, None)
        if (run := running()) is not None:
            self._told[run] = copy_context()
        prompt: str = self._tool.to_code_prompt()
        return prompt

    def to_tool_calling_prompt(self) -> str:
        """Describe the tool to a model that makes calls."""
        prompt: str = self._tool.to_tool_calling_prompt()
        return prompt

    def _context(self) -> Context:
        """Return the agent's own context: code with a time limit, which is the default, runs in a thread without it."""
        if _KNOWN.get() or running() is not None:
            return copy_context()
        found = [context for run, context in tuple(self._told.items()) if run.is_open]
        if len(found) > 1:
            raise ConfigError(
                f"{self.name}: agents in {len(found)} runs have this tool, and it cannot be told which of them calls: "
                "make each CodeAgent with executor_kwargs={'timeout_seconds': None}, or with a guard() of its own"
            )
        return found[0].copy() if found else copy_context()

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        tool = self._tool

        @functools.wraps(tool.forward)  # its annotation says how a log rebuilds the result
        def call(**arguments: object) -> Any:
            return tool(*args, **kwargs)

        return self._guarded.call(self._known_as, call, _named(tool, args, kwargs), _refused)


def _named(tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by their names, also those that code gave by position."""
    signature = signature_of(tool.forward)  # that of @tool has a *self* that no caller gives
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    try:
        named = dict(signature.replace(parameters=parameters).bind(*args, **kwargs).arguments)
    except TypeError:  # the tool itself will report it
        return {**kwargs, "args": list(args)}
    for each in parameters:
        if each.kind is inspect.Parameter.VAR_KEYWORD:
            named |= named.pop(each.name, {})
    return named


def _refused(text: str) -> NoReturn:
    raise NoAnswer(text)
