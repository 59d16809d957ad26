"""A folder on a real disk below the checkout, and what can be seen of a database there without its owner's help."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
FORGETFUL = ("tmpfs", "ramfs", "devtmpfs", "zram")
_WRITES = 100


@contextmanager
def scratch() -> Iterator[Path]:
    """A new folder, gone afterwards; not where the system has such, which may be memory that nothing is forced from."""
    below = CHECKOUT / ".cache" / "bench"
    below.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=below, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def described(folder: Path) -> str:
    """One line on the disk: how long it takes to force four kilobytes to it, and a warning where it is none."""
    kind, force = _kind(folder), _force(folder)
    line = f"{kind or 'unknown file system'}, fsync {1e6 * force:,.0f} µs"
    if kind in FORGETFUL or force < 15e-6:
        return f"{line}: THIS IS NO DISK, writes are not forced to anything and these figures mean nothing"
    return line


def commits(database: Path) -> int | None:
    """Transactions since the file was opened, by the count in the index of its WAL; None where it has no WAL.

    Not for the process that has the database open: closing any handle of this file would drop SQLite's locks on it.
    """
    try:
        with open(f"{database}-shm", "rb") as index:
            return int.from_bytes(index.read(12)[8:], sys.byteorder)
    except FileNotFoundError:
        return None


def _force(folder: Path) -> float:
    handle = os.open(folder / "forced", os.O_CREAT | os.O_RDWR)
    took = []
    try:
        for turn in range(_WRITES):
            start = time.perf_counter()
            os.pwrite(handle, bytes(4096), 4096 * turn)
            os.fsync(handle)
            took.append(time.perf_counter() - start)
    finally:
        os.close(handle)
    return statistics.median(took)


def _kind(folder: Path) -> str | None:
    """The type of the file system, on Linux."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    kinds = [line.partition(" - ")[2].split()[0] for line in lines if line.split()[2] == wanted]
    return kinds[0] if kinds else None
