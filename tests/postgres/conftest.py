"""The servers that these tests run against, and the processes that they start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.children import Start
from tests.postgres.children import children
from tests.servers.fixtures import database, own_postgres, pgbouncer, postgres

__all__ = ["database", "own_postgres", "pgbouncer", "postgres"]


@pytest.fixture
def child() -> Iterator[Start]:
    """Starts a process that does a command of `children`."""
    with children() as start:
        yield start
