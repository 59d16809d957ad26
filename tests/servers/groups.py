"""Redis servers that belong together: a master with a replica and a sentinel; a cluster of three masters."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack

from tests.servers.child import PATIENCE
from tests.servers.finding import Missing, home, owner
from tests.servers.redis import RedisSaid, RedisServer

MASTER = "mine"  # what the sentinel calls it
SLOTS = 16_384


class Sentinel:
    """A master, its replica, and a sentinel that alone decides which is which."""

    def __init__(self, master: RedisServer, replica: RedisServer, sentinel: RedisServer) -> None:
        self.master = master
        self.replica = replica
        self.sentinel = sentinel

    @classmethod
    def start(cls) -> Sentinel:
        with ExitStack() as begun:
            quick = ("--repl-diskless-sync-delay", "0")
            master = begun.enter_context(RedisServer.start(None, *quick))
            replica = begun.enter_context(RedisServer.start(None, *quick, "--replicaof", "127.0.0.1", str(master.port)))
            until(lambda: b"master_link_status:up" in _info(replica, "replication"), "the replica follows its master")
            sentinel = begun.enter_context(_sentinel_of(master))
            until(lambda: b"slaves=1" in _info(sentinel, "sentinel"), "the sentinel knows the replica")
            begun.pop_all()
        return cls(master, replica, sentinel)

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{MASTER}"

    def master_port(self) -> int:
        """The port of the one that the sentinel takes for the master."""
        reply = self.sentinel.command("SENTINEL", "get-master-addr-by-name", MASTER)
        assert isinstance(reply, list)
        assert isinstance(reply[1], bytes)
        return int(reply[1])

    def fail_over(self) -> None:
        """Make the replica the master, and wait until it is."""
        before = self.master_port()
        until(self._promotes, "the sentinel has a replica to promote")
        until(lambda: self.master_port() != before, "the sentinel has promoted the replica")
        if self.master.port == before:
            self.master, self.replica = self.replica, self.master
        until(lambda: b"role:master" in _info(self.master, "replication"), "the replica is the master")

    def close(self) -> None:
        for server in (self.sentinel, self.replica, self.master):
            server.close()

    def __enter__(self) -> Sentinel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _promotes(self) -> bool:
        try:
            return self.sentinel.command("SENTINEL", "FAILOVER", MASTER) == b"OK"
        except RedisSaid:  # it has just begun to watch the replica
            return False


class Cluster:
    """Three masters that share the slots, without replicas."""

    def __init__(self, nodes: list[RedisServer]) -> None:
        self.nodes = nodes

    @classmethod
    def start(cls) -> Cluster:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
        with ExitStack() as begun:
            nodes = [begun.enter_context(RedisServer.start(None, *options)) for _ in range(3)]
            for number, node in enumerate(nodes):
                slots = range(SLOTS * number // 3, SLOTS * (number + 1) // 3)
                node.command("CLUSTER", "ADDSLOTS", *slots)
                node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            for node in nodes[1:]:
                nodes[0].command("CLUSTER", "MEET", "127.0.0.1", node.port)
            until(lambda: all(map(_knows_all, nodes)), "the nodes know each other")
            begun.pop_all()
        return cls(nodes)

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def move(self, slot: int, target: RedisServer) -> None:
        """Give *slot*, which must be empty, to *target*; the others learn it at once."""
        reply = target.command("CLUSTER", "MYID")
        assert isinstance(reply, bytes)
        for node in [target, *(node for node in self.nodes if node is not target)]:
            node.command("CLUSTER", "SETSLOT", slot, "NODE", reply)

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def until(done: Callable[[], bool], what: str) -> None:
    """Return when it is *done*; servers tell each other in their own time."""
    last = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > last:
            raise Missing(f"waited {PATIENCE:g} s in vain until {what}")
        time.sleep(0.02)


def _sentinel_of(master: RedisServer) -> RedisServer:
    folder = home(None)
    file = folder / "sentinel.conf"
    file.write_text(
        f"sentinel monitor {MASTER} 127.0.0.1 {master.port} 1\n"
        f"sentinel down-after-milliseconds {MASTER} 500\n"
        f"sentinel failover-timeout {MASTER} 2000\n"
    )
    if user := owner():
        os.chown(file, *user)  # it writes there what it learns
    return RedisServer.start(folder, str(file), "--sentinel")


def _info(server: RedisServer, section: str) -> bytes:
    reply = server.command("INFO", section)
    assert isinstance(reply, bytes)
    return reply


def _knows_all(node: RedisServer) -> bool:
    reply = node.command("CLUSTER", "INFO")
    assert isinstance(reply, bytes)
    return b"cluster_state:ok" in reply and b"cluster_known_nodes:3" in reply
