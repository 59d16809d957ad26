"""The one place that waits: for a time to pass, or for a signal with a time limit; as a thread or as a task.

Everything that may have to wait says so with a `Wait`, and the driver of the call picks `pause` or `apause`.
"""

from __future__ import annotations

import asyncio
import functools
import math
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import msgspec

from holdfast.clock import Clock, Timer, until
from holdfast.guards.line import Signal
from holdfast.loops import running_loop


class Settles(Protocol):
    """Something that does its own waiting, such as a write on its way to disk."""

    def settle(self) -> None: ...
    async def asettle(self) -> None: ...


class Wait(msgspec.Struct, eq=False):
    """What a call has to wait for: *signal* if there is one, at the latest the time *until*.

    *begin* is called once the time limit is set, and starts what will fire the signal. *write* is used alone, and has
    no time limit.
    """

    until: float = math.inf
    signal: Signal | None = None
    begin: Callable[[], object] | None = None
    write: Settles | None = None


def pause(clock: Clock, wait: Wait) -> None:
    """Wait as a thread."""
    if wait.write is not None:
        return wait.write.settle()
    if wait.signal is None:
        if (seconds := until(clock.monotonic(), wait.until)) > 0:
            clock.sleep(seconds)
        return None
    woken: queue.SimpleQueue[None] = queue.SimpleQueue()  # an Event that is interrupted may stay locked
    with _alarm(_call_at, clock, wait, wait.signal, functools.partial(woken.put, None)) as rings:
        try:
            woken.get(timeout=None if rings else min(threading.TIMEOUT_MAX, until(clock.monotonic(), wait.until)))
        except queue.Empty:
            return None
    return None


async def apause(clock: Clock, wait: Wait) -> None:
    """Wait as a task."""
    if wait.write is not None:
        return await wait.write.asettle()
    loop = running_loop()
    if wait.signal is None:
        if (seconds := until(clock.monotonic(), wait.until)) > 0:
            await clock.asleep(seconds)
        return None
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    def wake_from_anywhere() -> None:
        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:  # the loop is closed, and the waiter gone with it
            return

    with _alarm(lambda clock, when, fn: clock.call_at(when, fn), clock, wait, wait.signal, wake_from_anywhere):
        await woken
    return None


@contextmanager
def _alarm(
    call_at: Callable[[Clock, float, Callable[[], object]], Timer | None],
    clock: Clock,
    wait: Wait,
    signal: Signal,
    wake: Callable[[], object],
) -> Iterator[bool]:
    """Call *wake* when the signal fires or the time is up; only when the signal fires, if this yields False."""
    timer = call_at(clock, wait.until, wake) if wait.until < math.inf and not signal.fired else None
    try:
        if wait.begin is not None:
            wait.begin()
        signal.listen(wake)
        yield timer is not None
    finally:
        if timer is not None:
            timer.cancel()


def _call_at(clock: Clock, when: float, wake: Callable[[], object]) -> Timer | None:
    """Return a timer that rings although this thread is blocked: not one on an event loop that runs in this thread.

    None if the timer needs a thread and none can be started.
    """
    timers: list[Timer] = []

    def ask() -> None:
        with suppress(RuntimeError):
            timers.append(clock.call_at(when, wake))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        ask()
    else:
        asker = threading.Thread(target=ask, name="holdfast-asker")
        with suppress(RuntimeError):
            asker.start()
            asker.join()
    return timers[0] if timers else None
