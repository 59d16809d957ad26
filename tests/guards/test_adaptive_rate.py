"""The adaptive limiter against servers whose capacity changes: how much of it is used, and how often they say no.

The bounds are wider than what `bench/adaptive.py` shows, so that a better curve need not touch this file.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.guards.simulated_server import BucketServer, Outcome, WindowServer, simulate

from holdfast.guards.rate import Bucket, RateConfig
from holdfast.parts.limiters import AdaptiveRateLimiter
from holdfast.testing import ManualClock


class OneBucket:
    """A bucket alone, as `calls` uses it."""

    def __init__(self, most: float, *, burst: float | None = None, seed: int = 0, reports: bool = True) -> None:
        config = RateConfig(per_second=most, burst=burst, adaptive=True)
        self.bucket = Bucket(config, random=random.Random(seed).random, reports=reports)
        self.ask, self.refused = self.bucket.admit, self.bucket.limited
        self.succeeded = self.bucket.succeeded if reports else lambda now: None


class OneKey:
    """A key of a limiter, with the limiter's own clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.limiter = AdaptiveRateLimiter(100.0, 100.0, clock=self.clock, random=random.Random(0).random)

    def ask(self, now: float) -> float:
        self._move_to(now)
        return self.limiter.try_acquire("tool")

    def succeeded(self, now: float) -> None:
        self._move_to(now)
        self.limiter.record_success("tool")

    def refused(self, now: float, retry_after: float | None, admitted_at: float) -> None:
        self._move_to(now)
        self.limiter.record_rate_limited("tool", retry_after, admitted_at)

    def _move_to(self, now: float) -> None:
        self.clock.advance(max(0.0, now - self.clock.monotonic()))


def steps(first: float, second: float, third: float, seconds: float = 300.0) -> list[tuple[float, float]]:
    return [(first, seconds), (second, seconds), (third, seconds)]


USUAL = steps(50.0, 20.0, 80.0)


def shown(outcome: Outcome) -> str:
    return f"{100 * outcome.goodput:.1f} % used, {100 * outcome.refused_share:.2f} % refused: {outcome.phases}"


def test_most_of_the_capacity_is_used_and_few_calls_are_refused() -> None:
    outcome = simulate(OneKey(), USUAL)

    assert outcome.goodput >= 0.95, shown(outcome)
    assert outcome.refused_share <= 0.03, shown(outcome)


def test_a_server_that_sends_retry_after_is_used_well_too() -> None:
    outcome = simulate(OneBucket(100.0), USUAL, retry_after=1.0)

    assert outcome.goodput >= 0.85, shown(outcome)
    assert outcome.refused_share <= 0.03, shown(outcome)


@pytest.mark.parametrize(
    ("most", "settings", "goodput", "refused"),
    [
        pytest.param(10.0, {"phases": steps(5.0, 2.0, 8.0)}, 0.85, 0.04, id="slow server"),
        pytest.param(1000.0, {"phases": steps(500.0, 200.0, 800.0, 20.0)}, 0.85, 0.04, id="fast server"),
        pytest.param(100.0, {"phases": steps(50.0, 20.0, 80.0, 60.0)}, 0.90, 0.03, id="quick changes"),
        pytest.param(100.0, {"round_trip": 0.005}, 0.95, 0.03, id="near server"),
        pytest.param(100.0, {"round_trip": 0.5}, 0.95, 0.03, id="far server"),
        pytest.param(100.0, {"noise": 0.5, "seed": 1}, 0.95, 0.03, id="noisy network"),
        pytest.param(85.0, {}, 0.95, 0.03, id="little above the capacity"),
        pytest.param(100.0, {"server": BucketServer(0.05)}, 0.88, 0.03, id="no patience for bursts"),
        pytest.param(100.0, {"server": BucketServer(5.0)}, 0.95, 0.03, id="patience for bursts"),
        pytest.param(100.0, {"server": WindowServer(1.0)}, 0.90, 0.03, id="windows of a second"),
        pytest.param(100.0, {"server": WindowServer(10.0)}, 0.90, 0.15, id="windows of ten seconds"),
        pytest.param(100.0, {"blips": 0.001, "seed": 1}, 0.90, 0.03, id="refusals for no reason"),
        pytest.param(100.0, {"demand": 15.0, "seed": 1}, 0.95, 0.01, id="little demand"),
    ],
)
def test_it_is_not_made_for_one_server(most: float, settings: dict[str, Any], goodput: float, refused: float) -> None:
    options = {"phases": steps(50.0, 20.0, 80.0, 150.0), **settings}

    outcome = simulate(OneBucket(most), options.pop("phases"), **options)

    assert outcome.goodput >= goodput, shown(outcome)
    assert outcome.refused_share <= refused, shown(outcome)


@pytest.mark.parametrize("seed", range(3))
def test_chance_does_not_decide(seed: int) -> None:
    outcome = simulate(OneBucket(100.0, burst=10.0, seed=seed), steps(20.0, 8.0, 32.0), noise=0.2, seed=seed)

    assert outcome.goodput >= 0.93, shown(outcome)
    assert outcome.refused_share <= 0.03, shown(outcome)


def test_it_works_for_those_who_report_refusals_only() -> None:
    outcome = simulate(OneBucket(100.0, reports=False), steps(50.0, 20.0, 80.0, 150.0))

    assert outcome.goodput >= 0.95, shown(outcome)
    assert outcome.refused_share <= 0.03, shown(outcome)


def test_a_server_that_closes_is_asked_seldom_and_used_again_when_it_opens() -> None:
    outcome = simulate(OneBucket(100.0), [(50.0, 60.0), (1e-6, 60.0), (50.0, 60.0)])

    closed, open_again = outcome.phases[1:]
    assert closed.refused <= 1.2 * 5 * 60  # about the floor
    assert open_again.goodput >= 0.95, shown(outcome)


def test_a_simulation_is_the_same_every_time() -> None:
    outcomes = {str(simulate(OneBucket(100.0), steps(50.0, 20.0, 80.0, 10.0), noise=0.5)) for _ in range(2)}

    assert len(outcomes) == 1
