"""Processes on one store see and steer each other's tools, alive, idle and dead; and no call pays for it."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.children import PATIENCE, ask, fork, said, until
from tests.publishing.children import children

import holdfast
from holdfast import ConfigError
from holdfast.publishing import Publisher, display
from holdfast.stores import SqliteRunStore
from holdfast.stores.board import Board
from holdfast.stores.entries import ToolLine

POLICIES = {"policy": {"breaker": {"failure_threshold": 1, "min_backoff": 100.0}, "retry": False}}


@pytest.fixture
def start() -> Iterator[Any]:
    with children() as start:
        yield start


def line(board: Board, tool: str) -> ToolLine | None:
    return board.tool(tool)


def state(board: Board, tool: str) -> str | None:
    found = board.tool(tool)
    return found.state if found is not None else None


def taken_up(board: Board, tool: str) -> bool:
    found = board.tool(tool)
    return found is not None and not any(each.pending for each in found.processes)


OTHERS: set[threading.Thread] = set()  # threads of tests that came before


@pytest.fixture(autouse=True)
def others() -> None:
    OTHERS.clear()
    OTHERS.update(threading.enumerate())


def publishers() -> list[threading.Thread]:
    found = (thread for thread in threading.enumerate() if thread.name == "holdfast-publisher")
    return [thread for thread in found if thread not in OTHERS]


def idle() -> None:
    until(lambda: not publishers(), "the end of an idle publisher")


def fails() -> str:
    raise ConnectionError("the line is dead")


# --- what is shown, and when ---


def test_a_process_on_a_named_store_shows_its_tools_from_its_first_call_on(path: Path, board: Board) -> None:
    with holdfast.open(path, policies=POLICIES) as hf:
        search = hf.tool("search", rate="10/s", concurrency=3)(lambda: "found")
        hf.tool("unused")(lambda: None)
        assert not path.exists()

        search()

        until(lambda: (found := board.tool("search")) is not None and found.calls == 1, "the call")
        assert board.names() == ["search", "unused"]
        (each,) = board.tool("search").processes  # type: ignore[union-attr]
        assert (each.pid, each.kind, each.tool.full_rate, each.tool.in_flight) == (os.getpid(), "library", 10.0, 0)


def test_a_process_on_the_store_of_the_user_shows_nothing_before_its_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with holdfast.open(policies={}) as hf:
        search = hf.tool("search")(lambda: "found")
        search()
        assert list(tmp_path.iterdir()) == []
        assert not publishers()

        with hf.run():
            search()

        with SqliteRunStore(tmp_path / "holdfast" / "runs.db") as store:
            until(lambda: (found := Board(store).tool("search")) is not None and found.calls == 2, "both calls")


def test_a_store_in_memory_has_no_publisher() -> None:
    with holdfast.open(":memory:", policies={}) as hf, hf.run():
        hf.tool("search")(lambda: "found")()

        assert not publishers()
        assert Board(hf.runs).tools() == []


def test_a_process_that_asks_for_it_shows_its_tools_in_memory_too() -> None:
    with holdfast.open(":memory:", policies=POLICIES) as hf:
        hf.tool("search")(lambda: "found")
        hf.publish(name="me")
        board = Board(hf.runs)
        until(lambda: state(board, "search") == "closed", "the tool")

        board.order("open", ["search"])

        until(lambda: state(board, "search") == "open" and taken_up(board, "search"), "the order")
        assert hf.breaker.state("search") == "open"


def test_a_transition_is_shown_with_the_error_that_caused_it(path: Path, board: Board) -> None:
    with holdfast.open(path, policies=POLICIES) as hf:
        with pytest.raises(ConnectionError):
            hf.tool("charge")(fails)()

        until(lambda: state(board, "charge") == "open", "the transition")
        found = board.tool("charge")
        assert found is not None
        assert (found.last_error, found.failed) == ("ConnectionError: the line is dead", 1)
        assert found.remaining_ms is not None
        assert 90_000 < found.remaining_ms < 120_000


def test_a_call_that_ends_long_after_the_publisher_is_shown(path: Path, board: Board) -> None:
    with holdfast.open(path, policies=POLICIES) as hf:
        go, begun = threading.Event(), threading.Event()

        @hf.tool("slow")
        def slow() -> None:
            begun.set()
            assert go.wait(PATIENCE)

        hf.tool("quick")(lambda: None)()
        slow_twice = threading.Thread(target=lambda: (go.set(), slow(), begun.clear(), go.clear(), slow()))
        slow_twice.start()
        until(lambda: begun.is_set() and not go.is_set(), "the second call, which takes the quick path")
        idle()
        assert board.tool("slow").calls == 1  # type: ignore[union-attr]

        go.set()
        slow_twice.join()

        until(lambda: board.tool("slow").calls == 2, "the end of the call")  # type: ignore[union-attr]


def test_an_idle_process_has_no_thread_and_its_next_call_is_shown(path: Path, board: Board) -> None:
    with holdfast.open(path, policies=POLICIES) as hf:
        search = hf.tool("search")(lambda: "found")
        search()
        idle()
        assert board.names() == ["search"]

        search()

        until(lambda: board.tool("search").calls == 2, "the second call")  # type: ignore[union-attr]


def test_while_nothing_changes_nothing_is_written(path: Path, board: Board) -> None:
    with holdfast.open(path, policies=POLICIES) as hf:
        hf.tool("search")(lambda: "found")()
        hf.publish()
        until(lambda: hf._publisher._dozing, "rest")
        before = [each.at_ms for each in board.processes()]

        hf.publish_soon()
        until(lambda: not hf._publisher._urgent and hf._publisher._dozing, "rest again")

        assert [each.at_ms for each in board.processes()] == before


def test_more_tools_than_one_write_takes_are_all_shown_in_the_end(
    path: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "MOST_AT_ONCE", 3)
    monkeypatch.setattr(display, "PERIOD", 0.05)
    with holdfast.open(path, policies=POLICIES) as hf:
        tools = [hf.tool(f"tool_{number:02}")(lambda: None) for number in range(20)]

        for tool in tools:
            tool()

        until(lambda: [found.calls for found in board.tools()] == [1] * 20, "all tools")


def test_what_one_write_does_not_take_waits_for_no_period(
    path: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "MOST_AT_ONCE", 3)
    monkeypatch.setattr(display, "PERIOD", 3600.0)
    with holdfast.open(path, policies=POLICIES) as hf:
        tools = [hf.tool(f"tool_{number:02}")(lambda: None) for number in range(20)]

        tools[0]()  # from then on all are shown

        until(lambda: len(board.names()) == 20, "all tools")


def test_an_order_is_taken_up_while_there_is_more_to_show_than_one_write_takes(
    path: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "MOST_AT_ONCE", 0)
    with holdfast.open(path, policies=POLICIES) as hf:
        hf.tool("search")(lambda: "found")()
        until(board.processes, "the process")

        board.order("open", ["search"])

        until(lambda: hf.breaker.state("search") == "open", "the order")


def test_a_name_that_nobody_knows_any_more_is_not_looked_at_again(path: Path) -> None:
    with holdfast.open(path, policies=POLICIES) as hf:
        hf._publisher._display.publish({"nobody": None}, 0)

        assert hf._publisher._display.recent == {}


def test_of_more_names_than_can_be_shown_those_that_nobody_has_are_passed_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "MOST_TOOLS", 5)
    monkeypatch.setattr(display, "MOST_AT_ONCE", 1)
    with holdfast.open(path, policies=POLICIES) as hf:
        hf.tool("search")(lambda: "found")

        hf._publisher._display.publish(dict.fromkeys(["search", *map(str, range(20))]), 0)

        assert set(hf._publisher._display.recent) == {"search"}


def test_details_go_with_the_names_that_are_no_longer_shown(
    path: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "PERIOD", 0.05)
    monkeypatch.setattr(display, "MOST_TOOLS", 5)
    with holdfast.open(path, policies=POLICIES) as hf:
        for number in range(12):
            hf.tool(f"tool_{number:02}")(lambda: None)()
            until(lambda: f"tool_{number:02}" in board.names(), "the tool")  # noqa: B023
        idle()

        assert set(hf._publisher._display.pictures._detailed) == set(board.names())


def test_a_process_shows_so_many_tools_and_no_more(path: Path, board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "MOST_TOOLS", 5)
    with holdfast.open(path, policies=POLICIES) as hf:
        for number in range(5):
            hf.tool(f"old_{number}")(lambda: None)()
        until(lambda: len(board.names()) == 5, "the first tools")

        hf.tool("new")(lambda: None)()

        until(lambda: "new" in board.names(), "the new one")
        assert len(board.names()) == 5


# --- orders ---


def test_orders_reach_a_busy_process(path: Path, board: Board, start: Any) -> None:
    agent = start("agent", path, "search")
    assert said(agent) == "ready"
    assert ask(agent, "ok search") == "done"
    until(lambda: state(board, "search") == "closed", "the tool")

    board.order("open", ["search"])
    until(lambda: taken_up(board, "search"), "the order to be taken up")
    assert ask(agent, "state search") == "open"
    assert ask(agent, "ok search") == "denied"

    board.order("auto", ["search"])
    until(lambda: taken_up(board, "search"), "the second order")
    assert ask(agent, "ok search") == "done"


def test_orders_reach_an_idle_process_before_its_next_call(path: Path, board: Board) -> None:
    with holdfast.open(path, policies=POLICIES) as hf:
        charge = hf.tool("charge")(lambda fails: (_ for _ in ()).throw(ConnectionError) if fails else "done")
        with pytest.raises(ConnectionError):
            charge(True)
        with pytest.raises(holdfast.CircuitOpen):
            charge(False)
        until(lambda: state(board, "charge") == "open", "the transition")
        idle()

        board.order("close", ["charge"])

        assert state(board, "charge") == "closed"
        assert charge(False) == "done"
        until(lambda: taken_up(board, "charge"), "the order")


def test_an_order_reaches_an_idle_process_that_is_woken_by_something_else_than_a_call(
    path: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "PERIOD", 0.05)
    with holdfast.open(path, policies=POLICIES) as hf:
        hf.tool("search")(lambda: "found")()
        until(lambda: state(board, "search") == "closed", "the tool")
        idle()
        board.order("open", ["search"])

        hf.breaker.force_open("charge")

        until(lambda: hf.breaker.state("search") == "open", "the order")


def test_a_reset_closes_and_forgets_the_failures(path: Path, board: Board, start: Any) -> None:
    agent = start("agent", path, "charge")
    assert said(agent) == "ready"
    assert [ask(agent, "fail charge"), ask(agent, "ok charge")] == ["failed", "denied"]
    until(lambda: state(board, "charge") == "open", "the transition")

    board.order("reset", ["charge"])

    until(lambda: taken_up(board, "charge"), "the order")
    assert ask(agent, "ok charge") == "done"


def test_a_tool_that_is_held_is_held_in_later_processes_from_the_first_call_on(
    path: Path, board: Board, start: Any
) -> None:
    board.order("open", ["search"])

    agent = start("agent", path, "search", "charge")

    assert said(agent) == "ready"
    assert [ask(agent, "ok search"), ask(agent, "ok charge")] == ["denied", "done"]
    board.order("auto", ["search"])
    until(lambda: taken_up(board, "search"), "the order")
    assert ask(agent, "ok search") == "done"


def test_an_order_reaches_a_tool_that_was_not_called_yet(path: Path, board: Board) -> None:
    with holdfast.open(path, policies=POLICIES) as hf:
        hf.tool("other")(lambda: None)()
        until(lambda: board.names() == ["other"], "the process")

        board.order("open", ["later"])

        until(lambda: hf.breaker.state("later") == "open", "the order")
        with pytest.raises(holdfast.CircuitOpen):
            hf.tool("later")(lambda: None)()


def test_what_was_ordered_before_a_process_began_does_not_reset_it(path: Path, board: Board) -> None:
    board.order("reset", ["charge"])
    board.order("auto", ["search"])
    with holdfast.open(path, policies=POLICIES) as hf:
        hf.breaker.force_open("search")
        with pytest.raises(ConnectionError):
            hf.tool("charge")(fails)()

        until(lambda: state(board, "charge") == "open", "the process")

        assert hf.breaker.state("search") == "open"
        assert hf.breaker.state("charge") == "open"


def test_what_code_forced_an_order_may_release(path: Path, board: Board) -> None:
    with holdfast.open(path, policies=POLICIES) as hf:
        search = hf.tool("search")(lambda: "found")
        search()
        hf.breaker.force_open("search")
        until(lambda: state(board, "search") == "open", "the force")

        board.order("auto", ["search"])

        until(lambda: hf.breaker.state("search") == "closed", "the order")


# --- proxies ---


def test_a_proxy_is_there_for_orders_while_it_is_idle_and_so_is_the_circuit_of_its_server(
    path: Path, board: Board, start: Any
) -> None:
    proxy = start("proxy", path, "github")
    assert said(proxy) == "ready"
    until(lambda: state(board, "github") == "closed", "the server's circuit")
    assert board.tool("github").is_server  # type: ignore[union-attr]

    board.order("open", ["github"])

    assert said(proxy) == "circuit_opened github"
    until(lambda: taken_up(board, "github"), "the order")
    assert state(board, "github") == "open"


def test_a_change_of_a_server_is_shown_when_the_proxy_says_so(path: Path, board: Board, start: Any) -> None:
    proxy = start("proxy", path, "github")
    assert said(proxy) == "ready"
    until(lambda: [each.server.state for each in board.servers()] == ["starting"], "the server")

    ask(proxy, "ready")

    until(lambda: [each.server.state for each in board.servers()] == ["ready"], "the change")
    (found,) = board.servers()
    assert (found.proxy, found.proxy_pid, found.server.restarts, found.server.stderr) == (
        "github",
        proxy.pid,
        2,
        ["oh no"],
    )


def test_servers_that_cannot_be_asked_are_logged_and_the_tools_are_shown(
    path: Path, board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> list[dict[str, object]]:
        raise RuntimeError("no idea")

    with holdfast.open(path, policies=POLICIES) as hf:
        hf.tool("search")(lambda: "found")

        hf.publish(kind="proxy", name="github", servers=broken)

        until(lambda: board.names() == ["search"], "the tool")
    assert "RuntimeError: no idea" in caplog.text


def test_servers_that_can_never_be_asked_are_logged_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rounds: list[None] = []

    def broken() -> list[dict[str, object]]:
        rounds.append(None)
        raise RuntimeError("no idea")

    with caplog.at_level(logging.WARNING), holdfast.open(path, policies=POLICIES) as hf:
        hf.publish(kind="proxy", name="github", servers=broken)
        for number in range(1, 4):
            until(lambda number=number: len(rounds) >= number, "the next round")  # type: ignore[misc]
            hf.publish_soon()

    assert [record.getMessage() for record in caplog.records] == [
        "the servers behind this process cannot be shown to other processes: RuntimeError: no idea"
    ]


def test_servers_that_cannot_be_asked_for_are_a_config_error(path: Path) -> None:
    with (
        holdfast.open(path, policies=POLICIES) as hf,
        pytest.raises(ConfigError, match="servers = 5: must be callable"),
    ):
        hf.publish(servers=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"kind": 5}, {"name": b"github"}])
def test_a_process_is_named_by_texts(path: Path, wrong: dict[str, Any]) -> None:
    with holdfast.open(path, policies=POLICIES) as hf, pytest.raises(ConfigError, match="must be texts"):
        hf.publish(**wrong)


# --- ends ---


def test_the_tools_of_a_killed_process_are_gone_at_once(path: Path, board: Board, start: Any) -> None:
    agent: subprocess.Popen[str] = start("agent", path, "search")
    assert said(agent) == "ready"
    assert ask(agent, "ok search") == "done"
    until(lambda: board.names() == ["search"], "the tool")

    agent.send_signal(signal.SIGKILL)
    agent.wait()

    assert board.tools() == []


def test_a_closed_holdfast_shows_nothing_and_works_on(path: Path, board: Board) -> None:
    hf = holdfast.open(path, policies=POLICIES)
    search = hf.tool("search")(lambda: "found")
    search()
    until(lambda: board.names() == ["search"], "the tool")

    hf.close()

    assert board.names() == []
    assert search() == "found"
    assert not publishers()


@pytest.mark.parametrize("after", [idle, lambda: None], ids=["idle", "busy"])
def test_a_forked_child_is_a_process_of_its_own(path: Path, board: Board, after: Callable[[], None]) -> None:
    with holdfast.open(path, policies=POLICIES) as hf:
        search = hf.tool("search")(lambda: "found")
        search()
        until(lambda: board.names() == ["search"], "the parent")
        after()
        read, write = os.pipe()

        pid = fork()
        if pid == 0:
            try:
                os.close(write)
                search()
                os.read(read, 1)  # also ends with the parent
            finally:
                os._exit(0)

        until(lambda: {each.pid for each in board.processes()} == {os.getpid(), pid}, "the child")
        os.close(write)
        os.waitpid(pid, 0)
        os.close(read)
        assert [each.pid for each in board.processes()] == [os.getpid()]


def test_what_the_parent_counted_is_not_counted_by_its_child(path: Path, board: Board) -> None:
    with holdfast.open(path, policies=POLICIES) as hf:
        flaky = hf.tool("flaky")(lambda number: 1 / number)
        for number in (1, 1, 0):
            with contextlib.suppress(ZeroDivisionError):
                flaky(number)
        read, write = os.pipe()

        pid = fork()
        if pid == 0:
            try:
                os.close(write)
                with contextlib.suppress(holdfast.CircuitOpen):
                    flaky(1)
                os.read(read, 1)  # also ends with the parent
            finally:
                os._exit(0)

        def counted() -> dict[int, tuple[int, int, int]]:
            found = board.tool("flaky")
            shown = [] if found is None else found.processes
            return {each.pid: (each.tool.calls, each.tool.denied, each.tool.times_opened) for each in shown}

        until(lambda: counted() == {pid: (0, 1, 0), os.getpid(): (3, 0, 1)}, "what each has counted")
        os.close(write)
        os.waitpid(pid, 0)
        os.close(read)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is loaded to watch files with")
def test_a_fork_while_the_publisher_loads_a_module_is_shown(path: Path, board: Board, start: Any) -> None:
    child = start("forking", path)

    pids = {int(said(child)), int(said(child))}

    until(lambda: {each.pid for each in board.processes()} == pids, "both")


def test_a_store_that_cannot_be_made_disturbs_no_call_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "PERIOD", 0.01)
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING), holdfast.open(tmp_path / "file" / "runs.db", policies=POLICIES) as hf:
        search = hf.tool("search")(lambda: "found")

        for _ in range(5):
            assert search() == "found"
            idle()

    assert len([record for record in caplog.records if "shown to other processes" in record.message]) == 1


def test_a_process_whose_files_were_closed_under_it_still_makes_its_calls(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(display, "PERIOD", 0.05)
    with holdfast.open(path, policies=POLICIES) as hf:
        search = hf.tool("search")(lambda: "found")
        search()
        idle()
        held: Any = hf.runs.ownership._held
        for end in os.pipe():  # a daemon closes all files when it begins, and their numbers are others' then
            os.dup2(end, held._fd)
            os.close(end)

        assert search() == "found"
        idle()

    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "cannot be shown" in caplog.text


def test_a_store_that_is_back_shows_what_was_missed(path: Path, board: Board, store_is_away: Any) -> None:
    with holdfast.open(path, policies=POLICIES) as hf:
        search, charge = hf.tool("search")(lambda: "found"), hf.tool("charge")(fails)
        search()
        until(lambda: board.names() == ["charge", "search"], "the tools")
        with store_is_away():
            with pytest.raises(ConnectionError):
                charge()
            idle()

        search()

        until(lambda: state(board, "charge") == "open", "what was missed")


@pytest.fixture
def store_is_away(path: Path) -> Any:
    from contextlib import contextmanager

    @contextmanager
    def away() -> Iterator[None]:
        aside = path.with_name("aside.db")
        path.rename(aside)
        try:
            yield
        finally:
            aside.rename(path)

    return away


# --- what it costs ---


def test_a_call_goes_the_quick_way_but_for_one_a_second(path: Path) -> None:
    from holdfast.testing import ManualClock

    clock = ManualClock()
    told: list[float] = []
    with holdfast.open(path, policies=POLICIES, clock=clock) as hf:
        search = hf.tool("search")(lambda: "found")
        heard = hf._kit.before_call
        hf._kit.before_call = lambda tool, now: (told.append(now), heard(tool, now))[1]

        for _ in range(1000):
            search()
            clock.advance(0.01)

    assert len(told) == 10


# --- beside other threads ---


@pytest.mark.parametrize("runs", [False, True], ids=["before it runs", "as it runs"])
def test_a_thread_that_comes_while_another_closes_leaves_the_store_closed(
    path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    hf = holdfast.open(path, policies={})
    tool = hf.tool("t")(lambda: 1)
    start = threading.Thread.start

    def close_meanwhile(self: threading.Thread) -> None:
        if self.name != "holdfast-publisher":
            start(self)
            return
        monkeypatch.undo()
        if runs:
            start(self)
        hf.close()
        closed.append(not publishers())
        if not runs:
            start(self)

    closed: list[bool] = []
    monkeypatch.setattr(threading.Thread, "start", close_meanwhile)
    tool()

    assert closed == [True]
    until(lambda: not publishers(), "the end of the thread")
    assert hf.runs.ownership.id is None


def test_a_tool_that_is_called_while_its_process_begins_to_show_is_shown(path: Path, board: Board) -> None:
    def heard(tool: str, now: float) -> float:
        hf._publisher.begin()  # another thread, which begins a run
        return math.inf  # nobody wanted to hear when it was asked

    with holdfast.open(path, policies={}) as hf:
        tool = hf.tool("t")(lambda: 1)
        hf._publisher.close()
        hf._kit.before_call = heard
        hf._box.make_periodic_work_due()
        tool()
        tool()

        until(lambda: line(board, "t"), "the tool on the board")


@pytest.mark.parametrize("at", range(12))
def test_who_begins_while_another_closes_is_heard(path: Path, at: int) -> None:
    lines = iter(range(at, -1, -1))

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not Publisher.close.__code__:
            return None
        if event == "line" and next(lines, None) == 0:
            publisher.begin()
        return trace

    with holdfast.open(path, policies={}) as hf:
        publisher, before = hf._publisher, sys.gettrace()
        sys.settrace(trace)
        try:
            publisher.close()
        finally:
            sys.settrace(before)
        publisher.begin()

        assert hf._kit.before_call == publisher.before_call
