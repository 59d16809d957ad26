"""The board of a store: who shows which tools, what becomes of the dead, and which order is the last word."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.stores.kinds import KINDS, SHARED, Open, opener

from holdfast.errors import ConfigError, StoreError
from holdfast.stores import RunStore, SqliteRunStore, schema
from holdfast.stores.board import FORGOTTEN, KEPT, Board
from holdfast.stores.entries import (
    LONGEST_TEXT,
    MOST_LINES,
    PolicyValue,
    Process,
    ServerEntry,
    ToolDetail,
    ToolEntry,
    pack,
    server,
)
from holdfast.testing import ManualClock

NOON = 1_800_000_000.0


@pytest.fixture(params=sorted(KINDS))
def open_(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return opener(request.param, tmp_path)


@pytest.fixture
def clock() -> ManualClock:
    clock = ManualClock()
    clock.set_time(NOON)
    return clock


@pytest.fixture
def store(open_: Open, clock: ManualClock) -> Iterator[RunStore]:
    with open_(clock=clock) as store:
        yield store


@pytest.fixture
def board(store: RunStore) -> Board:
    return Board(store)


def process(id: str = "a", *, until: float = 15.0, seen: int = 0, **more: object) -> Process:
    """A process of another host, whose lock cannot be asked for."""
    facts: dict[str, object] = {"host": "elsewhere", "pid": 7, "started_at_ms": 1, "at_ms": int(NOON * 1000), **more}
    return Process(id=id, seen=seen, until_ms=int((NOON + until) * 1000), **facts)  # type: ignore[arg-type]


def shown(board: Board, process: Process, *tools: ToolEntry, gone: tuple[str, ...] = ()) -> None:
    board.publish(process, [(tool.name, pack(tool)) for tool in tools], gone)


def states(board: Board) -> list[tuple[str, str]]:
    return [(line.name, line.state) for line in board.tools()]


# --- what is shown ---


def test_what_a_process_shows_is_read_as_it_was_written(board: Board) -> None:
    entry = ToolEntry(name="search", state="open", until_ms=5, calls=3, p50_ms=1.5, rate=2.0, last_error="E: no")

    shown(board, process(name="agent.py", kind="proxy", servers=[ServerEntry(name="github")]), entry)

    (line,) = board.tools()
    (seen,) = line.processes
    assert seen.tool == entry
    assert (seen.pid, seen.host, seen.kind, seen.process_name) == (7, "elsewhere", "proxy", "agent.py")
    assert [each.server for each in board.servers()] == [ServerEntry(name="github")]


def test_a_process_is_shown_as_it_wrote_itself_last(board: Board) -> None:
    shown(board, process(servers=[ServerEntry(name="github")]))
    last = process(
        until=99.0, seen=3, host="other", pid=8, started_at_ms=2, at_ms=3, kind="proxy", name="agent.py",
        servers=[ServerEntry(name="files")],
    )  # fmt: skip

    shown(board, last)

    assert board.processes() == [last]


def test_processes_are_shown_oldest_first(board: Board) -> None:
    for id, started in (("a", 2), ("c", 1), ("b", 1)):
        shown(board, process(id, started_at_ms=started))

    assert [each.id for each in board.processes()] == ["b", "c", "a"]


def test_what_becomes_of_one_process_leaves_another_alone(store: RunStore, board: Board, clock: ManualClock) -> None:
    def publish(process: Process, names: str, gone: str = "") -> None:
        details = [
            (name, pack(ToolDetail(policy=[PolicyValue(key=name, value=1, origin=process.id)]))) for name in names
        ]
        board.publish(process, [(name, pack(ToolEntry(name=name))) for name in names], gone, details)

    def details(name: str) -> list[tuple[str, str, str]]:
        line = board.tool(name)
        found = board.details(line) if line is not None else []
        return [(each.process, detail.policy[0].origin, detail.policy[0].key) for each, detail in found]

    publish(process("a", until=KEPT), "xyz")
    publish(process("b"), "xyz")
    publish(process("b"), "", gone="y")
    assert [details(name) for name in "xyz"] == [
        [("a", "a", "x"), ("b", "b", "x")],
        [("a", "a", "y")],
        [("a", "a", "z"), ("b", "b", "z")],
    ]

    store.writer.commit(lambda ledger: ledger.drop("b"))
    assert [each.id for each in board.processes()] == ["a"]
    assert [process for process, _ in store.file.fetch("details_of_name", "x")] == ["a"]

    clock.advance(KEPT / 1000)
    assert board.sweep() == 1
    assert [details(name) for name in "xyz"] == [[("a", "a", "x")], [("a", "a", "y")], [("a", "a", "z")]]


def test_a_tool_that_is_not_published_again_stays_and_one_that_is_gone_goes(board: Board) -> None:
    shown(board, process(), ToolEntry(name="a"), ToolEntry(name="b"), ToolEntry(name="c"))

    shown(board, process(), ToolEntry(name="b", calls=9), gone=("c",))

    assert [(line.name, line.calls) for line in board.tools()] == [("a", 0), ("b", 9)]


def test_tools_of_one_name_are_one_line_with_the_worst_state_and_the_sum_of_calls(board: Board) -> None:
    late = int(NOON * 1000) + 2_000
    shown(board, process("a"), ToolEntry(name="x", calls=4, successful=3, failed=1, p50_ms=1.0, p95_ms=9.0))
    shown(
        board,
        process("b"),
        ToolEntry(
            name="x", state="open", until_ms=late, calls=4, timed_out=2, cancelled=2, p50_ms=2.0, p95_ms=3.0,
            last_error="E: late", last_error_at_ms=5,
        ),
    )  # fmt: skip

    (line,) = board.tools()

    assert (line.state, line.refuses, line.remaining_ms) == ("open", True, 2_000)
    assert (line.calls, line.failed, line.error_rate) == (8, 3, 0.5)
    assert (line.p50_ms, line.p95_ms) == (1.0, 9.0)
    assert line.last_error == "E: late"
    assert [each.process for each in line.processes] == ["a", "b"]


def test_of_processes_without_their_fleet_one_that_refuses_says_why(board: Board) -> None:
    guards = ToolEntry(name="search", shared=[], alone="each guards by itself: gone")
    refuses = ToolEntry(name="search", shared=[], alone="calls are refused: gone", shut=True)
    shown(board, process("a"), guards)
    shown(board, process("b"), refuses)
    shown(board, process("c"), ToolEntry(name="search", shared=["circuit"]))

    (line,) = board.tools()

    assert (line.sharing, line.alone, line.why_alone) == (3, 2, "calls are refused: gone")
    assert line.refuses


def test_the_worst_come_first(board: Board, clock: ManualClock) -> None:
    now = int(NOON * 1000)
    shown(
        board,
        process(),
        ToolEntry(name="a", state="off"),
        ToolEntry(name="b"),
        ToolEntry(name="c", state="half_open"),
        ToolEntry(name="d", state="open", until_ms=now + 1),
        ToolEntry(name="e", state="open", until_ms=now),
    )

    assert [line.name for line in board.tools()] == ["d", "e", "c", "b", "a"]


def test_nothing_is_made_on_disk_by_looking(tmp_path: Path) -> None:
    with SqliteRunStore(tmp_path / "runs.db") as store:
        board = Board(store)

        assert (board.tools(), board.servers(), board.names(), board.tool("x")) == ([], [], [], None)

    assert list(tmp_path.iterdir()) == []


def test_what_somebody_says_of_a_server_is_cut_and_made_safe_to_show() -> None:
    long = "x" * 100_000

    entry = server(
        {
            "name": "a\x1b[31m",
            "target": long,
            "state": None,
            "pid": "no",
            "stderr": [long] * 1000,
            "server_info": {"v": 1},
        }
    )

    assert len(entry.target) < LONGEST_TEXT + 50
    assert [len(line) < LONGEST_TEXT + 50 for line in entry.stderr] == [True] * MOST_LINES
    assert (entry.name, entry.pid, entry.server_info) == (r"a\x1b[31m", None, {})


# --- who is there ---


def test_a_process_that_gives_no_sign_of_life_is_left_out_and_swept(board: Board, clock: ManualClock) -> None:
    shown(board, process("dead", until=15.0), ToolEntry(name="x"))
    shown(board, process("alive", until=60.0), ToolEntry(name="y"))

    clock.advance(15.0)

    assert [each.id for each in board.processes()] == ["alive"]
    assert board.names() == ["y"]
    clock.advance(KEPT / 1000)
    assert board.sweep() == 2
    assert board.sweep() == 0


@pytest.mark.parametrize("open_", sorted(SHARED), indirect=True)
def test_what_a_process_counted_stays_for_a_while_after_its_end(
    open_: Open, store: RunStore, clock: ManualClock
) -> None:
    other, board = open_(clock=clock), Board(store)
    row = other.ownership.row()
    shown(Board(other), process(row.id, host=row.host, pid=row.pid), ToolEntry(name="x", calls=3))
    assert board.ended() == []

    other.close()

    assert [(each.id, [tool.calls for tool in tools]) for each, tools in board.ended()] == [(row.id, [3])]
    assert board.sweep() == 0
    clock.advance(KEPT / 1000)
    assert board.ended() == []
    assert board.sweep() == 1


def test_a_process_that_closes_its_store_is_gone_at_once(open_: Open, store: RunStore, clock: ManualClock) -> None:
    other = open_(clock=clock)
    row = other.ownership.row()
    board = Board(other)
    shown(board, process(row.id, host=row.host, pid=row.pid), ToolEntry(name="x"))

    other.close()

    assert Board(store).tools() == []


def test_a_process_whose_lock_is_free_is_gone_although_its_time_is_not_over(tmp_path: Path) -> None:
    with SqliteRunStore(tmp_path / "runs.db") as store, SqliteRunStore(tmp_path / "runs.db") as other:
        row = other.ownership.row()
        shown(Board(other), process(row.id, host=row.host, until=10**6), ToolEntry(name="x"))
        assert Board(store).names() == ["x"]

        other.ownership.end()

        assert Board(store).names() == []


def test_a_process_whose_lock_is_held_is_there_although_its_time_is_over(tmp_path: Path) -> None:
    with SqliteRunStore(tmp_path / "runs.db") as store, SqliteRunStore(tmp_path / "runs.db") as other:
        row = other.ownership.row()

        shown(Board(other), process(row.id, host="another name", until=-(10**9)), ToolEntry(name="x"))

        assert Board(store).names() == ["x"]


# --- orders ---


def test_the_last_order_for_a_tool_is_the_one_that_counts(board: Board) -> None:
    board.order("open", ["a", "b"])
    board.order("close", ["a"])
    board.order("auto", ["b"])

    assert [(order.tool, order.state) for order in board.orders()] == [("a", "closed"), ("b", None)]


def test_orders_after_a_number_are_those_that_are_new(board: Board) -> None:
    board.order("open", ["a"])
    last = board.orders()[-1].number

    board.order("open", ["b"])

    assert [order.tool for order in board.orders(last)] == ["b"]


def test_a_reset_is_remembered_when_another_order_follows_it(board: Board) -> None:
    board.order("open", ["a"])
    (before,) = board.orders()

    board.order("reset", ["a"])
    board.order("open", ["a"])

    (order,) = board.orders()
    assert (order.state, order.reset) == ("open", before.number + 1)


def test_an_order_that_holds_nothing_is_forgotten_after_a_day_and_no_number_is_given_twice(
    board: Board, clock: ManualClock
) -> None:
    board.order("open", ["held"])
    board.order("auto", ["old"])
    board.order("reset", ["last"])
    orders = board.orders()
    assert [order.tool for order in orders] == ["held", "old", "last"]

    clock.advance(FORGOTTEN / 1000 + 1)
    board.order("auto", [])
    board.order("open", ["new"])

    assert [order.tool for order in board.orders()] == ["held", "new"]
    assert board.orders()[-1].number > orders[-1].number


def test_an_order_that_is_given_again_is_kept_for_a_day_from_then(board: Board, clock: ManualClock) -> None:
    board.order("auto", ["again"])
    clock.advance(FORGOTTEN / 1000)
    board.order("auto", ["again"])
    clock.advance(FORGOTTEN / 1000)

    board.order("auto", ["last"])

    assert [order.tool for order in board.orders()] == ["again", "last"]


def test_a_tool_that_is_held_is_listed_although_no_process_has_it(board: Board) -> None:
    board.order("open", ["ghost"])
    board.order("auto", ["free"])

    assert states(board) == [("ghost", "open")]
    assert board.names() == ["ghost"]
    line = board.tool("ghost")
    assert line is not None
    assert (line.refuses, line.forced, line.processes) == (True, "open", [])


@pytest.mark.parametrize(
    ("orders", "state", "forced"),
    [
        (["open"], "open", "open"),
        (["close"], "closed", "closed"),
        (["open", "auto"], "half_open", None),
        (["reset"], "closed", None),
        (["reset", "auto"], "closed", None),
        (["reset", "open", "auto"], "closed", None),
    ],
)
def test_an_idle_process_is_shown_as_it_will_be_with_its_next_call(
    board: Board, orders: list[str], state: str, forced: str | None
) -> None:
    shown(board, process(seen=0), ToolEntry(name="x", state="half_open", automatic="half_open"))

    for order in orders:
        board.order(order, ["x"])

    (line,) = board.tools()
    assert (line.state, line.processes[0].tool.forced, line.processes[0].pending) == (state, forced, True)


def test_an_idle_process_that_is_reset_has_failed_at_nothing(board: Board) -> None:
    entry = ToolEntry(
        name="x", state="open", automatic="open", failure_count=3, until_ms=1, backoff_ms=5, opened_at_ms=1,
        times_opened=2, probes_in_flight=1,
    )  # fmt: skip
    shown(board, process(seen=0), entry)

    board.order("reset", ["x"])

    tool = board.tools()[0].processes[0].tool
    assert (tool.failure_count, tool.backoff_ms, tool.opened_at_ms, tool.probes_in_flight) == (0, 0, None, 0)
    assert tool.times_opened == 2


def test_an_order_that_is_taken_up_while_the_board_is_read_is_not_shown_as_undone(
    board: Board, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown(board, process(), ToolEntry(name="search"))
    board.order("open", ["search"])
    read = store.file.fetch

    def interrupted(name: str, *parameters: object) -> list[tuple[Any, ...]]:
        rows = read(name, *parameters)
        if name == "tools":
            shown(Board(store), process(seen=1), ToolEntry(name="search", state="open", forced="open"))
        return rows

    monkeypatch.setattr(store.file, "fetch", interrupted)

    assert states(board) == [("search", "open")]


def test_an_order_that_was_taken_up_is_not_pending(board: Board) -> None:
    board.order("open", ["x"])
    (order,) = board.orders()

    shown(board, process(seen=order.number), ToolEntry(name="x", state="half_open", automatic="half_open"))

    (line,) = board.tools()
    assert (line.state, line.processes[0].pending) == ("half_open", False)


def test_a_tool_without_a_breaker_cannot_be_held(board: Board) -> None:
    shown(board, process(), ToolEntry(name="x", state="off", automatic="off"))

    board.order("open", ["x"])

    assert states(board) == [("x", "off")]


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb"])
def test_a_name_that_no_tool_can_have_is_a_config_error(board: Board, name: str) -> None:
    with pytest.raises(ConfigError, match="tool name"):
        board.order("open", [name])

    assert board.orders() == []


def test_an_order_that_is_none_is_a_config_error(board: Board) -> None:
    with pytest.raises(ConfigError, match="order"):
        board.order("shut", ["x"])


@pytest.mark.parametrize("kind", sorted(SHARED))
def test_an_order_pokes_the_processes_on_the_board(kind: str, tmp_path: Path) -> None:
    opens = opener(kind, tmp_path)
    with opens() as store, opens() as other:
        row = other.ownership.row()
        shown(Board(other), process(row.id, host=row.host), ToolEntry(name="x"))
        other.ownership.poked()  # who has just come may be told to look
        assert not other.ownership.poked()
        mailbox = other.ownership.mailbox()
        assert mailbox is not None

        Board(store).order("open", ["x"])

        assert mailbox.wait(30)
        assert other.ownership.poked()
        assert not other.ownership.poked()
        mailbox.close()


# --- the file ---


def test_the_parameters_of_a_statement_stand_in_their_order_and_have_no_numbers() -> None:
    shared = schema.by_name(schema.read_sql(schema.FOLDER, "shared.sql"))
    numbers = {name: [int(each) for each in re.findall(r"\$(\d+)", text)] for name, text in shared.items()}

    assert {name for name, found in numbers.items() if found != [*range(1, len(found) + 1)]} == set()
    assert {name for name, text in schema.statements().items() if re.search(r"\?\d", text)} == set()


def test_a_file_of_the_first_schema_gets_a_board_and_keeps_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = tmp_path / "runs.db", tmp_path / "sql"
    folder.mkdir()
    for name in ("001_runs.sql", "shared.sql", "statements.sql"):
        shutil.copy(Path(schema.__file__).with_name("sql") / name, folder)
    with monkeypatch.context() as old:
        old.setattr(schema, "FOLDER", str(folder))
        old.setattr(schema, "SCHEMA", 1)
        with SqliteRunStore(path) as store:
            store.create_run("s", "p", run_id="r")
            store.ownership.end = lambda: None  # type: ignore[method-assign]  # the old code knew no board

    with SqliteRunStore(path) as store:
        Board(store).order("open", ["x"])

        assert states(Board(store)) == [("x", "open")]
        assert store.snapshot("r").prompt == "p"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.SCHEMA,)


@pytest.mark.parametrize(
    "table", ["tools SET entry = x'c1'", "processes SET servers = 'no'", "orders SET number = 'x'"]
)
def test_a_damaged_row_is_a_store_error(tmp_path: Path, table: str) -> None:
    path = tmp_path / "runs.db"
    with SqliteRunStore(path) as store:
        board = Board(store)
        shown(board, process(until=10**9), ToolEntry(name="x"))
        board.order("open", ["x"])
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"UPDATE {table}")
            connection.commit()

        with pytest.raises(StoreError, match="damaged"):
            board.tools()
