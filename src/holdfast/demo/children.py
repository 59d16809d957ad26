"""Processes that the demo starts. Each ends with its standard input, so none outlives whoever started it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, Final, NamedTuple

PATIENCE: Final = 5.0  # seconds for one to end by itself
PYTHON: Final = (sys.executable, "-P", "-m")  # without whatever lies in the current folder


@asynccontextmanager
async def child(*arguments: str, errors: IO[bytes] | int | None = None) -> AsyncIterator[Child]:
    """`python -m ARGUMENTS`, ended with the block; its stderr is ours, or goes to *errors*."""
    process = await asyncio.create_subprocess_exec(
        *PYTHON, *arguments,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        start_new_session=True,  # a Ctrl-C is for us alone
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Child(process, process.stdin, process.stdout)
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(PATIENCE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


class Child(NamedTuple):
    """One of them, and its pipes."""

    process: asyncio.subprocess.Process
    input: asyncio.StreamWriter
    output: asyncio.StreamReader
