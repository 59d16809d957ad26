"""What all requests share: the store, its board, a few threads that read them, and the event that ends the server.

The store blocks: it is never called in the event loop, and only a limited number of requests may wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from holdfast.clock import Clock
from holdfast.policy import PolicyBook
from holdfast.stores import RunStore
from holdfast.stores.board import Board
from holdfast.web.answers import Problem
from holdfast.wording.shown import ShownTools

P = ParamSpec("P")
R = TypeVar("R")

THREADS = 4  # more would only wait for each other: one thread at a time reads a store
MOST_WAITING = 200  # requests that wait for the store
MOST_STREAMS = 100


class Desk:
    """The store of one server, as its requests use it."""

    def __init__(self, store: RunStore, book: PolicyBook | None, named: str | None) -> None:
        self.store = store
        self.named_store = named
        self.board = Board(store)
        self.tools = ShownTools(store, book)
        self.clock: Clock = store.clock
        self.closing = asyncio.Event()  # once it is set all streams end, and nothing more is read
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-web")
        self._waiting = 0
        self._streams = 0

    def now_ms(self) -> int:
        """The wall clock, in milliseconds."""
        return int(self.clock.time() * 1000)

    async def run(self, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call *fn*, which blocks, in a thread; raise a Problem (503) if too many requests wait."""
        if self._waiting >= MOST_WAITING or self.closing.is_set():
            raise Problem(503, "busy", "too many requests wait for the store", "try again in a moment")
        self._waiting += 1
        try:
            return await self.run_unlimited(fn, *args, **kwargs)
        finally:
            self._waiting -= 1

    async def run_unlimited(self, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Like `run`, but never refused: for what all pages share, and for answers that have begun."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: fn(*args, **kwargs))

    def open_stream(self) -> None:
        """Count a new stream, or raise a Problem (503) if there are too many; the caller calls `close_stream`."""
        if self._streams >= MOST_STREAMS:
            raise Problem(503, "too_many_streams", f"{MOST_STREAMS} pages are open", "close some of them")
        self._streams += 1

    def close_stream(self) -> None:
        """Count the end of a stream."""
        self._streams -= 1

    def close(self) -> None:
        """End all streams, and wait for the threads to end."""
        self.closing.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
