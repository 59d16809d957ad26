"""The scenes that one framework alone has."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import msgspec
import pytest
from tests import worlds


@pytest.fixture(scope="module")
def scenes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each scene of `agents/NAME_more.py`, for the tests in `test_NAME.py`.

    A child plays them all, in the folder that it is told, and prints what came of them by name, all at once or a line
    each. If it kills itself in the last, it is started again, with the word `resume`.
    """
    name = request.module.__name__.rpartition(".test_")[2]
    python = worlds.had(lambda: worlds.python(name.replace("_", "-")))
    command = [python, "-m", f"tests.frameworks.agents.{name}_more", tmp_path_factory.mktemp("scenes")]
    done = subprocess.run(command, capture_output=True, env=worlds.environment(), timeout=60, check=False)
    lines = done.stdout.splitlines()
    if done.returncode == -signal.SIGKILL:
        command.append("resume")
        done = subprocess.run(command, capture_output=True, env=worlds.environment(), timeout=60, check=False)
        lines += done.stdout.splitlines()
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found: dict[str, Any] = {}
    for line in lines:
        found |= msgspec.json.decode(line)
    return found
