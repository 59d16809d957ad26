"""What every test may rely on: a clock that stands still, no thread left behind, one way to draw examples."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, configuration, settings

if TYPE_CHECKING:
    from holdfast import Holdfast
    from holdfast.testing import ManualClock, Recorder

PATIENCE = 30.0  # seconds a thread may take to end; the timer thread lingers for one
FILES = 2048  # that a test may have open

configuration.set_hypothesis_home_dir(Path(__file__).parents[1] / ".cache" / "hypothesis")
# A shell ignores signals in the background, and nohup does: children would inherit that, but inherit no handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
# macOS gives a process 256 files unless it asks for more; some tests have hundreds of clients, and their server.
files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
if 0 <= files < FILES:  # on Linux -1 is as many as one likes
    resource.setrlimit(resource.RLIMIT_NOFILE, (most if 0 <= most < FILES else FILES, most))
# How long an example takes depends on the machine, so it never decides.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


# What starts processes, servers and browsers, or plays thousands of calls, takes most of the time and
# says little about the Python that it runs on.
LONG = (
    *("tests/web/", "tests/mcp/http/", "tests/mcp/stdio/", "tests/servers/", "tests/fleet/", "tests/top/"),
    *("tests/calls/test_real_traffic.py", "tests/cli/test_worker.py", "tests/demo/test_whole.py"),
    *("tests/parts/test_breaker_model.py", "tests/torture/"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(LONG) or "postgres" in item.nodeid:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def clock() -> ManualClock:
    from holdfast.testing import ManualClock  # not every test needs it

    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store may be."""
    return tmp_path / "runs.db"


@pytest.fixture
def recorder(hf: Holdfast) -> Recorder:
    """What is told to the sinks of the module's own *hf*."""
    from holdfast.testing import Recorder

    recorder = Recorder()
    hf.bus.add(recorder)
    return recorder


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads that take turns far more often than they would, so that a gap between two instructions is found."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def no_run_is_kept_outside_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", ":memory:")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.getbasetemp() / "data"))


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())

    yield

    left = [thread for thread in threading.enumerate() if thread not in before and _must_end(thread)]
    for thread in left:
        thread.join(PATIENCE)
    alive = sorted(thread.name for thread in left if thread.is_alive())
    assert not alive, f"threads still alive after the test: {', '.join(alive)}"


def _must_end(thread: threading.Thread) -> bool:
    return not thread.daemon or thread.name.startswith("holdfast-")
