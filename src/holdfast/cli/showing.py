"""How things are shown: to people as tables and lines, cut to the terminal; to programs as JSON; piped, in full.

Prompts, errors and names come from models and tools: nothing in them is ever taken for markup or a terminal's command.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import click

from holdfast.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

GAP = "  "  # between columns
LONGEST = 2000  # characters of one value where nothing else limits it
LATEST = 253_000_000_000_000  # milliseconds since the epoch, in the year 9987: Python knows no time after 9999
# What JSON may hold as it is and a terminal would act upon: more controls, line breaks, marks that turn text around.
_RAW = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


class Column(NamedTuple):
    """A column of a table: *right* for numbers, *most* for what may be cut on a terminal."""

    title: str
    right: bool = False
    most: int = 1000


def console() -> Console:
    """Standard output: as wide as the terminal, and without end where it is none."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 1_000_000
    return Console(width=width, highlight=False, markup=False, emoji=False)


def say(message: str) -> None:
    """A message for people, on stderr."""
    click.echo(f"holdfast: {in_full(message)}", err=True)


def put_json(value: object) -> None:
    """*value* as one line of JSON on stdout, for programs; safe to look at as well."""
    import msgspec

    text = msgspec.json.encode(value).decode()
    click.echo(_RAW.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


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


def put_line(out: Console, text: Text) -> None:
    """One line, cut at the edge of the terminal."""
    if out.is_terminal:
        out.print(text, no_wrap=True, overflow="ellipsis")
    else:
        click.echo(text.plain.rstrip())


# -- values in words ---------------------------------------------------------------------------------------------------


def one_line(text: str, limit: int = LONGEST) -> str:
    """*text* on one line, safe to show, at most *limit* characters of it."""
    line = " ".join(text.split())
    return printable(line if len(line) <= limit else f"{line[: limit - 1]}…", limit)


def in_full(text: str) -> str:
    """*text* with its lines and tabs, otherwise safe to show."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def span(seconds: float) -> str:
    """A time in words: 350 ms, 12 s, 5 min, 3 h, 12 d."""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{round(seconds, 1 if seconds < 10 else 0):g} s"


def age(then_ms: int, now: float) -> str:
    """How long ago something was; what lies ahead, as clocks differ, is now."""
    return span(max(1, int(now - then_ms / 1000)))


def size(count: float) -> str:
    """Bytes in words: 850 B, 12 kB, 3.4 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def moment(at_ms: int) -> str:
    """Date and time of day, where we are."""
    return _local(at_ms).strftime("%Y-%m-%d %H:%M:%S")


def time_of_day(at_ms: int) -> str:
    """The time of day to the millisecond, where we are."""
    return _local(at_ms).strftime("%H:%M:%S.") + f"{at_ms % 1000:03}"


def _local(at_ms: int) -> datetime:
    return datetime.fromtimestamp(min(max(0, at_ms), LATEST) / 1000, tz=UTC).astimezone()
