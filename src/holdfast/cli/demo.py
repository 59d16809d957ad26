"""`holdfast demo`: see the guards at work."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from holdfast.cli.finding import check_temporary
from holdfast.cli.ui import has_display

if TYPE_CHECKING:
    from holdfast.demo.stage import Played

SEED = 93  # an average world: its numbers lie in the middle of those of many seeds


@click.command()
@click.option("--seed", type=int, default=SEED, show_default=True, help="The world to live in.")
@click.option("--fast", is_flag=True, help="Do not slow down for the eye.")
@click.option("--scene", "scenes", type=click.IntRange(1, 4), multiple=True, help="Only this one; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def demo(seed: int, fast: bool, scenes: tuple[int, ...], as_json: bool) -> None:
    """Watch an agent cope with flaky tools, and survive kill -9.

    Four short scenes. 1: the same agent plans trips twice, with bare tools and with guarded ones. 2: it is killed while
    it books, and goes on. 3: an MCP server crashes, hangs and fails behind `holdfast wrap`. 4: the dashboard shows it
    all; in a terminal it stays until Ctrl-C. At the end stands what the guards saved. It needs no network, and leaves
    nothing behind.
    """
    from rich.console import Console

    from holdfast.demo.scenes import SCENES, play
    from holdfast.demo.stage import Stage

    check_temporary()
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    stage = Stage(
        out=Console(stderr=as_json),
        messages=Console(stderr=True),
        seed=seed,
        scenes=sorted(set(scenes) or SCENES),
        fast=fast,
        draws=sys.stderr.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"},
        stays=on_terminal,
        opens=on_terminal and has_display(),
    )
    story = play(stage)
    if as_json:
        click.echo(_as_json(story))


def _as_json(story: Mapping[int, Played]) -> bytes:
    import msgspec

    from holdfast.demo.stage import savings

    numbers = {name: number for played in story.values() for name, number in played.numbers.items()}
    saved = [
        {"what": what, "amount": sum(scenes.values()), "scenes": scenes} for what, scenes in savings(story).items()
    ]
    return msgspec.json.encode({**numbers, "saved": saved})
