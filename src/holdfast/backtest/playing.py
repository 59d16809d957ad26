"""Plays recorded calls against the real guards under other policies, on a clock that jumps from one event to the next.

The guards are those of a live call, asked in the same order: loop, circuit, rate, concurrency. Their random parts
(jitter) are left out, so that the same record and the same policies always give the same numbers.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from holdfast.backtest.reading import GRAIN, Call
from holdfast.category import ErrorCategory
from holdfast.guards.circuit import Circuit, Grant
from holdfast.guards.concurrency import Slots
from holdfast.guards.line import Line, Ticket
from holdfast.guards.loop import LoopGuard, LoopVerdict
from holdfast.guards.rate import Bucket
from holdfast.policy import Policy
from holdfast.tools.limiting import OVERLOADED

ASSUMPTIONS: Final = (
    "Calls come and end as on record: neither changes because earlier calls were refused, waited or were cut.",
    "A call that was refused or never ended on record is played, but its outcome is unknown and is counted apart.",
    "The arguments of a call that was refused are not on record, so it is not refused as a loop again.",
    "Attempts are made as often as on record, with the pauses on record; a policy's own retries are not played.",
    "An attempt that ran into a time limit on record fails under a longer one, too.",
    "All runs share one set of guards, as if they were of one process; caches, fallbacks and budgets are not played.",
    "Policies are those of the file; what decorators in code say is not on record.",
)
_LEAST_CUT: Final = 0.0005  # seconds; durations on record are whole milliseconds


class Played(msgspec.Struct):
    """What a policy would have made of the calls of a tool; times in seconds.

    *circuit*, *rate*, *concurrency* and *loop* count the calls that each of these guards refused; *spared* of them had
    failed on record. *lost* are successes on record that would have been refused, cut by a time limit, or not repeated.
    *failing* is the time spent in calls that failed.
    """

    calls: int = 0
    succeeded: int = 0
    failed: int = 0
    unknown: int = 0
    circuit: int = 0
    rate: int = 0
    concurrency: int = 0
    loop: int = 0
    spared: int = 0
    lost: int = 0
    refused_unknown: int = 0
    timed_out: int = 0
    retries_refused: int = 0
    failing: float = 0.0
    waiting: int = 0
    waited: float = 0.0
    longest_wait: float = 0.0

    @property
    def refused(self) -> int:
        """How many calls would have been refused, by any guard."""
        return self.circuit + self.rate + self.concurrency + self.loop


def play(calls: Iterable[Call], policy_of: Callable[[str], Policy]) -> dict[str, Played]:
    """Return, by tool, what *calls* (sorted by time) would have come to under the policies that *policy_of* returns."""
    stage = _Stage(policy_of)
    for call in calls:
        stage.pass_time(call.at)
        stage.ask(call)
    stage.pass_time(math.inf)
    return {name: guards.played for name, guards in stage.tools.items()}


class _Guards:
    """The guards of one tool under one policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.played = Played()
        self.circuit = Circuit(policy.breaker, itertools.count(), 0, lambda: 0.0) if policy.breaker else None
        self.bucket = Bucket(policy.rate, random=lambda: 0.0) if policy.rate else None
        self.slots = Slots(policy.concurrency) if policy.concurrency else None
        self.line = Line()
        self.waiting: dict[Ticket, _Flight] = {}

    def admit(self, flight: _Flight, now: float) -> bool:
        """Ask the circuit for an attempt; True if it admits it, or there is no circuit."""
        if self.circuit is None:
            return True
        grant = self.circuit.admit(now)
        flight.grant = grant if isinstance(grant, Grant) else None
        return flight.grant is not None

    def release(self, flight: _Flight) -> None:
        """Give back what the circuit granted, as if it had not been asked."""
        if self.circuit is not None and flight.grant is not None:
            self.circuit.release(flight.grant)

    def reserve(self, now: float, ticket: Ticket | None) -> tuple[str, float] | None:
        """Ask rate, then concurrency; return which of them refuses and for how long, None if neither does."""
        if self.bucket is None and self.slots is None:
            return None
        if self.line.heap and self.line.head() is not ticket:
            return "concurrency" if self.bucket is None else "rate", math.inf
        cost = self.policy.priority.cost
        if self.bucket is not None and (wait := self.bucket.admit(now, cost)):
            return "rate", wait
        if self.slots is not None and not self.slots.take():
            if self.bucket is not None:
                self.bucket.refund(cost, now)
            return "concurrency", math.inf
        return None

    def settle(self, flight: _Flight, now: float, category: ErrorCategory | None) -> None:
        """Tell all guards how an attempt went."""
        neutral = category is ErrorCategory.CANCELLED
        duration = now - flight.begun
        if neutral:
            self.release(flight)
        elif self.circuit is not None and flight.grant is not None:
            self.circuit.settle(flight.grant, now, category, duration=duration, sign=flight.call.sign)
        if self.bucket is not None and self.bucket.config.adaptive:
            if category is None:
                self.bucket.succeeded(now)
            elif category is ErrorCategory.RATE_LIMIT:
                self.bucket.limited(now, flight.call.attempts[flight.number].pause, flight.begun)
        if self.slots is not None:
            self.slots.settle(None if neutral else duration, overloaded=category in OVERLOADED)


class _Flight:
    """One call in flight."""

    def __init__(self, call: Call, guards: _Guards) -> None:
        self.call = call
        self.guards = guards
        self.number = 0  # of the current attempt
        self.deadline = call.at + (guards.policy.deadline or math.inf)
        self.asked = self.until = self.begun = call.at
        self.due = -1  # number of its latest plan; earlier plans are void
        self.grant: Grant | None = None
        self.ticket: Ticket | None = None
        self.listens = False  # it is woken when it is its turn; otherwise its wait is known, and it sleeps that long
        self.category: ErrorCategory | None = None
        self.cut = False
        self.spent = self.waited = 0.0


_Action = Callable[[_Flight, float], None]


class _Stage:
    """All tools and runs, and the events to come."""

    def __init__(self, policy_of: Callable[[str], Policy]) -> None:
        self.tools: dict[str, _Guards] = {}
        self._policy_of = policy_of
        self._loops: dict[str, LoopGuard] = {}
        self._order = itertools.count()
        self._due: list[tuple[float, int, _Action, _Flight]] = []

    def pass_time(self, until: float) -> None:
        """Let everything happen that is due by *until*."""
        while self._due and self._due[0][0] <= until:
            now, number, action, flight = heapq.heappop(self._due)
            if number == flight.due:  # otherwise it was woken earlier, and this plan is void
                action(flight, now)

    def ask(self, call: Call) -> None:
        """Play the request for a call."""
        guards = self.tools.get(call.tool)
        if guards is None:
            guards = self.tools[call.tool] = _Guards(self._policy_of(call.tool))
        guards.played.calls += 1
        flight = _Flight(call, guards)
        if self._is_loop(call, guards.policy):
            self._refuse(flight, call.at, "loop")
            return
        self._begin(flight, call.at)
        self.pass_time(call.at)

    def _is_loop(self, call: Call, policy: Policy) -> bool:
        loop = self._loops.setdefault(call.run, LoopGuard())
        if policy.loop is None or (call.sign is None and not loop.stopped):
            return False
        return loop.admit((call.tool, call.sign), policy.loop) is not LoopVerdict.PASS

    def _plan(self, at: float, action: _Action, flight: _Flight) -> None:
        flight.due = next(self._order)
        # Rounded: sums of floats are slightly off, and an attempt that ends must make room for one that begins then.
        heapq.heappush(self._due, (round(at, 6), flight.due, action, flight))

    def _begin(self, flight: _Flight, now: float) -> None:
        """Request an attempt."""
        flight.asked = now
        flight.until = round(min(now + flight.guards.policy.max_wait, flight.deadline), 6)
        self._admit(flight, now)

    def _admit(self, flight: _Flight, now: float) -> None:
        """Ask the guards in their order; a call that must wait asks again when it may be let through, or is woken."""
        guards = flight.guards
        if now >= flight.deadline:
            flight.cut = True
            self._stop_waiting(flight, now)
            self._finish(flight, flight.category or ErrorCategory.TIMEOUT)
            return
        if not guards.admit(flight, now):
            self._refuse(flight, now, "circuit")
            return
        refusal = guards.reserve(now, flight.ticket)
        if refusal is None:
            self._make(flight, now)
            return
        guards.release(flight)
        who, wait = refusal
        patience = flight.until - now
        if patience <= 0 or patience < wait < math.inf:
            self._refuse(flight, now, who)
            return
        if flight.ticket is None:
            flight.ticket = guards.line.join(now, guards.policy.priority.rank)
            guards.waiting[flight.ticket] = flight
        flight.listens = wait == math.inf
        self._plan(flight.until if flight.listens else now + max(wait, 1e-6), self._admit, flight)

    def _make(self, flight: _Flight, now: float) -> None:
        """Let the attempt through; it takes as long as on record, or as the policy lets it."""
        guards, call = flight.guards, flight.call
        self._stop_waiting(flight, now)
        flight.begun = now
        if not call.attempts:
            guards.settle(flight, now, ErrorCategory.CANCELLED)
            self._wake(guards, now)
            self._finish(flight, ErrorCategory.CANCELLED)
            return
        limit = min(guards.policy.timeout or math.inf, flight.deadline - now)
        self._plan(now + min(call.attempts[flight.number].duration, limit), self._end, flight)

    def _end(self, flight: _Flight, now: float) -> None:
        guards, attempt = flight.guards, flight.call.attempts[flight.number]
        spent = now - flight.begun
        cut = attempt.duration - spent > _LEAST_CUT
        flight.cut = flight.cut or cut
        flight.category = ErrorCategory.TIMEOUT if cut else attempt.category
        flight.spent += spent
        guards.settle(flight, now, flight.category)
        self._wake(guards, now)
        if attempt.pause is not None and flight.number + 1 < len(flight.call.attempts):
            flight.number += 1
            self._plan(now + attempt.pause, self._begin, flight)
        else:
            self._finish(flight, flight.category)

    def _refuse(self, flight: _Flight, now: float, who: str) -> None:
        self._stop_waiting(flight, now)
        played, call = flight.guards.played, flight.call
        if flight.number:  # the tool was called, and its last failure is what the caller sees
            played.retries_refused += 1
            self._finish(flight, flight.category)
            return
        setattr(played, who, getattr(played, who) + 1)
        self._count_wait(flight)
        played.spared += call.failed
        played.lost += call.known and not call.failed
        played.refused_unknown += not call.known

    def _finish(self, flight: _Flight, category: ErrorCategory | None) -> None:
        played, call = flight.guards.played, flight.call
        self._count_wait(flight)
        if category is ErrorCategory.CANCELLED:
            played.unknown += 1
            return
        if call.sign is not None:
            self._loops[call.run].settle((call.tool, call.sign), failed=category is not None)
        if category is None:
            played.succeeded += 1
            return
        played.failed += 1
        played.failing += flight.spent
        played.timed_out += flight.cut
        played.lost += call.known and not call.failed

    def _stop_waiting(self, flight: _Flight, now: float) -> None:
        """End the wait, whether the call was let through or not."""
        flight.waited += now - flight.asked
        flight.asked = now
        if flight.ticket is not None:
            guards = flight.guards
            guards.line.leave(flight.ticket)
            del guards.waiting[flight.ticket]
            flight.ticket = None
            self._wake(guards, now)

    def _count_wait(self, flight: _Flight) -> None:
        played = flight.guards.played
        if flight.waited >= GRAIN:
            played.waiting += 1
            played.waited += flight.waited
            played.longest_wait = max(played.longest_wait, flight.waited)

    def _wake(self, guards: _Guards, now: float) -> None:
        """Let the head of the line ask again."""
        head = guards.line.head()
        if head is not None and guards.waiting[head].listens:
            self._plan(now, self._admit, guards.waiting[head])
