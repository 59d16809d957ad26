from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.mcp import frames
from holdfast.mcp.server import ProxiedServer
from holdfast.mcp.wire import Event
from holdfast.testing import ManualClock


@pytest.fixture
def hf(clock: ManualClock) -> Iterator[Holdfast]:
    with holdfast.open(":memory:", policies={}, clock=clock) as hf:
        yield hf


@pytest.fixture
def server(hf: Holdfast) -> ProxiedServer:
    return ProxiedServer(hf, "srv")


def learn(server: ProxiedServer, *names: str) -> None:
    tools = [{"name": name, "annotations": {"readOnlyHint": True}} for name in names]
    data = frames.result(1, {"tools": tools})
    server.learn(frames.head(data), Event(data))


def test_names_that_a_client_makes_up_are_bounded_and_listed_tools_stay(
    hf: Holdfast, server: ProxiedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.tools.toolbox.MOST_PASSING", 10)
    learn(server, "read")
    read = server.tool("read")

    for number in range(100):
        server.tool(f"made-up-{number}")

    assert server.tool("read") is read
    assert [entry.name for entry in hf.entries()] == [
        "srv.read",
        *(f"srv.made-up-{number}" for number in range(90, 100)),
    ]


def test_a_tool_that_is_listed_after_it_was_called_keeps_its_state_and_gets_its_hints(server: ProxiedServer) -> None:
    before = server.tool("read")

    learn(server, "read")
    after = server.tool("read")

    assert after.tool is before.tool
    assert after.tool.policy.read_only


def test_a_listed_tool_loses_its_hints_when_the_list_has_changed(server: ProxiedServer) -> None:
    learn(server, "read")
    server.tool("read")

    server.forget()

    assert not server.tool("read").tool.policy.read_only
