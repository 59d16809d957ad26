"""The event loop that runs in this thread: asyncio's, or one that stands in for it. There is no other for us."""

from __future__ import annotations

import asyncio

from holdfast.errors import ConfigError


def running_loop() -> asyncio.AbstractEventLoop:
    """The running event loop; where there is none, the setting is wrong, and no tool is to blame."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise ConfigError(
            f"{error}: a guarded coroutine that has to wait, or has a time limit, needs asyncio, uvloop or anyio on "
            "asyncio. Under trio, call plain functions in a thread: trio.to_thread.run_sync"
        ) from None
