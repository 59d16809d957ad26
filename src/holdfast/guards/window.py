"""Counts of calls, failures and slow calls over a stretch of time, or over the last so many calls of it."""

from __future__ import annotations

from collections import deque

SLICES = 20  # a window forgets in steps of a twentieth


class Window:
    """What the last *seconds* (and at most the last *most* calls) held; not locked, its owner is."""

    __slots__ = ("calls", "failures", "slow", "width", "_most", "_runs", "_seconds")

    def __init__(self, seconds: float, most: int | None = None) -> None:
        self._most = most
        self.clear()
        self.configure(seconds, most)

    def configure(self, seconds: float, most: int | None) -> None:
        """Go on with what it holds, as far as that is not too old; where other calls are to be counted, anew."""
        if most != self._most:
            self.clear()
        self.width = seconds / SLICES
        self._seconds = seconds
        self._most = most

    def clear(self) -> None:
        """Forget everything."""
        self.calls = self.failures = self.slow = 0
        self._runs: deque[list[float]] = deque()  # [begun, calls, failures, slow], oldest first

    def add(self, now: float, calls: int, *, failures: int = 0, slow: int = 0) -> None:
        """Count *calls* that ended about *now*."""
        last = self._runs[-1] if self._runs else None
        if last is None or now - last[0] >= self.width or self._apart(last, failures, slow):
            self._runs.append([now, calls, failures, slow])
        else:
            last[1] += calls
            last[2] += failures
            last[3] += slow
        self.calls += calls
        self.failures += failures
        self.slow += slow
        self.forget(now)

    def forget(self, now: float) -> None:
        """Drop what is too old or one too many."""
        runs = self._runs
        while runs and runs[0][0] <= now - self._seconds:
            self._drop()
        while self._most is not None and self.calls > self._most:
            surplus = self.calls - self._most
            if runs[0][1] <= surplus:
                self._drop()
            else:  # only runs of plain successes hold more than one call here
                runs[0][1] -= surplus
                self.calls -= surplus

    def _apart(self, last: list[float], failures: int, slow: int) -> bool:
        """With a limit on calls, a call that is not a plain success is kept by itself, so that it leaves by itself."""
        return self._most is not None and bool(failures or slow or last[2] or last[3])

    def _drop(self) -> None:
        _, calls, failures, slow = self._runs.popleft()
        self.calls -= int(calls)
        self.failures -= int(failures)
        self.slow -= int(slow)
