"""What each mode of a tool costs in round trips, as Redis counts them, and what it shares."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import msgspec
import pytest
from tests.fleet.members import Member, askers, member, questions, take_all, wait_until
from tests.servers import RedisServer, Toxic

from holdfast.fleet.desk import KEPT, Block, block_of
from holdfast.fleet.pool import MOST
from holdfast.guards.rate import RateConfig
from holdfast.testing import ManualClock
from holdfast.tools import limiting

MANY = {"per_second": 1000.0, "burst": 1000.0}
POLICIES = {
    "policy": {"max_wait": 0.0, "breaker": {"failure_threshold": 3, "min_backoff": 600.0, "max_backoff": 600.0}},
    "tool": {
        "exact": {"rate": {"per_second": 0.001, "burst": 1000}},
        "slots": {"concurrency": 64},
        "leased": {"mode": "leased", "rate": MANY},
        "view": {"mode": "view", "rate": {"per_second": 0.001, "burst": 50}},
        "soon": {"rate": {"per_second": 5, "burst": 1}, "max_wait": 60.0},
        "unguarded": {"breaker": False},
        "adaptive": {"rate": {"per_second": 1000, "adaptive": True}},
        "learning": {"mode": "leased", "rate": {"per_second": 1000, "adaptive": True}},
    },
}


@pytest.fixture
def one(own_redis: RedisServer) -> Iterator[Member]:
    """One of a fleet, patient, whose leased tokens are good for as long as the test takes."""
    with member(f"{own_redis.url}?wait=10", POLICIES, clock=ManualClock()) as it:
        yield it


def trips(redis: RedisServer) -> int:
    """How often the guards were asked since this was last called."""
    asked = questions(redis)
    redis.command("CONFIG", "RESETSTAT")
    return asked


def test_an_exact_call_takes_one_round_trip(own_redis: RedisServer, one: Member) -> None:
    trips(own_redis)

    went = [one.call("exact") for _ in range(100)]

    assert went == ["ok"] * 100
    assert trips(own_redis) == 100


async def test_an_exact_call_of_a_task_takes_one_round_trip_on_one_connection_for_all(
    own_redis: RedisServer, one: Member
) -> None:
    await one.acall("exact")
    trips(own_redis)

    went = await asyncio.gather(*(one.acall("exact") for _ in range(100)))

    assert went == ["ok"] * 100
    assert trips(own_redis) == 100
    assert askers(own_redis) == 1


def test_a_token_that_comes_soon_is_reserved_and_waited_for(own_redis: RedisServer, one: Member) -> None:
    clock = one.hf.clock
    assert isinstance(clock, ManualClock)
    went = []

    while not clock.slept:  # until one comes before its token, as all do that the machine does not keep waiting
        trips(own_redis)
        went.append(one.call("soon"))

    assert set(went) == {"ok"}
    assert len(went) > 1
    assert trips(own_redis) == 1
    assert 0.0 < sum(clock.slept) <= 0.2


async def test_slots_go_back_with_the_next_question(own_redis: RedisServer, one: Member) -> None:
    await one.acall("slots")
    trips(own_redis)

    for _ in range(10):
        await asyncio.gather(*(one.acall("slots") for _ in range(20)))
    told = trips(own_redis)

    assert 200 <= told < 300  # what no question takes along is told by itself, some at a time
    key = "holdfast:{slots}"
    wait_until(lambda: own_redis.command("HGET", key, "used") in (None, b"0"), "for the slots to be given back")


def test_leased_tokens_take_one_round_trip_a_block(own_redis: RedisServer, one: Member) -> None:
    block = block_of(RateConfig(**MANY), 1.0)
    trips(own_redis)

    went = [one.call("leased") for _ in range(3 * block)]

    assert block == 100
    assert went == ["ok"] * (3 * block)
    assert trips(own_redis) == 3


def test_leased_tokens_are_taken_with_the_lock_held_where_threads_run_in_parallel(
    one: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.call("leased")
    lock, take, held = one.hf._box.tool("leased").limiting._lock, Block.take, []

    def looked_at(block: Block, now: float, cost: float = 1.0) -> bool:
        held.append(lock.locked())
        return take(block, now, cost)

    monkeypatch.setattr(limiting, "UNDIVIDED", False)
    monkeypatch.setattr(Block, "take", looked_at)
    one.call("leased")

    assert held == [True]


def test_leased_tokens_are_good_for_a_second(own_redis: RedisServer, one: Member) -> None:
    clock = one.hf.clock
    assert isinstance(clock, ManualClock)
    one.call("leased")
    trips(own_redis)

    clock.advance(KEPT)
    went = one.call("leased")

    assert went == "ok"
    assert trips(own_redis) == 1


def test_successes_of_leased_calls_are_told_while_the_rate_is_cut(own_redis: RedisServer, one: Member) -> None:
    class TooMany(Exception):
        status_code = 429
        retry_after = 600.0  # in which nothing recovers

    def good() -> object:
        learnt = own_redis.command("HGET", "holdfast:{learning}", "learnt")
        return msgspec.msgpack.decode(learnt)["good"] if learnt else None

    with pytest.raises(TooMany), one.hf.guard("learning"):
        raise TooMany
    share = one.hf._box.tool("learning").share
    wait_until(lambda: share is not None and share.desk.rate is not None, "for the cut to be seen")

    assert one.call("learning") == "ok"

    wait_until(lambda: good() == 1, "for the success to be told")


def test_a_view_takes_no_round_trip_while_all_is_calm(own_redis: RedisServer, one: Member) -> None:
    first = one.call("view")
    trips(own_redis)

    went = [one.call("view") for _ in range(40)]

    assert [first, *went] == ["ok"] * 41
    assert trips(own_redis) == 0


def test_a_view_is_told_of_an_opening_and_has_limits_of_its_own(own_redis: RedisServer, one: Member) -> None:
    with member(f"{own_redis.url}?wait=10", POLICIES) as other:
        used_up = [other.call("view") for _ in range(51)]
        mine = one.call("view")

        with member(f"{own_redis.url}?wait=10", POLICIES) as third:
            third.trip("view")
        one.heard.wait_for("circuit_opened", "view")
        trips(own_redis)

        assert used_up == ["ok"] * 50 + ["RateLimited"]
        assert mine == "ok"
        assert one.call("view") == "CircuitOpen"
        assert trips(own_redis) == 0


def test_a_tool_without_shared_guards_is_nobodys_business(own_redis: RedisServer, one: Member) -> None:
    trips(own_redis)

    assert [one.call("unguarded") for _ in range(10)] == ["ok"] * 10
    assert trips(own_redis) == 0


def test_an_open_circuit_refuses_without_a_round_trip(own_redis: RedisServer, one: Member) -> None:
    one.trip("exact")
    trips(own_redis)

    assert [one.call("exact") for _ in range(10)] == ["CircuitOpen"] * 10
    assert trips(own_redis) == 0


def test_many_threads_share_a_few_connections(own_redis: RedisServer) -> None:
    with Toxic(own_redis.port) as toxic, member(f"{toxic.url}?wait=10", POLICIES) as one:
        toxic.latency(0.02)
        went: list[str] = []
        threads = [threading.Thread(target=lambda: went.append(one.call("exact"))) for _ in range(100)]
        most = 0

        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            most = max(most, toxic.connections)
        for thread in threads:
            thread.join()

        assert went == ["ok"] * 100
        assert one.fleet.fallbacks == 0
        assert most <= MOST + 1  # and the one that listens


def test_what_is_to_be_told_is_told_although_no_connection_was_free_in_time(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with member(f"{own_redis.url}?wait=1", POLICIES) as one:
        (pool,) = one.fleet.connections.pools.values()
        with one.hf.guard("slots"):
            taken = take_all(pool)
        wait_until(lambda: pool._waiters, "for the service to stand in line")
        alone = one.call("slots")  # would take along that it is free again
        wait_until(lambda: one.fleet._marked, "for the service to give up")
        before = own_redis.command("HGET", "holdfast:{slots}", "used")

        for link in taken:
            pool.give(link)

        assert (alone, before) == ("ok", b"1")
        assert one.fleet.fallbacks > 0
        wait_until(lambda: "no connection was free within 1 s" in caplog.text, "for it to be said")
        wait_until(lambda: own_redis.command("HGET", "holdfast:{slots}", "used") == b"0", "for the slot to come back")


def test_a_rate_that_one_process_was_told_to_cut_is_cut_for_all_until_it_has_recovered(own_redis: RedisServer) -> None:
    class TooMany(Exception):
        status_code = 429

    def rate(of: Member) -> float | None:
        assert of.call("adaptive") in {"ok", "RateLimited"}
        return of.hf._box.tool("adaptive").limits(of.hf.clock.monotonic()).rate

    with (
        member(f"{own_redis.url}?wait=10", POLICIES) as one,
        member(f"{own_redis.url}?wait=10", POLICIES) as other,
    ):
        before = rate(other)

        with pytest.raises(TooMany), one.hf.guard("adaptive"):
            raise TooMany

        assert before == 1000
        wait_until(lambda: (rate(other) or 0) < 1000, "for the cut to be seen by the other")
        own_redis.command("HSET", "holdfast:{adaptive}", "learnt", "")  # as after a long quiet spell
        wait_until(lambda: rate(other) == 1000, "for the rate to be whole again")
