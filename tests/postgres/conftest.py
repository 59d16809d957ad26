"""The servers that these tests run against."""

from __future__ import annotations

from tests.servers.fixtures import database, own_postgres, pgbouncer, postgres

__all__ = ["database", "own_postgres", "pgbouncer", "postgres"]
