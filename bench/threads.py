"""Eight threads through one circuit: how many calls a second, and whether a lock is held while the tool works."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

from bench import ours, peers
from bench.harness import Contender, Group, Settings, calls
from bench.peers import noop
from bench.report import Table, at_least

THREADS = 8
WORK = 0.005  # seconds a call of the tool that waits
OURS = "holdfast breaker"
TOOL = "holdfast breaker+tracker"
STACK = "holdfast breaker+rate+concurrency+tracker"
_FASTEST = THREADS / WORK


def run(settings: Settings) -> list[Table]:
    """A tool that does nothing, then one that waits."""
    return [_rates(settings), _waiting(settings)]


def _rates(settings: Settings) -> Table:
    each = 10_000 if settings.quick else 25_000
    table, rates = _compare("8 threads, a tool that does nothing", noop, each, settings)
    table.verdicts.append(at_least(OURS, rates.get(OURS), 1_000_000, " calls/s"))
    return table


def _waiting(settings: Settings) -> Table:
    each = 10 if settings.quick else 40
    table, rates = _compare("8 threads, a tool that waits 5 ms", _wait, each, settings)
    table.verdicts.append(at_least(OURS, rates.get(OURS), 0.9 * _FASTEST, " calls/s"))
    table.notes.append(f"{_FASTEST:,.0f} is the most there can be; {_FASTEST / THREADS:,.0f} means one call at a time")
    return table


def _compare(title: str, fn: Callable[[], None], each: int, settings: Settings) -> tuple[Table, dict[str, float]]:
    """Calls a second of every breaker, in turn, by the wall clock and by the CPU time of the process."""
    group = _build(title, fn, settings)
    seen: dict[str, list[tuple[float, float]]] = {contender.name: [] for contender in group.contenders}
    for _ in range(3 if settings.quick else 9):
        for contender in group.contenders:
            seen[contender.name].append(_race(contender, each))
    for close in group.closers:
        close()
    table = Table(title, ("calls/s", "median", "calls/CPU s"))
    for name, pairs in seen.items():
        total = THREADS * each
        wall, busy = (statistics.fmean(times) for times in zip(*pairs, strict=True))
        table.rows.append((name, total / wall, total / statistics.median(wall for wall, _ in pairs), total / busy))
    return table, {name: rate for name, rate, *_ in table.rows}


def _build(title: str, fn: Callable[[], None], settings: Settings) -> Group:
    group = Group(title, "circuitbreaker")
    group.add("bare call", lambda: calls(fn))
    group.add("circuitbreaker", lambda: calls(peers.by_circuitbreaker(fn)))
    group.add("purgatory", lambda: calls(peers.by_purgatory(fn)))
    group.add("nopanic", lambda: calls(peers.by_nopanic(fn)))
    group.add("pybreaker", lambda: calls(peers.by_pybreaker(fn)))
    if not settings.peers_only:
        group.add(OURS, lambda: ours.protected(fn, calls))
        group.add(TOOL, lambda: ours.tool(group, fn, calls, breaker=ours.BREAKER))
        group.add(STACK, lambda: ours.tool(group, fn, calls, **ours.STACK))
    return group


def _race(contender: Contender, each: int) -> tuple[float, float]:
    """Seconds and CPU seconds from the start of the threads' work to the end of the last one's."""
    ready = threading.Barrier(THREADS + 1)

    def work() -> None:
        ready.wait()
        contender.batch(each)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    ready.wait()
    start, busy = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    if contender.settle is not None:
        contender.settle()
    return time.perf_counter() - start, time.process_time() - busy


def _wait() -> None:
    time.sleep(WORK)
