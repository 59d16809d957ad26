"""`holdfast wrap --url`: the command, and what it says when it cannot be."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.mcp.http.clients import text_of
from tests.mcp.http.servers import Reply, plain, server

from holdfast.errors import ConfigError
from holdfast.mcp.clients.configs import ServerEntry
from holdfast.mcp.http.endpoint import Endpoint
from holdfast.mcp.http.gateway import problem

WRAP = [str(Path(sys.executable).with_name("holdfast")), "wrap"]


async def test_a_client_on_stdio_speaks_with_a_server_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(reply: Reply) -> None:
        await reply.text(f"{reply.request.headers['x-team']} {reply.request.headers['authorization']}")

    monkeypatch.setenv("SECRET", "Bearer s3cret")
    async with server(plain(call)) as made:
        options = ["--url", made.url, "--header", "X-Team: blue", "--header-env", "Authorization=SECRET"]
        process = await asyncio.create_subprocess_exec(
            *WRAP, *options, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=2**24
        )
        assert process.stdin is not None
        assert process.stdout is not None

        async def ask(**frame: object) -> object:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n")
            return json.loads(await process.stdout.readline()) if "id" in frame else None

        await ask(id=0, method="initialize", params={"protocolVersion": "2025-11-25"})
        await ask(method="notifications/initialized")
        answer = await ask(id=1, method="tools/call", params={"name": "work"})
        process.stdin.close()

        assert text_of(answer) == "blue Bearer s3cret"
        assert await asyncio.wait_for(process.wait(), 20) == 0
        assert made.requests[-1].method == "DELETE"


@pytest.mark.parametrize(
    ("status", "advice"), [(401, "give a token with --header-env"), (404, "HTTP+SSE only"), (405, "HTTP+SSE only")]
)
async def test_who_names_a_server_that_wants_oauth_or_http_and_sse_is_told_what_to_do(status: int, advice: str) -> None:
    async def refuse(reply: Reply) -> None:
        await reply.whole(status, b"<pre>Cannot POST /sse</pre>", content_type="text/html")

    async with server(refuse) as made:
        process = await asyncio.create_subprocess_exec(
            *WRAP, "--url", made.url, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        said, _ = await process.communicate(b'{"jsonrpc": "2.0", "id": 0, "method": "initialize"}\n')

    message = json.loads(said)["error"]["message"]
    assert f"HTTP status {status}" in message
    assert advice in message
    assert "wrap `npx -y mcp-remote URL`" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--url", "ftp://x"], "http://"),
        (["--url", "nonsense"], "http://"),
        (["--url", "http://[::1"], "--url: [redacted]: Invalid IPv6 URL"),
        (["--url", "http://x", "--header", "nothing"], "--header"),
        (["--url", "http://x", "--header-env", "A=NOT_SET"], "NOT_SET"),
        (["--url", "http://x", "--type", "sse"], "sse"),
        (["--url", "http://x", "--", "command"], "either"),
    ],
    ids=["ftp", "nonsense", "bracket", "header", "variable", "type", "both"],
)
def test_what_cannot_be_wrapped_is_wrong_usage(options: list[str], message: str) -> None:
    done = subprocess.run([*WRAP, *options], capture_output=True, text=True, check=False, timeout=30, input="")

    assert done.returncode == 2
    assert message in done.stderr


def test_a_missing_extra_is_named_for_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)

    with pytest.raises(ConfigError, match=r"holdfast\[http\]"):
        Endpoint("http://127.0.0.1/mcp")


def test_a_missing_extra_is_a_problem_of_servers_of_the_gateway_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)

    assert "holdfast[http]" in (problem(ServerEntry(name="far", transport="http", url="http://127.0.0.1/mcp")) or "")
    assert problem(ServerEntry(name="near", command="x")) is None
