"""Bytes that a limiter keeps for each key, by tracemalloc: 10,000 keys, one call each; the names are not counted."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

from bench import limiter
from bench.harness import Settings
from bench.peers import peer_only
from bench.report import Table, at_most

AIM = 100
_RATE = 1  # a second and as a burst, so that no bucket is full again before all keys are there


def run(settings: Settings) -> list[Table]:
    """All limiters that have keys."""
    keys = limiter.names(limiter.MANY)
    table = Table(f"memory, {limiter.MANY:,} keys", ("bytes a key",))
    for name, fill in _fillers(settings):
        try:
            _bytes(fill, keys[:1])  # imports and caches of the library are not the price of a key
            table.rows.append((name, _bytes(fill, keys) / len(keys)))
        except ModuleNotFoundError as error:
            peer_only(error)
            table.notes.append(f"not installed: {name}")
    kept = dict(table.rows)
    for name in (limiter.OURS, limiter.ADAPTIVE):
        table.verdicts.append(at_most(name, kept.get(name), AIM, " bytes a key"))
    return [table]


def _fillers(settings: Settings) -> list[tuple[str, Callable[[Sequence[str]], object]]]:
    """How to fill each limiter; what is returned holds all that it keeps."""
    fillers: list[tuple[str, Callable[[Sequence[str]], object]]] = [
        ("nopanic keyed", lambda keys: _each(_nopanic(), keys)),
        ("aiolimiter, a dict of them", lambda keys: asyncio.run(_aiolimiter(keys))),
        ("throttled-py gcra", lambda keys: _each(limiter.throttled("gcra", _RATE).limit, keys)),
        ("throttled-py token bucket", lambda keys: _each(limiter.throttled("token_bucket", _RATE).limit, keys)),
        ("limits fixed window", lambda keys: _each(limiter.limits_hit("FixedWindowRateLimiter", _RATE), keys)),
        (
            "limits sliding window counter",
            lambda keys: _each(limiter.limits_hit("SlidingWindowCounterRateLimiter", _RATE), keys),
        ),
        ("pyrate-limiter token bucket", lambda keys: _each(limiter.pyrate(_RATE), keys)),
    ]
    if not settings.peers_only:
        fillers.append((limiter.OURS, lambda keys: _each(limiter.fixed(_RATE).try_acquire, keys)))
        fillers.append((limiter.ADAPTIVE, lambda keys: _each(limiter.adaptive(_RATE).try_acquire, keys)))
    return fillers


def _bytes(fill: Callable[[Sequence[str]], object], keys: Sequence[str]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = fill(keys)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        del kept
        return after - before
    finally:
        tracemalloc.stop()


def _each(acquire: Callable[[str], object], keys: Sequence[str]) -> object:
    for key in keys:
        acquire(key)
    return acquire


def _nopanic() -> Callable[[str], Any]:
    return limiter.nopanic_keyed(_RATE)(_nothing)


def _nothing(key: str) -> None:
    pass


async def _aiolimiter(keys: Sequence[str]) -> object:
    limiters = limiter.aiolimiters(keys, _RATE)
    for key in keys:
        await limiters[key].acquire()
    return limiters
