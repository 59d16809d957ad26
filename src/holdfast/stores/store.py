"""The run store: runs, their events and their owners, for one of several processes that use the same database.

Blocking code throughout; code that must not block goes through `writer`.
"""

from __future__ import annotations

import logging
import math
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import IO, Any, NamedTuple, NoReturn

import msgspec

from holdfast import checks, events
from holdfast.clock import Clock
from holdfast.errors import ConfigError, RunConflict, RunNotFound, StoreError, in_lines
from holdfast.history import (
    CancelResult,
    EventPage,
    RunEventRecord,
    RunHeader,
    RunRecord,
    RunSnapshot,
    RunStatus,
)
from holdfast.stores import following, searching
from holdfast.stores.bell import Bell, Listener
from holdfast.stores.database import Database
from holdfast.stores.following import PAGE
from holdfast.stores.forking import survive_forks
from holdfast.stores.handle import RunHandle
from holdfast.stores.ledger import Ledger, Live, OwnerRow
from holdfast.stores.ownership import Ownership
from holdfast.stores.pending import Pending
from holdfast.stores.rows import unpack, unpack_header
from holdfast.stores.searching import MOST_A_PAGE
from holdfast.stores.transactions import Transactions
from holdfast.stores.trouble import errors_of
from holdfast.stores.writer import Writer
from holdfast.values.redaction import Payloads
from holdfast.values.said import ENDS, known

LEASE = 15.0  # seconds that an owner counts as alive without a sign of life; it gives one three times as often
SILENT = 86_400.0  # seconds without an event after which a run that never had an owner counts as interrupted
FORK_PATIENCE = 5.0  # seconds that a fork waits for a write to end

_PAYLOAD = msgspec.json.Decoder(dict[str, Any])
_log = logging.getLogger("holdfast")


class Memory(NamedTuple):
    """What a resumed run knows of the calls that it made before."""

    memos: list[tuple[bytes, str, bytes]]  # key, name, outcome
    snapshot: RunSnapshot
    header: RunHeader
    is_foreign: bool  # imported: its keys were made with another secret
    warned: list[str]  # the payloads of its warnings


class RunStore:
    """Runs in one database. Use `SqliteRunStore`, `MemoryRunStore` or `open_store` to get one."""

    def __init__(
        self,
        file: Database,
        *,
        clock: Clock | None = None,
        lease: float = LEASE,
        payloads: Payloads | None = None,
        crash: Callable[[str], object] | None = None,
    ) -> None:
        checks.number("lease", lease, above=0)
        self.file = file
        self.clock: Clock = file.clock(clock)
        self.lease = lease
        self.payloads = payloads or Payloads()
        self.ownership = Ownership(file.locks(), self.clock, lease)
        self._secret: bytes | None = None
        self._ledger = Ledger(file, self.clock.time, self.ownership.is_alive)
        transactions = Transactions(file, self._ledger, stall=lease / 3, crash=crash)
        self.writer: Writer[Ledger] = Writer(
            transactions.make,
            self._committed,
            quick=file.path is None,
            hasty=transactions if file.later is not None else None,
        )
        self._deletion: Pending[Ledger, None] | None = None
        self._bell = Bell(file.watch if file.path is not None else None)
        survive_forks(self)

    @property
    def url(self) -> str:
        """What `open_store` takes to open it."""
        return self.file.url

    # -- writing -------------------------------------------------------------------------------------------------------

    def create_run(self, session_id: str, prompt: str, *, run_id: str | None = None) -> RunSnapshot:
        """Create a run; if *run_id* exists with the same session and prompt, return that run."""
        header = self.header(session_id, prompt, run_id)

        def create(ledger: Ledger) -> RunSnapshot:
            live = ledger.find(header.id)
            if live is None:
                live = ledger.add(header)
            elif (live.header.session_id, live.header.prompt) != (session_id, prompt):
                raise RunConflict(f"run {header.id!r} exists with another session or prompt; choose another id")
            return self._picture(live)

        return self.writer.commit(create)

    def record_event(self, run_id: str, type: str, payload: Mapping[str, object] | None = None) -> RunSnapshot:
        """Add an event to a run, whichever process owns it."""
        checks.text("run_id", run_id)
        encoded = self.encode(type, {} if payload is None else payload)
        plain = _PAYLOAD.decode(encoded)

        def record(ledger: Ledger) -> RunSnapshot:
            live = ledger.run(run_id)
            ledger.intervene(live, type, plain, encoded)
            return self._picture(live)

        return self.writer.commit(record)

    def mark_failed(self, run_id: str, error: str | BaseException) -> RunSnapshot:
        """End a run as failed."""
        error = in_lines(error) if isinstance(error, BaseException) else error
        _check_text("error", error)
        return self.record_event(run_id, events.RUN_FAILED, {"error": error})

    def mark_cancelled(self, run_id: str, reason: str | None = None) -> RunSnapshot:
        """End a run as cancelled."""
        if reason is not None:
            _check_text("reason", reason)
        return self.record_event(run_id, events.RUN_CANCELLED, {"reason": reason})

    def cancel(self, run_id: str, reason: str | None = None) -> CancelResult:
        """Cancel a run: at once if no living process owns it, otherwise by asking its owner."""
        checks.text("run_id", run_id)
        if reason is not None:
            _check_text("reason", reason)
            reason = reason[: self.payloads.limit]
        return self.writer.request(lambda ledger: ledger.cancel(run_id, reason), CancelResult.REQUESTED)

    def handle(self, run_id: str) -> RunHandle:
        """The handle on the run *run_id*, which is not looked up yet."""
        return RunHandle(self, run_id)

    # -- reading -------------------------------------------------------------------------------------------------------

    def snapshot(self, run_id: str) -> RunSnapshot:
        """The state of a run."""
        checks.text("run_id", run_id)
        rows = self.file.fetch("show", run_id)
        if not rows:
            raise RunNotFound(run_id)
        return self.snapshots(rows)[0]

    def events(self, run_id: str) -> list[RunEventRecord]:
        """All events of a run that are kept."""
        found: list[RunEventRecord] = []
        page = self.event_page(run_id, limit=MOST_A_PAGE)
        found += page.events
        while page.has_more:
            page = self.event_page(run_id, page.next_after, MOST_A_PAGE)
            found += page.events
        return found

    def event_page(self, run_id: str, after: int = -1, limit: int = PAGE) -> EventPage:
        """The events of a run that follow the sequence *after*, at most *limit*."""
        return following.page_of(self, run_id, after, limit)[0]

    def follow(self, run_id: str, after: int = -1) -> Iterator[RunEventRecord]:
        """The events of a run after the sequence *after*, then new ones as they are committed; ends with the run."""
        return following.follow(self, run_id, after)

    def afollow(self, run_id: str, after: int = -1) -> AsyncIterator[RunEventRecord]:
        """The same for a task: it suspends instead of blocking."""
        return following.afollow(self, run_id, after)

    def list_runs(
        self,
        status: RunStatus | str | None = None,
        session_id: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[RunSnapshot]:
        """The newest runs first, at most *limit*; *before* is the id of the last one already seen.

        *status* may also be `interrupted`, or `alive` for all that have not ended.
        """
        wanted = searching.Wanted(status, session_id)
        return searching.search(self, wanted, limit=limit, before=before, most_looked_at=math.inf).runs

    def listen(self) -> Listener:
        """A listener that is told of every commit from now on, by any process; close it when done."""
        return self._bell.listen()

    def counts(self) -> dict[str, int]:
        """The number of runs by status; a status that no run has is left out."""
        return {str(status): int(number) for status, number in self.file.fetch("count_by_status")}

    # -- everything at once --------------------------------------------------------------------------------------------

    def records(self) -> list[RunRecord]:
        """Every run with its events, oldest first, all in memory at once; `export` needs less memory."""
        from holdfast.stores import records

        return records.records(self)

    def replace_records(self, records: Iterable[RunRecord]) -> None:
        """Replace everything in the store by *records*; all or nothing."""
        from holdfast.stores.records import replace_records

        replace_records(self, records)

    def export(self, fp: IO[str] | IO[bytes], run_ids: Sequence[str] | None = None) -> int:
        """Write all runs, or those in *run_ids*, as JSON lines; return the number of runs."""
        from holdfast.stores import portable

        return portable.export(self, fp, run_ids)

    def import_(self, fp: IO[str] | IO[bytes]) -> int:
        """Add runs from JSON lines as `export` writes them, all or nothing; return the number of new runs."""
        from holdfast.stores import portable

        return portable.import_(self, fp)

    def prune(
        self,
        *,
        max_age: float | None = None,
        max_runs: int | None = None,
        max_events: int | None = None,
        max_run_bytes: int | None = None,
        max_bytes: int | None = None,
    ) -> tuple[int, int]:
        """Delete old runs and old events beyond these limits; return how many runs and events were deleted."""
        from holdfast.stores import retention

        limits = retention.Limits(
            max_age=max_age, max_runs=max_runs, max_events=max_events, max_run_bytes=max_run_bytes, max_bytes=max_bytes
        )
        return retention.prune(self, limits)

    def close(self) -> None:
        """Write what is queued, end all followers, close the database; a later use opens it again."""
        if self.writer.patience is None:
            self._close()
            return
        closing = threading.Thread(target=self._close, name="holdfast-closing", daemon=True)
        closing.start()
        closing.join(self.writer.patience)
        if closing.is_alive():
            _log.warning("the store took too long to close: what was noted last may not be written")

    def forget_left(self) -> None:
        """Delete the memos that completed and deleted runs left behind, and wait for it; gives up if a write fails."""
        while self._ledger.leftovers:
            self._queue_deletion()
            if (tail := self.writer.tail()) is not None:
                self.writer.settle(tail)

    def _close(self) -> None:
        try:
            self.forget_left()
            self.writer.close()
        finally:
            self._bell.close()
            self._leave()
            self.writer.alone(self._shut)

    def _shut(self) -> None:
        self._secret = None
        self._ledger.forget()
        self.file.close()

    def _leave(self) -> None:
        """Delete this process from the owners; others would notice anyway, by its lock and its lease."""
        try:
            if (owner := self.ownership.end()) is not None:
                self.writer.commit(lambda ledger: ledger.drop(owner))
        except StoreError as error:
            _log.warning("the store was closed, but it could not be written that its owner has left: %s", error)

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for runs ------------------------------------------------------------------------------------------------------

    def header(self, session_id: str, prompt: str, run_id: str | None = None, **more: Any) -> RunHeader:
        """The header of a new run, dated when the run is added: only then is the store's clock sure to be there."""
        run_id = run_id if run_id is not None else uuid.uuid4().hex
        checks.name("run_id", run_id)
        _check_text("session", session_id)
        _check_text("prompt", prompt)
        return RunHeader(id=run_id, session_id=session_id, prompt=prompt, created_at_ms=0, **more)

    def encode(self, type: str, payload: Mapping[str, object]) -> str:
        """The payload of an event as it is kept: redacted, cut, JSON."""
        checks.name("type", type)
        if not isinstance(payload, Mapping):
            raise ConfigError(f"payload of {type!r} = {checks.shown(payload)}: must be a mapping")
        return self.payloads.encode(payload).decode()

    def secret(self) -> bytes:
        """The secret that keys the digests of arguments."""
        # A server's tables may be new; its `load` has read the secret.
        if self._secret is None or self.file.has_concurrent_writers:
            self._secret = self.file.meta("secret")
        return self._secret

    def memory(self, run_id: str) -> Memory:
        """What the store knows of the calls of a run."""
        rows = self.file.fetch("remembered", run_id)
        if not rows:
            raise RunNotFound(run_id)
        ((run, header, snapshot, origin),) = rows
        with errors_of(self.file):
            state, head = unpack(snapshot, header), unpack_header(header)
        told = self.file.fetch("recalled", run)
        # The results in an imported run's events are not trusted: the author of the import may have made them up.
        ended = [payload for type, payload in told if type in ENDS] if origin is None else []
        warned = [payload for type, payload in told if type not in ENDS]
        return Memory(known(ended, self.file.fetch("memos", run)), state, head, origin is not None, warned)

    def renew(self) -> None:
        """Give a sign of life, if this process owns anything."""
        if self.ownership.id is None:
            return
        row = self.ownership.row()
        self.writer.commit(lambda ledger: ledger.renew_owner(row))

    def cancels(self) -> list[tuple[str, str]]:
        """The runs of this process that are to be cancelled, and why."""
        owner = self.ownership.id
        return [(run, reason) for run, reason in self.file.fetch("cancels", owner)] if owner is not None else []

    # -- forks ---------------------------------------------------------------------------------------------------------

    def hold(self) -> Callable[[], None]:
        """Keep other threads out of the database while this one forks: the child's locks would stay locked for ever.

        Return a function that lets them in again, in the parent.
        """
        with ExitStack() as held:
            if turn := self.writer.hold(FORK_PATIENCE):
                held.callback(self.writer.let_go)
            if reading := self.file.hold(FORK_PATIENCE):
                held.callback(self.file.let_go)
            if turn and reading:
                self.file.put_away()
            return held.pop_all().close

    def after_fork(self) -> None:
        """In a forked child: start over, as threads, locks and connections are the parent's."""
        self.writer.after_fork()
        self.file.after_fork()
        self._bell.after_fork()
        self.ownership.after_fork()
        self._ledger.forget()
        self._ledger.leftovers.clear()
        self._deletion = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a store, and whatever uses it, cannot be pickled or copied: have each process open it, or fork"
        )

    # -- inside --------------------------------------------------------------------------------------------------------

    def _committed(self) -> None:
        """Tell owners and followers after a commit. The data is on disk already, so nothing here may fail."""
        woken = self._ledger.woken
        while woken:
            try:
                self.ownership.wake(woken.popleft())
            except IndexError:  # another thread has told the last one
                break
            except Exception as error:
                _log.warning("the owner of a run could not be told to look: %s", error)
        if self._ledger.leftovers:
            self._queue_deletion()
        self._bell.ring()

    def _queue_deletion(self) -> None:
        """Queue a small write that deletes memos left behind by runs, unless one is queued or the last one failed."""
        if self._deletion is not None and self._deletion.error is not None:
            self._deletion = None
            self._ledger.leftovers.clear()  # the next process deletes them
        elif self._deletion is None or self._deletion.done:
            self._deletion = self.writer.submit(Ledger.delete_some_leftovers)

    def _picture(self, live: Live) -> RunSnapshot:
        """A copy of the run's state, with its owner filled in."""
        row = self._ledger.owner(live.owner) if live.owner is not None else None
        return self._overlay(live.snapshot.copy(), row, live.fence)

    def _overlay(self, snapshot: RunSnapshot, row: OwnerRow | None, fence: int) -> RunSnapshot:
        """Fill in *owner* and *interrupted*, which the events do not tell."""
        if not snapshot.status.is_terminal:
            alive = self.ownership.is_alive(row)
            snapshot.owner = f"{row.host}:{row.pid}" if row is not None and alive else None
            snapshot.interrupted = not alive and (fence > 0 or self.is_silent(snapshot.status, snapshot.updated_at_ms))
        return snapshot

    def is_silent(self, status: str, touched_at: int) -> bool:
        """True if a run has begun and had no event for `SILENT` seconds: its writer, if it is no owner, seems gone."""
        return status != RunStatus.CREATED and self.clock.time() - touched_at / 1000 > SILENT

    def snapshots(self, rows: list[tuple[Any, ...]]) -> list[RunSnapshot]:
        """Snapshots from rows of header, snapshot, owner and fence; each owner is looked up once."""
        known: dict[str | None, OwnerRow | None] = {None: None}
        found = []
        with errors_of(self.file):
            for header, data, owner, fence in rows:
                if owner not in known:
                    of_owner = self.file.fetch("owner", owner)
                    known[owner] = OwnerRow(*of_owner[0]) if of_owner else None
                found.append(self._overlay(unpack(data, header), known[owner], fence or 0))
        return found


def _check_text(name: str, value: str) -> None:
    """Raise a `ConfigError` unless *value* is a text that can be stored."""
    checks.text(name, value)
    if not checks.is_text(value):
        raise ConfigError(f"{name} = {checks.shown(value)}: must be a text that can be written as UTF-8")
