from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import holdfast
from holdfast.stores import SqliteRunStore
from holdfast.stores.board import KEPT, Board
from holdfast.stores.entries import BOUNDS, Process, ServerEntry, ToolEntry, pack
from holdfast.telemetry.prometheus import FAMILIES, StoreMetrics, metrics
from holdfast.testing import ManualClock

DASHBOARD = Path(__file__).parents[2] / "contrib" / "grafana" / "holdfast.json"


@pytest.fixture
def hf(clock: ManualClock) -> Iterator[holdfast.Holdfast]:
    with holdfast.open(":memory:", policies={}, clock=clock) as opened:
        yield opened


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteRunStore]:
    with SqliteRunStore(tmp_path / "runs.db", clock=clock) as opened:
        yield opened


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample, by its name and labels, as the official parser reads it."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> float:
    return parsed(text)[name, frozenset(labels.items())]


def show(store: SqliteRunStore, id: str, *entries: ToolEntry, servers: list[ServerEntry] | None = None) -> None:
    """Have a process of that *id* show *entries*; it lives for ten seconds."""
    now = int(store.clock.time() * 1000)
    process = Process(id=id, host=f"that of {id}", pid=1, at_ms=now, until_ms=now + 10_000, servers=servers or [])
    Board(store).publish(process, [(entry.name, pack(entry)) for entry in entries])


# --- one process ---


def test_calls_are_counted_by_tool_and_outcome(hf: holdfast.Holdfast, clock: ManualClock) -> None:
    @hf.tool()
    def divide(by: int) -> float:
        clock.advance(0.2)
        return 1 / by

    divide(1)
    divide(2)
    with pytest.raises(ZeroDivisionError):
        divide(0)

    text = metrics(hf)

    assert value(text, "holdfast_calls_total", server="", tool="divide", outcome="success") == 2
    assert value(text, "holdfast_calls_total", server="", tool="divide", outcome="failed") == 1
    assert value(text, "holdfast_errors_total", server="", tool="divide", error_type="execution_error") == 1
    assert value(text, "holdfast_call_duration_seconds_count", server="", tool="divide") == 3
    assert value(text, "holdfast_call_duration_seconds_sum", server="", tool="divide") == pytest.approx(0.6)
    assert value(text, "holdfast_call_duration_seconds_bucket", server="", tool="divide", le="0.1") == 0
    assert value(text, "holdfast_call_duration_seconds_bucket", server="", tool="divide", le="0.25") == 3
    assert value(text, "holdfast_call_duration_seconds_bucket", server="", tool="divide", le="+Inf") == 3


def test_an_open_circuit_shows_its_state_its_wait_and_its_refusals(hf: holdfast.Holdfast) -> None:
    @hf.tool(breaker={"failure_threshold": 1, "jitter": 0.0, "min_backoff": 5.0})
    def broken() -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        broken()
    with pytest.raises(holdfast.CircuitOpen):
        broken()

    text = metrics(hf)

    assert value(text, "holdfast_circuit_state", server="", tool="broken", state="open") == 1
    assert value(text, "holdfast_circuit_state", server="", tool="broken", state="closed") == 0
    assert value(text, "holdfast_circuit_wait_seconds", server="", tool="broken") == 5
    assert value(text, "holdfast_circuit_opened_total", server="", tool="broken") == 1
    assert value(text, "holdfast_refusals_total", server="", tool="broken", error_type="CircuitOpen") == 1


def test_refusals_are_told_apart_by_who_refused(hf: holdfast.Holdfast) -> None:
    @hf.tool(rate={"per_second": 1.0, "burst": 1}, max_wait=0.0)
    def limited() -> None: ...

    limited()
    with pytest.raises(holdfast.RateLimited):
        limited()

    assert value(metrics(hf), "holdfast_refusals_total", server="", tool="limited", error_type="RateLimited") == 1


def test_limits_and_what_is_in_flight_are_shown_while_a_call_is_made(hf: holdfast.Holdfast) -> None:
    seen = []

    @hf.tool(concurrency=3, rate="10/s")
    def look() -> None:
        seen.append(metrics(hf))

    look()

    labels = {"server": "", "tool": "look"}
    assert value(seen[0], "holdfast_calls_in_flight", **labels) == 1
    assert value(seen[0], "holdfast_concurrency_limit", **labels) == 3
    assert value(seen[0], "holdfast_rate_limit", **labels) == 10
    assert value(metrics(hf), "holdfast_calls_in_flight", **labels) == 0


def test_a_cached_answer_counts_apart_and_not_in_the_durations(hf: holdfast.Holdfast) -> None:
    @hf.tool(read_only=True, cache=60.0)
    def fact() -> int:
        return 1

    fact()
    fact()

    text = metrics(hf)
    assert value(text, "holdfast_cached_calls_total", server="", tool="fact") == 1
    assert value(text, "holdfast_call_duration_seconds_count", server="", tool="fact") == 1


def test_what_a_fallback_answered_is_counted_beside_what_became_of_the_call(hf: holdfast.Holdfast) -> None:
    @hf.tool(breaker={"failure_threshold": 1}, fallback={"value": "a guess"})
    def broken() -> str:
        raise ConnectionError

    assert [broken(), broken()] == ["a guess", "a guess"]  # failed, then refused

    text, labels = metrics(hf), {"server": "", "tool": "broken"}
    assert value(text, "holdfast_fallbacks_total", **labels) == 2
    assert value(text, "holdfast_calls_total", **labels, outcome="failed") == 1
    assert value(text, "holdfast_refusals_total", **labels, error_type="CircuitOpen") == 1


@pytest.mark.parametrize("name", ['a"b', "back\\slash", "x} 1", "ünï—😀", "a,b=c", "{}", "#"])
def test_a_hostile_name_is_one_label_and_nothing_else(hf: holdfast.Holdfast, name: str) -> None:
    hf.tool(name)(lambda: None)()

    assert value(metrics(hf), "holdfast_calls_total", server="", tool=name, outcome="success") == 1


def test_names_that_no_encoding_has_still_give_a_text_that_can_be_sent(store: SqliteRunStore) -> None:
    line = ToolEntry(name="broken", calls=1, successful=1, errors={"\ud800": 1}, failed=0)

    class Shows:
        clock = store.clock
        fleet = None

        def entries(self) -> list[ToolEntry]:
            return [line]

    assert value(metrics(Shows()), "holdfast_errors_total", server="", tool="broken", error_type="?") == 1


def test_every_family_has_help_and_type_and_a_name_by_the_conventions(hf: holdfast.Holdfast) -> None:
    hf.tool("any", concurrency=1, rate="1/s")(lambda: None)()
    text = metrics(hf)

    for family in text_string_to_metric_families(text):
        written = f"{family.name}_total" if family.type == "counter" else family.name
        assert family.documentation == FAMILIES[written][1]
        assert family.type == FAMILIES[written][0]
        assert re.fullmatch(r"holdfast_[a-z_]+", family.name)


# --- all processes on a store ---


def test_what_processes_count_adds_up_and_the_worst_state_shows(store: SqliteRunStore) -> None:
    spread = [0] * len(BOUNDS) + [2]
    show(store, "one", ToolEntry(name="t", calls=3, successful=3, in_flight=1, limit=2, spread=spread, spent_ms=1500.0))
    show(store, "two", ToolEntry(name="t", calls=4, failed=4, state="open", in_flight=2, limit=2, spread=spread))

    text = StoreMetrics(store).render()

    assert value(text, "holdfast_calls_total", server="", tool="t", outcome="success") == 3
    assert value(text, "holdfast_calls_total", server="", tool="t", outcome="failed") == 4
    assert value(text, "holdfast_calls_in_flight", server="", tool="t") == 3
    assert value(text, "holdfast_concurrency_limit", server="", tool="t") == 4
    assert value(text, "holdfast_circuit_state", server="", tool="t", state="open") == 1
    assert value(text, "holdfast_call_duration_seconds_count", server="", tool="t") == 4
    assert value(text, "holdfast_call_duration_seconds_sum", server="", tool="t") == 1.5
    assert value(text, "holdfast_processes", kind="library") == 2


def test_a_counter_does_not_fall_when_a_process_is_gone_nor_jump_when_it_was_only_slow(
    store: SqliteRunStore, clock: ManualClock
) -> None:
    exporter = StoreMetrics(store)
    labels = {"server": "", "tool": "t", "outcome": "success"}
    show(store, "one", ToolEntry(name="t", calls=5, successful=5))

    before = value(exporter.render(), "holdfast_calls_total", **labels)
    clock.advance(60.0)
    while_gone = value(exporter.render(), "holdfast_calls_total", **labels)
    show(store, "one", ToolEntry(name="t", calls=6, successful=6))
    back = value(exporter.render(), "holdfast_calls_total", **labels)

    assert (before, while_gone, back) == (5, 5, 6)


def test_counters_go_on_when_a_process_clears_its_statistics(store: SqliteRunStore, clock: ManualClock) -> None:
    exporter = StoreMetrics(store)
    with holdfast.open(":memory:", policies={}, clock=clock) as hf:
        work = hf.tool("t")(lambda: None)

        def counted(calls: int) -> tuple[float, float]:
            for _ in range(calls):
                work()
            show(store, "one", *hf.entries())
            text = exporter.render()
            opened = value(text, "holdfast_circuit_opened_total", server="", tool="t")
            return value(text, "holdfast_calls_total", server="", tool="t", outcome="success"), opened

        for _ in range(7):
            hf.breaker.record_failure("t")
        hf.breaker.reset("t")
        calls, opened = counted(5)
        assert (calls, opened) == (5, 1)
        hf.tracker.clear()

        assert [counted(0), counted(1), counted(6)] == [(5, opened), (6, opened), (12, opened)]


def test_counters_go_on_when_a_tool_was_forgotten_for_others_and_is_called_again(
    store: SqliteRunStore, clock: ManualClock
) -> None:
    exporter = StoreMetrics(store)
    with holdfast.open(":memory:", policies={}, clock=clock) as hf:
        hf.tracker.max_tools = 1
        work, other = hf.tool("t")(lambda: None), hf.tool("other")(lambda: None)

        def counted(calls: int) -> float:
            for _ in range(calls):
                work()
            show(store, "one", *hf.entries())
            return value(exporter.render(), "holdfast_calls_total", server="", tool="t", outcome="success")

        assert counted(5) == 5
        other()

        assert [counted(0), counted(1), counted(6)] == [5, 6, 12]


def test_counters_go_on_when_one_closes_of_two_that_began_in_the_same_millisecond(
    store: SqliteRunStore, clock: ManualClock
) -> None:
    exporter = StoreMetrics(store)
    with (
        holdfast.open(":memory:", policies={}, clock=clock) as one,
        holdfast.open(":memory:", policies={}, clock=clock) as two,
    ):
        tools = {hf: hf.tool("t")(lambda: None) for hf in (one, two)}

        def counted(*living: holdfast.Holdfast) -> float:
            Board(store).sweep()
            for number, hf in enumerate(living):
                tools[hf]()
                until = int(store.clock.time() * 1000) + 10_000
                process = Process(id=str(number), host="one host", pid=1, at_ms=until - 10_000, until_ms=until)
                Board(store).publish(process, [("t", pack(entry)) for entry in hf.entries()])
            return value(exporter.render(), "holdfast_calls_total", server="", tool="t", outcome="success")

        assert counted(one, two) == 2
        clock.advance(11 + KEPT / 1000)

        assert [counted(two), counted(two)] == [3, 4]


def test_a_sum_of_seconds_does_not_fall_by_a_hair_when_a_process_is_gone(
    store: SqliteRunStore, clock: ManualClock
) -> None:
    exporter, took = StoreMetrics(store), {"a": 100.0, "b": 200.0, "c": 600.0}

    def total() -> float:
        return value(exporter.render(), "holdfast_call_duration_seconds_sum", server="", tool="t")

    for process, milliseconds in took.items():
        show(store, process, ToolEntry(name="t", spent_ms=milliseconds))
    before = total()
    clock.advance(60.0)
    for process in ("a", "b"):  # so that c, the last to be added, becomes the first
        show(store, process, ToolEntry(name="t", spent_ms=took[process]))

    assert (before, total()) == (0.9, 0.9)


def test_the_memory_of_processes_that_are_gone_is_bounded_and_nothing_is_lost(
    store: SqliteRunStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.telemetry.prometheus.MOST_GONE", 2)
    exporter = StoreMetrics(store)

    for number in range(6):
        show(store, f"p{number}", *(ToolEntry(name=f"t{each}", calls=1, successful=1) for each in range(3)))
        exporter.render()
        clock.advance(KEPT / 1000)

    total = value(exporter.render(), "holdfast_calls_total", server="", tool="t0", outcome="success")
    assert total == 6
    assert len(exporter._latest) == 2


def test_the_names_of_tools_that_are_gone_are_bounded_and_what_the_oldest_counted_stays_as_a_sum(
    store: SqliteRunStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.telemetry.prometheus.MOST_GONE", 2)
    monkeypatch.setattr("holdfast.telemetry.prometheus.MOST_NAMES", 3)
    exporter, totals = StoreMetrics(store), []

    for number in range(8):
        show(store, f"p{number}", ToolEntry(name=f"t{number}", successful=10))
        found = parsed(exporter.render())
        totals.append(sum(number for (_, labels), number in found.items() if ("outcome", "success") in labels))
        clock.advance(KEPT / 1000)

    assert totals == [10, 20, 30, 40, 50, 60, 70, 80]
    labels = {"server": "(others)", "tool": "(others)", "outcome": "success"}
    assert value(exporter.render(), "holdfast_calls_total", **labels) == 30
    assert 'tool="t2"' not in exporter.render()


def test_the_counter_of_a_tool_that_is_still_shown_does_not_fall_when_older_names_go(
    store: SqliteRunStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.telemetry.prometheus.MOST_GONE", 0)
    monkeypatch.setattr("holdfast.telemetry.prometheus.MOST_NAMES", 1)
    exporter, seen = StoreMetrics(store), []

    for number in range(5):
        show(store, f"p{number}", ToolEntry(name="stays", successful=1), ToolEntry(name=f"t{number}", successful=1))
        seen.append(value(exporter.render(), "holdfast_calls_total", server="", tool="stays", outcome="success"))
        clock.advance(KEPT / 1000)

    assert seen == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("at", range(1, 9))
def test_a_scrape_that_others_overtake_counts_nobody_twice(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.telemetry.prometheus.MOST_GONE", 0)
    asked = 0

    class Busy(ManualClock):
        """At one of the times that it is looked at, all others are gone and two scrapes come and go."""

        def time(self) -> float:
            nonlocal asked
            asked -= 1
            if asked == 0:
                self.advance(11)
                exporter.render()
                exporter.render()
            return super().time()

    with SqliteRunStore(tmp_path / "runs.db", clock=Busy()) as store:
        exporter = StoreMetrics(store)
        show(store, "one", ToolEntry(name="t", successful=10))
        asked = at

        exporter.render()

        assert value(exporter.render(), "holdfast_calls_total", server="", tool="t", outcome="success") == 10


def test_a_proxied_tool_has_its_server_in_a_label_of_its_own(store: SqliteRunStore) -> None:
    servers = [ServerEntry(name="git", state="ready", restarts=2), ServerEntry(name="git.hub", state="failed")]
    entries = [ToolEntry(name=name, calls=1, successful=1) for name in ("git.log", "git.hub.log", "git", "gitter")]
    show(store, "proxy", *entries, servers=servers)

    text = StoreMetrics(store).render()

    for server, tool in (("git", "log"), ("git.hub", "log"), ("git", ""), ("", "gitter")):
        assert value(text, "holdfast_calls_total", server=server, tool=tool, outcome="success") == 1
    assert value(text, "holdfast_servers", server="git", state="ready") == 1
    assert value(text, "holdfast_server_restarts_total", server="git") == 2


def test_runs_are_counted_by_status(store: SqliteRunStore) -> None:
    store.create_run("s", "waits")
    done = store.create_run("s", "done")
    store.record_event(done.id, "run_completed", {"text": ""})

    text = StoreMetrics(store).render()

    assert value(text, "holdfast_runs", status="created") == 1
    assert value(text, "holdfast_runs", status="completed") == 1
    assert value(text, "holdfast_runs", status="failed") == 0


def test_a_tool_that_is_held_open_before_any_process_has_it_is_shown(store: SqliteRunStore) -> None:
    Board(store).order("open", ["later"])

    text = StoreMetrics(store).render()

    assert value(text, "holdfast_circuit_state", server="", tool="later", state="open") == 1


def test_a_process_shows_its_real_calls_to_who_reads_the_store(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with holdfast.open(path, policies={}) as hf:
        hf.publish(name="agent")
        hf.tool("real")(lambda: None)()
        hf.publish_soon()
        with SqliteRunStore(path) as store:
            exporter, pause = StoreMetrics(store), threading.Event()
            key = ("holdfast_calls_total", frozenset({"server": "", "tool": "real", "outcome": "success"}.items()))

            found: dict[Any, float] = {}
            while found.get(key) != 1:  # the test's own time limit ends it
                found = parsed(exporter.render())
                pause.wait(0.01)

            assert found["holdfast_call_duration_seconds_count", frozenset({"server": "", "tool": "real"}.items())] == 1


def test_a_process_that_goes_on_without_its_fleet_says_so() -> None:
    with holdfast.open(":memory:", policies={}, redis="redis://127.0.0.1:1") as hf:
        hf.tool("search")(lambda: "found")()
        text = metrics(hf)

    assert value(text, "holdfast_fleet_up") == 0
    assert value(text, "holdfast_fleet_outages_total") == 1
    assert value(text, "holdfast_fleet_fallbacks_total") == 1


def test_a_fleets_circuit_opens_once_however_many_processes_show_it(store: SqliteRunStore, clock: ManualClock) -> None:
    exporter = StoreMetrics(store)
    in_fleet = {"fleet": "redis", "shared": ["circuit"]}

    def opened(*ids: str, times: int) -> float:
        for id in ids:
            show(store, id, ToolEntry(name="t", times_opened=times, **in_fleet))  # type: ignore[arg-type]
        return value(exporter.render(), "holdfast_circuit_opened_total", server="", tool="t")

    assert opened("one", "two", times=3) == 3
    clock.advance(60.0)
    assert opened("three", times=4) == 4
    show(store, "alone", ToolEntry(name="t", times_opened=2))
    assert opened("three", times=4) == 6


def success(exporter: StoreMetrics, tool: str) -> float:
    return value(exporter.render(), "holdfast_calls_total", server="", tool=tool, outcome="success")


def test_a_process_that_came_and_went_between_two_scrapes_is_counted_to_its_last_call(
    store: SqliteRunStore, tmp_path: Path
) -> None:
    exporter = StoreMetrics(store)
    exporter.render()

    with holdfast.open(tmp_path / "runs.db", policies={}) as hf, hf.run():
        tool = hf.tool("brief")(lambda number: number)
        for number in range(20):
            tool(number)

    assert success(exporter, "brief") == 20
    assert ("holdfast_processes", frozenset({("kind", "library")})) not in parsed(exporter.render())


def test_what_was_counted_before_a_close_is_not_counted_again_after_it(store: SqliteRunStore, tmp_path: Path) -> None:
    exporter = StoreMetrics(store)
    hf = holdfast.open(tmp_path / "runs.db", policies={})
    tool = hf.tool("again")(lambda: None)

    counted = []
    for _ in range(3):
        with hf.run():
            tool()
        hf.close()
        counted.append(success(exporter, "again"))

    assert counted == [1, 2, 3]


# --- the dashboard ---


def queries() -> list[str]:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    variables = [each["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    texts = [each["query"] if isinstance(each, dict) else each for each in variables]
    return texts + [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]


def test_the_dashboard_asks_only_for_metrics_and_labels_that_exist(store: SqliteRunStore) -> None:
    entry = ToolEntry(
        name="git.log", calls=2, successful=1, failed=1, denied=1, errors={"network": 1}, refusals={"CircuitOpen": 1},
        in_flight=1, limit=2, rate=1.0, full_rate=2.0, spread=[1] * (len(BOUNDS) + 1),
    )  # fmt: skip
    show(store, "proxy", entry, servers=[ServerEntry(name="git", state="ready")])
    samples = parsed(StoreMetrics(store).render())
    labels: dict[str, set[str]] = {}
    for name, given in samples:
        labels.setdefault(name, set()).update(key for key, _ in given)
    asked: set[str] = set()

    for query in queries():
        names = set(re.findall(r"holdfast_[a-z_]+", query))
        assert names <= labels.keys(), f"{query} asks for what is not there"
        known = set().union(*(labels[name] for name in names)) | {"le"}
        used = set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)\s*\"", query))
        grouped = {word.strip() for group in re.findall(r"by\s*\(([^)]*)\)", query) for word in group.split(",")}
        assert used | grouped <= known, f"{query} asks for labels that are not there"
        asked |= {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}

    own = {family for family in FAMILIES if family.startswith("holdfast_fleet_")}  # only a process itself can tell
    assert asked == set(FAMILIES) - own, "the dashboard shows all there is"


def test_the_share_of_failing_calls_is_of_those_that_were_not_cancelled_as_on_the_page() -> None:
    shares = [query for query in queries() if " / sum(" in query and "failed" in query]

    assert len(shares) == 1
    assert 'outcome!="cancelled"' in shares[0].partition(" / ")[2]


def test_the_panels_of_the_dashboard_have_titles_places_and_ids_of_their_own() -> None:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    panels = board["panels"]

    assert len({panel["id"] for panel in panels}) == len(panels) > 0
    assert all(panel["title"] for panel in panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < 24
