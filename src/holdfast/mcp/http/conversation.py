"""One client of a gateway: a run, in whose context its calls are made, until the client says goodbye or is silent for
too long.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final, ParamSpec, TypeVar

from holdfast.clock import Timer
from holdfast.errors import RunCancelled
from holdfast.mcp.proxy import Home

IDLE: Final = 1800.0  # seconds of silence after which a client is taken for gone

P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger("holdfast")


class Conversation:
    """A client, as the run *name*; *close* ends what was begun in it, and *on_end* is called before that.

    It is in *alive* until all of that is done.
    """

    def __init__(
        self,
        hf: Home,
        name: str,
        prompt: str,
        *,
        close: Callable[[], Awaitable[object]],
        on_end: Callable[[], object],
        alive: set[Conversation],
    ) -> None:
        self.live = 0  # requests that are being answered
        self._hf = hf
        self._name = name
        self._prompt = prompt
        self._close = close
        self._on_end = on_end
        self._alive = alive
        self._context: contextvars.Context | None = None
        self._opened = asyncio.Event()
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._heard = 0.0

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return not self._over.is_set() and (self._task is None or not self._task.done())

    @property
    def is_ready(self) -> bool:
        """Whether it has begun, so that nobody has to wait for that."""
        return self._opened.is_set()

    @property
    def idle_since(self) -> float:
        """When it was last heard of; never, while something is being answered."""
        return math.inf if self.live else self._heard

    async def open(self) -> None:
        """Begin, if it has not."""
        if self._task is None:
            self._heard = self._hf.clock.monotonic()
            self._task = asyncio.get_running_loop().create_task(self._live(), context=contextvars.Context())
            self._alive.add(self)
            self._task.add_done_callback(lambda task: self._alive.discard(self))
        if not self._opened.is_set():
            await self._opened.wait()

    def run(self, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call *fn* so that guarded calls in it belong to the run."""
        self._heard = self._hf.clock.monotonic()
        return fn(*args, **kwargs) if self._context is None else self._context.run(fn, *args, **kwargs)

    async def end(self, *, interrupted: bool = False) -> None:
        """End it: as completed, or as one that was abandoned."""
        if self._task is None:
            self._on_end()
            await self._close()
            return
        if interrupted:
            self.interrupt()
        self._over.set()
        await asyncio.wait({self._task})

    def interrupt(self) -> None:
        """Have it end as one that was abandoned."""
        if self._task is not None and not self._over.is_set():  # else it is ending, and not to be disturbed
            self._task.cancel()

    async def _live(self) -> None:
        try:
            async with self._hf.note(self._name, self._prompt):
                self._context = contextvars.copy_context()
                self._opened.set()
                self._watch()
                try:
                    await self._over.wait()
                finally:
                    await self._leave()
        except RunCancelled as error:
            _log.info("%s", error)
        finally:
            self._opened.set()

    async def _leave(self) -> None:
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()
        self._on_end()
        await self._close()

    def _watch(self) -> None:
        """End it when it has been silent for too long."""
        now = self._hf.clock.monotonic()
        if self.live:
            self._heard = now
        if now - self._heard >= IDLE:
            self.interrupt()
            return
        self._timer = self._hf.clock.call_at(self._heard + IDLE, self._watch)
