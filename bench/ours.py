"""How Holdfast is set up: by its public door, with a store in memory, no policy file, and the peers' thresholds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.harness import Batch, Contender, Group
from bench.peers import AT_ONCE, FAILURES, LIMIT, MINIMUM, RATE, REST, SLOW, TIMEOUT

BREAKER: dict[str, Any] = {
    "failure_threshold": FAILURES,
    "failure_rate": RATE,
    "minimum_calls": MINIMUM,
    "slow_call": SLOW,
    "slow_call_rate": RATE,
    "min_backoff": REST,
    "max_backoff": REST,
}
STACK: dict[str, Any] = {
    "breaker": BREAKER,
    "rate": {"per_second": LIMIT, "burst": LIMIT},
    "concurrency": AT_ONCE,
}
STACK_TIMED: dict[str, Any] = {**STACK, "timeout": TIMEOUT}


def opened(group: Group) -> Any:
    """A `Holdfast` of its own, closed when the group is done."""
    import holdfast

    hf = holdfast.open(":memory:", policies={})
    group.closers.append(hf.close)
    return hf


def protected(fn: Any, batch: Callable[[Any], Batch]) -> Contender:
    """*fn* behind a breaker and nothing else; its circuit is read at the end of each batch."""
    import holdfast

    breaker = holdfast.CircuitBreaker(holdfast.BreakerConfig(**BREAKER))
    return Contender("", batch(holdfast.protecting(breaker, "bench")(fn)), settle=breaker.snapshot)


def tool(group: Group, fn: Any, batch: Callable[[Any], Batch], **policy: Any) -> Contender:
    """*fn* as a guarded tool."""
    hf = opened(group)
    return settled(hf, batch(hf.tool("bench", **policy)(fn)))


def settled(hf: Any, batch: Batch) -> Contender:
    """A contender that pays for what was put off: statistics and circuits are read at the end of each batch.

    What was read must hold every call that was made, or the batch was cheap because something was dropped.
    """
    made = 0

    def counted(n: int) -> Any:
        nonlocal made
        made += n
        return batch(n)

    def settle() -> None:
        hf.breaker.snapshot()
        seen = hf.tracker.stats()
        if seen.total + seen.denied < made:
            raise AssertionError(f"{made} calls were made, {seen.total} and {seen.denied} refusals were counted")

    return Contender("", counted, settle=settle)


def opens_after(successes: int) -> tuple[int, int]:
    """Calls that a circuit bears when, after *successes*, two of three fail: 86 after 30 if its window holds them.

    First of a breaker alone, then of a guarded tool.
    """
    import holdfast

    alone = holdfast.protecting(holdfast.CircuitBreaker(holdfast.BreakerConfig(**BREAKER)))
    with holdfast.open(":memory:", policies={}) as hf:
        return _opens_after(successes, alone), _opens_after(successes, hf.tool(breaker=BREAKER))


def _opens_after(successes: int, guard: Callable[[Any], Any]) -> int:
    import holdfast

    made = 0

    @guard
    def flaky() -> None:
        nonlocal made
        made += 1
        if made > successes and made % 3:
            raise ConnectionError

    for _ in range(100 * successes):
        try:
            flaky()
        except ConnectionError:
            continue
        except holdfast.CircuitOpen:
            break
    return made - successes
