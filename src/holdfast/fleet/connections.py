"""The connections of a process to Redis: sends a question to the server that has its key, over a free connection.

A thread has a connection to itself while it asks; the tasks of an event loop share one. A question waits for its answer
for a limited time, and follows its key if a cluster has moved it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from holdfast.fleet.address import Address
from holdfast.fleet.link import PATIENCE, Away, Link
from holdfast.fleet.multiplexed import Multiplexed
from holdfast.fleet.pool import Pool
from holdfast.fleet.question import Question
from holdfast.fleet.script import Form, is_unknown
from holdfast.fleet.topology import Node, Topology

MOST_HOPS = 3  # times that a question is sent in a cluster that moves its key

Loops = dict[asyncio.AbstractEventLoop, dict[Node, Multiplexed]]


class Connections:
    """The connections of one process to *address*; *ring* has the service open more, *lost* is called when an answer is
    lost, so that what it granted stays unknown.
    """

    def __init__(self, address: Address, ring: Callable[[], object], lost: Callable[[], object]) -> None:
        self.topology = Topology(address, self._ask_node)
        self.pools: dict[Node, Pool] = {}
        self.unplaced = False  # True if a call asked for a key whose server is unknown
        self.crowded = 0  # questions for which all connections were in use
        self._address = address
        self._ring = ring
        self._lost = lost
        self._lock = threading.Lock()
        self._loops: Loops = {}
        self._latest: tuple[asyncio.AbstractEventLoop | None, dict[Node, Multiplexed]] = (None, {})

    # -- asking as a thread --------------------------------------------------------------------------------------------

    def ask(self, form: Form, compose: Callable[[], bytes]) -> Any:
        """The answer to a question, which may be an error object; None if no connection is free in time.

        *compose* is called only when there is a connection: the outcomes that it takes along count as sent.
        """
        words = b""
        for _ in range(MOST_HOPS):
            pool = self._pool_of(form.key)
            link = None if pool is None else pool.lend()
            if pool is None or link is None:
                self._lacks_link(pool)
                if words:
                    break
                return None
            words = words or compose()
            reply = self._ask_on(pool, link, form, words)
            if type(reply) is list or not self._moved(reply):
                return _something(reply)
        raise Away("Redis: keys are moved about")

    def _ask_on(self, pool: Pool, link: Link, form: Form, words: bytes) -> Any:
        whole = False
        try:
            reply = link.ask(words)
            if is_unknown(reply):
                reply = link.ask(form.in_full(words))
            whole = True
        finally:
            if whole and link.is_even:
                pool.give(link)
            else:
                pool.drop(link)
        return reply

    # -- asking as a task ----------------------------------------------------------------------------------------------

    def linked(self, key: bytes) -> Multiplexed | None:
        """The connection of the running event loop to the server that has *key*, if there is one."""
        node = self.topology.peek(key)
        running = asyncio.get_running_loop()
        loop, links = self._latest
        if loop is not running:
            links = self._loops.get(running, {})
            self._latest = (running, links)
        link = None if node is None else links.get(node)
        return link if link is not None and link.broken is None else None

    async def connected(self, key: bytes) -> Multiplexed | None:
        """The same, made from the next connection that is free; None if none is free in time."""
        pool = self._pool_of(key)
        free = None if pool is None else await pool.alend()
        if pool is None or free is None:
            self._lacks_link(pool)
            return None
        self.forget_closed_loops()
        loop = asyncio.get_running_loop()
        with self._lock:
            links = self._loops.setdefault(loop, {})
            known = links.get(pool.node)
            if known is None or known.broken is not None:
                made = links[pool.node] = Multiplexed(loop, pool.part_with(free), self._address.wait, self._lost)
                self._latest = (loop, links)
                return made
        pool.give(free)  # another task was quicker
        return known

    async def aask(self, form: Form, words: bytes, reply: Any, asker: Question) -> Any:
        """The answer to a task's question whose first *reply* was an error."""
        for _ in range(MOST_HOPS):
            moved = self._moved(reply)
            if not moved and not is_unknown(reply):
                return _something(reply)
            link = self.linked(form.key) or await self.connected(form.key)
            if link is None:
                break
            reply = await asker.heard(link.ask(words if moved else form.in_full(words), asker))
        raise Away("Redis: keys are moved about")

    # -- what an answer says of the way --------------------------------------------------------------------------------

    def _moved(self, reply: Any) -> bool:
        """True if a cluster says that the key is elsewhere, which is then remembered."""
        match str(reply).split(" ") if isinstance(reply, Exception) else []:
            case ["MOVED", slot, place] if slot.isdigit() and place.rpartition(":")[2].isdigit():
                host, _, port = place.rpartition(":")
                self.topology.moved(int(slot), host, int(port))
                return True
        return False

    # -- connections ---------------------------------------------------------------------------------------------------

    def pool(self, node: Node) -> Pool:
        """The connections to *node*."""
        pool = self.pools.get(node)
        if pool is None:
            with self._lock:
                pool = self.pools.setdefault(node, Pool(node, self._address, self._ring))
            self._ring()
        return pool

    def _pool_of(self, key: bytes) -> Pool | None:
        node = self.topology.peek(key)
        return None if node is None else self.pool(node)

    def _lacks_link(self, pool: Pool | None) -> None:
        """Have the service find out which server has the key, if that is unknown, or warn that too many threads ask."""
        if pool is None:
            self.unplaced = True
            self._ring()
        elif pool.is_full:
            self.crowded += 1

    def is_linked(self, pool: Pool) -> bool:
        """True if there is a connection to the node of *pool*: a thread's, or a loop's."""
        with self._lock:
            links = [links[pool.node] for links in self._loops.values() if pool.node in links]
        return bool(pool.size) or any(link.broken is None for link in links)

    def forget_troubled(self) -> None:
        """Forget nodes that could not be reached; the next question for one tries again."""
        with self._lock:
            for node in [node for node, pool in self.pools.items() if pool.trouble is not None]:
                self.pools.pop(node).close()

    def forget_closed_loops(self) -> None:
        """Close the connections of closed event loops; answers to their last questions are lost."""
        with self._lock:
            closed = [self._loops.pop(loop) for loop in list(self._loops) if loop.is_closed()]
        for links in closed:
            for link in links.values():
                link.close()

    def close(self) -> None:
        """Close all connections of callers; answers that are still under way are lost."""
        with self._lock:
            pools, self.pools = self.pools, {}
            loops, self._loops = self._loops, {}
            self._latest = (None, {})
        self._lost()
        for pool in pools.values():
            pool.close()
        for loop, links in loops.items():
            for link in links.values():
                _close_in(loop, link)

    def open_link(self, node: Node) -> Link:
        """A new connection to *node*."""
        return Link(node, self._address, bound=PATIENCE)

    def _ask_node(self, node: Node, command: bytes) -> Any:
        link = self.open_link(node)
        try:
            return link.ask(command)
        finally:
            link.close()


def _something(reply: Any) -> Any:
    """*reply*, unless it is empty; raise `Away` then."""
    if reply is None:
        raise Away("Redis: answered with nothing")
    return reply


def _close_in(loop: asyncio.AbstractEventLoop, link: Multiplexed) -> None:
    try:
        loop.call_soon_threadsafe(link.close)
    except RuntimeError:  # the loop is closed, and nothing runs in it any more
        link.close()
