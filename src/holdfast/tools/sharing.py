"""The half of a tool that a fleet decides: what to ask, what an answer means, what to tell.

Three modes. *exact* asks for every attempt. *leased* uses tokens taken ahead of time, *view* limits of its own; both
ask only when the fleet's circuit is not calm, or the tokens are used up. While the fleet is away local guards decide,
on a circuit that goes on from where the fleet's was last seen.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, NamedTuple

from holdfast.category import ErrorCategory
from holdfast.errors import CircuitOpen, ConcurrencyFull, RateLimited
from holdfast.fleet.desk import HORIZON, Desk, Held, Question, Shared, block_of
from holdfast.fleet.script import CIRCUIT, CONCURRENCY, MICRO, NO_PROBE, RATE, Outcome
from holdfast.guards.circuit import Circuit, CircuitState, Grant
from holdfast.guards.line import Ticket
from holdfast.policy import Policy
from holdfast.tools.verdicts import Gate, Pass, Refusal

if TYPE_CHECKING:
    from holdfast.fleet.fleet import Fleet
    from holdfast.tools.tool import Tool

LOOK_AGAIN = 0.02  # seconds after which a slot that another process gave back is found, about
AWAY = "the shared guards cannot be reached"
MOST_POLICIES = 64
HORIZON_US = int(HORIZON * MICRO)


class _Terms(NamedTuple):
    """What of a policy is shared, with and without its circuit."""

    policy: Policy
    whole: Shared
    forced: Shared
    before: Shared  # without a slot to be had: nothing is given, and those who are asked before slots may refuse
    take: int  # calls' tokens at once


class Share:
    """One tool's part in *fleet*."""

    def __init__(self, tool: Tool, fleet: Fleet) -> None:
        self._tool = tool
        self._terms: dict[int, _Terms] = {}
        self.fleet = fleet
        self.desk: Desk = fleet.desk(tool.name, tool.follow)

    @property
    def is_quick(self) -> bool:
        """Whether a call may pass without asking, as far as the fleet is concerned."""
        policy = self._tool.policy
        if not self._is_about(policy):
            return True
        known = self.desk.there and self.desk.fresh  # else it is counted who goes on alone
        return known and self._is_calm and (policy.mode == "view" or _leases(policy) or self.asks(policy))

    def asks(self, policy: Policy) -> bool:
        """Whether each call has to ask."""
        exact = policy.mode == "exact" or (policy.mode == "leased" and policy.concurrency is not None)
        return exact and self.desk.there and self._is_about(policy)

    def gate(self, policy: Policy) -> Gate:
        """Takes a slot of this process, if there is one and nobody waits; answers with the question to be asked."""
        limiting, desk, terms = self._tool.limiting, self.desk, self._of(policy)
        heap, shared = limiting.line.heap, terms.whole
        slots = limiting.slots if policy.concurrency is not None else None
        pop = slots.free.pop if slots is not None else None
        asked = (policy.priority.cost, terms.take, max(0, int(min(policy.max_wait, HORIZON) * MICRO)))

        def gate(now: float) -> Question | bool:
            if heap:
                return False
            if pop is not None:
                try:
                    pop()
                except IndexError:
                    return False
            return Question(desk, desk.form(shared), asked)

        return gate

    def leave(self, now: float, duration: float, question: Question) -> None:
        """Give back after a success what was given; where the success counts, it is told, too."""
        held, slots = question.held, self._tool.limiting.slots
        if held is None:
            return
        if not self._is_calm or _counts_all(self._tool.policy):
            self.settle(Grant(held.generation), held, None, duration=duration, pause=None, sign=None)
        elif held.slots:
            self.desk.return_slot(held.holder)
        if held.slots:
            self._tool.limiting.leave(now, duration, slots if slots is not None else True)

    @property
    def knows(self) -> bool:
        """Whether an open circuit can be told from here."""
        return self.desk.fresh if self.desk.there else not self.fleet.refuses

    @property
    def decided(self) -> list[str] | None:
        """What the fleet decides now, nothing while it is away; None where the policy has nothing to share."""
        whole = self._of(self._tool.policy).whole
        found = [name for name, each in zip(("circuit", "rate", "concurrency"), whole, strict=True) if each is not None]
        return (found if self.desk.there else []) if found else None

    @property
    def trouble(self) -> str:
        """Why the fleet is away."""
        return str(self.fleet.missing.get(self.desk, self.fleet.trouble))

    def leases_now(self, policy: Policy) -> bool:
        """Whether tokens are leased, not taken from a bucket of one's own."""
        return self.desk.there and _leases(policy)

    def _is_about(self, policy: Policy) -> bool:
        """Whether there is anything to share under *policy*."""
        return any(each is not None for each in self._of(policy).whole)

    # -- asked ---------------------------------------------------------------------------------------------------------

    def admit(
        self, now: float, policy: Policy, circuit: Circuit, ticket: Ticket | None, patience: float
    ) -> Pass | Refusal | Question | None:
        """A question to be asked, or an answer that needs none; None where local guards decide."""
        tool = self._tool
        if circuit.forced is CircuitState.OPEN or not self._is_about(policy):
            return None
        if not self.desk.there:
            return self._alone()
        if self.desk.fresh and circuit.calm and policy.mode != "exact":
            if policy.mode == "view":
                return None
            if _leases(policy) and self._may_lease(now, policy, ticket):
                return tool.let_in(circuit, circuit.grant, ticket, policy)
        if self.desk.fresh and now < circuit.shut_until:
            return Refusal(CircuitOpen, circuit.turn_away(now) or math.inf)
        terms = self._of(policy)
        shared = terms.whole if circuit.forced is None else terms.forced
        if policy.mode != "view":
            ordered = ticket is None and circuit.forced is None and self._others_may_refuse(policy, circuit)
            refusal = tool.limiting.line_up(now, policy, ticket, 0.0 if ordered else patience, shared=True)
            if refusal is not None and ordered:
                if circuit.calm and refusal.kind is RateLimited:  # there is a line, and who stands in it asks in turn
                    refusal = tool.limiting.line_up(now, policy, ticket, patience, shared=True)
                else:
                    shared, refusal = terms.before, None
            if refusal is not None:
                return refusal
        form = self.desk.form(shared)
        horizon = HORIZON_US if patience >= HORIZON else max(0, int(patience * MICRO))
        take = terms.take if terms.take == 1 or self.desk.block.ask(now) else 1
        return Question(self.desk, form, (policy.priority.cost, take, horizon))

    def judge(
        self, now: float, policy: Policy, circuit: Circuit, question: Question, ticket: Ticket | None, patience: float
    ) -> Pass | Refusal | None:
        """What the answer to *question* means; None where there was none, and local guards decide."""
        tool, reply, held = self._tool, question.reply, question.held
        if reply is None or held is None:
            if question.form.slots:
                tool.give_slot(policy)
            if question.asked[1] > 1:
                self.desk.block.asked_until = 0.0
            if reply is None:
                return self._alone()
            if reply[0] == CONCURRENCY and not question.form.slots:  # those who come before have nothing against it
                refusal = tool.limiting.line_up(now, policy, ticket, patience, shared=True)
                if refusal is not None:
                    return refusal
                tool.give_slot(policy)  # one is free by now; it is looked for again at once
            return self._refused(now, policy, reply[0], reply[1] / MICRO, ticket, patience)
        question.held = None
        if policy.mode == "view" and (refusal := tool.limiting.line_up(now, policy, ticket, patience)) is not None:
            self.desk.give_back(held)
            return refusal
        if question.asked[1] > 1:
            self.desk.block.put(now, (reply[4] - 1) * question.asked[0])
        return tool.let_in(circuit, circuit.grant, ticket, policy, held)

    def _alone(self) -> Refusal | None:
        self.fleet.fallbacks += 1
        if self.fleet.refuses:
            return Refusal(CircuitOpen, math.inf, why=AWAY)
        return None

    def _others_may_refuse(self, policy: Policy, circuit: Circuit) -> bool:
        """Whether somebody who is asked before the slots of this process may have something against an attempt."""
        return not circuit.calm or (policy.rate is not None and policy.concurrency is not None)

    def _may_lease(self, now: float, policy: Policy, ticket: Ticket | None) -> bool:
        line = self._tool.limiting.line
        if line.heap and line.head() is not ticket:
            return False
        return policy.rate is None or self.desk.block.take(now, policy.priority.cost)

    def _refused(
        self, now: float, policy: Policy, verdict: int, wait: float, ticket: Ticket | None, patience: float
    ) -> Refusal:
        tool = self._tool
        if verdict == CIRCUIT:
            return Refusal(CircuitOpen, wait)
        if verdict == RATE:
            # Asked again a little before its time, the token can be reserved.
            again = max(wait - 0.8 * HORIZON, 0.001)
            return tool.limiting.stay_in_line(now, policy, ticket, patience, Refusal(RateLimited, wait), again)
        again = LOOK_AGAIN * random.uniform(0.5, 1.5)
        return tool.limiting.stay_in_line(
            now, policy, ticket, patience, Refusal(ConcurrencyFull, math.inf, wakes=True), again
        )

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
        """Have the fleet told how an attempt went; false where it is away, and the local circuit is to be told."""
        if not self.desk.there:
            if held is not None and held.slots:
                self.desk.return_slot(held.holder)
            return False
        neutral = category is ErrorCategory.CANCELLED
        says = "" if neutral else "ok" if category is None else str(category)
        policy = self._tool.policy
        if held is None:
            if grant.generation != self._tool.circuit.generation:
                return True  # it began before the circuit changed, and says nothing any more
            held = Held(self.fleet.holder, self.desk.generation, NO_PROBE, 0, 0.0, -1, 0.0)
        if held.probe == NO_PROBE and (not says or (says == "ok" and self._is_calm and not _counts_all(policy))):
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
        """Have the fleet told of *calls* that were only noted; false where it is away."""
        if not self.desk.there:
            return False
        self._tell(Outcome(self.fleet.holder, says="ok", calls=calls, generation=self.desk.generation))
        return True

    def reset(self) -> None:
        """Have the circuit of the whole fleet be as new."""
        self.desk.shared = self._of(self._tool.policy).whole  # nobody may have asked yet, or only while held by hand
        self._tell(Outcome(self.fleet.holder, says="reset"))

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _is_calm(self) -> bool:
        """Whether a success that ends now has nothing to tell, whatever was so when it was admitted."""
        return self._tool.circuit.calm and self.desk.rate is None and not self.desk.troubled

    def _tell(self, outcome: Outcome) -> None:
        if self.desk.tell(outcome):
            self._tool.replan()

    def _of(self, policy: Policy) -> _Terms:
        terms = self._terms.get(id(policy))
        if terms is None:
            is_view = policy.mode == "view"
            limit = None if policy.concurrency is None or is_view else policy.concurrency.limit
            whole = Shared(policy.breaker, None if is_view else policy.rate, limit)
            take = block_of(policy.rate, policy.priority.cost) if policy.rate is not None and _leases(policy) else 1
            terms = _Terms(policy, whole, whole._replace(breaker=None), whole._replace(limit=0), take)
            if len(self._terms) >= MOST_POLICIES:
                self._terms.clear()
            self._terms[id(policy)] = terms
        return terms


def _counts_all(policy: Policy) -> bool:
    """Whether every success counts, not only those that end something."""
    breaker = policy.breaker
    return breaker is not None and (breaker.failure_rate is not None or breaker.slow_call_rate is not None)


def _leases(policy: Policy) -> bool:
    """A concurrency limit is exact: who has one asks each time."""
    return policy.mode == "leased" and policy.concurrency is None
