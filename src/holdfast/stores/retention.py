"""Retention: deletes old runs, and old events of finished runs; never anything of a run that a living process owns.

A run that loses its first events keeps the state that they led to as its base, so that it still folds. Everything is
done in small writes, between which other writers get their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from holdfast import checks
from holdfast.errors import ConfigError
from holdfast.history import RunStatus, begin, fold
from holdfast.stores.ledger import PIECE, Ledger
from holdfast.stores.rows import event, pack, unpack, unpack_header
from holdfast.values.said import ENDS, known

if TYPE_CHECKING:
    from holdfast.stores.database import Connection
    from holdfast.stores.store import RunStore

ROWS = 500  # events deleted in one write, at most; it takes some 40 ms if all are as long as they may be
PAGES = 300  # pages of the file given back in one write, at most
RUNS = 500  # runs looked at in one write, at most
FOUND = 10_000  # runs found by one query: to find those to delete, it may have to look at all runs
PAUSE = 0.005  # seconds between two writes, at least, in which others may write
SHARE = 2  # pause after each write, in multiples of its duration, when no caller waits for the end
DAY = 86_400.0
LEAP = 14 * DAY  # seconds since the last pruning after which the clock is doubted
UNFINISHED = 600.0  # seconds after which another process takes over pruning that has not ended: the first may be dead
MOST = 2**62  # -MOST is earlier than any run


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a store keeps, None where there is no limit.

    *max_age*: seconds since a run ended, or was left unfinished. *max_runs*: finished ones. *max_events* and
    *max_run_bytes*: the last events of each finished run, and the bytes of their payloads. *max_bytes*: the database.
    """

    max_age: float | None = None
    max_runs: int | None = None
    max_events: int | None = None
    max_run_bytes: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        if not given:
            raise ConfigError(f"nothing says what may go: give one of {', '.join(self.__struct_fields__)}")
        for name, value in given.items():
            if name == "max_age":
                checks.number(name, value, least=0)
            else:
                checks.whole(name, value, least=1 if name == "max_events" else 0)


DEFAULT = Limits(max_age=30 * DAY, max_bytes=10**9)


def prune_if_due(store: RunStore, limits: Limits) -> tuple[int, int]:
    """Prune, unless some process has done so within the last day; return how many runs and events were deleted.

    After a long time without pruning it deletes no run for its age: the clock may be wrong. A day later it does.
    """
    if not store.file.exists or not _is_due(store.file.fetch("pruned_at"), store.clock.time()):
        return 0, 0

    def note(at: float) -> None:
        store.file.writing().execute(store.file.sql("set_pruned_at"), (int(at * 1000),))

    def take(ledger: Ledger) -> tuple[bool, bool]:
        now = store.clock.time()
        rows = store.file.writing().execute(store.file.sql("pruned_at")).fetchall()
        due = _is_due(rows, now)
        if due:
            note(now - DAY + UNFINISHED)
        return due, not rows or now - rows[0][0] / 1000 < LEAP

    due, by_age = store.writer.commit(take)
    if not due:
        return 0, 0
    gone = prune(store, limits, share=SHARE, by_age=by_age)
    store.writer.commit(lambda ledger: note(store.clock.time()))
    return gone


def prune(store: RunStore, limits: Limits, *, share: float = 0, by_age: bool = True) -> tuple[int, int]:
    """Delete what is beyond *limits*; return how many runs and events were deleted.

    After each write it pauses *share* times as long as the write took. Without *by_age* it keeps old runs.
    """
    pruning = _Pruning(store, share)
    if by_age and limits.max_age is not None:
        pruning.delete_old(int(max((store.clock.time() - limits.max_age) * 1000, -MOST)))
    if limits.max_runs is not None:
        pruning.delete_surplus(limits.max_runs)
    if limits.max_events is not None:
        pruning.shorten("too_many", limits.max_events)
    if limits.max_run_bytes is not None:
        pruning.shorten("too_heavy", limits.max_run_bytes)
    if limits.max_bytes is not None:
        pruning.delete_until(limits.max_bytes)
    if pruning.events or pruning.runs:
        pruning.give_back()
    return pruning.runs, pruning.events


def _is_due(rows: list[tuple[Any, ...]], now: float) -> bool:
    return not rows or not 0 <= now - rows[0][0] / 1000 < DAY  # a clock that went back must not stop it for ever


class _Task(NamedTuple):
    """What is to be done with a run: keep only its events from *first* on, or delete it if that is None."""

    run_id: str
    first: int | None = None


class _Row(NamedTuple):
    """What must be known of a run before anything of it is deleted."""

    key: int
    status: str
    touched_at: int
    header: str
    first: int
    base: bytes | None
    owner: str | None
    fence: int
    stop: int  # the sequence after its last event

    @property
    def is_terminal(self) -> bool:
        return RunStatus(self.status).is_terminal

    @property
    def is_waiting(self) -> bool:
        """In the queue, and not begun yet."""
        return self.status == RunStatus.CREATED and unpack_header(self.header).priority is not None


class _Done(NamedTuple):
    """What one write has done, and what it has left to do."""

    runs: int
    events: int
    left: list[_Task]
    is_heavy: bool = False  # whether memos of a deleted run are left


T = TypeVar("T")
MayGo = Callable[[Ledger, _Row], bool]


class _Pruning:
    """One round of pruning."""

    def __init__(self, store: RunStore, share: float) -> None:
        self._store = store
        self._share = share
        self._sql = store.file.sql
        self.runs = self.events = 0

    # -- what goes -----------------------------------------------------------------------------------------------------

    def delete_old(self, before: int) -> None:
        """Delete runs without a write since *before* that ended or were abandoned; not those in the queue."""

        def may_go(ledger: Ledger, row: _Row) -> bool:
            if row.touched_at >= before or row.is_terminal:
                return row.touched_at < before
            if row.owner is not None and self._store.ownership.is_alive(ledger.owner(row.owner)):
                return False
            if row.is_waiting:  # a run that was accepted is not lost
                return False
            if row.fence > 0 or row.status == RunStatus.CREATED:
                return True
            return self._store.is_silent(row.status, row.touched_at)

        for page in self._pages("old", before, before):
            self._do([_Task(run_id) for _, _, run_id in page], may_go)

    def delete_surplus(self, most: int) -> None:
        """Delete the oldest finished runs until at most *most* are left."""
        while found := self._store.file.fetch("surplus", FOUND, most):
            self._do([_Task(run_id) for (run_id,) in found], _is_terminal)

    def delete_until(self, most: int) -> None:
        """Delete the oldest finished runs until the database is no larger than *most* bytes."""
        while found := self._store.file.fetch("beyond", most, FOUND):
            self._do([_Task(run_id) for (run_id,) in found], _is_terminal, most)

    def shorten(self, which: str, most: int) -> None:
        """Keep only the last events of finished runs, as the statement *which* says; the very last always stays."""
        for page in self._pages("finished"):
            tasks = []
            for _, key, run_id in page:
                tasks += [_Task(run_id, first) for (first,) in self._store.file.fetch(which, key, most)]
            self._do(tasks, _is_terminal)

    def give_back(self) -> None:
        """Shrink the database by the space that is no longer used."""
        while self._write(lambda ledger: self._store.file.give_back(PAGES)):
            continue

    # -- how it goes ---------------------------------------------------------------------------------------------------

    def _pages(self, name: str, *parameters: int) -> Iterator[list[tuple[int, int, str]]]:
        """The runs that the statement *name* finds, oldest first, some at a time: time of creation, key, id."""
        place: tuple[int, int] = (-MOST, 0)
        while page := self._store.file.fetch(name, *parameters, *place, FOUND):
            place = page[-1][:2]
            yield page

    def _do(self, tasks: list[_Task], may_go: MayGo, until: int | None = None) -> None:
        """Do *tasks* for the runs that *may_go*, until the database is no larger than *until* bytes."""
        while tasks:
            done = self._write(partial(self._step, tasks=tasks, may_go=may_go, until=until))
            self.runs += done.runs
            self.events += done.events
            if done.is_heavy:  # before the size of the database is asked again
                self._store.forget_left()
            tasks = done.left

    def _write(self, write: Callable[[Ledger], T]) -> T:
        """Make a write, and then let others write."""
        clock = self._store.clock
        begun = clock.monotonic()
        done = self._store.writer.commit(write)
        clock.sleep(max(PAUSE, self._share * (clock.monotonic() - begun)))
        return done

    def _step(self, ledger: Ledger, tasks: list[_Task], may_go: MayGo, until: int | None) -> _Done:
        """Do as many of *tasks* as one write may."""
        ledger.step_aside()
        connection = self._store.file.writing()
        runs = events = weight = 0
        for at, (run_id, first) in enumerate(tasks):
            if until is not None and connection.execute(self._sql("is_enough"), (until,)).fetchone()[0]:
                break
            if at >= RUNS:
                return _Done(runs, events, tasks[at:])
            found = connection.execute(self._sql("prunable"), (run_id,)).fetchone()
            if found is None or not may_go(ledger, row := _Row._make(found)):
                continue
            stop = row.stop if first is None else min(first, row.stop - 1)
            rows = max(0, stop - row.first)
            if events and events + rows > ROWS:
                return _Done(runs, events, tasks[at:])
            if rows > ROWS:
                self._shorten(connection, row, row.first + ROWS)
                return _Done(runs, events + ROWS, tasks[at:])
            if first is None:
                weight += ledger.erase(row.key)
                runs += 1
            elif rows:
                self._shorten(connection, row, stop)
            events += rows
            if weight >= PIECE:
                return _Done(runs, events, tasks[at + 1 :], is_heavy=True)
        return _Done(runs, events, [])

    def _shorten(self, connection: Connection, row: _Row, first: int) -> None:
        """Delete the events before *first*: fold them into the base, and keep results that only they have as memos."""
        gone = connection.execute(self._sql("page"), (row.key, row.first - 1, first - row.first)).fetchall()
        if row.status != RunStatus.COMPLETED:
            for memo in known((payload for _, _, type, _, payload in gone if type in ENDS), ()):
                connection.execute(self._sql("keep_memo"), (row.key, *memo))
        start = begin(unpack_header(row.header)) if row.base is None else unpack(row.base, row.header)
        base = fold(start, map(event, gone))
        connection.execute(self._sql("drop_first_events"), (row.key, first))
        connection.execute(self._sql("set_base"), (first, pack(base), row.key))


def _is_terminal(ledger: Ledger, row: _Row) -> bool:
    return row.is_terminal
