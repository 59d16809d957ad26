"""The servers that these tests run against, and the processes that they start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.children import Start
from tests.servers.fixtures import database, own_postgres, pgbouncer, postgres
from tests.stores.kinds import postgres_url
from tests.stores.postgres.children import children

from holdfast.stores.postgres.address import parse

__all__ = ["database", "own_postgres", "pgbouncer", "postgres"]


@pytest.fixture
def child() -> Iterator[Start]:
    """Starts a process that does a command of `children`."""
    with children() as start:
        yield start


@pytest.fixture
def url(tmp_path: Path) -> str:
    return postgres_url(tmp_path)


@pytest.fixture
def schema(url: str) -> str:
    return parse(url).schema


@pytest.fixture
def server(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A look at the server itself."""
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        yield connection
