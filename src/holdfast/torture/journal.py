"""The journal of one run: what its processes did, one write per line, so that a kill loses nothing that was written.

It is both the agent's outside world, which holds the effects of tools, and the evidence for the judge: its lines stand
in the order in which things happened.
"""

from __future__ import annotations

import os
from typing import Any, Final

import msgspec

JUDGE: Final = 0  # stands for the judge, which only watches

# Words about a life as a whole.
ENTERED, CONFLICT, LOST, CANCELLED, DONE, ERROR = "entered", "conflict", "lost", "cancelled", "done", "error"
FROZEN, CANCEL = "frozen", "cancel"
# Words of the judge: it found these calls finished in the log; a frozen life that has lost its run is woken.
SEEN, WOKEN = "seen", "woken"
# Words about one call: its tool was entered, had its effect, was left; its result was seen; a doubt was decided.
BEGIN, EFFECT, END, ACK, REPEAT, ANSWER = "begin", "effect", "end", "ack", "repeat", "answer"


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened in *life*, to the call *key* of *tool* if any; *mark* identifies the result or event."""

    life: int
    word: str
    key: str = ""
    tool: str = ""
    label: str = ""  # the arguments of the call
    mark: str = ""
    text: str = ""
    keys: tuple[str, ...] = ()
    count: int = 0


_JSON = msgspec.json.Encoder()
_LINE = msgspec.json.Decoder(Line)


class Journal:
    """Written by one process for as long as it lives; read by all."""

    def __init__(self, path: str, life: int) -> None:
        self.path = path
        self.life = life
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(self, word: str, key: str = "", tool: str = "", label: str = "", **more: Any) -> None:
        """Write a line. A kill can cut it short, so each write begins with a newline, and `read` skips broken lines."""
        os.write(self._fd, b"\n" + _JSON.encode(Line(self.life, word, key, tool, label, **more)))


def note(path: str, word: str, **more: Any) -> None:
    """Write a line in the judge's name."""
    judge = Journal(path, JUDGE)
    judge.say(word, **more)
    os.close(judge._fd)


def read(path: str) -> list[Line]:
    """Return all lines that were written so far."""
    try:
        with open(path, "rb") as file:
            written = file.read()
    except FileNotFoundError:
        return []
    lines = []
    for line in written.split(b"\n"):
        try:
            lines.append(_LINE.decode(line))
        except msgspec.DecodeError:  # cut short by a kill
            continue
    return lines
