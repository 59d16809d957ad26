"""A call goes straight through: in the order in which the client speaks, without a task, and whatever its server does
in the meantime.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.stdio.client import Client, Stage, failure, settle, text, within
from tests.mcp.stdio.conftest import Wrap

import holdfast
from holdfast.mcp.frames import Head, Id
from holdfast.mcp.handshake import Handshake
from holdfast.mcp.server import DEFAULTS, ProxiedServer
from holdfast.mcp.session import Session
from holdfast.mcp.wire import Channel, Condition, Event, Listener, ServerLost
from holdfast.testing import ManualClock


def line(method: str, **more: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, **more}).encode()


def call(id: int, tool: str = "write") -> bytes:
    return line("tools/call", id=id, params={"name": tool, "arguments": {"id": id}})


# --- through the command ---


async def test_calls_and_other_frames_of_one_breath_reach_the_server_in_their_order(wrap: Wrap) -> None:
    client = await wrap()
    await client.initialize()
    last = client.expect(104)

    client.say(b"\n".join([call(101), line("ping", id=102), call(103), line("ping", id=104)]))
    await within(last)

    told = [entry["id"] for entry in client.journal("tools/call", "ping")]
    assert told == [101, 102, 103, 104]


async def test_a_call_that_is_cancelled_in_one_breath_does_not_reach_the_server(wrap: Wrap) -> None:
    client = await wrap()
    await client.initialize()
    cancel = line("notifications/cancelled", params={"requestId": 101})
    other = client.expect(102)

    client.say(b"\n".join([call(101), call(102, "put"), cancel]))
    await within(other)

    assert (client.effects("write"), client.effects("put")) == (0, 1)
    assert not client.answered(101)


# --- through a session ---


async def test_a_call_that_waits_for_nothing_but_its_answer_makes_no_task(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.session.defers_calls = False
        before = asyncio.all_tasks()

        answer = client.call("write", do="hold a")
        await client.next("notifications/holds")
        assert not asyncio.all_tasks() - before
        await client.result("put", do="release a")

        assert text((await within(answer))["result"]) == "released a"


SLOW = {"read_only": True, "timeout": 1.0, "retry": {"initial": 0.1, "max": 0.1}}
STRAYS = {"fallback": {"tool": "elsewhere.write"}, "read_only": True, "cache": 60, "retry": False}
RULES: dict[str, Any] = {"server": {"srv": {"tool": {"strays": STRAYS, "slow": SLOW}}}}


class Odd(Client):
    """A client, and its server too: *react* is told of each frame while it is being sent."""

    def __init__(self) -> None:
        super().__init__(lambda line: self.session.receive(line, self), Path())
        self.clock = ManualClock()
        self.hf = holdfast.open(":memory:", policies=RULES, clock=self.clock, defaults=DEFAULTS)
        self.session = Session(ProxiedServer(self.hf, "srv"), self, self.send, self.clock)
        self.session.defers_calls = False
        self.sent: list[Any] = []
        self.condition = Condition(self.clock, "odd", "", "ready")
        self.ready: Callable[[], Awaitable[object]] | None = None
        self.react: Callable[[Any], object] = lambda id: None

    # As an upstream:

    def attach(self, listener: Listener, handshake: Handshake) -> None:
        self.listener = listener

    def send(self, *given: Any) -> None:
        """As a channel, for one event; as an upstream, for a frame."""
        if isinstance(given[0], Event):
            self.hear(given[0].data)
        else:
            self._send(*given)

    def _send(self, data: bytes, head: Head | None, channel: Channel | None = None) -> None:
        frame = json.loads(data)
        self.sent.append(frame)
        if "id" in frame:
            self.react(frame["id"])

    def answer(self, id: Any, said: str = "done", **more: object) -> None:
        result = {"content": [{"type": "text", "text": said}], **more}
        self.listener.arrive(Event(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode()))

    def take_back(self, id: Id) -> bool:
        return False

    def asker(self, channel: Channel) -> None:
        return

    def suspect(self) -> None:
        return

    def hold(self, held: bool) -> None:
        return

    async def close(self) -> None:
        return


@pytest.fixture
async def odd() -> AsyncIterator[Odd]:
    client = Odd()
    async with client.hf.note("srv", "a test"):
        client.session.open()
        yield client
        await client.session.close()
    client.hf.close()


async def test_an_answer_that_comes_while_the_call_is_being_sent_is_an_answer(odd: Odd) -> None:
    odd.react = odd.answer

    answer = odd.call("write", id=7)

    assert text((await within(answer))["result"]) == "done"


async def test_a_server_that_is_lost_while_a_call_is_being_sent_is_told_to_the_client(odd: Odd) -> None:
    odd.react = lambda id: odd.listener.failed(id, ServerLost("gone"))

    answer = odd.call("write", id=7)

    assert "gone" in text((await within(answer))["result"])


async def test_a_call_is_answered_at_its_deadline_though_its_server_is_never_ready(odd: Odd) -> None:
    odd.ready = asyncio.Event().wait
    answer = odd.call("write", id=7)
    await asyncio.sleep(0)

    odd.clock.advance(50.1)

    assert failure((await within(answer))["result"])["kind"] == "ToolTimeout"
    assert not odd.sent


async def test_a_call_whose_time_is_up_before_its_task_has_begun_is_answered(odd: Odd) -> None:
    odd.ready = asyncio.Event().wait
    answer = odd.call("write", id=7)

    odd.clock.advance(50.1)

    assert failure((await within(answer))["result"])["kind"] == "ToolTimeout"


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_call_that_is_cancelled_while_its_server_is_not_ready_ends(turns: int, odd: Odd) -> None:
    odd.ready = asyncio.Event().wait
    odd.call("write", id=7)
    for _ in range(turns):
        await asyncio.sleep(0)

    odd.cancel(7)
    await within(odd.session.idle())

    assert not odd.answered(7)
    assert [frame["method"] for frame in odd.sent] == []


async def test_an_answer_after_the_deadline_is_nobodys(odd: Odd) -> None:
    answer = odd.call("write", id=7)
    odd.clock.advance(50.1)
    await within(answer)

    odd.answer(7, "late")

    assert len(odd.answered(7)) == 1
    assert [frame["method"] for frame in odd.sent] == ["tools/call", "notifications/cancelled"]


async def test_an_answer_in_the_very_turn_in_which_an_attempt_is_given_up_is_nobodys(odd: Odd) -> None:
    odd.ready = lambda: asyncio.sleep(0)  # so that it has a task, which hears of its time with the next turn
    answer = odd.call("slow", id=7)
    await settle()

    odd.clock.advance(1.0)
    odd.answer(7, "late")
    await settle()
    odd.clock.advance(0.1)
    await settle()
    odd.answer(odd.sent[-1]["id"], "again")

    assert text((await within(answer))["result"]) == "again"
    assert len(odd.answered(7)) == 1


async def test_a_call_that_may_have_reached_its_tool_says_so_though_its_repetitions_find_no_server(odd: Odd) -> None:
    async def down() -> None:
        raise ServerLost("down", sent=False)

    answer = odd.call("slow", id=7)
    odd.ready = down
    for _ in range(3):
        odd.clock.advance(1.0)
        await settle()

    assert failure((await within(answer))["result"])["called"] is True
    assert "down" in text(answer.result()["result"])


async def test_a_session_is_busy_as_long_as_a_call_waits_for_anything(odd: Odd) -> None:
    odd.ready = asyncio.Event().wait
    odd.call("write", id=7)
    idle = asyncio.ensure_future(odd.session.idle())
    await settle()
    assert not idle.done()

    odd.clock.advance(50.1)

    await within(idle)
    assert odd.answered(7)


@pytest.mark.parametrize("turns", [0, 1])
async def test_a_call_that_is_cancelled_and_late_at_once_is_cancelled(turns: int, odd: Odd) -> None:
    odd.ready = asyncio.Event().wait
    odd.call("write", id=7)
    for _ in range(turns):
        await asyncio.sleep(0)

    odd.clock.advance(50.1)
    odd.cancel(7)
    await within(odd.session.idle())

    assert not odd.answered(7)


async def test_no_tool_of_another_server_answers_in_place_of_one_that_failed(odd: Odd) -> None:
    ProxiedServer(odd.hf, "elsewhere").tool("write")
    answer = odd.call("strays", id=7)

    odd.answer(7, "connection refused", isError=True)

    assert text((await within(answer))["result"]) == "connection refused"
    assert [frame["params"]["name"] for frame in odd.sent] == ["strays"]


async def test_a_call_that_is_more_than_its_arguments_is_not_kept_whatever_its_fallback(odd: Odd) -> None:
    odd.react = odd.answer

    for _ in range(2):
        await odd.ask("tools/call", {"name": "strays", "arguments": {}, "requestState": "x"})

    assert len(odd.sent) == 2


async def test_an_odd_list_of_tools_reaches_the_client_all_the_same(odd: Odd) -> None:
    answer = odd.begin("tools/list", id=7)

    odd.listener.arrive(Event(b'{"jsonrpc":"2.0","id":7,"result":{"tools":5}}'))

    assert (await within(answer))["result"] == {"tools": 5}


async def test_news_of_the_tools_are_for_who_listens_under_the_id_by_which_it_is_known_there(odd: Odd) -> None:
    meta = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}
    odd.begin("custom/do", meta, id=7)
    odd.begin("subscriptions/listen", meta, id=7)  # twice, so the server gets it under another
    odd.begin("custom/do", meta, id=8)

    odd.session.tools_changed()

    told = await odd.next("notifications/tools/list_changed")
    assert told["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": 7}
    assert not odd.unheard("notifications/tools/list_changed")
