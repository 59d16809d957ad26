"""The servers as fixtures. A folder of tests that needs them imports them in its conftest.py.

One server for each process of the tests; what cannot be had is a skip with its reason, on CI a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest
from tests.servers.finding import OLDEST_REDIS, Missing, oldest_redis
from tests.servers.groups import Cluster, Sentinel
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import GivenPostgres, PostgresServer, fresh_database
from tests.servers.redis import GivenRedis, RedisServer, given_redis
from tests.servers.sharing import shared_postgres

__all__ = [
    "cluster",
    "database",
    "fresh_redis",
    "own_postgres",
    "own_redis",
    "pgbouncer",
    "postgres",
    "redis",
    "sentinel",
]


def on_the_oldest_redis_too(metafunc: pytest.Metafunc) -> None:
    """Have a test run twice, the second time on the oldest Redis that we promise to work on."""
    for name in ("redis", "own_redis"):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, [None, OLDEST_REDIS], ids=["any_redis", f"redis_{OLDEST_REDIS}"], indirect=True)


@pytest.fixture(scope="session")
def redis(request: pytest.FixtureRequest) -> Iterator[RedisServer | GivenRedis]:
    """A Redis that the tests share: see `fresh_redis`. Those that kill or pause one take `own_redis`."""
    with or_skipped():
        given = None if _is_oldest(request) else given_redis()
        server = _started(request) if given is None else None
    if server is None:
        assert given is not None
        yield given
        return
    with server:
        yield server


@pytest.fixture
def fresh_redis(redis: RedisServer | GivenRedis) -> RedisServer | GivenRedis:
    """The shared Redis, empty."""
    redis.command("FLUSHDB" if isinstance(redis, GivenRedis) else "FLUSHALL")
    return redis


@pytest.fixture
def own_redis(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A Redis of this test alone."""
    with or_skipped():
        server = _started(request)
    with server:
        yield server


@pytest.fixture(scope="session")
def sentinel() -> Iterator[Sentinel]:
    """A master, its replica and a sentinel."""
    with or_skipped():
        group = Sentinel.start()
    with group:
        yield group


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three masters that share the slots."""
    with or_skipped():
        group = Cluster.start()
    with group:
        yield group


@pytest.fixture(scope="session")
def postgres() -> PostgresServer | GivenPostgres:
    """A PostgreSQL that the tests share: see `database`. Those that kill or pause one take `own_postgres`."""
    with or_skipped():
        return shared_postgres()


@pytest.fixture
def database(postgres: PostgresServer | GivenPostgres) -> Iterator[str]:
    """The URL of an empty database of this test alone."""
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL of this test alone."""
    with or_skipped():
        server = PostgresServer.start()
    with server:
        yield server


@pytest.fixture(scope="session")
def pgbouncer(postgres: PostgresServer | GivenPostgres) -> Iterator[PgBouncer]:
    """A pooler before the shared PostgreSQL: `pgbouncer.through(database)`."""
    with or_skipped():
        pooler = PgBouncer.start(None, postgres.url)
    with pooler:
        yield pooler


@contextmanager
def or_skipped() -> Iterator[None]:
    """Skip where something cannot be had, or fail where nothing may be missing."""
    try:
        yield
    except Missing as error:
        missing(str(error))


def _started(request: pytest.FixtureRequest) -> RedisServer:
    return RedisServer.start(binary=oldest_redis() if _is_oldest(request) else None)


def _is_oldest(request: pytest.FixtureRequest) -> bool:
    return getattr(request, "param", None) == OLDEST_REDIS


def missing(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"no server: {reason}")
    pytest.skip(f"no server: {reason}")
