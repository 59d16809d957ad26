"""Signals of the process, handled in another way for a while; for the main thread, which is the only one that may."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Have each signal handled as said, and as before afterwards; also in a forked child, which is ended by itself."""
    me = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() == me:
            handlers[signal.Signals(number)](number, frame)
        else:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)

    before = {number: signal.getsignal(number) for number in handlers}
    try:
        for number in handlers:
            signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_gently() -> Iterator[None]:
    """Have SIGTERM and SIGHUP do what Ctrl-C does, so that runs are left and children cleared away; what is ignored
    stays so. The system itself would end the process on the spot, or, if it is the first of a container, not at all.
    """
    ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    is_main = threading.current_thread() is threading.main_thread()
    with handled(dict.fromkeys(ends if is_main else (), _interrupt)):
        yield


def _interrupt(number: int, frame: FrameType | None) -> None:
    if not callable(signal.getsignal(signal.SIGINT)):  # a shell has Ctrl-C ignored by what it starts in the background
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
