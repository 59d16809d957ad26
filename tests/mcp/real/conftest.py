"""The environments as fixtures. What cannot be had here is skipped with its reason; in CI it is a failure."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import worlds


@pytest.fixture(scope="session")
def sdk1() -> Path:
    """A Python with the official SDK before 2, and with mcp-server-time, -git and -fetch."""
    return worlds.had(lambda: worlds.python("mcp1"))


@pytest.fixture(scope="session")
def sdk2() -> Path:
    """A Python with the official SDK from 2 on."""
    return worlds.had(lambda: worlds.python("mcp2"))


@pytest.fixture(scope="session")
def fastmcp() -> Path:
    """A Python with the newest FastMCP."""
    return worlds.had(lambda: worlds.python("fastmcp"))


@pytest.fixture(scope="session")
def node() -> worlds.Node:
    """Node, and the servers and the conformance suite from npm."""
    return worlds.had(worlds.node)
