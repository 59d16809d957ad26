"""What the pages on the proxy say: the policies are read and do what is said of them, the refusal is a real one."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.stdio.client import Stage, failure, settle, text, within

from holdfast import CircuitOpen
from holdfast.mcp.refusals import META, refusal
from holdfast.mcp.server import DEFAULTS
from holdfast.policy import PolicyBook
from holdfast.testing import ManualClock

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLES = re.findall(r"^## (.+?)\n.*?^```toml\n(.*?)^```", (DOCS / "mcp/policies.md").read_text("utf-8"), re.M | re.S)


def example(server: str) -> dict[str, Any]:
    [found] = [rules for _, block in EXAMPLES if server in (rules := tomllib.loads(block))["server"]]
    return found


def test_there_are_three_examples() -> None:
    assert [title for title, _ in EXAMPLES] == ["GitHub", "Brave Search", "Payments"]


@pytest.mark.parametrize(("title", "block"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_an_example_is_a_policy_file(title: str, block: str, tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text(block, "utf-8")

    book = PolicyBook.load(file, defaults=DEFAULTS)

    [(server, rules)] = tomllib.loads(block)["server"].items()
    for pattern in rules["tool"]:
        assert book.resolve(f"{server}.{pattern.replace('*', 'x')}").deadline is not None


async def test_github_reads_are_repeated_and_kept_and_creations_are_not(journal: Path) -> None:
    async with Stage(journal, policies=example("github"), name="github") as client:
        await client.initialize()

        for _ in range(2):
            assert text(await client.result("get_issue", do=["error connection refused", "answer"])) == "get_issue"
        await client.result("create_issue", do=["error connection refused", "answer"])

        assert client.effects("get_issue") == 2
        assert client.effects("create_issue") == 1


async def test_brave_searches_are_two_seconds_apart_and_the_third_has_its_say(
    journal: Path, clock: ManualClock
) -> None:
    async with Stage(journal, clock=clock, policies=example("brave-search"), name="brave-search") as client:
        await client.initialize()
        calls = [client.call("brave_web_search", say=str(n)) for n in range(3)]
        await within(calls[0])
        await client.ask("ping")
        assert client.effects("brave_web_search") == 1

        for call in calls[1:]:
            clock.advance(2.0)
            await within(call)

        failed = client.call("brave_local_search", do="rpc -32000 connection refused")
        while not failed.done():
            clock.advance(1.0)
            await settle()
            await client.ask("ping")
        assert text((await failed)["result"]).startswith("Web search is not available now.")


async def test_a_second_refund_is_refused(journal: Path) -> None:
    async with Stage(journal, policies=example("stripe"), name="stripe") as client:
        await client.initialize()

        assert text(await client.result("create_refund")) == "create_refund"

        assert failure(await client.result("create_refund", n=1))["kind"] == "BudgetExceeded"
        assert client.effects("create_refund") == 1


def test_the_refusal_on_the_page_is_a_real_one() -> None:
    [shown] = re.findall(r"^```json\n(.*?)^```", (DOCS / "mcp.md").read_text("utf-8"), re.M | re.S)
    error = CircuitOpen("github.create_issue", "it has failed repeatedly and is temporarily disabled", 4.8)

    real: dict[str, Any] = refusal(error, "github", called=False, repeatable=False, modern=False)

    assert json.loads(shown)["_meta"][META] == real["_meta"][META]
    assert real["content"][0]["text"].startswith(json.loads(shown)["content"][0]["text"].removesuffix("…"))
