"""`holdfast runs ls` and `show`: the runs of a store, and one of them."""

from __future__ import annotations

import shlex
from itertools import islice
from typing import TYPE_CHECKING, Final

import click

from holdfast.cli import finding
from holdfast.cli.finding import find, opened_leniently
from holdfast.cli.options import json_option, store_option, text
from holdfast.cli.showing import console, put_fact, put_json, put_line, put_table, say
from holdfast.errors import in_digits, printable
from holdfast.history import RunStatus
from holdfast.wording import age, in_full, moment, one_line, span, standstill
from holdfast.wording.columns import Column

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console
    from rich.text import Text

    from holdfast.history import RunEventRecord, RunHeader, RunSnapshot, VerificationSummary

COLUMNS: Final = (
    Column("id"),
    Column("status"),
    Column("session", most=20),
    Column("age", right=True),
    Column("calls", right=True),
    Column("failed", right=True),
    Column("refused", right=True),
    Column("now", most=24),
    Column("prompt or error"),
)
ROOM: Final = 100  # columns that a table needs beside the ids


@click.command()
@click.option("--status", type=click.Choice([*map(str, RunStatus), "interrupted"]), help="Only runs of this status.")
@click.option("--session", callback=text, help="Only runs of this session.")
@click.option("--interrupted", is_flag=True, help="Only runs that nobody runs any more and that are not finished.")
@click.option("--limit", type=click.IntRange(1, 9999), default=20, show_default=True, help="At most so many.")
@click.option("--before", metavar="ID", callback=text, help="Only runs older than this one: the next page.")
@store_option
@json_option
def ls(
    status: str | None,
    session: str | None,
    interrupted: bool,
    limit: int,
    before: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """List the runs of a store, the newest first."""
    from holdfast.stores.searching import INTERRUPTED, Wanted, every

    with opened_leniently(store) as hf:
        there = hf.runs
        last = None if before is None else find(there, before).id
        wanted = Wanted(INTERRUPTED if interrupted else status, session)
        runs = every(there, wanted, before=last, first=limit + 1)
        # An interrupted run still has its last status, so that --interrupted and --status may both be given.
        found = list(islice((run for run in runs if status in (None, INTERRUPTED, run.status)), limit + 1))
        shown = found[:limit]
        if as_json:
            put_json([run.to_dict() for run in shown])
        elif shown:
            _put_runs(console(), shown, there.clock.time())
        else:
            say(f"no runs {'like that ' if status or session or interrupted or before else ''}in {there.file.name}")
    if len(found) > limit and not as_json:
        say(f"there are more: add --before {shlex.quote(shown[-1].id)}, or --limit")


@click.command()
@click.argument("run_id", metavar="ID", callback=text)
@click.option(
    "--events", type=click.IntRange(0, 10_000), default=10, show_default=True, help="So many of the last events."
)
@store_option
@json_option
def show(run_id: str, events: int, store: str | None, as_json: bool) -> None:
    """Show one run: its state, what it spent, its last events."""
    with opened_leniently(store) as hf:
        there = hf.runs
        run = find(there, run_id)
        header = finding.header(there, run.id)
        after = max(-1, run.event_count - 1 - events)
        last = [] if not events else list(there.event_page(run.id, after, events).events)
        if as_json:
            entry = {} if header.entry is None else {"entry": header.entry}
            put_json({**run.to_dict(), **entry, "events": last})
            return
        out = console()
        for name, value in _facts(run, header, there.clock.time()):
            put_fact(out, name, value, 13)
        if last:
            _put_events(out, last, run)
    if still := standstill(run, header, store):
        say(still)


# -- the list ----------------------------------------------------------------------------------------------------------


def _put_runs(out: Console, found: list[RunSnapshot], now: float) -> None:
    """Print a table if the terminal is wide enough, else two or three lines per run."""
    from rich.text import Text

    from holdfast.wording.runs import active, gist, identity, standing

    if out.is_terminal and out.width < ROOM + max(len(identity(run.id)) for run in found):
        for run in found:
            _put_card(out, run, now)
        return
    rows = [
        [
            Text(identity(run.id)),
            standing(run),
            Text(one_line(run.session_id)),
            Text(age(run.created_at_ms, now)),
            Text(f"{run.tool_calls}"),
            Text(f"{run.tool_failures}", style="red" if run.tool_failures else "dim"),
            Text(f"{run.tool_denials}", style="yellow" if run.tool_denials else "dim"),
            Text("" if run.interrupted else active(run), style="cyan"),
            gist(run),
        ]
        for run in found
    ]
    put_table(out, COLUMNS, rows)


def _put_card(out: Console, run: RunSnapshot, now: float) -> None:
    from rich.text import Text

    from holdfast.wording.runs import active, calls, gist, identity, standing

    whole = Text(identity(run.id), style="bold")
    out.print(
        whole, Text("  "), standing(run), Text(f"  {age(run.created_at_ms, now)}", style="dim"), sep="", soft_wrap=True
    )
    facts = Text(f"  {one_line(run.session_id, 24)} · {calls(run)}", style="dim")
    if (tools := active(run)) and not run.interrupted:
        facts.append(f" · {tools}", style="not dim cyan")
    put_line(out, facts)
    about = gist(run)
    if about.plain:
        put_line(out, Text.assemble("  ", about))


# -- one run -----------------------------------------------------------------------------------------------------------


def _facts(run: RunSnapshot, header: RunHeader, now: float) -> Iterator[tuple[str, Text | str]]:
    """The facts about a run, each with its label; longer texts keep their line breaks."""
    from holdfast.wording.runs import active, calls, identity, standing

    yield "run", identity(run.id)
    yield "status", standing(run)
    yield "session", one_line(run.session_id)
    if run.prompt:
        yield "prompt", in_full(run.prompt)
    yield "created", f"{moment(run.created_at_ms)}, {age(run.created_at_ms, now)} ago"
    if run.finished_at_ms is not None:
        took = (run.finished_at_ms - (run.started_at_ms or run.created_at_ms)) / 1000
        yield "finished", f"{moment(run.finished_at_ms)}, after {span(took)}"
    elif run.event_count:
        yield "last event", f"{moment(run.updated_at_ms)}, {age(run.updated_at_ms, now)} ago"
    if run.owner:
        yield "owner", one_line(run.owner)
    if run.forked_from:
        yield "forked from", identity(run.forked_from)
    if header.entry is not None:
        yield "entry point", one_line(_call_of(header.entry, header.priority))
    yield "calls", calls(run)
    if tools := active(run):
        yield "calling" if run.owner else "was calling", tools
    if run.spend:
        yield "spent", ", ".join(f"{in_digits(spent)} {printable(unit)}" for unit, spent in run.spend.items())
    if run.verification is not None:
        yield "verification", _verification(run.verification)
    if run.error:
        yield "reason" if run.status == "cancelled" else "error", in_full(run.error)
    if run.result_text:
        yield "result", in_full(run.result_text)


def _verification(summary: VerificationSummary) -> Text:
    """The worst of all checks, how many ended in which way, and what may still be wrong."""
    from rich.text import Text

    from holdfast.wording.runs import CHECK_STYLES

    counts = ("passed", "failed", "needs_review", "skipped")
    said = ", ".join(f"{count} {name}" for name in counts if (count := getattr(summary, name))).replace("_", " ")
    text = Text(summary.status.replace("_", " "), style=CHECK_STYLES[summary.status])
    text.append(f" ({said})", style="none")
    for risk in summary.residual_risks:
        text.append(f"\nrisk: {one_line(risk)}", style="none")
    return text


def _call_of(entry: Mapping[str, object], priority: int | None) -> str:
    """An entry point written as a call, with its priority in the queue if that is not the default, 0."""
    import msgspec

    args = entry.get("args")
    shown = ", ".join(msgspec.json.encode(arg).decode() for arg in args) if isinstance(args, list) else ""
    return f"{entry.get('target')}({shown}){f', priority {priority}' if priority else ''}"


def _put_events(out: Console, last: list[RunEventRecord], run: RunSnapshot) -> None:
    from rich.text import Text

    from holdfast.wording.runs import event_line

    which = "all" if len(last) == run.event_count else f"the last {len(last)} of"
    out.print(Text(f"\n{which} {run.event_count} events", style="bold"))
    for event in last:
        put_line(out, event_line(event, out.width))
