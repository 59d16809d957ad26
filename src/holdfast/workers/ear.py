"""The ear of a worker: a thread that waits for commits of any process, and wakes the worker, not too often."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.stores import RunStore

GAP = 0.02  # seconds between two calls: on a busy store there is a commit every moment
SHARE = 10  # of what a look takes, that lie between two looks: a long queue of full sessions must not cost all the time


class Ear:
    """Calls *hear* whenever something was written to *store*; a context manager.

    *cost* is what whoever hears it needs to look, in seconds.
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
                # What waits here is the system; what rings meanwhile is told after it.
                self._closed.wait(max(GAP, SHARE * self.cost))
