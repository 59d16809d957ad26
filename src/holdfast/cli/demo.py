"""`holdfast demo`: see the guards at work."""

from __future__ import annotations

import asyncio
import os
import sys

import click

SEED = 50  # an average world: of many, its numbers lie in the middle


@click.command()
@click.option("--seed", type=int, default=SEED, show_default=True, help="The world to live in.")
@click.option("--fast", is_flag=True, help="Do not slow down for the eye.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def demo(seed: int, fast: bool, as_json: bool) -> None:
    """Watch an agent cope with flaky tools, and survive kill -9.

    The same scripted agent plans trips twice in the same world: once with bare tools, once with guarded ones. At the
    end a table says what the guards saved. Then it is killed while it books, and goes on. It needs no network, and
    leaves nothing behind.
    """
    import msgspec
    from rich.console import Console

    from holdfast.demo.killed import lines, scene
    from holdfast.demo.show import tell, watch
    from holdfast.demo.view import closing

    messages, data = Console(stderr=True), Console()
    if sys.stderr.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}:
        report = asyncio.run(watch(seed, messages, fast=fast))
    else:
        report = asyncio.run(tell(seed, messages))
    killed = scene()
    if as_json:
        click.echo(msgspec.json.encode({**msgspec.to_builtins(report), "killed": killed}))
    else:
        messages.print()
        data.print(closing(report, data.width))
        data.print()
        for line in lines(killed):
            data.print(line, highlight=False)
