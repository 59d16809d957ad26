"""`holdfast runs export`, `import` and `prune`: write runs to a file, read them from one, and delete old ones."""

from __future__ import annotations

import io
import os
import stat
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, Final

import click

from holdfast.cli import DONE, FAILED
from holdfast.cli.finding import find, opened_leniently
from holdfast.cli.options import bytes_, duration, files, json_option, store_option, text
from holdfast.cli.showing import put_json, say
from holdfast.errors import printable
from holdfast.folders import sync_folder
from holdfast.wording import in_full, plural, size, span

# What `prune` deletes beyond each limit, and the function that formats the limit.
LIMITS: Final[Mapping[str, tuple[str, Callable[[Any], str]]]] = {
    "max_age": ("runs that ended, or that nobody went on with, more than {} ago", span),
    "max_runs": ("all but the newest {} finished runs", str),
    "max_events": ("all but the last {} events of each finished run", str),
    "max_run_bytes": ("events of finished runs beyond {} a run", size),
    "max_bytes": ("the oldest finished runs until the store is below {}", size),
}


@click.command()
@click.argument("run_ids", metavar="[ID]...", nargs=-1, callback=text)
@click.option(
    "-o", "--output", metavar="FILE", default="-", shell_complete=files, help="Write to FILE, whole or not at all."
)
@store_option
@json_option
def export(run_ids: tuple[str, ...], output: str, store: str | None, as_json: bool) -> None:
    """Write runs as JSON lines: all of them, or those named.

    With --json and -o, says as JSON how many there were.
    """
    with opened_leniently(store) as hf:
        there = hf.runs
        named = [find(there, run_id).id for run_id in dict.fromkeys(run_ids)]
        with _standard_output() if output == "-" else _whole_file(output) as fp:
            count = there.export(fp, named or None)
    if output != "-" and as_json:
        put_json({"runs": count, "file": output})
    else:
        say(f"exported {plural(count, 'run')}{'' if output == '-' else f' to {printable(output, 300)}'}")


@click.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8", lazy=False))
@store_option
@json_option
def import_(file: IO[str], store: str | None, as_json: bool) -> None:
    """Read runs that `export` wrote, from FILE or, with -, from standard input; all of them or none.

    Runs that are there already are left as they are.
    """
    with opened_leniently(store, keeps=True) as hf:
        there = hf.runs
        count = there.import_(file)
        if as_json:
            put_json({"new": count})
        else:
            click.echo(f"{plural(count, 'run')} {'is' if count == 1 else 'are'} new in {in_full(there.file.name)}")


@click.command()
@click.option(
    "--max-age", metavar="TIME", callback=duration, help="Delete runs that ended, or were left, longer ago: 30d, 12h."
)
@click.option("--max-runs", type=click.IntRange(0), metavar="N", help="Keep the newest N finished runs.")
@click.option("--max-events", type=click.IntRange(1), metavar="N", help="Keep the last N events of a finished run.")
@click.option("--max-run-bytes", metavar="SIZE", callback=bytes_, help="Keep so much of the events of a finished run.")
@click.option("--max-bytes", metavar="SIZE", callback=bytes_, help="Delete the oldest runs until the store fits: 1GB.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
@json_option
def prune(yes: bool, store: str | None, as_json: bool, **limits: Any) -> int:
    """Delete old runs, or old events of finished ones, beyond the limits given; what is running is never touched."""
    given = {name: limit for name, limit in limits.items() if limit is not None}
    if not given:
        raise click.UsageError(
            "say what to delete: --max-age, --max-runs, --max-events, --max-run-bytes or --max-bytes"
        )
    what = "; ".join(words.format(written(given[name])) for name, (words, written) in LIMITS.items() if name in given)
    with opened_leniently(store) as hf:
        there = hf.runs
        if not yes and not _confirmed(f"Delete from {there.file.name}: {what}?"):
            say("nothing was deleted")
            return FAILED
        runs, events = there.prune(**given)
    if as_json:
        put_json({"runs": runs, "events": events})
    else:
        click.echo(f"deleted {plural(runs, 'run')} and {plural(events, 'event')}")
    return DONE


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask for confirmation: add --yes")
    return click.confirm(in_full(question), err=True)


@contextmanager
def _standard_output() -> Iterator[IO[str]]:
    """Standard output as exact UTF-8, whatever encoding the terminal has."""
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(encoding="utf-8", errors="strict", newline="\n")
    yield sys.stdout
    sys.stdout.flush()


@contextmanager
def _whole_file(name: str) -> Iterator[IO[str]]:
    """A file that appears only when it is complete; until then, or on failure, an existing one stays as it is."""
    path = os.path.realpath(name)
    with _explained(name):
        # Checked by *name*, not *path*: a pipe such as /dev/stdout is a link to something that has no path.
        if os.path.exists(name) and not stat.S_ISREG(os.stat(name).st_mode):
            with open(name, "w", encoding="utf-8", newline="\n") as fp:  # a device or pipe can only be written to
                yield fp
            return
        aside = f"{path}.{uuid.uuid4().hex[:8]}.part"
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(fd, "w", encoding="utf-8", newline="\n") as fp:
                yield fp
                fp.flush()
                os.fsync(fp.fileno())
            os.replace(aside, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(aside)
            raise
        sync_folder(os.path.dirname(path))


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{printable(name, 300)}: {error.strerror or error}") from error
