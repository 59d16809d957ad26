"""How the scripts `agents/NAME_more.py` end: `python -m tests.frameworks.agents.NAME_more FOLDER` plays the scenes that
one framework alone has, and prints what came of each, a line of JSON by its name.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

import holdfast

Scenes = Iterable[Callable[[Any], Awaitable[object]]]

# Frameworks print: what came of a scene goes where they cannot reach.
ANSWERS = os.fdopen(os.dup(1), "wb", buffering=0)
os.dup2(2, 1)


def show(name: str, came: object) -> None:
    """Print what *came* of a scene."""
    ANSWERS.write(msgspec.json.encode({name: came}, enc_hook=str) + b"\n")


def play(scenes: Iterable[Callable[[str], object]]) -> None:
    """Play scenes that are given the path of a store."""
    for scene in scenes:
        show(scene.__name__, scene(f"{sys.argv[1]}/{scene.__name__}.db"))


def play_tasks(scenes: Scenes, *, killed: Callable[..., Any] | None = None) -> None:
    """Play scenes that are coroutine functions; last the one that is *killed*, which goes on when it is played again,
    with the word `resume`.
    """
    asyncio.run(_play_tasks(Path(sys.argv[1]), scenes, killed, resume=sys.argv[2:] == ["resume"]))


async def _play_tasks(
    folder: Path,
    scenes: Scenes,
    killed: Callable[..., Any] | None,
    *,
    resume: bool,
) -> None:
    for scene in () if resume else scenes:
        async with holdfast.open(folder / f"{scene.__name__}.db", policies={}) as hf:
            try:
                came = await scene(hf)
            except (Exception, asyncio.CancelledError) as error:
                came = f"{type(error).__name__}: {error}"
            show(scene.__name__, came)
    if killed is not None:
        journal = folder / "journal"
        async with holdfast.open(folder / "killed.db", policies={}) as hf:
            await killed(hf, journal, resume=resume)
        show("journal", journal.read_text().split())
