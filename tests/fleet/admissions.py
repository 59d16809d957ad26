"""What a server admitted under a rate, as it decided it and by its own clock; and whether the machine kept up with it.

Read from everything that the server says it does (MONITOR). Times are the script's: seconds since its epoch.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.fleet.script_client import EPOCH_US, Client

from holdfast.clock import SystemClock

LATE = 0.1  # seconds; a caller or a server that is that late was not run by the machine
APART = 0.005  # seconds by which two clocks may drift apart meanwhile
BEAT = 0.02  # seconds between two looks at the server


class Pulse(NamedTuple):
    """What the server's clock said, between two readings of ours."""

    asked: float
    answered: float
    said: float


class Watch:
    """Two connections to one server: the first is told everything, the second asks what time it is."""

    def __init__(self, monitor: Client, other: Client) -> None:
        self._monitor = monitor
        self._other = other
        self.pulses: list[Pulse] = []
        assert monitor.command("MONITOR") == b"OK"

    def wait(self, seconds: float) -> tuple[float, float]:
        """Wait so long by the server's clock; when it began and ended."""
        begun = now = self._beat()
        while now < begun + seconds:
            SystemClock.sleep(BEAT)
            now = self._beat()
        return begun, now

    def admitted(self, key: str, interval: float) -> list[float]:
        """When each call may begin that was admitted so far, for a bucket of one token.

        The bucket is full again one *interval* after that, and it is what the server keeps.
        """
        self._other.command("ECHO", "enough")
        written = re.compile(rb'"HSET" "%b" .*"full_at" "([^"]+)"' % re.escape(key.encode()))
        found = []
        while b'"ECHO" "enough"' not in (line := self._monitor.receive()):
            if match := written.search(line):
                found.append(float(match[1]) - interval)
        return found

    def by_the_server(self, ours: float) -> float:
        """What the server's clock said when ours said that, or a little more."""
        return ours + min(pulse.said - pulse.asked for pulse in self.pulses)

    def stalls(self, admitted: list[float], begun: list[float]) -> list[tuple[float, float]]:
        """From when to when the machine ran neither callers whose time had come, nor the server; all lists sorted."""
        found = list(zip(admitted, begun, strict=True))
        found += [(self.by_the_server(pulse.asked), self.by_the_server(pulse.answered)) for pulse in self.pulses]
        return [(first, last) for first, last in found if last - first > LATE]

    def _beat(self) -> float:
        asked = SystemClock.monotonic()
        seconds, micros = self._other.command("TIME")
        said = (int(seconds) * 1_000_000 + int(micros) - EPOCH_US) / 1e6
        self.pulses.append(Pulse(asked, SystemClock.monotonic(), said))
        return said


@contextmanager
def watched(url: str) -> Iterator[Watch]:
    """Watch the server at *url*."""
    with Client(url) as monitor, Client(url) as other:
        yield Watch(monitor, other)


def most_in_a_second(times: list[float]) -> int:
    """How many there are in the second that has most; *times* are sorted."""
    return max(bisect_left(times, at + 1.0) - index for index, at in enumerate(times))


def seconds_after(times: list[float], first: float, last: float) -> Iterator[tuple[float, int]]:
    """The seconds between *first* and *last* that may have fewest of *times*, and how many each has.

    They are the first one, and those that begin just after one of *times*.
    """
    for at in [first, *times]:
        if first <= at <= last - 1.0:
            yield at, bisect_right(times, at + 1.0) - bisect_right(times, at)


def meets(stalls: list[tuple[float, float]], first: float, last: float) -> bool:
    """Whether one of *stalls* was between *first* and *last*."""
    return any(begun < last and ended > first for begun, ended in stalls)
