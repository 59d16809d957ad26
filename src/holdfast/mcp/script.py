"""A script is a generator that yields what it has to wait for. None is news, and whoever brings them goes on with it
there and then; for anything else there is a task, from then on. So a script that waits for nothing but news costs no
task, no future and no turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.waiting.waits import Wait, apause

T = TypeVar("T")
Step = Wait | Callable[[], Awaitable[object]] | None  # what is waited for
Steps = Generator[Step, None, T]


class Script:
    """Plays *steps*, in the context in which it was made once there is a task; used in one event loop."""

    __slots__ = ("task", "_clock", "_context", "_is_cut", "_is_followed", "_is_waiting", "_steps", "_woken")

    def __init__(self, clock: Clock, steps: Steps[None]) -> None:
        self.task: asyncio.Task[None] | None = None
        self._clock = clock
        self._context = copy_context()
        self._is_cut = False  # it is to be cancelled where it waits next
        self._is_followed = False  # the task has begun
        self._is_waiting = False  # for news, and without a task
        self._steps = steps
        self._woken: asyncio.Future[None] | None = None  # for which the task waits

    def play(self, error: BaseException | None = None) -> None:
        """Begin it, or go on with it, as far as that goes without waiting."""
        self._is_waiting = False
        try:
            wait = self._steps.send(None) if error is None else self._steps.throw(error)
        except (StopIteration, asyncio.CancelledError):
            return
        if wait is not None:
            loop = asyncio.get_running_loop()
            self.task = loop.create_task(self._follow(wait), context=self._context)
        elif self._is_cut:
            self.play(self._cut())
        else:
            self._is_waiting = True

    def wake(self) -> None:
        """There are news; nothing happens if nobody waits for them."""
        if self._woken is not None:
            if not self._woken.done():
                self._woken.set_result(None)
        elif self._is_waiting:
            self.play()

    def cancel(self) -> None:
        """Cancel it where it waits: at once, if that is for news and without a task."""
        if self._is_waiting:
            self.play(asyncio.CancelledError())
        elif self.task is not None and self._is_followed:
            self.task.cancel()
        else:  # a task that is cancelled before it has begun would never come to the end of the script
            self._is_cut = True

    def uncancel(self) -> bool:
        """A cancel was taken for something else; whether there was another."""
        return self.task is not None and self.task.uncancel() > 0

    def _cut(self) -> asyncio.CancelledError:
        self._is_cut = False
        return asyncio.CancelledError()

    async def _follow(self, wait: Step) -> None:
        self._is_followed = True
        with suppress(StopIteration):
            while True:
                try:
                    if self._is_cut:
                        raise self._cut()
                    await self._pause(wait)
                except BaseException as error:
                    wait = self._steps.throw(error)
                else:
                    wait = self._steps.send(None)

    async def _pause(self, wait: Step) -> None:
        if isinstance(wait, Wait):
            await apause(self._clock, wait)
        elif wait is not None:
            await wait()
        else:
            self._woken = asyncio.get_running_loop().create_future()
            try:
                await self._woken
            finally:
                self._woken = None
