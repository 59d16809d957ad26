"""Clients over HTTP: what the server says goes through as it is, and nobody gets in who should not."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.mcp.http.clients import META, Line, failure_of, frame, gateway, text_of
from tests.mcp.http.servers import INITIALIZED, STDIO, Reply, plain, server, silent

import holdfast
from holdfast.errors import ConfigError
from holdfast.mcp.clients.configs import ServerEntry
from holdfast.mcp.http import child_site
from holdfast.mcp.http.child_site import ChildClient, ChildSite
from holdfast.mcp.http.conversation import IDLE
from holdfast.mcp.http.exchange import MOST_QUEUED, Exchange
from holdfast.mcp.http.gateway import Address
from holdfast.mcp.http.sse import Parser
from holdfast.mcp.server import ProxiedServer
from holdfast.mcp.session import Session
from holdfast.mcp.stdio.child import Command
from holdfast.mcp.stdio.upstream import ChildUpstream
from holdfast.mcp.wire import Event
from holdfast.testing import ManualClock

ACCEPT = {"accept": "application/json, text/event-stream"}
BEGIN = frame("initialize", 0, protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "c", "version": "1"})
LOCAL = ServerEntry(name="local", transport="stdio", command=STDIO[0], args=(STDIO[1],))


def remote(url: str, **headers: str) -> ServerEntry:
    return ServerEntry(name="remote", transport="http", url=url, headers=headers)


def modern_headers(method: str, name: str | None = None) -> dict[str, str]:
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    return headers | ({"mcp-name": name} if name else {})


class Web:
    """A client of one path of a gateway."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.session: dict[str, str] = {}

    async def post(self, body: object, **headers: str) -> httpx.Response:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post("", json=body, headers={**ACCEPT, **self.session, **given})

    async def begin(self) -> httpx.Response:
        response = await self.post(BEGIN)
        if "mcp-session-id" in response.headers:
            self.session = {"mcp-session-id": response.headers["mcp-session-id"]}
        await self.post(frame("notifications/initialized", None))
        return response

    async def call(self, tool: str = "add", id: int = 1, **arguments: object) -> httpx.Response:
        return await self.post(frame("tools/call", id, name=tool, arguments=arguments))

    async def call_modern(self, tool: str, id: int = 1, **arguments: object) -> httpx.Response:
        body = frame("tools/call", id, name=tool, arguments=arguments, _meta=META)
        return await self.http.post("", json=body, headers={**ACCEPT, **modern_headers("tools/call", tool)})

    @asynccontextmanager
    async def stream(self, method: str, body: object = None, **headers: str) -> AsyncIterator[Stream]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {**ACCEPT, **self.session, **given}
        async with self.http.stream(method, "", json=body, headers=sent) as response:
            yield Stream(response)


class Stream:
    """The events of an answer."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._parser = Parser()
        self._came: list[Event] = []
        self._chunks = response.aiter_bytes()

    async def next(self) -> Event:
        while not self._came:
            self._came = list(self._parser.feed(await asyncio.wait_for(anext(self._chunks), 20)))
        return self._came.pop(0)

    async def frame(self) -> Any:
        while not (event := await self.next()).data:
            pass
        return json.loads(event.data)


@asynccontextmanager
async def web(address: str, name: str, **headers: str) -> AsyncIterator[Web]:
    timeout = httpx.Timeout(20)
    async with httpx.AsyncClient(base_url=f"{address}/{name}/mcp", headers=headers, timeout=timeout) as http:
        yield Web(http)


async def works(reply: Reply) -> None:
    await reply.text()


# --- a server over HTTP ---


async def test_a_request_of_a_client_is_one_request_to_the_server() -> None:
    async with server(plain(works)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()
        for id in range(5):
            assert text_of((await client.call(id=id)).json()) == "done"

        assert [request.method for request in made.requests] == ["POST"] * 7
        assert made.connections == 1


async def test_session_ids_and_versions_are_the_server_s_and_the_client_s() -> None:
    async with server(plain(works)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        response = await client.begin()
        await client.call()

        assert response.headers["mcp-session-id"] == "one"
        assert made.requests[-1].headers["mcp-session-id"] == "one"
        assert response.json()["result"] == INITIALIZED


@pytest.mark.parametrize("header", ["Authorization", "Cookie", "X-Api-Key", "Mcp-User"])
@pytest.mark.parametrize("is_batch", [False, True])
async def test_a_cached_answer_is_given_to_nobody_who_shows_the_server_other_credentials(
    header: str, is_batch: bool
) -> None:
    async def answer(reply: Reply) -> None:
        await reply.result({"content": [{"type": "text", "text": f"for {reply.request.headers[header.lower()]}"}]})

    with holdfast.open(":memory:", policies={"server": {"remote": {"read_only": True, "cache": 60}}}) as hf:
        async with server(answer) as made, gateway(remote(made.url), hf=hf) as address:
            call: object = frame("tools/call", name="mail")
            heard = []
            for who, trace in (("ann", "1"), ("bob", "2"), ("ann", "3")):
                async with web(address, "remote", **{header: who}, traceparent=trace) as client:
                    heard.append((await client.post([call] if is_batch else call)).text)

    assert [("for ann" in text, "for bob" in text) for text in heard] == [(True, False), (False, True), (True, False)]
    assert len(made.requests) == 2


async def test_authorization_goes_to_the_server_and_what_the_user_configured_wins() -> None:
    async with server(plain(works)) as made:
        entry = remote(made.url, **{"X-Key": "ours"})
        async with (
            gateway(entry) as address,
            web(address, "remote", Authorization="Bearer t", **{"X-Key": "theirs"}) as c,
        ):
            await c.begin()

        assert made.requests[0].headers["authorization"] == "Bearer t"
        assert made.requests[0].headers["x-key"] == "ours"


@pytest.mark.parametrize("method", ["tools/call", "tools/list", "initialize"])
async def test_a_401_goes_through_as_it_is(method: str) -> None:
    async def answer(reply: Reply) -> None:
        await reply.whole(401, b"who?", www_authenticate='Bearer resource_metadata="x"')

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        response = await client.post(frame(method, 1, name="work", arguments={}))

        assert (response.status_code, response.content) == (401, b"who?")
        assert response.headers["www-authenticate"] == 'Bearer resource_metadata="x"'


async def test_a_call_that_the_server_fails_is_answered_for_the_model_and_a_list_is_not() -> None:
    async def call(reply: Reply) -> None:
        await reply.whole(503, b"down", retry_after="1")

    async with server(plain(call)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()

        called = await client.call()
        assert (called.status_code, failure_of(called.json())["category"]) == (200, "service_unavailable")
        listed = await client.post(frame("tools/list"))
        assert (listed.status_code, listed.content, listed.headers["retry-after"]) == (503, b"down", "1")


async def test_an_error_of_the_server_keeps_its_status() -> None:
    async def call(reply: Reply) -> None:
        error = {"code": -32601, "message": "Method not found"}
        await reply.json({"jsonrpc": "2.0", "id": reply.request.frame["id"], "error": error}, 404)

    async with server(call) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        response = await client.call_modern("work")

        assert (response.status_code, response.json()["error"]["code"]) == (404, -32601)


async def test_a_server_that_cannot_be_reached_is_an_error_of_the_request() -> None:
    async with server(works) as made:
        url = made.url
    async with gateway(remote(url), LOCAL) as address:
        async with web(address, "remote") as client:
            response = await client.post(BEGIN)
            assert (response.status_code, response.json()["error"]["code"]) == (200, -32000)
        async with web(address, "local") as client:
            await client.begin()
            assert text_of((await client.call(a=1, b=2)).json()) == "3"
        async with httpx.AsyncClient() as http:
            states = {each["name"]: each["state"] for each in (await http.get(address)).json()["servers"]}
            assert states == {"remote": "failed", "local": "ready"}


async def test_a_call_whose_time_is_up_while_the_connection_is_made_was_not_made() -> None:
    hf = holdfast.open(":memory:", policies={"tool": {"remote.*": {"timeout": 0.05}}})
    async with silent() as (url, _), gateway(remote(url), hf=hf) as address, web(address, "remote") as client:
        answer = (await client.call_modern("work")).json()
    hf.close()

    assert failure_of(answer)["called"] is False
    assert "The tool was not called." in text_of(answer)


async def test_a_stream_goes_through_event_by_event_with_ids_and_retry() -> None:
    go = asyncio.Event()

    async def call(reply: Reply) -> None:
        await reply.stream("id: p\nretry: 700\ndata:", x_more="1")
        await reply.frame("n", method="notifications/message", params={"data": 1})
        await go.wait()
        await reply.answer()

    async with server(plain(call)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()
        async with client.stream("POST", frame("tools/call", 1, name="work")) as stream:
            assert stream.response.headers["content-type"] == "text/event-stream"
            assert stream.response.headers["x-more"] == "1"
            assert await stream.next() == Event(b"", "p", 700)
            assert (await stream.next()).id == "n"
            go.set()
            assert text_of(await stream.frame()) == "done"


async def test_a_stream_that_the_server_ends_is_taken_up_by_the_client() -> None:
    async def answer(reply: Reply) -> None:
        if reply.request.method == "GET":
            await reply.stream()
            await reply.frame("9", id=1, result={"content": [{"type": "text", "text": "late"}]})
            await reply.end()
        else:
            await plain(call)(reply)

    async def call(reply: Reply) -> None:
        await reply.stream("id: 7\nretry: 5\ndata:")
        await reply.end()

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()
        first = await client.call(id=1)
        assert first.content == b"id: 7\nretry: 5\ndata: \n\n"
        async with client.stream("GET", last_event_id="7") as stream:
            assert text_of(await stream.frame()) == "late"
        assert made.requests[-1].headers["last-event-id"] == "7"
        assert len(made.asked("tools/call")) == 1


async def test_a_stream_that_the_server_ends_again_and_again_is_taken_up_each_time() -> None:
    async def answer(reply: Reply) -> None:
        if reply.request.method != "GET":
            await plain(call)(reply)
        elif reply.request.headers["last-event-id"] == "7":
            await reply.stream("id: 8\ndata:")
            await reply.end()
        else:
            await reply.stream()
            await reply.frame("9", id=1, result={"content": [{"type": "text", "text": "late"}]})
            await reply.end()

    async def call(reply: Reply) -> None:
        await reply.stream("id: 7\ndata:")
        await reply.end()

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()
        await client.call(id=1)
        async with client.stream("GET", last_event_id="7") as stream:
            assert await stream.next() == Event(b"", "8")
        async with client.stream("GET", last_event_id="8") as stream:
            assert text_of(await stream.frame()) == "late"


async def test_a_second_attempt_to_resume_that_the_server_refuses_takes_nothing_from_the_first() -> None:
    go = asyncio.Event()

    async def answer(reply: Reply) -> None:
        if reply.request.method != "GET":
            await plain(call)(reply)
        elif go.is_set():
            await reply.whole(409)
        else:
            await reply.stream(": alive")
            await go.wait()
            await refused.wait()
            await reply.frame("8", id=1, result={"content": [{"type": "text", "text": "late"}]})
            await reply.end()

    async def call(reply: Reply) -> None:
        await reply.stream("id: 7\ndata:")
        await reply.end()

    refused = asyncio.Event()
    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()
        await client.call(id=1)
        async with client.stream("GET", last_event_id="7") as stream:
            go.set()
            async with client.stream("GET", last_event_id="7") as second:
                assert second.response.status_code == 409
            refused.set()

            assert text_of(await stream.frame()) == "late"


async def test_an_answer_that_was_lost_on_the_way_to_the_client_is_said_again() -> None:
    async def answer(reply: Reply) -> None:
        if reply.request.method == "GET":
            await reply.stream()
            await reply.frame("8", id=1, result={"content": []})
            await reply.end()
        else:
            await plain(call)(reply)

    async def call(reply: Reply) -> None:
        await reply.stream("id: 7\ndata:")
        await reply.frame("8", id=1, result={"content": []})
        await reply.end()

    with holdfast.open(":memory:", policies={}) as hf:
        async with server(answer) as made, gateway(remote(made.url), hf=hf) as url, web(url, "remote") as client:
            await client.begin()
            await client.call(id=1)
            for _ in range(2):
                async with client.stream("GET", last_event_id="7") as stream:
                    assert await stream.next() == Event(b'{"jsonrpc": "2.0", "id": 1, "result": {"content": []}}', "8")
        (run,) = hf.runs.list_runs()

    assert (run.tool_calls, run.tool_failures) == (1, 0)


async def test_a_stream_without_ids_that_ends_is_a_call_of_unknown_outcome() -> None:
    async def call(reply: Reply) -> None:
        await reply.stream()
        await reply.end()

    async with server(plain(call)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()
        async with client.stream("POST", frame("tools/call", 1, name="work")) as stream:
            assert failure_of(await stream.frame())["called"] is True


async def test_statuses_without_a_frame_go_through() -> None:
    async with server(plain(works)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()

        assert (await client.post(frame("notifications/roots/list_changed", None))).status_code == 202
        assert (await client.http.get("", headers=client.session)).status_code == 405
        assert (await client.http.delete("", headers=client.session)).status_code == 200


async def test_a_session_that_the_server_forgets_lives_on_behind_the_client_s() -> None:
    known = ["one"]

    async def answer(reply: Reply) -> None:
        request = reply.request
        if request.asks == "initialize":
            await reply.result(INITIALIZED, mcp_session_id=known[0])
        elif request.headers.get("mcp-session-id") != known[0]:
            await reply.whole(404)
        elif "id" in request.frame:
            await reply.text(request.headers["mcp-session-id"])
        else:
            await reply.whole(202)

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()
        known[0] = "two"

        answers = await asyncio.gather(*(client.call(id=id) for id in range(1, 9)))
        assert {text_of(answer.json()) for answer in answers} == {"two"}
        assert len(made.asked("initialize")) == 2


async def test_a_stream_that_is_refused_since_the_session_is_forgotten_begins_it_anew_as_any_request_does() -> None:
    known = ["one"]

    async def answer(reply: Reply) -> None:
        request = reply.request
        if request.asks == "initialize":
            both = {"application/json", "text/event-stream"} <= set(request.headers["accept"].split(", "))
            await (reply.result(INITIALIZED, mcp_session_id=known[0]) if both else reply.whole(406))
        elif request.headers.get("mcp-session-id") != known[0]:
            await reply.whole(404)
        elif request.method == "GET":
            await reply.stream()
            await reply.frame(method="notifications/message", params={})
        else:
            await reply.whole(202)

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()
        known[0] = "two"

        async with client.stream("GET", accept="text/event-stream") as stream:
            assert (await stream.frame())["method"] == "notifications/message"


async def test_a_session_that_nobody_knows_is_for_the_server_to_judge() -> None:
    async def answer(reply: Reply) -> None:
        if reply.request.headers.get("mcp-session-id") == "mine":
            await reply.text()
        else:
            await reply.whole(404, b"unknown")

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        client.session = {"mcp-session-id": "mine"}
        assert text_of((await client.call()).json()) == "done"
        client.session = {"mcp-session-id": "other"}
        unknown = await client.call()
        assert (unknown.status_code, unknown.content) == (404, b"unknown")


async def test_without_sessions_the_same_id_may_be_on_its_way_twice() -> None:
    both = asyncio.Event()
    count = 0

    async def answer(reply: Reply) -> None:
        nonlocal count
        count += 1
        if count == 2:
            both.set()
        await both.wait()
        await reply.text(reply.request.frame["params"]["arguments"]["who"])

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        answers = await asyncio.gather(client.call_modern("work", 1, who="a"), client.call_modern("work", 1, who="b"))

        assert sorted(text_of(each.json()) for each in answers) == ["a", "b"]
        assert made.requests[0].headers["mcp-name"] == "work"


@pytest.mark.parametrize(
    "answer", [{"result": {}}, {"error": {"code": -32601, "message": "no"}}, None], ids=["yes", "no", "none"]
)
async def test_a_request_whose_id_is_null_is_answered(answer: dict[str, object] | None) -> None:
    async def call(reply: Reply) -> None:
        await (reply.json({"jsonrpc": "2.0", "id": None, **answer}) if answer is not None else reply.whole(500))

    async with server(plain(call)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()

        response = await client.post({"jsonrpc": "2.0", "id": None, "method": "custom/do"})

        assert response.status_code == (200 if answer is not None else 500)
        assert answer is None or response.json() == {"jsonrpc": "2.0", "id": None, **answer}


async def test_what_is_no_frame_is_for_the_server_to_judge_within_its_session() -> None:
    async def answer(reply: Reply) -> None:
        if reply.request.body == b"{":
            await reply.whole(400, b"what?")
        else:
            await plain(works)(reply)

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()

        response = await client.http.post("", content=b"{", headers={**ACCEPT, **client.session})

        assert (response.status_code, response.content) == (400, b"what?")
        assert made.requests[-1].headers["mcp-session-id"] == "one"


async def test_a_batch_with_something_else_in_it_is_refused_before_any_of_it_is_done() -> None:
    async with server(plain(works)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()

        response = await client.post([frame("tools/call", 1, name="work"), 5])

        assert (response.status_code, response.json()["error"]["code"]) == (400, -32700)
        assert made.asked("tools/call") == []


@pytest.mark.parametrize("credential", ["authorization", "x-api-key", None])
async def test_without_sessions_nobody_cancels_what_another_asked_for_under_the_same_id(
    credential: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.mcp.http.session.GRACE", 0.01)
    both, told = asyncio.Event(), asyncio.Event()
    count = 0

    async def call(reply: Reply) -> None:
        nonlocal count
        count += 1
        if count == 2:
            both.set()
        await told.wait()
        await asyncio.sleep(0.05)  # longer than the grace
        await reply.text()

    answer = plain(call, session=None)
    headers = {credential: "Bearer x"} if credential else {}
    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        calls = [client.call(id=5), client.post(frame("tools/call", 5, name="work"), **headers)]
        asked = asyncio.gather(*calls)
        await both.wait()
        cancel = await client.post(frame("notifications/cancelled", None, requestId=5))
        told.set()
        mine, other = await asked

    assert cancel.status_code == 202
    assert text_of(other.json()) == "done"
    assert (mine.content == b"") is (credential is not None)


async def test_nothing_is_kept_of_requests_without_a_session_that_the_server_knows() -> None:
    async def answer(reply: Reply) -> None:
        await (reply.whole(404) if "mcp-session-id" in reply.request.headers else reply.text())

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        for id in range(5):
            await client.call_modern("work", id)
            await client.post(frame("tools/list", id), mcp_session_id=f"unheard-{id}")
            await client.post(frame("tools/call", id, name="work"), mcp_session_id=f"unknown-{id}")

        await nothing_is_kept()


async def test_without_sessions_a_client_that_leaves_cancels_its_request() -> None:
    gone = asyncio.Event()

    async def answer(reply: Reply) -> None:
        await reply.stream()
        await reply.frame(method="notifications/message", params={})
        await reply.gone.wait()
        gone.set()

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        body = frame("tools/call", 1, name="work", _meta=META)
        headers = {**ACCEPT, **modern_headers("tools/call", "work")}
        async with client.http.stream("POST", "", json=body, headers=headers) as response:
            await Stream(response).frame()

        await asyncio.wait_for(gone.wait(), 20)


async def test_without_sessions_a_client_that_leaves_while_it_waits_cancels_its_request() -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def answer(reply: Reply) -> None:
        asked.set()
        await reply.gone.wait()
        gone.set()

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        calling = asyncio.ensure_future(client.call_modern("work"))
        await asyncio.wait_for(asked.wait(), 20)
        calling.cancel()

        await asyncio.wait_for(gone.wait(), 20)


async def test_nothing_is_kept_of_a_client_that_leaves_before_the_server_has_taken_its_notification() -> None:
    asked, taken = asyncio.Event(), asyncio.Event()

    async def answer(reply: Reply) -> None:
        asked.set()
        await taken.wait()
        await reply.whole(202)

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        told = frame("notifications/told", None, _meta=META)
        telling = asyncio.ensure_future(client.post(told, **modern_headers("notifications/told")))
        await asyncio.wait_for(asked.wait(), 20)
        telling.cancel()
        await asyncio.wait({telling})
        taken.set()

        await nothing_is_kept()


async def nothing_is_kept() -> None:
    """Wait until all that was made for requests is gone."""
    async with asyncio.timeout(20):
        while any(type(thing) is Session for thing in gc.get_objects()):
            await asyncio.sleep(0.01)
            gc.collect()


@pytest.mark.parametrize("kind", ["remote", "local"])
async def test_a_client_that_reads_slowly_slows_its_server_down(kind: str) -> None:
    sent = 0

    async def call(reply: Reply) -> None:
        nonlocal sent
        await reply.stream()
        for _ in range(400):
            await reply.frame(method="notifications/message", params={"data": "x" * 100_000})
            sent += 1
        await reply.answer()

    async with server(plain(call)) as made, gateway(remote(made.url), LOCAL) as address, web(address, kind) as client:
        await client.begin()
        body = frame("tools/call", 1, name="flood", arguments={"url": made.url})
        async with client.stream("POST", body) as stream:
            before = -1
            while sent != before or not sent:  # all that lies between is filling up
                before = sent
                await asyncio.sleep(0.2)

            assert sent < 400
            while "result" not in await stream.frame():
                pass
        assert sent == 400


async def test_a_cookie_of_one_client_is_not_sent_for_another() -> None:
    async def answer(reply: Reply) -> None:
        await reply.text() if "id" not in reply.request.frame else await reply.result({}, set_cookie="a=b")

    async with server(answer) as made, gateway(remote(made.url)) as address:
        async with web(address, "remote") as client:
            assert (await client.post(BEGIN)).headers["set-cookie"] == "a=b"
        async with web(address, "remote") as client:
            await client.post(BEGIN)

        assert ["cookie" in request.headers for request in made.requests] == [False, False]


@pytest.mark.parametrize("session", ["one", None], ids=["session", "none"])
async def test_the_answer_to_a_request_that_its_client_cancels_ends(
    session: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.mcp.http.session.GRACE", 0.01)
    started = asyncio.Event()

    async def call(reply: Reply) -> None:
        started.set()
        await reply.gone.wait()

    answer = plain(call, session=session)
    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()
        calling = asyncio.ensure_future(client.call(id=5))
        await started.wait()
        cancel = await client.post(frame("notifications/cancelled", None, requestId=5))

        assert cancel.status_code == 202
        assert (await calling).content == b""
        assert made.asked("notifications/cancelled")[0].frame["params"]["requestId"] == 5


async def test_who_waits_for_an_answer_when_the_session_ends_is_told() -> None:
    asked = asyncio.Event()

    async def call(reply: Reply) -> None:
        asked.set()
        await reply.gone.wait()

    async with server(plain(call)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()

        waiting = asyncio.ensure_future(client.call(id=5))
        await asked.wait()
        await client.http.delete("", headers=client.session)
        answer = (await waiting).json()

    assert (answer["id"], answer["error"]["code"]) == (5, -32000)


@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
@pytest.mark.parametrize("session", ["one", None], ids=["session", "none"])
async def test_who_waits_for_an_answer_when_the_gateway_ends_is_told(session: str | None, method: str) -> None:
    asked = asyncio.Event()

    async def call(reply: Reply) -> None:
        asked.set()
        await reply.gone.wait()

    with holdfast.open(":memory:", policies={}) as hf:
        async with server(plain(call, session=session)) as made, AsyncExitStack() as stays:
            async with gateway(remote(made.url), hf=hf) as address:
                client = await stays.enter_async_context(web(address, "remote"))
                await client.begin()

                waiting = asyncio.ensure_future(client.post(frame(method, 5, name="work")))
                await asked.wait()
            answer = (await waiting).json()
        runs = hf.runs.list_runs()

    assert (answer["id"], answer["error"]["code"]) == (5, -32000)
    assert [run.active_calls for run in runs] == [{} for _ in runs]


@pytest.mark.parametrize("session", ["one", None], ids=["session", "none"])
async def test_who_cancels_one_request_of_a_batch_gets_the_answers_to_the_others(
    session: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.mcp.http.session.GRACE", 0)
    started, told = asyncio.Event(), asyncio.Event()

    async def answer(reply: Reply) -> None:
        if reply.request.body.startswith(b"["):
            started.set()
            await told.wait()
            await reply.stream()
            await reply.frame(id=2, result={"x": 1})
            await reply.end()
        else:
            await plain(works, session=session)(reply)
            if reply.request.body and reply.request.asks == "notifications/cancelled":
                told.set()

    async with server(answer) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()
        asking = asyncio.ensure_future(client.post([frame("x/y", 1), frame("x/z", 2)]))
        await started.wait()
        await client.post(frame("notifications/cancelled", None, requestId=1))

        assert b'"x": 1' in (await asking).content


async def test_an_id_that_comes_back_as_a_text_is_the_client_s_number() -> None:
    async def call(reply: Reply) -> None:
        await reply.json({"jsonrpc": "2.0", "id": str(reply.request.frame["id"]), "result": {"content": []}})

    async with server(plain(call)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()

        assert (await client.call(id=5)).json() == {"jsonrpc": "2.0", "id": 5, "result": {"content": []}}


async def test_an_answer_of_ten_megabytes_passes() -> None:
    async def call(reply: Reply) -> None:
        await reply.stream()
        await reply.answer("x" * 10_000_000)

    async with server(plain(call)) as made, gateway(remote(made.url)) as address, web(address, "remote") as client:
        await client.begin()
        async with client.stream("POST", frame("tools/call", 1, name="work")) as stream:
            assert len(text_of(await stream.frame())) == 10_000_000


# --- a stdio server ---


async def test_each_session_has_a_process_of_its_own_that_ends_with_it() -> None:
    async with gateway(LOCAL) as address, web(address, "local") as one, web(address, "local") as two:
        await one.begin()
        await two.begin()
        pids = [int(text_of((await each.call("pid")).json())) for each in (one, two)]
        ended = await one.http.delete("", headers=one.session)

        assert pids[0] != pids[1]
        assert ended.status_code == 204
        assert not alive(pids[0])
        assert alive(pids[1])
        assert (await one.call("pid")).status_code == 404
    assert not alive(pids[1])


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_process_that_dies_is_started_again_in_the_same_session() -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        await client.begin()
        died = (await client.call("die", 1)).json()
        again = (await client.call("add", 2, a=1, b=1)).json()

        assert failure_of(died)["called"] is True
        assert text_of(again) == "2"


async def test_who_waits_for_an_answer_when_the_session_of_a_process_ends_is_told() -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        await client.begin()
        call = frame("tools/call", 5, name="slow", _meta={"progressToken": "t"})

        async with client.stream("POST", call) as stream:
            assert (await stream.frame())["method"] == "notifications/progress"
            await client.http.delete("", headers=client.session)
            answer = await stream.frame()

        assert (answer["id"], answer["error"]["code"]) == (5, -32000)


async def test_a_process_that_cannot_be_started_is_listed_as_that_until_one_is_started(tmp_path: Path) -> None:
    program = tmp_path / "server"
    entry = ServerEntry(name="local", command=str(program))

    async def listed() -> Any:
        (server,) = (await get(address)).json()["servers"]
        return server["state"], server["last_error"] is not None

    async with gateway(entry) as address, web(address, "local") as client:
        assert await listed() == ("idle", False)
        assert "cannot be started" in (await client.begin()).text
        while await listed() == ("idle", False):
            pass
        assert await listed() == ("failed", True)
        program.write_text(f"#!/bin/sh\nexec {STDIO[0]} {STDIO[1]}")
        program.chmod(0o700)
        assert (await client.begin()).status_code == 200
        assert await listed() == ("ready", False)
        await client.http.delete("", headers=client.session)

        assert await listed() == ("idle", False)


async def test_an_answer_without_an_id_is_not_taken_for_that_to_a_request() -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        await client.begin()

        async with client.stream("POST", frame("anonymous", 7)) as stream:
            assert [(await stream.frame())["id"], (await stream.frame())["id"]] == [None, 7]


async def test_an_answer_that_comes_first_is_json_and_else_a_stream() -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        await client.begin()
        plain_ = await client.call(a=1, b=2)
        told = await client.call("log", 2)

        assert plain_.headers["content-type"] == "application/json"
        assert told.headers["content-type"] == "text/event-stream"
        assert b"notifications/message" in told.content
        assert b"logged" in told.content


async def test_a_server_asks_on_the_stream_of_the_request_and_is_answered_by_another() -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        await client.begin()
        async with client.stream("POST", frame("tools/call", 1, name="ask")) as stream:
            asked = await stream.frame()
            answer = await client.post({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": ["r"]}})
            assert answer.status_code == 202
            assert text_of(await stream.frame()) == "['r']"


async def test_what_belongs_to_no_request_goes_where_the_client_listens() -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        await client.begin()
        async with client.stream("GET") as stream:
            called = await client.call("log")
            assert called.headers["content-type"] == "application/json"
            assert (await stream.frame())["method"] == "notifications/message"
            assert (await client.http.get("", headers={**ACCEPT, **client.session})).status_code == 409


async def test_a_batch_of_an_older_version_is_answered_as_a_batch() -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        await client.begin()
        mixed = [frame("tools/call", 1, name="add", arguments={"a": 1, "b": 2}), frame("ping", 2)]

        assert [each["id"] for each in (await client.post([frame("ping", 5), frame("ping", 6)])).json()] == [5, 6]
        assert sorted(each["id"] for each in (await client.post(mixed)).json()) == [1, 2]


async def test_who_cancels_one_call_of_a_batch_gets_the_answers_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.mcp.http.session.GRACE", 0)
    async with gateway(LOCAL) as address, web(address, "local") as client:
        await client.begin()
        batch = [frame("tools/call", id, name="slow") for id in (1, 2)]
        async with client.stream("POST", batch) as stream:
            for _ in batch:
                assert (await stream.frame())["method"] == "notifications/progress"
            await client.post(frame("notifications/cancelled", None, requestId=1))
            await client.post(frame("release", 3, of=2))

            assert [text_of(answer) for answer in await stream.frame()] == ["released"]


async def test_a_late_answer_to_a_cancelled_call_of_a_batch_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.mcp.http.session.GRACE", 0)
    async with gateway(LOCAL) as address, web(address, "local") as client:
        await client.begin()
        batch = [frame("tools/call", id, name="slow") for id in (1, 2)]
        async with client.stream("POST", batch) as stream:
            for _ in batch:
                assert (await stream.frame())["method"] == "notifications/progress"
            await client.post(frame("notifications/cancelled", None, requestId=1))
            for id in (1, 2):
                await client.post(frame("release", 3, of=id))

            assert (await stream.frame())["id"] == 1
            assert [answer["id"] for answer in await stream.frame()] == [2]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (frame("tools/list"), {}, 400),
        (frame("tools/list"), {"mcp-session-id": "unknown"}, 404),
        (frame("tools/list"), {"mcp-protocol-version": "1999-01-01"}, 400),
        (frame("tools/list", _meta=META), {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}, 400),
        (frame("tools/list", _meta=META), {"mcp-protocol-version": "2026-07-28"}, 400),
        (frame("tools/list"), {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}, 400),
        (frame("tools/list", _meta=META), {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}, 404),
        ([], {"mcp-protocol-version": "2026-07-28"}, 400),
    ],
    ids=[
        "no-session", "unknown-session", "unknown-version", "other-method", "no-method", "no-meta", "no-such-method",
        "nothing",
    ],
)  # fmt: skip
async def test_a_request_that_cannot_be_is_refused(body: object, headers: dict[str, str], status: int) -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        await client.begin()
        session = client.session if headers == {"mcp-protocol-version": "1999-01-01"} else {}
        response = await client.http.post("", json=body, headers={**ACCEPT, **session, **headers})

        assert response.status_code == status
        assert "error" in response.json()


@pytest.mark.parametrize("body", [b"{", b"[%s]" % b",".join([b"{}"] * 1001)], ids=["half", "too-many"])
async def test_what_is_no_frame_is_refused(body: bytes) -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        response = await client.http.post("", content=body, headers=ACCEPT)

        assert (response.status_code, response.json()["error"]["code"]) == (400, -32700)


@pytest.mark.parametrize("kind", ["remote", "local"])
@pytest.mark.parametrize(
    "odd",
    [
        b'[{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": %s}}]',
        b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": %s, "y": NaN}}',
    ],
    ids=["batch", "number"],
)
async def test_a_long_body_must_be_plain_so_that_nobody_waits_until_it_is_read(odd: bytes, kind: str) -> None:
    async with server(plain(works)) as made, gateway(remote(made.url), LOCAL) as address, web(address, kind) as client:
        await client.begin()
        long, headers = b'"%s"' % (b"x" * 2**20), {**ACCEPT, **client.session}

        odd_ = await client.http.post("", content=odd % long, headers=headers)
        plain_ = await client.post(frame("ping", 1, x="x" * 2**20))

        assert (odd_.status_code, odd_.json()["error"]["code"]) == (400, -32700)
        assert plain_.status_code == 200


async def test_what_is_kept_for_a_client_that_does_not_listen_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_site, "MOST_KEPT", 3)
    with holdfast.open(":memory:", policies={}) as hf:
        site = ChildSite(hf, ProxiedServer(hf, "local"), lambda: ChildUpstream(Command(STDIO), hf.clock))

        async def kept(*sizes: int) -> list[int]:
            """The sizes of the frames that are kept, of those that are said."""
            client = ChildClient(site, "one", lambda: None)
            for size in sizes:
                client.send(Event(b"x" * size))
            exchange = Exchange("GET", [], {}, line := Line())
            exchange.due = None
            client.listen(exchange)
            await asyncio.sleep(0)
            return [len(event.data) for event in Parser().feed(line.data)]

        half = MOST_QUEUED // 2
        found = [await kept(1, 2, 3, 4), await kept(half, half, 7), await kept(1, 2 * half + 1), await kept(half, half)]
        await site.close()

    assert found == [[2, 3, 4], [half, 7], [], [half, half]]


async def test_a_client_that_listens_anew_in_the_moment_it_has_gone_is_heard() -> None:
    def getter() -> tuple[Exchange, Line]:
        exchange = Exchange("GET", [], {}, line := Line())
        exchange.due = None
        return exchange, line

    with holdfast.open(":memory:", policies={}) as hf:
        site = ChildSite(hf, ProxiedServer(hf, "local"), lambda: ChildUpstream(Command(STDIO), hf.clock))
        client, (old, _), (new, line) = ChildClient(site, "one", lambda: None), getter(), getter()
        client.listen(old)

        old.lost()
        client.listen(new)
        await asyncio.sleep(0)
        client.send(Event(b"news"))
        await asyncio.sleep(0)
        await site.close()

    assert b"news" in line.data


async def test_a_client_without_session_has_one_process_as_long_as_it_is_the_same() -> None:
    async with gateway(LOCAL) as address, web(address, "local") as one, web(address, "local", Authorization="x") as two:
        first, again, other = [text_of((await each.call_modern("pid")).json()) for each in (one, one, two)]

        assert first == again != other


async def process_of(site: ChildSite, who: str = "Bearer x") -> str:
    """The process that answers a client without session."""
    line, headers = Line(), {**modern_headers("tools/call", "pid"), "authorization": who}
    exchange = Exchange("POST", list(headers.items()), headers, line)
    exchange.body = json.dumps(frame("tools/call", 1, name="pid", arguments={}, _meta=META)).encode()
    if (work := site.post(exchange)) is not None:
        await work
    await asyncio.wait_for(line.ended.wait(), 20)
    return text_of(json.loads(line.data))


async def test_a_client_without_session_that_comes_while_its_process_ends_has_one_process_again() -> None:
    with holdfast.open(":memory:", policies={}) as hf:
        server = ProxiedServer(hf, "local")
        site = ChildSite(hf, server, lambda: ChildUpstream(Command(STDIO), hf.clock))
        first = await process_of(site)
        (conversation,) = site.alive
        ending = asyncio.ensure_future(conversation.end())
        await asyncio.sleep(0)  # it has begun to end, and no more

        second = await process_of(site)
        await ending
        third = await process_of(site)
        await site.close()

        assert first != second
        assert second == third


async def test_where_there_are_too_many_clients_that_come_at_once_each_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_site, "MOST_CLIENTS", 1)
    with holdfast.open(":memory:", policies={}) as hf:
        site = ChildSite(hf, ProxiedServer(hf, "local"), lambda: ChildUpstream(Command(STDIO), hf.clock))

        processes = await asyncio.gather(process_of(site, "Bearer ann"), process_of(site, "Bearer bob"))

        assert len({*processes}) == 2
        await site.close()


async def test_without_sessions_ids_and_tokens_are_the_client_s_own() -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        meta = {**META, "progressToken": "mine"}
        bodies = [frame("tools/call", "same", name=name, _meta=meta) for name in ("slow", "id")]
        headers = {**ACCEPT, **modern_headers("tools/call", "slow")}
        async with client.http.stream("POST", "", json=bodies[0], headers=headers) as response:
            told = await Stream(response).frame()
            second = await client.http.post("", json=bodies[1], headers={**headers, "mcp-name": "id"})

        assert told["params"]["progressToken"] == "mine"
        assert second.json()["id"] == "same"
        assert "same" not in text_of(second.json())
        assert "mine" not in text_of(second.json())


async def test_without_sessions_a_client_that_leaves_cancels_at_the_process() -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        body = frame("tools/call", 1, name="slow", _meta={**META, "progressToken": 5})
        headers = {**ACCEPT, **modern_headers("tools/call", "slow")}
        async with client.http.stream("POST", "", json=body, headers=headers) as response:
            await Stream(response).frame()
        cancelled: list[object] = []
        async with asyncio.timeout(20):
            while not cancelled:
                cancelled = json.loads(text_of((await client.call_modern("cancelled")).json()))

        assert len(cancelled) == 1


async def test_a_subscription_has_the_client_s_id() -> None:
    async with gateway(LOCAL) as address, web(address, "local") as client:
        body = frame("subscriptions/listen", "sub", notifications={}, _meta=META)
        headers = {**ACCEPT, **modern_headers("subscriptions/listen")}
        async with client.http.stream("POST", "", json=body, headers=headers) as response:
            told = await Stream(response).frame()

        assert told["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": "sub"}


# --- runs ---


async def test_a_session_is_a_run_with_its_calls() -> None:
    with holdfast.open(":memory:", policies={}) as hf:
        async with gateway(LOCAL, hf=hf) as address, web(address, "local") as client:
            await client.begin()
            await client.call(a=1, b=2)
            await client.http.delete("", headers=client.session)
        (run,) = hf.runs.list_runs()

        assert (run.session_id, str(run.status), run.tool_calls) == (client.session["mcp-session-id"], "completed", 1)


async def test_a_session_of_a_server_over_http_is_a_run_of_its_name() -> None:
    with holdfast.open(":memory:", policies={}) as hf:
        async with server(plain(works)) as made, gateway(remote(made.url), hf=hf) as url, web(url, "remote") as client:
            await client.begin()
            await client.call()
        (run,) = hf.runs.list_runs()

        assert (run.session_id, run.tool_calls, run.interrupted) == ("one", 1, True)


async def test_a_session_that_only_the_server_knows_is_one_run_with_all_its_calls_however_many_come_at_once() -> None:
    begun = 0
    all_begun = asyncio.Event()

    async def call(reply: Reply) -> None:
        nonlocal begun
        begun += 1
        if begun == 3:
            all_begun.set()
        await all_begun.wait()
        await reply.text()

    with holdfast.open(":memory:", policies={}) as hf:
        async with server(plain(call)) as made, gateway(remote(made.url), hf=hf) as url, web(url, "remote") as client:
            client.session = {"mcp-session-id": "one"}
            await asyncio.gather(*(client.call(id=id, n=id) for id in range(3)))
            await client.call(id=3)
        runs = hf.runs.list_runs()

    assert [(run.session_id, run.tool_calls) for run in runs] == [("one", 4)]


async def test_a_session_that_the_server_does_not_know_either_is_a_run_that_has_ended() -> None:
    async def call(reply: Reply) -> None:
        await reply.whole(404)

    with holdfast.open(":memory:", policies={}) as hf:
        async with server(plain(call)) as made, gateway(remote(made.url), hf=hf) as url, web(url, "remote") as client:
            client.session = {"mcp-session-id": "gone"}
            assert (await client.call()).status_code == 404
            assert (await client.call()).status_code == 404
        runs = hf.runs.list_runs()

    assert [(str(run.status), run.tool_failures) for run in runs] == [("completed", 1)] * 2


async def test_a_session_that_is_silent_for_half_an_hour_is_interrupted() -> None:
    clock = ManualClock()
    with holdfast.open(":memory:", policies={}, clock=clock) as hf:
        async with gateway(LOCAL, hf=hf) as address, web(address, "local") as client, web(address, "local") as later:
            await client.begin()
            pid = int(text_of((await client.call("pid")).json()))
            clock.advance(IDLE + 1)
            later.session = client.session  # on another connection, since the first was let go before
            while (response := await later.call("pid")).status_code == 200:
                pass
        assert not alive(pid)
        (run,) = hf.runs.list_runs()

        assert response.status_code == 404
        assert run.interrupted


async def test_of_too_many_sessions_the_one_goes_that_was_silent_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_site, "MOST_CLIENTS", 2)
    call = frame("tools/call", 5, name="slow", _meta={"progressToken": "t"})
    async with gateway(LOCAL) as address, web(address, "local") as busy, web(address, "local") as silent:
        await busy.begin()
        async with busy.stream("POST", call) as stream, web(address, "local") as last:
            assert (await stream.frame())["method"] == "notifications/progress"
            await silent.begin()
            pid = int(text_of((await silent.call("pid")).json()))

            await last.begin()

            async with asyncio.timeout(20):
                while (response := await silent.call("pid")).status_code == 200:
                    pass
            assert response.status_code == 404
            assert not alive(pid)
            assert [(await each.call("pid", 6)).status_code for each in (busy, last)] == [200, 200]


# --- who may ---


async def get(url: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient() as http:
        return await http.get(url, headers=headers)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:1"}, 200),
        ({"host": "[::1]:1"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "evil.example", "origin": "http://evil.example"}, 403),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-site", "origin": "http://localhost:3000"}, 200),
    ],
    ids=[
        *("none", "localhost", "six", "evil", "evil-suffix", "page", "evil-page", "null-page", "rebound"),
        *("typed", "evil-image", "neighbour-image", "neighbour-page"),
    ],
)
async def test_only_pages_and_names_of_this_machine_are_let_in(headers: dict[str, str], status: int) -> None:
    async with gateway(LOCAL) as address:
        assert (await get(address, **headers)).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Basic right"}, 401),
        ({"authorization": "Bearer right"}, 200),
        ({"x-holdfast-token": "right"}, 200),
        ({"x-holdfast-token": "wrong", "authorization": "Bearer right"}, 401),
    ],
    ids=["none", "wrong", "basic", "right", "beside", "wrong-beside"],
)
async def test_who_has_no_token_is_not_let_in(headers: dict[str, str], status: int) -> None:
    async with gateway(LOCAL, token="right") as address:
        assert (await get(address, **headers)).status_code == status
        assert (await get(f"{address}/healthz")).status_code == 200


async def test_our_token_is_not_shown_to_the_server() -> None:
    async with server(plain(works)) as made, gateway(remote(made.url), token="ours") as address:
        async with web(address, "remote", Authorization="Bearer ours") as client:
            await client.begin()
        async with web(address, "remote", Authorization="Bearer theirs", **{"X-Holdfast-Token": "ours"}) as client:
            await client.begin()

        assert "authorization" not in made.requests[0].headers
        assert made.requests[-1].headers["authorization"] == "Bearer theirs"
        assert all("x-holdfast-token" not in request.headers for request in made.requests)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_gateway_that_others_can_reach_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        Address(host, 1, None)

    assert Address(host, 1, "t").token == "t"


@pytest.mark.parametrize("token", ["schlüssel", " t", "a b", "t\n"])
def test_a_token_that_no_header_can_show_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="ASCII characters without spaces"):
        Address("127.0.0.1", 1, token)


# --- the command ---


@contextmanager
def serving(tmp_path: Path, *words: str, **servers: object) -> Iterator[subprocess.Popen[str]]:
    """The command, with a file that lists *servers*."""
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    command = [str(Path(sys.executable).with_name("holdfast")), "gateway", "--config", str(config), "--port", "0"]
    command += words
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_command_serves_what_a_client_s_file_lists_and_leaves_nobody_behind(tmp_path: Path) -> None:
    with serving(tmp_path, **{"50%41 local": {"command": STDIO[0], "args": [STDIO[1]]}}) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with httpx.Client(headers=ACCEPT, timeout=20) as http:
            begun = http.post(url, json=BEGIN)
            session = {"mcp-session-id": begun.headers["mcp-session-id"]}
            answer = http.post(url, json=frame("tools/call", 1, name="pid"), headers=session)
        pid = int(text_of(answer.json()))
        process.send_signal(signal.SIGTERM)

        assert process.wait(20) == 0
        assert not alive(pid)


def test_programs_get_the_name_and_the_address_of_each_server_as_json(tmp_path: Path) -> None:
    one, two = ({"command": STDIO[0], "args": [STDIO[1]]} for _ in range(2))
    with serving(tmp_path, "--json", one=one, two=two) as process:
        assert process.stdout is not None
        told = [json.loads(process.stdout.readline()) for _ in range(2)]

        answers = [httpx.post(each["url"], json=BEGIN, headers=ACCEPT, timeout=20).status_code for each in told]

    assert [each["server"] for each in told] == ["one", "two"]
    assert answers == [200, 200]


def test_servers_are_not_told_what_opens_the_doors_of_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "open-sesame")
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "runs.db"))
    monkeypatch.setenv("OTHER", "fine")
    own = {"HOLDFAST_REDIS": "redis://its-own"}
    with serving(tmp_path, local={"command": STDIO[0], "args": [STDIO[1]], "env": own}) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with httpx.Client(headers={**ACCEPT, "authorization": "Bearer open-sesame"}, timeout=20) as http:
            session = {"mcp-session-id": http.post(url, json=BEGIN).headers["mcp-session-id"]}
            said = {}
            for name in ("HOLDFAST_TOKEN", "HOLDFAST_STORE", "HOLDFAST_REDIS", "OTHER"):
                call = frame("tools/call", 1, name="variable", arguments={"name": name})
                said[name] = text_of(http.post(url, json=call, headers=session).json())

    assert said == {"HOLDFAST_TOKEN": "None", "HOLDFAST_STORE": "None", **own, "OTHER": "fine"}


def test_one_server_that_cannot_be_served_is_told_and_hides_none_of_the_others(tmp_path: Path) -> None:
    good = {"command": STDIO[0], "args": [STDIO[1]]}
    with serving(tmp_path, old={"type": "sse", "url": "http://x/sse"}, good=good, none={}) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with httpx.Client(headers=ACCEPT, timeout=20) as http:
            assert http.post(url, json=BEGIN).status_code == 200
            listed = http.get(url.removesuffix("good/mcp")).json()["servers"]
            refused = http.post(url.replace("good", "none"), json=BEGIN)
            deaf = http.get(url.replace("good", "old"))
        process.send_signal(signal.SIGTERM)
        said, complaints = process.communicate(timeout=20)

    assert url.endswith("/good/mcp")
    assert said == ""
    assert f"holdfast: not served: {tmp_path}/mcp.json: 'old': servers of type sse" in complaints
    assert f"holdfast: not served: {tmp_path}/mcp.json: 'none': has neither command nor url\n" in complaints
    assert [(server["name"], server["state"]) for server in listed] == [
        ("old", "failed"), ("good", "ready"), ("none", "failed"),
    ]  # fmt: skip
    assert refused.json()["error"] == {"code": -32000, "message": listed[2]["last_error"]}
    assert deaf.status_code == 502


def test_stderr_tells_which_server_has_said_what(tmp_path: Path) -> None:
    script = r"import os; os.write(2, b'one\xff \x1b[2J\n' + b'x' * 3000 + b'\nlast'); input()"
    servers = {name: {"command": sys.executable, "args": ["-c", script]} for name in ("a", "b\n")}
    with serving(tmp_path, **servers) as process:
        assert process.stdout is not None
        for _ in servers:
            url = process.stdout.readline().strip()
            httpx.post(url, json=BEGIN, headers=ACCEPT, timeout=20)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=20)[1].splitlines()

    for name in ("a", "b\\n"):
        own = [line.removeprefix(f"{name}: ") for line in said if line.startswith(f"{name}: ")]
        assert own[:3] == ["one\N{REPLACEMENT CHARACTER} \\x1b[2J", "x" * 1000 + "…(3000 characters)", "last"]
        assert "its last words: last" in own[3]


@pytest.mark.parametrize("name", ["a?b", "a b", "50%41", "@s/p", "ü#"])
async def test_the_address_that_is_listed_leads_to_the_server_of_any_name(name: str) -> None:
    entry = ServerEntry(name=name, transport="stdio", command=STDIO[0], args=(STDIO[1],))
    async with gateway(entry) as address, httpx.AsyncClient(headers=ACCEPT, timeout=20) as http:
        (listed,) = (await http.get(address)).json()["servers"]

        assert (await http.post(address + listed["path"], json=BEGIN)).status_code == 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "mcp.json"),
        ("{}", "lists no server"),
        ('{"mcpServers": {"a": {"type": "sse", "url": "http://x/sse"}}}', "sse"),
        ('{"mcpServers": {"a": {"url": "ftp://x"}}}', "http://"),
        ('{"mcpServers": {"a": {"url": "http://[::1"}}}', "mcp.json: 'a': [redacted]: Invalid IPv6 URL"),
    ],
    ids=["broken", "empty", "sse", "ftp", "bracket"],
)
def test_a_file_that_cannot_be_served_is_wrong_usage(tmp_path: Path, text: str, message: str) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(text)
    command = [str(Path(sys.executable).with_name("holdfast")), "gateway", "--config", str(config), "--port", "0"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)

    assert done.returncode == 2
    assert message in done.stderr
