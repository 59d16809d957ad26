"""A breaker by itself around a function, as a decorator: nothing is waited for, repeated or tracked.

While the circuit is calm a success is a tick of a counter; ticks are told to the circuit before anything is judged by
them, and at the latest when its window moves on.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from holdfast.breaker import CircuitBreaker
from holdfast.errors import ConfigError
from holdfast.guards.circuit import Circuit, Grant
from holdfast.permit import Permit
from holdfast.shape import Shape, name_of, shape_of

P = ParamSpec("P")
R = TypeVar("R")


def protecting(breaker: CircuitBreaker, tool: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have *breaker* refuse calls of a function or coroutine function while its circuit is open.

    *tool* names the circuit; it is the function's name by default.
    """

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        shape = shape_of(fn)
        if shape not in (Shape.FUNCTION, Shape.COROUTINE):
            raise ConfigError(f"protecting: {name_of(fn)} is {shape.value}; hf.tool guards streams")
        watch = _Watch(breaker, tool if tool is not None else name_of(fn))
        return functools.wraps(fn)(_function(fn, watch) if shape is Shape.FUNCTION else _coroutine(fn, watch))

    return decorate


def _function(fn: Callable[..., Any], watch: _Watch) -> Callable[..., Any]:
    monotonic, tick = watch.monotonic, watch.tick

    def protected(*args: Any, **kwargs: Any) -> Any:
        circuit = watch.circuit
        grant = circuit.grant
        if circuit.calm:
            begun = monotonic()
            if begun < watch.turn:
                try:
                    result = fn(*args, **kwargs) if kwargs else fn(*args)
                except BaseException as error:
                    watch.ended(circuit, grant, begun, error)
                    raise
                if monotonic() - begun < watch.slow and circuit.calm and grant is circuit.grant:
                    tick()
                else:
                    watch.ended(circuit, grant, begun)
                return result
        with watch.admit():
            return fn(*args, **kwargs)

    return protected


def _coroutine(fn: Callable[..., Any], watch: _Watch) -> Callable[..., Any]:
    monotonic, tick = watch.monotonic, watch.tick

    async def protected(*args: Any, **kwargs: Any) -> Any:
        circuit = watch.circuit
        grant = circuit.grant
        if circuit.calm:
            begun = monotonic()
            if begun < watch.turn:
                try:
                    result = await (fn(*args, **kwargs) if kwargs else fn(*args))
                except BaseException as error:
                    watch.ended(circuit, grant, begun, error)
                    raise
                if monotonic() - begun < watch.slow and circuit.calm and grant is circuit.grant:
                    tick()
                else:
                    watch.ended(circuit, grant, begun)
                return result
        with watch.admit():
            return await fn(*args, **kwargs)

    return protected


class _Watch:
    """The circuit of one function, how long a call may take not to be slow, and when to look after the two again."""

    __slots__ = ("circuit", "monotonic", "slow", "tick", "turn", "_breaker", "_lock", "_ticked", "_tool")

    def __init__(self, breaker: CircuitBreaker, tool: str) -> None:
        self.circuit = breaker.circuit(tool)
        self.monotonic = breaker.clock.monotonic
        self.slow = math.inf
        self.tick = itertools.count(1).__next__  # one operation that the interpreter does not split
        self.turn = -math.inf
        self._breaker = breaker
        self._lock = threading.Lock()
        self._ticked = 0
        self._tool = tool

    def admit(self) -> Permit:
        """A permit, asked for in full; the breaker may have forgotten the circuit or moved its window meanwhile."""
        self._count(self.monotonic())
        if self.circuit.evicted:
            self.circuit = self._breaker.circuit(self._tool)
        config, window = self.circuit.config, self.circuit.window
        self.slow = config.slow_call if config.slow_call is not None else math.inf
        self.turn = self.monotonic() + window.width if window is not None else math.inf
        return self._breaker.admit(self._tool)

    def ended(self, circuit: Circuit, grant: Grant, begun: float, error: BaseException | None = None) -> None:
        """Tell of an attempt that was a failure, slow, or under way while the circuit changed."""
        self._count(self.monotonic())
        permit = Permit(self._breaker, self._tool, circuit, grant, begun)
        permit.__exit__(type(error) if error is not None else None, error, None)

    def _count(self, now: float) -> None:
        """Tell the circuit of the ticks since last time; reading the counter takes one itself."""
        with self._lock:
            ticked = self.tick()
            fresh, self._ticked = ticked - self._ticked - 1, ticked
        if fresh:
            self.circuit.succeeded_many(min(now, self.turn), fresh)
