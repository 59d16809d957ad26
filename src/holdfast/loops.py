"""The event loop that runs in this thread: asyncio's, or a replacement of it. Other kinds are not supported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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


async def beside(fn: Callable[[], T]) -> T:
    """What *fn* returns, called in a thread while other tasks go on; called here where asyncio does not run."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return fn()
    return await asyncio.to_thread(fn)


async def asleep(clock: Clock, seconds: float) -> None:
    """Sleep as a task; a user's own *clock* needs no asyncio, since it may know another kind of event loop."""
    if type(clock) is SystemClock:
        running_loop()
    await clock.asleep(seconds)
