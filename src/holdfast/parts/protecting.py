"""A breaker by itself around a function, as a decorator: it does not wait, repeat or track anything.

While the circuit is calm, a success is only a tick of a counter. The ticks are reported to the circuit before it judges
anything by them, and at the latest when its window moves on.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from holdfast import checks
from holdfast.errors import ConfigError
from holdfast.guards.circuit import Circuit, Grant
from holdfast.parts.breaker import CircuitBreaker
from holdfast.parts.permit import Permit
from holdfast.shape import Shape, dressed, kind_of, name_of, shape_of, static_too

P = ParamSpec("P")
R = TypeVar("R")

# How calls pass without asking: the circuit; the grant, as long as the circuit still has it; the time to ask in full
# again, because the window moves on; the duration below which a success is only a tick. A bare tuple, because it is
# unpacked at each call.
Plan = tuple[Circuit, Grant, float, float]


def protecting(breaker: CircuitBreaker, tool: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have *breaker* refuse calls of a function or coroutine function while its circuit is open.

    *tool* names the circuit; it is the function's name by default.
    """
    if not isinstance(breaker, CircuitBreaker):
        raise ConfigError(f"breaker = {checks.shown(breaker)}: must be a CircuitBreaker, as in @protecting(breaker)")

    @static_too
    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        shape = shape_of(fn)
        if shape not in (Shape.FUNCTION, Shape.COROUTINE):
            raise ConfigError(f"protecting: {name_of(fn)} is {shape.value}; hf.tool guards streams")
        watch = _Watch(breaker, tool if tool is not None else name_of(fn))
        return dressed(fn, _function(fn, watch) if shape is Shape.FUNCTION else _coroutine(fn, watch))

    return decorate


def _function(fn: Callable[..., Any], watch: _Watch) -> Callable[..., Any]:
    monotonic, tick = watch.monotonic, watch.tick
    kind: type | None = None  # type of the last result; most results have the same

    def protected(*args: Any, **kwargs: Any) -> Any:
        nonlocal kind
        circuit, grant, turn, brief = watch.plan
        if grant is circuit.grant:
            begun = monotonic()
            if begun < turn:
                try:
                    result = fn(*args, **kwargs) if kwargs else fn(*args)
                    if type(result) is not kind:
                        kind = kind_of(result, name_of(fn))
                except BaseException as error:
                    watch.ended(circuit, grant, begun, error)
                    raise
                if monotonic() - begun < brief and circuit.calm and grant is circuit.grant:
                    tick()
                else:
                    watch.ended(circuit, grant, begun)
                return result
        with watch.admit(), watch:
            result = fn(*args, **kwargs)
            if type(result) is not kind:
                kind = kind_of(result, name_of(fn))
            return result

    return protected


def _coroutine(fn: Callable[..., Any], watch: _Watch) -> Callable[..., Any]:
    monotonic, tick = watch.monotonic, watch.tick

    async def protected(*args: Any, **kwargs: Any) -> Any:
        circuit, grant, turn, brief = watch.plan
        if grant is circuit.grant:
            begun = monotonic()
            if begun < turn:
                try:
                    result = await (fn(*args, **kwargs) if kwargs else fn(*args))
                except BaseException as error:
                    watch.ended(circuit, grant, begun, error)
                    raise
                if monotonic() - begun < brief and circuit.calm and grant is circuit.grant:
                    tick()
                else:
                    watch.ended(circuit, grant, begun)
                return result
        with watch.admit(), watch:
            return await fn(*args, **kwargs)

    return protected


class _Watch:
    """The circuit of one function, and the successes that are not reported to it yet.

    A context manager: leaving it reports them, before the permit around it reports its outcome.
    """

    __slots__ = ("monotonic", "plan", "tick", "_breaker", "_lock", "_ticked", "_tool")

    def __init__(self, breaker: CircuitBreaker, tool: str) -> None:
        circuit = breaker.circuit(tool)
        self.monotonic = breaker.clock.monotonic
        self.plan: Plan = (circuit, circuit.grant, breaker.clock.monotonic(), 0.0)  # the first call asks in full
        self.tick = itertools.count(1).__next__  # one operation that the interpreter does not split
        self._breaker = breaker
        self._lock = threading.Lock()
        self._ticked = 0
        self._tool = tool

    def admit(self) -> Permit:
        """Make a new plan and ask the breaker for a permit: the circuit may have changed or been evicted meanwhile."""
        self._count()
        circuit = self.plan[0]
        if circuit.evicted:
            circuit = self._breaker.circuit(self._tool)
        grant, now = circuit.grant, self.monotonic()
        width = circuit.window.width if circuit.window is not None else math.inf
        brief = min(circuit.config.slow_from, width)
        self.plan = (circuit, grant, now + width if circuit.calm else now, brief)
        return self._breaker.admit(self._tool)

    def ended(self, circuit: Circuit, grant: Grant, begun: float, error: BaseException | None = None) -> None:
        """Report an attempt that failed, took too long for a tick, or was under way while the circuit changed."""
        self._count(error)
        permit = Permit(self._breaker, self._tool, circuit, grant, begun)
        permit.__exit__(type(error) if error is not None else None, error, None)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._count(error)

    def _count(self, error: BaseException | None = None) -> None:
        """Report the ticks since the last time to the circuit; reading the counter is a tick itself."""
        if isinstance(error, GeneratorExit):  # the garbage collector may close a call while the lock is held
            return
        with self._lock:
            ticked = self.tick()
            fresh, self._ticked = ticked - self._ticked - 1, ticked
            circuit, grant, turn, _ = self.plan
        # Ticks from before a reset, or while the circuit was forced, do not count; the others are as old as the plan.
        if fresh and circuit.window is not None and grant is circuit.grant:
            circuit.succeeded_many(turn - circuit.window.width, fresh)
