"""What every test here relies on: a journal of its own, the real command on demand, and no process left behind."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.children import all_processes
from tests.mcp.stdio import client
from tests.mcp.stdio.client import Proxy

from holdfast.testing import ManualClock

LEAVING = 30.0  # seconds for the processes of a test to be gone

T = TypeVar("T")

Wrap = Callable[..., Awaitable[Proxy]]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "journal"

    yield path

    left = remaining(lambda: processes(str(path)))
    for pid in left:
        os.kill(int(pid), 9)
    assert not left, f"still running: {left}"
    assert not remaining(zombies), "a child was not reaped"


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """A clock that only the test moves."""
    clock = ManualClock()
    with clock.busy():
        yield clock


@pytest.fixture
async def wrap(journal: Path) -> AsyncIterator[Wrap]:
    """`holdfast wrap` of the scripted server; ended after the test, if it is not yet."""
    proxies: list[Proxy] = []

    async def start(*flags: str, **options: Any) -> Proxy:
        proxies.append(await client.wrap(journal, *flags, **options))
        return proxies[-1]

    yield start

    await asyncio.gather(*(proxy.close() for proxy in proxies))


def remaining(look: Callable[[], T]) -> T:
    """What is seen at last: nothing, unless it will not go."""
    until = time.monotonic() + LEAVING
    while (left := look()) and time.monotonic() < until:
        time.sleep(0.01)
    return left


def processes(mark: str) -> dict[str, str]:
    """The processes whose command names *mark*, by number."""
    rows = all_processes("pid", "command")
    return {pid: words for pid, words in rows if mark in words and int(pid) != os.getpid()}


def zombies() -> list[str]:
    rows = all_processes("pid", "ppid", "stat")
    return [pid for pid, parent, state in rows if int(parent) == os.getpid() and state.startswith("Z")]
