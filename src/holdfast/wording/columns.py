"""Columns of a table in a terminal: if there is no room for all of them, the least needed are dropped first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from rich.text import Text

GAP: Final = 2  # blanks between two columns
LEAST: Final = 16  # width that the last column should have
LEAST_NAME: Final = 12  # width that the first column keeps when it is cut
LATE: Final = 7  # from this need on, a column is dropped only after names were cut, where names can be cut
STAYS: Final = 9  # the need of a column that is never dropped


class Column(NamedTuple):
    """A column: *right* is for numbers, *most* its greatest width on a terminal; the least *need* is dropped first."""

    title: str
    right: bool = False
    most: int = 1000
    need: int = STAYS


def total(widths: Mapping[int, int]) -> int:
    """How wide a table with columns of these *widths* is."""
    return sum(widths.values()) + GAP * (len(widths) - 1)


def fitting(columns: Sequence[Column], widths: Mapping[int, int], room: int, need: int = STAYS) -> dict[int, int]:
    """Return those of *widths*, by the index of their column, that fit into *room*; columns of that *need* stay."""
    kept = dict(widths)
    for place in sorted(kept, key=lambda place: columns[place].need):
        if columns[place].need < need and total(kept) > room:
            del kept[place]
    return kept


def fitted(cell: Text, width: int, *, right: bool) -> Text:
    """A cell as wide as its column."""
    cell = cell.copy()
    cell.truncate(width, overflow="ellipsis")
    space = max(0, width - cell.cell_len)
    if right:
        cell.pad_left(space)
    else:
        cell.append(" " * space)
    return cell
