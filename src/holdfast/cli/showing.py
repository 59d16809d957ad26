"""How things are shown: to people as tables and lines, cut to the terminal; to programs as JSON; piped, in full.

Prompts, errors and names come from models and tools: nothing in them is ever taken for markup or a terminal's command.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, NamedTuple

import click

from holdfast.wording import in_full

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

GAP = "  "  # between columns
STAYS = 9  # the need of a column that never goes
ROOM = 16  # columns that the last one should have, at least
# What JSON may hold as it is and a terminal would act upon: more controls, line breaks, marks that turn text around.
_RAW = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


class Column(NamedTuple):
    """A column: *right* for numbers, *most* if it may be cut on a terminal, *need* if it may go: the least first."""

    title: str
    right: bool = False
    most: int = 1000
    need: int = STAYS


def console() -> Console:
    """Standard output: as wide as the terminal, and without end where it is none."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 1_000_000
    return Console(width=width, highlight=False, markup=False, emoji=False)


def say(message: str) -> None:
    """A message for people, on stderr."""
    click.echo(f"holdfast: {in_full(message)}", err=True)


def put_json(value: object, out: IO[str] | None = None) -> None:
    """*value* as one line of JSON for programs, on stdout or where *out* leads; safe to look at as well."""
    import msgspec

    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # the name of a file may be any bytes; what Python makes of them has an escape in JSON
        text = json.dumps(msgspec.to_builtins(value))
    click.echo(_RAW.sub(lambda found: f"\\u{ord(found[0]):04x}", text), out)


def put_table(out: Console, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
    """A table; on a terminal, what may be cut is cut and the last column gets what is left."""
    from rich.text import Text

    lines = [[Text(column.title, style="bold") for column in columns], *rows]
    widths = [max(cell.cell_len for cell in cells) for cells in zip(*lines, strict=True)]
    if out.is_terminal:
        widths = [min(width, column.most) for width, column in zip(widths, columns, strict=True)]
        widths[-1] = max(1, min(widths[-1], out.width - sum(widths[:-1]) - len(GAP) * (len(widths) - 1)))
    for line in lines:
        for cell, width, column in zip(line, widths, columns, strict=True):
            cell.truncate(width, overflow="ellipsis")
            space = " " * (width - cell.cell_len)
            if column.right:
                cell.pad_left(len(space))
            elif column is not columns[-1]:
                cell.append(space)
        put_line(out, Text(GAP).join(line))


def put_fitting(out: Console, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
    """A table without the columns that no row fills; on a narrow terminal, nor with those that are needed least."""
    kept = [at for at in range(len(columns)) if any(row[at].plain for row in rows)]
    widths = {at: max(len(columns[at].title), *(row[at].cell_len for row in rows)) for at in kept}
    for at in kept:
        most = ROOM if at == kept[-1] and columns[at].need == STAYS else columns[at].most
        widths[at] = min(widths[at], most) + len(GAP)
    for at in sorted(kept, key=lambda at: columns[at].need) if out.is_terminal else ():
        if columns[at].need < STAYS and sum(widths.values()) - len(GAP) > out.width:
            del widths[at]
    put_table(out, [columns[at] for at in widths], [[row[at] for at in widths] for row in rows])


def put_fact(out: Console, name: str, value: Text | str, room: int) -> None:
    """A name in so much *room*, and its value; a long one goes on below itself, so that ids and texts can be copied."""
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
