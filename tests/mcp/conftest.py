"""The environments as fixtures. What cannot be had here is skipped with its reason; in CI it is a failure."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tests import worlds

T = TypeVar("T")


def _had(make: Callable[[], T]) -> T:
    try:
        return make()
    except worlds.Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(f"this must be had in CI: {missing}", pytrace=False)
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def sdk1() -> Path:
    """A Python with the official SDK before 2, and with mcp-server-time, -git and -fetch."""
    return _had(lambda: worlds.python("mcp1"))


@pytest.fixture(scope="session")
def sdk2() -> Path:
    """A Python with the official SDK from 2 on."""
    return _had(lambda: worlds.python("mcp2"))


@pytest.fixture(scope="session")
def fastmcp() -> Path:
    """A Python with the newest FastMCP."""
    return _had(lambda: worlds.python("fastmcp"))


@pytest.fixture(scope="session")
def node() -> worlds.Node:
    """Node, and the servers and the conformance suite from npm."""
    return _had(worlds.node)
