"""What the tools and the agent of one process share: the journal, and the points at which the process may die.

Each tool writes to the journal when it is entered, when it has its effect and when it is left, with the idempotency key
of its call. No two calls return the same mark. The agent decides a call in doubt by looking for its key among the
effects.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from holdfast.errors import InDoubt, RecordedError
from holdfast.runs import Run
from holdfast.torture import journal
from holdfast.torture.journal import Journal, read
from holdfast.torture.shapes import Shape, given

Receipt = dict[str, str]  # the result of a call: its key, its mark and its value

PROGRESS, NOTE = "progress", "note"  # events of the agent's own
STREAMS: Final = ("pages", "publish")  # tools that yield several receipts; the last one counts
# The points around one call, in the order in which a process passes them.
POINTS: Final = ("calling", "called", "inside", "effected", "ending", "returned", "acked")


class Declined(Exception):
    """An error class that only the agent knows: a resumed run gets it as a `RecordedError`."""


REFUSALS: Final = (ValueError, Declined, RecordedError)


class Desk:
    """One process at work in *run*; *pass_by* is called with each point that it passes."""

    def __init__(self, run: Run, shape: Shape, journal: Journal, pass_by: Callable[[str], object]) -> None:
        self.run = run
        self._shape = shape
        self.journal = journal
        self.pass_by = pass_by
        self._numbers = itertools.count()
        self._tries: Counter[str] = Counter()

    # -- inside a tool -------------------------------------------------------------------------------------------------

    def begin(self, tool: str, label: str) -> str:
        """Enter the tool; return the key of the call."""
        self.pass_by("called")
        key = self.run.idempotency_key or ""
        self.journal.say(journal.BEGIN, key, tool, label)
        self.pass_by("inside")
        return key

    def effect(self, tool: str, label: str, key: str) -> Receipt:
        """Have the effect of the call, in one write to the journal."""
        receipt = self._receipt(tool, label, key)
        self.journal.say(journal.EFFECT, key, tool, label, mark=receipt["mark"])
        self.pass_by("effected")
        return receipt

    def end(self, tool: str, label: str, receipt: Receipt) -> Receipt:
        """Leave the tool."""
        self.journal.say(journal.END, receipt["key"], tool, label, mark=receipt["mark"])
        self.pass_by("ending")
        return receipt

    def act(self, tool: str, label: str) -> Receipt:
        """Enter the tool, have its effect and leave it."""
        return self.end(tool, label, self.effect(tool, label, self.begin(tool, label)))

    def refusal(self, tool: str, label: str, kind: type[Exception]) -> Exception:
        """Return the error of a tool that refuses to do what it is asked; its text is a receipt."""
        receipt = self._receipt(tool, label, self.begin(tool, label))
        return kind("|".join(self.end(tool, label, receipt).values()))

    def stumble(self, tool: str, label: str) -> None:
        """Fail the first time that this process calls the tool with *label*; a retry succeeds."""
        self._tries[label] += 1
        if self._tries[label] == 1:
            self.begin(tool, label)
            raise ConnectionError("not now")

    # -- around a call -------------------------------------------------------------------------------------------------

    async def settle(self, call: Callable[[], Any]) -> str:
        """Make a call and see it through: decide a call in doubt, catch a refusal, write that its result was seen.

        A call in doubt is made twice before it is decided: code that retries whatever fails must not repeat it that
        way.
        """
        self.pass_by("calling")
        try:
            try:
                with contextlib.suppress(InDoubt):
                    return self._saw(await given(call()))
                receipt = await given(call())
            except InDoubt as doubt:
                receipt = await self._decide(doubt)
        except REFUSALS as error:
            receipt = _told(error)
        return self._saw(receipt)

    async def report(self, number: int) -> None:
        """Emit one event and commit another."""
        self.run.emit(NOTE, mark=self._mark(), number=number)
        mark = self._mark()
        await self._shape.do(self.run, "commit", PROGRESS, mark=mark, number=number)
        self.journal.say(journal.ACK, tool=PROGRESS, mark=mark)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _mark(self) -> str:
        """Return a mark that no other call or event has; it begins with the life that made it."""
        return f"{self.journal.life}.{next(self._numbers)}"

    def _receipt(self, tool: str, label: str, key: str) -> Receipt:
        return {"key": key, "mark": self._mark(), "value": f"{tool} {label}"}

    def _saw(self, result: Receipt | list[Receipt]) -> str:
        """Write that the result of a call was seen: from now on it must be on disk."""
        receipt = result[-1] if isinstance(result, list) else result
        self.pass_by("returned")
        self.journal.say(journal.ACK, receipt["key"], mark=receipt["mark"])
        self.pass_by("acked")
        return receipt["value"]

    async def _decide(self, doubt: InDoubt) -> Receipt | list[Receipt]:
        made = self._made(doubt)
        if made is None:
            repeated: Receipt | list[Receipt] = await given(doubt.repeat())
            return repeated
        await self._shape.do(doubt, "answer", made)
        return made

    def _made(self, doubt: InDoubt) -> Receipt | list[Receipt] | None:
        """Return the result of a call in doubt if it had its effect; None if not, since no process acts for a dead one.

        The decision is written to the journal before it is carried out.
        """
        effects = [line for line in read(self.journal.path) if line.word == journal.EFFECT and line.key == doubt.key]
        self.journal.say(journal.ANSWER if effects else journal.REPEAT, doubt.key, doubt.tool)
        if not effects:
            return None
        receipt = {"key": doubt.key, "mark": effects[0].mark, "value": f"{doubt.tool} {effects[0].label}"}
        return [receipt] if doubt.tool in STREAMS else receipt


def _told(error: Exception) -> Receipt:
    """Return the receipt in the text of a refusal, whether the tool raised it now or the log told it."""
    return dict(zip(("key", "mark", "value"), str(error).split("|"), strict=True))
