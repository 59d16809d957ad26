"""Other processes of tests: how they are started and ended, and how both sides talk, in lines.

A file of commands says `children = processes("tests.its_name")` for the tests and ends in `main(…)` for the process.
"""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from holdfast.clock import SystemClock

ROOT = Path(__file__).parents[1]
PATIENCE = 40.0  # seconds for what comes within one, on a busy machine

Child = subprocess.Popen[str]


class Start(Protocol):
    """Starts a child that does *command*."""

    def __call__(self, command: str, *args: object) -> Child: ...


def fork() -> int:
    """Fork, in the midst of threads: some tests are about just that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def processes(module: str) -> Callable[[], AbstractContextManager[Start]]:
    """What gives a starter of children that do the commands of *module*, and sees to it that none is left."""

    @contextmanager
    def children() -> Iterator[Start]:
        started: list[Child] = []
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))

        def start(command: str, *args: object) -> Child:
            words = [sys.executable, "-m", module, command, *map(str, args)]
            child = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
            )
            started.append(child)
            return child

        try:
            yield start
        finally:
            for child in started:
                child.kill()
            for child in started:
                child.communicate()

    return children


def main(*commands: Callable[..., Any]) -> None:
    """Do what the command line says, in a child."""
    {each.__name__: each for each in commands}[sys.argv[1]](*sys.argv[2:])


def said(child: Child) -> str:
    """The next line of a child."""
    assert child.stdout is not None
    return child.stdout.readline().rstrip("\n")


def tell(child: Child, line: str = "go") -> None:
    """Let a child go on."""
    assert child.stdin is not None
    child.stdin.write(f"{line}\n")
    child.stdin.flush()


def all_processes(*columns: str) -> list[list[str]]:
    """What `ps` tells of each process of the machine; only the last of the *columns* may have spaces."""
    # One `-o` each: on macOS all that is behind an equals sign is a header, the names of other columns too.
    wanted = [word for column in columns for word in ("-o", f"{column}=")]
    told = subprocess.run(["ps", "-Aww", *wanted], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=len(columns) - 1) for line in told.splitlines()]
    return [row for row in rows if len(row) == len(columns)]


@contextmanager
def no_file_left() -> Iterator[None]:
    """This process can open nothing more, meanwhile."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.dup(0))  # not less than that: `poll` watches no more than there may be
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def eventually(is_so: Callable[[], object], patience: float = 30.0) -> bool:
    """Whether something becomes so, in other processes, before patience ends."""
    end = SystemClock.monotonic() + patience
    while not (so := is_so()) and SystemClock.monotonic() < end:
        SystemClock.sleep(0.01)
    return bool(so)


def until(is_so: Callable[[], object], what: str = "it") -> None:
    """Wait for *what* comes by itself."""
    assert eventually(is_so, PATIENCE), f"waited {PATIENCE:g} s in vain for {what}"


def descriptors() -> list[str]:
    """The open files of this process, without what earlier tests have left to the collector."""
    gc.collect()
    return sorted(os.listdir("/dev/fd"))


def ask(child: Child, line: str) -> str:
    """Have a child do something; what it answers."""
    tell(child, line)
    return said(child)


def say(*words: object) -> None:
    """One line to whoever started this child."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class SlowLoader:
    """Takes its time over the next load of one module: until somebody forks, and then a little longer."""

    def __init__(self, module: str) -> None:
        self._module = module
        self.begun, self.fork = threading.Event(), threading.Event()
        sys.modules.pop(module, None)
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def find_spec(self, name: str, *_: object) -> None:
        if name == self._module and not self.begun.is_set():
            self.begun.set()
            self.fork.wait()
            SystemClock.sleep(0.1)
