"""How the peers make a durable run of steps: by their own documentation, on SQLite, each step on disk before the next.

Each contender is a context manager that gives `one(name, steps)`, a whole run; the asynchronous ones have an `a` in
front. Imports are inside, so that a peer that is not installed is left out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

from bench.durable_child import work

One = Callable[[str, int], object]
AOne = Callable[[str, int], Awaitable[object]]

PEERS = ("langgraph", "langgraph-checkpoint-sqlite", "dbos")


class State(TypedDict):
    """What a graph remembers: small, and never growing, which is the cheapest for it."""

    value: int
    steps: int


def versions() -> str:
    """The peers that are installed, with their versions, and SQLite's."""
    found = []
    for name in PEERS:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} not installed")
    return ", ".join([*found, f"SQLite {sqlite3.sqlite_version}"])


# A graph of one node that goes to itself until it is done: of a loop by `Command`, a loop by a conditional edge, a
# chain of nodes and the functional API it was the quickest, and one saver for all threads quicker than one each.
# durability="sync" has each step on disk before the next begins; with the default a crash can lose finished steps.


@contextmanager
def langgraph(path: Path) -> Iterator[One]:
    """`SqliteSaver`, which sets WAL itself and leaves `synchronous` at FULL."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(str(path)) as saver:
        yield langgraph_on(saver)


@asynccontextmanager
async def alanggraph(path: Path) -> AsyncIterator[AOne]:
    """`AsyncSqliteSaver`, the same over aiosqlite."""
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        yield alanggraph_on(saver)


def langgraph_on(saver: Any) -> One:
    """The graph with a saver of any kind."""
    graph = _graph(saver)
    return lambda name, steps: graph.invoke(_start(steps), _config(name, steps), durability="sync")


def alanggraph_on(saver: Any) -> AOne:
    """The same as coroutines."""
    graph = _graph(saver, is_async=True)
    return lambda name, steps: graph.ainvoke(_start(steps), _config(name, steps), durability="sync")


def _graph(saver: Any, *, is_async: bool = False) -> Any:
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Command

    def step(state: State) -> Any:
        done = work(state["value"])["value"] + 1
        return Command(update={"value": done}, goto="step" if done < state["steps"] else END)

    async def astep(state: State) -> Any:
        return step(state)

    graph = StateGraph(State)
    graph.add_node("step", astep if is_async else step, destinations=("step", END))
    graph.add_edge(START, "step")
    return graph.compile(checkpointer=saver)


def _start(steps: int) -> State:
    return {"value": 0, "steps": steps}


def _config(name: str, steps: int) -> Any:
    return {"configurable": {"thread_id": name}, "recursion_limit": steps + 10}


# A workflow that calls a step in a loop. DBOS leaves SQLite's journal as it is, a rollback journal; a file that is in
# WAL mode already stays so, which is quicker and one line to do, though not in its documentation.


@contextmanager
def dbos(path: Path) -> Iterator[One]:
    """As it comes."""
    with dbos_at(f"sqlite:///{path}") as one:
        yield one


@asynccontextmanager
async def adbos(path: Path) -> AsyncIterator[AOne]:
    """Its coroutines."""
    async with adbos_at(f"sqlite:///{path}") as one:
        yield one


@contextmanager
def dbos_at(url: str) -> Iterator[One]:
    """With a database of any kind."""
    from dbos import DBOS

    _configure(url)
    step = DBOS.step()(work)

    @DBOS.workflow()
    def flow(steps: int) -> None:
        for value in range(steps):
            step(value)

    DBOS.launch()
    try:
        yield lambda name, steps: flow(steps)
    finally:
        DBOS.destroy()


@asynccontextmanager
async def adbos_at(url: str) -> AsyncIterator[AOne]:
    """The same as coroutines."""
    from dbos import DBOS

    _configure(url)

    @DBOS.step()
    async def step(value: int) -> dict[str, int]:
        return work(value)

    @DBOS.workflow()
    async def flow(steps: int) -> None:
        for value in range(steps):
            await step(value)

    DBOS.launch()
    try:
        yield lambda name, steps: flow(steps)
    finally:
        DBOS.destroy()


@contextmanager
def dbos_wal(path: Path) -> Iterator[One]:
    """On a file that is in WAL mode."""
    _wal(path)
    with dbos(path) as one:
        yield one


@asynccontextmanager
async def adbos_wal(path: Path) -> AsyncIterator[AOne]:
    """Its coroutines, on a file that is in WAL mode."""
    _wal(path)
    async with adbos(path) as one:
        yield one


def _configure(url: str) -> None:
    from dbos import DBOS

    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})


def _wal(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
