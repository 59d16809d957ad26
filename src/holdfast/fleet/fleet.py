"""The fleet: all processes that share their guards on one Redis, as one of these processes sees it.

While Redis is away, *is_available* is False: calls do not ask, local guards decide, and the service tries to reach
Redis until it is back. If Redis fails for one tool alone, only that tool's desk is *missing*; the others are still
answered.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Callable

from holdfast import checks, events
from holdfast.errors import printable
from holdfast.fleet.address import Address
from holdfast.fleet.connections import Connections
from holdfast.fleet.desk import Desk
from holdfast.fleet.link import PATIENCE, Away, Refused, parser
from holdfast.fleet.script import Script
from holdfast.fleet.service import Service
from holdfast.guards.circuit import Seen
from holdfast.policy import OUTAGES

LEASE = 10.0

Emit = Callable[..., object]


class Fleet:
    """The guards at *url*, shared by all processes that use this address.

    With *on_outage* "refuse", calls are refused while Redis is away; *lease* is the seconds that slots outlive their
    holder.
    """

    def __init__(self, url: str, *, on_outage: str = "local", lease: float = LEASE) -> None:
        checks.choice("on_outage", on_outage, OUTAGES)
        checks.number("lease", lease, above=0)
        parser()  # fails here if hiredis is missing: later that would look like an outage instead of a mistake
        self.address = Address.parse(url)
        self.script = Script()
        self.lease = lease
        self.refuses = on_outage == "refuse"
        self.name = f"{self.address.prefix}:{self.address.db}"
        self.channel = f"{self.name}:changes"  # with the db in its name: all databases of a Redis share the channels
        self._on_change: Callable[[], object] = lambda: None
        self.outages = 0
        self.trouble = "not connected yet"  # why Redis is away: the last error
        self.fallbacks = 0  # attempts that the fleet did not decide: left to local guards, or refused
        self._emit: Emit = lambda *_, **__: None
        self._desks: weakref.WeakValueDictionary[bytes, Desk] = weakref.WeakValueDictionary()
        self._reset()

    def _reset(self) -> None:
        self.is_available = True
        self._lock = threading.Lock()
        self._id = f"{printable(os.uname().nodename)}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._epoch = 0
        self.holder = f"{self._id}.0"  # the name under which slots are held
        self._marked: dict[Desk, None] = {}  # desks with news; this keeps them alive until it is sent
        self.missing: dict[Desk, Away] = {}  # desks that get no answer while others may, and why
        self.doubted: set[Desk] = set()  # missing desks, while it is unknown whether all of Redis is away
        self.given_up = threading.Event()  # set unless `lose` is just giving up the lost connections
        self.given_up.set()
        self.service = Service(self)
        self.connections = Connections(self.address, self.service.ring, self.rename)

    # -- desks ---------------------------------------------------------------------------------------------------------

    def desk(self, tool: str, follow: Callable[[Seen], object]) -> Desk:
        """The desk of *tool*. It goes with the tool; while calls still use it, a new tool of the same name gets it."""
        name = tool.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")  # braces are a cluster's hash tag
        key = f"{self.address.prefix}:{{{name}}}".encode("utf-8", "backslashreplace")
        with self._lock:
            desk = self._desks.get(key)
            if desk is None:
                desk = self._desks[key] = Desk(self, key, tool)
        desk.serve(follow)
        return desk

    def desks(self) -> list[Desk]:
        """All desks that are in use."""
        with self._lock:
            return list(self._desks.values())

    def find(self, key: bytes) -> Desk | None:
        """The desk whose keys begin with *key*, if there is one."""
        return self._desks.get(key)

    def dirty(self, desk: Desk) -> None:
        """Mark *desk* as having news to send, and wake the service."""
        self._marked[desk] = None
        self.service.ring()

    def marked(self) -> list[Desk]:
        """Take all marked desks; a question may have sent their news meanwhile."""
        found = []
        while self._marked:
            found.append(self._marked.popitem()[0])
        return found

    # -- available and away --------------------------------------------------------------------------------------------

    def lose(self, error: Away) -> None:
        """Mark Redis as away, until the service reaches it again."""
        self.rename()  # even if Redis is away already: the question that failed was asked under the newest name
        with self._lock:
            was_available, was_trouble = self.is_available, self.trouble
            self.is_available, self.trouble = False, str(error)
            if was_available:
                self.outages += 1
                self.given_up.clear()
        if not was_available:
            if was_trouble != self.trouble:  # e.g. Redis was unplugged first, and is back with another password
                self._on_change()
            return
        try:
            self.connections.close()
            self.connections.topology.forget()
            self.missing.clear()
            self.doubted.clear()
            for desk in self.desks():
                desk.forget()
            self._emit(events.FLEET_LOST, None, redis=self.address.shown, error=str(error), outages=self.outages)
            self._on_change()
        finally:
            self.given_up.set()
        self.service.ring()

    def miss(self, desk: Desk, error: Away, *, renames: bool = True) -> None:
        """*desk* got no answer. If other desks may still get theirs, it alone is missing; the service finds out.

        It *renames* unless no slot was asked for or given back.
        """
        if not isinstance(error, Refused) and self.address.kind != "cluster":
            self.lose(error)
            return
        if renames:
            self.rename()
        with self._lock:
            if not desk.is_available:
                return
            self.missing[desk] = error
            self.doubted.add(desk)
        desk.forget()
        self._on_change()
        self.service.ring()

    def confirm(self, desk: Desk) -> None:
        """Report that *desk* is missing, now that it is clear that Redis as a whole is not away."""
        with self._lock:
            error = self.missing.get(desk)
            if error is None or desk not in self.doubted:
                return
            self.doubted.discard(desk)
        self._emit(events.FLEET_LOST, desk.tool, redis=self.address.shown, error=str(error), outages=self.outages)

    def regain(self, desk: Desk) -> None:
        """Note that *desk* is answered again."""
        with self._lock:
            was_told = self.missing.pop(desk, None) is not None and desk not in self.doubted
            self.doubted.discard(desk)
        if was_told:
            self._emit(events.FLEET_RETURNED, desk.tool, redis=self.address.shown, fallbacks=self.fallbacks)
        self._on_change()
        self.dirty(desk)

    def rename(self) -> None:
        """Ask under a new holder name: slots granted in a lost answer expire with the lease of the old name."""
        with self._lock:
            self._epoch += 1
            self.holder = f"{self._id}.{self._epoch}"

    def found(self) -> None:
        """Mark Redis as back."""
        with self._lock:
            if self.is_available:
                return
            self.is_available = True
        self._emit(events.FLEET_RETURNED, None, redis=self.address.shown, fallbacks=self.fallbacks)
        self._on_change()

    # -- beginning and ending ------------------------------------------------------------------------------------------

    def begin(self, emit: Emit, on_change: Callable[[], object]) -> None:
        """Start to connect and wait for it, at most `PATIENCE` seconds.

        *emit* gets the events of outages; *on_change* is called when an outage begins, changes or ends.
        """
        self._emit, self._on_change = emit, on_change
        self.service.ring()
        self.service.settled.wait(PATIENCE)

    def close(self) -> None:
        """Send pending news and close all connections; the next question opens new ones."""
        self.service.close()
        self.connections.close()

    def after_fork(self) -> None:
        """In a forked child: start afresh, as connections, locks, the service and held slots are the parent's."""
        self._reset()
        for desk in self.desks():
            desk.after_fork()
