"""The demo on a terminal: one frame of the live view, and the closing table. Both say in words what they colour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.demo.agent import AT_ONCE, Agent, Progress
from holdfast.demo.journal import Line, Tone
from holdfast.demo.race import POLICIES, Race, Report
from holdfast.demo.world import World
from holdfast.guards.circuit import CircuitState

STYLES: Final[Mapping[Tone, str]] = {Tone.GOOD: "green", Tone.CARE: "yellow", Tone.BAD: "red", Tone.MINOR: "dim"}
CELLS: Final[Mapping[Progress, tuple[str, str]]] = {
    Progress.DONE: ("■", "green"),
    Progress.GIVEN_UP: ("×", "red"),
    Progress.IN_WORK: ("□", "yellow"),
    Progress.WAITING: ("·", "dim"),
}
GUARDED_BY: Final[Mapping[str, str]] = {
    "geocode": "cache",
    "search": "retry",
    "fetch_page": "timeout, retry, loop guard",
    "prices": "adaptive rate, retry",
    "translate": "timeout, circuit, fallback",
    "phrasebook": "",
    "book_flight": "is never repeated",
    "find_booking": "retry",
}
TABLE_LINES: Final = len(POLICIES) + 3  # with its head and what parts it from the lines below
OTHER_LINES: Final = 6  # title, progress, what parts them, and one that a terminal keeps for its cursor


# -- the live view -----------------------------------------------------------------------------------------------------


def frame(race: Race, width: int, height: int, note: str) -> RenderableType:
    """How things stand, in at most *width* columns and *height* lines."""
    room = height - OTHER_LINES
    tools: list[RenderableType] = []
    if room > TABLE_LINES:
        room -= TABLE_LINES
        tools = [_tools(race, width), Text()]
    lines = list(race.journal.lines)[-max(1, room) :]
    return Group(
        _title(race, note),
        Text(),
        *tools,
        *(_line(line) for line in lines),
        *(Text() for _ in range(room - len(lines))),
        Text(),
        _progress("guarded", race.guarded, race.guarded_world, width),
        _progress("bare", race.bare, race.bare_world, width),
    )


class Column(NamedTuple):
    """A column of the table of tools; shown where the terminal has at least *width* columns."""

    title: str
    width: int
    cell: Callable[[Race, str], str | Text]
    right: bool = True


def _title(race: Race, note: str) -> Text:
    title = Text("holdfast demo", style="bold", no_wrap=True, overflow="ellipsis")
    title.append(f"  {race.clock.monotonic():3.0f} s  {note}", style="not bold dim")
    return title


def _tools(race: Race, width: int) -> Table:
    gap = 1 if width >= 100 else 0  # beside the column that parts them anyway
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    columns = [column for column in COLUMNS if width >= column.width]
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True, overflow="ellipsis")
    for tool in POLICIES:
        table.add_row(*(column.cell(race, tool) for column in columns))
    return table


def _circuit(race: Race, tool: str) -> Text:
    state = race.holdfast.breaker.state(tool)
    if state is CircuitState.CLOSED:
        return Text("● closed", style="green")
    if state is CircuitState.HALF_OPEN:
        return Text("◐ probing", style="yellow")
    left = race.holdfast.breaker.remaining_backoff(tool)
    return Text(f"○ open {left:2.0f} s" if left and left >= 0.5 else "○ open", style="bold red")


def _number(number: int, style: str = "") -> Text:
    return Text(str(number), style=style) if number else Text("–", style="dim")


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.2f}"


def _calls(race: Race, tool: str) -> Text:
    stats = race.holdfast.tracker.stats(tool)
    return _number(stats.total + stats.denied)


COLUMNS: Final = (
    Column("tool", 0, lambda race, tool: Text(tool, style="bold"), right=False),
    Column("circuit", 0, _circuit, right=False),
    Column("calls", 0, _calls),
    Column("ok", 0, lambda race, tool: _number(race.holdfast.tracker.stats(tool).successful, "green")),
    Column("retried", 50, lambda race, tool: _number(race.journal.retried[tool], "yellow")),
    Column("refused", 50, lambda race, tool: _number(race.holdfast.tracker.stats(tool).denied, "red")),
    Column("cached", 60, lambda race, tool: _number(race.journal.cached[tool], "cyan")),
    Column("paced", 66, lambda race, tool: _number(race.journal.held_back[tool], "cyan")),
    Column("p50", 74, lambda race, tool: _seconds(race.holdfast.tracker.stats(tool).p50)),
    Column("p95", 80, lambda race, tool: _seconds(race.holdfast.tracker.stats(tool).p95)),
    Column("guarded by", 108, lambda race, tool: Text(GUARDED_BY[tool], style="dim"), right=False),
    Column("last error", 136, lambda race, tool: race.journal.last_error.get(tool, ""), right=False),
)


def _line(line: Line) -> Text:
    text = Text(f"{line.at:6.1f} s  ", style="dim", no_wrap=True, overflow="ellipsis")
    text.append(f"{line.who:<13}", style="not dim bold" if line.tone is not Tone.MINOR else "dim")
    text.append(line.text, style=f"not dim {STYLES[line.tone]}")
    if line.times > 1:
        text.append(f" ({line.times} ×)")
    return text


def _progress(who: str, agent: Agent, world: World, width: int) -> Text:
    text = Text(f"{who:<8}", style="bold", no_wrap=True, overflow="ellipsis")
    for trip, progress in agent.progress.items():
        cell, style = CELLS[progress]
        if progress is Progress.DONE and (times := world.bookings[trip.name]) > 1:
            cell, style = str(times), "bold red"
        text.append(cell * (2 if width >= 120 else 1), style=f"not bold {style}")
    text.append(f"  {agent.count(Progress.DONE)} done", style="not bold")
    if given_up := agent.count(Progress.GIVEN_UP):
        text.append(f", {given_up} given up", style="not bold red")
    if world.rebooked:
        text.append(f", {world.rebooked} booked again", style="not bold red")
    if agent.finished_at is not None:
        text.append(f", in {agent.finished_at:.0f} s", style="not bold")
    elif hanging := +world.hanging:
        where = next(iter(hanging)) if len(hanging) == 1 else f"{len(hanging)} tools"
        text.append(f", hanging in {where}", style="not bold yellow")
    return text


# -- the closing table -------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One line of the closing table; *better* says that the guarded agent did better."""

    label: str
    bare: str
    guarded: str
    better: bool
    thanks: str


def rows(report: Report) -> list[Row]:
    """What the guards saved, line by line."""
    bare, guarded, guards = report.bare, report.guarded, report.guards

    def row(label: str, field: str, thanks: str, form: str = "{:,}") -> Row:
        before, after = getattr(bare, field), getattr(guarded, field)
        better = after > before if field == "done" else after < before
        return Row(label, form.format(before), form.format(after), better, thanks)

    return [
        row(f"trips finished, of {guarded.trips}", "done", "all of these"),
        row("time it took", "seconds", "timeouts, circuit", "{:,.0f} s"),
        row("waited for answers that never came", "lost", f"timeouts: {guards.cut_off} cut off", "{:,.0f} s"),
        row("failed calls the model had to read", "failed_calls", f"retries: {guards.retried}"),
        row("turns the model needed", "turns", f"loop guard: {guards.loop_refusals} loops cut"),
        row("requests to a tool that was down", "asked_while_down", f"circuit: {guards.circuit_refusals} spared"),
        row("429s provoked", "too_many", f"adaptive rate: {guards.held_back} paced"),
        row("geocode requests to pay for", "geocoded", f"cache: {guards.cached} answered"),
        row("texts translated word by word only", "word_by_word", "the price of a fallback"),
        row("flights booked again by mistake", "rebooked", "no blind repeats"),
        row("paid for these", "wasted", "", "${:,}"),
    ]


def closing(report: Report, width: int) -> RenderableType:
    """The table that the race ends with."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("the same agent, twice", no_wrap=True, overflow="ellipsis")
    table.add_column("bare", justify="right", no_wrap=True)
    table.add_column("guarded", justify="right", no_wrap=True)
    if width >= 80:
        table.add_column("thanks to", no_wrap=True, overflow="ellipsis")
    for row in rows(report):
        guarded = Text(row.guarded, style="bold green" if row.better else "")
        thanks = [Text(row.thanks, "dim")] if width >= 80 else []
        table.add_row(row.label, row.bare, guarded, *thanks)
    world = f"same world (seed {report.seed}), {AT_ONCE} trips at once"
    counted = f"Same agent, {world}; counted on the demo's clock."
    return Group(table, Text(), Text(counted, style="dim"))
