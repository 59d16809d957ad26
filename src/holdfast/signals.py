"""Temporary handlers for signals of the process. Only the main thread may set them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], object]

_replaced: list[dict[signal.Signals, Any]] = []  # the handlers that ours stand in for, the outermost first


@contextmanager
def handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Inside the `with`, handle each signal by its handler; afterwards, and in forked children, as before."""
    me = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() == me:
            handlers[signal.Signals(number)](number, frame)
        else:  # a child that was forked at this very moment
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)

    before = {number: signal.getsignal(number) for number in handlers}
    _replaced.append(before)
    try:
        for number in handlers:
            signal.signal(number, handle)
        yield
    finally:
        _replaced.remove(before)
        _put_back(before)


def _put_back(before: Mapping[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


def _in_child() -> None:
    """Put back all handlers: since 3.13, a child forked by another thread than the main one may not call ours."""
    for before in reversed(_replaced):
        _put_back(before)


os.register_at_fork(after_in_child=_in_child)


@contextmanager
def ended_gently() -> Iterator[None]:
    """Make SIGTERM and SIGHUP act like Ctrl-C, so that runs are left and children cleared away; ignored signals stay
    ignored. By default they end the process on the spot, or, if it is the first of a container, not at all.
    """
    ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    is_main = threading.current_thread() is threading.main_thread()
    with handled(dict.fromkeys(ends if is_main else (), _interrupt)):
        yield


def _interrupt(number: int, frame: FrameType | None) -> None:
    if not callable(signal.getsignal(signal.SIGINT)):  # as in a process that a shell starts in the background
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
