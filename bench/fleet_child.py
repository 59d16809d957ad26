"""One process of many that share a server: `python -m bench.fleet_child KIND URL TASKS SECONDS`.

It says that it is ready, begins when a line on its standard input says so, and ends with what it has made.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Turn = Callable[[], Awaitable[int]]  # gives how many it has made

STEPS = 20  # of one run


def main() -> None:
    """Open the one that is named, then have as many tasks as were asked for take turns until the time is up."""
    kind, url, tasks, seconds = sys.argv[1:]
    asyncio.run(_serve(KINDS[kind](url), int(tasks), float(seconds)))


async def _serve(manager: AbstractAsyncContextManager[Turn], tasks: int, seconds: float) -> None:
    async with manager as turn:
        await turn()
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
        start, busy = time.perf_counter(), time.process_time()
        made = await asyncio.gather(*(_turns(turn, start + seconds) for _ in range(tasks)))
        took, busy = time.perf_counter() - start, time.process_time() - busy
        print(json.dumps({"made": sum(made), "seconds": took, "busy": busy}), flush=True)


async def _turns(turn: Turn, until: float) -> int:
    made = 0
    while time.perf_counter() < until:
        made += await turn()
    return made


@asynccontextmanager
async def _decide(mode: str, url: str) -> AsyncIterator[Turn]:
    """Calls of a tool that all processes share, many in a turn: to look at the clock costs something too."""
    from bench.fleet_ours import EXACT, LEASED, ahead
    from bench.fleet_ours import exact as makes

    made = {**makes(awaited=True), **ahead(awaited=True)}[{"exact": EXACT, "leased": LEASED}[mode]](url)

    async def turn() -> int:
        for _ in range(100):
            await made.decide()
        await asyncio.sleep(0)
        return 100

    yield turn
    await made.close()


@asynccontextmanager
async def _piped(url: str) -> AsyncIterator[Turn]:
    """Our script with nobody waiting for a single answer: what the server can do."""
    from bench.fleet_floor import TOGETHER, our_question, piped

    made = piped(url, our_question(url))

    async def turn() -> int:
        for _ in range(10):
            made.decide()
        return 10 * TOGETHER

    yield turn
    made.close()


@asynccontextmanager
async def _steps(url: str) -> AsyncIterator[Turn]:
    """Durable runs of steps."""
    from bench.durable_ours import asteps

    numbers = iter(range(1_000_000_000))
    async with asteps(url) as one:

        async def turn() -> int:
            await one(f"{os.getpid()} {next(numbers)}", STEPS)
            return STEPS

        yield turn


KINDS: dict[str, Callable[[str], AbstractAsyncContextManager[Turn]]] = {
    "exact": lambda url: _decide("exact", url),
    "leased": lambda url: _decide("leased", url),
    "piped": _piped,
    "steps": _steps,
}


if __name__ == "__main__":
    main()
