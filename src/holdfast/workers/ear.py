"""A worker's ear: a thread that waits for commits of any process, and wakes the worker, but not too often."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.stores import RunStore

GAP = 0.02  # seconds between two wake-ups: a busy store has a commit every moment
# Pause between two looks at the queue, as a multiple of what a look takes: a long queue of full sessions must not cost
# all the time.
SHARE = 10


class Ear:
    """Calls *hear* whenever something was written to *store*; a context manager.

    *cost* is how many seconds the worker needs for a look at the queue; the worker sets it.
    """

    def __init__(self, store: RunStore, hear: Callable[[], object]) -> None:
        self._store = store
        self._hear = hear
        self._closed = threading.Event()
        self.cost = 0.0

    def __enter__(self) -> Ear:
        self._listener = self._store.listen()
        self._thread = threading.Thread(target=self._serve, name="holdfast-ear", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while not self._listener.closed:
            if self._listener.wait():
                self._hear()
                # Real time, whatever clock the worker has; commits made meanwhile are reported right afterwards.
                self._closed.wait(max(GAP, SHARE * self.cost))
