"""The servers that these tests run against."""

from __future__ import annotations

import pytest
from tests.servers.fixtures import cluster, fresh_redis, on_the_oldest_redis_too, own_redis, redis, sentinel

__all__ = ["cluster", "fresh_redis", "own_redis", "redis", "sentinel"]

# All that is ever said to a server, once: how it is greeted, asked, told and listened to, and what it may forget.
ON_THE_OLDEST = (
    "tests/fleet/test_script_",
    "tests/fleet/test_linearizable.py",
    "tests/fleet/test_fleet_modes.py",
    "tests/fleet/test_fleet_tasks.py",
    "tests/fleet/test_fleet_addresses.py",
    "tests/fleet/test_fleet_outages.py::test_a_redis_that_has_forgotten",
    "tests/fleet/test_fleet_service.py::test_the_rights",
    "tests/fleet/test_fleet_missing.py",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.nodeid.startswith(ON_THE_OLDEST):
        on_the_oldest_redis_too(metafunc)
