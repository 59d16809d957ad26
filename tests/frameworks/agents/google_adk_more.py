"""Scenes with what only ADK has."""

# No `from __future__ import annotations`: ADK reads those of the tools, which stand inside functions.
import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from fastapi.openapi.models import APIKey
from google.adk.agents import Agent, InvocationContext, LiveRequestQueue
from google.adk.agents.run_config import RunConfig, StreamingMode, ToolThreadPoolConfig
from google.adk.auth import AuthConfig, AuthCredential, AuthCredentialTypes
from google.adk.events import Event
from google.adk.models import LlmRequest, LlmResponse
from google.adk.models.base_llm_connection import BaseLlmConnection
from google.adk.runners import InMemoryRunner
from google.adk.sessions import InMemorySessionService, Session
from google.adk.tools import AgentTool, BaseTool, FunctionTool, LongRunningFunctionTool, ToolContext, google_search
from google.adk.tools.base_toolset import BaseToolset
from google.genai import types
from pydantic import BaseModel
from tests.frameworks.agents.google_adk import Scripted
from tests.frameworks.play import Ask
from tests.frameworks.scenes import play_tasks

import holdfast
from holdfast.frameworks.google_adk import guard

WHERE = {"user_id": "user", "session_id": "session"}
GO = types.UserContent("go")


class Player:
    """An agent with its session."""

    def __init__(self, turns: list[list[Ask]], tools: list[Any], **settings: Any) -> None:
        model = Scripted(turns=iter(turns))
        self.runner = InMemoryRunner(Agent(name="player", model=model, tools=tools, **settings))
        self.events: list[Event] = []

    async def say(self, message: types.Content) -> list[Any]:
        """What the tools answered to it."""
        self.runner.auto_create_session = True
        events = [each async for each in self.runner.run_async(**WHERE, new_message=message)]
        self.events += events
        return [each.response for event in events for each in event.get_function_responses()]

    async def state(self) -> dict[str, Any]:
        """That of the session."""
        session = await self.runner.session_service.get_session(app_name=self.runner.app_name, **WHERE)
        return dict(session.state)


def counts(hf: holdfast.Holdfast, tool: str) -> list[int]:
    stats = hf.tracker.stats(tool)
    return [stats.successful, stats.failed]


def yes(call: types.FunctionCall) -> types.Part:
    answer = types.FunctionResponse(id=call.id, name=call.name, response={"confirmed": True})
    return types.Part(function_response=answer)


async def what_a_tool_did_is_done_again(hf: holdfast.Holdfast) -> object:
    """A run that was interrupted goes on in another session."""
    made: list[str] = []

    def book(seat: str, tool_context: ToolContext) -> str:
        made.append(seat)
        tool_context.state["seat"] = seat
        tool_context.actions.transfer_to_agent = "clerk"
        return "booked"

    def crash() -> str:
        raise holdfast.StoreError("the disk is gone")

    async def once(tool: Callable[[], str]) -> object:
        tools = guard(hf, [tool], idempotent=True)
        clerk = Agent(name="clerk", model=Scripted(turns=iter([[Ask("crash")]])), tools=tools)
        player = Player([[Ask("book", {"seat": "12A"})]], guard(hf, [book]), sub_agents=[clerk])
        answers = await player.say(GO)
        return [answers, (await player.state())["seat"], [each.author for each in player.events]]

    def calm() -> str:
        return "calm"

    calm.__name__ = "crash"
    try:
        async with hf.run(run_id="seats"):
            await once(crash)
    except holdfast.StoreError as error:
        first = str(error)
    async with hf.resume("seats"):
        return [first, await once(calm), made]


async def a_kept_answer_does_what_the_call_did(hf: holdfast.Holdfast) -> object:
    """As the cache has it."""
    made: list[str] = []

    def look(city: str, tool_context: ToolContext) -> dict[str, int]:
        made.append(city)
        tool_context.state["seen"] = city
        return {"degrees": 21}

    tools = guard(hf, [look], read_only=True, cache=60.0)
    ask = [[Ask("look", {"city": "Oslo"})]]
    players = Player(ask, tools), Player(ask, tools)
    answers = [await each.say(GO) for each in players]
    return [answers, [(await each.state())["seen"] for each in players], made]


class Seat(BaseModel):
    """No plain data."""

    row: int
    place: str


async def an_answer_is_known_again(hf: holdfast.Holdfast) -> object:
    """Also one that is no plain data, as the function says what it is."""
    made: list[int] = []

    def find(row: int) -> Seat:
        made.append(row)
        return Seat(row=row, place="A")

    async def book(row: int, tool_context: ToolContext) -> list[Seat]:
        made.append(row)
        tool_context.state["row"] = row
        return [Seat(row=row, place="B")]

    async def once() -> list[Any]:
        asked = [Ask("find", {"row": 12}), Ask("book", {"row": 13})]
        return await Player([asked], guard(hf, [find, book])).say(GO)

    with suppress(TimeoutError):
        async with hf.run(run_id="seats"):
            first = await once()
            raise TimeoutError
    async with hf.resume("seats"):
        return [first == await once(), str(first), made]


async def a_call_waits_for_somebody(hf: holdfast.Holdfast) -> object:
    """Whether by the tool's settings or by its own wish."""
    made: list[str] = []

    def pay(amount: int) -> str:
        made.append(f"pay {amount}")
        return f"paid {amount}"

    def send(to: str, tool_context: ToolContext) -> str:
        if tool_context.tool_confirmation is None:
            tool_context.request_confirmation(hint="sure?")
            return "wait"
        made.append(f"send {to}")
        return f"sent to {to}"

    tools = guard(hf, [FunctionTool(pay, require_confirmation=True), send], read_only=True, cache=60.0)
    player = Player([[Ask("pay", {"amount": 5}), Ask("send", {"to": "Ann"})]], tools)
    async with hf.run():
        await player.say(GO)
        before = [counts(hf, "pay"), counts(hf, "send"), list(made)]
        calls = [each for event in player.events for each in event.get_function_calls()]
        answers = await player.say(
            types.UserContent([yes(each) for each in calls if each.name == "adk_request_confirmation"])
        )
    return [before, answers, counts(hf, "pay"), counts(hf, "send"), made]


async def somebody_is_to_log_in_or_to_listen(hf: holdfast.Holdfast) -> object:
    """Both are no answers of the tool."""
    credential = AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="key")
    scheme = APIKey.model_validate({"name": "key", "in": "header"})

    def mail(to: str, tool_context: ToolContext) -> str:
        tool_context.request_credential(AuthConfig(auth_scheme=scheme, raw_auth_credential=credential))
        return "log in first"

    async def count(to: int) -> AsyncGenerator[int, None]:
        for number in range(to):
            yield number

    player = Player([[Ask("mail", {"to": "Ann"})]], guard(hf, [mail]))
    answers = await player.say(GO)
    asked = [each.name for event in player.events for each in event.get_function_calls()]
    session = Session(id="live", app_name="live", user_id="user")
    live = InvocationContext(
        session_service=InMemorySessionService(), invocation_id="live", session=session,
        agent=Agent(name="live"), live_request_queue=LiveRequestQueue(),
    )  # fmt: skip
    (tool,) = guard(hf, [count])
    stream = await tool.run_async(args={"to": 3}, tool_context=ToolContext(live))
    return [answers, asked, [each async for each in stream], counts(hf, "mail"), counts(hf, "count")]


class Line(BaseLlmConnection):
    """A model on the line: makes the calls of one turn after the other, once it has heard the answers."""

    def __init__(self, turns: list[Ask]) -> None:
        self.told: list[Any] = []
        self._turns = iter(turns)
        self._heard = asyncio.Event()

    async def send_history(self, history: list[types.Content]) -> None:
        """There is none."""

    async def send_content(self, content: types.Content) -> None:
        self.told += [each.function_response.response for each in content.parts if each.function_response]
        self._heard.set()

    async def send_realtime(self, blob: types.Blob) -> None:
        """It hears words only."""

    async def receive(self) -> AsyncGenerator[LlmResponse, None]:
        while await self._heard.wait():
            self._heard.clear()
            ask = next(self._turns, None)
            said: Any = "done" if ask is None else types.Part.from_function_call(name=ask.tool, args=ask.arguments)
            yield LlmResponse(content=types.ModelContent(said), turn_complete=ask is None)

    async def close(self) -> None:
        """Nobody waits for it."""


class OnTheLine(Scripted):
    """A model that can be called."""

    line: Any

    @asynccontextmanager
    async def connect(self, llm_request: LlmRequest) -> AsyncIterator[Line]:
        yield self.line


async def a_session_is_live(hf: holdfast.Holdfast) -> object:
    """In a run that is interrupted, and goes on in another session."""
    made: list[str] = []

    async def look(key: str) -> str:
        made.append(key)
        return f"found {key}"

    def hang(key: str) -> str:
        made.append(key)
        time.sleep(0.3)
        return "never"

    async def talk() -> list[Any]:
        line = Line([Ask("look", {"key": "tea"}), Ask("look", {"key": "milk"}), Ask("hang", {"key": "cup"})])
        tools = guard(hf, [look], rate={"per_second": 0.001, "burst": 1}, max_wait=0.0) + guard(hf, [hang], timeout=0.1)
        runner = InMemoryRunner(Agent(name="player", model=OnTheLine(turns=iter(()), line=line), tools=tools))
        runner.auto_create_session = True
        queue = LiveRequestQueue()
        queue.send_content(GO)
        config = RunConfig(streaming_mode=StreamingMode.BIDI, tool_thread_pool_config=ToolThreadPoolConfig())
        async with aclosing(runner.run_live(**WHERE, live_request_queue=queue, run_config=config)) as events:
            async for event in events:
                if event.turn_complete:
                    break
        return line.told

    came = []
    for run in (hf.run(run_id="trip"), hf.resume("trip")):
        with suppress(holdfast.StoreError):
            async with run:
                came.append(await talk())
                raise holdfast.StoreError("the disk is gone")
    return [*came, made]


async def callbacks_are_called(hf: holdfast.Holdfast) -> object:
    """As without guards."""

    def play(wrap: Callable[[list[Any]], list[Any]]) -> tuple[Player, list[str]]:
        heard: list[str] = []

        def good(key: str) -> str:
            return f"good {key}"

        def bad(key: str) -> str:
            raise RuntimeError(f"bad {key}")

        def before(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext) -> None:
            heard.append(f"before {tool.name}")

        def after(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: Any) -> None:
            heard.append(f"after {tool.name}: {tool_response}")

        def failed(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception) -> dict[str, str]:
            heard.append(f"failed {tool.name}: {type(error).__name__} {error}")
            return {"result": "never mind"}

        callbacks = {"before_tool_callback": before, "after_tool_callback": after, "on_tool_error_callback": failed}
        turns = [[Ask("good", {"key": "tea"})], [Ask("bad", {"key": "tea"})]]
        return Player(turns, wrap([good, bad]), **callbacks), heard

    bare, heard_bare = play(list)
    guarded, heard_guarded = play(lambda tools: guard(hf, tools))
    same = await bare.say(GO) == await guarded.say(GO)
    return [same, heard_bare == heard_guarded, heard_guarded, counts(hf, "bad")]


async def tools_of_all_kinds(hf: holdfast.Holdfast) -> object:
    """A toolset with a prefix, an agent, one that takes long, one of the provider's."""
    closed: list[str] = []

    def find(key: str) -> str:
        return f"found {key}"

    def wait(key: str) -> None:
        return None

    class Shelf(BaseToolset):
        async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
            return [FunctionTool(find)]

        async def close(self) -> None:
            closed.append("shelf")

    inner = Agent(name="inner", model=Scripted(turns=iter([[Ask("find", {"key": "tea"})]])), tools=guard(hf, [find]))
    given = [Shelf(tool_name_prefix="shelf"), AgentTool(inner), LongRunningFunctionTool(wait), google_search]
    tools = guard(hf, given)
    turns = [[Ask("shelf_find", {"key": "cup"})], [Ask("inner", {"request": "go"})], [Ask("wait", {"key": "tea"})]]
    player = Player(turns, tools[:3])
    answers = await player.say(GO)
    await player.runner.close()
    names = ["shelf_find", "inner", "find", "wait"]
    return [answers, {name: counts(hf, name) for name in names}, closed, tools[3] is google_search]


async def an_answer_that_says_error_is_a_failure(hf: holdfast.Holdfast) -> object:
    """And goes to the model as it is."""

    def lookup(key: str) -> dict[str, str]:
        return {"error": "connection refused", "hint": "call later"}

    def need(key: str) -> str:
        return key

    ask = [[Ask("lookup", {"key": "tea"}), *[Ask("need")] * 7], [Ask("need", {"key": "tea"})]]
    tools = [FunctionTool(lookup), need]
    answers, bare = await Player(ask, guard(hf, tools)).say(GO), await Player(ask, tools).say(GO)
    return [answers == bare, answers[0], answers[-1], counts(hf, "lookup"), counts(hf, "need")]


async def what_is_no_tool_is_told(hf: holdfast.Holdfast) -> object:
    """At once."""

    def look(city: str) -> str:
        return city

    told = []
    for wrong in (["look"], look, guard(hf, [look])):
        try:
            guard(hf, wrong)
        except holdfast.ConfigError as error:
            told.append(str(error).partition(" at 0x")[0])
    return told


SCENES = (
    what_a_tool_did_is_done_again,
    a_kept_answer_does_what_the_call_did,
    an_answer_is_known_again,
    a_call_waits_for_somebody,
    somebody_is_to_log_in_or_to_listen,
    a_session_is_live,
    callbacks_are_called,
    tools_of_all_kinds,
    an_answer_that_says_error_is_a_failure,
    what_is_no_tool_is_told,
)


if __name__ == "__main__":
    play_tasks(SCENES)
