"""LangChain and LangGraph: `create_agent(model, tools, middleware=[guard(hf)])`.

For a `ToolNode` of your own: `ToolNode(tools, wrap_tool_call=it.wrap_tool_call, awrap_tool_call=it.awrap_tool_call)`,
where `it = guard(hf)`; with `handle_tool_errors=True` that node reports every error to the model, even a call in doubt.
Middleware that adds tools while the agent runs must come before this one, which guards only the tools it is shown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from holdfast.category import ErrorCategory
from holdfast.frameworks.guarded import Aside, Failed, Guarded, Holdfast, needing, text

with needing("langchain"):
    from langchain.agents.middleware import AgentMiddleware
    from langchain.agents.middleware.types import ToolCallRequest
    from langchain_core.messages import ToolMessage
    from langgraph import errors
    from langgraph.prebuilt.tool_node import TOOL_INVOCATION_ERROR_TEMPLATE
    from langgraph.types import Command

MISUSED = TOOL_INVOCATION_ERROR_TEMPLATE.partition("{")[0]  # how the framework's text about a wrong argument begins
is_invalid_resume = getattr(errors, "is_invalid_resume", lambda error: False)  # older versions do not have it


def guard(hf: Holdfast, **policy: object) -> Middleware:
    """A middleware that guards all tools of an agent; *policy* are settings of each."""
    return Middleware(hf, **policy)


class Middleware(AgentMiddleware):
    """Calls tools through the guards of *hf*."""

    name = "Holdfast"

    def __init__(self, hf: Holdfast, **policy: object) -> None:
        super().__init__()
        self._guarded = Guarded(hf, policy)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Call the tool through its guards, for a synchronous agent."""
        if request.tool is None:  # the model invented the tool, and the framework tells it so
            return handler(request)
        name, request = self._undecorated(request)
        made, refused = partial(_call, request, handler), partial(_message, request, "error")
        return _own(request, self._guarded.call(name, made, request.tool_call["args"], refused))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Call the tool through its guards, for an asynchronous agent."""
        if request.tool is None:
            return await handler(request)
        name, request = self._undecorated(request)
        made, refused = partial(_acall, request, handler), partial(_message, request, "error")
        return _own(request, await self._guarded.acall(name, made, request.tool_call["args"], refused))

    def _undecorated(self, request: ToolCallRequest) -> tuple[str, ToolCallRequest]:
        """Return the name by which the guards know the tool, and the request with the tool's own guards removed."""
        code = {field: self._guarded.guards(getattr(request.tool, field, None)) for field in ("func", "coroutine")}
        own = {field: each for field, each in code.items() if each is not None}
        if not own:
            return request.tool_call["name"], request
        bare = request.tool.model_copy(update={field: each.fn for field, each in own.items()})
        return next(iter(own.values())).tool.name, request.override(tool=bare)


@dataclass
class Turn:
    """A tool's `Command` in a form that can be kept: where the graph goes, its new state, messages to the model."""

    call: str | None  # id of the tool call that it answers
    graph: str | None
    goto: Any
    update: dict[str, Any]
    messages: dict[str, list[ToolMessage]]


Part: TypeAlias = ToolMessage | Turn


def _call(
    request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any], /, **arguments: object
) -> Part | list[Part]:
    with _steering():
        return _judged(request, handler(request))


async def _acall(
    request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]], /, **arguments: object
) -> Part | list[Part]:
    with _steering():
        return _judged(request, await handler(request))


@contextmanager
def _steering() -> Iterator[None]:
    """Turn errors by which the graph waits for a human, rejects the human's answer or goes elsewhere into `Aside`."""
    try:
        yield
    except Exception as error:
        asks = isinstance(error, errors.GraphInterrupt) or is_invalid_resume(error)
        if asks or isinstance(error, errors.GraphBubbleUp):
            raise Aside(error, again=asks) from error
        raise


def _judged(request: ToolCallRequest, answer: Any) -> Part | list[Part]:
    parts = answer if isinstance(answer, list) else [answer]
    for each in parts:
        if isinstance(each, ToolMessage) and each.status == "error":
            told = str(each.text)
            # The text quotes the wrong argument, and what the model wrote there says nothing about the tool.
            raise Failed(told, answer, category=ErrorCategory.INVALID_PARAMETERS if told.startswith(MISUSED) else None)
    kept: list[Part] = [_kept(request, each) for each in parts]
    return kept if isinstance(answer, list) else kept[0]


def _kept(request: ToolCallRequest, answer: Any) -> Any:
    if not isinstance(answer, Command) or not isinstance(update := answer.update, dict) or answer.resume is not None:
        return answer
    if answer.goto and not isinstance(answer.goto, str | list):
        return answer
    messages = {key: told for key, told in update.items() if isinstance(told, list) and set(map(type, told)) == _ONLY}
    others = {key: each for key, each in update.items() if key not in messages}
    return Turn(request.tool_call["id"], answer.graph, answer.goto or None, others, messages)


_ONLY = {ToolMessage}


def _own(request: ToolCallRequest, answer: Any) -> Any:
    """Return *answer* as the answer to this very call: it may be that of another, equal call, or the policy's."""
    call = request.tool_call["id"]
    match answer:
        case ToolMessage():
            return _addressed(answer, answer.tool_call_id, call)
        case Turn():
            messages = {key: [_addressed(m, answer.call, call) for m in each] for key, each in answer.messages.items()}
            return Command(graph=answer.graph, goto=answer.goto or (), update=answer.update | messages)
        case Command():
            return answer
        case [_, *_] if all(isinstance(each, ToolMessage | Turn | Command) for each in answer):
            return [_own(request, each) for each in answer]
    return _message(request, "success", text(answer))


def _addressed(message: ToolMessage, old: str | None, new: str | None) -> ToolMessage:
    """Return a copy; if it answered the call *old*, it answers *new*. Its id goes, or it would replace the original."""
    update = {} if message.tool_call_id != old or old == new else {"tool_call_id": new, "id": None}
    return message.model_copy(update=update)


def _message(request: ToolCallRequest, status: str, content: str) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(content=content, name=call["name"], tool_call_id=call["id"], status=status)
