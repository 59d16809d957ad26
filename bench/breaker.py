"""One guarded call of a tool that does nothing, circuit closed: the breaker alone, and the whole stack."""

from __future__ import annotations

from functools import partial
from itertools import repeat

from bench import ours, peers
from bench.harness import Aim, Batch, Group, Settings, acalls, ameasure, calls, measure
from bench.peers import anoop, noop
from bench.report import Table, at_least, timed

ALONE = "holdfast breaker"
TOOL = "holdfast breaker+tracker"
STACK = "holdfast breaker+rate+concurrency+tracker"
TIMED = "holdfast the same + timeout"
NOPANIC_STACK = "nopanic breaker+rate+bulkhead"
NOPANIC_TIMED = "nopanic the same + timeout"


def run(settings: Settings) -> list[Table]:
    """Plain functions, then coroutines."""
    plain = timed(*measure(partial(_plain, settings), settings))
    if not settings.peers_only:
        # A window that does not hold the successes that were put off would be cheap, and wrong.
        for name, calls_made in zip((ALONE, TOOL), ours.opens_after(30), strict=True):
            plain.verdicts.append(at_least(f"{name}, until 2 of 3 failing open it", calls_made, 80, " calls"))
    return [plain, timed(*ameasure(partial(_awaited, settings), settings))]


def _plain(settings: Settings) -> Group:
    group = Group(
        "guarded call, function",
        "circuitbreaker",
        Aim(ALONE, 0.7, "circuitbreaker"),
        Aim(STACK, 1.5, "circuitbreaker"),
    )
    group.add("bare call", lambda: calls(noop))
    group.add("circuitbreaker", lambda: calls(peers.by_circuitbreaker(noop)))
    group.add("purgatory", lambda: calls(peers.by_purgatory(noop)))
    group.add("pybreaker", lambda: calls(peers.by_pybreaker(noop)))
    group.add("nopanic", lambda: calls(peers.by_nopanic(noop)))
    group.add("nopanic + slow calls", lambda: calls(peers.by_nopanic(noop, slow=True)))
    group.add(NOPANIC_STACK, lambda: calls(peers.by_nopanic_stack(noop)))
    if not settings.peers_only:
        group.add(ALONE, lambda: ours.protected(noop, calls))
        group.add(TOOL, lambda: ours.tool(group, noop, calls, breaker=ours.BREAKER))
        group.add(STACK, lambda: ours.tool(group, noop, calls, **ours.STACK))
        group.add("holdfast with breaker.admit(tool)", _admitted)
        group.add("holdfast with ToolResilience.acquire(tool)", _facade)
    return group


def _awaited(settings: Settings) -> Group:
    group = Group(
        "guarded call, coroutine",
        "circuitbreaker",
        Aim(ALONE, 0.7, "circuitbreaker"),
        Aim(STACK, 1.5, "circuitbreaker"),
        Aim(TIMED, 0.2, NOPANIC_TIMED),
    )
    group.add("bare call", lambda: acalls(anoop))
    group.add("circuitbreaker", lambda: acalls(peers.by_circuitbreaker(anoop)))
    group.add("purgatory", lambda: acalls(peers.aby_purgatory(anoop)))
    group.add("hyx", lambda: acalls(peers.by_hyx(anoop)))
    group.add("nopanic", lambda: acalls(peers.by_nopanic(anoop)))
    group.add("nopanic + slow calls", lambda: acalls(peers.by_nopanic(anoop, slow=True)))
    group.add(NOPANIC_STACK, lambda: acalls(peers.by_nopanic_stack(anoop)))
    group.add(NOPANIC_TIMED, lambda: acalls(peers.by_nopanic_stack(anoop, timeout=True)))
    if not settings.peers_only:
        group.add(ALONE, lambda: ours.protected(anoop, acalls))
        group.add(TOOL, lambda: ours.tool(group, anoop, acalls, breaker=ours.BREAKER))
        group.add(STACK, lambda: ours.tool(group, anoop, acalls, **ours.STACK))
        group.add(TIMED, lambda: ours.tool(group, anoop, acalls, **ours.STACK_TIMED))
    return group


def _admitted() -> Batch:
    import holdfast

    admit = holdfast.CircuitBreaker(holdfast.BreakerConfig(**ours.BREAKER)).admit

    def batch(n: int) -> None:
        for _ in repeat(None, n):
            with admit("bench"):
                noop()

    return batch


def _facade() -> Batch:
    import holdfast

    limiter = holdfast.AdaptiveRateLimiter(peers.LIMIT, peers.LIMIT)
    breaker = holdfast.CircuitBreaker(holdfast.BreakerConfig(**ours.BREAKER))
    acquire = holdfast.ToolResilience(limiter, breaker).acquire

    def batch(n: int) -> None:
        for _ in repeat(None, n):
            with acquire("bench"):
                noop()

    return batch
