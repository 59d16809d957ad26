"""The tracker: what counts where, what is bounded, and that nothing is lost between threads."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.category import ErrorCategory
from holdfast.errors import ConfigError
from holdfast.histogram import LAST_BUCKET, LONGEST, Histogram
from holdfast.testing import ManualClock
from holdfast.tracker import DRAIN_AT, ExecutionRecord, ExecutionStats, ExecutionStatus, ExecutionTracker, ToolStats

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


def succeed(tracker: ExecutionTracker, stats: ToolStats, duration: float) -> ToolStats:
    """A clean success as the hot path notes it; returns what to use for the next one."""
    stats.pending.append(duration)
    if stats.detached or len(stats.pending) >= DRAIN_AT:
        stats.drain()
    return tracker.of(stats.name) if stats.detached else stats


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


def test_a_success_left_by_the_hot_path_reads_like_a_recorded_one(clock: ManualClock) -> None:
    tracker = ExecutionTracker(clock=clock)
    clock.advance(7.0)
    tracker.record("search", SUCCESS, 0.5)
    tracker.history.append(("search", clock.monotonic(), 0.5))
    clock.advance(60.0)

    left, recorded = tracker.recent(2)

    assert left == recorded


def test_without_history_there_are_still_statistics(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_history=0, clock=clock)
    tracker.history.append(("search", 0.0, 0.1))

    tracker.record("search", SUCCESS, 0.1)

    assert tracker.recent(10) == []
    assert tracker.stats("search").total == 1


def test_a_history_without_a_bound_worth_the_name_is_allowed() -> None:
    tracker = ExecutionTracker(max_history=sys.maxsize)

    tracker.record("search", SUCCESS, 0.1)

    assert len(tracker.recent(10)) == 1


# --- the hot path ---


def test_pending_successes_are_in_whatever_is_read(tracker: ExecutionTracker) -> None:
    readings: list[Callable[[], object]] = [
        lambda: tracker.stats("search").total,
        lambda: tracker.stats().total,
        lambda: tracker.of("search").calls(),
        lambda: sum(entry["successful"] for entry in tracker.to_dict()["tools"]),  # type: ignore[attr-defined]
    ]
    for n, read in enumerate(readings, start=1):
        tracker.of("search").pending.append(2.0)
        assert read() == n
    tracker.of("search").pending.append(7.0)

    assert tracker.mean_duration("search") == 3.0


def test_draining_files_each_pending_success_once(tracker: ExecutionTracker) -> None:
    stats = tracker.of("search")
    stats.pending.extend([1.0, 2.0])

    stats.drain()
    stats.drain()

    assert stats.pending == []
    assert (stats.successful, stats.total_duration, stats.calls()) == (2, 3.0, 2)


def test_calls_counts_every_status_and_what_is_pending(tracker: ExecutionTracker) -> None:
    for status in ExecutionStatus:
        tracker.record("search", status, 0.1)
    tracker.denied("search")
    stats = tracker.of("search")
    stats.pending.append(0.1)

    assert stats.calls() == 5


def test_a_success_noted_while_draining_stays_pending(tracker: ExecutionTracker) -> None:
    stats = tracker.of("search")
    stats.pending = Watched([1.0], on_read=lambda: stats.pending.append(2.0))

    stats.drain()

    assert stats.pending == [2.0]
    assert stats.total_duration == 1.0


def test_what_was_noted_is_known_whoever_took_it(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_tools=1, clock=clock)
    stats = tracker.of("search")
    takers: list[Callable[[], object]] = [stats.drain, tracker.stats, lambda: tracker.of("other"), stats.drain]
    for n, take in enumerate(takers, start=1):
        stats.pending.append(0.1)
        take()
        assert stats.noted == n


def test_what_clear_drops_was_noted_all_the_same(tracker: ExecutionTracker) -> None:
    stats = tracker.of("search")
    stats.pending.append(0.1)

    tracker.clear()

    assert stats.noted == 1


def test_what_is_recorded_was_not_noted_by_the_hot_path(tracker: ExecutionTracker) -> None:
    tracker.record("search", SUCCESS, 0.1)

    assert tracker.of("search").noted == 0


READINGS: list[Callable[[ExecutionTracker], object]] = [
    lambda tracker: tracker.of("search").drain(),
    lambda tracker: tracker.stats("search"),
    lambda tracker: tracker.stats(),
    lambda tracker: tracker.mean_duration("search"),
    lambda tracker: tracker.to_dict(),
]


@pytest.mark.parametrize("read", READINGS)
def test_what_is_pending_is_taken_by_one_thread_at_a_time(
    tracker: ExecutionTracker, read: Callable[[ExecutionTracker], object]
) -> None:
    locked: list[bool] = []
    tracker.of("search").pending = Watched([1.0], on_read=lambda: locked.append(tracker._lock.locked()))

    read(tracker)

    assert locked == [True]


class Watched(list[float]):
    """A list that tells when it was read, and when some of it was taken."""

    def __init__(
        self, items: list[float], *, on_read: Callable[[], object] = int, on_take: Callable[[], object] = int
    ) -> None:
        super().__init__(items)
        self._on_read = on_read
        self._on_take = on_take

    def __getitem__(self, index: Any) -> Any:
        items = super().__getitem__(index)
        self._on_read()
        return items

    def __delitem__(self, index: Any) -> None:
        super().__delitem__(index)
        self._on_take()


def test_the_same_tool_has_the_same_statistics(tracker: ExecutionTracker) -> None:
    assert tracker.of("search") is tracker.of("search")


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -math.inf, -5.0, 1e30])
def test_nonsense_from_the_hot_path_does_not_spoil_the_rest(tracker: ExecutionTracker, nonsense: float) -> None:
    stats = tracker.of("search")
    stats.pending.extend([1.0] * 3 + [nonsense])

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


def test_clear_forgets_what_is_pending_and_tells_its_holder(tracker: ExecutionTracker) -> None:
    held = tracker.of("search")
    held.pending.append(0.1)

    tracker.clear()
    held.drain()

    assert held.detached
    assert tracker.stats() == NOTHING


def test_a_success_after_clear_counts_for_its_tool_even_by_an_old_hold(tracker: ExecutionTracker) -> None:
    held = tracker.of("search")
    tracker.clear()

    held = succeed(tracker, held, 0.1)

    assert held is tracker.of("search")
    assert tracker.stats("search").total == tracker.stats().total == 1


# --- bounds ---


def filled_beyond_its_bound(tracker: ExecutionTracker) -> ExecutionTracker:
    tracker.max_tools = 2
    for n in range(5):
        tracker.record(f"tool-{n}", SUCCESS, 1.0 + n)
    return tracker


def test_the_least_recently_used_tool_goes_first(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_tools=2, clock=clock)
    tracker.record("first", SUCCESS, 0.1)
    tracker.record("second", SUCCESS, 0.1)
    tracker.record("first", SUCCESS, 0.1)

    tracker.record("third", SUCCESS, 0.1)

    assert tracker.tools() == ["first", "third"]


def test_what_an_evicted_tool_did_stays_in_the_statistics_in_all(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_tools=1, clock=clock)
    tracker.record("first", SUCCESS, 1.0)
    tracker.record("first", CANCELLED, 1.0)
    tracker.record("first", FAILED, 3.0)
    tracker.denied("first")
    before = tracker.stats()

    tracker.of("second")

    assert tracker.tools() == ["second"]
    assert tracker.stats("first") == NOTHING
    assert tracker.stats() == before


def test_a_tool_in_use_by_the_hot_path_is_not_evicted_by_idle_names(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_tools=3, clock=clock)
    held = tracker.of("busy")
    for n in range(100):
        held.pending.append(0.1)
        tracker.denied(f"hostile-{n}")

    assert not held.detached
    assert tracker.stats("busy").total == 100


def test_where_all_tools_are_in_use_one_goes_all_the_same(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_tools=200, clock=clock)
    for n in range(200):
        tracker.of(f"busy-{n}").pending.append(0.1)

    tracker.of("one more")

    assert len(tracker.tools()) == 200
    assert tracker.stats().total == 200


def test_a_success_after_eviction_counts_for_its_tool_even_by_an_old_hold(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_tools=1, clock=clock)
    held = succeed(tracker, tracker.of("search"), 0.1)
    held.drain()
    tracker.of("other")
    assert held.detached

    held = succeed(tracker, held, 0.1)

    assert not held.detached
    assert tracker.stats("search").total == 1
    assert tracker.stats().total == 2


def test_who_notes_a_success_after_the_last_look_of_an_eviction_finds_the_flag(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_tools=1, clock=clock)
    stats, flags = tracker.of("search"), []
    stats.pending = Watched([], on_take=lambda: flags.append(stats.detached))

    tracker.of("other")

    assert flags[-1] is True


def test_hostile_names_stay_bounded_and_the_totals_exact() -> None:
    tracker = ExecutionTracker(max_history=10, max_tools=100)

    for n in range(100_000):
        tracker.record(f"hostile-{n}", SUCCESS, 0.5)

    assert len(tracker.tools()) == 100
    assert len(tracker.recent(1000)) == 10
    assert tracker.stats().total == 100_000
    assert tracker.stats().total_duration == 50_000.0


def test_a_long_name_is_kept_short_and_still_tells_tools_apart(tracker: ExecutionTracker) -> None:
    one, other = "x" * 1_000_000 + "1", "x" * 1_000_000 + "2"
    tracker.record(one, SUCCESS, 0.1)
    tracker.denied(one)

    assert tracker.stats(one).total == 1
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
    tracker.history.append(("search", clock.monotonic(), 0.5))

    again = ExecutionTracker.from_dict(tracker.to_dict())

    assert again.recent(1) == tracker.recent(1)


def test_nonsense_from_the_hot_path_does_not_make_the_data_unreadable(tracker: ExecutionTracker) -> None:
    tracker.of("search").pending.extend([-1.0, 2.0, 1e-20, LONGEST + LONGEST / 2, 0.0])
    tracker.history.append(("search", 0.0, -1.0))

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
    again = ExecutionTracker.from_dict(tracker.to_dict(), clock=clock)

    again.record("search", SUCCESS, 3.0)

    assert again.stats("search").total == 2
    assert again.mean_duration("search") == 2.0


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


@pytest.fixture
def _hurried_switches() -> Iterator[None]:
    """Let threads take turns after a few instructions, so that a gap between two of them is found."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_hurried_switches")
def test_nothing_is_lost_between_threads() -> None:
    tracker, rounds = ExecutionTracker(max_history=50), 1000

    def hot(n: int) -> None:
        stats = tracker.of(f"tool-{n % 2}")
        for _ in range(rounds):
            stats.pending.append(1.0)
            tracker.history.append((stats.name, 0.0, 1.0))
            stats.drain()

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
    assert (stats.successful, stats.failed, stats.denied) == (3 * rounds, 3 * rounds, 3 * rounds)
    assert stats.total_duration == 6.0 * rounds


@pytest.mark.usefixtures("_hurried_switches")
def test_nothing_is_lost_while_tools_are_evicted() -> None:
    tracker, rounds = ExecutionTracker(max_tools=2), 500

    def hot(n: int) -> None:
        stats = tracker.of(f"tool-{n}")
        for _ in range(rounds):
            stats = succeed(tracker, stats, 1.0)

    def hostile(n: int) -> None:
        for i in range(rounds):
            tracker.denied(f"hostile-{n}-{i}")

    at_once(hot, hot, hot, hot, hostile, hostile, hostile, hostile)

    assert tracker.stats().successful == 4 * rounds
    assert tracker.stats().denied == 4 * rounds
    assert len(tracker.tools()) <= 2


@pytest.mark.usefixtures("_hurried_switches")
def test_clearing_amid_calls_leaves_only_what_came_after() -> None:
    tracker, rounds = ExecutionTracker(), 500

    def hot(n: int) -> None:
        stats = tracker.of(f"tool-{n}")
        for _ in range(rounds):
            stats = succeed(tracker, stats, 1.0)

    def cold(n: int) -> None:
        for _ in range(rounds):
            tracker.record(f"tool-{n}", TIMED_OUT, 1.0)

    def clearer(_: int) -> None:
        for _ in range(rounds // 10):
            tracker.clear()
            assert tracker.stats().total <= 7 * rounds

    at_once(hot, hot, hot, hot, cold, cold, cold, clearer)
    tracker.clear()
    tracker.record("search", SUCCESS, 1.0)

    assert tracker.stats().total == 1
    assert tracker.tools() == ["search"]


def test_statistics_read_while_a_tool_is_evicted_count_each_call_once(clock: ManualClock) -> None:
    tracker = ExecutionTracker(max_tools=2, clock=clock)
    tracker.record("first", SUCCESS, 1.0)
    tracker.record("second", SUCCESS, 1.0)
    tracker._lock = lock = InterruptedLock(lambda: tracker.of("third"))  # type: ignore[assignment]

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
    stats = tracker.of("search")
    tracker._lock.acquire()

    tracker.after_fork()

    stats.drain()
    tracker.record("search", SUCCESS, 0.1)
    assert stats.calls() == 1


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
