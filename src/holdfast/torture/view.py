"""Shows the torture to people: progress in one line, and the verdict as a table that says in words what it colours."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.stores import RunStore
from holdfast.torture.promises import Kept, Progress, Verdict
from holdfast.torture.session import torture
from holdfast.wording import in_full

STYLES: Final = {"PASS": "green", "FAIL": "bold red", "----": "dim"}
SHOWN: Final = 3  # breaches that are shown for one promise
NOW_AND_THEN: Final = 5.0  # seconds between two lines if there is no terminal


def watch(seconds: float, like: RunStore, console: Console) -> Verdict:
    """Torture a store of the kind of *like* for *seconds*, and show the progress on *console*."""

    def say(text: str) -> None:
        console.print(Text(f"holdfast: {in_full(text)}"), soft_wrap=True)

    due = NOW_AND_THEN
    drawn = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else nullcontext()
    with drawn as live:

        def tell(progress: Progress) -> None:
            nonlocal due
            if live is not None:
                live.update(Text(line(progress), no_wrap=True, overflow="ellipsis"), refresh=True)
            elif progress.seconds >= due:
                due = progress.seconds + NOW_AND_THEN
                console.out(line(progress), highlight=False)

        return torture(seconds, like=like, tell=tell, say=say)


def line(progress: Progress) -> str:
    """Return the progress as one line."""
    return (
        f"{progress.seconds:4.0f} s  {progress.kills} killed, {progress.finished} runs finished, "
        f"{progress.answered + progress.repeated} doubts decided, {progress.zombies} zombies refused, "
        f"{progress.races} races, {progress.cancels} cancelled"
    )


def closing(verdict: Verdict) -> RenderableType:
    """Return the verdict, promise by promise, and where to look if one was broken."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("promise")
    table.add_column("tested", justify="right", no_wrap=True)
    for kept in verdict.promises:
        table.add_row(Text(kept.status, style=STYLES[kept.status]), Text(kept.promise), f"{kept.tested:,} ×")
    return Group(table, Text(), *(_breach(kept) for kept in verdict.promises if kept.breaches), *_last(verdict))


def _breach(kept: Kept) -> Text:
    text = Text(f"Not kept: {kept.promise}\n", style="bold red")
    for breach in kept.breaches[:SHOWN]:
        text.append(f"  {breach}\n", style="not bold default")
    return text


def _last(verdict: Verdict) -> list[Text]:
    last = [Text(line(verdict.progress).strip())]
    if verdict.folder is not None:
        last.append(Text(f"The evidence is in {verdict.folder}: journals, runs, errors. The seed was {verdict.seed}."))
    return last
