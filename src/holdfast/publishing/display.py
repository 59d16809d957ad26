"""What this process shows on the board: itself, its servers, and pictures of its tools where they have changed.

A tool is looked at when a call of it was reported, and once more a period later, when it comes to rest. What the store
could not take is owed, and written when calls are made again.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError, printable
from holdfast.publishing.complaint import Complaint
from holdfast.publishing.pictures import Pictures
from holdfast.stores import RunStore
from holdfast.stores.board import Board
from holdfast.stores.entries import LONGEST_NAME, MOST_SERVERS, Process, ServerEntry, pack, server
from holdfast.tools.kit import Kit
from holdfast.tools.toolbox import Toolbox

# Seconds between two looks at the tools that are being called, and for which further calls of a tool need no report.
PERIOD = 1.0
MOST_AT_ONCE = 1000  # tools in one write; the others are in the next one
MOST_TOOLS = 10_000  # tools that one process shows

Servers = Callable[[], Sequence[Mapping[str, Any]]]


class Display:
    """What stands on the board of *store*; one thread at a time writes it. Failures go to *complain*."""

    def __init__(self, store: RunStore, kit: Kit, box: Toolbox, complain: Complaint) -> None:
        self.kind = "library"
        self.name = _program()
        self.servers: Servers | None = None
        self.pictures = Pictures(kit, box)
        self._board = Board(store)
        self._ownership = store.ownership
        self._kit = kit
        self._box = box
        self._complain = complain
        self._complain_of_servers = Complaint("the servers behind this process")
        self.after_fork()

    def after_fork(self) -> None:
        """Reset in a forked child: what stands on the board is the parent's."""
        self._complain_of_servers.over()
        self._started_at = int(self._kit.clock.time() * 1000)
        self.forget()

    def forget(self) -> None:
        """Start over: nothing of this process stands on the board any more."""
        self._id = ""
        self._stood: tuple[object, ...] = ()  # the process itself, as it stands on the board
        self._shown: dict[str, bytes] = {}  # its tools, as they stand there, the oldest first
        self._owed: set[str] = set()  # tools that had news when the store failed
        self._tools_known = 0
        # When a tool was last reported, and whether it was looked at since.
        self.recent: dict[str, tuple[float, bool]] = {}
        self.pictures.forget()

    @property
    def stands(self) -> bool:
        """True if other processes can see this one on the board."""
        return bool(self._stood)

    def arrive(self) -> None:
        """Become an owner on this store; the first time, report all circuits, and remove what dead processes left."""
        self.recent = {}
        id = self._ownership.row().id
        if id != self._id:
            self.forget()
            self._id = id
            self._hear(circuit.tool for circuit in self._kit.breaker.snapshot().diagnostics)
            self._board.sweep()

    def publish(self, marked: dict[str, None], seen: int, *, is_last: bool = False) -> bool:
        """Write what has changed of the tools that are recent or *marked*, as of the order *seen*; empties *marked*.

        False if there were more than one write takes; the last write takes all, so that no counts are lost.
        """
        now = SystemClock.monotonic()
        servers = self._ask_servers()
        known = {each.name for each in servers}
        self._collect(marked, known)
        until = math.inf if is_last else now
        due = [name for name, (heard_at, is_seen) in self.recent.items() if not is_seen or heard_at + PERIOD <= until]
        tools, resting = self._look_at(due[: None if is_last else MOST_AT_ONCE], known, until)
        details = [] if is_last else self.pictures.details(tools, resting, now)
        try:
            self._write(tools, servers, details, seen)
            self._complain.over()
        except HoldfastError as error:
            self._owed.update(tools)
            self.pictures.owe(details)
            self._complain(error)
        return len(due) <= MOST_AT_ONCE

    def _collect(self, marked: dict[str, None], servers: set[str]) -> None:
        """Have in `recent` the tools that are *marked*, or not shown so far."""
        marked.update((name, None) for name in servers if name not in self._shown)
        if self._box.size != self._tools_known:  # new tools were decorated: they are shown before their first call
            self._tools_known = self._box.size
            marked.update((name, None) for name in self._box.names() if name not in self._shown)
        if marked:  # calls are made again: perhaps the store works again, too
            self._hear(self._owed)
            self._owed = set()
        while marked:
            self._hear([marked.popitem()[0]])
        if len(self.recent) > MOST_TOOLS:  # names come faster than they can be shown: most belong to no tool any more
            for name in [name for name in self.recent if self._box.find(name) is None and name not in servers]:
                del self.recent[name]

    def _hear(self, names: Iterable[str]) -> None:
        self.recent.update(dict.fromkeys(names, (SystemClock.monotonic(), False)))

    def _look_at(self, due: Sequence[str], servers: set[str], now: float) -> tuple[dict[str, bytes | None], set[str]]:
        """Return the pictures of tools that are *due*, where they differ from what stands there (None for a tool that
        must not be shown), and the tools that are at rest, which are no longer recent.
        """
        changed: dict[str, bytes | None] = {}
        resting: set[str] = set()
        for name in due:
            heard_at, _ = self.recent.pop(name)
            is_over = heard_at + PERIOD <= now
            if is_over and (tool := self._box.find(name)) is not None:
                tool.rest()  # before its numbers are read: a call in flight reports when it ends
                resting.add(name)
            entry = self.pictures.entry(name, is_known=name in servers)
            packed = None if entry is None else pack(entry)
            if packed is not None and not is_over:
                self.recent[name] = (heard_at, True)
            if self._shown.get(name) != packed:
                changed[name] = packed
        return changed, resting

    def _write(
        self,
        tools: Mapping[str, bytes | None],
        servers: list[ServerEntry],
        details: Sequence[tuple[str, bytes]],
        seen: int,
    ) -> None:
        row = self._ownership.row()
        stands = (row.id, self.kind, self.name, seen, servers)
        if not tools and not details and stands == self._stood and self._ownership.is_locked:
            return
        fresh = {name: entry for name, entry in tools.items() if entry is not None}
        shown = {**self._shown, **fresh}
        surplus = itertools.islice(self._shown, max(0, len(shown) - MOST_TOOLS))
        gone = (tools.keys() - fresh.keys()).union(surplus)
        self._board.publish(
            Process(
                id=row.id, host=row.host, pid=row.pid, kind=self.kind, name=self.name,
                started_at_ms=self._started_at, at_ms=int(self._kit.clock.time() * 1000), until_ms=row.until,
                seen=seen, servers=servers,
            ),
            list(fresh.items()),
            sorted(gone),
            details,
        )  # fmt: skip
        self._stood = stands
        self._shown = {name: entry for name, entry in shown.items() if name not in gone}
        self.pictures.drop(gone)

    def _ask_servers(self) -> list[ServerEntry]:
        if self.servers is None:
            return []
        try:
            found = [server(facts) for facts in list(self.servers())[:MOST_SERVERS]]
        except Exception as error:  # code from outside
            self._complain_of_servers(error)
            return []
        self._complain_of_servers.over()
        return found


def _program() -> str:
    """Return the name of this program, as far as its command line tells."""
    path = sys.argv[0] if sys.argv else ""
    name = os.path.basename(path)
    if name == "__main__.py":
        name = os.path.basename(os.path.dirname(path))
    return printable(name if name.strip("-c") else "python", LONGEST_NAME)
