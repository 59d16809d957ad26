"""A page: lines to read, not to choose from; the keys that move in a sheet scroll it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static


class Page(VerticalScroll):
    """Any number of lines."""

    BINDINGS: ClassVar[list[BindingType]] = [  # in addition to those of VerticalScroll
        Binding("j", "scroll_down", show=False),
        Binding("k", "scroll_up", show=False),
        Binding("ctrl+d", "page_down", show=False),
        Binding("ctrl+u", "page_up", show=False),
        Binding("g", "scroll_home", show=False),
        Binding("G", "scroll_end", show=False),
    ]

    def __init__(self, *lines: Text, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._text = Text("\n").join(lines)

    def compose(self) -> ComposeResult:
        """All lines as one text."""
        yield Static(self._text)

    def show(self, lines: Sequence[Text]) -> None:
        """Show *lines* from now on."""
        text = Text("\n").join(lines)
        if text.markup != self._text.markup:
            self._text = text
            self.query_one(Static).update(text)

    def go_to_top(self) -> None:
        """Scroll to the top, before other contents are shown."""
        self.scroll_home(animate=False, immediate=True)
