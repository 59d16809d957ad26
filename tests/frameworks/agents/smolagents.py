"""An agent of smolagents; it is plain, and so are its tools."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from inspect import iscoroutinefunction
from typing import Any

from smolagents import ActionStep, ChatMessage, LogLevel, Model, Tool, ToolCallingAgent
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from tests.frameworks.play import Ask, plain

from holdfast import Holdfast
from holdfast.frameworks.smolagents import guard


class Scripted(Model):
    """A model that makes the calls of one turn after the other."""

    def __init__(self, turns: list[list[Ask]]) -> None:
        super().__init__(model_id="scripted")
        self._turns: Iterator[list[Ask]] = iter([*turns, [Ask("final_answer", {"answer": "done"})]])
        self._said = 0

    def generate(self, messages: list[ChatMessage], **_: Any) -> ChatMessage:
        self._said += 1
        calls = [
            ChatMessageToolCall(
                ChatMessageToolCallFunction(each.arguments, each.tool), f"{self._said}-{number}", "function"
            )
            for number, each in enumerate(next(self._turns))
        ]
        return ChatMessage(MessageRole.ASSISTANT, "", tool_calls=calls)


class Made(Tool):
    """A tool out of a function."""

    output_type = "string"
    skip_forward_signature_validation = True

    def __init__(self, function: Callable[..., str]) -> None:
        self.name = function.__name__
        self.description = function.__doc__ or ""
        kinds = {str: "string", int: "integer"}
        hints = {name: kind for name, kind in function.__annotations__.items() if name != "return"}
        self.inputs = {name: {"type": kinds[kind], "description": name} for name, kind in hints.items()}
        self.forward = function
        super().__init__()


scripted = Scripted


async def play(
    hf: Holdfast, tools: list[Callable[..., Any]], turns: list[list[Ask]], settings: dict[str, Any] | None
) -> list[str]:
    made = [Made(_plain(hf, each) if iscoroutinefunction(each) else each) for each in tools]
    agent = ToolCallingAgent(
        made if settings is None else guard(hf, made, **settings), Scripted(turns), verbosity_level=LogLevel.OFF
    )
    told: list[str] = []
    await asyncio.to_thread(agent.run, "go", max_steps=len(turns) + 1)
    for step in agent.memory.steps:
        if isinstance(step, ActionStep) and not step.is_final_answer:
            told += str(step.error).splitlines()[:1] if step.error else (step.observations or "").splitlines()
    return told


def _plain(hf: Holdfast, tool: Callable[..., Any]) -> Callable[..., str]:
    return hf.tool(plain(inspect.unwrap(tool))) if hasattr(tool, "__holdfast__") else plain(tool)
