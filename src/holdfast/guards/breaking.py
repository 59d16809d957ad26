"""When a circuit opens, and for how long: its settings, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Set as AbstractSet

import msgspec

from holdfast import checks
from holdfast.category import ErrorCategory
from holdfast.errors import ConfigError

TRIPS = frozenset(category for category in ErrorCategory if category.trips_breaker)
NOT_CANCELLED = frozenset(ErrorCategory) - {ErrorCategory.CANCELLED}  # a user's cancel says nothing about the tool


class BreakerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a circuit. Failures in a row open it; so do failure and slow-call rates over the window, if set."""

    failure_threshold: int = 7
    min_backoff: float = 5.0
    max_backoff: float = 120.0
    backoff_factor: float = 2.0
    jitter: float = 0.1
    half_open_probes: int = 1
    probe_lease: float = 30.0
    successes_to_close: int = 1
    window: float = 300.0
    window_calls: int | None = None
    trips: AbstractSet[ErrorCategory] = TRIPS
    failure_rate: float | None = None
    slow_call: float | None = None
    slow_call_rate: float | None = None
    minimum_calls: int = 20
    distinct_arguments: bool = False

    def __post_init__(self) -> None:
        checks.whole("failure_threshold", self.failure_threshold)
        checks.number("min_backoff", self.min_backoff, above=0)
        checks.number("max_backoff", self.max_backoff, least=self.min_backoff)
        if isinstance(self.backoff_factor, float) and math.isnan(self.backoff_factor):
            msgspec.structs.force_setattr(self, "backoff_factor", math.inf)  # NaN means the same, but NaN != NaN
        if self.backoff_factor != math.inf:
            checks.number("backoff_factor", self.backoff_factor, least=1)
        checks.number("jitter", self.jitter, least=0, most=1)
        checks.whole("half_open_probes", self.half_open_probes)
        checks.number("probe_lease", self.probe_lease, above=0)
        checks.whole("successes_to_close", self.successes_to_close)
        checks.number("window", self.window, above=0)
        if self.window_calls is not None:
            checks.whole("window_calls", self.window_calls)
        for name in ("failure_rate", "slow_call_rate"):
            if (rate := getattr(self, name)) is not None:
                checks.number(name, rate, above=0, most=1)
        if self.slow_call is not None:
            checks.number("slow_call", self.slow_call, above=0)
        elif self.slow_call_rate is not None:
            raise ConfigError(
                f"slow_call_rate = {self.slow_call_rate}: needs slow_call, the seconds that make a call slow"
            )
        checks.whole("minimum_calls", self.minimum_calls)
        checks.flag("distinct_arguments", self.distinct_arguments)
        trips: object = self.trips
        if isinstance(trips, str) or not isinstance(trips, Collection):
            raise ConfigError(f"trips = {checks.shown(trips)}: must be a set of error categories")
        for category in trips:
            checks.choice("trips", category, NOT_CANCELLED)
        msgspec.structs.force_setattr(self, "trips", frozenset(map(ErrorCategory, self.trips)))

    @property
    def is_rated(self) -> bool:
        """True if rates can open the circuit, too; then every call counts, not only failures."""
        return self.failure_rate is not None or self.slow_call_rate is not None

    @property
    def slow_from(self) -> float:
        """Duration in seconds from which a call counts as slow; infinite if no call does."""
        return math.inf if self.slow_call is None else self.slow_call

    @property
    def judged_from(self) -> int:
        """Number of calls before a rate is judged: `minimum_calls`, but at most as many as the window holds."""
        return min(self.minimum_calls, self.window_calls or self.minimum_calls)

    def backoff(self, rung: int) -> float:
        """Return the wait, before jitter, on *rung* of the backoff ladder; the first rung is 0."""
        try:
            wait = self.min_backoff * self.backoff_factor**rung
        except OverflowError:
            return self.max_backoff
        return min(wait, self.max_backoff)
