"""Durations in bounded memory: a histogram with 128 buckets an octave, so that a percentile is at most 0.4 % off.

A bucket is the upper half of the duration as a 32-bit float: sign, exponent, seven bits of mantissa. Filing many at
once is one pass in C. A duration below a nanosecond reads as 0, one above `LONGEST` as about that.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from struct import pack, unpack
from typing import Final

LONGEST: Final = 2.0**20  # seconds: twelve days
LAST_BUCKET: Final = (127 + 20) << 7  # the bucket of LONGEST
_FIRST_BUCKET: Final = (127 - 30) << 7  # the bucket of 2**-30 s, about a nanosecond; shorter ones go to bucket 0
_BUCKETS: Final = LAST_BUCKET - _FIRST_BUCKET + 2
_SIGN: Final = 1 << 15
_UPPER: Final = 1 if sys.byteorder == "little" else 0  # index of a float's upper half


class Histogram:
    """How many durations there were, their sum, and how they are spread. It has no lock: its owner holds one."""

    __slots__ = ("buckets", "count", "total")

    def __init__(self, buckets: Mapping[int, int] | None = None, total: float = 0.0) -> None:
        self.buckets = Counter(buckets)
        self.count = self.buckets.total()
        self.total = total

    def add(self, durations: Sequence[float]) -> None:
        """File *durations* that the caller measured; impossible ones, negative or NaN, count as 0."""
        if not durations:
            return
        total = sum(durations)
        if not 0.0 <= total <= LONGEST * len(durations):  # also where one is infinite or NaN
            durations = [min(max(0.0, duration), LONGEST) for duration in durations]
            total = sum(durations)
        self.buckets.update(array("H", pack(f"={len(durations)}f", *durations))[_UPPER::2])
        self.count += len(durations)
        self.total += total
        self._bound()

    def add_one(self, duration: float) -> None:
        """File one *duration*, as `add` would."""
        duration = min(max(0.0, duration), LONGEST)
        self.buckets[_bucket(duration)] += 1
        self.count += 1
        self.total += duration
        self._bound()

    def merge(self, other: Histogram) -> None:
        """Add all durations of *other*."""
        self.buckets.update(other.buckets)
        self.count += other.count
        self.total += other.total
        self._bound()

    def mean(self) -> float | None:
        """Return the mean duration, or None if there are no durations."""
        return self.total / self.count if self.count else None

    def percentiles(self, *percents: int) -> list[float | None]:
        """The nearest-rank percentiles: of n durations in order, the one at place ceil(n * percent / 100)."""
        if not self.count:
            return [None] * len(percents)
        self.fold()
        buckets = sorted(self.buckets)
        reached = list(accumulate(self.buckets[bucket] for bucket in buckets))
        return [_middle(buckets[bisect_left(reached, -(-self.count * percent // 100))]) for percent in percents]

    def spread(self, bounds: Sequence[float]) -> list[int]:
        """Return how many durations there are up to each of the rising *bounds*, and beyond; each is counted once."""
        counts = [0] * (len(bounds) + 1)
        self.fold()
        for bucket, count in self.buckets.items():
            counts[bisect_left(bounds, _middle(bucket))] += count
        return counts

    def fold(self) -> None:
        """Move counts outside the range into bucket 0 and the last bucket."""
        buckets = self.buckets
        for bucket in [bucket for bucket in buckets if bucket and not _FIRST_BUCKET <= bucket <= LAST_BUCKET]:
            buckets[LAST_BUCKET if LAST_BUCKET < bucket < _SIGN else 0] += buckets.pop(bucket)

    def _bound(self) -> None:
        if len(self.buckets) > _BUCKETS:
            self.fold()


def _bucket(duration: float) -> int:
    bits: int = unpack("=I", pack("=f", duration))[0]
    return bits >> 16


def _middle(bucket: int) -> float:
    if not bucket:
        return 0.0
    middle: float = unpack("=f", pack("=I", bucket << 16 | 1 << 15))[0]
    return middle
