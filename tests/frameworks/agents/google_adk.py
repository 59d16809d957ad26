"""An agent of Google's ADK."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

from google.adk.agents import Agent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from tests.frameworks.play import Ask

from holdfast import Holdfast
from holdfast.frameworks.google_adk import guard


class Scripted(BaseLlm):
    """A model that makes the calls of one turn after the other."""

    model: str = "scripted"
    turns: Iterator[list[Ask]]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        asked = next(self.turns, [])
        calls = [types.Part.from_function_call(name=each.tool, args=each.arguments) for each in asked]
        yield LlmResponse(content=types.ModelContent(calls or "done"))


def scripted(turns: list[list[Ask]]) -> Scripted:
    return Scripted(turns=iter(turns))


async def play(
    hf: Holdfast, tools: list[Callable[..., Any]], turns: list[list[Ask]], settings: dict[str, Any] | None
) -> list[str]:
    given = tools if settings is None else guard(hf, tools, **settings)
    agent = Agent(name="player", model=scripted(turns), tools=given)
    async with InMemoryRunner(agent) as runner:
        events = await runner.run_debug("go", quiet=True)
    answers = [each.response for event in events for each in event.get_function_responses()]
    return [str(each.get("result") or each["error"]) for each in answers]
