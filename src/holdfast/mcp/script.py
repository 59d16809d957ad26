"""A script is a generator that yields what it has to wait for. None stands for news: the caller of `wake` brings them,
and plays the script on at once. Anything else is awaited by a task, which plays the script from then on. So a script
that waits only for news costs no task, no future and no turn of the event loop.
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
Step = Wait | Callable[[], Awaitable[object]] | None  # what a script waits for; None is news
Steps = Generator[Step, None, T]


class Script:
    """Plays *steps*; its task, if any, has the context in which the script was made. Used in one event loop."""

    __slots__ = ("task", "_clock", "_context", "_is_cut", "_is_followed", "_is_waiting", "_steps", "_woken")

    def __init__(self, clock: Clock, steps: Steps[None]) -> None:
        self.task: asyncio.Task[None] | None = None
        self._clock = clock
        self._context = copy_context()
        self._is_cut = False  # to be cancelled where it waits next
        self._is_followed = False  # the task has begun
        self._is_waiting = False  # the script waits for news, and has no task
        self._steps = steps
        self._woken: asyncio.Future[None] | None = None  # done when there are news; the task waits for it

    def play(self, error: BaseException | None = None) -> None:
        """Begin the script, or go on with it, up to its next wait; throw *error* into it, if there is one."""
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
        """Bring news; nothing happens if the script does not wait for them."""
        if self._woken is not None:
            if not self._woken.done():
                self._woken.set_result(None)
        elif self._is_waiting:
            self.play()

    def cancel(self) -> None:
        """Cancel the script where it waits: at once, if it waits for news without a task."""
        if self._is_waiting:
            self.play(asyncio.CancelledError())
        elif self.task is not None and self._is_followed:
            self.task.cancel()
        else:  # a task that is cancelled before it has begun would never play the script to its end
            self._is_cut = True

    def uncancel(self) -> bool:
        """Take back a cancel that the script has dealt with; True if there was another."""
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
