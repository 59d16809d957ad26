"""The scenes in their order: what is played, where, and what is said to whoever looks on.

Everything is on a store in a temporary folder; whatever happens, the folder and all processes are gone at the end.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from holdfast.demo import killed, page, proxied, watched
from holdfast.demo.client import Client, wrapped
from holdfast.demo.saved import Story, table
from holdfast.demo.show import tell, watch
from holdfast.demo.view import closing
from holdfast.stores import RunStore, open_store

SCENES: Final = (1, 2, 3, 4)
INDENT: Final = 3
TITLES: Final = {
    1: "Flaky tools: the same agent plans trips, bare and guarded",
    2: "kill -9: an agent dies while it books, twice, and goes on",
    3: "An MCP server that crashes, hangs and fails, behind holdfast wrap",
    4: "See and steer all of it: the dashboard",
}


class Stage(NamedTuple):
    """How it is played: *draws* on a terminal that can move its cursor, *stays* until Ctrl-C, *opens* a browser.

    The story is told on *out*, what changes meanwhile on *messages*.
    """

    out: Console
    messages: Console
    seed: int
    scenes: Collection[int] = SCENES
    fast: bool = False
    draws: bool = False
    stays: bool = False
    opens: bool = False

    def head(self, scene: int) -> None:
        """Say that a scene begins."""
        if scene != min(self.scenes):
            self.out.print()
        self.out.print(Text(f"{scene}  {TITLES[scene]}", style="bold"))
        self.out.print()

    def say(self, line: str, style: str = "") -> None:
        """Say one line, whole, also where it is longer than the terminal is wide."""
        self.out.print(Text(f"{'':{INDENT}}{line}", style=style), soft_wrap=True)


def play(stage: Stage) -> Story:
    """Play the scenes, and say at the end what was saved."""
    story = Story()
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as made:
        folder = Path(made)
        if 1 in stage.scenes:
            _play_race(stage, story)
        if 2 in stage.scenes:
            stage.head(2)
            story.killed = killed.scene(folder)
            for line in killed.lines(story.killed):
                stage.say(line)
        if {3, 4} & set(stage.scenes):
            asyncio.run(_play_proxy(stage, story, folder))
    stage.out.print()
    stage.out.print(table(story, stage.out.width))
    stage.out.print()
    stage.out.print(Text("Next: README.md (guard your own tools), docs/mcp.md (guard an MCP server)."))
    return story


def _play_race(stage: Stage, story: Story) -> None:
    stage.head(1)
    if stage.draws:
        story.race = asyncio.run(watch(stage.seed, stage.messages, fast=stage.fast))
    else:
        story.race = asyncio.run(tell(stage.seed, stage.messages))
    stage.out.print()
    stage.out.print(closing(story.race, stage.out.width))


async def _play_proxy(stage: Stage, story: Story, folder: Path) -> None:
    if 3 in stage.scenes:
        stage.head(3)
    async with wrapped(folder) as client:
        if 3 in stage.scenes:
            story.proxied = await proxied.scene(client, folder, lambda *beat: _tell_beat(stage, *beat))
        if 4 in stage.scenes:
            stage.head(4)
            with open_store(folder / "runs.db") as store:
                await _play_page(stage, story, folder, client, store)


def _tell_beat(stage: Stage, tool: str, what: str, seconds: float | None) -> None:
    if not tool:
        stage.out.print(Padding(Text(what, style="italic"), (0, 6, 0, INDENT + 17)))
        return
    line = Text(f"{'':{INDENT}}{tool:<15}", style="bold", no_wrap=True, overflow="ellipsis")
    line.append(f"{what:<55}" if seconds is not None else what, style="not bold")
    if seconds is not None:
        line.append(f"{seconds:5.1f} s", style="not bold dim")
    stage.out.print(line)


async def _play_page(stage: Stage, story: Story, folder: Path, client: Client, store: RunStore) -> None:
    try:
        with page.served(store) as shown:
            async with watched.busy(folder, stage.seed, client):
                before = page.totals(store)
                if stage.stays:
                    await _stay(stage, shown, store, before)
                else:
                    story.shown, lines = await watched.look_once(shown)
                    for line in lines:
                        stage.say(line)
                story.live = page.totals(store).since(before)
    except page.Missing as missing:
        stage.say(f"It needs {missing}: pip install 'holdfast[server]'. The demo goes on without it.")


async def _stay(stage: Stage, shown: page.Page, store: RunStore, before: page.Totals) -> None:
    stage.say(shown.address, style="bold cyan")
    stage.out.print()
    is_open = stage.opens and await asyncio.to_thread(watched.opened, shown)
    stage.say("It is open in your browser." if is_open else "Open it in a browser.")
    for line in watched.WORTH_A_LOOK:
        stage.say(line)
    stage.out.print()
    if not stage.draws:
        stage.say("Ctrl-C ends it.")
    await watched.stay(store, before, stage.messages if stage.draws else None)
