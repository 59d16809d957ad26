"""Every kind of address leads to a fleet that shares, whatever its tools are called, and to no other fleet."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.fleet.members import POLICIES, agree, member, wait_until, wait_until_agreed
from tests.servers import Cluster, RedisServer, Sentinel
from tests.servers.finding import Missing, free_port, home
from tests.servers.fixtures import or_skipped
from tests.servers.groups import SLOTS

from holdfast.fleet.topology import slot_of

PATIENT = "wait=10"
SECRET = "p w:@/?#%"
QUOTED = "p%20w%3A%40%2F%3F%23%25"


def on_socket(server: RedisServer) -> str:
    return f"unix://{server.socket}?{PATIENT}"


def in_database(server: RedisServer) -> str:
    return f"{server.url}/3?{PATIENT}"


def on_socket_in_database(server: RedisServer) -> str:
    return f"unix://{server.socket}?db=3&{PATIENT}"


def with_password(server: RedisServer) -> str:
    server.command("CONFIG", "SET", "requirepass", SECRET)
    return f"redis://:{QUOTED}@127.0.0.1:{server.port}?{PATIENT}"


def as_user(server: RedisServer) -> str:
    server.command("ACL", "SETUSER", "agent", "on", f">{SECRET}", "~*", "&*", "+@all")
    return f"redis://agent:{QUOTED}@127.0.0.1:{server.port}?{PATIENT}"


@pytest.mark.parametrize("place", [on_socket, in_database, on_socket_in_database, with_password, as_user])
def test_all_who_name_an_address_share(own_redis: RedisServer, place: Callable[[RedisServer], str]) -> None:
    url = place(own_redis)

    with member(url) as one, member(url) as other:
        assert agree(one, other, "three")
        assert one.fleet.fallbacks == other.fleet.fallbacks == 0


def test_a_wrong_password_is_an_outage_that_does_not_tell_it(own_redis: RedisServer) -> None:
    own_redis.command("CONFIG", "SET", "requirepass", "right")

    with member(f"redis://:wrong-one@127.0.0.1:{own_redis.port}?{PATIENT}", finds=False) as one:
        went = one.call("plain")
        trouble = one.fleet.trouble

    assert went == "ok"
    assert "WRONGPASS" in trouble
    assert "wrong-one" not in trouble


def test_a_server_that_repeats_the_login_it_refuses_does_not_have_it_told() -> None:
    with or_skipped():
        server = RedisServer.start(None, "--rename-command", "AUTH", "")

    with server, member(f"redis://bob:hunter-two@127.0.0.1:{server.port}?{PATIENT}", finds=False) as one:
        trouble = one.fleet.trouble

    assert "refuses the login: ERR" in trouble
    assert "hunter-two" not in trouble


@pytest.fixture
def guarded() -> Iterator[str]:
    """The address of a Redis that speaks TLS."""
    folder = home(None)
    try:
        with or_skipped():
            port, certificate = free_port(), _certificate(folder)
            tls = ("--tls-port", str(port), "--tls-auth-clients", "no", "--tls-cert-file", str(certificate))
            server = RedisServer.start(folder, *tls, "--tls-key-file", str(folder / "key"))
        with server:
            yield f"rediss://127.0.0.1:{port}?ca={certificate}&{PATIENT}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _certificate(folder: Path) -> Path:
    key, certificate = folder / "key", folder / "certificate"
    words = "openssl req -x509 -nodes -days 2 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=holdfast"
    name = ("-addext", "subjectAltName=IP:127.0.0.1")
    try:
        made = subprocess.run(
            [*words.split(), *name, "-keyout", key, "-out", certificate], capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise Missing("no openssl to make a certificate with") from error
    assert made.returncode == 0, made.stderr
    key.chmod(0o644)  # the server runs as somebody else
    return certificate


async def test_threads_and_tasks_share_over_tls(guarded: str) -> None:
    with member(guarded) as one, member(guarded) as other:
        went = [await one.acall("three"), one.call("three"), await other.acall("three"), other.call("three")]

        assert went == ["ok", "ok", "ok", "RateLimited"]
        assert one.fleet.fallbacks == other.fleet.fallbacks == 0


# --- several servers --------------------------------------------------------------------------------------------------


async def test_a_cluster_is_asked_where_each_tool_is_and_tells_of_changes(cluster: Cluster) -> None:
    url = f"{cluster.url}?prefix=asked&{PATIENT}"
    names = [f"three {number}" for number in range(6)]
    nodes = {slot_of(f"asked:{{{name}}}".encode()) * 3 // SLOTS for name in names}

    with member(url) as one, member(url) as other:
        known = other.call("bad")
        one.trip("bad")
        other.heard.wait_for("circuit_opened", "bad")

        assert nodes == {0, 1, 2}
        assert known == "ok"
        assert all(agree(one, other, name) for name in names)
        assert await one.acall(names[0]) == "RateLimited"


def test_keys_of_a_cluster_that_have_moved_are_followed(cluster: Cluster) -> None:
    url = f"{cluster.url}?prefix=moved&{PATIENT}"
    slot = slot_of(b"moved:{three}")
    target = cluster.nodes[(slot * 3 // SLOTS + 1) % 3]

    with member(url) as one, member(url) as other:
        before = agree(one, other, "three before")
        cluster.move(slot, target)

        assert before
        assert agree(one, other, "three")
        assert target.command("EXISTS", "moved:{three}") == 1


async def test_while_a_cluster_moves_a_tool_that_tool_alone_is_guarded_by_each_for_itself(cluster: Cluster) -> None:
    url = f"{cluster.url}?prefix=between&{PATIENT}"
    slot = slot_of(b"between:{three between}")
    source, target = (cluster.nodes[(slot * 3 // SLOTS + step) % 3] for step in range(2))
    elsewhere = next(name for name in map("three {}".format, range(99)) if slot_of(name.encode()) * 3 // SLOTS == 2)

    with member(url) as one, member(url) as other:
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.command("CLUSTER", "MYID"))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.command("CLUSTER", "MYID"))
        went = [one.call("three between"), await other.acall("three between")]
        alone = [one.fleet.fallbacks, other.fleet.fallbacks]
        agreed = agree(one, other, elsewhere)
        cluster.move(slot, target)
        wait_until(lambda: not one.fleet.missing and not other.fleet.missing, "for the tool to be answered again")

        assert went == ["ok", "ok"]
        assert alone == [1, 1]
        assert agreed
        assert agree(one, other, "three between")
        assert [one.fleet.outages, other.fleet.outages] == [0, 0]


async def test_while_a_cluster_moves_a_tool_each_process_counts_its_failures_by_itself(cluster: Cluster) -> None:
    url = f"{cluster.url}?prefix=failing&{PATIENT}"
    slot = slot_of(b"failing:{search}")
    source, target = (cluster.nodes[(slot * 3 // SLOTS + step) % 3] for step in range(2))

    with member(url) as one, member(url) as other:
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.command("CLUSTER", "MYID"))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.command("CLUSTER", "MYID"))
        went = [one.call("search", fails=True) for _ in range(4)]
        awaited = [await other.acall("search", fails=True) for _ in range(4)]
        cluster.move(slot, target)

        assert went == awaited == ["failed", "failed", "failed", "CircuitOpen"]


def test_the_next_master_is_found_through_the_sentinel() -> None:
    with or_skipped():
        group = Sentinel.start()
    with group, member(group.url) as one, member(group.url) as other:
        wait_until_agreed(one, other)

        group.master.kill()
        went = {one.call("plain") for _ in range(100)}
        one.heard.wait_for("fleet_returned")
        other.heard.wait_for("fleet_returned")

        assert went == {"ok"}
        wait_until_agreed(one, other)
        assert {node.port for node in one.fleet.connections.pools} == {group.replica.port}


# --- apart ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", ["/0?prefix=a& /0?prefix=b&", "/0? /1?"])
def test_two_fleets_on_one_redis_do_not_see_each_other(own_redis: RedisServer, apart: str) -> None:
    ours, theirs = (f"{own_redis.url}{rest}{PATIENT}" for rest in apart.split())
    with ExitStack() as opened:
        here, there, near = (opened.enter_context(member(url)) for url in (ours, theirs, ours))
        known = [there.call("bad"), near.call("bad")]
        used = [here.call("three") for _ in range(4)]

        here.trip("bad")
        near.heard.wait_for("circuit_opened", "bad")

        assert known == ["ok", "ok"]
        assert used == ["ok"] * 3 + ["RateLimited"]
        assert [there.call("three") for _ in range(4)] == used
        assert there.call("bad") == "ok"
        assert not there.heard.of("circuit_opened")


HOSTILE = [
    "{}", "{", "}", "}{", "a{b}", "a%7Bb%7D", "a%b", "%", "%25", "a b", "a:b", "a:b:failures", "*", "three\N{ROCKET}",
    "\N{SNOWMAN}" * 200, "'; FLUSHALL; --", "$(reboot)", '"', "\\", "\\x00", "null", "0", "{a}{b}",
    "a\N{COMBINING GRAVE ACCENT}",
]  # fmt: skip


def test_tools_of_any_name_are_shared_and_none_is_taken_for_another(own_redis: RedisServer) -> None:
    policies = {**POLICIES, "policy": {"max_wait": 0.0, "rate": {"per_second": 0.001, "burst": 3}}, "tool": {}}
    url = f"{own_redis.url}?{PATIENT}"

    with member(url, policies) as one, member(url, policies) as other:
        assert [name for name in HOSTILE if not agree(one, other, name)] == []
        assert one.fleet.fallbacks == other.fleet.fallbacks == 0
