"""A run: one piece of an agent's work, recorded as it happens; a sync and an async context manager.

Its first write is in `beginning`, its last in `closing`. Guarded calls inside find it through a context variable.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from threading import Event
from typing import Any, TypeVar, TypeVarTuple, overload

from holdfast import events
from holdfast.bus import WatchedRun
from holdfast.category.looking import is_a
from holdfast.clock import Clock
from holdfast.errors import LeaseLost, RunCancelled, RunConflict, RunDiverged, StoreError
from holdfast.history import CancelResult, Report, RunEventRecord, RunSnapshot, RunStatus, write_reports
from holdfast.runs.beginning import STOPPED, Begun, Resume, Start, note
from holdfast.runs.cancelling import Cancelling
from holdfast.runs.closing import Closing
from holdfast.runs.current import current_key, current_run, open_runs
from holdfast.runs.ending import Last
from holdfast.runs.home import Home, Plan
from holdfast.runs.limits import Limits
from holdfast.runs.log import Log, Write
from holdfast.runs.opening import aread, opening, recalled
from holdfast.runs.remembered import aremember, remember
from holdfast.runs.steps import Steps
from holdfast.stores.ledger import Ledger
from holdfast.stores.pending import Pending
from holdfast.stores.store import Memory
from holdfast.waiting.threads import Job, elsewhere, may_hold_a_lock
from holdfast.waiting.waits import Wait, apause, pause

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Run:
    """One run, entered once; calls inside it are recorded and count against its budgets and its loop guard."""

    def __init__(self, home: Home, plan: Plan) -> None:
        self._home = home
        self._plan = plan
        self.clock: Clock = home.clock
        self.is_noted = plan.is_noted  # its calls do not wait for the disk, and it cannot be resumed
        self.repeats = plan.repeats  # calls in doubt are made again
        self.limits = Limits(home.clock, plan.budget, self.tell)
        more = {"entry": plan.entry, "budget": dict(plan.budget) if plan.budget else None, "noted": plan.is_noted}
        self._header = home.store.header(plan.session, plan.prompt, plan.run_id, **more)
        self.id = plan.resumed if plan.resumed is not None else self._header.id
        self.log = Log(home.store, survives_store_errors=home.survives_store_errors)
        self.steps = Steps(self.log, self.limits.count)
        self.outer: Run | None = None  # the run within which it was entered
        self.is_open = False
        self._cancelling = Cancelling(home)
        self.cancelled: Event = self._cancelling.token  # set when a cancel was requested
        self._entered = False
        self._closing = Closing(home, self.log, self.steps, diverges=plan.diverges)
        self._is_left = False  # left unfinished: another owner may resume it
        self._outer_key = ""  # the call or step within which it was entered
        self._watched: WatchedRun | None = None

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def session_id(self) -> str:
        """The session it belongs to."""
        return self._header.session_id

    @property
    def prompt(self) -> str:
        """What it was asked to do."""
        return self._header.prompt

    @property
    def forked_from(self) -> str | None:
        """The run whose finished calls it knows, if it is a fork."""
        return self._header.forked_from

    @property
    def status(self) -> RunStatus:
        """How far it is."""
        return self.snapshot().status

    def snapshot(self) -> RunSnapshot:
        """Its state, with everything that was emitted so far."""
        self._home.store.writer.flush()
        return self._home.store.snapshot(self.id)

    def events(self) -> list[RunEventRecord]:
        """Its events, with everything that was emitted so far."""
        self._home.store.writer.flush()
        return self._home.store.events(self.id)

    @property
    def idempotency_key(self) -> str | None:
        """The key of the call or step that is being made: the same when it is made again after a crash."""
        return current_key.get() or None

    @property
    def spent(self) -> dict[str, float]:
        """What was reported with `spend`, by unit."""
        return self.limits.spent

    # -- what happens in it --------------------------------------------------------------------------------------------

    def emit(self, type: str, /, **payload: object) -> None:
        """Record that something happened; never blocks."""
        self._write(type, payload)

    def commit(self, type: str, /, **payload: object) -> None:
        """Record that something happened; it is on disk when this returns."""
        self.check_open()
        if (write := self._write(type, payload)) is not None:
            write.settle()

    async def acommit(self, type: str, /, **payload: object) -> None:
        """Record that something happened; it is on disk when this returns."""
        self.check_open()
        if (write := self._write(type, payload)) is not None:
            await write.asettle()

    def spend(self, unit: str, amount: float) -> None:
        """Report that the run has used up *amount* of *unit*, dollars or tokens say; its budget counts it.

        An amount that is reported outside of any call or step is reported again by a resumed run, but counts once.
        """
        self.limits.spend(unit, amount, self._record_amount)

    def verify(self, *reports: Report) -> None:
        """Record the reports of a verification; the snapshot has their summary."""
        self.check_open()
        written = write_reports(reports)
        self.log.emit(events.VERIFICATION_STARTED, {})
        self.commit(events.VERIFICATION_ENDED, reports=written)

    def step(self, name: str, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call *fn* and remember its result: a resumed run gets it without calling. A step that was cut off is
        called again, so an effect that must not be repeated belongs in a tool.
        """
        return remember(self, name, fn, args)

    @overload
    async def astep(self, name: str, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T: ...
    @overload
    async def astep(self, name: str, fn: Callable[[*Ts], T], *args: *Ts) -> T: ...
    async def astep(self, name: str, fn: Callable[[*Ts], Any], *args: *Ts) -> Any:
        """The same for a coroutine function."""
        return await aremember(self, name, fn, args)

    def complete(self, text: str = "") -> None:
        """End it as completed with *text* for its result, now."""
        self.check_open()
        self._closing.settle(self._closing.complete(text))

    async def acomplete(self, text: str = "") -> None:
        """End it as completed with *text* for its result, now."""
        self.check_open()
        await self._closing.asettle(self._closing.complete(text))

    def fail(self, error: str | BaseException) -> None:
        """End it as failed, now."""
        self.check_open()
        self._closing.settle(self._closing.fail(error))

    async def afail(self, error: str | BaseException) -> None:
        """End it as failed, now."""
        self.check_open()
        await self._closing.asettle(self._closing.fail(error))

    def cancel(self, reason: str | None = None) -> CancelResult:
        """Cancel it: its calls are refused from now on, its task is cancelled."""
        try:
            result = self._home.store.cancel(self.id, reason)
        except StoreError as error:
            if not self.log.passes(error):
                raise
            self.log.complain(error)
            result = CancelResult.NOT_FOUND
        if self.is_open and result is not CancelResult.ALREADY_FINISHED:
            self.stop(reason)  # even if the store does not know the run
            result = CancelResult.REQUESTED
        return result

    # -- for its calls, workers and the keeper -------------------------------------------------------------------------

    def check(self) -> None:
        """Raise an error if the run is lost, cancelled or left unfinished, so that its calls may not go on."""
        if self.log.lost is not None:
            raise self._lost()
        if self.cancelled.is_set():
            raise RunCancelled(self.id, self._cancelling.reason)
        if self._is_left:
            raise LeaseLost(self.id, "was left unfinished, and others may go on with it")

    def check_open(self) -> None:
        """Raise a `RunConflict` unless it is entered and not left."""
        if not self.is_open:
            raise RunConflict(f"run {self.id!r} is not open: this belongs inside its `with`")

    def conclude(self, text: str) -> None:
        """Set *text* as its result, for the case that it completes when its block is left."""
        self._closing.conclude(text)

    def patiently(self, wait: Wait) -> Iterator[Wait]:
        """Wait, but only until the run is cancelled; then raise an error if it may not go on."""
        yield from self._cancelling.patiently(wait)
        self.check()

    def tell(self, type: str, tool: str | None, /, **payload: object) -> None:
        """Tell the sinks and the log what happened to a tool."""
        self._home.bus.emit(type, tool, self.id, **payload)
        self.log.emit(type, payload if tool is None else {"tool": tool, **payload})

    def stop(self, reason: str | None) -> None:
        """Cancel it in this process, as was requested; from any thread, any number of times."""
        self._cancelling.stop(self.id, reason)

    def leave_if_stranded(self) -> None:
        """Give it up if its event loop is closed, as its block will never be left: another owner may then resume it."""
        if self.is_open and self._cancelling.is_stranded:
            self._give_up(LeaseLost(self.id), reason="the event loop of its task was closed")
            self.log.claim = None  # what is left of the task must write nothing more

    def disown(self) -> None:
        """In a forked child: close it here, as it is the parent's."""
        self.is_open = False
        self.log.claim = None
        open_runs.discard(id(self))

    # -- as a context manager ------------------------------------------------------------------------------------------

    def __enter__(self) -> Run:
        if self.is_noted:
            return self._note()
        op = self._opening()
        try:
            begun = self._home.store.writer.commit(op.write)
            self._begun(begun, recalled(self.log, self._plan, begun))
            self._set_up()
        except BaseException as error:
            self._not_begun(op, error)
        return self

    async def __aenter__(self) -> Run:
        if self.is_noted:
            return self._note()
        op = await aread(self.log, self._plan, self._opening)
        try:
            begun = await self._home.store.writer.acommit(op.write)
            read = partial(recalled, self.log, self._plan, begun)
            self._begun(begun, await aread(self.log, self._plan, read))
            self._set_up()
        except BaseException as error:
            self._not_begun(op, error)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if is_a(error, GeneratorExit) and may_hold_a_lock():
                elsewhere(self.__exit__, kind, error, None)
                return
            diverged = self._leave(error)
            is_ended = False
            while not is_ended:
                if (hooks := self._cancelling.cleanup) is not None:
                    pause(self._home.clock, Wait(math.inf, hooks.signal))
                last, pending = self._last(diverged if error is None else error)
                if pending is not None:
                    self._home.store.writer.settle(pending)
                is_ended = not self._yields(last)
        except BaseException as trouble:
            self._give_up(trouble)
            raise
        self._unwind(error, diverged, last)

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            diverged = self._leave(error)
            is_ended = False
            while not is_ended:
                if (hooks := self._cancelling.cleanup) is not None:
                    await apause(self._home.clock, Wait(math.inf, hooks.signal))
                last, pending = self._last(diverged if error is None else error)
                if pending is not None:
                    await self._home.store.writer.asettle(pending)
                is_ended = not self._yields(last)
        except BaseException as trouble:
            self._give_up(trouble)
            raise
        self._unwind(error, diverged, last)

    # -- entering ------------------------------------------------------------------------------------------------------

    def _opening(self) -> Start | Resume:
        if self._entered:
            raise RunConflict(f"run {self.id!r} was entered before: make a new one, or resume it")
        self._home.keeper.leave_stranded(self.id)
        self._home.keeper.debts.pay()
        op = opening(self.log, self._plan, self._header)
        self._entered = True
        return op

    def _note(self) -> Run:
        """Begin at once: the write is only queued."""
        self._entered = True
        shown = self.log.given(events.RUN_STARTED, {"prompt": self.prompt})
        self.log.claim = note(self._home.store, self._header, shown)
        self.steps.begin(self.id, b"", is_noted=True)
        self._set_up()
        return self

    def _begun(self, begun: Begun, memory: Memory | None) -> None:
        self._header, self.id = begun.header, begun.header.id
        self.log.claim = begun.claim
        self.steps.begin(begun.header.root or begun.header.id, self._home.store.secret())
        if memory is not None:
            self.steps.recall(memory)
            self.limits.restart(begun.header.budget, begun.spend, memory.warned)
        if begun.cancel is not None:
            self.stop(begun.cancel)

    def _not_begun(self, op: Start | Resume, error: BaseException) -> None:
        """Go on without the store if `on_store_error` says so; else give back what was claimed, and raise *error*."""
        if self._plan.resumed is None and self.log.passes(error):
            self.log.complain(error)
            self.steps.begin(self.id, b"")
            if not self.is_open:
                self._set_up()
            return
        self._home.keeper.debts.give_back(op.taken, error)
        if self.is_open or current_run.get() is self:
            self._leave(error)
        self.log.claim, self._entered = None, False
        raise error

    def _set_up(self) -> None:
        self.outer, self._outer_key = current_run.get(), current_key.get()
        current_run.set(self)
        current_key.set("")
        self.is_open = True
        open_runs.add(id(self))
        self._cancelling.attach()
        if self.is_noted:
            job = Job(self._home.workers, self.clock, lambda: self._home.keeper.add(self))
            job.begin()
            if job.unstarted is not None:
                self.log.complain(job.unstarted)
        elif self.log.claim is not None:
            self._home.keeper.add(self)
        if (watcher := self._home.bus.watcher) is not None and not self.is_noted:
            self._watched = watcher.run(self, resumed=self._plan.had_begun)
        self._home.bus.emit(events.RUN_RESUMED if self._plan.had_begun else events.RUN_STARTED, None, self.id)

    # -- leaving -------------------------------------------------------------------------------------------------------

    def _leave(self, error: BaseException | None) -> RunDiverged | None:
        """Stop being the current run; return the error of a run that has not asked for all its finished calls."""
        self.is_open = False
        cancelled = self.cancelled.is_set()
        diverged = self._closing.diverged() if error is None and not cancelled else None
        completes = self._closing.completes(diverged if error is None else error)
        self._is_left = not completes and not self.is_noted and self.log.claim is not None
        if self._is_left or cancelled or self.log.lost is not None:
            self._stay_known()
        else:
            open_runs.discard(id(self))
        self._home.keeper.remove(self)
        self._cancelling.leave()
        if self._watched is not None:
            self._watched.end(error, here=current_run.get() is self)
        if current_run.get() is self:  # otherwise another task or thread entered it, whose context cannot be reset here
            current_key.set(self._outer_key)
            current_run.set(self.outer)
        return diverged

    def _last(self, error: BaseException | None) -> tuple[Last | None, Pending[Ledger, Any] | None]:
        """The last write, if there is one to make, and the write to wait for: if the run has ended inside its block,
        one that follows its latest events, which may still be on their way.
        """
        last = self._closing.leave(error, cancelled=self.cancelled.is_set(), reason=self._cancelling.reason)
        if last is not None:
            return last, last.pending
        return None, None if self.log.claim is None else self._home.store.writer.tail()

    def _yields(self, last: Last | None) -> bool:
        """True if *last* was not written, as a cancel was requested before that this process had not heard of."""
        if last is None or (wish := last.pending.value) is None:
            return False
        self.stop(wish)
        self._stay_known()
        return True

    def _stay_known(self) -> None:
        """Keep it in `open_runs` for as long as tasks may be left over from it: their calls must be refused."""
        open_runs.add(id(self))
        weakref.finalize(self, open_runs.discard, id(self)).atexit = False

    def _give_up(self, trouble: BaseException, reason: str = STOPPED) -> None:
        """Give the run back without waiting, as it cannot be ended: another owner may resume it."""
        if self.log.claim is not None and self._closing.written is None:
            self._home.keeper.debts.give_back([self.log.claim], reason=reason)
        self._leave(trouble)

    def _unwind(self, error: BaseException | None, diverged: RunDiverged | None, last: Last | None) -> None:
        """Raise the error that leaving the block has to raise, unless that is *error* itself."""
        trouble = self._closing.trouble(last) if last is not None else None
        if trouble is None and self.log.lost is not None:
            trouble = self._lost()
        self._home.keeper.debts.owe(last, trouble)
        if trouble is not None and self.log.passes(trouble):
            self.log.complain(trouble)
        elif trouble is not None:
            if error is None:
                raise trouble
            error.add_note(f"holdfast: the end of the run is not recorded: {trouble}")
        if diverged is not None:
            raise diverged
        if (cancelled := self._cancelling.instead_of(self.id, error)) is not None:
            raise cancelled from error

    # -- inside --------------------------------------------------------------------------------------------------------

    def _lost(self) -> LeaseLost:
        lost = self.log.lost
        return LeaseLost(self.id, lost.why) if isinstance(lost, LeaseLost) else LeaseLost(self.id)

    def _write(self, type: str, payload: Mapping[str, object]) -> Write | None:
        if not self._entered:
            self.check_open()
        given = self.log.given(type, payload)
        self._home.bus.emit(type, None, self.id, **given)
        return self.log.write(type, given)

    def _record_amount(self, unit: str, amount: float) -> bool:
        """Record an amount; False if it was recorded before. Within a call it is new: finished calls are not made."""
        if not self._entered:
            self.check_open()
        payload: dict[str, Any] = {"unit": unit, "amount": amount}
        if key := current_key.get():
            self.log.emit(events.SPENT, {**payload, "parent": key[:16]})
            return True
        if (outcome := self.steps.spent(unit, amount)) is None:
            return False
        self.log.emit(events.SPENT, payload, outcome)
        return True
