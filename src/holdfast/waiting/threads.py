"""Threads for plain functions that have a time limit, or that are called from a coroutine.

A thread cannot be stopped from outside. A function that takes too long is abandoned: its caller goes on, its thread
ends when the function does. The number of abandoned threads is bounded; all are daemons, so none keeps a process alive.
"""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import logging
import math
import queue
import sys
import threading
from collections.abc import Callable
from types import FrameType

from holdfast.clock import Clock
from holdfast.errors import in_words
from holdfast.guards.line import Signal

# The rooms whose code takes locks that the end of a call needs, too; and the modules in them that call users' code, and
# hold no lock then.
LOCKING = frozenset({"bus", "clock", "guards", "parts", "policy", "runs", "stores", "tools", "tracking", "waiting"})
CALLING = frozenset({"holdfast.runs.remembered", "holdfast.parts.protecting", "holdfast.parts.retrying"})
LINGER = 1.0  # seconds that an idle thread waits for the next job
MOST_ABANDONED = 64

_log = logging.getLogger("holdfast")


class Job:
    """One function to be run in a thread, in a copy of the caller's context; *signal* fires when it has ended."""

    __slots__ = (
        "signal", "unstarted", "_abandoned", "_begun", "_clock", "_context", "_ended", "_error", "_fn", "_lock",
        "_result", "_workers",
    )  # fmt: skip

    def __init__(self, workers: Workers, clock: Clock, fn: Callable[[], object]) -> None:
        self.signal = Signal()
        self.unstarted: str | None = None  # why there is no thread for it
        self._clock = clock
        self._ended = math.inf
        self._workers = workers
        self._context = contextvars.copy_context()
        self._fn = fn
        self._lock = threading.Lock()
        self._abandoned = self._begun = False
        self._result: object = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """Start the job; raise a `RuntimeError` if no thread can be started."""
        self._workers.start(self)
        self._begun = True  # only now: if no thread could be started, there is none to abandon

    def begin(self) -> None:
        """Like `start`, for a caller that waits for the signal: if no thread can be started, it fires at once."""
        try:
            self.start()
        except RuntimeError as error:
            self.unstarted = in_words(error)
            self.signal.fire()

    def ended_before(self, when: float) -> bool:
        """True if the job ended before *when*; whether it has ended by now depends on which thread woke first."""
        return self.signal.fired and self._ended < when

    def result(self) -> object:
        """Return what the function returned, or raise its error."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # no cycle: the traceback leads to this frame, and from here to the error
        return self._result

    def abandon(self) -> None:
        """Give up waiting for the job."""
        with self._lock:
            if self._begun and not self.signal.fired and not self._abandoned:
                self._abandoned = True
                self._workers._count(1)

    def run(self) -> None:
        """Run the function in the worker's thread, unless the job was abandoned before."""
        with self._lock:
            wanted = not self._abandoned
        try:
            self._result = self._in_context() if wanted else None
        except BaseException as error:
            self._error = error
        self._ended = self._clock.monotonic()
        with self._lock:
            if self._abandoned:
                self._workers._count(-1)
            self.signal.fired = True
        self.signal.fire()

    def _in_context(self) -> object:
        return self._context.run(self._fn)


class Workers:
    """Threads that are started when needed and end when idle."""

    def __init__(self, most_abandoned: int = MOST_ABANDONED) -> None:
        self._most_abandoned = most_abandoned
        self.after_fork()

    def after_fork(self) -> None:
        """Reset in a forked child: the parent's threads do not exist there."""
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Job | None]] = []
        self._lingering = True
        self.abandoned = 0

    @property
    def full(self) -> bool:
        """True if so many calls were abandoned and still run that no other may be started."""
        return self.abandoned >= self._most_abandoned

    def start(self, job: Job) -> None:
        """Run *job* in a thread."""
        if sys.is_finalizing():  # a thread would not run, and Python 3.11 would wait for it
            raise RuntimeError("the interpreter ends: no thread can be started")
        with self._lock:
            if self._idle:
                inbox = self._idle[-1]
                del self._idle[-1]  # not `pop`: an interrupt after the call would leave its thread without a job
                inbox.put(job)
                return
        inbox = queue.SimpleQueue()
        inbox.put(job)  # not as an argument: a thread keeps those for as long as it lives
        threading.Thread(target=self._serve, args=(inbox,), name="holdfast-worker", daemon=True).start()

    def close(self) -> None:
        """Let idle threads end now, and others as soon as they become idle."""
        with self._lock:
            self._lingering = False
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _serve(self, inbox: queue.SimpleQueue[Job | None]) -> None:
        job = inbox.get()
        while job is not None:
            job.run()
            del job  # so that an idle thread keeps no result alive
            with self._lock:
                if not self._lingering:
                    return
                self._idle.append(inbox)
            try:
                job = inbox.get(timeout=LINGER)
            except queue.Empty:
                with self._lock:
                    if inbox in self._idle:
                        self._idle.remove(inbox)
                        return
                job = inbox.get()  # taken from the idle ones at the last moment: a job is on its way

    def _count(self, by: int) -> None:
        with self._lock:
            self.abandoned += by


def elsewhere(end: Callable[..., object], *args: object) -> None:
    """Call *end* in a new thread, where no lock is held; errors that it raises are logged."""
    _thread.start_new_thread(_alone, (end, args))


def _alone(end: Callable[..., object], args: tuple[object, ...]) -> None:
    try:
        end(*args)
    except (Exception, asyncio.CancelledError):
        _log.exception("what was left to the garbage collector could not be ended")


def may_hold_a_lock() -> bool:
    """True if this thread is inside code of Holdfast that takes locks, the caller itself not counted.

    The garbage collector closes abandoned streams and coroutines wherever it happens to run, also in such code.
    """
    frame: FrameType | None = sys._getframe(2)
    free = (Job._in_context.__code__, _alone.__code__)  # their callers, further out, hold no lock
    while frame is not None and frame.f_code not in free:
        name = str(frame.f_globals.get("__name__"))
        if name in CALLING:
            return False
        if name.startswith("holdfast.") and name.split(".")[1] in LOCKING:
            return True
        frame = frame.f_back
    return False
