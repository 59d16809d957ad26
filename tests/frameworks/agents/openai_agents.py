"""An agent of the OpenAI Agents SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    ToolCallOutputItem,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from tests.frameworks.play import Ask

from holdfast import Holdfast
from holdfast.frameworks.openai_agents import guard


class Scripted(Model):
    """A model that makes the calls of one turn after the other."""

    def __init__(self, turns: Iterable[list[Ask]]) -> None:
        self._turns = iter(turns)
        self._said = 0

    async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
        output: list[Any] = [self._call(each) for each in next(self._turns, [])]
        if not output:
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            output = [
                ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
            ]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def _call(self, ask: Ask) -> ResponseFunctionToolCall:
        self._said += 1
        return ResponseFunctionToolCall(
            type="function_call", call_id=f"call-{self._said}", name=ask.tool, arguments=json.dumps(ask.arguments)
        )

    async def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[ResponseCompletedEvent]:
        output = (await self.get_response()).output
        whole = {"id": "r", "created_at": 0, "model": "m", "object": "response", "tool_choice": "auto", "tools": []}
        response = Response(**whole, output=output, parallel_tool_calls=True)
        yield ResponseCompletedEvent(type="response.completed", sequence_number=0, response=response)


scripted = Scripted


async def play(
    hf: Holdfast, tools: list[Callable[..., Any]], turns: list[list[Ask]], settings: dict[str, Any] | None
) -> list[str]:
    set_tracing_disabled(True)
    made: list[Any] = [function_tool(each) for each in tools]
    if settings is not None:
        made = guard(hf, made, **settings)
    agent = Agent(name="scripted", model=Scripted(turns), tools=made)
    result = await Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True), max_turns=50)
    return [str(each.output) for each in result.new_items if isinstance(each, ToolCallOutputItem)]
