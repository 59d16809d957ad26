"""`holdfast tools`: what it shows of all processes on a store, and that its orders reach them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.children import ask, said, until
from tests.publishing.children import children

from holdfast import cli
from holdfast.cli import tools as page
from holdfast.clock import SystemClock
from holdfast.stores import SqliteRunStore
from holdfast.stores.board import Board
from holdfast.stores.entries import Process, ServerEntry, ToolEntry, pack

Tools = Callable[..., tuple[int, str, str]]


@pytest.fixture
def board(path: Path) -> Iterator[Board]:
    with SqliteRunStore(path) as store:
        yield Board(store)


@pytest.fixture
def tools(path: Path, capsys: pytest.CaptureFixture[str]) -> Tools:
    def tools(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main(["tools", *arguments, "--store", str(path)])
        return code, *capsys.readouterr()

    return tools


@pytest.fixture
def start() -> Iterator[Any]:
    with children() as start:
        yield start


def show(board: Board, *entries: ToolEntry, id: str = "a", servers: tuple[str, ...] = ()) -> None:
    """A process of another host that will live for a while."""
    now = int(SystemClock.time() * 1000)
    process = Process(
        id=id, host="elsewhere", pid=7, kind="proxy", name="agent.py", at_ms=now, until_ms=now + 600_000,
        servers=[ServerEntry(name=name) for name in servers],
    )  # fmt: skip
    board.publish(process, [(entry.name, pack(entry)) for entry in entries])


def entry(name: str, **facts: Any) -> ToolEntry:
    return ToolEntry(name=name, **facts)


def far(hours: float = 20.0) -> int:
    """A time so far away that the machine may be slow meanwhile."""
    return int((SystemClock.time() + hours * 3600) * 1000)


# --- ls and show ---


def test_a_line_a_tool_the_worst_first(board: Board, tools: Tools) -> None:
    show(board, entry("fine", calls=3, successful=3, p50_ms=0.5, p95_ms=20.0, in_flight=1, limit=2, waiting=3))
    show(board, entry("fine", calls=1, successful=1), id="b")
    show(
        board,
        entry("bad", state="open", until_ms=far(), calls=4, failed=1, successful=3, rate=2.0, full_rate=10.0),
        entry("worse", state="open", forced="open", last_error="E: no\nmore"),
        id="c",
        servers=("worse",),
    )
    board.order("open", ["worse"])

    code, out, err = tools("ls")

    lines = [line.split() for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert " ".join(lines[0]) == "tool circuit probe procs calls failed p50 p95 in flight rate last error"
    assert lines[1:] == [
        ["bad", "open", "20", "h", "1", "4", "25%", "2/s", "of", "10/s"],
        ["worse", "(server)", "open", "(held)", "1", "0", "E:", "no", "more"],
        ["fine", "closed", "2", "4", "0%", "500", "µs", "20", "ms", "1", "/", "2", "+", "3"],
    ]


def test_few_failures_are_not_none(board: Board, tools: Tools) -> None:
    show(board, entry("mostly", calls=1000, failed=1, successful=999))

    _, out, _ = tools("ls")

    assert "<1%" in out


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_list_fits_the_terminal(board: Board, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    show(
        board,
        entry("a_tool_of_some_length", state="open", until_ms=far(), calls=1234, failed=1000, successful=234,
              p50_ms=1234.0, p95_ms=99_999.0, in_flight=12, limit=20, waiting=5, rate=2.0, full_rate=10.0,
              last_error="ConnectionError: " + "the line is dead, " * 10),
    )  # fmt: skip
    screen = Console(width=width, force_terminal=True, color_system=None, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with screen.file:
        page._put_lines(screen, board.tools())

    lines = screen.export_text().splitlines()
    assert len(lines) == 2
    assert "open" in lines[1]
    assert "81%" in lines[1]  # names are cut before numbers
    assert all(len(line) <= width for line in lines)


def test_a_store_without_tools_says_so(tools: Tools, path: Path) -> None:
    assert tools("ls") == (0, "", f"holdfast: no process shows a tool in {path}\n")
    assert not path.exists()


def test_programs_get_everything(board: Board, tools: Tools) -> None:
    show(board, entry("x", calls=3))

    _, out, _ = tools("ls", "--json")

    (line,) = json.loads(out)
    assert (line["name"], line["state"], line["calls"], line["processes"][0]["tool"]["calls"]) == ("x", "closed", 3, 3)
    assert line["processes"][0]["tool"]["probes_in_flight"] == 0


def test_one_tool_is_shown_process_by_process(board: Board, tools: Tools) -> None:
    show(
        board,
        entry("x", state="open", until_ms=far(), times_opened=2, calls=3, failed=2, cached=1, denied=4, mean_ms=1.0,
              p50_ms=1.0, p95_ms=2.0, p99_ms=3.0, last_error="E: no", last_error_at_ms=far(-1), limit=3,
              in_flight=2, waiting=1, rate=5.0, full_rate=5.0, failure_count=2),
    )  # fmt: skip
    show(board, entry("x"), id="b")

    code, out, _ = tools("show", "x")

    assert code == 0
    for fact in (
        "tool        x", "state       open", "process     7 on elsewhere (agent.py, proxy)", "wait        20 h",
        "opened      2 times", "failures    2 in a row", "calls       3 (2 failed, 1 cached); 4 refused",
        "durations   mean 1 ms, p50 1 ms, p95 2 ms, p99 3 ms", "in flight   2 of 3, 1 waiting", "rate        5/s",
        "last error  E: no", "circuit     closed",
    ):  # fmt: skip
        assert fact in out
    assert out.count("process  ") == 2


def test_a_wait_that_is_over_is_told(board: Board, tools: Tools) -> None:
    show(board, entry("x", state="open", until_ms=far(-1)))

    (_, line), (_, shown, _) = tools("ls")[1].splitlines(), tools("show", "x")

    assert line.split()[:3] == ["x", "open", "now"]
    assert "wait        over: the next call probes" in shown


def test_a_tool_that_nobody_shows_ends_with_1(tools: Tools) -> None:
    assert tools("show", "nobody") == (1, "", "holdfast: no process shows a tool called nobody\n")


def test_what_a_name_or_an_error_holds_does_nothing_to_the_terminal(board: Board, tools: Tools) -> None:
    show(board, entry("x\u202e", state="open", last_error="\x1b[31mred"))

    for command in (("ls",), ("ls", "--json"), ("show", "x\u202e")):
        _, out, _ = tools(*command)
        assert "\x1b" not in out
        assert "\u202e" not in out


# --- orders ---


def test_an_order_is_stored_and_says_how_many_processes_it_is_for(board: Board, tools: Tools) -> None:
    show(board, entry("x"))
    show(board, entry("x"), id="b")

    assert tools("open", "x") == (0, "x  held open in 2 processes\n", "")

    assert [(order.tool, order.state) for order in board.orders()] == [("x", "open")]


@pytest.mark.parametrize(
    ("verb", "said_", "state"),
    [
        ("open", "held open", "open"),
        ("close", "held closed", "closed"),
        ("auto", "automatic", None),
        ("reset", "reset", None),
    ],
)
def test_each_order_has_its_word(board: Board, tools: Tools, verb: str, said_: str, state: str | None) -> None:
    show(board, entry("x"))

    _, out, _ = tools(verb, "x")

    assert out == f"x  {said_} in 1 process\n"
    (order,) = board.orders()
    assert (order.state, order.reset == order.number) == (state, verb == "reset")


def test_a_pattern_means_the_tools_that_are_known(board: Board, tools: Tools) -> None:
    show(board, entry("github.search"), entry("github.create"), entry("slack.post"))

    code, out, _ = tools("close", "github.*", "slack.post")

    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["github.create", "github.search", "slack.post"]


def test_a_pattern_that_nothing_is_like_ends_with_1_and_orders_nothing(board: Board, tools: Tools) -> None:
    show(board, entry("x"))

    assert tools("open", "y*") == (1, "", "holdfast: no tool is like y*\n")
    assert board.orders() == []


def test_an_unknown_name_is_held_for_processes_to_come_with_a_note(board: Board, tools: Tools) -> None:
    code, out, err = tools("open", "later")

    assert (code, out) == (0, "later  held open in 0 processes\n")
    assert err == "holdfast: later: no process shows it now; those to come will have it so\n"
    assert board.names() == ["later"]


def test_a_process_whose_tool_has_no_breaker_brings_a_note_and_does_not_count(board: Board, tools: Tools) -> None:
    show(board, entry("x", state="off"), id="deaf")
    show(board, entry("x"), id="hears")

    code, out, err = tools("open", "x")

    assert (code, out) == (0, "x  held open in 1 process\n")
    assert err == "holdfast: x: its policy has no breaker in 1 process: calls pass there\n"


def test_programs_get_what_became_of_an_order(board: Board, tools: Tools) -> None:
    show(board, entry("x"))

    _, out, err = tools("reset", "x", "--json")

    assert (json.loads(out), err) == ([{"name": "x", "order": "reset", "processes": 1, "note": None}], "")


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_a_name_that_no_tool_can_have_is_wrong_usage(tools: Tools, name: str) -> None:
    code, _, err = tools("open", name)

    assert code == 2
    assert "1 to 200 printable characters" in err


def test_a_store_that_cannot_be_used_ends_with_4(path: Path, tools: Tools) -> None:
    path.write_bytes(b"this is no database at all, " * 100)

    assert tools("ls")[0] == 4
    assert tools("open", "x")[0] == 4


def test_a_policy_file_with_a_mistake_keeps_nobody_from_an_order(
    tmp_path: Path, board: Board, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show(board, entry("search"))
    (tmp_path / "holdfast.toml").write_text('store = "runs.db"\n[policy]\ntimout = 3\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.delenv("HOLDFAST_POLICY", raising=False)

    code = cli.main(["tools", "open", "search"])

    out, err = capsys.readouterr()
    assert (code, out) == (0, "search  held open in 1 process\n")
    assert err.startswith("holdfast: holdfast.toml: [policy] timout = 3: unknown key, did you mean timeout?")
    assert err.endswith("holdfast: the policy file is passed over\n")


@pytest.mark.parametrize("text", ["[policy", "store = 3"])
def test_no_other_store_is_taken_where_the_file_may_name_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "holdfast.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.delenv("HOLDFAST_POLICY", raising=False)

    code = cli.main(["tools", "open", "search"])

    assert code == 2
    assert "holdfast.toml: " in capsys.readouterr().err


def test_orders_reach_a_running_proxy_and_a_running_agent(path: Path, board: Board, tools: Tools, start: Any) -> None:
    agent, proxy = start("agent", path, "search"), start("proxy", path, "github")
    assert [said(agent), said(proxy), ask(agent, "ok search")] == ["ready", "ready", "done"]
    until(lambda: board.names() == ["github", "search"])

    tools("open", "*")

    assert said(proxy) == "circuit_opened github"
    lines = {line["name"]: line["state"] for line in json.loads(tools("ls", "--json")[1])}
    assert lines == {"github": "open", "search": "open"}
    until(lambda: not any(each.pending for line in board.tools() for each in line.processes))
    assert ask(agent, "ok search") == "denied"
