"""Runs seen from another process: how soon a follower, a cancelled coroutine and the mourner of a dead owner know.

All of it on SQLite with `synchronous=FULL`, in real processes, by the wall clock.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.disk import CHECKOUT, scratch
from bench.harness import Settings
from bench.report import Table, Verdict, at_most

NOTIFIED = sys.platform == "linux"  # where the system says that a file has changed; elsewhere we look now and then
FOLLOW = 3.0 if NOTIFIED else 30.0
CANCEL = 50.0
DEATH = 100.0
SILENT = 1.0  # CPU milliseconds a second that count as none: looking at the clocks costs a part of it


def run(settings: Settings) -> Iterator[Table]:
    """Following, cancelling, dying, and doing nothing."""
    if settings.peers_only:
        return
    with scratch() as folder:
        yield _latencies(folder, settings)
        yield _silence(folder)


class Other:
    """Another process, in one of the roles of `live_child`."""

    def __init__(self, role: str, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.live_child", role, str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT,
        )  # fmt: skip

    def hear(self) -> Any:
        """The next thing that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the other process has ended with {self.process.wait()}")
        return json.loads(line)

    def tell(self, line: str = "") -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


@contextmanager
def other(role: str, path: Path) -> Iterator[Other]:
    """Another process, ended afterwards."""
    process = Other(role, path)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.communicate()


def _latencies(folder: Path, settings: Settings) -> Table:
    times = 40 if settings.quick else 200
    followed = _followed(folder / "follow.db", times)
    cancelled = _cancelled(folder / "cancel.db", times)
    died = _died(folder / "death.db", 3 if settings.quick else 12)
    table = Table("seen from another process, ms", ("p50", "p99", "most"))
    for name, waits in (
        ("follow: commit to the follower", followed),
        ("cancel: to the running coroutine", cancelled),
        ("SIGKILL: to `interrupted`", died),
    ):
        table.rows.append((name, statistics.median(waits), _p99(waits), max(waits)))
    table.verdicts += [
        at_most("follow, p50", statistics.median(followed), FOLLOW, " ms"),
        at_most("cancel, p99", _p99(cancelled), CANCEL, " ms"),
        at_most("a dead owner, at most", max(died), DEATH, " ms"),
    ]
    table.notes.append(f"{times} events, {times} cancels, {len(died)} deaths; the commit itself is in all of them")
    return table


def _followed(path: Path, times: int) -> list[float]:
    """Milliseconds from the call of `commit` there to the event here."""
    import holdfast

    waits = []
    pauses = random.Random(0)
    with other("writes", path) as writer, holdfast.open(path, policies={}) as hf:
        run_id = writer.hear()
        seen = hf.runs.follow(run_id)
        next(seen)  # that the run has started
        for _ in range(times):
            timer = threading.Timer(pauses.uniform(0.002, 0.02), writer.tell)  # while the follower is asleep
            timer.start()
            event = next(seen)
            waits.append(1e3 * (time.monotonic() - event.payload["at"]))
            writer.hear()
        seen.close()
    return waits


def _cancelled(path: Path, times: int) -> list[float]:
    """Milliseconds from the call of `cancel` here to the end of the wait there."""
    import holdfast

    waits = []
    pauses = random.Random(0)
    with other("aowns", path) as owner, holdfast.open(path, policies={}) as hf:
        for _ in range(times):
            run_id = owner.hear()
            time.sleep(pauses.uniform(0.002, 0.02))
            start = time.monotonic()
            hf.runs.handle(run_id).cancel("enough")
            waits.append(1e3 * (owner.hear() - start))
            owner.tell()
    return waits


def _died(path: Path, times: int) -> list[float]:
    """Milliseconds from the signal to a snapshot that says so."""
    import holdfast

    waits = []
    with holdfast.open(path, policies={}) as hf:
        for _ in range(times):
            with other("owns", path) as owner:
                run_id = owner.hear()
                if hf.runs.snapshot(run_id).interrupted:
                    raise AssertionError("interrupted while its owner lives")
                start = time.monotonic()
                os.kill(owner.process.pid, signal.SIGKILL)
                while not hf.runs.snapshot(run_id).interrupted:
                    time.sleep(0.0005)
                waits.append(1e3 * (time.monotonic() - start))
    return waits


def _silence(folder: Path) -> Table:
    """A second in which nothing happens, of a follower and of a process that had runs."""
    path = folder / "silence.db"
    with other("owns", path) as owner, other("follows", path) as follower:
        follower.tell(owner.hear())
        following = follower.hear()
    with other("rests", folder / "rest.db") as idle:
        resting = idle.hear()
    table = Table("one second of silence", ("CPU ms", "wake-ups", "threads"))
    table.rows += [
        ("follower in another process", following["busy_ms"], following["woken"], None),
        ("after the last run", resting["busy_ms"], resting["woken"], len(resting["threads"])),
    ]
    table.verdicts += [
        at_most("follower, CPU", following["busy_ms"], SILENT, " ms a second"),
        at_most("follower, wake-ups", following["woken"], 0, " a second"),
        at_most("after the last run, CPU", resting["busy_ms"], SILENT, " ms a second"),
        at_most("after the last run, wake-ups", resting["woken"], 0, " a second"),
        Verdict(f"after the last run, threads: {', '.join(resting['threads']) or 'none'}", not resting["threads"]),
    ]
    return table


def _p99(waits: Sequence[float]) -> float:
    return statistics.quantiles(waits, n=100, method="inclusive")[98]
