"""`holdfast top`: what it shows of other processes, that its keys reach them, and that it leaves the terminal alone.

The tools and runs are those of real processes on a real file; the terminal is Textual's own, and once a real one.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text
from tests.children import ask, said, say
from tests.publishing.children import children

import holdfast
from holdfast import cli
from holdfast.clock import SystemClock
from holdfast.history import RunEventRecord
from holdfast.policy import PolicyBook
from holdfast.stores import SqliteRunStore
from holdfast.stores.board import Board
from holdfast.stores.entries import (
    PolicyValue,
    Process,
    RecentCall,
    ServerEntry,
    ToolDetail,
    ToolEntry,
    Transition,
    pack,
)
from holdfast.stores.ledger import OwnerRow
from holdfast.stores.searching import RunPage, Wanted
from holdfast.top import calls, runs
from holdfast.top.app import Top
from holdfast.top.calls import Scale, Story, bars
from holdfast.top.reading import Look, Picture, wanted
from holdfast.top.run import call_contents
from holdfast.top.sheet import Contents, Sheet
from holdfast.wording.columns import Column

HOLDFAST = Path(sys.executable).with_name("holdfast")
ROOT = Path(__file__).parents[2]
LIMIT = 30.0  # seconds after which a test gives up waiting for what comes within one
HOSTILE = "[bold red]<img onerror=x>[/] \x1b[31m\u202e"
COLOURS = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[0-9;]*m")


@pytest.fixture
def store(path: Path) -> Iterator[SqliteRunStore]:
    with SqliteRunStore(path) as store:
        yield store


@pytest.fixture
def board(store: SqliteRunStore) -> Board:
    return Board(store)


@pytest.fixture
def start() -> Iterator[Any]:
    with children() as start:
        yield start


@pytest.fixture
def top(store: SqliteRunStore) -> Top:
    return Top(store)


def show(board: Board, *entries: ToolEntry, details: dict[str, ToolDetail] | None = None, **facts: Any) -> None:
    """A process of another host that will live for a while."""
    now = int(SystemClock.time() * 1000)
    process = Process(id="a", host="elsewhere", pid=7, name="agent.py", at_ms=now, until_ms=now + 600_000, **facts)
    packed = [(name, pack(detail)) for name, detail in (details or {}).items()]
    board.publish(process, [(entry.name, pack(entry)) for entry in entries], details=packed)


def seen(app: Top) -> str:
    """The screen as text."""
    console = Console(width=app.size.width, height=app.size.height, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(app.screen._compositor.render_update(full=True))
        return console.export_text(styles=False)


def row(app: Top, name: str) -> str:
    """The line on the screen that names something."""
    return next((line for line in seen(app).splitlines() if name in line), "")


@asynccontextmanager
async def running(app: Top, size: tuple[int, int]) -> AsyncIterator[Any]:
    """The program in a terminal of this size, once it shows the store and somebody hears the keys."""
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.picture is not None and app.focused is not None)
        yield pilot


async def until(pilot: Any, reached: Callable[[], bool]) -> None:
    """Wait for something that comes by itself, or after a key: on a busy machine `press` returns before it is heard."""
    end = SystemClock.monotonic() + LIMIT
    while not reached():
        assert SystemClock.monotonic() < end, f"it never came; the screen is\n{seen(pilot.app)}"
        await pilot.pause(0.02)


async def ask_for(pilot: Any, key: str, question: str) -> None:
    """Press *key*, and wait for what it asks."""
    await pilot.press(key)
    await until(pilot, lambda: question in seen(pilot.app))


async def go_to(pilot: Any, key: str, place: str, words: str = "") -> None:
    """Press *key*, and wait for the screen that it leads to."""
    await pilot.press(key)
    await until(pilot, lambda: pilot.app.picture.look.screen == place and words in seen(pilot.app))


async def leave(pilot: Any, focus: str) -> None:
    """Close what covers the screen, or clear the filter, and wait until the sheet *focus* has the keys again."""
    await pilot.press("escape")
    await focused(pilot, focus)


async def focused(pilot: Any, id: str) -> None:
    """Wait until something has the keys; before that they go elsewhere."""
    await until(pilot, lambda: pilot.app.focused is not None and pilot.app.focused.id == id)


async def type_filter(pilot: Any, text: str) -> None:
    """Filter what is on the screen."""
    await pilot.press("slash")
    await focused(pilot, "filter")
    await pilot.press(*text)


def interrupt(store: SqliteRunStore, run_id: str) -> None:
    """Have the run owned by a process that is long gone."""
    gone = OwnerRow("gone", "elsewhere", 1, 1)
    store.writer.commit(lambda ledger: ledger.claim(ledger.run(run_id), gone))


# --- tools of another process ---


async def test_a_breaker_that_trips_in_another_process_turns_its_row(path: Path, top: Top, start: Any) -> None:
    agent = start("agent", path, "search", "book")
    said(agent)
    ask(agent, "ok search")
    ask(agent, "ok book")
    async with running(top, (80, 24)) as pilot:
        await until(pilot, lambda: "● closed" in row(top, "search"))

        ask(agent, "fail search")

        await until(pilot, lambda: "✖ open" in row(top, "search"))
        assert "ConnectionError" in row(top, "search")
        lines = seen(top).splitlines()
        names = [line.split()[0] for line in (each.replace("▸", " ") for each in lines[3:5])]
        assert names == ["search", "book"]  # the worst first
        assert "1 open" in lines[1]


async def test_an_order_asks_once_naming_the_tool_and_reaches_the_other_process(
    path: Path, top: Top, start: Any
) -> None:
    agent = start("agent", path, "search")
    said(agent)
    ask(agent, "ok search")
    async with running(top, (80, 24)) as pilot:
        await until(pilot, lambda: "closed" in row(top, "search"))

        await ask_for(pilot, "O", "Hold open the circuit of")
        assert "search" in seen(top)
        await pilot.press("y")

        await until(pilot, lambda: "open (held)" in row(top, "search  "))
        await until(pilot, lambda: ask(agent, "ok search") == "denied")  # it is shown before it is taken up

        await ask_for(pilot, "C", "Hold closed the circuit of")
        await pilot.press("y")

        await until(pilot, lambda: "closed (held)" in row(top, "search  "))
        await until(pilot, lambda: ask(agent, "ok search") == "done")

        await ask_for(pilot, "A", "Let go of the circuit of")
        await pilot.press("y")
        await until(pilot, lambda: "search" in row(top, "search  ") and "(held)" not in row(top, "search  "))


@pytest.mark.parametrize("key", ["n", "escape"])
async def test_an_order_that_is_not_confirmed_is_not_given(board: Board, top: Top, key: str) -> None:
    show(board, ToolEntry(name="search"))
    async with running(top, (80, 24)) as pilot:
        await until(pilot, lambda: "search" in seen(top))

        await ask_for(pilot, "R", "Reset the circuit of")
        await pilot.press(key)
        await until(pilot, lambda: "Reset" not in seen(top))
        await pilot.press("X", "j", "question_mark")
        await until(pilot, lambda: "Capitals" in seen(top))  # and so the keys before it were heard

        assert board.orders() == []


async def test_a_tool_whose_fleet_is_away_says_so_and_why(board: Board, top: Top) -> None:
    show(board, ToolEntry(name="search", shared=[], alone="calls are refused: Redis: timed out"))
    async with running(top, (120, 30)) as pilot:
        await until(pilot, lambda: "closed, fleet away" in row(top, "search"))
        assert "1 without their fleet" in seen(top)

        await pilot.press("enter")

        await until(pilot, lambda: "away for 1 of 1 process: calls are refused: Redis: timed out" in seen(top))


async def test_an_order_that_cannot_be_given_says_why(board: Board, top: Top) -> None:
    show(board, ToolEntry(name="odd\u202ename"))
    async with running(top, (120, 24)) as pilot:
        await until(pilot, lambda: "odd" in seen(top))

        await ask_for(pilot, "O", "Hold open the circuit of")
        await pilot.press("y")

        await until(pilot, lambda: "printable characters" in seen(top))
        assert board.orders() == []


async def test_a_tool_that_only_the_policies_name_is_there(store: SqliteRunStore) -> None:
    app = Top(store, PolicyBook.load({"tool": {"later": {"timeout": 5.0}, "any_*": {"timeout": 5.0}}}))
    async with running(app, (80, 24)) as pilot:
        await until(pilot, lambda: "later" in seen(app))

        assert "any_" not in seen(app)

        await pilot.press("enter")

        await until(pilot, lambda: "policies [tool.later]" in seen(app))  # what will hold for it is known


# --- one tool ---


async def test_a_tool_is_shown_with_its_changes_its_policy_and_its_calls(board: Board, top: Top) -> None:
    now = int(SystemClock.time() * 1000)
    detail = ToolDetail(
        policy=[PolicyValue(key="timeout", value=30.0, origin="holdfast.toml [policy]")],
        transitions=[Transition(at_ms=now, before="closed", after="open", failures=7, backoff_ms=20_000)],
        histogram=[(10.0, 3), (None, 1)],
        recent=[
            RecentCall(at_ms=now, status="success", duration_ms=4.0),
            RecentCall(at_ms=now, status="timed_out", duration_ms=5.0, attempts=3, category="timeout"),
        ],
    )
    entry = ToolEntry(name="search", state="open", until_ms=now + 90_000, calls=4, failed=1, successful=3, p50_ms=4.0)
    show(board, entry, details={"search": detail})
    async with running(top, (200, 50)) as pilot:
        await until(pilot, lambda: "search" in seen(top))

        await pilot.press("enter")

        await until(pilot, lambda: "holdfast.toml [policy]" in seen(top))
        text = seen(top)
        for fact in ("closed → ✖ open  7 failures", "≤ 10 ms", "✔ success", "3 attempts", "7 on elsewhere (agent.py"):
            assert fact in text

        await pilot.press("f")
        await until(pilot, lambda: "Recent calls that failed" in seen(top))
        assert "✔ success" not in seen(top)

        await pilot.press("escape")
        await until(pilot, lambda: "✔ success" in seen(top))
        await pilot.press("escape")
        await until(pilot, lambda: "last error" in seen(top))


async def test_why_a_circuit_changed_is_said(board: Board, top: Top) -> None:
    changes = [
        Transition(at_ms=5, before="half_open", after="closed", by_hand=True),
        Transition(at_ms=4, before="half_open", after="closed"),
        Transition(at_ms=3, before="half_open", after="open", failures=7, category="network"),
        Transition(at_ms=2, before="closed", after="open"),
        Transition(at_ms=1, before="closed", after="open", failures=1, category="network", by_hand=True),
    ]
    show(board, ToolEntry(name="search"), details={"search": ToolDetail(transitions=changes)})
    async with running(top, (120, 50)) as pilot:
        await until(pilot, lambda: "search" in seen(top))

        await pilot.press("enter")

        await until(pilot, lambda: "→" in seen(top))
        said = [re.split(" {2,}", line.strip())[2] for line in seen(top).splitlines() if "→" in line]
        failed = "the probe failed, last: network"
        assert said == ["by hand", "the probe succeeded", failed, "calls were slow", "by hand"]


async def test_a_long_page_scrolls(board: Board, top: Top) -> None:
    policy = [PolicyValue(key=f"key_{number}", value=1, origin="default") for number in range(60)]
    show(board, ToolEntry(name="search"), details={"search": ToolDetail(policy=policy)})
    async with running(top, (80, 24)) as pilot:
        await until(pilot, lambda: "search" in seen(top))
        await pilot.press("enter")
        await until(pilot, lambda: "Transitions" in seen(top))
        await focused(pilot, "tool")

        await pilot.press("G")

        await until(pilot, lambda: "key_59" in seen(top))


# --- runs of another process ---


async def test_a_run_is_cancelled_in_the_process_that_runs_it(
    path: Path, store: SqliteRunStore, top: Top, runner: subprocess.Popen[str]
) -> None:
    run_id = said(runner)
    async with running(top, (80, 24)) as pilot:
        await pilot.press("3")
        await until(pilot, lambda: "▶ executing" in row(top, run_id[:10]))

        await ask_for(pilot, "X", "Cancel the run")
        assert run_id in seen(top)
        await pilot.press("y")

        await until(pilot, lambda: "■ cancelled" in row(top, run_id[:10]))
        assert said(runner) == "cancelled"
        assert store.snapshot(run_id).error == "cancelled from holdfast top"
        await pilot.press("X")
        await until(pilot, lambda: "the run is over" in seen(top))


async def test_a_run_shows_its_calls_and_its_events_as_they_come(store: SqliteRunStore, top: Top) -> None:
    run = store.create_run("s", "book a flight").id
    call = {"call_id": "1", "tool": "search", "arguments": {"city": "Lisbon"}}
    store.record_event(run, "tool_started", call)
    async with running(top, (80, 24)) as pilot:
        await pilot.press("4")
        await until(pilot, lambda: "▶ running" in row(top, "▸ search") and "book a flight" in seen(top))

        store.record_event(run, "tool_ended", {**call, "status": "failed", "duration_ms": 12, "error": "no seat"})
        store.record_event(run, "run_failed", {"error": "no seat"})

        await until(pilot, lambda: "✖ failed" in row(top, "▸ search"))
        await until(pilot, lambda: "run_failed" in seen(top))
        await pilot.press("enter")
        await until(pilot, lambda: '"city": "Lisbon"' in seen(top))
        await leave(pilot, "calls")
        await pilot.press("tab")
        await focused(pilot, "events")
        await pilot.press("enter")
        await until(pilot, lambda: "error  no seat" in seen(top))


async def test_of_a_run_that_is_too_long_the_end_is_shown_as_it_goes_on(
    store: SqliteRunStore, top: Top, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MOST_EVENTS", 4)
    store.create_run("s", "p", run_id="long")
    for number in range(10):
        store.record_event("long", "turn_started", {"name": f"turn {number}"})
    async with running(top, (80, 24)) as pilot:
        top.go("run", "long")
        await until(pilot, lambda: [event.sequence for event in top._story.events] == [6, 7, 8, 9])
        await until(pilot, lambda: "turn 9" in seen(top) and "turn 5" not in seen(top))
        assert "events before 6 are not shown" in seen(top)

        store.record_event("long", "turn_started", {"name": "turn 10"})

        await until(pilot, lambda: "turn 10" in seen(top) and "turn 8" not in seen(top))
        await pilot.press("tab")
        await focused(pilot, "events")
        await pilot.press("j", "enter")
        await until(pilot, lambda: "name  turn 9" in seen(top))


async def test_a_run_whose_first_events_were_pruned_says_so(store: SqliteRunStore, top: Top) -> None:
    store.create_run("s", "p", run_id="short")
    for number in range(5):
        store.record_event("short", "turn_started", {"name": f"turn {number}"})
    store.record_event("short", "run_completed", {"text": "done"})
    store.prune(max_events=2)
    async with running(top, (80, 24)) as pilot:
        top.go("run", "short")

        await until(pilot, lambda: "events before 4 are no longer kept" in " ".join(seen(top).split()))
        await until(pilot, lambda: "turn 4" in seen(top))


async def test_what_a_process_that_is_gone_was_calling_no_longer_runs(store: SqliteRunStore, top: Top) -> None:
    store.create_run("s", "", run_id="one")
    store.record_event("one", "tool_started", {"call_id": "1", "tool": "search"})
    interrupt(store, "one")
    async with running(top, (80, 24)) as pilot:
        await pilot.press("4")

        await until(pilot, lambda: "? unknown" in row(top, "▸ search"))


async def test_a_call_that_a_run_left_behind_when_it_ended_no_longer_runs(store: SqliteRunStore, top: Top) -> None:
    store.create_run("s", "", run_id="one")
    store.record_event("one", "tool_started", {"call_id": "1", "tool": "search"})
    store.mark_failed("one", "oh")
    async with running(top, (80, 24)) as pilot:
        await pilot.press("4")

        await until(pilot, lambda: "? unknown" in row(top, "▸ search"))


async def test_a_run_that_was_only_just_asked_for_can_be_cancelled(store: SqliteRunStore, top: Top) -> None:
    store.create_run("s", "", run_id="one")
    begun, over = threading.Event(), threading.Event()
    async with running(top, (80, 24)) as pilot:
        busy = asyncio.create_task(top._watcher.do(lambda: begun.set() or over.wait(LIMIT)))
        await until(pilot, begun.is_set)

        top.simulate_key("3")
        top.simulate_key("X")
        await until(pilot, lambda: "enter open  / filter  f failed  X cancel" in seen(top))
        over.set()
        await busy

        await until(pilot, lambda: "Cancel the run" in seen(top) and "one" in seen(top))


async def test_the_calls_of_a_run_are_filtered_by_name_and_by_failure(store: SqliteRunStore, top: Top) -> None:
    run = store.create_run("s", "").id
    for number, (name, status) in enumerate([("search", "success"), ("search", "failed"), ("book", "success")]):
        call = {"call_id": f"{number}", "tool": name}
        store.record_event(run, "tool_started", call)
        store.record_event(run, "tool_ended", {**call, "status": status})
    async with running(top, (80, 40)) as pilot:
        await pilot.press("4")
        calls = top.query_one("#calls", Sheet)
        await until(pilot, lambda: len(calls._contents.keys) == 3)

        await pilot.press("f")
        await until(pilot, lambda: len(calls._contents.keys) == 1)
        await pilot.press("escape")
        await until(pilot, lambda: len(calls._contents.keys) == 3)
        await type_filter(pilot, "boo")
        await until(pilot, lambda: len(calls._contents.keys) == 1 and "✔" in row(top, "book  "))
        assert "✖ failed" not in seen(top)


async def test_runs_are_filtered_and_the_filter_is_cleared(store: SqliteRunStore, top: Top) -> None:
    for name in ("fly to Lisbon", "fly to Rome"):
        store.create_run("s", name)
    store.mark_failed(store.create_run("t", "walk").id, "tired")
    async with running(top, (200, 50)) as pilot:
        await pilot.press("3")
        await until(pilot, lambda: "3 shown" in seen(top))

        await type_filter(pilot, "rome")
        await until(pilot, lambda: "1 shown" in seen(top))
        await pilot.press("enter")
        await focused(pilot, "runs")
        assert "fly to Rome" in seen(top)

        await pilot.press("escape")
        await until(pilot, lambda: "3 shown" in seen(top))
        await pilot.press("f")
        await until(pilot, lambda: "1 shown" in seen(top))
        assert "tired" in seen(top)


@pytest.mark.parametrize(
    ("facts", "way"),
    [
        ({"entry": {"target": "agent:main", "args": []}}, "holdfast runs resume one"),
        ({}, "with hf.resume('one'):"),
        ({"noted": True}, "a proxy's session, and cannot be resumed"),
    ],
)
async def test_a_run_whose_process_is_gone_says_how_to_go_on_with_it_if_one_can(
    store: SqliteRunStore, top: Top, facts: dict[str, Any], way: str
) -> None:
    header = store.header("s", "", "one", **facts)
    store.writer.commit(lambda ledger: ledger.add(header))
    interrupt(store, "one")
    async with running(top, (120, 24)) as pilot:
        await pilot.press("4")

        await until(pilot, lambda: way in row(top, "its process is gone"))
        assert seen(top).count("resume") == 1


def test_a_run_began_when_it_was_started_not_when_it_was_submitted(store: SqliteRunStore) -> None:
    run = store.create_run("s", "").copy()
    run.created_at_ms, run.started_at_ms = 0, 60_000

    assert runs.began(run, 70.0) == "10 s"


async def test_the_command_that_resumes_is_copied_with_its_store(store: SqliteRunStore, path: Path) -> None:
    entry = {"target": "agent:main", "args": []}
    with holdfast.open(path, policies={}) as hf, pytest.raises(LookupError), hf.run(run_id="broken", entry=entry):
        raise LookupError("oh")
    top = Top(store, named=str(path))
    async with running(top, (80, 24)) as pilot:
        await go_to(pilot, "3", "runs", "broken")

        await pilot.press("y")

        await until(pilot, lambda: top.clipboard == f"holdfast runs resume broken --store {path}")


@pytest.mark.parametrize("ends", ["complete", "fail"])
async def test_of_a_run_that_cannot_be_resumed_nothing_is_copied(store: SqliteRunStore, top: Top, ends: str) -> None:
    store.create_run("s", "p", run_id="over")
    store.record_event("over", "run_completed") if ends == "complete" else store.mark_failed("over", "oh")
    async with running(top, (80, 24)) as pilot:
        await go_to(pilot, "3", "runs", "over")

        await pilot.press("y")

        await until(pilot, lambda: "no command goes on with this run" in seen(top))
        assert top.clipboard == ""


def test_a_search_that_has_not_looked_at_every_run_says_so() -> None:
    found = Picture(Look("runs", text="needle"), 0.0, [], {}, runs=RunPage([], "r1"))

    assert runs.contents(found).empty[0].startswith("None of the 20,000 newest is like this")
    assert runs.contents(found._replace(runs=RunPage([], None))).empty == runs.NO_MATCH


async def test_more_runs_are_read_when_the_end_comes_near(store: SqliteRunStore, top: Top) -> None:
    for number in range(130):
        store.create_run("s", f"number {number}")
    async with running(top, (200, 24)) as pilot:
        await pilot.press("3")
        await until(pilot, lambda: "100+ shown" in seen(top))
        await focused(pilot, "runs")

        await pilot.press("G")

        await until(pilot, lambda: "130 shown" in seen(top))


def test_a_filter_may_name_what_it_means() -> None:
    found = wanted("tool=search status=alive fly status=strange session=s", failed=True)

    assert found == Wanted("alive", "s", "search", "fly status=strange")
    assert wanted("", failed=True) == Wanted("failed")


# --- servers ---


async def test_servers_are_shown_with_what_they_said(board: Board, top: Top) -> None:
    servers = [
        ServerEntry(name="github", state="ready", protocol="2025-11-25", server_info={"name": "gh", "version": "1"}),
        ServerEntry(name="slack", state="failed", restarts=5, last_error="exited with 1", stderr=["no token"]),
    ]
    show(board, servers=servers)
    async with running(top, (120, 24)) as pilot:
        await pilot.press("5")
        await until(pilot, lambda: "✖ failed" in row(top, "slack"))
        assert "gh 1 MCP 2025-11-25" in row(top, "github")

        await pilot.press("f")
        await until(pilot, lambda: "github" not in seen(top))
        await pilot.press("enter")
        await until(pilot, lambda: "no token" in seen(top))


# --- keys, sizes, words ---


async def test_a_pause_keeps_the_picture_until_it_is_over(board: Board, top: Top) -> None:
    show(board, ToolEntry(name="search"))
    async with running(top, (80, 24)) as pilot:
        await until(pilot, lambda: "● closed" in row(top, "search"))
        await pilot.press("space")
        await until(pilot, lambda: "‖ paused" in seen(top))
        picture = top.picture

        show(board, ToolEntry(name="search", state="open"))
        await pilot.pause(1.5)  # longer than two looks are apart

        assert top.picture is picture
        await pilot.press("space")
        await until(pilot, lambda: "✖ open" in row(top, "search"))
        assert "● live" in seen(top)


async def test_what_is_being_read_while_somebody_pauses_is_not_shown(board: Board, top: Top) -> None:
    show(board, ToolEntry(name="search"))
    begun, over = threading.Event(), threading.Event()
    async with running(top, (80, 24)) as pilot:
        await until(pilot, lambda: "● closed" in row(top, "search"))
        busy = asyncio.create_task(top._watcher.do(lambda: begun.set() or over.wait(LIMIT)))
        await until(pilot, begun.is_set)
        top.look_soon()
        await until(pilot, top._watcher._looking.locked)

        show(board, ToolEntry(name="search", state="open"))
        await pilot.press("space")
        await until(pilot, lambda: "‖ paused" in seen(top))
        over.set()
        await busy
        await until(pilot, lambda: not top._watcher._looking.locked())

        assert "● closed" in row(top, "search")


async def test_what_was_read_last_is_shown_to_nobody_once_it_has_ended(board: Board, top: Top) -> None:
    show(board, ToolEntry(name="search"))
    async with running(top, (80, 24)):
        picture = top.picture
    assert picture is not None

    shown = top.show(picture)
    top.complain("the store cannot be read")

    assert not shown


async def test_tools_are_filtered_while_somebody_types(board: Board, top: Top) -> None:
    show(board, ToolEntry(name="search"), ToolEntry(name="book", failed=1, successful=1))
    async with running(top, (80, 24)) as pilot:
        await until(pilot, lambda: "search" in seen(top))

        await type_filter(pilot, "bo")
        await until(pilot, lambda: "book" in seen(top) and "search" not in seen(top))
        await pilot.press("x")
        await until(pilot, lambda: "No tool is like this" in seen(top))
        await leave(pilot, "tools")
        await until(pilot, lambda: "search" in seen(top))
        await pilot.press("f")
        await until(pilot, lambda: "book" in seen(top) and "search" not in seen(top))


@pytest.mark.parametrize(
    ("key", "said"),
    [("1", "holdfast wrap -- COMMAND"), ("3", "holdfast run MODULE:FUNCTION"), ("5", "holdfast install")],
)
async def test_an_empty_screen_says_what_to_do(path: Path, top: Top, key: str, said: str) -> None:
    async with running(top, (80, 24)) as pilot:
        await pilot.press(key)

        await until(pilot, lambda: said in seen(top))
        assert os.listdir(path.parent) == []  # looking makes nothing


async def test_where_there_is_no_tool_or_run_their_screens_say_so(top: Top) -> None:
    async with running(top, (80, 24)) as pilot:
        await pilot.press("4")
        await until(pilot, lambda: "there is no run yet" in seen(top))
        await pilot.press("2")
        await until(pilot, lambda: "there is no tool yet" in seen(top))


async def test_the_chosen_line_is_kept_when_its_place_changes(board: Board, top: Top) -> None:
    show(board, ToolEntry(name="a"), ToolEntry(name="b"), ToolEntry(name="c"))
    async with running(top, (80, 24)) as pilot:
        await until(pilot, lambda: "c" in row(top, "c   "))
        sheet = top.query_one("#tools", Sheet)
        for key, chosen in (("j", "b"), ("j", "c"), ("k", "b")):
            await pilot.press(key)
            await until(pilot, lambda chosen=chosen: sheet.chosen == chosen)

        show(board, ToolEntry(name="c", state="open", until_ms=2**43))

        await until(pilot, lambda: "open" in row(top, "c   "))
        assert (sheet.chosen, sheet.at) == ("b", 2)
        assert row(top, "▸").split()[1] == "b"


async def test_only_lines_that_changed_are_drawn_again(board: Board, top: Top) -> None:
    tools = [ToolEntry(name=f"tool_{number:02}") for number in range(15)]
    show(board, *tools)
    async with running(top, (80, 24)) as pilot:
        sheet = top.query_one("#tools", Sheet)
        await until(pilot, lambda: "tool_14" in seen(top))
        picture = top.picture
        await until(
            pilot, lambda: top.picture is not picture and "0" in row(top, "tool_14")
        )  # calls a second are known
        before = sheet.redrawn

        show(board, *tools[:-1], ToolEntry(name="tool_14", state="off"))

        await until(pilot, lambda: "○ off" in row(top, "tool_14"))
        assert sheet.redrawn - before == 1


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (40, 10)])
async def test_every_screen_fits(board: Board, store: SqliteRunStore, top: Top, size: tuple[int, int]) -> None:
    far = int(SystemClock.time() * 1000) + 90_500
    show(
        board,
        ToolEntry(name="a_tool_with_quite_a_long_name.of_a_server", state="open", until_ms=far, calls=12345, failed=5,
                  successful=12340, p50_ms=1234.0, p95_ms=99_999.0, p99_ms=100_000.0, in_flight=12, limit=20, waiting=5,
                  rate=2.0, full_rate=10.0, last_error="ConnectionError: " + "the line is dead, " * 10),
        servers=[ServerEntry(name="server", last_error="long " * 50)],
    )  # fmt: skip
    store.mark_failed(store.create_run("session", "prompt " * 50).id, "error " * 50)
    async with running(top, (100, 30)) as pilot:
        await pilot.resize_terminal(*size)
        await until(pilot, lambda: top.screen.size == size)
        for key, screen in (("1", "tools"), ("2", "tool"), ("3", "runs"), ("5", "servers"), ("4", "run")):
            await go_to(pilot, key, screen)
            await pilot.pause()

            lines = seen(top).splitlines()
            assert len(lines) == size[1]
            assert all(Text(line).cell_len <= size[0] for line in lines)
            assert "● live" in lines[0]
        await until(pilot, lambda: top.query_one("#events", Sheet).region.y > 0)
        await pilot.press("1")
        await until(pilot, lambda: "✖ open" in row(top, "a_tool"))


async def test_wide_screens_show_more(board: Board, top: Top) -> None:
    show(board, ToolEntry(name="x", calls=1, successful=1, p50_ms=1.0, p99_ms=1.0, rate=2.0, full_rate=10.0))
    async with running(top, (80, 24)) as pilot:
        await until(pilot, lambda: "2/s of 10/s" in row(top, "x   "))

        await pilot.resize_terminal(200, 50)

        await until(pilot, lambda: "p99" in seen(top) and "last minute" in seen(top))


async def test_hostile_names_and_texts_are_shown_as_text(board: Board, store: SqliteRunStore, top: Top) -> None:
    show(
        board,
        ToolEntry(name=HOSTILE, state="open", last_error="[/] [link=file:///x]boom[/link]\nsecond\x07"),
        servers=[ServerEntry(name=HOSTILE, stderr=[HOSTILE])],
    )
    run = store.create_run(HOSTILE, f"{HOSTILE}\n\x00 {'x' * 1_000_000}").id
    store.record_event(run, "tool_started", {"call_id": "1", "tool": HOSTILE, "arguments": {HOSTILE: HOSTILE}})
    async with running(top, (200, 50)) as pilot:
        shown = r"[bold red]<img onerror=x>[/] \x1b[31m\u202e"
        await until(pilot, lambda: shown in seen(top))
        assert "[link=file:///x]boom[/link] second" in seen(top)
        for key, screen in (("2", "tool"), ("3", "runs"), ("4", "run"), ("5", "servers")):
            await go_to(pilot, key, screen, shown)
            assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", seen(top))
        await go_to(pilot, "4", "run", shown)
        await focused(pilot, "calls")
        await pilot.press("enter")
        await until(pilot, lambda: "arguments" in seen(top))
        await leave(pilot, "calls")
        await go_to(pilot, "3", "runs", shown)
        await ask_for(pilot, "X", "Cancel the run")
        assert "\x1b" not in seen(top)


async def test_the_keys_are_listed(top: Top) -> None:
    async with running(top, (100, 50)) as pilot:
        await pilot.press("question_mark")

        await until(pilot, lambda: "Capitals change something, and ask first" in seen(top))
        await pilot.press("escape")
        await until(pilot, lambda: "Capitals" not in seen(top))


async def test_a_store_that_cannot_be_read_is_said_and_the_last_picture_stays(path: Path, board: Board) -> None:
    show(board, ToolEntry(name="search"))
    with SqliteRunStore(path) as other:
        app = Top(other)
        async with running(app, (160, 24)) as pilot:
            await until(pilot, lambda: "search" in seen(app))

            ruin(path)

            await until(pilot, lambda: "the store cannot be read" in seen(app))
            assert "search" in seen(app)


async def test_to_ask_for_the_newest_run_of_a_store_that_cannot_be_read_is_no_end(path: Path, board: Board) -> None:
    show(board, ToolEntry(name="search"))
    with SqliteRunStore(path) as other:
        app = Top(other)
        async with running(app, (160, 24)) as pilot:
            await until(pilot, lambda: "search" in seen(app))
            ruin(path)
            await until(pilot, lambda: "the store cannot be read" in seen(app))

            await pilot.press("4", "question_mark")

            await until(pilot, lambda: "Capitals" in seen(app))  # and so the key before it was heard


def ruin(path: Path) -> None:
    """Put something else in the place of a store."""
    path.rename(path.with_name("away"))
    path.write_bytes(b"no database, " * 400)


# --- the bars ---


def event(sequence: int, at: int, type: str, **payload: Any) -> RunEventRecord:
    return RunEventRecord(sequence, at, type, payload)


def test_a_call_is_made_of_waits_and_attempts() -> None:
    story = Story()
    story.add(
        [
            event(0, 1000, "tool_started", call_id="1", tool="t"),
            event(1, 1100, "tool_attempt_failed", call_id="1", attempt=1, retry_in_ms=200),
            event(2, 1400, "tool_ended", call_id="1", tool="t", status="success", duration_ms=200, attempts=2),
        ]
    )

    (call,) = story.calls

    drawn = [(bar.kind, bar.start, bar.end, bar.outcome) for bar in bars(call, 0)]
    assert drawn == [
        ("attempt", 1000, 1100, "failed"),
        ("backoff", 1100, 1300, ""),
        ("attempt", 1300, 1400, "success"),
    ]
    assert (call.status, call.is_trouble) == ("success", True)


def test_a_call_took_as_long_as_its_bars_and_what_was_not_called_took_nothing() -> None:
    story = Story()
    story.add(
        [
            event(0, 1000, "tool_started", call_id="1", tool="t"),
            event(1, 1100, "tool_attempt_failed", call_id="1", attempt=1, retry_in_ms=200),
            event(2, 1400, "tool_ended", call_id="1", tool="t", status="success", duration_ms=200, attempts=2),
            event(3, 1500, "tool_ended", call_id="2", tool="t", status="success", cached=True),
            event(4, 1600, "tool_denied", tool="t"),
        ]
    )

    contents = call_contents(story, Look("run"), 2.0, 20)

    assert [contents.cells(place)[2].plain for place in range(3)] == ["400 ms", "", ""]


def test_a_call_goes_on_until_it_ends_or_its_process_is_gone() -> None:
    story = Story()
    story.add([event(0, 1000, "tool_started", call_id="1", tool="t")])
    assert [bar.end for bar in bars(story.calls[0], 5000)] == [5000]

    story.add([event(0, 1000, "tool_started", call_id="1", tool="t"), event(1, 3000, "run_interrupted")])

    assert [(call.name, call.status, call.end) for call in story.calls] == [
        ("t", "unknown", 3000),
        ("run_interrupted", "mark", 3000),
    ]


def test_what_a_run_that_is_over_never_ended_is_unknown_since_its_last_event() -> None:
    story = Story()
    started = event(0, 1000, "tool_started", call_id="1", tool="t")
    story.add([started, event(1, 4000, "run_failed")])

    story.abandon()

    (call,) = story.calls
    assert (call.status, [bar.end for bar in bars(call, 9000)]) == ("unknown", [4000])


def test_a_call_whose_process_seemed_gone_goes_on_when_it_is_made_again() -> None:
    story = Story()
    story.add([event(0, 1000, "tool_started", call_id="1", tool="t")])
    story.abandon()

    story.add([event(1, 4000, "run_resumed"), event(2, 5000, "tool_started", call_id="1", tool="t")])

    assert [(bar.outcome, bar.start, bar.end) for bar in bars(story.calls[0], 9000)] == [
        ("unknown", 1000, 1000),
        ("running", 5000, 9000),
    ]


def test_an_attempt_that_tells_how_long_it_took_leaves_the_rest_to_the_wait_before_it() -> None:
    story = Story()
    story.add(
        [
            event(0, 1000, "tool_started", call_id="1", tool="t"),
            event(1, 1100, "tool_attempt_failed", call_id="1", attempt=1, duration_ms=100, retry_in_ms=200),
            event(2, 2050, "tool_attempt_failed", call_id="1", attempt=2, duration_ms=50, retry_in_ms=100),
            event(3, 3000, "tool_ended", call_id="1", tool="t", status="success", duration_ms=180, attempts=3),
        ]
    )

    (call,) = story.calls

    assert [(bar.kind, bar.start, bar.end) for bar in bars(call, 0)] == [
        ("attempt", 1000, 1100),
        ("backoff", 1100, 1300),
        ("wait", 1300, 2000),
        ("attempt", 2000, 2050),
        ("backoff", 2050, 2150),
        ("wait", 2150, 2970),
        ("attempt", 2970, 3000),
    ]


def test_a_call_began_when_its_first_attempt_did_though_it_was_written_later() -> None:
    story = Story()
    story.add(
        [
            event(0, 1090, "tool_started", call_id="1", tool="t"),
            event(1, 1100, "tool_attempt_failed", call_id="1", attempt=1, duration_ms=100, retry_in_ms=None),
            event(2, 1101, "tool_ended", call_id="1", tool="t", status="failed", duration_ms=100, attempts=1),
        ]
    )

    assert [(bar.start, bar.end) for bar in bars(story.calls[0], 0)] == [(1000, 1100)]


def test_calls_inside_calls_are_indented() -> None:
    with holdfast.open(":memory:", policies={}) as hf:
        inner = hf.tool("inner")(lambda: None)
        outer = hf.tool("outer")(lambda: [inner()])
        with hf.run(run_id="one") as run:
            run.step("plan", outer)
        found = hf.runs.events("one")
    story = Story()

    story.add(found)

    assert [(call.name, call.depth) for call in story.calls] == [("plan", 0), ("outer", 1), ("inner", 2)]


def test_refused_and_cached_calls_have_no_bar() -> None:
    story = Story()
    story.add(
        [
            event(0, 0, "step_started", call_id="1", name="outer", key="k"),
            event(1, 1, "tool_denied", tool="t", reason="circuit_open", parent="1"),
            event(2, 2, "tool_ended", call_id="9", tool="t", status="success", cached=True, parent="1"),
        ]
    )

    assert [(call.depth, call.status, len(bars(call, 3))) for call in story.calls] == [
        (0, "running", 1),
        (1, "denied", 0),
        (1, "cached", 0),
    ]


def test_what_makes_no_sense_in_an_event_breaks_nothing() -> None:
    story = Story()
    story.add(
        event(number, number, type, call_id=[], tool={}, name=3, duration_ms="x", retry_in_ms=float("nan"), key=1)
        for number, type in enumerate(["tool_started", "tool_attempt_failed", "tool_ended", "tool_denied", "own"])
    )

    assert all(isinstance(bars(call, 10), list) for call in story.calls)
    assert Scale(story.calls, 10, 20).place(5) >= 0


def test_long_idle_times_are_cut_short() -> None:
    story = Story()
    for number, at in enumerate((0, 1000, 1_000_000)):
        story.add(
            [
                event(2 * number, at, "tool_started", call_id=f"{number}", tool="t"),
                event(2 * number + 1, at + 1000, "tool_ended", call_id=f"{number}", tool="t", duration_ms=1000),
            ]
        )

    scale = Scale(story.calls, 0, 100)

    places = [scale.place(at) for at in (0, 1000, 2000, 1_000_000, 1_001_000)]
    assert places[0] == 0
    assert places[-1] == 99
    gaps = [later - earlier for earlier, later in itertools.pairwise(places)]
    assert all(20 <= gap <= 40 for gap in (gaps[0], gaps[1], gaps[3]))
    assert gaps[2] < 15


# --- the sheet ---


async def test_what_there_is_no_room_for_goes_least_needed_first(top: Top) -> None:
    columns = (Column("name"), Column("dear", need=5), Column("cheap", need=1), Column("last"))
    cells = [Text("n" * 20), Text("d" * 20), Text("c" * 20), Text("l")]
    async with running(top, (200, 24)) as pilot:
        sheet = top.query_one("#tools", Sheet)
        top.paused = True
        sheet.show(Contents(columns, ["x"], lambda at: cells))
        await until(pilot, lambda: "cheap" in seen(top))

        await pilot.resize_terminal(70, 24)

        await until(pilot, lambda: "cheap" not in seen(top))
        assert "dear" in seen(top)


async def test_where_a_scroll_bar_comes_the_last_column_makes_room_for_it(top: Top) -> None:
    columns, cells = (Column("name"), Column("last")), [Text("n"), Text("l" * 100)]
    async with running(top, (60, 10)) as pilot:
        sheet = top.query_one("#tools", Sheet)
        top.paused = True

        sheet.show(Contents(columns, range(50), lambda at: cells))

        await until(pilot, lambda: sheet.show_vertical_scrollbar)
        await until(pilot, lambda: "l…" in row(top, "▸"))


@pytest.mark.parametrize("width", [40, 60, 80])
async def test_the_bar_says_where_one_is_and_that_it_is_live_however_narrow(top: Top, width: int) -> None:
    async with running(top, (width, 12)) as pilot:
        await pilot.press("3")

        await until(pilot, lambda: "3 Runs" in row(top, "● live"))
        assert ("5 Servers" in row(top, "● live")) is (width > 40)

        await pilot.press("space")
        await until(pilot, lambda: "5" in row(top, "‖ paused"))


async def test_a_low_terminal_has_room_for_calls_and_events(top: Top, store: SqliteRunStore) -> None:
    store.create_run("s", "a prompt of several lines " * 10, run_id="one")
    store.record_event("one", "tool_denied", {"tool": "search", "reason": "its rate limit is used up"})
    async with running(top, (40, 12)) as pilot:
        await pilot.press("4")

        await until(pilot, lambda: "⊘ refused" in row(top, "search") and "tool_denied" in row(top, "0  "))


async def test_an_open_circuit_is_not_said_to_be_far_from_opening(top: Top, board: Board) -> None:
    show(board, ToolEntry(name="search", state="open", failure_threshold=7), ToolEntry(name="x", failure_threshold=7))
    async with running(top, (200, 12)) as pilot:
        await until(pilot, lambda: "open" in row(top, "search"))

        assert "0 of 7" not in row(top, "search")
        assert "0 of 7" in row(top, " x ")


async def test_a_line_is_made_again_only_if_it_looks_otherwise(top: Top) -> None:
    columns, colours = (Column("name"), Column("last")), ["red"] * 3
    async with running(top, (60, 10)):
        sheet = top.query_one("#tools", Sheet)
        top.paused = True
        contents = Contents(columns, range(3), lambda at: [Text(f"n{at}"), Text("l", style=colours[at])])
        sheet.show(contents)
        before = [sheet.render_line(y) for y in range(4)]

        colours[1] = "green"
        sheet.show(contents)

        assert [sheet.render_line(y) is before[y] for y in range(4)] == [True, True, False, True]


async def test_the_chosen_line_is_in_sight_when_more_come_before_it(top: Top) -> None:
    columns = (Column("name"), Column("last"))
    async with running(top, (60, 10)) as pilot:
        sheet = top.query_one("#tools", Sheet)
        top.paused = True
        sheet.show(Contents(columns, ["line 30"], lambda at: [Text("line 30"), Text()]))
        await until(pilot, lambda: "line 30" in row(top, "▸"))

        sheet.show(Contents(columns, [f"line {at}" for at in range(50)], lambda at: [Text(f"line {at}"), Text()]))

        await until(pilot, lambda: sheet.show_vertical_scrollbar)
        await until(pilot, lambda: "line 30" in row(top, "▸"))


# --- the command ---


@pytest.fixture
def runner(path: Path) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "tests.top.test_top", str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        yield child
        child.kill()


async def wait_to_be_cancelled(path: str) -> None:
    """Run something that ends only when it is cancelled."""
    async with holdfast.open(path, policies={}) as hf:
        try:
            async with hf.run("s", "waits for ever") as run:
                say(run.id)
                await hf.acall(asyncio.Event().wait)
        except holdfast.RunCancelled:
            say("cancelled")


class Terminal:
    """A real terminal of 80 by 24, with the command in it."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._before = self._settings()
        self.text = b""
        variables = {**os.environ, "TERM": "xterm-256color", **variables}
        self.process = subprocess.Popen(
            [HOLDFAST, *arguments], stdin=self._theirs, stdout=self._theirs, stderr=self._theirs, env=variables
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    @property
    def as_before(self) -> bool:
        return self._settings() == self._before

    def _settings(self) -> list[Any]:
        settings = termios.tcgetattr(self._theirs)
        settings[3] &= ~termios.PENDIN  # macOS notes there that what was typed meanwhile is to be read anew
        return settings

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def until(self, reached: Callable[[], object]) -> None:
        end = SystemClock.monotonic() + LIMIT
        while not reached():
            assert SystemClock.monotonic() < end, self.text
            self.read(0.05)

    def end(self) -> int:
        """Wait for the command to end; its exit code."""
        self.until(lambda: self.process.poll() is not None)
        self.read(0.0)
        return self.process.returncode

    def stall(self) -> None:
        """Take nothing more, as one does whose connection is lost."""
        termios.tcflow(self._theirs, termios.TCOOFF)

    def hang_up(self) -> None:
        """Be gone."""
        os.close(self._theirs)
        os.close(self._ours)
        self._theirs, self._ours = pty.openpty()

    def read(self, patience: float) -> None:
        while select.select([self._ours], [], [], patience)[0]:
            self.text += os.read(self._ours, 65_536)
            patience = 0.0


def test_in_a_terminal_q_ends_it_and_leaves_the_terminal_as_it_was(path: Path, board: Board) -> None:
    show(board, ToolEntry(name="search", state="open"))
    with Terminal("top", "--store", str(path)) as terminal:
        terminal.until(lambda: b"search" in terminal.text and COLOURS.search(terminal.text))
        terminal.press(b"?")
        terminal.until(lambda: b"Capitals" in terminal.text)
        before = len(terminal.text)
        terminal.press(b"q")
        terminal.until(lambda: b"search" in terminal.text[before:])  # which was below

        terminal.press(b"q")

        assert terminal.end() == 0
        assert b"\x1b[?1049h" in terminal.text  # a screen of its own
        assert terminal.text.rindex(b"\x1b[?1049l") > terminal.text.rindex(b"\x1b[?1049h")
        assert terminal.text.rindex(b"\x1b[?25h") > terminal.text.rindex(b"\x1b[?25l")
        assert terminal.as_before


def test_all_that_is_typed_at_once_after_a_slash_filters(path: Path, board: Board) -> None:
    show(board, ToolEntry(name="search"), ToolEntry(name="quick_fox"))
    with Terminal("top", "--store", str(path)) as terminal:
        terminal.until(lambda: b"quick_fox" in terminal.text and b"search" in terminal.text)

        terminal.press(b"/quick_f")

        terminal.until(lambda: b"like: quick_f" in terminal.text)


def test_a_signal_leaves_the_terminal_as_it_was_and_no_color_is_honoured(path: Path, board: Board) -> None:
    show(board, ToolEntry(name="search", state="open"))
    with Terminal("top", "--store", str(path), NO_COLOR="1") as terminal:
        terminal.until(lambda: b"search" in terminal.text and b"open" in terminal.text)

        terminal.process.send_signal(signal.SIGTERM)

        assert terminal.end() == 0
        assert terminal.text.rindex(b"\x1b[?1049l") > terminal.text.rindex(b"\x1b[?1049h")
        assert terminal.as_before
        assert not COLOURS.search(terminal.text)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP, None], ids=["SIGTERM", "SIGHUP", "hangup"])
def test_it_ends_though_its_terminal_takes_nothing_more(path: Path, board: Board, sent: signal.Signals | None) -> None:
    show(board, ToolEntry(name="search"))
    with Terminal("top", "--store", str(path)) as terminal:
        terminal.until(lambda: b"search" in terminal.text)
        terminal.stall()

        if sent is None:
            terminal.hang_up()
        else:
            terminal.process.send_signal(sent)

        terminal.process.wait(LIMIT)


def test_a_store_that_cannot_be_used_is_told_before_the_screen_is_taken(path: Path) -> None:
    path.write_bytes(b"this is no database at all, " * 100)

    with Terminal("top", "--store", str(path)) as terminal:
        assert terminal.end() == 4
        assert b"\x1b" not in terminal.text


def test_without_a_terminal_it_ends_with_2_and_says_what_does_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top"]) == 2

    assert "needs a terminal; `holdfast tools ls`" in capsys.readouterr().err


def test_in_a_terminal_that_cannot_draw_it_says_what_does_without(path: Path) -> None:
    with Terminal("top", "--store", str(path), TERM="dumb") as terminal:
        assert terminal.end() == 2

        assert b"$TERM is dumb; use `holdfast tools ls`" in terminal.text
        assert b"\x1b" not in terminal.text


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("holdfast.top.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    assert cli.main(["top"]) == 2

    assert "pip install 'holdfast[tui]'" in capsys.readouterr().err


if __name__ == "__main__":
    asyncio.run(wait_to_be_cancelled(sys.argv[1]))
