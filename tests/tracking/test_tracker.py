"""The tracker: what counts where, what is bounded, and that nothing is lost between threads."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.category import ErrorCategory
from holdfast.clock import Clock
from holdfast.errors import ConfigError
from holdfast.testing import ManualClock
from holdfast.tracking.histogram import LAST_BUCKET, LONGEST, Histogram
from holdfast.tracking.records import ExecutionRecord, ExecutionStats, ExecutionStatus
from holdfast.tracking.tracker import BATCH, ExecutionTracker

SUCCESS, FAILED, TIMED_OUT, CANCELLED = ExecutionStatus
NOTHING = ExecutionStats(0, 0, 0, 0, 0, 0, 0, 0.0, None, None, None, None)
PERCENTS = (1, 50, 95, 99, 100)

Execution = tuple[str, ExecutionStatus, float, bool, int, ErrorCategory | None]

seconds = st.floats(min_value=2.0**-30, max_value=LONGEST)
executions = st.lists(
    st.tuples(
        st.sampled_from(["search", "fetch", "write", "x" * 300]),
        st.sampled_from(ExecutionStatus),
        st.just(0.0) | seconds,
        st.booleans(),
        st.integers(1, 5),
        st.none() | st.sampled_from(ErrorCategory),
    ),
    max_size=30,
)


@pytest.fixture
def tracker(clock: ManualClock) -> ExecutionTracker:
    return ExecutionTracker(clock=clock)


def note(tracker: ExecutionTracker, tool: str, duration: float = 0.1, *, ended: float = 0.0) -> None:
    """A clean success as the hot path notes it."""
    tracker.journal.extend((tool, ended, duration))
    if len(tracker.journal) >= tracker.journal_is_full:
        tracker.file()


def refuse(tracker: ExecutionTracker, tool: str) -> None:
    """A refusal as the hot path notes it."""
    tracker.refusals.append(tool)
    if len(tracker.refusals) >= BATCH:
        tracker.file()


# --- what counts where ---


def test_a_success_counts_in_the_statistics_of_its_tool_and_of_all(tracker: ExecutionTracker) -> None:
    tracker.record("search", SUCCESS, 2.0)
    tracker.record("fetch", SUCCESS, 4.0)

    assert tracker.stats("search").successful == 1
    assert tracker.stats("search").total_duration == 2.0
    assert tracker.stats().successful == 2
    assert tracker.stats().total_duration == 6.0


@pytest.mark.parametrize(
    ("status", "counter"),
    [(SUCCESS, "successful"), (FAILED, "failed"), (TIMED_OUT, "timed_out"), (CANCELLED, "cancelled")],
)
@pytest.mark.parametrize("was_cached", [False, True])
def test_each_status_has_its_counter(
    tracker: ExecutionTracker, status: ExecutionStatus, counter: str, was_cached: bool
) -> None:
    tracker.record("search", status, 1.0, was_cached)

    stats = tracker.stats("search")
    counters = {name: getattr(stats, name) for name in ("successful", "failed", "timed_out", "cancelled")}
    assert counters == {**dict.fromkeys(counters, 0), counter: 1}
    assert stats.total == 1


@given(executions)
def test_the_four_statuses_always_add_up_to_the_total(history: list[Execution]) -> None:
    tracker = filled(history)

    for tool in (None, *tracker.tools()):
        stats = tracker.stats(tool)
        assert stats.total == stats.successful + stats.failed + stats.timed_out + stats.cancelled
    assert tracker.stats().total == len(history)
    assert sum(tracker.stats(tool).total for tool in tracker.tools()) == len(history)


@pytest.mark.parametrize("status", [SUCCESS, FAILED, TIMED_OUT])
def test_an_execution_that_ran_to_an_end_counts_in_mean_and_percentiles(
    tracker: ExecutionTracker, status: ExecutionStatus
) -> None:
    tracker.record("search", status, 3.0)

    stats = tracker.stats("search")
    assert (stats.mean, stats.total_duration) == (3.0, 3.0)
    assert stats.p50 == stats.p95 == stats.p99 == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize("status", ExecutionStatus)
def test_a_cached_hit_counts_in_the_total_but_not_in_mean_and_percentiles(
    tracker: ExecutionTracker, status: ExecutionStatus
) -> None:
    tracker.record("search", SUCCESS, 2.0)
    before = tracker.stats("search")

    tracker.record("search", status, 0.001, was_cached=True)

    after = tracker.stats("search")
    assert (after.total, after.cached_hits) == (2, 1)
    assert timing(after) == timing(before)


def test_a_cancelled_call_counts_in_the_total_but_not_in_mean_and_percentiles(tracker: ExecutionTracker) -> None:
    tracker.record("search", SUCCESS, 2.0)
    before = tracker.stats("search")

    tracker.record("search", CANCELLED, 60.0)

    after = tracker.stats("search")
    assert (after.total, after.cancelled) == (2, 1)
    assert timing(after) == timing(before)


def test_a_refused_call_counts_as_denied_and_nowhere_else(tracker: ExecutionTracker) -> None:
    tracker.record("search", SUCCESS, 2.0)
    before = tracker.stats("search")

    tracker.denied("search")

    after = tracker.stats("search")
    assert after.denied == 1
    assert after.total == before.total
    assert timing(after) == timing(before)
    assert len(tracker.recent(10)) == 1


def test_without_a_real_execution_there_is_no_mean_and_no_percentile(tracker: ExecutionTracker) -> None:
    tracker.record("search", SUCCESS, 0.1, was_cached=True)
    tracker.record("search", CANCELLED, 0.1)
    tracker.denied("search")

    stats = tracker.stats("search")

    assert timing(stats) == (0.0, None, None, None, None)
    assert tracker.mean_duration("search") is None


def test_a_tool_never_seen_has_zeros_and_gets_no_entry(tracker: ExecutionTracker) -> None:
    assert tracker.stats("search") == NOTHING
    assert tracker.mean_duration("search") is None
    assert tracker.tools() == []


def test_the_mean_is_of_the_tool_asked_for(tracker: ExecutionTracker) -> None:
    tracker.record("search", SUCCESS, 1.0)
    tracker.record("search", FAILED, 3.0)
    tracker.record("fetch", SUCCESS, 100.0)

    assert tracker.mean_duration("search") == 2.0


def test_tools_are_sorted_by_name(tracker: ExecutionTracker) -> None:
    for name in ("write", "fetch", "search"):
        tracker.record(name, SUCCESS, 0.1)

    assert tracker.tools() == ["fetch", "search", "write"]


def test_statistics_outlive_the_history(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_history=3, clock=clock)
    for _ in range(10):
        tracker.record("search", SUCCESS, 0.1)

    assert len(tracker.recent(100)) == 3
    assert tracker.stats("search").total == 10


# --- what is refused ---


@pytest.mark.parametrize("duration", [-0.1, math.nan, math.inf, -math.inf, "1", None, True])
def test_a_duration_that_cannot_be_is_a_config_error_and_counts_nowhere(
    tracker: ExecutionTracker, duration: float
) -> None:
    with pytest.raises(ConfigError, match="duration = "):
        tracker.record("search", SUCCESS, duration)

    assert tracker.stats() == NOTHING
    assert tracker.recent(1) == []


@pytest.mark.parametrize("status", ["ok", "SUCCESS", None, []])
def test_an_unknown_status_is_a_config_error_that_names_the_known(
    tracker: ExecutionTracker, status: ExecutionStatus
) -> None:
    with pytest.raises(ConfigError, match=r"status = .*cancelled, failed, success, timed_out"):
        tracker.record("search", status, 0.1)


def test_status_and_category_may_be_plain_text(tracker: ExecutionTracker) -> None:
    tracker.record("search", "failed", 0.1, category="network")  # type: ignore[arg-type]

    (record,) = tracker.recent(1)
    assert record.status is FAILED
    assert record.category is ErrorCategory.NETWORK


@pytest.mark.parametrize("wrong", [{"category": "weather"}, {"attempts": 0}, {"attempts": 1.5}, {"was_cached": 1}])
def test_any_other_wrong_fact_is_a_config_error_that_names_it(
    tracker: ExecutionTracker, wrong: dict[str, object]
) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        tracker.record("search", FAILED, 0.1, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("bounds", [{"max_history": -1}, {"max_history": 1.5}, {"max_tools": 0}, {"max_tools": "9"}])
def test_wrong_bounds_are_a_config_error_that_names_them(bounds: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bounds))):
        ExecutionTracker(**bounds)  # type: ignore[arg-type]


def test_fewer_than_no_records_is_a_config_error(tracker: ExecutionTracker) -> None:
    with pytest.raises(ConfigError, match="n = -1"):
        tracker.recent(-1)


# --- history ---


def test_a_record_holds_what_happened_and_when(tracker: ExecutionTracker, clock: ManualClock) -> None:
    clock.advance(5.0)

    tracker.record("search", FAILED, 2.0, attempts=3, category=ErrorCategory.NETWORK)

    assert tracker.recent(1) == [
        ExecutionRecord("search", FAILED, 2.0, clock.time(), False, 3, ErrorCategory.NETWORK),
    ]


def test_whole_seconds_are_kept_as_a_float(tracker: ExecutionTracker) -> None:
    tracker.record("search", SUCCESS, 2)

    assert repr(tracker.recent(1)[0].duration) == "2.0"


def test_recent_is_newest_first(tracker: ExecutionTracker) -> None:
    for name in ("first", "second", "third"):
        tracker.record(name, SUCCESS, 0.1)

    assert [record.tool for record in tracker.recent(2)] == ["third", "second"]


@pytest.mark.parametrize("n", [3, 1000, sys.maxsize])
def test_recent_gives_what_there_is_where_more_is_asked(tracker: ExecutionTracker, n: int) -> None:
    for _ in range(3):
        tracker.record("search", SUCCESS, 0.1)

    assert len(tracker.recent(n)) == 3


def test_recent_of_none_is_empty(tracker: ExecutionTracker) -> None:
    tracker.record("search", SUCCESS, 0.1)

    assert tracker.recent(0) == []


def test_a_success_left_by_the_hot_path_reads_like_a_recorded_one(
    tracker: ExecutionTracker, clock: ManualClock
) -> None:
    clock.advance(7.0)
    tracker.record("search", SUCCESS, 0.5)
    note(tracker, "search", 0.5, ended=clock.monotonic())
    clock.advance(60.0)

    left, recorded = tracker.recent(2)

    assert left == recorded


@pytest.mark.parametrize("jump", [0.0, -3600.0, 3600.0])
def test_recent_is_in_order_of_arrival_whatever_the_clock_says(
    tracker: ExecutionTracker, clock: ManualClock, jump: float
) -> None:
    arrivals = ["fetch", "search", "fetch", "write", "search", "write", "fetch"]
    for n, tool in enumerate(arrivals):
        if n % 3 == 2:
            tracker.record(tool, FAILED, 0.1)
        else:
            note(tracker, tool, ended=clock.monotonic())
        clock.shift_time(jump)

    assert [record.tool for record in tracker.recent(10)] == arrivals[::-1]


def test_filing_changes_nothing_in_recent(tracker: ExecutionTracker, clock: ManualClock) -> None:
    for tool in ("fetch", "search", "fetch"):
        note(tracker, tool)
        tracker.record(tool, FAILED, 0.2)
        clock.advance(1.0)
    before = tracker.recent(10)

    tracker.file()
    note(tracker, "write", 0.3, ended=clock.monotonic())

    assert tracker.recent(10)[1:] == before


@pytest.mark.parametrize("max_history", [0, 1, 3])
def test_recent_never_gives_more_than_the_history_holds(clock: ManualClock, max_history: int) -> None:
    tracker = ExecutionTracker(max_history, clock=clock)
    for n in range(BATCH + 10):
        note(tracker, f"noted-{n}")
        assert len(tracker.recent(sys.maxsize)) == min(max_history, 2 * n + 1)
        tracker.record(f"recorded-{n}", FAILED, 0.1)
        assert len(tracker.recent(sys.maxsize)) == min(max_history, 2 * n + 2)


def test_without_history_there_are_still_statistics(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_history=0, clock=clock)
    note(tracker, "search")

    tracker.record("search", SUCCESS, 0.1)

    assert tracker.recent(10) == []
    assert tracker.stats("search").total == 2


def test_a_history_without_a_bound_worth_the_name_is_allowed() -> None:
    tracker = ExecutionTracker(max_history=sys.maxsize)
    note(tracker, "search")

    tracker.record("search", SUCCESS, 0.1)

    assert len(tracker.recent(10)) == 2
    assert tracker.stats("search").total == 2


# --- the hot path ---


def successes_in(data: dict[str, Any]) -> int:
    return sum(entry["successful"] for entry in [*data["tools"], data["evicted"]])


READINGS: dict[str, Callable[[ExecutionTracker], object]] = {
    "stats of a tool": lambda tracker: tracker.stats("search").total,
    "stats in all": lambda tracker: tracker.stats().total,
    "counts": lambda tracker: tracker.counts("search")[0],
    "plain data": lambda tracker: successes_in(tracker.to_dict()),
}
FILINGS = {
    **READINGS,
    "mean": lambda tracker: tracker.mean_duration("search"),
    "tools": lambda tracker: tracker.tools(),
    "file": lambda tracker: tracker.file(),
}


@pytest.mark.parametrize("read", READINGS.values(), ids=READINGS.keys())
def test_what_the_hot_path_noted_is_in_whatever_is_read(
    tracker: ExecutionTracker, read: Callable[[ExecutionTracker], object]
) -> None:
    for n in range(1, 4):
        note(tracker, "search")
        assert read(tracker) == n


def test_what_the_hot_path_noted_is_in_the_mean(tracker: ExecutionTracker) -> None:
    note(tracker, "search", 1.0)
    note(tracker, "search", 4.0)

    assert tracker.mean_duration("search") == 2.5


def test_a_tool_that_was_only_noted_is_among_the_tools(tracker: ExecutionTracker) -> None:
    note(tracker, "search")
    tracker.refusals.append("fetch")

    assert tracker.tools() == ["fetch", "search"]


@pytest.mark.parametrize("again", FILINGS.values(), ids=FILINGS.keys())
def test_what_has_been_filed_is_not_filed_again(
    tracker: ExecutionTracker, again: Callable[[ExecutionTracker], object]
) -> None:
    note(tracker, "search", 1.0)
    note(tracker, "search", 2.0)
    tracker.refusals.append("search")
    tracker.file()

    again(tracker)
    note(tracker, "search", 4.0)
    again(tracker)

    stats = tracker.stats("search")
    assert (stats.successful, stats.total_duration, stats.denied) == (3, 7.0, 1)


def test_notes_of_several_tools_and_records_mixed_in_one_batch_count_once_each(tracker: ExecutionTracker) -> None:
    note(tracker, "search", 1.0)
    tracker.record("search", FAILED, 2.0)
    note(tracker, "fetch", 4.0)
    tracker.record("write", SUCCESS, 8.0)
    note(tracker, "search", 16.0)
    tracker.record("fetch", CANCELLED, 32.0)
    note(tracker, "write", 64.0)

    tracker.file()

    seen = {tool: tracker.stats(tool) for tool in tracker.tools()}
    assert {tool: (stats.total, stats.total_duration) for tool, stats in seen.items()} == {
        "fetch": (2, 4.0),
        "search": (3, 19.0),
        "write": (2, 72.0),
    }
    assert (tracker.stats().total, tracker.stats().total_duration) == (7, 95.0)


def test_a_batch_that_begins_with_a_record_loses_no_note(tracker: ExecutionTracker) -> None:
    tracker.record("search", FAILED, 1.0)
    note(tracker, "search", 2.0)

    assert tracker.stats("search").total_duration == 3.0


def test_a_batch_of_records_alone_is_not_counted_again(tracker: ExecutionTracker) -> None:
    tracker.record("search", SUCCESS, 1.0)
    tracker.record("search", SUCCESS, 1.0)

    tracker.file()

    assert tracker.stats("search").successful == 2


def test_calls_are_counted_whatever_their_end_and_notes_also_apart(tracker: ExecutionTracker) -> None:
    for status in ExecutionStatus:
        tracker.record("search", status, 0.1)
    tracker.record("search", SUCCESS, 0.1, was_cached=True)
    tracker.denied("search")
    note(tracker, "search")
    note(tracker, "search")
    note(tracker, "fetch")

    assert tracker.counts("search") == (7, 2)
    assert tracker.counts("fetch") == (1, 1)


def test_the_counts_of_a_tool_never_seen_are_zero_and_it_gets_no_entry(tracker: ExecutionTracker) -> None:
    assert tracker.counts("search") == (0, 0)
    assert tracker.tools() == []


@pytest.mark.parametrize("file", FILINGS.values(), ids=FILINGS.keys())
def test_what_was_noted_is_known_whoever_filed_it(
    tracker: ExecutionTracker, file: Callable[[ExecutionTracker], object]
) -> None:
    for n in range(1, 4):
        note(tracker, "search")
        file(tracker)
        assert tracker.counts("search") == (n, n)


def test_a_success_noted_while_filing_is_filed_the_next_time(tracker: ExecutionTracker) -> None:
    late = iter([("search", 0.0, 2.0)])
    tracker.journal = Watched(["search", 0.0, 1.0], on_read=lambda: tracker.journal.extend(next(late, ())))

    tracker.file()

    assert len(tracker.journal) == 6
    assert tracker._tools["search"].histogram.total == 1.0
    assert tracker.stats("search").total_duration == 3.0


def test_a_refusal_noted_while_counting_is_counted_the_next_time(tracker: ExecutionTracker) -> None:
    late = iter(["search"])
    tracker.refusals = Watched(["search"], on_read=lambda: tracker.refusals.extend(late))

    tracker.file()

    assert tracker.refusals == ["search"]
    assert tracker.stats("search").denied == 2


def test_a_call_refused_on_the_hot_path_counts_as_denied_and_nowhere_else(tracker: ExecutionTracker) -> None:
    tracker.refusals.extend(["search", "fetch", "search"])

    assert tracker.stats("search") == msgspec.structs.replace(NOTHING, denied=2)
    assert tracker.stats() == msgspec.structs.replace(NOTHING, denied=3)
    assert tracker.counts("search") == (0, 0)
    assert tracker.recent(10) == []


@pytest.mark.parametrize("read", [*FILINGS.values(), ExecutionTracker.clear], ids=[*FILINGS.keys(), "clear"])
def test_notes_are_filed_or_cleared_by_one_thread_at_a_time(
    tracker: ExecutionTracker, read: Callable[[ExecutionTracker], object]
) -> None:
    locked: list[bool] = []
    tracker.refusals = Watched(["search"], on_read=lambda: locked.append(tracker._lock.locked()))
    note(tracker, "search")

    read(tracker)

    assert locked == [True]


def test_nobody_shortens_the_journal_while_it_is_copied(tracker: ExecutionTracker) -> None:
    locked: list[bool] = []
    tracker.journal = Watched(["search", 0.0, 0.1], on_read=lambda: locked.append(tracker._lock.locked()))

    tracker.recent(1)

    assert locked == [True]


class Watched(list[Any]):
    """A list that tells when it was read or emptied."""

    def __init__(self, items: list[Any], *, on_read: Callable[[], object]) -> None:
        super().__init__(items)
        self._on_read = on_read

    def __getitem__(self, index: Any) -> Any:
        items = super().__getitem__(index)
        self._on_read()
        return items

    def clear(self) -> None:
        super().clear()
        self._on_read()


def test_nobody_waits_for_the_lock_while_the_clock_is_read(tracker: ExecutionTracker) -> None:
    locked: list[bool] = []

    def read() -> float:
        locked.append(tracker._lock.locked())
        return 0.0

    tracker._clock = cast("Clock", SimpleNamespace(time=read, monotonic=read))

    tracker.record("search", SUCCESS, 0.1)
    tracker.recent(1)

    assert locked == [False] * 4


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -math.inf, -5.0, 1e30])
def test_nonsense_from_the_hot_path_does_not_spoil_the_rest(tracker: ExecutionTracker, nonsense: float) -> None:
    for duration in (1.0, 1.0, 1.0, nonsense):
        note(tracker, "search", duration)

    seen = tracker.stats("search")

    assert seen.total == 4
    assert 0.0 <= seen.total_duration <= LONGEST + 3.0
    assert seen.p50 == pytest.approx(1.0, rel=0.01)


# --- clearing ---


def test_clear_empties_history_and_statistics(tracker: ExecutionTracker) -> None:
    tracker = filled_beyond_its_bound(tracker)
    tracker.denied("search")

    tracker.clear()

    assert tracker.recent(10) == []
    assert tracker.tools() == []
    assert tracker.stats() == NOTHING


def test_clear_forgets_what_is_yet_to_be_filed(tracker: ExecutionTracker) -> None:
    note(tracker, "search")
    tracker.refusals.append("search")

    tracker.clear()

    assert tracker.stats() == NOTHING
    assert tracker.counts("search") == (0, 0)
    assert tracker.recent(10) == []


@pytest.mark.parametrize("filed", [0, 1, 2, 3])
def test_what_is_noted_after_clear_counts_even_by_an_old_hold_of_the_journal(
    tracker: ExecutionTracker, filed: int
) -> None:
    hold, hold_refusals = tracker.journal.extend, tracker.refusals.append
    for _ in range(filed):
        hold(("search", 0.0, 1.0))
    tracker.file()
    tracker.clear()

    hold(("search", 0.0, 2.0))
    hold(("search", 0.0, 4.0))
    hold_refusals("search")

    stats = tracker.stats("search")
    assert (stats.total, stats.total_duration, stats.denied) == (2, 6.0, 1)
    assert tracker.counts("search") == (2, 2)
    assert [record.duration for record in tracker.recent(10)] == [4.0, 2.0]


# --- bounds ---


def filled_beyond_its_bound(tracker: ExecutionTracker) -> ExecutionTracker:
    tracker.max_tools = 2
    for n in range(5):
        tracker.record(f"tool-{n}", SUCCESS, 1.0 + n)
    return tracker


@pytest.mark.parametrize("max_history", [0, 1, 100])
@pytest.mark.parametrize("every", [2, 7, 10_000], ids=lambda every: f"read every {every}")
def test_the_journal_stays_bounded(clock: ManualClock, max_history: int, every: int) -> None:
    tracker, longest, rounds = ExecutionTracker(max_history, clock=clock), 0, 3 * BATCH
    for n in range(rounds):
        note(tracker, f"tool-{n % 3}")
        longest = max(longest, len(tracker.journal))
        if n % every == 1:
            tracker.stats()

    assert longest < tracker.journal_is_full
    assert tracker.stats().total == rounds
    assert len(tracker.recent(rounds)) == max_history


def test_a_hold_of_the_journal_stays_good_however_much_is_filed(clock: ManualClock) -> None:
    tracker = ExecutionTracker(1, clock=clock)
    journal, refusals = tracker.journal, tracker.refusals
    for _ in range(3 * BATCH):
        journal.extend(("search", 0.0, 1.0))
        refusals.append("search")
        if len(journal) >= tracker.journal_is_full:
            tracker.file()

    stats = tracker.stats("search")
    assert (stats.total, stats.denied) == (3 * BATCH, 3 * BATCH)


def test_the_journal_stays_bounded_where_nothing_is_a_clean_success(clock: ManualClock) -> None:
    tracker = ExecutionTracker(1, clock=clock)
    for _ in range(3 * BATCH):
        tracker.record("search", FAILED, 0.1)
        assert len(tracker.journal) < tracker.journal_is_full

    assert tracker.stats().failed == 3 * BATCH


def test_the_history_is_not_moved_at_every_reading(clock: ManualClock) -> None:
    tracker = ExecutionTracker(10, clock=clock)
    for _ in range(BATCH):
        note(tracker, "search")
        tracker.stats()

    assert len(tracker.journal) == 3 * BATCH


def test_the_least_recently_used_tool_goes_first(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_tools=2, clock=clock)
    tracker.record("first", SUCCESS, 0.1)
    tracker.record("second", SUCCESS, 0.1)
    tracker.record("first", SUCCESS, 0.1)

    tracker.record("third", SUCCESS, 0.1)

    assert tracker.tools() == ["first", "third"]


def test_of_the_tools_in_one_batch_too_the_least_recently_used_goes_first(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_tools=2, clock=clock)
    for tool in ("first", "second", "first", "third"):
        note(tracker, tool)

    assert tracker.tools() == ["first", "third"]
    assert tracker.stats("first").total == 2


def test_what_an_evicted_tool_did_stays_in_the_statistics_in_all(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_tools=1, clock=clock)
    note(tracker, "first", 2.0)
    tracker.record("first", CANCELLED, 1.0)
    tracker.record("first", FAILED, 3.0)
    tracker.denied("first")
    before = tracker.stats()

    tracker.denied("second")

    assert tracker.tools() == ["second"]
    assert tracker.stats("first") == NOTHING
    assert tracker.stats() == msgspec.structs.replace(before, denied=2)


INTRUSIONS: list[Callable[[ExecutionTracker, str], None]] = [
    lambda tracker, name: tracker.denied(name),
    lambda tracker, name: tracker.record(name, FAILED, 0.1),
]


@pytest.mark.parametrize("intrude", INTRUSIONS, ids=["denied", "recorded"])
def test_a_tool_in_use_by_the_hot_path_is_not_evicted_by_idle_names(
    clock: ManualClock, intrude: Callable[[ExecutionTracker, str], None]
) -> None:
    tracker = ExecutionTracker(max_tools=3, clock=clock)
    note(tracker, "busy")
    tracker.file()
    for n in range(100):
        note(tracker, "busy")
        intrude(tracker, f"hostile-{n}")

    assert tracker.counts("busy") == (101, 101)


def test_where_all_tools_are_in_use_one_goes_all_the_same(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_tools=200, clock=clock)
    for n in range(200):
        note(tracker, f"busy-{n}")

    tracker.denied("one more")

    assert len(tracker.tools()) == 200
    assert tracker.stats().total == 200


def test_an_evicted_tool_that_is_noted_later_gets_a_new_entry(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_tools=1, clock=clock)
    note(tracker, "search", 1.0)
    tracker.file()
    tracker.denied("other")
    assert tracker.tools() == ["other"]

    note(tracker, "search", 2.0)

    assert tracker.counts("search") == (1, 1)
    assert tracker.mean_duration("search") == 2.0
    assert tracker.stats().total_duration == 3.0


def test_more_tools_in_one_batch_than_there_is_room_for_leave_the_totals_exact(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_tools=2, clock=clock)
    for n in range(300):
        note(tracker, f"tool-{n % 50}", 1.0)
        tracker.refusals.append(f"tool-{n % 30}")

    stats = tracker.stats()

    assert (stats.total, stats.total_duration, stats.denied) == (300, 300.0, 300)
    assert len(tracker.tools()) == 2


def test_hostile_names_stay_bounded_and_the_totals_exact() -> None:
    tracker, number = ExecutionTracker(max_history=10, max_tools=100), 30_000

    for n in range(number):
        tracker.record(f"hostile-{n}", SUCCESS, 0.5)

    assert len(tracker.tools()) == 100
    assert len(tracker.recent(1000)) == 10
    assert tracker.stats().total == number
    assert tracker.stats().total_duration == number / 2


def test_a_long_name_is_kept_short_and_still_tells_tools_apart(tracker: ExecutionTracker) -> None:
    one, other = "x" * 1_000_000 + "1", "x" * 1_000_000 + "2"
    tracker.record(one, SUCCESS, 0.1)
    tracker.denied(one)

    assert tracker.stats(one).total == 1
    assert tracker.counts(one) == (1, 0)
    assert tracker.mean_duration(one) == 0.1
    assert tracker.stats(other) == NOTHING
    assert all(len(name) <= 200 for name in (*tracker.tools(), tracker.recent(1)[0].tool))


# --- plain data ---


@given(executions)
def test_a_tracker_comes_back_from_plain_data_as_it_was(history: list[Execution]) -> None:
    tracker = filled(history, max_history=20, max_tools=3)
    tracker.denied("search")

    data = tracker.to_dict()
    again = ExecutionTracker.from_dict(json.loads(json.dumps(data)))

    assert again.to_dict() == data
    assert again.tools() == tracker.tools()
    assert again.recent(100) == tracker.recent(100)
    for tool in (None, *tracker.tools()):
        assert again.stats(tool) == tracker.stats(tool)


def test_a_success_left_by_the_hot_path_is_in_the_plain_data(tracker: ExecutionTracker, clock: ManualClock) -> None:
    note(tracker, "search", 0.5, ended=clock.monotonic())

    again = ExecutionTracker.from_dict(tracker.to_dict(), clock=clock)

    assert again.recent(1) == tracker.recent(1)
    assert again.stats("search") == tracker.stats("search")


def test_nonsense_from_the_hot_path_does_not_make_the_data_unreadable(tracker: ExecutionTracker) -> None:
    for duration in (2.0, 1e-20, LONGEST + LONGEST / 2, 0.0, -1.0):
        note(tracker, "search", duration)

    again = ExecutionTracker.from_dict(tracker.to_dict())

    assert again.stats("search") == tracker.stats("search")
    assert again.recent(1)[0].duration == 0.0


def test_bounds_given_anew_win_over_the_stored_ones(tracker: ExecutionTracker, clock: ManualClock) -> None:
    for n in range(5):
        tracker.record(f"tool-{n}", SUCCESS, 0.1)

    smaller = ExecutionTracker.from_dict(tracker.to_dict(), max_history=2, max_tools=3, clock=clock)

    assert [record.tool for record in smaller.recent(10)] == ["tool-4", "tool-3"]
    assert smaller.tools() == ["tool-2", "tool-3", "tool-4"]
    assert smaller.stats() == tracker.stats()
    assert (smaller.max_history, smaller.max_tools) == (2, 3)


def test_a_tracker_from_plain_data_goes_on_counting(tracker: ExecutionTracker, clock: ManualClock) -> None:
    tracker.record("search", SUCCESS, 1.0)
    note(tracker, "search", 2.0)
    again = ExecutionTracker.from_dict(tracker.to_dict(), clock=clock)

    again.record("search", SUCCESS, 3.0)
    note(again, "search", 6.0)

    assert again.counts("search") == (4, 1)
    assert again.mean_duration("search") == 3.0
    assert [record.duration for record in again.recent(10)] == [6.0, 3.0, 2.0, 1.0]


COLD_READING = """
import sys
from holdfast.tracking.tracker import ExecutionTracker

data, calls = ExecutionTracker().to_dict(), []
sys.setprofile(lambda frame, event, _: calls.append(frame.f_globals.get("__name__")))
ExecutionTracker.from_dict(data)
sys.setprofile(None)
assert "holdfast.tracking.tracker" in calls
sys.exit(any(str(name).startswith("msgspec") for name in calls))
"""


def test_threads_that_read_plain_data_for_the_first_time_find_the_types_made_ready() -> None:
    assert subprocess.run([sys.executable, "-c", COLD_READING], check=False).returncode == 0


BROKEN: list[tuple[list[str | int], object, str]] = [
    ([], None, "got `null`"),
    (["version"], 2, "$.version"),
    (["max_history"], -1, "$.max_history"),
    (["max_tools"], 0, "$.max_tools"),
    (["history"], {}, "$.history"),
    (["history", 0, "status"], "ok", "$.history[0].status"),
    (["history", 0, "duration"], -1.0, "$.history[0].duration"),
    (["history", 0, "duration"], math.inf, "$.history[0].duration"),
    (["history", 0, "at"], math.nan, "$.history[0].at"),
    (["history", 0, "at"], math.inf, "$.history[0].at"),
    (["history", 0, "at"], 10**400, "$.history[0].at"),
    (["history", 0, "attempts"], 0, "$.history[0].attempts"),
    (["history", 0, "category"], "weather", "$.history[0].category"),
    (["history", 0, "category"], "\ud800", "surrogates not allowed"),
    (["tools", 1, "tool"], 7, "$.tools[1].tool"),
    (["tools", 1, "failed"], -1, "$.tools[1].failed"),
    (["tools", 1, "successful"], True, "$.tools[1].successful"),
    (["tools", 1, "successful"], 0, "$.tools[1]"),
    (["tools", 1, "cached_hits"], 9, "$.tools[1]"),
    (["tools", 1, "total_duration"], math.nan, "$.tools[1].total_duration"),
    (["tools", 1, "total_duration"], 1e15, "$.tools[1]"),
    (["tools", 1, "histogram"], {str(LAST_BUCKET + 1): 1}, "$.tools[1].histogram"),
    (["tools", 1, "histogram"], {"many": 1}, "$.tools[1].histogram"),
    (["tools", 1, "histogram"], {str(LAST_BUCKET): -1}, "$.tools[1].histogram"),
    (["tools", 1, "histogram"], {str(LAST_BUCKET): 10**400}, "$.tools[1].histogram"),
    (["tools", 1, "successful"], 10**400, "$.tools[1].successful"),
    (["evicted", "denied"], "3", "$.evicted.denied"),
]


@pytest.mark.parametrize(("path", "value", "where"), BROKEN)
def test_broken_data_is_a_config_error_that_says_where(
    tracker: ExecutionTracker, path: list[str | int], value: object, where: str
) -> None:
    tracker.record("first", SUCCESS, 0.1)
    tracker.record("second", SUCCESS, 0.1)
    data = broken(tracker.to_dict(), path, value)

    with pytest.raises(ConfigError) as caught:
        ExecutionTracker.from_dict(data)

    assert where in str(caught.value)


def test_a_histogram_of_calls_that_never_ran_to_an_end_is_a_config_error(tracker: ExecutionTracker) -> None:
    tracker.record("search", CANCELLED, 0.1)
    data = broken(tracker.to_dict(), ["tools", 0, "histogram"], {str(LAST_BUCKET): 1})

    with pytest.raises(ConfigError, match="more than its calls"):
        ExecutionTracker.from_dict(data)


def test_missing_data_is_a_config_error_that_names_it(tracker: ExecutionTracker) -> None:
    data = tracker.to_dict()
    del data["tools"]

    with pytest.raises(ConfigError, match="tools"):
        ExecutionTracker.from_dict(data)


# --- against a naive model ---


class Naive:
    """A tracker that remembers everything, counts anew at each question and knows nothing of batches."""

    def __init__(self) -> None:
        self.executions: list[ExecutionRecord] = []
        self.refused: list[str] = []

    def check(self, tracker: ExecutionTracker) -> None:
        """That *tracker* tells the same."""
        known = {record.tool for record in self.executions} | set(self.refused)
        assert tracker.recent(10_000) == self.executions[::-1][: tracker.max_history]
        self.check_stats(tracker, None)
        if len(known) <= tracker.max_tools:
            assert tracker.tools() == sorted(known)
            for tool in known:
                self.check_stats(tracker, tool)

    def check_stats(self, tracker: ExecutionTracker, tool: str | None) -> None:
        stats = tracker.stats(tool)
        of_tool = [record for record in self.executions if tool in (None, record.tool)]
        ended = sorted(r.duration for r in of_tool if not r.was_cached and r.status is not CANCELLED)
        by_status = Counter(record.status for record in of_tool)
        assert stats.total == len(of_tool)
        assert (stats.successful, stats.failed) == (by_status[SUCCESS], by_status[FAILED])
        assert (stats.timed_out, stats.cancelled) == (by_status[TIMED_OUT], by_status[CANCELLED])
        assert stats.cached_hits == sum(record.was_cached for record in of_tool)
        assert stats.denied == sum(tool in (None, name) for name in self.refused)
        assert stats.total_duration == pytest.approx(sum(ended))
        assert stats.mean == (pytest.approx(sum(ended) / len(ended)) if ended else None)
        for percent, estimate in ((50, stats.p50), (95, stats.p95), (99, stats.p99)):
            exact = ended[math.ceil(len(ended) * percent / 100) - 1] if ended else None
            assert estimate == (pytest.approx(exact, rel=0.01) if ended else None)


names = st.sampled_from(["fetch", "search", "write"])
durations = st.just(0.0) | seconds
steps = st.one_of(
    st.tuples(st.just("note"), st.lists(names, min_size=1, max_size=3), durations, st.integers(1, 5)),
    st.tuples(st.just("note"), st.lists(names, min_size=1, max_size=3), durations, st.sampled_from([BATCH, BATCH + 9])),
    st.tuples(st.just("record"), names, st.sampled_from(ExecutionStatus), durations, st.booleans()),
    st.tuples(st.just("refuse"), names, st.sampled_from([1, 2, BATCH])),
    st.tuples(st.just("deny"), names),
    st.tuples(st.just("advance"), st.sampled_from([0.25, 60.0])),
    st.tuples(st.just("read"), st.sampled_from(list(FILINGS.values()))),
    st.tuples(st.just("clear")),
)


@given(st.lists(steps, max_size=20), st.sampled_from([0, 1, 7, 1000]), st.sampled_from([1, 2, 3]))
@settings(max_examples=300)
def test_whatever_comes_in_whatever_order_the_tracker_tells_what_happened(
    story: list[tuple[Any, ...]], max_history: int, max_tools: int
) -> None:
    clock, naive = ManualClock(), Naive()
    tracker = ExecutionTracker(max_history, max_tools=max_tools, clock=clock)

    for step in story:
        match step:
            case ("note", tools, duration, times):
                for n in range(times):
                    tool = tools[n % len(tools)]
                    note(tracker, tool, duration, ended=clock.monotonic())
                    naive.executions.append(ExecutionRecord(tool, SUCCESS, duration, clock.time()))
            case ("record", tool, status, duration, was_cached):
                tracker.record(tool, status, duration, was_cached)
                naive.executions.append(ExecutionRecord(tool, status, duration, clock.time(), was_cached))
            case ("refuse", tool, times):
                for _ in range(times):
                    refuse(tracker, tool)
                naive.refused.extend([tool] * times)
            case ("deny", tool):
                tracker.denied(tool)
                naive.refused.append(tool)
            case ("advance", duration):
                clock.advance(duration)
            case ("read", read):
                read(tracker)
            case _:
                tracker.clear()
                naive = Naive()

    naive.check(tracker)
    naive.check(ExecutionTracker.from_dict(tracker.to_dict(), clock=clock))


# --- the histogram ---


@given(st.lists(seconds, min_size=1), st.sampled_from(PERCENTS))
def test_a_percentile_is_the_nearest_rank_well_within_one_percent(durations: list[float], percent: int) -> None:
    exact = sorted(durations)[math.ceil(len(durations) * percent / 100) - 1]

    (estimate,) = histogram(durations).percentiles(percent)

    assert estimate == pytest.approx(exact, rel=0.004)


@given(st.lists(st.lists(seconds), max_size=5))
def test_merging_is_the_same_as_adding_all(parts: list[list[float]]) -> None:
    merged = Histogram()
    for part in parts:
        merged.merge(histogram(part))
    whole = histogram([duration for part in parts for duration in part])

    assert merged.buckets == whole.buckets
    assert merged.count == whole.count
    assert merged.total == pytest.approx(whole.total)


@given(st.lists(st.floats(), min_size=1))
def test_adding_one_by_one_is_the_same_as_adding_all(durations: list[float]) -> None:
    single = Histogram()
    for duration in durations:
        single.add_one(duration)
    real = [min(max(0.0, duration), LONGEST) for duration in durations]

    assert single.percentiles(*PERCENTS) == histogram(real).percentiles(*PERCENTS)
    assert single.count == len(durations)
    assert single.total == pytest.approx(sum(real))


def test_an_instant_reads_as_zero() -> None:
    assert histogram([0.0, 0.0, 1e-12]).percentiles(50, 99) == [0.0, 0.0]


def test_a_negative_duration_among_real_ones_reads_as_zero() -> None:
    assert histogram([-0.5, 1.0, 1.0]).percentiles(1) == [0.0]


def test_what_took_longer_than_twelve_days_reads_as_twelve_days() -> None:
    very_long = histogram([LONGEST * 100] * 3)

    assert very_long.percentiles(50) == [pytest.approx(LONGEST, rel=0.01)]
    assert very_long.mean() == LONGEST


def test_an_empty_histogram_has_no_percentile_and_no_mean() -> None:
    empty = histogram([])

    assert empty.percentiles(50, 99) == [None, None]
    assert empty.mean() is None


def test_the_number_of_buckets_is_bounded_whatever_is_added() -> None:
    everything = [2.0**exponent * (1 + mantissa / 128) for exponent in range(-120, 20) for mantissa in range(128)]
    one_by_one, merged = Histogram(), Histogram()
    for duration in everything:
        one_by_one.add_one(duration)
        merged.merge(histogram([duration]))

    for full in (histogram(everything), one_by_one, merged):
        assert len(full.buckets) <= 50 * 128 + 2
        assert full.buckets.total() == full.count == len(everything)


# --- threads ---


@pytest.mark.usefixtures("hurried")
def test_nothing_is_lost_between_threads() -> None:
    tracker, rounds = ExecutionTracker(max_history=50), 3000

    def hot(n: int) -> None:
        for _ in range(rounds):
            note(tracker, f"tool-{n % 2}", 1.0)
            refuse(tracker, f"tool-{n % 2}")

    def cold(n: int) -> None:
        for _ in range(rounds):
            tracker.record(f"tool-{n % 2}", FAILED, 1.0)
            tracker.denied(f"tool-{n % 2}")

    def reader(_: int) -> None:
        for _ in range(rounds // 20):
            before = tracker.stats()
            again = ExecutionTracker.from_dict(tracker.to_dict())
            assert before.total == before.successful + before.failed
            assert before.total <= again.stats().total <= tracker.stats().total
            assert len(tracker.recent(100)) <= 50

    at_once(hot, hot, hot, cold, cold, cold, reader, reader)

    stats = tracker.stats()
    assert (stats.successful, stats.failed, stats.denied) == (3 * rounds, 3 * rounds, 6 * rounds)
    assert stats.total_duration == 6.0 * rounds
    assert sum(tracker.counts(tool)[1] for tool in tracker.tools()) == 3 * rounds


@pytest.mark.usefixtures("hurried")
def test_eight_threads_that_note_leave_exact_totals_and_a_bounded_journal() -> None:
    tracker, rounds = ExecutionTracker(max_history=1), 5000
    longest = [0] * 8

    def hot(n: int) -> None:
        for _ in range(rounds):
            note(tracker, f"tool-{n}", 1.0)
            longest[n] = max(longest[n], len(tracker.journal))

    at_once(*[hot] * 8)

    assert {tool: tracker.counts(tool) for tool in tracker.tools()} == {f"tool-{n}": (rounds, rounds) for n in range(8)}
    assert tracker.stats().total_duration == 8.0 * rounds
    assert max(longest) <= tracker.journal_is_full + 3 * BATCH


@pytest.mark.usefixtures("hurried")
def test_refusals_are_counted_once_whoever_counts_them() -> None:
    tracker, rounds = ExecutionTracker(), 10_000

    def hot(n: int) -> None:
        for _ in range(rounds):
            refuse(tracker, f"tool-{n % 2}")

    def reader(n: int) -> None:
        for _ in range(rounds // 10):
            tracker.file()
            assert tracker.stats(f"tool-{n % 2}").denied <= 2 * rounds

    at_once(hot, hot, hot, hot, reader, reader, reader, reader)

    assert [tracker.stats(tool).denied for tool in tracker.tools()] == [2 * rounds, 2 * rounds]
    assert tracker.stats().total == 0


@pytest.mark.usefixtures("hurried")
def test_nothing_is_lost_while_tools_are_evicted() -> None:
    tracker, rounds = ExecutionTracker(max_tools=2), 2000

    def hot(n: int) -> None:
        for _ in range(rounds):
            note(tracker, f"tool-{n}", 1.0)

    def hostile(n: int) -> None:
        for i in range(rounds):
            tracker.denied(f"hostile-{n}-{i}")

    at_once(hot, hot, hot, hot, hostile, hostile, hostile, hostile)

    assert tracker.stats().successful == 4 * rounds
    assert tracker.stats().denied == 4 * rounds
    assert len(tracker.tools()) <= 2


@pytest.mark.usefixtures("hurried")
def test_clearing_amid_calls_leaves_all_that_came_after_and_nothing_that_came_before() -> None:
    tracker, rounds = ExecutionTracker(max_history=10), 10_000
    begun, done = [0] * 8, [0] * 8
    first_to_stay, last_to_go = [0] * 8, [0] * 8

    def hot(n: int) -> None:
        for _ in range(rounds):
            begun[n] += 1
            note(tracker, f"tool-{n}", 1.0)
            done[n] += 1

    def clearer(_: int) -> None:
        for _ in range(rounds // 5):
            last_to_go[:] = done
            tracker.clear()
            first_to_stay[:] = begun

    def reader(_: int) -> None:
        for _ in range(rounds):
            tracker.file()

    at_once(*[hot] * 8, clearer, reader, reader)

    for n in range(8):
        calls, noted = tracker.counts(f"tool-{n}")
        assert rounds - first_to_stay[n] <= calls == noted <= rounds - last_to_go[n]
    assert tracker.stats().total_duration == tracker.stats().total


def test_statistics_read_while_a_tool_is_evicted_count_each_call_once(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_tools=2, clock=clock)
    tracker.record("first", SUCCESS, 1.0)
    tracker.record("second", SUCCESS, 1.0)
    tracker._lock = lock = InterruptedLock(lambda: tracker.denied("third"))  # type: ignore[assignment]

    stats = tracker.stats()

    assert lock.interrupted
    assert tracker.tools() == ["second", "third"]
    assert stats.total == 2


class InterruptedLock:
    """A lock that somebody else gets hold of as soon as it is given back for the first time."""

    def __init__(self, somebody: Callable[[], object]) -> None:
        self.interrupted = False
        self._somebody = somebody

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if not self.interrupted:
            self.interrupted = True
            self._somebody()


def test_a_lock_held_at_the_fork_does_not_bind_the_child(tracker: ExecutionTracker) -> None:
    tracker._lock.acquire()

    tracker.after_fork()

    note(tracker, "search")
    tracker.record("search", SUCCESS, 0.1)
    assert tracker.counts("search") == (2, 1)


# --- what the tests share ---


def filled(history: list[Execution], **bounds: int) -> ExecutionTracker:
    tracker = ExecutionTracker(**bounds, clock=ManualClock())
    for tool, status, duration, was_cached, attempts, category in history:
        tracker.record(tool, status, duration, was_cached, attempts=attempts, category=category)
    return tracker


def timing(stats: ExecutionStats) -> tuple[float | None, ...]:
    return (stats.total_duration, stats.mean, stats.p50, stats.p95, stats.p99)


def histogram(durations: list[float]) -> Histogram:
    result = Histogram()
    result.add(durations)
    return result


def broken(data: Any, path: list[str | int], value: object) -> Any:
    """*data* with *value* put in its place at *path*."""
    if not path:
        return value
    data[path[0]] = broken(data[path[0]], path[1:], value)
    return data


def at_once(*jobs: Callable[[int], None]) -> None:
    """Run each of *jobs* in a thread of its own, all from the same moment; the first failure is raised."""
    gate = threading.Barrier(len(jobs))
    failures: list[BaseException] = []

    def run(job: Callable[[int], None], n: int) -> None:
        gate.wait()
        try:
            job(n)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(job, n)) for n, job in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
