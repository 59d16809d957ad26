"""The servers that these tests run against."""

from __future__ import annotations

from tests.servers.fixtures import cluster, fresh_redis, own_redis, redis, sentinel

__all__ = ["cluster", "fresh_redis", "own_redis", "redis", "sentinel"]
