"""Tells the followers inside this process that something was committed, by us or by another process.

A ring says "look again", not what there is to see: several rings before a look count as one. Bell and listener each set
their own mark before they read the other's, so no ring is missed. Ringing a bell and closing a listener take no lock,
as the garbage collector may close the listener of a stream.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable

from holdfast.errors import StoreError
from holdfast.stores.neighbours import News


class Bell:
    """Rung after each commit; *watch* makes a watch for commits of other processes, None if no other one can commit."""

    def __init__(self, watch: Callable[[], News] | None) -> None:
        self._make = watch
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[Listener] = set()
        self._watch: News | None = None
        self._threads: list[threading.Thread] = []  # the one that watches, and any that are about to end

    def ring(self) -> None:
        """Wake all listeners; from any thread."""
        if self._listeners:
            for listener in list(self._listeners):
                listener._ring()

    def listen(self) -> Listener:
        """Return a listener that is told of every commit from now on, until it is closed."""
        listener = Listener(self)
        with self._lock:
            if self._make is not None and self._watch is None:  # under the lock: no listener before it is in place
                self._start(self._make())
            self._listeners.add(listener)
        return listener

    def close(self) -> None:
        """Close all listeners and wait for the watching threads to end; a later listener starts another one."""
        with self._lock:
            listeners, watch, threads = list(self._listeners), self._watch, self._threads
            self._watch = None
        for listener in listeners:
            listener.close()
        if watch is not None:
            watch.wake()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def after_fork(self) -> None:
        """In a forked child: the thread, the watch and the listeners are the parent's."""
        listeners, watch = self._listeners, self._watch
        self._reset()
        for listener in listeners:
            listener.closed = True
        if watch is not None:
            watch.close()

    def _start(self, watch: News) -> None:
        thread = threading.Thread(target=self._serve, args=(watch,), name="holdfast-watcher", daemon=True)
        try:
            thread.start()
        except BaseException as error:
            watch.close()
            if not isinstance(error, RuntimeError):
                raise
            raise StoreError(f"nobody can listen for what others write: {error}") from error
        self._watch = watch
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]

    def _serve(self, watch: News) -> None:
        try:
            while self._needed(watch):
                if watch.wait(None):
                    self.ring()
        finally:
            with self._lock:
                if self._watch is watch:  # whatever ended it: the next listener starts another one
                    self._watch = None
            watch.close()

    def _needed(self, watch: News) -> bool:
        """True if *watch* is in use and there are listeners; if there are none, the next one starts another watch."""
        with self._lock:
            if self._watch is watch and not self._listeners:
                self._watch = None
            return self._watch is watch

    def _left(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        if not self._listeners and (watch := self._watch) is not None:
            watch.wake()


class Listener:
    """Tells one follower of commits; one thread or task at a time waits with it."""

    __slots__ = ("closed", "_bell", "_rung", "_wake")

    def __init__(self, bell: Bell) -> None:
        self.closed = False
        self._bell = bell
        self._rung = False
        self._wake: Callable[[], object] | None = None

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until there was a ring since the last wait; false at the *timeout* and when closed."""
        if not self._told:
            woken: queue.SimpleQueue[None] = queue.SimpleQueue()
            self._wake = lambda: woken.put(None)
            try:
                if not self._told:
                    woken.get(timeout=None if timeout is None else _bounded(timeout))
            except queue.Empty:
                return self._take()  # a ring at the last moment counts
            finally:
                self._wake = None
        return self._take()

    async def await_(self, timeout: float | None = None) -> bool:
        """Suspend until there was a ring since the last wait; false at the *timeout* and when closed."""
        if not self._told:
            loop = asyncio.get_running_loop()
            woken = loop.create_future()
            timer = None if timeout is None else loop.call_later(_bounded(timeout), _set, woken)
            self._wake = lambda: self._wake_in(loop, woken)
            try:
                if not self._told:
                    await woken
            finally:
                self._wake = None
                if timer is not None:
                    timer.cancel()
        return self._take()

    def close(self) -> None:
        """Stop listening and wake the thread or task that waits; harmless when closed already."""
        self.closed = True
        self._bell._left(self)
        if (wake := self._wake) is not None:
            wake()

    @property
    def _told(self) -> bool:
        return self._rung or self.closed

    def _ring(self) -> None:
        if not self._rung:  # otherwise it has been told already, and has not looked since
            self._rung = True
            if (wake := self._wake) is not None:
                wake()

    def _wake_in(self, loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
        try:
            loop.call_soon_threadsafe(_set, woken)
        except RuntimeError:  # the loop is closed, and the waiter gone with it
            self._wake = None
            self.close()

    def _take(self) -> bool:
        """True if there was a ring. The mark is cleared only if it was set, as the next ring may come right now."""
        if self._rung:
            self._rung = False
            return True
        return False


def _bounded(timeout: float) -> float:
    return min(max(0.0, timeout), threading.TIMEOUT_MAX)


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
