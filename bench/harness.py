"""Times contenders side by side: short batches of calls in random order, round after round, by the CPU of the process.

All threads count, so work that a library gives to a thread of its own is charged; work that it puts off within the
calling thread is charged by `settle`, which is timed with every batch. Nothing is subtracted.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import random
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice, repeat
from time import process_time
from typing import Any

from bench.peers import peer_only

Batch = Callable[[int], Any]

BREATH = 512  # awaited calls between two turns of the event loop, which clears cancelled timers in its own time
_WARM = 200


@dataclass(frozen=True)
class Settings:
    """How long to measure: *rounds* batches of about *batch* seconds for every contender."""

    rounds: int = 50
    batch: float = 0.02
    quick: bool = False
    peers_only: bool = False
    collect: bool = False


QUICK = {"rounds": 12, "batch": 0.004, "quick": True}


@dataclass
class Contender:
    """One way to make a call: *batch* makes n of them, or returns a coroutine that does."""

    name: str
    batch: Batch
    settle: Callable[[], object] | None = None
    size: int = _WARM
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Aim:
    """*ours* should cost at most *at_most* times *peer*."""

    ours: str
    at_most: float
    peer: str


@dataclass(frozen=True)
class Row:
    """Nanoseconds a call of one contender, over all rounds."""

    name: str
    mean: float
    median: float


class Group:
    """Contenders that are measured together, the aims among them, and the peer the ratios are shown against."""

    def __init__(self, title: str, reference: str, *aims: Aim) -> None:
        self.title = title
        self.reference = reference
        self.aims = aims
        self.least = _WARM
        self.contenders: list[Contender] = []
        self.missing: list[str] = []
        self.closers: list[Callable[[], object]] = []

    def add(self, name: str, make: Callable[[], Batch | Contender]) -> None:
        """Let *make* build a contender; where its library is not installed, go on without it."""
        try:
            made = make()
        except ModuleNotFoundError as error:
            peer_only(error)
            self.missing.append(name)
            return
        if not isinstance(made, Contender):
            made = Contender(name, made)
        made.name = name
        self.contenders.append(made)


def calls(fn: Callable[[], object]) -> Batch:
    """A batch of plain calls of *fn*."""

    def batch(n: int) -> None:
        for _ in repeat(None, n):
            fn()

    return batch


def acalls(fn: Callable[[], Awaitable[object]]) -> Batch:
    """A batch of awaited calls of *fn*, one after the other in one task."""

    async def batch(n: int) -> None:
        for done in range(0, n, BREATH):
            for _ in repeat(None, min(BREATH, n - done)):
                await fn()
            await asyncio.sleep(0)

    return batch


def keyed(fn: Callable[[str], object], keys: Sequence[str]) -> Batch:
    """A batch of plain calls of *fn*, with one key after the other."""
    turns = cycle(keys)

    def batch(n: int) -> None:
        for key in islice(turns, n):
            fn(key)

    return batch


def akeyed(fn: Callable[[str], Awaitable[object]], keys: Sequence[str]) -> Batch:
    """A batch of awaited calls of *fn*, with one key after the other."""
    turns = cycle(keys)

    async def batch(n: int) -> None:
        for done in range(0, n, BREATH):
            for key in islice(turns, min(BREATH, n - done)):
                await fn(key)
            await asyncio.sleep(0)

    return batch


def measure(build: Callable[[], Group], settings: Settings) -> tuple[Group, list[Row]]:
    """Build a group of plain contenders and time it; no event loop is running."""
    steps = _measure(build, settings)
    try:
        steps.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a plain contender waited for an event loop")


def ameasure(build: Callable[[], Group], settings: Settings) -> tuple[Group, list[Row]]:
    """Build and time a group inside one event loop; plain and awaited contenders may be mixed."""
    return asyncio.run(_measure(build, settings))


async def _measure(build: Callable[[], Group], settings: Settings) -> Any:
    group = build()
    for contender in group.contenders:
        await _calibrate(contender, group.least, settings)
    gc.collect()
    gc.freeze()
    order = list(group.contenders)
    chance = random.Random(0)
    try:
        for _ in range(settings.rounds):
            chance.shuffle(order)
            for contender in order:
                contender.seconds.append(await _time(contender, settings))
    finally:
        gc.unfreeze()
        for close in group.closers:
            close()
    return group, [_row(contender) for contender in group.contenders]


async def _calibrate(contender: Contender, least: int, settings: Settings) -> None:
    """Warm up, then choose the size of a batch: about as long as the settings say, and no fewer calls than *least*."""
    for _ in range(3):
        seconds = await _time(contender, settings)
        contender.size = max(least, int(contender.size * settings.batch / max(seconds, 1e-6)))


async def _time(contender: Contender, settings: Settings) -> float:
    gc.collect()
    if not settings.collect:
        gc.disable()
    try:
        start = process_time()
        pending = contender.batch(contender.size)
        if inspect.isawaitable(pending):
            await pending
        if contender.settle is not None:
            contender.settle()
        return process_time() - start
    finally:
        gc.enable()


def _row(contender: Contender) -> Row:
    each = [seconds / contender.size * 1e9 for seconds in contender.seconds]
    return Row(contender.name, statistics.fmean(each), statistics.median(each))
