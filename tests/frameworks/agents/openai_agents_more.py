"""Scenes with what only the OpenAI Agents SDK has."""

# No `from __future__ import annotations`: the SDK reads those of the tools, which stand inside functions.
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    RunConfig,
    RunContextWrapper,
    Runner,
    ToolCallOutputItem,
    ToolGuardrailFunctionOutput,
    ToolOutputImage,
    WebSearchTool,
    function_tool,
    set_trace_processors,
    tool_input_guardrail,
    trace,
)
from agents.tracing import FunctionSpanData, TracingProcessor
from pydantic import BaseModel
from tests.frameworks.agents.openai_agents import Scripted
from tests.frameworks.play import Ask
from tests.frameworks.scenes import play_tasks

import holdfast
from holdfast.frameworks.openai_agents import guard

TEA = {"key": "tea"}


class Leaf(BaseModel):
    """What a tool gives."""

    name: str


def agent(tools: list[Any], *turns: list[Ask], name: str = "player") -> Agent[Any]:
    return Agent(name=name, model=Scripted(turns), tools=tools)


def told(result: Any) -> list[Any]:
    """What the model gets of each call."""
    return [each.raw_item["output"] for each in result.new_items if isinstance(each, ToolCallOutputItem)]


def counts(hf: holdfast.Holdfast, tool: str) -> list[int]:
    stats = hf.tracker.stats(tool)
    return [stats.successful, stats.failed + stats.timed_out]


async def outcome(playing: Awaitable[Any]) -> str:
    try:
        return f"told {told(await playing)}"
    except (Exception, asyncio.CancelledError) as error:
        return f"{type(error).__name__}: {error}, from {error.__cause__!r}"


def failing() -> list[FunctionTool]:
    """Tools that fail in ways of their own."""

    def say(ctx: RunContextWrapper[Any], error: Exception) -> str:
        return f"{type(error).__name__}, sorry: {error}"

    async def whose(key: str) -> str:
        raise ConnectionError("reset by peer")

    async def stray(key: str) -> str:
        raise asyncio.CancelledError("somebody inside gave up")

    async def late(key: str) -> str:
        await asyncio.Event().wait()
        return "never"

    async def leaf(key: str) -> Leaf:
        raise RuntimeError("no leaf")

    async def count(key: int) -> str:
        return "counted"

    async def by_hand(ctx: RunContextWrapper[Any], given: str) -> str:
        raise KeyError(f"{type(ctx).__name__} {given}")

    counting = function_tool(count)
    schema = counting.params_json_schema
    return [
        function_tool(whose, name_override="default"),
        function_tool(whose, name_override="own_words", failure_error_function=say),
        function_tool(whose, name_override="raises", failure_error_function=None),
        function_tool(stray),
        function_tool(late, timeout=0.05),
        function_tool(late, name_override="late_in_words", timeout=0.05, timeout_error_function=say),
        function_tool(late, name_override="late_raises", timeout=0.05, timeout_behavior="raise_exception"),
        function_tool(leaf, output_type=Leaf),
        counting,  # is given a text
        FunctionTool(name="by_hand", description="", params_json_schema=schema, on_invoke_tool=by_hand),
    ]


async def errors_go_the_way_of_their_tool(hf: holdfast.Holdfast) -> object:
    """Words of the tool, of the run, or none: with guards and without."""

    async def play(tool: Any, format: Any) -> str:
        config = RunConfig(tracing_disabled=True, tool_error_formatter=format)
        return await outcome(Runner.run(agent([tool], [Ask(tool.name, TEA)]), "go", run_config=config))

    def format(args: Any) -> str:
        return f"{args.kind}: {args.error!r}"

    differ, said = [], {}
    for tool in failing():
        bare = [await play(tool, None), await play(tool, format)]
        guarded = [await play(guard(hf, [tool])[0], None), await play(guard(hf, [tool])[0], format)]
        said[tool.name] = guarded
        if bare != guarded:
            differ.append([bare, guarded])
    return [differ, {name: counts(hf, name) for name in said}, said["own_words"], said["late_in_words"]]


async def a_refusal_is_told_where_answers_have_a_form(hf: holdfast.Holdfast) -> object:
    """As any other text."""

    @function_tool(output_type=Leaf)
    async def leaf(key: str) -> Leaf:
        return Leaf(name=key)

    tools = guard(hf, [leaf], rate={"per_second": 0.001, "burst": 1}, max_wait=0.0)
    return told(await Runner.run(agent(tools, [Ask("leaf", TEA)], [Ask("leaf", TEA)]), "go"))


async def a_call_waits_for_approval(hf: holdfast.Holdfast) -> object:
    """Also where the arguments are not all there for the function that is asked whether it must."""
    made: list[int] = []

    async def never(ctx: Any, arguments: Any, call_id: str) -> bool:
        return False

    @function_tool(needs_approval=True)
    async def pay(amount: int) -> str:
        made.append(amount)
        return f"paid {amount}"

    @function_tool(needs_approval=never, strict_mode=False)
    async def tip(amount: int = 5) -> str:
        made.append(amount)
        return f"tipped {amount}"

    player = agent(guard(hf, [pay, tip]), [Ask("pay", {"amount": 1}), Ask("tip"), Ask("tip", {"amount": 2})])
    async with hf.run():
        result = await Runner.run(player, "go")
        asked = [each.tool_name for each in result.interruptions]
        before = [sorted(made), counts(hf, "pay")]
        state = result.to_state()
        for each in result.interruptions:
            state.approve(each)
        result = await Runner.run(player, state)
    return [asked, before, sorted(told(result)), sorted(made), counts(hf, "pay")]


async def an_agent_serves_as_a_tool(hf: holdfast.Holdfast) -> object:
    """Its own tools are guarded, and what they have to say to others than the model comes through."""

    @function_tool(needs_approval=True)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    @function_tool
    async def stop() -> str:
        run = hf.current_run
        assert run is not None
        run.cancel("enough")
        return "stopped"

    @function_tool
    async def lose() -> str:
        raise holdfast.StoreError("the disk is gone")

    def outer(*asks: Ask) -> Agent[Any]:
        inner = agent(guard(hf, [pay, stop, lose]), *([ask] for ask in asks), name="inner")
        return agent(guard(hf, [inner.as_tool("helper", "Helps.")]), [Ask("helper", {"input": "go"})])

    player = outer(Ask("pay", {"amount": 1}))
    waiting = await Runner.run(player, "go")
    state = waiting.to_state()
    state.approve(waiting.interruptions[0])
    paid = await Runner.run(player, state)
    came: list[object] = [told(waiting), told(paid), counts(hf, "pay"), counts(hf, "helper")]
    for name, asks in {"stopped": [Ask("stop"), Ask("lose")], "lost": [Ask("lose")]}.items():
        try:
            async with hf.run(run_id=name):
                came.append(told(await Runner.run(outer(*asks), "go")))
        except (Exception, asyncio.CancelledError) as error:
            came.append(f"{type(error).__name__}: {error}")
    return came


async def what_is_not_for_the_model_ends_the_agent(hf: holdfast.Holdfast) -> object:
    """As itself, so that the run can go on once somebody has decided."""
    begun, made = asyncio.Event(), []

    @function_tool
    async def pay(amount: int) -> str:
        made.append(amount)
        begun.set()
        await asyncio.Event().wait()
        return "paid"

    def player() -> Agent[Any]:
        return agent(guard(hf, [pay]), [Ask("pay", {"amount": 1})])

    async def first() -> None:
        async with hf.run(run_id="trip"):
            await Runner.run(player(), "go")

    async def streamed() -> list[str]:
        streaming = Runner.run_streamed(player(), "go")
        return [each.type async for each in streaming.stream_events()]

    async def whole() -> list[Any]:
        return told(await Runner.run(player(), "go"))

    task = asyncio.create_task(first())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    came: list[object] = []
    plays: list[Callable[[], Awaitable[object]]] = [whole, streamed]
    for play in plays:
        try:
            async with hf.resume("trip"):
                came.append(await play())
        except holdfast.InDoubt as error:
            came.append(f"{type(error).__name__} of {error.tool}")
    try:
        async with hf.resume("trip"):
            await whole()
    except holdfast.InDoubt as error:
        await error.aanswer("paid in another way")
    async with hf.resume("trip"):
        came.append(await whole())
    return [came, made]


async def answers_come_back_from_the_log_as_they_were(hf: holdfast.Holdfast) -> object:
    """Models, pictures, and words for a time limit."""
    made: list[str] = []

    async def lose(key: str) -> str:
        raise holdfast.StoreError("the disk is gone")

    async def calm(key: str) -> str:
        return "calm"

    def tools(last: Any) -> list[Any]:
        async def leaf(key: str) -> Leaf:
            made.append("leaf")
            return Leaf(name=key)

        async def picture(key: str) -> Any:
            made.append("picture")
            return [ToolOutputImage(image_url="data:,")]

        async def late(key: str) -> str:
            made.append("late")
            await asyncio.Event().wait()
            return "never"

        made_of = [
            function_tool(leaf, output_type=Leaf),
            function_tool(picture),
            function_tool(late, timeout=0.05, timeout_error_function=lambda ctx, error: f"sorry: {error}"),
        ]
        return guard(hf, made_of) + guard(hf, [function_tool(last, name_override="last")], idempotent=True)

    turns = [[Ask("leaf", TEA)], [Ask("picture", TEA)], [Ask("late", TEA)], [Ask("last", TEA)]]
    try:
        async with hf.run(run_id="trip"):
            await Runner.run(agent(tools(lose), *turns), "go")
    except holdfast.StoreError as error:
        first = str(error)
    async with hf.resume("trip"):
        result = await Runner.run(agent(tools(calm), *turns), "go")
    kinds = [type(each.output).__name__ for each in result.new_items if isinstance(each, ToolCallOutputItem)]
    return [first, told(result), kinds, made]


async def a_function_is_decorated(hf: holdfast.Holdfast) -> object:
    """By a name of its own, and may have to wait for approval."""

    @hf.tool("billing", concurrency=1, rate={"per_second": 0.001, "burst": 1}, max_wait=0.0)
    async def pay(ctx: RunContextWrapper[Any], amount: int) -> str:
        return f"paid {amount} for {ctx.context}"

    @hf.tool
    async def refund(amount: int) -> str:
        raise ConnectionError("reset by peer")

    async def needs(ctx: Any, arguments: dict[str, int], call_id: str) -> bool:
        return arguments["amount"] > 1

    tools = guard(hf, [function_tool(pay, needs_approval=needs), function_tool(refund)])
    player = agent(tools, [Ask("pay", {"amount": 1})], [Ask("pay", {"amount": 2})], [Ask("refund", {"amount": 1})])
    waiting = await Runner.run(player, "go", context="Ann")
    state = waiting.to_state()
    asked = [each.tool_name for each in waiting.interruptions]
    for each in waiting.interruptions:
        state.approve(each)
    done = await Runner.run(player, state)
    return [asked, told(done), {name: counts(hf, name) for name in hf.tracker.tools()}]


async def the_rest_of_the_sdk_works_as_before(hf: holdfast.Holdfast) -> object:
    """Context, guardrails, tools that are off, the plain API, the stream, tools of the provider."""

    @tool_input_guardrail
    def no_tea(data: Any) -> ToolGuardrailFunctionOutput:
        if "tea" in data.context.tool_arguments:
            return ToolGuardrailFunctionOutput.reject_content("no tea")
        return ToolGuardrailFunctionOutput.allow()

    @function_tool(tool_input_guardrails=[no_tea])
    def brew(ctx: RunContextWrapper[Any], key: str) -> str:
        return f"{key} for {ctx.context}"

    @function_tool(is_enabled=False)
    def off(key: str) -> str:
        return "on"

    search = WebSearchTool()
    given = [brew, off, search]
    tools = guard(hf, given)
    asks = [Ask("brew", TEA)], [Ask("brew", {"key": "milk"})]
    with hf.run(run_id="plain"):
        plain = await asyncio.to_thread(Runner.run_sync, agent(tools[:2], *asks), "go", context="Ann")
    streaming = Runner.run_streamed(agent(tools[:1], *asks), "go", context="Bob")
    names = [each.name async for each in streaming.stream_events() if each.type == "run_item_stream_event"]
    arguments = [each.payload["arguments"] for each in hf.runs.events("plain") if each.type == "tool_started"]
    off_is_off = await outcome(Runner.run(agent(tools[:2], [Ask("off", TEA)]), "go"))
    return [
        told(plain), told(streaming), len(names), arguments, counts(hf, "brew"), off_is_off.partition(":")[0],
        tools[2] is search,
    ]  # fmt: skip


async def a_trace_says_that_a_tool_failed(hf: holdfast.Holdfast) -> object:
    """And not in which words."""
    errors: list[Any] = []

    class Heard(TracingProcessor):
        def on_trace_start(self, trace: Any) -> None: ...

        def on_trace_end(self, trace: Any) -> None: ...

        def on_span_start(self, span: Any) -> None: ...

        def on_span_end(self, span: Any) -> None:
            if isinstance(span.span_data, FunctionSpanData):
                errors.append(span.error)

        def shutdown(self) -> None: ...

        def force_flush(self) -> None: ...

    set_trace_processors([Heard()])
    with trace("trip"):
        await Runner.run(agent(guard(hf, failing()[:1]), [Ask("default", TEA)]), "go")
    set_trace_processors([])
    return errors


async def what_is_no_tool_is_told(hf: Any) -> object:
    """At once."""
    told = []
    for wrong in (lambda: guard(None, []), lambda: guard(hf, None), lambda: guard(hf, [print])):  # type: ignore[arg-type]
        try:
            told.append(str(wrong()))
        except holdfast.ConfigError as error:
            told.append(f"ConfigError: {error}")
    return told


async def the_sdk_is_an_older_one(hf: holdfast.Holdfast) -> object:
    """Its tools cannot check their arguments before they are called."""

    @function_tool
    def search(key: str) -> str:
        return f"a page about {key}"

    kind = type(search.on_invoke_tool)
    check = kind.prepare_arguments
    del kind.prepare_arguments
    try:
        tools = guard(hf, [search])
        return told(await Runner.run(agent(tools, [Ask("search", TEA)]), "go")), counts(hf, "search")
    finally:
        kind.prepare_arguments = check


SCENES = (
    errors_go_the_way_of_their_tool,
    a_refusal_is_told_where_answers_have_a_form,
    a_call_waits_for_approval,
    an_agent_serves_as_a_tool,
    what_is_not_for_the_model_ends_the_agent,
    answers_come_back_from_the_log_as_they_were,
    a_function_is_decorated,
    the_rest_of_the_sdk_works_as_before,
    a_trace_says_that_a_tool_failed,
    what_is_no_tool_is_told,
    the_sdk_is_an_older_one,
)


if __name__ == "__main__":
    set_trace_processors([])  # nothing goes to the provider
    play_tasks(SCENES)
