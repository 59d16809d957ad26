"""What others on the store are shown of a fleet: what it decides, what a limit comes to, and who is without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.fleet.members import wait_until
from tests.servers import RedisServer
from tests.servers.redis import ask_all

import holdfast
from holdfast import cli
from holdfast.stores import SqliteRunStore
from holdfast.stores.board import Board
from holdfast.stores.entries import ToolLine
from holdfast.telemetry.prometheus import StoreMetrics

PATIENT = "?wait=10"  # a busy machine may be late once
POLICIES: Mapping[str, object] = {
    "policy": {"rate": "1000/s", "concurrency": 10},
    "tool": {"seen": {"mode": "view"}, "bare": {"breaker": False, "rate": False, "concurrency": False}},
}


@pytest.fixture
def store(path: Path) -> Iterator[SqliteRunStore]:
    with SqliteRunStore(path) as store:
        yield store


@contextmanager
def two(
    path: Path, url: str | None, tool: str, on_outage: str = "local", *, others: str = ""
) -> Iterator[list[holdfast.Holdfast]]:
    """Two that have called *tool*; on stores of their own name they are two processes, as far as a board knows.

    The second has the options *others* in its address.
    """
    with ExitStack() as stack:
        found = []
        for each in (url, url and url + others):
            hf = stack.enter_context(holdfast.open(path, policies=POLICIES, redis=each, on_outage=on_outage))
            if (fleet := hf.fleet) is not None:
                wait_until(lambda fleet=fleet: fleet.service.settled.is_set() and fleet.is_available, "for Redis")
            with hf.guard(tool):
                found.append(hf)
        yield found


def line(store: SqliteRunStore, tool: str) -> ToolLine:
    """The line of *tool*, once both show it."""
    board = Board(store)

    def both() -> bool:
        found = board.tool(tool)
        return found is not None and len(found.processes) == 2

    wait_until(both, "for both to show it")
    found = board.tool(tool)
    assert found is not None
    return found


def wait_until_alone(store: SqliteRunStore, tool: str, count: int) -> ToolLine:
    wait_until(lambda: line(store, tool).alone == count, f"for {count} to be alone")
    return line(store, tool)


def test_a_limit_that_a_fleet_shares_counts_once(path: Path, store: SqliteRunStore, own_redis: RedisServer) -> None:
    with two(path, own_redis.url + PATIENT, "search"):
        seen = line(store, "search")
        text = StoreMetrics(store).render()

    assert [each.tool.shared for each in seen.processes] == [["circuit", "rate", "concurrency"]] * 2
    assert (seen.limit, seen.sharing, seen.alone) == (10, 2, 0)
    assert 'holdfast_concurrency_limit{server="",tool="search"} 10\n' in text
    assert 'holdfast_rate_limit_configured{server="",tool="search"} 1000\n' in text
    assert 'holdfast_fleet_processes{state="shared"} 2\n' in text


def test_limits_that_each_keeps_for_itself_add_up(path: Path, store: SqliteRunStore, own_redis: RedisServer) -> None:
    with two(path, own_redis.url + PATIENT, "seen"):
        seen = line(store, "seen")

    assert [each.tool.shared for each in seen.processes] == [["circuit"]] * 2
    assert (seen.limit, seen.sharing) == (20, 2)


def test_a_limit_of_two_fleets_counts_twice(path: Path, store: SqliteRunStore, own_redis: RedisServer) -> None:
    with two(path, own_redis.url + PATIENT, "search", others="&prefix=theirs"):
        seen = line(store, "search")

    assert (seen.limit, seen.sharing) == (20, 2)


@pytest.mark.parametrize("tool", ["search", "bare"])
def test_who_shares_nothing_is_in_no_fleet(
    path: Path, store: SqliteRunStore, own_redis: RedisServer, tool: str
) -> None:
    with two(path, own_redis.url + PATIENT if tool == "bare" else None, tool):
        seen = line(store, tool)
        text = StoreMetrics(store).render()

    assert [each.tool.shared for each in seen.processes] == [None, None]
    assert (seen.sharing, seen.alone, seen.why_alone) == (0, 0, None)
    assert "holdfast_fleet_processes" not in text


@pytest.mark.parametrize(
    ("on_outage", "meanwhile"), [("local", "each guards by itself"), ("refuse", "calls are refused")]
)
def test_who_is_without_the_fleet_is_shown_at_once_and_until_it_is_back(
    path: Path,
    store: SqliteRunStore,
    own_redis: RedisServer,
    capsys: pytest.CaptureFixture[str],
    on_outage: str,
    meanwhile: str,
) -> None:
    with two(path, own_redis.url + PATIENT, "search", on_outage):
        line(store, "search")

        own_redis.stop()
        away = wait_until_alone(store, "search", 2)
        text = StoreMetrics(store).render()
        cli.main(["tools", "show", "search", "--store", str(path)])
        said = capsys.readouterr().out
        own_redis.start_again()
        back = wait_until_alone(store, "search", 0)

    assert (away.why_alone or "").startswith(f"{meanwhile}: ")
    assert away.refuses is (on_outage == "refuse")
    assert away.limit == 20  # each allows the whole
    assert 'holdfast_fleet_processes{state="alone"} 2\n' in text
    assert f"away for 2 of 2 processes: {meanwhile}" in said
    assert back.limit == 10
    assert not back.refuses


def test_why_one_tool_is_without_the_fleet_is_shown(path: Path, store: SqliteRunStore, own_redis: RedisServer) -> None:
    with two(path, own_redis.url + PATIENT, "search") as both:
        line(store, "search")

        own_redis.command("SET", "holdfast:{bad}", "not ours")
        for hf in both:
            with hf.guard("bad"):
                pass
        away = wait_until_alone(store, "bad", 2)
        good = line(store, "search")

    assert "WRONGTYPE" in (away.why_alone or "")
    assert good.alone == 0


def test_why_the_fleet_is_away_is_shown_as_it_was_last_found(
    path: Path, store: SqliteRunStore, own_redis: RedisServer
) -> None:
    with two(path, own_redis.url + PATIENT, "search"):
        ask_all(
            "127.0.0.1", own_redis.port, [["CONFIG", "SET", "requirepass", "new"], ["CLIENT", "KILL", "TYPE", "pubsub"]]
        )

        wait_until(lambda: "NOAUTH" in (line(store, "search").why_alone or ""), "for the login to be named")
