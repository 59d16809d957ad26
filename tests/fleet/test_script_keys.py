"""What the script costs and what it leaves behind: commands of the usual case, expiry, flushes, clocks that go back."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.fleet.script_client import (
    ADMITTED,
    BY_CIRCUIT,
    BY_RATE,
    EPOCH_US,
    NOT_ASKED,
    Client,
    Outcome,
    Question,
    Reply,
    keys,
)
from tests.servers.redis import GivenRedis, RedisServer

from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.rate import RateConfig

START = EPOCH_US + 27_000_000_123_457
SECOND, HOUR = 1_000_000, 3_600_000
BREAKER, RATE = BreakerConfig(failure_threshold=1), RateConfig(per_second=10.0, burst=5.0)
PATIENT = BreakerConfig(failure_threshold=9)
ASK = Question(breaker=BREAKER, rate=RATE, limit=100, cost=1.0)


@pytest.fixture
def client(fresh_redis: RedisServer | GivenRedis) -> Iterator[Client]:
    with Client(fresh_redis.url) as client:
        yield client


def commands(client: Client, question: Question) -> dict[str, int]:
    """What the script asks of the server while it answers."""
    client.command("CONFIG", "RESETSTAT")
    client.ask(question)
    text = client.command("INFO", "commandstats").decode()
    counts = {name.upper(): int(calls) for name, calls in re.findall(r"cmdstat_(\w+)[^:]*:calls=(\d+)", text)}
    return {name: calls for name, calls in counts.items() if name not in {"EVALSHA", "CONFIG", "INFO"}}


# --- the usual case ---


def test_an_attempt_takes_four_commands(client: Client) -> None:
    client.ask_all([ASK, ASK])

    assert commands(client, ASK) == {"TIME": 1, "HMGET": 1, "HINCRBY": 1, "HSET": 1}


@pytest.mark.parametrize("says", ["", "ok"])
def test_an_attempt_after_another_takes_four_commands(client: Client, says: str) -> None:
    grant = client.ask(ASK)
    question = ASK._replace(outcomes=(Outcome(slots=1, says=says, generation=grant.generation),))

    assert commands(client, question) == {"TIME": 1, "HMGET": 1, "HGET": 1, "HSET": 1}


def test_a_success_that_has_nothing_to_tell_takes_two_commands(client: Client) -> None:
    grant = client.ask(ASK)
    question = Question(breaker=BREAKER, rate=RATE, outcomes=(Outcome(says="ok", generation=grant.generation),))

    assert commands(client, question) == {"TIME": 1, "HMGET": 1}


def test_a_refusal_by_the_rate_takes_two_commands(client: Client) -> None:
    question = ASK._replace(rate=RateConfig(per_second=0.1, burst=1.0), limit=None)
    client.ask(question)

    assert commands(client, question) == {"TIME": 1, "HMGET": 1}


def test_the_time_is_the_servers(client: Client) -> None:
    def server_time() -> int:
        seconds, micros = client.command("TIME")
        return int(seconds) * SECOND + int(micros)

    before, reply, after = server_time(), client.ask(ASK), server_time()

    assert before <= reply.now_us <= after


def test_a_question_without_an_attempt_tells_the_state_and_makes_a_generation_to_rely_on(client: Client) -> None:
    look = client.ask(Question(breaker=BREAKER))

    assert look.verdict == NOT_ASKED
    assert client.ask(ASK).generation == look.generation


# --- how long it is kept ---


def lives(client: Client, tool: str = "tool") -> list[int]:
    return [client.command("PTTL", key) for key in keys(tool) if client.command("EXISTS", key)]


def use_all(client: Client, breaker: BreakerConfig, rate: RateConfig = RATE, lease_us: int = 15 * SECOND) -> None:
    grant = client.ask(ASK._replace(now_us=START, breaker=breaker, rate=rate, lease_us=lease_us))
    outcomes = tuple(Outcome(says=says, generation=grant.generation) for says in ("ok", "timeout"))
    client.ask(Question(now_us=START, breaker=breaker, rate=rate, lease_us=lease_us, outcomes=outcomes))


def test_all_keys_expire_when_idle(client: Client) -> None:
    use_all(client, BreakerConfig(failure_threshold=9, failure_rate=1.0))

    assert len(lives(client)) == 5
    assert all(HOUR - 60_000 < life <= HOUR for life in lives(client))


@pytest.mark.parametrize(
    ("breaker", "rate", "lease_us"),
    [
        (BreakerConfig(failure_threshold=9, window=7200.0), RATE, SECOND),
        (BreakerConfig(failure_threshold=9, max_backoff=3600.0), RATE, SECOND),
        (BreakerConfig(failure_threshold=9, probe_lease=7200.0), RATE, SECOND),
        (PATIENT, RateConfig(per_second=1 / 3600, burst=2.0), SECOND),
        (PATIENT, RateConfig(per_second=1 / 1200, burst=2.0, adaptive=True, floor=1 / 3), SECOND),
        (PATIENT, RATE, 7200 * SECOND),
    ],
)  # fmt: skip
def test_keys_live_at_least_twice_as_long_as_a_policy_needs(
    client: Client, breaker: BreakerConfig, rate: RateConfig, lease_us: int
) -> None:
    use_all(client, breaker, rate, lease_us)

    assert all(4 * HOUR - 60_000 < life <= 4 * HOUR for life in lives(client))


def test_a_long_pause_outlives_the_idle_hour(client: Client) -> None:
    rate = RateConfig(per_second=10.0, adaptive=True)
    limited = Outcome(says="rate_limit", pause_us=7200 * SECOND)

    client.ask(Question(rate=rate, outcomes=(limited,)))

    assert min(lives(client)) > 4 * HOUR - 60_000


def test_an_endless_policy_does_not_break_the_expiry(client: Client) -> None:
    use_all(client, BREAKER, RateConfig(per_second=1e-9, burst=1e9))

    assert min(lives(client)) > HOUR


def test_expiry_is_renewed_by_the_minute_not_by_the_call(client: Client) -> None:
    client.ask_all([ASK._replace(now_us=START + at) for at in (0, 1, 2)])

    assert "PEXPIRE" not in commands(client, ASK._replace(now_us=START + 59 * SECOND))
    assert commands(client, ASK._replace(now_us=START + 60 * SECOND))["PEXPIRE"] == 5


# --- what may go wrong ---


def test_a_flushed_server_starts_anew(client: Client) -> None:
    grant = client.ask(ASK)
    tripped = Question(breaker=BREAKER, outcomes=(Outcome(slots=1, says="timeout", generation=grant.generation),))
    client.ask(tripped)
    assert client.ask(ASK).verdict == BY_CIRCUIT

    client.command("FLUSHDB")

    assert client.ask(tripped).circuit is None
    assert client.ask(ASK).verdict == ADMITTED


def test_a_generation_that_nobody_can_read_is_made_anew(client: Client) -> None:
    before = client.ask(ASK).generation
    client.command("HSET", "hf:{tool}", "generation", "of another program")

    after = client.ask(ASK)

    assert after.verdict == ADMITTED
    assert after.generation > before


def test_a_clock_that_goes_back_an_hour_does_not_stop_the_tool_for_an_hour(client: Client) -> None:
    def at(second: int, take: int = 1) -> Reply:
        return client.ask(Question(now_us=START + second * SECOND, rate=RATE, cost=1.0, take=take))

    before = at(3600, take=5)
    assert at(3600).verdict == BY_RATE

    after = at(0)

    assert after.verdict == ADMITTED
    assert after.generation > before.generation


def test_a_clock_that_goes_back_a_little_changes_nothing(client: Client) -> None:
    first = client.ask(Question(now_us=START, breaker=BREAKER, cost=1.0))
    client.ask(
        Question(now_us=START, breaker=BREAKER, outcomes=(Outcome(says="timeout", generation=first.generation),))
    )

    reply = client.ask(Question(now_us=START - SECOND, breaker=BREAKER, cost=1.0))

    assert reply.verdict == BY_CIRCUIT


@pytest.mark.parametrize("tool", ["", "a b", "{x}", "}{", "ünïcode", "x" * 200, "\r\nFLUSHALL\r\n"])
def test_tools_do_not_meet_whatever_their_names(client: Client, tool: str) -> None:
    grant = client.ask(ASK._replace(tool=tool))
    failed = Outcome(says="timeout", generation=grant.generation)

    client.ask(Question(tool=tool, breaker=BREAKER, outcomes=(failed,)))

    assert client.ask(ASK._replace(tool=tool)).verdict == BY_CIRCUIT
    assert client.ask(ASK._replace(tool="other")).verdict == ADMITTED


@pytest.mark.parametrize("holder", ["", "a b", "-inf", "host:1:\r\n", "ü" * 100])
def test_holders_may_have_any_name(client: Client, holder: str) -> None:
    client.ask(ASK._replace(holder=holder, limit=1))

    client.ask(Question(holder=holder, outcomes=(Outcome(holder, slots=1),)))

    assert client.ask(ASK._replace(holder="b", limit=1)).verdict == ADMITTED
