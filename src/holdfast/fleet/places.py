"""Which server has a key: always the same one, the one that the sentinels call master, or the one with the key's slot.

Knows no sockets: it asks through a function that it is given. Nothing is asked under its lock, and an answer that was
on its way when all was forgotten is not kept.
"""

from __future__ import annotations

import threading
from binascii import crc_hqx
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import HoldfastError, printable
from holdfast.fleet.address import Address, Place, at
from holdfast.fleet.link import Away, packed

SLOTS = 16_384
MOST_ASKED = 16  # of those that may know, before it counts as away

T = TypeVar("T")
Ask = Callable[["Node", bytes], Any]  # raises, or gives the reply, which may be an error's


class Node(NamedTuple):
    """One server; *path* where it is on a socket of this host. A *sentinel* has no databases, and logins of its own."""

    host: str = ""
    port: int = 0
    tls: bool = False
    ca: str | None = None
    path: str | None = None
    sentinel: bool = False

    @property
    def shown(self) -> str:
        """Its place, for people."""
        return self.path or at((self.host, self.port))


class Places:
    """Where the keys of one Redis are; *ask* sends a command to a node. For any thread."""

    def __init__(self, address: Address, ask: Ask) -> None:
        self._address = address
        self._ask = ask
        self._lock = threading.Lock()
        self._times_forgotten = 0
        self._seeds = [self._node(place) for place in address.places]
        self._one: Node | None = Node(path=address.path) if address.path else None  # the server, or the master
        self._table: list[Node | None] = []  # of a cluster: who has each slot
        self._answered: Node | None = None  # who knew it last is asked first
        if address.kind == "cluster":
            self._table = [None] * SLOTS
        elif address.kind == "one" and not address.path:
            self._one = self._seeds[0]

    def node(self, key: bytes) -> Node:
        """The server that has *key*; asks where that is not known, and raises `Away` where nobody says."""
        known = self.peek(key)
        if known is not None:
            return known
        if self._address.kind == "sentinel":
            return self._find_master()
        table, _ = self._read_slots()
        found = table[slot_of(key)]
        if found is None:
            raise Away(f"{self._address.shown}: no node of the cluster has slot {slot_of(key)}")
        return found

    def peek(self, key: bytes) -> Node | None:
        """The server that has *key*, if that is known; asks nobody."""
        table = self._table
        return table[slot_of(key)] if table else self._one

    def any(self) -> Node:
        """A server that hears what is published. Asks anew each time, so that who lost one is not sent back to it."""
        if self._address.kind == "sentinel":
            return self._find_master()
        if self._one is not None:
            return self._one
        return self._read_slots()[1]

    def moved(self, slot: int, host: str, port: int) -> None:
        """A node says that *slot* is at *host* (empty: where it was thought to be) and *port* now."""
        if not self._table:
            raise Away(f"{self._address.shown}: is a node of a cluster; its address begins with redis+cluster://")
        if not 0 <= slot < SLOTS or not 0 < port < 65_536:
            raise Away(f"{self._address.shown}: says that slot {slot} has moved to port {port}, which cannot be")
        with self._lock:
            before = self._table[slot] or self._answered or self._seeds[0]
            self._table[slot] = self._node((_host(host, before), port))

    def forget(self) -> None:
        """Ask again when it is next of use: who was there is away, or no master any more."""
        with self._lock:
            self._times_forgotten += 1
            if self._table:
                known = [node for node in dict.fromkeys(self._table) if node is not None]
                if known:  # else those of the last time are still the best there are
                    self._seeds = list(dict.fromkeys([*map(self._node, self._address.places), *known]))
                self._table = [None] * SLOTS
            elif self._address.kind == "sentinel":
                self._one = None

    # -- asking --------------------------------------------------------------------------------------------------------

    def _find_master(self) -> Node:
        """The server that the sentinels call master."""

        def keep(master: Node) -> None:
            self._one = master

        return self._asked_around(self._master_of, keep, "no sentinel knows the master")[0]

    def _read_slots(self) -> tuple[list[Node | None], Node]:
        """Who has each slot, and who said so."""

        def keep(table: list[Node | None]) -> None:
            self._table = table

        return self._asked_around(self._table_of, keep, "no node says where the slots are")

    def _asked_around(self, look: Callable[[Node], T], keep: Callable[[T], None], trouble: str) -> tuple[T, Node]:
        """What *look* finds with the first who knows, to *keep* unless it is outdated; and who that is."""
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
                    keep(found)
            return found, node
        raise Away(f"{self._address.shown}: {trouble}: {_some(problems)}")

    def _master_of(self, sentinel: Node) -> Node:
        name = self._address.master
        reply = self._answer(sentinel, ("SENTINEL", "get-master-addr-by-name", name))
        match reply:
            case [bytes(host), bytes(port)] if port.isdigit():
                master = self._node((_host(host, sentinel), int(port)), sentinel=False)
            case None:
                raise Away(f"{sentinel.shown}: the sentinel knows no master {printable(name)!r}")
            case _:
                raise Away(f"{sentinel.shown}: not the answer of a sentinel: {printable(repr(reply))}")
        # A sentinel that was cut off names the old one.
        match self._answer(master, ("ROLE",)):
            case [b"master", *_]:
                return master
            case _:
                raise Away(f"{master.shown}: is not the master that {sentinel.shown} says it is")

    def _table_of(self, node: Node) -> list[Node | None]:
        reply = self._answer(node, ("CLUSTER", "SLOTS"))
        table: list[Node | None] = [None] * SLOTS
        for part in reply if isinstance(reply, list) else [reply]:
            match part:
                case [int(first), int(last), [host, int(port), *_], *_] if 0 <= first <= last < SLOTS:
                    table[first : last + 1] = [self._node((_host(host, node), port))] * (last - first + 1)
                case _:
                    raise Away(f"{node.shown}: not the answer of a cluster: {printable(repr(part))}")
        return table

    def _answer(self, node: Node, command: tuple[str, ...]) -> Any:
        reply = self._ask(node, packed(command))
        if isinstance(reply, Exception):
            raise Away(f"{node.shown}: {reply}")
        return reply

    def _to_ask(self) -> list[Node]:
        with self._lock:
            first = [self._answered] if self._answered is not None else []
            return list(dict.fromkeys([*first, *self._seeds]))[:MOST_ASKED]

    def _node(self, place: Place, *, sentinel: bool | None = None) -> Node:
        address = self._address
        asks = address.kind == "sentinel" if sentinel is None else sentinel
        return Node(*place, tls=address.tls, ca=address.ca, sentinel=asks)


def slot_of(key: bytes) -> int:
    """The slot of a cluster that *key* is in: by what stands between its first braces, if anything does."""
    begin = key.find(b"{") + 1
    if begin:
        end = key.find(b"}", begin)
        if end > begin:
            key = key[begin:end]
    return crc_hqx(key, 0) % SLOTS


def _host(said: object, node: Node) -> str:
    """The host that *node* names; without a name it means its own."""
    host = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    return host if isinstance(host, str) and host not in {"", "?"} else node.host


def _some(problems: list[str]) -> str:
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more
