"""The script's slots: a limit for the fleet, exact while holders live, and given back when one dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fleet.script_client import ADMITTED, BY_CONCURRENCY, EPOCH_US, Client, Outcome, Question, Reply
from tests.servers.redis import GivenRedis, RedisServer

START = EPOCH_US + 27_000_000_000_000
LEASE = 15_000_000


@pytest.fixture
def client(fresh_redis: RedisServer | GivenRedis) -> Iterator[Client]:
    with Client(fresh_redis.url) as client:
        yield client


def ask(client: Client, holder: str = "a", at: int = 0, *, limit: int = 2, gives: int = 0, renew: str = "") -> Reply:
    outcomes = (Outcome(holder, slots=gives),) if gives else ()
    return client.ask(
        Question(
            now_us=START + at, holder=holder, limit=limit, lease_us=LEASE, cost=1.0, outcomes=outcomes, renew=renew
        )
    )


def tell(client: Client, holder: str = "a", at: int = 0, *, slots: int = 0, of: str = "", renew: str = "") -> Reply:
    outcomes = (Outcome(of or holder, slots=slots),) if slots else ()
    return client.ask(
        Question(now_us=START + at, holder=holder, limit=2, lease_us=LEASE, outcomes=outcomes, renew=renew)
    )


def held(client: Client) -> dict[str, int]:
    fields = client.command("HGETALL", "hf:{tool}:holders")
    books = {who.decode(): int(count) for who, count in zip(fields[::2], fields[1::2], strict=True)}
    assert int(client.command("HGET", "hf:{tool}", "used") or 0) == sum(books.values())
    return {who: count for who, count in books.items() if count}


def test_so_many_at_once_and_no_more_whoever_asks(client: Client) -> None:
    verdicts = [ask(client, holder).verdict for holder in "abcd"]

    assert verdicts == [ADMITTED, ADMITTED, BY_CONCURRENCY, BY_CONCURRENCY]


def test_nobody_knows_when_a_slot_comes_back(client: Client) -> None:
    ask(client, limit=1)

    assert ask(client, limit=1).wait_us == -1


def test_a_slot_that_is_given_back_can_be_taken(client: Client) -> None:
    ask(client, "a", limit=1)

    tell(client, "a", slots=1)

    assert ask(client, "b", limit=1).verdict == ADMITTED


def test_a_slot_can_be_given_back_by_another_process(client: Client) -> None:
    ask(client, "a", limit=1)

    tell(client, "b", slots=1, of="a")

    assert held(client) == {}


def test_giving_back_and_asking_in_one_call_gives_first(client: Client) -> None:
    ask(client, limit=1)

    again = [ask(client, limit=1, gives=1).verdict for _ in range(3)]

    assert again == [ADMITTED] * 3
    assert held(client) == {"a": 1}


def test_the_slots_of_a_dead_holder_come_back_with_its_lease(client: Client) -> None:
    ask(client, "dead")
    ask(client, "dead")

    verdicts = [ask(client, "b", at).verdict for at in (LEASE - 1, LEASE, LEASE + 1)]

    assert verdicts == [BY_CONCURRENCY, ADMITTED, ADMITTED]
    assert held(client) == {"b": 2}


def test_many_dead_holders_go_at_once(client: Client) -> None:
    for number in range(250):
        ask(client, f"dead {number}", limit=250)

    assert ask(client, "b", LEASE, limit=250).verdict == ADMITTED
    assert held(client) == {"b": 1}


def test_a_new_holder_lets_the_dead_ones_go_although_there_is_room(client: Client) -> None:
    ask(client, "dead", limit=9)

    ask(client, "b", LEASE, limit=9)

    assert held(client) == {"b": 1}


def test_who_renews_its_lease_is_told_how_many_slots_are_known(client: Client) -> None:
    ask(client, "a")

    known = [tell(client, "a", renew=renew).taken for renew in ("1", "2", "=2", "2")]

    assert known == [1, 1, 2, 2]


def test_who_renews_its_lease_keeps_its_slots(client: Client) -> None:
    ask(client, "a")
    ask(client, "a")
    tell(client, "a", LEASE - 1, renew="2")

    assert ask(client, "b", LEASE + 1).verdict == BY_CONCURRENCY


def test_who_asks_is_alive(client: Client) -> None:
    ask(client, "a")
    ask(client, "a")

    refused = ask(client, "a", 2 * LEASE)

    assert refused.verdict == BY_CONCURRENCY
    assert held(client) == {"a": 2}


def test_who_only_gives_back_has_the_lease_that_it_had(client: Client) -> None:
    ask(client, "a")
    ask(client, "a")
    tell(client, "a", LEASE - 1, slots=1)

    ask(client, "b", LEASE)

    assert held(client) == {"b": 1}


def test_an_unknown_holder_has_nothing_to_give_back(client: Client) -> None:
    ask(client, "a")

    tell(client, "stranger", slots=3)
    tell(client, "a", slots=3)

    assert held(client) == {}
    assert [ask(client, "b").verdict for _ in range(3)] == [ADMITTED, ADMITTED, BY_CONCURRENCY]


def test_what_an_unknown_holder_gives_back_while_asking_makes_no_room(client: Client) -> None:
    ask(client, "a")
    ask(client, "a")

    assert ask(client, "stranger", gives=2).verdict == BY_CONCURRENCY
    assert held(client) == {"a": 2}


def test_after_a_flush_the_living_put_their_slots_back(client: Client) -> None:
    ask(client, "a")
    client.command("FLUSHDB")

    tell(client, "a", renew="2")
    tell(client, "b", renew="0")

    assert held(client) == {"a": 2}
    assert ask(client, "b").verdict == BY_CONCURRENCY


def test_a_slot_that_came_back_in_the_same_call_is_not_put_back(client: Client) -> None:
    ask(client, "a")
    ask(client, "a")

    tell(client, "a", slots=1, renew="1")

    assert held(client) == {"a": 1}


@pytest.mark.parametrize("believed", [0, 1, 3])
def test_a_known_holder_is_counted_as_the_server_counted_it(client: Client, believed: int) -> None:
    ask(client, "a")
    ask(client, "a")

    tell(client, "a", renew=str(believed))

    assert held(client) == {"a": 2}


@pytest.mark.parametrize("believed", [0, 1, 3])
def test_a_holder_that_is_sure_of_its_number_is_believed(client: Client, believed: int) -> None:
    ask(client, "a")
    ask(client, "a")

    tell(client, "a", renew=f"={believed}")

    assert held(client) == ({"a": believed} if believed else {})


def test_a_holder_that_was_taken_for_dead_can_come_back(client: Client) -> None:
    ask(client, "a")
    ask(client, "a")
    ask(client, "b", LEASE)

    tell(client, "a", LEASE, slots=1, renew="1")

    assert held(client) == {"a": 1, "b": 1}


def test_a_lower_limit_lets_those_in_flight_finish(client: Client) -> None:
    for _ in range(3):
        ask(client, limit=3)

    verdicts = [ask(client, limit=2, gives=gives).verdict for gives in (0, 1, 1)]

    assert verdicts == [BY_CONCURRENCY, BY_CONCURRENCY, ADMITTED]


def test_holders_that_the_server_evicted_do_not_block_the_tool(client: Client) -> None:
    ask(client, "a")
    ask(client, "a")
    client.command("DEL", "hf:{tool}:holders")

    verdicts = [ask(client, "b", at).verdict for at in (0, 61_000_000)]

    assert verdicts == [BY_CONCURRENCY, ADMITTED]


@pytest.mark.parametrize("asks", [False, True])
def test_slots_are_given_back_although_the_server_evicted_their_holders(client: Client, asks: bool) -> None:
    ask(client, "a")
    ask(client, "b")
    client.command("DEL", "hf:{tool}:holders")

    given = [ask(client, "a", gives=1)] if asks else [tell(client, "a", slots=1), ask(client, "a")]

    assert given[-1].verdict == ADMITTED
    assert ask(client, "c").verdict == BY_CONCURRENCY  # b has the other one


def test_leases_that_the_server_evicted_run_out_all_the_same(client: Client) -> None:
    ask(client, "dead")
    ask(client, "dead")
    client.command("DEL", "hf:{tool}:leases")
    minute = 61_000_000
    tell(client, "b", minute)

    assert ask(client, "b", minute + LEASE).verdict == ADMITTED


def test_slots_of_holders_that_the_server_evicted_are_not_counted_twice(client: Client) -> None:
    ask(client, "a")
    ask(client, "b")
    client.command("DEL", "hf:{tool}:holders")

    tell(client, "a", renew="1")
    tell(client, "b", renew="=1")

    assert held(client) == {"a": 1, "b": 1}


@pytest.mark.parametrize("asks", [False, True])
def test_slots_of_evicted_holders_are_given_back_although_others_have_taken_some_since(
    client: Client, asks: bool
) -> None:
    for holder in "aab":
        ask(client, holder, limit=4)
    client.command("DEL", "hf:{tool}:holders")
    ask(client, "c", limit=4)

    if asks:
        ask(client, "a", gives=2, limit=4)
    else:
        tell(client, "a", slots=2)
        ask(client, "a", limit=4)

    assert [ask(client, "d", limit=4).verdict for _ in range(2)] == [ADMITTED, BY_CONCURRENCY]  # b has the fourth


@pytest.mark.parametrize("renew", ["3", "=3"])
def test_slots_that_an_evicted_holder_had_before_and_has_taken_since_are_counted_once(
    client: Client, renew: str
) -> None:
    ask(client, "a", limit=9)
    ask(client, "a", limit=9)
    client.command("DEL", "hf:{tool}:holders")
    ask(client, "a", limit=9)

    tell(client, "a", renew=renew)
    tell(client, "a", renew="=3")

    assert held(client) == {"a": 3}


def test_who_puts_its_slots_back_does_not_make_room_of_those_that_others_have_yet_to_put_back(client: Client) -> None:
    ask(client, "a")
    ask(client, "b")
    client.command("DEL", "hf:{tool}:holders")

    tell(client, "a", renew="1")

    assert ask(client, "c").verdict == BY_CONCURRENCY
