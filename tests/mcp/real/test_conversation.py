"""The same talk with and without the proxy over stdio: what the client hears and what the server hears, in bytes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from tests import worlds
from tests.mcp.real import everything, modern
from tests.mcp.real.sameness import differences
from tests.mcp.real.through import proxy, surroundings
from tests.mcp.real.wire import Answers, Pipe, Talk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

HERE = Path(__file__).parent
RELAY = [sys.executable, str(HERE / "raw_relay.py")]
VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]


class Held(NamedTuple):
    """A talk as the client knows it, the lines that really reached the server, and those that it really said."""

    talk: Talk
    got: list[bytes]
    said: list[bytes]


def hold(
    command: list[str],
    between: Callable[[list[str]], list[str]],
    say: Callable[[Talk], None],
    answers: Answers,
    folder: Path,
) -> Held:
    folder.mkdir()
    recorded = [*RELAY, "--record", str(folder), "--", *command]
    behind_proxy = between is proxy
    with Talk(Pipe(between(recorded), env=surroundings(), obedient=behind_proxy), answers) as talk:
        say(talk)
    got, said = ((folder / name).read_bytes().split(b"\n")[:-1] for name in ("to_server", "from_server"))
    return Held(talk, got, said)


def both(
    command: list[str],
    between: Callable[[list[str]], list[str]],
    say: Callable[[Talk], None],
    answers: Answers,
    tmp_path: Path,
) -> tuple[Held, Held]:
    """The talk held directly, and with something in between, at the same time."""
    with ThreadPoolExecutor() as pool:
        direct = pool.submit(hold, command, list, say, answers, tmp_path / "direct")
        other = pool.submit(hold, command, between, say, answers, tmp_path / "other")
        return direct.result(), other.result()


def relay(command: list[str]) -> list[str]:
    return [*RELAY, "--", *command]


def assert_same(direct: Held, other: Held) -> None:
    found = differences(direct.talk, other.talk)
    assert not found, "\n".join(found[:10])
    assert sorted(line.strip() for line in other.got) == sorted(line.strip() for line in sent(other, "client"))
    assert_in_order(other.said, sent(other, "server"))


def assert_in_order(said: list[bytes], heard: list[bytes]) -> None:
    """An answer may come a little later than it was said, never earlier; all else keeps its order, all their bytes."""
    said = said[: len(heard)]
    assert sorted(said) == sorted(heard)
    answers = {line for line in said if b'"method"' not in line}
    assert [line for line in said if line not in answers] == [line for line in heard if line not in answers]
    for answer in answers:
        early = set(said[: said.index(answer)]) - answers - set(heard[: heard.index(answer)])
        assert not early, f"{answer[:200]!r} overtook {early}"


def sent(held: Held, sender: str) -> list[bytes]:
    return [frame.raw for frame in held.talk.frames if frame.sender == sender]


def test_a_relay_that_understands_nothing_leaves_the_talk_as_it_is(node: worlds.Node, tmp_path: Path) -> None:
    command = node.command("server-everything", "stdio")

    direct, relayed = both(
        command, relay, lambda talk: everything.converse(talk, VERSIONS[-1]), everything.ANSWERS, tmp_path
    )

    assert_same(direct, relayed)
    assert relayed.got == sent(relayed, "client")


def test_the_talk_holds_every_tool_that_the_server_has(node: worlds.Node) -> None:
    link = Pipe(node.command("server-everything", "stdio"), env=surroundings(), obedient=False)
    with Talk(link, everything.ANSWERS) as talk:
        everything.converse(talk, VERSIONS[-1])

    listed = talk.heard(lambda m: "tools" in m.get("result", {}))[0]["result"]["tools"]
    sent = [json.loads(frame.raw) for frame in talk.frames if frame.sender == "client"]
    called = {m["params"]["name"] for m in sent if m.get("method") == "tools/call" and "name" in m.get("params", {})}
    assert {tool["name"] for tool in listed} == everything.TOOLS
    assert called >= everything.TOOLS


@pytest.mark.parametrize("version", VERSIONS)
def test_every_method_of_server_everything_is_the_same_through_the_proxy(
    node: worlds.Node, tmp_path: Path, version: str
) -> None:
    command = node.command("server-everything", "stdio")

    direct, proxied = both(
        command, proxy, lambda talk: everything.converse(talk, version), everything.ANSWERS, tmp_path
    )

    assert_same(direct, proxied)


def test_the_stateless_version_is_the_same_through_the_proxy(sdk2: Path, tmp_path: Path) -> None:
    command = [str(sdk2), str(HERE / "servers" / "python_server.py"), "stdio"]

    direct, proxied = both(command, proxy, modern.converse, modern.ANSWERS, tmp_path)

    assert_same(direct, proxied)
