"""`holdfast runs submit`, `cancel` and `resume`: put a run into the queue, stop one, or go on with one."""

from __future__ import annotations

import click

from holdfast.cli import DONE, FAILED, finding
from holdfast.cli.calling import Calling, load
from holdfast.cli.finding import config_errors_as_usage, find, opened, opened_leniently
from holdfast.cli.options import json_option, prompt_option, session_option, store_option, text
from holdfast.cli.run import read
from holdfast.cli.showing import json_alone, put_json
from holdfast.errors import RunNotFound, printable
from holdfast.history import RunStatus
from holdfast.wording import in_full, way_on

WORDS = {"requested": "cancel requested", "already_finished": "already finished", "not_found": "not found"}


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
    with opened_leniently(store, keeps=True) as hf, config_errors_as_usage():
        run = put(hf.runs, target, args, session=session, prompt=prompt, priority=priority, run_id=run_id)
    if as_json:
        put_json(run.to_dict())
    else:
        click.echo(in_full(run.id))


@click.command()
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True, callback=text)
@click.option("--reason", callback=text, help="Why; the run records it.")
@store_option
@json_option
def cancel(run_ids: tuple[str, ...], reason: str | None, store: str | None, as_json: bool) -> int:
    """Cancel runs, whichever process runs them.

    A run that nobody runs is cancelled at once; another is told to stop, and is cancelled when its work has stopped.
    """
    with opened_leniently(store) as hf:
        there = hf.runs
        named = []
        for run_id in dict.fromkeys(run_ids):
            try:
                named.append(find(there, run_id).id)
            except RunNotFound:
                named.append(run_id)
        answers = {run_id: there.cancel(run_id, reason).value for run_id in named}
    if as_json:
        put_json([{"id": run_id, "result": answer} for run_id, answer in answers.items()])
    else:
        for run_id, answer in answers.items():
            click.echo(f"{printable(run_id, 200)}  {WORDS[answer]}")
    return FAILED if "not_found" in answers.values() else DONE


@click.command()
@click.argument("run_id", metavar="ID", callback=text)
@click.option(
    "--in-doubt",
    type=click.Choice(["raise", "repeat"]),
    default="raise",
    show_default=True,
    help="A call that may or may not have been made before: raise an error, or make it again.",
)
@click.option(
    "--diverged",
    type=click.Choice(["record", "raise"]),
    default="record",
    show_default=True,
    help="Finished calls that are not asked for again: record that, or raise an error.",
)
@store_option
@json_option
def resume(run_id: str, in_doubt: str, diverged: str, store: str | None, as_json: bool) -> int:
    """Go on with a run that `holdfast run` began and that was interrupted.

    Its function is called again, in this folder; tool calls that have finished are answered from the log. A run that
    failed or was cancelled goes on as a new one.
    """
    with opened(store) as hf:
        found = find(hf.runs, run_id)
        header = finding.header(hf.runs, found.id)
        entry = header.entry
        if header.noted:
            raise click.ClickException(f"run {printable(found.id, 200)}: {way_on(header, store)}")
        if found.status is RunStatus.COMPLETED:
            raise click.ClickException(f"run {printable(found.id, 200)} has completed: there is nothing to resume")
        if entry is None:
            raise click.ClickException(
                f"run {printable(found.id, 200)} has no entry point, as it was not begun by `holdfast run`. Resume it "
                f"in code: make its calls again inside `with hf.resume({found.id!r}):`, or `async with`."
            )
        with json_alone(as_json) as out:
            target = load(str(entry.get("target")), entry.get("args", ()), store=store)
            begun = hf.resume(found.id, in_doubt=in_doubt, diverged=diverged)
            return Calling(begun, target, store=store, out=out).perform()
