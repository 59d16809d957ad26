"""What can be done to a circuit or a run, after one question that names it. `Deed.act` blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from holdfast.errors import printable
from holdfast.history import RunSnapshot
from holdfast.stores import RunStore
from holdfast.stores.board import Board
from holdfast.wording import one_line

REASON: Final = "cancelled from holdfast top"
ORDERS: Final = {
    "open": (
        "Hold open the circuit of",
        "Every call is refused, in every process and in those to come, until A or R.",
        "is held open",
    ),
    "close": (
        "Hold closed the circuit of",
        "Every call passes and no failure counts, until A or R.",
        "is held closed",
    ),
    "auto": ("Let go of the circuit of", "It opens and closes by itself again.", "decides by itself"),
    "reset": (
        "Reset the circuit of",
        "It closes, its failures are forgotten, and nobody holds it any more.",
        "is reset",
    ),
}


class Deed(NamedTuple):
    """Something to do to *object* if the *question* is answered with yes; *act* does it and returns how it went."""

    question: str
    object: str
    note: str
    act: Callable[[], str]


def order(store: RunStore, order: str, tool: str) -> Deed:
    """Hold a circuit open or closed, release it or reset it, in all processes."""
    question, note, done = ORDERS[order]
    shown = printable(tool, 200)

    def act() -> str:
        Board(store).order(order, [tool])
        return f"{shown} {done}"

    return Deed(question, shown, note, act)


def cancel(store: RunStore, run: RunSnapshot) -> Deed:
    """Cancel a run, whichever process runs it."""
    shown = printable(run.id, 200)
    prompt = f" ({one_line(run.prompt, 60)})" if run.prompt else ""
    told = "Its process is told; what it has finished stays."

    def act() -> str:
        return f"run {shown}: {store.handle(run.id).cancel(REASON).replace('_', ' ')}"

    return Deed(
        "Cancel the run", f"{shown}{prompt}", told if run.owner else "Nobody works on it now; it ends at once.", act
    )
