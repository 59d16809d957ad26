"""`holdfast top`: the tools and runs of a store, live in this terminal."""

from __future__ import annotations

import os
import sys

import click

from holdfast.cli.finding import needing, opened_leniently
from holdfast.cli.options import store_option


@click.command()
@store_option
def top(store: str | None) -> int:
    """Show and steer tools and runs in this terminal, live.

    ? lists the keys, q quits. Capital letters change something in all processes on the store, and ask first.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("this needs a terminal; `holdfast tools ls` and `holdfast runs ls` do without one")
    if os.environ.get("TERM") == "dumb":
        raise click.UsageError("this needs a terminal that can draw, and $TERM is dumb; use `holdfast tools ls`")
    with needing("tui"):
        from holdfast.top.app import Top
    with opened_leniently(store) as hf:
        hf.runs.counts()  # reports an unusable store before the screen is taken over
        app = Top(hf.runs, hf.policies, named=None if store is None else hf.runs.file.path)
        app.run()
    return app.return_code or 0
