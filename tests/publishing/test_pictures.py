"""What a process tells of its tools to whoever looks at one of them: its policy, its past, in bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.children import until

import holdfast
from holdfast.publishing import pictures
from holdfast.stores import SqliteRunStore
from holdfast.stores.board import Board
from holdfast.stores.entries import FINE_BOUNDS, ToolDetail, histogram, unpack_detail
from holdfast.testing import ManualClock

POLICIES: dict[str, Any] = {"policy": {"breaker": {"failure_threshold": 1, "min_backoff": 100.0}, "loop": False}}


@pytest.fixture
def hf(path: Path) -> Iterator[holdfast.Holdfast]:
    with holdfast.open(path, policies=POLICIES) as hf:
        yield hf


def detail(board: Board, name: str) -> ToolDetail | None:
    line = board.tool(name)
    found = [] if line is None else board.details(line)
    return found[0][1] if found else None


def test_the_policy_in_force_is_told_with_its_origins(hf: holdfast.Holdfast, board: Board) -> None:
    @hf.tool("search", timeout=3.0, fallback={"value": {"api_key": "hidden", "text": "shown"}})
    def search() -> None: ...

    search()

    until(lambda: detail(board, "search"), "the details")
    told = detail(board, "search")
    assert told is not None
    policy = {each.key: (each.value, each.origin) for each in told.policy}
    assert policy["timeout"] == (3.0, "decorator")
    assert policy["breaker.failure_threshold"] == (1, "policies [policy]")
    assert policy["max_wait"] == (5.0, "default")
    assert policy["fallback.value"][0] == {"api_key": "[redacted]", "text": "shown"}


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", float("nan"), "x" * 10_000, [[[]]] * 1000])
def test_a_value_that_is_no_plain_data_is_told_in_words(hf: holdfast.Holdfast, board: Board, value: object) -> None:
    @hf.tool("search", fallback={"value": value})
    def search() -> None: ...

    search()

    until(lambda: detail(board, "search"), "the details")


def test_transitions_are_told_the_newest_first_and_at_most_fifty(hf: holdfast.Holdfast, board: Board) -> None:
    for _ in range(40):
        hf.breaker.force_open("search")
        hf.breaker.force_closed("search")
    with pytest.raises(ConnectionError), hf.guard("search"):
        raise ConnectionError("oh")

    until(lambda: detail(board, "search"), "the details")
    until(lambda: len((detail(board, "search") or ToolDetail()).transitions) == 50, "the transitions")
    told = detail(board, "search")
    assert told is not None
    assert [each.at_ms for each in told.transitions] == sorted((each.at_ms for each in told.transitions), reverse=True)
    assert {each.after for each in told.transitions} == {"open", "closed"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def on_clock(clock: ManualClock) -> Iterator[holdfast.Holdfast]:
    with holdfast.open(policies=POLICIES, clock=clock) as hf:
        yield hf


def changes(hf: holdfast.Holdfast) -> list[tuple[str, bool]]:
    """What became of the circuit of search, the oldest first, and whether by hand."""
    told = hf._publisher._display.pictures._transitions["search"]
    return [(each.after, each.by_hand) for each in reversed(told)]


def trip(hf: holdfast.Holdfast) -> None:
    with pytest.raises(ConnectionError), hf.guard("search"):
        raise ConnectionError("oh")


def test_a_circuit_that_somebody_holds_or_lets_go_of_is_told_as_changed_by_hand(on_clock: holdfast.Holdfast) -> None:
    on_clock.breaker.force_open("search")
    on_clock.breaker.auto("search")
    trip(on_clock)
    on_clock.breaker.force_closed("search")
    on_clock.breaker.auto("search")

    assert changes(on_clock) == [
        ("open", True), ("closed", True), ("open", False), ("closed", True), ("open", True),
    ]  # fmt: skip


@pytest.mark.parametrize(("act", "by_hand"), [("force_closed", True), ("reset", True), (None, False)])
def test_a_circuit_that_probes_is_told_as_closed_by_hand_only_if_it_was(
    on_clock: holdfast.Holdfast, clock: ManualClock, act: str | None, by_hand: bool
) -> None:
    trip(on_clock)
    clock.advance(1000.0)

    with on_clock.guard("search"):
        if act is not None:
            getattr(on_clock.breaker, act)("search")

    assert changes(on_clock) == [("open", False), ("half_open", False), ("closed", by_hand)]


def test_a_transition_that_does_not_say_whether_it_was_by_hand_can_be_read() -> None:
    old = msgspec.msgpack.encode({"transitions": [{"at_ms": 1, "before": "closed", "after": "open", "failures": 3}]})

    (told,) = unpack_detail(old).transitions

    assert (told.failures, told.by_hand) == (3, False)


def test_the_tools_whose_transitions_are_kept_are_bounded(
    hf: holdfast.Holdfast, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "MOST_REMEMBERED", 2)
    for name in ("a", "b", "c"):
        with pytest.raises(ConnectionError), hf.guard(name):
            raise ConnectionError("oh")

    until(lambda: detail(board, "c") and detail(board, "c").transitions, "the last")  # type: ignore[union-attr]

    assert set(hf._publisher._display.pictures._transitions) == {"b", "c"}


def test_a_tool_that_is_called_all_the_time_is_told_in_detail_now_and_then(hf: holdfast.Holdfast) -> None:
    made = pictures.Pictures(hf._kit, hf._box)
    hf.call(len, "abc")

    first = made.details({"len": b""}, set(), 100.0)
    soon = made.details({"len": b""}, set(), 101.0)
    later = made.details({}, set(), 106.0)
    same = made.details({}, set(), 120.0)

    assert [bool(each) for each in (first, soon, later, same)] == [True, False, True, False]


def test_a_tool_that_comes_to_rest_is_told_in_detail_for_the_last_time(hf: holdfast.Holdfast) -> None:
    made = pictures.Pictures(hf._kit, hf._box)
    made.details({"len": b""}, set(), 100.0)

    made.details({"len": b""}, set(), 100.1)
    resting = made.details({}, {"len"}, 101.1)
    again = made.details({}, {"len"}, 102.1)

    assert [bool(each) for each in (resting, again)] == [True, False]


def test_details_that_could_not_be_written_are_due_again(hf: holdfast.Holdfast) -> None:
    made = pictures.Pictures(hf._kit, hf._box)
    lost = made.details({"len": b""}, set(), 100.0)

    made.owe(lost)

    assert [name for name, _ in made.details({}, set(), 100.1)] == ["len"]


def test_a_tool_that_is_not_to_be_shown_has_no_details(hf: holdfast.Holdfast) -> None:
    made = pictures.Pictures(hf._kit, hf._box)
    made.details({"len": b""}, set(), 100.0)
    made.details({"len": b""}, set(), 101.0)

    assert made.details({"len": None}, {"len"}, 102.0) == []


def test_of_many_that_are_called_all_the_time_the_longest_untold_come_first(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "MOST_DETAILS", 2)
    made, names = pictures.Pictures(hf._kit, hf._box), ["a", "b", "c", "d"]
    for at, name in enumerate(names):
        made.details({name: b""}, set(), float(at))

    assert [name for name, _ in made.details(dict.fromkeys(names[::-1], b""), set(), 100.0)] == ["a", "b"]
    assert [name for name, _ in made.details({}, set(), 100.0)] == ["c", "d"]


def test_a_tool_that_is_decorated_later_shows_before_it_is_called(hf: holdfast.Holdfast, board: Board) -> None:
    hf.publish()
    until(board.processes, "the process")

    @hf.tool("later")
    def later() -> None: ...

    hf.publish_soon()

    until(lambda: detail(board, "later"), "the tool")


def test_details_go_with_their_process(hf: holdfast.Holdfast, board: Board, path: Path) -> None:
    hf.call(len, "abc")
    until(lambda: detail(board, "len"), "the details")

    hf.close()

    with SqliteRunStore(path) as store:
        assert store.file.writing().execute("SELECT count(*) FROM details").fetchone() == (0,)


def test_a_histogram_begins_and_ends_where_there_is_something() -> None:
    spread = [0] * (len(FINE_BOUNDS) + 1)
    spread[4], spread[6], spread[-1] = 3, 2, 1

    found = histogram(spread)

    assert found[:4] == [(1.0, 0), (2.0, 3), (5.0, 0), (10.0, 2)]
    assert found[-1] == (None, 1)
    assert histogram([0] * (len(FINE_BOUNDS) + 1)) == []


def test_a_tool_that_is_held_shows_where_it_would_be_by_itself_and_what_would_open_it() -> None:
    with holdfast.open(":memory:", policies={}) as hf:
        hf.tool("search", breaker={"failure_threshold": 3, "failure_rate": 0.5})(lambda: None)
        hf.breaker.force_open("search")
        (entry,) = hf.entries()

    assert (entry.state, entry.forced, entry.automatic) == ("open", "open", "closed")
    assert (entry.failure_threshold, entry.failure_rate) == (3, 0.5)
