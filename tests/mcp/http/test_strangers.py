"""Clients of one gateway that know nothing of each other: what is for one reaches no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.mcp.http.clients import frame, gateway, text_of
from tests.mcp.http.servers import INITIALIZED, Reply, server
from tests.mcp.http.test_gateway import LOCAL, Web, get, remote, web

import holdfast


@asynccontextmanager
async def ann_and_bob(answer: Callable[[Reply], Awaitable[object]]) -> AsyncIterator[tuple[Web, Web]]:
    """Two clients with keys of their own, of a server that answers so behind a gateway."""
    async with (
        server(answer) as made,
        gateway(remote(made.url)) as address,
        web(address, "remote", **{"X-Api-Key": "ann"}) as ann,
        web(address, "remote", **{"X-Api-Key": "bob"}) as bob,
    ):
        yield ann, bob


async def test_where_a_server_sends_one_client_no_other_is_sent() -> None:
    async def answer(reply: Reply) -> None:
        if reply.request.path == "/mcp":
            await reply.whole(307, location=f"/of/{reply.request.headers['x-api-key']}")
        else:
            await reply.text(reply.request.path)

    async with server(answer) as made, gateway(remote(made.url)) as address:
        heard = []
        for who in ("ann", "bob", "ann"):
            async with web(address, "remote", **{"X-Api-Key": who}) as client:
                heard.append(text_of((await client.call()).json()))

    assert heard == ["/of/ann", "/of/bob", "/of/ann"]


@pytest.mark.parametrize("header", ["Authorization", "X-Api-Key", "Private-Token"])
async def test_without_sessions_clients_with_other_credentials_are_other_runs(header: str) -> None:
    async def answer(reply: Reply) -> None:
        await reply.text()

    with holdfast.open(":memory:", policies={}) as hf:
        async with server(answer) as made, gateway(remote(made.url), hf=hf) as address:
            for who, trace in (("ann", "1"), ("bob", "2"), ("ann", "3")):
                async with web(address, "remote", **{header: who}, baggage=trace, cookie=f"lb={trace}") as client:
                    await client.call_modern("work")

        assert len(hf.runs.list_runs()) == 2
        assert not any("ann" in run.session_id for run in hf.runs.list_runs())


async def test_without_sessions_a_client_is_the_same_in_whatever_order_it_shows_its_credentials() -> None:
    shown = {"Authorization": "Bearer a", "X-Api-Key": "b"}
    async with gateway(LOCAL) as address:
        pids = set()
        for headers in (shown, dict(reversed(shown.items()))):
            async with web(address, "local", **headers) as client:
                pids.add(text_of((await client.call_modern("pid")).json()))

    assert len(pids) == 1


@pytest.mark.parametrize("header", ["Authorization", "X-Api-Key"])
async def test_without_sessions_clients_with_other_credentials_have_other_processes(header: str) -> None:
    async with gateway(LOCAL) as address:
        pids = []
        for who in ("ann", "bob", "ann"):
            async with web(address, "local", **{header: who}) as client:
                pids.append(text_of((await client.call_modern("pid")).json()))

    assert pids[0] == pids[2] != pids[1]


@pytest.mark.parametrize("first", ["ann", "bob"])
async def test_what_a_tool_says_of_itself_to_one_client_alone_lets_no_call_of_another_be_repeated(first: str) -> None:
    async def answer(reply: Reply) -> None:
        who = reply.request.headers["authorization"]
        if reply.request.asks == "tools/list":
            await reply.result({"tools": [{"name": "query", "annotations": {"readOnlyHint": who == "ann"}}]})
        else:
            await reply.whole(503)

    async with server(answer) as made, gateway(remote(made.url)) as address:
        for who in (first, "ann", "bob", "ann"):
            async with web(address, "remote", authorization=who) as client:
                await client.post(frame("tools/list"))
        async with web(address, "remote", authorization="bob") as client:
            await client.call("query")

    assert len(made.asked("tools/call")) == 1


async def test_what_a_tool_says_of_itself_later_counts_for_who_was_told_otherwise() -> None:
    hints = iter([True, False, True])

    async def answer(reply: Reply) -> None:
        if reply.request.asks == "tools/list":
            await reply.result({"tools": [{"name": "query", "annotations": {"readOnlyHint": next(hints)}}]})
        else:
            await reply.whole(401 if len(made.asked("tools/call")) > 1 else 503)

    async with (
        server(answer) as made,
        gateway(remote(made.url)) as address,
        web(address, "remote", authorization="ann") as client,
    ):
        for id in range(3):
            await client.post(frame("tools/list", id))
        await client.call("query")

    assert len(made.asked("tools/call")) == 2


async def test_a_cookie_that_comes_with_a_refusal_is_only_for_who_asked() -> None:
    asked, told = asyncio.Event(), asyncio.Event()

    async def answer(reply: Reply) -> None:
        asked.set()
        await told.wait()
        await reply.whole(401, b"who?", set_cookie="sid=1")

    with holdfast.open(":memory:", policies={"server": {"remote": {"read_only": True, "cache": 60}}}) as hf:
        async with (
            server(answer) as made,
            gateway(remote(made.url), hf=hf) as address,
            web(address, "remote") as one,
            web(address, "remote") as other,
        ):
            first = asyncio.ensure_future(one.call())
            await asked.wait()
            second = asyncio.ensure_future(other.call())
            cache = hf._box.tool("remote.add").cache
            assert cache is not None
            while not any(flight._followers for flight in cache._shared.values()):
                await get(address)
            told.set()
            answers = await first, await second

    assert len(made.requests) == 1
    assert [(each.status_code, each.content) for each in answers] == [(401, b"who?")] * 2
    assert [each.headers.get("set-cookie") for each in answers] == ["sid=1", None]


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_a_session_is_not_begun_anew_for_a_stranger_who_knows_its_id(is_forgotten: bool) -> None:
    owners: dict[str, str] = {}

    async def answer(reply: Reply) -> None:
        who, id = reply.request.headers["x-api-key"], reply.request.headers.get("mcp-session-id", "")
        if reply.request.asks == "initialize":
            owners[f"s{len(owners)}"] = who
            await reply.result(INITIALIZED, mcp_session_id=list(owners)[-1])
        elif owners.get(id) != who:
            await reply.whole(404)
        else:
            await (reply.text(f"{who} in {id}") if "id" in reply.request.frame else reply.whole(202))

    async with ann_and_bob(answer) as (ann, bob):
        await ann.begin()
        if is_forgotten:
            owners["s0"] = "nobody"
        bob.session = ann.session
        refused = await bob.call()
        answered = await ann.call()

    assert refused.status_code == 404
    assert text_of(answered.json()) == ("ann in s1" if is_forgotten else "ann in s0")
    assert list(owners.values()).count("bob") == 0


@pytest.mark.parametrize("status", [401, 202], ids=["a stranger", "the client with a new token"])
async def test_who_shows_other_tokens_cancels_only_what_the_server_lets_it_cancel(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.mcp.http.session.GRACE", 0.01)
    called, judged = asyncio.Event(), asyncio.Event()

    async def answer(reply: Reply) -> None:
        if reply.request.asks == "initialize":
            await reply.result(INITIALIZED, mcp_session_id="one")
        elif reply.request.asks == "tools/call":
            called.set()
            await (judged if status == 401 else reply.gone).wait()
            await reply.text("done")
        else:
            await reply.whole(status if reply.request.headers["x-api-key"] == "bob" else 202)

    async with ann_and_bob(answer) as (ann, bob):
        await ann.begin()
        calling = asyncio.ensure_future(ann.call(id=5))
        await called.wait()
        bob.session = ann.session
        cancel = await bob.post(frame("notifications/cancelled", None, requestId=5))
        if status == 401:
            asyncio.get_running_loop().call_later(0.1, judged.set)  # when whoever waits for nothing would be gone
        answered = await calling

    assert cancel.status_code == status
    assert (text_of(answered.json()) if answered.content else "") == ("done" if status == 401 else "")


async def test_words_of_the_proxy_carry_the_tokens_of_the_client_not_those_of_a_stranger() -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def answer(reply: Reply) -> None:
        who = reply.request.headers["x-api-key"]
        if reply.request.asks == "initialize":
            await reply.result(INITIALIZED, mcp_session_id="one")
        elif reply.request.asks == "notifications/cancelled":
            heard.put_nowait(who)
            await reply.whole(202)
        elif who == "bob":
            await reply.whole(401)
        elif reply.request.asks == "tools/call":
            await reply.gone.wait()
        else:
            await reply.whole(202)

    with holdfast.open(":memory:", policies={"policy": {"deadline": 0.5}}) as hf:
        async with (
            server(answer) as made,
            gateway(remote(made.url), hf=hf) as address,
            web(address, "remote", **{"X-Api-Key": "ann"}) as ann,
            web(address, "remote", **{"X-Api-Key": "bob"}) as bob,
        ):
            await ann.begin()
            calling = asyncio.ensure_future(ann.call(id=5))
            while not made.asked("tools/call"):
                await get(address)
            bob.session = ann.session
            assert (await bob.post(frame("tools/list", 6))).status_code == 401
            await calling

            assert await heard.get() == "ann"


async def test_progress_of_a_call_does_not_reach_a_stranger_who_gives_the_same_token_for_it() -> None:
    called, intruded, told = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(reply: Reply) -> None:
        who = reply.request.headers["x-api-key"]
        if reply.request.asks == "initialize":
            await reply.result(INITIALIZED, mcp_session_id="one")
        elif reply.request.asks != "tools/call":
            await reply.whole(202)
        elif who == "bob":
            intruded.set()
            await told.wait()
            await reply.whole(401)
        else:
            called.set()
            await intruded.wait()
            await reply.stream()
            await reply.frame(method="notifications/progress", params={"progressToken": 1, "progress": 1})
            await reply.answer()
            told.set()

    call = {"name": "work", "arguments": {}, "_meta": {"progressToken": 1}}
    async with ann_and_bob(answer) as (ann, bob):
        await ann.begin()
        calling = asyncio.ensure_future(ann.post(frame("tools/call", 5, **call)))
        await called.wait()
        bob.session = ann.session
        refused = await bob.post(frame("tools/call", 6, **call))
        answered = await calling

    assert refused.status_code == 401
    assert "notifications/progress" in answered.text


@pytest.mark.parametrize("method", ["tools/call", "tools/list", "initialize", "notifications/initialized"])
@pytest.mark.parametrize("status", [200, 401, 404, 503])
async def test_cookies_reach_who_asked(method: str, status: int) -> None:
    async def answer(reply: Reply) -> None:
        if status == 200 and method != "notifications/initialized":
            await reply.result({"content": []}, set_cookie="sid=1")
        else:
            await reply.whole(status, b"", set_cookie="sid=1")

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        id = None if method.startswith("notifications") else 1
        response = await client.post(frame(method, id, name="work"), mcp_session_id="s")

        assert response.headers.get_list("set-cookie") == ["sid=1"]


async def test_what_a_server_says_of_one_client_s_request_is_not_listed() -> None:
    async def answer(reply: Reply) -> None:
        await reply.whole(403, b"ann may not do this")

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.call()
        (listed,) = (await get(address)).json()["servers"]

    assert (listed["state"], listed["last_error"]) == ("ready", None)
