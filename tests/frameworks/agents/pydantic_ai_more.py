"""Scenes with what only Pydantic AI has; in the last its process is killed."""

# No `from __future__ import annotations`: the framework reads those of the tools, which stand inside functions.
import os
import signal
import threading
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    BinaryContent,
    DeferredToolRequests,
    ModelMessage,
    ModelRetry,
    RunContext,
    ToolFailed,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, WrapperToolset
from tests.frameworks.agents.pydantic_ai import scripted
from tests.frameworks.play import Ask
from tests.frameworks.scenes import play_tasks, show

import holdfast
from holdfast.frameworks.pydantic_ai import guard

TRIPPING = {"failure_threshold": 1}


class Person(BaseModel):
    name: str
    age: int = 30


def told(messages: list[ModelMessage]) -> list[Any]:
    found: list[Any] = []
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, ToolReturnPart):
            found.append([part.outcome, part.model_response_str(), *(file.identifier for file in part.files)])
        elif isinstance(part, UserPromptPart):
            said = [part.content] if isinstance(part.content, str) else part.content
            found += [each.identifier if isinstance(each, BinaryContent) else each for each in said]
    return found


def counts(hf: holdfast.Holdfast) -> dict[str, list[int]]:
    stats = {name: hf.tracker.stats(name) for name in hf.tracker.tools()}
    return {name: [each.successful, each.failed + each.timed_out] for name, each in stats.items()}


def started(hf: holdfast.Holdfast, run: holdfast.Run) -> list[Any]:
    payloads = [event.payload for event in hf.runs.events(run.id) if event.type == "tool_started"]
    return [[payload["tool"], payload["arguments"]] for payload in payloads]


async def other_arguments(hf: holdfast.Holdfast) -> Any:
    def find(name: str) -> str:
        if " " not in name:
            raise ModelRetry("give the whole name")
        return f"found {name}"

    turns = [[Ask("find", {"name": "Ann"})], [Ask("find", {"name": "Ann Lee"})]]
    agent = Agent(scripted(turns), tools=[find], capabilities=[guard(hf, breaker=TRIPPING)])
    return told((await agent.run("go")).all_messages()), counts(hf)


async def broken_below(hf: holdfast.Holdfast) -> Any:
    def find(name: str) -> str:
        raise ModelRetry("it did not work out") from ConnectionError("reset by peer")

    turns = [[Ask("find", {"name": "Ann"})], [Ask("find", {"name": "Ann Lee"})]]
    agent = Agent(scripted(turns), tools=[find], capabilities=[guard(hf, breaker=TRIPPING)])
    return told((await agent.run("go")).all_messages())


async def approval(hf: holdfast.Holdfast) -> Any:
    def pay(ctx: RunContext[None], amount: int) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"why": "money"})
        return f"paid {amount}"

    agent = Agent(
        scripted([[Ask("pay", {"amount": 5})]]),
        tools=[pay],
        output_type=[str, DeferredToolRequests],
        capabilities=[guard(hf)],
    )
    async with hf.run() as run:
        asked = await agent.run("go")
        requests = asked.output
        assert isinstance(requests, DeferredToolRequests)
        results = requests.build_results(approve_all=True)
        done = await agent.run(message_history=asked.all_messages(), deferred_tool_results=results)
    snapshot = hf.runs.snapshot(run.id)
    return list(requests.metadata.values()), told(done.new_messages()), counts(hf), snapshot.status


async def names_and_arguments(hf: holdfast.Holdfast) -> Any:
    def add(ctx: RunContext[int], person: Person, amount: int = 1) -> str:
        return f"{person.name} has {ctx.deps + amount}"

    turns = [[Ask("bank_add", {"person": {"name": "Ann"}})]]
    toolset = FunctionToolset([add]).prefixed("bank")
    agent = Agent(scripted(turns), deps_type=int, toolsets=[toolset], capabilities=[guard(hf)])
    async with hf.run() as run:
        result = await agent.run("go", deps=41)
    return told(result.all_messages()), started(hf, run)


async def output(hf: holdfast.Holdfast) -> Any:
    def look(key: str) -> str:
        return "seen"

    agent = Agent(TestModel(), tools=[look], output_type=Person, capabilities=[guard(hf)])
    async with agent.run_stream("go") as stream:
        person = await stream.get_output()
    return type(person).__name__, counts(hf)


async def work_of_others(hf: holdfast.Holdfast) -> Any:
    seen = []

    def flaky(key: str) -> str:
        seen.append("tool")
        if len(seen) < 4:
            raise ConnectionError("reset by peer")
        return "through"

    class Other(WrapperToolset[None]):
        async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[None], tool: Any) -> Any:
            seen.append("other")
            return await self.wrapped.call_tool(name, tool_args, ctx, tool)

    class Others(AbstractCapability[None]):
        def get_wrapper_toolset(self, toolset: AbstractToolset[None]) -> Other:
            return Other(toolset)

    guarded = guard(hf, idempotent=True, retry={"attempts": 3, "initial": 0.001})
    agent = Agent(scripted([[Ask("flaky", {"key": "tea"})]]), tools=[flaky], capabilities=[guarded, Others()])
    await agent.run("go")
    return seen


async def hanging_function(hf: holdfast.Holdfast) -> Any:
    released = threading.Event()

    def hang(key: str) -> str:
        released.wait(30)
        return "late"

    agent = Agent(scripted([[Ask("hang", {"key": "tea"})]]), tools=[hang], capabilities=[guard(hf, timeout=0.1)])
    try:
        return told((await agent.run("go")).all_messages())
    finally:
        released.set()


async def decorated(hf: holdfast.Holdfast) -> Any:
    @hf.tool(concurrency=1, max_wait=0.0, rate={"per_second": 0.001, "burst": 1})
    def pay(ctx: RunContext[None], amount: int) -> str:
        """Pay an amount."""
        return f"paid {amount}"

    turns = [[Ask("pay", {"amount": 1})], [Ask("pay", {"amount": 2})]]
    agent = Agent(scripted(turns), tools=[pay], capabilities=[guard(hf)])
    async with hf.run() as run:
        result = await agent.run("go")
    return told(result.all_messages()), counts(hf), started(hf, run)


async def interrupted(hf: holdfast.Holdfast, journal: Path, *, resume: bool) -> None:
    """All that a tool may give, before and after the death of the process."""

    def note(name: str) -> None:
        with journal.open("a") as file:
            file.write(f"{name}\n")

    def person(name: str) -> Person:
        note("person")
        return Person(name=name)

    def picture() -> ToolReturn:
        note("picture")
        image = BinaryContent(b"\0", media_type="image/png")
        return ToolReturn([Person(name="Ann"), image], content=["a note", image])

    def find(name: str) -> str:
        note("find")
        raise ModelRetry("give the whole name")

    def fail() -> str:
        note("fail")
        raise ToolFailed("it is sold out")

    def die(ctx: RunContext[None]) -> str:
        show("before", told(ctx.messages))
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    turns = [
        [Ask("person", {"name": "Ann"}), Ask("picture")],
        [Ask("find", {"name": "Ann"}), Ask("fail")],
        [Ask("die")],
    ]
    agent = Agent(scripted(turns), tools=[person, picture, find, fail, die], capabilities=[guard(hf)])
    async with hf.resume("trip") if resume else hf.run(run_id="trip"), agent.iter("go") as run:
        try:
            async for _ in run:
                pass
        except holdfast.InDoubt as doubt:
            show("after", [told(run.all_messages()), doubt.tool])


SCENES = (
    other_arguments,
    broken_below,
    approval,
    names_and_arguments,
    output,
    work_of_others,
    hanging_function,
    decorated,
)


if __name__ == "__main__":
    play_tasks(SCENES, killed=interrupted)
