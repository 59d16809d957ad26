"""Ends the program without a key: on a signal, as q does, and when its terminal is gone.

A write to a terminal that is gone, or that no process reads, may block for ever, and the event loop with it. So a
thread ends the program if it does not end by itself.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from collections.abc import Callable
from typing import Final

GRACE: Final = 3.0  # seconds that the program has to restore the terminal


def end_with_terminal(exit: Callable[[], object]) -> None:
    """Have this event loop call *exit* on SIGTERM or SIGHUP, or once the terminal accepts no more output."""
    loop = asyncio.get_running_loop()

    def end(*_: object) -> None:  # in the main thread, where the loop may be blocked, or in the thread that writes
        last = threading.Timer(GRACE, os._exit, (1,))
        last.daemon = True
        last.start()
        if not loop.is_closed():
            loop.call_soon_threadsafe(exit)

    def died(thread: threading.ExceptHookArgs) -> None:
        if isinstance(thread.exc_value, OSError) and thread.exc_value.errno == errno.EIO:  # from a closed terminal
            end()
        else:
            threading.__excepthook__(thread)

    threading.excepthook = died
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
