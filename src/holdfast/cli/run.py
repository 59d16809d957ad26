"""`holdfast run`: calls a function inside a run, which records how to call it again."""

from __future__ import annotations

import shlex
from typing import Any, Final

import click

from holdfast import checks
from holdfast.cli.calling import Calling, load
from holdfast.cli.finding import opened
from holdfast.cli.options import json_option, prompt_option, session_option, store_option, text
from holdfast.cli.showing import json_alone
from holdfast.wording import one_line

LONGEST: Final = 200  # characters of an argument that are shown


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@click.argument("arguments", metavar="[ARGUMENT]...", nargs=-1, callback=text)
@session_option
@prompt_option
@click.option("--run-id", metavar="ID", callback=text, help="The id of the run; one is made up otherwise.")
@store_option
@json_option
def run(
    target: str,
    arguments: tuple[str, ...],
    session: str,
    prompt: str,
    run_id: str | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Call a function inside a durable run that can be resumed.

    FUNCTION is a plain or coroutine function of MODULE, which is looked for in the working directory first. Each
    ARGUMENT is JSON: 3, '"a text"', '{"key": [1, 2]}'; put -- before a negative number. What the function returns is
    printed, and is the result of the run.

    If the process dies, `holdfast runs resume ID` calls the function again. Tool calls that have finished are answered
    from the log, so it gets to where it was without repeating them.
    """
    args = [read(argument) for argument in arguments]
    with opened(store) as hf, json_alone(as_json) as out:
        entry = load(target, args, store=store)
        begun = hf.run(session, prompt, run_id=run_id, entry=entry.record)
        return Calling(begun, entry, store=store, out=out).perform()


def read(argument: str) -> Any:
    """Read one ARGUMENT, which is JSON."""
    import msgspec

    try:
        return checks.plain("ARGUMENT", msgspec.json.decode(argument))
    except RecursionError:
        raise click.UsageError(f"{one_line(argument, LONGEST)} is nested too deeply") from None
    except msgspec.DecodeError as error:
        message = f"{one_line(argument, LONGEST)!r} is not JSON ({error})"
        if len(argument) <= LONGEST:
            message += f"; to pass it as a text, write {shlex.quote(msgspec.json.encode(argument).decode())}"
        raise click.UsageError(message) from error
