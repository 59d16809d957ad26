"""What a bucket has learnt from the server's refusals: the rate that was cut, and the curve on which it comes back.

    rate │            ╭╯   after a long quiet spell quickly again
    that │        ___╭╯    slowly beyond it, feeling for more
  refused├ ╭──────         quickly up to just below it
         │╭╯
    half ├╯                a cut
         └──────────────── time since the cut, as far as calls were made in it

How long the flat part is follows from what a refusal costs: one call in some dozens, and its Retry-After.
"""

from __future__ import annotations

import math

_QUICK = 1.0  # seconds from the cut to just below the refused rate
_BELOW = 0.97
_SPELL = 8.0  # seconds the rate stays about there …
_SPELL_CALLS = 50.0  # … and the time of so many calls, so that few of them are refused, however slow the rate …
_SPELL_PAUSES = 8.0  # … and so many times the pause that the server asked for
_LONGEST_PAUSE = 60.0
_IDLE = 8.0  # time in which no calls succeed teaches less than time in which they do
_STEP = 1 / 64  # seconds between two looks at the curve
_STEEPEST = 50.0  # e to the power of that is more than any rate


class Learnt:
    """One cut and the recovery from it. Rates are in tokens a second, like the bucket's."""

    __slots__ = (
        "cut_at", "paused_until", "_calls", "_due", "_good", "_half", "_lull", "_plateau", "_proof", "_span", "_spent",
        "_used",
    )  # fmt: skip

    def __init__(self, now: float, refused: float, half: float, pause: float, last: Learnt | None) -> None:
        self.cut_at = now
        self.paused_until = now
        self._calls = 0
        self._spent = 0.0
        self._good = 0
        self._used = 0.0  # seconds it took, at the rates there were, to make the calls that succeeded
        self._lull = False
        self._due = now
        self._half = half
        self._plateau = max(half, refused * _BELOW if last is None else last._lesson(now, refused))
        self._span = _SPELL + _SPELL_CALLS / self._plateau + _SPELL_PAUSES * min(pause, _LONGEST_PAUSE)
        # A server that took nothing since the last cut is not too slow but closed: only a success shows it open again.
        self._proof = now if last is None or last._good else math.inf

    def allowed(self, now: float) -> float:
        """The rate to which it has recovered."""
        elapsed = now - self.paused_until
        if elapsed <= 0:
            return self._half
        quick = max(now - max(self._proof, self.paused_until), elapsed / _IDLE) / _QUICK
        if quick < 1.0:
            return self._plateau - (self._plateau - self._half) * (1.0 - quick) ** 3
        used = max(min(self._used, elapsed), elapsed / _IDLE) - _QUICK
        if used <= 0:
            return self._plateau
        return self._plateau * math.exp(min(0.5 * (used / self._span) ** 3, _STEEPEST))

    def is_due(self, now: float) -> bool:
        """Whether it is time to look at the curve again: not at every one of a thousand calls a second."""
        if now < self._due:
            return False
        self._due = now + _STEP
        return True

    def pause_until(self, until: float) -> None:
        """The server wants no call before *until*; a pause that was asked for is never shortened."""
        self.paused_until = max(self.paused_until, until)

    def admitted(self, cost: float, *, lull: bool) -> None:
        """A call was let through; with *lull* after a time in which fewer calls came than the rate allows."""
        self._calls += 1
        self._spent += cost
        if lull:
            self._lull = True

    def refunded(self, cost: float) -> None:
        """A call that was let through was not made after all."""
        if self._calls:
            self._calls -= 1
            self._spent -= cost

    def succeeded(self, now: float, interval: float) -> None:
        """The server took a call; *interval* is the seconds a token takes."""
        self._proof = min(self._proof, now)
        self._good += 1
        self._used += self._cost() * interval

    def _lesson(self, now: float, refused: float) -> float:
        """Just below what the server bears, as far as the time since the cut and the refusal that ended it tell.

        From one refusal to the next the server took what it could (if enough was offered), so what it took is about the
        least it bears; the refused rate is the most. The truth lies between.
        """
        if not self._good or not self._calls:
            return self._plateau
        elapsed = now - self.paused_until
        if self._lull or elapsed <= 0:
            return refused * _BELOW
        taken = (self._good + 1) * self._cost() / elapsed
        return (min(refused, max(taken, refused / 2)) + refused) / 2 * _BELOW

    def _cost(self) -> float:
        return self._spent / self._calls if self._calls else 1.0
