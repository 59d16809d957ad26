"""The circuit of a fleet counts, and is asked, like that of one process: in a row is in a row, and it comes first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from tests.fleet.members import Member, member, wait_until
from tests.fleet.upstream import PATIENCE
from tests.servers import RedisServer

import holdfast
from holdfast import Denied

POLICIES = {
    "policy": {
        "max_wait": 0.0,
        "breaker": {"failure_threshold": 2, "min_backoff": 600.0, "max_backoff": 600.0, "jitter": 0.0},
    },
    "tool": {
        "leased": {"mode": "leased", "rate": "1000/s"},
        "view": {"mode": "view"},
        "slots": {"concurrency": 8},
        "probe*": {"concurrency": 1, "breaker": {"failure_threshold": 1, "min_backoff": 0.05, "probe_lease": 600.0}},
        "two*": {"concurrency": 1, "rate": {"per_second": 0.001, "burst": 2}},
        "*patient": {"max_wait": 20.0},
    },
}
MODES = ["exact", "leased", "view", "slots"]


@pytest.fixture
def url(own_redis: RedisServer) -> str:
    return f"{own_redis.url}?wait=10"


@pytest.fixture
def one(url: str) -> Iterator[Member]:
    with member(url, POLICIES) as it:
        yield it


@pytest.fixture
def other(url: str) -> Iterator[Member]:
    with member(url, POLICIES) as it:
        yield it


def failures(of: Member, tool: str) -> int:
    """How many in a row it knows of."""
    return of.hf.breaker.diagnostics(tool).failure_count


# --- probes -----------------------------------------------------------------------------------------------------------


def test_what_a_probe_found_that_redis_refuses_to_hear_is_told_when_it_is_allowed_again(
    own_redis: RedisServer, one: Member, other: Member
) -> None:
    assert one.call("probe", fails=True) == "failed"
    other.call("probe")
    with ExitStack() as probe:

        def is_out() -> bool:
            with suppress(Denied):
                probe.enter_context(one.hf.guard("probe"))
                return True
            return False

        wait_until(is_out, "for the probe")
        own_redis.command("ACL", "SETUSER", "default", "-evalsha")
    one.heard.wait_for("fleet_lost")

    own_redis.command("ACL", "SETUSER", "default", "+evalsha")
    other.heard.wait_for("circuit_closed", "probe")

    wait_until(lambda: other.call("probe") == "ok", "for its slot, too")


# --- in a row ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", MODES)
def test_a_success_ends_a_row_of_failures_although_it_was_admitted_before_them(
    one: Member, other: Member, tool: str
) -> None:
    one.call(tool)

    with suppress(ConnectionError), one.hf.guard(tool):
        with one.hf.guard(tool), suppress(ConnectionError), one.hf.guard(tool):
            raise ConnectionError
        raise ConnectionError
    one.hf.close()  # whatever was to be told is told

    assert other.call(tool) == "ok"


@pytest.mark.parametrize("tool", MODES)
async def test_a_success_of_the_quick_path_ends_a_row_of_failures_although_it_was_admitted_before_them(
    url: str, other: Member, tool: str
) -> None:
    ends = [asyncio.Event() for _ in range(3)]
    with holdfast.open(":memory:", redis=url, policies=POLICIES) as hf:

        @hf.tool(tool)
        async def work(number: int) -> None:
            if number:
                await ends[number - 1].wait()
            if number % 2:
                raise ConnectionError

        await work(0)
        calls = [asyncio.create_task(work(number)) for number in (1, 2, 3)]
        for end, call in zip(ends, calls, strict=True):
            end.set()
            with suppress(ConnectionError):
                await call

    assert await other.acall(tool) == "ok"


@pytest.mark.parametrize("tool", MODES)
def test_a_success_ends_a_row_of_failures_that_another_process_counted_meanwhile(
    one: Member, other: Member, tool: str
) -> None:
    one.call(tool)
    with one.hf.guard(tool):
        other.call(tool, fails=True)
        wait_until(lambda: failures(one, tool) == 1, "for the failure to be heard of")
    wait_until(lambda: failures(one, tool) == 0, "for the success to be told")
    other.call(tool, fails=True)
    other.hf.close()  # whatever was to be told is told

    assert one.call(tool) == "ok"


# --- circuit, rate, concurrency ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["probe", "probe, patient"])
def test_while_a_probe_has_the_last_slot_the_circuit_refuses_at_once(one: Member, tool: str) -> None:
    one.call(tool, fails=True)
    one.heard.wait_for("circuit_opened", tool)
    went: list[str] = []

    def probe() -> bool:
        with suppress(Denied), one.hf.guard(tool):
            went.append(one.call(tool))
        return bool(went)

    wait_until(probe, "for a probe to be let in")

    assert went == ["CircuitOpen"]


@pytest.mark.parametrize("tool", ["two", "two, patient"])
def test_a_rate_that_is_used_up_for_long_refuses_at_once_although_there_is_no_slot_either(
    one: Member, tool: str
) -> None:
    one.call(tool)

    with one.hf.guard(tool):
        went = one.call(tool)

    assert went == "RateLimited"


def test_who_waits_for_a_slot_alone_has_taken_nothing_before(one: Member) -> None:
    tool = "two, patient"
    went: list[str] = []
    waiter = threading.Thread(target=lambda: went.append(one.call(tool)))

    with one.hf.guard(tool):
        waiter.start()
        wait_until(lambda: one.hf._box.tool(tool).limits(0.0).waiting == 1, "for it to stand in line")
    waiter.join(PATIENCE)

    assert [*went, one.call(tool)] == ["ok", "RateLimited"]
