"""The cache: answers for a while, bounded, and identical calls in flight made once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from holdfast.tools.cache import Cache, Hit, Lead, SharedCall


def lead(cache: Cache, key: bytes = b"k", now: float = 0.0) -> Lead:
    answer = cache.ask(key, now)
    assert isinstance(answer, Lead)
    return answer


def follow(cache: Cache, key: bytes = b"k", now: float = 0.0) -> SharedCall:
    answer = cache.ask(key, now)
    assert isinstance(answer, SharedCall)
    return answer


def hit(cache: Cache, key: bytes = b"k", now: float = 0.0) -> object:
    answer = cache.ask(key, now)
    assert isinstance(answer, Hit)
    return answer.value


def put(cache: Cache, key: bytes, value: object = "answer", expires: float = 10.0, now: float = 0.0) -> None:
    cache.land(lead(cache, key, now), value, expires)


# --- answers ---


def test_an_answer_is_given_again() -> None:
    cache = Cache(10)

    put(cache, b"k", "answer")

    assert hit(cache) == "answer"
    assert len(cache) == 1


@pytest.mark.parametrize("value", [None, False, 0, "", []])
def test_an_answer_may_be_nothing(value: object) -> None:
    cache = Cache(10)

    put(cache, b"k", value)

    assert hit(cache) is value


def test_what_a_call_brought_stays_though_somebody_takes_it_for_given_up() -> None:
    cache = Cache(10)
    flight, awaited = cache.ask(b"k", 0.0), cache.ask(b"k", 0.0)
    assert isinstance(flight, Lead)
    assert isinstance(awaited, SharedCall)

    cache.land(flight, "answer", 10.0)
    cache.crash(flight, None)

    assert (awaited.landed, awaited.value) == (True, "answer")


def test_an_answer_is_good_until_it_expires() -> None:
    cache = Cache(10)
    put(cache, b"k", expires=10.0)

    assert hit(cache, now=9.999) == "answer"
    lead(cache, now=10.0)

    assert len(cache) == 0


def test_other_arguments_have_answers_of_their_own() -> None:
    cache = Cache(10)
    put(cache, b"one", 1)
    put(cache, b"two", 2)

    assert (hit(cache, b"one"), hit(cache, b"two")) == (1, 2)
    lead(cache, b"three")


def test_the_least_recently_used_answer_goes_first() -> None:
    cache = Cache(2)
    put(cache, b"one")
    put(cache, b"two")
    hit(cache, b"one")

    put(cache, b"three")

    assert len(cache) == 2
    hit(cache, b"one")
    hit(cache, b"three")
    lead(cache, b"two")


def test_an_answer_that_comes_anew_counts_as_used() -> None:
    cache = Cache(2)
    put(cache, b"one", "old", expires=1.0)
    put(cache, b"two")

    put(cache, b"one", "new", now=1.0)
    put(cache, b"three")

    assert hit(cache, b"one") == "new"
    lead(cache, b"two")


def test_many_different_calls_stay_within_the_bound() -> None:
    cache = Cache(100)

    for n in range(10_000):
        put(cache, str(n).encode())

    assert len(cache) == 100


# --- identical calls in flight ---


def test_identical_calls_in_flight_are_made_once() -> None:
    cache = Cache(10)
    flight = lead(cache)

    followed = [follow(cache) for _ in range(5)]
    signals = [one.follow() for one in followed]
    assert not any(signal.fired for signal in signals)
    cache.land(flight, "answer", 10.0)

    assert all(signal.fired for signal in signals)
    assert all((one.landed, one.value, one.error) == (True, "answer", None) for one in followed)


def test_the_answer_is_kept_before_the_followers_wake() -> None:
    cache = Cache(10)
    flight = lead(cache)
    seen: list[object] = []
    follow(cache).follow().listen(lambda: seen.append(hit(cache)))

    cache.land(flight, "answer", 10.0)

    assert seen == ["answer"]


def test_who_follows_after_the_landing_is_told_at_once() -> None:
    cache = Cache(10)
    flight = lead(cache)
    late = follow(cache)
    cache.land(flight, "answer", 10.0)

    assert late.follow().fired


def test_a_failure_is_shared_and_not_kept() -> None:
    cache, error = Cache(10), ValueError("of the tool")
    flight = lead(cache)
    followed = follow(cache)
    signal = followed.follow()

    cache.crash(flight, error)

    assert signal.fired
    assert (followed.landed, followed.error) == (True, error)
    lead(cache)


def test_a_cancelled_leader_hands_over_to_one_of_its_followers() -> None:
    cache = Cache(10)
    flight = lead(cache)
    followers = [follow(cache) for _ in range(3)]
    signals = [one.follow() for one in followers]

    cache.crash(flight, None)

    assert all(signal.fired for signal in signals)
    assert not any(one.landed or one.error for one in followers)
    second = lead(cache)
    assert follow(cache) is follow(cache) is second.shared


def test_a_leader_that_is_gone_without_a_word_hands_over() -> None:
    cache = Cache(10)
    flight = lead(cache)
    followed = follow(cache)
    signal = followed.follow()

    del flight

    assert signal.fired
    assert not followed.landed
    lead(cache)


def test_a_leader_that_is_gone_leaves_the_next_one_alone() -> None:
    cache = Cache(10)
    flight = lead(cache)
    cache._shared.clear()  # as if it had been interrupted between two steps of its landing
    second = lead(cache)

    del flight

    assert follow(cache) is second.shared


def test_an_expired_answer_is_fetched_by_one_caller() -> None:
    cache = Cache(10)
    put(cache, b"k", expires=1.0)

    flight = lead(cache, now=2.0)

    assert follow(cache, now=2.0) is flight.shared


def test_of_many_threads_that_ask_at_once_one_leads() -> None:
    for _ in range(50):
        cache, barrier = Cache(10), threading.Barrier(8)
        led: list[bool] = []

        def ask(cache: Cache = cache, barrier: threading.Barrier = barrier, led: list[bool] = led) -> None:
            barrier.wait(30.0)
            answer = cache.ask(b"k", 0.0)
            led.append(isinstance(answer, Lead))
            if isinstance(answer, Lead):
                cache.land(answer, "answer", 10.0)
            elif isinstance(answer, SharedCall):
                woken = threading.Event()
                answer.follow().listen(woken.set)
                assert woken.wait(30.0)
                assert answer.value == "answer"

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(led) == [False] * 7 + [True]


class CacheMachine(RuleBasedStateMachine):
    """Beside the cache a dictionary of answers in order of use, and one of calls in flight."""

    leaders: Bundle[tuple[bytes, Lead]] = Bundle("leaders")

    @initialize(size=st.integers(1, 3))
    def begin(self, size: int) -> None:
        self.size = size
        self.cache = Cache(size)
        self.answers: dict[bytes, tuple[float, int]] = {}
        self.awaited: dict[bytes, SharedCall] = {}
        self.now = 0.0
        self.landed = 0

    @rule(target=leaders, key=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def ask(self, key: bytes) -> Any:
        answer = self.cache.ask(key, self.now)
        kept = self.answers.pop(key, None)
        if kept is not None and kept[0] > self.now:
            self.answers[key] = kept
            assert isinstance(answer, Hit)
            assert answer.value == kept[1]
            return multiple()
        if key in self.awaited:
            assert answer is self.awaited[key]
            return multiple()
        assert isinstance(answer, Lead)
        self.awaited[key] = answer.shared
        return key, answer

    @rule(leader=consumes(leaders), ttl=st.sampled_from([0.0, 1.0, 5.0]))
    def land(self, leader: tuple[bytes, Lead], ttl: float) -> None:
        key, flight = leader
        self.landed += 1
        self.cache.land(flight, self.landed, self.now + ttl)
        del self.awaited[key]
        self.answers.pop(key, None)
        self.answers[key] = (self.now + ttl, self.landed)
        if len(self.answers) > self.size:
            del self.answers[next(iter(self.answers))]

    @rule(leader=consumes(leaders), error=st.sampled_from([None, ValueError("of the tool")]))
    def crash(self, leader: tuple[bytes, Lead], error: Exception | None) -> None:
        key, flight = leader
        self.cache.crash(flight, error)
        del self.awaited[key]

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def they_agree(self) -> None:
        assert len(getattr(self, "cache", ())) == len(getattr(self, "answers", ()))


CacheMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=40)
TestTheCacheDoesWhatADictionaryDoes = CacheMachine.TestCase
