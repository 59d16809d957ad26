"""How each peer decides on a Redis: by its own documentation, with limits that are never reached and circuits closed.

A contender is made by a function of the server's URL: it gives one decision as a call, and how to end it. Where a peer
can be spelled in several ways, the quickest ones stand in the table. Imports are inside the functions, so that a peer
that is not installed is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Any, NamedTuple

from bench.peers import FAILURES, MINIMUM, RATE, REST, anoop, noop

LIMIT = 1_000_000  # a second, and as a burst
KEY = "tool"
LIMITERS = (
    "limits fixed window",
    "limits sliding window counter",
    "limits fixed window, coredis",
    "limits fixed window, redis-py",
    "throttled-py gcra",
    "throttled-py fixed window",
    "pyrate-limiter gcra",
    "nopanic-redis rate limit",
)
CLIENTS = {"redis": "redis", "coredis": "coredis", "hiredis": "hiredis", "nopanic-redis": "nopanic_redis"}
NO_SCRIPTS = (  # those that send plain commands
    "limits fixed window, coredis",
    "throttled-py fixed window",
    "pybreaker",
    "purgatory",
)


class Made(NamedTuple):
    """One decision a call, and how to end it; both awaited where the contender is a coroutine."""

    decide: Callable[[], Any]
    close: Callable[[], Any]
    settle: Callable[[], object] = lambda: None  # work that was put off; timed with every batch


Make = Callable[[str], Made]


def plain() -> dict[str, Make]:
    """Those that decide for functions."""
    return {
        "limits fixed window": partial(_limits, "FixedWindowRateLimiter"),
        "limits sliding window counter": partial(_limits, "SlidingWindowCounterRateLimiter"),
        "throttled-py gcra": partial(_throttled, "gcra"),
        "throttled-py fixed window": partial(_throttled, "fixed_window"),
        "pyrate-limiter gcra": partial(_pyrate, "GCRA"),
        "nopanic-redis rate limit": _nopanic_limit,
        "nopanic-redis breaker": _nopanic_breaker,
        "pybreaker": _pybreaker,
        "purgatory": _purgatory,
    }


def awaited() -> dict[str, Make]:
    """Those that decide for coroutines."""
    return {
        "limits fixed window, coredis": partial(_alimits, "FixedWindowRateLimiter", "coredis"),
        "limits fixed window, redis-py": partial(_alimits, "FixedWindowRateLimiter", "redispy"),
        "throttled-py gcra": partial(_athrottled, "gcra"),
        "throttled-py fixed window": partial(_athrottled, "fixed_window"),
        "pyrate-limiter gcra": partial(_apyrate, "GCRA"),
        "nopanic-redis rate limit": _anopanic_limit,
        "nopanic-redis breaker": _anopanic_breaker,
        "purgatory": _apurgatory,
    }


def versions() -> str:
    """What of the clients, and of the peers that are for Redis alone, is installed."""
    found = []
    for name in CLIENTS:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} not installed")
    return ", ".join(found)


# -- limiters ----------------------------------------------------------------------------------------------------------


def _limits(strategy: str, url: str) -> Made:
    from limits import RateLimitItemPerSecond, storage, strategies

    store = storage.RedisStorage(url)
    hit = getattr(strategies, strategy)(store).hit
    return Made(partial(hit, RateLimitItemPerSecond(LIMIT), KEY, strategy), store.storage.close)


def _alimits(strategy: str, client: str, url: str) -> Made:
    from limits import RateLimitItemPerSecond
    from limits.aio import storage, strategies

    store = storage.RedisStorage(f"async+{url}", implementation=client)
    hit = getattr(strategies, strategy)(store).hit

    async def close() -> None:
        if client == "redispy":
            await store.bridge.storage.aclose()
        else:
            store.bridge.storage.connection_pool.disconnect()

    return Made(partial(hit, RateLimitItemPerSecond(LIMIT), KEY, strategy, client), close)


def _throttled(algorithm: str, url: str) -> Made:
    from throttled import RedisStore, Throttled
    from throttled.rate_limiter import per_sec

    store = RedisStore(server=url)
    quota = per_sec(LIMIT, burst=LIMIT)
    limit = Throttled(key=KEY, using=algorithm, quota=quota, store=store, key_prefix="throttled-sync").limit
    return Made(limit, store._backend.get_client().close)


def _athrottled(algorithm: str, url: str) -> Made:
    from throttled.asyncio import RedisStore, Throttled
    from throttled.asyncio.rate_limiter import per_sec

    store = RedisStore(server=url)
    quota = per_sec(LIMIT, burst=LIMIT)
    limit = Throttled(key=KEY, using=algorithm, quota=quota, store=store, key_prefix="throttled-async").limit
    return Made(limit, store._backend.get_client().aclose)


def _pyrate(algorithm: str, url: str) -> Made:
    limiter, client = _pyrate_on("pyrate-sync", algorithm, _client(url))
    return Made(partial(limiter.try_acquire, KEY, blocking=False), client.close)


def _apyrate(algorithm: str, url: str) -> Made:
    limiter, client = _pyrate_on("pyrate-async", algorithm, _aclient(url))
    return Made(partial(limiter.try_acquire_async, KEY, blocking=False), client.aclose)


def _pyrate_on(key: str, algorithm: str, client: Any) -> tuple[Any, Any]:
    """A bucket of constant size: its log of all calls, which is the default, costs more with each call."""
    import pyrate_limiter
    from pyrate_limiter import Duration, Limiter, RedisStateStore, StateBucket
    from pyrate_limiter import Rate as Quota

    policy = getattr(pyrate_limiter, algorithm)()
    quota = Quota(LIMIT, Duration.SECOND, burst=LIMIT)
    return Limiter(StateBucket([quota], store=RedisStateStore(client, key), algorithm=policy)), client


def _nopanic_limit(url: str) -> Made:
    from nopanic_redis import redis_rate_limit

    client = _client(url)
    return Made(redis_rate_limit(client, name="sync", rate=LIMIT, burst=LIMIT, max_wait=0)(noop), client.close)


def _anopanic_limit(url: str) -> Made:
    from nopanic_redis import redis_rate_limit

    client = _aclient(url)
    return Made(redis_rate_limit(client, name="async", rate=LIMIT, burst=LIMIT, max_wait=0)(anoop), client.aclose)


# -- breakers ----------------------------------------------------------------------------------------------------------


def _nopanic_breaker(url: str) -> Made:
    from nopanic_redis import redis_circuit_breaker as breaker

    client = _client(url)
    guard = breaker(client, name="sync", failure_threshold=RATE, min_calls=MINIMUM, reset_timeout=REST)
    return Made(guard(noop), client.close)


def _anopanic_breaker(url: str) -> Made:
    from nopanic_redis import redis_circuit_breaker as breaker

    client = _aclient(url)
    guard = breaker(client, name="async", failure_threshold=RATE, min_calls=MINIMUM, reset_timeout=REST)
    return Made(guard(anoop), client.aclose)


def _pybreaker(url: str) -> Made:
    from pybreaker import STATE_CLOSED, CircuitBreaker, CircuitRedisStorage

    client = _client(url)
    storage = CircuitRedisStorage(STATE_CLOSED, client, namespace=KEY)
    return Made(CircuitBreaker(fail_max=FAILURES, reset_timeout=REST, state_storage=storage)(noop), client.close)


def _purgatory(url: str) -> Made:
    from purgatory import SyncCircuitBreakerFactory, SyncRedisUnitOfWork

    work = SyncRedisUnitOfWork(url)
    work.contexts.redis = client = _client(url)  # its own is one for coroutines, with which no call succeeds
    factory = SyncCircuitBreakerFactory(default_threshold=FAILURES, default_ttl=REST, uow=work)
    return Made(factory("sync")(noop), client.close)


def _apurgatory(url: str) -> Made:
    from purgatory import AsyncCircuitBreakerFactory, AsyncRedisUnitOfWork

    work = AsyncRedisUnitOfWork(url)
    factory = AsyncCircuitBreakerFactory(default_threshold=FAILURES, default_ttl=REST, uow=work)
    return Made(factory("async")(anoop), work.contexts.redis.aclose)


def _client(url: str) -> Any:
    import redis

    return redis.Redis.from_url(url)


def _aclient(url: str) -> Any:
    import redis.asyncio

    return redis.asyncio.Redis.from_url(url)
