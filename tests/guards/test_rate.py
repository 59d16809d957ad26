"""The bucket: costs, exact waits, refunds, changed settings, and what it learns from refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.clock import until
from holdfast.errors import ConfigError
from holdfast.guards.names import short_key
from holdfast.guards.rate import Bucket, Priority, RateConfig

COSTS = st.sampled_from([priority.cost for priority in Priority])
SECONDS = st.floats(0.0, 100.0) | st.sampled_from([0.0, 1e-9, 0.1, 0.5, 1.0, 3600.0])


def bucket(per_second: float = 10.0, burst: float | None = None, **settings: Any) -> Bucket:
    reports = settings.pop("reports", True)
    draw = settings.pop("draw", 0.0)
    config = RateConfig(per_second=per_second, burst=burst, **settings)
    return Bucket(config, random=lambda: draw, reports=reports)


def adaptive(per_second: float = 10.0, burst: float | None = 10.0, **settings: Any) -> Bucket:
    return bucket(per_second, burst, adaptive=True, **settings)


def drain(it: Bucket, now: float, cost: float = 1.0) -> int:
    taken = 0
    while it.admit(now, cost) == 0.0:
        taken += 1
    return taken


def work(it: Bucket, start: float, end: float) -> float:
    """Make every call that is admitted, all of which succeed; answers when the next may be made."""
    now = start
    while now < end:
        wait = it.admit(now)
        if wait == 0.0:
            it.succeeded(now)
        now += wait
    return now


# --- priorities and settings ---


def test_the_more_urgent_a_call_the_less_it_costs() -> None:
    assert [(str(p), p.cost, p.rank) for p in Priority] == [
        ("low", 2.0, 0),
        ("normal", 1.0, 1),
        ("high", 0.5, 2),
        ("critical", 0.1, 3),
    ]


def test_a_priority_is_found_by_its_value() -> None:
    assert Priority("high") is Priority.HIGH


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"per_second": 0.0}, "per_second"),
        ({"per_second": -1.0}, "per_second"),
        ({"per_second": math.nan}, "per_second"),
        ({"per_second": math.inf}, "per_second"),
        ({"per_second": 5e-324}, "per_second"),
        ({"per_second": "10"}, "per_second"),
        ({"per_second": 1.0, "burst": 0.0}, "burst"),
        ({"per_second": 1.0, "burst": 0.09}, "burst"),
        ({"per_second": 1.0, "burst": math.nan}, "burst"),
        ({"per_second": 1.0, "floor": 0.0}, "floor"),
        ({"per_second": 1.0, "floor": 1.1}, "floor"),
        ({"per_second": 1.0, "floor": math.nan}, "floor"),
        ({"per_second": 1.0, "adaptive": 1}, "adaptive"),
    ],
)
def test_bad_settings_are_a_config_error(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named} = "):
        RateConfig(**settings)


@pytest.mark.parametrize(("per_second", "capacity"), [(20.0, 20.0), (2.0, 5.0)])
def test_a_burst_is_a_second_s_worth_and_at_least_five_by_default(per_second: float, capacity: float) -> None:
    assert drain(bucket(per_second), now=0.0) == capacity


# --- taking ---


def test_after_the_burst_a_call_waits_for_one_token() -> None:
    it = bucket(2.0, 10.0)

    taken = drain(it, now=100.0)

    assert taken == 10
    assert it.admit(100.0) == 0.5


def test_a_refusal_takes_nothing() -> None:
    it = bucket(2.0, 1.0)
    it.admit(0.0)

    waits = [it.admit(0.0) for _ in range(100)]

    assert waits == [0.5] * 100
    assert it.admit(0.5) == 0.0


def test_fractions_of_a_token_are_kept() -> None:
    it = bucket(10.0, 10.0)
    drain(it, now=0.0)

    assert drain(it, now=0.099) == 0
    assert drain(it, now=0.55) == 5
    assert it.admit(0.55) == pytest.approx(0.05)
    assert drain(it, now=0.6) == 1


@pytest.mark.parametrize("start", [0.0, 1e6, 1e9])
def test_sums_of_inexact_floats_cost_no_token(start: float) -> None:
    it = bucket(10.0, 10.0)
    drain(it, now=start)
    now = start
    for _ in range(10):
        now += 0.1

    assert drain(it, now) == pytest.approx(10, abs=0 if start < 1e9 else 1)


def test_a_bucket_never_holds_more_than_its_capacity() -> None:
    it = bucket(10.0, 5.0)
    drain(it, now=0.0)

    assert it.tokens(1e9) == 5.0
    assert drain(it, now=1e9) == 5


def test_a_cost_above_the_capacity_is_a_config_error() -> None:
    it = bucket(10.0, 1.0)

    with pytest.raises(ConfigError, match=r"2 tokens does not fit a bucket of 1\b"):
        it.admit(0.0, Priority.LOW.cost)


def test_taking_without_asking_for_the_wait_is_the_same() -> None:
    it = bucket(2.0, 2.0)

    assert [it.take(0.0) for _ in range(3)] == [True, True, False]
    assert it.admit(0.0) == 0.5
    assert it.take(0.5)


def test_only_a_bucket_that_has_learnt_nothing_is_taken_from_without_asking() -> None:
    it = adaptive(10.0)
    it.limited(0.0)

    assert not it.take(0.5)
    assert it.admit(0.5) == 0.0


def test_a_refund_gives_back_what_was_taken() -> None:
    it = bucket(1.0, 3.0)
    drain(it, now=0.0)

    it.refund(1.0, 0.0)

    assert it.admit(0.0, 2.0) == 1.0
    assert it.admit(0.0) == 0.0


def test_a_refund_to_a_full_bucket_does_not_overfill_it() -> None:
    it = bucket(1.0, 3.0)

    it.refund(2.0, 0.0)

    assert drain(it, now=0.0) == 3


@given(st.floats(0, 1e9), st.floats(0, 1e9))
@example(2**-53, 1 + 2**-52)  # here the plain difference, rounded, is too short
def test_a_wait_reaches_its_time_in_floating_point(now: float, at: float) -> None:
    wait = until(now, at)

    assert now + wait >= at
    assert wait == 0.0 or wait == pytest.approx(at - now)


class PlainBucket(RuleBasedStateMachine):
    """A bucket beside a model that counts tokens."""

    admitted = Bundle("admitted")

    @initialize(rate=st.floats(0.01, 1000.0), burst=st.floats(2.0, 100.0), start=st.sampled_from([0.0, 17.3, 1e5]))
    def begin(self, rate: float, burst: float, start: float) -> None:
        self.it = bucket(rate, burst)
        self.now = start
        self.rate, self.burst, self.tokens = rate, burst, burst
        self.left: dict[tuple[float, float], float] = {}

    @rule(target=admitted, cost=COSTS)
    def ask(self, cost: float) -> float:
        wait = self.it.admit(self.now, cost)

        if wait == 0.0:
            assert self.tokens >= cost - 1e-5
            self.tokens -= cost
            return cost
        assert self.tokens < cost + 1e-5
        assert wait * self.rate == pytest.approx(cost - self.tokens, abs=1e-4)
        return 0.0

    @rule(target=admitted, cost=COSTS)
    def ask_and_wait_as_told(self, cost: float) -> float:
        wait = self.it.admit(self.now, cost)
        if wait > 0.0:
            self.pass_time(wait)
            assert self.it.admit(self.now, cost) == 0.0
        self.tokens -= cost
        return cost

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.tokens = min(self.burst, self.tokens + seconds * self.rate)

    @rule(cost=admitted)
    def refund(self, cost: float) -> None:
        self.it.refund(cost, self.now)
        self.tokens = min(self.burst, self.tokens + cost)

    @rule(rate=st.sampled_from([1.0, 10.0]) | st.floats(0.01, 1000.0), burst=st.just(2.0) | st.floats(2.0, 100.0))
    def configure(self, rate: float, burst: float) -> None:
        used = min(self.burst - self.tokens, burst)
        self.left[self.rate, self.burst] = self.now + (self.burst - self.tokens) / self.rate
        used = max(used, (self.left.pop((rate, burst), self.now) - self.now) * rate)
        self.it.configure(RateConfig(per_second=rate, burst=burst), self.now)
        self.rate, self.burst, self.tokens = rate, burst, burst - used

    @invariant()
    def the_tokens_are_those_of_the_model(self) -> None:
        if hasattr(self, "it"):
            assert self.it.tokens(self.now) == pytest.approx(max(0.0, self.tokens), abs=1e-4)


TestPlainBucket = PlainBucket.TestCase


# --- new settings ---


def test_new_settings_keep_what_was_used() -> None:
    it = bucket(10.0, 10.0)
    drain(it, now=0.0)

    it.configure(RateConfig(per_second=1.0, burst=15.0), 0.5)

    assert it.tokens(0.5) == pytest.approx(10.0)
    assert it.rate == 1.0


def test_a_smaller_bucket_is_empty_rather_than_in_debt() -> None:
    it = bucket(10.0, 10.0)
    drain(it, now=0.0)

    it.configure(RateConfig(per_second=10.0, burst=2.0), 0.0)

    assert it.admit(0.0) == pytest.approx(0.1)


def test_settings_that_come_back_find_what_was_owed_under_them() -> None:
    it = bucket(10.0, 10.0)
    drain(it, now=0.0)
    it.configure(RateConfig(per_second=10.0, burst=2.0), 0.0)

    it.configure(RateConfig(per_second=10.0, burst=10.0), 0.5)

    assert it.tokens(0.5) == pytest.approx(5.0)


def test_new_settings_keep_what_was_learnt() -> None:
    it = adaptive(10.0)
    it.limited(0.0, retry_after=60.0)

    it.configure(RateConfig(per_second=8.0, burst=10.0, adaptive=True), 1.0)

    assert it.rate == 5.0
    assert it.admit(1.0) == pytest.approx(59.0)


def test_new_settings_during_a_pause_let_no_burst_follow_it() -> None:
    it = adaptive(10.0)
    it.limited(0.0, retry_after=60.0)

    it.configure(RateConfig(per_second=8.0, burst=10.0, adaptive=True), 1.0)

    assert drain(it, 60.0) == 1


def test_a_learnt_rate_stays_within_new_settings() -> None:
    low, high = adaptive(10.0), adaptive(10.0)
    low.limited(0.0)
    high.limited(0.0)

    low.configure(RateConfig(per_second=2.0, adaptive=True), 0.0)
    high.configure(RateConfig(per_second=1000.0, adaptive=True), 0.0)

    assert low.rate == 2.0
    assert high.rate == 50.0


def test_a_bucket_that_is_no_longer_adaptive_forgets() -> None:
    it = adaptive(10.0)
    it.limited(0.0, retry_after=60.0)

    it.configure(RateConfig(per_second=10.0, burst=10.0), 0.0)

    assert it.rate == 10.0
    assert it.pause(0.0) == 0.0


# --- refusals by the server ---


def test_a_refusal_halves_the_rate_and_empties_the_bucket() -> None:
    it = adaptive(10.0)

    cut = it.limited(0.0)

    assert cut
    assert it.rate_at(0.0) == 5.0
    assert it.tokens(0.0) == 0.0
    assert it.admit(0.0) == pytest.approx(0.2)


def test_a_bucket_that_is_not_adaptive_ignores_refusals() -> None:
    it = bucket(10.0)

    cut = it.limited(0.0, retry_after=60.0)

    assert not cut
    assert it.admit(0.0) == 0.0


def test_the_rate_is_not_cut_below_the_floor() -> None:
    it = adaptive(10.0, floor=0.2)

    for _ in range(20):
        it.limited(0.0)

    assert it.rate == 2.0


@pytest.mark.parametrize(("draw", "wait"), [(0.0, 30.0), (0.5, 31.5)])
def test_nothing_is_admitted_before_retry_after_and_a_little_jitter(draw: float, wait: float) -> None:
    it = adaptive(10.0, draw=draw)

    it.limited(0.0, retry_after=30.0)

    assert {it.admit(0.0, priority.cost) for priority in (Priority.NORMAL, Priority.HIGH, Priority.CRITICAL)} == {wait}
    assert it.pause(0.0) == wait
    assert it.admit(wait, Priority.CRITICAL.cost) == 0.0


def test_after_a_pause_one_call_goes_at_once_and_the_next_follows_at_the_rate() -> None:
    it = adaptive(10.0)
    it.limited(0.0, retry_after=30.0)

    assert it.admit(30.0) == 0.0
    assert it.admit(30.0) == pytest.approx(0.2)


def test_a_pause_shorter_than_a_token_takes_does_not_fill_the_emptied_bucket() -> None:
    it = adaptive(1.0)

    it.limited(0.0, retry_after=0.1)

    assert it.admit(0.0) == 2.0


@pytest.mark.parametrize("retry_after", [None, 0.0, -1.0, math.nan, math.inf])
def test_a_retry_after_that_is_no_time_is_ignored(retry_after: float | None) -> None:
    it = adaptive(10.0)

    it.limited(0.0, retry_after)

    assert it.admit(0.0) == pytest.approx(0.2)


def test_a_server_cannot_stop_a_tool_for_ever() -> None:
    it = adaptive(10.0)

    it.limited(0.0, retry_after=1e300)

    assert it.admit(0.0) == 86_400.0


def test_refusals_of_calls_admitted_before_the_last_cut_count_once() -> None:
    it = adaptive(10.0)
    cuts = [it.limited(1.0, admitted_at=0.9), it.limited(1.1, admitted_at=1.0), it.limited(1.2, admitted_at=0.95)]

    assert cuts == [True, False, False]
    assert it.rate == 5.0


def test_a_late_refusal_can_only_lengthen_the_pause() -> None:
    it = adaptive(10.0)
    it.limited(1.0, 10.0, 0.9)

    it.limited(2.0, 5.0, 0.9)
    assert it.pause(2.0) == 9.0

    it.limited(3.0, 20.0, 0.9)
    assert it.pause(3.0) == 20.0


def test_a_late_refusal_leaves_the_bucket_as_it_is() -> None:
    it = adaptive(10.0)
    it.limited(0.0, admitted_at=-0.1)
    wait = it.admit(0.0)

    it.limited(0.0, admitted_at=-0.1)

    assert it.admit(0.0) == wait


def test_a_refused_call_that_was_admitted_after_the_cut_cuts_again() -> None:
    it = adaptive(10.0)
    it.limited(0.0, admitted_at=-0.1)

    cut = it.limited(0.3, admitted_at=0.25)

    assert cut
    assert it.rate < 5.0


def test_a_floor_of_one_still_keeps_the_pause() -> None:
    it = adaptive(10.0, floor=1.0)

    it.limited(0.0, retry_after=30.0)

    assert [it.admit(1.0, Priority.CRITICAL.cost) for _ in range(2)] == pytest.approx([29.0, 29.0])
    assert it.admit(30.0) == 0.0
    assert it.learnt is None


# --- recovery ---


def test_recovery_is_quick_up_to_just_below_the_refused_rate() -> None:
    it = adaptive(10.0)
    it.limited(0.0)

    now = work(it, 0.0, 1.5)

    assert 9.5 < it.rate_at(now) < 10.0


def test_recovery_is_slow_beyond_the_rate_that_was_refused() -> None:
    it = adaptive(100.0, 1.0)
    it.limited(0.0)
    now = work(it, 0.0, 0.5)
    refused = it.rate_at(now)
    it.limited(now, admitted_at=now)
    now = work(it, now, now + 1.5)
    just_below = it.rate_at(now)

    now = work(it, now, now + 2.0)

    assert 0.7 * refused < just_below < refused
    assert just_below < it.rate_at(now) < 1.03 * just_below


def test_recovery_is_quick_again_after_a_long_quiet_spell() -> None:
    it = adaptive(100.0, 1.0)
    for _ in range(3):
        it.limited(0.0)
    now = work(it, 0.0, 0.2)
    it.limited(now, admitted_at=now)
    early = it.rate_at(work(it, now, now + 5.0))

    now = work(it, now + 5.0, now + 30.0)

    assert early < 40.0
    assert it.rate_at(now) == 100.0


def test_a_bucket_that_has_recovered_forgets_what_it_learnt() -> None:
    it = adaptive(10.0)
    it.limited(0.0)

    work(it, 0.0, 30.0)

    assert it.learnt is None
    assert it.rate == 10.0


def test_time_alone_brings_the_configured_rate_back() -> None:
    it = adaptive(2.0)
    it.limited(0.0)

    assert it.rate_at(3600.0) == 2.0
    assert it.admit(3600.0) == 0.0
    assert it.learnt is None


def test_time_in_which_no_calls_are_made_teaches_less() -> None:
    busy, idle = adaptive(100.0, 1.0), adaptive(100.0, 1.0)
    for it in (busy, idle):
        it.limited(0.0)
        it.admit(0.1)
        it.succeeded(0.1)
        it.limited(0.2, admitted_at=0.15)

    now = work(busy, 0.2, 20.0)

    assert idle.rate_at(now) < 0.8 * busy.rate_at(now)


def test_a_server_that_takes_nothing_is_not_hurried() -> None:
    it = adaptive(100.0, 1.0)
    it.limited(0.0, admitted_at=-1.0)
    now = 0.0
    for _ in range(10):
        now += it.admit(now)
        it.admit(now)
        it.limited(now + 0.01, admitted_at=now)
        now += 0.01

    assert it.rate_at(now) < 6.0
    assert it.rate_at(now + 0.5) < 25.0


def test_a_server_that_opens_again_gets_the_rate_it_bore_before() -> None:
    it = adaptive(100.0, 1.0)
    it.limited(0.0, admitted_at=-1.0)
    now = 0.0
    for _ in range(10):
        now += it.admit(now)
        it.admit(now)
        it.limited(now + 0.01, admitted_at=now)
        now += 0.01

    now = work(it, now, now + 2.0)

    assert it.rate_at(now) > 90.0


def test_where_nobody_reports_successes_calls_stand_for_them() -> None:
    it = adaptive(10.0, reports=False)
    it.limited(0.0)

    now = 0.0
    while now < 1.5:
        now += it.admit(now)

    assert it.rate_at(now) > 9.5


def test_where_somebody_begins_to_report_successes_calls_stand_for_them_no_longer() -> None:
    told, untold = adaptive(10.0), adaptive(10.0, reports=False)

    for it in (told, untold):
        it.limited(0.0)
        it.succeeded(2.0)
        for now in range(3, 20):
            drain(it, now)

    assert untold.rate_at(20.0) == told.rate_at(20.0)


def test_a_refusal_is_told_at_the_rate_that_has_grown_meanwhile() -> None:
    it = adaptive(10.0)
    it.limited(0.0)
    promised = it.admit(0.0, 2.0)

    wait = it.admit(0.3, 2.0)

    assert promised == pytest.approx(0.4)
    assert 0.04 < wait < 0.08


def test_a_refusal_after_few_calls_says_little_about_the_rate() -> None:
    it = adaptive(100.0)
    it.limited(0.0)
    for second in range(1, 6):
        it.admit(second)
        it.succeeded(second)

    it.limited(6.0, admitted_at=5.9)

    assert it.rate_at(work(it, 6.0, 7.5)) > 90.0


def test_refusals_of_unknown_age_before_any_new_call_say_nothing_about_the_rate() -> None:
    it = adaptive(100.0)
    it.limited(0.0)
    it.succeeded(0.01)  # a call that was under way

    it.limited(0.02)

    assert it.rate == pytest.approx(25.0, rel=0.1)
    assert it.rate_at(work(it, 0.02, 1.5)) > 90.0


def test_a_refunded_call_says_nothing_about_the_rate() -> None:
    it = adaptive(100.0)
    it.limited(0.0)
    it.admit(0.02)
    it.refund(1.0, 0.03)
    it.refund(1.0, 0.03)
    it.succeeded(0.04)

    it.limited(0.1, admitted_at=0.05)

    assert it.rate_at(work(it, 0.1, 2.0)) > 90.0


def test_more_is_risked_later_where_a_refusal_costs_a_pause() -> None:
    plain, paused = adaptive(100.0), adaptive(100.0)
    plain.limited(0.0)
    paused.limited(0.0, retry_after=30.0)

    work(plain, 0.0, 6.0)
    work(paused, 30.0, 36.0)

    assert plain.rate == 100.0
    assert paused.rate == pytest.approx(97.0, abs=0.5)


def test_calls_of_any_cost_teach_the_same_rate() -> None:
    rates = []
    for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH):
        it = adaptive(100.0, 2.0)
        it.limited(0.0)
        now = 0.0
        while now < 20.0:
            wait = it.admit(now, priority.cost)
            if wait == 0.0 and it.rate > 50.0 and it.learnt is not None:
                it.limited(now, admitted_at=now)
            elif wait == 0.0:
                it.succeeded(now)
            now += wait
        rates.append(it.rate_at(now))

    assert max(rates) < 1.2 * min(rates)


def test_a_pause_that_comes_after_calls_spoils_no_sum() -> None:
    it = adaptive(10.0)
    it.limited(0.0)
    it.admit(0.5)
    it.succeeded(0.6)
    it.limited(0.7, 30.0, -1.0)

    cut = it.limited(0.8)

    assert cut
    assert 0.5 <= it.rate_at(0.8) <= 5.0


class AdaptiveBucket(RuleBasedStateMachine):
    """Whatever is reported, the bucket keeps its promises and its bounds."""

    @initialize(rate=st.floats(0.1, 1000.0), burst=st.floats(2.0, 50.0), floor=st.floats(0.01, 1.0))
    def begin(self, rate: float, burst: float, floor: float) -> None:
        self.config = RateConfig(per_second=rate, burst=burst, adaptive=True, floor=floor)
        self.it = Bucket(self.config, random=lambda: 0.5)
        self.now = 1000.0
        self.paused_until = 0.0

    @rule(cost=COSTS, successes=st.integers(0, 3))
    def a_promise_is_kept(self, cost: float, successes: int) -> None:
        wait = self.it.admit(self.now, cost)
        for _ in range(successes):
            self.it.succeeded(self.now)
        if wait > 0.0:
            self.now += wait
            assert self.it.admit(self.now, cost) == 0.0
        assert self.now >= self.paused_until

    @rule(cost=COSTS)
    def ask(self, cost: float) -> None:
        if self.it.admit(self.now, cost) == 0.0:
            assert self.now >= self.paused_until

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(retry_after=st.none() | st.floats(0.0, 100.0), ago=st.none() | st.floats(0.0, 10.0))
    def limited(self, retry_after: float | None, ago: float | None) -> None:
        before = self.it.rate_at(self.now)
        cut = self.it.limited(self.now, retry_after, None if ago is None else self.now - ago)
        if cut:
            assert self.it.rate == pytest.approx(max(before / 2, self.config.floor * self.config.per_second))
        if retry_after is not None:
            self.paused_until = max(self.paused_until, self.now + retry_after)

    @rule()
    def succeeded(self) -> None:
        self.it.succeeded(self.now)

    @rule(cost=COSTS)
    def refund(self, cost: float) -> None:
        self.it.refund(cost, self.now)

    @precondition(lambda self: self.it.learnt is not None)
    @rule(seconds=SECONDS)
    def the_rate_only_recovers_with_time(self, seconds: float) -> None:
        assert self.it.rate_at(self.now + seconds) >= self.it.rate_at(self.now)

    @invariant()
    def rate_and_tokens_are_within_bounds(self) -> None:
        if hasattr(self, "it"):
            most = self.config.per_second
            assert self.config.floor * most * 0.999999 <= self.it.rate_at(self.now) <= most
            assert 0.0 <= self.it.tokens(self.now) <= self.it.capacity


TestAdaptiveBucket = AdaptiveBucket.TestCase


# --- names ---


def test_a_name_of_up_to_200_characters_is_kept() -> None:
    name = "x" * 200

    assert short_key(name) is name


def test_a_longer_name_becomes_its_beginning_and_a_digest() -> None:
    short = short_key("x" * 201)

    assert short.startswith("x" * 100 + "…")
    assert len(short) == 117


@given(st.text(st.characters(), min_size=201, max_size=250), st.text(st.characters(), min_size=201, max_size=250))
def test_different_long_names_stay_different(one: str, other: str) -> None:
    assert (short_key(one) == short_key(other)) == (one == other)


@pytest.mark.parametrize("name", [None, 5, b"bytes", ["a"]])
def test_a_name_that_is_no_text_is_a_config_error(name: Any) -> None:
    with pytest.raises(ConfigError, match="must be a text"):
        short_key(name)


# --- beside other threads ---


def test_what_is_taken_while_settings_change_is_not_forgotten() -> None:
    taken: list[bool] = []

    class Interrupted(RateConfig, frozen=True, kw_only=True):
        @property
        def terms(self) -> tuple[float, float, float | None]:
            taken.append(it.take(0.0))  # another thread's, in the middle of the change
            return super().terms

    it = Bucket(Interrupted(per_second=1.0, burst=10.0))
    it.admit(0.0, 2.0)
    it.configure(Interrupted(per_second=2.0, burst=10.0), 0.0)

    assert taken
    assert it.tokens(0.0) == pytest.approx(8.0 - sum(taken))
    assert it.take(0.0)
