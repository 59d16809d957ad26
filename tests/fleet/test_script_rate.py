"""The script's bucket: exact waits, tokens reserved ahead, blocks of them, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fleet.script_client import ADMITTED, BY_RATE, EPOCH_US, Client, Outcome, Question, Reply
from tests.servers.redis import GivenRedis, RedisServer

from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.rate import RateConfig

START = EPOCH_US + 27_000_000_123_457
SECOND = 1_000_000
TEN = RateConfig(per_second=10.0, burst=5.0)


@pytest.fixture
def client(fresh_redis: RedisServer | GivenRedis) -> Iterator[Client]:
    with Client(fresh_redis.url) as client:
        yield client


def ask(
    client: Client, at: int = 0, rate: RateConfig = TEN, *, cost: float = 1.0, take: int = 1, horizon: int = 0
) -> Reply:
    return client.ask(Question(now_us=START + at, rate=rate, cost=cost, take=take, horizon_us=horizon))


def tell(client: Client, at: int = 0, rate: RateConfig = TEN, **said: object) -> Reply:
    return client.ask(Question(now_us=START + at, rate=rate, outcomes=(Outcome(**said),)))  # type: ignore[arg-type]


def drain(client: Client, rate: RateConfig = TEN) -> None:
    while ask(client, 0, rate).verdict == ADMITTED:
        pass


def test_a_burst_passes_and_the_next_waits_for_one_token(client: Client) -> None:
    replies = [ask(client) for _ in range(6)]

    assert [reply.verdict for reply in replies] == [ADMITTED] * 5 + [BY_RATE]
    assert replies[5].wait_us == SECOND // 10


@pytest.mark.parametrize("per_second", [0.001, 1 / 3, 7.0, 333.3, 99_991.0])
@pytest.mark.parametrize("cost", [0.5, 1.0, 2.0])
def test_who_waits_as_long_as_told_is_admitted_and_not_before(client: Client, per_second: float, cost: float) -> None:
    rate = RateConfig(per_second=per_second, burst=2.0)
    drain(client, rate)
    wait = ask(client, 1, rate, cost=cost).wait_us

    early = ask(client, 1 + wait * 99 // 100 - 1, rate, cost=cost)
    then = ask(client, 1 + wait, rate, cost=cost)

    assert early.verdict == BY_RATE
    assert then.verdict == ADMITTED


def test_a_refusal_takes_nothing(client: Client) -> None:
    drain(client)

    for _ in range(10):
        ask(client, 50_000)

    assert ask(client, 100_000).verdict == ADMITTED


def test_a_token_that_comes_soon_enough_is_reserved(client: Client) -> None:
    drain(client)

    replies = [ask(client, horizon=300_001) for _ in range(4)]

    assert [reply.verdict for reply in replies] == [ADMITTED] * 3 + [BY_RATE]
    assert [reply.wait_us for reply in replies] == pytest.approx([100_000, 200_000, 300_000, 400_000], abs=1, rel=0)


def test_what_was_reserved_is_not_given_to_another(client: Client) -> None:
    drain(client)
    ask(client, horizon=SECOND)

    assert ask(client, 100_000).wait_us == 100_000


def test_a_reserved_token_can_be_given_back(client: Client) -> None:
    drain(client)
    ask(client, horizon=SECOND)

    tell(client, refund=1.0)

    assert ask(client, 100_000).verdict == ADMITTED


def test_a_refund_never_fills_more_than_the_bucket(client: Client) -> None:
    ask(client)

    tell(client, SECOND, refund=3.0)

    assert ask(client, SECOND, take=99).taken == 5


def test_a_block_takes_what_is_there(client: Client) -> None:
    taken = [ask(client, take=3), ask(client, take=3), ask(client, take=3)]

    assert [(reply.verdict, reply.taken) for reply in taken] == [(ADMITTED, 3), (ADMITTED, 2), (BY_RATE, 0)]
    assert ask(client, 200_000, take=3).taken == 2


def test_a_block_of_costly_attempts_counts_attempts(client: Client) -> None:
    reply = ask(client, cost=2.0, take=9)

    assert reply.taken == 2
    assert ask(client, cost=1.0).verdict == ADMITTED
    assert ask(client, cost=0.5).verdict == BY_RATE


def test_a_block_reserves_one_token_if_none_is_there(client: Client) -> None:
    drain(client)

    reply = ask(client, take=7, horizon=SECOND)

    assert (reply.verdict, reply.taken, reply.wait_us) == (ADMITTED, 1, 100_000)


@pytest.mark.parametrize("per_second", [1 / 3, 10.0, 997.0])
def test_blocks_take_no_more_than_single_tokens_would(client: Client, per_second: float) -> None:
    rate = RateConfig(per_second=per_second, burst=100.0)

    taken = sum(ask(client, at * 700_001, rate, take=7).taken for at in range(60))

    assert taken <= 100 + per_second * 59 * 0.700001 + 1e-6


def test_what_is_left_of_a_block_can_be_given_back(client: Client) -> None:
    ask(client, take=5)

    tell(client, refund=4.0, count=4)

    assert ask(client, take=9).taken == 4


def test_without_a_rate_a_block_is_as_large_as_it_was_asked_for(client: Client) -> None:
    assert client.ask(Question(now_us=START, cost=1.0, take=50)).taken == 50


def test_a_call_that_never_fits_is_an_error_and_nothing_is_settled(client: Client) -> None:
    drain(client)
    question = Question(now_us=START, rate=TEN, cost=6.0, outcomes=(Outcome(refund=1.0),))

    with pytest.raises(RuntimeError, match=r"a call of 6\.0 tokens does not fit a bucket of 5\.0"):
        client.ask(question)

    assert ask(client).verdict == BY_RATE


def test_other_settings_keep_the_tokens_that_were_used(client: Client) -> None:
    drain(client)
    slower = RateConfig(per_second=1.0, burst=5.0)

    assert ask(client, rate=slower).wait_us == SECOND
    assert ask(client).wait_us == SECOND // 10


def test_a_smaller_bucket_does_not_owe_more_than_it_holds(client: Client) -> None:
    drain(client)
    smaller = RateConfig(per_second=10.0, burst=1.0)

    assert ask(client, rate=smaller).wait_us == SECOND // 10


def test_two_who_ask_under_different_settings_do_not_fill_the_bucket_for_each_other(client: Client) -> None:
    drain(client)
    smaller = RateConfig(per_second=10.0, burst=1.0)

    went = [[ask(client, rate=smaller).verdict, ask(client).verdict] for _ in range(5)]

    assert went == [[BY_RATE, BY_RATE]] * 5
    assert ask(client, SECOND // 2).verdict == ADMITTED


def test_a_pause_that_the_server_asked_for_holds_for_all_and_then_they_come_one_by_one(client: Client) -> None:
    rate = RateConfig(per_second=10.0, burst=5.0, adaptive=True)
    ask(client, rate=rate)

    reply = tell(client, 0, rate, says="rate_limit", pause_us=2 * SECOND, admitted_at_us=START)

    assert reply.rate_permille == 5_000
    waits = [ask(client, 1, rate, horizon=10 * SECOND).wait_us for _ in range(3)]
    assert waits == [2 * SECOND - 1, 2 * SECOND - 1 + 200_000, 2 * SECOND - 1 + 400_000]


def test_what_was_reserved_before_a_cut_stays_owed(client: Client) -> None:
    rate = RateConfig(per_second=10.0, burst=1.0, adaptive=True)
    for _ in range(11):
        ask(client, rate=rate, horizon=SECOND)

    tell(client, 0, rate, says="rate_limit", admitted_at_us=START)

    assert ask(client, 0, rate).wait_us > 2 * SECOND


def test_refusals_of_calls_under_way_at_the_cut_cut_once(client: Client) -> None:
    rate = RateConfig(per_second=10.0, burst=5.0, adaptive=True)

    cuts = [tell(client, at, rate, says="rate_limit", admitted_at_us=START).rate_permille for at in (1, 2, 3)]

    assert cuts == [5_000, 5_000, 5_000]


def test_refusals_of_calls_that_were_made_without_asking_cut_once_too(client: Client) -> None:
    rate = RateConfig(per_second=10.0, burst=5.0, adaptive=True)

    refusals = [tell(client, at, rate, says="rate_limit", duration_us=SECOND) for at in (1, 2, 3)]
    later = tell(client, 4 * SECOND, rate, says="rate_limit", duration_us=SECOND)

    assert [reply.rate_permille for reply in refusals] == [5_000, 5_000, 5_000]
    assert later.rate_permille is not None
    assert later.rate_permille < 5_000


def test_a_probe_is_one_attempt_however_many_tokens_are_there(client: Client) -> None:
    breaker = BreakerConfig(failure_threshold=1, jitter=0.0)
    first = client.ask(Question(now_us=START, breaker=breaker, rate=TEN, cost=1.0))
    failed = Outcome(says="timeout", generation=first.generation)
    client.ask(Question(now_us=START, breaker=breaker, rate=TEN, outcomes=(failed,)))

    probe = client.ask(Question(now_us=START + 5 * SECOND, breaker=breaker, rate=TEN, cost=1.0, take=5))

    assert probe.probe >= 0
    assert probe.taken == 1
