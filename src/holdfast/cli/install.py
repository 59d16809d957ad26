"""`holdfast install` and `holdfast uninstall`: put Holdfast before a client's MCP servers, and take it away again.

The file belongs to the client: only the entries of servers are changed, and a file that has changed since it was read
is not written.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from holdfast.cli.options import Decorator, files, json_option, text
from holdfast.cli.showing import console, put_json, say
from holdfast.wording import in_full, one_line

if TYPE_CHECKING:
    from holdfast.mcp.clients.rewriting import Outcome, Rewritten

Rewrite = Callable[[str, str, Sequence[str]], "Rewritten"]

LONGEST: Final = 500  # characters of a reason that are shown
CACHES: Final = {".cache", "archive-v0"}  # cache folders of `uvx` and `pipx run`, which may be cleared
STYLES: Final = {"wrapped": "green", "unwrapped": "green", "left alone": "yellow"}
DIFF_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}

target_argument: Final[Decorator] = click.argument("target", metavar="FILE|CLIENT", callback=text, shell_complete=files)
server_option: Final[Decorator] = click.option(
    "--server", "only", metavar="NAME", multiple=True, callback=text, help="Only this server; may be given again."
)
dry_run_option: Final[Decorator] = click.option(
    "--dry-run", is_flag=True, help="Show what would be changed, and change nothing."
)


@click.command()
@target_argument
@server_option
@dry_run_option
@json_option
def install(target: str, only: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Send the MCP servers of a client through Holdfast.

    FILE is the client's configuration, with mcpServers in it or the servers of VS Code. CLIENT is claude-desktop,
    cursor, vscode or claude-code: its file is found. Each server is then run by `holdfast wrap`; nothing else in the
    file is changed, and the file as it was is kept beside it. What is wrapped already stays as it is.

    Restart the client afterwards. `holdfast uninstall` is the way back.
    """
    from holdfast.mcp.clients.rewriting import wrap

    _perform(target, lambda text, name, only: wrap(text, name, executable(), only), only, dry_run, as_json)


@click.command()
@target_argument
@server_option
@dry_run_option
@json_option
def uninstall(target: str, only: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Let a client run its MCP servers itself again.

    FILE or CLIENT as for `holdfast install`. The entries are changed back where they stand: whatever else was edited in
    the meantime stays. The file as it was is kept beside it.
    """
    from holdfast.mcp.clients.rewriting import unwrap

    _perform(target, unwrap, only, dry_run, as_json)


def executable() -> list[str]:
    """The command that runs this Holdfast from any folder: the script beside this Python, else `python -m holdfast`."""
    if not sys.executable:
        raise click.ClickException("this Python does not know where it is, so nobody else can be told to run it")
    python = os.path.abspath(sys.executable)  # links are not resolved: a virtual environment's Python is one
    script = os.path.join(os.path.dirname(python), "holdfast")
    if os.path.isfile(script) and os.access(script, os.X_OK):
        return [script]
    return [python, "-m", "holdfast"]


def _perform(target: str, rewrite: Rewrite, only: Sequence[str], dry_run: bool, as_json: bool) -> None:
    from holdfast.errors import ConfigError, HoldfastError
    from holdfast.mcp.clients.rewriting import UnknownServer
    from holdfast.mcp.clients.saving import load, save

    try:
        path = _find(target)
        loaded = load(path)
        rewritten = rewrite(loaded.text, path, only)
        backup = save(loaded, rewritten.text) if rewritten.text != loaded.text and not dry_run else None
    except UnknownServer as error:
        raise click.UsageError(str(error)) from error
    except ConfigError as error:  # the file is the client's: a mistake in it is not wrong usage of our command
        raise HoldfastError(str(error)) from error
    diff = list(_diff(path, loaded.text, rewritten.text)) if dry_run else None
    if as_json:
        put_json(
            {
                "file": path,
                "changed": backup is not None,
                "backup": backup,
                "diff": None if diff is None else "".join(diff),
                "servers": [outcome._asdict() for outcome in rewritten.outcomes],
            }
        )
        return
    if diff is not None:
        _put_diff(diff)
    for outcome in rewritten.outcomes:
        _put(outcome, err=dry_run)  # in a dry run stdout has only the diff, for programs that read one
    _close(path, diff, backup, rewritten.outcomes)


def _find(target: str) -> str:
    from holdfast.mcp.clients.places import CLIENTS, client_file

    if target in CLIENTS:
        home = os.path.expanduser("~")
        try:
            folder = os.getcwd()
        except FileNotFoundError:  # the folder is gone, and a project's file with it; the user's own may still be there
            folder = os.curdir
        return client_file(target, folder=folder, home=home, platform=sys.platform, environment=os.environ)
    if not os.path.exists(target) and os.sep not in target and "." not in target:
        raise click.UsageError(f"{target!r} is neither a file nor a known client: {', '.join(CLIENTS)}; name its file")
    return target


def _close(path: str, diff: list[str] | None, backup: str | None, outcomes: Sequence[Outcome]) -> None:
    """Say what was done; *diff* is what a dry run would change, and None if this is not one."""
    if not outcomes:
        say(f"{path} lists no MCP servers")
    elif diff is not None:
        say(f"{path} was not changed: --dry-run" if diff else f"there is nothing to change in {path}")
    elif backup is None:
        say(f"{path} was not changed")
    else:
        say(f"{path} as it was is in {backup}; restart the client")
        path = executable()[0]
        if any(outcome.outcome == "wrapped" for outcome in outcomes) and CACHES & set(path.split(os.sep)):
            say(f"{path} is in a cache, which may be cleared: install Holdfast for good, then uninstall and install")


def _put(outcome: Outcome, *, err: bool) -> None:
    from rich.text import Text

    line = Text(f"{outcome.outcome:<11}  ", style=STYLES.get(outcome.outcome, "dim"))
    line.append(one_line(outcome.name), style="bold")
    if outcome.project is not None:
        line.append(f" in {one_line(outcome.project)}", style="none")
    if outcome.why is not None:
        line.append(f": {one_line(outcome.why, LONGEST)}", style="none")
    console(err=err).print(line, soft_wrap=True)


def _put_diff(diff: list[str]) -> None:
    from rich.text import Text

    out = console()
    for line in diff:
        if out.is_terminal:
            style = DIFF_STYLES.get(line[:1], "none") if line[:3] not in {"+++", "---"} else "bold"
            out.print(Text(in_full(line.rstrip("\r\n")), style=style), soft_wrap=True)
        else:
            click.echo(line, nl=False)


def _diff(path: str, before: str, after: str) -> Iterator[str]:
    from difflib import unified_diff

    # Lines end at line feeds and nowhere else: a diff knows no other line ends.
    old, new = (list(io.StringIO(text)) for text in (before, after))
    for line in unified_diff(old, new, path, path):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
