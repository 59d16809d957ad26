"""Plays the scenes in order, on one store in a temporary folder; all processes have ended before it is deleted."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from rich.text import Text

from holdfast.demo import killed, page, proxied, view
from holdfast.demo.stage import Played, Stage, closing

SCENES: Final[Mapping[int, tuple[str, Callable[[Stage, Path], Awaitable[Played]]]]] = {
    1: ("Flaky tools: the same agent plans trips, bare and guarded", view.scene),
    2: ("kill -9: an agent dies while it books, twice, and goes on", killed.scene),
    3: ("An MCP server that crashes, hangs and fails, behind holdfast wrap", proxied.scene),
    4: ("See and steer all of it: the dashboard", page.scene),
}


def play(stage: Stage) -> Mapping[int, Played]:
    """Play the scenes, and say at the end what was saved."""
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        story = asyncio.run(_play(stage, Path(folder)))
    stage.out.print(closing(story, stage.out.width))
    stage.out.print()
    stage.out.print(Text("Next: README.md (guard your own tools), docs/mcp.md (guard an MCP server)."))
    return story


async def _play(stage: Stage, folder: Path) -> Mapping[int, Played]:
    story = {}
    for number in stage.scenes:
        title, scene = SCENES[number]
        stage.out.print(Text(f"{number}  {title}", style="bold"))
        stage.out.print()
        story[number] = await scene(stage, folder)
        stage.out.print()
    return story
