"""What the script must do, said with our own guards: the real `Circuit`, `Bucket` and `Slots` on the same times.

Only what the guards do not know is written here: leases of holders, reserved tokens, and that all is taken or nothing.
"""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.fleet.script_client import ADMITTED, BY_CIRCUIT, BY_CONCURRENCY, BY_RATE, EPOCH_US, NOT_ASKED

from holdfast.category import ErrorCategory
from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.circuit import Circuit, CircuitState, Grant, Look
from holdfast.guards.concurrency import ConcurrencyConfig, Slots
from holdfast.guards.rate import Bucket, RateConfig

STATES = (CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN)


class Told(NamedTuple):
    """An outcome, with the guards' own grant."""

    holder: str
    grant: Grant | None
    slots: int = 0
    refund: float = 0.0
    says: str = ""
    count: int = 1
    duration_us: int = 0
    sign: str = ""
    pause_us: int = -1
    admitted_at_us: int = -1


class Ask(NamedTuple):
    """An attempt that somebody wants to make."""

    cost: float = 1.0
    take: int = 1
    horizon_us: int = 0


class Expected(NamedTuple):
    """What the guards say; *wait* is in seconds, None if nobody knows."""

    verdict: int
    wait: float | None
    taken: int
    grant: Grant | None
    rate: float | None
    look: Look | None


@dataclass
class Model:
    """The guards of one tool, with the settings that were last asked under."""

    breaker: BreakerConfig | None
    rate: RateConfig | None
    limit: int | None
    lease_us: int = 15_000_000
    chance: float = 0.0
    held: dict[str, int] = field(default_factory=dict)
    leases: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = self.breaker or BreakerConfig()
        self.circuit = Circuit(config, itertools.count(1), 0, lambda: self.chance)
        self.bucket = Bucket(self.rate, random=lambda: self.chance) if self.rate is not None else None
        self.slots = Slots(ConcurrencyConfig(limit=self.limit)) if self.limit is not None else None

    def decide(self, now_us: int, holder: str, told: list[Told], ask: Ask | None) -> Expected:
        now = seconds(now_us)
        for one in told:
            self._settle(now, one)
        mine = self._give(told, holder, together=ask is not None and self.slots is not None)
        verdict, wait, taken, grant = NOT_ASKED, 0.0, 0, None
        if ask is not None:
            verdict, wait, taken, grant = self._admit(now, holder, ask)
        if verdict == ADMITTED and self.slots is not None:
            self._take(now, holder, mine)
        bucket = self.bucket
        rate = bucket.rate_at(now) if bucket is not None and bucket.learnt is not None else None
        look = self.circuit.look(now) if self.breaker is not None else None
        return Expected(verdict, wait, taken, grant, rate, look)

    def use(self, now_us: int, rate: RateConfig) -> None:
        """Go on under another rate; the same one changes nothing."""
        assert self.rate is not None
        assert self.bucket is not None
        if rate.terms != self.rate.terms:
            self.bucket.configure(rate, seconds(now_us))
        self.rate = rate

    def _settle(self, now: float, one: Told) -> None:
        failure = one.says not in {"", "ok", "reset"}
        if self.breaker is not None:
            if one.says == "reset":
                self.circuit.reset()
            elif one.says:
                category = ErrorCategory(one.says) if failure else None
                for _ in range(1 if failure else one.count):
                    self.circuit.settle(one.grant, now, category, duration=one.duration_us / 1e6, sign=one.sign or None)
            elif one.grant is not None:
                self.circuit.release(one.grant)
        if self.bucket is None:
            return
        if one.refund:
            self.bucket.refund(one.refund, now)
        if self.bucket.config.adaptive and one.says == "ok":
            for _ in range(one.count):
                self.bucket.succeeded(now)
        elif one.says == "rate_limit":
            pause = one.pause_us / 1e6 if one.pause_us >= 0 else None
            admitted_at = seconds(one.admitted_at_us) if one.admitted_at_us >= 0 else now - one.duration_us / 1e6
            owed = max(0.0, self.bucket.full_at - now) * self.bucket.rate
            if self.bucket.limited(now, pause, admitted_at):  # what was reserved stays owed
                self.bucket.full_at = max(self.bucket.full_at, now + owed * self.bucket.interval)

    def _admit(self, now: float, holder: str, ask: Ask) -> tuple[int, float | None, int, Grant | None]:
        if self.breaker is not None and (wait := self.circuit.look(now).wait):
            return BY_CIRCUIT, wait, 0, None
        before, wait = self._kept_bucket(), 0.0
        taken = 1 if self.breaker is not None and self.circuit.state is not CircuitState.CLOSED else ask.take
        if self.bucket is not None:
            wait = self.bucket.admit(now, ask.cost)
            if wait and micros(wait) > ask.horizon_us:
                return BY_RATE, wait, 0, None
            if wait:
                self._reserve(self.bucket, now, ask.cost)
            taken = 1 if wait else self._take_block(self.bucket, now, ask.cost, taken)
        if self.slots is not None and not self.slots.free:
            self._purge(now, holder)
        if self.slots is not None and not self.slots.take():
            self.bucket = before
            return BY_CONCURRENCY, None, 0, None
        return ADMITTED, wait, taken, self._grant(now, wait)

    def _grant(self, now: float, wait: float) -> Grant:
        if self.breaker is None:
            return self.circuit.grant
        grant = self.circuit.admit(now)
        assert isinstance(grant, Grant)
        if grant.probe is not None:
            # It begins after the wait, which is in whole microseconds, as the caller is told it.
            begins = now + (math.ceil(micros(wait)) / 1e6 if wait else 0.0)
            self.circuit._probes[grant.probe] = begins + self.breaker.probe_lease
        return grant

    def _take_block(self, bucket: Bucket, now: float, cost: float, most: int) -> int:
        """The first was admitted; as many more as there are tokens for."""
        taken = 1
        while taken < most and not bucket.admit(now, cost):
            taken += 1
        return taken

    def _reserve(self, bucket: Bucket, now: float, cost: float) -> None:
        bucket.full_at = max(bucket.full_at, now) + cost * bucket.interval
        if bucket.learnt is not None:
            bucket.learnt.admitted(cost, lull=False)

    def _kept_bucket(self) -> Bucket | None:
        kept = copy.copy(self.bucket)
        if kept is not None:
            kept.learnt = copy.copy(kept.learnt)
        return kept

    def _give(self, told: list[Told], holder: str, *, together: bool) -> int:
        """Slots that come back; answers by how many the holder's own have gone down, where it asks as well."""
        mine = 0
        for one in told:
            held = self.held.get(one.holder, 0)
            given = min(one.slots, held)
            if one.slots:
                self.held[one.holder] = held - given
            if one.holder == holder and together:
                mine += given
            for _ in range(given if self.slots is not None else 0):
                self.slots.give()  # type: ignore[union-attr]
        return mine

    def _take(self, now: float, holder: str, given: int) -> None:
        self.held[holder] = self.held.get(holder, 0) + 1
        if given != 1 and self.held[holder] == 1:
            is_new = holder not in self.leases
            self.leases[holder] = now + self.lease_us / 1e6
            if is_new:
                self._purge(now, holder)

    def _purge(self, now: float, holder: str) -> None:
        assert self.slots is not None
        if holder in self.leases:
            self.leases[holder] = now + self.lease_us / 1e6
        for gone in [who for who, lease in self.leases.items() if lease <= now]:
            del self.leases[gone]
            for _ in range(self.held.pop(gone, 0)):
                self.slots.give()


def seconds(micros: int) -> float:
    """The time as the script computes with it."""
    return (micros - EPOCH_US) / 1e6


def micros(wait: float) -> float:
    """A wait in microseconds; what floats add to a whole number is not counted, but a wait it is."""
    return max(round(wait * 1e6, 2), 0.01)
