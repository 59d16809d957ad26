"""Answers of read-only tools, kept for a while; identical calls in flight are made once.

The first caller of a key leads and makes the call; the others follow and wait for its answer. A leader that is
cancelled, or gone without a word, hands over: one of its followers leads next.
"""

from __future__ import annotations

import asyncio
import functools
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable

from holdfast.guards.line import Signal
from holdfast.policy import Policy


class Awaited:
    """One call that others may wait for; *timeout* bounds each of its attempts."""

    __slots__ = (
        "awaits", "error", "landed", "loop", "policy", "timeout", "value", "watch", "_followers", "_lock", "_over",
    )  # fmt: skip

    def __init__(self, timeout: float | None = None) -> None:
        self.timeout = math.inf if timeout is None else timeout
        self.loop: asyncio.AbstractEventLoop | None = None  # whose task leads it, if it is a task
        self.policy: Policy | None = None  # that its leader goes by
        self.awaits: list[Awaited] = []  # those that calls made by it follow
        self._lock = threading.RLock()  # a flight may be dropped, and this be ended, in the middle of anything
        self._followers: dict[Signal, None] = {}
        self.watch: object = None  # on its leader
        self._over = False
        self.landed = False  # with a value or an error; a flight that is over and did not land was cancelled
        self.value: object = None
        self.error: BaseException | None = None

    @property
    def stands_still(self) -> bool:
        """Whether its leader cannot go on: nothing does in an event loop that was stopped or closed."""
        return self.loop is not None and not self.loop.is_running()

    def follow(self) -> Signal:
        """A signal that fires when the flight has ended."""
        signal = Signal()
        with self._lock:
            self._followers[signal] = None
            over = self._over
        if over:
            signal.fire()
        return signal

    def unfollow(self, signal: Signal) -> None:
        """Who has the *signal* waits no longer; harmless if the flight has ended."""
        with self._lock:
            self._followers.pop(signal, None)

    def end(self, *, landed: bool = False, value: object = None, error: BaseException | None = None) -> None:
        """Say what came of it, unless that was said before, and wake everybody who waits."""
        with self._lock:
            if not self._over:
                self.value, self.error, self.landed = value, error, landed
            self._over = True
            self.watch = None
            followers, self._followers = self._followers, {}
        for signal in followers:
            signal.fire()


class Flight:
    """The lead of a call that is *awaited* under its *key*; who drops it without a word hands over."""

    __slots__ = ("awaited", "key", "__weakref__")

    def __init__(self, key: Hashable, awaited: Awaited) -> None:
        self.key = key
        self.awaited = awaited


class Hit:
    """An answer from the cache."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Cache:
    """The answers of one tool by what makes calls of it identical; the least recently used go first."""

    def __init__(self, max_entries: int) -> None:
        self.max_entries = max_entries
        self._lock = threading.RLock()
        self._answers: OrderedDict[Hashable, tuple[float, object]] = OrderedDict()
        self._awaited: dict[Hashable, Awaited] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def ask(self, key: Hashable, now: float, timeout: float | None = None) -> Hit | Awaited | Flight:
        """An answer; or the call that will bring one; or the lead of such a call, with that *timeout*."""
        with self._lock:
            kept = self._answers.get(key)
            if kept is not None:
                if kept[0] > now:
                    self._answers.move_to_end(key)
                    return Hit(kept[1])
                del self._answers[key]
            awaited = self._awaited.get(key)
            if awaited is not None:
                return awaited
            awaited = Awaited(timeout)
            flight = Flight(key, awaited)
            # An interrupt may come after any call: before others can wait for it, somebody sees to it that it ends.
            awaited.watch = weakref.ref(flight, functools.partial(self._crash, key, awaited, None))
            self._awaited[key] = awaited
            return flight

    def land(self, flight: Flight, value: object, expires: float) -> None:
        """The leader has an answer, good until *expires*; for those who asked before a `clear`, if there was one."""
        with self._lock:
            if self._awaited.get(flight.key) is flight.awaited:
                self._answers[flight.key] = (expires, value)
                while len(self._answers) > self.max_entries:
                    self._answers.popitem(last=False)
                del self._awaited[flight.key]
        flight.awaited.end(landed=True, value=value)

    def clear(self) -> None:
        """Keep none of the answers, nor those of the calls that are on their way."""
        with self._lock:
            dropped, self._answers = self._answers, OrderedDict()
            self._awaited.clear()
        del dropped  # not under the lock: it may be the last that holds an answer

    def crash(self, flight: Flight, error: BaseException | None) -> None:
        """The leader has none: its followers share *error*, or lead themselves if it was cancelled (None)."""
        self._crash(flight.key, flight.awaited, error)

    def take_over(self, key: Hashable, awaited: Awaited) -> None:
        """The leader cannot go on: one of its followers leads."""
        self._crash(key, awaited, None)

    def _crash(self, key: Hashable, awaited: Awaited, error: BaseException | None, _: object = None) -> None:
        with self._lock:
            if self._awaited.get(key) is awaited:  # else its leader was interrupted while it ended, and another leads
                del self._awaited[key]
        awaited.end(landed=error is not None, error=error)
