"""What comes in one turn of the event loop, or while something ends: each has its own outcome, in whatever order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.mcp.http.clients import META, Line, frame
from tests.mcp.http.servers import INITIALIZED, STDIO, Reply, plain, server

import holdfast
from holdfast.app import Holdfast
from holdfast.mcp.http import child_site
from holdfast.mcp.http.child_site import SUBSCRIPTION, ChildSite
from holdfast.mcp.http.conversation import Conversation
from holdfast.mcp.http.endpoint import Endpoint
from holdfast.mcp.http.exchange import Exchange
from holdfast.mcp.http.http_site import HttpSite
from holdfast.mcp.http.sites import Site
from holdfast.mcp.server import ProxiedServer
from holdfast.mcp.stdio.child import Command
from holdfast.mcp.stdio.upstream import ChildUpstream
from holdfast.mcp.wire import Event

BEGIN = frame("initialize", 0, protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "c", "version": "1"})
PATIENCE = 20.0


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open(":memory:", policies={}) as hf:
        yield hf


def processes(hf: Holdfast) -> ChildSite:
    return ChildSite(hf, ProxiedServer(hf, "local"), lambda: ChildUpstream(Command(STDIO), hf.clock))


class Asked:
    """A request of a client, which has come as a whole."""

    def __init__(self, site: Site, body: dict[str, object], method: str = "POST", **headers: str) -> None:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        self.line = Line()
        self.exchange = Exchange(method, list(given.items()), given, self.line)
        self.exchange.body = json.dumps(body).encode()
        work = {"POST": site.post, "GET": site.get, "DELETE": site.delete}[method](self.exchange)
        self.work = asyncio.ensure_future(work) if work is not None else None

    async def answer(self) -> Any:
        """What the client got, as JSON."""
        if self.work is not None:
            await asyncio.wait_for(self.work, PATIENCE)
        await asyncio.wait_for(self.line.ended.wait(), PATIENCE)
        return json.loads(self.line.data or b"null")


def modern(site: Site, method: str, **params: object) -> Asked:
    """A request of a client without session."""
    headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": method}
    if "name" in params:
        headers["mcp_name"] = str(params["name"])
    return Asked(site, frame(method, 1, **params, _meta=META), **headers)


async def begun(asked: Asked) -> None:
    """Wait until the answer has begun with the event 7, of which nobody tells."""
    async with asyncio.timeout(PATIENCE):
        while b"id: 7" not in asked.line.data:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


# --- a server on stdio ---


async def test_of_clients_that_begin_at_once_none_is_taken_for_one_that_is_silent(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_site, "MOST_CLIENTS", 1)
    site = processes(hf)

    begun = [Asked(site, BEGIN) for _ in range(3)]
    answers = [await each.answer() for each in begun]
    await site.close()

    assert ["result" in answer for answer in answers] == [True] * 3


async def test_a_client_that_comes_as_its_process_turns_out_to_be_of_no_use_has_another(hf: Holdfast) -> None:
    site = processes(hf)
    first = modern(site, "x/unknown")
    if first.work is not None:
        await first.work
    second: list[Asked] = []
    first.exchange.when_done(lambda: second.append(modern(site, "tools/call", name="add", arguments={"a": 1, "b": 2})))

    assert "error" in await first.answer()
    await asyncio.sleep(0)
    answer = await second[0].answer()
    await site.close()

    assert answer["result"]["content"][0]["text"] == "3"


async def test_late_words_about_a_request_without_session_that_has_ended_reach_no_other(hf: Holdfast) -> None:
    site = processes(hf)
    left, other = [modern(site, "tools/call", name="slow", arguments={}) for _ in range(2)]
    (client,) = site._known.values()
    assert left.work is not None
    assert other.work is not None
    await asyncio.gather(left.work, other.work)

    left.exchange.lost()
    await asyncio.sleep(0)
    for said in ({"progressToken": 1, "progress": 2}, {"_meta": {SUBSCRIPTION: 1}}):
        client.session.arrive(Event(json.dumps(frame("notifications/progress", None, **said)).encode()))
    await asyncio.sleep(0)
    heard = other.line.data
    await site.close()

    assert heard == b""


# --- a server over HTTP ---


def addresses(hf: Holdfast, url: str) -> HttpSite:
    return HttpSite(hf, ProxiedServer(hf, "remote"), Endpoint(url, is_shared=True))


async def test_a_session_that_the_server_names_while_the_gateway_ends_is_no_run_that_is_left(hf: Holdfast) -> None:
    asked, named, ends, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(reply: Reply) -> None:
        asked.set()
        await named.wait()
        await reply.result(INITIALIZED, mcp_session_id="one")

    async def slowly() -> None:
        ends.set()
        await goes_on.wait()

    async with server(answer) as made:
        site = addresses(hf, made.url)
        Conversation(hf, "other", "", on_end=lambda: None, close=slowly, alive=site._alive)
        Asked(site, BEGIN)
        await asyncio.wait_for(asked.wait(), PATIENCE)
        posts = set(site.tasks)

        closing = asyncio.ensure_future(site.close())
        await asyncio.wait_for(ends.wait(), PATIENCE)
        named.set()
        await asyncio.wait(posts)
        goes_on.set()
        await closing

        assert all(run.interrupted for run in hf.runs.list_runs())
        assert not site._alive


async def test_a_request_that_comes_as_its_session_turns_out_to_be_unknown_is_for_the_server_to_judge(
    hf: Holdfast,
) -> None:
    async def answer(reply: Reply) -> None:
        await reply.json({"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "unknown"}}, 404)

    def ask() -> Asked:
        return Asked(site, frame("tools/call", 1, name="work"), mcp_session_id="x")

    async with server(answer) as made:
        site = addresses(hf, made.url)
        first = ask()
        second: list[Asked] = []
        first.exchange.when_done(lambda: second.append(ask()))

        messages = [(await first.answer())["error"]["message"]]
        await asyncio.sleep(0)
        messages.append((await second[0].answer())["error"]["message"])
        await site.close()

        assert messages == ["unknown"] * 2


async def test_an_answer_that_comes_after_the_end_of_its_session_begins_no_other_run(hf: Holdfast) -> None:
    async def answer(reply: Reply) -> None:
        await reply.result(INITIALIZED, mcp_session_id="one")

    async with server(answer) as made:
        site = addresses(hf, made.url)
        await Asked(site, BEGIN).answer()
        (client,) = site._clients.values()
        assert client.conversation is not None
        await client.conversation.end()

        site.keep(client)

        assert not site._alive
        await site.close()


async def taken_up(site: HttpSite) -> tuple[Asked, Asked]:
    """A call whose stream has begun, and the end of the client's attempt to take it up elsewhere."""
    await Asked(site, BEGIN).answer()
    call = Asked(site, frame("tools/call", 1, name="work"), mcp_session_id="one")
    await begun(call)
    again = Asked(site, {}, "GET", mcp_session_id="one", last_event_id="7")
    await asyncio.wait_for(again.line.ended.wait(), PATIENCE)
    return call, again


async def test_a_stream_that_is_taken_up_before_its_end_is_seen_goes_on_where_the_client_listens(hf: Holdfast) -> None:
    async def answer(reply: Reply) -> None:
        if reply.request.method == "GET":
            await reply.stream()
            await reply.frame("8", id=1, result={"content": []})
            await reply.end()
        elif reply.request.asks == "tools/call":
            await reply.stream("id: 7\ndata:")
            await reply.gone.wait()
        else:
            await plain(Reply.text)(reply)

    async with server(answer) as made:
        site = addresses(hf, made.url)
        call, again = await taken_up(site)
        await asyncio.wait_for(call.line.ended.wait(), PATIENCE)
        await site.close()

        assert b'"result"' in again.line.data
        assert b'"result"' not in call.line.data


async def test_a_stream_that_the_server_lets_nobody_take_up_goes_on_where_it_is(hf: Holdfast) -> None:
    refused = asyncio.Event()

    async def answer(reply: Reply) -> None:
        if reply.request.method == "GET":
            await reply.whole(401)
        elif reply.request.asks == "tools/call":
            await reply.stream("id: 7\ndata:")
            await refused.wait()
            await reply.answer()
        else:
            await plain(Reply.text)(reply)

    async with server(answer) as made:
        site = addresses(hf, made.url)
        call, _ = await taken_up(site)
        refused.set()
        await asyncio.wait_for(call.line.ended.wait(), PATIENCE)
        await site.close()

        assert b'"result"' in call.line.data


async def test_a_session_of_which_the_server_knows_nothing_when_it_is_ended_has_ended(hf: Holdfast) -> None:
    async def answer(reply: Reply) -> None:
        await (reply.whole(404) if reply.request.method == "DELETE" else plain(Reply.text)(reply))

    async with server(answer) as made:
        site = addresses(hf, made.url)
        await Asked(site, BEGIN).answer()

        await Asked(site, {}, "DELETE", mcp_session_id="one").answer()

        assert not site._clients
        assert [run.status for run in hf.runs.list_runs()] == ["completed"]
        await site.close()
