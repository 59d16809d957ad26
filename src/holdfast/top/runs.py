"""The screen Runs: what each run is doing now, the newest first."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from holdfast.history import RunSnapshot
from holdfast.stores.searching import MOST_LOOKED_AT
from holdfast.top.reading import Picture
from holdfast.top.sheet import Contents
from holdfast.top.signs import run_state
from holdfast.wording import age, one_line, span
from holdfast.wording.columns import Column
from holdfast.wording.runs import current, identity

COLUMNS: Final = (
    Column("run", most=14),
    Column("status"),
    Column("session", most=24, need=3),
    Column("prompt", most=44, need=2),
    Column("calls", right=True, need=6),
    Column("failed", right=True, need=7),
    Column("refused", right=True, need=4),
    Column("began", right=True, need=7),
    Column("took", right=True, need=5),
    Column("now, or how it ended"),
)
NOTHING: Final = (
    "No run is in this store yet.",
    "",
    "A run is a block around the calls that belong together:",
    "",
    '    with hf.run(prompt="find the cheapest flight"):',
    '        search("FRA to LIS")',
    "",
    "Or begin one that can be resumed after a crash:",
    "",
    "    holdfast run MODULE:FUNCTION",
)
NO_MATCH: Final = ("No run is like this; esc shows all of them.",)
NOT_YET: Final = (
    f"None of the {MOST_LOOKED_AT:,} newest is like this; esc shows all of them.",
    "",
    "A word such as session=NAME, tool=NAME or status=failed leaves fewer to look at.",
)


def contents(picture: Picture) -> Contents:
    """The lines of the runs that the filter lets through."""
    runs = [] if picture.runs is None else picture.runs.runs
    return Contents(
        COLUMNS,
        [run.id for run in runs],
        lambda at: _cells(runs[at], picture.at),
        _nothing(picture),
    )


def _nothing(picture: Picture) -> tuple[str, ...]:
    if picture.runs is not None and picture.runs.next is not None:
        return NOT_YET
    return NO_MATCH if picture.look.text or picture.look.failed else NOTHING


def summary(picture: Picture) -> Text:
    """The runs in one line."""
    page = picture.runs
    if page is None or not page.runs:
        return Text("no runs")
    active = sum(not run.status.is_terminal and not run.interrupted for run in page.runs)
    more = "" if page.next is None else "+"
    return Text(f"{len(page.runs)}{more} shown · {active} active")


def began(run: RunSnapshot, now: float) -> str:
    """How long ago a run began; if it has not begun, how long ago it was created."""
    return age(run.started_at_ms or run.created_at_ms, now)


def took(run: RunSnapshot, now: float) -> str:
    """How long a run has been going on, or went on; empty if it has not begun."""
    if run.status == "created" and not run.interrupted:
        return ""
    over = run.status.is_terminal or run.interrupted
    end = run.finished_at_ms or (run.updated_at_ms if over else now * 1000)
    return span(max(0.0, end - (run.started_at_ms or run.created_at_ms)) / 1000)


def doing(run: RunSnapshot, now: float) -> Text:
    """What a run does now, or how it ended."""
    if run.error:
        return Text(one_line(run.error, 500), style="red")
    if run.interrupted:
        return Text("its process is gone", style="yellow")
    if (call := current(run)) is not None:
        attempt = f"attempt {call.attempt}, " if call.attempt > 1 else ""
        return Text.assemble((one_line(call.name, 200), "cyan"), f"  {attempt}{span(now - call.at_ms / 1000)}")
    return Text(one_line(run.result_text or "", 500), style="dim")


def _cells(run: RunSnapshot, now: float) -> list[Text]:
    return [
        Text(identity(run.id)),
        run_state(run),
        Text(one_line(run.session_id, 200)),
        Text(one_line(run.prompt, 200)),
        Text(f"{run.tool_calls}"),
        Text(f"{run.tool_failures}", style="red" if run.tool_failures else "dim"),
        Text(f"{run.tool_denials}", style="yellow" if run.tool_denials else "dim"),
        Text(began(run, now), style="dim"),
        Text(took(run, now)),
        doing(run, now),
    ]
