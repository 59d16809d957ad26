"""A sheet: lines of cells that are drawn again only where they have changed.

Only the lines in sight are ever made, so a list may have any length. Cells are texts, never markup; if there is no room
for all columns, the least needed ones go first.
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

from holdfast.wording.columns import GAP, LEAST, Column, fitted, fitting, total

HEAD = 1  # line of titles
MARK = "▸ "  # before the chosen line, since some users do not see its colour

Cells = Sequence[Text]


class Contents(NamedTuple):
    """What a sheet shows: the *keys* of its lines, and *cells*, which makes one; *empty* is shown if there is none."""

    columns: Sequence[Column]
    keys: Sequence[Hashable]
    cells: Callable[[int], Cells]
    empty: Sequence[str] = ()


class Sheet(ScrollView, can_focus=True):
    """Lines of cells below their titles, one of them chosen.

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
        """The user opened the line *key*."""

        def __init__(self, sheet: Sheet, key: Hashable) -> None:
            super().__init__()
            self.sheet = sheet
            self.key = key

    class Moved(Message):
        """Another line is chosen."""

    def __init__(self, *, id: str, stays: Literal["top", "end"] | None = None) -> None:
        super().__init__(id=id)
        self.stays = stays
        self.at = 0  # the place of the line that is chosen
        self.redrawn = 0  # lines redrawn so far, for tests
        self._contents = Contents((), (), lambda at: ())
        self._widths: dict[int, int] = {}  # of the shown columns, by their place
        self._strips: list[Strip] = []  # what is on the screen, line by line
        self._looks: dict[Hashable, Strip] = {}  # lines on the screen, by what they are made of

    # -- what it shows -------------------------------------------------------------------------------------------------

    @property
    def chosen(self) -> Hashable | None:
        """The key of the line that is chosen."""
        keys = self._contents.keys
        return keys[self.at] if self.at < len(keys) else None

    def show(self, contents: Contents) -> None:
        """Show *contents* from now on; the chosen line stays chosen, wherever it has moved."""
        before, self._contents = self._contents, contents
        was, chosen = self.at, before.keys[self.at] if self.at < len(before.keys) else None
        if self.stays == "end" and self.at >= len(before.keys) - 1:
            self.at = max(0, len(contents.keys) - 1)
        elif self.stays != "top" or self.at:
            self.at = _place(contents.keys, chosen, self.at)
        self._measure()
        if was == self.at:
            self._draw()
        else:
            self._reveal()

    def go_to_top(self) -> None:
        """Go to the top, before other contents are shown."""
        self.at, self._widths = 0, {}
        self.scroll_to(y=0, animate=False, immediate=True)

    # -- where things are ----------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """The width of the last column; until it is known, that of the sheet."""
        return self._widths.get(len(self._contents.columns) - 1, self._width)

    @property
    def _width(self) -> int:
        return self.scrollable_content_region.width

    @property
    def _height(self) -> int:
        return max(0, self.size.height - HEAD)

    def _measure(self) -> None:
        """Set how much there is to scroll."""
        self.virtual_size = Size(self._width, len(self._contents.keys) + HEAD)

    def _fit(self, lines: Sequence[Cells]) -> None:
        """Give each column its width, and the last one what is left. Widths only grow, so that nothing jumps."""
        columns, last = self._contents.columns, len(self._contents.columns) - 1
        if not columns or not self._width:
            return
        room = self._width - len(MARK)
        widths: dict[int, int] = {}
        for place, column in enumerate(columns[:-1]):
            widest = max((cells[place].cell_len for cells in lines), default=0)
            most = column.most if place else min(column.most, max(LEAST, room * 28 // 100))
            if widest or place in self._widths or not place:  # an empty column is left out
                widths[place] = max(min(most, max(widest, len(column.title))), self._widths.get(place, 0))
        wanted = max(len(columns[last].title), *(cells[last].cell_len for cells in lines), 0)
        widths = fitting(columns, {**widths, last: min(wanted, max(LEAST, room // 6))}, room)
        self._widths = {**widths, last: max(1, room - total({**widths, last: 0}))}

    # -- drawing -------------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        """Make the lines in sight, and redraw those that differ from what is on the screen."""
        contents, top = self._contents, self.scroll_offset.y
        lines = [contents.cells(at) for at in range(top, min(top + self._height, len(contents.keys)))]
        self._fit(lines)
        before, self._strips = self._strips, self._made(lines)
        for y, strip in enumerate(self._strips):
            if y >= len(before) or strip != before[y]:
                self.redrawn += 1
                self.refresh(Region(0, y, self._width, 1))

    def _made(self, lines: Sequence[Cells]) -> list[Strip]:
        """The whole screen: titles and *lines*, or the text for an empty list."""
        height = self.size.height
        if self._contents.keys:
            made = self._table([[Text(column.title, style="bold") for column in self._contents.columns], *lines])
        else:
            made = [self._strip(Text(f"  {said}")) for said in ("", *self._contents.empty)]
        return [*made, *[Strip.blank(self._width, self.rich_style)] * (height - len(made))][:height]

    def _table(self, lines: Sequence[Cells]) -> list[Strip]:
        """Titles and lines; a line that looks like one of the last time is not made again."""
        before, self._looks, made = self._looks, {}, []
        frame = (self._width, self.has_focus, self.rich_style, *self._widths.items())
        chosen = self.at - self.scroll_offset.y + HEAD
        for y, cells in enumerate(lines):
            look = (frame, y == chosen, *((cell.plain, cell.style, *cell.spans) for cell in cells))
            strip = before.get(look) or self._strip(self._line(cells), chosen=y == chosen)
            self._looks[look] = strip
            made.append(strip)
        return made

    def _line(self, cells: Cells) -> Text:
        columns = self._contents.columns
        shown = [fitted(cells[at], width, right=columns[at].right) for at, width in self._widths.items()]
        return Text(" " * GAP).join(shown)

    def _strip(self, line: Text, *, chosen: bool = False) -> Strip:
        mark = MARK if chosen else " " * len(MARK)
        segments = Text.assemble(mark, line).render(self.app.console)
        bar = Style(reverse=self.has_focus, bold=True) if chosen else None
        if bar is not None:  # the style of the chosen line replaces the colours of its cells
            segments = (Segment(each.text, bar) for each in segments)
        return Strip(segments).adjust_cell_length(self._width, bar).apply_style(self.rich_style)

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        return self._strips[y] if y < len(self._strips) else Strip.blank(self._width, self.rich_style)

    # -- moving --------------------------------------------------------------------------------------------------------

    def action_move(self, delta: int) -> None:
        """Choose the line *delta* lines further down."""
        self._go(self.at + delta)

    def action_turn(self, pages: int) -> None:
        """Move by whole pages."""
        self.action_move(pages * max(1, self._height - 1))

    def action_edge(self, side: int) -> None:
        """Choose the first or the last line."""
        self.action_move(side * max(1, len(self._contents.keys)))

    def action_open(self) -> None:
        """Open the chosen line."""
        if self.chosen is not None:
            self.post_message(self.Opened(self, self.chosen))

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked line; open it on a double click."""
        at = event.y - HEAD + self.scroll_offset.y
        if not 0 <= at < len(self._contents.keys) or event.y < HEAD:
            return
        if at == self.at and event.chain > 1:
            self.action_open()
        else:
            self._go(at)

    def on_resize(self) -> None:
        """Fit the columns to the new width."""
        self._widths = {}
        self._measure()
        self._reveal()

    def watch_has_focus(self, _has_focus: bool) -> None:
        """Redraw, since the chosen line shows whether the sheet has the focus."""
        super().watch_has_focus(_has_focus)
        self._draw()

    def watch_show_vertical_scrollbar(self) -> None:
        """Redraw, since the scroll bar changes the width."""
        self._draw()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Make the lines that come into sight."""
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self._draw()

    def _go(self, at: int) -> None:
        before, self.at = self.at, max(0, min(at, len(self._contents.keys) - 1))
        if before != self.at:
            self._reveal()
            self.post_message(self.Moved())

    def _reveal(self) -> None:
        """Scroll the chosen line into sight, and draw."""
        top = self.scroll_offset.y
        if self._height:
            wanted = min(max(top, self.at - self._height + 1), self.at)
            self.scroll_to(y=wanted, animate=False, immediate=True, force=True)  # forced: there may be no bar yet
        if self.scroll_offset.y == top:  # otherwise scrolling has drawn it
            self._draw()


def _place(keys: Sequence[Hashable], chosen: Hashable | None, at: int) -> int:
    """Where *chosen* is among *keys*; if it is gone, near where it was."""
    if chosen is not None and not (at < len(keys) and keys[at] == chosen):
        try:
            return keys.index(chosen)
        except ValueError:
            pass
    return max(0, min(at, len(keys) - 1))
