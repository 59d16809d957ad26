"""Which server has a key: always the same one, the one that the sentinels call master, or the one with the key's slot.

It opens no sockets: it asks through a function that it is given, and never under its lock. An answer that was on its
way when `forget` was called is not kept.
"""

from __future__ import annotations

import threading
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError, printable
from holdfast.fleet.address import Address, Place, at
from holdfast.fleet.link import Away, packed

SLOTS = 16_384
MOST_ASKED = 16  # servers that are asked before Redis counts as away

Ask = Callable[["Node", bytes], Any]  # raises, or returns the reply, which may be an error object


class Node(NamedTuple):
    """One server; *path* if it is on a socket of this host. A *sentinel* has no databases, and logins of its own."""

    host: str = ""
    port: int = 0
    tls: bool = False
    ca: str | None = None
    path: str | None = None
    sentinel: bool = False

    @property
    def shown(self) -> str:
        """Its address, as messages show it."""
        return self.path or at((self.host, self.port))


class Known(NamedTuple):
    """Where keys are: all on *one* server, or by their slots in the *table* of a cluster; None where it is unknown."""

    one: Node | None = None
    table: Sequence[Node | None] = ()


class Topology:
    """Where the keys of one Redis are; *ask* sends a command to a node. Safe for any thread."""

    def __init__(self, address: Address, ask: Ask) -> None:
        self._address = address
        self._ask = ask
        self._lock = threading.Lock()
        self._times_forgotten = 0
        asks = address.kind == "sentinel"
        self._seeds = [self._node(place)._replace(sentinel=asks) for place in address.places]
        if address.path:
            self._seeds = [Node(path=address.path)]
        self._answered: Node | None = None  # the last node that knew; it is asked first
        self._known = self._at_first()

    def peek(self, key: bytes) -> Node | None:
        """The server that has *key*, None if that is unknown; asks no server."""
        one, table = self._known
        return table[slot_of(key)] if table else one

    def find_server(self) -> Node:
        """A server at which changes can be subscribed to; also learns where keys are.

        Asks again each time, so that a caller that lost a server is not sent back to it.
        """
        match self._address.kind:
            case "sentinel":
                return self._ask_around(self._master_of, "no sentinel knows the master")
            case "cluster":
                return self._ask_around(self._table_of, "no node says where the slots are")
        return self._seeds[0]

    def moved(self, slot: int, host: str, port: int) -> None:
        """Note a node's word that *slot* is now at *host* (empty: the host known so far) and *port*."""
        if self._address.kind != "cluster":
            raise Away(f"{self._address.shown}: is a node of a cluster; its address begins with redis+cluster://")
        if not 0 <= slot < SLOTS or not 0 < port < 65_536:
            raise Away(f"{self._address.shown}: says that slot {slot} has moved to port {port}, which cannot be")
        with self._lock:
            table = list(self._known.table)
            before = table[slot] or self._answered or self._seeds[0]
            table[slot] = self._node((_host(host, before), port))
            self._known = Known(table=table)

    def forget(self) -> None:
        """Forget where keys are, because a server is away or no longer the master; `find_server` asks again."""
        with self._lock:
            self._times_forgotten += 1
            learnt = [node for node in dict.fromkeys(self._known.table) if node is not None]
            if learnt:  # otherwise the seeds from last time are still the best
                self._seeds = list(dict.fromkeys([*map(self._node, self._address.places), *learnt]))
            self._known = self._at_first()

    def _at_first(self) -> Known:
        match self._address.kind:
            case "sentinel":
                return Known()
            case "cluster":
                return Known(table=[None] * SLOTS)
        return Known(self._seeds[0])

    # -- asking --------------------------------------------------------------------------------------------------------

    def _ask_around(self, look: Callable[[Node], Known], trouble: str) -> Node:
        """Keep what *look* finds at the first node that knows, unless `forget` was called meanwhile.

        Return the master, or, in a cluster, the node that knew.
        """
        asked_at = self._times_forgotten
        problems = []
        for node in self._to_ask():
            try:
                found = look(node)
            except (HoldfastError, OSError) as error:
                problems.append(str(error))
                continue
            with self._lock:
                self._answered = node
                if asked_at == self._times_forgotten:
                    self._known = found
            return found.one or node
        raise Away(f"{self._address.shown}: {trouble}: {_some(problems)}")

    def _master_of(self, sentinel: Node) -> Known:
        name = self._address.master
        reply = self._answer(sentinel, ("SENTINEL", "get-master-addr-by-name", name))
        match reply:
            case [bytes(host), bytes(port)] if port.isdigit():
                master = self._node((_host(host, sentinel), int(port)))
            case None:
                raise Away(f"{sentinel.shown}: the sentinel knows no master {printable(name)!r}")
            case _:
                raise Away(f"{sentinel.shown}: not the answer of a sentinel: {printable(repr(reply))}")
        # A sentinel that was cut off still names the old master.
        match self._answer(master, ("ROLE",)):
            case [b"master", *_]:
                return Known(master)
            case _:
                raise Away(f"{master.shown}: is not the master that {sentinel.shown} says it is")

    def _table_of(self, node: Node) -> Known:
        reply = self._answer(node, ("CLUSTER", "SLOTS"))
        table: list[Node | None] = [None] * SLOTS
        for part in reply if isinstance(reply, list) else [reply]:
            match part:
                case [int(first), int(last), [host, int(port), *_], *_] if 0 <= first <= last < SLOTS:
                    table[first : last + 1] = [self._node((_host(host, node), port))] * (last - first + 1)
                case _:
                    raise Away(f"{node.shown}: not the answer of a cluster: {printable(repr(part))}")
        return Known(table=table)

    def _answer(self, node: Node, command: tuple[str, ...]) -> Any:
        reply = self._ask(node, packed(command))
        if isinstance(reply, Exception):
            raise Away(f"{node.shown}: {reply}")
        return reply

    def _to_ask(self) -> list[Node]:
        with self._lock:
            first = [self._answered] if self._answered is not None else []
            return list(dict.fromkeys([*first, *self._seeds]))[:MOST_ASKED]

    def _node(self, place: Place) -> Node:
        return Node(*place, tls=self._address.tls, ca=self._address.ca)


def slot_of(key: bytes) -> int:
    """The cluster slot of *key*: by the text between its first braces, if there is any."""
    begin = key.find(b"{") + 1
    if begin:
        end = key.find(b"}", begin)
        if end > begin:
            key = key[begin:end]
    return crc_hqx(key, 0) % SLOTS


def _host(said: object, node: Node) -> str:
    """The host that *node* names; an empty name means the node's own host."""
    host = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    return host if isinstance(host, str) and host not in {"", "?"} else node.host


def _some(problems: list[str]) -> str:
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more
