"""`holdfast runs submit`: put a run into the queue, for whichever worker takes it."""

from __future__ import annotations

import click

from holdfast.cli.finding import opened
from holdfast.cli.options import json_option, prompt_option, session_option, store_option, text
from holdfast.cli.run import read
from holdfast.cli.showing import put_json
from holdfast.errors import ConfigError
from holdfast.wording import in_full


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION", callback=text)
@click.argument("arguments", metavar="[ARGUMENT]...", nargs=-1, callback=text)
@session_option
@prompt_option
@click.option("--priority", type=int, default=0, show_default=True, help="-100 to 100; a higher one is taken first.")
@click.option("--run-id", metavar="ID", callback=text, help="The id; the same again submits nothing new.")
@store_option
@json_option
def submit(
    target: str,
    arguments: tuple[str, ...],
    session: str,
    prompt: str,
    priority: int,
    run_id: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Put a run of a function into the queue, and print its id.

    A `holdfast worker` for the same MODULE:FUNCTION takes it; the function need not be here. Each ARGUMENT is JSON: 3,
    '"a text"', '{"key": [1, 2]}'; put -- before a negative number.
    """
    from holdfast.workers.submitting import submit as put

    args = [read(argument) for argument in arguments]
    with opened(store, keeps=True) as hf:
        try:
            run = put(hf.runs, target, args, session=session, prompt=prompt, priority=priority, run_id=run_id)
        except ConfigError as error:
            raise click.UsageError(str(error)) from error
    if as_json:
        put_json(run.to_dict())
    else:
        click.echo(in_full(run.id))
