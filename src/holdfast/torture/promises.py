"""What durable runs promise, and how often each promise was put to the test and kept."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Any, Final

import msgspec

MOST_BREACHES: Final = 20  # breaches kept for one promise


class Promise(StrEnum):
    """One promise, in words."""

    FINISHED = "a finished call is not made again"
    KEPT = "what was acknowledged is on disk"
    SEQUENCE = "sequences have no gap and no repeat"
    TIME = "times never go back"
    FOLD = "the snapshot is the fold of the events"
    BEFORE = "a call is on disk before its tool is called"
    DOUBT = "a call in doubt is not repeated unasked"
    KEY = "a repeated call has the same key"
    AT_ONCE = "the run of a killed process can be resumed at once"
    RESULT = "the result is that of an undisturbed run"
    ZOMBIE = "whoever lost a run can no longer write to it"
    RACE = "of those who resume a run at once, one gets it"
    CANCEL = "a cancelled run stops, and nothing runs after"
    SOUND = "the store is sound"
    CALM = "nothing hangs, and no other error comes up"


class Kept(msgspec.Struct, frozen=True):
    """How often a promise was *tested*, and its *breaches*."""

    promise: Promise
    tested: int
    breaches: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """PASS, FAIL, or a dash if it was never tested."""
        return "FAIL" if self.breaches else "PASS" if self.tested else "----"


class Tally:
    """Counts tests and breaches."""

    def __init__(self) -> None:
        self._tested: Counter[Promise] = Counter()
        self._breaches: dict[Promise, list[str]] = {}

    @property
    def is_clean(self) -> bool:
        """True if every promise was kept so far."""
        return not self._breaches

    def test(self, promise: Promise, kept: bool, breach: str) -> None:
        """Count a test of *promise*; *breach* says what happened if it was not *kept*."""
        self._tested[promise] += 1
        if not kept:
            known = self._breaches.setdefault(promise, [])
            if len(known) < MOST_BREACHES and breach not in known:
                known.append(breach)

    def kept(self) -> tuple[Kept, ...]:
        """Return the outcome for all promises, in their order."""
        return tuple(Kept(each, self._tested[each], tuple(self._breaches.get(each, ()))) for each in Promise)


class Progress(msgspec.Struct, kw_only=True, tag=True):
    """How far the torture has come."""

    seconds: float = 0.0
    kills: int = 0
    finished: int = 0  # runs that ended
    answered: int = 0  # calls in doubt that were answered
    repeated: int = 0
    zombies: int = 0  # frozen, taken over, woken and refused
    races: int = 0
    cancels: int = 0
    points: dict[str, int] = {}  # kills at each named point, and at "any" moment


class Verdict(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The outcome of a torture; *folder* is where the evidence is kept, None if every promise was kept."""

    seed: int
    progress: Progress
    promises: tuple[Kept, ...]
    folder: str | None = None

    @property
    def is_clean(self) -> bool:
        """True if every promise was kept."""
        return not any(kept.breaches for kept in self.promises)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        return {
            "ok": self.is_clean,
            "seed": self.seed,
            "evidence": self.folder,
            "progress": msgspec.structs.asdict(self.progress),
            "promises": [{**msgspec.structs.asdict(kept), "status": kept.status} for kept in self.promises],
        }
