"""The publisher: shows a process's circuits, limits and statistics to others on its store, and does what they order.

A thread is there while calls are made, and ends when there were none for a second; so an idle process costs nothing.
What it has missed then, its next call takes up before it is made. Nothing here may disturb a call: a store that fails
is logged, once.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.checks import shown
from holdfast.clock import SystemClock
from holdfast.errors import ConfigError, HoldfastError, in_words, printable
from holdfast.parts.breaker import CircuitDiagnostics
from holdfast.publishing.pictures import Pictures
from holdfast.solo import Solo
from holdfast.stores import RunStore
from holdfast.stores.board import Board
from holdfast.stores.entries import (
    LONGEST_NAME,
    MOST_SERVERS,
    Order,
    Process,
    ServerEntry,
    ToolEntry,
    pack,
    server,
)
from holdfast.stores.neighbours import News
from holdfast.tools.kit import Kit
from holdfast.tools.toolbox import Toolbox

PERIOD = 1.0  # seconds between two looks at the tools that are being called, and for which a call need not be told
GAP = 0.02  # seconds between two writes, at least, however many circuits change
MOST_AT_ONCE = 1000  # tools in one write; the others have their turn in the next
MOST_TOOLS = 10_000  # that one process shows
PATIENCE = 5.0  # seconds that closing waits for the thread

Servers = Callable[[], Sequence[Mapping[str, Any]]]
Recent = dict[str, tuple[float, bool]]  # when tools were heard of, and whether they were looked at since

_log = logging.getLogger("holdfast")


class Publisher:
    """Shows the tools in *box* on the board of *store*; does nothing before it is told to `begin`."""

    def __init__(self, store: RunStore, kit: Kit, box: Toolbox) -> None:
        self._store = store
        self._kit = kit
        self._box = box
        self._board = Board(store)
        self._ownership = store.ownership
        self._kind = "library"
        self._name = _program()
        self._servers: Servers | None = None
        self._begun = self._stays = False
        self._id = ""
        self._seen = -1  # the number of the last order that was taken up
        self._deaf = (kit.heard, kit.ended)
        self._pictures = Pictures(kit, box)
        self.after_fork()

    # -- for Holdfast --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Show the tools from their next call on; a store that only this process has is left in peace."""
        if self._begun or self._store.file.path is None:
            return
        self._hear()

    def stay(self, kind: str, name: str | None, servers: Servers | None) -> None:
        """Show everything at once, as *kind* and *name*, and be there for orders until the process ends."""
        if not isinstance(kind, str) or not isinstance(name, str | None):
            raise ConfigError(f"kind = {shown(kind)}, name = {shown(name)}: must be texts")
        if servers is not None and not callable(servers):
            raise ConfigError(f"servers = {shown(servers)}: must be callable, and give a mapping for each server")
        self._kind = printable(kind, LONGEST_NAME)
        self._name = printable(name, LONGEST_NAME) if name is not None else self._name
        self._servers = servers
        self._stays = True
        self._hear()
        self.soon()

    def soon(self, tool: str | None = None) -> None:
        """Something has changed, of *tool* if it is named: show it now. Never blocks, in whatever thread."""
        if not self._begun:
            return
        if tool is not None:
            self._marked[tool] = None
        self._urgent = True
        self._start()
        self._ring()

    def fleet_changed(self) -> None:
        """Who guards the tools has changed: show it now."""
        if self._begun:
            self._marked.update(dict.fromkeys(self._box.names()))
            self.soon()

    def entries(self) -> list[ToolEntry]:
        """What there is to show, whether it is shown or not."""
        circuits = (circuit.tool for circuit in self._kit.breaker.snapshot().diagnostics)
        names = dict.fromkeys([*self._box.names(), *self._kit.tracker.tools(), *circuits])
        found = (self._pictures.entry(name, is_known=False) for name in names)
        return [entry for entry in found if entry is not None]

    def changed(self, tool: str, before: str, after: str, seen: CircuitDiagnostics) -> None:
        """The circuit of *tool* has changed: remember it, and show it now. Never blocks."""
        self._pictures.remember(tool, before, after, seen)
        self.soon(tool)

    def close(self) -> None:
        """Show nothing any more until the next run begins."""
        if not self._begun:
            return
        self._begun = self._stays = False
        self._kit.heard, self._kit.ended = self._deaf
        self._ownership.on_order = None
        thread = self._thread
        self._ring()
        if thread is not None and thread is not threading.current_thread():
            thread.join(PATIENCE)
        self._looked = False
        self._forget()

    def after_fork(self) -> None:
        """In a forked child: the thread, and what is shown, are the parent's."""
        self._solo = Solo("holdfast-publisher", self._serve, self._is_needed)
        self._looking = threading.Lock()  # held while orders are taken up
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._mailbox: News | None = None
        self._thread: threading.Thread | None = None
        self._looked = self._dozing = self._urgent = self._again = self._complained = False
        self._marked: dict[str, None] = {}  # tools of which there may be news; one operation marks one
        self._owed: set[str] = set()  # tools of which there was news when the store failed
        self._started_at = int(self._kit.clock.time() * 1000)
        self._forget()
        if self._begun:
            self._box.make_due()  # the first call here must not count on what the parent's have told

    # -- told by tools -------------------------------------------------------------------------------------------------

    def heard(self, tool: str, now: float) -> float:
        """A call of *tool* is about to be made: take up what was ordered while nobody was here."""
        if not self._looked or (not self._solo.there and self._poked()):
            self._looked = True
            self._look()
        self.ended(tool)
        return now + PERIOD

    def ended(self, tool: str) -> None:
        """A call of *tool* has ended. Never blocks, as the garbage collector may end it."""
        self._marked[tool] = None
        self._start()
        if self._dozing:  # set before it looks for marks
            self._ring()

    # -- orders --------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take up the orders that are new; who comes while another does leaves it to that one."""
        self._again = True
        while self._again and self._looking.acquire(blocking=False):
            try:
                self._again = False
                self._take_up(self._board.orders(self._seen))
            except HoldfastError as error:
                self._complain(error)
            finally:
                self._looking.release()

    def _take_up(self, orders: list[Order]) -> None:
        breaker, seen = self._kit.breaker, self._seen
        for order in orders:
            if order.reset > seen >= 0:
                breaker.reset(order.tool)
            if order.state is not None:
                (breaker.force_open if order.state == "open" else breaker.force_closed)(order.tool)
            elif seen >= 0:  # what was before us is nothing to us
                breaker.auto(order.tool)
            self._marked[order.tool] = None
        self._seen = max([0, seen, *(order.number for order in orders)])
        if orders:
            self.soon()

    def _poked(self) -> bool:
        try:
            return self._ownership.poked()
        except OSError as error:
            self._complain(error)
            return False

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        self._begun = True
        self._kit.heard, self._kit.ended = self.heard, self.ended
        self._ownership.on_order = self._look
        self._box.make_due()

    def _start(self) -> None:
        """Start the thread unless there is one. Nothing here blocks: the garbage collector may end a stream."""
        if not self._begun or self._solo.there:
            return
        try:
            self._thread = self._solo.start() or self._thread
        except RuntimeError as error:  # no more threads, or the interpreter ends
            self._complain(error)

    def _ring(self) -> None:
        if (mailbox := self._mailbox) is not None:
            mailbox.wake()
        elif self._rings.empty():
            self._rings.put(None)

    def _serve(self) -> None:
        try:
            self._attend()
        except Exception as error:
            self._complain(error)
            self._marked.clear()  # with the next call, again
            self._urgent = False

    def _is_needed(self) -> bool:
        return self._begun and bool(self._marked or self._urgent)

    def _attend(self) -> None:
        """Show what changes, until nothing does; orders are taken up as they come."""
        self._arrive()
        recent: Recent = {}
        # A fork waits for what is done alone: modules that are being loaded then would never be loaded in the child.
        mailbox = self._mailbox = self._store.writer.alone(self._ownership.mailbox)
        try:
            self._look()
            self._looked = True
            while self._begun:
                self._urgent = False
                begun = SystemClock.monotonic()
                is_all = self._publish(recent)
                took = SystemClock.monotonic() - begun
                if not recent and not self._marked and not self._urgent and not self._stays:
                    return
                SystemClock.sleep(GAP)  # what waits here is the system
                sign = None if self._ownership.is_locked else self._store.lease / 3
                pause = PERIOD if recent else sign
                self._wait(pause if is_all else min(took, PERIOD))  # calls want to be made meanwhile
        finally:
            self._mailbox = None
            if mailbox is not None:
                mailbox.close()

    def _wait(self, seconds: float | None) -> None:
        """Wait for a ring, an order or the time; not if something is to be done already."""
        self._dozing = seconds is None  # before it looks for marks
        try:
            if self._urgent or not self._begun or (seconds is None and self._marked):
                return
            if (mailbox := self._mailbox) is None:
                self._rings.get(timeout=seconds)
                return
            end = math.inf if seconds is None else SystemClock.monotonic() + seconds
            while mailbox.wait(None if seconds is None else max(0.0, end - SystemClock.monotonic())):
                if self._poked():
                    self._look()
                    return
                if SystemClock.monotonic() >= end:
                    return
        except queue.Empty:
            return
        finally:
            self._dozing = False

    def _arrive(self) -> None:
        """Be somebody on this store; the first time, show all there is, and tidy up after the dead."""
        id = self._ownership.row().id
        if id != self._id:
            self._forget()
            self._id = id
            self._marked.update(dict.fromkeys(self._box.names()))
            self._marked.update(dict.fromkeys(circuit.tool for circuit in self._kit.breaker.snapshot().diagnostics))
            self._board.sweep()

    def _forget(self) -> None:
        self._id = ""
        self._shown: dict[str, bytes] = {}  # what stands on the board, by tool, the oldest first
        self._stood: tuple[object, ...] = ()  # the same, of the process itself
        self._pictures.forget()
        self._tools_known = 0

    # -- what is shown -------------------------------------------------------------------------------------------------

    def _publish(self, recent: Recent) -> bool:
        """Write what has changed of the tools that are *recent* or marked, and forget those that are so no longer.

        False if there were more than one write takes.
        """
        now, seen = SystemClock.monotonic(), self._seen  # before any tool is looked at, which may take up another order
        servers = self._ask_servers()
        known = {each.name for each in servers}
        self._collect(recent, known, now)
        tools: dict[str, bytes | None] = {}
        resting: set[str] = set()
        due = [name for name, (at, is_seen) in recent.items() if not is_seen or at + PERIOD <= now]
        for name in due[:MOST_AT_ONCE]:
            heard_at, _ = recent.pop(name)
            if heard_at + PERIOD <= now and (tool := self._box.find(name)) is not None:
                tool.rest()  # before its numbers are read: a call that is under way tells when it ends
                resting.add(name)
            entry = self._pictures.entry(name, is_known=name in known)
            packed = None if entry is None else pack(entry)
            if packed is not None and heard_at + PERIOD > now:
                recent[name] = (heard_at, True)
            if self._shown.get(name) != packed:
                tools[name] = packed
        details = self._pictures.details(tools, resting, now)
        try:
            self._write(tools, servers, details, seen)
        except HoldfastError as error:
            self._owed.update(tools)
            self._pictures.owe(details)
            self._complain(error)
        else:
            self._complained = False
        return len(due) <= MOST_AT_ONCE

    def _collect(self, recent: Recent, servers: set[str], now: float) -> None:
        """Have in *recent* what is marked, or is yet to be shown."""
        self._marked.update((name, None) for name in servers if name not in self._shown)
        if self._box.size != self._tools_known:  # some were decorated since: they show before they are called
            self._tools_known = self._box.size
            self._marked.update((name, None) for name in self._box.names() if name not in self._shown)
        while self._marked and self._owed:  # there is life again: perhaps in the store, too
            recent[self._owed.pop()] = (now, False)
        while self._marked:
            recent[self._marked.popitem()[0]] = (now, False)
        if len(recent) > MOST_TOOLS:  # names come faster than they can be shown: most are nobody's any more
            for name in [name for name in recent if self._box.find(name) is None and name not in servers]:
                del recent[name]

    def _write(
        self,
        tools: Mapping[str, bytes | None],
        servers: list[ServerEntry],
        details: Sequence[tuple[str, bytes]],
        seen: int,
    ) -> None:
        """Have *tools* shown as they were when *seen* was the last order, None for one that is not to be shown."""
        row = self._ownership.row()
        stands = (row.id, self._kind, self._name, seen, servers)
        if not tools and not details and stands == self._stood and self._ownership.is_locked:
            return
        shown = {**self._shown, **{name: entry for name, entry in tools.items() if entry is not None}}
        surplus = itertools.islice(self._shown, max(0, len(shown) - MOST_TOOLS))
        gone = {name for name, entry in tools.items() if entry is None}.union(surplus)
        is_new = not self._stood
        self._board.publish(
            Process(
                id=row.id, host=row.host, pid=row.pid, kind=self._kind, name=self._name,
                started_at_ms=self._started_at, at_ms=int(self._kit.clock.time() * 1000), until_ms=row.until,
                seen=seen, servers=servers,
            ),
            [(name, entry) for name, entry in tools.items() if entry is not None],
            sorted(gone),
            details,
        )  # fmt: skip
        self._stood = stands
        self._shown = {name: entry for name, entry in shown.items() if name not in gone}
        self._pictures.drop(gone)
        if is_new:
            self._look()  # whoever gave an order before we stood there could not tell us

    def _ask_servers(self) -> list[ServerEntry]:
        if self._servers is None:
            return []
        try:
            return [server(facts) for facts in list(self._servers())[:MOST_SERVERS]]
        except Exception as error:  # code of others
            self._complain(error)
            return []

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("the state of tools cannot be shown to other processes: %s", in_words(error))


def _program() -> str:
    """What this process is, as far as its command line tells."""
    path = sys.argv[0] if sys.argv else ""
    name = os.path.basename(path)
    if name == "__main__.py":
        name = os.path.basename(os.path.dirname(path))
    return printable(name if name.strip("-c") else "python", LONGEST_NAME)
