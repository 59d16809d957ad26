"""The rate limiters: the buckets of `guards.rate`, one per key, with a clock, a lock and a bound on their number.

A key that has learnt nothing is one float in a dict, and may be missing while its bucket is full. Only a key whose rate
was cut has a `Bucket` of its own. A key is never in both places.
"""

from __future__ import annotations

import math
import random as chance
import threading
from collections.abc import Callable, Iterator

import msgspec

from holdfast import checks
from holdfast.clock import Clock
from holdfast.errors import ConfigError
from holdfast.guards.names import short_key
from holdfast.guards.rate import (
    LEAST_COST,
    LEAST_RATE,
    UNDIVIDED,
    Bucket,
    Priority,
    RateConfig,
    horizon,
    priority_of,
    wait_for,
)


class KeyState(msgspec.Struct, frozen=True):
    """One key of a limiter: its tokens, its rate in tokens a second, the seconds left of its pause."""

    tokens: float
    rate: float
    pause: float = 0.0


class AdaptiveRateLimiter:
    """A token bucket per key; its rate is cut when the server refuses calls, and recovers when it accepts them."""

    def __init__(
        self,
        capacity: float = 10.0,
        refill_per_second: float = 2.0,
        *,
        floor: float = 0.05,
        clock: Clock | None = None,
        max_keys: int = 10_000,
        random: Callable[[], float] = chance.random,
    ) -> None:
        checks.number("capacity", capacity, least=LEAST_COST)
        checks.number("refill_per_second", refill_per_second, least=LEAST_RATE)
        checks.whole("max_keys", max_keys)
        self._config = RateConfig(per_second=refill_per_second, burst=capacity, adaptive=True, floor=floor)
        self.clock = checks.clock(clock)
        self._now = self.clock.monotonic
        self._max_keys = max_keys
        self._random = random
        self._reported = False  # True once a success was reported
        self._quick = UNDIVIDED
        self._lock = threading.Lock()
        self._plain = _Buckets(refill_per_second, capacity)
        self._learnt: dict[str, Bucket] = {}
        self._as_new = KeyState(capacity, refill_per_second)

    def try_acquire(self, key: str, priority: Priority = Priority.NORMAL) -> float:
        """Return 0.0 if the call may be made; else take nothing and return the seconds to wait if no other asks."""
        now = self._now()
        try:
            cost = priority.cost
        except AttributeError:
            cost = priority_of(priority).cost
        if self._quick and (wait := self._plain.take(key, now, cost)) is not None:
            return wait
        return self._take_locked(key, now, cost)

    def refund(self, key: str, priority: Priority = Priority.NORMAL) -> None:
        """Give back the tokens of an admitted call that was never made."""
        now, key, cost = self._now(), short_key(key), priority_of(priority).cost
        with self._lock:
            if (bucket := self._learnt.get(key)) is not None:
                bucket.refund(cost, now)
            else:
                self._plain.give(key, cost)

    def record_rate_limited(self, key: str, retry_after: float | None = None, admitted_at: float | None = None) -> None:
        """Note that the server refused a call that was admitted at *admitted_at* (None: just now).

        That halves the key's rate and empties its bucket; nothing is admitted for *retry_after* seconds and a little
        longer. Calls that were under way at the last cut do not cut the rate again.
        """
        for name, time in (("retry_after", retry_after), ("admitted_at", admitted_at)):
            if time is not None and not isinstance(time, int | float):
                raise ConfigError(f"{name} = {checks.shown(time)}: must be a number")
        now, key = self._now(), short_key(key)
        with self._lock:
            bucket = self._learnt.get(key)
            if bucket is None:
                self._plain.drop(key)  # first: a key that only moves needs no more room
                self._make_room(now)
                bucket = Bucket(self._config, random=self._random, reports=self._reported)
                self._learnt[key] = bucket
            bucket.limited(now, retry_after, admitted_at)

    def record_success(self, key: str) -> None:
        """Note that the server accepted a call of the key: its rate may recover."""
        self._reported = True
        if not self._learnt:
            return
        now, key = self._now(), short_key(key)
        with self._lock:
            if (bucket := self._learnt.get(key)) is not None:
                bucket.succeeded(now)

    def rate(self, key: str) -> float:
        """Return how many tokens a second the key's bucket gets now."""
        now, key = self._now(), short_key(key)
        with self._lock:
            bucket = self._learnt.get(key)
            return bucket.rate_at(now) if bucket is not None else self._config.per_second

    def reset(self, key: str) -> None:
        """Forget the key: its bucket is full and its rate the configured one."""
        key = short_key(key)
        with self._lock:
            self._learnt.pop(key, None)
            self._plain.drop(key)

    def snapshot(self) -> dict[str, KeyState]:
        """The keys whose bucket is not full or whose rate was cut, sorted."""
        now = self._now()
        with self._lock:
            states = self._plain.states(now)
            states |= {key: state for key, state in self._learnt_states(now) if state != self._as_new}
        return dict(sorted(states.items()))

    def _take_locked(self, key: str, now: float, cost: float) -> float:
        key = short_key(key)
        with self._lock:
            bucket = self._learnt.get(key)
            if bucket is None:
                wait = self._plain.take(key, now, cost)
                if wait is None:
                    self._make_room(now)
                    wait = self._plain.take_first(key, now, cost)
                return wait
            wait = bucket.admit(now, cost)
            if bucket.learnt is None:  # fully recovered: one float is enough again
                del self._learnt[key]
                self._plain.full_at[key] = bucket.full_at
            return wait

    def _make_room(self, now: float) -> None:
        """Make room for a new key: drop the full buckets and, if those are few, the ones that lack least."""
        plain, learnt = self._plain, self._learnt
        if len(plain.full_at) + len(learnt) < self._max_keys:
            return
        recovered = [key for key, state in self._learnt_states(now) if state == self._as_new]
        for key in recovered:
            del learnt[key]
        wanted = _share(self._max_keys) - plain.drop_full(now) - len(recovered)
        if wanted <= 0:
            return
        if len(plain.full_at) >= len(learnt):
            plain.drop_fullest(wanted)
        else:
            for key in sorted(learnt, key=lambda key: learnt[key].rate_at(now), reverse=True)[:wanted]:
                del learnt[key]

    def _learnt_states(self, now: float) -> Iterator[tuple[str, KeyState]]:
        for key, bucket in self._learnt.items():
            yield key, KeyState(bucket.tokens(now), bucket.rate_at(now), bucket.pause(now))


class RateLimiter:
    """A fixed budget per key: *per_second* with a *burst* (None: a second's worth, at least 5), longer ones if given.

    *per_minute* is a second bucket; *per_run* and *per_session* count the calls of each run and session.
    """

    def __init__(
        self,
        per_second: float = 20.0,
        burst: float | None = None,
        *,
        per_minute: float | None = None,
        per_run: int | None = None,
        per_session: int | None = None,
        clock: Clock | None = None,
        max_keys: int = 10_000,
    ) -> None:
        config = RateConfig(per_second=per_second, burst=burst)
        checks.whole("max_keys", max_keys)
        self.clock = checks.clock(clock)
        self._now = self.clock.monotonic
        self._max_keys = max_keys
        self._lock = threading.Lock()
        self._plain = _Buckets(per_second, config.capacity)
        self._buckets = [self._plain]
        if per_minute is not None:
            checks.number("per_minute", per_minute, least=LEAST_COST)
            self._buckets.append(_Buckets(per_minute / 60.0, per_minute))
        self._runs = _Counts("per_run", per_run, max_keys)
        self._sessions = _Counts("per_session", per_session, max_keys)
        self._simple = per_minute is None and per_run is None and per_session is None
        self._quick = UNDIVIDED and self._simple

    def try_acquire(
        self, key: str, priority: Priority = Priority.NORMAL, *, run: str | None = None, session: str | None = None
    ) -> float:
        """Return 0.0 if the call may be made; else take nothing and return the seconds to wait if no other call asks.

        The wait is infinite if the budget of the *run* or the *session* is used up.
        """
        now = self._now()
        try:
            cost = priority.cost
        except AttributeError:
            cost = priority_of(priority).cost
        if self._quick and (wait := self._plain.take(key, now, cost)) is not None:
            return wait
        key = short_key(key)
        with self._lock:
            if self._simple:
                return self._take_one(self._plain, key, now, cost)
            return self._take_all(key, now, cost, run, session)

    def refund(
        self, key: str, priority: Priority = Priority.NORMAL, *, run: str | None = None, session: str | None = None
    ) -> None:
        """Give back what an admitted call took, if it was never made."""
        key, cost = short_key(key), priority_of(priority).cost
        with self._lock:
            for buckets in self._buckets:
                buckets.give(key, cost)
            self._runs.add(key, run, -1)
            self._sessions.add(key, session, -1)

    def reset(self, key: str) -> None:
        """Forget the key: its buckets are full, its runs and sessions have used nothing."""
        key = short_key(key)
        with self._lock:
            for buckets in self._buckets:
                buckets.drop(key)
            self._runs.drop(key)
            self._sessions.drop(key)

    def snapshot(self) -> dict[str, KeyState]:
        """The keys whose bucket is not full, sorted; with *per_minute*, each with the bucket that holds less."""
        now = self._now()
        states: dict[str, KeyState] = {}
        with self._lock:
            for buckets in self._buckets:
                for key, state in buckets.states(now).items():
                    states[key] = min(state, states.get(key, state), key=lambda state: state.tokens)
        return dict(sorted(states.items()))

    def _take_all(self, key: str, now: float, cost: float, run: str | None, session: str | None) -> float:
        """Take from every budget or from none."""
        if not (self._runs.allow(key, run) and self._sessions.allow(key, session)):
            return math.inf
        wait = max(buckets.wait(key, now, cost) for buckets in self._buckets)
        if wait == 0.0:
            for buckets in self._buckets:
                self._take_one(buckets, key, now, cost)
            self._runs.add(key, run, 1)
            self._sessions.add(key, session, 1)
        return wait

    def _take_one(self, buckets: _Buckets, key: str, now: float, cost: float) -> float:
        wait = buckets.take(key, now, cost)
        if wait is None:
            if len(buckets.full_at) >= self._max_keys:
                wanted = _share(self._max_keys) - buckets.drop_full(now)
                if wanted > 0:
                    buckets.drop_fullest(wanted)
            wait = buckets.take_first(key, now, cost)
        return wait


class _Buckets:
    """The buckets of all keys at one rate; each is one float, as in `Bucket`, and missing while it is full."""

    __slots__ = ("full_at", "_capacity", "_horizon", "_interval", "_latest", "_rate")

    def __init__(self, rate: float, capacity: float) -> None:
        self.full_at: dict[str, float] = {}
        self._rate = rate
        self._capacity = capacity
        self._interval = 1.0 / rate
        self._horizon = horizon(capacity, self._interval)
        self._latest = -math.inf

    def take(self, key: str, now: float, cost: float) -> float | None:
        """`Bucket.admit` for a known key; None for an unknown one. Undivided: see `UNDIVIDED`."""
        full_at = self.full_at
        try:
            at = full_at[key]
        except (KeyError, TypeError):
            return None
        # Threads may get here in another order than they read the clock; this way no time is counted twice or lost.
        if now > self._latest:
            self._latest = now
        else:
            now = self._latest
        at = (at if at > now else now) + cost * self._interval
        if at - self._horizon <= now:
            full_at[key] = at
            return 0.0
        return wait_for(at, now, cost, self._capacity, self._interval)

    def take_first(self, key: str, now: float, cost: float) -> float:
        """The same for an unknown key: its bucket is full, and refuses only if it is too small for *cost*."""
        now = self._latest = max(now, self._latest)
        at = now + cost * self._interval
        if at - self._horizon > now:
            return wait_for(at, now, cost, self._capacity, self._interval)
        self.full_at[key] = at
        return 0.0

    def wait(self, key: str, now: float, cost: float) -> float:
        """Return what `take` would return, but take nothing."""
        now = max(now, self._latest)
        at = max(self.full_at.get(key, now), now) + cost * self._interval
        return wait_for(at, now, cost, self._capacity, self._interval) if at - self._horizon > now else 0.0

    def give(self, key: str, cost: float) -> None:
        """Give back what was taken; undivided."""
        back = cost * self._interval
        if key in self.full_at:  # otherwise the bucket is full
            self.full_at[key] -= back

    def drop(self, key: str) -> None:
        self.full_at.pop(key, None)

    def drop_full(self, now: float) -> int:
        """Drop the full buckets, with which nothing is lost; return how many they were."""
        full = [key for key, at in self.full_at.items() if at <= now]
        for key in full:
            if self.full_at[key] <= now:  # pragma: no branch - else another thread has taken from it just now
                del self.full_at[key]
        return len(full)

    def drop_fullest(self, number: int) -> None:
        """Drop *number* buckets, those that lack least first; of equal ones the oldest."""
        for key in sorted(self.full_at, key=self.full_at.__getitem__)[:number]:
            del self.full_at[key]

    def states(self, now: float) -> dict[str, KeyState]:
        return {
            key: KeyState(max(0.0, self._capacity - (at - now) * self._rate), self._rate)
            for key, at in list(self.full_at.items())
            if at > now
        }


class _Counts:
    """How many calls each run or session has made, at most *most* entries; the least recently counted are dropped."""

    __slots__ = ("_calls", "_limit", "_most")

    def __init__(self, name: str, limit: int | None, most: int) -> None:
        if limit is not None:
            checks.whole(name, limit)
        self._limit = limit
        self._most = most
        self._calls: dict[tuple[str, str], int] = {}

    def allow(self, key: str, scope: str | None) -> bool:
        if self._limit is None or scope is None:
            return True
        return self._calls.get((key, short_key(scope)), 0) < self._limit

    def add(self, key: str, scope: str | None, calls: int) -> None:
        if self._limit is None or scope is None:
            return
        place = (key, short_key(scope))
        number = self._calls.pop(place, 0) + calls
        if number > 0:
            if len(self._calls) >= self._most:
                del self._calls[next(iter(self._calls))]
            self._calls[place] = number

    def drop(self, key: str) -> None:
        for place in [place for place in self._calls if place[0] == key]:
            del self._calls[place]


def _share(keys: int) -> int:
    """How many keys to drop at once, so that dropping costs each new key little."""
    return max(1, keys // 16)
