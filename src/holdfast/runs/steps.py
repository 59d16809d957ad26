"""The calls and steps of a run: who each one is, what is remembered of it, and how it gets into the log.

A call is known by the call or step that makes it, its name, its arguments, and how many such calls have begun before it
in this run; not by its place in time, so calls that run side by side keep their identity. It gets its number when it
begins or is found in memory: one whose tool was not called is no call, and is asked anew.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from holdfast import events
from holdfast.canonical import encode
from holdfast.history import RunSnapshot
from holdfast.memo import is_error
from holdfast.runs.current import current_key
from holdfast.runs.log import Log, Outcome, Write
from holdfast.said import CACHED, SAID
from holdfast.stores.store import Memory

# What stands in the place of a memo:
LOST = b""  # the call ended, or may have, and nobody knows with what
AGAIN = b"a"  # its failure ended the run: whoever forks the run makes it anew
AMOUNT = b"$"  # it is no call, but an amount that was spent

_WHO, _WHOSE = 24, 8  # the digits of a key: who it is, and the first of whoever made it
_NOBODY = "0" * _WHOSE
_AHEAD = 8  # numbers at which a call of a resumed run is looked for
_DEEPEST = 6  # levels of an argument that are looked into where it cannot be told as a whole


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
    repeated: bool = False
    _known: bytes | None = None  # the outcome as it was found
    _number: int = 0

    def take(self) -> None:
        """Get a number, unless it has one."""
        if not self.key:
            self._steps.number(self)

    def give_back(self) -> None:
        """The tool was not called after all: whoever asks for the same next is this call."""
        if self.key and not self.is_block:
            self._steps.take_back(self)

    def start(self, arguments: msgspec.Raw | None) -> Write | None:
        """Write that it has begun."""
        if not self.key or self._steps.undecided:
            self._begin()
        payload = self._named()
        if not self.is_block:
            payload["key"] = self.key
        if arguments is not None:
            payload["arguments"] = arguments
        if self.repeated:
            payload["repeat"] = True
        if self._parent:
            payload["parent"] = self._parent[:16]
        return self._steps.log.write(events.STEP_STARTED if self.is_step else events.TOOL_STARTED, payload)

    def end(self, facts: Mapping[str, Any], memo: bytes | None) -> Write | None:
        """Write how it ended; *memo* is None if it is in doubt, or its result could not be kept; `SAID` if it is in
        *facts*.
        """
        if not self.key or self._steps.undecided:
            self._begin()
        if self.is_block or self._steps.is_noted:
            return self._end(facts, None)
        if memo == SAID and self._steps.says and self._known is None:  # else there may be a memo, which counts for more
            return self._end(facts, None, is_said=True)
        if memo is not None:
            memo = (CACHED if facts.get("cached") else b"") + (memo + bytes(facts["result"]) if memo == SAID else memo)
        return self._end(facts, Outcome(self.key, self.name, memo or LOST))

    def end_uncalled(self, facts: Mapping[str, Any]) -> None:
        """Write that it began, and that the tool was not called; one that was in doubt before is so still."""
        self._end(facts, Outcome(self.key, self.name, LOST) if self.outcome == LOST else None)
        self.give_back()

    def stands(self) -> None:
        """It is what it was before; nobody will ask for what it called."""
        self._steps.standing.add(self.key[:_WHOSE])

    def doubt(self) -> None:
        """Somebody must decide about it: till then, whoever asks for the same asks for this."""
        self._steps.undecided.setdefault(self._base, {})[self.key] = self

    @property
    def is_undecided(self) -> bool:
        """Whether somebody must still decide about it."""
        return self.key in self._steps.undecided.get(self._base, ())

    def _end(self, facts: Mapping[str, Any], outcome: Outcome | None, *, is_said: bool = False) -> Write | None:
        payload = self._named()
        if is_said:
            payload["key"] = self.key
        payload.update(facts)
        return self._steps.log.write(events.STEP_ENDED if self.is_step else events.TOOL_ENDED, payload, outcome)

    def _named(self) -> dict[str, Any]:
        return {"call_id": self.call_id, "name" if self.is_step else "tool": self.name}

    def _begin(self) -> None:
        """It is this call, and no longer for somebody to decide."""
        if not self.key:
            self._steps.number(self)
        if self._steps.undecided:
            self._steps.undecided.get(self._base, {}).pop(self.key, None)


class Steps:
    """All calls and steps of one run."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.standing: set[str] = set()  # the first digits of the keys of calls that stand as they were
        self.undecided: dict[bytes, dict[str, Step]] = {}  # by what is asked for, the oldest first
        self.is_noted = False  # nobody will ask for its calls again
        self.says = True  # events may stand for memos: not those of another store
        self._secret = b""
        self._digest = blake2b()  # of what all keys of the run have in common
        self._lock = threading.Lock()
        self._begun: dict[bytes, int] = {}  # how many calls of each kind have begun
        self._memory: dict[str, tuple[str, bytes]] = {}  # key → name and outcome, of calls made before a resume
        self._foreign: dict[str, list[str]] | None = None  # name → keys, where keys cannot be recognised

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
        for key in _descendants(known, again):
            name, outcome = known[key]
            if is_error(outcome):  # what made the call fail
                known[key] = (name, AGAIN)
        self._memory = known
        self.says = not memory.is_foreign
        if memory.is_foreign:
            self._foreign = {}
            for key, (name, _) in known.items():
                self._foreign.setdefault(name, []).append(key)

    def step(self, name: str, sign: bytes, *, kind: bytes = b"t") -> Step:
        """The next call of *name* with the arguments *sign*; its `outcome` is set if it was made before."""
        parent = current_key.get()
        digest = self._digest.copy()
        digest.update(b"\0".join((parent.encode(), kind, name.encode("utf-8", "surrogatepass"), sign)))
        base = digest.digest()
        step = Step(self, name, parent, base, is_step=kind == b"s")
        if self._memory:
            self._look_up(step)
        waiting = self.undecided.get(base)
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

    def number(self, step: Step) -> None:
        """Give *step* the next number of its kind."""
        with self._lock:
            number = self._begun.get(step._base, 0)
            key = self._key(step, number)
            if (known := self._memory.pop(key, None)) is not None:  # others were quicker, and left it this number
                step._known = known[1]
            self._give(step, number, key)

    def take_back(self, step: Step) -> None:
        """Take a number back, unless others of its kind have begun since."""
        with self._lock:
            if step.is_undecided or self._begun.get(step._base) != step._number + 1:
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

    def _look_up(self, step: Step) -> None:
        with self._lock:
            first = self._begun.get(step._base, 0)
            for number in range(first, first + _AHEAD):  # one may have ended without a trace: its twin stands for it
                key = self._key(step, number)
                if (known := self._memory.pop(key, None)) is not None:
                    break
            if known is None and self._foreign is not None and (keys := self._foreign.get(step.name)):
                number, key = first, keys.pop(0)
                known = self._memory.pop(key, None)
            if known is None:
                return
            self._give(step, number, key)
        step._known = outcome = known[1]
        if outcome != AGAIN:
            step.is_cached = outcome.startswith(CACHED)
            step.outcome = outcome.removeprefix(CACHED)

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


def _in_doubt(snapshot: RunSnapshot) -> dict[str, tuple[str, bytes]]:
    """The calls that had begun and not ended; those of blocks have no key, and are not asked for again."""
    return {call.key: (call.name, LOST) for call in snapshot.active_calls.values() if call.key}


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


def likeness(arguments: object, depth: int = 0) -> bytes:
    """The bytes of *arguments* as far as they can be told: of what cannot, its type stands for it."""
    if (whole := encode(arguments)) is not None:
        return whole
    parts: list[bytes] = []
    if depth < _DEEPEST and isinstance(arguments, Mapping):
        parts = sorted(_digest(likeness(pair, depth + 1)) for pair in arguments.items())
    elif depth < _DEEPEST and isinstance(arguments, list | tuple):
        parts = [_digest(likeness(part, depth + 1)) for part in arguments]
    return _digest(type(arguments).__qualname__.encode("utf-8", "surrogatepass"), *parts)


def _digest(*parts: bytes) -> bytes:
    return blake2b(b"\0".join(parts), digest_size=16).digest()
