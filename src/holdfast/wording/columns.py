"""Columns of a table in a terminal: where there is no room for all of them, those least needed go first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from rich.text import Text

GAP: Final = 2  # between two columns
LEAST: Final = 16  # that the last one should have
LEAST_NAME: Final = 12  # that the first one keeps where it is cut
LATE: Final = 7  # the least need of a column that goes only after names were cut, where names can be cut
STAYS: Final = 9  # the need of a column that never goes


class Column(NamedTuple):
    """A column: *right* for numbers, *most* its widest on a terminal, *need* says which may go first: the smallest."""

    title: str
    right: bool = False
    most: int = 1000
    need: int = STAYS


def total(widths: Mapping[int, int]) -> int:
    """How wide a table with columns of these *widths* is."""
    return sum(widths.values()) + GAP * (len(widths) - 1)


def fitting(columns: Sequence[Column], widths: Mapping[int, int], room: int, need: int = STAYS) -> dict[int, int]:
    """Those of *widths*, which are by the place of their column, for which there is *room*; or of that much *need*."""
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
