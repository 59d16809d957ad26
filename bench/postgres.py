"""Durable steps a second on one PostgreSQL, each committed before the next begins: one run and many at once.

As `durable` does it on SQLite: contenders are processes of their own with a database of their own, and race in turn;
aims are judged by the medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.servers import Missing, PostgresServer

from bench.disk import described, scratch
from bench.durable import OURS, TOOL, Racer, Size
from bench.fleet_scale import spent
from bench.harness import Settings
from bench.postgres_peers import versions
from bench.report import Table, at_least

EACH = "one statement and commit a step"
BARE = "bare group commit"
PEERS = {"langgraph": "langgraph", "dbos": "dbos"}
AIMS = {1: 5, 64: 20}  # times DBOS

SIZES = (Size(1, 200, 5), Size(16, 25, 3), Size(64, 20, 3))
QUICK = (Size(1, 50, 3), Size(64, 10, 1))


def run(settings: Settings) -> Iterator[Table]:
    """Functions, one thread a run; then coroutines, one task a run."""
    with scratch() as folder:
        folder.chmod(0o711)  # the server may run as another user
        for kind, prefix in (("function", ""), ("coroutine", "a")):
            try:
                # A server for each kind: what the first has left to vacuum would be done in the second one's time.
                server = PostgresServer.start(folder / f"{prefix}postgres")
            except Missing as error:
                yield Table("on PostgreSQL", (), notes=[f"no server: {error}"])
                return
            with server:
                yield from _tables(kind, prefix, server, folder, settings)


def _tables(kind: str, prefix: str, server: PostgresServer, folder: Path, settings: Settings) -> Iterator[Table]:
    with ExitStack() as stack:
        racers = _enter(stack, server, folder, prefix, settings)
        for racer in racers:
            racer.race(1, 20)  # not counted
        sizes = QUICK if settings.quick else SIZES
        for size in sizes:
            table = _compare(kind, size, racers, server)
            if size is sizes[-1]:
                table.notes += [versions(), f"{_about(server)}; {described(folder)}"]
            yield table


def _enter(stack: ExitStack, server: PostgresServer, folder: Path, prefix: str, settings: Settings) -> list[Racer]:
    """Start everybody that is installed, each with a new database."""
    functions = {name: f"bench.postgres_peers:{prefix}{function}" for name, function in PEERS.items()}
    if not prefix:
        functions[EACH] = "bench.postgres_floor:each"
    functions[BARE] = f"bench.postgres_floor:{prefix}steps"
    if not settings.peers_only:
        functions[OURS] = f"bench.postgres_peers:{prefix}steps"
        functions[TOOL] = f"bench.postgres_peers:{prefix}tools"
    racers = []
    for number, (name, function) in enumerate(functions.items()):
        file = folder / f"{prefix}{number}.url"
        file.write_text(server.database())
        racers.append(Racer(name, function, file))
        stack.callback(racers[-1].close)
    return [racer for racer in racers if _ready(racer)]


def _ready(racer: Racer) -> bool:
    missing = racer.answer().get("missing")
    if missing is not None and racer.name not in PEERS:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
    return missing is None


def _compare(kind: str, size: Size, racers: Sequence[Racer], server: PostgresServer) -> Table:
    took: dict[str, list[tuple[float, float, float]]] = {racer.name: [] for racer in racers}
    for _ in range(size.rounds):
        for racer in racers:
            before = spent(server.pids)
            told = racer.race(*size.of(racer.name))
            took[racer.name].append((told["seconds"], told["busy"], spent(server.pids) - before))
    steps = size.runs * size.steps
    medians = {name: [statistics.median(each) for each in zip(*races, strict=True)] for name, races in took.items()}
    rates = {name: steps / seconds for name, (seconds, _, _) in medians.items()}
    runs = "1 run" if size.runs == 1 else f"{size.runs:,} runs at once"
    head = ("steps/s", "CPU µs", "server's CPU µs", "x langgraph", "x dbos")
    table = Table(f"on PostgreSQL, {kind}, {runs}", head)
    for name, (_, busy, served) in medians.items():
        over = [rates[name] / rates[peer] if peer in rates else None for peer in PEERS]
        table.rows.append((name, rates[name], 1e6 * busy / steps, 1e6 * served / steps, *over))
    if size.runs in AIMS:
        ratio = rates[OURS] / rates["dbos"] if OURS in rates and "dbos" in rates else None
        table.verdicts.append(at_least(OURS, ratio, AIMS[size.runs], " x dbos"))
    return table


def _about(server: PostgresServer) -> str:
    """Its version, and what it does at a commit."""
    import psycopg

    with psycopg.connect(server.url) as connection:
        names = ("fsync", "synchronous_commit")
        shown = [connection.execute(f"SHOW {name}".encode()).fetchone() for name in names]
        settings = [f"{name} {row[0] if row else '?'}" for name, row in zip(names, shown, strict=True)]
        return ", ".join([f"PostgreSQL {connection.info.server_version // 10_000}", *settings])
