"""The limiters: many keys, one clock, many threads, bounded memory, and budgets that are longer than a second."""

from __future__ import annotations

import dis
import gc
import math
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from holdfast.clock import SystemClock
from holdfast.errors import ConfigError
from holdfast.guards.rate import Bucket, Priority
from holdfast.parts import limiters
from holdfast.parts.limiters import AdaptiveRateLimiter, KeyState, RateLimiter
from holdfast.testing import ManualClock

Limiter = AdaptiveRateLimiter | RateLimiter

BOTH: list[Callable[..., Limiter]] = [
    AdaptiveRateLimiter,
    lambda burst, rate, **settings: RateLimiter(rate, burst, **settings),
]
both = pytest.mark.parametrize("make", BOTH, ids=["adaptive", "fixed"])


@pytest.fixture(params=["undivided", "locked"])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to take a token: without a lock where the interpreter allows it, and with one."""
    monkeypatch.setattr(limiters, "UNDIVIDED", request.param == "undivided")
    return str(request.param)


def drain(limiter: Limiter, key: str = "k", priority: Priority = Priority.NORMAL) -> int:
    taken = 0
    while limiter.try_acquire(key, priority) == 0.0:
        taken += 1
    return taken


# --- taking ---


@both
@pytest.mark.usefixtures("build")
def test_a_burst_passes_and_the_next_call_is_told_when(make: Callable[..., Limiter], clock: ManualClock) -> None:
    limiter = make(10.0, 2.0, clock=clock)

    taken = drain(limiter)

    assert taken == 10
    assert limiter.try_acquire("k") == 0.5


@both
@pytest.mark.usefixtures("build")
def test_a_call_that_waits_as_told_is_admitted(make: Callable[..., Limiter], clock: ManualClock) -> None:
    limiter = make(3.0, 0.7, clock=clock)
    for priority in [*Priority] * 20:
        wait = limiter.try_acquire("k", priority)
        if wait:
            clock.sleep(wait)
            assert limiter.try_acquire("k", priority) == 0.0

    assert len(clock.slept) > 50


@both
def test_half_a_second_after_the_burst_five_of_ten_a_second_pass(
    make: Callable[..., Limiter], clock: ManualClock
) -> None:
    limiter = make(10.0, 10.0, clock=clock)
    drain(limiter)

    clock.advance(0.55)

    assert drain(limiter) == 5


@both
def test_keys_do_not_share_a_bucket(make: Callable[..., Limiter], clock: ManualClock) -> None:
    limiter = make(10.0, 2.0, clock=clock)
    drain(limiter, "one")

    assert drain(limiter, "other") == 10


@both
def test_the_priority_belongs_to_the_call(make: Callable[..., Limiter], clock: ManualClock) -> None:
    limiter = make(10.0, 2.0, clock=clock)
    for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.HIGH, Priority.CRITICAL):
        assert limiter.try_acquire("k", priority) == 0.0

    assert limiter.snapshot()["k"].tokens == pytest.approx(10 - 2 - 1 - 0.5 - 0.5 - 0.1)


@both
def test_a_cost_above_the_capacity_is_a_config_error(make: Callable[..., Limiter], clock: ManualClock) -> None:
    limiter = make(1.0, 2.0, clock=clock)
    for _ in range(2):
        with pytest.raises(ConfigError, match="2 tokens does not fit a bucket of 1"):
            limiter.try_acquire("k", Priority.LOW)
        limiter.try_acquire("k")  # the key is known now


@both
@pytest.mark.parametrize("priority", list(Priority))
def test_a_refund_gives_back_what_was_taken(
    make: Callable[..., Limiter], clock: ManualClock, priority: Priority
) -> None:
    limiter = make(10.0, 2.0, clock=clock)
    drain(limiter, priority=priority)

    limiter.refund("k", priority)

    assert drain(limiter, priority=priority) == 1


@both
def test_a_refund_to_an_unknown_key_is_harmless(make: Callable[..., Limiter], clock: ManualClock) -> None:
    limiter = make(10.0, 2.0, clock=clock)

    limiter.refund("k")

    assert drain(limiter) == 10


@both
def test_a_reset_key_is_as_new(make: Callable[..., Limiter], clock: ManualClock) -> None:
    limiter = make(10.0, 2.0, clock=clock)
    drain(limiter)

    limiter.reset("k")
    limiter.reset("unknown")

    assert limiter.snapshot() == {}
    assert drain(limiter) == 10


@both
def test_the_snapshot_shows_the_keys_whose_bucket_is_not_full(make: Callable[..., Limiter], clock: ManualClock) -> None:
    limiter = make(10.0, 2.0, clock=clock)
    for key in ("full again", "b", "b", "b", "b", "a", "a"):
        limiter.try_acquire(key)

    clock.advance(0.5)

    assert limiter.snapshot() == {"a": KeyState(9.0, 2.0), "b": KeyState(7.0, 2.0)}
    assert list(limiter.snapshot()) == ["a", "b"]


@both
@pytest.mark.parametrize("key", [None, 5, ("a",), ["a"], b"a"])
def test_a_key_that_is_no_text_is_a_config_error(make: Callable[..., Limiter], clock: ManualClock, key: Any) -> None:
    limiter = make(10.0, 2.0, clock=clock)

    with pytest.raises(ConfigError, match="must be a text"):
        limiter.try_acquire(key)


@both
def test_the_system_s_clock_is_the_default(make: Callable[..., Limiter]) -> None:
    limiter = make(10.0, 0.001)

    assert drain(limiter) == 10
    assert limiter.try_acquire("k") == pytest.approx(1000.0, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"capacity": 0.05}, "capacity"),
        ({"capacity": math.nan}, "capacity"),
        ({"capacity": math.inf}, "capacity"),
        ({"refill_per_second": 0.0}, "refill_per_second"),
        ({"refill_per_second": -2.0}, "refill_per_second"),
        ({"floor": 0.0}, "floor"),
        ({"floor": 1.5}, "floor"),
        ({"max_keys": 0}, "max_keys"),
    ],
)
def test_bad_settings_of_the_adaptive_limiter_are_a_config_error(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named} = "):
        AdaptiveRateLimiter(**settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"per_second": 0.0}, "per_second"),
        ({"per_second": math.nan}, "per_second"),
        ({"burst": 0.05}, "burst"),
        ({"per_minute": 0.0}, "per_minute"),
        ({"per_minute": math.inf}, "per_minute"),
        ({"per_run": 0}, "per_run"),
        ({"per_run": 1.5}, "per_run"),
        ({"per_session": -1}, "per_session"),
        ({"max_keys": 0}, "max_keys"),
    ],
)
def test_bad_settings_of_the_fixed_limiter_are_a_config_error(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named} = "):
        RateLimiter(**settings)


def test_the_defaults_are_those_of_the_contract(clock: ManualClock) -> None:
    adaptive, fixed = AdaptiveRateLimiter(clock=clock), RateLimiter(clock=clock)

    assert (drain(adaptive), adaptive.rate("k")) == (10, 2.0)
    assert (drain(fixed), fixed.snapshot()["k"].rate) == (20, 20.0)


class ManyKeys(RuleBasedStateMachine):
    """A limiter beside a model that counts the tokens of each key."""

    @initialize(make=st.sampled_from(BOTH), burst=st.floats(2.0, 20.0), rate=st.floats(0.1, 100.0))
    def begin(self, make: Callable[..., Limiter], burst: float, rate: float) -> None:
        self.clock = ManualClock(100.0)
        self.it = make(burst, rate, clock=self.clock)
        self.burst, self.rate = burst, rate
        self.tokens = dict.fromkeys("abc", burst)

    @rule(key=st.sampled_from("abc"), priority=st.sampled_from(Priority))
    def ask(self, key: str, priority: Priority) -> None:
        wait = self.it.try_acquire(key, priority)

        if wait == 0.0:
            assert self.tokens[key] >= priority.cost - 1e-5
            self.tokens[key] -= priority.cost
        else:
            assert wait * self.rate == pytest.approx(priority.cost - self.tokens[key], abs=1e-4)

    @rule(seconds=st.floats(0.0, 20.0))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for key, tokens in self.tokens.items():
            self.tokens[key] = min(self.burst, tokens + seconds * self.rate)

    @rule(key=st.sampled_from("abc"), priority=st.sampled_from(Priority))
    def refund(self, key: str, priority: Priority) -> None:
        self.it.refund(key, priority)
        self.tokens[key] = min(self.burst, self.tokens[key] + priority.cost)

    @rule(key=st.sampled_from("abc"))
    def reset(self, key: str) -> None:
        self.it.reset(key)
        self.tokens[key] = self.burst

    @rule()
    def look(self) -> None:
        seen = self.it.snapshot()
        for key, tokens in self.tokens.items():
            assert seen.get(key, KeyState(self.burst, 0.0)).tokens == pytest.approx(max(0.0, tokens), abs=1e-4)


TestManyKeys = ManyKeys.TestCase


# --- threads ---


def in_threads(work: Callable[[], int], threads: int = 8) -> list[int]:
    results: list[int] = []
    ready = threading.Barrier(threads)

    def run() -> None:
        ready.wait()
        results.append(work())

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


@both
@pytest.mark.usefixtures("build", "hurried")
def test_eight_threads_get_exactly_the_tokens_there_are(make: Callable[..., Limiter], clock: ManualClock) -> None:
    limiter = make(4000.0, 1.0, clock=clock)

    taken = in_threads(lambda: drain(limiter))

    assert sum(taken) == 4000


@both
@pytest.mark.usefixtures("build", "hurried")
def test_no_thread_is_refused_while_there_are_tokens(make: Callable[..., Limiter]) -> None:
    limiter = make(4000.0, 1e-6, clock=SystemClock())

    refused = in_threads(lambda: sum(limiter.try_acquire("k") > 0.0 for _ in range(500)))

    assert sum(refused) == 0
    assert limiter.try_acquire("k") > 0.0


@both
@pytest.mark.usefixtures("build")
def test_a_thread_that_comes_late_is_not_refused_while_there_are_tokens(
    make: Callable[..., Limiter], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Threads that read the clock and were then kept waiting come with times out of order.
    monkeypatch.setattr(clock, "monotonic", iter([5.0, 3.0, 6.0, 2.0, 6.0]).__next__)
    limiter = make(4.0, 1.0, clock=clock)

    waits = [limiter.try_acquire("k") for _ in range(5)]

    assert waits == [0.0, 0.0, 0.0, 0.0, 0.0]


@both
@pytest.mark.usefixtures("build", "hurried")
def test_threads_that_take_and_give_back_lose_nothing(make: Callable[..., Limiter], clock: ManualClock) -> None:
    limiter = make(1000.0, 1.0, clock=clock)

    def take_two_and_give_one() -> int:
        for _ in range(100):
            limiter.try_acquire("k")
            limiter.try_acquire("k")
            limiter.refund("k")
        return 0

    in_threads(take_two_and_give_one)

    assert limiter.snapshot()["k"].tokens == pytest.approx(200.0)


@pytest.mark.usefixtures("build", "hurried")
def test_threads_may_cut_and_recover_a_key_while_others_take(clock: ManualClock) -> None:
    limiter = AdaptiveRateLimiter(1000.0, 100.0, clock=clock, max_keys=3)
    turns = iter(range(8))

    def work() -> int:
        mine = next(turns)
        for turn in range(200):
            key = f"key {turn % 5}"
            if mine == 0:
                clock.advance(0.5)
            elif mine == 1:
                limiter.record_rate_limited(key)
            limiter.try_acquire(key)
            limiter.record_success(key)
            assert 5.0 <= limiter.rate(key) <= 100.0
        return 1

    finished = in_threads(work)

    assert sum(finished) == 8
    assert len(limiter.snapshot()) <= 3


@pytest.mark.skipif(not limiters.UNDIVIDED, reason="here everything is done under a lock")
@pytest.mark.parametrize(
    "method", [limiters._Buckets.take, limiters._Buckets.give, Bucket.take, Bucket.admit, Bucket.refund]
)
def test_no_thread_can_come_between_reading_and_writing(method: Callable[..., object]) -> None:
    code = list(dis.get_instructions(method))
    reads = [place for place, step in enumerate(code) if step.opname == "LOAD_ATTR" and step.argval == "full_at"]
    writes = [
        place
        for place, step in enumerate(code)
        if step.opname == "STORE_SUBSCR" or (step.opname == "STORE_ATTR" and step.argval == "full_at")
    ]

    between = [step.opname for step in code[reads[0] : writes[-1]]]

    assert len(between) > 5
    assert [name for name in between if "CALL" in name or "BACKWARD" in name] == []


# --- memory ---


@both
def test_a_key_costs_less_than_a_hundred_bytes(make: Callable[..., Limiter], clock: ManualClock) -> None:
    limiter = make(10.0, 2.0, clock=clock)
    keys = [f"tool {number}" for number in range(10_000)]
    gc.collect()
    tracemalloc.start()

    for key in keys:
        limiter.try_acquire(key)

    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(limiter.snapshot()) == 10_000
    assert used / 10_000 < 100


@both
@pytest.mark.parametrize("step", [0.0, 0.001])
def test_a_flood_of_names_stays_bounded(make: Callable[..., Limiter], clock: ManualClock, step: float) -> None:
    limiter = make(10.0, 2.0, clock=clock, max_keys=500)
    most = 0

    for number in range(20_000):
        limiter.try_acquire(f"hostile {number}")
        if number % 100 == 0:
            clock.advance(step * 100)
            most = max(most, len(limiter._plain.full_at))

    assert 400 < most <= 500


@both
def test_full_buckets_make_room_first(make: Callable[..., Limiter], clock: ManualClock) -> None:
    limiter = make(10.0, 2.0, clock=clock, max_keys=32)
    for number in range(16):
        limiter.try_acquire(f"full {number}")
    clock.advance(10.0)
    for number in range(16):
        limiter.try_acquire(f"used {number}")

    limiter.try_acquire("new")

    assert len(limiter.snapshot()) == 17


@both
def test_of_the_others_those_that_miss_least_make_room(make: Callable[..., Limiter], clock: ManualClock) -> None:
    limiter = make(10.0, 2.0, clock=clock, max_keys=32)
    drain(limiter, "drained")

    for number in range(1000):
        limiter.try_acquire(f"hostile {number}")

    assert limiter.try_acquire("drained") > 0.0


@both
def test_one_key_is_enough_for_a_limiter_of_one_key(make: Callable[..., Limiter], clock: ManualClock) -> None:
    limiter = make(1.0, 2.0, clock=clock, max_keys=1)

    waits = [limiter.try_acquire(key) for key in ("a", "a", "b", "b")]

    assert waits == [0.0, 0.5, 0.0, 0.5]


@both
def test_a_long_name_is_kept_as_a_digest(make: Callable[..., Limiter], clock: ManualClock) -> None:
    limiter = make(2.0, 2.0, clock=clock)
    name = "x" * 1_000_000

    taken = drain(limiter, name)
    limiter.refund(name)

    assert taken == 2
    assert drain(limiter, name) == 1
    assert [len(key) for key in limiter.snapshot()] == [117]


# --- what the adaptive limiter learns ---


@pytest.fixture
def adaptive(clock: ManualClock) -> AdaptiveRateLimiter:
    return AdaptiveRateLimiter(clock=clock, random=lambda: 0.5)


def test_a_refusal_halves_the_rate_of_its_key_alone(adaptive: AdaptiveRateLimiter) -> None:
    adaptive.try_acquire("k")

    adaptive.record_rate_limited("k")

    assert adaptive.rate("k") == 1.0
    assert adaptive.rate("other") == 2.0
    assert adaptive.try_acquire("k") == 1.0
    assert adaptive.try_acquire("other") == 0.0


def test_the_rate_does_not_fall_below_the_floor(adaptive: AdaptiveRateLimiter) -> None:
    for _ in range(20):
        adaptive.record_rate_limited("k")

    assert adaptive.rate("k") == pytest.approx(0.1)


def test_nothing_is_admitted_before_retry_after_plus_a_little_jitter(
    adaptive: AdaptiveRateLimiter, clock: ManualClock
) -> None:
    adaptive.record_rate_limited("k", retry_after=60.0)
    waits = [adaptive.try_acquire("k", priority) for priority in (Priority.CRITICAL, Priority.NORMAL)]

    clock.sleep(waits[1])

    assert waits == [63.0, 63.0]
    assert adaptive.try_acquire("k") == 0.0


def test_refusals_of_calls_admitted_before_the_last_cut_count_once(
    adaptive: AdaptiveRateLimiter, clock: ManualClock
) -> None:
    for _ in range(5):
        adaptive.try_acquire("k")
    admitted_at = clock.monotonic()
    clock.advance(0.05)

    for _ in range(5):
        adaptive.record_rate_limited("k", admitted_at=admitted_at)

    assert adaptive.rate("k") == 1.0


def test_the_snapshot_shows_what_was_learnt(adaptive: AdaptiveRateLimiter, clock: ManualClock) -> None:
    adaptive.record_rate_limited("cut", retry_after=60.0)
    adaptive.try_acquire("plain")

    clock.advance(3.0)

    assert adaptive.snapshot() == {"cut": KeyState(0.0, 1.0, 60.0)}


def test_a_key_that_was_cut_recovers_and_is_a_plain_one_again(
    adaptive: AdaptiveRateLimiter, clock: ManualClock
) -> None:
    adaptive.record_rate_limited("k")
    while adaptive._learnt:
        wait = adaptive.try_acquire("k")
        if wait == 0.0:
            adaptive.record_success("k")
        clock.advance(wait)

    assert 5.0 < clock.monotonic() < 120.0
    assert adaptive.rate("k") == 2.0
    assert adaptive.snapshot()["k"].tokens < 10.0


def test_the_rate_comes_back_without_any_calls(adaptive: AdaptiveRateLimiter, clock: ManualClock) -> None:
    adaptive.record_rate_limited("k")

    clock.advance(3600.0)

    assert adaptive.rate("k") == 2.0


def test_successes_speed_recovery_up(clock: ManualClock) -> None:
    reported, silent = AdaptiveRateLimiter(clock=clock), AdaptiveRateLimiter(clock=clock)
    for limiter in (reported, silent):
        limiter.record_success("other")
        limiter.record_rate_limited("k")
        limiter.record_rate_limited("k")
    clock.advance(0.5)
    reported.record_success("k")
    reported.record_success("unknown")

    clock.advance(1.0)

    assert silent.rate("k") < 1.5
    assert reported.rate("k") > 1.9


def test_where_successes_are_never_reported_calls_stand_for_them(clock: ManualClock) -> None:
    reporting, silent = AdaptiveRateLimiter(clock=clock), AdaptiveRateLimiter(clock=clock)
    reporting.record_success("other")
    for limiter in (reporting, silent):
        limiter.record_rate_limited("k")
        limiter.record_rate_limited("k")
    clock.advance(2.0)
    for limiter in (reporting, silent):
        assert limiter.try_acquire("k") == 0.0

    clock.advance(1.0)

    assert reporting.rate("k") < 1.7
    assert silent.rate("k") > 1.9


def test_a_refund_to_a_key_that_was_cut_counts(adaptive: AdaptiveRateLimiter, clock: ManualClock) -> None:
    adaptive.record_rate_limited("k")
    clock.advance(1.0)
    adaptive.try_acquire("k")

    adaptive.refund("k")

    assert adaptive.try_acquire("k") == 0.0


def test_a_reset_forgets_what_was_learnt(adaptive: AdaptiveRateLimiter) -> None:
    adaptive.record_rate_limited("k", retry_after=60.0)

    adaptive.reset("k")

    assert adaptive.rate("k") == 2.0
    assert adaptive.try_acquire("k") == 0.0


def test_a_long_name_can_be_cut_too(adaptive: AdaptiveRateLimiter) -> None:
    name = "x" * 10_000
    adaptive.try_acquire(name)

    adaptive.record_rate_limited(name)
    adaptive.record_success(name)

    assert adaptive.rate(name) == 1.0
    assert adaptive.try_acquire(name) == 1.0
    assert [len(key) for key in adaptive.snapshot()] == [117]


def test_keys_that_were_cut_are_bounded_too(clock: ManualClock) -> None:
    limiter = AdaptiveRateLimiter(clock=clock, max_keys=20)

    for number in range(200):
        limiter.record_rate_limited(f"hostile {number}")

    assert len(limiter.snapshot()) == 20


def test_the_first_cut_of_a_key_takes_no_room_from_other_keys(clock: ManualClock) -> None:
    limiter = AdaptiveRateLimiter(clock=clock, max_keys=2)
    for key in ("a", "a", "b"):  # b lacks least, so it would be dropped first
        limiter.try_acquire(key)

    limiter.record_rate_limited("a")

    assert limiter.snapshot().keys() == {"a", "b"}


def test_of_the_keys_that_were_cut_the_most_recovered_go_first(clock: ManualClock) -> None:
    limiter = AdaptiveRateLimiter(clock=clock, max_keys=4)
    limiter.record_rate_limited("long ago")
    clock.advance(5.0)
    for number in range(3):
        limiter.record_rate_limited(f"now {number}")

    limiter.try_acquire("new")

    assert list(limiter.snapshot()) == ["new", "now 0", "now 1", "now 2"]


def test_keys_that_were_cut_and_are_as_new_go_before_those_that_are_not_full(clock: ManualClock) -> None:
    limiter = AdaptiveRateLimiter(clock=clock, max_keys=16)
    for number in range(7):
        limiter.record_rate_limited(f"long ago {number}")
    clock.advance(1e7)
    busy = [f"busy {number}" for number in range(9)]
    for key in busy:
        limiter.try_acquire(key)

    limiter.try_acquire("new")

    assert list(limiter.snapshot()) == [*busy, "new"]


def test_a_key_that_was_cut_and_has_yet_to_pause_stays(clock: ManualClock) -> None:
    limiter = AdaptiveRateLimiter(0.5, clock=clock, max_keys=2, floor=1.0, random=lambda: 0.0)
    limiter.record_rate_limited("paused", retry_after=60.0)
    clock.advance(59.8)
    limiter.try_acquire("busy", Priority.HIGH)

    limiter.try_acquire("new", Priority.HIGH)

    assert "paused" in limiter.snapshot()


def test_a_flood_of_names_does_not_wash_away_what_was_learnt(clock: ManualClock) -> None:
    limiter = AdaptiveRateLimiter(clock=clock, max_keys=32)
    limiter.record_rate_limited("cut")

    for number in range(1000):
        limiter.try_acquire(f"hostile {number}")

    assert limiter.rate("cut") == 1.0
    assert len(limiter.snapshot()) <= 32


# --- longer budgets ---


def test_a_budget_a_minute_holds_beside_the_rate(clock: ManualClock) -> None:
    limiter = RateLimiter(10.0, 10.0, per_minute=30.0, clock=clock)
    taken = 0
    for _ in range(10):
        taken += drain(limiter)
        clock.advance(1.0)

    assert taken == 34  # thirty, and one every two seconds
    assert drain(limiter) == 1
    assert limiter.try_acquire("k") == pytest.approx(2.0)


def test_the_longest_wait_of_all_budgets_is_told(clock: ManualClock) -> None:
    limiter = RateLimiter(1.0, 5.0, per_minute=5.0, clock=clock)
    drain(limiter)

    wait = limiter.try_acquire("k")
    clock.advance(wait)

    assert wait == 12.0
    assert limiter.try_acquire("k") == 0.0


def test_a_budget_that_refuses_leaves_the_others_untouched(clock: ManualClock) -> None:
    limiter = RateLimiter(1.0, 5.0, per_minute=5.0, per_run=3, per_session=2, clock=clock)
    for _ in range(5):
        limiter.try_acquire("k", run="r", session="s")
    used = [limiter.try_acquire("k", run="r", session=f"s{number}") for number in range(2)]
    limiter.try_acquire("k", run="r", session="s")

    assert used == [0.0, math.inf]
    assert limiter.snapshot()["k"].tokens == 2.0


def test_a_used_up_run_waits_for_ever_and_others_do_not(clock: ManualClock) -> None:
    limiter = RateLimiter(per_run=2, clock=clock)
    waits = [limiter.try_acquire("k", run="one") for _ in range(3)]

    assert waits == [0.0, 0.0, math.inf]
    assert limiter.try_acquire("k", run="two") == 0.0
    assert limiter.try_acquire("other", run="one") == 0.0
    assert limiter.try_acquire("k") == 0.0


def test_a_session_counts_across_its_runs(clock: ManualClock) -> None:
    limiter = RateLimiter(per_session=2, clock=clock)

    waits = [limiter.try_acquire("k", run=str(number), session="s") for number in range(3)]

    assert waits == [0.0, 0.0, math.inf]


def test_calls_count_in_runs_whatever_they_cost(clock: ManualClock) -> None:
    limiter = RateLimiter(per_run=2, clock=clock)

    waits = [limiter.try_acquire("k", priority, run="r") for priority in (Priority.LOW, Priority.CRITICAL)]

    assert waits == [0.0, 0.0]
    assert limiter.try_acquire("k", Priority.CRITICAL, run="r") == math.inf


def test_a_refund_is_given_back_to_every_budget(clock: ManualClock) -> None:
    limiter = RateLimiter(10.0, 10.0, per_minute=10.0, per_run=1, per_session=1, clock=clock)
    limiter.try_acquire("k", run="r", session="s")

    limiter.refund("k", run="r", session="s")

    assert limiter.snapshot() == {}
    assert limiter.try_acquire("k", run="r", session="s") == 0.0


@pytest.mark.parametrize("budget", ["per_run", "per_session"])
def test_a_refund_is_one_call_of_a_run_or_a_session(clock: ManualClock, budget: str) -> None:
    limiter = RateLimiter(clock=clock, **{budget: 2})
    for _ in range(2):
        limiter.try_acquire("k", run="r", session="s")

    limiter.refund("k", run="r", session="s")

    waits = [limiter.try_acquire("k", run="r", session="s") for _ in range(2)]
    assert waits == [0.0, math.inf]


def test_a_reset_is_for_every_budget_of_the_key(clock: ManualClock) -> None:
    limiter = RateLimiter(per_minute=1.0, per_run=1, clock=clock)
    for key in ("k", "other"):
        limiter.try_acquire(key, run="r")

    limiter.reset("k")

    assert limiter.try_acquire("k", run="r") == 0.0
    assert limiter.try_acquire("other", run="r") == math.inf


def test_the_snapshot_shows_the_bucket_that_holds_less(clock: ManualClock) -> None:
    limiter = RateLimiter(1.0, 5.0, per_minute=60.0, clock=clock)
    limiter.try_acquire("k")

    assert limiter.snapshot() == {"k": KeyState(4.0, 1.0)}


def test_a_cost_above_the_budget_a_minute_takes_nothing(clock: ManualClock) -> None:
    limiter = RateLimiter(per_minute=1.0, clock=clock)

    with pytest.raises(ConfigError, match="2 tokens does not fit a bucket of 1"):
        limiter.try_acquire("k", Priority.LOW)

    assert limiter.snapshot() == {}


def test_runs_are_bounded_and_the_least_recent_are_forgotten(clock: ManualClock) -> None:
    limiter = RateLimiter(1000.0, per_run=1, clock=clock, max_keys=3)
    for run in ("one", "two", "three", "four"):
        limiter.try_acquire("k", run=run)

    assert limiter.try_acquire("k", run="four") == math.inf
    assert limiter.try_acquire("k", run="one") == 0.0


def test_keys_with_budgets_are_bounded_too(clock: ManualClock) -> None:
    limiter = RateLimiter(per_minute=100.0, clock=clock, max_keys=20)

    for number in range(1000):
        limiter.try_acquire(f"hostile {number}")

    assert len(limiter.snapshot()) <= 20
