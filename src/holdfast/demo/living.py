"""What works while the dashboard is shown: agents, each in a process of its own, and a client of the proxy.

The agents are those of the first scene, in real time. All have their runs and tools in one store.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL
from typing import Final

from holdfast import app
from holdfast.clock import SystemClock
from holdfast.demo.agent import AT_ONCE, Agent
from holdfast.demo.children import child
from holdfast.demo.client import Gone, wrapped
from holdfast.demo.office import CRASHES, NIGHT
from holdfast.demo.proxied import CITIES, COUNTRIES, CURRENCIES
from holdfast.demo.race import guarded
from holdfast.demo.world import World
from holdfast.errors import RunCancelled

NAMES: Final = ("planner-1", "planner-2")
APART: Final = 1003  # trips from one agent's first to the next agent's first, so that no two agents plan the same ones
PAUSE: Final = 0.2  # seconds between two calls of the client
QUESTIONS: Final = (
    ("weather", CRASHES),
    *[("weather", city) for city in CITIES] * 10,
    *[("visa_rules", country) for country in COUNTRIES] * 2,
    ("trains", NIGHT),
    *[("exchange_rate", currency) for currency in CURRENCIES],
)


@asynccontextmanager
async def at_work(folder: Path, seed: int) -> AsyncIterator[None]:
    """Run the agents and the client on the store in *folder* for as long as the block takes."""
    async with AsyncExitStack() as stack:
        for number, name in enumerate(NAMES):
            arguments = (str(folder / "runs.db"), name, str(seed), str(1 + number * APART))
            await stack.enter_async_context(child("holdfast.demo.living", *arguments, errors=DEVNULL))
        asking = asyncio.create_task(_keep_asking(folder))
        try:
            yield
        finally:
            asking.cancel()
            await asyncio.wait({asking})
        if not asking.cancelled():
            asking.result()  # raises the error that ended it


async def _keep_asking(folder: Path) -> None:
    """Have a client call the travel office; start a new proxy when the user ends it by cancelling its run."""
    while True:
        try:
            async with wrapped(folder) as client, asyncio.TaskGroup() as group:
                for tool, subject in itertools.cycle(QUESTIONS):
                    group.create_task(client.call(tool, subject))
                    await SystemClock().asleep(PAUSE)
        except* Gone:
            pass  # raised by all calls in flight, or in the middle of the handshake


# -- the process of an agent -------------------------------------------------------------------------------------------


async def live(store: str, name: str, seed: int, first: int) -> None:
    """Plan trips, from the *first* on, for ever."""
    clock = SystemClock()
    async with app.open(store, policies={}) as hf:
        hf.publish(name=name)
        tools = guarded(hf, World(seed, clock))

        @asynccontextmanager
        async def run(trip: str) -> AsyncIterator[None]:
            try:
                async with hf.run(name, trip):
                    yield
            except RunCancelled:  # cancelled on the page: that trip is over, the agent goes on with the next
                return

        for number in itertools.count(first, AT_ONCE):
            await Agent(tools, range(number, number + AT_ONCE), clock, run=run).work()


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)  # the store is thrown away: there is nothing to clean up


if __name__ == "__main__":
    threading.Thread(target=_end_with_input, daemon=True).start()
    asyncio.run(live(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
