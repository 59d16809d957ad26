"""Which server has a key, told by a function, by a real sentinel and by a real cluster."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers import Cluster, RedisServer, Sentinel
from tests.servers.redis import RedisSaid, ask

from holdfast.fleet.address import Address
from holdfast.fleet.fleet import Fleet
from holdfast.fleet.link import Away, packed
from holdfast.fleet.script import KEYS
from holdfast.fleet.topology import SLOTS, Node, Topology, slot_of

CLUSTER = Address.parse("redis+cluster://10.0.0.1,10.0.0.2")
SENTINEL = Address.parse("redis+sentinel://10.0.0.1,10.0.0.2/mine")

# --- slots ---


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        (b"", 0),
        (b"123456789", 12739),
        (b"foo", 12182),
        (b"bar", 5061),
        (b"hello", 866),
        (b"{user1000}.following", 3443),
        (b"{user1000}.followers", 3443),
        (b"foo{bar}{zap}", 5061),
        (b"foo{{bar}}zap", 4015),
        (b"foo{}{bar}", 8363),
    ],
)
def test_a_key_is_in_the_slot_that_the_specification_says(key: bytes, slot: int) -> None:
    assert slot_of(key) == slot


@given(tag=st.binary(min_size=1).filter(lambda tag: b"}" not in tag), suffix=st.binary())
def test_keys_with_one_tag_are_in_one_slot(tag: bytes, suffix: bytes) -> None:
    assert slot_of(b"holdfast:{" + tag + b"}" + suffix) == slot_of(tag)


@pytest.mark.parametrize("tool", ["search", "}", "{}", "a}b", "{a}b{c}", "%7D"])
def test_all_keys_of_a_tool_are_in_one_slot(tool: str) -> None:
    key = Fleet("redis+cluster://127.0.0.1:1").desk(tool, lambda _: None).key

    assert len({slot_of(key + suffix.encode()) for suffix in KEYS}) == 1


def test_a_cluster_agrees_on_the_slots_of_odd_keys(cluster: Cluster) -> None:
    keys = [b"", b"{", b"}", b"{}", b"}{", b"{}a", b"a{b}c{d}", b"a{b", b"{a}b}", b"\x00\xff{\xfe}", b"x" * 1000]

    told = [cluster.nodes[0].command("CLUSTER", "KEYSLOT", key) for key in keys]

    assert [slot_of(key) for key in keys] == told


# --- topology, told by a function ---


class Told:
    """Answers as a table says, and remembers who was asked."""

    def __init__(self, answers: dict[tuple[str, str], Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(self, node: Node, command: bytes) -> Any:
        word = command.split(b"\r\n")[2].decode()
        self.asked.append(f"{node.host} {word}")
        answer = self.answers.get((node.host, word), OSError("no route"))
        if isinstance(answer, OSError):
            raise answer
        return answer() if callable(answer) else answer


def halves(first: str, second: str) -> list[Any]:
    """What a cluster of two says."""
    return [[0, 8191, [first.encode(), 7000, b"id"]], [8192, SLOTS - 1, [second.encode(), 7000, b"id"], [b"r", 1, b""]]]


def found_in(topology: Topology, key: bytes) -> Node:
    """Who has *key*; asks where that is not known."""
    if topology.peek(key) is None:
        topology.find_server()
    node = topology.peek(key)
    assert node is not None
    return node


@pytest.mark.parametrize(
    ("url", "node"),
    [
        ("redis://h:7000", Node("h", 7000)),
        ("rediss://h", Node("h", 6379, tls=True)),
        ("unix:///run/redis.sock", Node(path="/run/redis.sock")),
    ],
)
def test_one_server_has_every_key_and_nobody_is_asked(url: str, node: Node) -> None:
    told = Told({})
    topology = Topology(Address.parse(url), told)

    found = [found_in(topology, b"a"), topology.peek(b"b"), topology.find_server()]
    topology.forget()

    assert [*found, topology.peek(b"a")] == [node] * 4
    assert told.asked == []


def test_a_lone_server_that_speaks_of_slots_is_told_from_an_outage() -> None:
    topology = Topology(Address.parse("redis://h"), Told({}))

    with pytest.raises(Away, match=r"redis\+cluster://"):
        topology.moved(1, "other", 7000)


def test_the_slots_are_read_once_and_again_when_they_are_forgotten() -> None:
    told = Told({("10.0.0.1", "CLUSTER"): halves("a", "b")})
    topology = Topology(CLUSTER, told)

    before = topology.peek(b"foo")
    found = [found_in(topology, b"foo"), found_in(topology, b"bar"), topology.peek(b"foo")]
    topology.forget()

    assert before is None
    assert found == [Node("b", 7000), Node("a", 7000), Node("b", 7000)]
    assert topology.peek(b"foo") is None
    assert told.asked == ["10.0.0.1 CLUSTER"]


def test_a_moved_slot_is_looked_for_where_it_went() -> None:
    topology = Topology(CLUSTER, Told({("10.0.0.1", "CLUSTER"): halves("a", "b")}))
    found_in(topology, b"foo")

    topology.moved(slot_of(b"foo"), "c", 7001)

    assert found_in(topology, b"foo") == Node("c", 7001)
    assert found_in(topology, b"bar") == Node("a", 7000)


@pytest.mark.parametrize("unnamed", ["", "?"])
def test_a_move_without_a_host_means_the_host_that_said_it(unnamed: str) -> None:
    topology = Topology(CLUSTER, Told({("10.0.0.1", "CLUSTER"): halves("a", "b")}))
    found_in(topology, b"foo")

    topology.moved(slot_of(b"foo"), unnamed, 7001)

    assert found_in(topology, b"foo") == Node("b", 7001)


@pytest.mark.parametrize(("slot", "port"), [(-1, 1), (SLOTS, 1), (0, 0), (0, 65_536)])
def test_a_move_that_cannot_be_is_not_believed(slot: int, port: int) -> None:
    topology = Topology(CLUSTER, Told({}))

    with pytest.raises(Away, match="cannot be"):
        topology.moved(slot, "h", port)


@pytest.mark.parametrize("unnamed", [b"", b"?", None])
def test_a_node_without_a_name_is_on_the_host_that_was_asked(unnamed: bytes | None) -> None:
    topology = Topology(CLUSTER, Told({("10.0.0.1", "CLUSTER"): [[0, SLOTS - 1, [unnamed, 7000, b"id"]]]}))

    assert found_in(topology, b"foo") == Node("10.0.0.1", 7000)


def test_those_that_do_not_answer_are_passed_over_and_asked_last_next_time() -> None:
    told = Told({("10.0.0.2", "CLUSTER"): halves("a", "b")})
    topology = Topology(CLUSTER, told)

    found_in(topology, b"foo")
    topology.forget()
    found_in(topology, b"foo")

    assert told.asked == ["10.0.0.1 CLUSTER", "10.0.0.2 CLUSTER", "10.0.0.2 CLUSTER"]


def test_nodes_that_were_learnt_are_asked_when_all_that_were_named_are_gone() -> None:
    told = Told({("10.0.0.1", "CLUSTER"): halves("a", "b"), ("b", "CLUSTER"): halves("b", "b")})
    topology = Topology(CLUSTER, told)
    found_in(topology, b"foo")
    del told.answers["10.0.0.1", "CLUSTER"]

    topology.forget()
    topology.forget()

    assert found_in(topology, b"bar") == Node("b", 7000)
    assert topology.find_server() == Node("b", 7000)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (RuntimeError("ERR This instance has cluster support disabled"), "cluster support disabled"),
        (b"OK", "not the answer of a cluster: b'OK'"),
        ([[0, SLOTS, [b"a", 7000]]], "not the answer of a cluster"),
        ([[0, 1]], "not the answer of a cluster"),
        (OSError("no route"), "no route"),
    ],
)
def test_where_nobody_says_it_the_reason_is_given(answer: Any, complaint: str) -> None:
    topology = Topology(CLUSTER, Told({("10.0.0.1", "CLUSTER"): answer}))

    with pytest.raises(Away, match=complaint):
        topology.find_server()


def test_a_slot_that_nobody_has_is_not_known_while_others_are() -> None:
    topology = Topology(CLUSTER, Told({("10.0.0.1", "CLUSTER"): halves("a", "b")[:1]}))

    topology.find_server()

    assert topology.peek(b"foo") is None
    assert topology.peek(b"bar") == Node("a", 7000)


def master(host: str) -> list[bytes]:
    return [host.encode(), b"7000"]


def test_the_master_is_asked_for_once_and_again_when_it_is_forgotten() -> None:
    told = Told({("10.0.0.1", "SENTINEL"): master("m"), ("m", "ROLE"): [b"master", 0, []]})
    topology = Topology(SENTINEL, told)

    found = [topology.peek(b"a"), found_in(topology, b"a"), found_in(topology, b"b"), topology.peek(b"c")]
    topology.forget()

    assert found == [None, *[Node("m", 7000)] * 3]
    assert topology.peek(b"a") is None
    assert told.asked == ["10.0.0.1 SENTINEL", "m ROLE"]


def test_a_sentinel_that_names_the_old_master_is_passed_over() -> None:
    told = Told(
        {
            ("10.0.0.1", "SENTINEL"): master("old"),
            ("old", "ROLE"): [b"slave", b"new", 7000, b"connected", 1],
            ("10.0.0.2", "SENTINEL"): master("new"),
            ("new", "ROLE"): [b"master", 0, []],
        }
    )

    assert Topology(SENTINEL, told).find_server() == Node("new", 7000)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (None, "10.0.0.1:26379: the sentinel knows no master 'mine'"),
        (b"OK", "not the answer of a sentinel"),
        (RuntimeError("ERR unknown command"), "unknown command"),
    ],
)
def test_where_no_sentinel_knows_the_master_the_reason_is_given(answer: Any, complaint: str) -> None:
    topology = Topology(SENTINEL, Told({("10.0.0.1", "SENTINEL"): answer}))

    with pytest.raises(Away, match=complaint):
        topology.find_server()


def test_sentinels_are_asked_as_sentinels_and_the_master_as_none() -> None:
    seen: list[Node] = []

    def answer(node: Node, command: bytes) -> Any:
        seen.append(node)
        return master("m") if node.sentinel else [b"master"]

    Topology(SENTINEL, answer).find_server()

    assert seen == [Node("10.0.0.1", 26379, sentinel=True), Node("m", 7000)]


def test_an_answer_that_was_on_its_way_when_all_was_forgotten_is_not_kept() -> None:
    def forgotten_meanwhile() -> list[Any]:
        topology.forget()
        return halves("old", "old")

    topology = Topology(CLUSTER, Told({("10.0.0.1", "CLUSTER"): forgotten_meanwhile}))

    found = topology.find_server()

    assert found == Node("10.0.0.1", 6379)
    assert topology.peek(b"foo") is None


def test_who_knows_the_place_does_not_wait_for_those_who_ask() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow() -> list[Any]:
        asked.set()
        assert go_on.wait(30)
        return halves("a", "b")

    topology = Topology(CLUSTER, Told({("10.0.0.1", "CLUSTER"): slow}))
    asker = threading.Thread(target=topology.find_server)
    asker.start()
    assert asked.wait(30)

    topology.moved(slot_of(b"bar"), "c", 7001)
    known = found_in(topology, b"bar")
    topology.forget()
    go_on.set()
    asker.join()

    assert known == Node("c", 7001)


# --- topology, told by real servers ---


def on_the_wire(node: Node, command: bytes) -> Any:
    parts = command.split(b"\r\n")[2::2]
    try:
        return ask(node.host, node.port, *parts)
    except RedisSaid as error:
        return error


def test_a_real_sentinel_names_the_master_also_after_it_has_failed_over(sentinel: Sentinel) -> None:
    topology = Topology(Address.parse(sentinel.url), on_the_wire)
    before = found_in(topology, b"key")

    sentinel.fail_over()
    topology.forget()
    after = found_in(topology, b"key")

    assert {before.port, after.port} == {sentinel.master.port, sentinel.replica.port}
    assert on_the_wire(after, packed(("SET", "key", "value"))) == b"OK"
    assert topology.find_server() == after


def test_each_node_of_a_real_cluster_takes_the_keys_that_are_its_own(cluster: Cluster) -> None:
    topology = Topology(Address.parse(cluster.url), on_the_wire)
    keys = [b"holdfast:{tool-%d}" % number for number in range(50)]

    replies = [on_the_wire(found_in(topology, key), packed(("SET", key, "value"))) for key in keys]

    assert replies == [b"OK"] * len(keys)
    assert {found_in(topology, key).port for key in keys} == {node.port for node in cluster.nodes}


def test_a_slot_that_a_real_cluster_moves_is_found_again(cluster: Cluster) -> None:
    key = b"a key that nobody has set"
    topology = Topology(Address.parse(cluster.url), on_the_wire)
    before = found_in(topology, key)
    target = next(node for node in cluster.nodes if node.port != before.port)
    cluster.move(slot_of(key), target)

    reply = str(on_the_wire(before, packed(("GET", key))))
    _, slot, place = reply.split()
    host, _, port = place.rpartition(":")
    topology.moved(int(slot), host, int(port))

    assert found_in(topology, key) == Node("127.0.0.1", target.port)
    assert on_the_wire(found_in(topology, key), packed(("GET", key))) is None


def test_a_server_that_is_no_cluster_says_so(own_redis: RedisServer) -> None:
    topology = Topology(Address.parse(f"redis+cluster://127.0.0.1:{own_redis.port}"), on_the_wire)

    with pytest.raises(Away, match="cluster support disabled"):
        topology.find_server()
