"""Eight processes on one Redis act as one: one circuit, one probe, one limit. What reaches a tool is counted there."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.children import Child, Start
from tests.fleet.admissions import APART, meets, most_in_a_second, seconds_after, watched
from tests.fleet.children import answer, begin, children, order
from tests.fleet.members import questions, wait_until
from tests.fleet.upstream import Upstream, upstream
from tests.servers.redis import GivenRedis, RedisServer

from holdfast.fleet.desk import block_of
from holdfast.fleet.fleet import LEASE
from holdfast.guards.rate import RateConfig

THREADS = 4
HOUR = 3600.0
SHORT, LONG = 0.3, 600.0  # the first wait of a circuit, and the second
RATE = 100
CROWDED, STRETCH = 0.5, 3.0  # seconds until all stand in line, and for how long they are watched then
LEASED = {"per_second": RATE, "burst": 20}
POLICIES = {
    "policy": {
        "max_wait": 60.0,
        "breaker": {
            "failure_threshold": 3, "min_backoff": SHORT, "max_backoff": LONG, "backoff_factor": LONG / SHORT,
            "jitter": 0.0,
        },
    },
    "tool": {
        "long": {"breaker": {"min_backoff": LONG}},
        "skewed": {"breaker": {"min_backoff": LONG}},
        "orphan": {"breaker": {"probe_lease": 2.0}},
        "twenty": {"breaker": {"failure_threshold": 20}},
        "paced": {"rate": {"per_second": RATE, "burst": 1}},
        "leased": {"rate": LEASED, "mode": "leased"},
        "five": {"concurrency": 5},
        "held": {"concurrency": 2},
        "inherited": {"concurrency": 2},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def start(redis: RedisServer | GivenRedis) -> Iterator[Callable[..., list[Child]]]:
    """Starts workers of one fleet. They are patient: how busy the machine is must not decide who is asked."""
    with children() as start_child:
        yield partial(_workers, start_child, f"{redis.url}?prefix=processes&wait=10")


@pytest.fixture(scope="module")
def crew(start: Callable[..., list[Child]]) -> list[Child]:
    """Eight workers; the clocks of two are an hour off."""
    return start(off=[0.0] * 6 + [HOUR, -HOUR])


@pytest.fixture
def tool() -> Iterator[Upstream]:
    """The tool, failing."""
    with upstream("fail") as one:
        yield one


def _workers(
    start: Start, url: str, number: int = 1, *, lease: float = LEASE, off: Iterable[float] | None = None
) -> list[Child]:
    workers = [start("worker", url, json.dumps(POLICIES), lease, wrong) for wrong in off or [0.0] * number]
    assert all(answer(worker) == "ready" for worker in workers)
    return workers


# --- one circuit, one probe -------------------------------------------------------------------------------------------


def test_exactly_one_probe_of_the_whole_fleet_reaches_a_failing_tool_after_the_wait(
    crew: list[Child], tool: Upstream
) -> None:
    trip(crew[0], "once", tool)
    tool.turn("hold")
    storm(crew, "once", tool)

    tool.wait_for(4)
    wait_for_refusals(crew)
    while_out = tool.reached
    tool.turn("fail")
    wait_until(lambda: states(crew, "once") == {"open"})
    wait_for_refusals(crew)
    stop(crew)

    assert (while_out, tool.reached) == (4, 4)


def test_a_probe_that_succeeds_closes_the_circuit_of_all_who_are_told(crew: list[Child], tool: Upstream) -> None:
    trip(crew[0], "closed", tool)
    seen = [order(worker, "call", tool="closed", port=tool.port) for worker in crew[1:]]
    tool.turn("ok")

    storm(crew[:1], "closed", tool)
    for worker in crew:
        order(worker, "wait_for", type="circuit_closed", tool="closed")
    stop(crew[:1])

    assert seen == [["CircuitOpen"]] * 7
    assert states(crew, "closed") == {"closed"}


def test_freshly_started_workers_know_of_an_open_circuit_before_their_first_call(
    crew: list[Child], start: Callable[..., list[Child]], tool: Upstream
) -> None:
    trip(crew[0], "long", tool)
    trip(crew[1], "fresh", tool)

    fresh = start(2)
    first = [order(worker, "call", tool="long", port=tool.port) for worker in fresh]
    tool.turn("hold")
    storm([*fresh, *crew[:2]], "fresh", tool)
    tool.wait_for(7)
    wait_for_refusals([*fresh, *crew[:2]])
    reached = tool.reached
    tool.turn("ok")
    stop([*fresh, *crew[:2]])

    assert first == [["CircuitOpen"]] * 2
    assert reached == 3 + 3 + 1


def test_the_probe_of_a_killed_process_is_anothers_after_its_lease(
    crew: list[Child], start: Callable[..., list[Child]], tool: Upstream
) -> None:
    (victim,) = start()
    trip(crew[0], "orphan", tool)
    tool.turn("hold")
    storm([victim], "orphan", tool, threads=1)
    tool.wait_for(4)

    victim.kill()
    victim.wait()
    tool.turn("fail")
    storm(crew, "orphan", tool)
    tool.wait_for(5)
    wait_until(lambda: states(crew, "orphan") == {"open"})
    stop(crew)

    assert tool.reached == 5
    assert tool.arrivals[3].who == victim.pid
    assert tool.arrivals[4].who in {worker.pid for worker in crew}


def test_a_worker_whose_clock_is_an_hour_off_waits_as_long_as_all_others(crew: list[Child], tool: Upstream) -> None:
    ahead, behind = crew[6:]

    trip(ahead, "skewed", tool)
    calls = [order(worker, "call", tool="skewed", port=tool.port) for worker in crew]
    looks = [order(worker, "look", tool="skewed") for worker in (ahead, behind, crew[0])]

    assert calls == [["CircuitOpen"]] * 8
    assert all(LONG - 60 < look["remaining"] <= LONG for look in looks)


def test_failures_of_all_workers_count_together(crew: list[Child], tool: Upstream) -> None:
    for worker in crew[:3]:
        order(worker, "call", tool="twenty", port=tool.port, times=5)
    order(crew[3], "call", tool="twenty", port=tool.port, times=4)
    before = order(crew[3], "look", tool="twenty")
    fifth = order(crew[3], "call", tool="twenty", port=tool.port)
    order(crew[3], "wait_for", type="circuit_opened", tool="twenty")

    others = [order(worker, "call", tool="twenty", port=tool.port, times=5) for worker in crew[4:]]

    assert before["state"] == "closed"
    assert fifth == ["failed"]
    assert others == [["CircuitOpen"] * 5] * 4
    assert tool.reached == 20


# --- one limit --------------------------------------------------------------------------------------------------------


def test_a_rate_is_kept_by_eight_processes_in_any_second(crew: list[Child], redis: RedisServer | GivenRedis) -> None:
    with watched(redis.url) as watch:
        storm(crew, "paced", None)
        watch.wait(CROWDED)
        first, last = watch.wait(STRETCH)
        begun = sorted(watch.by_the_server(at) for each in stop(crew) for at in each["starts"])
        admitted = watch.admitted("processes:{paced}", interval=1 / RATE)

    assert admitted == sorted(admitted)
    assert len(begun) == len(admitted)
    assert all(start > due - APART for start, due in zip(begun, admitted, strict=True))
    assert most_in_a_second(admitted) <= RATE + 2
    # Callers reserve what is due in the next quarter of a second. Where the machine stands still for longer than that,
    # nobody asks, and nothing can be admitted: such a second says nothing about the limit.
    stalls = watch.stalls(admitted, begun)
    seconds = seconds_after(admitted, first, last)
    too_few = [(at, number) for at, number in seconds if number < RATE - 2 and not meets(stalls, at, at + 1.0)]
    assert not too_few


def test_leased_tokens_exceed_a_rate_by_a_block_for_each_process_at_most(crew: list[Child]) -> None:
    starts = paced(crew, "leased", calls=2 * RATE)

    block = block_of(RateConfig(**LEASED), 1.0)
    assert block > 1
    # That they get their due is measured where nobody may get more.
    assert RATE / 2 <= most_in_a_second(starts) <= RATE + LEASED["burst"] + len(crew) * block


def test_no_more_calls_than_the_limit_are_made_at_once(
    crew: list[Child], tool: Upstream, redis: RedisServer | GivenRedis
) -> None:
    tool.turn("hold")
    storm(crew[:4], "five", tool, times=10)
    tool.wait_for(5)
    asked = questions(redis)
    wait_until(lambda: questions(redis) > asked + 50)
    at_once = tool.in_flight
    tool.turn("ok")
    done = [order(worker, "join") for worker in crew[:4]]

    assert at_once == 5
    assert tool.most == 5
    assert [each["ok"] for each in done] == [THREADS * 10] * 4


def test_the_slots_of_a_killed_process_return_with_its_lease(start: Callable[..., list[Child]], tool: Upstream) -> None:
    victim, heir = start(2, lease=1.0)
    tool.turn("hold")
    storm([victim], "inherited", tool, threads=2)
    tool.wait_for(2)

    victim.kill()
    victim.wait()
    tool.turn("ok")
    done = order(heir, "call", tool="inherited", port=tool.port, times=3)

    assert done == ["ok"] * 3
    assert [arrival.who for arrival in tool.arrivals] == [victim.pid] * 2 + [heir.pid] * 3


def test_a_long_call_keeps_its_slot_for_as_long_as_its_process_lives(
    start: Callable[..., list[Child]], tool: Upstream, redis: RedisServer | GivenRedis
) -> None:
    keeper, other = start(2, lease=2.0)
    tool.turn("hold")
    storm([keeper], "held", tool, threads=2, times=1)
    tool.wait_for(2)

    (first,) = leases(redis, "held")
    wait_until(lambda: leases(redis, "held")[0] > first + 3.0)
    storm([other], "held", tool, threads=1, times=1)
    asked = questions(redis)
    wait_until(lambda: questions(redis) > asked + 10)
    at_once = tool.in_flight
    tool.turn("ok")
    stop([keeper, other])

    assert at_once == 2


# --- what they do -----------------------------------------------------------------------------------------------------


def trip(worker: Child, name: str, tool: Upstream) -> None:
    """Open the circuit by three failures of one worker."""
    assert order(worker, "call", tool=name, port=tool.port, times=3) == ["failed"] * 3
    order(worker, "wait_for", type="circuit_opened", tool=name)


def storm(crew: list[Child], name: str, tool: Upstream | None, threads: int = THREADS, **more: int) -> None:
    for worker in crew:
        begin(worker, "storm", tool=name, port=tool.port if tool is not None else 0, threads=threads, **more)
    for worker in crew:
        answer(worker)


def stop(crew: list[Child]) -> list[Any]:
    for worker in crew:
        begin(worker, "stop")
    return [answer(worker) for worker in crew]


def paced(crew: list[Child], name: str, calls: int) -> list[float]:
    """When each call began of so many while all ask for more than they get; the first moments do not count."""
    storm(crew, name, None, threads=1)
    wait_until(lambda: sum(order(worker, "count").get("ok", 0) for worker in crew) >= calls)
    starts = sorted(at for each in stop(crew) for at in each["starts"])
    return starts[bisect_left(starts, starts[0] + 0.2) :]


def wait_for_refusals(crew: list[Child], number: int = 40) -> None:
    """Until the storm of each was refused that often once more."""
    before = [order(worker, "count").get("CircuitOpen", 0) for worker in crew]
    for worker, count in zip(crew, before, strict=True):
        wait_until(partial(_refused, worker, count + number))


def _refused(worker: Child, number: int) -> bool:
    return order(worker, "count").get("CircuitOpen", 0) >= number


def states(crew: list[Child], name: str) -> set[str]:
    """As what they see the circuit."""
    return {order(worker, "look", tool=name)["state"] for worker in crew}


def leases(redis: RedisServer | GivenRedis, name: str) -> list[float]:
    """Until when each holder of slots is believed, on the server's clock."""
    told = redis.command("ZRANGE", f"processes:{{{name}}}:leases", 0, -1, "WITHSCORES")
    assert isinstance(told, list)
    return [float(each) for each in told[1::2] if isinstance(each, bytes)]
