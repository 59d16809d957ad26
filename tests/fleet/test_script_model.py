"""The script beside our own guards: random policies, asks, outcomes and times; the same verdicts, waits and states.

Waits are the same to the microsecond, rounded up, but for what floats add; the learnt rate to the thousandth.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from tests.fleet.script_client import ADMITTED, BY_CONCURRENCY, EPOCH_US, Client, Outcome, Question, Reply, Shown
from tests.fleet.script_model import STATES, Ask, Expected, Model, Told, seconds
from tests.servers.redis import GivenRedis, RedisServer

from holdfast.category import ErrorCategory
from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.circuit import Grant, Look
from holdfast.guards.rate import RateConfig

STARTS = (EPOCH_US + 27_000_000_123_457, EPOCH_US - 3_000_000, EPOCH_US + 1)  # the script knows no special time
WAITED, ALMOST_WAITED = -1, -2  # gaps: as long as was told last, or a microsecond less
GAPS = (
    *[WAITED] * 6, ALMOST_WAITED, 0, 1, 999, 15_625, 100_000, 333_333, 1_000_000, 2_000_000, 5_000_000, 12_345_678,
    31_000_000, 301_000_000,
)  # fmt: skip
SAYS = (*["ok"] * 3, *["timeout"] * 2, "network", *["rate_limit"] * 2, "invalid_parameters", "", "reset")  # fmt: skip
TRIPS = frozenset({ErrorCategory.TIMEOUT, ErrorCategory.NETWORK})

breakers = st.builds(
    BreakerConfig,
    failure_threshold=st.sampled_from([1, 2, 3, 50]),
    min_backoff=st.sampled_from([0.25, 1.0, 5.0]),
    max_backoff=st.sampled_from([5.0, 17.3, 120.0]),
    backoff_factor=st.sampled_from([1.0, 2.0, 3.7, 1e300]),
    jitter=st.sampled_from([0.0, 0.1, 1.0]),
    half_open_probes=st.sampled_from([1, 1, 2]),
    probe_lease=st.sampled_from([0.5, 2.0, 30.0]),
    successes_to_close=st.sampled_from([1, 1, 2]),
    window=st.sampled_from([1.0, 10.0, 300.0]),
    window_calls=st.sampled_from([None, None, 1, 3, 6]),
    trips=st.sampled_from([TRIPS, TRIPS | {ErrorCategory.RATE_LIMIT}]),
    failure_rate=st.sampled_from([None, None, 0.3, 1.0]),
    slow_call=st.just(1.0),
    slow_call_rate=st.sampled_from([None, None, 0.5]),
    minimum_calls=st.sampled_from([1, 3, 5]),
    distinct_arguments=st.booleans(),
)
rates = st.builds(
    RateConfig,
    per_second=st.sampled_from([0.5, 1 / 3, 2.0, 10.0, 100.0]),
    burst=st.sampled_from([2.0, 2.5, 10.0]),
    adaptive=st.sampled_from([True, True, False]),
    floor=st.sampled_from([0.05, 0.5, 1.0]),
)

# Each step is a round trip. How long thousands of them take is for the machine to say, not for a test.
pytestmark = pytest.mark.timeout(300)


class Telling(NamedTuple):
    """One outcome to tell: of which of the grants that were given, counted from the newest."""

    which: int
    says: str
    count: int
    duration_us: int
    sign: str
    pause_us: int
    refunds: bool
    granted: bool


class Step(NamedTuple):
    """One call of the script."""

    gap_us: int
    holder: str
    telling: list[Telling]
    ask: Ask | None
    chance: float
    other_rate: bool


tellings = st.builds(
    Telling,
    which=st.sampled_from([0, 0, 0, 1, 2, 5]),
    says=st.sampled_from(SAYS),
    count=st.sampled_from([1, 1, 1, 4]),
    duration_us=st.sampled_from([1000, 999_999, 1_000_000]),
    sign=st.sampled_from(["", "x", "y", "#1"]),
    pause_us=st.sampled_from([-1, -1, 0, 700_000, 90_000_000]),
    refunds=st.sampled_from([False, False, False, True]),
    granted=st.sampled_from([True, True, True, True, False]),
)
asks = st.builds(
    Ask,
    cost=st.sampled_from([1.0, 1.0, 2.0, 0.5, 0.1]),
    take=st.sampled_from([1, 1, 1, 3]),
    horizon_us=st.sampled_from([0, 0, 250_000, 5_000_000]),
)
steps = st.builds(
    Step,
    gap_us=st.sampled_from(GAPS) | st.sampled_from(GAPS) | st.integers(0, 3_000_000),
    holder=st.sampled_from(["a", "a", "b"]),
    telling=st.lists(tellings, max_size=3),
    ask=st.none() | asks | asks,
    chance=st.sampled_from([0.0, 0.5, 0.999]),
    other_rate=st.sampled_from([False] * 9 + [True]),
)
moves = st.lists(steps, min_size=5, max_size=40)


class Held(NamedTuple):
    """A grant, as the script and as the guards know it."""

    holder: str
    slots: int
    cost: float
    admitted_at_us: int
    generation: int
    probe: int
    grant: Grant | None


class Pair:
    """The script and the model, told and asked the same."""

    def __init__(self, client: Client, model: Model, now_us: int, other: RateConfig | None) -> None:
        self.client = client
        self.model = model
        self.now_us = now_us
        self.other = other
        self.granted: list[Held] = []
        self.generations: dict[int, int] = {}
        self.told_wait = 0

    def step(self, step: Step) -> Reply:
        model = self.model
        gap = step.gap_us if step.gap_us >= 0 else self.told_wait - (step.gap_us == ALMOST_WAITED)
        self.now_us += max(0, gap)
        if step.other_rate and model.rate is not None and self.other is not None:
            before = model.rate
            model.use(self.now_us, self.other)
            self.other = before
        model.chance = step.chance
        told, outcomes = self._told(step)
        reply = self.client.ask(self._question(step, outcomes))
        expected = model.decide(self.now_us, step.holder, told, step.ask)
        self._agree(reply, expected)
        self.told_wait = max(reply.wait_us, reply.circuit.remaining_us if reply.circuit is not None else 0)
        if reply.verdict == ADMITTED and step.ask is not None:
            slots = 1 if model.limit is not None else 0
            held = Held(step.holder, slots, step.ask.cost, self.now_us, reply.generation, reply.probe, expected.grant)
            self.granted.insert(0, held)
        return reply

    def _question(self, step: Step, outcomes: list[Outcome]) -> Question:
        model = self.model
        question = Question(
            now_us=self.now_us, holder=step.holder, lease_us=model.lease_us, breaker=model.breaker, rate=model.rate,
            limit=model.limit, outcomes=tuple(outcomes), random=step.chance,
        )  # fmt: skip
        return question if step.ask is None else question._replace(**step.ask._asdict())

    def _told(self, step: Step) -> tuple[list[Told], list[Outcome]]:
        told, outcomes = [], []
        for telling in step.telling:
            if telling.which >= len(self.granted):
                continue
            held = self.granted[telling.which]
            self.granted[telling.which] = held._replace(slots=0)  # told again, it gives nothing back
            refund = held.cost if telling.refunds and not telling.says else 0.0
            count = telling.count if telling.says == "ok" else 1
            facts: Any = {
                "holder": held.holder, "slots": held.slots, "refund": refund, "says": telling.says, "count": count,
                "duration_us": telling.duration_us, "sign": telling.sign, "pause_us": telling.pause_us,
                "admitted_at_us": held.admitted_at_us,
            }  # fmt: skip
            grant = held.grant if telling.granted else None
            told.append(Told(grant=grant, **facts))
            number, probe = (held.generation, held.probe) if telling.granted else (-1, -1)
            outcomes.append(Outcome(generation=number, probe=probe, **facts))
        return told, outcomes

    def _agree(self, reply: Reply, expected: Expected) -> None:
        assert reply.now_us == self.now_us
        assert (reply.verdict, reply.taken) == (expected.verdict, expected.taken)
        if expected.wait is None:
            assert reply.verdict == BY_CONCURRENCY
            assert reply.wait_us == -1
        else:
            assert same_wait(reply.wait_us, expected.wait)
        self._same_generation(reply)
        if expected.rate is None:
            assert reply.rate_permille is None
        else:
            assert reply.rate_permille == pytest.approx(expected.rate * 1000, abs=0.6)
        if expected.grant is not None:
            assert (reply.probe >= 0) is (expected.grant.probe is not None)
        if expected.look is None:
            assert reply.circuit is None
        else:
            self._same_circuit(reply.circuit or Shown(0, 0, 0, 0, 0, 0, "", -1), expected.look)

    def _same_generation(self, reply: Reply) -> None:
        known = self.generations.setdefault(self.model.circuit.grant.generation, reply.generation)
        assert reply.generation == known
        assert len(set(self.generations.values())) == len(self.generations)

    def _same_circuit(self, shown: Shown, look: Look) -> None:
        opened_at = -1 if shown.opened_at_us < 0 else seconds(shown.opened_at_us)
        if shown.probes != look.probes and shown.remaining_us == 1:
            reject()  # a lease ends within this microsecond: one counts in whole ones, the other in fractions
        assert STATES[shown.state] is look.state
        assert same_wait(shown.remaining_us, look.wait)
        assert shown.failures == look.failures
        assert shown.backoff_us == round(look.backoff * 1e6)
        assert shown.times_opened == look.times_opened
        assert shown.probes == look.probes
        assert shown.last_category == (look.last_category or "")
        assert opened_at == (-1 if look.opened_at is None else look.opened_at)


def same_wait(wait_us: int, wait: float) -> bool:
    return -0.5 <= wait_us - wait * 1e6 <= 1.5


@pytest.fixture(scope="module")
def client(redis: RedisServer | GivenRedis) -> Iterator[Client]:
    with Client(redis.url) as client:
        yield client


many = settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


def compare(client: Client, model: Model, start: int, other: RateConfig | None, steps: list[Step]) -> Pair:
    client.command("FLUSHDB")
    # Far from the epoch a float tells four nanoseconds apart, and a rate a hundred times slower makes much of them.
    pair = Pair(client, model, start, other if start < STARTS[0] else None)
    for step in steps:
        pair.step(step)
    return pair


@many
@given(breakers, st.sampled_from(STARTS), moves)
def test_the_circuit_is_ours(client: Client, breaker: BreakerConfig, start: int, steps: list[Step]) -> None:
    compare(client, Model(breaker, None, None), start, None, steps)


@many
@given(rates, rates, st.sampled_from(STARTS), moves)
def test_the_rate_is_ours(client: Client, rate: RateConfig, other: RateConfig, start: int, steps: list[Step]) -> None:
    pair = compare(client, Model(None, rate, None), start, other, steps)

    full_at = client.command("HGET", "hf:{tool}", "full_at")
    assert pair.model.bucket is not None
    if full_at is not None:
        assert float(full_at) == pytest.approx(pair.model.bucket.full_at, abs=1e-6, rel=0)


@many
@given(
    st.none() | breakers,
    st.none() | rates,
    rates,
    st.none() | st.integers(1, 3),
    st.sampled_from(STARTS),
    moves,
)
def test_all_together_are_ours(
    client: Client,
    breaker: BreakerConfig | None,
    rate: RateConfig | None,
    other: RateConfig,
    limit: int | None,
    start: int,
    steps: list[Step],
) -> None:
    pair = compare(client, Model(breaker, rate, limit), start, other, steps)

    fields = client.command("HGETALL", "hf:{tool}:holders")
    held = {who.decode(): int(count) for who, count in zip(fields[::2], fields[1::2], strict=True)}
    assert {who: count for who, count in held.items() if count} == {
        who: count for who, count in pair.model.held.items() if count
    }
    assert int(client.command("HGET", "hf:{tool}", "used") or 0) == sum(held.values())


@pytest.mark.parametrize("bears", [3, 7, 40])
@pytest.mark.parametrize("step_us", [50_000, 211_111])
def test_the_rate_learns_as_ours_does_from_a_server_that_bears_so_many_a_second(
    client: Client, bears: int, step_us: int
) -> None:
    rate = RateConfig(per_second=20.0, burst=5.0, adaptive=True)
    client.command("FLUSHDB")
    pair, taken, telling = Pair(client, Model(None, rate, None), STARTS[0], None), [], []

    for number in range(400):
        ask = Ask(cost=2.0 if number % 5 == 0 else 1.0)
        reply = pair.step(Step(step_us, "a", telling, ask, 0.5, other_rate=False))
        telling = []
        if reply.verdict == ADMITTED:
            taken = [at for at in taken if at > reply.now_us - 1_000_000]
            says = "" if number % 7 == 0 else "rate_limit" if len(taken) >= bears else "ok"
            taken += [reply.now_us] if says == "ok" else []
            telling = [Telling(0, says, 1, 1000, "", -1, refunds=True, granted=True)]
