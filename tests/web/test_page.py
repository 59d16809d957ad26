"""The page in a real Chromium, served by a real `holdfast ui`, with the live data of another process on its store."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.children import until
from tests.servers.finding import free_port
from tests.web.browser import browser
from tests.web.feeder import Child
from tests.web.typecheck import node

from holdfast.history import RunEventRecord
from holdfast.stores import SqliteRunStore
from holdfast.stores.board import Board
from holdfast.stores.entries import Process, ServerEntry, ToolDetail, ToolEntry, Transition, pack
from holdfast.testing import ManualClock
from holdfast.top import calls as in_terminal

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

pytestmark = pytest.mark.slow

TOKEN = "a-token-for-the-tests-of-the-page"
SCREENSHOTS = Path(__file__).parents[2] / ".cache" / "screenshots"
PATIENCE = 30_000  # milliseconds: only failure takes so long
BAD = "<img src=x onerror=document.title='hacked'>"
TURNED = "\u202eevil\u200f"
SCREENS = ("tools", "tool", "runs", "run", "servers")
A_TOOL = re.compile(r"^Tool \S")  # the heading of one, not of all
# Keeps all that was ever said, as those hear it who listen: the words themselves go again.
HEARING = """
    window.heard = [];
    new MutationObserver((changes) => {
        for (const { target, addedNodes } of changes) {
            if (target.role === "status") for (const node of addedNodes) window.heard.push(node.textContent);
        }
    }).observe(document, { childList: true, subtree: true });
"""

expect.set_options(timeout=PATIENCE)


class World:
    """A store, a feeder and a server, each in a process of its own, and a browser."""

    def __init__(self, folder: Path, chromium: Any) -> None:
        self.store = folder / "page.db"
        self.feeder = Child(self.store)
        self.server = Server(self.store)
        self.browser = chromium
        self.stack = ExitStack()
        self.stack.callback(self.feeder.close)
        self.stack.callback(self.server.close)


class Server:
    """A `holdfast ui` of its own process."""

    def __init__(self, store: Path, *options: str, port: int = 0) -> None:
        command = [
            sys.executable,
            "-m",
            "holdfast",
            "ui",
            "--no-open",
            "--port",
            str(port),
            "--store",
            str(store),
            *options,
        ]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "HOLDFAST_TOKEN": TOKEN},
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        found = re.search(r":(\d+)/", self.address)
        assert found, f"the server said {self.address!r}"
        self.port = int(found[1])

    def to(self, place: str = "") -> str:
        """The address of a place of the page, with the token."""
        return f"{self.address}{place}"

    def tools(self) -> set[str]:
        """The tools that it knows of."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = httpx.get(f"http://127.0.0.1:{self.port}/api/tools", headers=headers, timeout=PATIENCE / 1000)
        return {each["name"] for each in answer.json()["tools"]}

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.communicate()


class Alone(NamedTuple):
    """A store with a server."""

    store: SqliteRunStore
    server: Server

    def begin(self, count: int) -> None:
        """Make so many runs."""
        self.store.writer.commit(
            lambda ledger: [ledger.add(self.store.header("s", "p", f"r{number}")) for number in range(count)]
        )

    def end(self, count: int) -> None:
        """Let so many of them end."""
        self.store.writer.commit(
            lambda ledger: [ledger.say(ledger.run(f"r{number}"), "run_completed") for number in range(count)]
        )


def shown(
    alone: Alone,
    *tools: ToolEntry,
    id: str = "a",
    details: Mapping[str, ToolDetail] | None = None,
    servers: Sequence[ServerEntry] = (),
) -> None:
    """Have a process of another host show *tools*; it lives for ten minutes."""
    now = int(time.time() * 1000)
    process = Process(id=id, host="elsewhere", pid=7, at_ms=now, until_ms=now + 600_000, servers=list(servers))
    packed = [(name, pack(detail)) for name, detail in (details or {}).items()]
    Board(alone.store).publish(process, [(tool.name, pack(tool)) for tool in tools], details=packed)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with browser() as chromium:
        made = World(tmp_path_factory.mktemp("page"), chromium)
        with made.stack:
            made.feeder.ask("servers")
            until(lambda: "never_called" in made.server.tools())  # and so all: a page complains of what is not there
            yield made


@pytest.fixture(scope="module")
def lived_in(world: World) -> dict[str, str]:
    """A world in which something of everything has happened; gives the ids of its runs."""
    world.feeder.ask("runs", 12)
    rich, broken = world.feeder.ask("rich"), world.feeder.ask("broken")
    waiting = world.feeder.ask("wait", "Approve the refund of order 1139")
    world.feeder.ask("fail", "charge_card", 4, "402 Payment Required: card declined")
    world.feeder.ask("traffic")
    return {"rich": rich, "broken": broken, "waiting": waiting}


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    """A store that this process alone writes to, and its server."""
    with SqliteRunStore(tmp_path / "alone.db") as store, closing(Server(tmp_path / "alone.db")) as server:
        yield Alone(store, server)


@pytest.fixture
def opened(world: World) -> Iterator[Callable[..., Any]]:
    """Opens pages; what they complain of, and what they ask of others, fails the test."""
    with pages(world) as page:
        yield page


@contextmanager
def pages(world: World, complaints_are_fine: bool = False) -> Iterator[Callable[..., Any]]:
    complaints: list[str] = []
    contexts: list[Any] = []

    def open_(place: str = "#/tools", *, context: Any = None, server: Server | None = None, **options: Any) -> Any:
        server = server or world.server
        if context is None:
            context = world.browser.new_context(viewport={"width": 1600, "height": 900}, **options)
            contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.add_init_script(HEARING)
        page.on("console", lambda said: complaints.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: complaints.append(asked.url) if f":{server.port}/" not in asked.url else None)
        page.goto(server.to(place))
        ready(page)
        return page

    try:
        yield open_
    finally:
        for context in contexts:
            context.close()
    assert complaints_are_fine or not complaints


def ready(page: Any) -> None:
    """Wait until the page has heard everything from its feed, so that it knows what it shows and what it may change."""
    expect(page.locator(".standing.live")).to_be_visible()


def heard(page: Any, words: str) -> None:
    """Wait until the page has said something, whatever it has said since."""
    until(lambda: page.evaluate("(words) => heard.some((said) => said.includes(words))", words))


def scroll_to(page: Any, summary: str) -> None:
    """Scroll down until so much is shown."""
    bottom = "(box) => { box.scrollTop = box.scrollHeight }"
    until(lambda: (page.locator(".scroll").evaluate(bottom), page.locator(".summary").text_content())[1] == summary)


def show(page: Any, screen: str, runs: dict[str, str]) -> None:
    """Go to a screen, and wait until it is there with its rows: those of the last one stay until then."""
    page.evaluate("(place) => { location.hash = place }", place_of(screen, runs))
    expect(page.locator(f"nav a.{screen}")).to_have_attribute("aria-current", "page")
    expect(page.locator("tbody tr:not(.space)").first).to_be_visible()


def row(page: Any, name: str) -> Any:
    """The row of a tool, a run or a call."""
    return page.locator("tbody tr").filter(has=page.get_by_role("link", name=name, exact=False)).first


def confirm(page: Any, named: str) -> None:
    """Answer the question, which must name its object."""
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(named)
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)


def place_of(screen: str, runs: dict[str, str]) -> str:
    return {"tool": "#/tools/charge_card", "run": f"#/runs/{runs['rich']}/6"}.get(screen, f"#/{screen}")


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_tools_shows_the_worst_first_with_its_wait_and_its_last_error(world: World, lived_in: Any, opened: Any) -> None:
    page = opened("#/tools")

    first = page.locator("tbody tr.refuses").filter(has_text="charge_card")
    expect(first).to_contain_text("open")
    expect(first).to_contain_text("probe in")
    expect(first).to_contain_text("402 Payment Required")
    expect(row(page, "never_called")).to_contain_text("closed")
    expect(page.locator("tbody tr:not(.space)").first).to_have_class(re.compile("refuses$"))
    expect(page.locator("tbody tr:not(.space)").last).to_have_class("good")


def test_tool_shows_transitions_policy_latencies_and_calls(world: World, lived_in: Any, opened: Any) -> None:
    page = opened("#/tools/charge_card")

    expect(page.get_by_role("table", name="Transitions")).to_contain_text("3 failures, last: network")
    expect(page.get_by_role("table", name="Recent calls").get_by_role("row")).to_have_count(4)
    policy = page.get_by_role("table", name="Policy in force").get_by_role("row").filter(has_text="failure_threshold")
    expect(policy).to_contain_text("policies [policy]")
    expect(page.get_by_role("list", name="Latencies")).to_be_visible()
    expect(page.get_by_role("table", name="Processes")).to_contain_text("wrap")


def test_an_open_circuit_whose_wait_is_over_says_so(world: World, alone: Alone, opened: Any) -> None:
    shown(alone, ToolEntry(name="due", state="open", until_ms=1), ToolEntry(name="held", state="open", forced="open"))

    page = opened("#/tools", server=alone.server)

    expect(row(page, "due")).to_contain_text("next call probes")
    expect(row(page, "held")).not_to_contain_text("probe")


def test_a_circuit_that_opened_for_slow_calls_says_so(world: World, alone: Alone, opened: Any) -> None:
    slow = Transition(at_ms=int(time.time() * 1000), before="closed", after="open", backoff_ms=5000)
    shown(alone, ToolEntry(name="search"), details={"search": ToolDetail(transitions=[slow])})

    page = opened("#/tools/search", server=alone.server)

    expect(page.get_by_role("table", name="Transitions")).to_contain_text("calls were slow")


def test_a_tool_whose_fleet_is_away_says_so_and_why(world: World, alone: Alone, opened: Any) -> None:
    away = ToolEntry(name="search", shared=[], alone="each guards by itself: Redis: connection refused")
    shown(alone, ToolEntry(name="search", shared=["circuit", "rate"]))
    shown(alone, away, id="b")

    page = opened("#/tools", server=alone.server)
    expect(row(page, "search")).to_contain_text("fleet away")
    expect(page.locator(".summary")).to_contain_text("1 without their fleet")

    page.get_by_role("link", name="search").click()
    expect(page.locator(".figures")).to_contain_text("away for 1 of 2 processes")
    expect(page.get_by_text("each guards by itself: Redis: connection refused")).to_be_visible()
    expect(page.get_by_role("table", name="Processes")).to_contain_text("circuit, rate")
    expect(page.get_by_role("table", name="Processes")).to_contain_text("away")


def test_the_title_counts_the_tools_that_refuse(world: World, alone: Alone, opened: Any) -> None:
    shown(
        alone, ToolEntry(name="search", shared=[], alone="calls are refused: gone", shut=True), ToolEntry(name="book")
    )

    page = opened("#/tools", server=alone.server)

    expect(page).to_have_title("(1 refusing) Tools · Holdfast")


def test_a_tool_whose_calls_others_pushed_out_of_the_history_was_called(
    world: World, alone: Alone, opened: Any
) -> None:
    shown(alone, ToolEntry(name="rare", calls=13, failed=12, timed_out=1), details={"rare": ToolDetail()})

    page = opened("#/tools/rare", server=alone.server)

    expect(page.get_by_text("none was of this tool")).to_be_visible()
    expect(page.get_by_role("table", name="Processes").get_by_role("row").last).to_contain_text("13")
    expect(page.get_by_role("columnheader", name="Failed", exact=True)).to_be_visible()


def test_a_run_that_nobody_has_begun_took_nothing(world: World, alone: Alone, opened: Any) -> None:
    alone.begin(1)

    page = opened("#/runs", server=alone.server)
    expect(page.locator("tbody tr:not(.space) td.took")).to_have_text("–")

    page.locator("tbody tr:not(.space) a.to").click()
    expect(page.get_by_text("has not begun")).to_be_visible()


def test_a_server_that_nobody_has_asked_for_is_no_trouble(world: World, alone: Alone, opened: Any) -> None:
    shown(alone, servers=[ServerEntry(name="calm", state="idle"), ServerEntry(name="broken", state="failed")])
    page = opened("#/servers", server=alone.server)
    expect(page.get_by_text("calm")).to_be_visible()

    page.get_by_role("button", name="Not ready only").click()

    expect(page.get_by_text("broken")).to_be_visible()
    expect(page.get_by_text("calm")).to_have_count(0)


def test_runs_shows_what_each_is_doing_and_how_it_ended(world: World, lived_in: Any, opened: Any) -> None:
    page = opened("#/runs")

    expect(row(page, "Approve the refund")).to_contain_text("approval")
    expect(row(page, "Refund order 1138")).to_contain_text("no order 1138 in the shop")
    expect(row(page, "Plan a week")).to_contain_text("Three nights in Alfama")


def test_runs_are_found_by_status_tool_session_and_text(world: World, lived_in: Any, opened: Any) -> None:
    page = opened("#/runs?status=failed")
    expect(page.locator("tbody tr:not(.space)")).to_have_count(1)

    page.get_by_label("Status").select_option("")
    page.get_by_label("Tool that was called").fill("book_hotel")
    expect(page).to_have_url(re.compile(r"#/runs\?tool=book_hotel$"))
    expect(row(page, "Plan a week")).to_be_visible()
    expect(page.locator("tbody tr:not(.space)")).to_have_count(1)

    page.get_by_label("Tool that was called").fill("")
    page.get_by_label("Session").fill("session-1")
    expect(page.locator("tbody tr:not(.space)")).to_have_count(4)


def test_run_draws_attempts_waits_cached_and_refused_calls(world: World, lived_in: Any, opened: Any) -> None:
    page = opened(f"#/runs/{lived_in['rich']}")

    expect(row(page, "fetch_page").locator(".bar.attempt.bad")).to_have_count(3)
    expect(row(page, "fetch_page").locator(".bar.backoff")).to_have_count(2)
    expect(page.locator("tr.success .bar.wait").first).to_be_visible()
    expect(page.locator("tr.cached .point.cached")).to_have_count(1)
    expect(page.locator("tr.denied")).to_contain_text("refused")
    expect(page.locator(".axis .fold")).to_have_count(1)
    edges = page.locator(".axis, .lane").evaluate_all(
        "(all) => all.map((each) => Math.round(each.getBoundingClientRect().x))"
    )
    assert len(edges) > 1
    assert len(set(edges)) == 1  # every lane stands below the axis
    page.get_by_role("link", name="fetch_page").first.click()
    expect(page.get_by_role("region", name="The call of fetch_page")).to_contain_text("https://example.org/fares")


def test_a_running_bar_grows(world: World, lived_in: Any, opened: Any) -> None:
    page = opened(f"#/runs/{lived_in['waiting']}")
    took = row(page, "approval").locator(".took")
    expect(took).to_be_visible()

    before = took.text_content()

    expect(took).not_to_have_text(before)


def test_servers_shows_handshake_restarts_and_stderr(world: World, lived_in: Any, opened: Any) -> None:
    page = opened("#/servers")

    expect(row(page, "github")).to_contain_text("github-mcp-server 1.4.0 · MCP 2025-11-25")
    expect(row(page, "browser")).to_contain_text("restarting")
    page.get_by_text("2 lines of stderr").click()
    expect(page.get_by_text("Executable doesn't exist")).to_be_visible()


def test_an_empty_store_says_what_to_do(world: World, tmp_path: Path) -> None:
    with closing(Server(tmp_path / "empty.db")) as server, pages(world) as open_:
        page = open_("#/tools", server=server)

        expect(page.locator(".empty")).to_contain_text("holdfast.open")
        page.keyboard.press("3")
        expect(page.locator(".empty")).to_contain_text("hf.run")
        page.keyboard.press("5")
        expect(page.locator(".empty")).to_contain_text("holdfast wrap")


def test_five_thousand_calls_stay_smooth(world: World, opened: Any) -> None:
    run_id = world.feeder.ask("work", 5000)
    page = opened(f"#/runs/{run_id}")
    page.get_by_role("button", name="Load all").click()
    expect(page.get_by_role("table", name="Calls over time")).to_have_attribute("aria-rowcount", "5001")

    page.locator(".falls").evaluate("(box) => { box.scrollTop = box.scrollHeight }")

    expect(page.locator(".falls tr[aria-rowindex='5001']")).to_be_visible()
    assert page.locator("tbody tr").count() < 250  # those in sight, and no more


def test_a_long_run_shows_its_end_and_what_was_before_to_who_scrolls_up(world: World, opened: Any) -> None:
    run_id = world.feeder.ask("work", 1200)
    page = opened(f"#/runs/{run_id}")
    log = page.locator(".side .scroll")

    expect(page.locator(".log")).to_have_attribute("aria-rowcount", "1001")
    expect(page.locator(".log tr[aria-rowindex='1001']")).to_be_in_viewport()
    log.evaluate("(box) => { box.scrollTop = 0 }")
    expect(page.locator(".log")).to_have_attribute("aria-rowcount", "2001")

    expect(page.locator(".log tr[aria-rowindex='1002']")).to_be_in_viewport()  # what was in sight stays there


def test_a_run_that_goes_on_and_on_is_kept_in_part(world: World, modules: Any) -> None:
    run_id = world.feeder.ask("work", 6000)  # 12,002 events

    kept = modules(
        f"""const {{ Past }} = await import("/static/past.js");
        const made = async (totals, follows) => {{
            const past = new Past("{run_id}", new AbortController().signal);
            for (const total of totals) await past.later(total, follows);
            const {{ events, last }} = past.calls;
            const whole = events.at(-1).sequence === last && last - past.oldest + 1;
            return [events.length, whole, past.isPart, past.isBehind];
        }};
        const grown = Array.from({{ length: 12 }}, (_, index) => (index + 1) * 1000);
        return [await made(grown, true), await made([1000, 12_002], true), await made([...grown, 12_002], false)];"""
    )

    follows, comes_back, reads = kept
    assert follows == [6000, 6000, True, False]  # 5,000 stayed when there were more than 10,000
    assert comes_back == [1000, 1000, True, False]
    assert reads == [10_000, 10_000, False, True]  # what the user reads stays; new ones wait


def test_the_events_of_a_run_that_goes_on_stay_at_their_end(world: World, alone: Alone, opened: Any) -> None:
    alone.store.create_run("s", "goes on", run_id="on")
    page = opened("#/runs/on", server=alone.server)
    expect(page.locator(".split")).to_be_visible()

    for last in (60, 120):
        alone.store.writer.commit(lambda ledger: [ledger.say(ledger.run("on"), "spent", amount=1) for _ in range(60)])
        expect(page.locator(f".log tr[aria-rowindex='{last + 1}']")).to_be_in_viewport()


def test_a_fact_that_stays_the_same_stays_selected(world: World, alone: Alone, opened: Any) -> None:
    alone.store.create_run("s", "goes on", run_id="on")
    page = opened("#/runs/on", server=alone.server)
    page.get_by_text("on", exact=True).first.select_text()

    alone.store.record_event("on", "spent", {"unit": "usd", "amount": 1})

    expect(page.locator(".figures")).to_contain_text("Spent, usd")
    assert page.evaluate("getSelection().toString()") == "on"


def test_many_new_runs_push_the_oldest_out_until_the_user_scrolls_to_them(
    world: World, alone: Alone, opened: Any
) -> None:
    page = opened("#/runs", server=alone.server)
    expect(page.get_by_text("No run is in this store yet.")).to_be_visible()  # else its first request may come later
    for some in range(6):
        headers = [alone.store.header("s", "p", f"{some}-{number}") for number in range(400)]
        alone.store.writer.commit(lambda ledger, new=headers: [ledger.add(each) for each in new])
        expect(page.locator(".summary")).to_contain_text(f"{(some + 1) * 400:,} shown" if some < 5 else "1,000+ shown")

    scroll_to(page, "2,400 shown · 2,400 active")


def test_what_is_selected_on_a_tool_stays_selected(world: World, alone: Alone, opened: Any) -> None:
    now = int(time.time() * 1000)
    first = Transition(at_ms=now - 2000, before="closed", after="open", failures=3)
    then = Transition(at_ms=now - 1000, before="open", after="closed", by_hand=True)
    shown(alone, ToolEntry(name="search", calls=1), details={"search": ToolDetail(transitions=[first])})
    page = opened("#/tools/search", server=alone.server)
    changes = page.locator(".transitions tbody tr")
    changes.locator("td").nth(2).select_text()
    selected = page.evaluate("getSelection().toString()")

    shown(alone, ToolEntry(name="search", calls=2), details={"search": ToolDetail(transitions=[then, first])})

    expect(changes).to_have_count(2)
    assert page.evaluate("getSelection().toString()") == selected != ""


@pytest.mark.parametrize("sequence", [3, 1001])
def test_a_link_to_an_event_shows_it_where_it_stands(world: World, opened: Any, sequence: int) -> None:
    run_id = world.feeder.ask("work", 1600)

    page = opened(f"#/runs/{run_id}/{sequence}")

    for place in (".waterfall", ".log"):
        expect(page.locator(f"{place} tr.selected")).to_be_in_viewport()


def test_how_long_ago_something_was_is_told_as_time_goes_on(world: World, opened: Any) -> None:
    world.feeder.ask("fail", "spare_6")
    until(lambda: "spare_6" in world.server.tools())
    page = opened("#/tools/spare_6")
    told = page.get_by_role("table", name="Processes").locator("td:last-child")
    for place in (page.locator(".error .age"), told.first):
        expect(place).to_have_text(re.compile(r"\d s ago"))
        expect(place).not_to_have_text(place.text_content())

    page.evaluate("(place) => { location.hash = place }", f"#/runs/{world.feeder.ask('work', 1)}")
    began = page.locator(".figures div").filter(has_text="Began").locator("dd")
    expect(began).to_have_text(re.compile(r"\d s ago"))
    expect(began).not_to_have_text(began.text_content())


# -- what is live ------------------------------------------------------------------------------------------------------


def test_a_circuit_that_trips_turns_its_row(world: World, opened: Any) -> None:
    world.feeder.ask("call", "spare_1")
    page = opened("#/tools")
    expect(row(page, "spare_1").locator("td.state")).to_have_text("closed")

    world.feeder.ask("fail", "spare_1", 3)

    expect(row(page, "spare_1").locator("td.state")).to_contain_text("open")
    heard(page, "spare 1: circuit open")


def test_open_and_close_from_the_page_reach_the_other_process(world: World, opened: Any) -> None:
    world.feeder.ask("call", "spare_5")
    page = opened("#/tools")

    page.get_by_role("button", name="Open: spare_5").click()
    confirm(page, "spare_5")
    expect(row(page, "spare_5")).to_contain_text("held")
    until(lambda: world.feeder.ask("call", "spare_5") == "CircuitOpen")

    page.get_by_role("button", name="Close: spare_5").click()
    confirm(page, "spare_5")
    until(lambda: world.feeder.ask("call", "spare_5") == "done")

    page.get_by_role("button", name="Auto: spare_5").click()
    confirm(page, "spare_5")
    expect(row(page, "spare_5")).not_to_contain_text("held")


def test_a_circuit_that_was_turned_by_hand_says_so(world: World, opened: Any) -> None:
    world.feeder.ask("fail", "spare_7", 2)
    until(lambda: "spare_7" in world.server.tools())
    page = opened("#/tools/spare_7")
    changes = page.get_by_role("table", name="Transitions").locator("tbody tr")

    page.keyboard.press("Shift+O")
    confirm(page, "spare_7")
    until(lambda: world.feeder.ask("call", "spare_7") == "CircuitOpen")

    expect(changes.first).to_contain_text("by hand")


def test_cancel_from_the_page_ends_a_run_in_another_process(world: World, opened: Any) -> None:
    run_id = world.feeder.ask("wait")
    page = opened(f"#/runs/{run_id}")

    page.get_by_role("button", name="Cancel run").click()
    confirm(page, run_id)

    assert world.feeder.hear() == f"ended {run_id} RunCancelled"
    expect(page.locator(".head .state")).to_have_text("cancelled")
    expect(page.locator("table.log")).to_contain_text("run cancelled")


def test_all_runs_of_a_filter_are_cancelled_at_once(world: World, opened: Any) -> None:
    mine = {world.feeder.ask("wait", "one of two") for _ in range(2)}
    page = opened("#/runs?text=one%20of%20two&status=executing")
    expect(page.locator("tbody tr:not(.space)")).to_have_count(2)

    page.get_by_role("button", name="Cancel all shown").click()
    confirm(page, "text one of two")

    assert {world.feeder.hear().split()[1] for _ in mine} == mine
    expect(page.get_by_text("No run is like this")).to_be_visible()


def test_without_a_filter_every_run_is_cancelled(world: World, alone: Alone, opened: Any) -> None:
    alone.store.create_run("s", "one of all", run_id="one")
    page = opened("#/runs", server=alone.server)
    expect(row(page, "one of all")).to_be_visible()

    page.keyboard.press("Shift+B")
    confirm(page, "in this store")

    expect(row(page, "one of all")).to_contain_text("cancelled")


def test_reload_loses_nothing(world: World, lived_in: Any, opened: Any) -> None:
    page = opened(f"#/runs/{lived_in['rich']}/6")
    expect(page.locator("tr.selected").first).to_be_visible()
    before = (
        page.url,
        page.locator("table.log").get_attribute("aria-rowcount"),
        page.locator(".chosen").text_content(),
    )

    page.reload()

    expect(page.locator("tr.selected").first).to_be_visible()
    assert before == (
        page.url,
        page.locator("table.log").get_attribute("aria-rowcount"),
        page.locator(".chosen").text_content(),
    )


def test_the_back_button_goes_back(world: World, lived_in: Any, opened: Any) -> None:
    page = opened("#/tools")
    page.get_by_role("link", name="charge_card").click()
    expect(page.get_by_role("heading", name="Tool charge_card")).to_be_visible()

    page.go_back()

    expect(page.get_by_role("heading", name="Tools")).to_be_visible()


def test_a_page_whose_server_went_away_goes_on_and_repeats_nothing(world: World, tmp_path: Path) -> None:
    store = tmp_path / "again.db"
    with closing(Child(store)) as feeder, pages(world, complaints_are_fine=True) as open_:
        with closing(Server(store, port=free_port())) as server:
            run_id = feeder.ask("wait", "goes on")
            page = open_(f"#/runs/{run_id}", server=server)
            expect(page.locator("table.log")).to_contain_text("tool started")
        expect(page.get_by_role("button", name="The page is reconnecting")).to_be_visible()
        feeder.ask("fail", "spare_0", 3)

        with closing(Server(store, port=server.port)):
            expect(page.get_by_role("button", name="The page is live")).to_be_visible()
            assert (
                page.evaluate("heard.filter((said) => said.includes('reconnecting')).length") == 1
            )  # not with each try
            page.get_by_role("button", name="Cancel run").click()
            confirm(page, run_id)
            expect(page.locator(".head .state")).to_have_text("cancelled")
            numbers = page.locator("table.log tbody tr:not(.space) td:first-child").all_text_contents()
            page.keyboard.press("1")
            expect(row(page, "spare_0")).to_contain_text("open")

    assert numbers == [str(number) for number in range(len(numbers))]


def test_a_question_that_had_no_answer_is_asked_again(world: World, lived_in: Any) -> None:
    with pages(world, complaints_are_fine=True) as open_:
        page = open_("#/servers")

        for screen in ("tool", "runs"):
            page.route(re.compile(r"/api/(tools/|runs\?)"), lambda asked: asked.abort(), times=1)
            show(page, screen, lived_in)
        page.route(re.compile(r"/api/runs\?"), lambda asked: asked.abort(), times=1)
        page.get_by_label("Text in prompt").fill("order 1138 in the shop")

        expect(page.locator("tbody tr:not(.space)")).to_have_count(1)
        expect(row(page, "Refund order 1138")).to_be_visible()


def test_a_tool_that_no_process_has_any_more_is_not_shown(world: World, tmp_path: Path) -> None:
    store = tmp_path / "gone.db"
    with closing(Server(store)) as server, pages(world, complaints_are_fine=True) as open_:
        with closing(Child(store)) as feeder:
            feeder.ask("fail", "spare_0", 3)
            page = open_("#/tools/spare_0", server=server)
            expect(page.locator(".head .state")).to_have_text("open")

        expect(page.get_by_text("No process on this store has a tool of this name now")).to_be_visible()
        expect(page.get_by_role("table")).to_have_count(0)
        expect(page.locator(".head .state")).to_have_text("")


def test_eight_tabs_are_all_live(world: World, opened: Any) -> None:
    world.feeder.ask("call", "spare_2")
    first = opened("#/tools")
    tabs = [first, *(opened("#/tools", context=first.context) for _ in range(7))]
    for tab in tabs:
        expect(row(tab, "spare_2")).to_be_visible()

    world.feeder.ask("fail", "spare_2", 3)

    for tab in tabs:
        expect(row(tab, "spare_2").locator("td.state")).to_contain_text("open")


def test_a_tab_that_nobody_looks_at_lets_go_of_the_feed_and_catches_up(world: World, opened: Any) -> None:
    world.feeder.ask("call", "spare_3")
    page = opened("#/tools")
    expect(row(page, "spare_3").locator("td.state")).to_have_text("closed")

    hide(page, hidden=True)
    expect(page.locator(".standing.closed")).to_be_visible()
    world.feeder.ask("fail", "spare_3", 3)
    hide(page, hidden=False)

    expect(row(page, "spare_3").locator("td.state")).to_contain_text("open")


def test_space_pauses_and_goes_on(world: World, opened: Any) -> None:
    world.feeder.ask("call", "spare_4")
    page = opened("#/tools")
    expect(row(page, "spare_4").locator("td.state")).to_have_text("closed")
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="The page is paused: go on")).to_be_visible()

    world.feeder.ask("fail", "spare_4", 3)
    other = opened("#/tools", context=page.context)
    expect(row(other, "spare_4").locator("td.state")).to_contain_text("open")
    assert row(page, "spare_4").locator("td.state").text_content() == "closed"
    page.keyboard.press("Space")

    expect(row(page, "spare_4").locator("td.state")).to_contain_text("open")


def test_more_runs_than_the_page_remembers_may_change_while_it_is_paused(
    world: World, alone: Alone, opened: Any
) -> None:
    alone.begin(600)
    page = opened("#/runs", server=alone.server)
    scroll_to(page, "600 shown · 600 active")
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="The page is paused: go on")).to_be_visible()

    alone.end(600)
    other = opened("#/runs?session=s", server=alone.server, context=page.context)
    # It may be told of those that ended beyond its first hundred, if it came before that was told.
    expect(other.locator(".summary")).to_have_text(re.compile(r"^(100\+|600\+?) shown · 0 active$"))
    page.keyboard.press("Space")

    expect(page.locator(".summary")).to_have_text("600 shown · 0 active")


def test_a_server_that_comes_back_tells_of_every_run_that_is_shown(world: World, tmp_path: Path) -> None:
    with SqliteRunStore(tmp_path / "back.db") as store, pages(world, complaints_are_fine=True) as open_:
        with closing(Server(tmp_path / "back.db", port=free_port())) as server:
            alone = Alone(store, server)
            alone.begin(250)
            page = open_("#/runs", server=server)
            scroll_to(page, "250 shown · 250 active")
        expect(page.get_by_role("button", name="The page is reconnecting")).to_be_visible()
        alone.end(250)

        with closing(Server(tmp_path / "back.db", port=server.port)):
            expect(page.locator(".summary")).to_have_text("250 shown · 0 active")


def test_runs_that_are_deleted_leave_the_page(world: World, alone: Alone, opened: Any) -> None:
    alone.begin(120)
    alone.end(110)
    page = opened("#/runs", server=alone.server)
    scroll_to(page, "120 shown · 10 active")

    alone.store.prune(max_runs=0)

    expect(page.locator(".summary")).to_have_text("10 shown · 10 active")


def test_a_run_that_is_deleted_is_not_shown(world: World, alone: Alone) -> None:
    alone.begin(1)
    alone.end(1)
    with pages(world, complaints_are_fine=True) as open_:
        page = open_("#/runs/r0", server=alone.server)
        expect(page.locator(".head .state")).to_have_text("completed")

        alone.store.prune(max_runs=0)

        expect(page.get_by_text("No run of this id is in the store")).to_be_visible()
        expect(page.get_by_role("heading", level=1)).to_have_text("Run r0")
        expect(page.get_by_role("link", name="Export")).to_have_count(0)
        expect(page.get_by_role("table")).to_have_count(0)
        expect(page.locator(".head .state")).to_have_text("")


def test_an_interrupted_run_took_as_long_as_it_was_run(world: World, tmp_path: Path, opened: Any) -> None:
    store = tmp_path / "dead.db"
    with closing(Child(store)) as feeder:
        feeder.ask("wait", "dies")
    with closing(Server(store)) as server:
        page = opened("#/runs", server=server)
        expect(row(page, "dies")).to_contain_text("interrupted")
        expect(row(page, "dies").locator(".doing")).to_have_text("its process is gone")
        before = row(page, "dies").locator(".took").text_content()
        began = row(page, "dies").locator(".began")
        expect(began).not_to_have_text(began.text_content())  # so time has passed, and was shown

        assert row(page, "dies").locator(".took").text_content() == before


# -- what must not happen ----------------------------------------------------------------------------------------------


def test_hostile_names_arguments_and_results_are_text(world: World, opened: Any) -> None:
    name, value = f"bad{BAD}", f"{BAD}{TURNED}\0</script><svg onload=alert(1)>"
    run_id = world.feeder.ask("hostile", *(text.encode("unicode_escape").decode() for text in (name, value)))

    page = opened(f"#/runs/{run_id}")
    expect(page.get_by_role("heading", name="Run")).to_contain_text(BAD)
    page.locator(".falls tbody tr:not(.space) a").first.click()
    chosen = page.locator(".chosen")
    expect(chosen).to_contain_text(BAD)
    expect(chosen).to_contain_text("\\u202eevil\\u200f")
    expect(chosen).to_contain_text("␀")
    page.locator(".falls tbody tr:not(.space) a").nth(1).click()
    expect(chosen).to_contain_text("AAAA")
    page.get_by_text("Result", exact=True).first.click()
    page.keyboard.press("1")
    page.get_by_label("Filter tools").fill("onerror")
    page.locator("tbody a").first.click()
    expect(page.get_by_role("heading", name="Tool")).to_contain_text(BAD)

    assert page.title().startswith("bad<img") or "bad<img" in page.title()
    assert page.locator("img, script:not([src]), svg[onload]").count() == 0


def test_script_that_gets_into_the_page_does_not_run(world: World, lived_in: Any) -> None:
    with pages(world, complaints_are_fine=True) as open_:
        page = open_("#/tools")

        blocked = page.evaluate(
            """() => new Promise((resolve) => {
                addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective));
                const script = document.createElement("script");
                script.textContent = "window.ran = true";
                document.body.append(script);
            })"""
        )

        assert blocked.startswith("script-src")
        assert page.evaluate("window.ran") is None


def test_nothing_is_built_from_markup() -> None:
    folder = Path(__file__).parents[2] / "src" / "holdfast" / "web" / "static"
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser|cssText"
    )

    found = [
        f"{path.name}: {line.strip()}"
        for path in folder.glob("*.js")
        for line in path.read_text().splitlines()
        if forbidden.search(line)
    ]

    assert found == []
    assert not re.search(r"<style|style=|<script>|\son\w+=", (folder / "index.html").read_text())


def test_a_server_that_changes_nothing_says_so(world: World) -> None:
    with closing(Server(world.store, "--read-only")) as server, pages(world, complaints_are_fine=True) as open_:
        page = open_("#/tools/run_query", server=server)
        button = page.locator("button.open")
        expect(button).to_have_attribute("aria-label", "Open: run_query")

        page.keyboard.press("O")

        heard(page, "This page changes nothing")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(button).to_be_hidden()
        expect(page.get_by_role("banner").get_by_text("read-only")).to_be_visible()


# -- for everybody -----------------------------------------------------------------------------------------------------


def test_everything_is_reached_by_keyboard(world: World, lived_in: Any, opened: Any) -> None:
    page = opened("#/tools")
    expect(row(page, "charge_card")).to_be_visible()

    page.keyboard.press("/")
    page.keyboard.type("charge")
    expect(page.locator("tbody tr:not(.space)")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="charge_card")).to_be_focused()
    page.keyboard.press("Shift+R")
    expect(page.get_by_role("dialog")).to_contain_text("charge_card")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.get_by_label("Filter tools")).to_have_value("")
    page.keyboard.press("f")
    expect(page.get_by_role("button", name="Failing only")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("j")
    expect(page.locator("table.toolbox tbody a:focus")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=A_TOOL)).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="Tools")).to_be_visible()
    page.keyboard.press("3")
    expect(page.locator("table.runs tbody a").first).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator("table.runs tbody a").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".falls tbody a").first).to_be_visible()
    page.keyboard.press("j")
    expect(page.locator(".falls tbody a:focus")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator(".chosen section")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".chosen")).to_be_hidden()
    page.keyboard.press("5")
    expect(page.get_by_role("heading", name="Servers")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("hold a circuit open")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("2")
    expect(page.get_by_role("heading", name=A_TOOL)).to_be_visible()
    page.keyboard.press("4")
    expect(page.locator(".falls")).to_be_visible()


def test_the_focus_lands_on_what_is_shown(world: World, lived_in: Any, opened: Any) -> None:
    page = opened("#/tools/charge_card")

    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".scroll")).to_be_focused()
    expect(page.get_by_role("heading", name="Tool charge_card")).to_be_visible()
    page.keyboard.press("1")
    expect(page.get_by_role("heading", name="Tools")).to_be_visible()
    expect(page.locator(".scroll")).to_be_focused()
    page.keyboard.press("4")
    expect(page.get_by_role("heading", name="Run ")).to_be_visible()
    expect(page.locator("main")).to_be_focused()


def test_a_filter_stays_when_one_comes_back(world: World, lived_in: Any, opened: Any) -> None:
    page = opened("#/tools")
    page.get_by_label("Filter tools").fill("charge")
    page.get_by_role("link", name="charge_card").click()
    expect(page.get_by_role("heading", name="Tool charge_card")).to_be_visible()

    page.keyboard.press("3")
    page.get_by_label("Status").select_option("failed")
    page.get_by_role("link", name="Refund order 1138").click()
    expect(page.get_by_role("heading", name="Run Refund")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Status")).to_have_value("failed")
    page.keyboard.press("5")
    page.get_by_label("Filter servers").fill("git")
    page.keyboard.press("Escape")
    page.keyboard.press("1")
    expect(page.get_by_label("Filter tools")).to_have_value("charge")
    page.keyboard.press("5")
    expect(page.get_by_label("Filter servers")).to_have_value("git")


def test_the_focus_stays_on_its_row_wherever_new_runs_push_it(world: World, alone: Alone, opened: Any) -> None:
    for name in ("first", "second"):
        alone.store.create_run("s", name, run_id=name)
    page = opened("#/runs", server=alone.server)
    expect(page.get_by_role("link", name="second")).to_be_visible()
    page.keyboard.press("j")

    alone.begin(90)

    expect(page.locator("table.runs")).to_have_attribute("aria-rowcount", "93")
    expect(page.get_by_role("link", name="second")).to_be_focused()
    expect(page.locator("tr:has(a:focus)")).to_have_attribute("aria-rowindex", "92")


def test_what_the_user_reads_stays_in_sight_wherever_new_runs_push_it(world: World, alone: Alone, opened: Any) -> None:
    alone.begin(100)
    page = opened("#/runs", server=alone.server)
    expect(page.locator("table.runs")).to_have_attribute("aria-rowcount", "101")
    page.locator(".scroll").evaluate("(box) => { box.scrollTop = 1600 }")
    read = page.locator("a[href='#/runs/r40']")
    expect(read).to_be_in_viewport()

    alone.store.writer.commit(
        lambda ledger: [ledger.add(alone.store.header("s", "p", f"new{number}")) for number in range(90)]
    )

    expect(page.locator("table.runs")).to_have_attribute("aria-rowcount", "191")
    expect(read).to_be_in_viewport()


def test_the_focus_goes_to_the_run_when_its_button_or_its_row_disappears(
    world: World, alone: Alone, opened: Any
) -> None:
    alone.begin(3)
    page = opened("#/runs?status=created", server=alone.server)
    page.get_by_role("button", name="Cancel run r1").focus()

    alone.store.mark_cancelled("r1")

    expect(page.get_by_role("link", name="r0")).to_be_focused()  # the row that took its place
    page.keyboard.press("Escape")
    button = page.get_by_role("button", name="Cancel run r0")
    button.focus()
    alone.store.mark_cancelled("r0")
    expect(button).to_be_hidden()
    expect(page.get_by_role("link", name="r0")).to_be_focused()


def test_the_focus_goes_back_to_the_call_whose_details_are_closed(world: World, lived_in: Any, opened: Any) -> None:
    page = opened(f"#/runs/{lived_in['rich']}/6")

    page.get_by_role("button", name="Close the details").press("Enter")

    expect(page.locator(".chosen")).to_be_hidden()
    expect(page.get_by_role("link", name="failed: fetch_page")).to_be_focused()  # says how it ended, too


def test_arrows_scroll_a_text_and_keys_of_an_input_method_are_its_own(world: World, alone: Alone, opened: Any) -> None:
    alone.store.create_run("s", "a long text\n" * 900, run_id="long")
    alone.store.record_event("long", "tool_started", {"call_id": "1", "tool": "crawl"})
    page = opened("#/runs/long", server=alone.server)
    page.locator("summary").press("Enter")
    text = page.locator(".texts pre")
    text.press("ArrowDown")
    expect(text).to_be_focused()

    page.get_by_label("Filter calls").focus()
    page.evaluate(
        """() => document.activeElement.dispatchEvent(
            new KeyboardEvent("keydown", { key: "Enter", isComposing: true, bubbles: true, cancelable: true }))"""
    )

    expect(page.get_by_label("Filter calls")).to_be_focused()


def test_keys_work_on_a_keyboard_of_another_script(world: World, lived_in: Any, opened: Any) -> None:
    page = opened("#/tools")
    expect(row(page, "charge_card")).to_be_visible()

    page.evaluate("dispatchEvent(new KeyboardEvent('keydown', { key: 'о', code: 'KeyJ' }))")

    expect(page.locator("table.toolbox tbody a").first).to_be_focused()


def test_what_a_filter_finds_is_said(world: World, lived_in: Any, opened: Any) -> None:
    page = opened("#/tools")
    expect(row(page, "charge_card")).to_be_visible()

    page.get_by_label("Filter tools").fill("charge")
    heard(page, "1 tool")
    page.keyboard.press("Escape")
    page.keyboard.press("3")
    page.get_by_label("Text in prompt").fill("nobody wrote this")
    heard(page, "0 runs")


def test_letters_can_be_switched_off_for_users_who_speak(world: World, lived_in: Any, opened: Any) -> None:
    page = opened("#/tools")
    page.keyboard.press("?")
    page.get_by_role("button", name="Letters, digits and signs").click()
    page.keyboard.press("Escape")
    page.reload()
    ready(page)
    expect(row(page, "charge_card")).to_be_visible()

    page.keyboard.press("3")
    page.keyboard.press("ArrowDown")

    expect(page.locator("table.toolbox tbody a").first).to_be_focused()
    page.get_by_role("button", name="Keys").click()
    expect(page.get_by_role("button", name="Letters, digits and signs")).to_have_attribute("aria-pressed", "false")


def test_everything_is_as_large_as_the_text_that_the_user_chose(world: World, lived_in: Any, opened: Any) -> None:
    page = opened("#/tools")
    expect(row(page, "charge_card")).to_be_visible()
    sizes = """() => [getComputedStyle(document.body).fontSize, ...["tbody tr:not(.space)", ".bar"].map(
        (each) => document.querySelector(each).offsetHeight)]"""
    assert page.evaluate(sizes) == ["13px", 32, 44]

    page.context.new_cdp_session(page).send("Page.setFontSizes", {"fontSizes": {"standard": 24}})

    until(lambda: page.evaluate(sizes) == ["19.5px", 48, 66])


def test_a_low_window_shows_a_row_as_a_whole(world: World, lived_in: Any, opened: Any) -> None:
    page = opened("#/tools")
    page.set_viewport_size({"width": 320, "height": 256})  # 1280 by 1024 at 400 %

    for screen in SCREENS:
        show(page, screen, lived_in)

        boxes = page.locator(".scroll").evaluate_all("(all) => all.map((box) => box.clientHeight)")
        assert min(boxes) >= 150, (screen, boxes)
        assert page.evaluate("[document.body.scrollWidth, document.documentElement.scrollHeight]") == [320, 256]


def test_rows_out_of_sight_are_printed(world: World, alone: Alone, opened: Any) -> None:
    alone.begin(100)
    page = opened("#/runs", server=alone.server)
    rows = page.locator("tbody tr:not(.space)")
    expect(page.locator("table.runs")).to_have_attribute("aria-rowcount", "101")
    assert rows.count() < 100

    page.evaluate("dispatchEvent(new Event('beforeprint'))")

    assert rows.count() == 100


@pytest.mark.parametrize("width", [360, 1600])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_screen(
    world: World, lived_in: Any, opened: Any, theme: str, width: int
) -> None:
    axe = axe_source()
    page = opened("#/tools", bypass_csp=True, color_scheme=theme, reduced_motion="reduce")  # colours stay as they are
    page.set_viewport_size({"width": width, "height": 860})
    page.add_script_tag(content=axe)

    found = []
    for screen in SCREENS:
        show(page, screen, lived_in)
        report = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found += [
            f"{screen}: {each['id']}: {node['html'][:200]}"
            for each in report["violations"] if each["impact"] in {"serious", "critical"}
            for node in each["nodes"][:3]
        ]  # fmt: skip

    assert found == []


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_screen_fits_and_is_kept_as_a_picture(
    world: World, lived_in: Any, opened: Any, theme: str, width: int
) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page = opened("#/tools", color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 860})

    for screen in SCREENS:
        show(page, screen, lived_in)
        ready(page)
        (SCREENSHOTS / f"{screen}-{theme}-{width}.png").write_bytes(page.screenshot())
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [390, 1600])
def test_the_times_of_a_long_run_are_not_cut_off(world: World, alone: Alone, opened: Any, width: int) -> None:
    clock = ManualClock(time.time() - 86_400)
    with SqliteRunStore(alone.store.file.path, clock=clock) as store:
        store.create_run("s", "p", run_id="long")
        store.record_event("long", "tool_started", {"call_id": "1", "tool": "crawl"})
        clock.advance(59 * 60 + 59)
        store.record_event("long", "tool_ended", {"call_id": "1", "tool": "crawl", "status": "success"})
        store.record_event("long", "run_completed")

    page = opened("#/runs/long", server=alone.server)
    page.set_viewport_size({"width": width, "height": 860})

    times = page.get_by_role("cell", name="59 min 59 s", exact=True)
    expect(times).to_have_count(3)
    assert times.evaluate_all("(all) => all.map((each) => each.scrollWidth - each.clientWidth)") == [0, 0, 0]


def test_nothing_is_cut_off_or_covered_where_there_is_little_room(world: World, lived_in: Any, opened: Any) -> None:
    name = "a_tool_of_a_rather_long_name_" * 5
    world.feeder.ask("call", name)
    page = opened("#/tools")
    expect(row(page, name)).to_be_visible()
    for width in (780, 900, 1070):
        page.set_viewport_size({"width": width, "height": 860})
        wide = page.locator("thead th:visible").evaluate_all("(all) => all.map((each) => each.clientWidth)")
        assert min(wide) > 55, (width, wide)
    expect(page.get_by_role("link", name=name)).to_have_attribute("title", name)

    page.set_viewport_size({"width": 390, "height": 860})
    page.get_by_role("link", name=name).click()
    title = page.get_by_role("heading", name=name)
    assert title.evaluate("(title) => title.scrollWidth <= title.clientWidth && title.clientHeight > 40")

    page.keyboard.press("1")
    expect(row(page, "charge_card").get_by_text("calls/s")).to_be_visible()

    page.keyboard.press("5")
    page.set_viewport_size({"width": 1024, "height": 860})
    error = row(page, "browser").locator(".last .cut")
    expect(error).to_have_text("exited with 1")
    assert error.evaluate("(error) => error.scrollWidth <= error.clientWidth")
    edges = page.locator("th.last, .more td").evaluate_all(
        "(all) => all.map((each) => each.getBoundingClientRect().right)"
    )
    assert len(set(edges)) == 1, edges

    page.keyboard.press("3")
    page.set_viewport_size({"width": 900, "height": 860})
    expect(row(page, "Approve the refund").get_by_role("button")).to_be_visible()
    assert page.locator("th.doing").evaluate("(head) => head.clientWidth") > 120
    page.set_viewport_size({"width": 390, "height": 860})
    covered = row(page, "Approve the refund").evaluate(
        """(row) => {
            const button = row.querySelector("button").getBoundingClientRect();
            const lies = ({ left, right, top, bottom }) =>
                left < button.right && button.left < right && top < button.bottom && button.top < bottom;
            const others = [...row.children].filter((cell) => !cell.querySelector("button"));
            return others.filter((cell) => lies(cell.getBoundingClientRect())).map((cell) => cell.className);
        }"""
    )
    assert covered == []


def test_every_screen_is_named_in_the_bar_of_a_phone(world: World, lived_in: Any, opened: Any) -> None:
    page = opened("#/tools")
    page.set_viewport_size({"width": 320, "height": 740})
    cut = """(tabs) => tabs.filter((tab) => tab.scrollWidth > tab.clientWidth || tab.offsetLeft + tab.offsetWidth >
        tab.parentElement.offsetLeft + tab.parentElement.clientWidth).map((tab) => tab.textContent)"""

    for screen in SCREENS:
        show(page, screen, lived_in)

        assert page.locator("nav a").evaluate_all(cut) == [], screen


def test_a_name_without_room_for_its_badges_does_not_look_cut(world: World, alone: Alone, opened: Any) -> None:
    for process in "ab":
        shown(alone, ToolEntry(name="a_name_that_fits", calls=1), id=process)
    page = opened("#/tools", server=alone.server)
    page.set_viewport_size({"width": 1280, "height": 800})
    name = page.locator("tbody th.tool")
    badge = name.locator(".badge")

    expect(badge).to_have_text("2 processes")
    assert name.locator("a").evaluate("(link) => link.scrollWidth <= link.clientWidth")
    assert name.evaluate("(cell) => cell.scrollWidth <= cell.clientWidth")
    fits = """(cell) => cell.querySelector(".badge").getBoundingClientRect().top <
        cell.querySelector(".named").getBoundingClientRect().bottom"""
    assert not name.evaluate(fits)  # it is on a line that is not shown

    page.set_viewport_size({"width": 1900, "height": 800})
    assert name.evaluate(fits)


def test_what_a_limiter_lets_through_and_a_long_wait_fit_their_columns(world: World, alone: Alone, opened: Any) -> None:
    until_ms = int(time.time() * 1000) + 590_000
    shown(alone, ToolEntry(name="slowed", calls=1, rate=43.66, full_rate=100.0, state="open", until_ms=until_ms))
    page = opened("#/tools", server=alone.server)

    expect(page.locator("td.rate")).to_have_text("43.7 of 100/s")
    expect(page.locator("td.state .wait")).to_have_text("probe in 10 min")
    for cell in ("td.rate", "td.state"):
        assert page.locator(cell).evaluate("(cell) => cell.scrollWidth <= cell.clientWidth"), cell


def test_bars_and_meters_are_there_where_the_system_chooses_the_colours(
    world: World, lived_in: Any, opened: Any
) -> None:
    page = opened(f"#/runs/{lived_in['rich']}", forced_colors="active")
    seen = "(drawn) => getComputedStyle(drawn).backgroundColor"

    bar = page.locator(".lane .bar.good").first.evaluate(seen)
    page.keyboard.press("1")
    meter = page.locator(".meter .done").first.evaluate(seen)
    canvas = page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert canvas not in {bar, meter}


def test_bars_are_printed(world: World, lived_in: Any, opened: Any) -> None:
    page = opened(f"#/runs/{lived_in['rich']}")
    bar = page.locator(".lane .bar.good").first

    page.emulate_media(media="print")

    assert bar.evaluate("(bar) => getComputedStyle(bar).printColorAdjust") == "exact"
    expect(page.get_by_role("navigation")).to_be_hidden()


def test_the_theme_can_be_chosen_and_is_remembered(world: World, opened: Any) -> None:
    page = opened("#/tools", color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)

    page.keyboard.press("t")
    page.keyboard.press("t")
    dark = page.evaluate(paper)
    page.reload()

    assert dark != light
    assert page.evaluate(paper) == dark
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()


# -- what the drawings stand on ----------------------------------------------------------------------------------------


@pytest.fixture
def modules(world: World, opened: Any) -> Callable[[str], Any]:
    """Runs code against the modules of the page."""
    page = opened("#/servers")
    return lambda code: page.evaluate(f"async () => {{ {code} }}")


def event(sequence: int, at: int, kind: str, **payload: object) -> dict[str, object]:
    return {"sequence": sequence, "timestamp_ms": at, "type": kind, "payload": {"call_id": "a", "tool": "t", **payload}}


def test_bars_tell_attempts_from_waits(modules: Any) -> None:
    events = [
        event(0, 1000, "tool_started"),
        event(1, 1100, "tool_attempt_failed", attempt=1, retry_in_ms=200, error="x", category="network"),
        event(2, 1500, "tool_ended", status="success", duration_ms=150, waited_ms=400, attempts=2),
    ]

    bars = modules(
        f"""const {{ Calls, bars }} = await import("/static/calls.js");
        const calls = new Calls(); calls.add({json.dumps(events)}); calls.add({json.dumps(events)});
        return [calls.all.length, ...bars(calls.all[0], 9000).map((bar) => [bar.kind, bar.from, bar.to])];"""
    )

    assert bars == [
        1,
        ["wait", 950, 1000],  # what is left of 400 when the wait between the attempts is taken off
        ["attempt", 1000, 1100],
        ["backoff", 1100, 1300],
        ["wait", 1300, 1450],
        ["attempt", 1450, 1500],
    ]


def test_bars_stand_where_the_attempts_were_though_they_waited_for_the_rate_and_were_written_late(modules: Any) -> None:
    events = [
        event(0, 1040, "tool_started"),
        event(1, 1050, "tool_attempt_failed", attempt=1, retry_in_ms=100, duration_ms=50),
        event(2, 2020, "tool_attempt_failed", attempt=2, retry_in_ms=100, duration_ms=20),
        event(3, 3030, "tool_ended", status="success", duration_ms=100, waited_ms=1930, attempts=3),
        {**event(4, 4090, "tool_started", call_id="b")},
        {**event(5, 4100, "tool_ended", call_id="b", status="success", duration_ms=60, attempts=1)},
    ]

    bars = modules(
        f"""const {{ Calls, bars }} = await import("/static/calls.js");
        const calls = new Calls(); calls.add({json.dumps(events)});
        return calls.all.map((call) => bars(call, 9000).map((bar) => [bar.kind, bar.from, bar.to]));"""
    )

    assert bars == [
        [
            ["attempt", 1000, 1050],
            ["backoff", 1050, 1150],
            ["wait", 1150, 2000],
            ["attempt", 2000, 2020],
            ["backoff", 2020, 2120],
            ["wait", 2120, 3000],
            ["attempt", 3000, 3030],
        ],
        [["attempt", 4040, 4100]],
    ]


def test_the_wait_before_an_attempt_that_was_refused_is_no_wait_in_line(modules: Any) -> None:
    events = [
        event(0, 1000, "tool_started"),
        event(1, 1050, "tool_attempt_failed", attempt=1, retry_in_ms=187, duration_ms=50),
        event(2, 1237, "tool_ended", status="failed", duration_ms=50, waited_ms=187, attempts=1),
    ]

    bars = modules(
        f"""const {{ Calls, bars }} = await import("/static/calls.js");
        const calls = new Calls(); calls.add({json.dumps(events)});
        return bars(calls.all[0], 9000).map((bar) => [bar.kind, bar.from, bar.to]);"""
    )

    assert bars == [["attempt", 1000, 1050]]


def test_the_page_and_the_terminal_make_the_same_of_a_log(modules: Any) -> None:
    chance = random.Random(11)
    logs = [log(chance) for _ in range(400)]

    on_the_page = modules(
        f"""const {{ Calls, bars, isTrouble }} = await import("/static/calls.js");
        return {json.dumps(logs)}.map(([events, now, over]) => {{
            const calls = new Calls();
            calls.add(events);
            if (over) calls.abandon(calls.end());
            return calls.all.map((call) => [
                call.sequence, call.kind, call.name, call.depth, call.at, call.end, call.status, isTrouble(call),
                call.events.map((event) => event.sequence),
                bars(call, now).map((bar) => [bar.kind, bar.from, bar.to, bar.outcome]),
            ]);
        }});"""
    )

    for (events, now, over), found in zip(logs, on_the_page, strict=True):
        story = in_terminal.Story()
        story.add(RunEventRecord(**each) for each in events)
        if over:
            story.abandon()
        assert found == [
            [
                call.sequence, call.kind, call.name, call.depth, call.at, call.end, call.status, call.is_trouble,
                [each.sequence for each in call.events],
                [list(bar) for bar in in_terminal.bars(call, now)],
            ]
            for call in story.calls
        ], events  # fmt: skip


def log(chance: random.Random) -> tuple[list[dict[str, Any]], int, bool]:
    """Some events of a run as they may be written, and as they may not; when it is looked at; whether it is over."""
    at, events, ids = 1000, [], ["strange"]

    def add(kind: str, **payload: object) -> None:
        nonlocal at
        at += chance.choice((0, 1, 3, 50, 200))
        facts = {name: value for name, value in payload.items() if name in ("call_id", "tool") or chance.random() < 0.8}
        events.append(
            {
                "sequence": len(events),
                "timestamp_ms": at,
                "type": kind,
                "payload": facts,
                "late": chance.random() < 0.05,
            }
        )

    for _ in range(chance.randrange(1, 14)):
        pick, took = chance.choice(ids), chance.choice((0, 5, 60, 300))
        match chance.randrange(5):
            case 0:
                ids.append(f"call-{len(events)}")
                new = chance.choice((ids[-1], ids[-1], pick))
                add(chance.choice(("tool_started", "step_started")), call_id=new, tool="t", parent=chance.choice(ids))
            case 1:
                retry = chance.choice((None, 10, 100, 500))
                add("tool_attempt_failed", call_id=pick, tool="t", retry_in_ms=retry, duration_ms=took)
            case 2 | 3:
                status = chance.choice(("success", "failed", "timed_out", "cancelled"))
                facts = {"waited_ms": chance.choice((0, 20, 900)), "attempts": chance.choice((1, 2, 3))}
                cached = chance.random() < 0.1
                add("tool_ended", call_id=pick, tool="t", status=status, duration_ms=took, cached=cached, **facts)
            case 4:
                kinds = ("tool_denied", "run_interrupted", "circuit_opened", "run_resumed", "run_failed", "of_tomorrow")
                add(chance.choice(kinds), tool="t")
    return events, at + 70, chance.random() < 0.3


def test_a_text_is_cut_between_characters(modules: Any) -> None:
    cut = modules(
        """const { oneLine } = await import("/static/format.js");
        return [2, 3].map((most) => oneLine("a😀b😀", most));"""
    )

    assert cut == ["a…", "a😀…"]


def test_joiners_are_marks_of_writing_where_they_join_and_shown_where_they_hide(modules: Any) -> None:
    seen = modules(
        """const { visible } = await import("/static/format.js");
        return ["می\\u200cخواهم", "👩\\u200d💻", "pass\\u200cword", "\\u200dend"].map(visible);"""
    )

    assert seen == ["می\u200cخواهم", "👩\u200d💻", "pass\\u200cword", "\\u200dend"]


def test_a_page_that_is_paused_stands_still_though_an_answer_was_on_its_way(modules: Any) -> None:
    titles = modules(
        """const { Live } = await import("/static/live.js");
        const { run } = await import("/static/run.js");
        const live = new Live(); let prompt = "before"; let held = null;
        const old = { id: "r", session_id: "s", status: "completed", created_at_ms: 0, updated_at_ms: 0, spend: {} };
        const line = () => ({ ...old, prompt });
        const turn = () => new Promise((resolve) => requestAnimationFrame(resolve));
        window.fetch = async (path) => {
            await held;
            return Response.json(path.includes("events") ? { events: [] } : { run: line() });
        };
        const screen = run({ live }, { name: "r", sequence: null }, new AbortController().signal);
        const title = () => screen.root.querySelector("h1").textContent;
        while (screen.root.querySelector(".split[hidden]")) await turn();
        let answer; held = new Promise((resolve) => (answer = resolve));
        live.take("runs", { runs: [line()] }); await turn();
        live.pause(); prompt = "after"; answer();
        for (let turns = 0; turns < 5; turns += 1) await turn();
        const paused = title();
        live.pause();
        for (let turns = 0; turns < 500 && title() === paused; turns += 1) await turn();
        return [paused, title()];"""
    )

    assert titles == ["Run before", "Run after"]


@pytest.mark.parametrize(
    ("screen", "route"),
    [("tool", '{ name: "charge_card" }'), ("runs", '{ query: new URLSearchParams("text=order") }')],
    ids=["tool", "runs"],
)
def test_what_changes_just_before_a_pause_is_asked_for_after_it(
    lived_in: Any, modules: Any, screen: str, route: str
) -> None:
    asked = modules(
        f"""const {{ Live }} = await import("/static/live.js");
        const {{ {screen}: make }} = await import("/static/{screen}.js");
        const live = new Live(); const {{ fetch }} = window; let asked = 0;
        const turn = () => new Promise((resolve) => requestAnimationFrame(resolve));
        window.fetch = (...all) => (asked += 1, fetch(...all));
        const app = {{ live, places: {{}}, attempt: (work) => work().then(() => true) }};
        const {{ root }} = make(app, {route}, new AbortController().signal);
        while (!root.querySelector("tbody tr:not(.space) td")) await turn();
        const later = []; window.setTimeout = (work) => later.push(work);
        const wait = () => {{ for (const work of later.splice(0)) work(); }};
        live.take("tools", {{ tools: [{{ name: "charge_card" }}], runs: [{{ id: "new" }}] }}); await turn();
        live.pause(); wait(); const paused = asked;
        live.pause(); await turn(); wait();
        return [paused, asked];"""
    )

    assert asked == [1, 2]


def test_a_line_of_time_is_divided_as_clocks_are(modules: Any) -> None:
    ticks = modules(
        """const { Scale } = await import("/static/scale.js");
        const { bare } = await import("/static/format.js");
        const of = (long) => new Scale([[0, long]], 0, long).ticks(0, 4).map(({ since }) => bare(since));
        return [2_000, 50_000, 210_000, 5_400_000, 108_000_000].map(of);"""
    )

    assert ticks == [
        ["0 ms", "500 ms", "1 s", "1.5 s"],
        ["0 ms", "15 s", "30 s", "45 s"],
        ["0 ms", "1 min", "2 min", "3 min"],
        ["0 ms", "30 min", "1 h"],
        ["0 ms", "12 h", "24 h"],
    ]


def test_latencies_of_every_size_and_their_marks_fit_a_phone(modules: Any) -> None:
    over, marks = modules(
        """const { histogram } = await import("/static/draw.js");
        const box = document.createElement("div"); box.style.width = "310px";
        const drawn = histogram(Array.from({ length: 21 }, (_, n) => [2 ** n, 1]), { p50: 1e6, p95: 1e6, p99: 1e6 });
        box.append(drawn); document.body.append(box);
        const edge = box.getBoundingClientRect().right + 6; // half a letter
        const marks = [...drawn.querySelectorAll(".flags span")];
        return [drawn.scrollWidth - 310, marks.map((mark) => mark.getBoundingClientRect().right <= edge)];"""
    )

    assert over <= 6
    assert marks == [True, True, True]


def test_half_open_is_half_a_circle(modules: Any) -> None:
    filled = modules(
        """const { icon } = await import("/static/icons.js");
        const at = (shape, x) => {
            const drawn = icon(shape); document.body.append(drawn);
            return drawn.querySelector("path").isPointInFill(new DOMPoint(x, 8));
        };
        return [at("half_open", 6), at("half_open", 10), at("closed", 10)];"""
    )

    assert filled == [True, False, True]


def test_an_open_circuit_has_reached_its_line(modules: Any) -> None:
    share, line = modules(
        """const { trip } = await import("/static/tools.js");
        const tool = { failure_count: 0, failure_threshold: 3 }; // a failed probe opened it again
        const far = trip({ state: "open", error_rate: 1, failure_rate: null, processes: [{ tool }] });
        return [far.share, far.trip];"""
    )

    assert share > line


def test_a_page_is_not_live_while_its_server_cannot_read_the_store(modules: Any) -> None:
    standings = modules(
        """const { Live } = await import("/static/live.js");
        const live = new Live(); const standings = [];
        live.take("hello", {}); live.stand("live", "");
        live.standers.add(() => standings.push(`${live.standing} ${live.detail}`));
        live.take("note", { code: "store", message: "it is gone" });
        live.stand("waiting", "away"); live.stand("live", "");
        live.take("note", { code: "slow", message: "too slow" });
        live.take("hello", {});
        return standings;"""
    )

    assert standings == ["troubled it is gone", "waiting away", "troubled it is gone", "live "]


def test_an_idle_stretch_is_folded_and_nothing_else(modules: Any) -> None:
    places = modules(
        """const { Scale } = await import("/static/scale.js");
        const scale = new Scale([[0, 1000], [61000, 62000]], 0, 62000);
        const places = [0, 500, 1000, 61000, 62000].map((at) => scale.place(at));
        return [...places, ...scale.folds().map((fold) => fold.span)];"""
    )

    assert places[0] == 0
    assert places[4] == 1
    assert places[1] == pytest.approx(places[2] / 2)
    assert places[3] - places[2] < 0.1  # a minute of nothing
    assert places[5:] == [60000]


def test_the_feed_is_parsed_however_it_is_cut(modules: Any) -> None:
    stream = ': hi\nretry: 5\n\nid: x-1\nevent: tools\ndata: {"a":\ndata: 1}\n\nid: x-2\r\ndata: é\r\n\r\ndata: cut'

    heard = modules(
        f"""const {{ Parser }} = await import("/static/feed.js");
        const all = []; const stream = {json.dumps(stream)};
        for (const size of [1, 3, 1000]) {{
            const heard = []; const parser = new Parser((message) => heard.push(message));
            for (let at = 0; at < stream.length; at += size) parser.take(stream.slice(at, at + size));
            all.push(heard);
        }}
        return all;"""
    )

    assert (
        heard
        == [[{"id": "x-1", "type": "tools", "data": '{"a":\n1}'}, {"id": "x-2", "type": "message", "data": "é"}]] * 3
    )


def test_who_looks_later_hears_how_much_time_is_left_now(modules: Any) -> None:
    at, lines = modules(
        """const { Picture } = await import("/static/picture.js");
        let clock = 0; performance.now = () => clock;
        const picture = new Picture();
        const tools = [{ name: "a", remaining_ms: 60000 }, { name: "b", remaining_ms: null }];
        picture.take("hello", { at_ms: 1000, tools });
        clock = 9000;
        const whole = picture.whole();
        return [whole.at_ms, whole.tools.map((line) => line.remaining_ms)];"""
    )

    assert (at, lines) == (10_000, [51_000, None])


def test_what_was_missed_turns_no_clock_back(modules: Any) -> None:
    now, since = modules(
        """const { Live } = await import("/static/live.js");
        let clock = 0; performance.now = () => clock;
        const live = new Live();
        live.take("hello", { at_ms: 1000, tools: [{ name: "a", remaining_ms: null }] });
        clock = 9000;
        live.take("tools", { at_ms: 2000, tools: [{ name: "a", remaining_ms: 60000 }] });
        return [live.now(), live.since("a")];"""
    )

    assert (now, since) == (10_000, 8000)


def test_a_page_is_live_once_it_has_everything(modules: Any) -> None:
    standings = modules(
        """const { Live } = await import("/static/live.js");
        const live = new Live(); const standings = [];
        live.standers.add(() => standings.push(live.standing));
        live.stand("live", ""); standings.push("told"); live.take("hello", {});
        live.stand("waiting", "gone"); live.stand("live", "");
        return standings;"""
    )

    assert standings == ["told", "live", "waiting", "live"]


@pytest.mark.parametrize(
    ("news", "asks", "says"),
    [
        ('live.take("hello", { read_only: true })', 0, True),
        ('live.take("hello", { read_only: false })', 1, False),
        ('live.stand("waiting", "the server answered 503")', 1, False),
    ],
    ids=["read-only", "not read-only", "nobody knows"],
)
def test_an_order_that_comes_before_the_feed_waits_for_what_it_says(
    modules: Any, news: str, asks: int, says: bool
) -> None:
    before, after, heard = modules(
        f"""const {{ Live }} = await import("/static/live.js");
        const {{ orderKeys }} = await import("/static/orders.js");
        const live = new Live(); const {{ O: open }} = orderKeys({{ live }}, () => "search");
        const turn = () => new Promise((resolve) => setTimeout(resolve));
        const asked = async () => (await turn(), document.querySelectorAll("dialog").length);
        open(); open();
        const before = await asked(); {news};
        return [before, await asked(), window.heard.some((said) => said.includes("This page changes nothing"))];"""
    )

    assert (before, after, heard) == (0, asks, says)


def test_what_is_said_at_once_is_all_read_out(modules: Any) -> None:
    said = modules(
        """const { say } = await import("/static/say.js");
        say("a circuit is open"); say("the page is live");
        const place = document.querySelector("[role=status]");
        return [place.textContent, place.ariaAtomic];"""
    )

    assert said[0].endswith("a circuit is openthe page is live")
    assert said[1] == "false"


# -- helpers -----------------------------------------------------------------------------------------------------------


def hide(page: Any, *, hidden: bool) -> None:
    """What the browser does when another tab is chosen; a browser without windows has none."""
    page.evaluate(
        """(hidden) => {
            Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def axe_source() -> str:
    from tests import worlds

    try:
        return (node().modules / "axe-core" / "axe.min.js").read_text()
    except worlds.Missing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"this must be had in CI: {missing}")
        pytest.skip(str(missing))
