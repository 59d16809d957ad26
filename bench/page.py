"""The page with 500 tools and 10,000 runs: how soon it is painted, what an update costs it and what a page the server.

A real `holdfast ui`, a real Chromium and an agent that calls fifty tools a second are processes of their own. Where
there is no Chromium (`$CHROME`, else the system's), what it would have shown is left out.
"""

from __future__ import annotations

import http.client
import io
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.disk import CHECKOUT, scratch
from bench.harness import Settings
from bench.report import Table, at_least, at_most

TOOLS = 500
BUSY = 50  # of them are called, each once a second
RUNS = 10_000
PAGES = 8
TOKEN = "a-token-for-the-benchmark"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

FIRST_PAINT = 1000.0  # milliseconds
ALL_ROWS = 2000.0
PAGE_BUSY = 100.0  # CPU milliseconds a second of the page's main thread
SERVER_BUSY = 20.0  # CPU milliseconds a second for one more page
REQUESTS = 200.0  # a second


def run(settings: Settings) -> Iterator[Table]:
    """The page, its server, and the API."""
    if settings.peers_only:
        return
    with scratch() as folder:
        with other("agent", folder / "many.db", TOOLS, RUNS), serving(folder / "many.db") as server:
            yield _page(server, 2 if settings.quick else 5, 4.0 if settings.quick else 10.0)
            yield _cost(server, 4.0 if settings.quick else 10.0)
        with other("agent", folder / "few.db", BUSY, 0), serving(folder / "few.db") as server:
            yield _api(server, 2.0 if settings.quick else 5.0)


class Server:
    """A `holdfast ui` of its own process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.address = process.stdout.readline().strip()
        found = re.search(r":(\d+)/", self.address)
        assert found, f"holdfast ui said {self.address!r}"
        self.port = int(found[1])

    def cpu(self) -> float | None:
        """CPU seconds until now; None where the system does not tell."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except FileNotFoundError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(path: Path) -> Iterator[Server]:
    """A server on the store at *path*."""
    command = [sys.executable, "-m", "holdfast", "ui", "--no-open", "--port", "0", "--store", str(path)]
    environment = {**os.environ, "HOLDFAST_TOKEN": TOKEN}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=CHECKOUT
    ) as process:
        try:
            yield Server(process)
        finally:
            process.terminate()


@contextmanager
def other(*words: object) -> Iterator[None]:
    """An agent of its own process, once it is ready."""
    command = [sys.executable, "-m", "bench.page", *map(str, words)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("the agent has not begun")
            yield
        finally:
            process.kill()


# -- in a browser ------------------------------------------------------------------------------------------------------


def _page(server: Server, times: int, seconds: float) -> Table:
    table = Table(f"the page, {TOOLS} tools and {RUNS:,} runs", ("p50", "most"))
    painted, listed, found = [], [], []
    busy = None
    with ExitStack() as stack:
        chromium = _browser(stack)
        if chromium is None:
            table.notes.append("no Chromium: name one in $CHROME")
        for _ in range(times if chromium is not None else 0):
            page = chromium.new_context().new_page()
            page.goto(server.address)
            listed.append(_rows(page, TOOLS))
            painted.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            busy = busy or _busy(page, seconds)
            start = page.evaluate("location.hash = '#/runs'; performance.now()")
            found.append(_rows(page, 20) - start)
            page.context.close()
    for name, values in (("first paint, ms", painted), ("all tools listed, ms", listed), ("runs listed, ms", found)):
        table.rows.append((name, statistics.median(values), max(values)) if values else (name, None, None))
    table.rows.append((f"main thread with {BUSY} updates/s, ms a second", busy, None))
    table.verdicts += [
        at_most("first paint", statistics.median(painted) if painted else None, FIRST_PAINT, " ms"),
        at_most("all tools listed", statistics.median(listed) if listed else None, ALL_ROWS, " ms"),
        at_most("main thread while live", busy, PAGE_BUSY, " ms a second"),
    ]
    return table


def _browser(stack: ExitStack) -> Any:
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        return None
    found = os.environ.get("CHROME") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        return None
    root = os.geteuid() == 0
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if root else [])]
    playwright = stack.enter_context(sync_playwright())
    made = playwright.chromium.launch(executable_path=found, args=arguments, chromium_sandbox=not root)
    stack.callback(made.close)
    return made


def _rows(page: Any, count: int) -> float:
    """Milliseconds since the page was asked for until its table has so many rows, of which those in sight are drawn."""
    return float(
        page.evaluate(
            """(count) => new Promise((resolve) => {
                const look = () => Number(document.querySelector("table")?.ariaRowCount) > count
                    ? resolve(performance.now()) : requestAnimationFrame(look);
                look();
            })""",
            count,
        )
    )


def _busy(page: Any, seconds: float) -> float:
    """Milliseconds a second that the page's main thread works while tools are called."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU, not the wall

    def task() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")

    before = task()
    page.wait_for_timeout(seconds * 1000)
    return 1000 * (task() - before) / seconds


# -- what it costs the server ------------------------------------------------------------------------------------------


def _cost(server: Server, seconds: float) -> Table:
    table = Table(f"server, {BUSY} tools called a second", ("CPU ms/s",))
    costs: dict[int, float | None] = {}
    for pages in (0, 1, PAGES):
        with ExitStack() as stack:
            for _ in range(pages):
                stack.enter_context(_listening(server))
            before = server.cpu()
            time.sleep(seconds)
            after = server.cpu()
        costs[pages] = None if before is None or after is None else 1000 * (after - before) / seconds
        table.rows.append((f"{pages} pages connected", costs[pages]))
    one, all_ = costs[1], costs[PAGES]
    more = None if one is None or all_ is None else max(0.0, (all_ - one) / (PAGES - 1))
    table.rows.append(("one page more", more))
    table.verdicts.append(at_most("one page more", more, SERVER_BUSY, " ms a second"))
    return table


@contextmanager
def _listening(server: Server) -> Iterator[None]:
    """A page that reads its feed, without the browser around it."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/api/stream", headers=HEADERS)
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"the feed answered {answer.status}")
    over = threading.Event()

    def read() -> None:
        while not over.is_set() and answer.readline():
            continue

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
        connection.close()


def _api(server: Server, seconds: float) -> Table:
    table = Table(f"API, {BUSY} tools", ("requests/s",))
    for path in ("/api/tools", "/api/tools/tool_007", "/healthz"):
        table.rows.append((f"GET {path}", _speed(server, path, seconds)))
    table.verdicts.append(at_least(f"GET /api/tools, {BUSY} tools", table.rows[0][1], REQUESTS, " a second"))
    table.notes.append("one connection, one request after the other; the tools are being called meanwhile")
    return table


def _speed(server: Server, path: str, seconds: float) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        connection.request("GET", path, headers=HEADERS)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}")
        count += 1
    connection.close()
    return count / (time.perf_counter() - start)


# -- the agent ---------------------------------------------------------------------------------------------------------


def agent(path: str, tools: str, runs: str) -> None:
    """Have so many tools and runs, and call some of the tools once a second until nobody listens any more."""
    import holdfast

    def work(fails: bool = False) -> int:
        if fails:
            raise ConnectionError("the line is dead")
        return 42

    with holdfast.open(path, policies={}) as hf:
        names = [f"tool_{number:03}" for number in range(int(tools))]
        for number, name in enumerate(names):
            tool = hf.tool(name)(work)
            for _ in range(3):
                tool()
            for _ in range(8 if number % 50 == 49 else 0):
                _try(tool)
        if int(runs):
            hf.runs.import_(_many(int(runs)))
        print("ready", flush=True)
        calm = [name for number, name in enumerate(names) if number % 50 != 49][:BUSY]
        while True:
            for name in calm:
                hf.call(name)
                time.sleep(1 / len(calm))


def _try(tool: Any) -> None:
    import holdfast

    try:
        tool(fails=True)
    except (ConnectionError, holdfast.Denied):
        return


def _many(runs: int) -> io.StringIO:
    """So many runs as JSON lines."""
    import holdfast

    file = io.StringIO()
    with holdfast.MemoryRunStore() as store:
        for number in range(runs):
            made = store.create_run(f"session-{number % 20}", f"run number {number}")
            store.record_event(made.id, "run_started", {"prompt": made.prompt})
            ended = ("run_completed", {"text": "done"}) if number % 9 else ("run_failed", {"error": "no luck"})
            store.record_event(made.id, *ended)
        store.export(file)
    file.seek(0)
    return file


if __name__ == "__main__":
    agent(*sys.argv[2:])
