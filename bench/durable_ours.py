"""How Holdfast makes a durable run of steps: by its public door, no policy file, `synchronous=FULL` as it comes.

`tools` are calls of an idempotent tool with its default guards on; `steps` are remembered by `run.step`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import holdfast
from bench.durable_child import work
from bench.durable_peers import AOne, One


async def awork(value: int) -> dict[str, int]:
    """The step as a coroutine."""
    return work(value)


@contextmanager
def tools(path: Path | str) -> Iterator[One]:
    """Calls of a tool."""
    with holdfast.open(path, policies={}) as hf:
        tool = hf.tool("work", idempotent=True)(work)

        def one(name: str, steps: int) -> None:
            with hf.run(run_id=name):
                for value in range(steps):
                    tool(value)

        yield one


@asynccontextmanager
async def atools(path: Path | str) -> AsyncIterator[AOne]:
    """The same as coroutines."""
    async with holdfast.open(path, policies={}) as hf:
        tool = hf.tool("work", idempotent=True)(awork)

        async def one(name: str, steps: int) -> None:
            async with hf.run(run_id=name):
                for value in range(steps):
                    await tool(value)

        yield one


@contextmanager
def steps(path: Path | str) -> Iterator[One]:
    """Steps of a run, with no guard around them."""
    with holdfast.open(path, policies={}) as hf:

        def one(name: str, steps: int) -> None:
            with hf.run(run_id=name) as run:
                for value in range(steps):
                    run.step("work", work, value)

        yield one


@asynccontextmanager
async def asteps(path: Path | str) -> AsyncIterator[AOne]:
    """The same as coroutines."""
    async with holdfast.open(path, policies={}) as hf:

        async def one(name: str, steps: int) -> None:
            async with hf.run(run_id=name) as run:
                for value in range(steps):
                    await run.astep("work", awork, value)

        yield one
