"""An agent of Pydantic AI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.frameworks.play import Ask

from holdfast import Holdfast
from holdfast.frameworks.pydantic_ai import guard


def scripted(turns: list[list[Ask]]) -> FunctionModel:
    """A model that makes the calls of one turn after the other."""
    left = iter(turns)

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls = [ToolCallPart(each.tool, each.arguments) for each in next(left, [])]
        return ModelResponse(parts=calls or [TextPart("done")])

    return FunctionModel(answer)


async def play(
    hf: Holdfast, tools: list[Callable[..., Any]], turns: list[list[Ask]], settings: dict[str, Any] | None
) -> list[str]:
    agent = Agent(scripted(turns), tools=tools, capabilities=[] if settings is None else [guard(hf, **settings)])
    result = await agent.run("go")
    parts = [part for message in result.all_messages() for part in message.parts]
    return [part.model_response_str() for part in parts if isinstance(part, ToolReturnPart)]
