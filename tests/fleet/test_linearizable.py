"""The script before many clients at once: what they were answered, one after the other would have been answered too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

import pytest
from tests.fleet.linear import Operation, order_of
from tests.fleet.script_client import ADMITTED, BY_CIRCUIT, BY_RATE, Client, Outcome, Question, Reply
from tests.fleet.script_model import STATES, Ask, Model, Told, seconds
from tests.servers.redis import GivenRedis, RedisServer

from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.circuit import Grant
from holdfast.guards.rate import Bucket, RateConfig

THREADS = 8
LIMIT = RateConfig(per_second=5.0, burst=5.0)
PROBING = BreakerConfig(failure_threshold=2, min_backoff=0.01, max_backoff=0.05, jitter=0.0, probe_lease=30.0)


class Recorder:
    """Clients in threads of their own that begin together, and the history of what they did."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.history: list[Operation] = []

    def ask(self, client: Client, question: Question) -> Reply:
        began = monotonic_ns()
        reply = client.ask(question)
        ended = monotonic_ns()
        self.history.append(Operation(began, ended, question, reply, hint=reply.now_us))
        return reply

    def together(self, work: Callable[[int, Client], None]) -> None:
        """Have each thread do *work*; a failure of one is raised here."""
        failures: list[BaseException] = []
        clients = [Client(self.url) for _ in range(THREADS)]
        barrier = threading.Barrier(THREADS)

        def run(number: int) -> None:
            try:
                barrier.wait()
                work(number, clients[number])
            except BaseException as error:  # told below
                failures.append(error)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for client in clients:
            client.close()
        if failures:
            raise failures[0]


# --- the limiter ---


def limited(state: tuple[int, float], one: Operation) -> tuple[int, float] | None:
    """A bucket that is asked at the time that the answer says; time does not go back."""
    last, full_at = state
    reply: Reply = one.answered
    if reply.now_us < last:
        return None
    bucket = Bucket(LIMIT)
    bucket.full_at = full_at
    wait = bucket.admit(seconds(reply.now_us))
    same = reply.verdict == (BY_RATE if wait else ADMITTED) and abs(reply.wait_us - wait * 1e6) <= 1.1
    return (reply.now_us, bucket.full_at) if same else None


FULL = (0, float("-inf"))


def test_a_limiter_before_eight_threads_is_linearizable(fresh_redis: RedisServer | GivenRedis) -> None:
    recorder = Recorder(fresh_redis.url)

    def work(number: int, client: Client) -> None:
        for _ in range(6):
            recorder.ask(client, Question(holder=str(number), rate=LIMIT, cost=1.0))

    recorder.together(work)

    assert len(recorder.history) == 6 * THREADS
    assert {one.answered.verdict for one in recorder.history} == {ADMITTED, BY_RATE}
    assert order_of(recorder.history, FULL, limited) is not None


# --- the circuit ---


@dataclass(frozen=True)
class Reached:
    """A circuit after some operations. Equal is what will answer alike, whatever way led there."""

    look: tuple[Any, ...] = ()
    path: tuple[Operation, ...] = field(default=(), compare=False)


def guarded(state: Reached, one: Operation) -> Reached | None:
    """Our own circuit, told and asked along the path once more, and then *one*; None if it answers otherwise."""
    model = Model(PROBING, None, None)
    grants: dict[tuple[int, int], Grant | None] = {}
    generations: dict[int, int] = {}
    last = 0
    for step in (*state.path, one):
        reply: Reply = step.answered
        told = [
            Told(outcome.holder, grants.get((outcome.generation, outcome.probe)), says=outcome.says)
            for outcome in step.asked.outcomes
        ]
        if reply.now_us < last or any(each.grant is None for each in told):
            return None
        last = reply.now_us
        ask = Ask() if step.asked.cost is not None else None
        expected = model.decide(reply.now_us, step.asked.holder, told, ask)
        known = generations.setdefault(model.circuit.grant.generation, reply.generation)
        if (reply.verdict, reply.generation) != (expected.verdict, known) or not _shows(reply, expected.look):
            return None
        if reply.verdict == ADMITTED:
            grants[reply.generation, reply.probe] = expected.grant
    circuit = model.circuit
    probes = tuple(circuit._probes.items())
    look = (last, circuit.grant.generation, circuit.state, circuit._until, len(circuit._signs), probes, tuple(grants))
    return Reached(look, (*state.path, one))


def _shows(reply: Reply, look: Any) -> bool:
    if reply.circuit is None:
        return look.times_opened == look.failures == 0
    return (STATES[reply.circuit.state], reply.circuit.failures, reply.circuit.probes) == (
        look.state,
        look.failures,
        look.probes,
    )


def outcome_of(grant: Reply, says: str, holder: str = "a") -> Question:
    outcome = Outcome(holder, says=says, generation=grant.generation, probe=grant.probe)
    return Question(holder=holder, breaker=PROBING, outcomes=(outcome,))


def opened(recorder: Recorder, client: Client) -> None:
    """Open the circuit and wait, by the server's clock, until it lets a probe through."""
    for _ in range(2):
        recorder.ask(client, outcome_of(recorder.ask(client, Question(breaker=PROBING, cost=1.0)), "timeout"))
    until = recorder.history[-1].answered.now_us + recorder.history[-1].answered.circuit.remaining_us
    while _now(client) < until:
        pass


def _now(client: Client) -> int:
    whole, micros = client.command("TIME")
    return int(whole) * 1_000_000 + int(micros)


def test_one_probe_before_eight_threads_is_linearizable(fresh_redis: RedisServer | GivenRedis) -> None:
    recorder = Recorder(fresh_redis.url)
    with Client(fresh_redis.url) as client:
        opened(recorder, client)

    def work(number: int, client: Client) -> None:
        recorder.ask(client, Question(holder=str(number), breaker=PROBING, cost=1.0))

    recorder.together(work)

    verdicts = sorted(one.answered.verdict for one in recorder.history[4:])
    assert verdicts == [ADMITTED] + [BY_CIRCUIT] * (THREADS - 1)
    assert order_of(recorder.history, Reached(), guarded) is not None


def test_a_circuit_that_eight_threads_open_and_close_is_linearizable(fresh_redis: RedisServer | GivenRedis) -> None:
    recorder = Recorder(fresh_redis.url)

    def work(number: int, client: Client) -> None:
        for turn in range(3):
            reply = recorder.ask(client, Question(holder=str(number), breaker=PROBING, cost=1.0))
            if reply.verdict == ADMITTED:
                says = "ok" if (number + turn) % 3 == 0 else "timeout"
                recorder.ask(client, outcome_of(reply, says, str(number)))

    recorder.together(work)

    assert order_of(recorder.history, Reached(), guarded) is not None


# --- the checker ---


def asked(began: int, ended: int, verdict: int, at: int) -> Operation:
    reply = Reply(verdict, 0 if verdict == ADMITTED else 200_000, 1, -1, 1, at, None, None)
    return Operation(began, ended, Question(rate=LIMIT, cost=1.0), reply, hint=at)


def test_the_checker_finds_the_order_among_operations_at_the_same_time() -> None:
    burst = [asked(0, 100, ADMITTED, 1000) for _ in range(5)]
    refused = asked(0, 100, BY_RATE, 1000)

    order = order_of([refused, *burst], FULL, limited)

    assert order is not None
    assert order[-1] is refused


def test_the_checker_refuses_one_call_too_many() -> None:
    assert order_of([asked(0, 100, ADMITTED, 1000) for _ in range(6)], FULL, limited) is None


def test_the_checker_refuses_an_order_that_real_time_forbids() -> None:
    refused = asked(0, 10, BY_RATE, 1000)
    burst = [asked(20, 100, ADMITTED, 1000) for _ in range(5)]

    assert order_of([refused, *burst], FULL, limited) is None


def test_the_checker_refuses_time_that_goes_back() -> None:
    assert order_of([asked(0, 10, ADMITTED, 2000), asked(20, 30, ADMITTED, 1000)], FULL, limited) is None


def test_the_checker_does_not_try_the_same_twice() -> None:
    steps = 0

    def counted(state: tuple[int, float], one: Operation) -> tuple[int, float] | None:
        nonlocal steps
        steps += 1
        return limited(state, one)

    alike = [asked(0, 100, ADMITTED, 1000) for _ in range(5)] + [asked(0, 100, BY_RATE, 1000) for _ in range(8)]
    history = [*alike, asked(0, 100, ADMITTED, 1000)]

    assert order_of(history, FULL, counted) is None
    assert steps < 20_000  # of fourteen operations there are 87 thousand million orders


@pytest.mark.parametrize("wrong", ["two probes", "a lost failure"])
def test_the_checker_refuses_a_circuit_that_errs(fresh_redis: RedisServer | GivenRedis, wrong: str) -> None:
    recorder = Recorder(fresh_redis.url)
    with Client(fresh_redis.url) as client:
        opened(recorder, client)
        recorder.ask(client, Question(breaker=PROBING, cost=1.0))
        recorder.ask(client, Question(breaker=PROBING, cost=1.0))
    history = list(recorder.history)
    assert order_of(history, Reached(), guarded) is not None

    if wrong == "two probes":
        second = history[-1].answered._replace(verdict=ADMITTED, wait_us=0, probe=99)
        history[-1] = history[-1]._replace(answered=second)
    else:
        del history[1]

    assert order_of(history, Reached(), guarded) is None
