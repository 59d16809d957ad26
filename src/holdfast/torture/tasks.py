"""What the driver, a process of its own, is told to do, and what it says if it cannot: each one JSON value."""

from __future__ import annotations

import msgspec

from holdfast.torture.places import Place


class Task(msgspec.Struct, frozen=True):
    """A torture at *place*: for so many *seconds* and *kills* at least, with the journals in *folder*.

    The process *parent* wants it, and tidies when it is over.
    """

    parent: int
    place: Place
    folder: str
    seed: int
    seconds: float
    kills: int


class Trouble(msgspec.Struct, frozen=True, tag=True):
    """Why there is no verdict: not for a promise that was broken, but for the store, or the way to it."""

    text: str
