"""Every Python SDK as client and as server, each with each: through the proxy a client sees what it sees without."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.real.through import proxy, proxy_to, surroundings
from tests.mcp.real.web import gateway, running
from tests.servers.finding import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

HERE = Path(__file__).parent
SDKS = ["sdk1", "sdk2", "fastmcp"]
PATIENCE = 90.0


def visit(client: Path, *targets: dict[str, Any]) -> list[dict[str, Any]]:
    """What the client program saw at each target."""
    script = str(HERE / "clients" / "python_client.py")
    done = subprocess.run(
        [str(client), script, json.dumps(targets)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=surroundings(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    for each in seen:
        assert "failed" not in each, f"{each['failed']}\n{done.stderr[-3000:]}"
    return seen


def serving(python: Path) -> list[str]:
    return [str(python), str(HERE / "servers" / "python_server.py"), "stdio"]


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.mark.parametrize("server", SDKS, indirect=True)
@pytest.mark.parametrize("client", SDKS, indirect=True)
def test_a_client_sees_the_same_through_the_proxy(client: Path, server: Path) -> None:
    direct, proxied = visit(client, {"command": serving(server)}, {"command": proxy(serving(server))})

    assert proxied == direct


@pytest.mark.parametrize("server", SDKS, indirect=True)
def test_a_new_client_that_speaks_the_old_protocol_sees_the_same(sdk2: Path, server: Path) -> None:
    command = serving(server)

    direct, proxied = visit(sdk2, {"command": command, "mode": "legacy"}, {"command": proxy(command), "mode": "legacy"})

    assert proxied == direct
    assert proxied["version"] == "2025-11-25"


def test_a_new_client_and_a_new_server_speak_the_stateless_protocol_through_the_proxy(sdk2: Path) -> None:
    (proxied,) = visit(sdk2, {"command": proxy(serving(sdk2))})

    assert proxied["version"] == "2026-07-28"
    assert proxied["add"]["structuredContent"] == {"result": 5}
    assert [message for _, _, message in proxied["progress"][0]] == ["step 1", "step 2", "step 3"]
    assert proxied["cancel"][0] == "CancelledError"


@pytest.mark.parametrize("server", SDKS, indirect=True)
@pytest.mark.parametrize("client", SDKS, indirect=True)
def test_a_client_sees_the_same_through_the_gateway(client: Path, server: Path, tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    with ExitStack() as stack:
        for port in ports:
            stack.enter_context(running([*serving(server)[:2], "http", str(port)], port))
        near, far = (f"http://127.0.0.1:{port}/mcp" for port in ports)
        address = stack.enter_context(gateway(tmp_path, {"python": {"type": "http", "url": far}}))

        direct, proxied = visit(client, {"url": near}, {"url": address("python")})

    assert proxied == direct


def test_a_client_of_http_sees_a_server_on_stdio_through_the_gateway(sdk2: Path, tmp_path: Path) -> None:
    command = serving(sdk2)
    with gateway(tmp_path, {"python": {"command": command[0], "args": command[1:]}}) as address:
        direct, proxied = visit(sdk2, {"command": command}, {"url": address("python")})

    assert proxied == direct


def test_a_client_on_stdio_sees_a_server_of_http_through_the_proxy(sdk2: Path) -> None:
    port = free_port()
    with running([*serving(sdk2)[:2], "http", str(port)], port):
        url = f"http://127.0.0.1:{port}/mcp"
        direct, proxied = visit(sdk2, {"command": serving(sdk2)}, {"command": proxy_to(url)})

    assert proxied == direct


# --- exceptions, judged in the process where the SDK raised them ---


@pytest.mark.parametrize("client", SDKS, indirect=True)
def test_the_exceptions_of_an_sdk_have_sensible_categories(client: Path, sdk1: Path) -> None:
    seen, dead, nobody = visit(
        client,
        {"command": serving(sdk1)},
        {"command": serving(sdk1), "trouble": True},
        {"url": f"http://127.0.0.1:{free_port()}/mcp", "trouble": True},
    )

    assert seen["errors"]["timeout"]["category"] == "timeout"
    assert seen["errors"]["unknown resource"]["category"] == "resource_not_found"
    assert seen["errors"]["unknown prompt"]["category"] == "resource_not_found"
    assert dead["trouble"]["category"] == "network"
    assert nobody["trouble"]["category"] == "network"
