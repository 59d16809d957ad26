"""Scenes with what only Microsoft's Agent Framework has."""

# No `from __future__ import annotations`: the framework reads those of the tools, which stand inside functions.
from collections.abc import AsyncIterator
from typing import Any

from agent_framework import (
    SKIP_PARSING,
    Agent,
    AgentSession,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    Message,
    MiddlewareTermination,
    ResponseStream,
    tool,
)
from agent_framework.exceptions import UserInputRequiredException
from tests.frameworks.agents.agent_framework import Scripted
from tests.frameworks.play import Ask
from tests.frameworks.scenes import play_tasks

import holdfast
from holdfast.frameworks.agent_framework import guard


class Streaming(Scripted):
    """The same, piece by piece."""

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
        if not stream:
            return self._answer(len(messages))
        return ResponseStream(self._pieces(len(messages)), finalizer=ChatResponse.from_updates)

    async def _pieces(self, said: int) -> AsyncIterator[ChatResponseUpdate]:
        for each in (await self._answer(said)).messages[0].contents:
            yield ChatResponseUpdate(contents=[each], role="assistant")


def results(messages: list[Message]) -> list[Any]:
    contents = [each for message in messages for each in message.contents if each.type == "function_result"]
    return [[item.to_dict() for item in each.items or []] or each.result for each in contents]


def texts(messages: list[Message]) -> list[str]:
    contents = [each for message in messages for each in message.contents]
    return [str(each.result) for each in contents if each.type == "function_result"]


def counts(hf: holdfast.Holdfast, name: str) -> list[int]:
    stats = hf.tracker.stats(name)
    return [stats.successful, stats.failed]


async def a_call_in_doubt_ends_the_agent(hf: holdfast.Holdfast) -> object:
    """And what else a tool had given is there afterwards, pictures and all."""
    made: list[str] = []

    def paint(what: str) -> list[Content]:
        made.append(what)
        return [Content.from_text(what), Content.from_data(b"\x89PNG", "image/png")]

    def pay(amount: int) -> str:
        raise holdfast.StoreError("the disk is gone")

    async def once() -> list[Any]:
        turns = [[Ask("paint", {"what": "a cup"})], [Ask("pay", {"amount": 5})]]
        agent = Agent(Scripted(iter(turns)), tools=[paint, pay], middleware=[guard(hf)])
        return results((await agent.run("go")).messages)

    came: list[Any] = []
    try:
        async with hf.run(run_id="trip"):
            await once()
    except holdfast.StoreError as error:
        came += [str(error), hf.runs.snapshot("trip").interrupted]
    try:
        async with hf.resume("trip"):
            await once()
    except holdfast.InDoubt as error:
        came += [error.tool, hf.runs.snapshot("trip").interrupted]
        await error.aanswer("paid by hand")
    async with hf.resume("trip"):
        told = await once()
    return [*came, told, made]


async def a_call_is_approved_of(hf: holdfast.Holdfast) -> object:
    """And made once."""

    @tool(approval_mode="always_require")
    def pay(amount: int) -> str:
        return f"paid {amount}"

    agent = Agent(Scripted(iter([[Ask("pay", {"amount": 5})]])), tools=[pay], middleware=[guard(hf)])
    session = AgentSession()
    response = await agent.run("go", session=session)
    before = counts(hf, "pay")
    approved = [each.to_function_approval_response(approved=True) for each in response.user_input_requests]
    response = await agent.run(Message("user", approved), session=session)
    return [before, texts(response.messages), counts(hf, "pay")]


async def what_steers_the_framework_is_no_failure(hf: holdfast.Holdfast) -> object:
    """Of a tool, or of a middleware further in."""

    def form(key: str) -> str:
        raise UserInputRequiredException([Content.from_text("who are you?")])

    def late(key: str) -> str:
        return "never"

    def dear(key: str) -> str:
        return "never"

    class Closed(FunctionMiddleware):
        async def process(self, context: FunctionInvocationContext, call_next: Any) -> None:
            if context.function.name == "late":
                raise MiddlewareTermination(result="closed for today")
            if context.function.name == "dear":
                call = Content.from_function_call(call_id=context.metadata["call_id"], name="dear", arguments={})
                context.result = Content.from_function_approval_request("dear", call)
                return
            await call_next()

    told = []
    for name in ("form", "late", "dear"):
        turns = [[Ask(name, {"key": "tea"})]]
        agent = Agent(Scripted(iter(turns)), tools=[form, late, dear], middleware=[guard(hf), Closed()])
        contents = [each for message in (await agent.run("go")).messages for each in message.contents]
        told.append([str(each.result or each.text or each.type) for each in contents if each.type != "function_call"])
    return [told, counts(hf, "form"), counts(hf, "late"), counts(hf, "dear")]


async def calls_of_a_stream_are_guarded(hf: holdfast.Holdfast) -> object:
    """Even if one is refused."""

    def pay(amount: int) -> str:
        return f"paid {amount}"

    turns = [[Ask("pay", {"amount": 1})], [Ask("pay", {"amount": 2})]]
    limits = guard(hf, rate={"per_second": 0.001, "burst": 1}, max_wait=0.0)
    agent = Agent(Streaming(iter(turns)), tools=[pay], middleware=[limits])
    stream = agent.run("go", stream=True)
    async for _ in stream:
        pass
    return texts((await stream.get_final_response()).messages)


async def a_context_is_no_argument(hf: holdfast.Holdfast) -> object:
    """Nor is what it carries; agents can be tools."""

    def who(key: str, ctx: FunctionInvocationContext) -> str:
        return f"{ctx.kwargs['user']} for {key}"

    def ask() -> Any:
        return Agent(Streaming(iter([[Ask("who", {"key": "tea"})]])), name="ask", tools=[who], middleware=[guard(hf)])

    async with hf.run(run_id="trip"):
        response = await ask().run("go", function_invocation_kwargs={"user": "Ann"})
    started, ended = (each.payload for each in hf.runs.events("trip") if each.type.startswith("tool_"))
    outer = Agent(
        Scripted(iter([[Ask("ask", {"task": "go"})]])), tools=[ask().as_tool()], middleware=[guard(hf, idempotent=True)]
    )
    await outer.run("go", function_invocation_kwargs={"user": "Ann"})
    return [texts(response.messages), started["arguments"], ended["result"], counts(hf, "ask"), counts(hf, "who")]


async def an_answer_that_the_framework_leaves_alone_is_left_alone(hf: holdfast.Holdfast) -> object:
    """From a cache, too."""
    made: list[str] = []
    seen: list[Any] = []

    @tool(result_parser=SKIP_PARSING)
    def look(city: str) -> dict[str, int]:
        made.append(city)
        return {"degrees": 21}

    class Seeing(FunctionMiddleware):
        async def process(self, context: FunctionInvocationContext, call_next: Any) -> None:
            await call_next()
            seen.append(context.result)

    cached = guard(hf, read_only=True, cache=60.0)
    turns = [[Ask("look", {"city": "Oslo"})], [Ask("look", {"city": "Oslo"})]]
    await Agent(Scripted(iter(turns)), tools=[look], middleware=[Seeing(), cached]).run("go")
    return [seen, made]


SCENES = (
    an_answer_that_the_framework_leaves_alone_is_left_alone,
    a_call_in_doubt_ends_the_agent,
    a_call_is_approved_of,
    what_steers_the_framework_is_no_failure,
    calls_of_a_stream_are_guarded,
    a_context_is_no_argument,
)


if __name__ == "__main__":
    play_tasks(SCENES)
