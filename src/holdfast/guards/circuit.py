"""The circuit: a tool that keeps failing is left alone for a while, then tried with a probe.

closed ──failures──▶ open ──wait over──▶ half-open ──probe succeeds──▶ closed; a failed probe opens it for longer.
Opening and closing start a new generation. An outcome of an older generation changes nothing here: a call that began
before an outage says nothing about the tool after it.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Callable
from enum import StrEnum

import msgspec

from holdfast.category import ErrorCategory
from holdfast.clock import until
from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.window import Window

MOST_NOTED = 512  # refusals noted without the lock before they are counted
MOST_SIGNS = 10_000  # failures in a row that are remembered, whatever the threshold


class CircuitState(StrEnum):
    """What a circuit does with a request: pass it, refuse it, or let a probe through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Grant(msgspec.Struct, frozen=True):
    """A circuit's consent to one attempt: the generation it was given in, and the probe's number if it is a probe."""

    generation: int
    probe: int | None = None


class Seen(msgspec.Struct, frozen=True):
    """The state of a circuit kept elsewhere, by a fleet.

    *remaining* is the seconds until a probe may be sent, *backoff* the length of the whole wait.
    """

    state: CircuitState = CircuitState.CLOSED
    remaining: float = 0.0
    failures: int = 0
    backoff: float = 0.0
    times_opened: int = 0
    last_category: ErrorCategory | None = None


class Circuit:
    """The state machine of one tool. It has its own lock; two attributes may be read without it.

    *calm*: the circuit is closed and has no failure counted, or is forced closed. While it is true, a caller may make
    its attempt with *grant*, read before *calm*, and need not settle a success (but see `succeeded_many`).
    *shut_until*: every request before that time is refused; `turn_away` refuses it without the lock.
    """

    __slots__ = (
        "calm", "closed_at", "config", "evicted", "forced", "grant", "last_category", "last_used", "moves", "on_mark",
        "on_reset", "opened_at", "reporter", "shut_until", "state", "times_opened", "turned_away", "window", "_denied",
        "_generations", "_last_denied", "_lock", "_numbers", "_probe_successes", "_probes", "_random", "_rung",
        "_shown", "_signs", "_until",
    )  # fmt: skip

    def __init__(
        self, config: BreakerConfig, generations: itertools.count[int], generation: int, random: Callable[[], float]
    ) -> None:
        self._lock = threading.Lock()
        self._generations = generations  # shared by all circuits of a breaker: a recreated circuit matches no old grant
        self._random = random
        self._numbers = itertools.count()
        self.grant = Grant(generation)  # what every request gets while the circuit is closed
        self.times_opened = self._denied = 0
        self._last_denied: float | None = None
        self.turned_away: list[float] = []  # times of refusals not counted yet; appending needs no lock
        self.on_mark: Callable[[], object] | None = None  # called, under the lock, when *calm* may have changed
        self.on_reset: Callable[[], object] | None = None  # called after a reset, outside the lock
        self.shut_until = -math.inf
        self.last_used = next(generations)  # a counter, not a time: uses at the same instant still have an order
        self.evicted = False
        self.moves: deque[tuple[CircuitState, CircuitState]] = deque()  # changes of state that are not reported yet
        self.reporter: dict[str, object] = {}  # marks the thread that reports them, if any
        self.state = self._shown = CircuitState.CLOSED
        self.forced: CircuitState | None = None
        self.last_category: ErrorCategory | None = None
        self.opened_at: float | None = None
        self.closed_at: float | None = None
        self._until = 0.0
        self._rung = self._probe_successes = 0
        self._signs: dict[object, float] = {}
        self._probes: dict[int, float] = {}
        self.config = config
        self.window = _window(config)
        self._mark()

    # -- asked and told ------------------------------------------------------------------------------------------------

    def admit(self, now: float) -> Grant | float:
        """A grant, or the seconds until it is worth asking again (infinite when held open by hand)."""
        with self._lock:
            self.last_used = next(self._generations)
            wait = self._wait(now)
            if wait:
                self._denied += 1
                self._last_denied = now
                return wait
            if self.forced is CircuitState.CLOSED or self.state is CircuitState.CLOSED:
                return self.grant
            self.state = CircuitState.HALF_OPEN
            self._mark()
            probe = next(self._numbers)
            self._probes[probe] = now + self.config.probe_lease
            return Grant(self.grant.generation, probe)

    def settle(
        self,
        grant: Grant | None,
        now: float,
        category: ErrorCategory | None = None,
        *,
        duration: float = 0.0,
        sign: object = None,
    ) -> None:
        """Report an outcome: *category* is None for a success; without a *grant* it answers the oldest probe, if any.

        *sign* stands for the call's arguments, for a circuit that counts failures by distinct arguments.
        """
        with self._lock:
            self.last_used = next(self._generations)
            if self.forced is not None:
                return
            was_calm = self.calm
            if self.state is CircuitState.CLOSED:
                if grant is None or grant.generation == self.grant.generation:
                    self._settle_closed(now, category, duration, sign)
            elif self.state is CircuitState.HALF_OPEN and self._answers_probe(grant, now):
                self._settle_probe(now, category)
            if not (was_calm and category is None and self.state is CircuitState.CLOSED):  # otherwise nothing changed
                self._mark()

    def release(self, grant: Grant) -> None:
        """Give a grant back unused: the attempt was not made, or its outcome says nothing.

        One operation without the lock: the garbage collector may close a probing call in a thread that holds the lock.
        """
        if grant.probe is not None:
            self._probes.pop(grant.probe, None)

    def turn_away(self, now: float) -> float:
        """Refuse a request before *shut_until* without taking the lock; returns what `admit` would return."""
        self.turned_away.append(now)
        if len(self.turned_away) >= MOST_NOTED:
            self.count_denials()
        shut_until = self.shut_until
        wait = shut_until - now
        if wait < 0:  # the circuit was reset meanwhile
            return 0.0
        if now + wait < shut_until:  # rounding lost the last digit; calling `until` for every refusal would be slow
            wait = until(now, shut_until)
        return wait

    def count_denials(self) -> None:
        """Count the requests that `turn_away` refused; those noted meanwhile are counted the next time."""
        with self._lock:
            if number := len(self.turned_away):
                last = self.turned_away[number - 1]
                if self._last_denied is None or last > self._last_denied:
                    self._last_denied = last
                self._denied += number
                del self.turned_away[:number]

    def succeeded_many(self, now: float, calls: int) -> None:
        """Count *calls* that succeeded while *calm* and ended about *now*; they matter only to the rates."""
        with self._lock:
            if self.window is not None and self.healthy:
                self.window.add(now, calls)

    # -- controls ------------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Close the circuit and lift any force, as if it were new; lifetime counters stay."""
        with self._lock:
            self._clear()
            self._renew()
        if self.on_reset is not None:
            self.on_reset()

    def follow(self, now: float, seen: Seen) -> None:
        """Take over the state in which a circuit kept elsewhere was *seen*; without more news, go on from there."""
        with self._lock:
            moved = seen.state is not self.state
            self.state, self.times_opened, self.last_category = seen.state, seen.times_opened, seen.last_category
            self._until = now + seen.remaining
            self._signs = dict.fromkeys(range(-seen.failures, 0), now)  # negative, unlike the numbers given by `_count`
            if moved:
                self.opened_at = None if seen.state is CircuitState.CLOSED else now
                self._rung = next((rung for rung in range(64) if self.config.backoff(rung) >= seen.backoff), 64)
                self._probes.clear()
                self._probe_successes = 0
                self._renew()
            else:
                self._mark()

    def force(self, state: CircuitState | None) -> None:
        """Hold the circuit open or closed whatever happens; None puts it back into the automatic state it was in."""
        with self._lock:
            if state is not self.forced:
                self.forced = state
                self._probes.clear()
                self._renew()

    def evict(self) -> None:
        """Take the circuit out of service: a caller that still holds it sees that it is not calm, and asks again."""
        with self._lock:
            self.evicted = True
            self._renew()

    def configure(self, config: BreakerConfig) -> None:
        """Apply other settings; state, counts and a running wait stay."""
        with self._lock:
            self.config = config
            if self.window is None:
                self.window = _window(config)
            else:  # the window stays, even while the settings have no rates
                self.window.configure(config.window, config.window_calls)

    def after_fork(self) -> None:
        """Reset in a forked child: a thread of the parent may have held the lock, and the counts are the parent's."""
        self._lock = threading.Lock()
        self.reporter = {}
        self.times_opened = self._denied = 0
        self.turned_away.clear()

    # -- looked at -----------------------------------------------------------------------------------------------------

    def look(self, now: float) -> Look:
        """Return a snapshot of the circuit at *now*."""
        denied, last_denied = self.denied, self._last_denied
        with self._lock:
            state = self.forced or self.state
            wait = self._wait(now)
            is_open = state is CircuitState.OPEN
            return Look(
                state=state,
                wait=wait,
                failures=sum(at > now - self.config.window for at in self._signs.values()),
                backoff=0.0 if self.state is CircuitState.CLOSED else self.config.backoff(self._rung),
                remaining=wait if is_open and self.forced is None else None,
                opened_at=self.opened_at if state is not CircuitState.CLOSED else None,
                probes=sum(lease > now for lease in list(self._probes.values())),
                times_opened=self.times_opened,
                denied=denied,
                last_denied=last_denied,
                last_category=self.last_category,
            )

    @property
    def denied(self) -> int:
        """How many requests were refused."""
        self.count_denials()
        return self._denied

    @property
    def healthy(self) -> bool:
        """True if closed and not forced: forgetting the circuit then loses nothing except counts."""
        return self.state is CircuitState.CLOSED and self.forced is None

    # -- inside the lock -----------------------------------------------------------------------------------------------

    def _wait(self, now: float) -> float:
        """Seconds for which a request would be refused; 0 if it would pass."""
        if self.forced is not None:
            return math.inf if self.forced is CircuitState.OPEN else 0.0
        if self.state is CircuitState.OPEN:
            return until(now, self._until)
        if self.state is CircuitState.HALF_OPEN:
            leases = list(self._probes.items())  # a copy: a grant may be given back at any time
            for probe, lease in leases:
                if lease <= now:
                    self._probes.pop(probe, None)
            live = [lease for _, lease in leases if lease > now]
            if len(live) >= self.config.half_open_probes:
                return until(now, min(live))
        return 0.0

    def _settle_closed(self, now: float, category: ErrorCategory | None, duration: float, sign: object) -> None:
        config, failed = self.config, category is not None
        if category is None:
            self._signs.clear()
        elif category in config.trips:
            self._count(now, sign)
        else:
            return
        self.last_category = category
        slow = config.slow_call is not None and duration >= config.slow_call
        if self.window is not None:
            self.window.add(now, 1, failures=failed, slow=slow)
        if len(self._signs) >= config.failure_threshold or ((failed or slow) and self._rates_trip(failed=failed)):
            self._open(now)

    def _rates_trip(self, *, failed: bool) -> bool:
        config, window = self.config, self.window
        if window is None or window.calls < config.judged_from:
            return False
        if config.slow_call_rate is not None and window.slow / window.calls >= config.slow_call_rate:
            return True
        return failed and config.failure_rate is not None and window.failures / window.calls >= config.failure_rate

    def _count(self, now: float, sign: object) -> None:
        """Remember one failure, and forget each one that is older than the window."""
        if not self.config.distinct_arguments or sign is None:
            sign = next(self._numbers)
        self._signs.pop(sign, None)
        self._signs[sign] = now
        for old in list(itertools.takewhile(lambda s: self._signs[s] <= now - self.config.window, self._signs)):
            del self._signs[old]
        if len(self._signs) > MOST_SIGNS:
            del self._signs[next(iter(self._signs))]

    def _answers_probe(self, grant: Grant | None, now: float) -> bool:
        """True if an outcome belongs to a probe in flight whose lease still holds; frees the probe's slot."""
        live = [probe for probe, lease in list(self._probes.items()) if lease > now]
        probe = grant.probe if grant is not None else (live[0] if live else None)
        if probe not in live or (grant is not None and grant.generation != self.grant.generation):
            return False
        return self._probes.pop(probe, None) is not None

    def _settle_probe(self, now: float, category: ErrorCategory | None) -> None:
        if category is None:
            self._probe_successes += 1
            if self._probe_successes >= self.config.successes_to_close:
                self._close(now)
        elif category in self.config.trips:
            self.last_category = category
            self._open(now)

    def _open(self, now: float) -> None:
        if self.state is CircuitState.HALF_OPEN:
            self._rung += 1
        elif self.closed_at is not None and now - self.closed_at <= self.config.max_backoff:
            self._rung += 1  # the tool flaps: the backoff goes on growing from where it was
        else:
            self._rung = 0
        self.state = CircuitState.OPEN
        self.opened_at = now
        self.times_opened += 1
        self._until = now + self.config.backoff(self._rung) * (1 + self.config.jitter * self._random())
        self._probes.clear()
        self._probe_successes = 0
        self._renew()

    def _close(self, now: float) -> None:
        rung = self._rung
        self._clear()
        self._rung = rung
        self.closed_at = now
        self._renew()

    def _clear(self) -> None:
        self.state = CircuitState.CLOSED
        self.forced = self.last_category = self.opened_at = self.closed_at = None
        self._rung = self._probe_successes = 0
        self._signs.clear()
        self._probes.clear()
        if self.window is not None:
            self.window.clear()

    def _renew(self) -> None:
        self.grant = Grant(next(self._generations))
        self._mark()

    def _mark(self) -> None:
        state = self.forced or self.state
        if state is not self._shown:
            self.moves.append((self._shown, state))
            self._shown = state
        quiet = state is CircuitState.CLOSED and (not self._signs or self.forced is not None)
        self.calm = quiet and not self.evicted
        if state is CircuitState.OPEN:
            self.shut_until = math.inf if self.forced is not None else self._until
        else:
            self.shut_until = -math.inf
        if self.on_mark is not None:
            self.on_mark()


class Look(msgspec.Struct, frozen=True):
    """A circuit at one instant. Times are on the monotonic clock; *wait* is how long a request would be refused."""

    state: CircuitState
    wait: float
    failures: int
    backoff: float
    remaining: float | None
    opened_at: float | None
    probes: int
    times_opened: int
    denied: int
    last_denied: float | None
    last_category: ErrorCategory | None


def _window(config: BreakerConfig) -> Window | None:
    return Window(config.window, config.window_calls) if config.is_rated else None
