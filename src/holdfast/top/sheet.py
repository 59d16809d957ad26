"""A sheet: lines of cells that are drawn again only where they have changed.

Only what is in sight is ever made, so a list may be as long as it likes. Cells are texts, never markup; where there is
no room for all columns, those least needed go first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, Literal, NamedTuple

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

GAP = 2  # columns between two cells
MARK = "▸ "  # before the line that is chosen, as colour alone says nothing to some
ROOM = 16  # columns that the last cell should have, at least

STAYS = 9  # the need of a column that never goes

Cells = Sequence[Text]


class Column(NamedTuple):
    """A column: *right* for numbers, *most* its widest, *need* says which may go first: the smallest."""

    title: str
    right: bool = False
    most: int = 40
    need: int = STAYS


class Contents(NamedTuple):
    """What a sheet shows: the *keys* of its lines, and *cells* that makes one; *empty* is said if there is none."""

    columns: Sequence[Column]
    keys: Sequence[Hashable]
    cells: Callable[[int], Cells]
    empty: Sequence[str] = ()


def page(lines: Sequence[Text]) -> Contents:
    """Plain lines, without columns."""
    return Contents((Column(""),), range(len(lines)), lambda at: (lines[at],))


class Sheet(ScrollView, can_focus=True):
    """Lines of cells, one of them chosen where they are *choosable*.

    With *stays* at the top or the end, the first or last line stays chosen when others come before or after it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", show=False),
        Binding("k,up", "move(-1)", show=False),
        Binding("pagedown,ctrl+d", "turn(1)", show=False),
        Binding("pageup,ctrl+u", "turn(-1)", show=False),
        Binding("g,home", "edge(-1)", show=False),
        Binding("G,end", "edge(1)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Opened(Message):
        """Somebody wants to see more of the line *key*."""

        def __init__(self, sheet: Sheet, key: Hashable) -> None:
            super().__init__()
            self.sheet = sheet
            self.key = key

    class Moved(Message):
        """Another line is chosen, or in sight."""

    def __init__(self, *, id: str, choosable: bool = True, stays: Literal["top", "end"] | None = None) -> None:
        super().__init__(id=id)
        self.choosable = choosable
        self.stays = stays
        self.redrawn = 0  # cells, since it is there
        self._contents = Contents((), (), lambda at: ())
        self._at = 0
        self._widths: dict[int, int] = {}  # of the columns that are shown, by their place
        self._drawn: dict[int, tuple[Hashable, Cells]] = {}  # lines as they are on the screen, by their place

    # -- what it shows -------------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> Hashable | None:
        """The key of the line that is chosen."""
        keys = self._contents.keys
        return keys[self._at] if self.choosable and self._at < len(keys) else None

    @property
    def at(self) -> int:
        """The place of the line that is chosen, else of the last in sight."""
        return self._at if self.choosable else self.scroll_offset.y + self._height

    def show(self, contents: Contents) -> None:
        """Show *contents* from now on; the line that was chosen stays so, wherever it has gone."""
        before, self._contents = self._contents, contents
        was, chosen = self._at, before.keys[self._at] if self._at < len(before.keys) else None
        if self.stays == "end" and self._at >= len(before.keys) - 1:
            self._at = max(0, len(contents.keys) - 1)
        elif self.stays != "top" or self._at:
            self._at = _place(contents.keys, chosen, self._at)
        if len(before.columns) != len(contents.columns):
            self._widths = {}
        if len(before.keys) != len(contents.keys):
            self.virtual_size = Size(self._width, len(contents.keys) + self._head)
        if len(before.keys) != len(contents.keys) or not contents.keys:
            drawn = self._drawn if contents.keys and before.keys else {}
            self._renew(drawn)
            self.refresh(Region(0, self._head + len(contents.keys) - self.scroll_offset.y, self._width, 10_000))
        else:
            self._renew(self._drawn)
        if was != self._at:
            self._reveal()

    def forget(self) -> None:
        """Begin at the top, with other things to show."""
        self._at, self._widths, self._drawn = 0, {}, {}
        self.scroll_to(y=0, animate=False, immediate=True)

    def _renew(self, drawn: dict[int, tuple[Hashable, Cells]]) -> None:
        """Make the lines in sight, and draw the cells that differ from those *drawn*."""
        top, made = self.scroll_offset.y, {}
        for at in range(top, min(top + self._height, len(self._contents.keys))):
            made[at] = (self._contents.keys[at], self._contents.cells(at))
        self._drawn = made
        if self._fit() or not drawn:
            self.redrawn += sum(len(cells) for _, cells in made.values())
            self.refresh()
            return
        for at, (key, cells) in made.items():
            old = drawn.get(at)
            y = at - top + self._head
            if old is None or len(old[1]) != len(cells) or (old[0] != key and self.choosable):
                self.redrawn += len(cells)
                self.refresh(Region(0, y, self._width, 1))
                continue
            for x, width, place in self._spans():
                if not _same(old[1][place], cells[place]):
                    self.redrawn += 1
                    self.refresh(Region(x, y, width, 1))

    # -- where things are ----------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How wide the last column is; until there is one, as wide as the sheet."""
        return self._widths.get(len(self._contents.columns) - 1, self._width)

    @property
    def _width(self) -> int:
        return self.scrollable_content_region.width

    @property
    def _head(self) -> int:
        return int(any(column.title for column in self._contents.columns))

    @property
    def _height(self) -> int:
        return max(0, self.size.height - self._head)

    def _fit(self) -> bool:
        """Give each column its width; true if one is another than before. Widths only grow, so that nothing jumps."""
        columns = self._contents.columns
        if not columns or not self._width:
            return False
        room = self._width - (len(MARK) if self.choosable else 0)
        first, last, rest = max(ROOM, room * 28 // 100), len(columns) - 1, max(ROOM, room // 6)
        widths = self._natural(first)
        for place in sorted(range(1, last), key=lambda place: columns[place].need):
            if columns[place].need < STAYS and _total({**widths, last: min(widths[last], rest)}) > room:
                widths.pop(place, None)
        widths[last] = max(1, room - _total({**widths, last: 0}))
        changed = {**widths, last: 0} != {**self._widths, last: 0} or widths[last] != self._widths.get(last)
        self._widths = widths
        return changed

    def _natural(self, first: int) -> dict[int, int]:
        """The widths that columns would have, the first at most *first*; one that has nothing in it goes."""
        columns, lines = self._contents.columns, [cells for _, cells in self._drawn.values()]
        widths: dict[int, int] = {}
        for place, column in enumerate(columns):
            widest = max((cells[place].cell_len for cells in lines if place < len(cells)), default=0)
            most = column.most if place or len(columns) == 1 else min(column.most, first)
            if widest or place in self._widths or place in (0, len(columns) - 1):
                natural = min(most, max(widest, len(column.title)))
                widths[place] = max(natural, self._widths.get(place, 0)) if place < len(columns) - 1 else natural
        return widths

    def _spans(self) -> list[tuple[int, int, int]]:
        """Where each shown column begins, how wide it is, and which it is."""
        spans, x = [], len(MARK) if self.choosable else 0
        for place in sorted(self._widths):
            spans.append((x, self._widths[place], place))
            x += self._widths[place] + GAP
        return spans

    # -- drawing -------------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        width, base = self._width, self.rich_style
        contents = self._contents
        if not contents.keys:
            said = contents.empty[y - 1] if 0 < y <= len(contents.empty) else ""
            return self._strip([Text(f"  {said}")], width, base, spread=False)
        if self._head and y == 0:
            titles = [Text(column.title, style="bold") for column in contents.columns]
            return self._strip(titles, width, base + Style(underline=False))
        at = y - self._head + self.scroll_offset.y
        if at >= len(contents.keys):
            return Strip.blank(width, base)
        _, cells = self._drawn.get(at) or (None, contents.cells(at))
        return self._strip(cells, width, base, chosen=self.choosable and at == self._at)

    def _strip(self, cells: Cells, width: int, base: Style, *, chosen: bool = False, spread: bool = True) -> Strip:
        line = Text(MARK if chosen else " " * len(MARK)) if self.choosable else Text()
        spans = self._spans() if spread else [(0, width, 0)]
        for number, (_, wide, place) in enumerate(spans):
            if number:
                line.append(" " * GAP)
            if place < len(cells):
                line.append_text(_fitted(cells[place], wide, right=spread and self._contents.columns[place].right))
        segments = line.render(self.app.console)
        if chosen:  # the bar says more than the colours below it
            bar = Style(reverse=self.has_focus, bold=True)
            segments = (Segment(each.text, bar) for each in segments)
        rest = Style(reverse=True) if chosen and self.has_focus else None
        return Strip(segments).adjust_cell_length(width, rest).apply_style(base)

    # -- moving --------------------------------------------------------------------------------------------------------

    def action_move(self, delta: int) -> None:
        """To another line, or so many lines on."""
        if not self.choosable:
            self.scroll_to(y=self.scroll_offset.y + delta, animate=False, immediate=True)
            return
        self._go(self._at + delta)

    def action_turn(self, pages: int) -> None:
        """By a whole height."""
        self.action_move(pages * max(1, self._height - 1))

    def action_edge(self, side: int) -> None:
        """To the first or the last."""
        self.action_move(side * max(1, len(self._contents.keys)))

    def action_open(self) -> None:
        """See more of the line that is chosen."""
        if self.chosen is not None:
            self.post_message(self.Opened(self, self.chosen))

    def on_click(self, event: events.Click) -> None:
        """Choose a line; again, open it."""
        at = event.y - self._head + self.scroll_offset.y
        if not self.choosable or not 0 <= at < len(self._contents.keys) or event.y < self._head:
            return
        if at == self._at and event.chain > 1:
            self.action_open()
        else:
            self._go(at)

    def on_resize(self) -> None:
        """Find room for the columns anew."""
        self._widths = {}
        self.virtual_size = Size(self._width, len(self._contents.keys) + self._head)
        self._renew({})
        self._reveal()

    def on_focus(self) -> None:
        """Show that it has the keys."""
        self.refresh()

    def on_blur(self) -> None:
        """Show that it has them no more."""
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Make the lines that come into sight."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self._renew({})
            self.post_message(self.Moved())

    def _go(self, at: int) -> None:
        at = max(0, min(at, len(self._contents.keys) - 1))
        before, self._at = self._at, at
        if before != at:
            for place in (before, at):
                self.refresh(Region(0, place - self.scroll_offset.y + self._head, self._width, 1))
            self._reveal()
            self.post_message(self.Moved())

    def _reveal(self) -> None:
        """Scroll until the chosen line is in sight."""
        if not self.choosable or not self._height:
            return
        top = self.scroll_offset.y
        wanted = min(max(top, self._at - self._height + 1), self._at)
        if wanted != top:
            self.scroll_to(y=wanted, animate=False, immediate=True)


def _place(keys: Sequence[Hashable], chosen: Hashable | None, at: int) -> int:
    """Where *chosen* is among *keys*; if it is gone, near where it was."""
    if chosen is not None and not (at < len(keys) and keys[at] == chosen):
        try:
            return keys.index(chosen)
        except ValueError:
            pass
    return max(0, min(at, len(keys) - 1))


def _same(one: Text, other: Text) -> bool:
    """Whether two cells look the same; to rich, texts of other colours are equal."""
    return one.plain == other.plain and one.style == other.style and one.spans == other.spans


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _fitted(cell: Text, width: int, *, right: bool) -> Text:
    """A cell as wide as its column."""
    cell = cell.copy()
    cell.truncate(width, overflow="ellipsis")
    space = max(0, width - cell.cell_len)
    if right:
        cell.pad_left(space)
    else:
        cell.append(" " * space)
    return cell
