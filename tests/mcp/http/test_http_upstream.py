"""A client on stdio, a server over HTTP: each thing that can go wrong has one outcome."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.mcp.http.clients import META, failure_of, frame, text_of, wrapped
from tests.mcp.http.servers import INITIALIZED, Reply, plain, server, silent

from holdfast.clock import SystemClock
from holdfast.mcp import frames
from holdfast.mcp.frames import Id
from holdfast.mcp.handshake import Handshake
from holdfast.mcp.http.endpoint import Endpoint
from holdfast.mcp.http.relay import Relay
from holdfast.mcp.http.session import HttpSession
from holdfast.mcp.http.upstream import MOST_RESUMES, RETRY, HttpUpstream, Post
from holdfast.mcp.wire import Channel, Condition, Event, ServerLost, Upstream
from holdfast.testing import ManualClock


async def works(reply: Reply) -> None:
    await reply.text()


# --- what goes well ---


async def test_a_call_is_one_request_on_the_wire_over_one_connection() -> None:
    async with server(plain(works)) as made, wrapped(made.url) as client:
        for id in range(1, 6):
            assert text_of(await client.call(id=id)) == "done"

        assert len(made.asked("tools/call")) == 5
        assert [request.method for request in made.requests] == ["POST", "GET", *["POST"] * 6]
        assert made.connections <= 2


async def test_frames_go_to_the_server_as_the_bytes_they_came_in() -> None:
    async with server(plain(works)) as made, wrapped(made.url) as client:
        data = b'{"jsonrpc": "2.0",  "id": 5, "method":"x/y", "params": {"z":1.0}, "more": null}'
        client.session.receive(data, client)
        await client.next()

        assert made.requests[-1].body == data


async def test_what_follows_a_notification_waits_until_that_is_taken() -> None:
    seen: list[str] = []
    go = asyncio.Event()

    async def answer(reply: Reply) -> None:
        if reply.request.body and reply.request.asks == "notifications/initialized":
            await go.wait()
        await plain(works)(reply)
        seen.append(reply.request.asks)

    async with server(answer) as made, wrapped(made.url) as client:
        client.say(id=1, method="tools/list")
        while not made.asked("notifications/initialized"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        go.set()
        await client.next()

        assert [method for method in seen if method] == ["initialize", "notifications/initialized", "tools/list"]


async def test_session_and_version_go_with_every_request_after_the_handshake() -> None:
    async with server(plain(works)) as made:
        async with wrapped(made.url) as client:
            await client.call()

        first, *rest = made.requests
        assert "mcp-session-id" not in first.headers
        assert "mcp-protocol-version" not in first.headers
        assert {request.headers["mcp-session-id"] for request in rest} == {"one"}
        assert {request.headers["mcp-protocol-version"] for request in rest} == {"2025-11-25"}


async def test_the_session_is_ended_with_the_client() -> None:
    async with server(plain(works)) as made:
        async with wrapped(made.url):
            pass

        assert made.requests[-1].method == "DELETE"


async def test_a_server_without_sessions_is_told_of_none() -> None:
    async with server(plain(works, session=None)) as made:
        async with wrapped(made.url) as client:
            await client.call()

        assert all("mcp-session-id" not in request.headers for request in made.requests)
        assert all(request.method != "DELETE" for request in made.requests)


async def test_headers_of_the_user_go_with_every_request() -> None:
    async with server(plain(works)) as made:
        async with wrapped(made.url, headers={"Authorization": "Bearer s3cret"}) as client:
            await client.call()

        assert {request.headers.get("authorization") for request in made.requests} == {"Bearer s3cret"}


async def test_a_stream_is_passed_on_event_by_event() -> None:
    go = asyncio.Event()

    async def call(reply: Reply) -> None:
        await reply.stream("id: 1\ndata:", ": alive")
        await reply.frame(method="notifications/message", params={"level": "info", "data": "half"})
        await go.wait()
        await reply.answer()

    async with server(plain(call)) as made, wrapped(made.url) as client:
        first = await client.call()
        go.set()

        assert first["method"] == "notifications/message"
        assert text_of(await client.next()) == "done"


async def test_requests_of_the_server_reach_the_client_and_its_answers_the_server() -> None:
    answered = asyncio.Event()

    async def answer(reply: Reply) -> None:
        if reply.request.method == "POST" and "result" in reply.request.frame:
            await reply.whole(202)
            answered.set()
        else:
            await plain(call)(reply)

    async def call(reply: Reply) -> None:
        await reply.stream()
        await reply.frame(id="q", method="roots/list")
        await answered.wait()
        await reply.answer()

    async with server(answer) as made, wrapped(made.url) as client:
        asked = await client.call()
        client.say(id=asked["id"], result={"roots": []})

        assert asked["method"] == "roots/list"
        assert text_of(await client.next()) == "done"


async def test_a_batch_is_one_request_and_one_answer() -> None:
    async def call(reply: Reply) -> None:
        await reply.json([{"jsonrpc": "2.0", "id": part["id"], "result": {}} for part in reply.request.frame])

    async def answer(reply: Reply) -> None:
        batch = reply.request.method == "POST" and reply.request.body.startswith(b"[")
        await (call(reply) if batch else plain(works)(reply))

    async with server(answer) as made, wrapped(made.url) as client:
        batch = [{"jsonrpc": "2.0", "id": id, "method": "ping"} for id in (5, 6)]
        client.session.receive(json.dumps(batch).encode(), client)

        assert [part["id"] for part in await client.next()] == [5, 6]
        assert sum(request.body.startswith(b"[") for request in made.requests) == 1


async def test_an_answer_of_ten_megabytes_passes() -> None:
    async def call(reply: Reply) -> None:
        if reply.request.frame["params"]["arguments"]["streams"]:
            await reply.stream()
            await reply.answer("x" * 10_000_000)
        else:
            await reply.text("x" * 10_000_000)

    async with server(plain(call)) as made, wrapped(made.url) as client:
        assert len(text_of(await client.call(id=1, streams=False))) == 10_000_000
        assert len(text_of(await client.call(id=2, streams=True))) == 10_000_000


async def test_an_answer_on_many_lines_becomes_one_line() -> None:
    async def call(reply: Reply) -> None:
        frame = {"jsonrpc": "2.0", "id": reply.request.frame["id"], "result": {"content": [], "a": "b\nc"}}
        await reply.whole(200, json.dumps(frame, indent=2).encode(), content_type="application/json")

    async with server(plain(call)) as made, wrapped(made.url) as client:
        assert (await client.call())["result"]["a"] == "b\nc"


async def test_a_client_that_takes_no_more_stops_the_reading() -> None:
    sent = 0

    async def call(reply: Reply) -> None:
        nonlocal sent
        await reply.stream()
        for _ in range(400):
            await reply.frame(method="notifications/message", params={"data": "x" * 100_000})
            sent += 1
        await reply.answer()

    async with server(plain(call)) as made, wrapped(made.url) as client:
        await client.call()
        client.session.upstream.hold(True)
        before = -1
        while sent != before:  # the pipes between are filling up
            before = sent
            await asyncio.sleep(0.2)

        assert sent < 400
        client.session.upstream.hold(False)
        while "result" not in await client.next():
            pass
        assert sent == 400


# --- sessions ---


def forgetful(*, status: int = 404, forgets_for: int = 1, plainly: bool = False) -> Any:
    """A server that forgets its first session after the handshake."""
    sessions: list[str] = []

    async def answer(reply: Reply) -> None:
        request = reply.request
        if request.method != "POST":
            await reply.whole(405)
        elif request.asks == "initialize":
            sessions.append(f"s{len(sessions)}")
            await reply.result(INITIALIZED, mcp_session_id=sessions[-1])
        elif "id" not in request.frame:
            await reply.whole(202)
        elif request.headers["mcp-session-id"] in sessions[forgets_for:]:
            await reply.text()
        elif plainly:
            await reply.whole(status, b"Bad Request: No valid session ID provided")
        else:
            error = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
            await reply.json({"jsonrpc": "2.0", "id": request.frame["id"], "error": error}, status)

    return answer


@pytest.mark.parametrize("plainly", [False, True])
@pytest.mark.parametrize("status", [404, 400])
async def test_a_session_that_the_server_has_forgotten_is_begun_anew(status: int, plainly: bool) -> None:
    async with server(forgetful(status=status, plainly=plainly)) as made, wrapped(made.url) as client:
        assert text_of(await client.call()) == "done"

        assert len(made.asked("initialize")) == 2
        assert len(made.asked("notifications/initialized")) == 2
        assert len(made.asked("tools/call")) == 2
        assert client.session.upstream.condition.restarts == 1


async def test_a_session_that_is_forgotten_again_is_begun_anew_again() -> None:
    current = "s0"

    async def answer(reply: Reply) -> None:
        request = reply.request
        if request.method != "POST":
            await reply.whole(405)
        elif request.asks == "initialize":
            await reply.result(INITIALIZED, mcp_session_id=current)
        elif request.headers["mcp-session-id"] != current:
            await reply.whole(404)
        else:
            await (reply.text(current) if "id" in request.frame else reply.whole(202))

    async with server(answer) as made, wrapped(made.url) as client:
        for current in ("s1", "s2"):
            assert text_of(await client.call()) == current


async def test_a_session_that_is_forgotten_before_the_end_of_the_handshake_is_told_that_end_once() -> None:
    async def answer(reply: Reply) -> None:
        request = reply.request
        if request.method != "POST":
            await reply.whole(405)
        elif request.asks == "initialize":
            await reply.result(INITIALIZED, mcp_session_id=f"s{len(made.asked('initialize'))}")
        elif request.headers["mcp-session-id"] == "s1":
            await reply.whole(404)
        else:
            await (reply.text() if "id" in request.frame else reply.whole(202))

    async with server(answer) as made, wrapped(made.url) as client:
        assert text_of(await client.call()) == "done"

        told = made.asked("notifications/initialized")
        assert [request.headers["mcp-session-id"] for request in told] == ["s1", "s2"]


async def test_it_is_begun_anew_once_for_all_who_notice() -> None:
    async with server(forgetful()) as made, wrapped(made.url) as client:
        for id in range(1, 51):
            client.say(id=id, method="tools/call", params={"name": "work", "arguments": {"n": id}})
        answers = [await client.next() for _ in range(50)]

        assert {text_of(answer) for answer in answers} == {"done"}
        assert {answer["id"] for answer in answers} == set(range(1, 51))
        assert len(made.asked("initialize")) == 2


async def test_who_notices_late_does_not_begin_another_session() -> None:
    renewed = asyncio.Event()

    async def answer(reply: Reply) -> None:
        request = reply.request
        if request.body and request.asks == "tools/call":
            if request.headers["mcp-session-id"] == "s1":
                renewed.set()
            elif request.frame["params"]["name"] == "late":
                await renewed.wait()
        await forgets(reply)

    forgets = forgetful()
    async with server(answer) as made, wrapped(made.url) as client:
        client.say(id=1, method="tools/call", params={"name": "late"})
        client.say(id=2, method="tools/call", params={"name": "early"})

        assert [text_of(await client.next()) for _ in range(2)] == ["done", "done"]
        assert len(made.asked("initialize")) == 2


async def test_who_notices_while_a_session_is_begun_anew_waits_until_the_server_was_told_all() -> None:
    told, goes_on = asyncio.Event(), asyncio.Event()

    async def answer(reply: Reply) -> None:
        if reply.request.asks == "notifications/initialized":
            told.set()
            await goes_on.wait()
        await plain(works, session="new")(reply)

    async with server(answer) as made:
        endpoint = Endpoint(made.url)
        session = HttpSession(endpoint, Condition(SystemClock(), "http", made.url, "ready"), "old")
        for said in (frame("initialize", 0), frame("notifications/initialized", None)):
            data = json.dumps(said).encode()
            session.handshake.note(frames.head(data), data)
        session.handshake.answered(frames.head(json.dumps({"id": 0, "result": INITIALIZED}).encode()))

        first = asyncio.ensure_future(session.renew("old", ServerLost("forgotten"), {}))
        await asyncio.wait_for(told.wait(), 20)
        second = asyncio.ensure_future(session.renew("old", ServerLost("forgotten"), {}))
        await asyncio.sleep(0)
        waits = not second.done()
        goes_on.set()
        await asyncio.gather(first, second)
        await endpoint.close()

        assert session.id == "new"
        assert waits
        assert len(made.asked("initialize")) == 1


async def test_a_new_session_has_a_stream_of_its_own() -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    forgets = forgetful()

    async def answer(reply: Reply) -> None:
        if reply.request.method != "GET":
            await forgets(reply)
            return
        heard.put_nowait(reply.request.headers["mcp-session-id"])
        await reply.stream()
        await reply.gone.wait()

    async with server(answer) as made, wrapped(made.url) as client:
        first = await asyncio.wait_for(heard.get(), 20)
        await client.call()

        assert (first, await asyncio.wait_for(heard.get(), 20)) == ("s0", "s1")


async def test_a_stream_that_is_refused_since_the_session_is_forgotten_begins_it_anew() -> None:
    forgets = forgetful()
    gets: list[str] = []

    async def answer(reply: Reply) -> None:
        if reply.request.method != "GET":
            await forgets(reply)
            return
        gets.append(reply.request.headers["mcp-session-id"])
        if gets == ["s0"]:
            await reply.stream("retry: 1")
            await reply.end()
        elif gets[-1] == "s0":
            await reply.whole(400, b"Bad Request: No valid session ID provided")
        else:
            await reply.stream()
            await reply.frame(method="notifications/message", params={"data": "heard"})
            await reply.gone.wait()

    async with server(answer) as made, wrapped(made.url) as client:
        assert (await client.next())["params"]["data"] == "heard"

        assert gets == ["s0", "s0", "s1"]


@pytest.mark.parametrize(("status", "said"), [(404, b"Not Found"), (400, b"no stream in this session")])
async def test_a_server_without_a_stream_is_not_taken_for_one_that_has_forgotten_the_session(
    status: int, said: bytes
) -> None:
    async def answer(reply: Reply) -> None:
        await (reply.whole(status, said) if reply.request.method == "GET" else plain(works)(reply))

    async with server(answer) as made, wrapped(made.url) as client:
        for id in range(1, 6):
            await client.call(id=id)

        assert len(made.asked("initialize")) == 1


async def test_a_server_that_forgets_every_session_is_not_asked_for_ever() -> None:
    async with server(forgetful(forgets_for=99)) as made, wrapped(made.url) as client:
        assert failure_of(await client.call())["kind"] == "ServerLost"

        assert len(made.asked("tools/call")) == 2


def begins_anew(begin: Callable[[Reply], Awaitable[object]]) -> Any:
    """Forgets the session at the first call, and begins the next one by *begin*."""
    forgets = forgetful()
    asked: list[str] = []

    async def answer(reply: Reply) -> None:
        asks = reply.request.asks
        asked.append(asks)
        if asks == "initialize" and "tools/call" in asked:
            await begin(reply)
        elif reply.request.headers.get("mcp-session-id") == "s1" and "id" in reply.request.frame:
            await reply.text()
        else:
            await forgets(reply)

    return answer


async def test_a_session_is_begun_anew_with_the_answer_though_its_stream_goes_on() -> None:
    async def begin(reply: Reply) -> None:
        await reply.stream(mcp_session_id="s1")
        await reply.frame(id=reply.request.frame["id"], result=INITIALIZED)
        await reply.gone.wait()
        reply.keeps = False

    async with server(begins_anew(begin)) as made, wrapped(made.url) as client:
        assert text_of(await client.call()) == "done"


async def test_a_server_that_does_not_begin_another_session_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.mcp.http.session.PATIENCE", 0.01)

    async def answer(reply: Reply) -> None:
        if reply.request.body and reply.request.asks == "initialize" and made.asked("resources/list"):
            await reply.gone.wait()
            reply.keeps = False
        else:
            await forgets(reply)

    forgets = forgetful()
    async with server(answer) as made, wrapped(made.url) as client:
        assert "did not begin another" in (await client.ask("resources/list"))["error"]["message"]


async def refuses(reply: Reply) -> None:
    error = {"code": -32000, "message": "no more"}
    await reply.json({"jsonrpc": "2.0", "id": reply.request.frame["id"], "error": error})


async def fails(reply: Reply) -> None:
    await reply.whole(500, b"down")


async def babbles(reply: Reply) -> None:
    await reply.whole(200, b"{", content_type="application/json")


@pytest.mark.parametrize(
    ("begin", "why"),
    [
        (refuses, "gives no other"),
        (fails, "answered with HTTP status 500"),
        (babbles, "gave an answer that is no frame"),
    ],
)
async def test_a_call_for_which_no_session_can_be_begun_anew_was_not_made(
    begin: Callable[[Reply], Awaitable[object]], why: str
) -> None:
    async with server(begins_anew(begin)) as made, wrapped(made.url) as client:
        answer = await client.call()

        assert why in text_of(answer)
        assert failure_of(answer)["called"] is False


@pytest.mark.parametrize(("method", "times"), [("notifications/cancelled", 1), ("notifications/told", 2)])
async def test_what_is_said_in_a_session_that_is_forgotten_is_said_again_unless_it_is_of_that_one(
    method: str, times: int
) -> None:
    async def answer(reply: Reply) -> None:
        request = reply.request
        if request.asks == method and request.headers["mcp-session-id"] == "s0":
            await reply.whole(404)
        else:
            await forgets(reply)

    forgets = forgetful()
    async with server(answer) as made, wrapped(made.url) as client:
        client.say(method=method, params={"requestId": 77})

        assert text_of(await client.call()) == "done"
        assert (len(made.asked(method)), len(made.asked("initialize"))) == (times, 2)


async def test_a_null_error_beside_the_answer_to_a_new_handshake_is_no_refusal() -> None:
    async def begin(reply: Reply) -> None:
        frame = {"jsonrpc": "2.0", "id": reply.request.frame["id"], "result": INITIALIZED, "error": None}
        await reply.json(frame, mcp_session_id="s1")

    async with server(begins_anew(begin)) as made, wrapped(made.url) as client:
        assert text_of(await client.call()) == "done"


async def test_level_and_subscriptions_are_restored_in_a_new_session() -> None:
    async def answer(reply: Reply) -> None:
        request = reply.request
        if request.method == "POST" and request.asks == "initialize":
            await reply.result(INITIALIZED, mcp_session_id=f"s{len(made.asked('initialize'))}")
        elif request.method == "POST" and request.asks == "tools/call" and request.headers["mcp-session-id"] == "s1":
            await reply.whole(404)
        else:
            await plain(works)(reply)

    async with server(answer) as made, wrapped(made.url) as client:
        await client.ask("logging/setLevel", level="debug")
        await client.ask("resources/subscribe", uri="a:1")
        await client.call()

        posts = [request for request in made.requests if request.method == "POST"]
        second = [request.asks for request in posts if request.headers.get("mcp-session-id") == "s2"]
        assert second == ["notifications/initialized", "logging/setLevel", "resources/subscribe", "tools/call"]


# --- streams that break ---


async def test_a_stream_that_ends_before_the_answer_is_taken_up_where_it_ended() -> None:
    async def answer(reply: Reply) -> None:
        if reply.request.method == "GET" and "last-event-id" in reply.request.headers:
            await reply.stream()
            await reply.frame("8", id=9, result={"content": [{"type": "text", "text": "late"}]})
            await reply.end()
        else:
            await plain(call)(reply)

    async def call(reply: Reply) -> None:
        await reply.stream("id: 7\nretry: 5\ndata:")
        await reply.end()

    async with server(answer) as made, wrapped(made.url) as client:
        assert text_of(await client.call()) == "late"

        resumed = [request for request in made.requests if request.headers.get("last-event-id") == "7"]
        assert [request.method for request in resumed] == ["GET"]
        assert len(made.asked("tools/call")) == 1


async def end_late(reply: Reply) -> None:
    """Answer the call 9 on a stream that was taken up again."""
    await reply.stream()
    await reply.frame(id=9, result={"content": [{"type": "text", "text": "late"}]})
    await reply.end()


async def test_a_stream_is_taken_up_after_the_last_place_that_it_named() -> None:
    async def answer(reply: Reply) -> None:
        if reply.request.headers.get("last-event-id") == "7":
            await end_late(reply)
        else:
            await plain(call)(reply)

    async def call(reply: Reply) -> None:
        await reply.stream("id: 7\ndata:")
        await reply.frame(method="notifications/message", params={})
        await reply.end()

    clock = ManualClock()
    async with server(answer) as made, wrapped(made.url, clock=clock) as client:
        assert (await client.call())["method"] == "notifications/message"
        assert text_of(await client.next()) == "late"

        assert clock.slept == [RETRY]


async def test_a_stream_that_brings_something_each_time_is_taken_up_any_number_of_times() -> None:
    async def answer(reply: Reply) -> None:
        place = int(reply.request.headers.get("last-event-id", 0))
        if not place and reply.request.method == "GET":
            await plain(works)(reply)
        elif place > 2 * MOST_RESUMES:
            await end_late(reply)
        elif place or reply.request.asks == "tools/call":
            await reply.stream(f"id: {place + 1}\ndata:")
            await reply.end()
        else:
            await plain(works)(reply)

    async with server(answer) as made, wrapped(made.url, clock=ManualClock()) as client:
        assert text_of(await client.call()) == "late"


async def test_a_stream_that_is_reset_is_taken_up_where_it_broke() -> None:
    seen = asyncio.Event()

    async def answer(reply: Reply) -> None:
        if reply.request.headers.get("last-event-id") == "7":
            await end_late(reply)
        else:
            await plain(call)(reply)

    async def call(reply: Reply) -> None:
        await reply.stream("retry: 5")
        await reply.frame("7", method="notifications/message", params={})
        await seen.wait()
        reply.reset()

    async with server(answer) as made, wrapped(made.url) as client:
        assert (await client.call())["method"] == "notifications/message"
        seen.set()

        assert text_of(await client.next()) == "late"


async def test_a_stream_that_cannot_be_taken_up_is_a_call_of_unknown_outcome() -> None:
    async def call(reply: Reply) -> None:
        await reply.stream(": alive")
        await reply.end()

    async with server(plain(call)) as made, wrapped(made.url) as client:
        answer = await client.call()

        assert failure_of(answer) == {"kind": "ServerLost", "category": "network", "called": True}
        assert "outcome is unknown" in text_of(answer)
        assert len(made.asked("tools/call")) == 1


async def test_a_stream_that_may_not_be_taken_up_is_a_call_of_unknown_outcome() -> None:
    async def call(reply: Reply) -> None:
        await reply.stream("id: 7\nretry: 5\ndata:")
        await reply.end()

    async with server(plain(call, session=None)) as made, wrapped(made.url) as client:
        answer = await client.call()

        assert "HTTP status 405" in text_of(answer)
        assert failure_of(answer)["called"] is True


async def test_a_stream_that_brings_nothing_is_not_taken_up_for_ever() -> None:
    async def answer(reply: Reply) -> None:
        if reply.request.method == "GET" and "last-event-id" in reply.request.headers:
            await reply.stream()
            await reply.end()
        else:
            await plain(call)(reply)

    async def call(reply: Reply) -> None:
        await reply.stream("id: 7\nretry: 1\ndata:")
        await reply.end()

    async with server(answer) as made, wrapped(made.url) as client:
        assert failure_of(await client.call())["called"] is True

        assert sum("last-event-id" in request.headers for request in made.requests) < 10


async def test_what_belongs_to_no_request_comes_by_a_stream_that_is_taken_up_again() -> None:
    streams = 0

    async def answer(reply: Reply) -> None:
        nonlocal streams
        if reply.request.method != "GET":
            await plain(works)(reply)
            return
        streams += 1
        await reply.stream("retry: 1")
        await reply.frame(f"e{streams}", method="notifications/message", params={"data": streams})
        if streams < 3:
            await reply.end()
        else:
            await reply.gone.wait()

    async with server(answer) as made, wrapped(made.url) as client:
        told = [(await client.next())["params"]["data"] for _ in range(3)]

        assert told == [1, 2, 3]
        gets = [request for request in made.requests if request.method == "GET"]
        assert [request.headers.get("last-event-id") for request in gets] == [None, "e1", "e2"]


def troubled(refusals: int, first: str) -> Any:
    """A server whose stream says *first* and ends, is refused for a while, and then tells something."""
    gets = 0

    async def answer(reply: Reply) -> None:
        nonlocal gets
        if reply.request.method != "GET":
            await plain(works)(reply)
            return
        gets += 1
        if gets == 1:
            await reply.stream(first)
            await reply.end()
        elif gets < 2 + refusals:
            await reply.whole(503)
        else:
            await reply.stream()
            await reply.frame(method="notifications/message", params={"data": "heard"})
            await reply.gone.wait()

    return answer


async def test_a_stream_is_taken_up_again_however_often_that_has_failed() -> None:
    clock = ManualClock()

    async def pass_time() -> None:
        while True:
            clock.advance(30.0)
            await asyncio.sleep(0)

    async with server(troubled(1100, "retry: 1")) as made, wrapped(made.url, clock=clock) as client:
        time = asyncio.ensure_future(pass_time())

        assert (await client.next())["params"]["data"] == "heard"

        assert max(clock.slept) <= 30.0
        time.cancel()


async def test_a_server_that_wants_no_pause_is_not_asked_without_one() -> None:
    clock = ManualClock()
    async with server(troubled(3, "retry: 0")) as made, wrapped(made.url, clock=clock) as client:
        await client.next()

        assert min(clock.slept) >= 0.08
        assert clock.slept == sorted(clock.slept)


async def test_a_pause_of_days_that_a_server_wants_is_one_of_minutes() -> None:
    clock = ManualClock()
    async with server(troubled(0, "retry: 999999999")) as made, wrapped(made.url, clock=clock) as client:
        await client.next()

        assert max(clock.slept) <= 300.0


# --- trouble ---


async def test_a_server_that_cannot_be_reached_was_not_called() -> None:
    async with server(works) as made:
        url = made.url
    async with wrapped(url, begins=False) as client:
        assert failure_of(await client.call()) == {"kind": "ServerLost", "category": "network", "called": False}

        answer = await client.ask("tools/list")
        assert answer["error"]["code"] == -32000
        assert "cannot be reached" in answer["error"]["message"]
        assert client.session.upstream.condition.state == "failed"


async def test_a_connection_that_is_reset_is_a_call_of_unknown_outcome() -> None:
    async def call(reply: Reply) -> None:
        reply.reset()

    async with server(plain(call)) as made, wrapped(made.url) as client:
        assert failure_of(await client.call()) == {"kind": "ServerLost", "category": "network", "called": True}
        assert len(made.asked("tools/call")) == 1


@pytest.mark.parametrize(
    ("status", "category"),
    [
        (401, "authentication"),
        (403, "permission_denied"),
        (429, "rate_limit"),
        (500, "service_unavailable"),
        (307, "execution_error"),
    ],
)
async def test_a_status_that_says_no_is_a_failure_of_its_kind(status: int, category: str) -> None:
    async def call(reply: Reply) -> None:
        await reply.whole(status, b"no", location="http://elsewhere.example/mcp")

    async with server(plain(call)) as made, wrapped(made.url) as client:
        answer = await client.call()

        assert failure_of(answer)["category"] == category
        assert f"HTTP status {status}" in text_of(answer)


@pytest.mark.parametrize(("status", "called"), [(401, False), (404, False), (307, False), (408, True), (502, True)])
async def test_a_server_that_refuses_a_call_has_not_called_its_tool(status: int, called: bool) -> None:
    async def call(reply: Reply) -> None:
        await reply.whole(status, b"no", location="http://elsewhere.example/mcp")

    async with server(plain(call, session=None)) as made, wrapped(made.url) as client:
        answer = await client.call()

        assert failure_of(answer)["called"] is called
        assert ("outcome is unknown" in text_of(answer)) is called


async def test_the_model_is_told_how_long_a_429_asks_it_to_wait() -> None:
    async def call(reply: Reply) -> None:
        await reply.whole(429, b"slow down", retry_after="7")

    async with server(plain(call)) as made, wrapped(made.url) as client:
        answer = await client.call()

        assert failure_of(answer) == {
            "kind": "ServerLost", "category": "rate_limit", "called": False, "retry_after_ms": 7000,
        }  # fmt: skip
        assert "429" in text_of(answer)
        assert "a pause of 7 s. The tool was not called." in text_of(answer)


async def test_a_call_waits_as_long_as_a_429_asks_for() -> None:
    statuses = iter([429, 200])

    async def call(reply: Reply) -> None:
        await (reply.text() if next(statuses) == 200 else reply.whole(429, retry_after="0.05"))

    policies = {"tool": {"server.*": {"read_only": True}}}
    async with server(plain(call)) as made, wrapped(made.url, policies=policies) as client:
        assert text_of(await client.call()) == "done"
        assert len(made.asked("tools/call")) == 2


@pytest.mark.parametrize("status", [200, 400, 404, 500])
async def test_an_error_of_the_servers_own_goes_to_the_client_whatever_the_status(status: int) -> None:
    async def call(reply: Reply) -> None:
        error = {"code": -32602, "message": "no such tool", "data": {"a": 1}}
        await reply.json({"jsonrpc": "2.0", "id": 9, "error": error}, status)

    async with server(plain(call, session=None)) as made, wrapped(made.url) as client:
        assert (await client.call())["error"] == {"code": -32602, "message": "no such tool", "data": {"a": 1}}


async def test_an_error_that_names_no_request_is_for_the_one_it_answers() -> None:
    async def call(reply: Reply) -> None:
        await reply.json({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no"}}, 400)

    async with server(plain(call)) as made, wrapped(made.url) as client:
        answer = await client.ask("x/y", 4)

        assert (answer["id"], answer["error"]["message"]) == (4, "no")


@pytest.mark.parametrize(
    ("status", "category"),
    [(401, "authentication"), (403, "permission_denied"), (429, "rate_limit"), (503, "service_unavailable")],
)
async def test_an_error_that_names_no_request_says_less_than_a_status_that_says_why(status: int, category: str) -> None:
    async def call(reply: Reply) -> None:
        await reply.json({"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "no"}}, status)

    async with server(plain(call)) as made, wrapped(made.url) as client:
        assert failure_of(await client.call())["category"] == category


async def test_an_error_on_many_lines_that_names_no_request_becomes_one_line() -> None:
    async def call(reply: Reply) -> None:
        frame = {"jsonrpc": "2.0", "error": {"code": -32602, "message": "no"}, "id": None}
        await reply.whole(400, json.dumps(frame, indent=2).encode(), content_type="application/json")

    async with server(plain(call)) as made, wrapped(made.url) as client:
        assert (await client.ask("x/y", 4))["error"]["message"] == "no"


@pytest.mark.parametrize("streams", [False, True])
async def test_an_id_that_comes_back_as_a_text_is_the_client_s_number(streams: bool) -> None:
    async def call(reply: Reply) -> None:
        frame = {"id": str(reply.request.frame["id"]), "result": {"content": [{"type": "text", "text": "done"}]}}
        if streams:
            await reply.stream()
            await reply.frame(**frame)
            await reply.end()
        else:
            await reply.json({"jsonrpc": "2.0", **frame})

    async with server(plain(call)) as made, wrapped(made.url) as client:
        answer = await client.call(id=9)

        assert (answer["id"], text_of(answer)) == (9, "done")
        assert (await client.ask("x/y", 10))["id"] == 10
        assert client.session.upstream.condition.last_error is None


@pytest.mark.parametrize(
    "body",
    [b"garbage", b"", b"[]", b'{"jsonrpc":"2.0","id":"other","result":{}}'],
    ids=["garbage", "empty", "none", "other"],
)
async def test_an_answer_that_is_none_to_the_request_is_a_call_of_unknown_outcome(body: bytes) -> None:
    async def call(reply: Reply) -> None:
        await reply.whole(200, body, content_type="application/json")

    async with server(plain(call)) as made, wrapped(made.url) as client:
        assert failure_of(await client.call())["called"] is True


@pytest.mark.parametrize(
    "make",
    [
        lambda endpoint: HttpUpstream(endpoint, SystemClock()),
        lambda endpoint: Relay(endpoint, Condition(SystemClock(), "http", "", "idle"), set()),
    ],
    ids=["wrap", "gateway"],
)
async def test_a_request_whose_answer_cannot_be_handed_on_has_failed(make: Callable[[Endpoint], Upstream]) -> None:
    failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    class Clumsy:
        def arrive(self, event: Event, channel: Channel | None = None) -> bool:
            raise ValueError("dropped it")

        def failed(self, id: Id, error: ServerLost) -> None:
            failed.set_result((id, str(error)))

        def lost(self, error: ServerLost) -> None: ...

        def changed(self) -> None: ...

        def hold(self, held: bool) -> None: ...

    async with server(plain(works)) as made:
        endpoint = Endpoint(made.url)
        upstream = make(endpoint)
        upstream.attach(Clumsy(), Handshake())
        data = frames.request(7, "x/y")
        upstream.send(data, frames.head(data))

        assert await asyncio.wait_for(failed, 20) == (7, "the proxy has failed: dropped it")
        await upstream.close()
        await endpoint.close()


async def test_garbage_in_a_stream_is_passed_over_and_a_second_answer_dropped() -> None:
    async def call(reply: Reply) -> None:
        id = reply.request.frame["id"]
        await reply.stream("data: {garbage", "data: \xff")
        await reply.frame(id="unknown", result={})
        for text in ("first", "second"):
            await reply.frame(id=id, result={"content": [{"type": "text", "text": text}]})
        await reply.end()

    async with server(plain(call)) as made, wrapped(made.url) as client:
        assert text_of(await client.call(id=1)) == "first"
        assert text_of(await client.call(id=2)) == "first"
        assert client.came.empty()


async def test_a_page_instead_of_an_answer_is_no_answer() -> None:
    async def call(reply: Reply) -> None:
        await reply.whole(200, b"<html>", content_type="text/html")

    async with server(plain(call)) as made, wrapped(made.url) as client:
        assert "text/html" in text_of(await client.call())


async def test_only_a_server_that_is_ill_opens_its_circuit() -> None:
    async def call(reply: Reply) -> None:
        await reply.whole(reply.request.frame["params"]["arguments"]["status"])

    async with server(plain(call, session=None)) as made, wrapped(made.url) as client:
        for id, status in enumerate([401, 403, 404, 429, *[408] * 8], 1):
            assert failure_of(await client.call(f"t{id}", id, status=status))["kind"] == "ServerLost"
        for id in range(20, 27):
            assert failure_of(await client.call(f"t{id}", id, status=500))["kind"] == "ServerLost"

        assert failure_of(await client.call("another", 30, status=500))["kind"] == "CircuitOpen"


async def test_a_redirect_within_the_origin_is_followed_and_remembered() -> None:
    async def answer(reply: Reply) -> None:
        if reply.request.path == "/mcp":
            await reply.whole(307, location="/mcp/")
        else:
            await plain(works)(reply)

    async with server(answer) as made, wrapped(made.url) as client:
        await client.call()

        assert [request.path for request in made.requests][:3] == ["/mcp", "/mcp/", "/mcp/"]


async def test_a_redirect_to_another_origin_is_not_followed() -> None:
    async with server(plain(works)) as other:

        async def call(reply: Reply) -> None:
            await reply.whole(307, location=other.url)

        async with server(plain(call)) as made, wrapped(made.url, headers={"authorization": "secret"}) as client:
            await client.call()

        assert other.requests == []


# --- giving up ---


async def test_a_client_s_cancel_reaches_the_server() -> None:
    started, gone = asyncio.Event(), asyncio.Event()

    async def call(reply: Reply) -> None:
        started.set()
        await reply.stream()
        await reply.gone.wait()
        gone.set()

    async with server(plain(call)) as made, wrapped(made.url) as client:
        client.say(id=9, method="tools/call", params={"name": "work"})
        await started.wait()
        client.say(method="notifications/cancelled", params={"requestId": 9})

        await asyncio.wait_for(gone.wait(), 20)
        assert made.asked("notifications/cancelled")[0].frame["params"]["requestId"] == 9
        assert client.came.empty()


async def test_a_cancel_is_told_though_the_client_leaves_at_once() -> None:
    started = asyncio.Event()

    async def call(reply: Reply) -> None:
        started.set()
        await reply.gone.wait()
        reply.keeps = False

    async with server(plain(call)) as made:
        async with wrapped(made.url) as client:
            client.say(id=9, method="tools/call", params={"name": "work"})
            await started.wait()
            client.say(method="notifications/cancelled", params={"requestId": 9})

        assert len(made.asked("notifications/cancelled")) == 1


async def test_a_cancel_of_what_has_its_answer_is_for_the_server_to_judge() -> None:
    async with server(plain(works)) as made, wrapped(made.url) as client:
        await client.call(id=9)
        client.say(method="notifications/cancelled", params={"requestId": 9})

        assert text_of(await client.call(id=10)) == "done"
        assert len(made.asked("notifications/cancelled")) == 1


async def test_who_cancels_one_request_of_a_batch_gets_the_answers_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
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
            await plain(works)(reply)
            if reply.request.body and reply.request.asks == "notifications/cancelled":
                told.set()

    async with server(answer) as made, wrapped(made.url) as client:
        batch = [{"jsonrpc": "2.0", "id": id, "method": "x/y"} for id in (1, 2)]
        client.session.receive(json.dumps(batch).encode(), client)
        await started.wait()
        client.say(method="notifications/cancelled", params={"requestId": 1})

        assert [answer["result"] for answer in await client.next()] == [{"x": 1}]


async def test_a_call_that_takes_too_long_is_answered_and_the_server_told() -> None:
    told = asyncio.Event()

    async def answer(reply: Reply) -> None:
        if reply.request.body and reply.request.asks == "notifications/cancelled":
            told.set()
        await plain(call)(reply)

    async def call(reply: Reply) -> None:
        await reply.gone.wait()

    policies = {"tool": {"server.*": {"timeout": 0.05}}}
    async with server(answer) as made, wrapped(made.url, policies=policies) as client:
        assert failure_of(await client.call())["kind"] == "ToolTimeout"

        await asyncio.wait_for(told.wait(), 20)


async def test_a_call_whose_time_is_up_while_the_connection_is_made_was_not_made() -> None:
    policies = {"tool": {"server.*": {"timeout": 0.05}}}
    async with silent() as (url, gone), wrapped(url, policies=policies, begins=False) as client:
        answer = await client.call()

        assert failure_of(answer) == {"kind": "ToolTimeout", "category": "timeout", "called": False}
        assert "The tool was not called." in text_of(answer)
        await asyncio.wait_for(gone.wait(), 1.0)  # nor is it sent from now on


async def test_hundreds_of_calls_are_in_flight_at_once() -> None:
    inside = 0
    all_in = asyncio.Event()

    async def call(reply: Reply) -> None:
        nonlocal inside
        inside += 1
        if inside == 400:
            all_in.set()
        await all_in.wait()
        await reply.text()

    async with server(plain(call)) as made, wrapped(made.url) as client:
        for id in range(1, 401):
            client.say(id=id, method="tools/call", params={"name": "work", "arguments": {"n": id}})
        answers = [await client.next() for _ in range(400)]

        assert {text_of(answer) for answer in answers} == {"done"}


async def test_a_client_that_asks_for_too_much_at_once_is_held_until_most_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.mcp.http.upstream.MOST_POSTS", 4)
    go, freed = asyncio.Event(), asyncio.Event()
    held: list[bool] = []

    def hold(is_held: bool) -> None:
        held.append(is_held)
        (freed.clear if is_held else freed.set)()

    async def call(reply: Reply) -> None:
        await go.wait()
        await reply.text()

    async with server(plain(call)) as made, wrapped(made.url) as client:
        client.session.hold = hold
        for id in range(1, 7):
            client.say(id=id, method="x/y")
        before = list(held)
        go.set()
        for _ in range(6):
            await client.next()

        await asyncio.wait_for(freed.wait(), 20)
        assert (before, held) == ([True], [True, False])


# --- 2026-07-28 ---


def modern(call: Any) -> Any:
    async def answer(reply: Reply) -> None:
        assert reply.request.method == "POST"
        await call(reply)

    return answer


async def test_a_request_without_handshake_says_in_headers_what_it_is() -> None:
    async with server(modern(works)) as made:
        async with wrapped(made.url, begins=False) as client:
            await client.ask("tools/call", name="wörk", arguments={}, _meta=META)

        (request,) = made.requests
        assert request.headers["mcp-protocol-version"] == "2026-07-28"
        assert request.headers["mcp-method"] == "tools/call"
        assert request.headers["mcp-name"] == "=?base64?d8O2cms=?="


async def test_arguments_that_a_tool_wants_in_headers_are_there() -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}

    async def call(reply: Reply) -> None:
        listing = reply.request.asks == "tools/list"
        await (reply.result({"tools": [{"name": "work", "inputSchema": schema}]}) if listing else reply.text())

    async with server(modern(call)) as made, wrapped(made.url, begins=False) as client:
        await client.ask("tools/list", 1, _meta=META)
        await client.ask("tools/call", 2, name="work", arguments={"region": "eu"}, _meta=META)

        assert made.requests[-1].headers["mcp-param-region"] == "eu"


async def test_without_sessions_a_stream_that_ends_is_not_taken_up() -> None:
    async def call(reply: Reply) -> None:
        await reply.stream("id: 7\nretry: 1\ndata:")
        await reply.end()

    async with server(modern(call)) as made, wrapped(made.url, begins=False) as client:
        answer = await client.ask("tools/call", 9, name="work", _meta=META)

        assert failure_of(answer)["called"] is True
        assert [request.method for request in made.requests] == ["POST"]


async def test_without_sessions_the_end_of_the_stream_is_the_cancel() -> None:
    started, gone = asyncio.Event(), asyncio.Event()

    async def call(reply: Reply) -> None:
        started.set()
        await reply.stream()
        await reply.gone.wait()
        gone.set()

    async with server(modern(call)) as made, wrapped(made.url, begins=False) as client:
        client.say(id=9, method="tools/call", params={"name": "work", "_meta": META})
        await started.wait()
        client.say(method="notifications/cancelled", params={"requestId": 9})

        await asyncio.wait_for(gone.wait(), 20)
        assert len(made.requests) == 1


async def test_nothing_is_kept_of_a_request_that_is_cancelled_in_one_breath() -> None:
    async with server(plain(works)) as made, wrapped(made.url, begins=False) as client:
        client.say(id=1, method="x/y", params={"_meta": META})
        client.say(method="notifications/cancelled", params={"requestId": 1, "_meta": META})
        await client.ask("x/z", 2, _meta=META)

        assert [request.frame["id"] for request in made.requests] == [2]
        await until(lambda: not posts())


async def test_a_kept_connection_keeps_nothing_of_the_request_that_opened_it() -> None:
    async with server(plain(works)) as made, wrapped(made.url, begins=False) as client:
        await client.ask("x/y", 1, _meta=META)

        assert len(made.requests) == 1
        await until(lambda: not posts())


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


def posts() -> list[Post]:
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is Post]


async def test_a_subscription_is_an_answer_that_does_not_end() -> None:
    async def call(reply: Reply) -> None:
        if reply.request.asks != "subscriptions/listen":
            await reply.text()
            return
        await reply.stream()
        await reply.frame(method="notifications/subscriptions/acknowledged", params={})
        await reply.frame(method="notifications/tools/list_changed", params={})
        await reply.gone.wait()

    async with server(modern(call)) as made, wrapped(made.url, begins=False) as client:
        client.say(id=1, method="subscriptions/listen", params={"_meta": META, "notifications": {}})
        told = [(await client.next())["method"] for _ in range(2)]
        answer = await client.ask("tools/call", 2, name="work", _meta=META)

        assert told == ["notifications/subscriptions/acknowledged", "notifications/tools/list_changed"]
        assert text_of(answer) == "done"
