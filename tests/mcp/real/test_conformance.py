"""The official conformance suite: every check has the same outcome through the gateway as without it, in both eras."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests import worlds
from tests.mcp.real.web import byte_relay, gateway, running
from tests.servers.finding import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ERAS = ["2025-11-25", "2026-07-28"]
# The gateway checks Host and Origin itself, whatever the server behind it does.
GUARDED_BY_US = "dns-rebinding-protection"
Checks = Counter[tuple[str, str, str]]


def measure(node: worlds.Node, url: str, era: str, folder: Path) -> Checks:
    """How often each check of each scenario had each outcome."""
    command = node.command("conformance", "server", "--url", url, "--requirements", era, "-o", str(folder))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    checks: Checks = Counter()
    for file in folder.glob("server-*/checks.json"):
        scenario = re.sub(r"-\d{4}-\d\d-\d\dT[-\d]+Z$", "", file.parent.name.removeprefix("server-"))
        checks.update(
            (scenario, check["id"], check["status"])
            for check in json.loads(file.read_bytes())
            if check["status"] != "INFO"  # a note, not a judgement: how many there are is the timer's affair
        )
    assert checks, done.stdout[-2000:] + done.stderr[-2000:]
    return checks


def compare(node: worlds.Node, era: str, direct: str, other: str, folder: Path) -> tuple[Checks, Checks]:
    with ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(measure, node, url, era, folder / name) for name, url in (("direct", direct), ("other", other))
        ]
        return runs[0].result(), runs[1].result()


def without(scenario: str, checks: Checks) -> Checks:
    return Counter({check: count for check, count in checks.items() if check[0] != scenario})


def of(scenario: str, checks: Checks) -> set[str]:
    return {status for name, _, status in checks if name == scenario}


@pytest.fixture
def conforming(sdk2: Path) -> Iterator[int]:
    """A server that has all that the suite asks for."""
    port = free_port()
    with running([str(sdk2), str(Path(__file__).parent / "servers" / "conformance_server.py"), str(port)], port):
        yield port


@pytest.fixture
def everything(node: worlds.Node) -> Iterator[int]:
    """The reference server, which lacks much of it."""
    port = free_port()
    with running(node.command("server-everything", "streamableHttp"), port, {"PORT": str(port)}):
        yield port


@pytest.mark.parametrize("era", ERAS)
def test_two_measurements_of_one_server_agree(node: worlds.Node, conforming: int, tmp_path: Path, era: str) -> None:
    with byte_relay(conforming) as relay:
        urls = (f"http://127.0.0.1:{port}/mcp" for port in (conforming, relay))

        direct, relayed = compare(node, era, *urls, tmp_path)

    assert relayed == direct
    assert sum(count for (_, _, status), count in direct.items() if status == "SUCCESS") > 75


@pytest.mark.parametrize("era", ERAS)
def test_a_server_conforms_through_the_gateway_exactly_as_without(
    node: worlds.Node, conforming: int, tmp_path: Path, era: str
) -> None:
    url = f"http://127.0.0.1:{conforming}/mcp"
    with gateway(tmp_path, {"conforming": {"type": "http", "url": url}}) as address:
        direct, proxied = compare(node, era, url, address("conforming"), tmp_path)

    assert proxied == direct


def test_the_reference_server_conforms_through_the_gateway_exactly_as_without(
    node: worlds.Node, everything: int, tmp_path: Path
) -> None:
    era = "2025-11-25"  # in the other every call of it fails, and a circuit that opens answers otherwise than it would
    url = f"http://127.0.0.1:{everything}/mcp"
    with gateway(tmp_path, {"everything": {"type": "http", "url": url}}) as address:
        direct, proxied = compare(node, era, url, address("everything"), tmp_path)

    assert without(GUARDED_BY_US, proxied) == without(GUARDED_BY_US, direct)
    assert "FAILURE" not in of(GUARDED_BY_US, proxied)
