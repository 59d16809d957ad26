"""Answers of read-only tools, kept for a while; identical calls in flight are made once.

The first caller of a key leads and makes the call; the others follow and wait for its answer. A leader that is
cancelled, or disappears without an outcome, hands over: one of its followers leads next.
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


class SharedCall:
    """One call that other calls may wait for; *timeout* bounds each of its attempts."""

    __slots__ = (
        "awaits", "error", "landed", "loop", "policy", "timeout", "value", "watch", "_followers", "_lock", "_over",
    )  # fmt: skip

    def __init__(self, timeout: float | None = None) -> None:
        self.timeout = math.inf if timeout is None else timeout
        self.loop: asyncio.AbstractEventLoop | None = None  # the leader's event loop, if it is a task
        self.policy: Policy | None = None  # the leader's
        self.awaits: list[SharedCall] = []  # calls followed by calls that this one makes
        self._lock = threading.RLock()  # reentrant: a `Lead` may be dropped, and so end this call, at any point
        self._followers: dict[Signal, None] = {}
        self.watch: object = None  # a weak reference to the leader's `Lead`
        self._over = False
        self.landed = False  # it ended with a value or an error; a call that is over but did not land was cancelled
        self.value: object = None
        self.error: BaseException | None = None

    @property
    def stands_still(self) -> bool:
        """True if the leader cannot go on, because its event loop was stopped or closed."""
        return self.loop is not None and not self.loop.is_running()

    def follow(self) -> Signal:
        """Return a signal that fires when the call has ended."""
        signal = Signal()
        with self._lock:
            self._followers[signal] = None
            over = self._over
        if over:
            signal.fire()
        return signal

    def unfollow(self, signal: Signal) -> None:
        """Stop waiting with *signal*; harmless if the call has ended."""
        with self._lock:
            self._followers.pop(signal, None)

    def end(self, *, landed: bool = False, value: object = None, error: BaseException | None = None) -> None:
        """Set the outcome, unless it is set already, and wake all followers."""
        with self._lock:
            if not self._over:
                self.value, self.error, self.landed = value, error, landed
            self._over = True
            self.watch = None
            followers, self._followers = self._followers, {}
        for signal in followers:
            signal.fire()


class Lead:
    """The lead of a call that is *shared* under its *key*; a leader that drops it without an outcome hands over."""

    __slots__ = ("key", "shared", "__weakref__")

    def __init__(self, key: Hashable, shared: SharedCall) -> None:
        self.key = key
        self.shared = shared


class Hit:
    """An answer from the cache."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Cache:
    """The answers of one tool, by a key that identical calls share; the least recently used are dropped first."""

    def __init__(self, max_entries: int) -> None:
        self.max_entries = max_entries
        self._lock = threading.RLock()
        self._answers: OrderedDict[Hashable, tuple[float, float, object]] = OrderedDict()
        self._shared: dict[Hashable, SharedCall] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def ask(
        self, key: Hashable, now: float, timeout: float | None = None, *, wall: float = -math.inf
    ) -> Hit | SharedCall | Lead:
        """Return an answer, the call in flight that will bring one, or the lead of a new call with that *timeout*.

        An answer must not have expired by either clock: only the wall clock goes on while the machine sleeps, and only
        the monotonic one never goes back.
        """
        with self._lock:
            kept = self._answers.get(key)
            if kept is not None:
                if kept[0] > now and kept[1] > wall:
                    self._answers.move_to_end(key)
                    return Hit(kept[2])
                del self._answers[key]
            shared = self._shared.get(key)
            if shared is not None:
                return shared
            shared = SharedCall(timeout)
            lead = Lead(key, shared)
            # An interrupt may come after any call: a callback makes sure that it ends before other calls can follow it.
            shared.watch = weakref.ref(lead, functools.partial(self._crash, key, shared, None))
            self._shared[key] = shared
            return lead

    def land(self, lead: Lead, value: object, expires: float, *, by_wall: float = math.inf) -> None:
        """Keep the leader's answer until *expires* and wake the followers; after a `clear`, only followers get it.

        *by_wall* is the same time by the wall clock.
        """
        with self._lock:
            if self._shared.get(lead.key) is lead.shared:
                self._answers[lead.key] = (expires, by_wall, value)
                while len(self._answers) > self.max_entries:
                    self._answers.popitem(last=False)
                del self._shared[lead.key]
        lead.shared.end(landed=True, value=value)

    def clear(self) -> None:
        """Drop all answers, and do not keep those of the calls in flight."""
        with self._lock:
            dropped, self._answers = self._answers, OrderedDict()
            self._shared.clear()
        del dropped  # not under the lock: it may be the last reference to an answer

    def crash(self, lead: Lead, error: BaseException | None) -> None:
        """End a call without an answer: its followers share *error*, or one leads next if it was cancelled (None)."""
        self._crash(lead.key, lead.shared, error)

    def take_over(self, key: Hashable, shared: SharedCall) -> None:
        """End a call whose leader cannot go on: one of its followers leads next."""
        self._crash(key, shared, None)

    def _crash(self, key: Hashable, shared: SharedCall, error: BaseException | None, _: object = None) -> None:
        with self._lock:
            if self._shared.get(key) is shared:  # otherwise the leader was interrupted at its end, and another leads
                del self._shared[key]
        shared.end(landed=error is not None, error=error)
