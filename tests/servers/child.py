"""A server's process: started as an ordinary user, stopped, killed, paused, and never left behind.

A guardian of a few kilobytes waits at the end of a pipe that only we hold: however we end, it kills the server.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.children import all_processes
from tests.servers.finding import Missing, free_port, home, owner, runnable

Server = TypeVar("Server")
PATIENCE = 30.0  # seconds for a server to start or to stop
TRIES = 3  # ports that somebody else may take just then
GUARDIAN = "read group; read end; kill -s KILL -- -$group"


class NotStarted(Exception):
    """A server that ended, or never answered; the text has the last lines of its log."""


def first_started(
    binaries: list[Path], folder: Path | None, start: Callable[[Path, Path, int], Server], missing: str
) -> Server:
    """The first server that can be had: *start* it with a place, *folder* or one of its own, a binary and a port."""
    reasons = []
    for binary in binaries:
        for _ in range(TRIES):
            place = home(folder)
            try:
                return start(place, runnable(binary, place), free_port())
            except (NotStarted, OSError) as error:
                reasons.append(f"{binary}: {error}")
                if place != folder:
                    remove(place)
                if "in use" not in str(error):
                    break
    raise Missing("; ".join(reasons) or missing)


class Child:
    """A running server; *log* has what it says."""

    def __init__(self, command: list[str], folder: Path, *, ending: signal.Signals = signal.SIGTERM) -> None:
        self.command = command
        self.folder = folder
        self.log = folder / "log.txt"
        self.ending = ending
        self._guardian = subprocess.Popen(
            ["sh", "-c", GUARDIAN], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            self.process = self._start()
        except OSError:
            self._dismiss()
            raise
        assert self._guardian.stdin is not None
        self._guardian.stdin.write(b"%d\n" % self.process.pid)
        self._guardian.stdin.flush()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def wait_until(self, answers: Callable[[], bool], what: str) -> None:
        """Return when it *answers*."""
        last = time.monotonic() + PATIENCE
        pause = 0.005
        while not answers():
            if not self.running or time.monotonic() > last:
                self.kill()
                said = self.log.read_text(errors="replace").splitlines()[-8:]
                raise NotStarted("\n".join([f"{what} did not start: {self.command[0]}", *said]))
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)

    def stop(self) -> None:
        """End it in order, or by force where it does not."""
        if self.running:
            os.kill(self.pid, signal.SIGCONT)  # what is paused does not hear
            os.kill(self.pid, self.ending)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
        self._dismiss()

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would, with all that it has started."""
        if self.running:
            os.kill(self.pid, signal.SIGSTOP)  # else it starts new ones meanwhile
            for pid in [*children(self.pid), self.pid]:
                _send(pid, signal.SIGKILL)
            self.process.wait(PATIENCE)
        self._dismiss()

    def pause(self) -> None:
        """Have it hang: connections stay, nothing is answered."""
        for pid in [self.pid, *children(self.pid)]:
            _send(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in [*children(self.pid), self.pid]:
            _send(pid, signal.SIGCONT)

    def _start(self) -> subprocess.Popen[bytes]:
        user = owner()
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=user[0] if user else None,
                group=user[1] if user else None,
                extra_groups=[] if user else None,
                env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
            )

    def _dismiss(self) -> None:
        # Killed before its pipe is closed: the group's number may be somebody else's by now.
        self._guardian.kill()
        self._guardian.wait()
        if self._guardian.stdin is not None:
            self._guardian.stdin.close()


def children(pid: int) -> list[int]:
    """The processes that *pid* has started and that still run."""
    if Path("/proc/self/stat").exists():
        pairs = [pair for path in Path("/proc").glob("[0-9]*/stat") if (pair := _pid_and_parent(path))]
    else:
        pairs = [(int(one), int(parent)) for one, parent in all_processes("pid", "ppid")]
    return [one for one, parent in pairs if parent == pid]


def remove(folder: Path) -> None:
    """Remove a server's folder; what its last process still writes there is not worth an error."""
    shutil.rmtree(folder, ignore_errors=True)


def _pid_and_parent(path: Path) -> tuple[int, int] | None:
    try:
        # The name, in parentheses, may hold anything.
        return int(path.parent.name), int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return None


def _send(pid: int, what: signal.Signals) -> None:
    try:
        os.kill(pid, what)
    except ProcessLookupError:  # it has ended
        return
