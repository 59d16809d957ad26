"""The agent of the first scene in real time, as a process of its own, for as long as somebody looks.

Its runs and tools are in the store that all processes of the demo share. It ends with its standard input, so it never
outlives whoever started it.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from holdfast import app
from holdfast.clock import SystemClock
from holdfast.demo.agent import AT_ONCE, Agent, Trip, plan_of
from holdfast.demo.children import child
from holdfast.demo.client import Client, Gone, wrapped
from holdfast.demo.office import CRASHES, NIGHT
from holdfast.demo.proxied import COUNTRIES, CURRENCIES, MEANWHILE
from holdfast.demo.race import guarded
from holdfast.demo.world import World
from holdfast.errors import RunCancelled

NAMES: Final = ("planner-1", "planner-2")
APART: Final = 1003  # trips, so that no two agents plan the same ones
DAY: Final = 90.0  # seconds after which translate is down again
PAUSE: Final = 0.4  # seconds between two calls of the client


async def live(store: str, name: str, seed: int, first: int) -> None:
    """Plan trips, from the *first* on, until standard input ends."""
    async with app.open(store, policies={}) as hf:
        hf.publish(name=name)
        working = asyncio.create_task(_work(hf, name, seed, first))
        hearing = asyncio.create_task(_input_ended())
        await asyncio.wait({working, hearing}, return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        await asyncio.wait({working})
        if not working.cancelled():
            working.result()


@asynccontextmanager
async def living(folder: Path, seed: int) -> AsyncIterator[None]:
    """Agents at work on the store in *folder*, each in its own process."""
    async with AsyncExitStack() as stack:
        for number, name in enumerate(NAMES):
            arguments = (str(folder / "runs.db"), name, str(seed), str(1 + number * APART))
            await stack.enter_async_context(child(folder / f"{name}.err", "holdfast.demo.living", *arguments))
        yield


async def keep_asking(folder: Path, client: Client) -> None:
    """Have *client* call the travel office, now one tool and now another.

    A proxy ends when its run is cancelled, on the page for instance; then there is another.
    """
    await _ask_until_gone(client)
    while True:
        async with wrapped(folder) as another:
            await _ask_until_gone(another)


async def _ask_until_gone(client: Client) -> None:
    clock = SystemClock()
    gone = asyncio.Event()

    async def ask(tool: str, subject: str) -> None:
        try:
            reply = await client.call(tool, subject)
            if reply.unknown:
                await client.call("find_payment", subject)
        except Gone:
            gone.set()

    async with asyncio.TaskGroup() as group:
        for turn in itertools.count(1):
            if gone.is_set():
                return
            for tool, subject in _questions(turn):
                group.create_task(ask(tool, subject))
            await clock.asleep(PAUSE)


def _questions(turn: int) -> list[tuple[str, str]]:
    """What is asked in a turn: mostly what works, now and then what does not."""
    asked = [("weather", MEANWHILE[turn % len(MEANWHILE)])]
    if turn % 2:
        asked.append(("visa_rules", COUNTRIES[turn % len(COUNTRIES)]))
    if turn % 25 == 10:
        asked += [("exchange_rate", currency) for currency in CURRENCIES]
    if turn % 25 == 15:
        asked.append(("trains", NIGHT))
    if turn % 20 == 5:
        asked.append(("pay_invoice", f"{1000 + turn}"))
    if turn % 60 == 20:
        asked.append(("weather", CRASHES))
    return asked


async def _work(hf: app.Holdfast, name: str, seed: int, first: int) -> None:
    clock = SystemClock()
    tools = guarded(hf, World(seed, clock, day=DAY))

    @asynccontextmanager
    async def run(trip: Trip) -> AsyncIterator[None]:
        try:
            async with hf.run(name, trip.name):
                yield
        except RunCancelled:  # from the page: that trip is over, the agent goes on with the next
            return

    for trip in itertools.count(first, AT_ONCE):
        await Agent(tools, plan_of(AT_ONCE, trip), clock, run=run).work()


async def _input_ended() -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
