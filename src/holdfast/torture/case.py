"""One tortured run, and its journal and its log as the judge reads them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from holdfast import events
from holdfast.history import RunEventRecord, RunStatus
from holdfast.torture import journal
from holdfast.torture.agent import REPEATABLE
from holdfast.torture.desk import PROGRESS
from holdfast.torture.journal import Line

STARTED = (events.TOOL_STARTED, events.STEP_STARTED)
ENDED = (events.TOOL_ENDED, events.STEP_ENDED)
OWNED = (events.RUN_STARTED, events.RUN_RESUMED)
FINISHED = ("success", "failed")


class Expected(NamedTuple):
    """The outcome of an undisturbed run of the same shape: its result, and how many keys each call has."""

    text: str
    keys: Counter[tuple[str, str]]


class Case:
    """One run and, if it was cancelled and resumed, its fork."""

    def __init__(self, run_id: str, shape: str, path: str, expected: Expected | None) -> None:
        self.run_ids = [run_id]
        self.shape = shape
        self.journal = path
        self.expected = expected
        self.status: RunStatus | None = None  # as last seen by the judge; None if the run has not begun

    @property
    def run_id(self) -> str:
        """The id of the run to go on with."""
        return self.run_ids[-1]

    @property
    def is_over(self) -> bool:
        """True if the run has ended."""
        return self.status is not None and self.status.is_terminal


class Late(NamedTuple):
    """What a life did after it had lost its run; *takeover* is the sequence at which another process took the run."""

    life: int
    takeover: int
    lines: list[Line]


class Journalled:
    """A journal in two parts: what was done by the process that owned the run, and what came too late."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.all = lines
        self.on_time: list[Line] = []
        self.late: dict[int, Late] = {}
        for line in lines:
            if line.word == journal.WOKEN:
                life = int(line.label)
                self.late[life] = Late(life, line.count, [])
            elif line.life in self.late:
                self.late[line.life].lines.append(line)
            else:
                self.on_time.append(line)

    def of(self, *words: str) -> list[Line]:
        """Return the lines with one of these words, both on time and late."""
        return [line for line in self.all if line.word in words]

    def keys(self) -> Counter[tuple[str, str]]:
        """Count the different keys of the calls of each tool with the same arguments."""
        known = {(line.tool, line.label, line.key) for line in self.of(journal.BEGIN)}
        return Counter((tool, label) for tool, label, _ in known)


class Ended(NamedTuple):
    """The end of a call in the log."""

    sequence: int
    marks: frozenset[str]
    answered: bool


class Logged:
    """What the log says about calls; a call is identified by the first half of its key, as in the log."""

    def __init__(self, log: Sequence[RunEventRecord]) -> None:
        self.log = log
        self.started: dict[str, list[int]] = defaultdict(list)
        self.ended: dict[str, list[Ended]] = defaultdict(list)
        self.reported: dict[str, int] = {}
        self.owned = [event.sequence for event in log if event.type in OWNED]
        for event in log:
            payload = event.payload
            if event.type in STARTED:
                self.started[payload["call_id"]].append(event.sequence)
            elif event.type in ENDED and payload["status"] in FINISHED:
                marks = frozenset(_marks(payload.get("result")))
                self.ended[payload["call_id"]].append(Ended(event.sequence, marks, payload.get("answered", False)))
            elif event.type == PROGRESS:
                self.reported[payload["mark"]] = event.sequence


def digest(log: Sequence[RunEventRecord]) -> str:
    """Return a short text that is equal for equal events."""
    return blake2b(msgspec.json.encode(log), digest_size=16).hexdigest()


def call_of(key: str) -> str:
    """Return the id by which the log knows the call with this key."""
    return key[:16]


def is_once(line: Line) -> bool:
    """True if the tool must not be called again unless the agent decides so."""
    return line.tool not in REPEATABLE


def _marks(value: object) -> Iterator[str]:
    """Yield the marks in the result of a call."""
    if isinstance(value, dict):
        if isinstance(mark := value.get("mark"), str):
            yield mark
    elif isinstance(value, list):
        for each in value:
            yield from _marks(each)
