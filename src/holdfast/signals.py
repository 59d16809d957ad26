"""Signals of the process, handled in another way for a while; for the main thread, which is the only one that may."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Have each signal handled as said, and as before afterwards."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
