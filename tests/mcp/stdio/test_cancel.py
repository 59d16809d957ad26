"""A client no longer wants what it asked for: before the call is on the wire, while it is, after it, and in a wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.mcp.stdio.client import Stage, failure, settle, text, until, within

from holdfast.mcp import session
from holdfast.testing import ManualClock


async def test_a_cancel_reaches_the_server_under_the_id_that_it_knows(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.call("write", do="hang", id=77)
        await client.next("notifications/hangs")

        client.cancel(77)
        heard = await client.next("notifications/heard")

        assert heard["params"]["params"] == {"requestId": 77, "reason": "a test"}
        assert not client.answered(77)
        assert client.upstream.condition.restarts == 0
        assert client.hf.breaker.diagnostics("srv").failure_count == 0


async def test_a_cancel_of_a_call_that_was_sent_again_names_its_new_id(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.call("read", do=["kill", "hang"], id=77)
        sent_as = (await client.next("notifications/hangs"))["params"]["id"]

        client.cancel(77)
        heard = await client.next("notifications/heard")

        assert sent_as != 77
        assert heard["params"]["params"] == {"requestId": sent_as, "reason": "a test"}


async def test_a_call_is_cancelled_though_a_later_one_with_its_id_has_ended(journal: Path, clock: ManualClock) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        client.call("write", do="hang", id=77)
        await client.next("notifications/hangs")
        await client.result("write", say="later", id=77)

        client.cancel(77)
        heard = await client.next("notifications/heard")
        clock.advance(50.1)
        await client.ask("ping")

        assert heard["params"]["params"]["requestId"] == 77
        assert len(client.answered(77)) == 1  # not one at the deadline, too
        assert len(client.journal("notifications/cancelled")) == 1


async def test_a_late_answer_to_a_cancelled_call_still_passes(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        call = client.call("write", do="hold a", id="x")
        await client.next("notifications/holds")
        client.cancel("x")
        await client.next("notifications/heard")

        await client.result("put", do="release a")

        assert text((await within(call))["result"]) == "released a"


async def test_a_cancel_before_the_call_is_on_the_wire_keeps_it_from_the_server(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()

        client.call("write", id="x")
        client.cancel("x")
        await client.ask("ping")

        assert client.effects("write") == 0
        assert not client.answered("x")


async def test_a_cancel_while_a_call_waits_for_its_rate_keeps_it_from_the_server(
    journal: Path, clock: ManualClock
) -> None:
    async with Stage(
        journal, clock=clock, policies={"server": {"srv": {"rate": {"per_second": 1.0, "burst": 1.0}}}}
    ) as client:
        await client.initialize()
        await client.result("write")
        client.call("write", id="x", n=1)
        await settle()

        client.cancel("x")
        await settle()
        clock.advance(10.0)
        await client.ask("ping")

        assert client.effects("write") == 1
        assert not client.answered("x")


async def test_a_cancel_in_the_pause_before_a_retry_stops_it(journal: Path, clock: ManualClock) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        client.call("read", id="x", do=["error connection reset by peer", "answer"])
        await until(lambda: clock.slept)

        client.cancel("x")
        await settle()
        clock.advance(10.0)
        await client.ask("ping")

        assert client.effects("read") == 1
        assert not client.answered("x")


async def test_a_cancel_while_a_call_waits_for_its_server_keeps_it_from_the_next_one(
    journal: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock) as client:
        await client.initialize()
        await client.result("write", do="kill")
        client.call("write", id="x")
        await until(lambda: clock.slept)  # the pause before the server is started again

        client.cancel("x")
        await settle()
        clock.advance(1.0)
        await client.ask("ping")

        assert client.effects("write") == 1
        assert not client.answered("x")


async def test_a_cancel_after_the_answer_or_of_something_unknown_only_passes(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        call = client.call("write", id=5)
        await within(call)

        client.cancel(5)
        client.cancel("never seen")
        client.tell("notifications/cancelled")
        client.tell("notifications/cancelled", {"requestId": [1]})
        for _ in range(4):
            await client.next("notifications/heard")

        assert len(client.answered(5)) == 1


@pytest.mark.parametrize(
    ("method", "params"),
    [("tools/call", {"name": "write", "arguments": {"do": "hang"}}), ("custom/do", {"do": "hang"})],
    ids=["call", "other"],
)
async def test_a_cancelled_request_does_not_keep_the_session_busy(method: str, params: object, journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.begin(method, params, id="x")
        await client.next("notifications/hangs")

        client.cancel("x")

        await within(client.session.idle())


async def test_a_late_answer_to_a_cancelled_request_that_only_passes_still_passes(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        asked = client.begin("custom/do", {"do": "hold a"}, id="x")
        await client.next("notifications/holds")
        client.cancel("x")

        await client.result("put", do="release a")

        assert text((await within(asked))["result"]) == "released a"


async def test_of_too_many_cancelled_calls_the_answers_to_the_last_still_pass(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MOST_STOPPED", 1)
    async with Stage(journal) as client:
        await client.initialize()
        for id in ("a", "b"):
            client.call("write", do=f"hold {id}", id=id)
            await client.next("notifications/holds")
            client.cancel(id)
            await client.next("notifications/heard")

        for id in ("a", "b"):
            await client.result("put", do=f"release {id}")

        assert (len(client.answered("a")), len(client.answered("b"))) == (0, 1)


async def test_a_cancelled_call_of_a_server_that_dies_is_not_answered(journal: Path) -> None:
    async with Stage(journal) as client:
        await client.initialize()
        client.call("write", do="hang", id="x")
        await client.next("notifications/hangs")
        client.cancel("x")
        await client.next("notifications/heard")

        await client.result("read", do=["kill", "answer"])

        assert not client.answered("x")


async def test_a_cancel_of_one_who_shares_a_call_leaves_the_other_its_answer(journal: Path) -> None:
    policies = {"server": {"srv": {"tool": {"read": {"cache": 60}}}}}
    async with Stage(journal, policies=policies) as client:
        await client.initialize()
        client.call("read", do="hold a", id="first")
        await client.next("notifications/holds")
        second = client.call("read", do="hold a", id="second")
        await settle()

        client.cancel("first")
        while client.effects("read") < 2:
            await client.next("notifications/holds")
        await client.result("put", do="release a")

        assert text((await within(second))["result"]) == "released a"


@pytest.mark.parametrize("hurt", [None, "kill"])
async def test_cancels_of_many_calls_at_once_leave_the_others_alone(hurt: str | None, journal: Path) -> None:
    async with Stage(journal, policies={"server": {"srv": {"loop": False}}}) as client:
        await client.initialize()
        calls = {
            n: client.call("put", id=n, do=["hang"] * 40 + ["answer"] if hurt else "answer") for n in range(100, 140)
        }
        for n in range(100, 140, 2):
            client.cancel(n)
        if hurt:
            for _ in range(20):
                await client.next("notifications/hangs")
            await client.result("other", do=["kill", "answer"])

        for n in range(101, 140, 2):
            result = (await within(calls[n]))["result"]
            assert text(result) == "put" or failure(result)

        assert all(len(client.answered(n)) <= 1 for n in calls)


async def test_a_session_that_is_cancelled_while_its_calls_end_still_ends_its_server(journal: Path) -> None:
    async with Stage(journal, policies={"tool": {"srv.*": {"concurrency": 1}}}) as client:
        await client.initialize()
        client.call("write", do="hang")
        await client.next("notifications/hangs")
        client.call("write", do="hang")
        await settle()  # it waits for its turn, and so as a task

        closing = asyncio.ensure_future(client.session.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)

        await client.turns("stopped")
