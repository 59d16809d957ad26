"""What the API answers, over real stores, of tools and runs in other processes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.children import ask, said, until
from tests.publishing.children import children
from tests.web import children as web_children
from tests.web.conftest import LIMIT, Ui

import holdfast
from holdfast.stores.board import Board
from holdfast.stores.ledger import Ledger
from holdfast.stores.searching import MOST_LOOKED_AT
from holdfast.web import desk

HOSTILE = ["<img src=x onerror=alert(1)>", "a/b?c#d%2F", "..", "\u202egnp.exe", "naïve 🦀", "a&b=c;d", 'quote"\\']
NAMES = [text for text in HOSTILE if text.isprintable() and text != ".."]  # a browser takes dots for a way up


@pytest.fixture
def start() -> Iterator[Any]:
    with children() as start:
        yield start


@pytest.fixture
def waiting(path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts processes that are in a run until it is cancelled."""
    started = []

    def begin(run_id: str) -> subprocess.Popen[str]:
        words = [sys.executable, str(web_children.__file__), "waits", str(path), run_id]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert said(child) == "hanging"
        return child

    yield begin

    for child in started:
        child.kill()
        child.communicate()


def tool(ui: Ui, name: str) -> Any:
    return next((each for each in ui.get("/api/tools")["tools"] if each["name"] == name), None)


def runs(ui: Ui, **filters: object) -> list[str]:
    return [run["id"] for run in ui.get("/api/runs", params=filters)["runs"]]


def fill(ui: Ui, count: int, **more: Any) -> None:
    """Many runs in one write."""

    def add(ledger: Ledger) -> None:
        for number in range(count):
            ledger.add(ui.store.header("many", f"prompt {number}", f"r{number:06}", **more))

    ui.store.writer.commit(add)


# --- tools ---


def test_a_store_that_is_not_there_yet_has_nothing_and_is_not_made(ui: Ui, path: Path) -> None:
    assert ui.get("/api/tools")["tools"] == []
    assert ui.get("/api/servers")["servers"] == []
    assert ui.get("/api/runs")["runs"] == []
    assert not path.exists()


def test_tools_of_another_process_are_listed_the_worst_first(ui: Ui, path: Path, start: Any) -> None:
    child = start("agent", path, "good", "bad")
    assert said(child) == "ready"

    ask(child, "ok good")
    ask(child, "fail bad")

    until(lambda: (tool(ui, "bad") or {}).get("state") == "open", "the open circuit")
    assert [each["name"] for each in ui.get("/api/tools")["tools"]] == ["bad", "good"]
    bad = tool(ui, "bad")
    assert (bad["state"], bad["failed"], bad["last_error"]) == ("open", 1, "ConnectionError: the line is dead")
    assert bad["failure_threshold"] == 1
    assert bad["remaining_ms"] > 0


def test_a_tool_is_told_with_its_policy_transitions_durations_and_calls(ui: Ui, path: Path, start: Any) -> None:
    child = start("agent", path, "bad")
    assert said(child) == "ready"

    ask(child, "ok bad")
    ask(child, "fail bad")

    until(lambda: (tool(ui, "bad") or {}).get("state") == "open", "the open circuit")

    def details() -> Any:
        return ui.get("/api/tools/bad")["details"][0]

    until(lambda: details()["transitions"] and len(details()["recent"]) == 2, "its details")
    (detail,) = ui.get("/api/tools/bad")["details"]
    assert detail["pid"] == child.pid
    assert {"key": "breaker.failure_threshold", "value": 1, "origin": "policies [policy]"} in detail["policy"]
    (change,) = detail["transitions"]
    assert (change["before"], change["after"], change["failures"]) == ("closed", "open", 1)
    assert change["why"] == "1 failure, last: network"
    assert [call["status"] for call in detail["recent"]] == ["failed", "success"]
    assert sum(count for _, count in detail["histogram"]) == 2


def test_what_becomes_idle_is_told_to_the_last_call(ui: Ui, path: Path, start: Any) -> None:
    child = start("agent", path, "good")
    assert said(child) == "ready"

    for _ in range(30):
        ask(child, "ok good")

    until(lambda: (tool(ui, "good") or {}).get("calls") == 30, "all calls")
    until(lambda: len(ui.get("/api/tools/good")["details"][0]["recent"]) == 30, "all of them in the details")


@pytest.mark.parametrize("name", NAMES)
def test_a_tool_is_found_under_any_name(ui: Ui, name: str) -> None:
    ui.post(f"/api/tools/{quote(name, safe='')}/open")

    found = ui.get(f"/api/tools/{quote(name, safe='')}")

    assert found["tool"]["name"] == name
    assert tool(ui, name)["forced"] == "open"


def test_a_tool_that_the_policies_name_is_there_before_it_is_called(serve: Callable[..., Ui]) -> None:
    ui = serve(policies={"tool": {"search": {"timeout": 3.0}, "pattern_*": {"timeout": 4.0}}})

    found = ui.get("/api/tools/search")

    assert [each["name"] for each in ui.get("/api/tools")["tools"]] == ["search"]
    (detail,) = found["details"]
    assert {"key": "timeout", "value": 3.0, "origin": "policies [tool.search]"} in detail["policy"]


def test_an_unknown_tool_is_not_found(ui: Ui) -> None:
    for answer in (ui.client.get("/api/tools/nobody"), ui.client.post("/api/tools/nobody/reset")):
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "tool_not_found"


def test_opening_and_closing_reach_another_process(ui: Ui, path: Path, start: Any) -> None:
    child = start("agent", path, "good")
    assert said(child) == "ready"
    assert ask(child, "ok good") == "done"

    assert ui.post("/api/tools/good/open")["tool"]["forced"] == "open"
    until(lambda: ask(child, "ok good") == "denied", "the open circuit")
    assert ui.post("/api/tools/good/close")["tool"]["forced"] == "closed"
    until(lambda: ask(child, "ok good") == "done", "the closed one")
    assert ui.post("/api/tools/good/auto")["tool"]["forced"] is None


def test_a_reset_closes_a_circuit_in_another_process(ui: Ui, path: Path, start: Any) -> None:
    child = start("agent", path, "bad")
    assert said(child) == "ready"
    ask(child, "fail bad")
    until(lambda: (tool(ui, "bad") or {}).get("state") == "open", "the open circuit")

    ui.post("/api/tools/bad/reset")

    until(lambda: ask(child, "ok bad") == "done", "the closed circuit")


def test_calls_a_second_are_known_after_a_second_look(ui: Ui, path: Path, start: Any) -> None:
    child = start("agent", path, "good")
    assert said(child) == "ready"
    ask(child, "ok good")
    until(lambda: [line.calls for line in Board(ui.store).tools()] == [1], "its call")
    assert tool(ui, "good")["calls_per_second"] is None

    def busy() -> bool:
        ask(child, "ok good")
        return bool(tool(ui, "good")["calls_per_second"])

    until(busy, "a rate")


def test_servers_behind_a_proxy_are_listed(ui: Ui, path: Path, start: Any) -> None:
    child = start("proxy", path, "files")
    assert said(child) == "ready"

    until(lambda: ui.get("/api/servers")["servers"], "the server")
    (line,) = ui.get("/api/servers")["servers"]

    assert line["proxy_pid"] == child.pid
    assert (line["server"]["name"], line["server"]["restarts"], line["server"]["stderr"]) == ("files", 2, ["oh no"])


# --- runs ---


def test_runs_are_listed_the_newest_first_and_page_by_page(ui: Ui) -> None:
    fill(ui, 25)

    first = ui.get("/api/runs", params={"limit": 10})
    second = ui.get("/api/runs", params={"limit": 10, "before": first["next"]})
    third = ui.get("/api/runs", params={"limit": 10, "before": second["next"]})

    ids = [run["id"] for page in (first, second, third) for run in page["runs"]]
    assert ids == [f"r{number:06}" for number in range(24, -1, -1)]
    assert third["next"] is None


def test_runs_are_found_by_status_session_tool_and_text(ui: Ui) -> None:
    for id, session, prompt in (("one", "s1", "Find the ÄPFEL"), ("two", "s2", "other"), ("three", "s2", "other")):
        ui.store.create_run(session, prompt, run_id=id)
    ui.store.record_event("two", "tool_started", {"call_id": "1", "tool": "search"})
    ui.store.record_event("three", "tool_denied", {"tool": "search"})
    ui.store.mark_failed("three", "it broke")

    assert runs(ui, status="failed") == ["three"]
    assert runs(ui, session="s2") == ["three", "two"]
    assert runs(ui, tool="search") == ["three", "two"]
    assert runs(ui, tool="search", status="executing", session="s2") == ["two"]
    assert runs(ui, text="äpfel") == ["one"]
    assert runs(ui, text="BROKE") == ["three"]
    assert runs(ui, tool="nobody") == []


def test_a_run_whose_process_died_is_found_as_interrupted(ui: Ui, waiting: Any) -> None:
    child = waiting("orphan")
    assert runs(ui, status="interrupted") == []

    child.kill()
    child.wait()

    assert runs(ui, status="interrupted") == ["orphan"]
    assert ui.get("/api/runs/orphan")["run"]["interrupted"]


def test_a_long_search_goes_on_where_it_stopped(ui: Ui) -> None:
    fill(ui, 2 * MOST_LOOKED_AT + 500)

    found, pages, before = [], 0, None
    while True:
        page = ui.get("/api/runs", params={"text": "prompt 77", **({"before": before} if before else {})})
        found += [run["id"] for run in page["runs"]]
        pages, before = pages + 1, page["next"]
        if before is None:
            break

    assert pages > 2
    assert len(found) == len(set(found)) == 111  # 77, 770 to 779, 7700 to 7799


def test_what_a_run_is_doing_is_told_with_its_attempt(ui: Ui) -> None:
    ui.store.create_run("s", "p", run_id="one")
    ui.store.record_event("one", "tool_started", {"call_id": "1", "tool": "search"})
    ui.store.record_event("one", "tool_attempt_failed", {"call_id": "1", "attempt": 1, "retry_in_ms": 20})

    (run,) = ui.get("/api/runs")["runs"]

    assert (run["current"]["name"], run["current"]["attempt"]) == ("search", 2)
    assert run["active_tools"] == ["search"]


def test_a_long_text_is_cut_in_the_list_and_whole_in_the_run(ui: Ui) -> None:
    prompt = "x" * 1_000_000
    ui.store.create_run("s", prompt, run_id="one")

    (line,) = ui.get("/api/runs")["runs"]

    assert len(line["prompt"]) == 1001
    assert ui.get("/api/runs/one")["run"]["prompt"] == prompt


@pytest.mark.parametrize("text", [*HOSTILE, "a\0b", "\u2028", "x" * 200])
def test_hostile_texts_come_back_as_they_were(ui: Ui, text: str) -> None:
    ui.store.create_run(text, text, run_id="one")
    ui.store.record_event("one", "note", {"text": text, text[:50] or "x": 1})

    assert ui.get("/api/runs/one")["run"]["prompt"] == text
    assert ui.get("/api/runs/one/events")["events"][0]["payload"]["text"] == text
    assert runs(ui, session=text) == ["one"]


@pytest.mark.parametrize("id", NAMES)
def test_a_run_is_found_under_any_id(ui: Ui, id: str) -> None:
    ui.store.create_run("s", "p", run_id=id)

    found = ui.get(f"/api/runs/{quote(id, safe='')}")

    assert found["run"]["id"] == id
    assert ui.client.get(found["export"]).status_code == 200


def test_an_unknown_run_is_not_found(ui: Ui) -> None:
    for path in ("/api/runs/no", "/api/runs/no/events", "/api/runs/no/stream", "/api/runs/no/export"):
        answer = ui.client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "run_not_found")
    assert ui.client.post("/api/runs/no/cancel").status_code == 404
    assert ui.client.get("/api/runs", params={"before": "no"}).status_code == 404


def test_events_come_page_by_page(ui: Ui) -> None:
    ui.store.create_run("s", "p", run_id="one")
    for number in range(5):
        ui.store.record_event("one", "note", {"number": number})

    page = ui.get("/api/runs/one/events", params={"after": 1, "limit": 2})

    assert [event["sequence"] for event in page["events"]] == [2, 3]
    assert (page["next_after"], page["has_more"], page["gap"], page["first_available"]) == (3, True, False, 0)


def test_the_command_that_resumes_is_told_where_there_is_one(ui: Ui, path: Path) -> None:
    with holdfast.open(path, policies={}) as hf:
        with pytest.raises(RuntimeError), hf.run(run_id="a b", entry={"target": "module:function", "args": []}):
            raise RuntimeError("oh")
        with hf.run(run_id="done"):
            pass

    assert ui.get("/api/runs/a%20b")["resume"] == "holdfast runs resume 'a b'"
    assert ui.get("/api/runs/done")["resume"] is None


def test_an_export_is_what_import_takes(ui: Ui, tmp_path: Path) -> None:
    ui.store.create_run("s", "p", run_id="one/two")
    ui.store.record_event("one/two", "note", {"text": "ü" * 10_000})

    answer = ui.client.get("/api/runs/one%2Ftwo/export")

    assert answer.headers["content-disposition"] == 'attachment; filename="run-one_two.jsonl"'
    with holdfast.SqliteRunStore(tmp_path / "other.db") as other:
        other.import_(io.StringIO(answer.text))
        assert other.snapshot("one/two").event_count == 1


def test_a_run_in_another_process_is_cancelled(ui: Ui, waiting: Any) -> None:
    child = waiting("wait")

    answer = ui.post("/api/runs/wait/cancel", json={"reason": "enough"})

    assert answer == {"result": "requested"}
    assert said(child) == "cancelled enough"
    assert ui.get("/api/runs/wait")["run"]["status"] == "cancelled"
    assert ui.post("/api/runs/wait/cancel") == {"result": "already_finished"}


def test_all_runs_of_a_filter_are_cancelled_and_no_others(ui: Ui, waiting: Any) -> None:
    child = waiting("wait")
    ui.store.create_run("other", "p", run_id="other")
    ui.store.create_run("waiting", "p", run_id="idle")
    ui.store.create_run("waiting", "p", run_id="over")
    ui.store.mark_failed("over", "oh")

    answer = ui.post("/api/runs/cancel", params={"session": "waiting"}, json={"reason": "enough"})

    assert answer == {"requested": 2, "already_finished": 0, "ids": ["idle", "wait"], "next": None}
    assert said(child) == "cancelled enough"
    assert ui.get("/api/runs/other")["run"]["status"] == "created"
    assert ui.get("/api/runs/over")["run"]["status"] == "failed"


@pytest.mark.parametrize(
    ("status", "ids"), [("created", ["idle"]), ("alive", ["idle"]), ("failed", []), ("interrupted", [])]
)
def test_of_the_runs_of_a_status_those_are_cancelled_that_have_not_ended(ui: Ui, status: str, ids: list[str]) -> None:
    ui.store.create_run("s", "p", run_id="idle")
    ui.store.create_run("s", "p", run_id="over")
    ui.store.mark_failed("over", "oh")

    answer = ui.post("/api/runs/cancel", params={"status": status})

    assert answer == {"requested": len(ids), "already_finished": 0, "ids": ids, "next": None}


def test_cancelling_everything_must_be_said(ui: Ui) -> None:
    fill(ui, 3)

    refused = ui.client.post("/api/runs/cancel")

    assert refused.status_code == 400
    assert "all=true" in refused.json()["error"]["hint"]
    assert ui.post("/api/runs/cancel", params={"all": "true"})["requested"] == 3


@pytest.mark.parametrize("given", ["false", "1", "yes"])
def test_what_does_not_say_that_all_are_meant_cancels_none(ui: Ui, given: str) -> None:
    fill(ui, 3)

    refused = ui.client.post("/api/runs/cancel", params={"all": given})

    assert refused.status_code == 400
    assert ui.store.counts() == {"created": 3}


def test_no_more_runs_are_cancelled_than_the_limit_says(ui: Ui) -> None:
    fill(ui, 3)

    answer = ui.post("/api/runs/cancel", params={"status": "created", "limit": 2})

    assert answer == {"requested": 2, "already_finished": 0, "ids": ["r000002", "r000001"], "next": "r000001"}
    assert ui.store.counts() == {"created": 1, "cancelled": 2}


def test_cancelling_goes_on_where_it_stopped(ui: Ui) -> None:
    fill(ui, 3)
    newest = ui.get("/api/runs", params={"limit": 2})

    answer = ui.post("/api/runs/cancel", params={"all": "true", "before": newest["next"]})

    assert answer["ids"] == ["r000000"]
    assert ui.store.counts() == {"created": 2, "cancelled": 1}


def test_a_reason_may_be_left_open(ui: Ui) -> None:
    fill(ui, 1)

    assert ui.post("/api/runs/r000000/cancel", json={"reason": None}) == {"result": "requested"}


# --- what is wrong is said ---


def test_more_requests_than_can_be_answered_soon_are_refused_until_some_are(
    ui: Ui, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "MOST_WAITING", 1)
    go = threading.Event()
    for _ in range(desk.THREADS):
        ui.app.desk._threads.submit(go.wait, LIMIT)
    with ThreadPoolExecutor(1) as elsewhere:
        first = elsewhere.submit(ui.client.get, "/api/tools")
        until(lambda: ui.app.desk._waiting, "the first to wait")

        second = ui.client.get("/api/tools")
        go.set()

    assert (second.status_code, second.json()["error"]["code"]) == (503, "busy")
    assert [first.result().status_code, ui.client.get("/api/tools").status_code] == [200, 200]


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=1001", "limit=x", "limit=1e3", "limit=٣", "status=running", "nobody=1", "text=a&text=b",
        "text=" + "x" * 1001, "text=%ff", "limit=" + "9" * 5000,
    ],
)  # fmt: skip
def test_a_question_that_makes_no_sense_is_refused_with_a_reason(ui: Ui, query: str) -> None:
    answer = ui.client.get(f"/api/runs?{query}")

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "bad_request"
    assert answer.json()["error"]["message"]


def test_cancelling_by_a_status_that_is_none_is_refused_with_those_that_are(ui: Ui) -> None:
    answer = ui.client.post("/api/runs/cancel?status=running")

    assert answer.status_code == 400
    assert "executing" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"reason": 3}', "application/json", 400),
        (b'{"reson": "x"}', "application/json", 400),
        (b'{"reason": "\xff"}', "application/json", 400),
        (b'{"reason": "x"}', "text/plain", 415),
        (b'{"reason": "' + b"x" * 3000 + b'"}', "application/json", 400),
        (b'{"reason": "' + b"x" * 1_000_000 + b'"}', "application/json", 413),
    ],
)
def test_a_body_that_makes_no_sense_is_refused_with_a_reason(ui: Ui, body: bytes, kind: str, status: int) -> None:
    ui.store.create_run("s", "p", run_id="one")

    for path in ("/api/runs/one/cancel", "/api/tools/x/open"):
        answer = ui.client.post(path, content=body, headers={"Content-Type": kind})

        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"code", "message", "hint"}
    assert ui.store.snapshot("one").status == "created"
    assert ui.get("/api/tools")["tools"] == []


def test_a_path_or_method_that_is_not_there_is_said(ui: Ui) -> None:
    nothing, wrong = ui.client.get("/api/nothing"), ui.client.delete("/api/runs/x", headers={"Origin": ui.url})

    assert (nothing.status_code, nothing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_a_store_that_cannot_be_read_is_said(ui: Ui, path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)

    answer = ui.client.get("/api/runs")

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "store"


def test_the_page_and_its_files_are_served(ui: Ui) -> None:
    page, script = ui.client.get("/"), ui.client.get("/static/app.js")

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    again = ui.client.get("/static/app.js", headers={"If-None-Match": script.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_metrics_are_served_for_prometheus(ui: Ui, path: Path, start: Any) -> None:
    child = start("agent", path, "good")
    assert said(child) == "ready"
    ask(child, "ok good")

    until(lambda: 'tool="good"' in ui.client.get("/metrics").text, "the tool")

    assert ui.client.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")


def test_health_is_told_to_anybody(ui: Ui) -> None:
    assert json.loads(ui.client.get("/healthz", headers={"Authorization": ""}).text) == {"status": "ok"}
