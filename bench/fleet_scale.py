"""What one Redis and one PostgreSQL carry when more and more processes share them, and what that costs the server.

Servers and processes are on one machine and take each other's CPU: what a server carries by itself is shown by what it
made in a second of its own CPU.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.servers import Missing, PostgresServer, RedisServer

from bench.disk import CHECKOUT, described, scratch
from bench.harness import Settings
from bench.report import Table

DECIDING = 64  # coroutines of a process
RUNNING = 16  # runs at once of a process
PROCESSES = (1, 2, 4, 8)
SECONDS = 3.0


def run(settings: Settings) -> Iterator[Table]:
    """One table a server."""
    if settings.peers_only:
        return
    seconds = SECONDS / 3 if settings.quick else SECONDS
    processes = (1, 4) if settings.quick else PROCESSES
    try:
        with RedisServer.start() as redis:
            yield _redis(redis, processes, seconds)
        with scratch() as folder:
            folder.chmod(0o711)  # the server may run as another user
            with PostgresServer.start(folder / "postgres") as postgres:
                yield _postgres(postgres, processes, seconds, described(folder))
    except Missing as error:
        yield Table("what one server carries", (), notes=[f"no server: {error}"])


def spent(pids: Sequence[int]) -> float:
    """CPU seconds of these processes, and of those that they started and that have ended; 0 where there is no /proc."""
    ticks = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile: then it is in its parent's
            after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, after[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _redis(server: RedisServer, processes: Sequence[int], seconds: float) -> Table:
    head = ("a second", "clients' cores", "server's cores", "a CPU s of it", "round trips")
    table = Table("decisions on one Redis", head)
    for kind, text in (("exact", "exact"), ("leased", "leased"), ("piped", "our script, nobody waiting")):
        for count in processes if kind != "piped" else processes[:1]:
            before, asked = spent([server.pid]), scripts(server)
            told = _race(count, kind, server.url, DECIDING if kind != "piped" else 1, seconds)
            trips = (scripts(server) - asked) / sum(each["made"] for each in told)
            took = max(each["seconds"] for each in told)
            table.rows.append((_named(text, count), *_facts(told, took, spent([server.pid]) - before), trips))
    table.notes.append(f"one tool; {DECIDING} coroutines a process, {os.cpu_count()} cores for all and the server")
    table.notes.append("exact with less than one round trip: the server was late, and local guards decided")
    return table


def scripts(server: RedisServer) -> int:
    """Scripts that the server has run."""
    stats = server.command("INFO", "commandstats")
    assert isinstance(stats, bytes)
    found = re.search(rb"cmdstat_evalsha:calls=(\d+)", stats)
    return int(found[1]) if found else 0


def _postgres(server: PostgresServer, processes: Sequence[int], seconds: float, disk: str) -> Table:
    head = ("steps/s", "clients' cores", "server's cores", "a CPU s of it", "events/s", "WAL bytes a step")
    table = Table("durable steps on one PostgreSQL", head)
    url = server.database()
    for count in processes:
        before, (events, wal) = spent(server.pids), _written(url)
        told = _race(count, "steps", url, RUNNING, seconds)
        after, took = _written(url), max(each["seconds"] for each in told)
        made = sum(each["made"] for each in told)
        facts = _facts(told, took, spent(server.pids) - before)
        table.rows.append((_named("steps", count), *facts, (after[0] - events) / took, (after[1] - wal) / made))
    table.notes.append(f"{RUNNING} runs at once a process, each step committed before the next; {disk}")
    return table


def _named(text: str, count: int) -> str:
    return f"{text}, {count} process{'es' if count > 1 else ''}"


def _facts(told: Sequence[dict[str, Any]], took: float, served: float) -> tuple[float, float, float, float | None]:
    made = sum(each["made"] for each in told)
    return made / took, sum(each["busy"] for each in told) / took, served / took, made / served if served else None


def _race(count: int, kind: str, url: str, tasks: int, seconds: float) -> list[dict[str, Any]]:
    """What each of *count* processes made in about the same *seconds*."""
    command = [sys.executable, "-m", "bench.fleet_child", kind, url, str(tasks), str(seconds)]
    with ExitStack() as stack:
        children = []
        for _ in range(count):
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT)
            stack.callback(_end, child)
            children.append(child)
        for child in children:
            _answer(child)
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        return [_answer(child) for child in children]


def _answer(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError("a process has ended: see above")
    return dict(json.loads(line))


def _end(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.close()
    try:
        child.wait(30)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    child.stdout.close()


def _written(url: str) -> tuple[int, int]:
    """Events there are, and bytes of the log of transactions."""
    import psycopg

    with psycopg.connect(url) as connection:
        table = connection.execute("SELECT to_regclass('holdfast.events')").fetchone()
        events = connection.execute("SELECT count(*) FROM holdfast.events").fetchone() if table and table[0] else (0,)
        log = connection.execute("SELECT (pg_current_wal_lsn() - '0/0')::bigint").fetchone()
    assert events is not None
    assert log is not None
    return int(events[0]), int(log[0])
