"""What the garbage collector closes: it may run anywhere, also while one of our locks is held by the same thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import faulthandler, gc, threading
import holdfast

faulthandler.dump_traceback_later(45, exit=True)
hf = holdfast.open(":memory:", policies={})


@hf.tool(concurrency=1000, rate={"per_second": 1e6, "burst": 1e6})
def stream():
    yield 1
    yield 2


@hf.tool(breaker={"failure_rate": 0.5})
def search():
    return 1


class Cycle:
    pass


def abandon():
    cycle = Cycle()
    cycle.itself = cycle
    cycle.stream = stream()
    next(cycle.stream)


gc.disable()
for turn in range(600):  # each time the collector strikes a little later, so that some time it is under each lock
    search()
    abandon()
    gc.set_threshold(gc.get_count()[0] + turn % 60)
    gc.enable()
    hf.tracker.stats()
    hf.breaker.snapshot()
    gc.disable()
while hf.tracker.stats("stream").total < 600:  # the ends of the abandoned ones may still be on their way
    gc.collect()  # which does nothing while another thread collects
    threading.Event().wait(0.01)
print(hf.tracker.stats("stream").total, hf.tracker.stats("search").total)
"""


def test_a_stream_that_the_garbage_collector_closes_under_a_lock_of_ours_ends_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=55, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["600", "600"]


RUNS = """
import faulthandler, gc, sys, threading
import holdfast

faulthandler.dump_traceback_later(45, exit=True)
hf = holdfast.open(sys.argv[1], policies={})


def agent():
    with hf.run(session="abandoned"):
        yield


def abandon():
    cycle = [agent()]
    cycle.append(cycle)
    next(cycle[0])


gc.disable()
for turn in range(200):
    abandon()
    gc.set_threshold(gc.get_count()[0] + turn % 60)
    gc.enable()
    hf.runs.create_run("other", "p")
    gc.disable()
while any(run.owner for run in hf.runs.list_runs(session_id="abandoned", limit=1000)):
    gc.collect()  # which does nothing while another thread collects
    threading.Event().wait(0.01)
print(len(hf.runs.list_runs(session_id="abandoned", limit=1000)))
"""


def test_a_run_that_the_garbage_collector_ends_in_the_middle_of_a_write_ends_all_the_same(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUNS, str(tmp_path / "runs.db")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["200"]


CLOSED = """
import asyncio, faulthandler, gc, threading
import holdfast

faulthandler.dump_traceback_later(45, exit=True)
hf = holdfast.open(":memory:", policies={})


@hf.tool(concurrency=3, max_wait=0)
async def stream():
    yield 1
    await asyncio.sleep(60)


async def read(how):
    items = stream()
    kept.append(items)
    await anext(items)
    if how == "waits":
        task = asyncio.create_task(anext(items))
        await asyncio.sleep(0)
    if how == "dropped":
        kept.clear()


for how in ("read", "waits", "dropped"):
    kept = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(read(how))
    loop.close()  # as one must not: asyncio.run would end the stream
kept.clear()
while hf.tracker.stats("stream").total < 3:  # their ends may still be on their way
    gc.collect()  # which does nothing while another thread collects
    threading.Event().wait(0.01)
slots = hf._box.tool("stream").limiting.slots
print(slots.in_flight, hf.tracker.stats("stream").cancelled)
"""


def test_a_stream_that_was_left_in_an_event_loop_that_is_closed_gives_its_slot_back() -> None:
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True, timeout=55, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "3"]


OPEN = """
import asyncio, faulthandler
import holdfast

faulthandler.dump_traceback_later(45, exit=True)
hf = holdfast.open(":memory:", policies={})


async def agent():
    async with hf.run():
        await asyncio.sleep(60)


async def main():
    kept.append(asyncio.create_task(agent()))
    await asyncio.sleep(0.05)


kept = []
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
hf.close()
"""


def test_a_run_that_is_open_in_an_event_loop_that_is_closed_does_not_keep_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", OPEN], capture_output=True, text=True, timeout=55, check=False)

    assert done.returncode == 0, done.stderr
