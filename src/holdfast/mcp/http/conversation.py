"""One client of a gateway is one run, in whose context its calls are made. The run ends when the client ends its
session, or is silent for too long.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from holdfast.clock import Timer
from holdfast.errors import RunCancelled
from holdfast.mcp.http.exchange import Exchange
from holdfast.mcp.server import Home
from holdfast.mcp.session import Session

IDLE: Final = 1800.0  # seconds of silence after which a client counts as gone

_log = logging.getLogger("holdfast")


async def _nothing() -> None:
    """There is nothing to close."""


class Conversation:
    """The run *name* of a client, which begins now; it is in *alive* until the run has ended.

    *begin* is called inside the run, and *on_end* at its end. Then requests that are still open get an error, and
    *close* ends what was begun in the run.
    """

    def __init__(
        self,
        hf: Home,
        name: str,
        prompt: str,
        *,
        begin: Callable[[], object] = lambda: None,
        on_end: Callable[[], object],
        close: Callable[[], Awaitable[object]] = _nothing,
        alive: set[Conversation],
    ) -> None:
        self.exchanges: dict[Exchange, None] = {}  # requests that are being answered, the newest last
        self.sessions: set[Session] = set()  # in which calls are under way, if each request has a session of its own
        self._hf = hf
        self._name = name
        self._prompt = prompt
        self._begin = begin
        self._on_end = on_end
        self._close = close
        self._context: contextvars.Context | None = None
        self._opened = asyncio.Event()
        self._over = asyncio.Event()
        self._timer: Timer | None = None
        self._heard = hf.clock.monotonic()
        self._task = asyncio.get_running_loop().create_task(self._live(), context=contextvars.Context())
        alive.add(self)
        self._task.add_done_callback(lambda task: alive.discard(self))

    @property
    def is_open(self) -> bool:
        """True until it ends, or is about to."""
        return not self._over.is_set() and not self._task.done()

    @property
    def idle_since(self) -> float:
        """When the client was last heard; infinity while a request is being answered."""
        return math.inf if self.exchanges else self._heard

    def perform(self, do: Callable[[], object]) -> Awaitable[None] | None:
        """Call *do* so that its guarded calls belong to the run: at once, or as soon as the run has begun."""
        if not self._opened.is_set():
            return self._perform_later(do)
        self._perform(do)
        return None

    def join(self, exchange: Exchange) -> None:
        """Add a request of the client, until that is answered."""
        self.exchanges[exchange] = None
        exchange.when_done(partial(self.exchanges.pop, exchange, None))

    async def end(self, *, interrupted: bool = False) -> None:
        """End the run as completed, or as *interrupted*, and wait until it has ended."""
        if interrupted:
            self.interrupt()
        self.conclude()
        await asyncio.wait({self._task})

    def conclude(self) -> None:
        """Let the run end as completed; from now on it is not open."""
        self._over.set()

    def interrupt(self) -> None:
        """Let the run end as interrupted."""
        if not self._over.is_set():  # otherwise it is already ending, which must not be cancelled
            self._task.cancel()

    async def _perform_later(self, do: Callable[[], object]) -> None:
        await self._opened.wait()
        self._perform(do)

    def _perform(self, do: Callable[[], object]) -> None:
        self._heard = self._hf.clock.monotonic()
        if self._context is not None:
            self._context.run(do)
        else:  # the run could not be begun
            do()

    async def _live(self) -> None:
        try:
            async with self._hf.note(self._name, self._prompt):
                self._context = contextvars.copy_context()
                try:
                    self._begin()
                    self._opened.set()
                    self._watch()
                    await self._over.wait()
                finally:
                    await self._finish()
        except RunCancelled as error:
            _log.info("%s", error)
        finally:
            self._opened.set()

    async def _finish(self) -> None:
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()
        self._on_end()
        for exchange in list(self.exchanges):
            exchange.abandon()
        await self._close()

    def _watch(self) -> None:
        """Interrupt the run when the client has been silent for too long."""
        now = self._hf.clock.monotonic()
        if self.exchanges:
            self._heard = now
        if now - self._heard >= IDLE:
            self.interrupt()
            return
        self._timer = self._hf.clock.call_at(self._heard + IDLE, self._watch)
