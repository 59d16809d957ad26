"""The other process: `python -m bench.live_child ROLE FILE` owns a run, writes to one or follows one, and says when.

What it says is one JSON value a line. Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import threading
import time
from typing import Any

import holdfast

ROLES = ("writes", "aowns", "owns", "follows", "rests")
_SILENCE = 1.0  # seconds over which a process that should do nothing is watched


def main() -> None:
    """Play the role until standard input ends."""
    role, file = sys.argv[1:]
    with holdfast.open(file, policies={}) as hf:
        if role == "aowns":
            asyncio.run(_aowns(hf))
        else:
            {"writes": _writes, "owns": _owns, "follows": _follows, "rests": _rests}[role](hf)


def _writes(hf: Any) -> None:
    """Commit an event for each line that comes; the event says when."""
    with hf.run() as run:
        _say(run.id)
        for _ in sys.stdin:
            run.commit("tick", at=time.monotonic())
            _say("ticked")


async def _aowns(hf: Any) -> None:
    """Run what never ends by itself; say when it was cancelled, and begin anew."""
    loop = asyncio.get_running_loop()
    while True:
        at = None
        try:
            async with hf.run() as run:
                _say(run.id)
                try:
                    await asyncio.sleep(3600)
                finally:
                    at = time.monotonic()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
        _say(at)
        if not await loop.run_in_executor(None, sys.stdin.readline):
            return


def _owns(hf: Any) -> None:
    """Be in the middle of a run until killed."""
    with hf.run() as run:
        run.commit("tick")
        _say(run.id)
        sys.stdin.read()


def _follows(hf: Any) -> None:
    """Follow the run that the first line names; say what that costs while nothing happens."""
    run_id = sys.stdin.readline().strip()
    threading.Thread(target=lambda: list(hf.runs.follow(run_id)), daemon=True).start()
    time.sleep(0.3)
    _say(_cost_of_silence())
    os._exit(0)  # the run is not over, and will not be


def _rests(hf: Any) -> None:
    """Do a little work, then nothing; say what is left of it after a moment."""
    with hf.run() as run:
        for value in range(10):
            run.step("step", abs, value)

    async def again() -> None:
        async with hf.run() as run:
            for value in range(10):
                await run.astep("step", asyncio.sleep, 0, value)

    asyncio.run(again())
    time.sleep(4.0)  # longer than any thread of ours waits for more work
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    _say({**_cost_of_silence(), "threads": threads})


def _cost_of_silence() -> dict[str, float]:
    """CPU milliseconds, and how often a thread of ours woke up, in a second in which nothing happens."""
    woken, busy = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw, time.process_time()
    time.sleep(_SILENCE)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    # The sleep above is one switch of its own.
    return {"busy_ms": 1e3 * (time.process_time() - busy), "woken": max(0, used - woken - 1)}


def _say(fact: Any) -> None:
    print(json.dumps(fact), flush=True)


if __name__ == "__main__":
    main()
