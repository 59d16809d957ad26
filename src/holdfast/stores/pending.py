"""A write on its way to the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from holdfast.errors import StoreError
from holdfast.loops import Wakeup

Book = TypeVar("Book")
T = TypeVar("T")


class Pending(msgspec.Struct, Generic[Book, T], eq=False):  # a Struct, built in C: each step has two
    """A write on its way: *made* when it is on disk, or has failed; *done* when its waiter was told."""

    op: Callable[[Book], T]
    fenced: bool = False  # it needs no look at what others have written: if that matters, it fails, and is made again
    made: bool = False
    done: bool = False
    awaited: bool = False
    tries: int = 0
    value: T | None = None
    error: BaseException | None = None
    waiter: threading.Lock | None = None  # locked by the thread that waits, released when it is done
    wakeup: Wakeup | None = None  # of the task that waits

    def fail(self, error: BaseException) -> None:
        """Note that it was not made, and why."""
        self.error = error
        self.made = True

    def result(self) -> T:
        """Return the value of the write, or raise the error that it failed with."""
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # no cycle: the error's traceback refers to this frame, which refers to the error
        if not self.done:
            raise StoreError("the store takes too long; the write may still be made")
        return self.value  # type: ignore[return-value]
