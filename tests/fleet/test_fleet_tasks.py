"""Tasks: one connection for all of an event loop, each loop its own; who is cancelled or cut short keeps nothing."""

from __future__ import annotations

import asyncio
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.fleet.members import Member, askers, member, questions, take_all, wait_until
from tests.fleet.upstream import PATIENCE
from tests.servers import RedisServer, Toxic

from holdfast.fleet.link import Link
from holdfast.fleet.multiplexed import TURNS
from holdfast.fleet.pool import KEPT, SPARE
from holdfast.tools import sharing

ASKED = 400  # questions, one after the other
RARE = {"per_second": 0.001, "burst": 1}
POLICIES = {
    "policy": {
        "max_wait": 0.0,
        "breaker": {"failure_threshold": 3, "min_backoff": 0.05, "max_backoff": 600.0, "probe_lease": 600.0},
    },
    "tool": {
        "token": {"rate": RARE},
        "slot": {"concurrency": 1},
        "all": {"rate": RARE, "concurrency": 1},
        "viewed": {"mode": "view", "concurrency": 1},
        "patient": {"concurrency": 1, "max_wait": 600.0, "breaker": {"min_backoff": 600.0}},
    },
}


@pytest.fixture
def one(own_redis: RedisServer) -> Iterator[Member]:
    with member(f"{own_redis.url}?wait=10", POLICIES) as it:
        yield it


@pytest.fixture
def other(own_redis: RedisServer) -> Iterator[Member]:
    with member(f"{own_redis.url}?wait=10", POLICIES) as it:
        yield it


async def asked(redis: RedisServer, one: Member, tool: str) -> asyncio.Task[Any]:
    """A call whose question is on its way to a Redis that does not answer."""
    await one.acall("warm")
    if tool == "probe":
        one.trip(tool)
        await asyncio.sleep(0.2)  # more than the wait of its circuit, which is on the server's clock
    redis.pause()
    asking = asyncio.create_task(one.acall(tool))
    await asyncio.sleep(0)  # it begins …
    await asyncio.sleep(0)  # … and its question is sent
    return asking


@pytest.mark.parametrize("tool", ["token", "slot", "probe", "all"])
async def test_a_task_that_is_cancelled_while_it_asks_gives_back_its(
    own_redis: RedisServer, one: Member, other: Member, tool: str
) -> None:
    asking = await asked(own_redis, one, tool)

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    own_redis.resume()
    await one.acall("warm")  # answered after the question before it

    wait_until(lambda: other.call(tool) == "ok", f"for the {tool} to be given back")
    assert one.fleet.fallbacks == 0


async def test_a_call_that_waits_for_the_slot_of_one_that_is_cancelled_while_it_asks_is_woken(
    own_redis: RedisServer, one: Member
) -> None:
    asking = await asked(own_redis, one, "patient")
    waiting = asyncio.create_task(one.acall("patient"))
    await asyncio.sleep(0)  # it stands in line

    asking.cancel()
    own_redis.resume()

    assert await asyncio.wait_for(waiting, PATIENCE) == "ok"


async def test_a_call_that_waits_for_the_slot_of_one_that_the_fleet_refuses_is_woken(
    own_redis: RedisServer, one: Member, other: Member
) -> None:
    other.trip("patient")
    asking = await asked(own_redis, one, "patient")
    waiting = asyncio.create_task(one.acall("patient"))
    await asyncio.sleep(0)  # it stands in line

    own_redis.resume()

    assert await asyncio.wait_for(asking, PATIENCE) == "CircuitOpen"
    assert await asyncio.wait_for(waiting, PATIENCE) == "CircuitOpen"


async def test_a_call_that_waits_for_a_slot_of_another_process_asks_only_now_and_then(
    own_redis: RedisServer, one: Member, other: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "LOOK_AGAIN", 600.0)
    limiting = one.hf._box.tool("patient").limiting
    async with other.hf.guard("patient"):
        waiting = asyncio.create_task(one.acall("patient"))
        await asyncio.to_thread(wait_until, lambda: limiting.line, "for it to stand in line")
        limiting.wake()  # it asks again
        before = questions(own_redis)
        for _ in range(50):
            await one.acall("warm")

        others = questions(own_redis) - before - 50
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    assert others <= 1


@pytest.mark.parametrize(("tool", "used"), [("all", 1), ("viewed", 0)])
async def test_a_task_that_is_cancelled_while_it_asks_without_a_slot_gives_none_back(
    own_redis: RedisServer, one: Member, tool: str, used: int
) -> None:
    guards = one.hf._box.tool(tool)
    await one.acall(tool, fails=tool == "viewed")  # a view asks when a failure was counted
    wait_until(lambda: guards.circuit.calm is (tool == "all"), "for the failure to be seen")
    own_redis.command("DEL", "holdfast:{all}")  # its token is there again
    async with AsyncExitStack() as stack:
        if used:
            await stack.enter_async_context(one.hf.guard(tool))
        asking = await asked(own_redis, one, tool)

        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        own_redis.resume()

        assert guards.limits(0.0).in_flight == used


@pytest.mark.parametrize("tool", ["token", "slot", "probe", "all"])
async def test_a_task_that_is_cancelled_in_the_turn_of_its_answer_gives_back_its(
    own_redis: RedisServer, one: Member, other: Member, tool: str
) -> None:
    asking = await asked(own_redis, one, tool)
    link = one.fleet.connections.linked(b"holdfast:{warm}")
    assert link is not None

    own_redis.resume()
    select.select([link._link.socket], [], [], PATIENCE)
    link._receive()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    # Beside the loop: if the server sent something else first, the answer is still to be read in the loop.
    await asyncio.to_thread(wait_until, lambda: other.call(tool) == "ok", f"for the {tool} to be given back")
    assert one.fleet.fallbacks == 0


async def test_a_task_that_is_cancelled_in_the_turn_in_which_a_connection_comes_gives_it_back(one: Member) -> None:
    (pool,) = one.fleet.connections.pools.values()
    taken = take_all(pool)
    asking = asyncio.create_task(one.acall("plain"))
    await asyncio.sleep(0)  # it begins …
    await asyncio.sleep(0)  # … and waits for one

    pool.give(taken.pop())
    asyncio.get_running_loop().call_soon(asking.cancel)
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert len(pool._free) == 1
    for link in taken:
        pool.give(link)


async def test_a_task_that_was_cancelled_before_is_not_cancelled_again_for_want_of_a_connection(
    own_redis: RedisServer,
) -> None:
    async def clean_up() -> str:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            return await one.acall("plain")
        return "not cancelled"

    with member(f"{own_redis.url}?wait=0.2", POLICIES) as one:
        (pool,) = one.fleet.connections.pools.values()
        taken = take_all(pool)
        cleaning = asyncio.create_task(clean_up())
        await asyncio.sleep(0)

        cleaning.cancel()
        went = await asyncio.wait_for(cleaning, 30)
        for link in taken:
            pool.give(link)

        assert went == "ok"
        assert one.fleet.connections.crowded > 0


def test_a_thread_that_is_interrupted_while_it_asks_goes_on_under_another_name(
    own_redis: RedisServer, one: Member
) -> None:
    class Interrupt(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    def when_it_waits(thread: int) -> None:
        wait_until(lambda: sys._current_frames()[thread].f_code is Link._read.__code__)
        signal.pthread_kill(thread, signal.SIGUSR1)

    before = one.fleet.holder
    handler = signal.signal(signal.SIGUSR1, interrupt)
    own_redis.pause()
    interrupting = threading.Thread(target=when_it_waits, args=(threading.get_ident(),))
    interrupting.start()

    try:
        with pytest.raises(Interrupt):
            one.call("slot")
    finally:
        interrupting.join()
        own_redis.resume()
        signal.signal(signal.SIGUSR1, handler)

    assert one.fleet.holder != before  # what it may have been given ends with the lease of the old one
    assert one.fleet.is_available


async def test_where_no_answer_comes_to_a_cancelled_task_the_process_goes_on_under_another_name(
    own_redis: RedisServer,
) -> None:
    with member(f"{own_redis.url}?wait=0.2", POLICIES) as one:
        before = one.fleet.holder
        asking = await asked(own_redis, one, "slot")

        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.sleep(0.3)  # more than the bound: its connection is given up
        own_redis.resume()

        assert one.fleet.holder != before  # what it may have been given ends with the lease of the old one


def test_where_the_loop_of_a_cancelled_task_ends_the_process_goes_on_under_another_name(
    own_redis: RedisServer, one: Member
) -> None:
    async def cancelled() -> None:
        asking = await asked(own_redis, one, "slot")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    before = one.fleet.holder
    asyncio.run(cancelled())
    own_redis.resume()

    one.fleet.service._renewed = 0.0  # the next sign of life is due
    one.fleet.service.ring()

    wait_until(lambda: one.fleet.holder != before, "for another name")
    assert one.fleet.is_available


def test_a_loop_that_ended_while_somebody_asked_troubles_no_other(own_redis: RedisServer, one: Member) -> None:
    ended = asyncio.new_event_loop()
    asking = ended.run_until_complete(asked(own_redis, one, "slot"))
    ended.close()
    own_redis.resume()

    went = asyncio.run(one.acall("plain"))

    assert went == "ok"
    assert not asking.done()
    asking.get_coro().close()  # type: ignore[union-attr]
    asking._log_destroy_pending = False  # type: ignore[attr-defined]


async def test_what_a_cancelled_task_asked_was_decided_all_the_same(own_redis: RedisServer, one: Member) -> None:
    await one.acall("warm")
    own_redis.command("CONFIG", "RESETSTAT")

    own_redis.pause()
    asking = asyncio.create_task(one.acall("slot"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    own_redis.resume()
    await one.acall("warm")

    wait_until(
        lambda: own_redis.command("HGET", "holdfast:{slot}", "used") == b"0", "for the slot to be taken and given"
    )


async def test_the_others_who_ask_with_a_cancelled_task_are_answered(own_redis: RedisServer, one: Member) -> None:
    await one.acall("warm")

    own_redis.pause()
    asking = [asyncio.create_task(one.acall(f"plain {number}")) for number in range(10)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in asking[::2]:
        task.cancel()
    own_redis.resume()
    went = await asyncio.gather(*asking, return_exceptions=True)

    assert went[1::2] == ["ok"] * 5
    assert all(isinstance(each, asyncio.CancelledError) for each in went[::2])
    assert one.fleet.fallbacks == 0


def test_several_event_loops_at_once_have_a_connection_each(own_redis: RedisServer, one: Member) -> None:
    together = threading.Barrier(4)
    went: list[str] = []

    async def ask() -> None:
        went.extend(await asyncio.gather(*(one.acall("plain") for _ in range(10))))
        await asyncio.to_thread(together.wait, 30)  # all loops are open
        went.extend(await asyncio.gather(*(one.acall("plain") for _ in range(10))))

    in_threads([lambda: asyncio.run(ask())] * 4)

    assert went == ["ok"] * 80
    assert one.fleet.fallbacks == 0


def test_an_event_loop_that_was_closed_leaves_no_connection(own_redis: RedisServer, one: Member) -> None:
    went = [asyncio.run(one.acall("plain")) for _ in range(5)]

    assert went == ["ok"] * 5
    assert askers(own_redis) <= 1  # the last, until the next loop asks


def test_threads_and_tasks_ask_side_by_side(own_redis: RedisServer, one: Member) -> None:
    went: list[str] = []

    async def tasks() -> None:
        went.extend(await asyncio.gather(*(one.acall("plain") for _ in range(50))))

    def calls() -> None:
        went.extend(one.call("plain") for _ in range(50))

    in_threads([lambda: asyncio.run(tasks()), calls, calls])

    assert went == ["ok"] * 150
    assert one.fleet.fallbacks == 0


def test_threads_that_come_all_at_once_are_answered_by_the_fleet(own_redis: RedisServer) -> None:
    went: list[str] = []

    with Toxic(own_redis.port) as toxic, member(f"{toxic.url}?wait=1", POLICIES) as one:
        one.call("plain")
        toxic.latency(0.3)
        in_threads([lambda: went.append(one.call("plain"))] * 30)

        assert went == ["ok"] * 30
        assert one.fleet.fallbacks == 0


def test_of_the_connections_that_many_needed_a_few_are_kept(one: Member) -> None:
    (pool,) = one.fleet.connections.pools.values()
    for _ in range(KEPT):
        pool.add(one.fleet.connections.open_link(pool.node))
    before = pool.size

    for _ in range(before):
        pool.sweep()

    assert before > KEPT
    assert SPARE <= pool.size <= KEPT
    assert one.call("plain") == "ok"


def in_threads(jobs: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def test_a_task_that_does_nothing_but_ask_leaves_the_loop_its_turns(one: Member) -> None:
    async def ask() -> None:
        for _ in range(ASKED):
            async with one.hf.guard("busy"):
                continue

    asking = asyncio.create_task(ask())
    turns = 0
    while not asking.done():
        await asyncio.sleep(0)
        turns += 1

    assert turns >= ASKED / TURNS
    assert one.fleet.fallbacks == 0
