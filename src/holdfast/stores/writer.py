"""The writer: many callers, one transaction. Whoever commits takes along everything that is queued by then.

A plain caller that finds nobody writing commits in its own thread. All else (coroutines, what came meanwhile, what
was only queued) is left to one thread, which is started when needed and ends when idle. A write leaves the queue when
it is made and whoever waits for it was told: a leader that is interrupted leaves the rest to the next one.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.errors import StoreError
from holdfast.loops import running_loop
from holdfast.solo import Solo
from holdfast.stack import TO_WRITE, check_room

MOST_AT_ONCE = 1000  # writes in one transaction
MOST_TRIES = 3  # of a write whose leader was interrupted
TICK = 0.01  # seconds; a queued write waits one to two of them for company, or for somebody who commits anyway
LINGER = 1.0  # seconds without work after which the thread ends

IN_THE_MIDDLE = "this thread is in the middle of another write, which the handler of a signal, say, has interrupted"

_log = logging.getLogger("holdfast")

Book = TypeVar("Book")
T = TypeVar("T")


class Pending(msgspec.Struct, Generic[Book, T], eq=False):  # a Struct since there are two a step: it is made in C
    """A write on its way: *made* when it is on disk, or has failed; *done* when that was told."""

    op: Callable[[Book], T]
    made: bool = False
    done: bool = False
    awaited: bool = False
    tries: int = 0
    value: T | None = None
    error: BaseException | None = None
    waiter: threading.Lock | None = None  # locked by a thread, to be released when it is done
    future: asyncio.Future[None] | None = None

    def fail(self, error: BaseException) -> None:
        """It was not made."""
        self.error = error
        self.made = True

    def result(self) -> T:
        """What the write gave, or the error it failed with."""
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # the traceback leads to this frame, and from here to the error
        if not self.done:
            raise StoreError("the store takes too long; it may be written yet")
        return self.value  # type: ignore[return-value]


class Writer(Generic[Book]):
    """Commits queued writes in groups.

    *transact* makes a group in one transaction and gives each its outcome; *after* is called when the next may begin.
    Where a write is *quick*, since it reaches no disk, there is no use in queueing it for another thread.
    """

    def __init__(
        self,
        transact: Callable[[Sequence[Pending[Book, Any]]], object],
        after: Callable[[], object] = lambda: None,
        *,
        quick: bool = False,
    ) -> None:
        self._transact = transact
        self._after = after
        self._quick = quick
        self.patience: float | None = None  # seconds that tasks wait, where nobody depends on what is written
        self.ticks = 1  # that a queued write waits: more of them where nobody is in a hurry
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: the thread and whatever was queued are the parent's."""
        self._queue: deque[Pending[Book, Any]] = deque()
        self.turn = threading.RLock()  # held by whoever uses the connection, once: a handler of signals may ask
        self._is_ours: Callable[[], bool] = self.turn._is_owned  # type: ignore[attr-defined]
        self._thread = Solo("holdfast-writer", self._serve, lambda: bool(self._queue))
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()  # has one when somebody waits
        self._closed = self._complained = False

    def submit(self, op: Callable[[Book], T]) -> Pending[Book, T]:
        """Queue a write; it is made with the next commit, or by the thread after two ticks at most."""
        pending = Pending(op)
        self._queue.append(pending)
        if self._quick and self._led():
            return pending
        if not self._thread.there:
            self._start()
        return pending

    def commit(self, op: Callable[[Book], T]) -> T:
        """Make a write; it is on disk when this returns."""
        pending = Pending(op)
        self._queue.append(pending)
        self.settle(pending)
        return pending.result()

    def request(self, op: Callable[[Book], T], otherwise: T) -> T:
        """Make a write as `commit` does; above a commit of this very thread, where the handler of a signal may be, it
        can only be queued, which gives *otherwise*.
        """
        pending = Pending(op)
        self._queue.append(pending)
        if self._is_ours():
            self._ring()
            return otherwise
        self.settle(pending)
        return pending.result()

    async def acommit(self, op: Callable[[Book], T]) -> T:
        """Make a write; it is on disk when this returns. Cancelling the wait does not take it back."""
        if not self._quick:
            running_loop()  # before anything is written: who cannot wait for it would not know of it
        pending = Pending(op)
        self._queue.append(pending)
        await self.asettle(pending)
        return pending.result()

    def settle(self, pending: Pending[Book, Any]) -> None:
        """Wait until *pending* is done."""
        pending.awaited = True
        while not pending.done:
            if self._led():
                continue
            if self._is_ours():
                self._ring()
                raise StoreError(f"{IN_THE_MIDDLE}: this one is made, but cannot be waited for here")
            woken = threading.Lock()  # an Event would cost as much again as all else here
            woken.acquire()
            pending.waiter = woken
            self._ring()  # whoever has the turn may use it for something else
            if not pending.done:  # each side sets its mark before it looks at the other's
                woken.acquire()

    async def asettle(self, pending: Pending[Book, Any]) -> None:
        """Wait until *pending* is done, or patience is at its end."""
        pending.awaited = True
        if self._quick and not pending.done:
            self._led()
        if pending.done:
            return
        pending.future = running_loop().create_future()
        self._ring()
        if not pending.done:  # each side sets its mark before it looks at the other's
            if self.patience is None:
                await pending.future
            else:
                await asyncio.wait([pending.future], timeout=self.patience)

    def flush(self) -> None:
        """Make everything that is queued."""
        self.commit(lambda book: None)

    def close(self) -> None:
        """Make everything that is queued, and let the thread end; what comes later starts another."""
        try:
            if self._queue:
                self.settle(self.submit(lambda book: None))  # that others failed is for them to hear
        finally:
            self._closed = True
            self._wake()

    def alone(self, do: Callable[[], T], *, patient: bool = True) -> T | None:
        """Call *do* while nobody else uses the connection; if somebody does, and it is not *patient*, not at all."""
        turn = self.turn
        if self._is_ours():
            raise StoreError(f"{IN_THE_MIDDLE}: try again when that is made")
        try:  # and no `with`: in Python 3.14 an interrupt may come between its taking the lock and its seeing to it
            return do() if turn.acquire(patient) else None
        finally:
            try:  # noqa: SIM105 - that is a call more, after which an interrupt may come, and the turn be lost
                turn.release()
            except RuntimeError:  # it was not to be had
                pass

    def hold(self, patience: float) -> bool:
        """Let nobody commit while this thread forks; false if somebody did so for longer than *patience*."""
        return not self._is_ours() and self.turn.acquire(timeout=patience)

    def let_go(self) -> None:
        """Let others commit again."""
        self.turn.release()

    # -- committing ----------------------------------------------------------------------------------------------------

    def _led(self, *, patient: bool = False) -> bool:
        """Commit one group, unless somebody is at it: this very thread, below us, or another one.

        Only the thread is *patient*: who waits for its turn is not woken when its write is done.
        """
        if self._is_ours():
            return False
        check_room(TO_WRITE)
        had = True
        try:
            size = self.alone(self._commit_group, patient=patient)
            had = size is not None
            if size == MOST_AT_ONCE:
                self._ring()  # for those who are left
        except BaseException:  # what hits this thread from outside is no reason for others to wait for ever
            self._ring()
            raise
        finally:
            if had:
                self._after()
        return had

    def _commit_group(self) -> int:
        queue = self._queue
        group = list(queue.copy())[:MOST_AT_ONCE]
        self._make(group)
        self._tell(group)
        for _ in group:
            queue.popleft()
        return len(group)

    def _make(self, group: list[Pending[Book, Any]]) -> None:
        left = []
        for pending in group:
            pending.tries += 1
            if pending.tries > MOST_TRIES and not pending.made:
                pending.fail(StoreError("the write was cut short again and again; it was not made"))
            if not pending.made:
                left.append(pending)
        if left:
            self._transact(left)

    def _tell(self, group: list[Pending[Book, Any]]) -> None:
        """Wake who waits, the tasks of one event loop together; say in the log what nobody waits to hear."""
        tasks: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        lost = None
        for pending in group:
            pending.done = True
            lost = pending.error if pending.error is not None and not pending.awaited else lost
            if (waiter := pending.waiter) is not None and waiter.locked():  # not if an interrupted leader has done it
                waiter.release()
            if pending.future is not None:
                tasks.setdefault(pending.future.get_loop(), []).append(pending.future)
        for loop, futures in tasks.items():
            try:
                loop.call_soon_threadsafe(_resolve, futures)
            except RuntimeError:  # the loop is closed, and the waiters gone with it
                continue
        if lost is not None and not self._complained:
            _log.warning("what was queued could not be written: %s", lost)
        self._complained = lost is not None

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        """See to it that somebody commits soon."""
        if not self._thread.there:
            self._start()
        self._wake()

    def _wake(self) -> None:
        if self._rings.empty():  # else it has been told already, and has not looked since
            self._rings.put(None)

    def _start(self) -> None:
        """Start the thread unless there is one. Nothing here blocks: the garbage collector may submit for a stream."""
        self._closed = False
        try:
            self._thread.start()
        except RuntimeError:  # no more threads, or the interpreter ends: here and now, then
            while self._queue and self._led():
                continue

    def _serve(self) -> None:
        """Commit when somebody rings, and what has been queued for a tick; end when there was nothing for a while."""
        seen: Pending[Book, Any] | None = None  # the oldest in the queue, a tick ago
        idle = 0.0  # seconds
        while self._queue or not (self._closed or idle > LINGER):
            pause = TICK * self.ticks
            rung = self._is_rung(pause)
            before, seen = seen, self._oldest()
            if seen is not None and (rung or seen is before or self._closed):
                self._try()
            idle = 0.0 if seen is not None or rung else idle + pause

    def _is_rung(self, patience: float) -> bool:
        try:
            self._rings.get(timeout=patience)
        except queue.Empty:
            return False
        return True

    def _oldest(self) -> Pending[Book, Any] | None:
        try:
            return self._queue[0]
        except IndexError:  # somebody has just committed
            return None

    def _try(self) -> None:
        try:
            self._led(patient=True)
        except BaseException:
            _log.exception("a group of writes was cut short")


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
