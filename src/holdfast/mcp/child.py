"""A server as a child process: its pipes, what it said on stderr, and its end. Knows nothing of the protocol."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

from holdfast.errors import printable
from holdfast.mcp.pipes import LineReader, Writer
from holdfast.mcp.wire import ServerLost

KEPT_LINES: Final = 200  # of what a server said on stderr
LONGEST_KEPT: Final = 2000  # characters of such a line
GRACE: Final = 2.0  # seconds between asking a process to end, telling it to, and killing it


class Command:
    """How a server is started, and what was said by all that were."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stderr: IO[bytes] | None = None,
    ) -> None:
        self.words = list(words)
        self.env = env
        self.cwd = cwd
        self.said: deque[str] = deque(maxlen=KEPT_LINES)
        self._stderr = stderr

    def hear(self, line: bytes) -> None:
        """Keep a line of stderr, and pass it on."""
        self.note(line.decode(errors="replace"))
        if self._stderr is not None:
            with suppress(OSError, ValueError):  # nobody reads our own stderr any more
                self._stderr.write(line + b"\n")
                self._stderr.flush()

    def note(self, text: str) -> None:
        """Keep a line among those of stderr."""
        self.said.append(printable(text, LONGEST_KEPT))


class Child:
    """One process; *on_line* gets what it says, *on_exit* its code, after all of that."""

    def __init__(
        self,
        command: Command,
        on_line: Callable[[bytes], object],
        on_exit: Callable[[Child], object],
        on_hold: Callable[[bool], object],
    ) -> None:
        self.code: int | None = None
        self._command = command
        self._on_exit = on_exit
        self._out = LineReader(on_line, self._silent)
        self._err = LineReader(command.hear, self._ended)
        self._in = Writer(on_hold)
        self._open = 3  # stdout, stderr and the process itself
        self._process: subprocess.Popen[bytes] | None = None
        self._gone = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Its number, while it lives."""
        return self._process.pid if self._process is not None and self.code is None else None

    async def start(self) -> None:
        """Start it; a `ServerLost` says why that cannot be."""
        words = self._command.words
        try:
            # Of its own session, so that it can be ended with all that it has started.
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._command.env,
                cwd=self._command.cwd,
                bufsize=0,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ServerLost(f"{printable(words[0])} cannot be started: {error}", sent=False) from error
        self._process = process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._wait, args=(loop, process), name="holdfast-child", daemon=True).start()
        await self._in.open(process.stdin)
        await self._out.open(process.stdout)
        await self._err.open(process.stderr)

    def write(self, data: bytes) -> None:
        """Hand it a line."""
        self._in.write(data + b"\n")

    def hold(self, held: bool) -> None:
        """Read no more of what it says for the moment, or do again."""
        self._out.hold(held)

    def kill(self) -> None:
        """End it and all that it has started, at once."""
        self._signal(signal.SIGKILL)

    async def close(self, patience: float = GRACE) -> None:
        """End it: by the end of its input, then by a signal, then by force."""
        self._in.close()
        for seconds, number in ((patience, signal.SIGTERM), (GRACE, signal.SIGKILL), (GRACE, None)):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), seconds)
                break
            if number is not None:
                self._signal(number)
        self._signal(signal.SIGKILL)  # what it has left behind
        self._out.close()
        self._err.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):  # all gone; or macOS, whose zombies allow nothing
                os.killpg(self._process.pid, number)

    def _wait(self, loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        with suppress(RuntimeError):  # the loop is closed, and nobody is interested
            loop.call_soon_threadsafe(self._exited, code)

    def _exited(self, code: int) -> None:
        self.code = code
        self._in.close()
        self._gone.set()
        # What it has started may hold its pipes open for ever.
        asyncio.get_running_loop().call_later(0.2, self._out.close)
        asyncio.get_running_loop().call_later(0.2, self._err.close)
        self._ended()

    def _silent(self) -> None:
        """It says no more: it has ended, or is of no use."""
        if self.code is None:
            asyncio.get_running_loop().call_later(GRACE, self.kill)
        self._ended()

    def _ended(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._on_exit(self)


def in_words(code: int | None) -> str:
    """How a process ended."""
    if code is None:
        return "closed its output"
    if code >= 0:
        return f"exited with code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
