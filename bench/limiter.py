"""Taking one token from a limiter that never runs out: for one key, and for 10,000 in turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice, repeat
from typing import Any

from bench import peers
from bench.harness import Aim, Batch, Group, Settings, acalls, akeyed, ameasure, calls, keyed
from bench.peers import LIMIT, noop
from bench.report import Table, timed

MANY = 10_000
OURS = "holdfast RateLimiter"
ADAPTIVE = "holdfast AdaptiveRateLimiter"
_ROOM = 2 * MANY  # peers that bound their keys get room for all of them, and so do we


def run(settings: Settings) -> list[Table]:
    """One key, then many."""
    return [timed(*ameasure(partial(build, settings), settings)) for build in (_one, _many)]


def names(count: int) -> list[str]:
    """Keys in an order that does not follow memory."""
    keys = [f"tool-{i}" for i in range(count)]
    random.Random(0).shuffle(keys)
    return keys


def _one(settings: Settings) -> Group:
    reference = "nopanic rate_limit"
    group = Group("limiter, 1 key", reference, Aim(OURS, 0.5, reference), Aim(ADAPTIVE, 0.5, reference))
    group.add(reference, lambda: calls(nopanic_limit()(noop)))
    group.add("nopanic rate_limit, with guard()", _guarded)
    group.add("hyx tokenbucket (async)", lambda: acalls(hyx_bucket().acquire))
    _shared(group, names(1), settings)
    return group


def _many(settings: Settings) -> Group:
    reference = "nopanic keyed"
    group = Group(f"limiter, {MANY:,} keys", reference, Aim(OURS, 0.5, reference), Aim(ADAPTIVE, 0.5, reference))
    group.least = MANY  # a batch takes every key once, so that none is still warm from the last
    _shared(group, names(MANY), settings)
    return group


def _shared(group: Group, keys: Sequence[str], settings: Settings) -> None:
    group.add("nopanic keyed", lambda: keyed(nopanic_keyed()(_noop_for), keys))
    group.add("nopanic keyed, with guard()", lambda: _guarded_keyed(keys))
    group.add("aiolimiter, a dict of them (async)", lambda: _aiolimiter(keys))
    group.add("throttled-py gcra", lambda: keyed(throttled("gcra").limit, keys))
    group.add("throttled-py token bucket", lambda: keyed(throttled("token_bucket").limit, keys))
    group.add("limits fixed window", lambda: keyed(limits_hit("FixedWindowRateLimiter"), keys))
    group.add("limits sliding window counter", lambda: keyed(limits_hit("SlidingWindowCounterRateLimiter"), keys))
    group.add("pyrate-limiter token bucket", lambda: keyed(pyrate(), keys))
    if not settings.peers_only:
        group.add(OURS, lambda: keyed(fixed().try_acquire, keys))
        group.add(ADAPTIVE, lambda: keyed(adaptive().try_acquire, keys))


def fixed(rate: float = LIMIT) -> Any:
    """Ours."""
    from holdfast import RateLimiter

    return RateLimiter(rate, rate, max_keys=_ROOM)


def adaptive(rate: float = LIMIT) -> Any:
    """Ours, the one that follows the server."""
    from holdfast import AdaptiveRateLimiter

    return AdaptiveRateLimiter(rate, rate, max_keys=_ROOM)


def nopanic_limit(rate: float = LIMIT) -> Any:
    """A token bucket as a decorator; refuses instead of waiting."""
    from nopanic import rate_limit

    return rate_limit(rate, burst=rate, max_wait=0)


def nopanic_keyed(rate: float = LIMIT) -> Any:
    """A token bucket a key, chosen by the argument of the decorated function."""
    from nopanic import keyed as per_key

    return per_key(lambda _: nopanic_limit(rate), key=_itself, maxsize=_ROOM)


def throttled(algorithm: str, rate: int = LIMIT) -> Any:
    """Its quota a second, with a memory store that holds all keys."""
    from throttled import MemoryStore, Throttled
    from throttled.rate_limiter import per_sec

    store = MemoryStore(options={"MAX_SIZE": _ROOM})
    return Throttled(using=algorithm, quota=per_sec(rate, burst=rate), store=store)


def limits_hit(strategy: str, rate: int = LIMIT) -> Callable[[str], bool]:
    """One of its strategies over memory; its moving window keeps every hit, which no rate of ours could bear."""
    from limits import RateLimitItemPerSecond, storage, strategies

    hit = getattr(strategies, strategy)(storage.MemoryStorage()).hit
    return partial(hit, RateLimitItemPerSecond(rate))


def pyrate(rate: int = LIMIT) -> Callable[[str], object]:
    """Its token bucket of constant size, a bucket a key by a factory as its documentation shows."""
    from pyrate_limiter import BucketFactory, Duration, Limiter, MonotonicClock, StateBucket, TokenBucket
    from pyrate_limiter import Rate as Quota
    from pyrate_limiter import RateItem as Item

    class PerKey(BucketFactory):
        def __init__(self) -> None:
            self.clock = MonotonicClock()
            self.buckets: dict[str, StateBucket] = {}

        def wrap_item(self, name: str, weight: int = 1) -> Item:
            return Item(name, self.clock.now(), weight=weight)

        def get(self, item: Item) -> StateBucket:
            bucket = self.buckets.get(item.name)
            if bucket is None:
                # Not scheduled for leaking: there is nothing to leak in a bucket of constant size.
                bucket = StateBucket([Quota(rate, Duration.SECOND, burst=rate)], algorithm=TokenBucket())
                self.buckets[item.name] = bucket
            return bucket

    return partial(Limiter(PerKey()).try_acquire, blocking=False)


def aiolimiters(keys: Sequence[str], rate: float = LIMIT) -> dict[str, Any]:
    """It knows no keys: its users keep a dict."""
    from aiolimiter import AsyncLimiter

    return {key: AsyncLimiter(rate, 1.0) for key in keys}


def hyx_bucket() -> Any:
    """It knows no keys either, and looks at the clock only when it is empty."""
    from hyx.ratelimit import TokenBucketLimiter

    return TokenBucketLimiter(max_executions=LIMIT, per_time_secs=1.0, bucket_size=LIMIT)


def _aiolimiter(keys: Sequence[str]) -> Batch:
    limiters = aiolimiters(keys)

    def acquire(key: str) -> Any:
        return limiters[key].acquire()

    return akeyed(acquire, keys)


def _guarded() -> Batch:
    guard = nopanic_limit().guard

    def batch(n: int) -> None:
        for _ in repeat(None, n):
            with guard():
                pass

    return batch


def _guarded_keyed(keys: Sequence[str]) -> Batch:
    get = nopanic_keyed().get
    turns = cycle(keys)

    def batch(n: int) -> None:
        for key in islice(turns, n):
            with get(key).guard():
                pass

    return batch


def _itself(key: str) -> str:
    return key


def _noop_for(key: str) -> None:
    peers.noop()
