"""The calls and steps of a run as they are made, and how they get into the log.

A call gets its number, and so its key, when it begins or is found among the calls that a resumed run recalls: one whose
tool was not called does not count, and gives its number back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from holdfast import events
from holdfast.runs.current import current_key
from holdfast.runs.identity import AMOUNT, STEP, TOOL, Identity, ahead
from holdfast.runs.log import AGAIN, ELSEWHERE, LOST, OURS, SPENT, UNKEPT, Log, Outcome, Write
from holdfast.runs.recalled import Recalled
from holdfast.stores.ledger import Claim, Ledger
from holdfast.stores.store import Memory
from holdfast.values.canonical import untyped
from holdfast.values.said import CACHED, SAID


class Step(msgspec.Struct, eq=False):
    """One call or step of a run."""

    _steps: Steps
    name: str
    parent: str
    _base: bytes
    is_step: bool = False
    is_block: bool = False  # a guarded block: recorded, never answered from the log, as its result is not known
    key: str = ""  # empty until it has a number
    call_id: str = ""
    outcome: bytes | None = None  # the memo of a call that has ended; LOST if it is in doubt
    is_cached: bool = False
    is_tentative: bool = False  # it failed within a call that is made again: made again, too, if that does no harm
    repeated: bool = False
    _known: Outcome | None = None  # what was known of it when it got its number
    _is_doubted: bool = False
    _number: int = 0

    def take(self) -> None:
        """Get a number, unless it has one; a call in doubt then waits for no decision any more."""
        if not self.key:
            self._steps.number(self)
        elif self._is_doubted:
            self.decide()

    def give_back(self) -> None:
        """Give the number back, as the tool was not called: the next equal call gets it."""
        if self._is_doubted:
            self._await_decision()
        elif self.key and not self.is_block:
            self._steps.take_back(self)

    def start(self, arguments: msgspec.Raw | None) -> Write | None:
        """Write that it has begun."""
        self.take()
        payload = self._named()
        if not self.is_block:
            payload["key"] = self.key
        if arguments is not None:
            payload["arguments"] = arguments
        if self.repeated and self._is_counted:
            payload["repeat"] = True
        if self.parent:
            payload["parent"] = self.parent[:16]
        ours = Outcome(self.key, self.name, OURS) if self._steps.is_foreign and not self.is_block else None
        return self._steps.log.write(events.STEP_STARTED if self.is_step else events.TOOL_STARTED, payload, ours)

    def end(self, facts: Mapping[str, Any], memo: bytes | None) -> Write | None:
        """Write how it ended; *memo* is None if it is in doubt or not kept, `SAID` if its result is in *facts*."""
        self.take()
        if self.is_block or self._steps.is_noted:
            return self._end(facts, None)
        # A call that was known before may have a memo, which would count for more than the result in this event.
        if memo == SAID and not self._steps.is_foreign and self._known is None:
            return self._end(facts, None, is_said=True)
        if memo is not None:
            uncounted = self.is_step or facts.get("cached")
            memo = (CACHED if uncounted else b"") + (memo + bytes(facts["result"]) if memo == SAID else memo)
        memo = memo or self._steps.lost(ended=facts["status"] == "success")
        return self._end(facts, Outcome(self.key, self.name, memo))

    def end_uncalled(self, facts: Mapping[str, Any]) -> Write | None:
        """Write that it ended without a call of the tool; a call that was in doubt before stays in doubt."""
        memo = self._steps.lost(ended=self.is_unkept) if self.outcome == LOST else None
        if memo is None and self._steps.is_foreign and not self.is_block:
            memo = AGAIN  # replaces the mark that its begin left: OURS
        if not (self.repeated and self._is_counted):
            facts = {**facts, "uncalled": True}
        write = self._end(facts, None if memo is None else Outcome(self.key, self.name, memo))
        self.give_back()
        return write

    def leave(self) -> None:
        """Stop being the current call, should an interrupt have prevented that: later calls are not made by it."""
        if self.key and current_key.get() == self.key:
            current_key.set(self.parent)

    def mark_answered(self) -> None:
        """Note that it is answered from the log, and count the calls within it: no code will ask for them."""
        if tools := self._steps.recalled.mark_answered(self.key):
            self._steps.count(tools)

    def doubt(self) -> None:
        """Leave it to the caller to decide about it; until then, equal calls are taken for this one."""
        if not self._is_doubted:  # otherwise it was among the undecided, and another caller may have decided since
            self._is_doubted = True
            self._await_decision()

    def decide(self) -> bool:
        """True if the caller may decide about it: only the first one that asks."""
        return self._steps.undecided.get(self._base, {}).pop(self.key, None) is not None

    def _await_decision(self) -> None:
        self._steps.undecided.setdefault(self._base, {})[self.key] = self

    def _end(self, facts: Mapping[str, Any], outcome: Outcome | None, *, is_said: bool = False) -> Write | None:
        payload = self._named()
        if is_said:
            payload["key"] = self.key
        payload.update(facts)
        return self._steps.log.write(events.STEP_ENDED if self.is_step else events.TOOL_ENDED, payload, outcome)

    @property
    def is_unkept(self) -> bool:
        """True if it is in doubt only because its result was not kept: it ended well."""
        return self.key in self._steps.recalled.unkept

    @property
    def _is_counted(self) -> bool:
        """True if it has begun before in this very run, not only in a run that this one is a fork of."""
        return self.key not in self._steps.recalled.inherited

    def _named(self) -> dict[str, Any]:
        return {"call_id": self.call_id, "name" if self.is_step else "tool": self.name}


class Steps:
    """All calls and steps of one run."""

    def __init__(self, log: Log, count: Callable[[list[str]], None]) -> None:
        self.log = log
        self.count = count  # takes the tools of calls that no code will ask for again
        self.is_noted = False  # it cannot be resumed, so no outcome is remembered
        self.is_foreign = False  # its keys were made elsewhere: all calls that are made here get memos
        self.recalled = Recalled()
        self.undecided: dict[bytes, dict[str, Step]] = {}  # calls in doubt, by their base, the oldest first
        self._identity = Identity()
        self._lock = threading.Lock()
        self._begun: dict[bytes, int] = {}  # how many calls of each kind have begun

    def lost(self, *, ended: bool) -> bytes:
        """The mark to remember for a call that is in doubt; *ended* if it ended well."""
        return OURS if self.is_foreign else UNKEPT if ended else LOST

    def begin(self, root: str, secret: bytes, *, is_noted: bool = False) -> None:
        """Get ready for the calls of a run; their keys are made from *root* and *secret*."""
        self.is_noted = is_noted
        self._identity = Identity(root, secret)

    def recall(self, memory: Memory) -> None:
        """Take up what is known of the calls from before the run was interrupted."""
        self.recalled = Recalled.of(memory, self.log.store, self._identity)
        self.is_foreign = self.recalled.is_foreign
        spent = self.recalled.spent_elsewhere
        if spent and self.log.claim is not None:  # the runs that tell of them may be deleted before the next resume
            self.log.store.writer.submit(partial(_keep, self.log.claim, spent))

    def step(self, name: str, sign: bytes, *, kind: bytes = TOOL, shown: Callable[[], bytes] | None = None) -> Step:
        """The next call of *name* with the arguments *sign*; its `outcome` is set if it was made before.

        *shown* gives the sign of the arguments as an event shows them, if it may differ from *sign*.
        """
        parent = current_key.get()
        if self.is_noted:
            return Step(self, name, parent, os.urandom(12), is_step=kind == STEP)
        base = self._identity.base(parent, name, sign, kind)
        if self.is_foreign and not self._is_known(base, parent):
            # It is found by what its event shows: all arguments, but not the types of their values.
            base = self._identity.base(parent, name, untyped(sign if shown is None else shown()), kind)
        step = Step(self, name, parent, base, is_step=kind == STEP)
        if self.recalled.calls:
            self._look_up(step)
        waiting = self.undecided.get(base) if self.undecided else None
        if waiting and step.outcome is None and (oldest := list(waiting.values())[:1]):  # other threads may decide now
            return oldest[0]
        return step

    def block(self, name: str) -> Step:
        """A guarded block; it equals no other call or block."""
        return Step(self, name, current_key.get(), os.urandom(12), is_block=True)

    def spent(self, unit: str, amount: float) -> Outcome | None:
        """What to remember of an amount that is reported outside of any call; None if it was reported before."""
        step = self.step(unit, repr(amount).encode(), kind=AMOUNT)
        if step.outcome is not None:
            return None
        step.take()
        return Outcome(step.key, unit, SPENT)

    def number(self, step: Step) -> None:
        """Give *step* the next number of its kind."""
        with self._lock:
            number = self._begun.get(step._base, 0)
            own = self._identity.key(step._base, step.parent, number)
            known = self.recalled.take(own) if self.recalled.calls else None  # another thread took it and put it back
            self._give(step, number, own, known)
            if step.is_block or self.is_noted:  # it equals no other: a proxy may note calls for weeks
                del self._begun[step._base]

    def take_back(self, step: Step) -> None:
        """Take back the number of *step*, unless equal calls have begun since."""
        with self._lock:
            if self._begun.get(step._base) != step._number + 1:
                return
            self._begun[step._base] = step._number
            if step._known is not None:
                self.recalled.put_back(step._known)
            step.key = ""

    def _look_up(self, step: Step) -> None:
        with self._lock:
            number = self._begun.get(step._base, 0)
            own = self._identity.key(step._base, step.parent, number)
            known = self.recalled.take(own)
            if known is None:
                number, own, known = self._look_ahead(step, number, own)
            if known is None:
                return
            self._give(step, number, own, known)
        if step.key != own and self.log.claim is not None and not self.recalled.shows(own, step.key):
            self.log.store.writer.submit(partial(_move, self.log.claim, own, step.name, step.key))
        if (bare := known.bare) != AGAIN:
            step.is_cached = len(bare) < len(known.memo)
            step.is_tentative = step.key in self.recalled.tentative
            step.outcome = bare

    def _is_known(self, base: bytes, parent: str) -> bool:
        """True if a recalled call of that kind has the very key that it gets here."""
        numbers = ahead(self._begun.get(base, 0))
        return any(self._identity.key(base, parent, number) in self.recalled.calls for number in numbers)

    def _look_ahead(self, step: Step, first: int, own: str) -> tuple[int, str, Outcome | None]:
        """The number, key and outcome of *step*, if nothing is known of the call with its *first* number and *own* key:
        those of the next equal call, else of any call from elsewhere that may be this one.
        """
        for number in ahead(first)[1:]:
            key = self._identity.key(step._base, step.parent, number)
            if (known := self.recalled.take(key)) is not None:
                return number, key, known
        return first, own, self.recalled.take_any(own, step.name)

    def _give(self, step: Step, number: int, own: str, known: Outcome | None) -> None:
        self._begun[step._base] = number + 1
        step._number = number
        step._known = known
        step.key = own if known is None else known.key
        step.call_id = step.key[:16]


def _keep(claim: Claim, outcomes: Iterable[Outcome], ledger: Ledger) -> None:
    for each in outcomes:
        ledger.remember(ledger.claimed(claim), bytes.fromhex(each.key), each.name, each.memo)


def _move(claim: Claim, own: str, name: str, key: str, ledger: Ledger) -> None:
    ledger.remember(ledger.claimed(claim), bytes.fromhex(own), name, ELSEWHERE + key.encode())
