"""Calls a second are what was made while somebody looked, whatever processes come and go."""

from __future__ import annotations

from holdfast.stores.entries import ToolEntry, ToolInProcess, ToolLine
from holdfast.stores.rates import Rates


def line(**calls: int) -> ToolLine:
    """A tool with so many calls in each process."""
    processes = [
        ToolInProcess(
            process=process, host="h", pid=1, kind="library", process_name="p", at_ms=0, pending=False,
            tool=ToolEntry(name="t", calls=count),
        )
        for process, count in calls.items()
    ]  # fmt: skip
    return ToolLine(name="t", state="closed", processes=processes)


def rate(rates: Rates, now: float, **calls: int) -> float | None:
    looked_at = line(**calls)
    rates.note([looked_at], now)
    return looked_at.calls_per_second


def test_nothing_is_known_at_the_first_look() -> None:
    assert rate(Rates(), 0.0, one=1000) is None


def test_calls_between_two_looks_count() -> None:
    rates = Rates()
    rate(rates, 0.0, one=1000)

    assert rate(rates, 2.0, one=1010) == 5.0


def test_looks_in_between_do_not_make_the_rate_jump() -> None:
    rates = Rates()
    rate(rates, 0.0, one=0)
    rate(rates, 2.0, one=10)

    assert rate(rates, 2.1, one=10) == 5.0
    assert rate(rates, 2.9, one=10) == 5.0


def test_a_tool_that_rests_comes_to_zero() -> None:
    rates = Rates()
    rate(rates, 0.0, one=0)
    rate(rates, 1.0, one=100)

    assert [rate(rates, 1.0 + second, one=100) for second in (1, 4, 5, 6)][-1] == 0.0


def test_a_rate_is_that_of_the_last_five_seconds() -> None:
    rates = Rates()
    rate(rates, 0.0, one=0)
    rate(rates, 1.0, one=10)

    assert rate(rates, 5.0, one=10) == 2.0
    assert rate(rates, 6.0, one=10) == 0.0
    assert rate(rates, 11.0, one=15) == 1.0


def test_a_process_that_counts_from_zero_again_takes_nothing_back() -> None:
    rates = Rates()
    rate(rates, 0.0, one=100)

    assert rate(rates, 1.0, one=0) == 0.0


def test_a_process_that_comes_with_a_past_is_no_burst() -> None:
    rates = Rates()
    rate(rates, 0.0, one=10)

    assert rate(rates, 1.0, one=10, two=1_000_000) == 0.0


def test_a_process_that_goes_takes_nothing_back() -> None:
    rates = Rates()
    rate(rates, 0.0, one=10, two=50)
    rate(rates, 1.0, one=10, two=60)

    assert rate(rates, 2.0, one=10) == 5.0


def test_a_tool_that_is_read_alone_has_the_rate_of_the_last_look() -> None:
    rates = Rates()
    rate(rates, 0.0, one=0)
    rate(rates, 1.0, one=7)
    alone, stranger = line(one=9), ToolLine(name="other", state="closed")

    rates.fill(alone)
    rates.fill(stranger)

    assert (alone.calls_per_second, stranger.calls_per_second) == (7.0, None)
