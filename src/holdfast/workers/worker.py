"""The worker: takes runs from the queue as long as it has room, and sees each through to its end.

One thread decides; commits, ending runs and the clock wake it. Everything that must last is in the store: a worker that
dies loses only the lease of the runs that it had in hand.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from holdfast import checks
from holdfast.errors import ConfigError, HoldfastError, RunNotFound, StoreError, in_words
from holdfast.guards.line import Signal
from holdfast.runs import Home
from holdfast.stores import queue
from holdfast.stores.ledger import Claim, Ledger
from holdfast.waiting.waits import Wait, pause
from holdfast.workers.calling import Slot, begin
from holdfast.workers.ear import SHARE, Ear
from holdfast.workers.lane import STOPPED, Lane
from holdfast.workers.submitting import target_of

LOOKS = 3  # looks per lease for runs that dead workers left
LONGEST = 5.0  # seconds between two looks at the queue
LAST = 2.0  # seconds that tasks have to end after they were interrupted
MOST_AT_ONCE = 10_000
MOST_SAID = 10  # different errors of the store that are logged until it works again

_log = logging.getLogger("holdfast")


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker does: it calls runs of these *targets*, *concurrency* at once, and at most *per_session* of a
    session in the whole fleet.

    *in_doubt* is as for `resume`. *grace* is how many seconds running functions have when the worker stops; *drain*
    ends it when the queue is empty. A run that had *attempts* owners and has not ended is failed.
    """

    targets: tuple[str, ...]
    concurrency: int = 1
    per_session: int | None = None
    in_doubt: str = "raise"
    grace: float = 30.0
    drain: bool = False
    attempts: int = queue.ATTEMPTS

    def __post_init__(self) -> None:
        if not isinstance(self.targets, tuple) or not self.targets:
            raise ConfigError(f"targets = {checks.shown(self.targets)}: must be functions, such as ('agent:main',)")
        for target in self.targets:
            checks.text("target", target)
            target_of(target)
        checks.whole("concurrency", self.concurrency, most=MOST_AT_ONCE)
        if self.per_session is not None:
            checks.whole("per_session", self.per_session, most=MOST_AT_ONCE)
        checks.choice("in_doubt", self.in_doubt, ("raise", "repeat"))
        checks.number("grace", self.grace, least=0, most=86_400)
        checks.flag("drain", self.drain)
        checks.whole("attempts", self.attempts)


class Ended(NamedTuple):
    """A run that left the hands of a worker; its *status* is interrupted if another worker is to go on with it."""

    run_id: str
    target: str
    session: str
    status: str
    error: str | None


class Worker:
    """Takes runs from the queue of a store and calls their functions, until it is stopped.

    *on_end* is called, in a thread, with each run that has left its hands.
    """

    def __init__(self, home: Home, config: WorkerConfig, *, on_end: Callable[[Ended], object] | None = None) -> None:
        if on_end is not None and not callable(on_end):
            raise ConfigError(f"on_end = {checks.shown(on_end)}: must be callable with an Ended")
        self._home = home
        self._store = home.store
        self._clock = home.clock
        self._config = config
        self._on_end = on_end
        self._search = queue.Search(tuple(dict.fromkeys(config.targets)), config.per_session, config.attempts)
        self._signal = Signal()
        self._lane = Lane()
        self._lock = threading.Lock()
        self._slots: dict[str, Slot] = {}
        self._unsure: list[Claim] = []  # runs that this worker may own, after the store failed
        self._stopping = False
        self._until: float | None = None  # when running functions are left behind, if the worker was stopped
        self._pause = min(LONGEST, home.store.lease / LOOKS)
        self._thorough_at = self._clock.monotonic()

    @property
    def running(self) -> list[str]:
        """The ids of the runs in hand."""
        with self._lock:
            return list(self._slots)

    @property
    def is_stopping(self) -> bool:
        """True if it was told to stop."""
        return self._stopping

    def run(self) -> None:
        """Work until stopped or, with *drain*, until nothing is left. Raise if the store cannot be used at first; if it
        fails later, wait for it.
        """
        self._lane = Lane()  # that of an earlier `run` is closed
        self._store.writer.commit(Ledger.drop_old_owners)  # a real write: a read-only store would accept an empty one
        with Ear(self._store, self._signal.fire) as ear:
            try:
                self._work(ear)
            finally:
                self._wind_up()

    def stop(self, grace: float | None = None) -> None:
        """Take no new runs, and leave the running ones behind after *grace* seconds, or the configured ones.

        Call it from any thread, but not from a signal handler: that could hang, if the signal came at the wrong moment.
        """
        until = self._clock.monotonic() + (self._config.grace if grace is None else grace)
        with self._lock:
            self._until = until if self._until is None else min(until, self._until)
            self._stopping = True
        self._signal.fire()

    # -- working -------------------------------------------------------------------------------------------------------

    def _work(self, ear: Ear) -> None:
        said: set[str] = set()  # errors of the store that were logged
        while not self._stopping:
            self._signal.rearm()
            begun = self._clock.monotonic()
            try:
                self._look()
                if self._config.drain and self._is_done():
                    return
                said.clear()
            except HoldfastError as error:
                if str(error) not in said and len(said) < MOST_SAID:
                    said.add(str(error))
                    _log.warning("the worker cannot use the store, and tries again: %s", error)
            ear.cost = min(self._clock.monotonic() - begun, LONGEST / SHARE)
            if not self._stopping:
                pause(self._clock, Wait(self._clock.monotonic() + self._pause, self._signal))

    def _is_done(self) -> bool:
        return not self._slots and not self._unsure and queue.is_empty(self._store, self._search.targets)

    def _look(self) -> None:
        """Take runs from the queue as long as there is room."""
        if unsure := tuple(self._unsure):
            queue.give_back(self._store, unsure, "its worker lost sight of it")
            del self._unsure[: len(unsure)]  # keeps those that were added meanwhile
        thorough = self._config.drain or self._clock.monotonic() >= self._thorough_at
        while not self._stopping and len(self._slots) < self._config.concurrency:
            taken = queue.take(self._store, self._search, thorough=thorough, unsure=self._unsure)
            if taken is None:
                if thorough:
                    self._thorough_at = self._clock.monotonic() + self._pause
                return
            if not self._begin(taken):
                return

    def _begin(self, taken: queue.Taken) -> bool:
        try:
            slot = Slot(self._home, taken, repeats=self._config.in_doubt == "repeat")
            with self._lock:
                self._slots[taken.claim.run_id] = slot
            begin(self._home, self._lane, slot, self._done)
        except Exception as error:  # for instance because no thread can be started
            _log.error("run %r could not be begun: %s", taken.claim.run_id, in_words(error))
            with self._lock:
                self._slots.pop(taken.claim.run_id, None)
                self._unsure.append(taken.claim)
            return False
        return True

    # -- when a run has ended ------------------------------------------------------------------------------------------

    def _done(self, slot: Slot, error: BaseException | None) -> None:
        """Finish a run whose function has returned, or raised *error*; called in another thread."""
        if slot.is_left:
            return
        try:
            if error is not None:  # the run was not even begun, or its end was not written: another worker takes it
                queue.give_back(self._store, [slot.taken.claim], in_words(error))
        except HoldfastError:
            with self._lock:
                self._unsure.append(slot.taken.claim)
        finally:
            try:
                self._tell(slot, error)
            finally:
                with self._lock:
                    self._slots.pop(slot.run.id, None)
                self._signal.fire()

    def _tell(self, slot: Slot, error: BaseException | None) -> None:
        if self._on_end is None:
            return
        run_id, status, why = slot.taken.claim.run_id, "interrupted", None if error is None else in_words(error)
        try:
            run = self._store.snapshot(run_id)
            if run.status.is_terminal:
                status, why = str(run.status), run.error
        except (StoreError, RunNotFound) as trouble:
            why = why or in_words(trouble)
        try:
            self._on_end(Ended(run_id, slot.target, slot.taken.header.session_id, status, why))
        except KeyboardInterrupt:  # of the thread that waits for the worker to end
            raise
        except BaseException:
            _log.exception("on_end failed for run %r", run_id)

    # -- stopping ------------------------------------------------------------------------------------------------------

    def _wind_up(self) -> None:
        """Let running functions end while there is time; then leave their runs to other workers."""
        self._wait_while(self._running_slots, lambda: self._until or 0.0)
        for slot in self._running_slots():
            slot.stop()
        until = self._clock.monotonic() + LAST
        self._wait_while(lambda: [slot for slot in self._running_slots() if slot.cancel is not None], lambda: until)
        left = self._running_slots()
        for slot in left:
            slot.leave()
        if claims := [*(slot.taken.claim for slot in left), *self._unsure]:
            try:
                queue.give_back(self._store, claims, STOPPED)
            except StoreError as error:
                _log.warning("%d runs go to other workers when the lease of this process ends: %s", len(claims), error)
        for slot in left:
            self._tell(slot, None)
        self._lane.close()

    def _wait_while(self, left: Callable[[], list[Slot]], until: Callable[[], float]) -> None:
        """Wait while something is *left* and there is time; *until* is asked again, since `stop` may shorten it."""
        while True:
            self._signal.rearm()
            if not left() or self._clock.monotonic() >= until():
                return
            pause(self._clock, Wait(until(), self._signal))

    def _running_slots(self) -> list[Slot]:
        with self._lock:
            return list(self._slots.values())
