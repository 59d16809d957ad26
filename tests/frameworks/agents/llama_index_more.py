"""Scenes with what only LlamaIndex has."""

# No `from __future__ import annotations`: LlamaIndex reads those of the tools, which stand inside a function.
import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_index.core import SummaryIndex
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.objects import ObjectIndex
from llama_index.core.tools import AsyncBaseTool, FunctionTool, ToolMetadata, ToolOutput
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent
from tests.frameworks.agents.llama_index import Scripted
from tests.frameworks.play import Ask
from tests.frameworks.scenes import play

import holdfast
from holdfast.frameworks.llama_index import guard

Tools = list[Any]


def agent(tools: Tools, *turns: Ask) -> FunctionAgent:
    return FunctionAgent(tools=tools, llm=Scripted(turns=iter([[each] for each in turns])), streaming=False)


async def told(tools: Tools, *turns: Ask) -> list[tuple[str, bool]]:
    """What the model was told, and whether as an error."""
    output = await asyncio.wait_for(agent(tools, *turns).run(user_msg="go"), 20)
    return [(each.tool_output.content, each.tool_output.is_error) for each in output.tool_calls]


async def failure(tools: Tools, *turns: Ask) -> str:
    """The error that the agent ended with."""
    try:
        await told(tools, *turns)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def counted(hf: holdfast.Holdfast, name: str) -> tuple[int, int]:
    stats = hf.tracker.stats(name)
    return stats.successful, stats.failed


# -- scenes ------------------------------------------------------------------------------------------------------------


def context(store: str) -> Any:
    async def remember(ctx: Context, what: str) -> str:
        """Remember something."""
        await ctx.store.set("kept", what)
        return f"kept {await ctx.store.get('kept')}"

    with holdfast.open(store, policies={}) as hf:
        with hf.run(run_id="context"):
            said = asyncio.run(told(guard(hf, [remember]), Ask("remember", {"what": "tea"})))
        arguments = [each.payload["arguments"] for each in hf.runs.events("context") if each.type == "tool_started"]
        return said, arguments


def question(store: str) -> Any:
    async def pay(ctx: Context, amount: int) -> str:
        """Pay an amount, if somebody agrees."""
        answer = await ctx.wait_for_event(HumanResponseEvent, waiter_event=InputRequiredEvent(prefix="sure?"))
        return f"paid {amount}: {answer.response}"

    async def asked(tools: Tools) -> list[str]:
        handler = agent(tools, Ask("pay", {"amount": 5})).run(user_msg="go")
        async for event in handler.stream_events():
            if isinstance(event, InputRequiredEvent):
                handler.ctx.send_event(HumanResponseEvent(response="yes"))
        return [each.tool_output.content for each in (await handler).tool_calls]

    with holdfast.open(store, policies={}) as hf:
        return asyncio.run(asked(guard(hf, [pay]))), counted(hf, "pay")


class Odd(AsyncBaseTool):
    """A tool that is no function, and says itself that it failed."""

    metadata = ToolMetadata("Fails.", "odd")

    def call(self, input: str) -> ToolOutput:
        return ToolOutput("odd", f"no {input}", raw_input={"input": input}, is_error=True)

    async def acall(self, input: str) -> ToolOutput:
        return self.call(input)


def own_error(store: str) -> Any:
    with holdfast.open(store, policies={}) as hf:
        return asyncio.run(told(guard(hf, [Odd()]), Ask("odd", {"input": "tea"}))), counted(hf, "odd")


def direct(store: str) -> Any:
    def answer(key: str) -> str:
        """The answer."""
        return f"{key} it is"

    policies = {"tool": {"answer": {"rate": {"per_second": 0.001, "burst": 1}, "max_wait": 0.0}}}
    tool = FunctionTool.from_defaults(answer, return_direct=True)

    async def said(tools: Tools) -> str:
        return str(await agent(tools, Ask("answer", {"key": "tea"})).run(user_msg="go"))

    with holdfast.open(store, policies=policies) as hf:
        tools = guard(hf, [tool])
        return [asyncio.run(said(tools)), asyncio.run(said(tools))]  # the second is refused


@dataclass
class Page:
    title: str


def raw(store: str) -> Any:
    page, read_pages = Page("tea"), list[str]()

    def read(title: str) -> Page:
        """Read a page."""
        read_pages.append(title)
        return page

    async def output(tools: Tools) -> ToolOutput:
        [call] = (await agent(tools, Ask("read", {"title": "tea"})).run(user_msg="go")).tool_calls
        return call.tool_output

    with holdfast.open(store, policies={}) as hf:
        tools = guard(hf, [read])
        with suppress(RuntimeError), hf.run(run_id="raw"):
            first = asyncio.run(output(tools))
            raise RuntimeError
        with hf.resume("raw"):
            second = asyncio.run(output(tools))
    return first.raw_output is page, [first.content, second.content], second.raw_input, read_pages


def team(store: str) -> Any:
    def pay(amount: int) -> str:
        """Pay an amount."""
        return f"paid {amount}"

    async def done(tools: Tools) -> Any:
        first = FunctionAgent(
            name="first", description="Asks the second.", tools=[], can_handoff_to=["second"], streaming=False,
            llm=Scripted(turns=iter([[Ask("handoff", {"to_agent": "second", "reason": "it pays"})]])),
        )  # fmt: skip
        second = FunctionAgent(
            name="second", description="Pays.", tools=tools, streaming=False,
            llm=Scripted(turns=iter([[Ask("pay", {"amount": 5})]])),
        )  # fmt: skip
        output = await AgentWorkflow(agents=[first, second], root_agent="first").run(user_msg="go")
        return [each.tool_output.content for each in output.tool_calls if each.tool_name == "pay"]

    with holdfast.open(store, policies={}) as hf:
        return asyncio.run(done(guard(hf, [pay]))), counted(hf, "pay")


def cancelled(store: str) -> Any:
    async def stop(reason: str) -> str:
        """Cancel the run."""
        run = hf.current_run
        assert run is not None
        run.cancel(reason)
        return "asked to stop"

    turns = [Ask("stop", {"reason": "enough"})] * 2
    with holdfast.open(store, policies={}) as hf:
        with hf.run(run_id="cancelled"):  # of plain code: there is no task that could be cancelled
            ended = asyncio.run(failure(guard(hf, [stop]), *turns))
        return ended, hf.runs.snapshot("cancelled").status


def doubt(store: str) -> Any:
    journal = Path(f"{store}.journal")

    def die(key: str) -> str:
        """Kill the process."""
        with journal.open("a") as file:
            file.write("called\n")
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    def life(resumed: bool) -> str:
        with holdfast.open(store, policies={}) as hf, hf.resume("doubt") if resumed else hf.run(run_id="doubt"):
            return asyncio.run(failure(guard(hf, [die]), Ask("die", {"key": "now"})))

    if not (child := os.fork()):
        life(resumed=False)
    os.waitpid(child, 0)
    return life(resumed=True), journal.read_text()


def decorated(store: str) -> Any:
    with holdfast.open(store, policies={}) as hf:

        @hf.tool("payment", rate={"per_second": 0.001, "burst": 1}, max_wait=0.0)
        async def pay(amount: int) -> str:
            """Pay an amount."""
            return f"paid {amount}"

        tools = guard(hf, [FunctionTool.from_defaults(pay, callback=lambda given: f"{given}!")])
        said = asyncio.run(told(tools, Ask("pay", {"amount": 1}), Ask("pay", {"amount": 2})))
        return said, counted(hf, "payment"), list(hf.tracker.tools())


def retrieved(store: str) -> Any:
    async def pay(amount: int) -> str:
        """Pay an amount."""
        return f"paid {amount}"

    async def go(index: ObjectIndex) -> list[str]:
        model = Scripted(turns=iter([[Ask("pay", {"amount": 1})], [Ask("pay", {"amount": 2})]]))
        agent = FunctionAgent(tool_retriever=index.as_retriever(), llm=model, streaming=False)
        return [each.tool_output.content for each in (await agent.run(user_msg="go")).tool_calls]

    with holdfast.open(store, policies={}) as hf:
        tools = guard(hf, [pay], rate={"per_second": 0.001, "burst": 1}, max_wait=0.0)
        return asyncio.run(go(ObjectIndex.from_objects(tools, index_cls=SummaryIndex)))


def bad(store: str) -> Any:
    with holdfast.open(store, policies={}) as hf:
        try:
            guard(hf, ["pay"])
        except holdfast.ConfigError as error:
            return str(error)


SCENES = (
    doubt,  # first: it forks
    bad,
    cancelled,
    context,
    decorated,
    direct,
    own_error,
    question,
    raw,
    retrieved,
    team,
)


if __name__ == "__main__":
    play(SCENES)
