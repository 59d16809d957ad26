"""Modal screens: a question before something is changed, the list of keys, a text in full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from holdfast.top.page import Page
from holdfast.top.steering import Deed

KEYS: Final = (
    ("j k", "next and previous line; g G first and last"),
    ("enter", "open what the line stands for"),
    ("esc", "back: closes, clears, then goes up"),
    ("tab", "from the calls of a run to its events, and back"),
    ("/", "filter; runs also by tool=… session=… status=…"),
    ("f", "failed only"),
    ("space", "pause and go on"),
    ("1 2 3 4 5", "tools, the last tool, runs, the last run, servers"),
    ("y", "copy the command that resumes a run"),
    ("?", "this list"),
    ("q", "quit"),
)
CAPITALS: Final = (
    ("O", "hold a circuit open: refuse every call"),
    ("C", "hold a circuit closed: let every call pass"),
    ("A", "auto: the circuit decides by itself again"),
    ("R", "reset a circuit and forget its failures"),
    ("X", "cancel a run"),
)
BARS: Final = (
    ("░", "waiting in line for a limiter"),
    ("█", "in the tool"),
    ("×", "an attempt that failed, · the wait before the next"),
    ("◇ ⊘ ◆", "answered from the cache; refused; a mark"),
)


class Ask(ModalScreen[bool]):
    """A question that names the object of the deed; its result is True for yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,Y,enter", "answer(True)", show=False),
        Binding("n,N,escape,q", "answer(False)", show=False),
    ]

    def __init__(self, deed: Deed) -> None:
        super().__init__()
        self._deed = deed

    def compose(self) -> ComposeResult:
        """The question, and how to answer."""
        question, object, note, _ = self._deed
        text = Text.assemble((f"{question}\n", "bold"), (f"{object}\n", "bold yellow"), f"\n{note}\n\n")
        text.append_text(Text.assemble(("y", "bold reverse"), " yes    ", ("n", "bold reverse"), " no"))
        with Vertical(classes="box"):
            yield Static(text)

    def action_answer(self, answer: bool) -> None:
        """Close the question with this answer."""
        self.dismiss(answer)


class Reading(ModalScreen[None]):
    """A text of any length."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,question_mark", "close", show=False),
    ]

    def __init__(self, title: str, lines: Sequence[Text]) -> None:
        super().__init__()
        self._title = title
        self._lines = lines

    def compose(self) -> ComposeResult:
        """The text, and how to leave it."""
        title, foot = Text(self._title, style="bold underline"), Text("\nesc closes", style="dim")
        yield Page(title, Text(""), *self._lines, foot, classes="box wide")

    def action_close(self) -> None:
        """Back to the screen."""
        self.dismiss(None)


def keys() -> Reading:
    """What the keys do."""
    lines = [*_listed(KEYS), Text(""), Text("Capitals change something, and ask first", style="bold")]
    return Reading("Keys", [*lines, *_listed(CAPITALS), Text(""), Text("Bars of a run", style="bold"), *_listed(BARS)])


def _listed(pairs: Sequence[tuple[str, str]]) -> list[Text]:
    return [Text.assemble((f"  {key:<11}", "bold"), words) for key, words in pairs]
