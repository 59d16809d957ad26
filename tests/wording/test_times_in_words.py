"""Times of day in words, whatever the time zone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from holdfast.wording import moment, time_of_day

Zone = Callable[[str], None]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Zone]:
    """Sets the time zone of this process, until the test is over."""

    def set_zone(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("UTC", "2026-10-25 00:30:00"),
        ("Nepal-5:45", "2026-10-25 06:15:00"),
        ("GMT0BST,M3.5.0/1,M10.5.0", "2026-10-25 01:30:00"),  # London, half an hour before the clocks go back
        ("far+24", "2026-10-24 00:30:00"),  # further than Python's own zones go
        ("no such zone", "2026-10-25 00:30:00"),
    ],
)
def test_a_time_is_shown_in_the_zone_of_the_process(zone: Zone, name: str, shown: str) -> None:
    zone(name)

    assert moment(1_792_888_200_007) == shown
    assert time_of_day(1_792_888_200_007) == f"{shown[11:]}.007"


@pytest.mark.parametrize(("at_ms", "shown"), [(-1, "1970-01-01 00:00:00"), (10**30, "9987-04-02 17:46:40")])
def test_a_time_out_of_all_bounds_is_shown_as_the_first_or_the_last(zone: Zone, at_ms: int, shown: str) -> None:
    zone("UTC")

    assert moment(at_ms) == shown
