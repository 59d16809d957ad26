"""One `tools/call` through Holdfast and through what else stands before MCP servers: how long, how much CPU, how many
requests to the server.

Contenders are processes of their own that are called in turn, call by call, in random order; medians of several rounds
count. What a contender adds is its median less that of the direct way in the same round.
"""

from __future__ import annotations

import gc
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench import mcp_load
from bench.disk import scratch
from bench.harness import Settings
from bench.mcp_client import HANDSHAKE, STATELESS, Line, Unusable
from bench.mcp_peers import (
    CONNECTED,
    DIRECT,
    FASTMCP,
    HTTP,
    OURS,
    QUICK,
    RELAY,
    SDK,
    STDIO,
    Scene,
    World,
    lines,
    slug,
    world,
)
from bench.report import Table, Verdict, at_most

RELAYS, MARGIN = 1.25, 0.2  # what stdio may add: so much of what the relay adds, and milliseconds
OF_CONNECTED = 0.5  # what HTTP may add, of what FastMCP with a connected client adds
OF_CPU = 1 / 3  # of FastMCP, the cheaper of the two
ROUNDS = 5
WARM = 20
FIRST = 100  # the number of the first call; those of the handshake are below


@dataclass(frozen=True)
class Plan:
    """A scene, and how many calls a round has; FastMCP with a session a call has its turn only every *rarely* calls."""

    scene: Scene
    calls: int
    rarely: int = 1


PLANS = (
    Plan(Scene(STDIO, STDIO, QUICK, HANDSHAKE), 200, 2),
    Plan(Scene(STDIO, STDIO, SDK, HANDSHAKE), 100, 2),
    Plan(Scene(STDIO, STDIO, SDK, STATELESS), 100, 2),
    Plan(Scene(HTTP, HTTP, QUICK, HANDSHAKE), 80, 16),
    Plan(Scene(HTTP, HTTP, SDK, HANDSHAKE), 60, 12),
    Plan(Scene(HTTP, HTTP, QUICK, STATELESS), 80, 16),
    Plan(Scene(HTTP, HTTP, SDK, STATELESS), 60, 12),
    Plan(Scene(STDIO, HTTP, QUICK, HANDSHAKE), 60, 12),
    Plan(Scene(HTTP, STDIO, QUICK, HANDSHAKE), 100, 2),
)
QUICKLY = (PLANS[0], PLANS[3])


def run(settings: Settings) -> Iterator[Table]:
    """One call at a time in every scene, then many at once, then the start."""
    with scratch() as folder, world(folder) as here:
        for number, plan in enumerate(QUICKLY if settings.quick else PLANS):
            table = _compare(plan, here, settings)
            if number == 0:
                table.notes.append(here.versions())
            yield table
        yield mcp_load.rates(here, settings)
        yield mcp_load.starts(here, settings)


@dataclass
class Contender:
    """One way to the server, and what its calls took."""

    name: str
    line: Line
    every: int
    last: int = FIRST
    seconds: list[list[float]] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    requests: float | None = None

    @property
    def cpu(self) -> float:
        """CPU seconds so far of what stands before the server."""
        return self.line.process.cpu if self.line.process is not None and self.name != DIRECT else 0.0

    def call(self) -> float:
        """Seconds that one more call took."""
        self.last += 1
        return self.line.call(self.last)

    def p50(self) -> float:
        """Milliseconds: of the medians of the rounds, the median."""
        return 1e3 * statistics.median(statistics.median(each) for each in self.seconds)

    def p99(self) -> float:
        """Milliseconds, of all calls."""
        every = [seconds for each in self.seconds for seconds in each]
        return 1e3 * statistics.quantiles(every, n=100, method="inclusive")[98]

    def added(self, direct: Contender) -> float | None:
        """Milliseconds more than *direct*, round by round, and of that the median."""
        if self is direct:
            return None
        pairs = zip(self.seconds, direct.seconds, strict=True)
        return 1e3 * statistics.median(statistics.median(mine) - statistics.median(its) for mine, its in pairs)

    def microseconds(self) -> float | None:
        """CPU a call, of what stands before the server."""
        return None if self.name == DIRECT else 1e6 * statistics.median(self.busy)


def _compare(plan: Plan, here: World, settings: Settings) -> Table:
    contenders, notes = _enter(plan, here, settings)
    try:
        for _ in range(WARM):
            for contender in contenders:
                contender.call()
        before = _counts(plan.scene, here)
        _interleave(contenders, 2 if settings.quick else ROUNDS, plan.calls, collect=settings.collect)
        after = _counts(plan.scene, here)
    finally:
        for contender in contenders:
            contender.line.close()
    for contender in contenders:
        path = slug(plan.scene, contender.name)
        if path in after:
            contender.requests = _requests(after[path] - before[path], contender)
    table = _table(plan.scene, contenders)
    table.notes += notes
    return table


def _enter(plan: Plan, here: World, settings: Settings) -> tuple[list[Contender], list[str]]:
    """Everybody who answers, and why the others do not: all are started before the first is waited for."""
    started: list[tuple[str, Line]] = []
    contenders, notes = [], []
    for name, start in lines(plan.scene, here).items():
        if name == OURS and settings.peers_only:
            continue
        try:
            started.append((name, start()))
        except Unusable as reason:
            notes.append(f"{name} is left out: {reason}")
    for name, line in started:
        try:
            line.greet()
        except Unusable as reason:
            notes.append(f"{name} is left out: {reason}")
            line.close()
        else:
            contenders.append(Contender(name, line, plan.rarely if name == FASTMCP else 1))
    return contenders, notes


def _interleave(contenders: Sequence[Contender], rounds: int, calls: int, *, collect: bool) -> None:
    order = list(contenders)
    chance = random.Random(0)
    for _ in range(rounds):
        gc.collect()
        if not collect:
            gc.disable()
        try:
            before = {contender.name: contender.cpu for contender in contenders}
            for contender in contenders:
                contender.seconds.append([])
            for turn in range(calls):
                chance.shuffle(order)
                for contender in order:
                    if turn % contender.every == 0:
                        contender.seconds[-1].append(contender.call())
            for contender in contenders:
                contender.busy.append((contender.cpu - before[contender.name]) / len(contender.seconds[-1]))
        finally:
            gc.enable()


def _counts(scene: Scene, here: World) -> dict[str, int]:
    return here.counts(scene.server) if scene.back == HTTP else {}


def _requests(more: int, contender: Contender) -> float:
    """Requests to the server a call; one in hundreds that keeps a stream open is none of a call."""
    return round(more / sum(len(each) for each in contender.seconds), 2)


def _table(scene: Scene, contenders: Sequence[Contender]) -> Table:
    by_name = {contender.name: contender for contender in contenders}
    direct = by_name[DIRECT]
    added = {contender.name: contender.added(direct) for contender in contenders}
    cpu = {contender.name: contender.microseconds() for contender in contenders}
    yardstick = RELAY if scene.front == scene.back == STDIO else CONNECTED
    cheaper = min((used for name in (FASTMCP, CONNECTED) if (used := cpu.get(name))), default=None)
    short = "x relay" if yardstick == RELAY else "x connected"
    counted = ("requests",) if scene.back == HTTP else ()
    head = ("p50 ms", "p99 ms", "added ms", short, "CPU µs", "x fastmcp", *counted)
    table = Table(str(scene), head)
    for name, contender in by_name.items():
        ratios = _over(added[name], added.get(yardstick)), _over(cpu[name], cheaper)
        row = (contender.p50(), contender.p99(), added[name], ratios[0], cpu[name], ratios[1])
        table.rows.append((name, *row, *((contender.requests,) if counted else ())))
    if yardstick == RELAY:
        table.verdicts.append(_near(added.get(OURS), added.get(RELAY)))
        table.notes.append(f"the aim: {RELAYS} x what the relay adds, and {MARGIN} ms")
    else:
        ratio = _over(added.get(OURS), added.get(CONNECTED))
        table.verdicts.append(at_most(f"{OURS} adds", ratio, OF_CONNECTED, f" x {CONNECTED}"))
    if scene.front != scene.back:
        table.notes.append(f"direct is over {scene.back}, as the server speaks")
    if counted:
        requests = by_name[OURS].requests if OURS in by_name else None
        table.verdicts.append(at_most(f"{OURS}, requests a call", requests, 1, ""))
    table.verdicts.append(at_most(f"{OURS}, CPU", _over(cpu.get(OURS), cheaper), OF_CPU, " x fastmcp"))
    return table


def _near(ours: float | None, relays: float | None) -> Verdict:
    limit = MARGIN if relays is None else RELAYS * max(0.0, relays) + MARGIN
    return at_most(f"{OURS} adds", ours if relays is not None else None, limit, " ms")


def _over(value: float | None, other: float | None) -> float | None:
    return None if value is None or not other else value / other
