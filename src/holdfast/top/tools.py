"""The screen Tools: one line per tool, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from holdfast.stores.entries import ToolLine
from holdfast.top.reading import Picture
from holdfast.top.sheet import Contents
from holdfast.top.signs import sparkline, tool_state
from holdfast.wording import age, one_line, plural
from holdfast.wording.columns import Column
from holdfast.wording.tools import duration, in_flight, name_of, pace, percent, probe

COLUMNS: Final = (
    Column("tool", most=48),
    Column("circuit", most=40),
    Column("probe", right=True, need=8),
    Column("calls/s", right=True, need=7),
    Column("last minute", right=True, need=1),
    Column("failed", right=True, need=8),
    Column("opens at", right=True, need=3),
    Column("p50", right=True, need=2),
    Column("p95", right=True, need=6),
    Column("p99", right=True, need=2),
    Column("in flight", right=True, need=5),
    Column("rate", right=True, need=4),
    Column("calls", right=True, need=1),
    Column("procs", right=True, need=0),
    Column("last error"),
)
SPARK: Final = 20  # columns of the sparkline "last minute"
NOTHING: Final = (
    "No process on this store has a tool yet.",
    "",
    "Open the same store in your agent, and its tools appear here with their first call:",
    "",
    '    hf = holdfast.open("agent.db")',
    "",
    "    @hf.tool()",
    "    def search(query: str) -> list[str]: ...",
    "",
    "Or put an MCP server behind it:  holdfast wrap -- COMMAND",
)
NO_MATCH: Final = ("No tool is like this; esc shows all of them.",)


def contents(picture: Picture) -> Contents:
    """The lines of the tools that the filter lets through."""
    lines = chosen(picture)
    return Contents(
        COLUMNS,
        [line.name for line in lines],
        lambda at: _cells(lines[at], picture),
        NO_MATCH if picture.tools else NOTHING,
    )


def chosen(picture: Picture) -> list[ToolLine]:
    """The tools that the filter lets through."""
    text, failed = picture.look.text.casefold(), picture.look.failed
    return [
        line
        for line in picture.tools
        if (not failed or is_failing(line)) and text in f"{line.name} {line.last_error or ''}".casefold()
    ]


def is_failing(line: ToolLine) -> bool:
    """Whether anything is wrong with a tool."""
    return line.state in ("open", "half_open") or bool(line.error_rate)


def summary(tools: Sequence[ToolLine]) -> Text:
    """All tools in one line."""
    if not tools:
        return Text("no tools")
    text = Text(plural(len(tools), "tool"))
    for state, style in (("open", "bold red"), ("half_open", "bold yellow")):
        if count := sum(line.state == state for line in tools):
            text.append(" · ").append(f"{count} {state.replace('_', '-')}", style=style)
    if alone := sum(line.alone > 0 for line in tools):
        text.append(" · ").append(f"{alone} without their fleet", style="bold yellow")
    return text.append(f" · {speed(sum(line.calls_per_second or 0.0 for line in tools))} calls/s")


def speed(value: float) -> str:
    """A number of calls a second, rounded to fit a column."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def trip(line: ToolLine) -> str:
    """The failures so far of those that open the circuit ("3 of 7"), else the share of failed calls that opens it."""
    worst = max((each.tool for each in line.processes), key=lambda tool: tool.failure_count, default=None)
    if worst is None or worst.failure_threshold is None or not (worst.failure_count or line.failure_rate is None):
        return percent(line.failure_rate)
    return f"{worst.failure_count} of {worst.failure_threshold}"


def _cells(line: ToolLine, picture: Picture) -> list[Text]:
    failed, calls = line.error_rate, line.calls_per_second
    pending = any(each.pending for each in line.processes)
    state = tool_state(line)
    if pending:
        state.append(" …", style="dim")
    ahead = f", {age(line.last_error_at_ms, picture.at)} ago" if line.last_error_at_ms is not None else ""
    return [
        name_of(line),
        state,
        Text(probe(line), style="yellow"),
        Text("" if calls is None else speed(calls), style="" if calls else "dim"),
        Text(sparkline(picture.speeds.get(line.name, ()), SPARK) if line.calls else "", style="cyan"),
        Text(percent(failed), style="red" if failed else "dim"),
        Text("" if line.state == "open" else trip(line), style="dim"),
        *(Text("" if value is None else duration(value)) for value in (line.p50_ms, line.p95_ms, line.p99_ms)),
        Text(in_flight(line)),
        Text(pace(line.rate, line.full_rate), style="yellow" if _is_slowed(line) else ""),
        Text(f"{line.calls}" if line.calls else "", style="dim"),
        Text(f"{len(line.processes)}", style="dim"),
        Text(
            one_line(line.last_error, 300) + ahead if line.last_error else "",
            style="red" if line.state in ("open", "half_open") else "dim",
        ),
    ]


def _is_slowed(line: ToolLine) -> bool:
    return line.rate is not None and line.full_rate is not None and line.rate < line.full_rate
