"""The half of a tool's guards that a fleet decides: what to ask it, what an answer means, what to report to it.

Three modes. *exact* asks the fleet for every attempt. *leased* uses tokens taken ahead of time, *view* the limits of
this process; both ask only when the fleet's circuit is not calm, or the tokens are used up. While the fleet is away,
local guards decide, on a circuit that goes on from the state in which the fleet's was last seen.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, NamedTuple

from holdfast.category import ErrorCategory
from holdfast.errors import CircuitOpen, ConcurrencyFull, RateLimited
from holdfast.fleet.desk import HORIZON, Desk, block_of
from holdfast.fleet.question import Held, Question
from holdfast.fleet.script import CIRCUIT, MICRO, NO_PROBE, RATE, RESET, Outcome, Shared
from holdfast.guards.circuit import Circuit, CircuitState, Grant
from holdfast.policy import Policy
from holdfast.tools.verdicts import Asker, Gate, Pass, Refusal

if TYPE_CHECKING:
    from holdfast.fleet.fleet import Fleet
    from holdfast.tools.tool import Tool

LOOK_AGAIN = 0.02  # seconds, about, until a waiter looks for a slot that another process gave back
AWAY = "the shared guards cannot be reached"
MOST_POLICIES = 64
HORIZON_US = int(HORIZON * MICRO)


class _Terms(NamedTuple):
    """What a policy shares with the fleet, and how."""

    policy: Policy
    whole: Shared
    forced: Shared  # while the circuit is held by hand
    # With a limit of 0: the fleet grants nothing, but circuit and rate, which come first, may refuse.
    without_slot: Shared
    take: int  # number of calls whose tokens are taken at once
    is_any: bool  # True if there is anything to share
    leases: bool  # tokens are taken ahead of time; never with a concurrency limit, which is exact: each attempt asks
    counts_all: bool  # every success counts, not only one that ends a row of failures

    @property
    def asks(self) -> bool:
        """True if each attempt has to ask the fleet."""
        return self.is_any and self.policy.mode != "view" and not self.leases


class Share:
    """One tool's part in *fleet*."""

    def __init__(self, tool: Tool, fleet: Fleet) -> None:
        self._tool = tool
        self._terms: dict[int, _Terms] = {}
        self.fleet = fleet
        self.desk: Desk = fleet.desk(tool.name, tool.follow)

    @property
    def is_quick(self) -> bool:
        """True if a call may take the quick path, as far as the fleet is concerned."""
        if not self._of(self._tool.policy).is_any:
            return True
        # While the fleet is away, `_alone` has to count calls.
        return self.desk.is_available and self.desk.fresh and self._is_calm

    def gate(self, policy: Policy) -> Gate | None:
        """Return what the quick path asks: limits of this process, tokens taken ahead of time, or the whole fleet."""
        terms, limiting = self._of(policy), self._tool.limiting
        if self.desk.is_available and terms.asks:
            return self._asking_gate(terms)
        return limiting.gate(policy, self.desk.block.take if self.desk.is_available and terms.leases else None)

    def _asking_gate(self, terms: _Terms) -> Gate:
        """Return a gate that takes a slot of this process, if one is free and no call waits, and asks the fleet."""
        desk, shared, policy = self.desk, terms.whole, terms.policy
        take_slot = self._tool.limiting.slot_gate(policy)
        asked = (policy.priority.cost, terms.take, max(0, int(min(policy.max_wait, HORIZON) * MICRO)))

        def gate(now: float) -> Question | bool:
            return take_slot(now) is not False and Question(desk, desk.form(shared), asked)

        return gate

    def leave(self, now: float, duration: float, question: Question) -> None:
        """Give back what the fleet reserved for a call that succeeded; report the success if it counts."""
        held = question.held
        if held is None:
            return
        if not self._is_calm or self._of(self._tool.policy).counts_all:
            self.settle(Grant(held.generation), held, None, duration=duration, pause=None, sign=None)
        elif held.slots:
            self.desk.return_slot(held.holder)
        if held.slots:
            self._tool.limiting.leave(now, duration, self._tool.limiting.slots)

    @property
    def knows(self) -> bool:
        """True if this process knows, without asking, whether the circuit is open."""
        return self.desk.fresh if self.desk.is_available else not self.fleet.refuses

    @property
    def decided(self) -> list[str] | None:
        """The guards that the fleet decides now, none while it is away; None if the policy has nothing to share."""
        whole = self._of(self._tool.policy).whole
        found = [name for name, each in zip(("circuit", "rate", "concurrency"), whole, strict=True) if each is not None]
        return (found if self.desk.is_available else []) if found else None

    @property
    def trouble(self) -> str:
        """Why the fleet is away."""
        return str(self.fleet.missing.get(self.desk, self.fleet.trouble))

    # -- asked ---------------------------------------------------------------------------------------------------------

    def admit(self, asker: Asker, circuit: Circuit) -> Pass | Refusal | Question | None:
        """Return a question for the fleet, or an answer that needs none; None if local guards decide."""
        now, policy, patience = asker.now, asker.policy, asker.patience
        desk, terms = self.desk, self._of(policy)
        if circuit.forced is CircuitState.OPEN or not terms.is_any:
            return None
        if not desk.is_available:
            return self._alone()
        if desk.fresh and circuit.calm and policy.mode == "view":
            return None
        if desk.fresh and circuit.calm and terms.leases and self._may_lease(asker):
            return self._tool.let_in(circuit, circuit.grant, asker)
        if desk.fresh and now < circuit.shut_until:
            return Refusal(CircuitOpen, circuit.turn_away(now))
        shared = self._reserve_here(asker, circuit, terms)
        if isinstance(shared, Refusal):
            return shared
        horizon = HORIZON_US if patience >= HORIZON else max(0, int(patience * MICRO))
        take = terms.take if terms.take == 1 or desk.block.ask(now) else 1
        return Question(desk, desk.form(shared), (policy.priority.cost, take, horizon))

    def _reserve_here(self, asker: Asker, circuit: Circuit, terms: _Terms) -> Shared | Refusal:
        """Reserve a slot of this process if slots are shared; return what to ask the fleet about, or a refusal."""
        limiting, policy = self._tool.limiting, asker.policy
        shared = terms.whole if circuit.forced is None else terms.forced
        if policy.mode == "view":
            return shared
        limits_both = policy.rate is not None and policy.concurrency is not None
        if asker.ticket is None and circuit.forced is None and (limits_both or not circuit.calm):
            # The fleet's circuit or rate, which come before the slots of this process, may refuse the attempt.
            refusal = limiting.line_up(Asker(asker.now, policy, None, 0.0), shared=True)
            if refusal is None:
                return shared
            if not circuit.calm or refusal.kind is not RateLimited:
                return terms.without_slot
            # There is a line: this call joins it, and asks when its turn comes.
        return limiting.line_up(asker, shared=True) or shared

    def judge(self, asker: Asker, circuit: Circuit, question: Question) -> Pass | Refusal | None:
        """Turn the answer to *question* into a verdict; None if there was no answer, so that local guards decide."""
        tool, block, reply, held = self._tool, self.desk.block, question.reply, question.held
        cost, taken, _ = question.asked
        if reply is None or held is None:
            if question.form.slots:
                tool.give_slot(asker.policy, asker.ticket)
            if taken > 1:
                block.asked_until = 0.0
            return self._alone() if reply is None else self._refused(asker, question, reply[0], reply[1] / MICRO)
        question.held = None
        if asker.policy.mode == "view" and (refusal := tool.limiting.line_up(asker)) is not None:
            self.desk.give_back(held)
            return refusal
        if taken > 1:
            block.put(asker.now, (reply[4] - 1) * cost)
        return tool.let_in(circuit, circuit.grant, asker, held)

    def _refused(self, asker: Asker, question: Question, verdict: int, wait: float) -> Refusal:
        limiting = self._tool.limiting
        if verdict == CIRCUIT:
            return Refusal(CircuitOpen, wait)
        if verdict == RATE:
            # A question asked a little before the token is due can reserve it.
            again = max(wait - 0.8 * HORIZON, 0.001)
            return limiting.stay_in_line(asker, Refusal(RateLimited, wait), again)
        if not question.form.slots:  # the fleet's circuit and rate do not object
            refusal = limiting.line_up(asker, shared=True)
            if refusal is not None:
                return refusal
            self._tool.give_slot(asker.policy, asker.ticket)  # one is free by now: the call soon asks again
        again = LOOK_AGAIN * random.uniform(0.5, 1.5)
        return limiting.stay_in_line(asker, Refusal(ConcurrencyFull, math.inf, wakes=True), again)

    def _alone(self) -> Refusal | None:
        self.fleet.fallbacks += 1
        self.fleet.service.ring()  # starts the thread that looks for the fleet, if there was none
        if self.fleet.refuses:
            return Refusal(CircuitOpen, math.inf, why=AWAY)
        return None

    def _may_lease(self, asker: Asker) -> bool:
        limiting, policy = self._tool.limiting, asker.policy
        if limiting.line.heap and limiting.line.head() is not asker.ticket:
            return False
        return policy.rate is None or limiting.spend(self.desk.block.take, asker.now, policy.priority.cost)

    # -- told ----------------------------------------------------------------------------------------------------------

    def settle(
        self,
        grant: Grant,
        held: Held | None,
        category: ErrorCategory | None,
        *,
        duration: float,
        pause: float | None,
        sign: bytes | None,
    ) -> bool:
        """Report to the fleet how an attempt ended; False if it is away and the local circuit has to be told."""
        if not self.desk.is_available:
            if held is not None and held.slots:
                self.desk.return_slot(held.holder)
            return False
        neutral = category is ErrorCategory.CANCELLED
        says = "" if neutral else "ok" if category is None else str(category)
        if held is None:
            if grant.generation != self._tool.circuit.grant.generation:
                return True  # the attempt began before the circuit changed, and says nothing any more
            held = Held(self.fleet.holder, self.desk.generation, NO_PROBE, 0, 0.0, -1, 0.0)
        counts_all = self._of(self._tool.policy).counts_all
        if held.probe == NO_PROBE and (not says or (says == "ok" and self._is_calm and not counts_all)):
            if held.slots:
                self.desk.return_slot(held.holder)
            return True
        self._tell(
            Outcome(
                held.holder, held.slots, 0.0, says, 1, held.generation, held.probe, int(duration * MICRO),
                (sign or b"").hex(), -1 if pause is None else int(min(pause, 1e9) * MICRO), held.admitted_at_us,
            )
        )  # fmt: skip
        return True

    def succeeded(self, calls: int) -> bool:
        """Report to the fleet *calls* successes that were only noted; False if it is away."""
        if not self.desk.is_available:
            return False
        self._tell(Outcome(self.fleet.holder, says="ok", calls=calls, generation=self.desk.generation))
        return True

    def reset(self) -> None:
        """Reset the circuit of the whole fleet."""
        self.desk.shared = self._of(self._tool.policy).whole  # no call may have asked yet, or only while forced
        self._tell(Outcome(self.fleet.holder, says=RESET))

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _is_calm(self) -> bool:
        """True if a success that ends now needs no report, whatever the state was when it was admitted."""
        return self._tool.circuit.calm and self.desk.rate is None and not self.desk.troubled

    def _tell(self, outcome: Outcome) -> None:
        if self.desk.tell(outcome):
            self._tool.replan()

    def _of(self, policy: Policy) -> _Terms:
        terms = self._terms.get(id(policy))
        if terms is None:
            terms = _terms(policy)
            if len(self._terms) >= MOST_POLICIES:
                self._terms.clear()
            self._terms[id(policy)] = terms
        return terms


def _terms(policy: Policy) -> _Terms:
    breaker, rate, concurrency = policy.breaker, policy.rate, policy.concurrency
    if policy.mode == "view":
        rate = concurrency = None
    whole = Shared(breaker, rate, None if concurrency is None else concurrency.limit)
    leases = policy.mode == "leased" and concurrency is None
    return _Terms(
        policy,
        whole,
        forced=whole._replace(breaker=None),
        without_slot=whole._replace(limit=0),
        take=block_of(rate, policy.priority.cost) if rate is not None and leases else 1,
        is_any=any(each is not None for each in whole),
        leases=leases,
        counts_all=breaker is not None and breaker.is_rated,
    )
