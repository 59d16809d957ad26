"""One set of guards per tool, made on first use: circuit, bucket, slots, line, statistics and cache behind two verbs.

`admit` reserves with all of them or none, in the fixed order circuit, rate, concurrency; `settle` tells all of them.
While no guard could object there is a `Plan`, with which a call passes without `admit` (see `calls`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.category import ErrorCategory
from holdfast.errors import SWITCHED_OFF, CircuitOpen, in_words
from holdfast.fleet.question import Held, Question
from holdfast.guards.circuit import Circuit, Grant, Seen
from holdfast.guards.concurrency import Slots
from holdfast.guards.line import Ticket
from holdfast.guards.retry import RetryBudget
from holdfast.policy import Policy
from holdfast.tools.cache import Cache
from holdfast.tools.kit import Kit
from holdfast.tools.limiting import Limiting
from holdfast.tools.verdicts import Asker, Basis, Gate, Limits, Pass, Plan, Refusal
from holdfast.tracking.records import ExecutionStatus
from holdfast.tracking.tracker import BATCH
from holdfast.values.canonical import canonical
from holdfast.waiting.deadlines import Deadlines

if TYPE_CHECKING:
    from holdfast.tools.sharing import Share

MOST_OVERRIDES = 64  # merged policies of single calls that a tool remembers


class Tool:
    """The guards and the memory of one tool."""

    __slots__ = (
        "cache", "circuit", "deadlines", "given", "last_error", "limit", "limiting", "name", "plan", "plan_untimed",
        "policy", "refuses_at_once", "retries", "share", "_applied", "_due", "_free", "_kit", "_lock", "_noted",
        "_overrides", "_planning", "_resting", "_slow",
    )  # fmt: skip

    def __init__(self, kit: Kit, name: str, given: Mapping[str, object] | None) -> None:
        self.name = name
        self.given = given
        self.limiting = Limiting()
        self.retries = RetryBudget()
        self.cache: Cache | None = None
        self.policy = kit.book.resolve(name, given)
        self.circuit = kit.no_circuit
        self.share: Share | None = None  # its part in a fleet, if there is one
        self.deadlines = Deadlines(kit.clock, name)
        self.plan: Plan | None = None
        self.plan_untimed: Plan | None = None  # the same, but None with a time limit: functions then need a thread
        self.refuses_at_once = False  # an open circuit may refuse at once: nothing else needs to be asked or told
        self.limit: float | None = None
        self.last_error: tuple[float, str] | None = None  # wall time and text of the last failure
        self._applied: Policy | None = None
        self._kit = kit
        self._due = 0.0
        self._free: Pass | None = None  # the pass of every attempt while no guard could object
        self._slow = math.inf  # seconds from which a call is slow
        self._lock = threading.Lock()
        self._noted = 0
        self._overrides: dict[bytes, Policy] = {}
        self._planning = threading.Lock()
        self._resting = False  # the next call must call `do_periodic_work` before anything is decided
        if kit.fleet is not None:
            from holdfast.tools.sharing import Share  # most processes have no fleet

            self.share = Share(self, kit.fleet)
        self.use(self.policy)

    # -- asked and told ------------------------------------------------------------------------------------------------

    def admit(self, now: float, policy: Policy, ticket: Ticket | None, patience: float) -> Pass | Refusal | Question:
        """Reserve an attempt with every guard, or with none; in a fleet, perhaps after a question (see `judge`).

        A caller that can wait *patience* seconds gets a place in line, unless the wait is known to be longer.
        """
        if (free := self._free) is not None and policy is self.policy:  # which has no limits, so there is no line
            return free
        asker = Asker(now, policy, ticket, patience)
        circuit = self._circuit(policy)
        if circuit is not self.circuit and policy is self._applied:
            with self._lock:
                if policy is self._applied:
                    self._attach(circuit)
            self.replan()
        if self.share is not None:
            answer = self.share.admit(asker, circuit)
            if answer is not None:
                return answer
        return self._admit_here(asker, circuit)

    def judge(
        self, now: float, policy: Policy, ticket: Ticket | None, patience: float, question: Question
    ) -> Pass | Refusal:
        """Finish `admit` after *question* was asked."""
        assert self.share is not None
        asker, circuit = Asker(now, policy, ticket, patience), self._circuit(policy)
        answer = self.share.judge(asker, circuit, question)
        return answer if answer is not None else self._admit_here(asker, circuit)

    def _admit_here(self, asker: Asker, circuit: Circuit) -> Pass | Refusal:
        grant: Grant | float = circuit.grant
        if not circuit.calm:
            grant = circuit.admit(asker.now)
        try:
            self._kit.breaker.report_moves(self.name, circuit)
            if not isinstance(grant, Grant):
                return Refusal(CircuitOpen, grant, why=SWITCHED_OFF if grant == math.inf else None)
            refusal = self.limiting.line_up(asker)
            if refusal is None:
                return self.let_in(circuit, grant, asker)
        except BaseException:  # a listener of the circuit was interrupted, say
            if isinstance(grant, Grant):
                circuit.release(grant)
            raise
        circuit.release(grant)
        return refusal

    def let_in(self, circuit: Circuit, grant: Grant, asker: Asker, held: Held | None = None) -> Pass:
        """Leave the line and return a pass: every guard has said yes."""
        slots = self.limiting.slots if asker.policy.concurrency is not None else None
        try:
            if asker.ticket is not None:
                self.limiting.leave_line(asker.ticket)
            return Pass(circuit, grant, slots, held)
        except BaseException:  # it was interrupted while it woke the next in line, say
            self.give_slot(asker.policy)
            raise

    def settle(
        self,
        now: float,
        passed: Pass,
        begun: float,
        category: ErrorCategory | None,
        *,
        pause: float | None = None,
        sign: bytes | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Tell every guard how an attempt ended; *category* None is a success, cancelled says nothing about the tool.

        *pause* is how long the tool asked to be left alone, *sign* stands for the call's arguments, *error* is the
        exception that ended the attempt.
        """
        try:
            if self.circuit.window is not None and (category is not None or now - begun >= self._slow):
                self.drain(now)  # a rate is judged by all calls, including those that were only noted
            if category is not None and category is not ErrorCategory.CANCELLED:
                self.last_error = (self._kit.clock.time(), category.label if error is None else in_words(error))
            self._tell_circuit(now, passed, category, duration=now - begun, pause=pause, sign=sign)
            if now >= self._due:
                self._kit.after_call(self.name)
        finally:  # the slot comes back whatever happens, in a listener of the circuit, say
            self.limiting.settle(now, passed.slots, begun, category, pause)

    def _tell_circuit(
        self,
        now: float,
        passed: Pass,
        category: ErrorCategory | None,
        *,
        duration: float,
        pause: float | None,
        sign: bytes | None,
    ) -> None:
        """Tell the circuit, or the fleet's if there is one, how an attempt ended."""
        if self.share is not None and self.share.settle(
            passed.grant, passed.held, category, duration=duration, pause=pause, sign=sign
        ):
            return
        if category is ErrorCategory.CANCELLED:
            passed.circuit.release(passed.grant)
            return
        passed.circuit.settle(passed.grant, now, category, duration=duration, sign=sign)
        self._kit.breaker.report_moves(self.name, passed.circuit)

    def give_slot(self, policy: Policy, ticket: Ticket | None = None) -> None:
        """Give back a slot that was taken for an attempt which the fleet did not admit; *ticket* is its place in line.

        The head of the line is woken, unless that is the attempt itself: it knows when to ask again.
        """
        if policy.concurrency is not None and (slots := self.limiting.slots) is not None:
            self.limiting.give(slots)
            if self.limiting.line.head() is not ticket:
                self.limiting.wake()

    def forsake(self, question: Question, policy: Policy) -> None:
        """Abandon *question*: its call no longer waits for the answer."""
        if question.form.slots:  # otherwise no slot was taken for it
            self.give_slot(policy)
        question.abandon()

    def give_back(self, passed: Pass) -> None:
        """Give back what was reserved for an attempt that is not made."""
        if passed.slots is not None:
            self.limiting.give(passed.slots)
        if self.share is not None and passed.held is not None:
            self.share.desk.give_back(passed.held)
        self.limiting.wake()

    def follow(self, seen: Seen) -> None:
        """Make the local circuit follow the fleet's, which is as *seen*."""
        if self.circuit is not self._kit.no_circuit:
            self.circuit.follow(self._kit.clock.monotonic(), seen)
            self._kit.breaker.report_moves(self.name, self.circuit)
        else:
            self.replan()

    def may_retry(self, share: float) -> bool:
        """Pay for one more retry from the tool's budget; False if it is used up."""
        with self._lock:  # also around the count, so that counts come in order
            calls, _ = self._kit.tracker.counts(self.name)
            return self.retries.take(share, calls)

    # -- the quick path ------------------------------------------------------------------------------------------------

    def turn_away(self, now: float) -> CircuitOpen:
        """Refuse a call because the circuit is shut; for the quick path."""
        if now >= self._due:
            self.do_periodic_work(now)
        tracker = self._kit.tracker
        tracker.refusals.append(self.name)
        if len(tracker.refusals) >= BATCH:
            tracker.file()
        wait = self.circuit.turn_away(now)
        return CircuitOpen(self.name, SWITCHED_OFF) if wait == math.inf else CircuitOpen(self.name, None, wait)

    def passed(self, basis: Basis, taken: Slots | Question | bool) -> Pass:
        """Return as a `Pass` what the circuit and the gate gave to a call of the quick path."""
        slots = taken if isinstance(taken, Slots) else None
        held = None
        if isinstance(taken, Question):
            slots, held = (self.limiting.slots if taken.form.slots else None), taken.held
        return Pass(basis.circuit, basis.grant, slots, held)

    def succeeded(self, now: float, begun: float, basis: Basis, taken: Slots | Question | bool) -> None:
        """Settle a success of the quick path that needs more than a note: it was slow, or the plan has changed."""
        self.settle(now, self.passed(basis, taken), begun, None)
        self._kit.tracker.record(self.name, ExecutionStatus.SUCCESS, now - begun)

    def answered(self, now: float, begun: float, plan: Plan, question: Question) -> None:
        """Settle a success of the quick path that asked the fleet."""
        basis, _, _, slow, _ = plan
        duration = now - begun
        if self.share is None or plan is not self.plan or duration >= slow:
            self.succeeded(now, begun, basis, question)
            return
        self.share.leave(now, duration, question)
        self.note(now, duration)

    def has_nothing_to_tell(self, now: float, passed: Pass, begun: float) -> bool:
        """True if a `note` of a success is enough: the guards need not be told."""
        return passed is self._free and now - begun < self._slow and now < self._due

    def note(self, now: float, duration: float) -> None:
        """Note a success that the guards need not be told of."""
        tracker = self._kit.tracker
        tracker.journal.extend((self.name, now, duration))
        if len(tracker.journal) >= tracker.journal_is_full:
            tracker.file()

    def replan(self) -> None:
        """Work out the plan of the quick path again, if it is open; called when something it depends on has changed."""
        with self._planning:
            policy, circuit, breaker, share = self.policy, self.circuit, self.policy.breaker, self.share
            grant = circuit.grant
            calm = self._applied is policy and circuit.calm
            self.limit = _shorter(policy.timeout, policy.deadline)
            self._slow = breaker.slow_from if breaker is not None else math.inf
            unlimited = share is None and policy.rate is None and policy.concurrency is None
            self._free = Pass(circuit, grant, None) if calm and unlimited else None
            heard = self._kit.bus.sinks or self._kit.bus.watcher is not None or self._kit.hooks is not None
            plain = self._applied is policy and policy.cache is None and not heard
            knows = share is None or share.knows
            self.refuses_at_once = plain and knows and policy.fallback is None and not self._resting
            plan = None
            if plain and calm and (share is None or share.is_quick):
                gate: Gate | None = self.limiting.gate(policy) if share is None else share.gate(policy)
                plan = (Basis(policy, circuit, grant), gate, self.limit, self._slow, self._due)
            self.plan = plan
            self.plan_untimed = plan if self.limit is None else None

    # -- settings ------------------------------------------------------------------------------------------------------

    def override(self, call: Mapping[str, object] | None) -> Policy:
        """Return the policy for one call, which may bring its own settings; a changed policy file is applied first."""
        now = self._kit.clock.monotonic()
        if now >= self._due:
            self.do_periodic_work(now)
        if not call:
            return self.policy
        key = canonical(None, (), call) if not call.get("fallback") else None  # its value is the caller's own object
        overrides = self._overrides  # a change of policies replaces it: what is merged from old ones goes with it
        policy = overrides.get(key) if key is not None else None
        if policy is None:
            policy = self._kit.book.resolve(self.name, self.given, call)
            if key is not None:
                if len(overrides) >= MOST_OVERRIDES:
                    overrides.clear()
                overrides[key] = policy
        return policy

    def use(self, policy: Policy) -> None:
        """Apply the *policy* of a call that begins to the guards. They keep their state, even while the policy does not
        use them.
        """
        if policy is self._applied:
            return
        now, breaker = self._kit.clock.monotonic(), policy.breaker
        self.drain(now)  # what was noted until now belongs to the old window, if there is one
        with self._lock:  # around everything: of two calls that begin at once, one has set all guards
            circuit = self._kit.no_circuit if breaker is None else self._kit.breaker.circuit(self.name, breaker)
            self.limiting.configure(policy, now)
            if policy.cache is not None:
                self.cache = self.cache if self.cache is not None else Cache(policy.cache.max_entries)
                self.cache.max_entries = policy.cache.max_entries
            self._applied = policy
            self._attach(circuit)
            if circuit.window is not None:
                self._due = min(self._due, now + circuit.window.width)
        self.replan()
        self.limiting.wake()

    def take_up(self, given: Mapping[str, object]) -> None:
        """Take the settings of a later decorator."""
        self._kit.book.resolve(self.name, given)  # raises if they are wrong; then all stays as it is
        self.given = given
        self.reload()

    def reload(self) -> None:
        """Apply changed policies; repeat while other threads change them, as one may have applied newer ones first."""
        book = self._kit.book
        while True:
            edition, given = book.edition, self.given
            self._change(book.resolve(self.name, given))
            if edition is book.edition and given is self.given:
                return

    def _change(self, policy: Policy) -> None:
        if self.cache is not None and _kept(policy) < _kept(self.policy):
            self.cache.clear()  # a shorter ttl is meant for the kept answers, too
        self._overrides = {}
        self.policy = policy
        self.use(policy)

    def _attach(self, circuit: Circuit) -> None:
        """Use *circuit*, and replan whenever it may have changed."""
        self.circuit = circuit
        if circuit is not self._kit.no_circuit:
            circuit.on_mark = self.replan
            circuit.on_reset = self.share.reset if self.share is not None else None

    def _circuit(self, policy: Policy) -> Circuit:
        """Return the circuit for an attempt under *policy*, with its present settings; a new one if it was evicted."""
        if policy.breaker is None:
            return self._kit.no_circuit
        circuit = self.circuit
        if circuit is self._kit.no_circuit or circuit.evicted:
            return self._kit.breaker.circuit(self.name, policy.breaker)
        return circuit

    # -- what time changes ---------------------------------------------------------------------------------------------

    def drain(self, now: float) -> None:
        """Tell the circuit of the successes that the quick path only noted; they matter to its rates."""
        with self._lock:  # also around the count, so that counts come in order
            _, noted = self._kit.tracker.counts(self.name)
            fresh, self._noted = noted - self._noted, noted
        if fresh < 0:  # the tracker was cleared, or had to forget the tool
            fresh = noted
        if fresh and self.circuit.window is not None and not (self.share is not None and self.share.succeeded(fresh)):
            self.circuit.succeeded_many(min(now, self._due) if self._due else now, fresh)

    def do_periodic_work(self, now: float) -> None:
        """Do the periodic work: drain the notes, check the policy file, show that the tool is in use."""
        self._resting = False
        self.drain(now)
        self._kit.refresh(now)
        window = self.circuit.window
        due = min(self._kit.book.next_check, self._kit.before_call(self.name, now))
        due = min(due, now + window.width) if window is not None else due
        with self._lock:
            # If `make_periodic_work_due` or `rest` came meanwhile, the next call does the periodic work, too.
            self._due = 0.0 if self._resting else due
        self.replan()

    def make_periodic_work_due(self) -> None:
        """Make the next call do the periodic work (see `do_periodic_work`)."""
        with self._lock:
            self._due, self._resting = 0.0, True
        self.replan()

    def rest(self) -> None:
        """Make the next call ask in full, even one to be refused, and a call that is under way report its end."""
        self._resting = True
        self.replan()

    # -- looked at -----------------------------------------------------------------------------------------------------

    def limits(self, now: float) -> Limits:
        """The limits under the policy in force, and how far they are used."""
        limits = self.limiting.look(self.policy, now)
        if self.share is not None and limits.rate is not None and self.share.desk.rate is not None:
            return limits._replace(rate=self.share.desk.rate)
        return limits

    def after_fork(self) -> None:
        """Reset in a forked child: the calls of the parent's other threads do not exist there."""
        self._lock = threading.Lock()
        self._planning = threading.Lock()
        self.limiting.after_fork()
        if self.cache is not None:
            self.cache = Cache(self.cache.max_entries)
        self.replan()


def _kept(policy: Policy) -> float:
    """Return for how many seconds answers are kept."""
    return policy.cache.ttl if policy.cache is not None else 0.0


def _shorter(timeout: float | None, deadline: float | None) -> float | None:
    """Return the shorter limit. Not a comprehension: a signal at its jump would leave Python 3.12 holding the lock."""
    if timeout is None or deadline is None:
        return deadline if timeout is None else timeout
    return min(timeout, deadline)
