"""Retry by itself, for a function that needs no other guard: the same rules as in a guarded call, and nothing else."""

from __future__ import annotations

import itertools
import math
import random
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from holdfast import checks
from holdfast.category import classify, retry_after
from holdfast.clock import Clock
from holdfast.errors import ConfigError, is_refusal
from holdfast.guards.retry import RetryBudget, RetryConfig, note
from holdfast.loops import asleep
from holdfast.shape import Shape, dressed, kind_of, name_of, shape_of, static_too

P = ParamSpec("P")
R = TypeVar("R")


@overload
def retrying(fn: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def retrying(
    *,
    attempts: int = 3,
    initial: float = 0.2,
    max: float = 3.0,
    factor: float = 2.0,
    budget: float = 0.2,
    deadline: float | None = None,
    clock: Clock | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def retrying(
    fn: Any = None,
    /,
    *,
    attempts: int = 3,
    initial: float = 0.2,
    max: float = 3.0,
    factor: float = 2.0,
    budget: float = 0.2,
    deadline: float | None = None,
    clock: Clock | None = None,
) -> Any:
    """Repeat a function or coroutine function that fails with a retryable error; only for calls that may be repeated.

    Waits grow from *initial* by *factor* to *max* seconds with full jitter; `Retry-After` wins over them. *budget* is
    the share of calls that may be retries, *deadline* the seconds after which no other attempt is begun.
    """
    config = RetryConfig(attempts=attempts, initial=initial, max=max, factor=factor, budget=budget)
    if deadline is not None:
        checks.number("deadline", deadline, above=0)

    @static_too
    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        shape = shape_of(fn)
        retries = _Retries(name_of(fn), config, deadline, checks.clock(clock))
        if shape is Shape.FUNCTION:
            return dressed(fn, _function(fn, retries))
        if shape is Shape.COROUTINE:
            return dressed(fn, _coroutine(fn, retries))
        raise ConfigError(f"retrying: {name_of(fn)} is {shape.value}; only what has one answer can be repeated")

    return decorate if fn is None else decorate(fn)


def _function(fn: Callable[..., Any], retries: _Retries) -> Callable[..., Any]:
    calls = retries.calls
    kind: type | None = None  # type of the last result; most results have the same

    def repeated(*args: Any, **kwargs: Any) -> Any:
        nonlocal kind
        call = next(calls)
        begun = retries.begin()
        failed = 0
        while True:
            try:
                result = fn(*args, **kwargs) if kwargs else fn(*args)
                if type(result) is not kind:
                    kind = kind_of(result, name_of(fn))
                return result
            except Exception as error:
                failed += 1
                delay = retries.delay(error, failed, begun, call)
                if delay is None:
                    raise
            retries.clock.sleep(delay)

    return repeated


def _coroutine(fn: Callable[..., Any], retries: _Retries) -> Callable[..., Any]:
    calls = retries.calls

    async def repeated(*args: Any, **kwargs: Any) -> Any:
        call = next(calls)
        begun = retries.begin()
        failed = 0
        while True:
            try:
                return await (fn(*args, **kwargs) if kwargs else fn(*args))
            except Exception as error:
                failed += 1
                delay = retries.delay(error, failed, begun, call)
                if delay is None:
                    raise
            await asleep(retries.clock, delay)

    return repeated


class _Retries:
    """What the calls of one function share: its settings and its retry budget."""

    def __init__(self, name: str, config: RetryConfig, deadline: float | None, clock: Clock) -> None:
        self.clock = clock
        self.calls = itertools.count(1)
        self._name = name
        self._config = config
        self._deadline = math.inf if deadline is None else deadline
        self._budget = RetryBudget()
        self._latest = 0
        self._lock = threading.Lock()

    def begin(self) -> float:
        """Return when the call began; 0.0 if there is no deadline."""
        return self.clock.monotonic() if self._deadline < math.inf else 0.0

    def delay(self, error: Exception, failed: int, begun: float, call: int) -> float | None:
        """How long to wait before another attempt; None, with a note on *error*, if there is to be none."""
        if is_refusal(error):  # a refusal is not a failure, and asking again at once does not help
            return None
        left = self._deadline - (self.clock.monotonic() - begun) if self._deadline < math.inf else math.inf
        pause = retry_after(error, now=self.clock.time())
        delay = self._config.next_delay(classify(error), failed, pause, left, random.random)
        if isinstance(delay, float):
            with self._lock:
                self._latest = max(self._latest, call)  # calls fail in another order than they began
                affordable = self._budget.take(self._config.budget, self._latest)
            if affordable:
                return delay
            delay = "the retry budget is used up"
        note(error, self._name, failed, f"not repeated: {delay}" if delay else "")
        return None
