"""Has Linux put a file on disk while an event loop goes on: asynchronous I/O, whose end the loop learns by an eventfd.

A thread could wait for the disk instead, but to wake it, and to be woken by it, takes as long as a quick disk. So does
a processor that goes to sleep with the loop, so the loop asks for the end, turn by turn, for as long as a quick disk
takes. Where the system does not offer this, there is no `KernelSync`, and a thread it is.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import os
import platform
import struct
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Final

from holdfast.clock import SystemClock

Done = Callable[[], object]

AWAKE: Final = 0.0003  # seconds for which the loop asks; to be woken is no great loss after a longer wait

# <linux/aio_abi.h>, and the numbers of io_setup, io_destroy, io_getevents and io_submit: Python has no functions for
# them. Containers usually allow them, while they forbid the newer io_uring.
_CALLS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2), "riscv64": (0, 1, 4, 2)}
_REQUEST = struct.Struct("=QIiHhIQQqQII")  # number, 0, 0; operation, priority, handle; 0, 0, 0, 0; flags, eventfd
_RESULT = struct.Struct("=QQqq")  # number, request, result, 0
_FDATASYNC, _TELL_EVENTFD = 3, 1


def kernel_sync(done: Done) -> KernelSync | None:
    """A `KernelSync`; None if the system cannot do that."""
    calls = _CALLS.get(platform.machine()) if sys.platform == "linux" and sys.maxsize > 2**32 else None
    try:
        return None if calls is None else KernelSync(calls, done)
    except (ImportError, OSError):  # no ctypes; forbidden, or there are too many
        return None


class KernelSync:
    """Syncs one file at a time: it is *busy* until that has ended, and then there is a *failure* if it failed.

    Then the method *done* is called in the loop that listens. The object of *done* is not kept alive. It is closed with
    the last reference to it.
    """

    def __init__(self, calls: tuple[int, ...], done: Done) -> None:
        import ctypes

        setup, destroy, self._get, self._submit = (ctypes.c_long(call) for call in calls)
        context, self._one, self._none = ctypes.c_ulong(0), ctypes.c_long(1), ctypes.c_long(0)
        self._call: Callable[..., int] = ctypes.PyDLL(None, use_errno=True).syscall  # keeps the interpreter's lock
        self._wait: Callable[..., int] = ctypes.CDLL(None, use_errno=True).syscall
        self._errno = ctypes.get_errno
        self.loop: asyncio.AbstractEventLoop | None = None
        self.busy = False
        self.failure: OSError | None = None
        self._asking = threading.Lock()  # held by who asks the system for the end
        self._done = weakref.WeakMethod(done)
        self._number = 0  # of the last sync; one whose beginning was interrupted ends unheard
        self._is_told = True  # *done* was called after the last sync
        self._request = ctypes.create_string_buffer(_REQUEST.size)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._result = ctypes.create_string_buffer(_RESULT.size)
        self._good(self._call(setup, self._one, ctypes.byref(context)))
        self._context = context
        self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._heard_in: list[asyncio.AbstractEventLoop] = []  # the loop, for whoever closes this
        close = partial(_close, self._heard_in, self._eventfd, partial(self._wait, destroy, context))
        self._closing = weakref.finalize(self, close)
        self._closing.atexit = False

    def listen(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Be heard in *loop*, which runs in this thread; False if another loop listens, or this one cannot."""
        if self.loop is not None and not self.loop.is_closed():
            return self.loop is loop
        try:
            loop.add_reader(self._eventfd, Ear(self))
        except NotImplementedError:
            return False
        self.loop = loop
        self._heard_in[:] = [loop]
        return True

    def start(self, handle: int) -> None:
        """Begin to sync the file *handle*, which may be closed at once; raise an `OSError` if it cannot be begun."""
        self._number = number = self._number + 1
        told = (_TELL_EVENTFD, self._eventfd)
        _REQUEST.pack_into(self._request, 0, number, 0, 0, _FDATASYNC, 0, handle, 0, 0, 0, 0, *told)
        self.failure = None
        self._good(self._call(self._submit, self._context, self._one, self._requests))
        self.busy, self._is_told = True, False
        if (loop := self.loop) is not None:
            os.sched_yield()  # the system does its part first
            loop.call_soon(self._look, loop, SystemClock.monotonic() + AWAKE)

    def wait(self) -> None:
        """In another thread: wait until it is not *busy*, as its loop may be."""
        with self._asking:
            while self.busy:
                with contextlib.suppress(InterruptedError):
                    self._ask(self._wait, self._one)

    def abandon(self) -> None:
        """In a forked child: leave everything to the parent, whose loop would hear no more of its own."""
        self._closing.detach()

    def end(self) -> None:
        """In the loop: hear that a sync may have ended."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._eventfd)
        if self._has_ended() and not self._is_told and (done := self._done()) is not None:
            self._is_told = True
            done()

    def _look(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        """In the loop: look whether it has ended, and in the next turn again."""
        if not self.busy:  # a thread has waited for it
            return
        os.sched_yield()
        if self._has_ended():
            self.end()
        elif SystemClock.monotonic() < until:
            loop.call_soon(self._look, loop, until)

    def _has_ended(self) -> bool:
        if self.busy and self._asking.acquire(blocking=False):
            try:
                if self.busy:
                    self._ask(self._call, self._none)
            finally:
                self._asking.release()
        return not self.busy

    def _ask(self, call: Callable[..., int], least: object) -> None:
        if self._good(call(self._get, self._context, least, self._one, self._result, None)):
            number, _, result, _ = _RESULT.unpack(self._result)
            if number == self._number:
                self.failure = None if result == 0 else OSError(-result, os.strerror(-result))
                self.busy = False

    def _good(self, result: int) -> int:
        if result < 0:
            raise OSError(number := self._errno(), os.strerror(number))
        return result


class Ear:
    """What a loop calls when a sync may have ended."""

    __slots__ = ("_sync",)

    def __init__(self, sync: KernelSync) -> None:
        self._sync = weakref.ref(sync)

    def __call__(self) -> None:
        if (sync := self._sync()) is not None:
            sync.end()

    @property
    def is_waiting(self) -> bool:
        """True if a sync is under way."""
        return (sync := self._sync()) is not None and sync.busy


def _close(heard_in: list[asyncio.AbstractEventLoop], eventfd: int, destroy: Callable[[], object]) -> None:
    """Runs in any thread, and in the garbage collector: takes no lock."""
    with contextlib.suppress(RuntimeError):  # there are no more threads: the system does it when the process ends
        _thread.start_new_thread(destroy, ())  # it takes long: some 30 ms
    try:
        if heard_in:
            heard_in[0].call_soon_threadsafe(_forget, heard_in[0], eventfd)
            return
    except RuntimeError:  # it is closed
        pass
    os.close(eventfd)


def _forget(loop: asyncio.AbstractEventLoop, eventfd: int) -> None:
    loop.remove_reader(eventfd)
    os.close(eventfd)
