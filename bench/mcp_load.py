"""What one stdio proxy can take, and what its start costs: calls a second on one core, and CPU until the first byte."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.harness import Settings
from bench.mcp_client import HANDSHAKE, Process, Stdio, Unusable, request
from bench.mcp_peers import CONNECTED, DIRECT, FASTMCP, OURS, QUICK, RELAY, STDIO, Scene, World, lines
from bench.report import Table, at_least, at_most

SCENE = Scene(STDIO, STDIO, QUICK, HANDSHAKE)
RATE = 2000  # calls a second
IN_FLIGHT = 64
CALLS = {DIRECT: 4000, RELAY: 4000, OURS: 4000, CONNECTED: 500}  # a round
START = 250  # CPU milliseconds
STARTS = {RELAY: 9, OURS: 9, FASTMCP: 3}
CAN_PIN = hasattr(os, "sched_setaffinity")


def rates(world: World, settings: Settings) -> Table:
    """Calls a second, many at once; each proxy has a core to itself, where the system can do that."""
    table = Table(f"stdio, {IN_FLIGHT} calls at once", ("calls/s", "least", "CPU µs"))
    took: dict[str, list[float]] = {}
    busy: dict[str, list[float]] = {}
    with _a_core_apart() as core:
        racers = _racers(world, settings, core, table.notes)
        for turn in range(1, 2 if settings.quick else 4):
            for name, line in racers.items():
                before = line.process.cpu
                took.setdefault(name, []).append(_flood(line, turn * 10_000, CALLS[name]) / CALLS[name])
                busy.setdefault(name, []).append((line.process.cpu - before) / CALLS[name])
        for line in racers.values():
            line.close()
    for name, each in took.items():
        cpu = None if name == DIRECT else 1e6 * statistics.median(busy[name])
        table.rows.append((name, 1 / statistics.median(each), 1 / max(each), cpu))
    rate = 1 / statistics.median(took[OURS]) if OURS in took else None
    table.verdicts.append(at_least(OURS, rate, RATE, " calls/s"))
    table.notes.append("a proxy on one core, client and server on the others" if CAN_PIN else "not held to one core")
    return table


def starts(world: World, settings: Settings) -> Table:
    """From the start of a process to the first byte of the server's answer; the first start of each is not counted."""
    cpu: dict[str, list[float]] = {}
    wall: dict[str, list[float]] = {}
    table = Table("start of a stdio proxy, ms", ("CPU", "most", "until then"))
    for turn in range(max(STARTS.values()) + 1):
        for name, start in _starters(world, settings, STARTS).items():
            if turn > (2 if settings.quick else STARTS[name]):
                continue
            begun = time.perf_counter()
            try:
                used = _first_byte(start())
            except Unusable as reason:
                table.notes.append(f"{name} is left out: {reason}")
                continue
            if turn:
                cpu.setdefault(name, []).append(1e3 * used)
                wall.setdefault(name, []).append(1e3 * (time.perf_counter() - begun))
    for name, each in cpu.items():
        table.rows.append((name, statistics.median(each), max(each), statistics.median(wall[name])))
    ours = statistics.median(cpu[OURS]) if OURS in cpu else None
    table.verdicts.append(at_most(f"{OURS}, before the first byte", ours, START, " ms of CPU"))
    return table


def _starters(world: World, settings: Settings, names: dict[str, int]) -> dict[str, Callable[[], Stdio]]:
    every = lines(SCENE, world)
    return {name: every[name] for name in names if not (name == OURS and settings.peers_only)}  # type: ignore[misc]


def _first_byte(line: Stdio) -> float:
    """CPU seconds of the process until the server's first byte came through it."""
    try:
        line.send(request("initialize", 0, SCENE.era) + b"\n")
        line.rest = os.read(line.source, 1)
        used = line.process.cpu
        line.line()  # the whole answer, or why there is none
        return used
    finally:
        line.close()


def _racers(world: World, settings: Settings, core: int | None, notes: list[str]) -> dict[str, Stdio]:
    """Those who answer, warm, each proxy on *core*."""
    racers = {}
    for name, start in _starters(world, settings, CALLS).items():
        try:
            line = start()
            line.greet()
            if core is not None and name != DIRECT:
                _pin(line.process, core)
            _flood(line, 1000, CALLS[name] // 10)
        except Unusable as reason:
            notes.append(f"{name} is left out: {reason}")
        else:
            racers[name] = line
    return racers


def _flood(line: Stdio, first: int, calls: int) -> float:
    """Seconds for so many calls, of which a number is always under way."""
    frames = [request("tools/call", first + n, SCENE.era) + b"\n" for n in range(calls)]
    heard = []
    sent = IN_FLIGHT
    missing = calls
    start = time.perf_counter()
    os.write(line.sink, b"".join(frames[:sent]))
    while missing:
        chunk = os.read(line.source, 1 << 16)
        if not chunk:
            raise Unusable(line.process.last_words())
        heard.append(chunk)
        answered = chunk.count(b"\n")
        missing -= answered
        if more := frames[sent : sent + answered]:
            os.write(line.sink, b"".join(more))
            sent += answered
    took = time.perf_counter() - start
    said = b"".join(heard)
    if b'"isError":true' in said or not all(b"hello %d" % (first + n) in said for n in (0, calls // 2, calls - 1)):
        raise AssertionError(f"not every call was answered: {said[-500:]!r}")
    return took


@contextmanager
def _a_core_apart() -> Iterator[int | None]:
    """A core that we and our children leave to those who are put there, if there is more than one."""
    if not CAN_PIN:
        yield None
        return
    every = os.sched_getaffinity(0)
    core = min(every)
    os.sched_setaffinity(0, every - {core} or every)
    try:
        yield core
    finally:
        os.sched_setaffinity(0, every)


def _pin(process: Process, core: int) -> None:
    """Its threads, and with them those that they start; not the server behind it, which is there already."""
    for thread in os.listdir(f"/proc/{process.popen.pid}/task"):
        os.sched_setaffinity(int(thread), {core})
