"""The agent of the first scene in real time, as a process of its own, for as long as somebody looks.

Its runs and tools are in the store that all processes of the demo share. It ends with its standard input, so it never
outlives whoever started it.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from holdfast import app
from holdfast.clock import SystemClock
from holdfast.demo.agent import AT_ONCE, Agent, Trip, plan_of
from holdfast.demo.client import Client, end
from holdfast.demo.office import CRASHES, NIGHT
from holdfast.demo.proxied import COUNTRIES, CURRENCIES, MEANWHILE
from holdfast.demo.race import guarded
from holdfast.demo.world import World
from holdfast.errors import RunCancelled

NAMES: Final = ("planner-1", "planner-2")
DAY: Final = 90.0  # seconds after which translate is down again
PAUSE: Final = 0.4  # seconds between two calls of the client


async def live(store: str, name: str, seed: int) -> None:
    """Plan trips until standard input ends."""
    async with app.open(store, policies={}) as hf:
        hf.publish(name=name)
        working = asyncio.create_task(_work(hf, name, seed))
        hearing = asyncio.create_task(_input_ended())
        await asyncio.wait({working, hearing}, return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        await asyncio.wait({working})
        if not working.cancelled():
            working.result()


@asynccontextmanager
async def living(folder: Path, seed: int) -> AsyncIterator[None]:
    """Agents at work on the store in *folder*, each in its own process."""
    processes: list[asyncio.subprocess.Process] = []
    try:
        for number, name in enumerate(NAMES):
            arguments = [str(folder / "runs.db"), name, str(seed + number)]
            with open(folder / f"{name}.err", "wb") as said:
                processes.append(
                    await asyncio.create_subprocess_exec(
                        sys.executable, "-P", "-m", "holdfast.demo.living", *arguments,
                        stdin=subprocess.PIPE, stdout=said, stderr=said,
                        start_new_session=True,  # a Ctrl-C is for us: it ends with its input
                    )
                )  # fmt: skip
        yield
    finally:
        await asyncio.gather(*map(end, processes))


async def keep_asking(client: Client) -> None:
    """Have *client* call the travel office, now one tool and now another."""
    clock = SystemClock()
    async with asyncio.TaskGroup() as group:
        for turn in itertools.count(1):
            for tool, subject in _questions(turn):
                group.create_task(_ask(client, tool, subject))
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


async def _ask(client: Client, tool: str, subject: str) -> None:
    reply = await client.call(tool, subject)
    if reply.unknown:
        await client.call("find_payment", subject)


async def _work(hf: app.Holdfast, name: str, seed: int) -> None:
    clock = SystemClock()
    tools = guarded(hf, World(seed, clock, day=DAY))

    @asynccontextmanager
    async def run(trip: Trip) -> AsyncIterator[None]:
        try:
            async with hf.run(name, trip.name):
                yield
        except RunCancelled:  # from the page: that trip is over, the agent goes on with the next
            return

    for first in itertools.count(1, AT_ONCE):
        await Agent(tools, plan_of(AT_ONCE, first), clock, run=run).work()


async def _input_ended() -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], sys.argv[2], int(sys.argv[3])))
