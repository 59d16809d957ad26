"""The calls and steps of a run: who each one is, what is remembered of it, and how it gets into the log.

A call is known by the call or step that makes it, its name, its arguments, and how many such calls have begun before it
in this run; not by its place in time, so calls that run side by side keep their identity. It gets its number when it
begins or is found in memory: one whose tool was not called is no call, and is asked anew.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec

from holdfast import events
from holdfast.history import RunSnapshot
from holdfast.runs.current import current_key
from holdfast.runs.foreign import begun, history, is_key, tell
from holdfast.runs.log import Log, Outcome, Write
from holdfast.stores.ledger import Claim, Ledger
from holdfast.stores.store import Memory
from holdfast.values.canonical import untyped
from holdfast.values.memo import is_error
from holdfast.values.said import CACHED, SAID

# What stands in the place of a memo:
LOST = b""  # the call ended, or may have, and nobody knows with what
AGAIN = b"a"  # its failure ended the run: whoever forks the run makes it anew
AMOUNT = b"$"  # it is no call, but an amount that was spent
OURS = b"o"  # LOST, in an imported run: but this store made the key
ELSEWHERE = b"f"  # before the key that the call has had since before the run was imported: all else stands there

_WHO, _WHOSE = 24, 8  # the digits of a key: who it is, and the first of whoever made it
_NOBODY = "0" * _WHOSE
_AHEAD = 8  # numbers at which a call of a resumed run is looked for


class Step(msgspec.Struct, eq=False):
    """One call or step of a run."""

    _steps: Steps
    name: str
    _parent: str
    _base: bytes
    is_step: bool = False
    is_block: bool = False  # recorded, never remembered: nobody knows what it did
    key: str = ""  # none yet
    call_id: str = ""
    outcome: bytes | None = None  # the memo of a call that has ended; LOST if it is in doubt
    is_cached: bool = False
    is_tentative: bool = False  # it failed, and who asked for it is asked anew: to be made again if that does no harm
    repeated: bool = False
    _known: bytes | None = None  # the outcome as it was found
    _is_doubted: bool = False
    _number: int = 0

    def take(self) -> None:
        """Get a number, unless it has one: it is this call, and no longer for somebody to decide."""
        if not self.key:
            self._steps.number(self)
        if self._steps.undecided:
            self._steps.undecided.get(self._base, {}).pop(self.key, None)

    def give_back(self) -> None:
        """The tool was not called after all: whoever asks for the same next is this call."""
        if self._is_doubted:
            self.doubt()
        elif self.key and not self.is_block:
            self._steps.take_back(self)

    def start(self, arguments: msgspec.Raw | None) -> Write | None:
        """Write that it has begun."""
        if not self.key or self._steps.undecided:
            self.take()
        payload = self._named()
        if not self.is_block:
            payload["key"] = self.key
        if arguments is not None:
            payload["arguments"] = arguments
        if self.repeated and self._is_counted:
            payload["repeat"] = True
        if self._parent:
            payload["parent"] = self._parent[:16]
        ours = None if self._steps.says or self.is_block else Outcome(self.key, self.name, OURS)
        return self._steps.log.write(events.STEP_STARTED if self.is_step else events.TOOL_STARTED, payload, ours)

    def end(self, facts: Mapping[str, Any], memo: bytes | None) -> Write | None:
        """Write how it ended; *memo* is None if it is in doubt, or its result could not be kept; `SAID` if it is in
        *facts*.
        """
        if not self.key or self._steps.undecided:
            self.take()
        if self.is_block or self._steps.is_noted:
            return self._end(facts, None)
        if memo == SAID and self._steps.says and self._known is None:  # else there may be a memo, which counts for more
            return self._end(facts, None, is_said=True)
        if memo is not None:
            uncounted = self.is_step or facts.get("cached")
            memo = (CACHED if uncounted else b"") + (memo + bytes(facts["result"]) if memo == SAID else memo)
        return self._end(facts, Outcome(self.key, self.name, memo or self._steps.lost))

    def end_uncalled(self, facts: Mapping[str, Any]) -> Write | None:
        """Write that it began, and that the tool was not called; one that was in doubt before is so still."""
        memo = self._steps.lost if self.outcome == LOST else None
        if memo is None and not self._steps.says and not self.is_block:
            memo = AGAIN  # in the place of what its begin left
        if not (self.repeated and self._is_counted):
            facts = {**facts, "uncalled": True}
        write = self._end(facts, None if memo is None else Outcome(self.key, self.name, memo))
        self.give_back()
        return write

    def leave(self) -> None:
        """What is called from here on is not called by it, though an interrupt may have kept it from saying so."""
        if self.key and current_key.get() == self.key:
            current_key.set(self._parent)

    def stands(self) -> None:
        """It is what it was before; nobody will ask for what it called."""
        self._steps.stand(self.key)

    def doubt(self) -> None:
        """Somebody must decide about it: till then, whoever asks for the same asks for this."""
        self._is_doubted = True
        self._steps.undecided.setdefault(self._base, {})[self.key] = self

    def decide(self) -> bool:
        """Whether it is for the caller to decide about it: for the first who asks."""
        return self._steps.undecided.get(self._base, {}).pop(self.key, None) is not None

    def _end(self, facts: Mapping[str, Any], outcome: Outcome | None, *, is_said: bool = False) -> Write | None:
        payload = self._named()
        if is_said:
            payload["key"] = self.key
        payload.update(facts)
        return self._steps.log.write(events.STEP_ENDED if self.is_step else events.TOOL_ENDED, payload, outcome)

    @property
    def _is_counted(self) -> bool:
        """Whether it has begun in this very run before, not only in one that this is a fork of."""
        return self.key not in self._steps.inherited

    def _named(self) -> dict[str, Any]:
        return {"call_id": self.call_id, "name" if self.is_step else "tool": self.name}


class Steps:
    """All calls and steps of one run."""

    def __init__(self, log: Log, count: Callable[[list[str]], None]) -> None:
        self.log = log
        self._count = count  # is told the tools of calls that nobody will ask for again
        self.standing: set[str] = set()  # the first digits of the keys of calls that stand as they were
        self.undecided: dict[bytes, dict[str, Step]] = {}  # by what is asked for, the oldest first
        self.inherited: set[str] = set()  # the keys of calls that a fork knows from before it, and that began not in it
        self.is_noted = False  # nobody will ask for its calls again
        self.says = True  # events may stand for memos: not those of another store
        self._secret = b""
        self._digest = blake2b()  # of what all keys of the run have in common
        self._lock = threading.Lock()
        self._begun: dict[bytes, int] = {}  # how many calls of each kind have begun
        self._memory: dict[str, tuple[str, bytes]] = {}  # key → name and outcome, of calls made before a resume
        self._inner: dict[str, list[str]] = {}  # those within calls, by the first digits of whoever made them
        self._tentative: set[str] = set()  # failed calls within calls that are made again
        self._uncounted: set[str] = set()  # steps of an imported run
        self._elsewhere: dict[str, str] = {}  # the keys that calls had before the run was imported, by those of here
        self._unclaimed: dict[tuple[str, str], dict[str, str]] = {}  # by name and maker, those nobody has asked for yet

    @property
    def lost(self) -> bytes:
        """What to remember of a call that is in doubt."""
        return LOST if self.says else OURS

    def begin(self, root: str, secret: bytes, *, is_noted: bool = False) -> None:
        """Be ready for the calls of a run; their keys start from *root* and *secret*."""
        self.is_noted = is_noted
        self._secret = secret
        self._digest = blake2b(root.encode() + b"\0", key=secret, digest_size=_WHO // 2)

    def recall(self, memory: Memory) -> None:
        """Know what was done before the run was interrupted."""
        known = {key.hex(): (name, outcome) for key, name, outcome in memory.memos}
        known |= _in_doubt(memory.snapshot)
        again = [key for key, (_, outcome) in known.items() if outcome == AGAIN]
        below = _descendants(known, again)
        self._tentative = {key for key in below if is_error(known[key][1].removeprefix(CACHED))}
        self._memory = known
        if memory.snapshot.forked_from is not None:
            self.inherited = known.keys() - begun(self.log.store.events(memory.snapshot.id))
        self.says = not memory.is_foreign
        if memory.is_foreign:
            self._recognise(memory)
        for key in known:
            if key[_WHO:] != _NOBODY:
                self._inner.setdefault(key[_WHO:], []).append(key)

    def step(self, name: str, sign: bytes, *, kind: bytes = b"t") -> Step:
        """The next call of *name* with the arguments *sign*; its `outcome` is set if it was made before."""
        step = self._asked(current_key.get(), name, sign, kind)
        if self._memory:
            self._look_up(step)
        waiting = self.undecided.get(step._base)
        return next(iter(waiting.values())) if step.outcome is None and waiting else step

    def block(self, name: str) -> Step:
        """A guarded block, which is like no other."""
        return Step(self, name, current_key.get(), os.urandom(_WHO // 2), is_block=True)

    def spent(self, unit: str, amount: float) -> Outcome | None:
        """What to remember of an amount that is reported outside of any call; None if it was reported before."""
        step = self.step(unit, repr(amount).encode(), kind=AMOUNT)
        if step.outcome is not None:
            return None
        step.take()
        return Outcome(step.key, unit, AMOUNT)

    def stand(self, key: str) -> None:
        """The call *key* is answered from the log, and what it called counts."""
        self.standing.add(key[:_WHOSE])
        if not self._inner:
            return
        tools: list[str] = []
        todo = [key]
        with self._lock:
            while todo:
                below = self._inner.pop(todo.pop()[:_WHOSE], [])
                todo += below
                found = [self._memory[each] for each in below if each in self._memory and each not in self._uncounted]
                tools += [name for name, outcome in found if not outcome.startswith(CACHED)]
        self._count(tools)

    def number(self, step: Step) -> None:
        """Give *step* the next number of its kind."""
        with self._lock:
            number = self._begun.get(step._base, 0)
            key = self._key(step, number)
            if self._memory:
                key, known = self._recollect(key)
                if known is not None:  # others were quicker, and left it this number
                    step._known = known[1]
            self._give(step, number, key)

    def take_back(self, step: Step) -> None:
        """Take a number back, unless others of its kind have begun since."""
        with self._lock:
            if self._begun.get(step._base) != step._number + 1:
                return
            self._begun[step._base] = step._number
            if step._known is not None:
                self._memory[step.key] = (step.name, step._known)
            step.key = ""

    @property
    def unasked(self) -> list[str]:
        """The names of the finished calls that were made before and that nobody has asked for."""
        if not self._memory:
            return []
        with self._lock:
            left = dict(self._memory)
        for key in list(_descendants(left, self.standing)):
            del left[key]
        return [name for name, outcome in left.values() if outcome not in (LOST, AGAIN, AMOUNT)]

    # -- inside --------------------------------------------------------------------------------------------------------

    def _asked(self, parent: str, name: str, sign: bytes, kind: bytes) -> Step:
        if not self.says:
            sign = untyped(sign)  # what an event shows of a value does not say of what type it was
        digest = self._digest.copy()
        digest.update(b"\0".join((parent.encode(), kind, name.encode("utf-8", "surrogatepass"), sign)))
        return Step(self, name, parent, digest.digest(), is_step=kind == b"s")

    def _look_up(self, step: Step) -> None:
        with self._lock:
            first = self._begun.get(step._base, 0)
            for number in range(first, first + _AHEAD):  # one may have ended without a trace: its twin stands for it
                key, known = self._recollect(self._key(step, number))
                if known is not None:
                    break
            if known is None and self._unclaimed:
                number = first
                key, known = self._claim_any(step, number)
            if known is None:
                return
            self._give(step, number, key)
        if not self.says and self.log.claim is not None and (own := self._key(step, number)) != key:
            self.log.store.writer.submit(partial(_move, self.log.claim, own, step.name, key))
        step._known = outcome = known[1]
        if outcome != AGAIN:
            step.is_cached = outcome.startswith(CACHED)
            step.is_tentative = key in self._tentative
            step.outcome = outcome.removeprefix(CACHED)

    def _recollect(self, key: str) -> tuple[str, tuple[str, bytes] | None]:
        """What is known of *key*, or of the one that stands for it."""
        if key not in self._memory and (other := self._elsewhere.get(key)) in self._memory:
            key = other or key
        return key, self._memory.pop(key, None)

    def _claim_any(self, step: Step, number: int) -> tuple[str, tuple[str, bytes] | None]:
        """Take *step* for the oldest call of its name and maker that is left: its arguments may not have been shown."""
        left = self._unclaimed.get((step.name, step._parent[:_WHOSE] or _NOBODY), {})
        for key, own in list(left.items()):
            del left[key]
            if key in self._memory:
                self._memory[own] = (step.name, LOST)  # who has its arguments may be it, and must not be called unasked
                self._elsewhere[self._key(step, number)] = key
                break
        return self._recollect(self._key(step, number))

    def _recognise(self, memory: Memory) -> None:
        """Find out who the calls of an imported run are."""
        known, told = self._memory, dict[str, str]()  # the keys of here by those of elsewhere
        begun: Counter[bytes] = Counter()
        for key, name, kind, parent, sign in tell(history(self.log.store, memory.snapshot.id)):
            step = self._asked(parent, name, sign, kind)
            numbers = range(begun[step._base], begun[step._base] + _AHEAD)
            number = next((number for number in numbers if self._key(step, number) == key), numbers[0])
            begun[step._base] = number + 1
            own = self._key(step, number)
            if kind == AMOUNT:
                known.setdefault(own, (name, AMOUNT))
            elif own != key:
                told[key] = own
            if kind == b"s":
                self._uncounted.add(key)
        kept = {key.hex(): outcome for key, _, outcome in memory.memos}
        ours = {key for key, outcome in kept.items() if outcome == OURS}
        taken = {outcome[1:].decode(): key for key, outcome in kept.items() if outcome.startswith(ELSEWHERE)}
        for key in taken.values():
            del known[key]
        for key in ours:
            known[key] = (known[key][0], LOST)
        in_doubt = {key for key, (_, outcome) in known.items() if outcome == LOST and is_key(key)}
        for key in (*told, *in_doubt):
            if key in in_doubt and key not in ours and key not in taken:
                self._unclaimed.setdefault((known[key][0], key[_WHO:]), {})[key] = told.get(key, key)
        for key, own in told.items():
            if key in known and taken.get(key, own) != own:
                known.setdefault(own, (known[key][0], LOST))
        self._elsewhere = {own: key for key, own in (*told.items(), *taken.items())}

    def _give(self, step: Step, number: int, key: str) -> None:
        self._begun[step._base] = number + 1
        step._number = number
        step.key = key
        step.call_id = key[:16]

    def _key(self, step: Step, number: int) -> str:
        who = step._base
        if number:
            who = blake2b(who + number.to_bytes(8, "big"), key=self._secret, digest_size=_WHO // 2).digest()
        return who.hex() + (step._parent[:_WHOSE] or _NOBODY)


def _move(claim: Claim, own: str, name: str, key: str, ledger: Ledger) -> None:
    ledger.remember(ledger.claimed(claim), bytes.fromhex(own), name, ELSEWHERE + key.encode())


def _in_doubt(snapshot: RunSnapshot) -> dict[str, tuple[str, bytes]]:
    """The calls that had begun and not ended; those of blocks have no key, and are not asked for again."""
    return {call.key: (call.name, LOST) for call in snapshot.active_calls.values() if call.key}


def is_made_by(key: str, other: str) -> bool:
    """Whether the call *key* was made by the call *other*."""
    return key[_WHO:] == other[:_WHOSE]


def _descendants(keys: Iterable[str], ancestors: Iterable[str]) -> list[str]:
    """Those of *keys* that were called by *ancestors*, or by what they called."""
    children: dict[str, list[str]] = {}
    for key in keys:
        children.setdefault(key[_WHO:], []).append(key)
    found: list[str] = []
    todo = [key[:_WHOSE] for key in ancestors]
    while todo:
        below = children.pop(todo.pop(), [])
        found += below
        todo += [key[:_WHOSE] for key in below]
    return found
