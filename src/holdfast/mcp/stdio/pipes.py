"""Lines in and bytes out of pipes, on the event loop, which no pipe blocks. What the loop cannot watch, a file or a
terminal, is read and written by threads; so is stderr written, since the client may have stopped reading it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import stat
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import IO, Any, Final, Self

LONGEST_LINE: Final = 64 * 2**20  # bytes; a frame is one line
CHUNK: Final = 2**16  # bytes that are read at once: as many as a pipe holds
MOST_WAITING: Final = 2**16  # bytes that may wait for a file or a terminal, until the sender is asked to pause
MOST_ECHOED: Final = 4 * 2**20  # bytes that may wait to be written to stderr; lines beyond that are dropped
LAST_LINES: Final = 0.2  # seconds for stderr, a file or a terminal to take the last lines

_log = logging.getLogger("holdfast")


class Lines:
    """Cuts a stream of bytes into lines; one that is longer than *limit* is dropped, and *on_long* is called."""

    def __init__(self, limit: int, on_long: Callable[[], object]) -> None:
        self._limit = limit
        self._on_long = on_long
        self._begun = bytearray()  # a line that has no end yet
        self._skips = False  # the rest of a line that is too long is skipped

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that *data* completes, without the spaces around them; empty lines are left out."""
        if not self._begun and not self._skips and data.find(b"\n") == len(data) - 1:  # usually it is one whole line
            line = data.strip(b"\r\n\t ")
            return [line] if line else []
        lines = []
        *whole, rest = data.split(b"\n")
        for part in whole:
            line = b"".join((self._begun, part)).strip(b"\r\t ")
            if line and not self._skips:
                lines.append(line)
            self._begun.clear()
            self._skips = False
        if not self._skips:
            self._begun += rest
            if len(self._begun) > self._limit:
                self._begun.clear()
                self._skips = True
                self._on_long()
        return lines

    @property
    def rest(self) -> bytes:
        """The beginning of a line that has no end yet."""
        return bytes(self._begun)


class LineReader:
    """Calls *on_line* for each line of a pipe, *on_long* for one longer than *limit*, and *on_end* when the pipe ends.

    *on_data* gets each piece of data before *on_line* gets the lines in it.
    """

    def __init__(
        self,
        on_line: Callable[[bytes], object],
        on_end: Callable[[], object],
        *,
        limit: int = LONGEST_LINE,
        on_data: Callable[[bytes], object] = lambda data: None,
        on_long: Callable[[], object] = lambda: None,
    ) -> None:
        self._lines = Lines(limit, on_long)
        self._on_line = on_line
        self._on_end = on_end
        self._on_data = on_data
        self._pipe: IO[bytes] | None = None  # None if a thread reads instead of the loop
        self._held = self._closed = self._ended = False
        self._flows = threading.Event()
        self._flows.set()

    async def open(self, pipe: IO[bytes]) -> None:
        """Begin to read."""
        if _is_pipe(pipe):
            os.set_blocking(pipe.fileno(), False)
            self._pipe = pipe
        else:
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._read, args=(loop, pipe.fileno()), name="input", daemon=True).start()
        self.hold(self._held)

    def hold(self, held: bool) -> None:
        """Stop reading while *held*, or resume."""
        self._held = held
        (self._flows.clear if held else self._flows.set)()
        if self._pipe is not None and not self._ended:
            # Deliberately not a transport of asyncio: for each read it takes a buffer of a quarter of a megabyte, which
            # the kernel has to map each time.
            loop, number = asyncio.get_running_loop(), self._pipe.fileno()
            if held:
                loop.remove_reader(number)
            else:
                loop.add_reader(number, self._readable, number)

    def close(self) -> None:
        """Read no more; a thread that waits for input drops what it gets."""
        self._closed = True
        self._flows.set()
        self._end()

    def feed(self, data: bytes) -> None:
        """Take bytes that were read."""
        if not self._closed:
            self._on_data(data)
            for line in self._lines.feed(data):
                self._give(line)

    def _readable(self, number: int) -> None:
        try:
            data = os.read(number, CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:  # a socket that was reset
            _log.debug("a pipe ended: %s", error)
            data = b""
        if data:
            self.feed(data)
        else:
            self._end()

    def _end(self) -> None:
        """Stop watching the pipe. *on_end* is called in the next turn of the loop, since the caller of `close` may be
        in the middle of something.
        """
        if self._pipe is not None and not self._ended:
            self._ended = True
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._pipe.fileno())
            loop.call_soon(self._over)

    def _over(self) -> None:
        pipe, self._pipe = self._pipe, None
        try:
            if not self._closed and (rest := self._lines.rest.strip()):
                self._give(rest)
            self._on_end()
        finally:
            if pipe is not None:
                pipe.close()

    def _give(self, line: bytes) -> None:
        try:
            self._on_line(line)
        except Exception:  # a fault of ours: the lines after it are given all the same
            _log.exception("a line of %d bytes was lost", len(line))

    def _read(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            with suppress(OSError):  # a terminal that is gone
                while not self._closed and (data := os.read(number, CHUNK)):
                    loop.call_soon_threadsafe(self.feed, data)
                    self._flows.wait()
            loop.call_soon_threadsafe(self._over)


class Writer(asyncio.Protocol):
    """Writes to a pipe without waiting; *on_hold* is told when it is full and when it no longer is."""

    def __init__(
        self, on_hold: Callable[[bool], object] = lambda held: None, on_end: Callable[[], object] = lambda: None
    ) -> None:
        self.is_open = False
        self._on_hold = on_hold
        self._on_end = on_end
        self._transport: asyncio.WriteTransport | Slow | None = None
        self._shared = False
        self._gone = asyncio.Event()

    async def open(self, pipe: IO[bytes], *, shared: bool = False) -> None:
        """Begin to write; *shared* if the other side also writes to us through the same socket."""
        loop = asyncio.get_running_loop()
        if shared and stat.S_ISSOCK(os.fstat(pipe.fileno()).st_mode):
            # asyncio's transport for pipes would take data from the other side for the end of the connection.
            self._shared = True
            there = socket.socket(fileno=os.dup(pipe.fileno()))
            self._transport, _ = await loop.connect_accepted_socket(lambda: self, there)
        elif _is_pipe(pipe):
            self._transport, _ = await loop.connect_write_pipe(lambda: self, pipe)
        else:
            self._transport = Slow(pipe, self)
        self.is_open = True

    def write(self, data: bytes) -> None:
        """Write *data*; it is dropped if the pipe is closed."""
        if self.is_open and self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Write what is buffered, then close the pipe."""
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    async def finish(self, seconds: float) -> None:
        """Close it, and wait *seconds* at most for what is left to be written."""
        self.close()
        if self._transport is not None:
            await first(self._gone.wait(), timeout=seconds)
            if not self._gone.is_set():
                self._transport.abort()
                await self._gone.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._shared and isinstance(transport, asyncio.ReadTransport):  # a `LineReader` reads it
            transport.pause_reading()

    def pause_writing(self) -> None:
        self._on_hold(True)

    def resume_writing(self) -> None:
        self._on_hold(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._gone.set()
        self._on_hold(False)
        self._on_end()


class Slow:
    """A transport to a *file* that the event loop cannot watch; a thread writes, and *writer* is told how it goes."""

    def __init__(self, file: IO[bytes], writer: Writer) -> None:
        file.flush()
        self._number = file.fileno()
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._waiting = bytearray()
        self._changed = threading.Condition()
        self._over = self._held = self._lost = False
        self._thread = threading.Thread(target=self._serve, name="output", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Write *data* soon."""
        with self._changed:
            self._waiting += data
            self._changed.notify()
            full = len(self._waiting) > MOST_WAITING
        if full and not self._held:
            self._held = True
            self._writer.pause_writing()

    def close(self) -> None:
        """Write what waits, then end."""
        with self._changed:
            self._over = True
            self._changed.notify()

    def abort(self) -> None:
        """End, even if the thread is stuck in a write."""
        self.close()
        self._thread.join(LAST_LINES)
        with self._changed:
            self._waiting.clear()
        self._loop.call_soon(self._ended, None)

    def _serve(self) -> None:
        # Not through the file's buffer, whose lock a thread that is stuck in a write would keep, as in `Echo`.
        error: Exception | None = None
        with suppress(RuntimeError):  # the event loop is closed
            try:
                while data := self._next():
                    _write_all(self._number, data)
                    self._loop.call_soon_threadsafe(self._resume)
            except OSError as failed:  # a full disk, a terminal that is gone
                error = failed
            self._loop.call_soon_threadsafe(self._ended, error)

    def _next(self) -> bytes:
        """Wait for bytes and return them all; nothing once it is closed and all are written."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._over)
            data, self._waiting = bytes(self._waiting), bytearray()
            return data

    def _resume(self) -> None:
        if self._held and len(self._waiting) <= MOST_WAITING:
            self._held = False
            self._writer.resume_writing()

    def _ended(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._writer.connection_lost(error)


class Echo:
    """Writes lines to a file from a thread, so that a reader who does not read holds up nothing else."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._waiting = bytearray()
        self._dropped = 0  # lines, since the last one that was not dropped
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(LAST_LINES)

    def write(self, line: bytes) -> None:
        """Write a line soon; it is dropped if too much waits."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, args=(self._number(),), name="echo", daemon=True)
                self._thread.start()
            if len(self._waiting) + len(line) > MOST_ECHOED:
                self._dropped += 1
                return
            if self._dropped:
                self._waiting += b"holdfast: lines that nobody read were dropped here: %d\n" % self._dropped
                self._dropped = 0
            self._waiting += line + b"\n"
            self._changed.notify()

    def close(self, patience: float) -> None:
        """Write what is left, for *patience* seconds at most."""
        with self._changed:
            thread, self._thread, self._over = self._thread, None, True
            self._changed.notify()
        if thread is not None:
            thread.join(patience)

    def _number(self) -> int | None:
        try:
            return self._file.fileno()
        except ValueError:  # the file is closed, or has no descriptor
            return None

    def _serve(self, number: int | None) -> None:
        # Not through the file's buffer: if this thread were stuck in a write for ever, it would hold the buffer's lock,
        # which would keep the process from ending.
        while data := self._next():
            if number is not None:
                with suppress(OSError):  # the reader is gone
                    _write_all(number, data)

    def _next(self) -> bytes:
        """Wait for lines and return them all; nothing once the echo is closed and all lines are written."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._over)
            data, self._waiting = bytes(self._waiting), bytearray()
            return data


async def first(*waits: Coroutine[Any, Any, object], timeout: float | None = None) -> None:
    """Wait until one of *waits* is done, for *timeout* seconds at most, and cancel the rest."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _write_all(number: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(number, left) :]
        except BlockingIOError:  # another process that shares the file made it non-blocking
            select.select([], [number], [])


def _is_pipe(pipe: IO[bytes]) -> bool:
    mode = os.fstat(pipe.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def same(one: IO[Any], other: IO[Any]) -> bool:
    """Whether both are the same file or socket."""
    return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))
