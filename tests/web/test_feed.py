"""The feed of a page, and the stream of a run: nothing is lost, nothing comes twice, nobody is kept waiting."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.children import ask, said, until
from tests.publishing.children import children
from tests.web import children as web_children
from tests.web.conftest import LIMIT, TOKEN, Message, Ui, messages, next_of

from holdfast.clock import SystemClock
from holdfast.stores import open_store, rates
from holdfast.stores.ledger import Ledger, OwnerRow
from holdfast.web import api, feed
from holdfast.web.desk import Desk


@pytest.fixture
def start() -> Iterator[Any]:
    with children() as start:
        yield start


def create(ui: Ui, *ids: str) -> None:
    for id in ids:
        ui.store.create_run("s", "p", run_id=id)


def seen(ui: Ui) -> list[tuple[str, int]]:
    return [(tool["state"], tool["calls"]) for tool in ui.get("/api/tools")["tools"]]


def ids(message: Message) -> list[str]:
    return [run["id"] for run in message.data["runs"]]


def read_until(found: Iterator[Message], run: str) -> list[Message]:
    """All messages up to the one that tells of *run*."""
    read = []
    for each in found:
        read.append(each)
        if each.event == "runs" and run in ids(each):
            return read
    raise AssertionError(f"the stream has ended without {run}")


# --- what a page is told ---


def test_a_page_begins_with_everything(ui: Ui, path: Path, start: Any) -> None:
    child = start("agent", path, "good")
    assert said(child) == "ready"
    ask(child, "ok good")
    create(ui, "one", "two")
    until(lambda: ui.get("/api/tools")["tools"], "the tool")

    with ui.stream() as found:
        hello = next(found)

    assert hello.event == "hello"
    assert [tool["name"] for tool in hello.data["tools"]] == ["good"]
    assert ids(hello) == ["two", "one"]
    assert hello.data["servers"] == []


def test_a_circuit_that_opens_in_another_process_is_told(ui: Ui, path: Path, start: Any) -> None:
    child = start("agent", path, "bad")
    assert said(child) == "ready"
    ask(child, "ok bad")

    with ui.stream() as found:
        next_of(found, "hello")
        ask(child, "fail bad")
        told = next_of(found, "tools", lambda data: any(tool["state"] == "open" for tool in data["tools"]))

    assert [tool["name"] for tool in told.data["tools"]] == ["bad"]


def test_a_tool_whose_process_has_died_is_gone(ui: Ui, path: Path, start: Any) -> None:
    child = start("agent", path, "good")
    assert said(child) == "ready"
    ask(child, "ok good")
    until(lambda: ui.get("/api/tools")["tools"], "the tool")

    with ui.stream() as found:
        next_of(found, "hello")
        child.kill()
        gone = next_of(found, "tools", lambda data: bool(data["gone"]))

    assert gone.data["gone"] == ["good"]


def test_servers_are_told_when_one_changes(ui: Ui, path: Path, start: Any) -> None:
    child = start("proxy", path, "files")
    assert said(child) == "ready"

    with ui.stream() as found:
        next_of(found, "hello")
        ask(child, "ready")
        told = next_of(
            found, "servers", lambda data: [each["server"]["state"] for each in data["servers"]] == ["ready"]
        )

    assert told.data["servers"][0]["server"]["name"] == "files"


def test_runs_are_told_as_they_change_and_only_those(ui: Ui) -> None:
    create(ui, "old", "new")

    with ui.stream() as found:
        next_of(found, "hello")
        ui.store.record_event("new", "run_started", {})
        told = next_of(found, "runs")

    assert [(run["id"], run["status"]) for run in told.data["runs"]] == [("new", "executing")]


def test_a_run_whose_process_has_died_is_told_as_interrupted(ui: Ui, path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(web_children.__file__), "waits", str(path), "orphan"], stdout=subprocess.PIPE, text=True
    ) as child:
        assert said(child) == "hanging"
        with ui.stream() as found:
            next_of(found, "hello")
            child.kill()
            told = next_of(found, "runs", lambda data: any(run["interrupted"] for run in data["runs"]))

    assert ids(told) == ["orphan"]


def test_more_orphans_than_can_be_told_are_left_in_peace(ui: Ui, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_RUNS", 5)
    dead = OwnerRow("dead", "elsewhere", 1, 1)

    def orphan(ledger: Ledger) -> None:
        for number in range(10):
            ledger.claim(ledger.add(ui.store.header("s", "p", f"orphan {number}")), dead)

    ui.store.writer.commit(orphan)

    with ui.stream() as found:
        next_of(found, "hello")
        create(ui, "mark")
        read = read_until(found, "mark")

    assert [each.event for each in read] == ["runs"]


def test_an_idle_store_makes_no_messages(ui: Ui, path: Path, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "WINDOW", 0.5)
    monkeypatch.setattr(feed, "PERIOD", 0.01)  # each look looks at the tools
    child = start("agent", path, "bad")
    assert said(child) == "ready"
    ask(child, "fail bad")  # its wait grows shorter all the time, which is no change
    until(lambda: seen(ui) == [("open", 1)], "the open circuit")

    def is_peace(data: Any) -> bool:
        return [tool["calls_per_second"] for tool in data["tools"]] == [0.0]

    with ui.stream() as found:
        if not is_peace(next_of(found, "hello").data):
            next_of(found, "tools", is_peace)
        ui.get("/api/tools")
        create(ui, "mark")
        quiet = read_until(found, "mark")

    assert [each.event for each in quiet] == ["runs"]


def test_too_many_changes_are_told_as_everything(ui: Ui, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_RUNS", 5)
    create(ui, "first")

    with ui.stream() as found:
        first = next_of(found, "hello")
        ui.store.writer.commit(lambda ledger: add(ledger, ui, 10))
        second = next_of(found, "hello")

    assert ids(first) == ["first"]
    assert len(ids(second)) == 11


def add(ledger: Ledger, ui: Ui, count: int, prompt: str = "p") -> None:
    for number in range(count):
        ledger.add(ui.store.header("s", prompt, f"r{number}"))


def test_runs_that_are_deleted_lead_to_everything(ui: Ui) -> None:
    create(ui, "one", "two")
    ui.store.record_event("one", "note")
    ui.store.record_event("two", "note")
    ui.store.mark_failed("two", "oh")

    with ui.stream() as found:
        next_of(found, "hello")
        ui.store.prune(max_runs=0)
        second = next_of(found, "hello")

    assert ids(second) == ["one"]


def test_runs_that_are_deleted_though_newer_ones_stay_lead_to_everything(
    ui: Ui, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "COUNTING", 0.0)
    create(ui, "one", "two")
    ui.store.mark_failed("one", "oh")
    ui.store.record_event("two", "note")

    with ui.stream() as found:
        next_of(found, "hello")
        ui.store.writer.commit(lambda ledger: swap(ledger, ui, "one", "mark"))  # at once: as many as are deleted
        second = next_of(found, "hello")

    assert ids(second) == ["mark", "two"]


def swap(ledger: Ledger, ui: Ui, old: str, new: str) -> None:
    """Delete a run as `prune` does, and make another."""
    ledger.step_aside()
    ((_, key),) = ledger.tables.ask("place", old)
    for name in ("drop_events", "forget_memos", "forget_tools", "drop_run"):
        ledger.tables.ask(name, key)
    ledger.add(ui.store.header("s", "p", new))


def test_runs_that_are_made_are_not_taken_for_deleted_ones(ui: Ui, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "COUNTING", 0.0)
    create(ui, "one")
    ui.store.mark_failed("one", "oh")
    create(ui, "two")
    ui.store.prune(max_runs=0)

    with ui.stream() as found:
        next_of(found, "hello")
        create(ui, "three")
        first = read_until(found, "three")
        create(ui, "four")
        second = read_until(found, "four")

    assert {each.event for each in first + second} == {"runs"}


def test_what_changes_while_another_page_comes_is_told_to_those_already_there(
    ui: Ui, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(ui, "one")
    list_runs = ui.store.list_runs

    def while_it_begins(**how: Any) -> Any:
        ui.store.record_event("one", "run_started", {})
        return list_runs(**how)

    with ui.stream() as staying:
        next_of(staying, "hello")
        monkeypatch.setattr(ui.store, "list_runs", while_it_begins)
        with ui.stream() as coming:
            assert ids(next_of(coming, "hello")) == ["one"]
        create(ui, "mark")
        read = read_until(staying, "mark")

    assert "one" in [run for each in read for run in ids(each)]


def test_a_store_that_is_made_later_is_told_of(ui: Ui, path: Path) -> None:
    with ui.stream() as found:
        assert next(found).data["runs"] == []
        assert not path.exists()
        create(ui, "one")

        assert ids(next_of(found, "runs")) == ["one"]


def test_a_store_that_fails_is_noted_and_comes_back(ui: Ui, path: Path) -> None:
    create(ui, "one")

    with ui.stream() as found:
        next_of(found, "hello")
        path.rename(path.with_suffix(".away"))
        noted = next_of(found, "note")
        path.with_suffix(".away").rename(path)
        create(ui, "two")
        told = next_of(found, "runs")

    assert noted.data["code"] == "store"
    assert ids(told) == ["two"]


def test_a_store_that_comes_back_unchanged_is_told_of(ui: Ui, path: Path) -> None:
    create(ui, "one")

    with ui.stream() as found:
        next_of(found, "hello")
        path.rename(path.with_suffix(".away"))
        next_of(found, "note")
        path.with_suffix(".away").rename(path)
        told = next_of(found, "hello")

    assert ids(told) == ["one"]


def test_who_comes_while_the_store_fails_gets_everything_once_it_is_back(ui: Ui, path: Path) -> None:
    create(ui, "one")
    path.rename(path.with_suffix(".away"))

    with ui.stream() as found:
        first = next(found)
        path.with_suffix(".away").rename(path)
        second = next(found)

    assert (first.event, first.data["code"]) == ("note", "store")
    assert (second.event, ids(second)) == ("hello", ["one"])


# --- coming back ---


def test_who_comes_back_gets_what_was_missed_once(ui: Ui) -> None:
    create(ui, "before")
    with ui.stream() as found:
        last = next_of(found, "hello").id
        create(ui, "seen")
        last = next_of(found, "runs").id

    create(ui, "missed", "missed too")
    with ui.stream(last=last) as found:
        create(ui, "live")
        read = read_until(found, "live")

    told = [run for each in read for run in ids(each)]
    assert {each.event for each in read} == {"runs"}
    assert sorted(told) == ["live", "missed", "missed too"]


def test_who_comes_and_goes_hears_the_same_as_who_stays(ui: Ui) -> None:
    with ui.stream() as staying:
        next_of(staying, "hello")
        last = ""
        heard: list[Message] = []
        with ui.stream() as found:
            last = next_of(found, "hello").id
        for number in range(5):
            create(ui, f"run {number}")
            with ui.stream(last=last) as found:
                heard += read_until(found, f"run {number}")
                last = heard[-1].id
        stayed = read_until(staying, "run 4")

    assert [each.id for each in heard] == [each.id for each in stayed]
    assert heard == stayed


@pytest.mark.parametrize("last", ["", "0", "nonsense", "ffffffff-3", "-1", "x" * 1000, "{start}-99999", "{start}-٣"])
def test_who_comes_with_a_number_that_is_not_ours_gets_everything(ui: Ui, last: str) -> None:
    with ui.stream() as found:
        start = next_of(found, "hello").id.partition("-")[0]

    with ui.client.stream(
        "GET", "/api/stream", headers={"Last-Event-ID": last.replace("{start}", start).encode()}
    ) as answer:
        assert next(messages(answer.iter_lines())).event == "hello"


@pytest.mark.parametrize(("limit", "most"), [("KEPT", 2), ("MOST_BEHIND", 1000)], ids=["messages", "bytes"])
def test_who_has_missed_more_than_is_kept_gets_everything(
    ui: Ui, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(feed, limit, most)
    with ui.stream() as staying:
        last = next_of(staying, "hello").id
        for number in range(5):
            create(ui, f"run {number}")
            read_until(staying, f"run {number}")

    with ui.stream(last=last) as found:
        assert next(found).event == "hello"


def test_another_start_of_the_server_begins_anew(serve: Callable[..., Ui]) -> None:
    with serve().stream() as found:
        last = next_of(found, "hello").id

    with serve().stream(last=last) as found:
        assert next(found).event == "hello"


# --- many, slow and none ---


def test_eight_pages_hear_the_same(ui: Ui) -> None:
    heard: list[list[str]] = []
    ready = threading.Barrier(9)

    def listen() -> None:
        with ui.stream() as found:
            next_of(found, "hello")
            ready.wait(LIMIT)
            heard.append([each.id for each in read_until(found, "last")])

    pages = [threading.Thread(target=listen) for _ in range(8)]
    for page in pages:
        page.start()
    ready.wait(LIMIT)
    create(ui, "first", "last")
    for page in pages:
        page.join()

    assert len(heard) == 8
    assert all(each == heard[0] for each in heard)


def test_a_page_that_does_not_read_is_let_go_with_a_note_and_keeps_nobody(
    ui: Ui, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_BEHIND", 100_000)
    ui.store.writer.commit(lambda ledger: add(ledger, ui, 900, "x" * 1000))

    def change(ledger: Ledger) -> None:
        for number in range(900):
            ledger.say(ledger.run(f"r{number}"), "note")

    with socket.socket() as slow, ui.stream() as quick:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(LIMIT)
        slow.connect(("127.0.0.1", ui.port))
        head = f"GET /api/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        slow.sendall(head.encode())
        beginning = slow.recv(100)
        while b"event: hello" not in beginning:
            beginning += slow.recv(100)
        next_of(quick, "hello")
        for _ in range(9):  # each more than a megabyte: more than what lies between the two, and the first that waits
            ui.store.writer.commit(change)
            next_of(quick, "runs")
        ending = b""
        while piece := slow.recv(1 << 20):
            ending = (ending + piece)[-1000:]

    assert b"event: note" in ending
    assert b'"code":"slow"' in ending
    assert b"\r\n0\r\n\r\n" in ending


def test_a_page_is_not_behind_for_all_that_one_look_finds(ui: Ui, monkeypatch: pytest.MonkeyPatch) -> None:
    create(ui, "one")
    monkeypatch.setattr(feed, "MOST_BEHIND", 10)

    def change(ledger: Ledger) -> None:
        ui.store.file.writing().execute(ui.store.file.sql("put_order"), ("search", "open", 1, 0, 0))
        add(ledger, ui, 1, "p")

    with ui.stream() as found:
        next_of(found, "hello")
        ui.store.writer.commit(change)
        told = [each.event for each in read_until(found, "r0")]

    assert told == ["tools", "runs"]


def test_nothing_is_watched_while_nobody_listens(ui: Ui) -> None:
    def watchers() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "holdfast-watcher"]

    create(ui, "one")
    with ui.stream() as found:
        next_of(found, "hello")
        until(watchers, "the watcher")

    until(lambda: not watchers(), "its end")


async def test_for_pages_that_leave_before_it_is_their_turn_nothing_is_read(path: Path) -> None:
    class Counting(SystemClock):
        asked = 0

        def time(self) -> float:
            self.asked += 1
            return super().time()

    clock = Counting()
    with open_store(path, clock=clock) as store:
        store.create_run("s", "p")
        desk = Desk(store, None, None)
        listen = feed.Feed(desk).listen

        async def looks(pages: int) -> int:
            before = clock.asked
            tasks = [asyncio.ensure_future(anext(listen(None))) for _ in range(pages)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
            return clock.asked - before

        one = await looks(1)
        many = await looks(30)
        desk.close()

    assert 0 < many <= 2 * one


def test_more_pages_than_may_be_are_refused(ui: Ui, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.web.desk.MOST_STREAMS", 1)

    with ui.stream() as found:
        next_of(found, "hello")
        answer = ui.client.get("/api/stream")

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_streams")


@pytest.mark.parametrize("path", ["/api/stream", "/api/runs/one/stream"])
def test_a_silent_stream_gives_signs_of_life(ui: Ui, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "BEAT", 0.01)
    monkeypatch.setattr(feed, "BEAT", 0.01)
    create(ui, "one")

    with ui.client.stream("GET", path) as answer:
        assert ":" in answer.iter_lines()


def test_a_question_about_the_head_of_a_stream_is_answered_at_once(ui: Ui) -> None:
    answer = ui.client.head("/api/stream")

    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


# --- the stream of a run ---


def test_a_run_is_told_from_the_past_into_the_present_to_its_end(ui: Ui) -> None:
    create(ui, "one")
    ui.store.record_event("one", "note", {"n": 0})

    with ui.stream("/api/runs/one/stream") as found:
        first = next(found)
        ui.store.record_event("one", "note", {"n": 1})
        second = next(found)
        ui.store.mark_failed("one", "oh")
        rest = list(found)

    assert (first.id, first.data["payload"]) == ("0", {"n": 0})
    assert (second.id, second.data["payload"]) == ("1", {"n": 1})
    assert [(each.id, each.event) for each in rest] == [("2", "message"), ("", "end")]
    assert rest[-1].data == {"status": "failed"}


def test_a_run_is_told_from_where_one_stopped(ui: Ui) -> None:
    create(ui, "one")
    for number in range(200):
        ui.store.record_event("one", "note", {"n": number})
    ui.store.mark_cancelled("one")

    with ui.stream("/api/runs/one/stream", last="150") as found:
        after_header = [each.id for each in found]
    with ui.stream("/api/runs/one/stream?after=198") as found:
        after_parameter = [each.id for each in found]
    with ui.stream("/api/runs/one/stream", last="200") as found:
        nothing = [each.event for each in found]

    assert after_header == [*(str(number) for number in range(151, 201)), ""]
    assert after_parameter == ["199", "200", ""]
    assert nothing == ["end"]


def test_events_that_are_no_longer_kept_are_told_as_a_gap(ui: Ui) -> None:
    create(ui, "one")
    for number in range(10):
        ui.store.record_event("one", "note", {"n": number})
    ui.store.mark_failed("one", "oh")
    ui.store.prune(max_events=3)

    with ui.stream("/api/runs/one/stream") as found:
        read = list(found)

    assert (read[0].event, read[0].data) == ("gap", {"first_available": 8})
    assert [each.id for each in read[1:]] == ["8", "9", "10", ""]


def test_a_run_that_is_deleted_meanwhile_ends_its_stream_with_a_note(ui: Ui) -> None:
    create(ui, "one")
    ui.store.record_event("one", "note", {"n": 0})

    with ui.stream("/api/runs/one/stream") as found:
        next(found)
        ui.store.replace_records([])
        rest = list(found)

    assert [each.event for each in rest] == ["note"]


def test_a_stream_that_is_asked_for_from_nowhere_is_refused(ui: Ui) -> None:
    create(ui, "one")

    answer = ui.client.get("/api/runs/one/stream", headers={"Last-Event-ID": "x"})

    assert answer.status_code == 400


def test_streams_end_with_the_server(ui: Ui) -> None:
    create(ui, "one")

    with ui.stream() as page, ui.stream("/api/runs/one/stream") as run:
        next_of(page, "hello")
        ui.server.stop()

        assert list(page) == []
        assert list(run) == []
