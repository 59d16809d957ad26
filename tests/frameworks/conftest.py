"""The scenes that one framework alone has."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from tests import worlds


@pytest.fixture(scope="module")
def scenes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each scene of `agents/NAME_more.py`, for the tests in `test_NAME.py`, whichever worker has them."""
    name = request.module.__name__.rpartition(".test_")[2]
    python = worlds.had(lambda: worlds.python(name.replace("_", "-")))
    folder = tmp_path_factory.getbasetemp()
    came = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / f"scenes-{name}"
    with came.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not came.exists():
            came.write_bytes(_played([str(python), "-m", f"tests.frameworks.agents.{name}_more"], tmp_path_factory))
    found: dict[str, Any] = {}
    for line in came.read_bytes().splitlines():
        found |= msgspec.json.decode(line)
    return found


def _played(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What a child prints that plays them all, in the folder that it is told. If it kills itself in the last, it is
    started again, with the word `resume`.
    """
    command.append(str(tmp_path_factory.mktemp("scenes")))
    printed, status, complaints = _run(command)
    if status == -signal.SIGKILL:
        more, status, complaints = _run([*command, "resume"])
        printed += more
    assert status == 0, complaints.decode()[-3000:]
    return printed


def _run(command: list[str]) -> tuple[bytes, int, bytes]:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=worlds.environment(), start_new_session=True
    ) as child:
        try:
            printed, complaints = child.communicate(timeout=60)
        finally:  # what it started, and could not end
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    return printed, child.returncode, complaints
