"""One set of guards a tool, made on first use: circuit, bucket, slots, line, statistics and cache behind two verbs.

`admit` reserves with all of them or none, in the fixed order circuit, rate, concurrency; `settle` tells all of them.
While no guard has anything to say there is a `Plan`, by which a call passes without asking (see `calls`).
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdfast.cache import Cache
from holdfast.canonical import canonical
from holdfast.category import ErrorCategory
from holdfast.deadlines import Deadlines
from holdfast.errors import CircuitOpen, ConcurrencyFull, Denied, RateLimited, in_words
from holdfast.guards.circuit import Circuit, Grant
from holdfast.guards.concurrency import Slots
from holdfast.guards.line import Line, Ticket
from holdfast.guards.rate import UNDIVIDED, Bucket
from holdfast.kit import Kit
from holdfast.policy import Policy
from holdfast.retry import RetryBudget
from holdfast.tracker import BATCH, ExecutionStatus

OVERLOADED = frozenset({ErrorCategory.TIMEOUT, ErrorCategory.RATE_LIMIT, ErrorCategory.SERVICE_UNAVAILABLE})
MOST_OVERRIDES = 64  # policies of single calls that a tool remembers having merged


class Pass(NamedTuple):
    """A yes: what was reserved, and from whom; a reload may have put others in their place when it is settled."""

    circuit: Circuit
    grant: Grant
    slots: Slots | None


# How the quick path goes, valid as long as the tool has this very plan: the circuit's generation; the gate, None where
# there is neither rate nor concurrency to ask; the time limit; the seconds from which a call is slow and the time at
# which something is due, both of which make it tell more than its duration.
# A bare tuple, because it is unpacked at each call.
Plan = tuple[int, Callable[[float], Slots | bool] | None, float | None, float, float]


class Refusal(NamedTuple):
    """A no: whose, how long until it is worth asking again, and the place in line if the caller waits."""

    kind: type[Denied]
    wait: float
    ticket: Ticket | None = None


class Limits(NamedTuple):
    """The limits of a tool at one instant; None where it has none."""

    rate: float | None
    full_rate: float | None
    in_flight: int | None
    limit: int | None
    waiting: int


class Tool:
    """The guards and the memory of one tool."""

    __slots__ = (
        "brisk", "bucket", "cache", "circuit", "deadlines", "given", "last_error", "limit", "line", "name", "plan",
        "plan_untimed", "policy", "retries", "slots", "_applied", "_due", "_kit", "_lock", "_noted", "_overrides",
        "_planning", "_resting",
    )  # fmt: skip

    def __init__(self, kit: Kit, name: str, given: Mapping[str, object] | None) -> None:
        self.name = name
        self.given = given
        self.line = Line()
        self.retries = RetryBudget()
        self.bucket: Bucket | None = None
        self.slots: Slots | None = None
        self.cache: Cache | None = None
        self.policy = kit.book.resolve(name, given)
        self.circuit = kit.no_circuit
        self.deadlines = Deadlines(kit.clock, name)
        self.plan: Plan | None = None
        self.plan_untimed: Plan | None = None  # the same, unless there is a time limit, which takes a thread
        self.brisk = False  # an open circuit may refuse at once: nobody else has a say in it
        self.limit: float | None = None
        self.last_error: tuple[float, str] | None = None  # when, by the wall clock, and in words
        self._applied: Policy | None = None
        self._kit = kit
        self._due = 0.0
        self._lock = threading.Lock()
        self._noted = 0
        self._overrides: dict[bytes, Policy] = {}
        self._planning = threading.Lock()
        self._resting = False  # nobody looks after it: the next call does, before anything is decided
        self.use(self.policy)

    # -- asked and told ------------------------------------------------------------------------------------------------

    def turn_away(self, now: float) -> CircuitOpen:
        """Refuse a call because the circuit is shut; for the quick path."""
        if now >= self._due:
            self.tidy(now)
        tracker = self._kit.tracker
        tracker.refusals.append(self.name)
        if len(tracker.refusals) >= BATCH:
            tracker.file()
        return CircuitOpen(self.name, None, self.circuit.turn_away(now))

    def admit(self, now: float, policy: Policy, ticket: Ticket | None, patience: float) -> Pass | Refusal:
        """Reserve an attempt with every guard, or with none.

        A caller that can wait *patience* seconds gets a place in line, unless the wait is known to be longer.
        """
        circuit = self._circuit(policy)
        if circuit is not self.circuit:
            self._attach(circuit)
        grant: Grant | float = circuit.grant
        if not circuit.calm:
            grant = circuit.admit(now)
        self._kit.breaker.tell(self.name, circuit)
        if not isinstance(grant, Grant):
            return Refusal(CircuitOpen, grant)
        with self._lock:
            refusal = self._reserve(now, policy, ticket)
            if refusal is not None and ticket is None and patience > 0:
                ticket = self.line.join(now, policy.priority.rank)
                # A slot may have come back while there was nobody to wake; from now on there is.
                refusal = self._reserve(now, policy, ticket)
            if refusal is not None and patience > 0 and (refusal.wait <= patience or refusal.wait == math.inf):
                refusal = refusal._replace(ticket=ticket)
            else:
                if refusal is not None and refusal.wait == math.inf:
                    refusal = refusal._replace(wait=self._wait_in_line(now, policy, ticket))
                if ticket is not None:
                    self.line.leave(ticket)
            slots = self.slots if policy.concurrency is not None else None
        if refusal is None or refusal.ticket is None:
            self.wake()
        if refusal is None:
            return Pass(circuit, grant, slots)
        circuit.release(grant)
        return refusal

    def settle(
        self,
        now: float,
        passed: Pass,
        begun: float,
        category: ErrorCategory | None,
        *,
        pause: float | None = None,
        sign: bytes | None = None,
    ) -> None:
        """Tell every guard how an attempt went; *category* None is a success, cancelled says nothing about the tool.

        *pause* is how long the tool asked to be left alone, *sign* tells failures apart by their arguments.
        """
        neutral = category is ErrorCategory.CANCELLED
        if neutral:
            passed.circuit.release(passed.grant)
        else:
            if category is not None and passed.circuit.window is not None:
                self.drain(now)  # a rate is judged by all calls, also those that were only noted
            if category is not None:
                # The attempt is being left by its error, unless it was only told that it failed.
                error = sys.exception()
                self.last_error = (self._kit.clock.time(), category.label if error is None else in_words(error))
            passed.circuit.settle(passed.grant, now, category, duration=now - begun, sign=sign)
            self._kit.breaker.tell(self.name, passed.circuit)
        if now >= self._due:
            self._kit.ended(self.name)
        if self.bucket is None and passed.slots is None:
            return
        with self._lock:
            bucket = self.bucket
            if bucket is not None and bucket.config.adaptive:
                if category is None:
                    bucket.succeeded(now)
                elif category is ErrorCategory.RATE_LIMIT:
                    bucket.limited(now, pause, begun)
            if passed.slots is not None:
                passed.slots.settle(None if neutral else now - begun, overloaded=category in OVERLOADED)
        self.wake()

    def succeeded(self, now: float, duration: float, generation: int) -> None:
        """Settle a success of the quick path that is more than a duration: slow, or the circuit has changed."""
        self.drain(now)
        self.circuit.settle(Grant(generation), now, None, duration=duration)
        self._kit.breaker.tell(self.name, self.circuit)
        self._kit.tracker.record(self.name, ExecutionStatus.SUCCESS, duration)
        if now >= self._due:
            self._kit.ended(self.name)

    def leave(self, now: float, duration: float, slots: Slots | bool) -> None:
        """Give back after a success what the gate took; for the quick path."""
        bucket = self.bucket
        if bucket is not None and bucket.learnt is not None:
            with self._lock:
                bucket.succeeded(now)
        if not isinstance(slots, bool):
            self._give(slots, duration)
        if self.line.heap:
            self.wake()

    def give_up(self, ticket: Ticket) -> None:
        """Leave the line without having been let in."""
        with self._lock:
            self.line.leave(ticket)
        self.wake()

    def wake(self) -> None:
        """Let the head of the line ask again."""
        if self.line.heap:
            with self._lock:
                head = self.line.head()
            if head is not None:
                head.signal.fire()

    def may_retry(self, share: float) -> bool:
        """Whether the tool as a whole can bear one more retry."""
        with self._lock:  # the count too, so that counts come in order
            calls, _ = self._kit.tracker.counts(self.name)
            return self.retries.take(share, calls)

    # -- settings ------------------------------------------------------------------------------------------------------

    def override(self, call: Mapping[str, object] | None) -> Policy:
        """The policy for one call that may bring settings of its own; a changed file is taken up first."""
        now = self._kit.clock.monotonic()
        if now >= self._due:
            self.tidy(now)
        if not call:
            return self.policy
        key = canonical(None, (), call)
        policy = self._overrides.get(key) if key is not None else None
        if policy is None:
            policy = self._kit.book.resolve(self.name, self.given, call)
            if key is not None:
                if len(self._overrides) >= MOST_OVERRIDES:
                    self._overrides.clear()
                self._overrides[key] = policy
        return policy

    def use(self, policy: Policy) -> None:
        """Put the guards under *policy*. They keep their state, also while a policy has no use for them."""
        if policy is self._applied:
            return
        now = self._kit.clock.monotonic()
        circuit = self._circuit(policy)
        with self._lock:
            if policy.rate is not None:
                self.bucket = self.bucket or Bucket(policy.rate)
                self.bucket.configure(policy.rate, now)
            if policy.concurrency is not None:
                self.slots = self.slots or Slots(policy.concurrency)
                self.slots.configure(policy.concurrency)
            if policy.cache is not None:
                self.cache = self.cache if self.cache is not None else Cache(policy.cache.max_entries)
                self.cache.max_entries = policy.cache.max_entries
            self._applied = policy
        self._attach(circuit)
        self.wake()

    def replan(self) -> None:
        """Work out anew how the quick path goes, if it is open; called whenever something it rests on has changed."""
        with self._planning:
            policy, circuit, breaker = self.policy, self.circuit, self.policy.breaker
            generation = circuit.generation
            self.limit = _shorter(policy.timeout, policy.deadline)
            heard = self._kit.bus.sinks or self._kit.bus.watcher is not None or self._kit.hooks is not None
            plain = self._applied is policy and policy.cache is None and not heard
            self.brisk = plain and policy.fallback is None and not self._resting
            plan = None
            if plain and circuit.calm:
                gate = self._gate(policy) if policy.rate is not None or policy.concurrency is not None else None
                slow = breaker.slow_call if breaker is not None and breaker.slow_call is not None else math.inf
                plan = (generation, gate, self.limit, slow, self._due)
            self.plan = plan
            self.plan_untimed = plan if self.limit is None else None

    def take_up(self, given: Mapping[str, object]) -> None:
        """Be decorated anew, with other settings."""
        policy = self._kit.book.resolve(self.name, given)
        self.given = given
        self._overrides.clear()
        self.policy = policy
        self.use(policy)

    def reload(self) -> None:
        """Take up changed policies."""
        self._overrides.clear()
        self.policy = self._kit.book.resolve(self.name, self.given)
        self.use(self.policy)

    def drain(self, now: float) -> None:
        """Tell the circuit of the successes that the quick path only noted; they matter to its rates."""
        if self.circuit.window is None:
            return
        _, noted = self._kit.tracker.counts(self.name)
        with self._lock:
            fresh, self._noted = noted - self._noted, noted
        if fresh < 0:  # the tracker was cleared, or had to forget the tool
            fresh = noted
        if fresh:
            self.circuit.succeeded_many(min(now, self._due) if self._due else now, fresh)

    def tidy(self, now: float) -> None:
        """Look after what time has changed."""
        self._resting = False
        self.drain(now)
        self._kit.refresh(now)
        window = self.circuit.window
        due = min(self._kit.book.next_check, self._kit.heard(self.name, now))
        self._due = min(due, now + window.width) if window is not None else due
        self.replan()

    def make_due(self) -> None:
        """Have the next call look after what is due."""
        self._due = 0.0
        self.rest()

    def rest(self) -> None:
        """Have the next call, even one to be refused, ask in full, and a call that is under way tell of its end."""
        self._resting = True
        self.replan()

    def limits(self, now: float) -> Limits:
        """The limits under the policy in force, and how far they are used."""
        policy = self.policy
        with self._lock:
            bucket = self.bucket if policy.rate is not None else None
            slots = self.slots if policy.concurrency is not None else None
            return Limits(
                rate=None if bucket is None else bucket.rate_at(now),
                full_rate=None if bucket is None else bucket.config.per_second,
                in_flight=None if slots is None else slots.in_flight,
                limit=None if slots is None else slots.limit,
                waiting=len(self.line),
            )

    def after_fork(self) -> None:
        """In a forked child: the calls of the parent's other threads are not here."""
        self._lock = threading.Lock()
        self._planning = threading.Lock()
        self.line = Line()
        if self.slots is not None:
            self.slots = Slots(self.slots.config)
        if self.cache is not None:
            self.cache = Cache(self.cache.max_entries)
        self.replan()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _attach(self, circuit: Circuit) -> None:
        """Rest on *circuit*, and hear when it changes its mind."""
        self.circuit = circuit
        if circuit is not self._kit.no_circuit:
            circuit.on_mark = self.replan
        self.replan()

    def _gate(self, policy: Policy) -> Callable[[float], Slots | bool]:
        """Takes a slot and a token if both are there and nobody waits; answers with the slots it took of."""
        heap, cost, lock = self.line.heap, policy.priority.cost, self._lock
        bucket = self.bucket if policy.rate is not None else None
        slots = self.slots if policy.concurrency is not None else None
        pop = slots.free.pop if slots is not None else None
        take = bucket.take if bucket is not None else None

        def gate(now: float) -> Slots | bool:
            if heap:
                return False
            if pop is not None:
                try:
                    pop()
                except IndexError:
                    return False
            if take is not None:
                if UNDIVIDED:
                    taken = take(now, cost)
                else:
                    with lock:
                        taken = take(now, cost)
                if not taken:
                    if slots is not None:
                        self._give(slots)
                        self.wake()
                    return False
            return slots if slots is not None else True

        return gate

    def _give(self, slots: Slots, duration: float | None = None) -> None:
        if slots.plain:
            slots.free.append(None)
        else:
            with self._lock:
                slots.settle(duration)

    def _circuit(self, policy: Policy) -> Circuit:
        """The circuit under *policy*; another one if the breaker had to forget the one of before."""
        if policy.breaker is None:
            return self._kit.no_circuit
        circuit = self.circuit
        if circuit is self._kit.no_circuit or circuit.evicted or circuit.config is not policy.breaker:
            return self._kit.breaker.circuit(self.name, policy.breaker)
        return circuit

    def _wait_in_line(self, now: float, policy: Policy, ticket: Ticket | None) -> float:
        """About how long it takes until those ahead have their tokens, then this one; infinite if it is for slots."""
        bucket = self.bucket if policy.rate is not None else None
        if bucket is None or self.line.head() is ticket:
            return math.inf
        missing = self.line.ahead(ticket) + policy.priority.cost - bucket.tokens(now)
        return max(bucket.pause(now), missing / bucket.rate_at(now))

    def _reserve(self, now: float, policy: Policy, ticket: Ticket | None) -> Refusal | None:
        """Ask rate, then concurrency; under the lock. Who is not at the head of the line waits for its turn."""
        cost = policy.priority.cost
        bucket = self.bucket if policy.rate is not None else None
        slots = self.slots if policy.concurrency is not None else None
        if bucket is None and slots is None:
            return None
        if self.line.heap and self.line.head() is not ticket:
            return Refusal(ConcurrencyFull if bucket is None else RateLimited, math.inf)
        if bucket is not None and (wait := bucket.admit(now, cost)):
            return Refusal(RateLimited, wait)
        if slots is not None and not slots.take():
            if bucket is not None:
                bucket.refund(cost, now)
            return Refusal(ConcurrencyFull, math.inf)
        return None


def _shorter(timeout: float | None, deadline: float | None) -> float | None:
    """The shorter of two limits. Not a comprehension under the lock: a signal in its jump would leave 3.12 locked."""
    if timeout is None or deadline is None:
        return deadline if timeout is None else timeout
    return min(timeout, deadline)
