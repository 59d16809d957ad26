"""A slot that was given comes back as soon as its call has ended, whatever is between: its lease is for the dead."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress

import pytest
from tests.fleet.members import Member, member, take_all, wait_until
from tests.servers import RedisServer, Toxic

from holdfast.events import Event
from holdfast.fleet import desk
from holdfast.fleet.fleet import Fleet
from holdfast.fleet.link import Away, Link
from holdfast.fleet.pool import MOST
from holdfast.fleet.script import Outcome, Shared
from holdfast.tools import toolbox

PATIENT = "?wait=10"
POLICIES = {
    "policy": {"max_wait": 0.0, "breaker": False},
    "tool": {
        "slots": {"concurrency": 9},
        "rated": {"concurrency": 9, "breaker": {"failure_rate": 0.5, "minimum_calls": 20}},
    },
}


@pytest.fixture
def one(own_redis: RedisServer) -> Iterator[Member]:
    with member(own_redis.url + PATIENT, POLICIES) as it:
        it.fleet.lease = 600.0  # no lease brings back what is lost
        yield it


def used(redis: RedisServer, tool: str = "slots") -> int:
    count = redis.command("HGET", f"holdfast:{{{tool}}}", "used")
    assert isinstance(count, bytes)
    return int(count)


# --- what is to be told -----------------------------------------------------------------------------------------------


def test_a_slot_is_told_where_no_more_outcomes_are_kept(
    own_redis: RedisServer, one: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "MOST_TOLD", 0)

    assert one.call("rated") == "ok"

    wait_until(lambda: used(own_redis, "rated") == 0, "for the slot to come back")


def test_a_slot_whose_call_ends_while_redis_is_away_is_told_when_it_is_back(own_redis: RedisServer) -> None:
    with Toxic(own_redis.port) as toxic, member(toxic.url + PATIENT, POLICIES) as one:
        one.fleet.lease = 600.0
        with one.hf.guard("slots"), suppress(ConnectionError), one.hf.guard("rated"):
            toxic.refuse()
            one.heard.wait_for("fleet_lost")
            raise ConnectionError
        before = used(own_redis), used(own_redis, "rated")

        toxic.heal()
        one.heard.wait_for("fleet_returned")

        assert before == (1, 1)
        wait_until(lambda: used(own_redis) == used(own_redis, "rated") == 0, "for the slots to come back")


@pytest.mark.parametrize("tool", ["slots", "rated"])
def test_a_slot_that_redis_would_not_take_back_is_free_when_it_writes_again(
    own_redis: RedisServer, one: Member, tool: str
) -> None:
    with suppress(ConnectionError), one.hf.guard(tool):
        own_redis.command("CONFIG", "SET", "maxmemory", "1")
        raise ConnectionError
    one.heard.wait_for("fleet_lost")
    before = used(own_redis, tool)

    own_redis.command("CONFIG", "SET", "maxmemory", "0")
    one.heard.wait_for("fleet_returned")

    assert before == 1
    wait_until(lambda: used(own_redis, tool) == 0, "for the slot to come back")


def test_a_name_whose_slots_are_back_is_forgotten(own_redis: RedisServer, one: Member) -> None:
    one.call("slots")
    name = one.fleet.holder
    (of_tool,) = one.fleet.desks()
    in_use = of_tool.holding()
    one.fleet.rename()
    known = of_tool.holding()
    one.fleet.service._renewed = 0.0
    one.fleet.service.ring()

    wait_until(lambda: not of_tool.holding(), "for the next sign of life")

    assert in_use == {}
    assert known == {name: 0}
    assert used(own_redis) == 0


def test_what_is_lost_of_an_outcome_in_an_outage_is_not_its_slot() -> None:
    fleet = Fleet("redis://127.0.0.1:1")
    of_tool = fleet.desk("tool", lambda _: None)
    of_tool.tell(Outcome("old", 1, says="timeout"))
    of_tool.return_slot("old")

    of_tool.forget()

    assert of_tool.pending() == [Outcome("old", 2)]
    fleet.close()


def test_the_slots_of_a_tool_that_is_forgotten_while_it_is_called_come_back(
    own_redis: RedisServer, one: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolbox, "MOST_PASSING", 1)

    with one.hf.guard("slots"):
        one.call("another")
        anew = one.call("slots")
        one.call("another")

    assert anew == "ok"
    wait_until(lambda: used(own_redis) == 0, "for the slots to come back")


def test_a_sign_of_life_says_how_many_slots_are_left_once_those_are_given_back_that_it_brings_along(
    own_redis: RedisServer, one: Member
) -> None:
    with one.hf.guard("slots"):
        with one.hf.guard("slots"):
            share = one.hf._box.tool("slots").share
            assert share is not None
            name = one.fleet.holder
            one.fleet.rename()
            own_redis.command("HSET", "holdfast:{slots}:holders", name, 3)  # one was given without our knowing
        form = share.desk.form_of(Shared(None, None, 9), name)
        one.fleet.connections.ask(form, lambda: share.desk.sign_of_life(form, []))
        one.fleet.service._tell()

        assert own_redis.command("HGET", "holdfast:{slots}:holders", name) == b"1"


# --- who tells it -----------------------------------------------------------------------------------------------------


def test_the_service_does_not_wait_for_a_connection_that_it_is_to_open_itself(own_redis: RedisServer) -> None:
    with member(own_redis.url + "?wait=60", POLICIES) as one:
        with one.hf.guard("slots"):
            one.fleet.connections.close()

        wait_until(lambda: used(own_redis) == 0, "for the slot to come back")


def test_the_service_can_be_rung_although_who_rang_last_was_interrupted(own_redis: RedisServer, one: Member) -> None:
    wait_until(lambda: not one.fleet.service._rung, "for it to hear all rings")

    one.fleet.service._rung = True  # and nothing was written

    wait_until(lambda: not one.fleet.service._rung, "for the service to hear the next ring")


def test_a_redis_that_is_lost_is_not_found_before_all_is_given_up_that_was_lost(one: Member) -> None:
    returned = threading.Event()
    seen: list[bool] = []

    def slow(event: Event) -> None:
        if event.type == "fleet_returned":
            returned.set()
        if event.type == "fleet_lost":
            seen.append(returned.wait(0.3))

    one.hf.bus.add(slow)
    one.fleet.lose(Away("somebody pulled the plug"))

    one.heard.wait_for("fleet_returned")
    assert seen == [False]


def test_a_thread_that_is_interrupted_while_it_waits_for_a_connection_leaves_all_to_others(one: Member) -> None:
    class Interrupt(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    def when_it_waits(thread: int) -> None:
        wait_until(lambda: pool._waiters, "for it to wait")
        signal.pthread_kill(thread, signal.SIGUSR1)

    (pool,) = one.fleet.connections.pools.values()
    taken = take_all(pool)
    handler = signal.signal(signal.SIGUSR1, interrupt)
    interrupting = threading.Thread(target=when_it_waits, args=(threading.get_ident(),))
    interrupting.start()
    try:
        with pytest.raises(Interrupt):
            pool.wait(30.0)
    finally:
        interrupting.join()
        signal.signal(signal.SIGUSR1, handler)

    while taken:
        pool.give(taken.pop())

    assert len(pool._free) == pool.size == MOST


def test_a_thread_that_is_interrupted_just_when_it_has_a_connection_gives_that_back(
    one: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Struck(Future[Link]):
        """Whoever waits is interrupted as soon as it has got what it waited for."""

        def result(self, timeout: float | None = None) -> Link:
            found = super().result(timeout)
            if timeout is not None:
                raise KeyboardInterrupt
            return found

    (pool,) = one.fleet.connections.pools.values()
    wait_until(lambda: len(pool._free) == pool.size > 0, "for connections that are free")
    monkeypatch.setattr("holdfast.fleet.pool.Future", Struck)

    with pytest.raises(KeyboardInterrupt):
        pool.wait(30.0)

    assert len(pool._free) == pool.size


# --- connections that cannot be had -----------------------------------------------------------------------------------


async def test_a_server_that_takes_no_more_connections_serves_those_who_have_one(own_redis: RedisServer) -> None:
    with member(own_redis.url + PATIENT, POLICIES) as one:
        await one.acall("slots")
        own_redis.command("CONFIG", "SET", "maxclients", 1)  # those who are there stay
        (pool,) = one.fleet.connections.pools.values()
        lent = [link for link in [pool.take(), pool.take()] if link is not None]

        went = await asyncio.gather(*(one.acall("slots") for _ in range(9)))
        for _ in range(3):
            one.fleet.service.ring()
            await asyncio.sleep(0.01)
        for link in lent:
            pool.give(link)

        assert went == ["ok"] * 9
        assert one.fleet.outages == one.fleet.fallbacks == 0
