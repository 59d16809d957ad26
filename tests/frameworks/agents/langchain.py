"""An agent of LangChain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from inspect import iscoroutinefunction
from typing import Any

from langchain.agents import create_agent
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from tests.frameworks.play import Ask

from holdfast import Holdfast
from holdfast.frameworks.langchain import guard


class Scripted(BaseChatModel):
    """A model that makes the calls of one turn after the other."""

    turns: Iterator[list[Ask]]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Scripted:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        asked = next(self.turns, [])
        said = len(messages)
        calls = [
            {"name": each.tool, "args": each.arguments, "id": f"{said}-{number}"} for number, each in enumerate(asked)
        ]
        message = AIMessage(content="" if asked else "done", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


def scripted(turns: Iterable[list[Ask]]) -> Scripted:
    return Scripted(turns=iter(turns))


async def play(
    hf: Holdfast, tools: list[Callable[..., Any]], turns: list[list[Ask]], settings: dict[str, Any] | None
) -> list[str]:
    made = [
        StructuredTool.from_function(**{"coroutine" if iscoroutinefunction(each) else "func": each}) for each in tools
    ]
    agent = create_agent(scripted(turns), made, middleware=[] if settings is None else [guard(hf, **settings)])
    state = await agent.ainvoke({"messages": [HumanMessage("go")]})
    return [str(each.text) for each in state["messages"] if isinstance(each, ToolMessage)]
