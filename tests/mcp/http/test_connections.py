"""What is said on the connection of a client is for the gateway to say, whatever the server said on its own."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest
from tests import worlds
from tests.mcp.http.clients import frame, gateway
from tests.mcp.http.servers import INITIALIZED, Reply, plain, server

import holdfast
from holdfast.mcp.calling import Call
from holdfast.mcp.clients.configs import ServerEntry
from holdfast.mcp.http.endpoint import SESSION

ACCEPT = {"accept": "application/json, text/event-stream"}
BEGIN = frame("initialize", 0, protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "c", "version": "1"})
# What a server says between two neighbours, and of itself; only the first is for the client.
OWN = {
    "x-request-id": "7", "connection": "close", "keep-alive": "timeout=5", "server": "theirs",
    "date": "Thu, 01 Jan 1970 00:00:00 GMT", "content-encoding": "gzip",
}  # fmt: skip
LONG = 2**20  # bytes of a head, which no client needs


def remote(url: str) -> ServerEntry:
    return ServerEntry(name="remote", transport="http", url=url)


async def refuses(reply: Reply, status: int, *, code: int | None = None, **headers: str) -> None:
    """Say no, as the error of the request if there is a *code*; with headers that are nobody else's affair."""
    id = reply.request.frame.get("id") if reply.request.body else None
    error = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": "no"}}
    body = b"no" if code is None else json.dumps(error).encode()
    reply.keeps = False
    await reply.whole(status, gzip.compress(body), content_type="application/json", **OWN, **headers)


# Each is answered in another way.
REFUSALS: dict[str, Callable[[Reply], Awaitable[object]]] = {
    "an error of the request": lambda reply: refuses(reply, 400, code=-32602),
    "a method that is not there": lambda reply: refuses(reply, 404, code=-32601),
    "a session that is not known": lambda reply: refuses(reply, 404),
    "no error of the request": lambda reply: refuses(reply, 403),
}


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_refusal_comes_without_what_the_server_says_of_its_own_connection(refusal: str, method: str) -> None:
    async with server(REFUSALS[refusal]) as made, gateway(remote(made.url)) as address, httpx.AsyncClient() as client:
        body = json.dumps(frame("tools/list")) if method == "POST" else None
        headers = {**ACCEPT, "mcp-session-id": "forgotten"}

        answer = await client.request(method, f"{address}/remote/mcp", content=body, headers=headers)

        assert sorted(name for name, _ in answer.headers.multi_items()) == [
            "content-length", "content-type", "date", "x-request-id",
        ]  # fmt: skip
        assert answer.headers["date"] != OWN["date"]
        assert b"no" in answer.content


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_refusal_has_the_headers_that_the_server_gives_twice(method: str) -> None:
    async def answer(reply: Reply) -> None:
        await reply.whole(401, b"no", www_authenticate="Bearer\r\nwww-authenticate: Basic")

    async with server(answer) as made, gateway(remote(made.url)) as address, httpx.AsyncClient() as client:
        body = json.dumps(frame("tools/list")) if method == "POST" else None

        found = await client.request(method, f"{address}/remote/mcp", content=body, headers=ACCEPT)

        assert found.headers.get_list("www-authenticate") == ["Bearer", "Basic"]


def calls_made() -> list[Call]:
    return [thing for thing in gc.get_objects() if type(thing) is Call]


async def test_a_refusal_that_two_clients_share_names_the_session_of_neither_to_the_other() -> None:
    names, refused = iter(("one", "two")), asyncio.Event()

    async def answer(reply: Reply) -> None:
        request = reply.request
        if request.asks == "initialize":
            await reply.result(INITIALIZED, mcp_session_id=next(names))
        else:
            await refused.wait()
            await reply.whole(403, b"no", mcp_session_id=request.headers["mcp-session-id"])

    policies = {"server": {"remote": {"read_only": True, "cache": 60}}}
    with holdfast.open(":memory:", policies=policies) as hf:
        async with server(answer) as made, gateway(remote(made.url), hf=hf) as address, httpx.AsyncClient() as client:
            url = f"{address}/remote/mcp"
            sessions = [(await client.post(url, json=BEGIN)).headers["mcp-session-id"] for _ in range(2)]
            before, call = calls_made(), frame("tools/call", name="work")  # which are kept, so that none of them goes
            calls = [asyncio.ensure_future(client.post(url, json=call, headers={SESSION: id})) for id in sessions]
            async with asyncio.timeout(20):
                while len(calls_made()) < len(before) + 2:  # noqa: ASYNC110 - that one waits for the other, nobody tells
                    await asyncio.sleep(0.01)
            refused.set()
            found = [(call.status_code, call.headers.get(SESSION)) for call in await asyncio.gather(*calls)]

    assert found == [(403, "one"), (403, None)]


async def test_a_refusal_names_the_session_as_the_client_does() -> None:
    known = ["one"]

    async def answer(reply: Reply) -> None:
        request = reply.request
        if request.asks == "initialize":
            await reply.result(INITIALIZED, mcp_session_id=known[0])
        elif request.headers.get("mcp-session-id") != known[0]:
            await reply.whole(404)
        elif "id" in request.frame:
            await reply.whole(403, b"no", mcp_session_id=known[0])
        else:
            await reply.whole(202)

    async with server(answer) as made, gateway(remote(made.url)) as address, httpx.AsyncClient() as client:
        headers = {**ACCEPT, "mcp-session-id": "one"}
        await client.post(f"{address}/remote/mcp", json=BEGIN, headers=ACCEPT)
        await client.post(f"{address}/remote/mcp", json=frame("notifications/initialized", None), headers=headers)
        known[0] = "two"  # the session is begun anew behind the client's

        refused = await client.post(f"{address}/remote/mcp", json=frame("tools/list"), headers=headers)

        assert (refused.status_code, refused.headers["mcp-session-id"]) == (403, "one")


SESSION_OF_NODE = """
const [url] = process.argv.slice(1), json = {'content-type': 'application/json', accept: '*/*'};
const ask = (method, body, session) => fetch(url, {method, body: body && JSON.stringify(body),
    headers: session ? {...json, 'mcp-session-id': session} : json});
const statuses = [];
for (let round = 0; round < 3; round++) {
    const begun = await ask('POST', BEGIN);
    const session = begun.headers.get('mcp-session-id');
    await begun.text();
    const noted = await ask('POST', {jsonrpc: '2.0', method: 'notifications/initialized'}, session);
    const ended = await ask('DELETE', undefined, session);
    await ended.text();
    const after = await ask('POST', {jsonrpc: '2.0', id: 1, method: 'tools/list'}, session);
    statuses.push([begun.status, noted.status, ended.status, after.status, await after.text()]);
}
console.log(JSON.stringify(statuses));
"""


@pytest.mark.slow
async def test_node_goes_on_after_a_refusal_on_the_connection_that_it_keeps(executable: str) -> None:
    script = SESSION_OF_NODE.replace("BEGIN", json.dumps(BEGIN))
    async with server(plain(REFUSALS["a session that is not known"])) as made, gateway(remote(made.url)) as address:
        node = await asyncio.create_subprocess_exec(
            executable, "--input-type=module", "--eval", script, f"{address}/remote/mcp",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        told, complaint = await node.communicate()

    assert node.returncode == 0, complaint.decode()
    assert json.loads(told) == [[200, 202, 200, 404, "no"]] * 3


async def test_a_client_that_offers_another_version_of_http_is_answered_in_this_one() -> None:
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
    body = json.dumps(BEGIN).encode()
    async with server(plain(REFUSALS["no error of the request"])) as made, gateway(remote(made.url)) as address:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(address).port)
        for _ in range(2):  # Java offers it with every request
            head = f"POST /remote/mcp HTTP/1.1\r\nHost: localhost\r\n{offer}Content-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)

            status = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            length = int(status.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            assert json.loads(await reader.readexactly(length))["result"] == INITIALIZED
        writer.close()

        assert [request.body for request in made.requests] == [body] * 2


@pytest.mark.parametrize(
    "head", ["GET /", "GET / HTTP/1.1\r\nX: ", "GET / HTTP/1.1\r\n"], ids=["path", "value", "names"]
)
async def test_a_head_without_end_is_not_kept_until_it_ends(head: str) -> None:
    async with gateway(remote("http://127.0.0.1:1/mcp")) as address:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(address).port)
        more = b"name: value\r\n" if head.endswith("\n") else b"aaaaaaaaaaaa"
        with suppress(ConnectionError):  # it hangs up before we are done
            writer.write(head.encode() + more * (LONG // len(more)))
            await writer.drain()

        answer = await asyncio.wait_for(_first(reader), 20)
        writer.close()

    assert answer in {b"", b"HTTP/1.1 431 Request Header Fields Too Large\r\n"}


async def _first(reader: asyncio.StreamReader) -> bytes:
    """The first line of an answer; empty if the connection is reset before it can be read."""
    try:
        return await reader.readline()
    except ConnectionError:
        return b""


@pytest.fixture(scope="session")
def executable() -> str:
    """Node itself."""
    try:
        return str(worlds.node().executable)
    except worlds.Missing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"this must be had in CI: {missing}")
        pytest.skip(str(missing))
