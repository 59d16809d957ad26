"""`CircuitBreaker`: one circuit per tool, by name and on a clock, so that one bad tool never disables the others."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import random
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast import checks
from holdfast.category import ErrorCategory
from holdfast.clock import Clock
from holdfast.errors import SWITCHED_OFF, CircuitOpen, ConfigError, printable
from holdfast.guards.breaking import BreakerConfig
from holdfast.guards.circuit import Circuit, CircuitState, Grant
from holdfast.guards.names import short_key
from holdfast.parts.permit import Permit, known

_log = logging.getLogger("holdfast")

_REPORTER: Final = "reporter"
_NOBODY: Final[dict[str, object]] = {_REPORTER: None}
_MOST_LOOKS: Final = 4  # times that a snapshot reads all circuits, at most


class CircuitDiagnostics(msgspec.Struct, frozen=True):
    """One circuit at one instant; *is_open*: it refuses now; *opened_at* and *last_denied_at* are wall time."""

    tool: str
    state: CircuitState
    is_open: bool
    failure_count: int
    current_backoff: float
    remaining_backoff: float | None
    opened_at: float | None
    times_opened: int
    denied_requests: int
    last_denied_at: float | None
    last_error_category: ErrorCategory | None
    probes_in_flight: int


class BreakerSnapshot(msgspec.Struct, frozen=True):
    """All circuits at one instant, sorted by tool, and the names of those that refuse now."""

    diagnostics: tuple[CircuitDiagnostics, ...]
    open_circuits: tuple[str, ...]
    open_count: int


class BreakerMetrics(msgspec.Struct, frozen=True):
    """How often circuits opened, half-opened, closed and refused since the breaker was made."""

    opened: int
    half_opened: int
    closed: int
    refused: int


OnTransition = Callable[[str, CircuitState, CircuitState, CircuitDiagnostics], object]


class CircuitBreaker:
    """One circuit per tool. A tool that never failed costs no memory; at most *max_tools* circuits are kept."""

    def __init__(
        self,
        config: BreakerConfig | None = None,
        *,
        clock: Clock | None = None,
        max_tools: int = 10_000,
        on_transition: OnTransition | None = None,
    ) -> None:
        checks.whole("max_tools", max_tools)
        if config is not None and not isinstance(config, BreakerConfig):
            raise ConfigError(f"config = {checks.shown(config)}: must be a BreakerConfig")
        if on_transition is not None and not callable(on_transition):
            raise ConfigError(f"on_transition = {checks.shown(on_transition)}: must be callable with a tool's change")
        self._config = config if config is not None else BreakerConfig()
        self.clock = checks.clock(clock)
        self._monotonic = self.clock.monotonic
        self._max_tools = max_tools
        self._on_transition = on_transition
        self.on_reset: Callable[[str], object] = lambda tool: None  # called first: a fleet's circuit may be unknown
        self._circuits: dict[str, Circuit] = {}
        self._generations = itertools.count(1)
        self._founding = Grant(0)  # of a circuit that does not exist yet
        self._opened = self._half_opened = self._closed = self._refused = 0
        self._lock = threading.Lock()
        self._slow_from = self._config.slow_from
        self._slow = self._slow_from < math.inf
        self._rated = self._config.is_rated

    # -- asking and telling --------------------------------------------------------------------------------------------

    def admit(self, tool: str) -> Permit:
        """A permit for one attempt on *tool*; raises `CircuitOpen` if it is refused."""
        try:
            circuit = self._circuits.get(tool)
        except TypeError:
            circuit = None
        if circuit is None and (circuit := self._find(tool)) is None:
            return Permit(self, tool, None, self._founding, self._monotonic() if self._slow else 0.0)
        grant = circuit.grant
        if circuit.calm:
            circuit.last_used = next(self._generations)
            return Permit(self, tool, circuit, grant, self._monotonic() if self._slow else 0.0)
        now = self._monotonic()
        if now < circuit.shut_until:
            wait = circuit.turn_away(now)
        else:
            answer = circuit.admit(now)
            try:
                self.report_moves(tool, circuit)
                if isinstance(answer, Grant):
                    return Permit(self, tool, circuit, answer, now)
            except BaseException:  # a listener was interrupted, say
                if isinstance(answer, Grant):
                    circuit.release(answer)
                raise
            wait = answer
        raise CircuitOpen(tool, SWITCHED_OFF) if wait == math.inf else CircuitOpen(tool, None, wait)

    def allow_request(self, tool: str) -> bool:
        """True if *tool* may be tried now; report the outcome with `record_success` or `record_failure`."""
        try:
            self.admit(tool)
        except CircuitOpen:
            return False
        return True

    def record_success(self, tool: str) -> None:
        """Report a success without a permit."""
        circuit = self._find(tool)
        if circuit is None and self._rated:
            circuit = self.circuit(tool)
        if circuit is not None:
            circuit.settle(None, self._monotonic())
            self.report_moves(tool, circuit)

    def record_failure(self, tool: str, category: ErrorCategory | str = ErrorCategory.EXECUTION_ERROR) -> None:
        """Report a failure without a permit."""
        category = known(category)
        circuit = self._find(tool)
        if circuit is None and category in self._config.trips:
            circuit = self.circuit(tool)
        if circuit is not None:
            circuit.settle(None, self._monotonic(), category)
            self.report_moves(tool, circuit)

    # -- looking -------------------------------------------------------------------------------------------------------

    def state(self, tool: str) -> CircuitState:
        """The state of *tool*'s circuit; an unknown tool's is closed."""
        return self.diagnostics(tool).state

    def remaining_backoff(self, tool: str) -> float | None:
        """Seconds until an open circuit lets a probe through; None if it is not open or is held open by hand."""
        return self.diagnostics(tool).remaining_backoff

    def diagnostics(self, tool: str) -> CircuitDiagnostics:
        """Return the state, counts and waits of *tool*'s circuit now."""
        circuit = self._find(tool) or Circuit(self._config, self._generations, 0, random.random)
        return self._diagnose(tool, circuit, *self._now())

    def snapshot(self) -> BreakerSnapshot:
        """Return all circuits at one instant (unless they keep changing state), and which of them refuse now."""
        for _ in range(_MOST_LOOKS):
            circuits = sorted(self._all())
            states = [(circuit.grant, circuit.state) for _, circuit in circuits]
            now = self._now()
            diagnostics = tuple(self._diagnose(tool, circuit, *now) for tool, circuit in circuits)
            if states == [(circuit.grant, circuit.state) for _, circuit in circuits]:
                break  # no circuit changed while they were read
        refusing = tuple(d.tool for d in diagnostics if d.is_open)
        return BreakerSnapshot(diagnostics, refusing, len(refusing))

    def metrics(self) -> BreakerMetrics:
        """Counts over the breaker's whole life."""
        with self._lock:  # both at once: the count of a circuit that is evicted moves from one to the other
            refused, circuits = self._refused, list(self._circuits.values())
        refused += sum(circuit.denied for circuit in circuits)
        return BreakerMetrics(self._opened, self._half_opened, self._closed, refused)

    def should_pause_for_recovery(self, max_open_circuits: int) -> bool:
        """True if at least *max_open_circuits* circuits refuse now; 0 means never."""
        checks.whole("max_open_circuits", max_open_circuits, least=0)
        return max_open_circuits > 0 and self.snapshot().open_count >= max_open_circuits

    # -- controls ------------------------------------------------------------------------------------------------------

    def reset(self, tool: str) -> None:
        """Close *tool*'s circuit and forget its failures and any force; lifetime counters stay."""
        self.on_reset(tool)
        if (circuit := self._find(tool)) is not None:
            circuit.reset()
            self.report_moves(tool, circuit)

    def reset_all(self) -> None:
        """Reset every circuit."""
        for tool, _ in self._all():
            self.reset(tool)

    def force_open(self, tool: str) -> None:
        """Refuse every request until `auto` or `reset`."""
        self._force(tool, CircuitState.OPEN)

    def force_closed(self, tool: str) -> None:
        """Let every request pass and count nothing until `auto` or `reset`."""
        self._force(tool, CircuitState.CLOSED)

    def auto(self, tool: str) -> None:
        """Give a forced circuit back to its own judgement."""
        self._force(tool, None)

    # -- for the guarded call ------------------------------------------------------------------------------------------

    def circuit(self, tool: str, config: BreakerConfig | None = None) -> Circuit:
        """The circuit of *tool*, made if need be, under *config* if it is given; parallel callers get the same one."""
        name = short_key(tool)
        with self._lock:
            circuit = self._circuits.get(name)
            if circuit is None:
                circuit = self._make(name, config or self._config, self._founding.generation)
        if config is not None and circuit.config != config:
            circuit.configure(config)
        return circuit

    def report_moves(self, tool: str, circuit: Circuit) -> None:
        """Report the changes of state of *circuit* that are not reported yet, in order; called outside every lock.

        While one thread reports, the others leave their changes to it.
        """
        while circuit.moves and self._report_all(tool, circuit):
            pass  # another thread may have left a change to this one just as it finished

    def after_fork(self) -> None:
        """Replace the locks in a forked child: a thread that does not exist there may have held one."""
        self._lock = threading.Lock()
        for circuit in self._circuits.values():
            circuit.after_fork()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _answer(self, permit: Permit, category: ErrorCategory | None, error: BaseException | None) -> None:
        circuit = permit._circuit
        if circuit is None and self._circuits:
            circuit = self._find(permit.tool)  # a parallel first call may have made it meanwhile
        if category is None and (not self._rated if circuit is None else circuit.calm and circuit.window is None):
            return  # a clean success says nothing new
        if circuit is None and (circuit := self._found(permit, category)) is None:
            return
        now = self._monotonic()
        duration = now - permit._at if self._slow else 0.0
        if category is None and circuit.calm and permit._grant is circuit.grant and duration < self._slow_from:
            circuit.succeeded_many(now, 1)
            return
        circuit.settle(permit._grant, now, category, duration=duration)
        self.report_moves(permit.tool, circuit)

    def _report_all(self, tool: str, circuit: Circuit) -> bool:
        """Report the waiting changes; False if another thread is reporting, which checks again when it is done."""
        me = object()
        try:
            if circuit.reporter.setdefault(_REPORTER, me) is not me:
                return False
            while circuit.moves:
                self._report_one(tool, circuit, *circuit.moves.popleft())
            return True
        finally:  # also if an interrupt came right after the mark was set; none can come here, as nothing is called
            if (_NOBODY | circuit.reporter)[_REPORTER] is me:
                del circuit.reporter[_REPORTER]

    def _report_one(self, tool: str, circuit: Circuit, old: CircuitState, new: CircuitState) -> None:
        with self._lock:
            self._opened += new is CircuitState.OPEN
            self._half_opened += new is CircuitState.HALF_OPEN
            self._closed += new is CircuitState.CLOSED
        if self._on_transition is not None:
            diagnostics = self._diagnose(tool, circuit, *self._now())
            try:
                self._on_transition(tool, old, new, diagnostics)
            except Exception:
                _log.exception("on_transition failed for %s", printable(tool))

    def _take_back(self, permit: Permit) -> None:
        if permit._circuit is not None:
            permit._circuit.release(permit._grant)

    def _found(self, permit: Permit, category: ErrorCategory | None) -> Circuit | None:
        """Return the circuit for an outcome whose permit is older than the circuit; make it if the outcome counts."""
        name = short_key(permit.tool)
        with self._lock:
            circuit = self._circuits.get(name)
            if circuit is None and permit._grant == self._founding:
                if category is None or category in self._config.trips:
                    circuit = self._make(name, self._config, self._founding.generation)
            return circuit

    def _find(self, tool: str) -> Circuit | None:
        circuit = self._circuits.get(tool) if isinstance(tool, str) else None
        return circuit if circuit is not None else self._circuits.get(short_key(tool))

    def _make(self, name: str, config: BreakerConfig, generation: int) -> Circuit:
        """Make a circuit, and room for it; the caller holds the lock."""
        if len(self._circuits) >= self._max_tools:
            self._evict(max(1, self._max_tools // 16))
        circuit = self._circuits[name] = Circuit(config, self._generations, generation, random.random)
        return circuit

    def _evict(self, number: int) -> None:
        """Forget the least recently used healthy circuits; others if there are none, those held by hand last."""
        circuits = self._circuits
        names = [name for name, circuit in circuits.items() if circuit.healthy]
        names = names or [name for name, circuit in circuits.items() if circuit.forced is None] or list(circuits)
        for name in heapq.nsmallest(number, names, key=lambda name: circuits[name].last_used):
            circuit = circuits.pop(name)
            circuit.evict()
            self._refused += circuit.denied
        self._founding = Grant(next(self._generations))

    def _force(self, tool: str, state: CircuitState | None) -> None:
        circuit = self._find(tool)
        if circuit is None:
            if state is None:
                return
            circuit = self.circuit(tool)
        circuit.force(state)
        self.report_moves(tool, circuit)

    def _all(self) -> list[tuple[str, Circuit]]:
        with self._lock:
            return list(self._circuits.items())

    def _now(self) -> tuple[float, float]:
        return self._monotonic(), self.clock.time()

    def _diagnose(self, tool: str, circuit: Circuit, now: float, wall: float) -> CircuitDiagnostics:
        look = circuit.look(now)

        def dated(at: float | None) -> float | None:
            return None if at is None else wall - (now - at)

        return CircuitDiagnostics(
            tool=tool,
            state=look.state,
            is_open=look.wait > 0,
            failure_count=look.failures,
            current_backoff=look.backoff,
            remaining_backoff=look.remaining,
            opened_at=dated(look.opened_at),
            times_opened=look.times_opened,
            denied_requests=look.denied,
            last_denied_at=dated(look.last_denied),
            last_error_category=look.last_category,
            probes_in_flight=look.probes,
        )
