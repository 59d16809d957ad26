"""An agent of LlamaIndex."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, LLMMetadata
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools import FunctionTool
from tests.frameworks.play import Ask

from holdfast import Holdfast
from holdfast.frameworks.llama_index import guard


class Scripted(FunctionCallingLLM):
    """A model that makes the calls of one turn after the other."""

    turns: Iterator[list[Ask]]
    said: int = 0

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_function_calling_model=True)

    def _prepare_chat_with_tools(self, tools: Any, **_: Any) -> dict[str, Any]:
        return {"messages": []}

    async def achat(self, messages: Any, **_: Any) -> ChatResponse:
        asked = next(self.turns, [])
        self.said += 1
        return ChatResponse(
            message=ChatMessage(role="assistant", content="" if asked else "done"),
            raw={"calls": [[each.tool, each.arguments, f"{self.said}-{n}"] for n, each in enumerate(asked)]},
        )

    def get_tool_calls_from_response(self, response: ChatResponse, *_: Any, **__: Any) -> list[ToolSelection]:
        return [
            ToolSelection(tool_name=name, tool_kwargs=arguments, tool_id=id)
            for name, arguments, id in response.raw["calls"]
        ]

    def chat(self, *_: Any, **__: Any) -> ChatResponse:
        raise NotImplementedError

    def complete(self, *_: Any, **__: Any) -> CompletionResponse:
        raise NotImplementedError

    stream_chat = stream_complete = chat
    acomplete = astream_chat = astream_complete = achat


def scripted(turns: list[list[Ask]]) -> Scripted:
    return Scripted(turns=iter(turns))


async def play(
    hf: Holdfast, tools: list[Callable[..., Any]], turns: list[list[Ask]], settings: dict[str, Any] | None
) -> list[str]:
    made = [FunctionTool.from_defaults(each) for each in tools]
    agent = FunctionAgent(
        tools=made if settings is None else guard(hf, made, **settings),
        llm=scripted(turns),
        streaming=False,
    )
    handler = agent.run(user_msg="go")
    results = [each async for each in handler.stream_events() if isinstance(each, ToolCallResult)]
    await handler
    order = [f"{turn}-{n}" for turn, asked in enumerate(turns, 1) for n in range(len(asked))]
    return [each.tool_output.content for each in sorted(results, key=lambda each: order.index(each.tool_id))]
