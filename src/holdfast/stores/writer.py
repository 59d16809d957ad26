"""The writer: many callers, one transaction. The thread that commits, the leader, takes along all that is queued then.

A plain caller that finds no other thread writing leads the commit in its own thread. All other writes (of coroutines,
those that came meanwhile, those only queued) are left to the writer thread, which is started when needed and ends when
idle. A write leaves the queue when it is made and its waiter was told: a leader that is interrupted leaves the rest to
the next one.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic

from holdfast.errors import StoreError
from holdfast.loops import Wakeup, running_loop
from holdfast.solo import Solo
from holdfast.stack import TO_WRITE, check_room
from holdfast.stores.loop_writer import Hasty, LoopWriter
from holdfast.stores.pending import Book, Pending, T

MOST_AT_ONCE = 1000  # writes in one transaction
MOST_TRIES = 3  # tries of a write whose leaders were interrupted
TICK = 0.01  # seconds; a queued write waits one to two ticks for other writes, or for a caller that commits anyway
NAP = 0.1  # seconds without work after which the writer thread sleeps until it is told of some
LINGER = 1.5  # seconds without work after which it ends: to start a thread takes as long as a commit

IN_THE_MIDDLE = "this thread is in the middle of another write, which the handler of a signal, say, has interrupted"

_log = logging.getLogger("holdfast")


class Writer(Generic[Book]):
    """Commits queued writes in groups.

    *transact* makes a group in one transaction and sets the outcome of each write; *after* is called when the next one
    may begin. If writes are *quick*, as they reach no disk, callers make them: leaving them to the thread is of no use.
    An event loop may make the writes of its tasks by *hasty*.
    """

    def __init__(
        self,
        transact: Callable[[Sequence[Pending[Book, Any]]], object],
        after: Callable[[], object] = lambda: None,
        *,
        quick: bool = False,
        hasty: Hasty | None = None,
    ) -> None:
        self._transact = transact
        self._after = after
        self._hasty = hasty
        self._in_loop: LoopWriter | None = None
        self._quick = quick
        self.patience: float | None = None  # seconds that tasks wait, if set: no caller then depends on the write
        self.ticks = 1  # ticks that a queued write waits: more if no caller is in a hurry
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: start over, as the thread and the queued writes are the parent's."""
        self._queue: deque[Pending[Book, Any]] = deque()
        self.turn = threading.RLock()  # held, once, by the thread that uses the connection; signal handlers may ask
        self._is_ours: Callable[[], bool] = self.turn._is_owned  # type: ignore[attr-defined]
        self._thread = Solo("holdfast-writer", self._serve, lambda: bool(self._queue))
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()  # holds an item if the thread is to wake
        self._hurry: deque[None] = deque(maxlen=1)  # holds an item if a caller waits
        self._naps = False  # True while the thread does not wake by itself to look whether something is queued
        self._is_led = False  # True while a thread commits: a hint for others, to whom even the try to do so is dear
        self._closed = self._complained = False
        if self._in_loop is not None:
            self._in_loop.after_fork()
        if (hasty := self._hasty) is not None:
            self._in_loop = LoopWriter(self._queue, hasty, self._alone_now, self._ring, self._tell, self._after)

    def submit(self, op: Callable[[Book], T], fenced: bool = False) -> Pending[Book, T]:
        """Queue a write; it is made with the next commit, or by the writer thread after two ticks at most."""
        pending = Pending(op, fenced)
        self.put(pending)
        return pending

    def put(self, pending: Pending[Book, Any]) -> None:
        """Queue a write, as `submit` does."""
        self._queue.append(pending)
        if not (self._quick and self._commit_if_free()):
            if not self._thread.there:
                self._start()
            elif self._naps:
                self._naps = False
                self._rings.put(None)

    def commit(self, op: Callable[[Book], T]) -> T:
        """Make a write; it is on disk when this returns."""
        pending = Pending(op)
        self._queue.append(pending)
        self.settle(pending)
        return pending.result()

    def request(self, op: Callable[[Book], T], otherwise: T) -> T:
        """Make a write as `commit` does; in a signal handler that interrupted a commit of this very thread, only queue
        it and return *otherwise*.
        """
        pending = Pending(op)
        self._queue.append(pending)
        if self._is_ours():
            self._ring()
            return otherwise
        self.settle(pending)
        return pending.result()

    async def acommit(self, op: Callable[[Book], T]) -> T:
        """Make a write; it is on disk when this returns. Cancelling the wait does not undo the write."""
        if not self._quick:
            running_loop()  # before anything is queued: a caller that cannot wait would not hear of the write
        pending = Pending(op)
        self._queue.append(pending)
        await self.asettle(pending)
        return pending.result()

    def tail(self) -> Pending[Book, None] | None:
        """Queue a write that does nothing, to wait until all that is queued now is made; None if nothing is queued."""
        return self.submit(lambda book: None) if self._queue or self._is_behind() else None

    def settle(self, pending: Pending[Book, Any], *, has_room: bool = False) -> None:
        """Wait until *pending* is done. It wakes one waiter: to wait for the write of another caller, use `tail`.

        It *has room* on the stack if that was checked before, as for all writes of a call when the call begins.
        """
        pending.awaited = True
        while not pending.done:
            if not self._is_led and self._commit_if_free(has_room=has_room):
                continue
            if self._is_ours():
                self._ring()
                raise StoreError(f"{IN_THE_MIDDLE}: this one is made, but cannot be waited for here")
            woken = threading.Lock()  # an Event would cost as much as everything else here
            woken.acquire()
            pending.waiter = woken
            self._ring()  # the thread that has the turn may use it for something else than commits
            if not pending.done:  # `waiter` was set first; `_tell` sets `done` first, so no wake is lost
                woken.acquire()

    async def asettle(self, pending: Pending[Book, Any]) -> None:
        """Wait until *pending* is done, or the time of `patience` is over."""
        pending.awaited = True
        if self._quick and not pending.done:
            self._commit_if_free()
        if pending.done:
            return
        pending.wakeup = wakeup = Wakeup()
        if self._in_loop is None or not self._in_loop.takes(wakeup.get_loop()):
            self._ring()
        if not pending.done:  # `wakeup` was set first; `_tell` sets `done` first, so no wake is lost
            if self.patience is None:
                await wakeup
            else:
                await asyncio.wait([wakeup], timeout=self.patience)

    def flush(self) -> None:
        """Make everything that is queued."""
        self.commit(lambda book: None)

    def close(self) -> None:
        """Make everything that is queued, and let the writer thread end; a later write starts another."""
        try:
            if (tail := self.tail()) is not None:
                self.settle(tail)  # errors of other writes are for their own callers
        finally:
            self._closed = True
            self._wake()
            if self._in_loop is not None:
                self._in_loop.close()

    def alone(self, do: Callable[[], T], *, patient: bool = True) -> T | None:
        """Call *do* while no other thread uses the connection; unless *patient*, return None at once if one does."""
        if self._is_ours():
            raise StoreError(f"{IN_THE_MIDDLE}: try again when that is made")
        return self._alone(do, patient)

    def _alone(self, do: Callable[[], T], patient: bool) -> T | None:
        turn = self.turn
        try:  # not `with`: in Python 3.14 an interrupt may come after it took the lock, and it is never released
            return do() if turn.acquire(patient) else None
        finally:
            try:  # noqa: SIM105 - that is a call more, after which an interrupt may come, and the turn be lost
                turn.release()
            except RuntimeError:  # the turn was not taken
                pass

    def _alone_now(self, do: Callable[[], T]) -> T | None:
        return None if self._is_ours() else self._alone(do, False)

    def hold(self, patience: float) -> bool:
        """Let no thread commit while this one forks; False if the turn is not free within *patience* seconds."""
        return not self._is_ours() and self.turn.acquire(timeout=patience)

    def let_go(self) -> None:
        """Let other threads commit again."""
        self.turn.release()

    # -- committing ----------------------------------------------------------------------------------------------------

    def _commit_if_free(self, *, patient: bool = False, has_room: bool = False) -> bool:
        """Commit one group; False if another thread is committing, or this very thread is, further down its stack.

        Only the writer thread is *patient*: a caller that waits for the turn is not woken when its write is done.
        """
        if self._is_ours():
            return False
        if not has_room:
            check_room(TO_WRITE)
        had = True
        try:
            size = self._alone(self._commit_group, patient)
            had = size is not None
            if size == MOST_AT_ONCE:
                self._ring()  # for the writes that are left
        except BaseException:  # an interrupt of this thread must not make other callers wait for ever
            self._ring()
            raise
        finally:
            if had:
                self._after()
        return had

    def _commit_group(self) -> int:
        queue = self._queue
        self._is_led = True
        try:
            if self._in_loop is not None and self._in_loop.is_behind:
                self._in_loop.catch_up()
            group = [queue[at] for at in range(min(len(queue), MOST_AT_ONCE))]
            left = group
            if group and group[0].made:  # a leader was interrupted: what it has made comes first
                left = [pending for pending in group if not pending.made]
            if left:
                try:
                    self._transact(left)
                except BaseException:
                    _count(left)
                    raise
            self._tell(group)
            for _ in group:
                queue.popleft()
        finally:
            self._is_led = False
        return len(group)

    def _tell(self, group: list[Pending[Book, Any]], is_here: bool = False) -> None:
        """Wake the waiters, all tasks of one event loop together; log an error that no caller waits for.

        If this thread *is here*, in the event loop of all tasks of the group, they go on at once.
        """
        wakeups: list[Wakeup] = []
        lost = None
        for pending in group:
            pending.done = True
            if pending.error is not None and not pending.awaited:
                lost = pending.error
            if (waiter := pending.waiter) is not None and waiter.locked():  # not if an interrupted leader did it
                waiter.release()
            if pending.wakeup is not None:
                wakeups.append(pending.wakeup)
        if wakeups and is_here:
            _resume(iter(wakeups))
        elif wakeups:
            _wake_tasks(wakeups)
        if lost is not None and not self._complained:
            _log.warning("what was queued could not be written: %s", lost)
        self._complained = lost is not None

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        """Have the writer thread commit soon."""
        if not self._thread.there:
            self._start()
        self._wake()

    def _wake(self) -> None:
        self._hurry.append(None)
        if self._rings.empty():  # otherwise it has been told already, and has not looked since
            self._rings.put(None)

    def _start(self) -> None:
        """Start the thread unless there is one. Nothing here blocks: the garbage collector may submit for a stream."""
        self._closed = False
        try:
            self._thread.start()
        except RuntimeError:  # no more threads, or the interpreter ends: commit in this thread
            while self._queue and self._commit_if_free():
                continue

    def _serve(self) -> None:
        """Commit when a caller rings, and what has been queued for a tick; end when there was nothing for a while."""
        seen: Pending[Book, Any] | None = None  # the oldest in the queue, a tick ago
        idle = 0.0  # seconds
        while self._queue or not (self._closed or idle > LINGER):
            pause = TICK * self.ticks
            if idle > NAP:
                self._naps = True  # before the look at the queue: whoever queues a write first does that
                if not self._queue:
                    pause = max(pause, LINGER - NAP)
            is_woken = self._listen(pause)
            self._naps = False
            rung = self._is_rung()
            before, seen = seen, self._oldest()
            if (seen is not None and (rung or seen is before or self._closed)) or (rung and self._is_behind()):
                self._try()
            idle = 0.0 if seen is not None or is_woken else idle + pause

    def _listen(self, patience: float) -> bool:
        try:
            self._rings.get(timeout=patience)
        except queue.Empty:
            return False
        return True

    def _is_rung(self) -> bool:
        try:
            self._hurry.pop()
        except IndexError:
            return False
        return True

    def _is_behind(self) -> bool:
        return self._in_loop is not None and self._in_loop.is_behind

    def _oldest(self) -> Pending[Book, Any] | None:
        try:
            return self._queue[0]
        except IndexError:  # another thread has just committed
            return None

    def _try(self) -> None:
        try:
            self._commit_if_free(patient=True)
        except BaseException:
            _log.exception("a group of writes was cut short")


def _count(group: list[Pending[Any, Any]]) -> None:
    """Count a try that was cut short; give up writes that have had enough of them."""
    for pending in group:
        pending.tries += 1
        if pending.tries == MOST_TRIES and not pending.made:
            pending.fail(StoreError("the write was cut short again and again; it was not made"))


def _wake_tasks(wakeups: list[Wakeup]) -> None:
    tasks: dict[asyncio.AbstractEventLoop, list[Wakeup]] = {}
    for wakeup in wakeups:
        tasks.setdefault(wakeup.get_loop(), []).append(wakeup)
    for loop, own in tasks.items():
        try:
            loop.call_soon_threadsafe(_resume, iter(own))
        except RuntimeError:  # the loop is closed, and the waiters gone with it
            continue


def _resume(tasks: Iterator[Wakeup]) -> None:
    try:
        for wakeup in tasks:
            if not wakeup.done():
                wakeup.set_result(None)
    except BaseException:  # one of the tasks raised SystemExit, say, which stops the loop; the others still wait
        asyncio.get_running_loop().call_soon(_resume, tasks)
        raise
