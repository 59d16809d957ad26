"""The driver: plays one scene after the other, in each of which something bad happens to processes that have a run.

It is a process of its own, because a process that forks must have only one thread. It is told its task and reports as
JSON.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from holdfast.errors import RunNotFound
from holdfast.torture import journal
from holdfast.torture.case import Case, Expected
from holdfast.torture.journal import read
from holdfast.torture.life import FREEZING_POINTS, Fate
from holdfast.torture.places import Place
from holdfast.torture.process import Child
from holdfast.torture.promises import Progress, Verdict
from holdfast.torture.shapes import SHAPES
from holdfast.torture.stage import LATEST, Stage

MOST_LIVES: Final = 60  # lives of one run; after that it may finish undisturbed
CROWD: Final = 3  # runs at once
RACERS: Final = 3
SHORT_LEASE: Final = 0.3  # seconds; a process that is frozen for longer has lost its runs
ENDLESS: Final = 10**6  # rounds of an agent that only a cancel can stop

Scene = Callable[[Stage, str], None]


class Task(msgspec.Struct, frozen=True):
    """A torture at *place*: for at least so many *seconds* and *kills*, with the journals in *folder*.

    The process *parent* started it, and cleans up when it is over.
    """

    parent: int
    place: Place
    folder: str
    seed: int
    seconds: float
    kills: int


class Trouble(msgspec.Struct, frozen=True, tag=True):
    """Why there is no verdict: the store or the connection to it failed, not a promise."""

    text: str


def drive(task: Task, tell: Callable[[Progress], object]) -> Verdict:
    """Play all scenes once, then again until enough seconds and kills are reached; stop at the first breach."""
    stage = Stage(task.place, task.folder, random.Random(task.seed), tell)
    try:
        for scene in _scenes(stage, task):
            for shape in SHAPES:
                if stage.tally.is_clean:
                    scene(stage, shape)
    finally:
        stage.clear()
    stage.judge.close()
    stage.tell()
    return Verdict(seed=task.seed, progress=stage.progress, promises=stage.tally.kept())


def _scenes(stage: Stage, task: Task) -> Iterator[Scene]:
    yield undisturbed
    yield from SCENES
    for scene in itertools.cycle(SCENES):
        over = stage.seconds >= task.seconds and stage.progress.kills >= task.kills
        if over or not stage.tally.is_clean:
            return
        yield scene


def undisturbed(stage: Stage, shape: str) -> None:
    """Nothing bad happens: the result and keys of this run are what the other runs are compared with."""
    case, begun = stage.case(shape), stage.seconds
    stage.await_end(case, stage.start(case))
    stage.usual[shape] = stage.seconds - begun
    text, told = stage.judge.undisturbed(case)
    stage.expected[shape] = Expected(text, told.keys())
    stage.finished(case)


def killed(stage: Stage, shape: str) -> None:
    """Kill the process of a run again and again."""
    _kill(stage, [stage.case(shape)])


def crowded(stage: Stage, shape: str) -> None:
    """Kill the processes of several runs at once."""
    _kill(stage, [stage.case(each) for each in itertools.islice(itertools.cycle((shape, *SHAPES)), CROWD)])


def frozen(stage: Stage, shape: str) -> None:
    """Freeze a process until it has lost its run to another process, and then let it go on."""
    case, place = stage.case(shape), msgspec.structs.replace(stage.place, lease=SHORT_LEASE)
    point, nth = stage.chance.choice(FREEZING_POINTS), stage.chance.randint(2, LATEST)
    zombie = stage.start(case, Fate(point, nth, freezes=True), place=place)
    stage.await_end(case, zombie)
    stage.judge.look(case, is_left=not zombie.is_frozen)
    if zombie.is_frozen:
        _wake_too_late(stage, case, zombie, place)
    _kill(stage, [case])


def raced(stage: Stage, shape: str) -> None:
    """Several processes resume the run of a dead process at once."""
    case = stage.case(shape)
    stage.let_live([case], [Fate("acked", stage.chance.randint(1, LATEST))])
    stage.judge.look(case)
    _race(stage, case)


def raced_to_begin(stage: Stage, shape: str) -> None:
    """Several processes begin the same run at once."""
    _race(stage, stage.case(shape))


def cancelled(stage: Stage, shape: str) -> None:
    """Another process cancels a run in the middle."""
    case = stage.case(shape)
    case.expected = None
    owner = stage.start(case, rounds=ENDLESS)
    some = stage.chance.randint(1, 100)
    stage.await_that(lambda: len(read(case.journal)) > some or owner.glance(), f"{case.run_id}: does nothing")
    stage.cancel(case)
    stage.await_that(lambda: _is_over(stage, case), f"{case.run_id}: goes on although it was cancelled")
    so_far = len(read(case.journal))
    stage.await_end(case, owner)
    stage.judge.look(case)
    stage.judge.cancelled(case, owner.life, so_far)
    stage.progress.cancels += 1
    stage.finished(case)


def forked(stage: Stage, shape: str) -> None:
    """The run of a dead process is cancelled and then resumed: as a fork, which knows what the run knew."""
    case = stage.case(shape)
    stage.let_live([case], [Fate("acked", stage.chance.randint(1, LATEST))])
    stage.judge.look(case)
    stage.cancel(case)
    stage.judge.stopped(case)
    stage.progress.cancels += 1
    child = stage.start(case)
    stage.await_end(case, child)
    case.run_ids += [
        line.mark for line in read(case.journal) if (line.life, line.word) == (child.life, journal.ENTERED)
    ]
    stage.judge.look(case)
    stage.finished(case)


SCENES: Sequence[Scene] = (killed, frozen, raced, cancelled, crowded, raced_to_begin, forked)


# -- parts of scenes ---------------------------------------------------------------------------------------------------


def _kill(stage: Stage, cases: Sequence[Case]) -> None:
    """Let the runs live one life after the other until all have ended."""
    for number in itertools.count():
        left = [case for case in cases if not case.is_over]
        if not left or not stage.tally.is_clean:
            break
        if number < MOST_LIVES:
            stage.let_live(left, [stage.fate() for _ in left])
        else:
            for case in left:
                stage.await_end(case, stage.start(case))
        for case in left:
            stage.judge.look(case)
            stage.judge.resumed(case)
        stage.tell()
    for case in cases:
        stage.finished(case)


def _wake_too_late(stage: Stage, case: Case, zombie: Child, place: Place) -> None:
    """Let a frozen process lose its run to another process, and then wake it."""
    message = f"{case.run_id}: stays with a process that is frozen"
    stage.await_that(lambda: stage.snapshot(case).interrupted, message)
    taker = _take_over(stage, case, place)
    if stage.chance.random() < 0.5:
        stage.await_end(case, taker)
    journal.note(case.journal, journal.WOKEN, label=str(zombie.life), count=stage.log(case).owned[-1])
    zombie.wake()
    stage.await_end(case, zombie)
    if taker.status is None:
        stage.await_end(case, taker)
    stage.judge.look(case)
    stage.progress.zombies += 1


def _take_over(stage: Stage, case: Case, place: Place) -> Child:
    """Start a process that takes over the run of a frozen one, and may be killed while at it."""
    taker = stage.start(case, stage.fate(), place=place)
    if not _await_takeover(stage, case, taker):  # the taker was killed too soon
        stage.await_end(case, taker)
        taker = stage.start(case, place=place)
        _await_takeover(stage, case, taker)
    return taker


def _await_takeover(stage: Stage, case: Case, taker: Child) -> bool:
    """True if *taker* has got the run; if not, it has ended."""
    stage.await_that(lambda: len(stage.log(case).owned) > 1 or taker.glance(), f"{case.run_id}: is not taken over")
    return len(stage.log(case).owned) > 1


def _race(stage: Stage, case: Case) -> None:
    gate = os.pipe()
    racers = [stage.start(case, gate=gate) for _ in range(RACERS)]
    for end in gate:
        os.close(end)
    for racer in racers:
        stage.await_end(case, racer)
    stage.judge.look(case)
    stage.judge.raced(case, [racer.life for racer in racers])
    stage.progress.races += 1
    stage.finished(case)


def _is_over(stage: Stage, case: Case) -> bool:
    try:
        return stage.snapshot(case).status.is_terminal
    except RunNotFound:  # the judge reports that as a breach
        return True
