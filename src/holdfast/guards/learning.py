"""What a bucket has learnt from the server's refusals: the rate that was cut, and the curve on which it comes back.

    rate │            ╭╯   after a long quiet spell quickly again
    that │        ___╭╯    slowly beyond it, feeling for more
  refused├ ╭──────         quickly up to just below it
         │╭╯
    half ├╯                a cut
         └──────────────── time since the cut, as far as calls were made in it

A refusal costs one call and its Retry-After, so the flat part is long enough for some dozens of calls and several such
pauses.
"""

from __future__ import annotations

import math

_QUICK = 1.0  # seconds from the cut to just below the refused rate
_BELOW = 0.97
_SPELL = 8.0  # seconds the rate stays about there …
_SPELL_CALLS = 50.0  # … plus the time of so many calls, so that few of them are refused, however slow the rate …
_SPELL_PAUSES = 8.0  # … plus so many times the pause that the server asked for
_LONGEST_PAUSE = 60.0
_IDLE = 8.0  # time without successes counts only an eighth, because it teaches less
_STEP = 1 / 64  # seconds between two looks at the curve
_STEEPEST = 50.0  # largest exponent: e to that power is more than any rate


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
        self._used = 0.0  # seconds that the successful calls took up, each at the rate of its time
        self._lull = False
        self._due = now
        self._half = half
        self._plateau = max(half, refused * _BELOW if last is None else last._lesson(now, refused))
        self._span = _SPELL + _SPELL_CALLS / self._plateau + _SPELL_PAUSES * min(pause, _LONGEST_PAUSE)
        # A server that accepted no call since the last cut is shut, not slow: only a success proves that it is back.
        self._proof = now if last is None or last._good else math.inf

    def allowed(self, now: float) -> float:
        """Return the rate to which the bucket has recovered."""
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
        """True if it is time to look at the curve again: not each of a thousand calls a second should look."""
        if now < self._due:
            return False
        self._due = now + _STEP
        return True

    def pause_until(self, until: float) -> None:
        """Note that the server wants no call before *until*; an earlier request for a pause is never shortened."""
        self.paused_until = max(self.paused_until, until)

    def admitted(self, cost: float, *, lull: bool) -> None:
        """Note an admitted call; *lull* says that, just before it, fewer calls came than the rate allows."""
        self._calls += 1
        self._spent += cost
        if lull:
            self._lull = True

    def refunded(self, cost: float) -> None:
        """Note that an admitted call was not made after all."""
        if self._calls:
            self._calls -= 1
            self._spent -= cost

    def succeeded(self, now: float, interval: float) -> None:
        """Note that the server accepted a call; *interval* is the seconds a token takes."""
        self._proof = min(self._proof, now)
        self._good += 1
        self._used += self._cost() * interval

    def _lesson(self, now: float, refused: float) -> float:
        """Estimate a rate just below what the server bears, from the time since the cut and the refusal that ended it.

        Between two refusals the server accepted as much as it could (if enough calls came). So the accepted rate is
        about the least it bears, and the refused rate is the most. The estimate lies between them.
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
