"""A server as a child process: its pipes, its lines on stderr, and its end. Knows nothing of the protocol.

The child leads a session of its own, so that it is ended together with all processes that it has started. No signal is
sent once the kernel may have given its process id to another process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from holdfast.errors import printable
from holdfast.mcp.stdio.pipes import Echo, LineReader, Writer, first
from holdfast.mcp.wire import ServerLost

KEPT_LINES: Final = 200  # stderr lines of a server
LONGEST_KEPT: Final = 2000  # characters that are kept of such a line
LONGEST_SAID: Final = 2**20  # bytes of such a line; a longer one is dropped
GRACE: Final = 2.0  # seconds for a process to end by itself: once its input has ended, or once it has closed a pipe
STUBBORN: Final = 5.0  # seconds between asking a process to end and killing it
# The same two limits if our client has told us to end: it kills us after two seconds, and by then the server has to be
# gone.
HURRIED: Final = 0.2
HURRIED_STUBBORN: Final = 1.3
ORPHANED: Final = 0.2  # seconds for pipes to end after their process, in case another process holds them open


class Command:
    """How a server is started, and the stderr lines of all processes that were started.

    The lines also go to *stderr*: unchanged, or printable and after a *label* if several servers write there.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stderr: Echo | None = None,
        label: str | None = None,
    ) -> None:
        self.words = list(words)
        self.env = env
        self.cwd = cwd
        self.said: deque[str] = deque(maxlen=KEPT_LINES)
        self.last_words: str | None = None  # last stderr line of the process that was started last
        self._stderr = stderr
        self._label = label

    def hear(self, line: bytes) -> None:
        """Keep a line of stderr, and pass it on."""
        self._keep(line)
        self.last_words = self.said[-1]

    def note(self, text: str) -> None:
        """Keep a line of our own among those of stderr, and pass it on like them."""
        self._keep(f"holdfast: {text}".encode())

    def _keep(self, line: bytes) -> None:
        said = printable(line.decode(errors="replace"), LONGEST_KEPT)
        self.said.append(said)
        if self._stderr is not None:
            self._stderr.write(line if self._label is None else f"{printable(self._label)}: {said}".encode())


class Child:
    """One process; *on_line* gets each line of its stdout, *on_exit* is called when it is gone and all lines are read.

    *on_hold* is called with True when its stdin is full, and with False when it no longer is.
    """

    def __init__(
        self,
        command: Command,
        on_line: Callable[[bytes], object],
        on_exit: Callable[[], object],
        on_hold: Callable[[bool], object],
        *,
        grace: float = GRACE,
    ) -> None:
        self.code: int | None = None
        self.is_spent = False  # it has closed its input or output, and will soon be gone
        self._command = command
        command.last_words = None
        self._on_exit = on_exit
        self._grace = grace
        self._out = LineReader(on_line, self._silent, on_long=self._note_long)
        self._err = LineReader(command.hear, self._ended, limit=LONGEST_SAID, on_long=self._note_long)
        self._in = Writer(on_hold, self._pipe_closed)
        self._open = 3  # stdout, stderr and the process itself
        self._closing = False
        self._process: subprocess.Popen[bytes] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._left = asyncio.Event()  # the process has exited
        self._over = asyncio.Event()  # and all its output is read
        self._hurried = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Its process id, while it lives."""
        return self._process.pid if self._process is not None and self.code is None else None

    async def start(self) -> None:
        """Start it; raise a `ServerLost` if that fails."""
        # A task of its own: if a cancel interrupted the start halfway, nothing could end the process.
        self._opening = asyncio.ensure_future(self._start())
        await asyncio.shield(self._opening)

    def write(self, data: bytes) -> None:
        """Write a line to its stdin."""
        self._in.write(data + b"\n")

    def hold(self, held: bool) -> None:
        """Stop reading its stdout while *held*, or resume."""
        if self.code is None:  # the little output that a dead process has left is read in any case
            self._out.hold(held)

    def kill(self) -> None:
        """End it and all that it has started, at once."""
        self._signal(signal.SIGKILL)

    async def over(self) -> None:
        """Wait until it is gone and all its output is read."""
        await self._over.wait()

    async def close(self) -> None:
        """End it: close its input, then send SIGTERM, then SIGKILL."""
        if self._opening is not None:
            await asyncio.wait({self._opening})
        if self._process is None:
            return
        self._closing = True
        try:
            self.hold(False)  # a server that is stuck in a write does not read, and would miss the end of its input
            self._in.close()
            await self._wait_for_exit(self._grace, HURRIED)
            self._signal(signal.SIGTERM)
            await self._wait_for_exit(STUBBORN, HURRIED_STUBBORN)
        finally:
            self._signal(signal.SIGKILL)
        await first(self._over.wait(), timeout=GRACE)
        self._out.close()
        self._err.close()
        await self._in.finish(0)

    def hurry(self) -> None:
        """Make `close` use the shorter limits."""
        self._hurried.set()

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        process = self._process = self._spawn()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._wait, args=(loop, process), name="holdfast-child", daemon=True).start()
        await self._in.open(process.stdin)
        await self._out.open(process.stdout)
        await self._err.open(process.stderr)

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = self._command
        pipe = subprocess.PIPE
        try:
            return subprocess.Popen(
                command.words,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=command.env,
                cwd=command.cwd,
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ServerLost(f"{printable(command.words[0], 300)} cannot be started: {error}", sent=False) from error

    async def _wait_for_exit(self, seconds: float, hurried: float) -> None:
        """Wait *seconds* at most for it to exit; after `hurry`, *hurried* seconds more at most."""
        await first(self._left.wait(), self._hurried.wait(), timeout=seconds)
        if self._hurried.is_set():
            await first(self._left.wait(), timeout=hurried)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.code is None:
            with suppress(ProcessLookupError, PermissionError):  # all gone; or macOS, where zombies cannot be signalled
                os.killpg(self._process.pid, number)

    def _wait(self, loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes]) -> None:
        # Not reaped here where `waitid` exists: a zombie keeps its process id, by which `_exited` kills its group.
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):  # the process that started us ignores SIGCHLD, and we inherited that
                _await_leader(process.pid)
        else:
            process.wait()
        try:
            loop.call_soon_threadsafe(self._exited, process)
        except RuntimeError:  # the event loop is closed: only the zombie is left to reap
            process.wait()

    def _exited(self, process: subprocess.Popen[bytes]) -> None:
        self._signal(signal.SIGKILL)
        self.code = process.wait()
        self._left.set()
        self._in.close()
        self._out.hold(False)
        loop = asyncio.get_running_loop()
        for pipe in (self._out, self._err):
            loop.call_later(ORPHANED, pipe.close)
        loop.call_later(ORPHANED, _reap, process.pid)
        self._ended()

    def _note_long(self) -> None:
        self._command.note("a line that was too long: dropped")

    def _silent(self) -> None:
        """Its stdout has ended."""
        self._pipe_closed()
        self._ended()

    def _pipe_closed(self) -> None:
        """Its stdin or stdout is closed: kill it if it does not exit by itself."""
        self.is_spent = True
        if self.code is None and not self._closing:
            asyncio.get_running_loop().call_later(self._grace, self.kill)

    def _ended(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._over.set()
            self._on_exit()


def _await_leader(group: int) -> None:
    """Wait until the first process of a *group* exits, without reaping it. The others that exit before it are reaped:
    they are our children if we are the first process of a container.
    """
    while (ended := os.waitid(os.P_PGID, group, os.WEXITED | os.WNOWAIT)) is not None and ended.si_pid != group:
        os.waitpid(ended.si_pid, 0)


def _reap(group: int) -> None:
    """Reap the processes of a *group* that were killed after their leader exited."""
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG) != (0, 0):
            pass


def in_words(code: int | None) -> str:
    """How a process ended, for the sentence 'the server …'."""
    if code is None:
        return "closed its output"
    if code >= 0:
        return f"exited with code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
