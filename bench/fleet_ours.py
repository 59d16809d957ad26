"""How Holdfast decides on a Redis: by its public door, with a store in memory and no policy file.

*exact* decides circuit, rate and concurrency; a concurrency limit is exact, so *leased* has a circuit and a rate.
"""

from __future__ import annotations

from typing import Any

from bench.fleet_peers import LIMIT, Made, Make
from bench.peers import MINIMUM, RATE, SLOW, anoop, noop

GUARDS: dict[str, Any] = {"rate": {"per_second": LIMIT, "burst": LIMIT}, "concurrency": 1000}
WINDOWS = {"failure_rate": RATE, "minimum_calls": MINIMUM, "slow_call": SLOW, "slow_call_rate": RATE}

EXACT = "holdfast exact, circuit+rate+concurrency"
TWO = "holdfast exact, circuit+rate"
COUNTED = "holdfast exact, with failure rate"
LEASED = "holdfast leased"
VIEW = "holdfast view"
ALONE = "holdfast, no Redis"

POLICIES: dict[str, dict[str, Any]] = {
    EXACT: {**GUARDS, "mode": "exact"},
    TWO: {"rate": GUARDS["rate"], "mode": "exact"},
    COUNTED: {**GUARDS, "breaker": WINDOWS, "mode": "exact"},
    LEASED: {"rate": GUARDS["rate"], "mode": "leased"},
    VIEW: {**GUARDS, "mode": "view"},
    ALONE: GUARDS,
}


def exact(*, awaited: bool) -> dict[str, Make]:
    """Those that ask for every call."""
    return {name: _made(name, awaited) for name in (EXACT, TWO, COUNTED)}


def ahead(*, awaited: bool) -> dict[str, Make]:
    """Those that do not."""
    return {name: _made(name, awaited) for name in (LEASED, VIEW, ALONE)}


def _made(name: str, awaited: bool) -> Make:
    def make(url: str) -> Made:
        import holdfast

        hf = holdfast.open(":memory:", redis=None if name == ALONE else url, policies={})
        tool = hf.tool(f"{name} {'async' if awaited else 'sync'}", **POLICIES[name])

        def settle() -> None:
            hf.breaker.snapshot()
            hf.tracker.stats()

        return Made(tool(anoop), hf.aclose, settle) if awaited else Made(tool(noop), hf.close, settle)

    return make
