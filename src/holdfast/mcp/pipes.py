"""Lines in and bytes out of pipes, on the event loop; whatever else standard input is, a thread reads it."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable
from typing import IO, Any

from holdfast.mcp.frames import Lines

LONGEST_LINE = 64 * 2**20  # bytes; a frame is one line


class LineReader(asyncio.Protocol):
    """Calls *on_line* for each line of a pipe and *on_end* when it ends."""

    def __init__(self, on_line: Callable[[bytes], object], on_end: Callable[[], object]) -> None:
        self.lines = Lines(LONGEST_LINE)
        self._on_line = on_line
        self._on_end = on_end
        self._transport: asyncio.ReadTransport | None = None
        self._held = False

    async def open(self, pipe: IO[bytes]) -> None:
        """Begin to read."""
        loop = asyncio.get_running_loop()
        if _is_pipe(pipe):
            self._transport, _ = await loop.connect_read_pipe(lambda: self, pipe)
        else:
            threading.Thread(target=self._read, args=(loop, pipe), name="holdfast-input", daemon=True).start()
        self.hold(self._held)

    def hold(self, held: bool) -> None:
        """Read no more for the moment, or do again."""
        self._held = held
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if held else self._transport.resume_reading)()

    def close(self) -> None:
        """Read no more."""
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Part of the loop's protocol."""
        for line in self.lines.feed(data):
            self._on_line(line)

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of the loop's protocol."""
        self._on_end()

    def _read(self, loop: asyncio.AbstractEventLoop, pipe: IO[bytes]) -> None:
        def tell(fn: Callable[..., object], *args: Any) -> None:
            try:
                loop.call_soon_threadsafe(fn, *args)
            except RuntimeError:  # the loop is closed, and nobody is interested
                return

        while data := os.read(pipe.fileno(), 65536):
            tell(self.data_received, data)
        tell(self._on_end)


class Writer(asyncio.BaseProtocol):
    """Writes to a pipe without waiting; *on_hold* is told when it is full and when it no longer is."""

    def __init__(
        self, on_hold: Callable[[bool], object] = lambda held: None, on_end: Callable[[], object] = lambda: None
    ) -> None:
        self.is_open = False
        self._on_hold = on_hold
        self._on_end = on_end
        self._transport: asyncio.WriteTransport | None = None
        self._file: IO[bytes] | None = None

    async def open(self, pipe: IO[bytes]) -> None:
        """Begin to write."""
        self.is_open = True
        if _is_pipe(pipe):
            self._transport, _ = await asyncio.get_running_loop().connect_write_pipe(lambda: self, pipe)
        else:
            self._file = pipe

    def write(self, data: bytes) -> None:
        """Write; nothing happens if nobody reads any more."""
        if not self.is_open:
            return
        if self._transport is not None:
            self._transport.write(data)
        elif self._file is not None:
            self._file.write(data)
            self._file.flush()

    def close(self) -> None:
        """Write what is left, then no more."""
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        """Part of the loop's protocol."""
        self._on_hold(True)

    def resume_writing(self) -> None:
        """Part of the loop's protocol."""
        self._on_hold(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of the loop's protocol."""
        self.is_open = False
        self._on_hold(False)
        self._on_end()


def _is_pipe(pipe: IO[bytes]) -> bool:
    mode = os.fstat(pipe.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)
