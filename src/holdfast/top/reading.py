"""Reads from the store what one screen needs. Blocks, so it runs in a thread of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from holdfast.errors import RunNotFound
from holdfast.history import EventPage, RunHeader, RunSnapshot
from holdfast.policy import PolicyBook
from holdfast.stores import RunStore
from holdfast.stores.board import Board
from holdfast.stores.entries import ServerLine, ToolDetail, ToolInProcess, ToolLine
from holdfast.stores.searching import STATUSES, RunPage, Wanted, header_of, search
from holdfast.top import calls
from holdfast.wording.shown import ShownTools

PAGE = 100  # runs that are read, and as many more whenever the user comes near the end
EVENTS = 2000  # events of a run in one read
SAMPLES = 60  # values kept per tool, one a second
FIELDS = ("status", "session", "tool")


class Look(NamedTuple):
    """What to read: *name* is a tool or the id of a run, *text* and *failed* filter.

    *most* is how many runs are listed; events of a run are read from behind the sequence *after*.
    """

    screen: str
    name: str = ""
    text: str = ""
    failed: bool = False
    most: int = PAGE
    after: int = -1


class Picture(NamedTuple):
    """What was read *at* a time, in seconds since the epoch; None for what was not asked for or does not exist."""

    look: Look
    at: float
    tools: list[ToolLine]
    speeds: Mapping[str, tuple[float, ...]]  # calls a second of each tool, once a second, the newest last
    tool: ToolLine | None = None
    details: list[tuple[ToolInProcess, ToolDetail]] | None = None
    runs: RunPage | None = None
    run: RunSnapshot | None = None
    header: RunHeader | None = None  # of a run whose process is gone
    events: EventPage | None = None
    servers: list[ServerLine] | None = None


class Reader:
    """Reads *store*; tools that *book* names are listed even before their first call."""

    def __init__(self, store: RunStore, book: PolicyBook | None = None) -> None:
        self._store = store
        self._board = Board(store)
        self._shown = ShownTools(store, book)
        self._speeds: dict[str, deque[float]] = {}
        self._sampled = 0.0

    def look(self, look: Look) -> Picture:
        """Read what *look* asks for."""
        tools = self._tools()
        speeds = {name: tuple(speed) for name, speed in self._speeds.items()}
        picture = Picture(look, self._store.clock.time(), tools, speeds)
        match look.screen:
            case "tool":
                return self._tool(picture)
            case "runs":
                return picture._replace(runs=search(self._store, wanted(look.text, look.failed), limit=look.most))
            case "run":
                return self._run(picture)
            case "servers":
                return picture._replace(servers=self._board.servers())
        return picture

    def _tools(self) -> list[ToolLine]:
        found = self._shown.all()
        now = self._store.clock.monotonic()
        if now >= self._sampled + 1.0:
            self._sampled = now
            self._speeds = {line.name: self._sample(line) for line in found}
        return found

    def _sample(self, line: ToolLine) -> deque[float]:
        kept = self._speeds.get(line.name) or deque(maxlen=SAMPLES)
        kept.append(line.calls_per_second or 0.0)
        return kept

    def _tool(self, picture: Picture) -> Picture:
        line = next((line for line in picture.tools if line.name == picture.look.name), None)
        return picture._replace(tool=line, details=[] if line is None else self._shown.details(line))

    def _run(self, picture: Picture) -> Picture:
        name, after = picture.look.name, picture.look.after
        try:
            if after < 0:
                after = max(-1, self._store.snapshot(name).event_count - 1 - calls.MOST_EVENTS)
            page = self._store.event_page(name, after, EVENTS)
            run = self._store.snapshot(name)  # read last: if it is over or interrupted, it is so after these events
        except RunNotFound:
            return picture
        return picture._replace(run=run, events=page, header=header_of(self._store, name) if run.interrupted else None)


def wanted(text: str, failed: bool) -> Wanted:
    """The runs that a filter means: `status=…`, `session=…` and `tool=…` as such, all other words as text."""
    found: dict[str, str] = {}
    rest: list[str] = []
    for word in text.split():
        name, equals, value = word.partition("=")
        if equals and name in FIELDS and value and (name != "status" or value in STATUSES):
            found[name] = value
        else:
            rest.append(word)
    status = found.get("status") or ("failed" if failed else None)
    return Wanted(status, found.get("session"), found.get("tool"), " ".join(rest) or None)
