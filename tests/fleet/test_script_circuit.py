"""The script's circuit: one for the fleet, one probe at a time, generations that never come again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.fleet.script_client import (
    ADMITTED,
    BY_CIRCUIT,
    BY_CONCURRENCY,
    BY_RATE,
    CHANNEL,
    EPOCH_US,
    Client,
    Outcome,
    Question,
    Reply,
    shown,
)
from tests.servers.redis import GivenRedis, RedisServer

from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.circuit import MOST_SIGNS
from holdfast.guards.rate import RateConfig

START = EPOCH_US + 27_000_000_123_457
SECOND = 1_000_000
CLOSED, OPEN, HALF_OPEN = range(3)
TWO = BreakerConfig(failure_threshold=2, min_backoff=5.0, jitter=0.0, probe_lease=3.0)


@pytest.fixture
def client(fresh_redis: RedisServer | GivenRedis) -> Iterator[Client]:
    with Client(fresh_redis.url) as client:
        yield client


def ask(client: Client, at: int = 0, **more: Any) -> Reply:
    return client.ask(Question(now_us=START + at, breaker=TWO, cost=1.0, **more))


def tell(client: Client, of: Reply, says: str, at: int = 0, **more: Any) -> Reply:
    outcome = Outcome(says=says, generation=of.generation, probe=of.probe, **more)
    return client.ask(Question(now_us=START + at, breaker=TWO, outcomes=(outcome,)))


def trip(client: Client) -> Reply:
    """Open the circuit at START; the grant that was used for it."""
    grant = ask(client)
    tell(client, grant, "timeout")
    tell(client, grant, "timeout")
    return grant


def everything(client: Client) -> list[Any]:
    read = {b"hash": ("HGETALL",), b"zset": ("ZRANGE", 0, -1, "WITHSCORES"), b"list": ("LRANGE", 0, -1)}
    kept = []
    for key in sorted(client.command("KEYS", "*")):
        command, *rest = read[client.command("TYPE", key)]
        values = client.command(command, key, *rest)
        kept.append((key, dict(zip(values[::2], values[1::2], strict=True)) if command == "HGETALL" else values))
    return kept


# --- one circuit, one probe ---


def test_failures_of_all_processes_add_up(client: Client) -> None:
    grant = ask(client, holder="a")
    told = [
        client.ask(
            Question(
                now_us=START,
                holder=holder,
                breaker=TWO,
                outcomes=(Outcome(holder, says="timeout", generation=grant.generation),),
            )
        )
        for holder in ("a", "b")
    ]

    states = [reply.circuit.state for reply in told if reply.circuit is not None]

    assert states == [CLOSED, OPEN]
    assert ask(client, holder="c").verdict == BY_CIRCUIT


def test_after_the_wait_one_probe_passes_and_the_others_wait_for_its_lease(client: Client) -> None:
    trip(client)

    replies = [ask(client, 5 * SECOND) for _ in range(3)]

    assert [reply.verdict for reply in replies] == [ADMITTED, BY_CIRCUIT, BY_CIRCUIT]
    assert replies[0].probe >= 0
    assert replies[1].wait_us == 3 * SECOND


def test_the_probe_of_a_dead_process_is_free_again_after_its_lease(client: Client) -> None:
    trip(client)
    ask(client, 5 * SECOND, holder="dead")

    verdicts = [ask(client, at * SECOND, holder="b").verdict for at in (7, 8)]

    assert verdicts == [BY_CIRCUIT, ADMITTED]


def test_the_answer_of_a_probe_whose_lease_is_over_changes_nothing(client: Client) -> None:
    trip(client)
    late = ask(client, 5 * SECOND)
    ask(client, 8 * SECOND)

    reply = tell(client, late, "ok", 8 * SECOND)

    assert reply.circuit is not None
    assert (reply.circuit.state, reply.circuit.probes) == (HALF_OPEN, 1)


def test_a_probe_that_says_nothing_gives_its_place_back(client: Client) -> None:
    trip(client)
    probe = ask(client, 5 * SECOND)

    tell(client, probe, "", 5 * SECOND)

    assert ask(client, 5 * SECOND).verdict == ADMITTED


def test_successes_told_together_without_a_grant_answer_one_probe_each(client: Client) -> None:
    config = msgspec.structs.replace(TWO, half_open_probes=2, successes_to_close=2)
    trip(client)
    for _ in range(2):
        client.ask(Question(now_us=START + 5 * SECOND, breaker=config, cost=1.0))

    many = Outcome(says="ok", generation=-1, probe=-1, count=3)
    told = client.ask(Question(now_us=START + 5 * SECOND, breaker=config, outcomes=(many,)))

    assert told.circuit is not None
    assert told.circuit.state == CLOSED


def test_the_lease_of_a_probe_that_must_wait_for_its_token_begins_after_the_wait(client: Client) -> None:
    rate = RateConfig(per_second=1.0, burst=1.0)
    trip(client)
    client.ask(Question(now_us=START + 5 * SECOND, rate=rate, cost=1.0))
    ask(client, 5 * SECOND, rate=rate, horizon_us=SECOND)

    assert ask(client, 5 * SECOND, rate=rate).wait_us == 4 * SECOND


# --- all or nothing ---


@pytest.mark.parametrize("at", [0, 5 * SECOND])
def test_a_refusal_by_the_circuit_changes_nothing(client: Client, at: int) -> None:
    rate = RateConfig(per_second=1.0, burst=2.0)
    trip(client)
    ask(client, at, rate=rate, limit=2)  # at 5 s it is the probe
    before = everything(client)

    assert ask(client, at, rate=rate, limit=2).verdict == BY_CIRCUIT
    assert everything(client) == before


def test_a_refusal_by_the_rate_changes_nothing_and_leaves_the_probe_to_the_next(client: Client) -> None:
    rate = RateConfig(per_second=0.1, burst=1.0)
    trip(client)
    client.ask(Question(now_us=START + 5 * SECOND, rate=rate, limit=1))  # what it is told anew is written once
    client.ask(Question(now_us=START + 5 * SECOND, rate=rate, cost=1.0))
    before = everything(client)

    assert ask(client, 5 * SECOND, rate=rate, limit=1).verdict == BY_RATE
    assert everything(client) == before
    assert ask(client, 5 * SECOND).probe >= 0


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_refusal_by_concurrency_takes_neither_token_nor_probe(client: Client, adaptive: bool) -> None:
    rate = RateConfig(per_second=1.0, burst=3.0, adaptive=adaptive)
    client.ask(Question(now_us=START, rate=rate, limit=1, cost=1.0))
    trip(client)
    limited = Outcome(says="rate_limit", admitted_at_us=START)
    client.ask(Question(now_us=START + SECOND, rate=rate, outcomes=(limited,)))
    before = everything(client)

    refused = ask(client, 50 * SECOND, rate=rate, limit=1, horizon_us=SECOND)

    assert refused.verdict == BY_CONCURRENCY
    after = everything(client)
    leases = [key for key, _ in after if key.endswith(b":leases")]
    assert [kept for kept in after if kept[0] not in leases] == [kept for kept in before if kept[0] not in leases]


# --- generations ---


def test_an_outcome_of_an_older_generation_changes_nothing(client: Client) -> None:
    old = trip(client)
    probe = ask(client, 5 * SECOND)
    tell(client, probe, "ok", 5 * SECOND)

    tell(client, old, "timeout", 6 * SECOND)
    reply = tell(client, old, "timeout", 6 * SECOND)

    assert reply.circuit is not None
    assert (reply.circuit.state, reply.circuit.failures) == (CLOSED, 0)


def test_every_change_but_the_first_probe_makes_a_new_generation(client: Client) -> None:
    new = trip(client).generation
    probe = ask(client, 5 * SECOND)
    closed = tell(client, probe, "ok", 5 * SECOND).generation
    reset = tell(client, probe, "reset", 5 * SECOND).generation

    assert new < probe.generation < closed < reset


def test_a_generation_does_not_come_again_after_a_flush(client: Client) -> None:
    old = ask(client)
    tell(client, old, "timeout")
    client.command("FLUSHDB")
    again = ask(client, 1)

    tell(client, old, "timeout", 2)
    reply = tell(client, old, "timeout", 2)

    assert again.generation != old.generation
    assert reply.circuit is None


def test_a_reset_closes_and_keeps_how_often_it_has_opened(client: Client) -> None:
    reply = tell(client, trip(client), "reset", SECOND)

    assert reply.circuit is not None
    assert (reply.circuit.state, reply.circuit.times_opened, reply.circuit.failures) == (CLOSED, 1, 0)
    assert ask(client, SECOND).verdict == ADMITTED


def test_a_success_makes_a_circuit_that_never_opened_as_new(client: Client) -> None:
    grant = ask(client)

    replies = [tell(client, grant, says) for says in ("timeout", "ok")]

    assert replies[0].circuit is not None
    assert replies[1].circuit is None


@pytest.mark.parametrize(
    "other", [{"window": 120.0}, {"window": 30.0}, {"window_calls": 8}], ids=["longer", "shorter", "counted"]
)
def test_two_who_tell_under_different_windows_judge_by_what_both_have_told(
    client: Client, other: dict[str, Any]
) -> None:
    one = BreakerConfig(failure_threshold=10_000, failure_rate=0.5, minimum_calls=6, window=60.0)
    breakers = [one, msgspec.structs.replace(one, **other)]

    replies = [
        client.ask(Question(now_us=START + at, breaker=breakers[at % 2], outcomes=(Outcome(says="timeout"),)))
        for at in range(6)
    ]

    assert [reply.circuit.state for reply in replies if reply.circuit] == [CLOSED] * 5 + [OPEN]


def test_a_tool_without_a_breaker_passes_whatever_was_told_of_it(client: Client) -> None:
    trip(client)

    reply = client.ask(Question(now_us=START, cost=1.0))

    assert reply.verdict == ADMITTED
    assert reply.circuit is None


def test_no_more_failures_in_a_row_are_remembered_than_by_one_process(client: Client) -> None:
    patient = BreakerConfig(failure_threshold=10 * MOST_SIGNS)
    many = Question(now_us=START, breaker=patient, outcomes=(Outcome(says="timeout"),) * (MOST_SIGNS // 4))

    replies = client.ask_all([many] * 5)

    assert [reply.circuit and reply.circuit.failures for reply in replies] == [2_500, 5_000, 7_500, 10_000, 10_000]


# --- published ---


def test_each_change_of_the_circuit_is_published_once(client: Client, fresh_redis: RedisServer | GivenRedis) -> None:
    with Client(fresh_redis.url) as listener:
        grant = ask(client)
        tell(client, grant, "timeout")
        listener.command("SUBSCRIBE", CHANNEL)
        tell(client, grant, "timeout")
        opened = client.ask(Question(now_us=START, breaker=TWO))
        probe = ask(client, 5 * SECOND)
        closed = tell(client, probe, "ok", 5 * SECOND)
        reset = tell(client, grant, "reset", 6 * SECOND)
        client.command("PUBLISH", CHANNEL, b"end")

        told = []
        while (message := listener.receive()[2]) != b"end":
            key, generation, circuit = msgspec.msgpack.decode(message)
            told.append((key, generation, shown(circuit)))

    assert [(key, generation) for key, generation, _ in told] == [
        ("hf:{tool}", reply.generation) for reply in (opened, probe, closed, reset)
    ]
    assert [circuit for *_, circuit in told] == [reply.circuit for reply in (opened, probe, closed, reset)]


def test_of_failures_that_open_nothing_the_first_of_a_row_is_published(
    client: Client, fresh_redis: RedisServer | GivenRedis
) -> None:
    three = msgspec.structs.replace(TWO, failure_threshold=3)
    with Client(fresh_redis.url) as listener:
        listener.command("SUBSCRIBE", CHANNEL)
        for says in ("timeout", "timeout", "ok", "timeout"):
            client.ask(Question(now_us=START, breaker=three, outcomes=(Outcome(says=says),)))
        client.command("PUBLISH", CHANNEL, b"end")

        told = []
        while (message := listener.receive()[2]) != b"end":
            told.append(shown(msgspec.msgpack.decode(message)[2]))

    assert [(circuit.state, circuit.failures) for circuit in told] == [(CLOSED, 1), (CLOSED, 1)]
