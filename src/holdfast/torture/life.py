"""One life: a process that begins or resumes a run, and then dies, freezes or finishes, as it is told."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections import Counter
from typing import Final, NamedTuple

from holdfast.app import Holdfast
from holdfast.clock import SystemClock
from holdfast.errors import LeaseLost, RunCancelled, RunConflict
from holdfast.policy import PolicyBook
from holdfast.runs import Run
from holdfast.stores import RunStore
from holdfast.torture import desk, journal
from holdfast.torture.agent import ROUNDS, Agent
from holdfast.torture.case import Case
from holdfast.torture.desk import Desk
from holdfast.torture.journal import Journal
from holdfast.torture.places import Place
from holdfast.torture.shapes import Shape

STORE_POINTS: Final = ("begin", "written", "committed")  # points of one transaction
RUN_POINTS: Final = ("entering", "entered", "finishing", "finished", "left")
POINTS: Final = (*STORE_POINTS, *desk.POINTS, *RUN_POINTS)
# A process that is frozen inside a transaction keeps all others from writing.
FREEZING_POINTS: Final = ("begin", "committed", *desk.POINTS)
LONGEST: Final = 3000  # characters of a traceback


class Fate(NamedTuple):
    """What happens when *point* is passed for the *nth* time: the process is killed, or *freezes*."""

    point: str
    nth: int
    freezes: bool = False


class Passing:
    """Counts the points that the process passes, and kills or freezes it at the one in *fate*."""

    def __init__(self, fate: Fate | None, journal: Journal) -> None:
        self._fate = fate
        self._journal = journal
        self._passed: Counter[str] = Counter()
        self.store: RunStore | None = None

    def __call__(self, point: str) -> None:
        fate = self._fate
        if fate is None or point != fate.point:
            return
        self._passed[point] += 1
        if self._passed[point] != fate.nth:
            return
        if not fate.freezes:
            os.kill(os.getpid(), signal.SIGKILL)
        elif point in STORE_POINTS or self.store is None:
            self._freeze()
        else:
            with self.store.writer.turn:  # so that no other thread of this process is in a transaction
                self._freeze()

    def _freeze(self) -> None:
        self._journal.say(journal.FROZEN, label=self._fate.point if self._fate else "")
        # A signal sent to the process could reach another thread first, and this one would run on for a moment.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def live(
    case: Case,
    life: int,
    place: Place,
    fate: Fate | None = None,
    *,
    rounds: int = ROUNDS,
    gate: tuple[int, int] | None = None,
) -> None:
    """Begin or resume the run of *case*, until *fate* is met or so many *rounds* are done; any other end is written to
    the journal.

    The *gate* is a pipe: all processes that wait at it start when the driver closes its own end.
    """
    told = Journal(case.journal, life)
    passing = Passing(fate, told)
    store = place.open(passing)
    passing.store = store
    if gate is not None:
        _wait_at(gate)
    hf, shape = Holdfast(PolicyBook.load({}), SystemClock(), store), Shape(case.shape)
    try:
        with hf:
            has_begun = case.status is not None
            run = hf.resume(case.run_id) if has_begun else hf.run("torture", case.shape, run_id=case.run_id)
            shape.live(_work(hf, run, shape, told, passing, rounds))
        passing("left")
    except RunConflict as error:
        told.say(journal.CONFLICT, text=str(error))
    except LeaseLost:
        told.say(journal.LOST)
    except RunCancelled:
        told.say(journal.CANCELLED)
    except Exception:
        told.say(journal.ERROR, text=traceback.format_exc()[-LONGEST:])


async def _work(hf: Holdfast, run: Run, shape: Shape, told: Journal, passing: Passing, rounds: int) -> None:
    passing("entering")
    async with shape.inside(run):
        told.say(journal.ENTERED, mark=run.id, count=os.getpid())
        passing("entered")
        text = await Agent(hf, Desk(run, shape, told, passing), shape).work(rounds)
        passing("finishing")
        await shape.do(run, "complete", text)
        told.say(journal.DONE, text=text)
        passing("finished")


def cancel(place: Place, run_id: str, told: Journal) -> None:
    """The short life of a process that cancels a run."""
    with place.open() as store:
        result = store.cancel(run_id, "enough")
    told.say(journal.CANCEL, mark=run_id, text=str(result))


def _wait_at(gate: tuple[int, int]) -> None:
    reading, writing = gate
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
