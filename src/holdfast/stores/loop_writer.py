"""Lets an event loop make the writes of its own tasks: the loop writes them to the log, and the system syncs that.

A loop must never wait for the disk, for another process or for long. So this is for small groups of plain events, on a
log that needs no care; all else is left to the writer thread, and for a while everything is, if writing took long. The
tasks are told when the log is synced. A thread that commits meanwhile first syncs it itself, as their loop may be busy.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.clock import SystemClock
from holdfast.errors import StoreError
from holdfast.stores.kernel_sync import KernelSync, kernel_sync
from holdfast.stores.pending import Pending

MOST_AT_ONCE = 16  # writes; the thread makes larger groups, so that other tasks can go on meanwhile
SLOW = 0.05  # seconds that no write to the log takes, unless the disk or the memory is in trouble
REST = 10.0  # seconds for which everything is left to the thread after a slow one

Group = list[Pending[Any, Any]]


class Hasty(Protocol):
    """Makes groups of writes, and does not wait for the disk."""

    def make_hastily(self, group: Group, start: Callable[[int], object]) -> bool:
        """Make *group*, and *start* to sync the log of that handle; False if it must be made by a thread.

        Raises an `OSError` if it is made, but that cannot be started.
        """

    def sync(self, failure: OSError | None) -> StoreError | None:
        """Sync the log, unless the system has tried and told of a *failure*; return what is wrong."""


class LoopWriter:
    """Makes the writes in *queue* in the loop of the tasks that wait for them.

    *alone* calls a function unless another thread is committing; *leave* leaves the queue to the writer thread; *tell*
    tells those who wait for a group, and whether this is their loop; *after* is called when a group is on disk.
    """

    def __init__(
        self,
        queue: deque[Pending[Any, Any]],
        hasty: Hasty,
        alone: Callable[[Callable[[], bool]], bool | None],
        leave: Callable[[], object],
        tell: Callable[[Group, bool], object],
        after: Callable[[], object],
    ) -> None:
        self._queue = queue
        self._hasty = hasty
        self._alone = alone
        self._leave = leave
        self._tell = tell
        self._after = after
        self._sync: KernelSync | None = None
        self._group: Group = []  # on its way to the disk
        self.is_behind = False  # True while there may be something in the log that is not synced
        self._is_able = True
        self._is_asked = self._is_telling = False
        self._rests_until = 0.0

    def takes(self, loop: asyncio.AbstractEventLoop) -> bool:
        """True if this, or the end of a sync, will look after what a task of *loop*, the running one, has queued."""
        sync = self._sync
        if sync is None or sync.loop is not loop:
            if sync is None and self._is_able:
                self._sync = sync = kernel_sync(self._synced)
                self._is_able = sync is not None
            if sync is None or not sync.listen(loop):
                return False
            self._is_asked = False  # by a loop that is closed
        if not (self._is_asked or self._is_telling or sync.busy):
            self._is_asked = True
            loop.call_soon(self._lead)  # when other tasks that are ready have queued theirs, too
        return True

    def catch_up(self) -> None:
        """Sync what the loop has written, and tell its tasks; by a thread, while it keeps others from committing."""
        if (sync := self._sync) is not None:
            sync.wait()
        error = self._hasty.sync(None if sync is None else sync.failure)
        if error is not None:
            interrupted = [pending for pending in self._queue.copy() if pending.made]  # as the loop was, writing them
            for pending in self._group + interrupted:
                pending.fail(_as(error))
        self._tell(self._group, False)
        self._group.clear()  # not before: whoever is interrupted here leaves it to the next
        self.is_behind = False

    def close(self) -> None:
        """Let go of the loop; a later write finds it again."""
        self._sync = None

    def after_fork(self) -> None:
        """In a forked child: the loop and what it has written are the parent's."""
        if self._sync is not None:
            self._sync.abandon()

    # -- in the loop ---------------------------------------------------------------------------------------------------

    def _lead(self) -> None:
        """Make what is queued, and have it synced; or leave it to the thread."""
        self._is_asked = False
        if not self._queue or (self._sync is not None and self._sync.busy):
            return
        begun, is_made = SystemClock.monotonic(), None
        try:
            is_made = begun >= self._rests_until and self._alone(self._commit)
        finally:
            if not is_made:
                self._leave()
        if SystemClock.monotonic() - begun > SLOW:
            self._rests_until = begun + REST

    def _commit(self) -> bool:
        queue, sync = self._queue, self._sync
        if sync is None or sync.loop is None or self.is_behind or len(queue) > MOST_AT_ONCE:
            return False
        group = [queue[at] for at in range(len(queue))]
        if not _are_plain(group, sync.loop):
            return False
        self.is_behind = True  # until it is known that nothing was written, or that it is synced
        try:
            is_started = self._hasty.make_hastily(group, sync.start)
        except OSError:  # the system has too much of that to do: a thread will sync it
            is_started = False
        else:
            self.is_behind = is_started
        if self.is_behind:
            self._group += group
            for _ in group:
                queue.popleft()
        return is_started

    def _synced(self) -> None:
        """Tell the tasks that their writes are on disk; they go on in here."""
        if self._sync is None or self._sync.failure is not None:
            self._leave()  # a thread tells them that they may not be there
            return
        if self._group:  # no thread has synced it meanwhile
            group, self._group = self._group, []
            self.is_behind = False
            if self._queue:
                self._lead()  # so that the system syncs this while the tasks go on
            self._is_telling = True
            try:
                self._tell(group, True)
            finally:
                self._is_telling = False
            self._after()
        if self._queue:
            self._lead()


def _are_plain(group: Group, loop: asyncio.AbstractEventLoop) -> bool:
    """True if *group* may be made in *loop*: it is plain events, and nobody but tasks of that loop waits for them."""
    for pending in group:
        wakeup = pending.wakeup
        if not pending.fenced or pending.made or pending.waiter is not None:
            return False
        if wakeup is not None and wakeup.get_loop() is not loop:
            return False
    return True


def _as(error: StoreError) -> StoreError:
    """An error of its own for each task that raises it."""
    own = StoreError(str(error))
    own.__cause__ = error.__cause__
    return own
