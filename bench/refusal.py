"""A call of a tool whose circuit is open, and the exception caught: what it costs to be told no."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import repeat
from typing import Any

from bench import ours, peers
from bench.harness import BREATH, Aim, Batch, Contender, Group, Settings, ameasure, measure
from bench.peers import anoop, noop
from bench.report import Table, timed

TRIPPED = "holdfast, tripped"
FORCED = "holdfast, forced open"
_ENOUGH = 100  # failures that open any circuit here


class Broken(Exception):
    """What the tool raises until its circuit opens."""


def run(settings: Settings) -> list[Table]:
    """Plain functions, then coroutines."""
    return [
        timed(*measure(partial(_plain, settings), settings)),
        timed(*ameasure(partial(_awaited, settings), settings)),
    ]


def broken() -> None:
    """A tool that always fails."""
    raise Broken


async def abroken() -> None:
    """The same as a coroutine."""
    raise Broken


def _plain(settings: Settings) -> Group:
    group = _group("function")
    group.add("bare call that raises", lambda: _caught(broken))
    group.add("circuitbreaker", lambda: _refused(peers.by_circuitbreaker(broken)))
    group.add("purgatory", lambda: _refused(peers.by_purgatory(broken)))
    group.add("pybreaker", lambda: _refused(peers.by_pybreaker(broken)))
    group.add("nopanic", lambda: _refused(peers.by_nopanic(broken)))
    if not settings.peers_only:
        group.add(TRIPPED, lambda: ours.tool(group, broken, _refused, breaker=ours.BREAKER))
        group.add(FORCED, lambda: _forced(group, noop, _caught))
    return group


def _awaited(settings: Settings) -> Group:
    group = _group("coroutine")
    group.add("bare call that raises", lambda: _acaught(abroken))
    group.add("circuitbreaker", lambda: _arefused(peers.by_circuitbreaker(abroken)))
    group.add("purgatory", lambda: _arefused(peers.aby_purgatory(abroken)))
    group.add("hyx", lambda: _arefused(peers.by_hyx(abroken)))
    group.add("nopanic", lambda: _arefused(peers.by_nopanic(abroken)))
    if not settings.peers_only:
        group.add(TRIPPED, lambda: ours.tool(group, abroken, _arefused, breaker=ours.BREAKER))
        group.add(FORCED, lambda: _forced(group, anoop, _acaught))
    return group


def _group(kind: str) -> Group:
    aims = [Aim(name, 1.0, "circuitbreaker") for name in (TRIPPED, FORCED)]
    return Group(f"refusal, {kind}", "circuitbreaker", *aims)


def _forced(group: Group, fn: Any, batch: Callable[[Any], Batch]) -> Contender:
    hf = ours.opened(group)
    tool = hf.tool("bench", breaker=ours.BREAKER)(fn)
    hf.breaker.force_open("bench")
    return ours.settled(hf, batch(tool))


def _refused(fn: Callable[[], object]) -> Batch:
    for _ in range(_ENOUGH):
        try:
            fn()
        except Broken:
            continue
        except Exception:
            return _caught(fn)
    raise AssertionError("the circuit did not open")


def _arefused(fn: Callable[[], Awaitable[object]]) -> Batch:
    caught = _acaught(fn)
    is_open = False

    async def batch(n: int) -> None:
        nonlocal is_open
        if not is_open:
            await _open(fn)
            is_open = True
        await caught(n)

    return batch


async def _open(fn: Callable[[], Awaitable[object]]) -> None:
    for _ in range(_ENOUGH):
        try:
            await fn()
        except Broken:
            continue
        except Exception:
            return
    raise AssertionError("the circuit did not open")


def _caught(fn: Callable[[], object]) -> Batch:
    def batch(n: int) -> None:
        for _ in repeat(None, n):
            try:
                fn()
            except Exception:
                continue
            raise AssertionError("a call went through that should have been refused")
        try:
            fn()
        except Exception as error:
            # A peer that raises one and the same object has let its traceback grow: to free it is part of the price.
            error.__traceback__ = None

    return batch


def _acaught(fn: Callable[[], Awaitable[object]]) -> Batch:
    async def batch(n: int) -> None:
        for done in range(0, n, BREATH):
            for _ in repeat(None, min(BREATH, n - done)):
                try:
                    await fn()
                except Exception:
                    continue
                raise AssertionError("a call went through that should have been refused")
            await asyncio.sleep(0)
        try:
            await fn()
        except Exception as error:
            error.__traceback__ = None

    return batch
