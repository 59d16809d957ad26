"""What all scenes have in common: where they are told, what they come to, and the table of what the guards saved."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

INDENT: Final = 3


class Stage(NamedTuple):
    """How it is played: *draws* on a terminal that can move its cursor, *stays* until Ctrl-C, *opens* a browser.

    The story is told on *out*, what changes meanwhile on *messages*.
    """

    out: Console
    messages: Console
    seed: int
    scenes: Collection[int]
    fast: bool
    draws: bool
    stays: bool
    opens: bool

    def say(self, line: str, style: str = "") -> None:
        """Say one line, whole, also where it is longer than the terminal is wide."""
        self.out.print(Text(f"{'':{INDENT}}{line}", style=style), soft_wrap=True)


class Saving(StrEnum):
    """What guards can save somebody from."""

    TRIPS = "trips given up"
    WAITING = "waiting for answers that never came"
    ERRORS = "errors for the model to read"
    CALLS = "calls to a tool that was down"
    TWICE = "bookings and payments made twice"
    DOLLARS = "dollars for these"
    CRASHES = "crashes that end the work"

    def shown(self, amount: float) -> str:
        """An amount of it, for people."""
        form = {Saving.WAITING: "{:,.0f} s", Saving.DOLLARS: "${:,.0f}"}.get(self, "{:,.0f}")
        return form.format(amount)


class Played(NamedTuple):
    """What a scene came to: its *numbers* by name, and what the guards saved in it. Every number was counted."""

    numbers: Mapping[str, object] = {}
    saved: Mapping[Saving, float] = {}


def savings(story: Mapping[int, Played]) -> dict[Saving, dict[int, float]]:
    """What was saved in which scene, where anything was."""
    found = {
        what: {scene: played.saved[what] for scene, played in story.items() if what in played.saved} for what in Saving
    }
    return {what: scenes for what, scenes in found.items() if sum(scenes.values()) > 0}


def closing(story: Mapping[int, Played], width: int) -> Table:
    """What was saved, for people; scene by scene where there is room."""
    scenes = list(story) if width >= 80 and len(story) > 1 else []
    table = plain_table("what the guards saved you from")
    for scene in scenes:
        table.add_column(f"scene {scene}", justify="right", style="dim", no_wrap=True)
    table.add_column("in all", justify="right", style="bold green", no_wrap=True)
    for what, amounts in savings(story).items():
        parts = [what.shown(amounts[scene]) if amounts.get(scene) else "–" for scene in scenes]
        table.add_row(what, *parts, what.shown(sum(amounts.values())))
    return table


def plain_table(title: str) -> Table:
    """A table without a frame; *title* stands over its first column."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(title, no_wrap=True, overflow="ellipsis")
    return table
