"""The event loop that runs in this thread: asyncio's, or a replacement of it. Other kinds are not supported."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import TypeVar

from holdfast.clock import Clock, SystemClock
from holdfast.errors import ConfigError

T = TypeVar("T")


def running_loop() -> asyncio.AbstractEventLoop:
    """The running event loop; a `ConfigError` if there is none, since no tool is to blame for that."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise ConfigError(
            f"{error}: a coroutine of ours that has to wait, or has a time limit, needs asyncio, uvloop or anyio on "
            "asyncio. Under trio, use the plain functions in a thread: trio.to_thread.run_sync"
        ) from None


class Wakeup(asyncio.Future[None]):
    """What one task awaits; `set_result`, called by a callback of the task's event loop, resumes it.

    The task goes on in that very callback. With a plain future it would go on in the next turn of the event loop, which
    first asks the system whether anything else has come.
    """

    __slots__ = ("_resume",)

    def __init__(self) -> None:
        super().__init__(loop=running_loop())
        self._resume: tuple[Callable[[Wakeup], object], Context] | None = None

    def add_done_callback(self, fn: Callable[[Wakeup], object], /, *, context: Context | None = None) -> None:
        """Note how the task is resumed: asyncio calls this when the task awaits, unless the wakeup is set already."""
        self._resume = fn, copy_context() if context is None else context  # an empty one is false

    def set_result(self, result: None, /) -> None:
        """Resume the task."""
        super().set_result(result)
        resume, self._resume = self._resume, None  # no cycle: the task refers to what it has awaited
        if resume is not None:
            fn, context = resume
            context.run(fn, self)

    def cancel(self, msg: object = None) -> bool:
        """Resume the task, which is being cancelled, in the next turn: it may be cancelled from anywhere."""
        if not super().cancel(msg):
            return False
        resume, self._resume = self._resume, None
        if resume is not None:
            fn, context = resume
            self.get_loop().call_soon(fn, self, context=context)
        return True


async def beside(fn: Callable[[], T]) -> T:
    """What *fn* returns, called in a thread while other tasks go on; called here where there can be none.

    The thread is a new one: those of the event loop may all be taken by tools that hang.
    """
    try:
        asyncio.get_running_loop()
        called: Future[T] = Future()
        called.set_running_or_notify_cancel()  # whoever stops waiting does not keep it from being called
        threading.Thread(target=_call, args=(copy_context(), fn, called), name="holdfast-beside", daemon=True).start()
    except RuntimeError:  # asyncio does not run here, or there are no more threads
        return fn()
    return await asyncio.wrap_future(called)


def _call(context: Context, fn: Callable[[], T], called: Future[T]) -> None:
    try:
        called.set_result(context.run(fn))
    except BaseException as error:
        called.set_exception(error)


async def asleep(clock: Clock, seconds: float) -> None:
    """Sleep as a task; a user's own *clock* needs no asyncio, since it may know another kind of event loop."""
    if type(clock) is SystemClock:
        running_loop()
    await clock.asleep(seconds)
