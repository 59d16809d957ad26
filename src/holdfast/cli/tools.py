"""`holdfast tools`: see and steer the circuits of all processes that use a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli import FAILED
from holdfast.cli.finding import opened_leniently
from holdfast.cli.options import Group, json_option, store_option, text
from holdfast.cli.showing import console, put_fact, put_fitting, put_json, say
from holdfast.errors import printable
from holdfast.wording import age, moment, one_line, plural, span
from holdfast.wording.columns import Column

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from holdfast.stores.board import Board
    from holdfast.stores.entries import ToolInProcess, ToolLine

DONE: Final = {"open": "held open", "close": "held closed", "auto": "automatic", "reset": "reset"}


@click.group(cls=Group)
def tools() -> None:
    """List tools, and hold their circuits open or closed in all processes.

    What is ordered is on disk at once and reaches every process on the store; one that is idle takes it up before its
    next call.
    """


@tools.command()
@store_option
@json_option
def ls(store: str | None, as_json: bool) -> None:
    """List the tools of all processes on a store, the worst first."""
    from holdfast.stores.board import Board

    with opened_leniently(store) as hf:
        found = Board(hf.runs).tools()
        if as_json:
            put_json(found)
        elif found:
            _put_lines(console(), found)
        else:
            say(f"no process shows a tool in {hf.runs.file.name}")


@tools.command()
@click.argument("name", callback=text)
@store_option
@json_option
def show(name: str, store: str | None, as_json: bool) -> int | None:
    """Show one tool: its circuit, limits and statistics, process by process."""
    from holdfast.stores.board import Board

    with opened_leniently(store) as hf:
        found = Board(hf.runs).tool(name)
        now = hf.runs.clock.time()
    if found is None:
        say(f"no process shows a tool called {printable(name, 200)}")
        return FAILED
    if as_json:
        put_json(found)
        return None
    out = console()
    for label, value in _facts(found, now):
        put_fact(out, label, value, 12)
    return None


def _order(verb: str, summary: str) -> Callable[..., Any]:
    @tools.command(verb, help=summary)
    @click.argument("names", metavar="NAME...", nargs=-1, required=True, callback=text)
    @store_option
    @json_option
    def order(names: tuple[str, ...], store: str | None, as_json: bool) -> int | None:
        from holdfast.stores.board import Board

        with opened_leniently(store, keeps=True) as hf:
            board = Board(hf.runs)
            chosen = _chosen(board, names)
            if not chosen:
                say(f"no tool is like {', '.join(printable(name, 200) for name in names)}")
                return FAILED
            board.order(verb, chosen)
            lines = {line.name: line for line in board.tools()}
        told = [_told(verb, name, lines.get(name)) for name in chosen]
        if as_json:
            put_json(told)
            return None
        for each in told:
            count = each["processes"]
            click.echo(f"{printable(str(each['name']), 200)}  {DONE[verb]} in {plural(count, 'process')}")
            if each["note"]:
                say(f"{printable(str(each['name']), 200)}: {each['note']}")
        return None

    return order


_order("open", "Hold circuits open: every call is refused until auto or reset, in later processes, too.")
_order("close", "Hold circuits closed: every call passes and nothing counts, until auto or reset.")
_order("auto", "Give circuits that are held by hand back to their own judgement.")
_order("reset", "Close circuits and forget their failures, and that they were held.")


def _chosen(board: Board, names: Sequence[str]) -> list[str]:
    """The tools that *names* mean: the known ones that match, if a name is a pattern, else the name itself."""
    from holdfast.policy.rules import is_pattern

    known = board.names()
    chosen: dict[str, None] = {}
    for name in names:
        if name not in known and is_pattern(name):
            chosen.update(dict.fromkeys(each for each in known if fnmatchcase(each, name)))
        else:
            chosen[name] = None
    return list(chosen)


def _told(verb: str, name: str, line: ToolLine | None) -> dict[str, Any]:
    """The outcome of an order for one tool, with a note if it may surprise the user."""
    processes = line.processes if line is not None else []
    deaf = sum(each.tool.state == "off" for each in processes)
    note = None
    if not processes:
        holds = verb in ("open", "close")
        note = f"no process shows it now{'; those to come will have it so' if holds else ''}"
    elif deaf:
        note = f"its policy has no breaker in {plural(deaf, 'process')}: calls pass there"
    return {"name": name, "order": verb, "processes": len(processes) - deaf, "note": note}


# -- the list ----------------------------------------------------------------------------------------------------------


def _put_lines(out: Console, found: list[ToolLine]) -> None:
    columns = (
        Column("tool", most=40),
        Column("circuit"),
        Column("probe", right=True),
        Column("procs", right=True, need=4),
        Column("calls", right=True, need=6),
        Column("failed", right=True),
        Column("p50", right=True, need=3),
        Column("p95", right=True, need=5),
        Column("in flight", right=True, need=2),
        Column("rate", right=True, need=1),
        Column("last error"),
    )
    put_fitting(out, columns, [_cells(line) for line in found])


def _cells(line: ToolLine) -> list[Text]:
    from rich.text import Text

    from holdfast.wording.tools import duration, in_flight, name_of, pace, percent, probe, state_of

    failed = line.error_rate
    error = one_line(line.last_error or "")
    return [
        name_of(line),
        state_of(line),
        Text(probe(line)),
        Text(f"{len(line.processes)}"),
        Text(f"{line.calls}"),
        Text(percent(failed), style="red" if failed else "dim"),
        Text("" if line.p50_ms is None else duration(line.p50_ms)),
        Text("" if line.p95_ms is None else duration(line.p95_ms)),
        Text(in_flight(line)),
        Text(pace(line.rate, line.full_rate)),
        Text(error, style="red" if line.state != "closed" else "dim"),
    ]


# -- one tool ----------------------------------------------------------------------------------------------------------


def _facts(line: ToolLine, now: float) -> Iterator[tuple[str, Text | str]]:
    from holdfast.wording.tools import fleet, state_of

    yield "server" if line.is_server else "tool", printable(line.name, 200)
    yield "state", state_of(line)
    if shared := fleet(line):
        yield "fleet", shared
    if line.forced is not None:
        yield "held", f"{line.forced} by hand, for processes to come, too; `holdfast tools auto` lets go of it"
    if not line.processes:
        yield "processes", "none shows it now"
    for each in line.processes:
        yield "", ""
        yield from _process_facts(each, now)


def _process_facts(each: ToolInProcess, now: float) -> Iterator[tuple[str, Text | str]]:
    from holdfast.wording.tools import calls, circuit, duration, pace

    tool = each.tool
    who = f"{printable(each.process_name, 200)}, {printable(each.kind)}"
    yield "process", f"{each.pid} on {printable(each.host, 200)} ({who}), shown {age(each.at_ms, now)} ago"
    yield "circuit", circuit(tool.state, tool.forced)
    if tool.alone is not None:
        yield "fleet", f"away; {tool.alone}"
    if each.pending:
        yield "", "as ordered; taken up within a second, or, where it is idle, before its next call"
    if tool.state == "open" and tool.until_ms is not None:
        left = tool.until_ms / 1000 - now
        yield "wait", f"{span(left)}, then a probe" if left > 0 else "over: the next call probes"
    if tool.times_opened:
        last = "" if tool.opened_at_ms is None else f", last at {moment(tool.opened_at_ms)}"
        yield "opened", f"{plural(tool.times_opened, 'time')}{last}"
    if tool.failure_count:
        yield "failures", f"{tool.failure_count} in a row"
    yield "calls", calls(tool)
    if tool.mean_ms is not None:
        shown = [("mean", tool.mean_ms), ("p50", tool.p50_ms), ("p95", tool.p95_ms), ("p99", tool.p99_ms)]
        yield "durations", ", ".join(f"{name} {duration(value)}" for name, value in shown if value is not None)
    if tool.limit is not None:
        yield "in flight", f"{tool.in_flight} of {tool.limit}{f', {tool.waiting} waiting' if tool.waiting else ''}"
    if tool.rate is not None:
        yield "rate", pace(tool.rate, tool.full_rate)
    if tool.last_error is not None and tool.last_error_at_ms is not None:
        yield "last error", f"{one_line(tool.last_error)}, {age(tool.last_error_at_ms, now)} ago"
