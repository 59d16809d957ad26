"""The keeper: renews the lease on the runs of this process, and stops those for which a cancel was requested.

One thread serves all runs of a store. It ends a moment after the last run, not with it: ending takes longer than a
short run, as the kernel is slow to close an inotify instance. A store in memory needs no thread: a caller that cancels
its runs is in this process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, StoreError
from holdfast.runs.debts import Debts
from holdfast.stores import RunStore
from holdfast.stores.neighbours import News

if TYPE_CHECKING:
    from holdfast.runs.run import Run

SIGNS = 3  # renewals in the time of one lease
LINGER = 1.5  # seconds that the thread waits for the next run
MOST_EARLY = 1_000  # requests to cancel that are kept for runs that have just begun, or are just ending

_log = logging.getLogger("holdfast")


class Keeper:
    """Looks after the open runs of one store."""

    def __init__(self, store: RunStore, clock: Clock) -> None:
        self.debts = Debts(store)
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, Run] = {}
        self._mailbox: News | None = None  # what the thread waits for; None if there is no thread
        self._owner = ""  # the owner that the mailbox belongs to
        self._resting = False  # the thread found no run, and ends if there is none when it looks again
        self._used = False  # a run was added since the thread last looked
        self._complained = False  # the log says already that the store cannot be reached
        self._early: dict[str, str] = {}  # why to cancel runs that are not in `_runs` yet, by run id
        store.ownership.on_wake = self.look

    def after_fork(self) -> None:
        """In a forked child: forget the runs and the thread that looks after them, as they are the parent's."""
        self._lock = threading.Lock()
        runs, self._runs = self._runs, {}
        self._mailbox = None
        self._early.clear()
        self.debts.clear()
        for run in runs.values():
            run.disown()

    def add(self, run: Run) -> None:
        """Look after *run*, too."""
        owner = self._store.ownership.row().id  # first: there is no mailbox before this process is an owner
        with self._lock:
            if not run.is_open:
                return
            self._runs[run.id] = run
            self._used = True
            reason = self._early.pop(run.id, None)
            if self._mailbox is None or self._owner != owner:
                self._start(owner)
        if reason is not None:
            run.stop(reason)

    def remove(self, run: Run) -> None:
        """Stop looking after *run*: it is over."""
        with self._lock:
            if self._runs.get(run.id) is run:  # it may have been lost, and resumed by another block of this process
                del self._runs[run.id]
            mailbox = self._mailbox if not self._runs and not self._resting else None
        if mailbox is not None:
            mailbox.wake()

    def leave_stranded(self, *run_ids: str) -> None:
        """Give up those of these runs whose event loop is closed, so that other processes may resume them."""
        for run in [run for run_id in run_ids if (run := self._runs.get(run_id)) is not None]:
            run.leave_if_stranded()

    def close(self) -> None:
        """Let the thread end now, if there is no run for it."""
        with self._lock:
            if self._runs:
                return
            mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            mailbox.wake()

    def look(self) -> None:
        """Stop the runs for which a cancel was requested; takes no lock, as a signal handler may cancel a run."""
        for run_id, reason in self._store.cancels():
            if run_id not in self._runs:
                if len(self._early) >= MOST_EARLY:
                    self._early.clear()  # the next look finds them again
                self._early[run_id] = reason
            if (run := self._runs.get(run_id)) is not None:  # also a run that was added before `_early` had its reason
                run.stop(reason)

    def _start(self, owner: str) -> None:
        before, mailbox = self._mailbox, self._store.ownership.mailbox()
        self._mailbox, self._owner, self._resting = mailbox, owner, False
        try:
            if before is not None:
                before.wake()
            if mailbox is not None:
                due = self._clock.monotonic() + self._store.lease / SIGNS
                threading.Thread(target=self._serve, args=(mailbox, due), name="holdfast-keeper", daemon=True).start()
        except BaseException as error:  # the next run tries again; a thread that was started all the same ends
            self._mailbox = None
            if not isinstance(error, RuntimeError):
                raise
            raise StoreError(f"nobody can look after the run: {error}") from error

    def _serve(self, mailbox: News, due: float) -> None:
        """Serve the runs until there are none; *due* is when the lease is renewed for the first time."""
        pause = self._store.lease / SIGNS
        try:
            self._try(self.look)  # a cancel may have been requested before the mailbox was watched
            while self._mailbox is mailbox:
                left = min(LINGER, pause) if self._resting else due - self._clock.monotonic()
                if mailbox.wait(max(0.0, left)):
                    self._try(self.look)
                    self.debts.pay()
                self._rest(mailbox)
                now = self._clock.monotonic()
                if self._runs and self._mailbox is mailbox and now >= due:
                    due = now + pause  # counted from before the renewal: one that takes long delays no later one
                    self.leave_stranded(*self._runs)
                    self._try(self._store.renew)
                    self._try(self.look)  # the store may have been unreachable when the mailbox woke the thread
                    self.debts.pay()
        finally:
            with self._lock:
                if self._mailbox is mailbox:  # whatever ended this thread: the next run starts another
                    self._mailbox = None
            mailbox.close()

    def _rest(self, mailbox: News) -> None:
        """Note whether there is a run; if there was none since the last time either, let the thread end."""
        with self._lock:
            if self._mailbox is mailbox:
                if self._resting and not self._used:
                    self._mailbox = None
                self._resting, self._used = not self._runs, False

    def _try(self, fn: Callable[[], object]) -> None:
        try:
            fn()
            self._complained = False
        except HoldfastError as error:  # the store may be back by the next renewal
            if not self._complained:
                self._complained = True
                _log.warning("the owner of runs could not reach the store: %s", error)
        except Exception:  # so may memory: without this thread, the leases of all open runs would run out
            _log.exception("the owner of runs could not look after them")
