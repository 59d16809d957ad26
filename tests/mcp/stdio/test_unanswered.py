"""Requests that are not calls have no deadline; a server that never answers them costs only so much memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.stdio.client import Stage, text, within

from holdfast.mcp import passed


async def test_of_too_many_requests_without_an_answer_the_oldest_fails_and_the_others_go_on(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passed, "MOST_OPEN", 3)
    async with Stage(journal) as client:
        await client.initialize()
        methods = ["resources/read", "custom/do", "resources/read", "custom/do"]
        asked = [client.begin(method, {"do": f"hold {n}"}) for n, method in enumerate(methods)]

        oldest = await within(asked[0])

        assert oldest["error"] == {
            "code": -32000,
            "message": "the server has left too many requests unanswered; this was the oldest",
        }
        for n in range(4):
            await client.result("read", do=f"release {n}", n=n)
        late = [text(answer["result"]) for answer in await within(asyncio.gather(*asked[1:]))]
        assert late == ["released 1", "released 2", "released 3"]
        assert len(client.answered(oldest["id"])) == 1  # its late answer is dropped


async def test_answered_requests_do_not_count(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passed, "MOST_OPEN", 2)
    async with Stage(journal) as client:
        await client.initialize()
        slow = client.begin("resources/read", {"do": "hold it"})
        cancelled = client.begin("custom/do", {"do": "hang"}, id="c")
        client.cancel("c")

        for _ in range(5):
            assert "result" in await client.ask("ping")

        await client.result("read", do="release it")
        assert text((await within(slow))["result"]) == "released it"
        assert not cancelled.done()


async def test_only_so_much_of_open_requests_is_kept_to_be_sent_again(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passed, "MOST_KEPT", 3000)
    async with Stage(journal) as client:
        await client.initialize()
        large, small = (
            client.begin("resources/read", {"do": ["hang", "hang", "answer"], "pad": "x" * size})
            for size in (2500, 500)
        )
        await client.next("notifications/hangs")
        await client.next("notifications/hangs")

        client.call("write", do="kill")

        assert (await within(large))["error"]["code"] == -32000
        assert text((await within(small))["result"]) == "resources/read"


def test_a_request_under_the_id_of_another_one_is_kept_in_its_place() -> None:
    nobody: Any = None
    unanswered = passed.Unanswered()
    for _ in range(100):
        unanswered.add(1, passed.Passed(1, "ping", nobody, bytes(2**20)))

    last = passed.Passed(2, "ping", nobody, b"{}")
    unanswered.add(2, last)

    assert last.again() == b"{}"
