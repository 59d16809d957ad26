"""What happened, in bounded memory: the last executions, and lifetime statistics per tool and in all.

The hot path adds notes to a journal without a lock; they are filed when statistics are read, or when enough have
gathered. Only executions that really took place and ran to an end count in mean and percentiles: cached, cancelled and
refused calls are counted apart.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from holdfast import checks
from holdfast.category import ErrorCategory
from holdfast.clock import Clock
from holdfast.errors import ConfigError
from holdfast.guards.names import short_key
from holdfast.tracking.records import Breakdown, ExecutionRecord, ExecutionStats, ExecutionStatus
from holdfast.tracking.statistics import Entry, ToolStats

BATCH: Final = 512  # notes that gather in the journal before they are filed
_NOTE: Final = 3  # items of the journal that make a note

_T = TypeVar("_T")
_Member = TypeVar("_Member", bound=StrEnum)


class ExecutionTracker:
    """The last *max_history* executions (0: none) and statistics of up to *max_tools* tools; safe to share by threads.

    A tool beyond *max_tools* evicts the one least recently used, whose calls stay in the statistics of all tools.
    """

    def __init__(self, max_history: int = 1000, *, max_tools: int = 10_000, clock: Clock | None = None) -> None:
        checks.whole("max_history", max_history, least=0)
        checks.whole("max_tools", max_tools)
        self.max_history = max_history
        self.max_tools = max_tools
        # In order of arrival, three items each: a tool, the monotonic time and the duration of a clean success that is
        # still to be filed; or a record, its time and 0.0. One `extend` adds all three, which the interpreter does not
        # split. What has been filed stays as history. A success's wall time is worked out on reading: if the wall clock
        # was set since then, that time moves, which is the price of reading one clock less.
        self.journal: list[Any] = []
        self.refusals: list[str] = []  # the tools of refused calls that are not counted yet
        self.journal_is_full = _NOTE * (max_history + BATCH)
        self._era = 1  # of the next new tool: a reader that adds up counters has to know that they restarted
        self._filed = 0  # items of the journal that were filed
        self._clock: Clock = checks.clock(clock)
        self._lock = threading.Lock()
        self._tools: OrderedDict[str, ToolStats] = OrderedDict()  # least recently used first
        self._evicted = ToolStats("")

    def record(
        self,
        tool: str,
        status: ExecutionStatus,
        duration: float,
        was_cached: bool = False,
        *,
        attempts: int = 1,
        category: ErrorCategory | None = None,
    ) -> None:
        """Note an execution that has just ended after *duration* seconds."""
        status = _member(ExecutionStatus, "status", status)
        category = None if category is None else _member(ErrorCategory, "category", category)
        checks.number("duration", duration, least=0)
        checks.flag("was_cached", was_cached)
        checks.whole("attempts", attempts)
        name, duration = short_key(tool), float(duration)
        at, ended = self._clock.time(), self._clock.monotonic()
        with self._lock:
            stats = self._use(name)
            stats.file(status, duration, was_cached, category)
            self._write(ExecutionRecord(stats.name, status, duration, at, was_cached, attempts, category), ended)

    def denied(self, tool: str, kind: str = "Denied") -> None:
        """Note a call that was refused: it counts in `denied` and nowhere else; *kind* is the name of its error."""
        name = short_key(tool)
        with self._lock:
            self._use(name).deny(kind)

    def fell_back(self, tool: str) -> None:
        """Note that a fallback answered a call; the failure or refusal before it is noted separately."""
        name = short_key(tool)
        with self._lock:
            self._use(name).fallbacks += 1

    def recent(self, n: int) -> list[ExecutionRecord]:
        """The last *n* executions, newest first."""
        checks.whole("n", n, least=0)
        n = min(n, self.max_history)
        with self._lock:  # a list can be copied while it grows, but not while it shrinks
            notes = self.journal[-_NOTE * n :] if n else []
        ahead = self._clock.time() - self._clock.monotonic()
        return [
            ExecutionRecord(tool, ExecutionStatus.SUCCESS, max(0.0, duration), ended + ahead)
            if isinstance(tool, str)
            else tool
            for tool, ended, duration in zip(notes[-3::-3], notes[-2::-3], notes[-1::-3], strict=True)
        ]

    def stats(self, tool: str | None = None) -> ExecutionStats:
        """The statistics of *tool*, or of all tools; zeros where nothing happened."""
        if tool is not None:
            return self._copy(tool).summary()
        whole = ToolStats("")
        self._gather(whole.merge)
        return whole.summary()

    def breakdown(self, tool: str, bounds: Sequence[float]) -> Breakdown:
        """Return all counts of *tool*, its durations by the rising *bounds*, in seconds."""
        whole = self._copy(tool)
        return Breakdown(
            whole.summary(), whole.histogram.spread(bounds), dict(whole.errors), dict(whole.refusals),
            whole.fallbacks, whole.era,
        )  # fmt: skip

    def mean_duration(self, tool: str) -> float | None:
        """The mean duration of *tool*, or None where it has not run yet."""
        return self.stats(tool).mean

    def tools(self) -> list[str]:
        """The names of the tools that have statistics of their own, sorted."""
        with self._lock:
            self._file()
            names = list(self._tools)
        return sorted(names)

    def clear(self) -> None:
        """Forget history and statistics."""
        with self._lock:
            self._era += 1
            self._tools = OrderedDict()
            self._evicted = ToolStats("")
            self._filed = 0
            self.refusals.clear()
            self.journal.clear()

    def to_dict(self) -> dict[str, object]:
        """Return the history and all statistics as plain data, for JSON."""
        history = self.recent(self.max_history)[::-1]
        evicted, *tools = self._gather(Entry.of)
        dump = _Dump(1, self.max_history, self.max_tools, history, tools, evicted)
        data: dict[str, object] = msgspec.to_builtins(dump, str_keys=True)
        return data

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, object],
        *,
        max_history: int | None = None,
        max_tools: int | None = None,
        clock: Clock | None = None,
    ) -> ExecutionTracker:
        """A tracker as `to_dict` wrote it, within its own bounds unless others are given."""
        try:
            dump = msgspec.convert(data, _Dump, str_keys=True)
        except (msgspec.ValidationError, UnicodeError) as error:
            raise ConfigError(f"not the data of a tracker: {error}") from None
        tracker = cls(
            dump.max_history if max_history is None else max_history,
            max_tools=dump.max_tools if max_tools is None else max_tools,
            clock=clock,
        )
        ahead = tracker._clock.time() - tracker._clock.monotonic()
        for record in dump.history[-tracker.max_history :] if tracker.max_history else ():
            tracker._write(msgspec.structs.replace(record, tool=short_key(record.tool)), record.at - ahead)
        dump.evicted.add_to(tracker._evicted)
        for entry in dump.tools:
            entry.add_to(tracker._of(short_key(entry.tool)))
        return tracker

    def counts(self, tool: str) -> tuple[int, int]:
        """How many calls of *tool* there were, and how many of them came as notes in the journal."""
        name = short_key(tool)
        with self._lock:
            self._file()
            stats = self._tools.get(name)
            return (0, 0) if stats is None else (stats.total(), stats.noted)

    def file(self) -> None:
        """File what has gathered in the journal."""
        with self._lock:
            self._file()

    def after_fork(self) -> None:
        """Reset in a forked child: a thread of the parent may have held the lock, and the counts are the parent's."""
        self._lock = threading.Lock()
        self.clear()

    def _file(self) -> None:
        """Count the new notes in the journal, and drop those that are too old; the caller holds the lock."""
        journal, start, end = self.journal, self._filed, len(self.journal)
        tools, durations = journal[start:end:_NOTE], journal[start + 2 : end : _NOTE]
        if tools:
            if isinstance(tools[0], str) and tools.count(tools[0]) == len(tools):
                self._of(tools[0]).succeed(durations)
            else:
                notes: defaultdict[str, list[float]] = defaultdict(list)  # the most recently used first
                for tool, duration in zip(reversed(tools), reversed(durations), strict=True):
                    if isinstance(tool, str):
                        notes[tool].append(duration)
                for tool in reversed(notes):
                    self._of(tool).succeed(notes[tool])
        if end >= self.journal_is_full:  # not earlier, since deleting moves all that stays
            old = end - _NOTE * self.max_history
            del journal[:old]
            end -= old
        self._filed = end
        if self.refusals:
            number = len(self.refusals)
            for tool, times in Counter(self.refusals[:number]).items():
                self._of(tool).deny("CircuitOpen", times)
            del self.refusals[:number]

    def _write(self, record: ExecutionRecord, ended: float) -> None:
        """Add a record that is counted already; the caller holds the lock."""
        self.journal.extend((record, ended, 0.0))
        if len(self.journal) >= self.journal_is_full:
            self._file()

    def _use(self, name: str) -> ToolStats:
        """Like `_of`, but before a tool is evicted, file the journal: it says which tools are in use."""
        if len(self._tools) >= self.max_tools and name not in self._tools:
            self._file()
        return self._of(name)

    def _of(self, name: str) -> ToolStats:
        """Return the statistics of *name*, now the most recently used tool; the caller holds the lock."""
        if (stats := self._tools.get(name)) is None:
            if len(self._tools) >= self.max_tools:
                _, oldest = self._tools.popitem(last=False)
                self._evicted.merge(oldest)
                self._era += 1
            stats = self._tools[name] = ToolStats(name, self._era)
        else:
            self._tools.move_to_end(name)
        return stats

    def _copy(self, tool: str) -> ToolStats:
        """Return a copy of the statistics of *tool*, for work that is too long to do under the lock."""
        name = short_key(tool)
        with self._lock:
            self._file()
            if (stats := self._tools.get(name)) is None:
                return ToolStats(name)
            whole = ToolStats(name, stats.era)
            whole.merge(stats)
        return whole

    def _gather(self, read: Callable[[ToolStats], _T]) -> list[_T]:
        """Return what *read* gives for the evicted tools as one, then for each tool; the lock is held briefly for each.

        A tool evicted meanwhile is still read by itself, and was not among the evicted when these were read: all calls
        count once.
        """
        with self._lock:
            self._file()
            tools = list(self._tools.values())
            result = [read(self._evicted)]
        for stats in tools:
            with self._lock:
                result.append(read(stats))
        return result


class _Dump(msgspec.Struct):
    """A tracker as plain data: history oldest first, tools least recently used first."""

    version: Literal[1]
    max_history: Annotated[int, msgspec.Meta(ge=0)]
    max_tools: Annotated[int, msgspec.Meta(ge=1)]
    history: list[ExecutionRecord]
    tools: list[Entry]
    evicted: Entry


# Not used: it makes msgspec inspect the types now, which threads that call `from_dict` at once must not do together.
_DECODER: Final = msgspec.json.Decoder(_Dump)


def _member(kind: type[_Member], name: str, value: str) -> _Member:
    """Return *value* as a member of *kind*; its plain text is accepted, too."""
    if isinstance(value, kind):
        return value
    checks.choice(name, value, list(kind))
    return kind(value)
