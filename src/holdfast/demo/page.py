"""The fourth scene: the dashboard, served by this process over the store that all processes of the demo share."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.stores import RunStore
from holdfast.stores.board import Board

HOST: Final = "127.0.0.1"
PATIENCE: Final = 15.0  # seconds for the server to begin, and for all to be seen on the page
LOOK_EVERY: Final = 0.3  # seconds


class Missing(Exception):
    """What the page is made with is not installed."""


class Page(NamedTuple):
    """Where the page is, and what one has to show to see it."""

    port: int
    token: str

    @property
    def site(self) -> str:
        """Where it is, for whoever has been there before."""
        return f"http://{HOST}:{self.port}/"

    @property
    def address(self) -> str:
        """What a browser is to open."""
        return f"{self.site}?token={self.token}"


class Shown(msgspec.Struct, frozen=True):
    """What the page showed to whoever asked."""

    tools: int
    processes: int
    runs: int
    servers: int


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What the living processes of the demo have counted."""

    calls: int = 0
    failed: int = 0
    not_made: int = 0  # to a tool whose circuit was open
    crashes: int = 0  # of servers
    open: tuple[str, ...] = ()  # tools that are refused now

    def since(self, before: Totals) -> Totals:
        """What was added since; less than nothing if a process has ended, which counts as nothing."""
        return Totals(
            calls=max(0, self.calls - before.calls),
            failed=max(0, self.failed - before.failed),
            not_made=max(0, self.not_made - before.not_made),
            crashes=max(0, self.crashes - before.crashes),
            open=self.open,
        )


@contextmanager
def served(store: RunStore) -> Iterator[Page]:
    """The dashboard on any free port of this machine, for as long as the block takes."""
    try:
        from holdfast.web.app import App
        from holdfast.web.security import rules
        from holdfast.web.serving import Server, bind
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("holdfast"):
            raise
        raise Missing(error.name.partition(".")[0]) from error
    listening = bind(HOST, 0)
    page = Page(listening.getsockname()[1], secrets.token_urlsafe(32))
    ready = threading.Event()
    server = Server(App(store, rules(HOST, page.port, token=page.token)), on_ready=ready.set)
    thread = threading.Thread(target=server.answer, args=(listening,), name="holdfast-page")
    thread.start()
    try:
        if not ready.wait(PATIENCE):
            raise HoldfastError(f"the dashboard did not begin within {PATIENCE:g} s")
        yield page
    finally:
        server.stop()
        thread.join()


def look(page: Page, clock: Clock, processes: int) -> Shown:
    """Ask the page as a browser does until it shows tools of so many *processes*, or for long enough."""
    until = clock.monotonic() + PATIENCE
    while True:
        tools = _asked(page, "/api/tools")["tools"]
        seen = {process["process"] for tool in tools for process in tool["processes"]}
        if len(seen) >= processes or clock.monotonic() > until:
            runs, servers = _asked(page, "/api/runs")["runs"], _asked(page, "/api/servers")["servers"]
            return Shown(tools=len(tools), processes=len(seen), runs=len(runs), servers=len(servers))
        clock.sleep(LOOK_EVERY)


def totals(store: RunStore) -> Totals:
    """What stands on the board of *store*."""
    board = Board(store)
    lines = board.tools()
    tools = [each.tool for line in lines for each in line.processes]
    return Totals(
        calls=sum(tool.calls + tool.denied for tool in tools),
        failed=sum(tool.failed + tool.timed_out for tool in tools),
        not_made=sum(tool.refusals.get("CircuitOpen", 0) for tool in tools),
        crashes=sum(line.server.restarts for line in board.servers()),
        open=tuple(line.name for line in lines if line.refuses),
    )


def _asked(page: Page, path: str) -> dict[str, Any]:
    connection = HTTPConnection(HOST, page.port, timeout=PATIENCE)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {page.token}"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise HoldfastError(f"the dashboard answered {path} with {answer.status}: {body[:200]!r}")
        return msgspec.json.decode(body, type=dict[str, Any])
    finally:
        connection.close()
