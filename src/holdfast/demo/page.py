"""The fourth scene: the dashboard, over the store that all processes of the demo share, while agents are at work.

In a terminal it stays until Ctrl-C; otherwise the demo itself fetches it once.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from holdfast.clock import SystemClock
from holdfast.demo.living import NAMES, at_work
from holdfast.demo.stage import Played, Saving, Stage
from holdfast.signals import handled
from holdfast.stores import RunStore, open_store
from holdfast.stores.board import Board
from holdfast.wording import plural

HOST: Final = "127.0.0.1"
PATIENCE: Final = 15.0  # seconds for all processes to appear on the page
LOOK_EVERY: Final = 0.3  # seconds
PROCESSES: Final = len(NAMES) + 1  # processes that show their tools: the agents and the proxy
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WORTH_A_LOOK: Final = """\
Two agents and the proxy go on working, so that there is something to see:
  Tools    circuits that open and close by themselves, or by your click
  Runs     each trip with its calls, live; the run of scene 2, killed twice
  Servers  the one of scene 3, its crashes and its last words"""


async def scene(stage: Stage, folder: Path) -> Played:
    """Show on a page what all processes do; if the libraries for it are missing, say so."""
    try:
        import holdfast.web.app  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("holdfast"):
            raise
        needed = error.name.partition(".")[0]
        stage.say(f"It needs {needed}: pip install 'holdfast[server]'. The demo goes on without it.")
        return Played()
    numbers: dict[str, object] = {}
    with open_store(folder / "runs.db") as store:
        async with _served(store) as (site, token), at_work(folder, stage.seed):
            if stage.stays:
                await _stay(stage, f"{site}?token={token}")
            else:
                numbers["page"] = await asyncio.to_thread(_look, stage, site, token)
            live = _counted(Board(store))
    return Played({**numbers, "live": live}, {Saving.CALLS: live["not_made"], Saving.CRASHES: live["crashes"]})


@asynccontextmanager
async def _served(store: RunStore) -> AsyncIterator[tuple[str, str]]:
    """Serve the dashboard on any free port of this machine; yield its address, and the token that it demands."""
    from holdfast.web.app import App
    from holdfast.web.security import rules
    from holdfast.web.serving import Server, bind

    listening, token = bind(HOST, 0), secrets.token_urlsafe(32)
    port = listening.getsockname()[1]
    server = Server(App(store, rules(HOST, port, token=token)))
    answering = asyncio.create_task(asyncio.to_thread(server.answer, listening))
    try:
        yield f"http://{HOST}:{port}/", token
    finally:
        server.stop()
        await answering


def _counted(board: Board) -> dict[str, int]:
    """Return what the processes at work have counted."""
    tools = [each.tool for line in board.tools() for each in line.processes]
    return {
        "calls": sum(tool.calls + tool.denied for tool in tools),
        "failed": sum(tool.failed + tool.timed_out for tool in tools),
        "not_made": sum(tool.refusals.get("CircuitOpen", 0) for tool in tools),
        "crashes": sum(line.server.restarts for line in board.servers()),
    }


# -- fetched once ------------------------------------------------------------------------------------------------------


def _look(stage: Stage, site: str, token: str) -> dict[str, int]:
    """Fetch the page as a browser does until it shows tools of all processes, or time is up; return what it shows."""
    clock = SystemClock()
    until = clock.monotonic() + PATIENCE
    while True:
        tools = _ask(site, token, "tools")
        processes = {process["process"] for tool in tools for process in tool["processes"]}
        if len(processes) >= PROCESSES or clock.monotonic() > until:
            break
        clock.sleep(LOOK_EVERY)
    shown = {"tools": len(tools), "processes": len(processes)}
    shown |= {what: len(_ask(site, token, what)) for what in ("runs", "servers")}
    words = f"{shown['tools']} tools of {shown['processes']} processes, {shown['runs']} runs"
    stage.say(f"{site} shows {words}, {plural(shown['servers'], 'server')}.")
    stage.say("In a terminal it stays there until Ctrl-C. On your own store: holdfast ui.")
    return shown


def _ask(site: str, token: str, what: str) -> list[Any]:
    request = Request(f"{site}api/{what}", headers={"Authorization": f"Bearer {token}"})
    with build_opener(ProxyHandler({})).open(request, timeout=PATIENCE) as answer:
        found: list[Any] = msgspec.json.decode(answer.read())[what]
    return found


# -- until Ctrl-C ------------------------------------------------------------------------------------------------------


async def _stay(stage: Stage, address: str) -> None:
    stage.say(address, style="bold cyan")
    stage.out.print()
    is_open = stage.opens and await asyncio.to_thread(_opened, address)
    stage.say("It is open in your browser." if is_open else "Open it in a browser.")
    for line in WORTH_A_LOOK.splitlines():
        stage.say(line)
    stage.out.print()
    stage.say("Ctrl-C ends it.", style="bold")
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def end(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop.set)

    with handled(dict.fromkeys(SIGNALS, end)):
        await stop.wait()


def _opened(address: str) -> bool:
    """Open a browser that has a window of its own; one for terminals would take over this terminal."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    has_window = type(browser) is not webbrowser.GenericBrowser and getattr(browser, "background", True)
    return bool(has_window and browser.open(address))
