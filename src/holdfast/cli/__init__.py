"""The command line. One file per command group, imported when it is asked for: `holdfast --help` loads none of them.

Data goes to stdout, messages to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 cancelled, 4 the store cannot be
used, 5 the run that was awaited failed, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

import click

from holdfast.version import VERSION

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
CANCELLED: Final = 3
NO_STORE: Final = 4
RUN_FAILED: Final = 5
INTERRUPTED: Final = 130

# The command NAME is the function NAME of the module holdfast.cli.NAME.
COMMANDS: Final[Mapping[str, str]] = {
    "demo": "Watch an agent cope with flaky tools, and survive kill -9.",
    "run": "Call a function inside a durable run that can be resumed.",
    "worker": "Take submitted runs from the queue, call them and see them through.",
    "runs": "List, follow, submit, cancel, resume and move durable runs.",
    "tools": "List tools, and hold their circuits open or closed in all processes.",
    "wrap": "Run an MCP server behind the guards.",
    "gateway": "Serve several MCP servers behind the guards over HTTP.",
    "install": "Send the MCP servers of a client through Holdfast.",
    "uninstall": "Let a client run its MCP servers itself again.",
    "policy": "Check policy files, suggest one, and play the calls on record against it.",
    "config": "Show which store and which policies apply here.",
    "completion": "Print what makes a shell complete commands and options.",
    "ui": "Show and steer tools and runs in a browser.",
    "top": "Show and steer tools and runs in this terminal, live.",
    "doctor": "Check this machine and the store; say how to mend what is wrong.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on *arguments*, the process's own by default, and give the exit code."""
    _see_to_streams()
    try:
        code = holdfast.main(arguments, prog_name="holdfast", standalone_mode=False)
        return code if isinstance(code, int) else DONE
    except click.Abort:
        click.echo("holdfast: interrupted", err=True)
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except OSError as error:
        if error.errno == errno.ENOENT and _is_nowhere():
            click.echo("holdfast: the working directory is gone: change to one that is there", err=True)
            return WRONG_USAGE
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise
        click.echo(f"holdfast: {error.strerror}", err=True)
        _discard_unwritable_stdout()
        return FAILED
    except SystemExit:  # click exits like this on EPIPE, when the reader of our output is gone
        _discard_unwritable_stdout()
        raise
    except Exception as error:
        # Not imported at the top: `--help` would take twice as long.
        from holdfast.errors import ConfigError, HoldfastError, StoreError, printable

        if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
            click.echo(f"holdfast: {error}: raise the limit on processes of this user or container", err=True)
            return FAILED
        if not isinstance(error, HoldfastError):
            raise
        click.echo(f"holdfast: {'; '.join(printable(line, 2000) for line in str(error).splitlines())}", err=True)
        if isinstance(error, ConfigError):
            return WRONG_USAGE
        return NO_STORE if isinstance(error, StoreError) else FAILED


def _see_to_streams() -> None:
    """Make sure that stdin, stdout and stderr exist, and that every character can be printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the parent process closed it
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a character the terminal lacks is no reason to fail


def _discard_unwritable_stdout() -> None:
    """Discard what stdout still holds if it cannot be written: Python would try again at exit, with a traceback."""
    if (stream := sys.__stdout__) is not None:
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _is_nowhere() -> bool:
    """Whether the working directory is gone."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


class Lazy(click.Group):
    """A group that lists its commands from COMMANDS and imports one only when it is used, which click itself cannot."""

    def invoke(self, ctx: click.Context) -> object:
        """Call the command; SIGTERM and SIGHUP are handled even while it is still being imported."""
        from holdfast.signals import ended_gently

        ctx.with_resource(ended_gently())
        return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"holdfast.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=Lazy,
    commands={name: click.Command(name) for name in COMMANDS},  # for click's "did you mean"
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(VERSION, message="%(prog)s %(version)s")
def holdfast() -> None:
    """The reliability layer for the tool calls of AI agents."""
