"""The pages on clients keep their word: install makes of what stands under "Before" what stands under "After"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.test_docs import places

from holdfast import cli
from holdfast.mcp.clients.places import CLIENTS
from holdfast.mcp.clients.rewriting import unwrap, wrap

FOLDER = Path(__file__).parents[1] / "docs" / "mcp"
PAGES = [*CLIENTS, "install"]


def text_of(page: str) -> str:
    return (FOLDER / f"{page}.md").read_text("utf-8")


def block(page: str, heading: str) -> str:
    found = re.search(rf"^## {heading}\n\n```jsonc?\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page}.md has no block under {heading}"
    return found[1]


def executable(page: str) -> list[str]:
    return re.findall(r'"command": "(/\S*/holdfast)"', block(page, "After"))[:1]


@pytest.mark.parametrize("client", CLIENTS)
def test_installing_what_was_before_gives_what_comes_after(client: str) -> None:
    assert wrap(block(client, "Before"), client, executable(client)).text == block(client, "After")


@pytest.mark.parametrize("client", CLIENTS)
def test_uninstalling_what_comes_after_gives_what_was_before(client: str) -> None:
    assert unwrap(block(client, "After"), client).text == block(client, "Before")


@pytest.mark.parametrize("client", CLIENTS)
def test_a_page_shows_what_install_says_of_its_servers(client: str) -> None:
    outcomes = wrap(block(client, "Before"), client, executable(client)).outcomes
    said = "".join(f"{outcome.outcome:<11}  {outcome.name}\n" for outcome in outcomes)

    assert f"$ holdfast install {client}\n{said}```" in text_of(client)
    assert f"$ holdfast uninstall {client}\n" in text_of(client)


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_somewhere(page: str) -> None:
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)) if ":" not in target]

    assert targets
    for target in targets:
        path, _, place = target.partition("#")
        assert (FOLDER / path).is_file(), target
        assert not place or place in places(FOLDER / path), target


def test_the_page_on_install_lists_clients_and_options() -> None:
    command = cli.holdfast.get_command(None, "install")  # type: ignore[arg-type]
    assert command is not None
    options = {name for option in command.params for name in option.opts if name.startswith("--")}

    listed = re.findall(r"^\| `(--[a-z-]+)", text_of("install"), re.MULTILINE)

    assert set(listed) == options
    assert set(re.findall(r"^\| \[`([a-z-]+)`\]", text_of("install"), re.MULTILINE)) == set(CLIENTS)
