"""The rules of writing: sequences without gaps, snapshots that fold, fences, leases, cancels. Knows no database.

A write is a function of the ledger. It reads first and changes afterwards: one that raises has changed nothing. Its
changes stay in memory until the group is written, and are forgotten if that fails.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from holdfast import events
from holdfast.errors import LeaseLost, RunConflict, RunNotFound
from holdfast.history import CancelResult, RunHeader, RunSnapshot, RunStatus, apply, begin
from holdfast.values.said import ENDS, known

KEYS_AT_ONCE = 32  # keys for new runs that are fetched at once
MOST_CACHED = 2_000  # runs whose state is kept in memory
MOST_TOOLS = 1_000  # tools of one run by which it can be found
PIECE = 2 * 10**6  # bytes of memos, about, that one write deletes: that takes some 10 ms
ROW = 2_000  # bytes that each memo counts for beside its outcome: deleting its row takes as long as so many bytes
USES = frozenset({events.TOOL_STARTED, events.TOOL_ENDED, events.TOOL_DENIED})  # events that tell of a tool


class Live:
    """A run as the ledger has it in memory."""

    __slots__ = (
        "cancel", "fence", "first", "header", "is_new", "key", "memos", "new_tools", "origin", "owner", "snapshot",
        "tools", "touched_at", "version", "written",
    )  # fmt: skip

    def __init__(self, key: int, header: RunHeader, snapshot: RunSnapshot, touched_at: int) -> None:
        self.key = key
        self.header = header
        self.snapshot = snapshot
        self.touched_at = touched_at
        self.first = 0
        self.owner: str | None = None
        self.fence = 0
        self.cancel: str | None = None  # the reason, which may be empty, if a cancel was requested
        self.origin: str | None = None  # the store that it was imported from
        self.is_new = False
        self.memos = math.inf  # the weight of its memos in bytes; infinite if it is not known
        self.tools: set[str] = set()  # tools known to be recorded as used by this run
        self.new_tools: list[str] = []  # those of them that are not written yet
        self.version = 0  # the number of the group that wrote it last, where several processes write at once
        self.written: tuple[object, ...] = ()  # status, owner, fence and cancel as they are on disk

    def standing(self) -> tuple[object, ...]:
        """The facts that are written only when they have changed."""
        return (self.snapshot.status, self.owner, self.fence, self.cancel)


class Claim(NamedTuple):
    """The right of one owner to write to a run, as long as no other claim has a higher fence.

    It ends with the run: one that is deleted and comes back under its id counts its owners anew, but has another *key*.
    """

    run_id: str
    owner: str
    fence: int
    key: int | None = None  # None if the run was not written yet


class OwnerRow(NamedTuple):
    """A process that owns runs, alive until *until* (ms); *locked* if its row says that others can check its lock.

    *awake_until* is the same by the monotonic clock of its host.
    """

    id: str
    host: str
    pid: int
    until: int
    locked: bool = False
    awake_until: int = 0


# Rows on their way to the tables; plain tuples, since there are several a step and a database takes them as they are.
EventRow = tuple[int, int, int, str, int, str]  # run, sequence, at, type, late, payload
MemoRow = tuple[int, bytes, str, bytes]  # run, key of the call, its name, its exact outcome: empty where none was kept


class Tables(Protocol):
    """What the ledger needs of a database, inside a transaction."""

    has_concurrent_writers: bool  # True if other processes may write between our transactions, and during them
    blocking: bool  # True if all other writers wait during our transactions

    def load(self, run_id: str) -> Live | None: ...
    def new_keys(self, most: int) -> Iterator[int]: ...
    def confirm(self, lives: Iterable[Live]) -> None: ...
    def tell(self, owners: Iterable[str]) -> None: ...
    def write(self, lives: Iterable[Live], rows: list[EventRow], memos: list[MemoRow]) -> None: ...
    def ask(self, name: str, *parameters: object) -> list[tuple[Any, ...]]: ...
    def pick(self, name: str, *parameters: object) -> list[tuple[Any, ...]]: ...
    def put(self, name: str, *parameters: object, is_news: bool = True) -> None: ...


class Ledger:
    """Makes one transaction after the other on *tables*; *is_alive* says whether an owner is alive."""

    def __init__(self, tables: Tables, time: Callable[[], float], is_alive: Callable[[OwnerRow | None], bool]) -> None:
        self.tables = tables
        self.time = time
        self._is_alive = is_alive
        self._lives: dict[str, Live] = {}
        self._dirty: dict[str, Live] = {}
        self._rows: list[EventRow] = []
        self._memos: list[MemoRow] = []
        self._keys: Iterator[int] = iter(())
        self._at = 0
        self._believed: dict[str, Live] = {}  # runs used from memory, which other processes may have changed
        self._kept: OwnerRow | None = None  # the owner that was last written as alive
        self.changes = 0  # grows with each change: a write that fails must have made none
        self._to_wake: set[str] = set()
        self.woken: deque[str] = deque()  # owners that the store has to tell that there is something for them
        self._left: list[int] = []
        self.leftovers: deque[int] = deque()  # completed or deleted runs whose memos the store still has to delete

    # -- one group -----------------------------------------------------------------------------------------------------

    def begin(self) -> float:
        """Note the time at which a transaction has begun, and return it: its events have that date."""
        now = self.time()
        self._at = int(now * 1000)
        return now

    def now_ms(self) -> int:
        """The wall clock, in milliseconds."""
        return int(self.time() * 1000)

    def forget(self) -> None:
        """Forget everything in memory: other processes have written, or our write failed, and it may be outdated."""
        self._kept = None
        self._clear()
        self._lives.clear()
        self._keys = iter(())
        self._to_wake.clear()
        self._left.clear()

    def write(self) -> None:
        """Hand everything that has changed to the tables."""
        if self._believed and (doubtful := [self._believed[id] for id in self._believed.keys() - self._dirty.keys()]):
            self.tables.confirm(doubtful)
        if self._dirty or self._memos:
            self.tables.write(self._dirty.values(), self._rows, self._memos)
        if self._to_wake:
            self.tables.tell(self._to_wake)

    def written(self) -> None:
        """Note that everything that has changed is on disk."""
        for live in self._dirty.values():
            live.is_new = False
            if live.new_tools:
                live.new_tools.clear()
            live.written = live.standing()
            if live.snapshot.status.is_terminal:
                self._lives.pop(live.header.id, None)
        self._clear()
        if len(self._lives) > MOST_CACHED:
            self._lives.clear()
        if self._to_wake:
            self.woken.extend(self._to_wake)
            self._to_wake.clear()
        if self._left:
            self.leftovers.extend(self._left)
            self._left.clear()

    def step_aside(self) -> None:
        """Hand over what has changed so far and forget the rest: the current write uses the tables directly."""
        self.write()
        self._clear()
        self._lives.clear()
        self._keys = iter(())
        self.changes += 1

    def _clear(self) -> None:
        self._dirty.clear()
        self._rows.clear()
        self._memos.clear()
        self._believed.clear()

    # -- what writes are made of ---------------------------------------------------------------------------------------

    def find(self, run_id: str) -> Live | None:
        """The run of that id, if there is one."""
        live = self._lives.get(run_id)
        if live is None:
            if (live := self.tables.load(run_id)) is not None:
                live.written = live.standing()
                self._lives[run_id] = live
        elif self.tables.has_concurrent_writers:
            self._believed[run_id] = live
        return live

    def run(self, run_id: str) -> Live:
        """The run of that id; raise a `RunNotFound` if there is none."""
        live = self.find(run_id)
        if live is None:
            raise RunNotFound(run_id)
        return live

    def claimed(self, claim: Claim) -> Live:
        """The run that *claim* is for; raise a `LeaseLost` if the claim no longer holds."""
        run_id, owner, fence, key = claim
        live = None if self.tables.has_concurrent_writers else self._lives.get(run_id)
        if live is None:
            live = self.run(run_id)
        # A claim whose commit failed may have the same fence as the claim of the owner that then got the run.
        if live.fence != fence or (live.key != key and key) or (live.owner != owner and live.owner and owner):
            raise LeaseLost(run_id, *(["was ended from elsewhere"] if live.snapshot.status.is_terminal else []))
        return live

    def append(self, live: Live, type: str, payload: Mapping[str, Any], encoded: str) -> bool:
        """Add an event, and return True if it comes late; *encoded* is the JSON of *payload*."""
        snapshot, at = live.snapshot, self._at
        if at < live.touched_at:
            at = live.touched_at
        sequence = snapshot.event_count
        late = apply(snapshot, type, payload, at)
        live.touched_at = at
        if type in USES:
            _note_tool(live, payload.get("tool"))
        self._rows.append((live.key, sequence, at, type, 1 if late else 0, encoded))
        self._dirty[live.header.id] = live
        self.changes += 1
        if not late and snapshot.status.is_terminal:
            self._ended(live)
        return late

    def intervene(self, live: Live, type: str, payload: Mapping[str, Any], encoded: str) -> None:
        """Add an event that is not from the owner: if it ends the run, the owner may not go on, and is told."""
        owner = live.owner
        self.append(live, type, payload, encoded)
        if owner is not None and live.owner is None:
            live.fence += 1
            self._to_wake.add(owner)

    def say(self, live: Live, type: str, **payload: Any) -> None:
        """Add an event of Holdfast's own."""
        self.append(live, type, payload, _JSON.encode(payload).decode())

    def remember(self, live: Live, key: bytes, name: str, outcome: bytes) -> None:
        """Keep the exact outcome of a call, unless the run has completed: then it is not needed."""
        if live.snapshot.status is RunStatus.COMPLETED:
            return
        live.memos += ROW + len(outcome)
        self._memos.append((live.key, key, name, outcome))
        self.changes += 1

    def has_memo(self, live: Live, key: bytes) -> bool:
        """True if the run has a memo on disk under *key*."""
        return bool(self.tables.ask("has_memo", live.key, key))

    def copy_memos(self, source: Live, target: Live) -> dict[bytes, bytes]:
        """Copy what *source* knows of its calls to *target*; return the outcomes by the keys of the calls."""
        copied = self.memos_of(source)
        target.memos = math.inf
        self._memos += [(target.key, *memo) for memo in copied]
        self.changes += 1
        return {key: outcome for key, _, outcome in copied}

    def memos_of(self, source: Live) -> list[tuple[bytes, str, bytes]]:
        """What *source* knows of its calls, from its events and its memos: key, name and outcome."""
        run, ask = source.key, self.tables.ask
        ended: list[str] = []
        if source.origin is None:
            ended = [payload for type, payload in ask("recalled", run) if type in ENDS]
            ended += [payload for of, _, _, type, _, payload in self._rows if of == run and type in ENDS]
        memos = [(bytes(key), name, bytes(outcome)) for key, name, outcome in ask("memos", run)]
        memos += [memo[1:] for memo in self._memos if memo[0] == run]
        return list(known(ended, memos))

    def add(self, header: RunHeader) -> Live:
        """Make a run, created now if its header has no date; its id must be new."""
        if not header.created_at_ms:
            header = msgspec.structs.replace(header, created_at_ms=self.now_ms())
        if (key := next(self._keys, None)) is None:
            self._keys = self.tables.new_keys(KEYS_AT_ONCE)
            key = next(self._keys)
        live = Live(key, header, begin(header), header.created_at_ms)
        live.is_new = True
        live.memos = 0
        self._lives[header.id] = live
        self._touch(live)
        return live

    def add_to_header(self, live: Live, **more: Any) -> None:
        """Add to the header of a run what is known only when it begins."""
        header = msgspec.structs.replace(live.header, **{name: value for name, value in more.items() if value})
        if header != live.header:
            live.header = header
            if not live.is_new:
                self.tables.put("change_header", _JSON.encode(header).decode(), live.key)
            self._touch(live)

    def erase(self, run: int) -> int:
        """Delete a run; return the weight of the memos deleted with it: from `PIECE` on, later writes delete the rest.

        The rest can no longer be asked for, and no other run ever gets the same key.
        """
        for name in ("drop_events", "forget_tools", "use_up_key", "drop_run"):
            self.tables.put(name, run)
        return self._delete_memos(run, math.inf)

    def delete_some_leftovers(self) -> None:
        """Delete some of the memos that a completed or deleted run has left behind."""
        if self.leftovers:
            run = self.leftovers[0]  # in a store of older versions, another run may have this key by now
            if not self.tables.ask("is_forgotten", run) or self._delete_memos_piece(run) < PIECE:
                self.tables.put("drop_meta", _note_of(run))
                self.leftovers.popleft()

    # -- owners --------------------------------------------------------------------------------------------------------

    def owner(self, owner: str) -> OwnerRow | None:
        """The row of a process that owns, or owned, runs."""
        rows = self.tables.ask("owner", owner)
        return OwnerRow(*rows[0]) if rows else None

    def renew_owner(self, owner: OwnerRow) -> None:
        """Write that *owner* is alive, and until when at least."""
        self.tables.put("keep_owner", *owner, is_news=False)

    def drop(self, owner: str) -> None:
        """Delete *owner*; the statistics of its tools stay on the board for a while."""
        for name in ("drop_owner", "end_process", "drop_details_of_process"):
            self.tables.put(name, owner)

    def drop_old_owners(self) -> None:
        """Delete the owners whose lease is over and that no run names as its owner."""
        self.tables.put("drop_old_owners", self.now_ms(), is_news=False)

    def excuse_silence(self, since: int) -> None:
        """Extend the leases that have run out since *since* by the time since then, if owners could not write in it."""
        if self.tables.blocking:
            now = self.now_ms()
            self.tables.put("excuse_owners", now - since, since, now, is_news=False)

    def claim(self, live: Live, owner: OwnerRow) -> Claim:
        """Give the run to *owner*; raise a `RunConflict` if it has an owner that is alive."""
        if live.owner is not None and self.is_owned(live):
            holder = self.owner(live.owner)
            who = f"process {holder.pid} on {holder.host}" if holder is not None else "another process"
            raise RunConflict(f"run {live.header.id!r} is being run by {who}: cancel it there, or wait until it ends")
        self._keep_once(owner)
        live.owner = owner.id
        live.fence += 1
        self._touch(live)
        return Claim(live.header.id, owner.id, live.fence, live.key)

    def _keep_once(self, owner: OwnerRow) -> None:
        """`keep` the *owner*, unless the lease would be less than a second longer than the one last written.

        If the clock has gone back, another process may have deleted the row meanwhile.
        """
        kept = self._kept
        if kept is not None and kept.id == owner.id and 0 <= owner.until - kept.until < 1000:
            return
        if self.owner(owner.id) is None:
            self.drop_old_owners()
            if self.tables.blocking:
                self._left += [run for (run,) in self.tables.ask("leftovers")]
        self.renew_owner(owner)
        self._kept = owner

    def release(self, live: Live) -> None:
        """Leave the run without an owner."""
        live.owner = None
        self._touch(live)

    def is_owned(self, live: Live) -> bool:
        """True if the run has an owner that is alive."""
        return live.owner is not None and self._is_alive(self.owner(live.owner))

    def cancel(self, run_id: str, reason: str | None) -> CancelResult:
        """Cancel a run, or ask its owner to."""
        live = self.find(run_id)
        if live is None:
            return CancelResult.NOT_FOUND
        if live.snapshot.status.is_terminal:
            return CancelResult.ALREADY_FINISHED
        if not self.is_owned(live):
            live.fence += live.owner is not None  # an owner that was taken for dead and comes back may not go on
            self.say(live, events.RUN_CANCELLED, reason=reason)
        elif live.cancel is None:
            live.cancel = reason or ""
            self.say(live, events.RUN_CANCEL_REQUESTED, reason=reason)
        if live.owner is not None:
            self._to_wake.add(live.owner)
        return CancelResult.REQUESTED

    def wake(self, owner: str) -> None:
        """Have *owner* told, once this is on disk, that there is something for it."""
        self._to_wake.add(owner)
        self.changes += 1

    def _ended(self, live: Live) -> None:
        """Drop what only an unfinished run needs: its owner, and, if it has completed, its memos."""
        live.owner = None
        if live.snapshot.status is RunStatus.COMPLETED and live.memos:
            self._memos[:] = [memo for memo in self._memos if memo[0] != live.key]
            self._delete_memos(live.key, live.memos)

    def _delete_memos(self, run: int, weight: float) -> int:
        """Delete the memos of a run; if other writers would wait, and there are many, later writes delete the rest."""
        if weight <= PIECE or not self.tables.blocking:
            self.tables.put("forget_memos", run)
            return 0
        if (gone := self._delete_memos_piece(run)) >= PIECE:
            self.tables.put("set_meta", _note_of(run), run)
            self._left.append(run)
        return gone

    def _delete_memos_piece(self, run: int) -> int:
        """Delete as many memos of a run as one write may; return their weight: less than `PIECE` if none is left."""
        weight = 0
        while weight < PIECE:  # one by one: a look ahead would read all their contents
            if not (found := self.tables.ask("first_memo", run)):
                break
            ((key, length),) = found
            self.tables.put("forget_memo", run, key)
            weight += ROW + length
        return weight

    def _touch(self, live: Live) -> None:
        self._dirty[live.header.id] = live
        self.changes += 1


def _note_tool(live: Live, tool: object) -> None:
    """Note a tool that the run used, or wanted to, to find the run by; only the first ones, as agents make names up."""
    if isinstance(tool, str) and tool not in live.tools and len(live.tools) < MOST_TOOLS:
        live.tools.add(tool)
        live.new_tools.append(tool)


def _note_of(run: int) -> str:
    """The name in the table `meta` that says that a completed or deleted run still has memos."""
    return f"memos of {run}"


_JSON = msgspec.json.Encoder()
