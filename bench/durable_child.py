"""One contender in a process of its own: `python -m bench.durable_child MODULE:FUNCTION FILE`.

It races when a line on its standard input says so, and answers with a line. Apart from each other, no contender's
threads, garbage or event loop cost another anything.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, closing
from pathlib import Path
from typing import Any

_at: dict[int, Callable[[], object]] = {}  # what else to do at a step, by its value


def work(value: int) -> dict[str, int]:
    """The step that is remembered: it does nothing, so what remains is the remembering."""
    if _at and (also := _at.pop(value, None)) is not None:
        also()
    return {"value": value}


def main() -> None:
    """Open the contender, then do what each line says until there are no more."""
    contender, file = sys.argv[1:]
    module, _, name = contender.partition(":")
    path = Path(file)
    with asyncio.Runner() as runner, ExitStack() as stack:
        try:
            manager = getattr(importlib.import_module(module), name)(path)
            if hasattr(manager, "__aenter__"):
                astack = AsyncExitStack()
                one = runner.run(astack.enter_async_context(manager))
                stack.callback(lambda: runner.run(astack.aclose()))
                _answer(path, lambda *size: runner.run(_tasks(one, *size)))
            else:
                one = stack.enter_context(manager)
                _answer(path, lambda *size: _threads(one, *size))
        except ModuleNotFoundError as error:
            _say(missing=error.name)


def _answer(path: Path, race: Callable[[int, int], tuple[float, float]]) -> None:
    _say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        runs, steps = order["runs"], order["steps"]
        told: dict[str, Any] = {}
        if order.get("weigh"):
            _at[steps - 1] = lambda told=told: told.update(bytes=_weigh(path))
        seconds, busy = race(runs, steps)
        _say(seconds=seconds, busy=busy, **told)


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


# -- racing: from the first run's start to the last one's end ----------------------------------------------------------

_names = itertools.count()


def _threads(one: Callable[[str, int], object], runs: int, steps: int) -> tuple[float, float]:
    """A thread a run; a single run needs none."""
    names = [f"run {next(_names)}" for _ in range(runs)]
    if runs == 1:
        start, busy = time.perf_counter(), time.process_time()
        one(names[0], steps)
        return time.perf_counter() - start, time.process_time() - busy
    ready = threading.Barrier(runs + 1)
    failed: list[BaseException] = []

    def go(name: str) -> None:
        ready.wait()
        try:
            one(name, steps)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=go, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    ready.wait()
    start, busy = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - start, time.process_time() - busy
    if failed:
        raise failed[0]
    return spent


async def _tasks(one: Callable[[str, int], Any], runs: int, steps: int) -> tuple[float, float]:
    """A task a run."""
    start, busy = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one(f"run {next(_names)}", steps) for _ in range(runs)))
    return time.perf_counter() - start, time.process_time() - busy


def _weigh(path: Path) -> int:
    """Bytes of the database with all that is in its WAL: those of a copy, which is left beside it."""
    copied = Path(f"{path}-copy")
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(copied)) as copy:
        connection.backup(copy)
    return copied.stat().st_size


if __name__ == "__main__":
    from bench.durable_child import main as run  # the module that contenders import, and not a second one of its name

    run()
