"""Processes that the demo starts. Each ends with its standard input, so none outlives whoever started it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Final

PATIENCE: Final = 5.0  # seconds for one to end by itself
PYTHON: Final = (sys.executable, "-P", "-m")  # without whatever lies in the current folder


@asynccontextmanager
async def child(said: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m ARGUMENTS`, ended with the block; its stderr goes to the file *said*."""
    with _made(said) as file:
        process = await asyncio.create_subprocess_exec(
            *PYTHON, *arguments,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
            start_new_session=True,  # a Ctrl-C is for us alone
        )  # fmt: skip
    try:
        yield process
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(PATIENCE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _made(path: Path) -> IO[bytes]:
    return path.open("wb")
