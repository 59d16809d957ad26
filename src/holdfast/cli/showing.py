"""How things are shown: to people as tables and lines, cut to the terminal; to programs as JSON; piped, in full.

Prompts, errors and names come from models and tools: nothing in them is ever taken for markup or a terminal's command.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, TextIO

import click

from holdfast.wording import in_full
from holdfast.wording.columns import GAP, LATE, LEAST, LEAST_NAME, STAYS, Column, fitted, fitting, total

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

OUT, ERR = 1, 2  # file descriptors, which child processes inherit
# Characters that JSON need not escape but a terminal acts upon: more controls, line breaks, marks of text direction.
_RAW = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_NOT_ASCII = re.compile("[^\x00-\x7e]")  # what may be lost where the output is not in UTF-8


def console(*, err: bool = False) -> Console:
    """A console on stdout or stderr: as wide as the terminal, or of unlimited width if it is not a terminal."""
    from rich.console import Console

    width = None if (sys.stderr if err else sys.stdout).isatty() else 1_000_000
    made = Console(width=width, stderr=err, highlight=False, markup=False, emoji=False)
    if made.is_dumb_terminal and width is None:  # such as a shell in Emacs; rich takes it for 80 columns wide
        made.size = shutil.get_terminal_size()
    return made


def say(message: str) -> None:
    """A message for people, on stderr."""
    click.echo(f"holdfast: {in_full(message)}", err=True)


def put_json(value: object, out: TextIO | None = None) -> None:
    """Print *value* as one line of JSON for programs, to stdout or *out*; safe to show in a terminal as well."""
    import msgspec

    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # a file name may be any bytes; JSON can escape the surrogates Python makes of them
        text = json.dumps(msgspec.to_builtins(value))
    encoding = (out or sys.stdout).encoding or "utf-8"  # none if a text is made in memory
    escaped = _RAW if codecs.lookup(encoding).name == "utf-8" else _NOT_ASCII
    click.echo(escaped.sub(_in_json, text), out)


def _in_json(found: re.Match[str]) -> str:
    """A character as an escape of JSON; one beyond U+FFFF is two."""
    return "\\u" + found[0].encode("utf-16-be").hex("-", 2).replace("-", "\\u")


@contextmanager
def json_alone(wanted: bool) -> Iterator[TextIO | None]:
    """A stream for our JSON and nothing else, or None if it is not *wanted*: all other output goes to stderr then.

    For commands that load and call the user's code, which may print anything at any time.
    """
    if not wanted:
        yield None
        return
    before = sys.stdout
    before.flush()
    kept = os.dup(OUT)
    os.dup2(ERR, OUT)
    if _is_own(before):
        # Never restored: the user's threads and exit handlers may print after our JSON is complete.
        sys.stdout = sys.stderr
        with open(kept, "w", encoding=before.encoding, errors=before.errors) as out:
            yield out
        return
    try:
        with redirect_stdout(sys.stderr):
            yield before
    finally:
        os.dup2(kept, OUT)
        os.close(kept)


def _is_own(stream: TextIO) -> bool:
    """True if *stream* is the process's own stdout and not a substitute, as in a test."""
    try:
        return stream.fileno() == OUT
    except OSError:
        return False


def put_table(out: Console, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
    """Print a table; on a terminal, columns are cut to their *most* and the last one gets the room that is left."""
    from rich.text import Text

    lines = [[Text(column.title, style="bold") for column in columns], *rows]
    widths = {at: max(cell.cell_len for cell in cells) for at, cells in enumerate(zip(*lines, strict=True))}
    if out.is_terminal:
        last = len(columns) - 1
        widths = {at: min(width, columns[at].most) for at, width in widths.items()}
        widths[last] = max(1, min(widths[last], out.width - total({**widths, last: 0})))
    for line in lines:
        cells = [fitted(cell, widths[at], right=columns[at].right) for at, cell in enumerate(line)]
        shown = Text(" " * GAP).join(cells)
        shown.rstrip()
        put_line(out, shown)


def put_fitting(out: Console, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
    """Print a table without the columns that are empty in every row; on a narrow terminal, the least needed go, too.

    If that is still too wide, the names in the first column are cut; only then do columns go that are needed more.
    """
    kept = [at for at in range(len(columns)) if any(row[at].plain for row in rows)]
    names = columns[kept[0]]
    if out.is_terminal:
        widths = {at: max(len(columns[at].title), *(row[at].cell_len for row in rows)) for at in kept}
        widths = {at: min(width, columns[at].most) for at, width in widths.items()}
        if columns[kept[-1]].need == STAYS:
            widths[kept[-1]] = min(widths[kept[-1]], LEAST)
        widths = fitting(columns, widths, out.width, LATE)
        short = {**widths, kept[0]: min(widths[kept[0]], LEAST_NAME)}
        kept = list(fitting(columns, short, out.width))
        room = out.width - total({**{at: widths[at] for at in kept}, kept[0]: 0})
        names = names._replace(most=min(names.most, max(LEAST_NAME, room)))
    put_table(out, [names, *(columns[at] for at in kept[1:])], [[row[at] for at in kept] for row in rows])


def put_fact(out: Console, name: str, value: Text | str, room: int) -> None:
    """Print a name padded to *room*, and its value, line by line; lines are not cut, so that texts can be copied."""
    from rich.text import Text

    text = value if isinstance(value, Text) else Text(value)
    for number, line in enumerate(text.split("\n", allow_blank=True)):
        label = Text(f"{name if not number else '':<{room}}", style="bold")
        shown = Text.assemble(label, line)
        shown.rstrip()
        out.print(shown, soft_wrap=True)


def put_line(out: Console, text: Text) -> None:
    """One line, cut at the edge of the terminal."""
    if out.is_terminal:
        out.print(text, no_wrap=True, overflow="ellipsis")
    else:
        click.echo(text.plain.rstrip())
