"""What is kept is found again: resuming, listing, exporting, importing, and that a long run costs no more an event.

By the wall clock, on SQLite with `synchronous=FULL`, in files with as many runs and events as the aims say.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.disk import scratch
from bench.harness import Settings
from bench.report import Table, at_least, at_most

STEPS = 1000  # of the run that is resumed
RESUME = 10.0  # ms
RUNS = 100_000  # of which the newest are listed
NEWEST = 100
LIST = 2.0  # ms
MOVED = 50_000  # events a second
LONG, SHORT = 100_000, 1000  # events of one run
GROWTH = 1.3  # what an event of the long run may cost more: the noise of two medians


def run(settings: Settings) -> Iterator[Table]:
    """Reading back, moving, growing."""
    if settings.peers_only:
        return
    with scratch() as folder:
        yield _read(folder, settings)
        yield _moved(folder, settings)
        yield _grown(folder, settings)


# -- reading -----------------------------------------------------------------------------------------------------------


def _read(folder: Path, settings: Settings) -> Table:
    opened, entered, answered = _resumed(folder / "resume.db", 5 if settings.quick else 20)
    runs = RUNS // 10 if settings.quick else RUNS
    listed = _listed(folder / "list.db", runs, 20 if settings.quick else 200)
    table = Table("reading back, ms", ("median", "most"))
    table.rows += [
        ("open the store, read a snapshot", statistics.median(opened), max(opened)),
        (f"resume a run of {STEPS:,} steps", statistics.median(entered), max(entered)),
        (f"answer its {STEPS:,} steps from the log", statistics.median(answered), max(answered)),
        (f"newest {NEWEST} of {runs:,} runs", statistics.median(listed), max(listed)),
    ]
    added = statistics.median(map(sum, zip(entered, answered, strict=True)))
    table.verdicts += [
        at_most(f"resuming {STEPS:,} steps and answering them", added, RESUME, " ms more than opening the store"),
        at_most(f"newest {NEWEST} of {runs:,} runs", statistics.median(listed), LIST, " ms"),
    ]
    return table


def _resumed(path: Path, times: int) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds to open the store, to be inside the resumed run, and to have come to where it was interrupted."""
    import holdfast

    calls: list[int] = []

    def go_on(run: Any) -> None:
        for value in range(STEPS):
            run.step("step", calls.append, value)

    with holdfast.open(path, policies={}) as hf, suppress(KeyboardInterrupt), hf.run(run_id="long") as run:
        go_on(run)
        raise KeyboardInterrupt  # as a deploy does: the run can be resumed
    marks = []
    for _ in range(times):
        start = time.perf_counter()
        hf = holdfast.open(path, policies={})
        hf.runs.snapshot("long")
        opened = time.perf_counter()
        with hf, suppress(KeyboardInterrupt), hf.resume("long") as run:
            entered = time.perf_counter()
            go_on(run)
            marks.append((start, opened, entered, time.perf_counter()))
            raise KeyboardInterrupt
    if len(calls) != STEPS:
        raise AssertionError(f"{len(calls) - STEPS} finished steps were made again")
    first, second, third = ([1e3 * (mark[i + 1] - mark[i]) for mark in marks] for i in range(3))
    return first, second, third


def _listed(path: Path, runs: int, times: int) -> list[float]:
    import holdfast

    with holdfast.open(path, policies={}) as hf:
        hf.runs.replace_records(_copies(_model(2), runs))

        def newest() -> None:
            found = hf.runs.list_runs(limit=NEWEST)
            if [found[0].id, found[-1].id] != [f"run {runs - 1}", f"run {runs - NEWEST}"]:
                raise AssertionError("these are not the newest")

        return [1e3 * _seconds(newest) for _ in range(times)]


# -- moving ------------------------------------------------------------------------------------------------------------


def _moved(folder: Path, settings: Settings) -> Table:
    import holdfast

    runs, calls, times = (100, 50, 2) if settings.quick else (1000, 50, 3)
    model = _model(calls)
    total = runs * len(model.events)
    out, back = [], []
    with holdfast.open(folder / "source.db", policies={}) as source:
        source.runs.replace_records(_copies(model, runs))
        for turn in range(times):
            file = folder / "runs.jsonl"
            with file.open("w", encoding="utf-8") as sink:
                out.append(_seconds(lambda sink=sink: source.runs.export(sink)))
            with holdfast.open(folder / f"target{turn}.db", policies={}) as target, file.open(encoding="utf-8") as fp:
                back.append(_seconds(lambda target=target, fp=fp: target.runs.import_(fp)))
                again = io.StringIO()
                target.runs.export(again, ["run 7"])
            if '"run 7"' not in again.getvalue():
                raise AssertionError("what was imported is not there")
    table = Table(f"{total:,} events of {runs:,} runs", ("events/s", "least"))
    for name, took in (("export", out), ("import", back)):
        table.rows.append((name, total / statistics.median(took), total / max(took)))
        table.verdicts.append(at_least(name, total / statistics.median(took), MOVED, " events/s"))
    return table


# -- growing -----------------------------------------------------------------------------------------------------------


def _grown(folder: Path, settings: Settings) -> Table:
    """Blocks of events into one run that grows, and into new ones in a file of their own; then steps, in turn too."""
    import holdfast

    blocks = (LONG // 10 if settings.quick else LONG) // SHORT
    old: list[float] = []
    new: list[float] = []
    old_steps: list[float] = []
    new_steps: list[float] = []
    with (
        holdfast.open(folder / "short.db", policies={}) as hf,
        holdfast.open(folder / "long.db", policies={}) as other,
        other.run() as long,
    ):
        for _ in range(blocks):
            with hf.run() as short:
                new.append(_seconds(lambda short=short: _emit(short)) / SHORT)
            old.append(_seconds(lambda: _emit(long)) / SHORT)
        if (count := long.snapshot().event_count) < blocks * SHORT:
            raise AssertionError(f"{blocks * SHORT - count} events are missing")
        for turn in range(4 if settings.quick else 10):
            with hf.run() as short:
                new_steps.append(_seconds(lambda short=short, turn=turn: _step(short, turn)) / 100)
            old_steps.append(_seconds(lambda turn=turn: _step(long, turn)) / 100)
    last = statistics.median(old[-(blocks // 5) :])
    table = Table("one run grows, µs", ("an event", "a step"))
    table.rows += [
        (f"in a run of at most {SHORT:,} events", 1e6 * statistics.median(new), 1e6 * statistics.median(new_steps)),
        (f"in a run of about {blocks * SHORT:,} events", 1e6 * last, 1e6 * statistics.median(old_steps)),
    ]
    table.verdicts += [
        at_most("an event of the long run", last / statistics.median(new), GROWTH, " x one of a short run"),
        at_most("a step of the long run", _ratio(old_steps, new_steps), GROWTH, " x one of a short run"),
    ]
    return table


def _emit(run: Any) -> None:
    """A block of events, on disk when it returns."""
    for value in range(SHORT - 1):
        run.emit("tick", value=value)
    run.commit("tock")


def _step(run: Any, turn: int) -> None:
    for value in range(100):
        run.step("step", abs, 100 * turn + value)


# -- what is in the files ----------------------------------------------------------------------------------------------


def _model(calls: int) -> Any:
    """The record of a finished run with *calls* calls of a tool."""
    import holdfast

    with holdfast.open(":memory:", policies={}) as hf:
        fetch = hf.tool("fetch", idempotent=True)(lambda page: {"page": page, "text": "what was found there"})
        with hf.run("session", "look it up"):
            for page in range(calls):
                fetch(page)
        (record,) = hf.runs.records()
    return record


def _copies(model: Any, runs: int) -> Iterator[Any]:
    """The record again and again, under other names, each made a little later and all before its events."""
    import msgspec

    replace = msgspec.structs.replace
    for number in range(runs):
        at = model.snapshot.created_at_ms - runs + number
        yield replace(model, snapshot=replace(model.snapshot, id=f"run {number}", created_at_ms=at))


def _seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def _ratio(some: list[float], others: list[float]) -> float:
    return statistics.median(some) / statistics.median(others)
