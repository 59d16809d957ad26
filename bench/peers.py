"""How each peer is set up: by its own documentation, in memory, with the same thresholds as ours.

Imports are inside the functions, so that a peer that is not installed is left out rather than stopping the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Plain = Callable[[], object]
Awaited = Callable[[], Awaitable[object]]

PEERS = {  # as they are installed, and as they are imported
    "aiolimiter": "aiolimiter",
    "backoff": "backoff",
    "circuitbreaker": "circuitbreaker",
    "hyx": "hyx.circuitbreaker",
    "limits": "limits",
    "nopanic": "nopanic",
    "purgatory": "purgatory",
    "pybreaker": "pybreaker",
    "pyrate-limiter": "pyrate_limiter",
    "stamina": "stamina",
    "tenacity": "tenacity",
    "throttled-py": "throttled",
}
FAILURES = 5  # in a row open a circuit, where a peer counts failures
RATE = 0.5  # of the calls in the window, where a peer knows rates
MINIMUM = 20  # calls in the window before a rate is judged
SLOW = 1.0  # seconds
REST = 3600.0  # seconds an open circuit stays open: longer than any run
LIMIT = 1_000_000_000  # a second, and as a burst: never reached
AT_ONCE = 64
ATTEMPTS = 3
TIMEOUT = 30.0


def peer_only(error: ModuleNotFoundError) -> None:
    """A peer may be missing; that we, or something that we or a peer needs, is missing ends the run."""
    modules = {module.partition(".")[0] for module in PEERS.values()}
    if (error.name or "").partition(".")[0] not in modules:
        raise error


def noop() -> None:
    """The tool that is guarded: it does nothing, so what remains is the guard."""


async def anoop() -> None:
    """The same as a coroutine."""


def by_circuitbreaker(fn: Any) -> Any:
    """A decorator of one circuit; counts failures in a row. Coroutines too."""
    from circuitbreaker import circuit

    return circuit(failure_threshold=FAILURES, recovery_timeout=int(REST))(fn)


def by_pybreaker(fn: Plain) -> Plain:
    """Plain functions only (its coroutines are Tornado's)."""
    from pybreaker import CircuitBreaker

    return CircuitBreaker(fail_max=FAILURES, reset_timeout=REST)(fn)


def by_purgatory(fn: Plain) -> Plain:
    """The decorator of its factory; one circuit, kept in memory."""
    from purgatory import SyncCircuitBreakerFactory

    return SyncCircuitBreakerFactory(default_threshold=FAILURES, default_ttl=REST)("bench")(fn)


def aby_purgatory(fn: Awaited) -> Awaited:
    """Its asynchronous twin."""
    from purgatory import AsyncCircuitBreakerFactory

    return AsyncCircuitBreakerFactory(default_threshold=FAILURES, default_ttl=REST)("bench")(fn)


def by_hyx(fn: Awaited) -> Awaited:
    """Coroutines only; counts failures in a row."""
    from hyx.circuitbreaker import consecutive_breaker

    return consecutive_breaker(failure_threshold=FAILURES, recovery_time_secs=REST)(fn)


def by_nopanic(fn: Any, *, slow: bool = False) -> Any:
    """A failure rate over a time window, with *slow* a rate of slow calls too. Coroutines too."""
    return nopanic_breaker(slow=slow)(fn)


def nopanic_breaker(*, slow: bool) -> Any:
    """The breaker by itself, for a stack."""
    from nopanic import circuit_breaker

    return circuit_breaker(
        failure_threshold=RATE,
        min_calls=MINIMUM,
        reset_timeout=REST,
        slow_call_duration=SLOW if slow else None,
        slow_call_threshold=RATE,
    )


def by_nopanic_stack(fn: Any, *, timeout: bool = False) -> Any:
    """Rate limit, bulkhead and breaker with both windows, decorated once; with *timeout* that too, innermost."""
    from nopanic import bulkhead, compose, rate_limit
    from nopanic import timeout as limit_time

    policies = [rate_limit(LIMIT, burst=LIMIT), bulkhead(AT_ONCE), nopanic_breaker(slow=True)]
    if timeout:
        policies.append(limit_time(TIMEOUT))
    return compose(*policies)(fn)
