"""What happened, in bounded memory: the last executions, and lifetime statistics per tool and in all.

The hot path adds to a journal without a lock; it is filed when somebody reads, or when enough has gathered. Only
executions that really took place and ran to an end count in mean and percentiles: cached, cancelled and refused calls
are counted apart.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from holdfast import checks
from holdfast.category import ErrorCategory
from holdfast.clock import Clock
from holdfast.errors import ConfigError
from holdfast.guards.names import short_key
from holdfast.tracking.histogram import LAST_BUCKET, LONGEST, Histogram

BATCH: Final = 512  # notes that gather in the journal before they are filed
_NOTE: Final = 3  # items of the journal that make a note

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # what a float can hold
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
_T = TypeVar("_T")
_Member = TypeVar("_Member", bound=StrEnum)

_COUNTERS: Final = ("successful", "failed", "timed_out", "cancelled", "cached_hits", "denied")


class ExecutionStatus(StrEnum):
    """How an execution ended."""

    SUCCESS = "success"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


class ExecutionRecord(msgspec.Struct, frozen=True):
    """One execution. *at* is the wall time of its end; *category* that of its failure."""

    tool: str
    status: ExecutionStatus
    duration: _Seconds
    at: Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
    was_cached: bool = False
    attempts: Annotated[int, msgspec.Meta(ge=1)] = 1
    category: ErrorCategory | None = None


class ExecutionStats(msgspec.Struct, frozen=True):
    """Lifetime statistics: the four statuses add up to *total*; *denied* calls are not in it.

    *total_duration*, *mean* and the percentiles (nearest rank, at most 1 % off) are of executions that really took
    place and were not cancelled; without one, *mean* and percentiles are None.
    """

    total: int
    successful: int
    failed: int
    timed_out: int
    cancelled: int
    cached_hits: int
    denied: int
    total_duration: float
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


class Breakdown(NamedTuple):
    """Executions up to each of some bounds, and beyond; failures by category; refusals by the name of the error."""

    spread: list[int]
    errors: dict[str, int]
    refusals: dict[str, int]


class ExecutionTracker:
    """The last *max_history* executions (0: none) and statistics of up to *max_tools* tools; safe to share by threads.

    Tools beyond *max_tools* push out the one least recently used; its calls stay in the statistics in all.
    """

    def __init__(self, max_history: int = 1000, *, max_tools: int = 10_000, clock: Clock | None = None) -> None:
        checks.whole("max_history", max_history, least=0)
        checks.whole("max_tools", max_tools)
        self.max_history = max_history
        self.max_tools = max_tools
        # In order of arrival, three items each: a tool, the monotonic time and the duration of a clean success that is
        # yet to be filed; or a record, its time and 0.0. One `extend` adds all three, which the interpreter does not
        # split. What has been filed stays as history. A success's wall time is worked out on reading: a wall clock set
        # back or forth since then moves it, which is the price of asking one clock less.
        self.journal: list[Any] = []
        self.refusals: list[str] = []  # the tools of refused calls that are yet to be counted
        self.journal_is_full = _NOTE * (max_history + BATCH)
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

    def recent(self, n: int) -> list[ExecutionRecord]:
        """The last *n* executions, newest first."""
        checks.whole("n", n, least=0)
        n = min(n, self.max_history)
        with self._lock:  # a list that grows can be copied, one that shrinks meanwhile cannot
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
        whole = ToolStats("")
        if tool is None:
            self._gather(whole.merge)
        else:
            name = short_key(tool)
            with self._lock:
                self._file()
                if (stats := self._tools.get(name)) is not None:
                    whole.merge(stats)
        return whole.summary()

    def breakdown(self, tool: str, bounds: Sequence[float]) -> Breakdown:
        """The durations of *tool* by the rising *bounds*, in seconds, and what went wrong."""
        name = short_key(tool)
        with self._lock:
            self._file()
            stats = self._tools.get(name, ToolStats(""))
            return Breakdown(stats.histogram.spread(bounds), dict(stats.errors), dict(stats.refusals))

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
            self._tools = OrderedDict()
            self._evicted = ToolStats("")
            self._filed = 0
            self.refusals.clear()
            self.journal.clear()

    def to_dict(self) -> dict[str, object]:
        """All of it as plain data, for JSON."""
        history = self.recent(self.max_history)[::-1]
        evicted, *tools = self._gather(_Entry.of)
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
        except msgspec.ValidationError as error:
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
        """In a forked child: whoever held the lock is a thread of the parent."""
        self._lock = threading.Lock()

    def _file(self) -> None:
        """Count what is new in the journal, and let go of what is too old; the lock is held."""
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
        if end >= self.journal_is_full:  # not before, since all that stays has to be moved
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
        """Add a record that is counted already; the lock is held."""
        self.journal.extend((record, ended, 0.0))
        if len(self.journal) >= self.journal_is_full:
            self._file()

    def _use(self, name: str) -> ToolStats:
        """As `_of`; before a tool has to go, the journal says which are in use."""
        if len(self._tools) >= self.max_tools and name not in self._tools:
            self._file()
        return self._of(name)

    def _of(self, name: str) -> ToolStats:
        """That of *name*, now the most recently used; the lock is held."""
        if (stats := self._tools.get(name)) is None:
            if len(self._tools) >= self.max_tools:
                _, oldest = self._tools.popitem(last=False)
                self._evicted.merge(oldest)
            stats = self._tools[name] = ToolStats(name)
        else:
            self._tools.move_to_end(name)
        return stats

    def _gather(self, read: Callable[[ToolStats], _T]) -> list[_T]:
        """What *read* gives for the evicted, then for each tool; the lock is taken anew for each, to be held briefly.

        One evicted meanwhile is read as it was, and what it left to the evicted was not yet there: all count once.
        """
        with self._lock:
            self._file()
            tools = list(self._tools.values())
            result = [read(self._evicted)]
        for stats in tools:
            with self._lock:
                result.append(read(stats))
        return result


class ToolStats:
    """The statistics of one tool; *noted* is how many of its calls came as notes. Its tracker locks."""

    __slots__ = (*_COUNTERS, "errors", "histogram", "name", "noted", "refusals")

    def __init__(self, name: str) -> None:
        self.name = name
        self.noted = 0
        self.successful = 0
        self.failed = 0
        self.timed_out = 0
        self.cancelled = 0
        self.cached_hits = 0
        self.denied = 0
        self.errors: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.histogram = Histogram()

    def succeed(self, durations: list[float]) -> None:
        """Count clean successes."""
        self.noted += len(durations)
        self.successful += len(durations)
        self.histogram.add(durations)

    def deny(self, kind: str, times: int = 1) -> None:
        """Count refusals."""
        self.denied += times
        self.refusals[kind] += times

    def file(
        self, status: ExecutionStatus, duration: float, was_cached: bool, category: ErrorCategory | None = None
    ) -> None:
        """Count one execution."""
        if category is not None and status in (ExecutionStatus.FAILED, ExecutionStatus.TIMED_OUT):
            self.errors[str(category)] += 1
        if status is ExecutionStatus.SUCCESS:
            self.successful += 1
        elif status is ExecutionStatus.FAILED:
            self.failed += 1
        elif status is ExecutionStatus.TIMED_OUT:
            self.timed_out += 1
        else:
            self.cancelled += 1
        if was_cached:
            self.cached_hits += 1
        elif status is not ExecutionStatus.CANCELLED:
            self.histogram.add_one(duration)

    def merge(self, other: ToolStats) -> None:
        """Add all that *other* has filed."""
        self.add(other.counters(), other.histogram)
        self.errors.update(other.errors)
        self.refusals.update(other.refusals)

    def add(self, counters: Mapping[str, int], histogram: Histogram) -> None:
        """Add to each counter and to the histogram."""
        for counter, n in counters.items():
            setattr(self, counter, getattr(self, counter) + n)
        self.histogram.merge(histogram)

    def counters(self) -> dict[str, int]:
        """The counters that were filed, by name."""
        return {counter: getattr(self, counter) for counter in _COUNTERS}

    def summary(self) -> ExecutionStats:
        """What was filed, as a caller sees it."""
        p50, p95, p99 = self.histogram.percentiles(50, 95, 99)
        return ExecutionStats(
            total=self.total(),
            **self.counters(),
            total_duration=self.histogram.total,
            mean=self.histogram.mean(),
            p50=p50,
            p95=p95,
            p99=p99,
        )

    def total(self) -> int:
        """How many calls there were."""
        return self.successful + self.failed + self.timed_out + self.cancelled


class _Entry(msgspec.Struct):
    """The statistics of one tool as plain data."""

    tool: str
    successful: _Count
    failed: _Count
    timed_out: _Count
    cancelled: _Count
    cached_hits: _Count
    denied: _Count
    total_duration: _Seconds
    histogram: dict[Annotated[int, msgspec.Meta(ge=0, le=LAST_BUCKET)], _Count]
    errors: dict[str, _Count] = {}
    refusals: dict[str, _Count] = {}

    def __post_init__(self) -> None:
        executed, ended = sum(self.histogram.values()), self.successful + self.failed + self.timed_out
        if executed > ended or executed + self.cached_hits > ended + self.cancelled:
            raise ValueError("its histogram and its cached_hits hold more than its calls")
        if self.total_duration > executed * LONGEST:
            raise ValueError("its total_duration is too long for its histogram")

    @classmethod
    def of(cls, stats: ToolStats) -> _Entry:
        histogram = stats.histogram
        histogram.fold()
        return cls(
            tool=stats.name, **stats.counters(), total_duration=histogram.total, histogram=dict(histogram.buckets),
            errors=dict(stats.errors), refusals=dict(stats.refusals),
        )  # fmt: skip

    def add_to(self, stats: ToolStats) -> None:
        counters = {counter: getattr(self, counter) for counter in _COUNTERS}
        stats.add(counters, Histogram(self.histogram, self.total_duration))
        stats.errors.update(self.errors)
        stats.refusals.update(self.refusals)


class _Dump(msgspec.Struct):
    """A tracker as plain data: history oldest first, tools least recently used first."""

    version: Literal[1]
    max_history: Annotated[int, msgspec.Meta(ge=0)]
    max_tools: Annotated[int, msgspec.Meta(ge=1)]
    history: list[ExecutionRecord]
    tools: list[_Entry]
    evicted: _Entry


# Not used: it makes msgspec look at the types now, which threads that come to `from_dict` together must not do at once.
_DECODER: Final = msgspec.json.Decoder(_Dump)


def _member(kind: type[_Member], name: str, value: str) -> _Member:
    """*value* as a member of *kind*; its plain text will do."""
    if isinstance(value, kind):
        return value
    checks.choice(name, value, list(kind))
    return kind(value)
