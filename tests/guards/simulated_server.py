"""A server that refuses what is too much, clients that ask a limiter first, and simulated time between them.

Nothing sleeps: a quarter of an hour of traffic is a heap of events and takes a fraction of a second.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Phase(NamedTuple):
    """For *seconds* the server takes *capacity* calls a second."""

    capacity: float
    seconds: float


class Client(Protocol):
    """A limiter as the simulation sees it."""

    def ask(self, now: float) -> float:
        """0.0 if a call may be made, else the seconds after which to ask again."""

    def succeeded(self, now: float) -> object:
        """The server took a call."""

    def refused(self, now: float, retry_after: float | None, admitted_at: float) -> object:
        """The server answered 429 to a call made at *admitted_at*."""


class Server(Protocol):
    def set_capacity(self, now: float, per_second: float) -> None: ...

    def takes(self, now: float) -> bool: ...


class BucketServer:
    """Refuses when its token bucket is empty; it holds *burst* seconds of its capacity."""

    def __init__(self, burst: float = 0.5) -> None:
        self._burst = burst
        self._tokens = float("inf")
        self._capacity = self._rate = self._at = 0.0

    def set_capacity(self, now: float, per_second: float) -> None:
        self._refill(now)
        self._rate = per_second
        self._capacity = max(1.0, per_second * self._burst)
        self._tokens = min(self._tokens, self._capacity)

    def takes(self, now: float) -> bool:
        self._refill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _refill(self, now: float) -> None:
        self._tokens = min(self._capacity, self._tokens + (now - self._at) * self._rate) if self._rate else self._tokens
        self._at = now


class WindowServer:
    """Takes so many calls in each window of *seconds*, and then none until the next."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._window = -1.0
        self._taken = 0
        self._rate = 0.0

    def set_capacity(self, now: float, per_second: float) -> None:
        self._rate = per_second

    def takes(self, now: float) -> bool:
        window = now // self._seconds
        if window != self._window:
            self._window, self._taken = window, 0
        self._taken += 1
        return self._taken <= self._rate * self._seconds


@dataclass
class Tally:
    """What became of the calls that reached the server in one phase."""

    wanted: float
    taken: int = 0
    refused: int = 0

    @property
    def goodput(self) -> float:
        """The share of what the server could have taken that it took."""
        return self.taken / self.wanted

    @property
    def refused_share(self) -> float:
        """The share of calls that were answered 429."""
        return self.refused / max(1, self.taken + self.refused)


class Outcome(NamedTuple):
    """A tally for each phase, and their averages."""

    phases: list[Tally]

    @property
    def goodput(self) -> float:
        return sum(tally.goodput for tally in self.phases) / len(self.phases)

    @property
    def refused_share(self) -> float:
        return sum(tally.refused_share for tally in self.phases) / len(self.phases)


def simulate(
    client: Client,
    phases: Sequence[tuple[float, float]],
    *,
    server: Server | None = None,
    round_trip: float = 0.05,
    retry_after: float | None = None,
    demand: float | None = None,
    noise: float = 0.0,
    blips: float = 0.0,
    in_flight: int = 2000,
    seed: int = 0,
) -> Outcome:
    """Let *client* make calls through all *phases*: as many as it may, or *demand* a second, at random moments.

    Each way takes half a *round_trip*, give or take the share *noise*; a share *blips* of calls is refused at random.
    """
    world = _World(client, [Phase(*phase) for phase in phases], server or BucketServer(), random.Random(seed))
    world.round_trip, world.retry_after, world.demand = round_trip, retry_after, demand
    world.noise, world.blips, world.free = noise, blips, in_flight
    return world.run()


class _World:
    def __init__(self, client: Client, phases: list[Phase], server: Server, dice: random.Random) -> None:
        self.round_trip, self.noise, self.blips, self.free = 0.05, 0.0, 0.0, 2000
        self.retry_after: float | None = None
        self.demand: float | None = None
        self._client, self._phases, self._server, self._dice = client, phases, server, dice
        self._heap: list[tuple[float, int, int, float]] = []
        self._order = itertools.count()
        self._waiting = 0  # calls that are wanted and not yet made
        self._asleep = False  # the client was told when to ask again

    def run(self) -> Outcome:
        ends = list(itertools.accumulate(phase.seconds for phase in self._phases))
        tallies = [Tally(min(p.capacity, self.demand or p.capacity) * p.seconds) for p in self._phases]
        self._server.set_capacity(0.0, self._phases[0].capacity)
        self._at(0.0, _WANT if self.demand else _ASK)
        phase = 0
        while (event := heapq.heappop(self._heap))[0] < ends[-1]:
            now, _, kind, admitted_at = event
            while now >= ends[phase]:
                self._server.set_capacity(ends[phase], self._phases[phase + 1].capacity)
                phase += 1
            if kind == _ARRIVE:
                self._arrive(now, tallies[phase], admitted_at)
            else:
                self._react(now, kind, admitted_at)
        return Outcome(tallies)

    def _react(self, now: float, kind: int, admitted_at: float) -> None:
        if kind == _ASK:
            self._asleep = False
        elif kind == _WANT:
            self._waiting += 1
            self._at(now + self._dice.expovariate(self.demand or 1.0), _WANT)
        else:
            self.free += 1
            if kind == _TAKEN:
                self._client.succeeded(now)
            else:
                self._client.refused(now, self.retry_after, admitted_at)
        if not self._asleep:
            self._ask(now)

    def _ask(self, now: float) -> None:
        while self.free and (self.demand is None or self._waiting):
            wait = self._client.ask(now)
            if wait > 0:
                self._asleep = True
                return self._at(now + wait, _ASK)
            self.free -= 1
            self._waiting -= self.demand is not None
            self._at(now + self._half_way(), _ARRIVE, now)
        return None

    def _arrive(self, now: float, tally: Tally, admitted_at: float) -> None:
        taken = self._server.takes(now) and not (self.blips and self._dice.random() < self.blips)
        tally.taken += taken
        tally.refused += not taken
        self._at(now + self._half_way(), _TAKEN if taken else _REFUSED, admitted_at)

    def _half_way(self) -> float:
        return self.round_trip / 2 * (1.0 + self.noise * self._dice.uniform(-1.0, 1.0))

    def _at(self, when: float, kind: int, admitted_at: float = 0.0) -> None:
        heapq.heappush(self._heap, (when, next(self._order), kind, admitted_at))


_ASK, _WANT, _ARRIVE, _TAKEN, _REFUSED = range(5)
