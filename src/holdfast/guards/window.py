"""Counts of calls, failures and slow calls over a period of time, or over the last so many calls in it."""

from __future__ import annotations

from collections import deque

SLICES = 20  # a window forgets in steps of a twentieth


class Window:
    """The counts of the last *seconds*, at most of the last *most* calls. It has no lock: its owner holds one."""

    __slots__ = ("calls", "failures", "slow", "width", "_entries", "_most", "_seconds")

    def __init__(self, seconds: float, most: int | None = None) -> None:
        self._most = most
        self.clear()
        self.configure(seconds, most)

    def configure(self, seconds: float, most: int | None) -> None:
        """Apply new settings and keep the counts that are not too old; if *most* has changed, start from zero."""
        if most != self._most:
            self.clear()
        self.width = seconds / SLICES
        self._seconds = seconds
        self._most = most

    def clear(self) -> None:
        """Forget everything."""
        self.calls = self.failures = self.slow = 0
        self._entries: deque[list[float]] = deque()  # [begun, calls, failures, slow], oldest first

    def add(self, now: float, calls: int, *, failures: int = 0, slow: int = 0) -> None:
        """Count *calls* that ended about *now*."""
        last = self._entries[-1] if self._entries else None
        if last is None or now - last[0] >= self.width or self._apart(last, failures, slow):
            self._entries.append([now, calls, failures, slow])
        else:
            last[1] += calls
            last[2] += failures
            last[3] += slow
        self.calls += calls
        self.failures += failures
        self.slow += slow
        self.forget(now)

    def forget(self, now: float) -> None:
        """Drop the calls that are too old, and those beyond *most*."""
        entries = self._entries
        while entries and entries[0][0] <= now - self._seconds:
            self._drop()
        while self._most is not None and self.calls > self._most:
            surplus = self.calls - self._most
            if entries[0][1] <= surplus:
                self._drop()
            else:  # only entries of plain successes hold more than one call here
                entries[0][1] -= surplus
                self.calls -= surplus

    def _apart(self, last: list[float], failures: int, slow: int) -> bool:
        """With a limit on calls, a failed or slow call gets its own entry, so that it also leaves by itself."""
        return self._most is not None and bool(failures or slow or last[2] or last[3])

    def _drop(self) -> None:
        _, calls, failures, slow = self._entries.popleft()
        self.calls -= int(calls)
        self.failures -= int(failures)
        self.slow -= int(slow)
