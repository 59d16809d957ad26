"""The limits of one tool: bucket, slots, and the line of calls that wait for them, under one lock.

Only the head of the line may ask. A call that no limit holds up passes through `gate` without the lock.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from msgspec import structs

from holdfast.category import ErrorCategory
from holdfast.clock import fits
from holdfast.errors import ConcurrencyFull, RateLimited
from holdfast.guards.concurrency import Slots
from holdfast.guards.line import Line, Ticket
from holdfast.guards.rate import UNDIVIDED, Bucket
from holdfast.policy import Policy
from holdfast.tools.verdicts import Asker, Limits, Refusal

OVERLOADED = frozenset({ErrorCategory.TIMEOUT, ErrorCategory.RATE_LIMIT, ErrorCategory.SERVICE_UNAVAILABLE})

Take = Callable[[float, float], bool]
SlotGate = Callable[[float], Slots | bool]


class Limiting:
    """Rate and concurrency of one tool; they keep their state even while the policy does not use them."""

    __slots__ = ("bucket", "line", "slots", "_lock")

    def __init__(self) -> None:
        self.bucket: Bucket | None = None
        self.slots: Slots | None = None
        self.line = Line()
        self._lock = threading.Lock()

    def configure(self, policy: Policy, now: float) -> None:
        """Apply the limits of *policy*."""
        with self._lock:
            if policy.rate is not None:
                self.bucket = self.bucket or Bucket(policy.rate)
                self.bucket.configure(policy.rate, now)
            if policy.concurrency is not None:
                self.slots = self.slots or Slots(policy.concurrency)
                self.slots.configure(policy.concurrency)

    # -- asked ---------------------------------------------------------------------------------------------------------

    def line_up(self, asker: Asker, *, shared: bool = False) -> Refusal | None:
        """Reserve a token and a slot, or neither; an *asker* with enough patience for the wait gets a place in line.

        With *shared* the fleet decides the rate. A place that the *asker* had is kept until it is let in.
        """
        now, policy, ticket, patience = asker.now, asker.policy, asker.ticket, asker.patience
        if policy.rate is None and policy.concurrency is None:
            return None
        with self._lock:
            refusal = self._reserve(now, policy, ticket, shared=shared)
            if refusal is not None and ticket is None and patience > 0:
                ticket = self.line.join(now, policy.priority.rank, policy.priority.cost)
                # A slot may have come back while there was no waiter to wake; from now on there is one.
                refusal = self._reserve(now, policy, ticket, shared=shared)
            if refusal is not None and _is_awaited(refusal, patience):
                return structs.replace(refusal, ticket=ticket)
            if refusal is not None and not shared and self.line.head() is not ticket:
                refusal = self._behind(now, policy, ticket, refusal)
            if refusal is None and ticket is asker.ticket:
                return None  # no other call is woken, nor this one itself: it would ask the fleet again at once
            if ticket is not None:
                self.line.leave(ticket)
        self.wake()
        return refusal

    def stay_in_line(self, asker: Asker, refusal: Refusal, wait: float) -> Refusal:
        """Return the fleet's *refusal*, with a place in line and a *wait* if the *asker* has enough patience."""
        ticket, priority = asker.ticket, asker.policy.priority
        with self._lock:
            if _is_awaited(refusal, asker.patience):
                if ticket is None:
                    ticket = self.line.join(asker.now, priority.rank, priority.cost)
                return structs.replace(refusal, wait=wait, ticket=ticket)
            if ticket is not None:
                self.line.leave(ticket)
        self.wake()
        return refusal

    def leave_line(self, ticket: Ticket) -> None:
        """Give up a place in line, whether the call was admitted or not."""
        with self._lock:
            self.line.leave(ticket)
        self.wake()

    def wake(self) -> None:
        """Let the head of the line ask again."""
        if self.line.heap:
            with self._lock:
                self.line.tidy()
                called = self.line.called()
            for ticket in called:
                if not ticket.signal.fired:  # otherwise it was woken before, and will ask
                    ticket.signal.fire()

    def gate(self, policy: Policy, leased: Take | None = None) -> SlotGate | None:
        """Return what the quick path asks for a slot and a token (from *leased*, if given); None if it needs neither.

        The gate passes if both are free and no call waits, and returns the `Slots` that it took one of, if any.
        """
        if policy.rate is None and policy.concurrency is None:
            return None
        bucket = self.bucket if policy.rate is not None else None
        return self.slot_gate(policy, leased if leased is not None or bucket is None else bucket.take)

    def spend(self, take: Take, now: float, cost: float) -> bool:
        """Call *take*, with the lock held where threads can come between what it reads and writes: see `UNDIVIDED`."""
        if UNDIVIDED:
            return take(now, cost)
        with self._lock:
            return take(now, cost)

    def slot_gate(self, policy: Policy, take: Take | None = None) -> SlotGate:
        """Return a gate for a slot, if slots are limited, and for what *take* takes besides."""
        heap, cost = self.line.heap, policy.priority.cost
        slots = self.slots if policy.concurrency is not None else None
        pop = slots.free.pop if slots is not None else None

        def gate(now: float) -> Slots | bool:
            if heap:
                return False
            if pop is not None:
                try:
                    pop()
                except IndexError:
                    return False
            if take is not None:
                if not (take(now, cost) if UNDIVIDED else self.spend(take, now, cost)):  # `spend` is one call more
                    if slots is not None:
                        self.give(slots)
                        self.wake()
                    return False
            return slots if slots is not None else True

        return gate

    # -- told ----------------------------------------------------------------------------------------------------------

    def settle(
        self, now: float, slots: Slots | None, begun: float, category: ErrorCategory | None, pause: float | None
    ) -> None:
        """Learn from an attempt, and take its slot back; *category* None is a success."""
        bucket = self.bucket
        if bucket is None and slots is None:
            return
        with self._lock:
            if slots is not None:  # first: nothing may keep it from coming back
                neutral = category is ErrorCategory.CANCELLED
                slots.settle(None if neutral else now - begun, overloaded=category in OVERLOADED)
            if bucket is not None and bucket.config.adaptive:
                if category is None:
                    bucket.succeeded(now)
                elif category is ErrorCategory.RATE_LIMIT:
                    bucket.limited(now, pause, begun)
        self.wake()

    def leave(self, now: float, duration: float, taken: Slots | bool | None) -> None:
        """Give back what the gate has *taken*, after a success on the quick path."""
        bucket = self.bucket
        if bucket is not None and bucket.learnt is not None:
            with self._lock:
                bucket.succeeded(now)
        if isinstance(taken, Slots):
            self.give(taken, duration)
        if self.line.heap:
            self.wake()

    def give(self, slots: Slots, duration: float | None = None) -> None:
        """Give a slot back."""
        if slots.plain:
            slots.free.append(None)
        else:
            with self._lock:
                slots.settle(duration)

    # -- looked at -----------------------------------------------------------------------------------------------------

    def look(self, policy: Policy, now: float) -> Limits:
        """The limits under *policy*, and how far they are used."""
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
        """Reset in a forked child: the calls of the parent's other threads do not exist there."""
        self._lock = threading.Lock()
        self.line = Line()
        if self.slots is not None:
            self.slots = Slots(self.slots.config)

    # -- inside the lock -----------------------------------------------------------------------------------------------

    def _behind(self, now: float, policy: Policy, ticket: Ticket | None, refusal: Refusal) -> Refusal:
        """Return *refusal* with about how long it takes until the calls ahead, then this one, have their tokens."""
        bucket = self.bucket if policy.rate is not None else None
        if bucket is None:
            return refusal
        missing = self.line.ahead(ticket) + policy.priority.cost - bucket.tokens(now)
        wait = max(bucket.pause(now), missing / bucket.rate_at(now))
        if wait <= 0 and policy.concurrency is not None:  # there are tokens for all of them: they wait for slots
            return Refusal(ConcurrencyFull, math.inf)
        return structs.replace(refusal, wait=wait)

    def _reserve(self, now: float, policy: Policy, ticket: Ticket | None, *, shared: bool) -> Refusal | None:
        """Ask the rate, unless it is *shared*, then the concurrency limit."""
        if self.line.heap and self.line.head() is not ticket:
            return Refusal(ConcurrencyFull if policy.rate is None else RateLimited, math.inf)
        bucket = self.bucket if policy.rate is not None and not shared else None
        slots = self.slots if policy.concurrency is not None else None
        cost = policy.priority.cost
        if bucket is not None and cost > bucket.capacity:  # another policy made it smaller since the call began
            cost = bucket.capacity
        if bucket is not None and (wait := bucket.admit(now, cost)):
            return Refusal(RateLimited, wait)
        if slots is not None and not slots.take():
            if bucket is not None:
                bucket.refund(cost, now)
            return Refusal(ConcurrencyFull, math.inf)
        return None


def _is_awaited(refusal: Refusal, patience: float) -> bool:
    """True if *patience* covers the wait, or if the wait is unknown and there is any patience."""
    return fits(refusal.wait, patience) or (patience > 0 and refusal.wait == math.inf)
