"""Where Redis answers, but not about one tool or not on one node, the others are shared as before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from tests.fleet.members import agree, member, questions, wait_until
from tests.servers import Cluster, RedisServer
from tests.servers.fixtures import or_skipped
from tests.servers.groups import SLOTS

from holdfast.fleet.address import Address
from holdfast.fleet.link import Away, Link
from holdfast.fleet.pool import Pool
from holdfast.fleet.topology import Node, slot_of

PATIENT = "?wait=10"


def test_a_key_of_a_wrong_type_is_the_trouble_of_its_tool_alone(own_redis: RedisServer) -> None:
    url = own_redis.url + PATIENT
    own_redis.command("SET", "holdfast:{three bad}", "not ours")

    with member(url) as one, member(url) as other:
        went = [one.call("three bad"), asyncio.run(one.acall("three bad"))]
        lost = one.heard.wait_for("fleet_lost")
        alone = [one.call("three bad") for _ in range(3)]
        agreed = agree(one, other, "three good")
        own_redis.command("DEL", "holdfast:{three bad}")
        returned = one.heard.wait_for("fleet_returned")

        assert went == ["ok", "ok"]
        assert lost.tool == returned.tool == "three bad"
        assert "WRONGTYPE" in str(lost.payload["error"])
        assert alone == ["ok", "RateLimited", "RateLimited"]  # it has the limit of one process
        assert agreed
        assert one.fleet.outages == 0
        assert agree(one, other, "three bad")


def test_who_would_rather_refuse_refuses_a_tool_that_is_missing_and_no_other(own_redis: RedisServer) -> None:
    own_redis.command("SET", "holdfast:{bad}", "not ours")

    with member(own_redis.url + PATIENT, on_outage="refuse") as one:
        went = [one.call(tool) for tool in ("bad", "good", "bad")]

        assert went == ["CircuitOpen", "ok", "CircuitOpen"]


def test_a_slot_of_a_tool_that_was_missing_is_told_when_it_is_back(own_redis: RedisServer) -> None:
    policies = {"tool": {"slots": {"concurrency": 9}}}
    with member(own_redis.url + PATIENT, policies) as one:
        one.fleet.lease = 600.0
        with one.hf.guard("slots"):
            own_redis.command("RENAME", "holdfast:{slots}", "kept")
            own_redis.command("SET", "holdfast:{slots}", "not ours")
            one.call("slots")
            one.heard.wait_for("fleet_lost", "slots")
        own_redis.command("RENAME", "kept", "holdfast:{slots}")

        one.heard.wait_for("fleet_returned", "slots")
        wait_until(lambda: own_redis.command("HGET", "holdfast:{slots}", "used") == b"0", "for the slot to come back")


@pytest.mark.parametrize(("key", "fails"), [("holders", False), ("failures", True)])
def test_a_tool_is_missing_until_its_calls_would_be_answered(own_redis: RedisServer, key: str, fails: bool) -> None:
    with member(own_redis.url + PATIENT, {"tool": {"bad": {"concurrency": 9}}}) as one:
        one.call("bad")
        own_redis.command("SET", f"holdfast:{{bad}}:{key}", "not ours")
        one.call("bad", fails=fails)
        one.heard.wait_for("fleet_lost", "bad")
        asked = questions(own_redis)
        wait_until(lambda: questions(own_redis) >= asked + 2, "for it to be looked for again and again")
        back = one.heard.of("fleet_returned")

        own_redis.command("DEL", f"holdfast:{{bad}}:{key}")
        one.heard.wait_for("fleet_returned", "bad")

        assert not back
        assert len(one.heard.of("fleet_lost")) == 1


def test_slots_that_no_holder_accounts_for_are_free_when_their_tool_is_back(own_redis: RedisServer) -> None:
    with member(own_redis.url + PATIENT, {"tool": {"bad": {"concurrency": 9}}}) as one:
        one.call("bad")
        own_redis.command("SET", "holdfast:{bad}:holders", "not ours")
        one.call("bad")
        one.heard.wait_for("fleet_lost", "bad")
        own_redis.command("HSET", "holdfast:{bad}", "used", "9")

        own_redis.command("DEL", "holdfast:{bad}:holders")
        one.heard.wait_for("fleet_returned", "bad")

        assert own_redis.command("HGET", "holdfast:{bad}", "used") == b"0"


# --- clusters ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster of this test alone, whose nodes answer although one of them is gone."""
    with or_skipped():
        cluster = Cluster.start()
    with cluster:
        for node in cluster.nodes:
            node.command("CONFIG", "SET", "cluster-require-full-coverage", "no")
        yield cluster


def on_node(number: int, prefix: str = "holdfast") -> Iterator[str]:
    """Names of tools that a node has."""
    names = (f"three {each}" for each in range(999))
    return (name for name in names if slot_of(f"{prefix}:{{{name}}}".encode()) * 3 // SLOTS == number)


def test_a_node_that_is_away_is_the_trouble_of_its_tools_alone(own_cluster: Cluster) -> None:
    url = own_cluster.url + "?wait=2"
    here, gone = on_node(1), on_node(2)
    with member(url) as one, member(url) as other:
        before = [agree(one, other, next(here)), agree(one, other, next(gone))]
        tool, another = next(gone), next(gone)

        own_cluster.nodes[2].kill()
        went = [one.call(tool), asyncio.run(one.acall(another))]
        lost = [one.heard.wait_for("fleet_lost", name) for name in (tool, another)]
        agreed = [agree(one, other, next(here)) for _ in range(3)]
        own_cluster.nodes[2].start_again()
        for name in (tool, another):
            one.heard.wait_for("fleet_returned", name)

        assert before == [True, True]
        assert went == ["ok", "ok"]
        assert all(event.payload["error"] for event in lost)
        assert agreed == [True] * 3
        assert one.fleet.outages == 0
        assert agree(one, other, next(gone))


def test_a_node_that_is_full_is_the_trouble_of_its_tools_until_it_writes_again(own_cluster: Cluster) -> None:
    url = own_cluster.url + PATIENT
    full, here, gone = own_cluster.nodes[2], on_node(1), on_node(2)
    tool = next(gone)
    with member(url) as one, member(url) as other:
        before = one.call(tool)
        full.command("CONFIG", "SET", "maxmemory", "1")
        went = one.call(tool)
        one.heard.wait_for("fleet_lost", tool)
        asked = questions(full)
        wait_until(lambda: questions(full) >= asked + 2, "for it to be looked for again and again")
        back = one.heard.of("fleet_returned")
        agreed = agree(one, other, next(here))

        full.command("CONFIG", "SET", "maxmemory", "0")
        one.heard.wait_for("fleet_returned", tool)

        assert [before, went] == ["ok", "ok"]
        assert not back
        assert agreed
        assert len(one.heard.of("fleet_lost")) == 1
        assert agree(one, other, next(gone))


def test_a_slot_that_is_given_back_while_a_cluster_moves_the_tool_is_free_when_it_has_moved(cluster: Cluster) -> None:
    key = "giving:{slots}"
    slot = slot_of(key.encode())
    source, target = (cluster.nodes[(slot * 3 // SLOTS + step) % 3] for step in range(2))
    with member(f"{cluster.url}?prefix=giving&wait=10", {"tool": {"slots": {"concurrency": 9}}}) as one:
        one.fleet.lease = 600.0  # no lease brings back what is lost
        with one.hf.guard("slots"):
            target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.command("CLUSTER", "MYID"))
            source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.command("CLUSTER", "MYID"))
        one.heard.wait_for("fleet_lost", "slots")
        keys = source.command("CLUSTER", "GETKEYSINSLOT", slot, 10)
        assert isinstance(keys, list)

        source.command("MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "KEYS", *keys)
        cluster.move(slot, target)
        one.heard.wait_for("fleet_returned", "slots")

        wait_until(lambda: target.command("HGET", key, "used") == b"0", "for the slot to come back")


@pytest.mark.parametrize("lend", [Pool.lend, lambda pool: asyncio.run(pool.alend())], ids=["thread", "task"])
def test_who_waits_while_a_node_turns_out_to_be_away_is_told_so(lend: Callable[[Pool], Link | None]) -> None:
    def look() -> None:
        """As the service does, in its own time."""
        pool.trouble = Away("connection refused")

    pool = Pool(Node("127.0.0.1", 1), Address.parse("redis://127.0.0.1:1?wait=0.01"), look)

    with pytest.raises(Away, match="connection refused"):
        lend(pool)


def test_a_cluster_is_there_although_it_moves_the_key_that_is_tried(cluster: Cluster) -> None:
    url = f"{cluster.url}?prefix=trying&wait=10"
    slot = slot_of(b"trying:tried{once}")
    source, target = (cluster.nodes[(slot * 3 // SLOTS + step) % 3] for step in range(2))
    with member(f"redis+cluster://127.0.0.1:{source.port}?prefix=trying&wait=10"):
        assert source.command("EXISTS", "trying:tried{once}") == 1

    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.command("CLUSTER", "MYID"))
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.command("CLUSTER", "MYID"))
    try:
        with member(f"redis+cluster://127.0.0.1:{source.port}?prefix=trying&wait=10"), member(url):
            pass
    finally:
        for node in (source, target):
            node.command("CLUSTER", "SETSLOT", slot, "STABLE")


async def test_a_cluster_that_sends_on_the_question_of_a_cancelled_task_is_there(cluster: Cluster) -> None:
    slot = slot_of(b"forsaken:{three sent on}")
    source, target = (cluster.nodes[(slot * 3 // SLOTS + step) % 3] for step in range(2))
    with member(f"{cluster.url}?prefix=forsaken&wait=10") as one:
        known = next(on_node(slot * 3 // SLOTS, "forsaken"))
        await one.acall(known)
        cluster.move(slot, target)
        before = one.fleet.holder
        source.pause()
        asking = asyncio.create_task(one.acall("three sent on"))
        await asyncio.sleep(0)  # it begins …
        await asyncio.sleep(0)  # … and its question is sent

        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        source.resume()
        await one.acall(known)  # answered after the question before it

        assert one.fleet.is_available
        assert one.fleet.outages == 0
        assert not one.fleet.missing
        assert one.fleet.holder != before  # what was told along with it may not have been taken
