"""Child processes of the demo. Each ends when its standard input is closed, so none outlives its parent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, Final, NamedTuple

PATIENCE: Final = 5.0  # seconds for a child to end by itself
PYTHON: Final = (sys.executable, "-P", "-m")  # -P: imports nothing from the current folder


@asynccontextmanager
async def child(*arguments: str, errors: IO[bytes] | int | None = None) -> AsyncIterator[Child]:
    """Run `python -m ARGUMENTS` until the block ends; its stderr goes to *errors*, or is that of this process."""
    process = await asyncio.create_subprocess_exec(
        *PYTHON, *arguments,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        start_new_session=True,  # Ctrl-C reaches only the demo itself
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
    """A child process and its pipes."""

    process: asyncio.subprocess.Process
    input: asyncio.StreamWriter
    output: asyncio.StreamReader
