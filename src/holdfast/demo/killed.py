"""The second scene: an agent that books trips is killed with kill -9, twice, and goes on each time. All of it is real.

A child process books; the parent kills it in the middle of a booking, and starts another that resumes the run. Bookings
stand in a file, one line each, so that they can be counted.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Final

import holdfast
from holdfast.demo.children import child
from holdfast.demo.stage import Played, Saving, Stage
from holdfast.errors import InDoubt

TRIPS: Final = ("Bergen", "Porto", "Graz", "Turku", "Ghent", "Split")
KILLED_AT: Final = ("Graz", "Ghent")  # the bookings in the middle of which the agent is killed
RUN: Final = "trips"


async def scene(stage: Stage, folder: Path) -> Played:
    """Have the agent killed and resumed until it is done; its run and its bookings are in *folder*."""
    said: Counter[str] = Counter()
    for killed_at in (*KILLED_AT, ""):
        said += await _life(stage, folder, killed_at)
    booked = _bookings(folder)
    with holdfast.open_store(folder / "runs.db") as store:
        status = store.snapshot(RUN).status
    killed = {
        "kills": len(KILLED_AT),
        "booked": len(set(booked)),
        "twice": len(booked) - len(set(booked)),
        "in_doubt": said["finds"],  # bookings in doubt, until their key was found in the file
        "from_the_log": said["knows"],  # calls that were answered without being made again
    }
    stage.say(f"{killed['booked']} trips are booked, {killed['twice']} of them twice; the run is {status}")
    saved = {Saving.TWICE: killed["in_doubt"] - killed["twice"], Saving.CRASHES: killed["kills"]}
    return Played({"killed": {**killed, "status": status}}, saved)


async def _life(stage: Stage, folder: Path, killed_at: str) -> Counter[str]:
    """Run one process of the agent, up to the booking in which it is killed; return how often it said each word."""
    said: Counter[str] = Counter()
    async with child("holdfast.demo.killed", str(folder)) as agent:
        stage.say(f"process {agent.process.pid} {'resumes the run' if _bookings(folder) else 'begins to book'}")
        async for line in agent.output:
            word, trip = line.decode().split()
            said[word] += 1
            if word == "finds":
                stage.say(f"  {said['knows']} calls are answered from the log")
                stage.say(f"  {trip}: in doubt; found by its key, and not booked again")
            elif word == "books" and trip == killed_at:
                agent.process.kill()  # SIGKILL: no handler runs, no buffer is written
                stage.say(f"  {trip}: kill -9 in the middle of it", style="bold red")
                break
            elif word == "books":
                stage.say(f"  {trip}: booked")
                agent.input.write(b"\n")
    return said


def _bookings(folder: Path) -> list[str]:
    path = folder / "bookings"
    return path.read_text().split() if path.exists() else []


# -- the agent ---------------------------------------------------------------------------------------------------------


def agent(folder: Path) -> None:
    """Look each trip up and book it; go on with the run if there is one."""
    with holdfast.open(folder / "runs.db", policies={}) as hf:
        made: set[str] = set()  # calls that this process has made

        @hf.tool(read_only=True)
        def search(trip: str) -> int:
            made.add(f"search {trip}")
            return 40 + len(trip)

        @hf.tool
        def book(trip: str, price: int) -> str:
            made.add(f"book {trip}")
            key = hf.current_run.idempotency_key if hf.current_run is not None else None
            with open(folder / "bookings", "a") as file:
                file.write(f"{key}\n")
            _say("books", trip)
            sys.stdin.readline()  # here the parent kills this process, or lets it go on
            return f"{trip} for {price}"

        known = any(run.id == RUN for run in hf.runs.list_runs())
        with hf.resume(RUN) if known else hf.run(run_id=RUN, prompt="book six trips"):
            for trip in TRIPS:
                price = search(trip)
                if f"search {trip}" not in made:
                    _say("knows", trip)
                try:
                    book(trip, price)
                except InDoubt as doubt:
                    if doubt.key in _bookings(folder):
                        _say("finds", trip)
                        doubt.answer(f"{trip} for {price}")
                    else:
                        doubt.repeat()
                else:
                    if f"book {trip}" not in made:
                        _say("knows", trip)


def _say(word: str, trip: str) -> None:
    sys.stdout.write(f"{word} {trip}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    agent(Path(sys.argv[1]))
