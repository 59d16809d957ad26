"""What all tools of a Holdfast share."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.bus import Bus
from holdfast.clock import Clock
from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.circuit import Circuit, CircuitState
from holdfast.hooks import Hook, Hooks
from holdfast.parts.breaker import CircuitBreaker
from holdfast.policy import PolicyBook
from holdfast.runs import open_runs
from holdfast.shape import Shape
from holdfast.tracking.tracker import ExecutionTracker
from holdfast.waiting.threads import Workers

if TYPE_CHECKING:
    from holdfast.fleet.fleet import Fleet


class HasShape(Protocol):
    """The part of a decorated function that is known here."""

    @property
    def shape(self) -> Shape: ...


class Kit:
    """Clock, policies, bus, circuits, statistics, threads and runs; made once, handed around."""

    def __init__(
        self,
        *,
        book: PolicyBook,
        clock: Clock,
        bus: Bus,
        breaker: CircuitBreaker,
        tracker: ExecutionTracker,
        hooks: Sequence[Hook] = (),
        fleet: Fleet | None = None,
    ) -> None:
        self.book = book
        self.clock = clock
        self.bus = bus
        self.breaker = breaker
        self.tracker = tracker
        self.fleet = fleet
        self.workers = Workers()
        self.hooks: Hooks | None = Hooks(hooks, self.workers, clock) if hooks else None
        self.runs: set[int] = open_runs  # while it is empty, calls need not look for a current run
        self.bound: dict[str, HasShape] = {}  # the decorated functions by tool, for `calls` to find a fallback
        self.call_ids = itertools.count(1)
        self.refresh: Callable[[float], object] = lambda now: None  # takes up a changed policy file
        self.drop: Callable[[str], object] = lambda tool: None  # forgets a tool
        # Called when a tool is about to be called, but not for every call; returns the time by which to call it again.
        self.before_call: Callable[[str, float], float] = lambda tool, now: math.inf
        # Called at the end of a call that `before_call` missed.
        self.after_call: Callable[[str], object] = lambda tool: None
        # The circuit of tools without a breaker: it passes everything and remembers nothing.
        self.no_circuit = Circuit(BreakerConfig(), itertools.count(), 0, random.random)
        self.no_circuit.force(CircuitState.CLOSED)

    def after_fork(self) -> None:
        """Reset in a forked child: threads and locks are the parent's."""
        self.book.after_fork()
        self.bus.after_fork()
        self.breaker.after_fork()
        self.tracker.after_fork()
        self.workers.after_fork()
        self.no_circuit.after_fork()
        if self.fleet is not None:
            self.fleet.after_fork()
