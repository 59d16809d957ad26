"""The fleet: all processes that share their guards on one Redis, as one of them sees it.

A question is asked in one round trip, within a bound. When Redis is away the fleet is not *there*: nobody asks, local
guards decide, and the service looks for it until it is back. The same holds for one tool alone, which is *missing*,
where others are answered.
"""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
import weakref
from collections.abc import Callable
from typing import Any

from holdfast import checks, events
from holdfast.fleet.address import Address
from holdfast.fleet.desk import Desk, Question
from holdfast.fleet.link import Away, Link, Refused, parser
from holdfast.fleet.multiplexed import Multiplexed
from holdfast.fleet.places import Node, Places
from holdfast.fleet.pool import Pool
from holdfast.fleet.script import Form, Script, is_unknown
from holdfast.fleet.service import PATIENCE, Service
from holdfast.guards.circuit import Seen
from holdfast.policy import OUTAGES

LEASE = 10.0
MOST_HOPS = 3  # of a question, in a cluster that moves its keys

Emit = Callable[..., object]
Loops = dict[asyncio.AbstractEventLoop, dict[Node | None, Multiplexed]]


class Fleet:
    """The guards at *url*, shared by all who name it.

    With *on_outage* "refuse" nothing is passed while Redis is away; *lease* is how long slots outlive their holder.
    """

    def __init__(self, url: str, *, on_outage: str = "local", lease: float = LEASE) -> None:
        checks.choice("on_outage", on_outage, OUTAGES)
        checks.number("lease", lease, above=0)
        parser()  # said here, where it is a mistake, rather than later, where it would look like an outage
        self.address = Address.parse(url)
        self.script = Script()
        self.lease = lease
        self.refuses = on_outage == "refuse"
        self.name = f"{self.address.prefix}:{self.address.db}"
        self.channel = f"{self.name}:changes"  # what is published knows no databases
        self._on_change: Callable[[], object] = lambda: None
        self.outages = 0
        self.trouble = "not connected yet"  # why it is away, as last heard
        self.fallbacks = 0  # attempts that local guards decided for want of shared ones
        self.crowded = 0  # of them, those for which all connections were in use
        self._emit: Emit = lambda *_, **__: None
        self._desks: weakref.WeakValueDictionary[bytes, Desk] = weakref.WeakValueDictionary()
        self._reset()

    def _reset(self) -> None:
        self.there = True
        self._lock = threading.Lock()
        self._id = f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._epoch = 0
        self.holder = f"{self._id}.0"  # the name under which slots are held
        self.places = Places(self.address, self._ask_node)
        self.pools: dict[Node, Pool] = {}
        self._marked: dict[Desk, None] = {}  # of a tool that is forgotten, too, until it is told
        self._loops: Loops = {}
        self._latest: tuple[asyncio.AbstractEventLoop | None, dict[Node | None, Multiplexed]] = (None, {})
        self.missing: dict[Desk, Away] = {}  # who gets no answer while others may, and why
        self.doubted: set[Desk] = set()  # of them, those for whom it may be all of Redis
        self.unplaced: bytes | None = None  # a key that somebody asks for, and nobody knows who has it
        self.given_up = threading.Event()  # nobody is about to give up what was lost
        self.given_up.set()
        self.service = Service(self)

    # -- desks ---------------------------------------------------------------------------------------------------------

    def desk(self, tool: str, follow: Callable[[Seen], object]) -> Desk:
        """The desk of *tool*; it is forgotten with the tool, and the next of that name has it where calls still do."""
        name = tool.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")  # braces say where a key belongs
        key = f"{self.address.prefix}:{{{name}}}".encode("utf-8", "backslashreplace")
        with self._lock:
            desk = self._desks.get(key)
            if desk is None:
                desk = self._desks[key] = Desk(self, key, tool)
        desk.serve(follow)
        return desk

    def desks(self) -> list[Desk]:
        """All of them."""
        with self._lock:
            return list(self._desks.values())

    def find(self, key: bytes) -> Desk | None:
        """The desk of a key."""
        return self._desks.get(key)

    def dirty(self, desk: Desk) -> None:
        """*desk* has something to tell."""
        self._marked[desk] = None
        self.service.ring()

    def marked(self) -> list[Desk]:
        """The desks that have something to tell, if nobody has told it meanwhile."""
        found = []
        while self._marked:
            found.append(self._marked.popitem()[0])
        return found

    # -- asking --------------------------------------------------------------------------------------------------------

    def ask(self, form: Form, compose: Callable[[], bytes]) -> Any:
        """The answer to a question, as a thread; None if no connection is free in time, or a cluster moves the key.

        It is composed when there is one: what is told along with it counts as told.
        """
        words = b""
        for _ in range(MOST_HOPS):
            node = self.places.peek(form.key)
            pool = None if node is None else self.pool(node)
            link = None if pool is None else pool.take() or self._one_more(pool) or pool.wait(self.address.wait)
            if pool is None or link is None:
                self._lacks_link(node, form.key)
                if words:
                    break
                return None
            words = words or compose()
            reply = self._ask_on(pool, link, form, words)
            if type(reply) is list or not self._moved(reply):
                return self._unless_between(reply)
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

    def _one_more(self, pool: Pool) -> Link | None:
        """Another connection, if there may be one and it can be had; else one waits in line."""
        room = pool.grow()
        if room is None:
            return None
        try:
            link = Link(pool.node, self.address, bound=self.address.wait, place=pool.place)
        except Away:
            return None
        pool.count(link)
        return link

    def linked(self, key: bytes) -> Multiplexed | None:
        """The connection of the running event loop to who has *key*, if there is one."""
        node = self.places.peek(key)
        running = asyncio.get_running_loop()
        loop, links = self._latest
        if loop is not running:
            links = self._loops.get(running, {})
            self._latest = (running, links)
        link = links.get(node)
        return link if link is not None and link.broken is None else None

    async def connected(self, key: bytes) -> Multiplexed | None:
        """The same, made of the next connection that is free; None if there is none in time."""
        node = self.places.peek(key)
        if node is None:
            self._lacks_link(node, key)
            return None
        loop = asyncio.get_running_loop()
        pool = self.pool(node)
        free = pool.take() or await self._wait_for(pool, loop)
        if free is None:
            self._lacks_link(node, key)
            return None
        self.forget_closed_loops()
        with self._lock:
            links = self._loops.setdefault(loop, {})
            known = links.get(node)
            if known is None or known.broken is not None:
                links[node] = Multiplexed(loop, pool.part_with(free), self.address.wait, self.rename)
                self._latest = (loop, links)
                return links[node]
        pool.give(free)  # another task was quicker
        return known

    async def aask(self, form: Form, words: bytes, reply: Any, asker: Question) -> Any:
        """The answer to a question of a task whose first *reply* was an error; None if a cluster moves the key."""
        for _ in range(MOST_HOPS):
            moved = self._moved(reply)
            if not moved and not is_unknown(reply):
                return self._unless_between(reply)
            link = self.linked(form.key) or await self.connected(form.key)
            if link is None:
                break
            reply = await asker.heard(link.ask(words if moved else form.in_full(words), asker))
        raise Away("Redis: keys are moved about")

    def _lacks_link(self, node: Node | None, key: bytes) -> None:
        """Have the service find out who has *key*, where nobody knows, or say that too many ask."""
        if node is None:
            self.unplaced = key
            self.service.ring()
        elif self.pool(node).is_full:
            self.crowded += 1

    def forget_closed_loops(self) -> None:
        """Close what loops that have ended leave behind; what they asked last nobody will answer any more."""
        with self._lock:
            closed = [self._loops.pop(loop) for loop in list(self._loops) if loop.is_closed()]
        for links in closed:
            for link in links.values():
                link.close()

    async def _wait_for(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> Link | None:
        arrived: asyncio.Future[Link | None] = loop.create_future()

        def arrive(link: Link | None) -> None:
            if not arrived.done():
                arrived.set_result(link)
            elif link is not None:
                pool.give(link)

        def give(link: Link) -> None:
            try:
                loop.call_soon_threadsafe(arrive, link)
            except RuntimeError:  # the loop is closed, and the waiter gone with it
                pool.give(link)

        pool.queue(give)
        timer = loop.call_later(self.address.wait, arrive, None)
        try:
            return await arrived
        except asyncio.CancelledError:
            if not arrived.cancelled() and (link := arrived.result()) is not None:  # it has come in the same turn
                pool.give(link)
            raise
        finally:
            timer.cancel()
            pool.leave(give)

    def _moved(self, reply: Any) -> bool:
        """Whether a cluster says that the key is elsewhere."""
        match str(reply).split(" ") if isinstance(reply, Exception) else []:
            case ["MOVED", slot, place] if slot.isdigit() and place.rpartition(":")[2].isdigit():
                host, _, port = place.rpartition(":")
                self.places.moved(int(slot), host, int(port))
                return True
        return False

    def _unless_between(self, reply: Any) -> Any:
        """*reply*, or None where a cluster is moving the key just now.

        Nobody answers then: a script has several keys, and as long as one is not there both nodes send it on.
        """
        if reply is None:
            raise Away("Redis: answered with nothing")
        if isinstance(reply, Exception) and str(reply).startswith(("ASK ", "TRYAGAIN")):
            self.rename()  # slots that were given back along with the question were not taken
            return None
        return reply

    def pool(self, node: Node) -> Pool:
        """The connections to *node*."""
        pool = self.pools.get(node)
        if pool is None:
            with self._lock:
                pool = self.pools.setdefault(node, Pool(node, self.service.ring))
            self.service.ring()
        return pool

    def forget_troubled(self) -> None:
        """Let go of nodes that could not be reached: who still needs one tries again."""
        with self._lock:
            for node in [node for node, pool in self.pools.items() if pool.trouble is not None]:
                self.pools.pop(node).close()

    def is_linked(self, pool: Pool) -> bool:
        """Whether there is a connection to where *pool* leads: a thread's, or a loop's."""
        with self._lock:
            links = [links[pool.node] for links in self._loops.values() if pool.node in links]
        return bool(pool.size) or any(link.broken is None for link in links)

    # -- there and away ------------------------------------------------------------------------------------------------

    def lose(self, error: Away) -> None:
        """Redis is away, until the service finds it again."""
        self.rename()  # also where it is away already: what was asked was asked under the newest name
        with self._lock:
            was_there, was_trouble = self.there, self.trouble
            self.there, self.trouble = False, str(error)
            if was_there:
                self.outages += 1
                self.given_up.clear()
        if not was_there:
            if was_trouble != self.trouble:  # it was pulled out, say, and is back with another password
                self._on_change()
            return
        try:
            self._give_up()
            self.places.forget()
            self.missing.clear()
            self.doubted.clear()
            for desk in self.desks():
                desk.forget()
            self._emit(events.FLEET_LOST, None, redis=self.address.shown, error=str(error), outages=self.outages)
            self._on_change()
        finally:
            self.given_up.set()
        self.service.ring()

    def miss(self, desk: Desk, error: Away) -> None:
        """*desk* got no answer. It is missing where the others may still get theirs; the service finds out."""
        if not isinstance(error, Refused) and self.address.kind != "cluster":
            self.lose(error)
            return
        self.rename()
        with self._lock:
            if not desk.there:
                return
            self.missing[desk] = error
            self.doubted.add(desk)
        desk.forget()
        self._on_change()
        self.service.ring()

    def confirm(self, desk: Desk) -> None:
        """It is only *desk* that is missing."""
        with self._lock:
            error = self.missing.get(desk)
            if error is None or desk not in self.doubted:
                return
            self.doubted.discard(desk)
        self._emit(events.FLEET_LOST, desk.tool, redis=self.address.shown, error=str(error), outages=self.outages)

    def regain(self, desk: Desk) -> None:
        """*desk* is answered again."""
        with self._lock:
            was_told = self.missing.pop(desk, None) is not None and desk not in self.doubted
            self.doubted.discard(desk)
        if was_told:
            self._emit(events.FLEET_RETURNED, desk.tool, redis=self.address.shown, fallbacks=self.fallbacks)
        self._on_change()
        self.dirty(desk)

    def rename(self) -> None:
        """Ask under another name: what was given without our knowing ends with the lease of the old one."""
        with self._lock:
            self._epoch += 1
            self.holder = f"{self._id}.{self._epoch}"

    def found(self) -> None:
        """Redis is back."""
        with self._lock:
            if self.there:
                return
            self.there = True
        self._emit(events.FLEET_RETURNED, None, redis=self.address.shown, fallbacks=self.fallbacks)
        self._on_change()

    # -- beginning and ending ------------------------------------------------------------------------------------------

    def begin(self, emit: Emit, on_change: Callable[[], object]) -> None:
        """Connect, unless that takes long. *emit* is told of outages, *on_change* that one began or ended."""
        self._emit, self._on_change = emit, on_change
        self.service.ring()
        self.service.settled.wait(PATIENCE)

    def close(self) -> None:
        """Tell what is to be told and give up all connections; the next question begins anew."""
        self.service.close()
        self._give_up()

    def _give_up(self) -> None:
        """Close all connections of callers; nobody will know what was just asked on them."""
        with self._lock:
            pools, self.pools = self.pools, {}
            loops = list(self._loops.items())
            self._loops.clear()
            self._latest = (None, {})
        self.rename()
        for pool in pools.values():
            pool.close()
        for loop, links in loops:
            for link in links.values():
                _close_in(loop, link)

    def after_fork(self) -> None:
        """In a forked child: connections, locks, the service and what is held are the parent's."""
        self._reset()
        for desk in self.desks():
            desk.after_fork()

    def open_link(self, node: Node) -> Link:
        """A new connection to *node*."""
        return Link(node, self.address, bound=PATIENCE)

    def _ask_node(self, node: Node, command: bytes) -> Any:
        link = self.open_link(node)
        try:
            return link.ask(command)
        finally:
            link.close()


def _close_in(loop: asyncio.AbstractEventLoop, link: Multiplexed) -> None:
    try:
        loop.call_soon_threadsafe(link.close)
    except RuntimeError:  # closed, and nothing runs in it any more
        link.close()
