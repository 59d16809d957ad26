"""The first scene: the race, told line by line, and its result. On a terminal it is slowed down for the eye, and the
progress of both agents stands below the lines. Everything that is coloured is also said in words.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast.clock import SystemClock
from holdfast.demo.agent import AT_ONCE, Agent, Progress
from holdfast.demo.journal import TOGETHER, Line
from holdfast.demo.race import ROWS, TRIPS, Race, Report
from holdfast.demo.stage import Played, Stage, plain_table
from holdfast.demo.world import World

FRAMES: Final = 12  # a second
SPEED: Final = 4.0  # seconds of the demo's clock per second of the viewer's
FORWARD: Final = 20.0  # the same, once only the bare agent is at work
SKIP: Final = 1.0  # seconds of the demo's clock between two frames in fast mode

STYLES: Final[Mapping[Progress, str]] = {
    Progress.DONE: "green",
    Progress.GIVEN_UP: "red",
    Progress.IN_WORK: "yellow",
    Progress.WAITING: "dim",
}


async def scene(stage: Stage, folder: Path) -> Played:
    """Let the same agent work twice, bare and guarded, and compare."""
    race, console = Race(stage.seed), stage.messages
    console.print(Text(f"An agent plans {TRIPS} trips with flaky tools, twice: bare, and guarded by Holdfast."))
    if stage.draws:
        report = await _watch(race, console, stage.fast)
    else:
        report = await race.run()
        _tell(race, console, 0)
    stage.out.print()
    stage.out.print(result(report, stage.out.width))
    saved = {row.saving: report.bare[row.label] - report.guarded[row.label] for row in ROWS if row.saving is not None}
    return Played(msgspec.structs.asdict(report), saved)


async def _watch(race: Race, console: Console, fast: bool) -> Report:
    """Let the agents race, and hold their clock back while the viewer looks at a frame."""
    eye, told, racing = SystemClock(), 0, asyncio.create_task(race.run())
    try:
        with Live(console=console, auto_refresh=False) as live:
            while not racing.done():
                speed = SPEED if race.guarded.finished_at is None else FORWARD
                await race.clock.asleep(SKIP if fast else speed / FRAMES)
                told = _tell(race, console, told, before=race.clock.monotonic() - TOGETHER)
                live.update(standing(race, "" if fast else f", {speed:g} × speed"), refresh=True)
                if not fast:
                    with race.clock.busy():
                        await eye.asleep(1 / FRAMES)
            _tell(race, console, told)
            live.update(standing(race, ""), refresh=True)
    finally:
        racing.cancel()
    return racing.result()


def _tell(race: Race, console: Console, told: int, before: float = math.inf) -> int:
    """Print the lines after the first *told* up to the time *before*; later ones may change. Return the new *told*."""
    for line in race.journal.lines[told:]:
        if line.at > before:
            break
        console.print(_shown(line), soft_wrap=True)
        told += 1
    return told


def _shown(line: Line) -> Text:
    text = Text(f"{line.at:6.1f} s  ", style="dim")
    text.append(f"{line.who:<13}", style="not dim bold")
    text.append(line.text, style=f"not dim {line.style}")
    if line.times > 1:
        text.append(f" ({line.times} ×)")
    return text


def standing(race: Race, speed: str) -> RenderableType:
    """Return how far both agents are, as something to draw."""
    time = Text(f"{race.clock.monotonic():6.1f} s{speed}", style="dim")
    agents = (("guarded", race.guarded, race.guarded_world), ("bare", race.bare, race.bare_world))
    return Group(Text(), *(_progress(*each) for each in agents), time)


def _progress(who: str, agent: Agent, world: World) -> Text:
    text = Text(f"{who:<8}", style="bold", no_wrap=True, overflow="ellipsis")
    for progress in agent.progress.values():
        text.append(progress.value, style=f"not bold {STYLES[progress]}")
    text.append(f"  {agent.count(Progress.DONE)} done", style="not bold")
    if given_up := agent.count(Progress.GIVEN_UP):
        text.append(f", {given_up} given up", style="not bold red")
    if world.rebooked:
        text.append(f", {world.rebooked} booked again", style="not bold red")
    if agent.finished_at is not None:
        text.append(f", in {agent.finished_at:.0f} s", style="not bold")
    elif world.hanging:
        text.append(f", {world.hanging} hanging", style="not bold yellow")
    return text


def result(report: Report, width: int) -> RenderableType:
    """Both agents side by side; where there is room, with what made the difference."""
    table = plain_table("the same agent, twice")
    table.add_column("bare", justify="right", no_wrap=True)
    table.add_column("guarded", justify="right", no_wrap=True)
    if width >= 80:
        table.add_column("thanks to", style="dim", no_wrap=True, overflow="ellipsis")
    did = Counter(report.guards)  # a missing count is 0
    for row in ROWS:
        bare, guarded = report.bare[row.label], report.guarded[row.label]
        shown = Text(row.shown(guarded), style="bold green" if guarded < bare else "")
        thanks = [row.thanks.format_map(did)] if width >= 80 else []
        table.add_row(row.label, row.shown(bare), shown, *thanks)
    world = f"same world (seed {report.seed}), {AT_ONCE} trips at once"
    return Group(table, Text(), Text(f"Same agent, {world}; counted on the demo's clock.", style="dim"))
