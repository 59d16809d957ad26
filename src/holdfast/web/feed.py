"""One feed for all pages: reads the store while a page listens, and sends what has changed since the last read.

Every message has a number of this feed. The last ones are kept, so a page that reconnects goes on where it was; one
that was away too long gets everything anew. A page that reads too slowly is disconnected with a note: it never holds up
the other pages or the store.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, in_words
from holdfast.stores import RunStore
from holdfast.stores.entries import ServerLine, ToolLine
from holdfast.stores.following import changes
from holdfast.web.answers import RunView, encode, view
from holdfast.web.desk import Desk
from holdfast.web.sse import BEAT, SIGN, message, note

PERIOD = 1.0  # seconds between two reads if the store reports no change
GAP = 0.1  # seconds between two reads, at least
COUNTING = 10.0  # seconds between two checks whether runs were deleted, since each one counts all runs
NEWEST = 100  # runs that a page begins with
MOST_RUNS = 1000  # changed runs that are sent one by one; if more have changed, everything is sent anew
MOST_EVENTS = 50_000  # new events of runs between two reads; if there are more, everything is sent anew
MOST_KNOWN = 5000  # runs whose last sent state is remembered
KEPT = 500  # messages, for pages that reconnect
MOST_BEHIND = 4 * 2**20  # bytes that may wait for a page that reads slowly, or is away

_log = logging.getLogger("holdfast")


class Everything(msgspec.Struct, kw_only=True):
    """The event `hello`: what a page begins with; *read_only* if nothing can be changed from it."""

    at_ms: int
    read_only: bool
    tools: list[ToolLine]
    servers: list[ServerLine]
    runs: list[RunView]


class ToolsChanged(msgspec.Struct, kw_only=True):
    """The event `tools`: those that are different, and the names that are *gone*."""

    at_ms: int
    tools: list[ToolLine]
    gone: list[str]


class ServersChanged(msgspec.Struct, kw_only=True):
    """The event `servers`: all of them, where one is different."""

    at_ms: int
    servers: list[ServerLine]


class RunsChanged(msgspec.Struct, kw_only=True):
    """The event `runs`: those that are different."""

    at_ms: int
    runs: list[RunView]


class Feed:
    """The feed of *desk*'s store; does nothing while no page listens."""

    def __init__(self, desk: Desk, *, read_only: bool = False) -> None:
        self._desk = desk
        self._read_only = read_only
        self._start = secrets.token_hex(4)  # tells our numbers from those of an earlier start
        self._number = 0
        self._kept: deque[bytes] = deque()  # the last messages
        self._weight = 0
        self._readers: set[_Reader] = set()
        self._looking = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._seen = _Seen()
        self._complaint = ""

    async def listen(self, last_id: str | None) -> AsyncIterator[bytes]:
        """Everything, or what came after *last_id*; then what changes, as it changes."""
        reader = _Reader()
        try:
            # Shielded: a page that leaves now must not cancel the read, whose thread would go on beside the next read.
            await asyncio.shield(self._keep(self._join(reader, last_id)))
            async for piece in reader.read():
                yield piece
        finally:
            reader.left = True
            self._readers.discard(reader)

    async def _join(self, reader: _Reader, last_id: str | None) -> None:
        async with self._looking:
            if reader.left:  # while it waited: pages that come and go must not make a queue of reads
                return
            missed = self._missed(last_id)
            for each in missed or ():
                reader.put(each)
            reader.is_synced = missed is not None
            self._readers.add(reader)
            known = self._complaint
            await self._look()  # which also greets new pages
            if self._complaint and (known or not reader.is_synced):
                reader.put(note("store", self._complaint))
        if self._task is None or self._task.done():
            self._task = self._keep(self._serve())

    async def _greet(self) -> None:
        """Send everything to the pages that have nothing to go on from."""
        strangers = [reader for reader in self._readers if not reader.is_synced]
        if strangers:
            # What is new in it is not marked as sent: the other pages have still to get it.
            everything = await self._desk.run_unlimited(lambda: encode(self._everything()))
            hello = message(everything, event="hello", id=self._id())
            for reader in strangers:
                reader.is_synced = True
                reader.put(hello)

    def _keep(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """A task that is referenced until it ends, so that it is not garbage-collected."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- looking -------------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Read the store until no page listens any more."""
        try:
            async with aclosing(changes(self._desk.store, PERIOD)) as changed:
                while self._readers:
                    await anext(changed)
                    async with self._looking:
                        await self._look()
                    await self._desk.clock.asleep(GAP)
        except Exception:
            _log.exception("the feed of the page has failed; pages begin anew")
            self._tell(note("failed", "the feed has failed; see what the server says"), last=True)

    async def _look(self) -> None:
        """Send what has changed since the last read; if it cannot be read, a note, and everything once it can."""
        try:
            for event, data in await self._desk.run_unlimited(self._read):
                if event == "hello":
                    self._kept.clear()
                    self._weight = 0
                self._send(event, data)
            if self._complaint:
                for reader in self._readers:
                    reader.is_synced = False
            await self._greet()
            self._complaint = ""
        except HoldfastError as error:
            if not self._complaint:
                self._tell(note("store", in_words(error)))
                _log.warning("the store cannot be read: %s", in_words(error))
            self._complaint = in_words(error)

    def _send(self, event: str, data: bytes) -> None:
        self._number += 1
        piece = message(data, event=event, id=self._id())
        self._kept.append(piece)
        self._weight += len(piece)
        while len(self._kept) > KEPT or (self._weight > MOST_BEHIND and len(self._kept) > 1):
            self._weight -= len(self._kept.popleft())
        self._tell(piece)

    def _tell(self, piece: bytes, *, last: bool = False) -> None:
        for reader in list(self._readers):
            if (reader.is_synced or last) and not reader.put(piece, last=last):
                self._readers.discard(reader)

    def _id(self) -> str:
        return f"{self._start}-{self._number}"

    def _missed(self, last_id: str | None) -> list[bytes] | None:
        """The messages that came after *last_id*; None if it is not ours, or too old."""
        start, _, number = (last_id or "").partition("-")
        if start != self._start or not number.isascii() or not number.isdecimal() or len(number) > 15:
            return None
        behind = self._number - int(number)
        return list(self._kept)[len(self._kept) - behind :] if 0 <= behind <= len(self._kept) else None

    # -- in a thread, one at a time ------------------------------------------------------------------------------------

    def _read(self) -> list[tuple[str, bytes]]:
        """The messages for what has changed since the last read, or for everything; the first read gives none."""
        desk, seen, messages = self._desk, self._seen, []
        at_ms = desk.now_ms()
        runs = seen.runs_changed(desk)
        if seen.board_changed(desk) or runs is None:
            tools, servers = desk.tools.all(), desk.board.servers()
            fresh, gone = seen.tools_changed(tools)
            servers_differ = seen.servers_changed(servers)
            if not seen.has_begun:
                seen.has_begun = True
                return []
            if runs is None:
                everything = self._everything()
                seen.know(everything.runs)
                return [("hello", encode(everything))]
            if fresh or gone:
                messages.append(("tools", encode(ToolsChanged(at_ms=at_ms, tools=fresh, gone=gone))))
            if servers_differ:
                messages.append(("servers", encode(ServersChanged(at_ms=at_ms, servers=servers))))
        if runs:
            messages.append(("runs", encode(RunsChanged(at_ms=at_ms, runs=runs))))
        return messages

    def _everything(self) -> Everything:
        desk = self._desk
        tools = desk.tools.all()
        runs = [view(run) for run in desk.store.list_runs(limit=NEWEST)]
        servers = desk.board.servers()
        return Everything(at_ms=desk.now_ms(), read_only=self._read_only, tools=tools, servers=servers, runs=runs)


class _Seen:
    """What was sent last, to find what has changed; values that change with time alone do not count."""

    def __init__(self) -> None:
        self.has_begun = False
        self._event = self._key = 0  # the numbers of the last event and the last run in the store
        self._version: list[tuple[object, ...]] = []  # of the board
        self._looked_at = self._asked_at = self._counted_at = -math.inf
        self._missing = math.inf  # how many numbers of runs are unused, since their runs were deleted
        self._tools: dict[str, bytes] = {}
        self._servers: list[tuple[str, bytes]] = []
        self._runs: OrderedDict[str, bytes] = OrderedDict()

    def board_changed(self, desk: Desk) -> bool:
        """True if the board was written to, or the last look at it is a second ago: a process may have died since."""
        now = desk.clock.monotonic()
        version = [*desk.store.file.fetch("versions"), *desk.store.file.fetch("last_order")]
        if version == self._version and now < self._looked_at + PERIOD:
            return False
        self._version, self._looked_at = version, now
        return True

    def tools_changed(self, tools: list[ToolLine]) -> tuple[list[ToolLine], list[str]]:
        before, self._tools = self._tools, {line.name: _sign(line) for line in tools}
        changed = [line for line in tools if before.get(line.name) != self._tools[line.name]]
        return changed, sorted(before.keys() - self._tools.keys())

    def servers_changed(self, servers: list[ServerLine]) -> bool:
        before, self._servers = self._servers, [(each.process, encode(each.server)) for each in servers]
        return before != self._servers

    def runs_changed(self, desk: Desk) -> list[RunView] | None:
        """The runs that have changed; None if there are too many, or runs were deleted, which this cannot express."""
        file, now = desk.store.file, desk.clock.monotonic()
        event, key = _last(desk.store)
        (since_event, since_key), (self._event, self._key) = (self._event, self._key), (event, key)
        deleted = self._some_are_deleted(desk.store, now) or event < since_event
        rows: list[tuple[Any, ...]] = []
        if self.has_begun:
            if deleted or event - since_event > MOST_EVENTS:  # so many come from an import
                return None
            rows = file.fetch("changed", since_event, since_key, MOST_RUNS + 1)
            if len(rows) > MOST_RUNS:
                return None
        if now >= self._asked_at + PERIOD:  # runs change when their process dies
            self._asked_at = now
            rows += file.fetch("owned", MOST_RUNS)
        views = {run.id: view(run) for run in desk.store.snapshots(rows)}
        changed = [each for each in views.values() if self._runs.get(each.id) != encode(each)]
        self.know(changed)
        return changed

    def _some_are_deleted(self, store: RunStore, now: float) -> bool:
        """True if more numbers of runs are unused than at the last count."""
        if now < self._counted_at + COUNTING:
            return False
        self._counted_at = now
        before, self._missing = self._missing, sum(count for (count,) in store.file.fetch("missing"))
        return self._missing > before

    def know(self, runs: list[RunView]) -> None:
        """Remember these runs as sent."""
        for run in runs:
            self._runs[run.id] = encode(run)
            self._runs.move_to_end(run.id)
        while len(self._runs) > MOST_KNOWN:
            self._runs.popitem(last=False)


class _Reader:
    """One page that listens: the messages that wait for it, up to a limit."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._weight = 0
        self._woken = asyncio.Event()
        self._over = False
        self.is_synced = False  # True once it was sent everything, or has come back and goes on where it was
        self.left = False

    def put(self, piece: bytes, *, last: bool = False) -> bool:
        """Queue *piece*; False if nothing may follow: it is the *last*, or the page is too far behind and is let go."""
        if self._over:
            return False
        # The first piece does not count: one read may give a very large message and further ones in the same moment.
        if self._pieces and self._weight - len(self._pieces[0]) > MOST_BEHIND:
            self._pieces.clear()
            self._weight = 0
            piece, last = note("slow", "this page reads too slowly; it may come back and go on"), True
        self._pieces.append(piece)
        self._weight += len(piece)
        self._over = last
        self._woken.set()
        return not last

    async def read(self) -> AsyncIterator[bytes]:
        """The pieces as they come, and signs of life between them."""
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._weight -= len(piece)
                yield piece
            if self._over:
                return
            self._woken.clear()
            try:
                async with asyncio.timeout(BEAT):
                    await self._woken.wait()
            except TimeoutError:
                yield SIGN


def _last(store: RunStore) -> tuple[int, int]:
    """The numbers of the last event and the last run."""
    rows = store.file.fetch("last_change")
    return rows[0] if rows else (0, 0)


def _sign(line: ToolLine) -> bytes:
    """All of a line, except for the times at which it was read and written."""
    processes = [msgspec.structs.replace(each, at_ms=0) for each in line.processes]
    return encode(msgspec.structs.replace(line, remaining_ms=None, processes=processes))
