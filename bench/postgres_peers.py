"""How the peers, and we, make a durable run of steps on PostgreSQL: by their documentation, each step committed before
the next.

As in `durable_peers`, but for the file, which holds the URL of a database. Imports are inside, so that a peer that is
not installed is left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.durable_peers import AOne, One, adbos_at, alanggraph_on, dbos_at, langgraph_on

PEERS = ("langgraph", "langgraph-checkpoint-postgres", "dbos", "psycopg")
CONNECTIONS = 20  # of LangGraph's pool: with one connection its runs would wait for each other's commits


def versions() -> str:
    """The peers that are installed, with their versions."""
    found = []
    for name in PEERS:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} not installed")
    return ", ".join(found)


def url_in(file: Path) -> str:
    """The URL that a file holds."""
    return file.read_text()


@contextmanager
def langgraph(file: Path) -> Iterator[One]:
    """`PostgresSaver` on a pool."""
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg_pool import ConnectionPool

    with ConnectionPool(url_in(file), max_size=CONNECTIONS, kwargs=_options()) as pool:
        saver = PostgresSaver(pool)
        saver.setup()
        yield langgraph_on(saver)


@asynccontextmanager
async def alanggraph(file: Path) -> AsyncIterator[AOne]:
    """`AsyncPostgresSaver` on a pool."""
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg_pool import AsyncConnectionPool

    async with AsyncConnectionPool(url_in(file), max_size=CONNECTIONS, kwargs=_options()) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        yield alanggraph_on(saver)


def _options() -> dict[str, Any]:
    from psycopg.rows import dict_row

    return {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


def dbos(file: Path) -> AbstractContextManager[One]:
    """As it comes."""
    return dbos_at(url_in(file))


def adbos(file: Path) -> AbstractAsyncContextManager[AOne]:
    """Its coroutines."""
    return adbos_at(url_in(file))


def steps(file: Path) -> AbstractContextManager[One]:
    """Steps of ours, with no guard around them."""
    from bench import durable_ours

    return durable_ours.steps(url_in(file))


def asteps(file: Path) -> AbstractAsyncContextManager[AOne]:
    """The same as coroutines."""
    from bench import durable_ours

    return durable_ours.asteps(url_in(file))


def tools(file: Path) -> AbstractContextManager[One]:
    """Calls of a guarded tool of ours."""
    from bench import durable_ours

    return durable_ours.tools(url_in(file))


def atools(file: Path) -> AbstractAsyncContextManager[AOne]:
    """The same as coroutines."""
    from bench import durable_ours

    return durable_ours.atools(url_in(file))
