"""How the program ends without a key: by a signal as q does, and with its terminal.

What is written to a terminal that is gone, or that nobody reads, may wait for ever, and the event loop with it. So a
thread ends the program where it does not end by itself.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from collections.abc import Callable
from typing import Final

GRACE: Final = 3.0  # seconds to leave the terminal as it was


def end_with_terminal(exit: Callable[[], object]) -> None:
    """Have *exit* called by this event loop on a signal, or once the terminal takes nothing more."""
    loop = asyncio.get_running_loop()

    def end(*_: object) -> None:  # in the main thread, though the loop may stand still, or in that which writes
        last = threading.Timer(GRACE, os._exit, (1,))
        last.daemon = True
        last.start()
        if not loop.is_closed():
            loop.call_soon_threadsafe(exit)

    def died(thread: threading.ExceptHookArgs) -> None:
        if isinstance(thread.exc_value, OSError) and thread.exc_value.errno == errno.EIO:  # what a closed one answers
            end()
        else:
            threading.__excepthook__(thread)

    threading.excepthook = died
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
