"""The statistics of one tool: counters, a histogram, failures by category, refusals by kind; also as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from holdfast.category import ErrorCategory
from holdfast.tracking.histogram import LAST_BUCKET, LONGEST, Histogram
from holdfast.tracking.records import ExecutionStats, ExecutionStatus, Seconds

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # every whole number up to this fits a float exactly

COUNTERS: Final = ("successful", "failed", "timed_out", "cancelled", "cached_hits", "denied")


class ToolStats:
    """The statistics of one tool in its *era*; *noted* of its calls came as notes. The tracker holds the lock."""

    __slots__ = (*COUNTERS, "era", "errors", "fallbacks", "histogram", "name", "noted", "refusals")

    def __init__(self, name: str, era: int = 0) -> None:
        self.name = name
        self.era = era
        self.noted = 0
        self.successful = 0
        self.failed = 0
        self.timed_out = 0
        self.cancelled = 0
        self.cached_hits = 0
        self.denied = 0
        self.fallbacks = 0
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
        self.fallbacks += other.fallbacks
        self.errors.update(other.errors)
        self.refusals.update(other.refusals)

    def add(self, counters: Mapping[str, int], histogram: Histogram) -> None:
        """Add to each counter and to the histogram."""
        for counter, n in counters.items():
            setattr(self, counter, getattr(self, counter) + n)
        self.histogram.merge(histogram)

    def counters(self) -> dict[str, int]:
        """Return the counters by name."""
        return {counter: getattr(self, counter) for counter in COUNTERS}

    def summary(self) -> ExecutionStats:
        """Return the statistics as a caller sees them."""
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


class Entry(msgspec.Struct):
    """The statistics of one tool as plain data."""

    tool: str
    successful: Count
    failed: Count
    timed_out: Count
    cancelled: Count
    cached_hits: Count
    denied: Count
    total_duration: Seconds
    histogram: dict[Annotated[int, msgspec.Meta(ge=0, le=LAST_BUCKET)], Count]
    errors: dict[str, Count] = {}
    refusals: dict[str, Count] = {}
    fallbacks: Count = 0

    def __post_init__(self) -> None:
        executed, ended = sum(self.histogram.values()), self.successful + self.failed + self.timed_out
        if executed > ended or executed + self.cached_hits > ended + self.cancelled:
            raise ValueError("its histogram and its cached_hits hold more than its calls")
        if self.total_duration > executed * LONGEST:
            raise ValueError("its total_duration is too long for its histogram")

    @classmethod
    def of(cls, stats: ToolStats) -> Entry:
        histogram = stats.histogram
        histogram.fold()
        return cls(
            tool=stats.name, **stats.counters(), total_duration=histogram.total, histogram=dict(histogram.buckets),
            errors=dict(stats.errors), refusals=dict(stats.refusals), fallbacks=stats.fallbacks,
        )  # fmt: skip

    def add_to(self, stats: ToolStats) -> None:
        counters = {counter: getattr(self, counter) for counter in COUNTERS}
        stats.add(counters, Histogram(self.histogram, self.total_duration))
        stats.fallbacks += self.fallbacks
        stats.errors.update(self.errors)
        stats.refusals.update(self.refusals)
