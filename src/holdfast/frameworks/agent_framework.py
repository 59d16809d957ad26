"""Microsoft Agent Framework: `Agent(client, tools=tools, middleware=[guard(hf)])`.

The middleware guards everything that the agent itself calls: functions, tools of MCP servers, other agents as tools.
Put it last, so that it sees the arguments after other middleware has changed them. When an answer comes from the run's
log, what the tool did to its context (added tools, state of the session) is not repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.errors import HoldfastError, RecordedError
from holdfast.frameworks.guarded import Aside, Guarded, Holdfast, decorated, needing, text

with needing("agent-framework"):
    from agent_framework import (
        SKIP_PARSING,
        Content,
        FunctionInvocationContext,
        FunctionMiddleware,
        MiddlewareFailure,
        MiddlewareTermination,
    )
    from agent_framework.exceptions import UserInputRequiredException

STEERING = (MiddlewareFailure, MiddlewareTermination, UserInputRequiredException)


def guard(hf: Holdfast, **policy: object) -> Middleware:
    """A middleware that guards all tools of an agent; *policy* are settings of each."""
    return Middleware(hf, **policy)


class Middleware(FunctionMiddleware):
    """Calls tools through the guards of *hf*."""

    def __init__(self, hf: Holdfast, **policy: object) -> None:
        self._guarded = Guarded(hf, policy)

    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Call the tool through its guards."""
        tool, arguments = context.function, context.arguments
        if not isinstance(arguments, dict):
            arguments = arguments.model_dump() if hasattr(arguments, "model_dump") else dict(arguments)
        made: list[Any] = []
        try:
            # The function is decorated with @hf.tool: the framework calls it as it is, with its own guards.
            if (own := self._guarded.guards(tool.func)) is not None:
                answer = await decorated(own, _made(context, call_next, made), str)
            else:
                answer = await self._guarded.acall(tool.name, partial(_call, context, call_next, made), arguments, str)
        except RecordedError:  # the tool's own error, read from the run's log
            raise
        except HoldfastError as error:
            raise _loud(error) from error
        if not any(answer is each for each in made):  # otherwise the context already holds this answer
            context.result = _result(tool, answer)


@dataclass(frozen=True)
class Contents:
    """A tool's answer as the framework's content items, as plain data that a log can keep."""

    items: list[dict[str, Any]]


async def _call(
    context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]], made: list[Any], /, **arguments: Any
) -> Contents | Any:
    try:
        await call_next()
    except STEERING as error:
        raise Aside(error, again=isinstance(error, UserInputRequiredException)) from error
    if isinstance(context.result, Content) and context.result.type == "function_approval_request":
        made.append(context.result)  # from another middleware: a human must approve the call
        raise Aside(answer=context.result, again=True)
    made.append(_data(context.result))
    return made[-1]


async def _made(context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]], made: list[Any]) -> Any:
    await call_next()
    made.append(context.result)
    return context.result


def _data(result: Any) -> Any:
    if not isinstance(result, list) or not all(isinstance(each, Content) for each in result):
        return result
    items = [each.to_dict() for each in result]
    plain = len(items) == 1 and result == [Content.from_text(str(items[0].get("text")))]
    return items[0]["text"] if plain else Contents(items)


def _result(tool: Any, answer: Any) -> Any:
    if isinstance(answer, Contents):
        return [Content.from_dict(each) for each in answer.items]
    return answer if tool.result_parser is SKIP_PARSING else [Content.from_text(text(answer))]


def _loud(error: HoldfastError) -> BaseException:
    """Return *error* as a `MiddlewareFailure`, which ends the agent: the framework tells the model of all others."""
    kind = type(type(error).__name__, (type(error), MiddlewareFailure), {})
    loud: BaseException = kind.__new__(kind, *error.args)
    loud.__dict__.update(error.__dict__)
    return loud
