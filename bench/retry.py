"""A retry around a call that succeeds at once: what the promise to try again costs when it is not needed."""

from __future__ import annotations

from functools import partial
from typing import Any

from bench import ours
from bench.harness import Aim, Group, Settings, acalls, ameasure, calls, measure
from bench.peers import ATTEMPTS, anoop, noop
from bench.report import Table, timed

OURS = "holdfast retrying (with budget)"


def run(settings: Settings) -> list[Table]:
    """Plain functions, then coroutines."""
    return [
        timed(*measure(partial(_build, "function", settings), settings)),
        timed(*ameasure(partial(_build, "coroutine", settings), settings)),
    ]


def _build(kind: str, settings: Settings) -> Group:
    fn: Any = noop if kind == "function" else anoop
    batch: Any = calls if kind == "function" else acalls
    group = Group(f"retry around a success, {kind}", "nopanic", Aim(OURS, 1.0, "nopanic"))
    group.add("bare call", lambda: batch(fn))
    group.add("nopanic", lambda: batch(_nopanic(fn)))
    group.add("nopanic + budget", lambda: batch(_nopanic_with_budget(fn)))
    group.add("backoff", lambda: batch(_backoff(fn)))
    group.add("stamina", lambda: batch(_stamina(fn)))
    group.add("tenacity", lambda: batch(_tenacity(fn)))
    if not settings.peers_only:
        group.add(OURS, lambda: batch(_ours(fn)))
        group.add("holdfast tool (with tracker)", lambda: ours.tool(group, fn, batch, retry=ATTEMPTS, breaker=False))
    return group


def _ours(fn: Any) -> Any:
    from holdfast import retrying

    return retrying(attempts=ATTEMPTS)(fn)


def _nopanic(fn: Any) -> Any:
    from nopanic import retry

    return retry(attempts=ATTEMPTS)(fn)


def _nopanic_with_budget(fn: Any) -> Any:
    from nopanic import RetryBudget, retry

    return retry(attempts=ATTEMPTS, budget=RetryBudget(ratio=0.2))(fn)


def _backoff(fn: Any) -> Any:
    from backoff import expo, on_exception

    return on_exception(expo, Exception, max_tries=ATTEMPTS)(fn)


def _stamina(fn: Any) -> Any:
    from stamina import retry

    return retry(on=Exception, attempts=ATTEMPTS)(fn)


def _tenacity(fn: Any) -> Any:
    from tenacity import retry, stop_after_attempt, wait_random_exponential

    return retry(stop=stop_after_attempt(ATTEMPTS), wait=wait_random_exponential(multiplier=0.2, max=3))(fn)
