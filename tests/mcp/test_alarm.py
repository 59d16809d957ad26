"""Time limits of many by one timer: who is late is told, who has left is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.clock import Timer
from holdfast.mcp.alarm import MOMENT, Alarm
from holdfast.testing import ManualClock


class Told:
    """Notes when it was told, and may do something then."""

    def __init__(self, clock: ManualClock) -> None:
        self.at: list[float] = []
        self._begun = clock.monotonic()
        self._clock = clock

    def expire(self) -> None:
        self.at.append(self._clock.monotonic() - self._begun)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_each_is_told_when_its_own_time_is_up_in_whatever_order_they_entered(clock: ManualClock) -> None:
    alarm, now = Alarm(clock), clock.monotonic()
    waiting = {seconds: Told(clock) for seconds in (3.0, 1.0, 2.0)}
    for seconds, told in waiting.items():
        alarm.enter(told, now + seconds)

    for _ in range(8):
        clock.advance(0.5)

    assert {seconds: told.at for seconds, told in waiting.items()} == {3.0: [3.0], 1.0: [1.0], 2.0: [2.0]}


def test_who_has_left_is_not_told_and_takes_nobody_along(clock: ManualClock) -> None:
    alarm, now = Alarm(clock), clock.monotonic()
    gone, there = Told(clock), Told(clock)
    alarm.enter(gone, now + 1.0)
    alarm.enter(there, now + 2.0)

    alarm.leave(gone)
    for _ in range(4):
        clock.advance(0.5)

    assert (gone.at, there.at) == ([], [2.0])


def test_who_enters_again_has_the_new_time(clock: ManualClock) -> None:
    alarm, now = Alarm(clock), clock.monotonic()
    told = Told(clock)
    alarm.enter(told, now + 1.0)

    alarm.enter(told, now + 5.0)
    for _ in range(6):
        clock.advance(1.0)

    assert told.at == [5.0]


def test_who_enters_while_others_are_told_is_not_told_with_them(clock: ManualClock) -> None:
    alarm, now = Alarm(clock), clock.monotonic()
    again = Told(clock)

    class Enters(Told):
        def expire(self) -> None:
            super().expire()
            alarm.enter(again, now + 2.0)

    first = Enters(clock)
    alarm.enter(first, now + 1.0)
    for _ in range(4):
        clock.advance(0.5)

    assert (first.at, again.at) == ([1.0], [2.0])


def test_while_it_is_held_nobody_loses_time(clock: ManualClock) -> None:
    alarm, now = Alarm(clock), clock.monotonic()
    before, during = Told(clock), Told(clock)
    alarm.enter(before, now + 2.0)
    clock.advance(1.0)

    for held in (True, True):
        alarm.hold(held)
        clock.advance(10.0)
    alarm.enter(during, clock.monotonic() + 2.0)
    clock.advance(10.0)
    for held in (False, False):
        alarm.hold(held)
    for _ in range(6):
        clock.advance(0.5)

    assert (before.at, during.at) == ([32.0], [33.0])


class Sleeper(ManualClock):
    """The clock of a process that can be stopped: what is due meanwhile comes late."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.slept

    def call_at(self, when: float, fn: Callable[[], object]) -> Timer:
        return super().call_at(when - self.slept, fn)


def test_who_is_late_since_all_were_asleep_has_a_moment_to_leave() -> None:
    clock = Sleeper()
    alarm, now = Alarm(clock), clock.monotonic()
    heard, silent = Told(clock), Told(clock)
    alarm.enter(heard, now + 1.0)
    alarm.enter(silent, now + 2.0)

    clock.slept = 100.0
    clock.advance(1.0)
    alarm.leave(heard)
    clock.advance(2 * MOMENT)

    assert (heard.at, silent.at) == ([], [pytest.approx(101.0 + MOMENT)])


def test_a_closed_alarm_tells_nobody(clock: ManualClock) -> None:
    alarm = Alarm(clock)
    told = Told(clock)
    alarm.enter(told, clock.monotonic() + 1.0)

    alarm.close()
    clock.advance(2.0)

    assert told.at == []
