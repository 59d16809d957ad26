"""The stage: processes come and go on it, on one store, and the judge watches.

It belongs to a process with a single thread, which has no store open when it forks.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Sequence
from typing import Final

from holdfast.clock import SystemClock
from holdfast.history import RunSnapshot
from holdfast.torture import journal
from holdfast.torture.agent import ROUNDS
from holdfast.torture.case import Case, Expected, Logged
from holdfast.torture.journal import JUDGE, Journal, read
from holdfast.torture.judge import Judge
from holdfast.torture.life import POINTS, RUN_POINTS, Fate, cancel, live
from holdfast.torture.places import Place
from holdfast.torture.process import GLANCE, PATIENCE, Child, unstopped
from holdfast.torture.promises import Progress, Promise, Tally

ANY: Final = "any"  # at any moment, not at a named point
LATEST: Final = 12  # a fatal point is passed at most this many times


class Stage:
    """Runs on the store at *place*, with their journals in *folder*; *chance* decides which process dies when."""

    def __init__(self, place: Place, folder: str, chance: random.Random, tell: Callable[[Progress], object]) -> None:
        self.place = place
        self.chance = chance
        self.tally = Tally()
        self.judge = Judge(place, self.tally)
        self.progress = Progress()
        self.expected: dict[str, Expected] = {}
        self.usual: dict[str, float] = {}  # seconds that an undisturbed life takes, by shape
        self._folder = folder
        self._tell = tell
        self._begun = SystemClock.monotonic()
        self._lives = itertools.count(JUDGE + 1)
        self._runs = itertools.count(1)
        self._children: list[Child] = []
        self._bag: list[str] = []  # points to die at, shuffled

    @property
    def seconds(self) -> float:
        """Seconds since the torture began."""
        return SystemClock.monotonic() - self._begun

    def case(self, shape: str) -> Case:
        """Return a new run, which has not begun yet."""
        run_id = f"{shape}-{next(self._runs)}"
        path = os.path.join(self._folder, f"{run_id}.journal")
        return Case(run_id, shape, path, self.expected.get(shape))

    def start(
        self,
        case: Case,
        fate: Fate | None = None,
        *,
        place: Place | None = None,
        rounds: int = ROUNDS,
        gate: tuple[int, int] | None = None,
    ) -> Child:
        """Start a process that begins or resumes the run."""
        at = place or self.place
        child = self._fork(lambda life: live(case, life, at, fate, rounds=rounds, gate=gate))
        child.point = ANY if fate is None else fate.point
        return child

    def cancel(self, case: Case) -> None:
        """Cancel the run from another process, and wait for that process to end."""
        self.await_end(case, self._fork(lambda life: cancel(self.place, case.run_id, Journal(case.journal, life))))

    def fate(self) -> Fate | None:
        """Return the next death: each of the named points in turn, and None for a kill at any moment."""
        if not self._bag:
            self._bag = [*POINTS, *[ANY] * (len(POINTS) // 2)]
            self.chance.shuffle(self._bag)
        point = self._bag.pop()
        if point == ANY:
            return None
        return Fate(point, 1 if point in RUN_POINTS else self.chance.randint(1, LATEST))

    def let_live(self, cases: Sequence[Case], fates: Sequence[Fate | None]) -> None:
        """Let each of the runs live one life, all at once; a fate of None is a kill at a random moment."""
        children = [self.start(case, fate) for case, fate in zip(cases, fates, strict=True)]
        begun = SystemClock.monotonic()
        doomed = [
            (self.chance.uniform(0, self.usual[case.shape]), child)
            for case, fate, child in zip(cases, fates, children, strict=True)
            if fate is None
        ]
        for seconds, child in sorted(doomed, key=lambda each: each[0]):
            SystemClock.sleep(max(0.0, begun + seconds - SystemClock.monotonic()))
            child.kill()
        for case, child in zip(cases, children, strict=True):
            self.await_end(case, child)

    def await_end(self, case: Case, child: Child) -> None:
        """Wait until a process has ended or is frozen."""
        calm = child.await_end()
        self.tally.test(Promise.CALM, calm, f"{case.run_id}: life {child.life} hangs; see {self._errors}")
        if not child.is_frozen:
            self._ended(case, child)

    def _ended(self, case: Case, child: Child) -> None:
        self._children.remove(child)
        if child.was_killed:
            self.progress.kills += 1
            self.progress.points[child.point] = self.progress.points.get(child.point, 0) + 1
        calm = child.was_killed or child.status == 0
        self.tally.test(Promise.CALM, calm, f"{case.run_id}: life {child.life} ended with {child.status}")

    def await_that(self, condition: Callable[[], object], otherwise: str) -> None:
        """Wait until *condition* holds; if it never does, *otherwise* says what is wrong."""
        until = SystemClock.monotonic() + PATIENCE
        while not condition():
            if SystemClock.monotonic() > until:
                self.tally.test(Promise.CALM, False, otherwise)
                return
            SystemClock.sleep(GLANCE)

    def log(self, case: Case) -> Logged:
        """Return the run's log as it is now."""
        with self.place.open() as store:
            return Logged(store.events(case.run_id))

    def snapshot(self, case: Case) -> RunSnapshot:
        """Return the run's snapshot as it is now."""
        with self.place.open() as store:
            return store.snapshot(case.run_id)

    def finished(self, case: Case) -> None:
        """Count the outcome of a run that has nothing left to do."""
        words = [line.word for line in read(case.journal)]
        self.progress.finished += 1
        self.progress.answered += words.count(journal.ANSWER)
        self.progress.repeated += words.count(journal.REPEAT)
        self.tell()

    def tell(self) -> None:
        """Report the progress."""
        self.progress.seconds = self.seconds
        self._tell(self.progress)

    def clear(self) -> None:
        """Kill all processes that are left."""
        for child in self._children:
            child.kill()
        self._children.clear()

    @property
    def _errors(self) -> str:
        return os.path.join(self._folder, "errors")

    def _fork(self, work: Callable[[int], object]) -> Child:
        life = next(self._lives)
        with unstopped():
            child = Child(life, lambda: work(life), self._errors)
            self._children.append(child)
        return child
