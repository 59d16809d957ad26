"""An agent of Microsoft's Agent Framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agent_framework import Agent, BaseChatClient, ChatResponse, Content, FunctionInvocationLayer, Message
from tests.frameworks.play import Ask

from holdfast import Holdfast
from holdfast.frameworks.agent_framework import guard


class Scripted(FunctionInvocationLayer, BaseChatClient):
    """A model that makes the calls of one turn after the other."""

    def __init__(self, turns: list[list[Ask]]) -> None:
        super().__init__()
        self.turns = iter(turns)

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **_: Any
    ) -> Awaitable[ChatResponse]:
        return self._answer(len(messages))

    async def _answer(self, said: int) -> ChatResponse:
        asked = next(self.turns, [])
        calls = [
            Content.from_function_call(call_id=f"{said}-{number}", name=each.tool, arguments=each.arguments)
            for number, each in enumerate(asked)
        ]
        return ChatResponse(messages=[Message("assistant", calls or ["done"])])


scripted = Scripted


async def play(
    hf: Holdfast, tools: list[Callable[..., Any]], turns: list[list[Ask]], settings: dict[str, Any] | None
) -> list[str]:
    middleware = [] if settings is None else [guard(hf, **settings)]
    agent = Agent(Scripted(turns), tools=tools, middleware=middleware)
    response = await agent.run("go")
    contents = [each for message in response.messages for each in message.contents]
    return [str(each.result) for each in contents if each.type == "function_result"]
