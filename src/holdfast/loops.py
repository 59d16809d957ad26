"""The event loop that runs in this thread: asyncio's, or one that stands in for it. There is no other for us."""

from __future__ import annotations

import asyncio

from holdfast.clock import Clock, SystemClock
from holdfast.errors import ConfigError


def running_loop() -> asyncio.AbstractEventLoop:
    """The running event loop; where there is none, the setting is wrong, and no tool is to blame."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise ConfigError(
            f"{error}: a coroutine of ours that has to wait, or has a time limit, needs asyncio, uvloop or anyio on "
            "asyncio. Under trio, use the plain functions in a thread: trio.to_thread.run_sync"
        ) from None


async def asleep(clock: Clock, seconds: float) -> None:
    """Sleep as a task; a *clock* of the user's own may know of another kind of event loop."""
    if type(clock) is SystemClock:
        running_loop()
    await clock.asleep(seconds)
