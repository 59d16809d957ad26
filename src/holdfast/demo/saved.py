"""What the guards saved in a run of the demo, over all scenes that were played. Every number was counted in one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from holdfast.demo.killed import Killed
from holdfast.demo.page import Shown, Totals
from holdfast.demo.proxied import Proxied
from holdfast.demo.race import Report


class Story(msgspec.Struct, kw_only=True):
    """What came of each scene that was played; *live* is what happened while the dashboard was there."""

    race: Report | None = None
    killed: Killed | None = None
    proxied: Proxied | None = None
    shown: Shown | None = None
    live: Totals | None = None

    @property
    def played(self) -> list[int]:
        """The numbers of the scenes in which something can have been saved."""
        scenes = {1: self.race, 2: self.killed, 3: self.proxied, 4: self.live}
        return [number for number, scene in scenes.items() if scene is not None]


class Row(NamedTuple):
    """One thing that was saved, and how much of it in which scene."""

    what: str
    scenes: Mapping[int, float]
    form: str = "{:,.0f}"

    @property
    def total(self) -> float:
        """All scenes together."""
        return sum(self.scenes.values())

    def shown(self, amount: float) -> str:
        """An amount of it, for people."""
        return self.form.format(amount) if amount else "–"


def rows(story: Story) -> list[Row]:
    """What was saved, where anything was."""
    return [row for row in [*_by_the_race(story.race), *_by_all(story)] if row.total > 0]


def table(story: Story, width: int) -> Table:
    """What was saved, for people; scene by scene where there is room."""
    scenes = story.played if width >= 80 and len(story.played) > 1 else []
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    made.add_column("what the guards saved you from", no_wrap=True, overflow="ellipsis")
    for scene in scenes:
        made.add_column(f"scene {scene}", justify="right", style="dim", no_wrap=True)
    made.add_column("in all", justify="right", style="bold green", no_wrap=True)
    for row in rows(story):
        parts = [Text(row.shown(row.scenes.get(scene, 0))) for scene in scenes]
        made.add_row(row.what, *parts, Text(row.shown(row.total)))
    return made


def _by_the_race(race: Report | None) -> list[Row]:
    if race is None:
        return []
    bare, guarded = race.bare, race.guarded
    return [
        Row("trips given up", {1: guarded.done - bare.done}),
        Row("waiting for answers that never came", {1: bare.lost - guarded.lost}, "{:,.0f} s"),
        Row("errors for the model to read", {1: bare.failed_calls - guarded.failed_calls}),
    ]


def _by_all(story: Story) -> list[Row]:
    race, killed, proxied, live = story.race, story.killed, story.proxied, story.live
    calls: dict[int, float] = {}
    twice: dict[int, float] = {}
    dollars: dict[int, float] = {}
    crashes: dict[int, float] = {}
    if race is not None:
        calls[1] = race.guards.circuit_refusals
        twice[1] = race.bare.rebooked - race.guarded.rebooked
        dollars[1] = race.bare.wasted - race.guarded.wasted
    if killed is not None:
        twice[2] = killed.in_doubt - killed.twice
        crashes[2] = killed.kills
    if proxied is not None:
        calls[3] = proxied.refused
        twice[3] = proxied.in_doubt - proxied.paid_twice
        crashes[3] = proxied.crashes
    if live is not None:
        calls[4] = live.not_made
        crashes[4] = live.crashes
    return [
        Row("calls to a tool that was down", calls),
        Row("bookings and payments made twice", twice),
        Row("dollars for these", dollars, "${:,.0f}"),
        Row("crashes that end the work", crashes),
    ]
