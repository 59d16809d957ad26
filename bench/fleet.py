"""One decision on a shared Redis: how long it takes, how many round trips, and how many a second from 64 coroutines.

All contenders are on one server and in one process, and make short batches in random order, by the wall clock. Round
trips are counted by the server.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from tests.servers import Missing, RedisServer

from bench import fleet_floor as floor
from bench import fleet_ours as ours
from bench import fleet_peers as peers
from bench.fleet_peers import Made, Make
from bench.harness import Settings
from bench.peers import peer_only
from bench.report import Table, Verdict, at_least, at_most

TOGETHER = floor.TOGETHER
LONG = 2  # batches here wait more than they work, so they are that much longer

SCRIPTS = ("evalsha", "eval")
OTHERS = ("info", "ping")  # our own question, and signs of life

OF_THE_BEST = 0.5  # aims
A_SECOND = 50_000
LEASED_NS = 1500
# Told off the caller's path, by the thread that is there for it, if no question comes by in time to take it along.
ROUND_TRIPS = (0.99, 1.1)


@dataclass
class Racer:
    """A contender; *took* has nanoseconds a decision, *batches* have decisions, seconds and CPU seconds."""

    name: str
    made: Made
    size: int = 32
    took: list[int] = field(default_factory=list)
    batches: list[tuple[int, float, float]] = field(default_factory=list)
    sent: int = 0

    @property
    def trips(self) -> float:
        """Commands sent for a decision."""
        return self.sent / sum(n for n, _, _ in self.batches)

    @property
    def p50(self) -> float:
        return statistics.median(self.took) / 1000

    @property
    def p99(self) -> float:
        return sorted(self.took)[len(self.took) * 99 // 100] / 1000

    @property
    def rate(self) -> float:
        """Decisions a second, the median of all batches."""
        return statistics.median(n / seconds for n, seconds, _ in self.batches)

    @property
    def busy(self) -> float:
        """Microseconds of CPU a decision, of this process alone."""
        return statistics.median(busy / n for n, _, busy in self.batches) * 1e6

    @property
    def mean(self) -> float:
        """Nanoseconds a decision within a batch, the median of all batches."""
        return 1e9 / self.rate


Batch = Callable[[Made, int, list[int]], Any]


def run(settings: Settings) -> Iterator[Table]:
    """Functions, coroutines one by one, 64 coroutines at once, and the modes that do not ask for each call."""
    try:
        server = RedisServer.start()
    except Missing as error:
        yield Table("decisions on Redis", (), notes=[f"no server: {error}"])
        return
    with server:
        yield from _tables(server, settings, with_ours=not settings.peers_only)


def _tables(server: RedisServer, settings: Settings, *, with_ours: bool) -> Iterator[Table]:
    plain = {**floor.plain(ours=with_ours), **peers.plain()}
    awaited = {**floor.awaited(ours=with_ours), **peers.awaited()}
    if with_ours:
        plain |= ours.exact(awaited=False)
        awaited |= ours.exact(awaited=True)
    yield _one_by_one("function", asyncio.run(_race(server, plain, _calls, settings)))
    yield _one_by_one("coroutine", asyncio.run(_race(server, awaited, _acalls, settings)))
    together = asyncio.run(_race(server, awaited, _together, settings))
    yield _at_once(together, _most(server, with_ours), server)
    if with_ours:
        kinds: dict[str, tuple[bool, Batch]] = {
            "function": (False, _bulk),
            "coroutine": (True, _abulk),
            f"{TOGETHER} coroutines": (True, _bulk_together),
        }
        yield _ahead(
            {
                kind: asyncio.run(_race(server, ours.ahead(awaited=awaits), batch, settings))
                for kind, (awaits, batch) in kinds.items()
            }
        )


# -- racing ------------------------------------------------------------------------------------------------------------


async def _race(server: RedisServer, makes: dict[str, Make], batch: Batch, settings: Settings) -> list[Racer]:
    racers = [racer for name, make in makes.items() if (racer := _enter(name, make, server.url)) is not None]
    chance = random.Random(0)
    try:
        for racer in racers:
            await _calibrate(racer, batch, settings)
        gc.collect()
        gc.freeze()
        order = list(racers)
        for _ in range(settings.rounds):
            chance.shuffle(order)
            for racer in order:
                before = _counts(server)
                racer.batches.append(await _time(racer, batch, settings))
                racer.sent += _sent(racer.name, before, _counts(server))
    finally:
        gc.unfreeze()
        for racer in racers:
            await _done(racer.made.close())
    return racers


def _enter(name: str, make: Make, url: str) -> Racer | None:
    try:
        return Racer(name, make(url))
    except ModuleNotFoundError as error:
        if error.name not in peers.CLIENTS.values():
            peer_only(error)
        return None


async def _calibrate(racer: Racer, batch: Batch, settings: Settings) -> None:
    wanted = LONG * settings.batch
    for _ in range(3):
        _, seconds, _ = await _time(racer, batch, settings)
        a_decision = seconds / racer.size
        # Whole turns of all coroutines, so that each makes as many.
        racer.size = max(TOGETHER, int(wanted / a_decision) // TOGETHER * TOGETHER)
    racer.took.clear()


async def _time(racer: Racer, batch: Batch, settings: Settings) -> tuple[int, float, float]:
    gc.collect()
    if not settings.collect:
        gc.disable()
    try:
        busy, start = time.process_time(), time.perf_counter()
        await _done(batch(racer.made, racer.size, racer.took))
        racer.made.settle()
        return racer.size, time.perf_counter() - start, time.process_time() - busy
    finally:
        gc.enable()


def _calls(made: Made, n: int, took: list[int]) -> None:
    decide, clock, append = made.decide, time.perf_counter_ns, took.append
    last = clock()
    for _ in repeat(None, n):
        decide()
        now = clock()
        append(now - last)
        last = now


async def _acalls(made: Made, n: int, took: list[int]) -> None:
    decide, clock, append = made.decide, time.perf_counter_ns, took.append
    last = clock()
    for _ in repeat(None, n):
        await decide()
        now = clock()
        append(now - last)
        last = now


async def _together(made: Made, n: int, took: list[int]) -> None:
    await asyncio.gather(*(_acalls(made, n // TOGETHER, took) for _ in range(TOGETHER)))


def _bulk(made: Made, n: int, took: list[int]) -> None:
    """Not timed one by one: to look at the clock costs a tenth of such a call."""
    decide = made.decide
    for _ in repeat(None, n):
        decide()


async def _abulk(made: Made, n: int, took: list[int]) -> None:
    decide = made.decide
    for _ in repeat(None, n):
        await decide()


async def _bulk_together(made: Made, n: int, took: list[int]) -> None:
    """With a turn of the loop between any two calls, or they would be made one after the other."""

    async def some() -> None:
        decide = made.decide
        for _ in repeat(None, n // TOGETHER):
            await decide()
            await asyncio.sleep(0)

    await asyncio.gather(*(some() for _ in range(TOGETHER)))


async def _done(pending: Any) -> None:
    if inspect.isawaitable(pending):
        await pending


def _most(server: RedisServer, with_ours: bool) -> dict[str, float]:
    """Decisions a second of the server, asked by one who waits for nothing: about as many as it can make."""
    rates = {}
    questions = {"token bucket": floor.bucket} | ({"our script": floor.our_question} if with_ours else {})
    for name, question in questions.items():
        made = floor.piped(server.url, question(server.url))
        took: list[int] = []
        _calls(made, 200, took)
        made.close()
        rates[name] = TOGETHER * 1e9 / statistics.median(took)
    return rates


# -- round trips -------------------------------------------------------------------------------------------------------


def _sent(name: str, before: dict[str, int], after: dict[str, int]) -> int:
    """Commands of a contender. The server counts those inside of scripts too; who sends scripts sends nothing else."""
    made = {name: count - before.get(name, 0) for name, count in after.items() if name not in OTHERS}
    return sum(made.values() if name in peers.NO_SCRIPTS else [made.get(script, 0) for script in SCRIPTS])


def _counts(server: RedisServer) -> dict[str, int]:
    stats = server.command("INFO", "commandstats")
    assert isinstance(stats, bytes)
    counts = {}
    for line in stats.decode().splitlines():
        name, found, facts = line.removeprefix("cmdstat_").partition(":calls=")
        if found:
            counts[name] = int(facts.partition(",")[0])
    return counts


# -- tables ------------------------------------------------------------------------------------------------------------


def _one_by_one(kind: str, racers: Sequence[Racer]) -> Table:
    by_name = {racer.name: racer for racer in racers}
    best = _best(racers, lambda racer: -racer.p50)
    table = Table(f"one decision on Redis, {kind}", ("p50 µs", "p99 µs", "CPU µs", "round trips", "x best limiter"))
    for racer in racers:
        table.rows.append(
            (racer.name, racer.p50, racer.p99, racer.busy, racer.trips, racer.p50 / best.p50 if best else None)
        )
    exact = _exact(by_name)
    ratio = exact.p50 / best.p50 if exact and best else None
    if kind == "coroutine":
        table.verdicts.append(at_most(f"{ours.EXACT}, p50", ratio, OF_THE_BEST, f" x {best.name if best else 'any'}"))
    table.verdicts += _asked_once(by_name)
    return table


def _at_once(racers: Sequence[Racer], most: dict[str, float], server: RedisServer) -> Table:
    by_name = {racer.name: racer for racer in racers}
    best = _best(racers, lambda racer: racer.rate)
    title = f"decisions on Redis, {TOGETHER} coroutines"
    table = Table(title, ("a second", "p50 µs", "p99 µs", "CPU µs", "round trips", "x best limiter"))
    for racer in racers:
        ratio = racer.rate / best.rate if best else None
        table.rows.append((racer.name, racer.rate, racer.p50, racer.p99, racer.busy, racer.trips, ratio))
    exact = _exact(by_name)
    table.verdicts.append(at_least(ours.EXACT, exact.rate if exact else None, A_SECOND, " decisions a second"))
    table.verdicts += _asked_once(by_name)
    for name, rate in most.items():
        table.notes.append(f"the server alone, {name}, {TOGETHER} sent together: {rate:,.0f} a second")
    table.notes += [f"{_version(server)} on the same machine; CPU is that of the asking process", peers.versions()]
    return table


def _ahead(races: dict[str, list[Racer]]) -> Table:
    table = Table("a call without a round trip", ("ns", "CPU ns", "round trips"))
    for kind, racers in races.items():
        for racer in racers:
            table.rows.append((f"{racer.name}, {kind}", racer.mean, 1000 * racer.busy, racer.trips))
            if racer.name == ours.LEASED and kind in ("function", "coroutine"):
                table.verdicts.append(at_most(f"{racer.name}, {kind}", racer.mean, LEASED_NS, " ns"))
    table.notes.append("by the wall clock, with the round trips that lease the next tokens")
    table.notes.append(f"with {TOGETHER} coroutines a turn of the event loop is in each call")
    return table


def _exact(by_name: dict[str, Racer]) -> Racer | None:
    """Ours, if it was the fleet that decided: local guards are quick."""
    racer = by_name.get(ours.EXACT)
    return racer if racer is not None and racer.trips >= ROUND_TRIPS[0] else None


def _asked_once(by_name: dict[str, Racer]) -> list[Verdict]:
    """One round trip a decision, and not none: then local guards would have decided."""
    verdicts = []
    least, most = ROUND_TRIPS
    for name in (ours.EXACT, ours.TWO, ours.COUNTED):
        if (racer := by_name.get(name)) is not None:
            text = f"{name}, round trips: {racer.trips:.3f} (aim: 1, and what is told off the path: at most {most})"
            verdicts.append(Verdict(text, least <= racer.trips <= most))
    return verdicts


def _best(racers: Sequence[Racer], by: Callable[[Racer], float]) -> Racer | None:
    """The best peer that only limits."""
    return max((racer for racer in racers if racer.name in peers.LIMITERS), key=by, default=None)


def _version(server: RedisServer) -> str:
    about = server.command("INFO", "server")
    assert isinstance(about, bytes)
    facts = dict(line.partition(":")[::2] for line in about.decode().splitlines())
    name = facts.get("server_name", "redis").capitalize()
    return f"{name} {facts.get('valkey_version', facts.get('redis_version', '?'))}"
