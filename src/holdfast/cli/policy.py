"""`holdfast policy`: look at a policy file before somebody relies on it."""

from __future__ import annotations

import click

from holdfast.cli import FAILED
from holdfast.cli.options import json_option, text
from holdfast.cli.showing import put_json, say
from holdfast.wording import in_full


@click.group()
def policy() -> None:
    """Check policy files."""


@policy.command()
@click.argument("file", required=False, callback=text)
@json_option
def check(file: str | None, as_json: bool) -> int | None:
    """Read a policy file and tell every mistake in it.

    FILE is the one that applies here if it is not given: $HOLDFAST_POLICY, ./holdfast.toml or the one in your
    configuration folder.
    """
    from holdfast.app import policy_file
    from holdfast.errors import ConfigError
    from holdfast.policy import PolicyBook

    path = file if file is not None else policy_file()[0]
    if path is None:
        raise click.UsageError("there is no policy file here; name one")
    problems: tuple[str, ...] = ()
    try:
        PolicyBook.load(path)
    except ConfigError as error:
        problems = error.problems or (str(error),)
    if as_json:
        put_json({"file": path, "good": not problems, "problems": problems})
    elif problems:
        for problem in problems:
            click.echo(in_full(problem))
    else:
        say(f"{path} is good")
    return FAILED if problems else None
