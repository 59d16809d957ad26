"""Servers behind a gateway that break off, say no, or are told what they did not ask: nobody is left waiting."""

from __future__ import annotations

import asyncio

import pytest
from tests.mcp.http.clients import META, failure_of, frame, gateway, text_of
from tests.mcp.http.servers import INITIALIZED, Reply, plain, server
from tests.mcp.http.test_gateway import ACCEPT, LOCAL, get, modern_headers, remote, web

import holdfast
from holdfast.mcp.clients.configs import ServerEntry
from holdfast.mcp.http.conversation import IDLE
from holdfast.mcp.http.exchange import TOLD_TO_MODEL
from holdfast.mcp.wire import Event
from holdfast.testing import ManualClock


async def works(reply: Reply) -> None:
    await reply.text()


# --- streams ---


async def test_a_client_that_leaves_a_stream_with_places_in_it_comes_back_for_the_rest() -> None:
    left = asyncio.Event()

    async def answer(reply: Reply) -> None:
        if reply.request.method == "GET":
            await reply.stream()
            await reply.frame("8", id=1, result={"content": [{"type": "text", "text": "late"}]})
            await reply.end()
        else:
            await plain(call)(reply)

    async def call(reply: Reply) -> None:
        await reply.stream("id: 7\ndata:")
        await reply.gone.wait()
        left.set()
        reply.keeps = False

    with holdfast.open(":memory:", policies={}) as hf:
        async with server(answer) as made, gateway(remote(made.url), hf=hf) as url, web(url, "remote") as client:
            await client.begin()
            async with client.stream("POST", frame("tools/call", 1, name="work")) as stream:
                assert await stream.next() == Event(b"", "7")
            await asyncio.wait_for(left.wait(), 20)
            async with client.stream("GET", last_event_id="7") as stream:
                assert text_of(await stream.frame()) == "late"
        (run,) = hf.runs.list_runs()
        (ended,) = [event for event in hf.runs.event_page(run.id).events if event.type == "tool_ended"]

    assert (run.tool_calls, ended.payload["status"]) == (1, "success")


async def test_a_server_that_ends_a_stream_after_the_answer_is_well() -> None:
    async def call(reply: Reply) -> None:
        await reply.stream()
        await reply.answer()

    async with server(plain(call)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()
        async with client.stream("POST", frame("tools/call", 1, name="work")) as stream:
            assert text_of(await stream.frame()) == "done"

        states = [(await get(address)).json()["servers"][0]["state"] for _ in range(3)]
        assert states == ["ready"] * 3


async def test_what_the_server_refuses_after_a_stream_has_begun_is_told_in_the_stream() -> None:
    async def call(reply: Reply) -> None:
        if len(made.asked("tools/call")) == 1:
            await reply.stream()
            await reply.frame(method="notifications/message", params={})
            await reply.end()
        else:
            await reply.whole(401)

    policies = {"tool": {"remote.*": {"read_only": True}}}
    with holdfast.open(":memory:", policies=policies, clock=ManualClock()) as hf:
        async with server(plain(call)) as made, gateway(remote(made.url), hf=hf) as url, web(url, "remote") as client:
            await client.begin()
            async with client.stream("POST", frame("tools/call", 1, name="work")) as stream:
                assert (await stream.frame())["method"] == "notifications/message"
                assert failure_of(await stream.frame())["category"] == "authentication"


async def test_who_listens_hears_that_a_tool_has_left_the_list() -> None:
    async def answer(reply: Reply) -> None:
        if reply.request.method == "GET":
            await reply.stream()
            await reply.gone.wait()
        else:
            await plain(call)(reply)

    async def call(reply: Reply) -> None:
        if reply.request.asks == "tools/list":
            await reply.result({"tools": [{"name": "work", "inputSchema": {}}]})
        else:
            await reply.result({"content": [{"type": "text", "text": "503 Service Unavailable"}], "isError": True})

    broken = {"breaker": {"failure_threshold": 1}}
    policies = {"server": {"remote": {"hide_open_tools": True}}, "tool": {"remote.work": broken}}
    with holdfast.open(":memory:", policies=policies) as hf:
        async with server(answer) as made, gateway(remote(made.url), hf=hf) as url, web(url, "remote") as client:
            await client.begin()
            await client.post(frame("tools/list", 1))
            async with client.stream("GET") as stream:
                await client.call("work")
                assert (await stream.frame())["method"] == "notifications/tools/list_changed"


async def test_who_listens_hears_the_end_of_the_session() -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        await client.begin()
        async with client.stream("GET") as stream:
            assert (await client.http.delete("", headers=client.session)).status_code == 204

            with pytest.raises(StopAsyncIteration):
                await stream.next()


async def test_a_session_in_which_somebody_listens_is_not_silent() -> None:
    go = asyncio.Event()

    async def answer(reply: Reply) -> None:
        if reply.request.method == "GET":
            await reply.stream()
            await go.wait()
            await reply.frame(method="notifications/message", params={})
            await reply.gone.wait()
        else:
            await plain(works)(reply)

    with holdfast.open(":memory:", policies={}, clock=(clock := ManualClock())) as hf:
        async with server(answer) as made, gateway(remote(made.url), hf=hf) as url, web(url, "remote") as client:
            await client.begin()
            async with client.stream("GET") as stream:
                clock.advance(IDLE)
                await client.call()
                go.set()
                assert (await stream.frame())["method"] == "notifications/message"
        assert len(hf.runs.list_runs()) == 1


async def test_a_stream_of_ours_shows_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.mcp.http.exchange.PING", 0.001)
    async with gateway(LOCAL) as address, web(address, "local") as client:
        await client.begin()
        async with client.stream("GET") as stream:
            assert [await stream.next() for _ in range(2)] == [Event(b"")] * 2


# --- what asks nothing ---


async def test_a_cancel_ends_the_request_that_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.mcp.http.session.GRACE", 0.01)
    both, gone, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def call(reply: Reply) -> None:
        if len(made.asked("tools/call")) == 2:
            both.set()
        if reply.request.frame["id"] == 2:
            await reply.gone.wait()
            gone.set()
            reply.keeps = False
        else:
            await go.wait()
            await reply.text()

    async with server(plain(call)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()
        first, second = (asyncio.ensure_future(client.call(id=id)) for id in (1, 2))
        await asyncio.wait_for(both.wait(), 20)
        await client.post(frame("notifications/cancelled", None, requestId=2))
        await asyncio.wait_for(gone.wait(), 20)
        go.set()

        assert text_of((await first).json()) == "done"
        assert (await second).content == b""


async def test_without_a_session_what_a_client_answers_reaches_the_server() -> None:
    told = {"jsonrpc": "2.0", "id": "q", "result": {"roots": []}}
    async with server(plain(works)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        response = await client.post(told)

        assert response.status_code == 202
        assert [request.frame for request in made.requests] == [told]


async def test_without_sessions_a_cancel_is_the_end_of_the_request_and_nothing_else() -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def answer(reply: Reply) -> None:
        asked.set()
        await reply.gone.wait()
        gone.set()
        reply.keeps = False

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        calling = asyncio.ensure_future(client.call_modern("work", 5))
        await asyncio.wait_for(asked.wait(), 20)
        cancel = frame("notifications/cancelled", None, requestId=5, _meta=META)
        response = await client.post(cancel, **modern_headers("notifications/cancelled"))
        await asyncio.wait_for(gone.wait(), 20)

        assert response.status_code == 202
        assert [request.asks for request in made.requests] == ["tools/call"]
        calling.cancel()


async def test_without_a_session_of_its_own_an_older_client_that_leaves_has_cancelled_nothing() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def call(reply: Reply) -> None:
        if reply.request.asks == "tools/call":
            asked.set()
            await go.wait()
        await reply.text()

    async with server(plain(call)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        calling = asyncio.ensure_future(client.call())
        await asyncio.wait_for(asked.wait(), 20)
        calling.cancel()
        await asyncio.wait({calling})
        for id in range(5):  # of which the first comes after the end of that connection
            await client.post(frame("ping", id))
        go.set()

        assert made.asked("notifications/cancelled") == []


async def test_a_call_whose_older_client_has_left_ends_with_the_gateway() -> None:
    asked = asyncio.Event()

    async def call(reply: Reply) -> None:
        if reply.request.asks == "tools/call":
            asked.set()
            await reply.gone.wait()
            reply.keeps = False
        else:
            await reply.text()

    with holdfast.open(":memory:", policies={}) as hf:
        async with server(plain(call)) as made, gateway(remote(made.url), hf=hf) as url, web(url, "remote") as client:
            calling = asyncio.ensure_future(client.call())
            await asyncio.wait_for(asked.wait(), 20)
            calling.cancel()
            await asyncio.wait({calling})
            await client.post(frame("ping"))  # comes after the end of that connection
        (run,) = hf.runs.list_runs()
        (ended,) = [event for event in hf.runs.event_page(run.id).events if event.type == "tool_ended"]

    assert (run.interrupted, ended.payload["status"]) == (True, "cancelled")


async def test_without_sessions_a_process_is_told_nothing_by_a_notification() -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        told = await client.post(frame("notifications/told", None), **modern_headers("notifications/told"))

        assert (told.status_code, told.content) == (202, b"")


@pytest.mark.parametrize(("session", "status"), [({}, 400), ({"mcp-session-id": "none"}, 404)])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_session_that_is_not_there_has_no_stream_and_no_end(
    method: str, session: dict[str, str], status: int
) -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        response = await client.http.request(method, "", headers={**ACCEPT, **session})

        assert (response.status_code, "session" in response.json()["error"]["message"]) == (status, True)


async def test_a_session_that_the_server_does_not_end_goes_on_as_the_same_run() -> None:
    async def answer(reply: Reply) -> None:
        await (reply.whole(405) if reply.request.method == "DELETE" else plain(works)(reply))

    with holdfast.open(":memory:", policies={}) as hf:
        async with server(answer) as made, gateway(remote(made.url), hf=hf) as url, web(url, "remote") as client:
            await client.begin()
            assert (await client.http.delete("", headers=client.session)).status_code == 405
            await client.call()
        (run,) = hf.runs.list_runs()

    assert run.tool_calls == 1


# --- what is for neighbours ---


async def test_what_is_said_between_neighbours_goes_no_further() -> None:
    names = "forwarded keep-alive proxy-authorization proxy-connection referer te trailer x-forwarded-for"
    names += " x-forwarded-host sec-fetch-dest sec-fetch-mode sec-fetch-site"
    asked = dict.fromkeys(names.split(), "mine")
    said = dict.fromkeys(("keep_alive", "proxy_authenticate", "server", "trailer"), "theirs")

    async def answer(reply: Reply) -> None:
        await reply.result({}, x_more="1", **said)

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote", **asked) as client:
        response = await client.post(frame("ping"), origin="http://localhost", x_more="1")

    assert [name for name in (*asked, "origin") if name in made.requests[0].headers] == []
    assert [name for name, value in response.headers.items() if value == "theirs"] == []
    assert made.requests[0].headers["x-more"] == response.headers["x-more"] == "1"


# --- what is no answer ---


@pytest.mark.parametrize("status", sorted(TOLD_TO_MODEL))
async def test_a_status_that_asks_for_patience_is_told_to_the_model(status: int) -> None:
    async def call(reply: Reply) -> None:
        await reply.whole(status)

    async with server(plain(call)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()
        response = await client.call()

        assert (response.status_code, failure_of(response.json())["kind"]) == (200, "ServerLost")


async def test_a_page_instead_of_an_answer_is_a_call_of_unknown_outcome() -> None:
    async def call(reply: Reply) -> None:
        await reply.whole(200, b"<p>hello</p>", content_type="text/html")

    async with server(plain(call)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()

        assert failure_of((await client.call()).json())["called"] is True


async def test_an_error_of_a_process_that_names_no_request_ends_the_one_that_waits() -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        await client.begin()

        response = await client.post(frame("unread", 4))

        assert response.json()["error"] == {"code": -32700, "message": "what?"}


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST"])
async def test_what_cannot_be_told_to_a_server_is_told_to_its_client(method: str) -> None:
    async with server(plain(works)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()
        made.stop()

        told = frame("notifications/told", None) if method == "POST" else None
        response = await client.http.request(method, "", json=told, headers={**ACCEPT, **client.session})

        assert (response.status_code, response.json()["error"]["code"]) == (502, -32000)
        assert (await get(address)).json()["servers"][0]["state"] == "failed"


@pytest.mark.parametrize("entry", [{"url": "http://127.0.0.1:9/sse", "transport": "sse"}, {"problem": "is odd"}])
async def test_a_server_that_cannot_be_served_says_why_to_each_request(entry: dict[str, str]) -> None:
    async with gateway(ServerEntry(name="bad", **entry)) as address, web(address, "bad") as client:  # type: ignore[arg-type]
        why = (await get(address)).json()["servers"][0]["last_error"]

        one = (await client.post(frame("ping", 1))).json()
        many = (await client.http.post("", json=[frame("ping", 1), frame("ping", 2)])).text
        rest = [await client.http.request(method, "") for method in ("GET", "DELETE")]

    assert (one["id"], one["error"]) == (1, {"code": -32000, "message": why})
    assert many.count(why) == 2
    assert [(each.status_code, each.json()["error"]["message"]) for each in rest] == [(502, why)] * 2


async def test_a_session_that_cannot_be_begun_anew_is_told_as_it_was_refused() -> None:
    async def answer(reply: Reply) -> None:
        if reply.request.asks == "initialize" and not made.asked("tools/call"):
            await reply.result(INITIALIZED, mcp_session_id="one")
        elif "id" in reply.request.frame:
            await reply.whole(404 if reply.request.asks == "tools/call" else 503, b"down")
        else:
            await reply.whole(202)

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()

        assert failure_of((await client.call()).json())["category"] == "service_unavailable"
