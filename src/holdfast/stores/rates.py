"""Calls a second, from what processes show of their calls at two moments: theirs are counts, the rate is the reader's.

Counted process by process, so one that comes with a past, or goes, is no burst of calls.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from holdfast.stores.entries import ToolLine

WINDOW = 5.0  # seconds over which calls are averaged
GAP = 1.0  # seconds between two samples, at least: processes show their calls no oftener


class Rates:
    """Told of the lines as they are read; says how many calls a second there were. Safe to share by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[tuple[str, str], int] = {}  # calls by process and tool, when last looked at
        self._made: dict[str, int] = {}  # calls of a tool that were made while we looked
        self._samples: dict[str, deque[tuple[float, int]]] = {}

    def note(self, lines: Iterable[ToolLine], now: float) -> None:
        """Fill in `calls_per_second` of all *lines* there are, read at *now*; None until there was a second look."""
        with self._lock:
            counted, made, samples = {}, {}, {}
            for line in lines:
                total = self._made.get(line.name, 0)
                for each in line.processes:
                    key = (each.process, line.name)
                    counted[key] = each.tool.calls
                    total += max(0, each.tool.calls - self._counted.get(key, each.tool.calls))
                made[line.name] = total
                kept = samples[line.name] = self._samples.get(line.name) or deque(maxlen=64)
                line.calls_per_second = _add(kept, now, total)
            self._counted, self._made, self._samples = counted, made, samples

    def fill(self, line: ToolLine) -> None:
        """Fill in what is known of one line that was read alone."""
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
