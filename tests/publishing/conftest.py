"""A store, its board, and waiting for what comes by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.stores import SqliteRunStore
from holdfast.stores.board import Board

LIMIT = 40.0  # seconds after which a test gives up waiting for what comes within one


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def board(path: Path) -> Iterator[Board]:
    with SqliteRunStore(path) as store:
        yield Board(store)


def until(reached: Callable[[], object], what: str) -> None:
    end = SystemClock.monotonic() + LIMIT
    while not reached():
        assert SystemClock.monotonic() < end, f"never came: {what}"
        SystemClock.sleep(0.005)
