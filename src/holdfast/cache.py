"""Answers of read-only tools, kept for a while; identical calls in flight are made once.

The first caller of a key leads and makes the call; the others follow and wait for its answer. A leader that is
cancelled hands over: one of its followers leads next.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Hashable

from holdfast.guards.line import Signal


class Flight:
    """One call that others may wait for, under its *key* in the cache; *timeout* bounds each of its attempts."""

    __slots__ = ("awaits", "error", "key", "landed", "loop", "timeout", "value", "_followers", "_lock", "_over")

    def __init__(self, key: Hashable = None, timeout: float | None = None) -> None:
        self.key = key
        self.timeout = math.inf if timeout is None else timeout
        self.loop: object = None  # whose task leads it, if it is a task
        self.awaits: list[Flight] = []  # those that calls made by it follow
        self._lock = threading.Lock()
        self._followers: list[Signal] = []
        self._over = False
        self.landed = False  # with a value or an error; a flight that is over and did not land was cancelled
        self.value: object = None
        self.error: BaseException | None = None

    def follow(self) -> Signal:
        """A signal that fires when the flight has ended."""
        signal = Signal()
        with self._lock:
            self._followers.append(signal)
            over = self._over
        if over:
            signal.fire()
        return signal

    def end(self) -> None:
        """Wake everybody who waits."""
        with self._lock:
            self._over = True
            followers, self._followers = self._followers, []
        for signal in followers:
            signal.fire()


class Hit:
    """An answer from the cache."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Cache:
    """The answers of one tool by what makes calls of it identical; the least recently used go first."""

    def __init__(self, max_entries: int) -> None:
        self.max_entries = max_entries
        self._lock = threading.Lock()
        self._answers: OrderedDict[Hashable, tuple[float, object]] = OrderedDict()
        self._flights: dict[Hashable, Flight] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def ask(self, key: Hashable, now: float, timeout: float | None = None) -> Hit | tuple[Flight, bool]:
        """An answer; or the flight that will bring one, and whether the caller leads it, with that *timeout*."""
        with self._lock:
            kept = self._answers.get(key)
            if kept is not None:
                if kept[0] > now:
                    self._answers.move_to_end(key)
                    return Hit(kept[1])
                del self._answers[key]
            flight = self._flights.get(key)
            if flight is not None:
                return flight, False
            flight = self._flights[key] = Flight(key, timeout)
            return flight, True

    def land(self, key: Hashable, flight: Flight, value: object, expires: float) -> None:
        """The leader has an answer, good until *expires*."""
        with self._lock:
            self._answers[key] = (expires, value)
            while len(self._answers) > self.max_entries:
                self._answers.popitem(last=False)
            self._flights.pop(key, None)
        flight.value = value
        flight.landed = True
        flight.end()

    def crash(self, key: Hashable, flight: Flight, error: BaseException | None) -> None:
        """The leader has none: its followers share *error*, or lead themselves if it was cancelled (None)."""
        with self._lock:
            self._flights.pop(key, None)
        flight.error = error
        flight.landed = error is not None
        flight.end()

    def clear(self) -> None:
        """Forget all answers."""
        with self._lock:
            self._answers.clear()
