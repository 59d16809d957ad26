"""Redis goes away, comes back, forgets: no call raises because of it or waits long, and all agree again afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from tests.fleet.members import Member, agree, member, wait_until, wait_until_agreed
from tests.fleet.nonsense import NONSENSE, Nonsense
from tests.servers import RedisServer, Toxic

from holdfast import CircuitOpen
from holdfast.clock import SystemClock
from holdfast.fleet.pool import SPARE

MUCH = 2.5  # seconds: fifty times the bound, because machines are busy, and less than a network takes that is slow
PATIENT = "?wait=10"  # where the bound is not what is asked about: a busy machine may be late once
CALLS = 20


@pytest.fixture
def toxic(own_redis: RedisServer) -> Iterator[Toxic]:
    """A bad network before a Redis."""
    with Toxic(own_redis.port) as network:
        yield network


def as_threads(one: Member) -> list[tuple[str, float]]:
    """How calls go, one after the other, and how long each takes."""
    went = []
    for _ in range(CALLS):
        begun = SystemClock.monotonic()
        went.append((one.call("plain"), SystemClock.monotonic() - begun))
    return went


def as_tasks(one: Member) -> list[tuple[str, float]]:
    """The same all at once, in an event loop of their own."""

    async def timed() -> tuple[str, float]:
        begun = SystemClock.monotonic()
        return await one.acall("plain"), SystemClock.monotonic() - begun

    async def together() -> list[tuple[str, float]]:
        return await asyncio.gather(*(timed() for _ in range(CALLS)))

    return asyncio.run(together())


@contextmanager
def stopped(server: RedisServer) -> Iterator[None]:
    server.stop()
    yield
    server.start_again()


@contextmanager
def killed(server: RedisServer) -> Iterator[None]:
    server.kill()
    yield
    server.start_again()


@contextmanager
def hung(server: RedisServer) -> Iterator[None]:
    server.pause()
    yield
    server.resume()


Outage = Callable[[RedisServer], AbstractContextManager[None]]
Calls = Callable[[Member], list[tuple[str, float]]]


@pytest.mark.parametrize("calls", [as_threads, as_tasks])
@pytest.mark.parametrize("outage", [stopped, killed, hung])
def test_no_call_fails_or_waits_long_while_redis_is(own_redis: RedisServer, outage: Outage, calls: Calls) -> None:
    with member(own_redis.url) as one, member(own_redis.url) as other:
        wait_until_agreed(one, other)
        calls(one)

        with outage(own_redis):
            went = calls(one)
            one.heard.wait_for("fleet_lost")
            other.heard.wait_for("fleet_lost")
        one.heard.wait_for("fleet_returned")
        other.heard.wait_for("fleet_returned")

        assert {how for how, _ in went} == {"ok"}
        assert max(seconds for _, seconds in went) < MUCH
        wait_until_agreed(one, other)


@pytest.mark.parametrize("command", [("FLUSHALL",), ("SCRIPT", "FLUSH")], ids=" ".join)
@pytest.mark.parametrize("calls", [as_threads, as_tasks])
def test_a_redis_that_has_forgotten_is_asked_all_the_same(
    own_redis: RedisServer, command: tuple[str, ...], calls: Calls
) -> None:
    url = own_redis.url + PATIENT
    with member(url) as one, member(url) as other:
        before = agree(one, other, "three before") and calls(one)

        own_redis.command(*command)
        went = calls(one)

        assert before
        assert {how for how, _ in went} == {"ok"}
        assert agree(one, other, "three after")
        assert not one.heard.of("fleet_lost")


def test_slots_that_redis_has_forgotten_are_put_back_although_their_holder_asked_before(own_redis: RedisServer) -> None:
    policies = {"tool": {"slots": {"concurrency": 9}}}
    with member(own_redis.url + PATIENT, policies) as one, one.hf.guard("slots"), one.hf.guard("slots"):
        own_redis.command("FLUSHALL")
        one.call("slots")

        one.fleet.service._renewed = 0.0  # the next sign of life is due
        one.fleet.service.ring()

        wait_until(lambda: own_redis.command("HGET", "holdfast:{slots}", "used") == b"2", "for the slots")


def test_a_circuit_that_was_open_stays_open_while_redis_is_away(own_redis: RedisServer) -> None:
    url = own_redis.url + PATIENT
    with member(url) as one, member(url) as other:
        one.trip("bad")
        told = other.call("bad")

        own_redis.kill()
        one.heard.wait_for("fleet_lost")
        other.heard.wait_for("fleet_lost")

        assert told == "CircuitOpen"
        assert [one.call("bad"), other.call("bad")] == ["CircuitOpen"] * 2


@pytest.mark.parametrize("tool", ["bad", "seen"])
def test_a_circuit_that_others_opened_meanwhile_is_seen_on_return(
    own_redis: RedisServer, toxic: Toxic, tool: str
) -> None:
    with member(own_redis.url + PATIENT) as one, member(toxic.url + PATIENT) as other:
        known = other.call(tool)
        toxic.refuse()
        other.heard.wait_for("fleet_lost")
        one.trip(tool)
        alone = other.call(tool)

        toxic.heal()
        other.heard.wait_for("fleet_returned")

        assert [known, alone] == ["ok", "ok"]
        assert other.call(tool) == "CircuitOpen"


def test_a_reset_while_redis_is_away_reaches_the_fleet_on_return(own_redis: RedisServer, toxic: Toxic) -> None:
    with member(own_redis.url + PATIENT) as one, member(toxic.url + PATIENT) as other:
        one.trip("bad")
        known = other.call("bad")
        toxic.refuse()
        other.heard.wait_for("fleet_lost")

        other.hf.breaker.reset("bad")
        toxic.heal()
        one.heard.wait_for("circuit_closed", "bad")

        assert known == "CircuitOpen"
        assert [one.call("bad"), other.call("bad")] == ["ok", "ok"]


def test_a_reset_that_redis_refuses_reaches_the_fleet_when_it_is_allowed_again(own_redis: RedisServer) -> None:
    url = own_redis.url + PATIENT
    with member(url) as one, member(url) as other:
        one.trip("bad")
        known = other.call("bad")
        own_redis.command("ACL", "SETUSER", "default", "-evalsha")

        other.hf.breaker.reset("bad")
        other.heard.wait_for("fleet_lost")
        own_redis.command("ACL", "SETUSER", "default", "+evalsha")
        one.heard.wait_for("circuit_closed", "bad")

        assert known == "CircuitOpen"
        assert one.call("bad") == "ok"


def test_failures_of_a_time_without_redis_open_the_local_circuit(own_redis: RedisServer) -> None:
    with member(own_redis.url) as one:
        own_redis.kill()
        one.heard.wait_for("fleet_lost")

        one.trip("bad")

        assert one.call("bad") == "CircuitOpen"


def test_an_outage_is_told_once_with_its_reason_and_without_a_password(own_redis: RedisServer) -> None:
    with member(own_redis.url + PATIENT) as one:
        own_redis.kill()
        as_threads(one)
        lost = one.heard.wait_for("fleet_lost")
        own_redis.start_again()
        returned = one.heard.wait_for("fleet_returned")

        assert len(one.heard.of("fleet_lost")) == 1
        assert lost.payload["error"]
        assert lost.payload["redis"] == own_redis.url + PATIENT
        assert isinstance(returned.payload["fallbacks"], int)


# --- refusing ---------------------------------------------------------------------------------------------------------


def test_who_would_rather_refuse_refuses_while_redis_is_away_and_says_why(own_redis: RedisServer) -> None:
    with member(own_redis.url + PATIENT, on_outage="refuse") as one:
        own_redis.kill()
        one.heard.wait_for("fleet_lost")

        with pytest.raises(CircuitOpen, match="shared guards cannot be reached") as refusal, one.hf.guard("plain"):
            pytest.fail("the tool was called")

        assert refusal.value.retry_after is None
        own_redis.start_again()
        one.heard.wait_for("fleet_returned")
        assert one.call("plain") == "ok"


def test_who_shares_nothing_is_not_refused_while_redis_is_away(own_redis: RedisServer) -> None:
    with member(own_redis.url + PATIENT, {"tool": {"bare": {"breaker": False}}}, on_outage="refuse") as one:
        own_redis.kill()
        one.heard.wait_for("fleet_lost")

        assert one.call("bare") == "ok"
        assert asyncio.run(one.acall("bare")) == "ok"
        assert one.hf.call(lambda: "ok", policy={"breaker": False}) == "ok"
        assert one.fleet.fallbacks == 0


def test_a_circuit_held_open_says_so_while_redis_is_away(own_redis: RedisServer) -> None:
    with member(own_redis.url + PATIENT, on_outage="refuse") as one:
        own_redis.kill()
        one.heard.wait_for("fleet_lost")
        one.hf.breaker.force_open("plain")

        with pytest.raises(CircuitOpen, match="by hand"), one.hf.guard("plain"):
            pytest.fail("the tool was called")


@pytest.mark.parametrize(("on_outage", "went"), [("local", "ok"), ("refuse", "CircuitOpen")])
def test_a_redis_that_is_away_from_the_beginning_is_found_when_it_comes(
    toxic: Toxic, on_outage: str, went: str
) -> None:
    toxic.refuse()
    with member(toxic.url + PATIENT, on_outage=on_outage, finds=False) as one:
        before = one.call("plain")

        toxic.heal()
        one.heard.wait_for("fleet_returned")

        assert before == went
        assert one.call("plain") == "ok"


# --- a bad network ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [as_threads, as_tasks])
@pytest.mark.parametrize(
    "trouble", [lambda toxic: toxic.latency(MUCH + 0.5), Toxic.cut, Toxic.refuse], ids=["latency", "resets", "refused"]
)
def test_no_call_fails_or_waits_long_in_a_network_with(
    own_redis: RedisServer, toxic: Toxic, trouble: Callable[[Toxic], object], calls: Calls
) -> None:
    with member(own_redis.url) as one, member(toxic.url) as other:
        wait_until_agreed(one, other)
        calls(other)

        trouble(toxic)
        went = calls(other)
        other.heard.wait_for("fleet_lost")
        toxic.heal()

        assert {how for how, _ in went} == {"ok"}
        assert max(seconds for _, seconds in went) < MUCH
        wait_until_agreed(one, other)


def test_a_half_open_connection_is_noticed_although_nobody_calls(toxic: Toxic) -> None:
    with member(toxic.url) as one:
        before = one.call("plain")

        toxic.half_open()
        one.heard.wait_for("fleet_lost")
        toxic.heal()
        one.heard.wait_for("fleet_returned")

        assert before == "ok"
        assert one.call("plain") == "ok"


def test_a_redis_that_is_too_slow_for_calls_is_not_taken_for_back(own_redis: RedisServer, toxic: Toxic) -> None:
    with member(toxic.url) as one:
        before = one.call("plain")

        toxic.latency(0.2)
        one.call("plain")
        wait_until(lambda: not one.fleet.is_available, "for Redis to be lost")
        returned = len(one.heard.of("fleet_returned"))  # a busy machine may have been away once already
        tried = tries(own_redis)
        wait_until(lambda: tries(own_redis) >= tried + 2, "for it to be looked for again and again")
        back = one.heard.of("fleet_returned")[returned:]
        toxic.heal()
        one.heard.wait_for("fleet_returned", times=returned + 1)

        assert before == "ok"
        assert not back


def test_a_redis_that_answers_and_writes_nothing_is_not_taken_for_back(own_redis: RedisServer) -> None:
    with member(own_redis.url + PATIENT) as one:
        own_redis.command("CONFIG", "SET", "maxmemory", "1")
        one.call("three")
        lost = one.heard.wait_for("fleet_lost")
        tried = tries(own_redis)
        wait_until(lambda: tries(own_redis) >= tried + 2, "for it to be looked for again and again")
        back = one.heard.of("fleet_returned")

        own_redis.command("CONFIG", "SET", "maxmemory", "0")
        one.heard.wait_for("fleet_returned")

        assert "OOM" in str(lost.payload["error"])
        assert not back


def test_connections_that_were_closed_while_idle_are_replaced_and_are_no_outage(own_redis: RedisServer) -> None:
    def connections() -> int:
        listed = own_redis.command("CLIENT", "LIST", "TYPE", "normal")
        assert isinstance(listed, bytes)
        return listed.count(b"\n") - 1  # but for who asks

    with member(own_redis.url + PATIENT, on_outage="refuse") as one:
        wait_until(lambda: connections() == SPARE, "for connections that lie ready")

        own_redis.command("CLIENT", "KILL", "TYPE", "normal")
        wait_until(lambda: connections() == SPARE, "for others in their place")

        assert one.call("plain") == "ok"
        assert not one.heard.of("fleet_lost")


async def test_the_connection_of_a_loop_that_was_closed_while_idle_is_replaced_and_is_no_outage(
    own_redis: RedisServer,
) -> None:
    with member(own_redis.url + PATIENT, on_outage="refuse") as one:
        assert await one.acall("plain") == "ok"
        link = one.fleet.connections.linked(one.fleet.desks()[0].key)
        assert link is not None
        listed = own_redis.command("CLIENT", "LIST")
        assert isinstance(listed, bytes)
        (asker,) = (line for line in listed.splitlines() if b"cmd=eval" in line)

        own_redis.command("CLIENT", "KILL", "ID", asker.split()[0].removeprefix(b"id="))
        await asyncio.to_thread(wait_until, lambda: link.broken is not None, "for the loop to notice")

        assert await one.acall("plain") == "ok"
        assert not one.heard.of("fleet_lost")


BAD_STATE = b"*8\r\n:9\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n$1\r\nx\r\n:-1\r\n"


@pytest.mark.parametrize("calls", [as_threads, as_tasks])
@pytest.mark.parametrize(
    ("says", "error"),
    [
        (NONSENSE, "Protocol error"),
        (b"*2\r\n:0\r\n:0\r\n", "not the answer of the script: [0, 0]"),
        (b"*8\r\n" + b"$1\r\na\r\n" * 8, "not the answer of the script"),
        (b"*8\r\n" + b":0\r\n" * 6 + b"$1\r\na\r\n$-1\r\n", "not the answer of the script"),
        (b"+OK\r\n", "not the answer of the script"),
        (b"*8\r\n" + b":0\r\n" * 6 + b"$-1\r\n" + BAD_STATE, "not a circuit of the script: [9, "),
        (b"*8\r\n" + b":0\r\n" * 6 + b"$-1\r\n:5\r\n", "not a circuit of the script: 5"),
    ],
    ids=["another language", "short", "texts", "rate", "no list", "state", "circuit"],
)
def test_no_call_fails_where_something_answers_that_is_no_redis(says: bytes, error: str, calls: Calls) -> None:
    with Nonsense(says) as server, member(server.url + PATIENT) as one:
        went = calls(one)
        lost = one.heard.wait_for("fleet_lost")

        assert {how for how, _ in went} == {"ok"}
        assert error in str(lost.payload["error"])


def tries(server: RedisServer) -> int:
    """How often somebody came to it and told it the script."""
    stats = server.command("INFO", "commandstats").decode().splitlines()
    return sum(
        int(line.partition("calls=")[2].partition(",")[0]) for line in stats if line.startswith("cmdstat_script")
    )
