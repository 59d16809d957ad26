"""The fourth scene as it is told: in a terminal the dashboard stays until Ctrl-C, elsewhere it is looked at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from holdfast.clock import Clock, SystemClock
from holdfast.demo import living, page
from holdfast.demo.client import Client
from holdfast.demo.page import Page, Shown, Totals
from holdfast.stores import RunStore
from holdfast.wording import plural

EVERY: Final = 1.0  # seconds between two looks at the totals
PROCESSES: Final = len(living.NAMES) + 1  # that show their tools: the agents and the proxy
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WORTH_A_LOOK: Final = (
    "Two agents and the proxy go on working, so that there is something to see:",
    "  Tools    circuits that open and close by themselves, or by your click",
    "  Runs     each trip with its calls, live; the run of scene 2, killed twice",
    "  Servers  the one of scene 3, its crashes and its last words",
)


@asynccontextmanager
async def busy(folder: Path, seed: int, client: Client) -> AsyncIterator[None]:
    """Agents at work, in processes of their own and through the proxy of *client*."""
    async with living.living(folder, seed):
        asking = asyncio.create_task(living.keep_asking(folder, client))
        try:
            yield
        finally:
            asking.cancel()
            await asyncio.wait({asking})
            if not asking.cancelled():
                asking.result()  # why it ended by itself


async def look_once(shown: Page) -> tuple[Shown, list[str]]:
    """Ask the page itself what it shows, and tell it."""
    seen = await asyncio.to_thread(page.look, shown, SystemClock(), PROCESSES)
    servers = plural(seen.servers, "server")
    return seen, [
        f"{shown.site} shows {seen.tools} tools of {seen.processes} processes, {seen.runs} runs, {servers}.",
        "In a terminal it stays there until Ctrl-C. On your own store: holdfast ui.",
    ]


def opened(shown: Page) -> bool:
    """Open a browser that has a window of its own; one for terminals would take this one."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    has_window = type(browser) is not webbrowser.GenericBrowser and getattr(browser, "background", True)
    return bool(has_window and browser.open(shown.address))


async def stay(store: RunStore, before: Totals, console: Console | None) -> None:
    """Wait for Ctrl-C; on *console*, if there is one, say meanwhile what goes on."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    before_us = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)
    saying = asyncio.create_task(_say(store, before, console, SystemClock())) if console is not None else None
    try:
        await stop.wait()
    finally:
        for number, handler in before_us.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
        if saying is not None:
            saying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await saying


async def _say(store: RunStore, before: Totals, console: Console, clock: Clock) -> None:
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            now = await asyncio.to_thread(page.totals, store)
            live.update(status(now.since(before)), refresh=True)
            await clock.asleep(EVERY)


def status(now: Totals) -> Text:
    """What goes on, in one line."""
    text = Text("   Ctrl-C ends it.", style="bold", no_wrap=True, overflow="ellipsis")
    text.append(f"  {now.calls} calls, {now.failed} failed, {now.not_made} not made", style="not bold dim")
    if now.open:
        text.append(f"; open: {', '.join(now.open)}", style="not bold red")
    return text
