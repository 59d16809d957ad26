"""What a tracker returns: one execution, and the statistics of many."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import msgspec

from holdfast.category import ErrorCategory

Seconds = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]


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
    duration: Seconds
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


class Breakdown(msgspec.Struct, frozen=True):
    """A tool at one instant: *spread* counts its executions up to each of some bounds, and beyond the last; *errors*
    counts failures by category, *refusals* by the name of the error.

    If *era* differs from the last one read, the counters began again from zero; it is 0 if nothing was counted.
    """

    stats: ExecutionStats
    spread: list[int]
    errors: dict[str, int]
    refusals: dict[str, int]
    fallbacks: int
    era: int
