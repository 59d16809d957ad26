"""The board of a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.stores import SqliteRunStore
from holdfast.stores.board import Board


@pytest.fixture
def board(path: Path) -> Iterator[Board]:
    with SqliteRunStore(path) as store:
        yield Board(store)
