"""What all scenes share: where they print, what they return, and the table of what the guards saved."""

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
    """How the demo is played: *draws* on a terminal that can move its cursor, *stays* until Ctrl-C, *opens* a browser.

    The story is printed on *out*, and what changes meanwhile on *messages*.
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
        """Print one line without wrapping it, even if it is longer than the terminal is wide."""
        self.out.print(Text(f"{'':{INDENT}}{line}", style=style), soft_wrap=True)


class Saving(StrEnum):
    """What guards can save the user from."""

    TRIPS = "trips given up"
    WAITING = "waiting for answers that never came"
    ERRORS = "errors for the model to read"
    CALLS = "calls to a tool that was down"
    TWICE = "bookings and payments made twice"
    DOLLARS = "dollars for these"
    CRASHES = "crashes that end the work"

    def shown(self, amount: float) -> str:
        """Return an amount as text for people."""
        form = {Saving.WAITING: "{:,.0f} s", Saving.DOLLARS: "${:,.0f}"}.get(self, "{:,.0f}")
        return form.format(amount)


class Played(NamedTuple):
    """The outcome of a scene: its *numbers* by name, and what the guards saved in it. Every number was counted."""

    numbers: Mapping[str, object] = {}
    saved: Mapping[Saving, float] = {}


def savings(story: Mapping[int, Played]) -> dict[Saving, dict[int, float]]:
    """Return what was saved in which scene, without what was not saved at all."""
    found = {
        what: {scene: played.saved[what] for scene, played in story.items() if what in played.saved} for what in Saving
    }
    return {what: scenes for what, scenes in found.items() if sum(scenes.values()) > 0}


def closing(story: Mapping[int, Played], width: int) -> Table:
    """Return the table of what was saved; scene by scene if there is room."""
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
    """Return a table without a frame; *title* stands over its first column."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(title, no_wrap=True, overflow="ellipsis")
    return table
