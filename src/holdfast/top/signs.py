"""How a state looks: its shape, word and colour, so that a reader can do without any one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.text import Text

from holdfast.errors import printable
from holdfast.history import RunSnapshot
from holdfast.stores.entries import ToolLine
from holdfast.wording.runs import standing
from holdfast.wording.tools import STYLES, state_of

SIGNS: Final[Mapping[str, str]] = {
    "open": "✖", "half_open": "◐", "closed": "●", "off": "○",
    "created": "○", "planning": "▶", "executing": "▶", "verifying": "▶", "running": "▶",
    "completed": "✔", "success": "✔", "failed": "✖", "timed_out": "✖", "cancelled": "■", "interrupted": "‖",
    "cached": "◇", "denied": "⊘", "unknown": "?", "mark": "◆",
    "starting": "◐", "ready": "●", "restarting": "◐", "stopped": "○", "idle": "○",
}  # fmt: skip
TONES: Final[Mapping[str, str]] = {
    "running": "cyan", "success": "green", "failed": "bold red", "timed_out": "bold red", "cancelled": "magenta",
    "cached": "blue", "denied": "yellow", "unknown": "bold yellow", "mark": "dim",
    "starting": "yellow", "ready": "green", "restarting": "bold yellow", "stopped": "dim", "idle": "dim",
}  # fmt: skip
STEPS: Final = "▁▂▃▄▅▆▇█"


def sign(state: str) -> str:
    """The shape of a state."""
    return SIGNS.get(state, "·")


def outcome(state: str) -> Text:
    """The state of a call or a server."""
    word = "refused" if state == "denied" else printable(state, 40).replace("_", " ")
    return Text(f"{sign(state)} {word}", style=TONES.get(state, ""))


def tool_state(line: ToolLine) -> Text:
    """The circuit of a tool, in all processes."""
    return Text.assemble((f"{sign(line.state)} ", STYLES.get(line.state, "")), state_of(line))


def run_state(run: RunSnapshot) -> Text:
    """The status of a run."""
    word = standing(run)
    return Text.assemble((f"{sign(word.plain)} ", word.style), word)


def sparkline(values: Sequence[float], width: int) -> str:
    """The last *width* values as a row of bars, each measured against the highest of them."""
    shown = values[-width:]
    most = max(shown, default=0.0)
    if most <= 0:
        return "".join(STEPS[0] for _ in shown)
    return "".join(STEPS[min(len(STEPS) - 1, int(value / most * (len(STEPS) - 1) + 0.5))] for value in shown)
