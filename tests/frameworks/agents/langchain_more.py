"""Scenes with what only LangChain and LangGraph have; of one that failed, its traceback is shown."""

# No `from __future__ import annotations`: the framework reads those of the tools, which stand inside functions.
import asyncio
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ToolCallLimitMiddleware, ToolRetryMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, ToolRuntime
from langgraph.types import Command, interrupt
from pydantic import ValidationError
from tests.frameworks.agents.langchain import scripted
from tests.frameworks.play import Ask
from tests.frameworks.scenes import show

import holdfast
from holdfast.frameworks.langchain import guard

THREAD = {"configurable": {"thread_id": "1"}}
FACTS = {"content", "artifact", "name", "status", "tool_call_id"}
GO = {"messages": [HumanMessage("go")]}
Open = Callable[..., holdfast.Holdfast]


class Crash(Exception):
    """The end of a run, which is resumed then."""


@contextmanager
def crashing(run: holdfast.Run) -> Iterator[None]:
    try:
        with run:
            yield
            raise Crash
    except Crash:
        return


def agent(tools: list[Any], *turns: list[Ask], middleware: list[Any], **options: Any) -> Any:
    return create_agent(scripted(turns), tools, middleware=middleware, **options)


def messages(state: Any) -> list[ToolMessage]:
    return [each for each in state["messages"] if isinstance(each, ToolMessage)]


def told(state: Any) -> list[str]:
    return [str(each.text) for each in messages(state)]


def ended(hf: holdfast.Holdfast, run: str) -> list[dict[str, Any]]:
    return [each.payload for each in hf.runs.events(run) if each.type == "tool_ended"]


def stats(hf: holdfast.Holdfast, name: str) -> tuple[int, int]:
    found = hf.tracker.stats(name)
    return found.successful, found.failed + found.timed_out


# -- scenes ------------------------------------------------------------------------------------------------------------


def plain_agent(open: Open) -> Any:
    free = threading.Event()

    @tool
    def wait(key: str) -> str:
        """Waits till it is let go."""
        free.wait()
        return f"done with {key}"

    @tool(return_direct=True)
    def whose(key: str) -> str:
        """The run it is in."""
        return hf.current_run.id if hf.current_run else "nobody's"

    hf = open(
        {"tool": {"wait": {"timeout": 0.05}, "whose": {"rate": {"per_second": 0.001, "burst": 1}, "max_wait": 0}}}
    )
    with hf.run(run_id="trip"):
        once = agent([wait, whose], [Ask("wait", {"key": "a"})], [Ask("whose", {"key": "b"})], middleware=[guard(hf)])
        state = once.invoke(GO)
        refused = agent([whose], [Ask("whose", {"key": "b"})], middleware=[guard(hf)]).invoke(GO)
    free.set()
    last = state["messages"][-1]
    return [told(state), last.type, refused["messages"][-1].type, told(refused), messages(refused)[0].status]


async def node_alone(open: Open) -> Any:
    @tool
    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    hf = open({})
    it = guard(hf)
    node = ToolNode([double], wrap_tool_call=it.wrap_tool_call, awrap_tool_call=it.awrap_tool_call)
    graph = StateGraph(MessagesState).add_node("tools", node).set_entry_point("tools").compile()
    calls = [{"name": "double", "args": {"number": each}, "id": str(each)} for each in (1, 2)]
    asked = {"messages": [AIMessage("", tool_calls=calls)]}
    plain, task = graph.invoke(asked), await graph.ainvoke(asked)
    return [told(plain), told(task), [each.tool_call_id for each in messages(task)], stats(hf, "double")]


def interrupted(open: Open) -> Any:
    journal: list[str] = []

    @tool
    def pay(amount: int) -> str:
        """Pay, if somebody agrees."""
        journal.append("asks")
        journal.append(f"{interrupt('sure?', response_schema=bool)}: paid {amount}")
        return f"paid {amount}"

    def fresh() -> Any:
        turns = [[Ask("pay", {"amount": 5})]]
        return agent([pay], *turns, middleware=[guard(hf)], checkpointer=InMemorySaver())

    hf = open({"tool": {"pay": {"timeout": 30.0}}})  # in a thread of its own
    with crashing(hf.run(run_id="asked")):
        it = fresh()
        waiting = it.invoke(GO, THREAD)
        with suppress(ValidationError):
            it.invoke(Command(resume="perhaps"), THREAD)
    before, log = len(journal), ended(hf, "asked")
    with hf.resume("asked"):
        it = fresh()
        again = it.invoke(GO, THREAD)
        state = it.invoke(Command(resume=True), THREAD)
    with crashing(hf.run(run_id="answered")):
        it = fresh()
        it.invoke(GO, THREAD)
        it.invoke(Command(resume=True), THREAD)
    calls = hf.runs.snapshot("answered").tool_calls
    with hf.resume("answered"):
        known = fresh().invoke(GO, THREAD)
    return {
        "asked": ["__interrupt__" in each for each in (waiting, again, known)],
        "log": [(each["status"], each.get("uncalled")) for each in log],
        "told": told(state) + told(known),
        "journal": [journal[:before], journal[before:]],
        "calls": calls,
        "stats": stats(hf, "pay"),
    }


def kept(open: Open) -> Any:
    journal: list[str] = []

    class Row:
        """No plain data."""

    @tool(response_format="content_and_artifact")
    def look(key: str) -> tuple[list[dict[str, Any]], Any]:
        """Content of several kinds, and something beside it."""
        journal.append(f"look {key}")
        artifact = Row() if key == "row" else {"rows": [1, 2], "mean": 1.5}
        return [{"type": "text", "text": key}, {"type": "image", "url": "https://example.com/a.png"}], artifact

    @tool
    def move(place: str, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Go somewhere."""
        journal.append(f"move {place}")
        return Command(update={"messages": [ToolMessage("moved", tool_call_id=call_id, artifact={"to": place})]})

    @tool
    def both(call_id: Annotated[str, InjectedToolCallId]) -> list[Any]:
        """A command and a message."""
        journal.append("both")
        return [Command(update={"jump_to": None}), ToolMessage("both", tool_call_id=call_id)]

    def play(*turns: list[Ask]) -> list[dict[str, Any]]:
        found = messages(agent([look, move, both], *turns, middleware=[guard(hf)]).invoke(GO))
        return [each.model_dump(include=FACTS) for each in found]

    hf = open({})
    turns = [Ask("look", {"key": "tea"}), Ask("move", {"place": "Oslo"})], [Ask("both")]
    with crashing(hf.run(run_id="trip")):
        first = play(*turns)
    called = len(journal)
    with hf.resume("trip"):
        second = play([Ask("weather")], *turns)  # one call more, so that those of the others have other ids
    with crashing(hf.run(run_id="row")):
        play([Ask("look", {"key": "row"})])
    doubt = ""
    with crashing(hf.resume("row")):
        try:
            play([Ask("look", {"key": "row"})])
        except holdfast.InDoubt as error:
            doubt = error.why
    return {"first": first, "second": second, "called": called, "journal": journal, "doubt": doubt}


def injected(open: Open) -> Any:
    @tool
    def see(
        key: str,
        state: Annotated[Any, InjectedState],
        call_id: Annotated[str, InjectedToolCallId],
        runtime: ToolRuntime,
    ) -> ToolMessage:
        """Sees all, and says so with an id of its own."""
        seen = f"{key} {len(state['messages'])} {call_id} {runtime.tool_call_id}"
        return ToolMessage(seen, tool_call_id=call_id, id="seen")

    hf = open({"tool": {"see": {"read_only": True, "cache": 60.0}}})
    with hf.run(run_id="trip"):
        state = agent([see], [Ask("see", {"key": "a"})], [Ask("see", {"key": "a"})], middleware=[guard(hf)]).invoke(GO)
    started = [each.payload["arguments"] for each in hf.runs.events("trip") if each.type == "tool_started"]
    found = messages(state)
    return [told(state), started, [each.tool_call_id for each in found], len({each.id for each in found})]


def failing(open: Open) -> Any:
    def refuse(key: str) -> str:
        """Says no."""
        raise ToolException(f"no {key}")

    def take(number: int) -> str:
        """Takes a number."""
        return "taken"

    tools = [
        StructuredTool.from_function(refuse, handle_tool_error=True),
        StructuredTool.from_function(take),
        StructuredTool.from_function(take, name="gentle", handle_validation_error="no number"),
    ]
    turns = [
        [Ask("refuse", {"key": "tea"})],
        *[[Ask("take", {"number": "429 too many requests"})]] * 3,
        [Ask("gentle", {"number": "x"})],
        [Ask("take", {"number": 1})],
        [Ask("\x1b[31mmade up", {"a": 1})],
        [Ask("x" * 300)],
    ]
    hf = open(
        {"policy": {"breaker": {"failure_threshold": 2}, "idempotent": True, "retry": {"attempts": 2, "initial": 0.01}}}
    )
    with crashing(hf.run(run_id="trip")):
        state = agent(tools, *turns, middleware=[guard(hf)]).invoke(GO)
    log = [(each["tool"], each["category"], each["attempts"]) for each in ended(hf, "trip")]
    with hf.resume("trip"):
        again = agent(tools, *turns, middleware=[guard(hf)]).invoke(GO)
    statuses = [each.status for each in messages(state)]
    return {
        "told": told(state),
        "statuses": statuses,
        "log": log,
        "same": told(again) == told(state) and [each.status for each in messages(again)] == statuses,
        "tools": sorted(hf.tracker.tools()),
    }


def company(open: Open) -> Any:
    """With other middlewares, before and after."""
    calls: list[str] = []

    @tool
    def flaky(key: str) -> str:
        """Comes through the third time."""
        calls.append(key)
        if calls.count(key) < 3:
            raise ConnectionError("connection reset by peer")
        return "came through"

    def play(*middleware: Any, key: str, turns: int = 1, **options: Any) -> Any:
        it = agent([flaky], *[[Ask("flaky", {"key": key})]] * turns, middleware=list(middleware), **options)
        return it.invoke(GO, THREAD)

    hf = open({"tool": {"flaky": {"loop": False}}})
    retry = ToolRetryMiddleware(max_retries=3, initial_delay=0.0, jitter=False)
    found = {
        "outside": told(play(retry, guard(hf), key="outside")),
        "outside seen": stats(hf, "flaky"),
        "inside": told(play(guard(hf), retry, key="inside")),
        "inside seen": stats(hf, "flaky"),
    }
    calls += ["limit"] * 3
    limit = ToolCallLimitMiddleware(tool_name="flaky", run_limit=1)
    for name, order in {"limit outside": [limit, guard(hf)], "limit inside": [guard(hf), limit]}.items():
        state = play(*order, key="limit", turns=2)
        found[name] = [each.status for each in messages(state)]
    human = HumanInTheLoopMiddleware(interrupt_on={"flaky": True})
    for name, order in {"human outside": [human, guard(hf)], "human inside": [guard(hf), human]}.items():
        before = len(calls)
        it = agent([flaky], [Ask("flaky", {"key": "limit"})], middleware=order, checkpointer=InMemorySaver())
        state = it.invoke(GO, THREAD)
        asked = "__interrupt__" in state and len(calls) == before
        state = it.invoke(Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
        found[name] = [asked, told(state)]
    denied = open({"tool": {"flaky": {"rate": {"per_second": 0.001, "burst": 1}, "max_wait": 0}}})
    calls.append("denied")
    calls.append("denied")
    state = play(retry, guard(denied), key="denied", turns=2)
    found["denied"] = [calls.count("denied"), [each.status for each in messages(state)]]
    return found


async def tasks(open: Open) -> Any:
    """Streamed, cancelled, and two at once."""
    began, cancelled = asyncio.Event(), []

    async def hang(key: str) -> str:
        """Never ends."""
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(key)
            raise
        return "never"

    async def whose(key: str) -> str:
        """The run it is in."""
        await asyncio.sleep(0)
        return hf.current_run.id if hf.current_run else "nobody's"

    tools = [StructuredTool.from_function(coroutine=each) for each in (hang, whose)]
    hf = open({})
    middleware = [guard(hf)]
    streamed = []
    async for part in agent(tools, [Ask("whose", {"key": "a"})], middleware=middleware).astream(
        GO, stream_mode="updates"
    ):
        streamed += [str(each.text) for each in part.get("tools", {}).get("messages", [])]

    async def run(name: str) -> list[str]:
        async with hf.run(run_id=name):
            it = agent(tools, *[[Ask("whose", {"key": str(each)})] for each in range(3)], middleware=middleware)
            return told(await it.ainvoke(GO))

    at_once = await asyncio.gather(run("one"), run("two"))

    async def hung() -> None:
        async with hf.run(run_id="hung"):
            await agent(tools, [Ask("hang", {"key": "a"})], middleware=middleware).ainvoke(GO)

    task = asyncio.create_task(hung())
    await began.wait()
    task.cancel()
    ends = await asyncio.gather(task, return_exceptions=True)
    return {
        "streamed": streamed,
        "at once": at_once,
        "ends": [type(each).__name__ for each in ends],
        "cancelled": cancelled,
        "log": [each["status"] for each in ended(hf, "hung")],
        "stats": [stats(hf, "hang"), hf.runs.snapshot("hung").status],
    }


async def fallbacks(open: Open) -> Any:
    @tool
    def down(key: str) -> str:
        """Is down."""
        raise ConnectionError("connection refused")

    found: dict[str, Any] = {}
    for name, fallback in {
        "value": {"value": {"rows": []}},
        "tool": {"tool": "backup"},
        "agent's": {"tool": "other"},
    }.items():
        hf = open({"tool": {"down": {"fallback": fallback}, "other": {"timeout": 5.0}}})

        @hf.tool
        def backup(key: str) -> dict[str, str]:
            return {"from backup": key}

        @tool
        def other(key: str) -> str:
            """Another."""
            return "other"

        turns = [[Ask("other", {"key": "a"})], [Ask("down", {"key": "b"})]]
        for how in ("plain", "task"):
            it = agent([down, other], *turns, middleware=[guard(hf)])
            try:
                state = it.invoke(GO) if how == "plain" else await it.ainvoke(GO)
                found[f"{name}, {how}"] = [told(state)[1], messages(state)[1].status]
            except Exception as error:
                found[f"{name}, {how}"] = [type(error).__name__, str(error)]
    return found


def decorated(open: Open) -> Any:
    """Functions that are decorated themselves."""
    hf = open({})
    calls: list[str] = []

    @hf.tool("find", concurrency=1, max_wait=0.0, read_only=True, retry={"attempts": 2, "initial": 0.01})
    def search(query: str, runtime: ToolRuntime) -> str:
        """Search."""
        calls.append(query)
        if query == "down":
            raise ConnectionError("connection refused")
        return f"about {query}, {runtime.tool_call_id}"

    @hf.tool(rate={"per_second": 0.001, "burst": 2}, max_wait=0.0)
    def pay(amount: int) -> str:
        """Pay, if somebody agrees."""
        return f"paid {amount} {interrupt('sure?')}"

    def play(*turns: Ask) -> Any:
        middleware = [guard(hf, timeout=30.0)]
        it = agent([search, pay], *[[each] for each in turns], middleware=middleware, checkpointer=InMemorySaver())
        it.invoke(GO, THREAD)
        return it.invoke(Command(resume=True), THREAD)

    found, paid = Ask("search", {"query": "tea"}), Ask("pay", {"amount": 1})
    with crashing(hf.run(run_id="trip")):
        first = play(found, paid, paid)
    log = [each.payload["arguments"] for each in hf.runs.events("trip") if each.type == "tool_started"]
    with hf.resume("trip"):
        second = agent([search, pay], [found], [paid], middleware=[guard(hf)]).invoke(GO)
    error = ""
    try:
        play(Ask("search", {"query": "down"}))
    except ConnectionError as failure:
        error = str(failure)
    return {
        "first": told(first),
        "second": told(second),
        "log": log,
        "calls": calls,
        "error": error,
        "stats": [stats(hf, "find"), stats(hf, "pay"), "search" in hf.tracker.tools()],
    }


def odd(open: Open) -> Any:
    """Arguments that are no JSON."""
    calls: list[str] = []

    @tool
    def take(value: Any) -> str:
        """Takes anything."""
        calls.append(ascii(value))
        return "taken"

    values = [float("nan"), "\ud800", {"a": float("inf")}, 2**80, "\x00", ["\udfff"] * 2]
    turns = [[Ask("take", {"value": each})] for each in values]
    hf = open({})
    with crashing(hf.run(run_id="trip")):
        state = agent([take], *turns, middleware=[guard(hf)]).invoke(GO)
    before = len(calls)
    with hf.resume("trip"):
        agent([take], *turns, middleware=[guard(hf)]).invoke(GO)
    return [set(told(state)) == {"taken"}, before, len(calls)]


SCENES = (
    plain_agent, node_alone, interrupted, kept, injected, failing, company, tasks, fallbacks, decorated, odd,
)  # fmt: skip


def main(folder: Path) -> None:
    for scene in SCENES:
        opened: list[holdfast.Holdfast] = []

        def open(policies: dict[str, Any], name: str = scene.__name__, opened: Any = opened) -> holdfast.Holdfast:
            opened.append(holdfast.open(folder / f"{name}-{len(opened)}.db", policies=policies))
            return opened[-1]

        try:
            came = scene(open)
            show(scene.__name__, asyncio.run(came) if asyncio.iscoroutine(came) else came)
        except Exception:
            show(scene.__name__, traceback.format_exc())
        for each in opened:
            each.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
