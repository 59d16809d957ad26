"""Durable steps a second, each on disk before the next begins: one run and many at once, functions and coroutines.

Contenders are processes of their own that race in turn, round after round; aims are judged by the medians.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.disk import CHECKOUT, commits, described, scratch
from bench.durable_floor import Floor
from bench.durable_peers import versions
from bench.harness import Settings
from bench.report import Table, Verdict, at_least, at_most

OURS = "holdfast"  # `run.step`: a remembered call and nothing else, as a peer's step is
TOOL = "holdfast guarded tool"
BARE = "bare group commit"  # the floor with callers who wait
FLOOR = "the same rows, nobody waiting"
PEERS = {"langgraph": "langgraph", "dbos": "dbos", "dbos on WAL": "dbos_wal"}
AIMS = {1: {"langgraph": 4, "dbos": 8}, 64: {"langgraph": 15, "dbos": 25}}
OF_THE_FLOOR = 0.6
BYTES = 700
WEIGHED = 1000  # steps of the run whose file is weighed


@dataclass(frozen=True)
class Size:
    """How much a race is: *runs* at once of *steps* each. A peer has fewer runs where it would take too long."""

    runs: int
    steps: int
    rounds: int
    peers: int = 0

    def of(self, name: str) -> tuple[int, int]:
        """Runs and steps of a contender."""
        return (self.peers if self.peers and name in PEERS else self.runs), self.steps


NEW = Size(1, 100, 1)  # the first steps of a process, in a file that is new
SIZES = (Size(1, 200, 15), Size(16, 25, 3), Size(64, 20, 5), Size(1000, 5, 3, peers=100))
QUICK = (Size(1, 60, 3), Size(64, 10, 1))


def run(settings: Settings) -> Iterator[Table]:
    """Functions, one thread a run; then coroutines, one task a run; and what a step weighs."""
    with scratch() as folder:
        for kind, prefix in (("function", ""), ("coroutine", "a")):
            with ExitStack() as stack:
                racers = _enter(stack, folder, prefix, settings)
                yield _compare(f"{kind}, a new process", NEW, racers, None)
                weights = _warm(racers, prefix, settings)
                floor = _floor(stack, racers, folder / f"{prefix}floor.db")
                for size in QUICK if settings.quick else SIZES:
                    yield _compare(kind, size, racers, floor)
                if not prefix:
                    yield _weighed(weights, folder, settings)


class Racer:
    """A contender in a process of its own, with a folder of its own: some make and delete files at each step."""

    def __init__(self, name: str, function: str, path: Path) -> None:
        self.name = name
        self.path = path
        self.log = path.with_suffix(".log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.durable_child", function, str(path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=CHECKOUT,
            )  # fmt: skip

    def race(self, runs: int, steps: int, **more: Any) -> dict[str, Any]:
        """What one race took: seconds, CPU seconds, and commits where they can be counted."""
        assert self.process.stdin is not None
        before = commits(self.path)
        self.process.stdin.write(json.dumps({"runs": runs, "steps": steps, **more}) + "\n")
        self.process.stdin.flush()
        told = self.answer()
        after = commits(self.path)
        told["commits"] = None if before is None or after is None else after - before
        return told

    def answer(self) -> dict[str, Any]:
        """The next line that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} has ended:\n{self.log.read_text()[-4000:]}")
        return dict(json.loads(line))

    def events(self) -> int:
        """Events that are in a file of ours, if there is one yet."""
        if not self.path.exists():
            return 0
        with closing(sqlite3.connect(self.path)) as connection:
            return int(connection.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()[0])

    def close(self) -> None:
        """Let it close its file and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Races:
    """What the races of one contender took."""

    steps: int
    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    commits: int | None = 0
    events: int = 0

    def add(self, told: dict[str, Any]) -> None:
        """Count one more."""
        self.seconds.append(told["seconds"])
        self.busy.append(told["busy"])
        self.commits = None if told["commits"] is None or self.commits is None else self.commits + told["commits"]

    def row(self) -> tuple[float, float | None, float | None]:
        """Steps a second, a CPU second, a commit."""
        each = None if not self.commits else len(self.seconds) * self.steps / self.commits
        return self.steps / statistics.median(self.seconds), self.steps / statistics.median(self.busy), each


def _enter(stack: ExitStack, folder: Path, prefix: str, settings: Settings) -> list[Racer]:
    """Start everybody that is installed."""
    functions = {name: f"bench.durable_peers:{prefix}{function}" for name, function in PEERS.items()}
    if settings.quick:
        del functions["dbos on WAL"]  # no aim is set against it
    functions[BARE] = f"bench.durable_bare:{prefix}steps"
    if not settings.peers_only:
        functions[OURS] = f"bench.durable_ours:{prefix}steps"
        functions[TOOL] = f"bench.durable_ours:{prefix}tools"
    racers = []
    for number, (name, function) in enumerate(functions.items()):
        own = folder / f"{prefix}{number}"
        own.mkdir()
        racers.append(Racer(name, function, own / "runs.db"))
        stack.callback(racers[-1].close)
    return [racer for racer in racers if _ready(racer)]


def _ready(racer: Racer) -> bool:
    missing = racer.answer().get("missing")
    if missing is not None and racer.name.startswith(OURS):
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
    return missing is None


def _warm(racers: Sequence[Racer], prefix: str, settings: Settings) -> dict[str, float]:
    """A race that is not counted, but whose file is weighed: bytes a step so far, while the run is not over."""
    weights = {}
    for racer in racers:
        steps = 100 if settings.quick or (prefix and not racer.name.startswith(OURS)) else WEIGHED
        weighed = racer.race(1, steps, weigh=True)["bytes"]
        if racer.name != BARE:
            weights[racer.name] = weighed / (NEW.steps + steps - 1)
    return weights


def _floor(stack: ExitStack, racers: Sequence[Racer], path: Path) -> Floor | None:
    for racer in racers:
        if racer.name == OURS:
            floor = Floor(Path(f"{racer.path}-copy"), path)
            stack.callback(floor.close)
            return floor
    return None


def _compare(kind: str, size: Size, racers: Sequence[Racer], floor: Floor | None) -> Table:
    """One table: everybody races in turn, the floor in groups as large as ours were in the same round."""
    seen: dict[str, Races] = {}
    low: list[float] = []
    for _ in range(size.rounds):
        for racer in racers:
            runs, steps = size.of(racer.name)
            races = seen.setdefault(racer.name, Races(runs * steps))
            ours = racer.name.startswith(OURS)
            before = racer.events() if ours else 0
            told = racer.race(runs, steps)
            races.add(told)
            if ours:
                races.events += racer.events() - before
        if floor is not None and (made := seen[OURS]).commits:
            group = max(1, round(made.events / made.commits / floor.events_a_step))
            low.append(size.runs * size.steps / floor.race(size.runs, size.steps, group))
    return _table(kind, size, seen, statistics.median(low) if low else None, floor)


def _table(kind: str, size: Size, seen: dict[str, Races], low: float | None, floor: Floor | None) -> Table:
    runs = "1 run" if size.runs == 1 else f"{size.runs:,} runs at once"
    table = Table(f"durable steps, {kind}, {runs}", ("steps/s", "steps/CPU s", "a commit", "x langgraph", "x dbos"))
    rates = {name: races.row()[0] for name, races in seen.items()}
    rows = {name: races.row() for name, races in seen.items()}
    if low is not None:
        rows[FLOOR] = (low, None, None)
    for name, row in rows.items():
        table.rows.append((name, *row, _over(row[0], rates.get("langgraph")), _over(row[0], rates.get("dbos"))))
    aims = {} if size is NEW else AIMS.get(size.runs, {})
    for peer, aim in aims.items():
        table.verdicts.append(at_least(OURS, _over(rates.get(OURS), rates.get(peer)), aim, f" x {peer}"))
    if size.runs == 64:
        table.verdicts.append(_near(seen.get(OURS), seen.get(BARE)))
    if size.peers:
        table.notes.append(f"of the peers {size.peers} runs at once, else it takes minutes; {size.steps} steps a run")
    return table


def _near(ours: Races | None, bare: Races | None) -> Verdict:
    """Ours beside a bare log with group commit, in events: those that begin and end a run count too."""
    ratio = None
    if ours is not None and bare is not None:
        rate = ours.events / len(ours.seconds) / statistics.median(ours.seconds)
        ratio = rate / (2 * bare.steps / statistics.median(bare.seconds))
    return at_least(f"{OURS}, events a second", ratio, OF_THE_FLOOR, " x a bare group commit")


def _weighed(weights: dict[str, float], folder: Path, settings: Settings) -> Table:
    table = Table("on disk before the run is over", ("bytes a step",))
    table.rows += list(weights.items())
    for name in (OURS, TOOL):
        table.verdicts.append(at_most(name, None if settings.quick else weights.get(name), BYTES, " bytes a step"))
    table.notes += [versions(), described(folder)]
    return table


def _over(rate: float | None, peer: float | None) -> float | None:
    return rate / peer if rate and peer else None
