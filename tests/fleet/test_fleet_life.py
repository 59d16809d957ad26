"""A member of a fleet begins, forks, steers and ends without leaving anything behind, or taking others along."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.children import said
from tests.fleet.children import children
from tests.fleet.members import POLICIES, Member, agree, member, wait_until
from tests.fleet.upstream import PATIENCE
from tests.servers import RedisServer, Toxic

import holdfast
from holdfast import ConfigError

PATIENT = "?wait=10"


@pytest.fixture
def pair(own_redis: RedisServer) -> Iterator[tuple[Member, Member]]:
    url = own_redis.url + PATIENT
    with member(url) as one, member(url) as other:
        yield one, other


# --- forking ----------------------------------------------------------------------------------------------------------


def test_a_forked_child_shares_under_a_name_and_on_connections_of_its_own(own_redis: RedisServer) -> None:
    policies = {"policy": {"max_wait": 0.0}, "tool": {**POLICIES["tool"], "slot": {"concurrency": 1}}}  # type: ignore[dict-item]

    with children() as start:
        parent = start("fork", own_redis.url + PATIENT, json.dumps(policies))
        childs, parents = json.loads(said(parent)), json.loads(said(parent))

    assert childs["calls"] == ["ok", "ConcurrencyFull"]
    assert parents["calls"] == ["ok", "ok", "RateLimited"]
    assert childs["fallbacks"] == parents["fallbacks"] == 0
    assert childs["holder"] != parents["holder"]


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_circuit_that_opens_meanwhile_refuses_all_who_wait_in_line(own_redis: RedisServer) -> None:
    policies = {
        "policy": {
            "max_wait": 60.0,
            "concurrency": 1,
            "breaker": {"failure_threshold": 1, "min_backoff": 600.0, "max_backoff": 600.0},
        }
    }
    went: list[str] = []

    with member(own_redis.url + PATIENT, policies) as one:
        waiters = [threading.Thread(target=lambda: went.append(one.call("bad"))) for _ in range(5)]
        with suppress(ConnectionError), one.hf.guard("bad"):
            for thread in waiters:
                thread.start()
            wait_until(lambda: one.hf._box.tool("bad").limits(0.0).waiting == 5, "for a line of five")
            raise ConnectionError
        for thread in waiters:
            thread.join(PATIENCE)

        assert went == ["CircuitOpen"] * 5


# --- closing ----------------------------------------------------------------------------------------------------------


async def test_closing_leaves_no_thread_and_no_connection(own_redis: RedisServer) -> None:
    with Toxic(own_redis.port) as toxic:
        with member(toxic.url + PATIENT) as one:
            await one.acall("plain")
            await asyncio.to_thread(one.call, "plain")
            used = toxic.connections

        await asyncio.sleep(0)  # the loop's own connection is closed by the loop
        await asyncio.to_thread(wait_until, lambda: not toxic.connections, "for connections to be closed")

        assert used >= 3
        assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-fleet"]


def test_what_was_not_told_yet_is_told_when_it_is_closed(own_redis: RedisServer) -> None:
    with member(own_redis.url + PATIENT) as one, member(own_redis.url + PATIENT) as other:
        known = other.call("bad")
        for _ in range(3):
            one.call("bad", fails=True)
        one.hf.close()

        other.heard.wait_for("circuit_opened", "bad")

        assert known == "ok"


def test_a_closed_one_that_is_used_again_shares_again(pair: tuple[Member, Member]) -> None:
    one, other = pair
    before = agree(one, other, "three before")

    one.hf.close()

    assert before
    assert agree(one, other, "three after")
    assert asyncio.run(one.acall("three after")) == "RateLimited"
    assert one.fleet.fallbacks == 0


def test_closing_is_not_held_up_by_a_redis_that_hangs(own_redis: RedisServer) -> None:
    with member(own_redis.url) as one:
        went = one.call("plain")
        own_redis.pause()

    own_redis.resume()
    assert went == "ok"
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-fleet"]


# --- steering ---------------------------------------------------------------------------------------------------------


def test_a_reset_closes_the_circuit_of_the_whole_fleet(pair: tuple[Member, Member]) -> None:
    one, other = pair
    one.trip("bad")
    known = other.call("bad")

    other.hf.breaker.reset("bad")
    one.heard.wait_for("circuit_closed", "bad")
    wait_until(lambda: other.generation("bad") == one.generation("bad"))  # it may hear only now that it was open

    assert known == "CircuitOpen"
    assert [one.call("bad"), other.call("bad")] == ["ok", "ok"]


@pytest.mark.parametrize("is_held_closed", [False, True], ids=["never called", "held closed"])
def test_a_reset_closes_the_circuit_of_the_whole_fleet_also_from_where_it_was_never_open(
    pair: tuple[Member, Member], is_held_closed: bool
) -> None:
    one, other = pair
    one.trip("bad")
    if is_held_closed:
        other.hf.breaker.force_closed("bad")
        assert other.call("bad") == "ok"

    other.hf.breaker.reset("bad")
    one.heard.wait_for("circuit_closed", "bad")
    wait_until(lambda: other.generation("bad") == one.generation("bad"))  # it may hear only now that it was open

    assert [one.call("bad"), other.call("bad")] == ["ok", "ok"]


def test_a_circuit_held_open_by_hand_is_held_open_here_alone(pair: tuple[Member, Member]) -> None:
    one, other = pair
    before = [one.call("tool"), other.call("tool")]

    one.hf.breaker.force_open("tool")
    held = [one.call("tool"), other.call("tool")]
    one.hf.breaker.auto("tool")

    assert before == ["ok", "ok"]
    assert held == ["CircuitOpen", "ok"]
    assert one.call("tool") == "ok"


def test_a_circuit_held_closed_by_hand_is_held_closed_here_alone(pair: tuple[Member, Member]) -> None:
    one, other = pair
    one.trip("bad")
    known = other.call("bad")

    one.hf.breaker.force_closed("bad")
    held = [one.call("bad"), other.call("bad")]
    one.hf.breaker.auto("bad")

    assert known == "CircuitOpen"
    assert held == ["ok", "CircuitOpen"]
    assert one.call("bad") == "CircuitOpen"


def test_failures_while_held_closed_by_hand_do_not_count_for_others(pair: tuple[Member, Member]) -> None:
    one, other = pair
    one.hf.breaker.force_closed("tool")

    for _ in range(10):
        one.call("tool", fails=True)
    one.hf.close()  # whatever was to be told is told

    assert other.call("tool") == "ok"


def test_without_its_library_opening_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hiredis", None)

    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[redis\]'"):
        holdfast.open(":memory:", policies={}, redis="redis://127.0.0.1:1")
