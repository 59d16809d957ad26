"""Watches the store: reads it about once a second, sooner when it changes, at once when the user asks for something.

One thread reads and writes for the whole program; the event loop never waits for the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Final, Protocol, TypeVar

from holdfast.errors import HoldfastError
from holdfast.policy import PolicyBook
from holdfast.stores import RunStore
from holdfast.stores.following import changes
from holdfast.top.reading import Look, Picture, Reader
from holdfast.wording import one_line

R = TypeVar("R")

PERIOD: Final = 1.0  # seconds between two reads if the store reports no change
GAP: Final = 0.2  # seconds between two reads, at least
SHARE: Final = 4  # after a read, none follows for this many times as long as it took


class Watched(Protocol):
    """The program that shows what is read."""

    paused: bool

    def wanted(self) -> Look:
        """What to read now."""

    def show(self, picture: Picture) -> bool:
        """Show it; true if there is more to be read at once."""

    def complain(self, message: str) -> None:
        """Show what is wrong with the store; an empty *message* means that nothing is."""


class Watcher:
    """Reads *store* for *screen*."""

    def __init__(self, screen: Watched, store: RunStore, book: PolicyBook | None) -> None:
        self._screen = screen
        self._store = store
        self._reader = Reader(store, book)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="holdfast-top")
        self._looking = asyncio.Lock()
        self._again = False
        self._shown: Look | None = None

    async def watch(self) -> None:
        """Read again and again, except while the screen is paused."""
        clock = self._store.clock
        async with aclosing(changes(self._store, PERIOD)) as changed:
            while True:
                began = clock.monotonic()
                if not self._screen.paused:
                    await self.look()
                await clock.asleep(max(GAP, SHARE * (clock.monotonic() - began)))
                await anext(changed)

    async def look(self) -> None:
        """Read what is wanted and show it before this returns; if called during a read, read once more."""
        self._again = True
        async with self._looking:
            while self._again:
                self._again = False
                await self._look_once()

    async def do(self, fn: Callable[[], R]) -> R:
        """Call *fn*, which blocks, in the one thread for the store."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, fn)

    async def close(self) -> None:
        """Wait for the last read to end."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    async def _look_once(self) -> None:
        look, was_paused = self._screen.wanted(), self._screen.paused
        try:
            picture = await self.do(lambda: self._reader.look(look))
        except HoldfastError as error:
            self._screen.complain(f"the store cannot be read: {one_line(str(error), 500)}")
            return
        self._screen.complain("")
        place = look._replace(after=-1)
        if self._screen.paused and not was_paused and place == self._shown:
            return  # paused during this read: the screen keeps what it showed at that moment
        if look != self._screen.wanted():
            self._again = True
            return
        self._shown = place
        self._again |= self._screen.show(picture)
