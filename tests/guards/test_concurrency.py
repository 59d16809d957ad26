"""Slots: a fixed limit, one that is changed in flight, and one that follows the latency of a simulated server."""

from __future__ import annotations

import heapq
import itertools
import math
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.errors import ConfigError
from holdfast.guards.concurrency import FIRST, ConcurrencyConfig, Slots


def fixed(limit: int) -> Slots:
    return Slots(ConcurrencyConfig(limit=limit))


def adaptive(limit: int) -> Slots:
    return Slots(ConcurrencyConfig(limit=limit, adaptive=True))


def fill(slots: Slots) -> int:
    """Take all there is."""
    taken = 0
    while slots.take():
        taken += 1
    return taken


# --- a fixed limit ---


@pytest.mark.parametrize("limit", [1, 2, 10, 1000])
def test_as_many_calls_pass_as_the_limit_says(limit: int) -> None:
    slots = fixed(limit)

    assert fill(slots) == limit
    assert slots.in_flight == limit
    assert not slots.take()


@pytest.mark.parametrize("give", [Slots.give, lambda slots: slots.settle(1.0), lambda slots: slots.settle(None)])
def test_a_call_that_ends_makes_room_for_one(give: Callable[[Slots], None]) -> None:
    slots = fixed(3)
    fill(slots)

    give(slots)

    assert fill(slots) == 1


def test_a_fixed_limit_does_not_move_whatever_the_latency() -> None:
    slots = fixed(5)
    for duration in [0.001, 1000.0, 0.001] * 100:
        slots.take()
        slots.settle(duration, overloaded=duration > 1)

    assert slots.limit == 5
    assert slots.plain


def test_a_lower_limit_waits_for_calls_in_flight() -> None:
    slots = fixed(5)
    fill(slots)

    slots.configure(ConcurrencyConfig(limit=2))
    assert (slots.limit, slots.in_flight) == (2, 5)
    for in_flight in (4, 3, 2):
        assert not slots.plain
        slots.settle(1.0)
        assert slots.in_flight == in_flight
        assert not slots.take()
    assert slots.plain
    slots.settle(1.0)

    assert fill(slots) == 1


def test_a_lower_limit_takes_free_slots_first() -> None:
    slots = fixed(5)
    slots.take()

    slots.configure(ConcurrencyConfig(limit=2))

    assert slots.plain
    assert fill(slots) == 1


def test_a_higher_limit_holds_at_once() -> None:
    slots = fixed(2)
    fill(slots)

    slots.configure(ConcurrencyConfig(limit=5))

    assert fill(slots) == 3


def test_a_limit_that_is_lowered_and_raised_owes_nothing() -> None:
    slots = fixed(5)
    fill(slots)

    slots.configure(ConcurrencyConfig(limit=2))
    slots.configure(ConcurrencyConfig(limit=4))

    assert not slots.take()
    slots.settle(1.0)
    assert not slots.take()
    assert slots.plain
    slots.settle(1.0)
    assert slots.take()


HUGE = 10**400


@pytest.mark.parametrize("limit", [0, -1, 1.0, 2.5, math.nan, math.inf, HUGE, 10**9, 1_000_001, "5", True, None, [5]])
def test_a_bad_limit_is_a_config_error_that_says_which_what_and_why(limit: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"^limit = .+: must be a whole number of at least 1 and at most 1000000$"
    ) as caught:
        ConcurrencyConfig(limit=limit)

    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("flag", [1, 0, "yes", None])
def test_adaptive_must_be_true_or_false(flag: Any) -> None:
    with pytest.raises(ConfigError, match=r"^adaptive = .+: must be true or false$"):
        ConcurrencyConfig(limit=5, adaptive=flag)


def test_the_greatest_limit_that_is_allowed_works() -> None:
    assert fixed(1_000_000).limit == 1_000_000


# --- against a model: calls that end, are cancelled or lost, overloads, other limits ---


class SlotsMachine(RuleBasedStateMachine):
    """Beside the slots two numbers: how many calls are inside, and, where the limit is fixed, how many may be."""

    @initialize(limit=st.integers(1, 6), adapts=st.booleans())
    def begin(self, limit: int, adapts: bool) -> None:
        self.config = ConcurrencyConfig(limit=limit, adaptive=adapts)
        self.slots = Slots(self.config)
        self.inside = 0

    @rule()
    def ask(self) -> None:
        room = self.inside < self.slots.limit

        assert self.slots.take() is room
        self.inside += room

    @rule()
    def ask_for_all(self) -> None:
        self.inside += fill(self.slots)

        assert self.inside >= self.slots.limit

    @precondition(lambda self: self.inside)
    @rule(duration=st.none() | st.sampled_from([0.0, 1e-9, 0.1, 1.0, 100.0]), overloaded=st.booleans())
    def end(self, duration: float | None, overloaded: bool) -> None:
        self.slots.settle(duration, overloaded=overloaded)
        self.inside -= 1

    @precondition(lambda self: self.inside and self.slots.plain)
    @rule()
    def end_without_the_lock(self) -> None:
        self.slots.free.append(None)
        self.inside -= 1

    @precondition(lambda self: self.inside)
    @rule(rounds=st.integers(1, 60), duration=st.sampled_from([0.1, 1.0, 100.0]))
    def end_and_ask_again_many_times(self, rounds: int, duration: float) -> None:
        for _ in range(rounds):
            self.slots.settle(duration)
            if not self.slots.take():
                self.inside -= 1
                return

    @rule(limit=st.integers(1, 6), adapts=st.booleans())
    def configure(self, limit: int, adapts: bool) -> None:
        self.config = ConcurrencyConfig(limit=limit, adaptive=adapts)
        self.slots.configure(self.config)

    @invariant()
    @precondition(lambda self: hasattr(self, "slots"))
    def they_agree(self) -> None:
        slots = self.slots
        assert slots.in_flight == self.inside
        assert 1 <= slots.limit <= self.config.limit
        assert self.config.adaptive or slots.limit == self.config.limit
        assert len(slots.free) == max(0, slots.limit - self.inside)
        assert not (slots.plain and (self.config.adaptive or self.inside > slots.limit))
        assert slots.plain or self.config.adaptive or self.inside > slots.limit


SlotsMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestSlotsDoWhatTheModelDoes = SlotsMachine.TestCase


# --- threads ---


class Crowd:
    """Threads that go in and out the way a guarded call does: in without a lock, out with one where need be."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.lock = threading.Lock()
        self.counting = threading.Lock()
        self.inside = self.most = self.passed = self.refused = 0

    def visit(self) -> None:
        if not self.slots.take():
            with self.counting:
                self.refused += 1
            return
        with self.counting:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.passed += 1
        with self.counting:
            self.inside -= 1
        if self.slots.plain:
            self.slots.free.append(None)
        else:
            with self.lock:
                self.slots.settle(0.01)

    def rush(self, number: int, visits: int) -> None:
        barrier = threading.Barrier(number)

        def run() -> None:
            barrier.wait(30.0)
            for _ in range(visits):
                self.visit()

        threads = [threading.Thread(target=run) for _ in range(number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@pytest.mark.usefixtures("hurried")
def test_eight_threads_and_eight_slots_see_no_refusal() -> None:
    crowd = Crowd(fixed(8))

    crowd.rush(8, 500)

    assert (crowd.passed, crowd.refused) == (4000, 0)
    assert crowd.slots.in_flight == 0


@pytest.mark.usefixtures("hurried")
def test_eight_threads_never_get_past_a_limit_of_three() -> None:
    crowd = Crowd(fixed(3))

    crowd.rush(8, 500)

    assert crowd.passed + crowd.refused == 4000
    assert 1 <= crowd.most <= 3
    assert fill(crowd.slots) == 3


@pytest.mark.usefixtures("hurried")
def test_threads_under_an_adaptive_limit_lose_no_slot() -> None:
    crowd = Crowd(adaptive(4))

    crowd.rush(8, 500)

    assert crowd.most <= 4
    assert crowd.slots.in_flight == 0
    assert fill(crowd.slots) == crowd.slots.limit


# --- an adaptive limit ---


class Server:
    """Works on *capacity* calls at once, *seconds* each; the rest wait in line. On simulated time."""

    def __init__(self, slots: Slots, *, capacity: int = 10, seconds: float = 0.1, callers: int = 400) -> None:
        self.slots, self.capacity, self.seconds = slots, capacity, seconds
        self.waiting = callers  # each comes back as soon as it was served
        self.patience = math.inf  # calls that take longer fail, and say that it is too much
        self.uneven = 0.1
        self.now = 0.0
        self.limits: list[int] = []
        self.served = 0
        self._busy = 0
        self._line: deque[float] = deque()
        self._ends: list[tuple[float, int, float]] = []
        self._order = itertools.count()
        self._dice = random.Random(7)

    def run(self, seconds: float) -> float:
        """Let time pass; answers the mean limit of its last half."""
        end, self.limits, self.served = self.now + seconds, [], 0
        self._let_in()
        while self._ends and self._ends[0][0] <= end:
            self.now, _, begun = heapq.heappop(self._ends)
            self._busy -= 1
            self.served += 1
            self.slots.settle(self.now - begun, overloaded=self.now - begun > self.patience)
            self.waiting += 1
            self._let_in()
            self.limits.append(self.slots.limit)
        half = self.limits[len(self.limits) // 2 :]
        return sum(half) / len(half)

    def _let_in(self) -> None:
        while self.waiting and self.slots.take():
            self.waiting -= 1
            self._line.append(self.now)
        while self._line and self._busy < self.capacity:
            self._busy += 1
            took = self.seconds * (1 + self.uneven * self._dice.uniform(-1, 1))
            heapq.heappush(self._ends, (self.now + took, next(self._order), self._line.popleft()))


def test_an_adaptive_limit_starts_at_a_moderate_number() -> None:
    assert adaptive(200).limit == FIRST == 20


def test_an_adaptive_limit_never_starts_above_what_is_allowed() -> None:
    assert adaptive(5).limit == 5


@pytest.mark.parametrize("capacity", [2, 10, 40])
def test_an_adaptive_limit_ends_near_the_capacity_of_the_server(capacity: int) -> None:
    server = Server(adaptive(200), capacity=capacity)

    limit = server.run(150.0)

    assert capacity * 0.9 <= limit <= capacity * 1.5 + 1


def test_an_adaptive_limit_wastes_little_of_the_server() -> None:
    server = Server(adaptive(200))
    server.run(60.0)

    server.run(120.0)

    assert server.served > 0.93 * 10 / 0.1 * 120


def test_an_adaptive_limit_does_not_creep_up_in_the_long_run() -> None:
    server = Server(adaptive(200))
    server.run(100.0)

    late = server.run(1000.0)

    assert late <= 16
    assert max(server.limits) <= 25


def test_a_server_that_serves_one_at_a_time_gets_few_at_once() -> None:
    server = Server(adaptive(200), capacity=1)

    limit = server.run(200.0)

    assert 1 <= limit <= 3


def test_an_adaptive_limit_grows_to_what_is_allowed_while_latency_does_not() -> None:
    server = Server(adaptive(50), capacity=1000)

    server.run(60.0)

    assert max(server.limits) == 50
    assert server.limits.count(50) > 0.9 * len(server.limits)


def test_an_adaptive_limit_follows_a_server_that_loses_capacity_and_recovers_with_it() -> None:
    server = Server(adaptive(200))
    before = server.run(60.0)

    server.capacity = 2
    less = server.run(120.0)
    server.capacity = 10
    after = server.run(120.0)

    assert less <= 5
    assert after == pytest.approx(before, rel=0.25)


def test_an_adaptive_limit_gets_used_to_a_server_that_is_slower_in_itself() -> None:
    server = Server(adaptive(200))
    before = server.run(60.0)

    server.seconds = 0.5
    server.run(300.0)
    slower = server.run(300.0)

    assert slower == pytest.approx(before, rel=0.25)


def test_an_adaptive_limit_gets_used_to_a_server_that_is_quicker_in_itself() -> None:
    server = Server(adaptive(200))
    before = server.run(60.0)

    server.seconds = 0.06
    server.run(100.0)
    quicker = server.run(100.0)

    assert quicker == pytest.approx(before, rel=0.25)


def test_an_adaptive_limit_bears_calls_that_differ_much() -> None:
    server = Server(adaptive(200))
    server.uneven = 0.95

    limit = server.run(300.0)

    assert 8 <= limit <= 25


def test_an_overload_lowers_the_limit_at_once_and_it_recovers() -> None:
    slots = adaptive(200)
    server = Server(slots)
    before = server.run(60.0)

    server.patience = 0.0
    server.run(1.0)
    overloaded = slots.limit
    server.patience = math.inf
    after = server.run(120.0)

    assert overloaded <= before / 2
    assert after == pytest.approx(before, rel=0.25)


def test_many_overloads_at_once_count_as_one() -> None:
    slots = adaptive(20)
    fill(slots)

    for _ in range(20):
        slots.settle(1.0, overloaded=True)

    assert slots.limit == 16


def test_overloads_one_after_another_count_each() -> None:
    slots = adaptive(20)

    for _ in range(3):
        slots.take()
        slots.settle(1.0, overloaded=True)

    assert slots.limit == 10


def test_a_limit_never_falls_below_one() -> None:
    slots = adaptive(20)

    for _ in range(100):
        slots.take()
        slots.settle(1.0, overloaded=True)

    assert slots.limit == 1
    assert slots.take()


def test_a_limit_of_one_recovers() -> None:
    slots = adaptive(200)
    for _ in range(100):
        slots.take()
        slots.settle(1.0, overloaded=True)

    limit = Server(slots).run(120.0)

    assert 9 <= limit <= 16


@pytest.mark.parametrize("duration", [None, 0.1])
def test_calls_that_do_not_use_the_limit_up_do_not_move_it(duration: float | None) -> None:
    slots = adaptive(200)
    for _ in range(19):
        slots.take()

    for _ in range(1000):
        slots.settle(duration)
        slots.take()

    assert slots.limit == 20


def test_cancelled_calls_say_nothing_about_latency() -> None:
    slots = adaptive(200)

    for _ in range(1000):
        fill(slots)
        slots.settle(None)

    assert slots.limit == 20


def test_calls_that_take_no_time_at_all_are_borne() -> None:
    slots = adaptive(200)

    for _ in range(2000):
        fill(slots)
        slots.settle(0.0)

    assert slots.limit >= 20


def test_a_changed_setting_keeps_what_was_learnt() -> None:
    slots = adaptive(200)
    Server(slots).run(60.0)
    learnt = slots.limit

    slots.configure(ConcurrencyConfig(limit=100, adaptive=True))

    assert abs(slots.limit - learnt) <= 2


def test_the_same_settings_again_keep_what_is_being_learnt() -> None:
    slots = adaptive(20)

    for _ in range(2):
        fill(slots)
        for _ in range(slots.in_flight):
            slots.configure(ConcurrencyConfig(limit=20, adaptive=True))
            slots.settle(1.0, overloaded=True)

    assert slots.limit == 12


def test_a_lower_allowance_holds_for_what_was_learnt_too() -> None:
    slots = adaptive(200)

    slots.configure(ConcurrencyConfig(limit=3, adaptive=True))

    assert slots.limit == 3


def test_a_fixed_limit_made_adaptive_starts_to_learn_and_back() -> None:
    slots = fixed(100)
    slots.configure(ConcurrencyConfig(limit=100, adaptive=True))
    assert (slots.limit, slots.plain) == (20, False)

    slots.configure(ConcurrencyConfig(limit=100))

    assert (slots.limit, slots.plain) == (100, True)


# --- beside other threads ---


def test_a_slot_that_comes_back_while_the_limit_falls_is_not_given_again() -> None:
    kept_back: list[None] = []

    class Interrupted(Slots):
        @property
        def limit(self) -> int:
            if self._owed and not kept_back and not self.free:  # another thread gives its slot back now
                (self.free if self.plain else kept_back).append(None)
            return super().limit

    slots = Interrupted(ConcurrencyConfig(limit=2))
    fill(slots)
    slots.configure(ConcurrencyConfig(limit=1))
    for _ in kept_back:  # it had to wait for the lock
        slots.settle(None)

    assert not slots.take()  # the other call still runs
