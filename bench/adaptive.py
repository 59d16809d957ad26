"""How close adaptive limiters come to what a server bears, and how many refusals that costs them.

Simulated time, so the numbers are the same on every machine. Goodput is the share of the server's capacity that was
used, 429 the share of calls that were refused; both are averages over the phases, which stand beside them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.guards.simulated_server import BucketServer, Client, Outcome, WindowServer, simulate  # noqa: E402

from bench.harness import Settings  # noqa: E402
from bench.report import Table, at_least, at_most  # noqa: E402

Options = dict[str, Any]

OURS = "holdfast"
HAMMER = "20 workers, no limit"
USUAL = "50, 20, 80 a second"
POLITE = f"{USUAL}, Retry-After: 1"


def main() -> None:
    """Print all tables; with `--quick` those of the first two scenarios, for which the aims are set."""
    for table in run(Settings(quick="--quick" in sys.argv)):
        print(table, end="\n\n", flush=True)


def run(settings: Settings) -> Iterator[Table]:
    """One table a scenario."""
    for title, most, options in scenarios():
        if not settings.quick or title in {USUAL, POLITE}:
            table = _table(title, most, options, settings)
            _judge(table)
            yield table


def scenarios() -> Iterator[tuple[str, float, Options]]:
    """Name, the most that the client may send a second, and what else is told to the simulation."""
    usual, slow = _steps(50, 20, 80), _steps(5, 2, 8)
    yield USUAL, 100, {"phases": usual}
    yield POLITE, 100, {"phases": usual, "retry_after": 1.0}
    yield "5, 2, 8 a second", 10, {"phases": slow}
    yield "5, 2, 8 a second, Retry-After: 1", 10, {"phases": slow, "retry_after": 1.0}
    yield "500, 200, 800 a second", 1000, {"phases": _steps(500, 200, 800, 100)}
    for round_trip in (0.005, 0.5):
        yield f"round trip {round_trip * 1000:g} ms", 100, {"phases": usual, "round_trip": round_trip}
    yield "round trip ± 50 %", 100, {"phases": usual, "noise": 0.5}
    yield "phases of 60 s", 100, {"phases": _steps(50, 20, 80, 60)}
    for burst in (0.05, 5.0):
        yield f"burst of {burst:g} s", 100, {"phases": usual, "server": lambda burst=burst: BucketServer(burst)}
    for window in (1.0, 10.0):
        yield f"windows of {window:g} s", 100, {"phases": usual, "server": lambda window=window: WindowServer(window)}
    yield "0.1 % refused for no reason", 100, {"phases": usual, "blips": 0.001}
    yield "demand 15 a second", 100, {"phases": usual, "demand": 15.0}


def _steps(first: float, second: float, third: float, seconds: float = 300) -> list[tuple[float, float]]:
    return [(first, seconds), (second, seconds), (third, seconds)]


def _table(title: str, most: float, options: Options, settings: Settings) -> Table:
    head = ["goodput %", "429 %"]
    for capacity, _ in options["phases"]:
        head += [f"at {capacity:g}/s", "429 %"]
    table = Table(title, head)
    for name, make in CLIENTS.items():
        if name == OURS and settings.peers_only:
            continue
        try:
            outcome = _measure(make, most, options, in_flight=20 if name == HAMMER else 2000)
        except ImportError:
            table.notes.append(f"not installed: {name}")
            continue
        numbers = [outcome.goodput, outcome.refused_share]
        for phase in outcome.phases:
            numbers += [phase.goodput, phase.refused_share]
        table.rows.append((name, *(100 * number for number in numbers)))
    return table


def _measure(make: Callable[[float], Client], most: float, options: Options, in_flight: int) -> Outcome:
    own = dict(options)
    if "server" in own:
        own["server"] = own["server"]()
    return simulate(make(most), own.pop("phases"), in_flight=in_flight, **own)


def _judge(table: Table) -> None:
    goodput, refused, *_ = next((numbers for name, *numbers in table.rows if name == OURS), [None, None])
    if table.title == USUAL:
        table.verdicts += [at_least(OURS, goodput, 95, " % goodput"), at_most(OURS, refused, 3, " % refused")]
    elif table.title == POLITE:
        table.verdicts.append(at_least(OURS, goodput, 85, " % goodput"))


class Ours:
    """Holdfast's bucket, allowed *most* calls a second."""

    def __init__(self, most: float) -> None:
        from holdfast.guards.rate import Bucket, RateConfig

        bucket = Bucket(RateConfig(per_second=most, adaptive=True), random=random.Random(0).random)
        self.ask, self.succeeded, self.refused = bucket.admit, bucket.succeeded, bucket.limited


class Fixed:
    """Somebody guessed the rate once: half of the most."""

    def __init__(self, most: float) -> None:
        self._interval = 2.0 / most
        self._next = 0.0

    def ask(self, now: float) -> float:
        if now < self._next:
            return self._next - now
        self._next = now + self._interval
        return 0.0

    def succeeded(self, now: float) -> None: ...

    def refused(self, now: float, retry_after: float | None, admitted_at: float) -> None: ...


class Hammer:
    """Call, and call again when the answer is there."""

    def __init__(self, most: float) -> None: ...

    def ask(self, now: float) -> float:
        return 0.0

    def succeeded(self, now: float) -> None: ...

    def refused(self, now: float, retry_after: float | None, admitted_at: float) -> None: ...


class TextbookAimd:
    """One call a second more each second, half at each refusal (once for all calls under way)."""

    def __init__(self, most: float) -> None:
        self._most = self._rate = most
        self._next = self._cut = 0.0

    def ask(self, now: float) -> float:
        if now < self._next:
            return self._next - now
        self._next = now + 1.0 / self._rate
        return 0.0

    def succeeded(self, now: float) -> None:
        self._rate = min(self._most, self._rate + 1.0 / self._rate)

    def refused(self, now: float, retry_after: float | None, admitted_at: float) -> None:
        if admitted_at >= self._cut:
            self._cut = now
            self._rate = max(self._most / 20, self._rate / 2)
        self._next = max(self._next, now + (retry_after or 0.0))


class Nopanic:
    """`nopanic.adaptive_rate_limit` with its own settings; it reserves a token and says how long to wait for it."""

    def __init__(self, most: float) -> None:
        from nopanic import adaptive_rate_limit

        self._now = 0.0
        self._limit = adaptive_rate_limit(most, clock=lambda: self._now)
        self._ready: float | None = None

    def ask(self, now: float) -> float:
        self._now = now
        if self._ready is None:
            self._ready = now + self._limit._reserve()
        if now < self._ready:
            return self._ready - now
        self._ready = None
        return 0.0

    def succeeded(self, now: float) -> None:
        self._now = now
        self._limit._on_success()

    def refused(self, now: float, retry_after: float | None, admitted_at: float) -> None:
        self._now = now
        error = RuntimeError("429")
        if retry_after is not None:
            error.retry_after = retry_after  # type: ignore[attr-defined]
        self._limit._on_throttle(error, None)


class AimdLimiter:
    """`aimd-limiter` with its own settings; it knows no Retry-After."""

    def __init__(self, most: float) -> None:
        from aimd_limiter import AIMDAsyncLimiter

        self._now = 0.0
        self._limit = AIMDAsyncLimiter(most, clock=lambda: self._now, sleep=self._sleep)

    def ask(self, now: float) -> float:
        self._now = now
        try:
            _step(self._limit._wait_for_slot())
        except _Wait as wait:
            return wait.seconds
        return 0.0

    def succeeded(self, now: float) -> None:
        _step(self._limit.record_success())

    def refused(self, now: float, retry_after: float | None, admitted_at: float) -> None:
        _step(self._limit.record_failure())

    async def _sleep(self, seconds: float) -> None:
        raise _Wait(seconds)


class _Wait(Exception):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


def _step(coroutine: Coroutine[Any, Any, None]) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited for something else")


CLIENTS: dict[str, Callable[[float], Client]] = {
    OURS: Ours,
    "half the most, fixed": Fixed,
    HAMMER: Hammer,
    "textbook AIMD": TextbookAimd,
    "nopanic adaptive_rate_limit": Nopanic,
    "aimd-limiter": AimdLimiter,
}


if __name__ == "__main__":
    main()
