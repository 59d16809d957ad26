"""`holdfast policy`: checks a policy file before it is used, and suggests one from the calls on record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from holdfast.cli import FAILED
from holdfast.cli.finding import opened_leniently, policies
from holdfast.cli.options import Decorator, Group, files, json_option, store_option, text
from holdfast.cli.showing import console, put_fitting, put_json, say
from holdfast.errors import ConfigError, printable
from holdfast.wording import in_full, moment, plural, span
from holdfast.wording.columns import Column

if TYPE_CHECKING:
    from rich.text import Text

    from holdfast.backtest import Line, Played, Recorded, Recording

_last_option: Final[Decorator] = click.option(
    "--last",
    metavar="N",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Look at the calls of so many of the newest runs.",
)


@click.group(cls=Group)
def policy() -> None:
    """Check policy files, suggest one, and play the calls on record against it."""


@policy.command()
@click.argument("file", required=False, callback=text, shell_complete=files)
@json_option
def check(file: str | None, as_json: bool) -> int | None:
    """Read a policy file and tell every mistake in it.

    FILE is the one that applies here if it is not given: $HOLDFAST_POLICY, ./holdfast.toml or the one in your
    configuration folder.
    """
    from holdfast.defaults import policy_file
    from holdfast.policy import PolicyBook

    path = file if file is not None else policy_file()[0]
    if path is None:
        raise click.UsageError("there is no policy file here; name one")
    problems, wants = list(_problems(path)), []
    if not problems:  # some settings make a valid policy only together with those of a decorator
        book = PolicyBook.load(path)
        wants = list(_unresolved(book.names, book.resolve))
    if as_json:
        put_json({"file": path, "good": not problems, "problems": problems, "wants": wants})
    elif problems:
        for problem in problems:
            click.echo(in_full(problem))
    else:
        for want in wants:
            say(f"{path}: good only if the code says the rest: {in_full(want)}")
        say(f"{path} is good")
    return FAILED if problems else None


def _problems(path: str) -> Iterator[str]:
    """Each mistake in the file at *path*."""
    from holdfast.fleet.address import Address
    from holdfast.policy import PolicyBook
    from holdfast.policy.file import read_file
    from holdfast.stores import open_store

    document: Mapping[str, object] = {}
    try:
        document, _ = read_file(path, path)
        book = PolicyBook.load(path)
    except ConfigError as error:
        yield from error.problems or (str(error),)
    else:
        # The tools of an MCP server have no decorator: the file alone must make a policy, or no proxy could start.
        yield from (f"{path}: {problem}" for problem in _unresolved(book.servers, book.server))
    # Only these parsers know which addresses are valid; parsing an address touches no file and no network.
    addresses: Mapping[str, Callable[[str], object]] = {"store": open_store, "redis": Address.parse}
    for key, parse in addresses.items():
        if isinstance(url := document.get(key), str) and url:
            try:
                parse(url)
            except ConfigError as error:
                yield f"{path}: {'' if str(error).startswith(key) else f'{key}: '}{error}"


def _unresolved(names: Iterable[str], resolve: Callable[[str], object]) -> Iterator[str]:
    """What the policies of these *names* lack."""
    for name in names:
        try:
            resolve(name)
        except ConfigError as error:
            yield from error.problems


@policy.command()
@store_option
@_last_option
@json_option
def suggest(store: str | None, last: int, as_json: bool) -> None:
    """Print a policy file made from the calls on record, with a reason for each value.

    Whether a call may be repeated is in no record: retry, read_only and idempotent are never suggested.
    """
    from holdfast.backtest import as_toml
    from holdfast.backtest import suggest as suggested

    recording = _recording(store, last)
    found = suggested(recording.calls)
    if as_json:
        put_json({**_facts(recording), "tools": found})
    elif found:
        head = [
            f"Made from {_extent(recording)}.",
            "Read the reasons, then try it: holdfast policy backtest FILE",
            "Whether a call may be repeated is in no record: say yourself what is read_only or idempotent.",
        ]
        click.echo(as_toml(found, head), nl=False)


@policy.command()
@click.argument("file", required=False, callback=text, shell_complete=files)
@store_option
@_last_option
@json_option
def backtest(file: str | None, store: str | None, last: int, as_json: bool) -> None:
    """Play the calls on record against a policy file and against the defaults, the worst first.

    FILE is the one that applies here if it is not given. The guards are the real ones, on a clock of their own; no tool
    is called.
    """
    from holdfast.backtest import ASSUMPTIONS, compare, total
    from holdfast.defaults import policy_file

    path = file if file is not None else policy_file()[0]
    book = None if path is None else policies(path)
    recording = _recording(store, last)
    lines = compare(recording.calls, book)
    if as_json:
        put_json({"file": path, **_facts(recording), "assumptions": ASSUMPTIONS, "tools": lines, "total": total(lines)})
    elif lines:
        _put_lines([*lines, total(lines)] if len(lines) > 1 else lines)
        say(f"{_extent(recording)}, against {path or 'the defaults; there is no policy file here'}")
        for line in lines:
            if line.incomplete:
                say(f"not played, as only the code may say the rest: {line.incomplete}")
        for assumption in ASSUMPTIONS:
            say(f"assumed: {assumption}")


def _recording(store: str | None, last: int) -> Recording:
    from holdfast.backtest import read

    with opened_leniently(store) as hf:
        recording = read(hf.runs, last=last)
        if not recording.calls:
            say(f"no tool call is on record in {hf.runs.file.name}")
    return recording


def _facts(recording: Recording) -> dict[str, Any]:
    calls = recording.calls
    return {
        "runs": recording.runs,
        "calls": len(calls),
        "whole": recording.whole,
        "from_ms": round(calls[0].at * 1000) if calls else None,
        "to_ms": round(calls[-1].at * 1000) if calls else None,
    }


def _extent(recording: Recording) -> str:
    calls, newest = recording.calls, "" if recording.whole else "the newest "
    since, to = (moment(round(call.at * 1000)) for call in (calls[0], calls[-1]))
    return f"{newest}{plural(len(calls), 'call')} of {plural(recording.runs, 'run')}, {since} to {to}"


# -- the table of a backtest -------------------------------------------------------------------------------------------


_COUNTED: Final = (  # each column and the attribute it shows; a column without any count is left out
    (Column("good", right=True), "succeeded"),
    (Column("failed", right=True, need=7), "failed"),
    (Column("refused", right=True, need=8), "refused"),
    (Column("lost", right=True), "lost"),
    (Column("spared", right=True, need=7), "spared"),
    (Column("timed out", right=True, need=3), "timed_out"),
    (Column("unknown", right=True, need=1), "unknown"),
    (Column("in failures", right=True, need=2), "failing"),
    (Column("in line", right=True, need=4), "waited"),
)
_STYLES: Final = {"lost": "red", "spared": "green"}
_GUARDS: Final = ("circuit", "rate", "concurrency", "loop")


def _put_lines(lines: list[Line]) -> None:
    """Print up to three rows per tool, and for the total: what is on record, then each policy that was played."""
    counted = [column for column, _ in _COUNTED]
    rows: list[list[Text]] = []
    for line in lines:
        rows.append(_row(printable(line.tool, 200) or "all tools", "record", line.recorded))
        if line.file is not None:
            rows.append(_row("", "file", line.file))
        rows.append(_row("", "defaults", line.defaults))
    put_fitting(console(), [Column("tool", most=40), Column("under"), *counted, Column("refused by", need=5)], rows)


def _row(tool: str, under: str, found: Recorded | Played) -> list[Text]:
    from rich.text import Text

    cells = [Text(_amount(getattr(found, name, 0)), style=_STYLES.get(name, "")) for _, name in _COUNTED]
    by = ", ".join(f"{who} {count}" for who in _GUARDS if (count := getattr(found, who, 0)))
    return [Text(tool, style="bold"), Text(under), *cells, Text(by)]


def _amount(count: float) -> str:
    """A whole number as it is, a float as a time in seconds; empty if it is zero."""
    if not count:
        return ""
    return span(count) if isinstance(count, float) else f"{count}"
