"""`holdfast runs tail`: a run's events as they happen."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import click

from holdfast.cli import CANCELLED, DONE, RUN_FAILED
from holdfast.cli.finding import find, header, opened_leniently
from holdfast.cli.options import json_option, store_option, text
from holdfast.cli.showing import console, put_json, put_line, say
from holdfast.errors import HoldfastError
from holdfast.wording import standstill

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from holdfast.history import RunEventRecord, RunHeader
    from holdfast.stores import RunStore

LOOK: Final = 1.0  # seconds between two checks whether a process still runs it
CODES: Final = {"completed": DONE, "cancelled": CANCELLED, "failed": RUN_FAILED}


@click.command()
@click.argument("run_id", metavar="ID", callback=text)
@click.option("--after", type=click.IntRange(-1, 2**62), default=-1, help="Only events after this sequence number.")
@store_option
@json_option
def tail(run_id: str, after: int, store: str | None, as_json: bool) -> int:
    """Follow a run: what has happened, then what happens, until it ends.

    Ends with 0 if the run completed, 3 if it was cancelled, 5 if it failed.
    """
    with opened_leniently(store) as hf:
        there = hf.runs
        run = find(there, run_id)
        page = there.event_page(run.id, after, 1)
        if page.gap:
            say(f"events before {page.first_available} are no longer kept")
        looking = _look(there, header(there, run.id), store)
        asyncio.run(_follow(there, run.id, after, put_json if as_json else _lines(), looking))
        return CODES[there.snapshot(run.id).status.value]


def _lines() -> Callable[[RunEventRecord], object]:
    from holdfast.wording.runs import event_line

    out = console()
    return lambda event: put_line(out, event_line(event, out.width))


async def _follow(
    store: RunStore,
    run_id: str,
    after: int,
    put: Callable[[RunEventRecord], object],
    beside: Coroutine[None, None, None],
) -> None:
    looking = asyncio.create_task(beside)
    try:
        async for event in store.afollow(run_id, after):
            put(event)
    finally:
        looking.cancel()


async def _look(store: RunStore, header: RunHeader, named: str | None) -> None:
    """Say why nothing happens in the run, whenever that is so: it may stay so for ever."""
    said = None
    while True:
        try:
            still = standstill(store.snapshot(header.id), header, named)
            if still and still != said:
                say(still)
        except HoldfastError:  # the follower in `_follow` raises it, too
            return
        said = still
        await store.clock.asleep(LOOK)
