"""The second scene: an agent that books trips is killed with kill -9, twice, and goes on each time. All of it is real.

A child process books; the parent kills it in the middle of a booking, and starts another that resumes the run. What was
booked stands in a file, one line each, so everybody can count.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

import holdfast
from holdfast.errors import InDoubt

TRIPS: Final = ("Bergen", "Porto", "Graz", "Turku", "Ghent", "Split")
KILLED_AT: Final = (3, 5)  # the bookings in the middle of which the agent is killed
RUN: Final = "trips"


class Killed(msgspec.Struct, frozen=True):
    """What became of the run: how often it was killed, what was booked, how often twice."""

    kills: int
    booked: int
    twice: int
    in_doubt: int  # bookings of which nobody knew whether they were made, until their key was found
    from_the_log: int  # calls that were answered without being made again
    status: str


def scene(folder: Path) -> Killed:
    """Have the agent killed and resumed until it is done; its run and its bookings are in *folder*."""
    told = [line for at in (*KILLED_AT, None) for line in _life(folder, at)]
    booked = _bookings(folder).split()
    with holdfast.open_store(folder / "runs.db") as store:
        status = store.snapshot(RUN).status
    return Killed(
        kills=len(KILLED_AT),
        booked=len(set(booked)),
        twice=len(booked) - len(set(booked)),
        in_doubt=told.count("in doubt"),
        from_the_log=told.count("known"),
        status=status,
    )


def lines(killed: Killed) -> Iterator[str]:
    """The scene in words."""
    yield f"{killed.from_the_log:>2} calls were answered from the log when the run was resumed"
    yield f"{killed.in_doubt:>2} bookings were in doubt, found by their keys, and not made again"
    yield f"{killed.booked:>2} trips are booked, {killed.twice} of them twice; the run is {killed.status}"


def _life(folder: Path, killed_at: int | None) -> Iterator[str]:
    """What one life of the agent says, up to the booking in which it is killed."""
    command = [sys.executable, "-P", "-m", "holdfast.demo.killed", str(folder)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a Ctrl-C is for us
    ) as agent:
        assert agent.stdout is not None
        assert agent.stdin is not None
        try:
            for line in agent.stdout:
                yield line.strip()
                if line.strip() == f"booking {killed_at}":
                    return
                if line.startswith("booking"):
                    agent.stdin.write("\n")
                    agent.stdin.flush()
        finally:
            agent.kill()  # SIGKILL: no handler runs, no buffer is written; nothing happens to one that is done


def _bookings(folder: Path) -> str:
    path = folder / "bookings"
    return path.read_text() if path.exists() else ""


# -- the agent ---------------------------------------------------------------------------------------------------------


def agent(folder: Path) -> None:
    """Look each trip up and book it; go on with the run if there is one."""
    with holdfast.open(folder / "runs.db", policies={}) as hf:
        made: list[str] = []  # what this life has called

        @hf.tool(read_only=True)
        def search(trip: str) -> int:
            made.append(f"search {trip}")
            return 40 + len(trip)

        @hf.tool
        def book(number: int, trip: str, price: int) -> str:
            made.append(f"book {trip}")
            key = hf.current_run.idempotency_key if hf.current_run is not None else None
            with open(folder / "bookings", "a") as file:
                file.write(f"{key}\n")
            _say(f"booking {number}")
            sys.stdin.readline()  # the parent kills us here, or lets us go on
            return f"{trip} for {price}"

        known = any(run.id == RUN for run in hf.runs.list_runs())
        with hf.resume(RUN) if known else hf.run(run_id=RUN, prompt="book six trips"):
            for number, trip in enumerate(TRIPS, 1):
                price = search(trip)
                _say("known" if f"search {trip}" not in made else "made")
                try:
                    book(number, trip, price)
                except InDoubt as doubt:
                    _say("in doubt")
                    doubt.answer(f"{trip} for {price}") if doubt.key in _bookings(folder) else doubt.repeat()
                else:
                    _say("known" if f"book {trip}" not in made else "made")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    agent(Path(sys.argv[1]))
