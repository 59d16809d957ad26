"""How a run is cancelled, once: its token is set, its waiting calls are woken, its task is cancelled, hooks are told.

Plain code learns of it from its next call, step or wait: the user's code is never interrupted while it runs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

from holdfast.category.looking import is_a
from holdfast.errors import RunCancelled
from holdfast.guards.line import Signal
from holdfast.hooks import HookContext, HookKind
from holdfast.runs.home import Home
from holdfast.waiting.threads import Job
from holdfast.waiting.waits import Wait, pause

GLANCE = 0.5  # seconds after which a sleeping call checks whether the run was cancelled

_log = logging.getLogger("holdfast")


class Cancelling:
    """The cancellation of one run."""

    def __init__(self, home: Home) -> None:
        self.token = threading.Event()
        self.reason: str | None = None
        self.cleanup: Job | None = None  # calls the hooks
        self._home = home
        self._once = threading.Lock()  # taken by the first `stop`, never released
        self._waiting: set[Signal] = set()
        self._task: asyncio.Task[object] | None = None
        self._open = False
        self._sent = False  # this object has cancelled the task

    def attach(self) -> None:
        """Note that the run is entered, and by which task, if there is one."""
        try:
            self._task = asyncio.current_task()
        except RuntimeError:
            self._task = None
        self._open = True
        if self.token.is_set():
            self._reach_task()

    def stop(self, run_id: str, reason: str | None) -> None:
        """Cancel it; from any thread, any number of times."""
        if not self._once.acquire(blocking=False):
            return
        cleanup = None
        try:
            self.reason = reason or None
            context = HookContext(kind=HookKind.ON_CANCEL, run_id=run_id, reason=self.reason)
            # Before the token is set: a thread that sees the token, and leaves the block at once, waits for the hooks.
            self.cleanup = cleanup = self._hooks(context)
            self.token.set()
            if cleanup is not None:
                self._begin(cleanup)
        except BaseException:  # an interrupt
            self.token.set()
            if cleanup is not None:
                cleanup.signal.fire()  # perhaps the hooks are never called: the block must not wait for them
            raise
        for signal in tuple(self._waiting):
            signal.fire()
        self._reach_task()

    def patiently(self, wait: Wait) -> Iterator[Wait]:
        """Wait, but only until the run is cancelled."""
        if (signal := wait.signal) is not None:
            self._waiting.add(signal)
            try:
                if not self.token.is_set():  # the signal was added first; `stop` sets the token first: no wake is lost
                    yield wait
            finally:
                self._waiting.discard(signal)
            return
        clock = self._home.clock
        while not self.token.is_set() and (now := clock.monotonic()) < wait.until:
            yield Wait(min(wait.until, now + GLANCE))

    @property
    def is_stranded(self) -> bool:
        """True if the event loop of its task is closed."""
        return self._task is not None and self._task.get_loop().is_closed()

    def leave(self) -> None:
        """Note that the run is left, and take back the cancellation of its task."""
        self._open = False
        sent, self._sent = self._sent, False
        if sent and self._task is not None:
            self._task.uncancel()

    def instead_of(self, run_id: str, error: BaseException | None) -> RunCancelled | None:
        """The error to raise from the run's block instead, if *error* is a cancellation caused by `stop` alone."""
        ours = is_a(error, asyncio.CancelledError) and self.token.is_set()
        if not ours or is_a(error, RunCancelled) or (self._task is not None and self._task.cancelling()):
            return None
        return RunCancelled(run_id, self.reason)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _reach_task(self) -> None:
        if self._task is not None:
            try:
                self._task.get_loop().call_soon_threadsafe(self._cancel_task)
            except RuntimeError:  # the loop is closed, and the task gone with it
                return

    def _cancel_task(self) -> None:
        if self._open and not self._sent and self._task is not None and not self._task.done():
            self._sent = True
            self._task.cancel()

    def _hooks(self, context: HookContext) -> Job | None:
        """The job that calls the hooks, if there are any; it is not begun."""
        hooks, clock = self._home.hooks, self._home.clock
        if hooks is None or not hooks.has(HookKind.ON_CANCEL):
            return None

        def tell() -> None:
            for wait in hooks.tell(context, as_task=False):
                pause(clock, wait)

        return Job(self._home.workers, clock, tell)

    @staticmethod
    def _begin(cleanup: Job) -> None:
        cleanup.begin()
        if cleanup.unstarted is not None:
            _log.error("the on_cancel hooks could not be called: %s", cleanup.unstarted)
