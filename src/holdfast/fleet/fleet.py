"""The fleet: all processes that share their guards on one Redis, as one of them sees it.

When Redis is away the fleet is not *there*: nobody asks, local guards decide, and the service looks for it until it is
back. The same holds for one tool alone, which is *missing*, where others are answered.
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
from holdfast.fleet.desk import Desk
from holdfast.fleet.exchange import Exchange
from holdfast.fleet.link import PATIENCE, Away, Refused, parser
from holdfast.fleet.script import Script
from holdfast.fleet.service import Service
from holdfast.guards.circuit import Seen
from holdfast.policy import OUTAGES

LEASE = 10.0

Emit = Callable[..., object]


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
        self._emit: Emit = lambda *_, **__: None
        self._desks: weakref.WeakValueDictionary[bytes, Desk] = weakref.WeakValueDictionary()
        self._reset()

    def _reset(self) -> None:
        self.there = True
        self._lock = threading.Lock()
        self._id = f"{printable(os.uname().nodename)}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._epoch = 0
        self.holder = f"{self._id}.0"  # the name under which slots are held
        self._marked: dict[Desk, None] = {}  # of a tool that is forgotten, too, until it is told
        self.missing: dict[Desk, Away] = {}  # who gets no answer while others may, and why
        self.doubted: set[Desk] = set()  # of them, those for whom it may be all of Redis
        self.given_up = threading.Event()  # nobody is about to give up what was lost
        self.given_up.set()
        self.service = Service(self)
        self.exchange = Exchange(self.address, self.service.ring, self.rename)

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
            self.exchange.close()
            self.exchange.places.forget()
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
        self.exchange.close()

    def after_fork(self) -> None:
        """In a forked child: connections, locks, the service and what is held are the parent's."""
        self._reset()
        for desk in self.desks():
            desk.after_fork()
