"""Calls per second, computed by a reader from the counts of calls that processes show at two moments.

Counted process by process, so that one which appears with past calls, or disappears, does not look like a burst.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from holdfast.stores.entries import ToolLine

WINDOW = 5.0  # seconds over which calls are averaged
GAP = 1.0  # seconds between two samples, at least: processes do not show their calls more often


class Rates:
    """Is given the lines as they are read, and fills in how many calls per second there were. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[tuple[str, str], int] = {}  # calls by process and tool, at the last look
        self._made: dict[str, int] = {}  # calls by tool that were made since the first look
        self._samples: dict[str, deque[tuple[float, int]]] = {}

    def note(self, lines: Iterable[ToolLine], now: float) -> None:
        """Fill in `calls_per_second` of *lines*, all there are, read at *now*; None until there was a second look."""
        with self._lock:
            counted, made, samples = {}, {}, {}
            for line in lines:
                total = self._made.get(line.name, 0)
                for each in line.processes:
                    key = (each.process, line.name)
                    counted[key] = each.tool.calls
                    total += max(0, each.tool.calls - self._counted.get(key, each.tool.calls))
                made[line.name] = total
                kept = samples[line.name] = self._samples.get(line.name) or deque()
                line.calls_per_second = _add(kept, now, total)
            self._counted, self._made, self._samples = counted, made, samples

    def fill(self, line: ToolLine) -> None:
        """Fill in `calls_per_second` of one line that was read alone, as far as it is known."""
        with self._lock:
            kept = self._samples.get(line.name)
            line.calls_per_second = _rate(kept) if kept else None


def _add(kept: deque[tuple[float, int]], now: float, total: int) -> float | None:
    if not kept or now - kept[-1][0] >= GAP:
        kept.append((now, total))
        while len(kept) > 2 and kept[1][0] <= now - WINDOW:
            kept.popleft()
    return _rate(kept)


def _rate(kept: deque[tuple[float, int]]) -> float | None:
    (since, before), (now, total) = kept[0], kept[-1]
    return round((total - before) / (now - since), 2) if now > since else None
