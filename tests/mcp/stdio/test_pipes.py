"""Lines of pipes and files: long ones, last ones, and those that nobody reads."""

from __future__ import annotations

import asyncio
import os
import pty
import socket
import threading
import tty
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.mcp.stdio.client import until

from holdfast.mcp.stdio.pipes import MOST_ECHOED, Echo, LineReader, Lines, Writer


def read_all(number: int, size: int) -> bytes:
    """The next *size* bytes."""
    data = b""
    while len(data) < size:
        data += os.read(number, size)
    return data


class Heard:
    """What a reader has told."""

    def __init__(self, limit: int = 100) -> None:
        self.lines: list[bytes] = []
        self.long = 0
        self.over = asyncio.Event()
        self.reader = LineReader(self._line, self.over.set, limit=limit, on_long=self._long)

    def _line(self, line: bytes) -> None:
        if line == b"raise":
            raise ZeroDivisionError
        self.lines.append(line)

    def _long(self) -> None:
        self.long += 1


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(1, 9)))
def test_lines_are_the_same_however_they_are_cut(texts: list[bytes], cuts: list[int]) -> None:
    lines = [text.replace(b"\n", b"").strip(b"\r\t ") for text in texts]
    stream = b"".join(line + b"\n" for line in lines)
    reader, found = Lines(1000, lambda: None), []
    for size in (*cuts, len(stream) or 1):
        found += reader.feed(stream[:size])
        stream = stream[size:]

    assert found == [line for line in lines if line]
    assert reader.rest == b""


async def test_a_line_over_the_limit_is_dropped_and_told_and_the_next_one_is_read() -> None:
    heard = Heard(limit=10)

    heard.reader.feed(b"short\n" + b"x" * 50)
    heard.reader.feed(b"x" * 50 + b"\nnext\n")

    assert heard.lines == [b"short", b"next"]
    assert heard.long == 1


async def test_a_last_line_needs_no_end_and_empty_ones_are_none() -> None:
    heard = Heard()
    reading, writing = pipe()
    await heard.reader.open(reading)

    writing.write(b"one\r\n\n  \n\ttwo \nthree")
    writing.close()
    await heard.over.wait()

    assert heard.lines == [b"one", b"two", b"three"]


async def test_a_line_that_is_too_much_for_us_does_not_take_the_next_ones_along(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = Heard()
    reading, writing = pipe()
    await heard.reader.open(reading)

    writing.write(b"one\nraise\nthree\n")
    writing.close()
    await heard.over.wait()

    assert heard.lines == [b"one", b"three"]
    assert "a line of 5 bytes was lost" in caplog.text


async def test_a_reader_that_is_held_reads_no_more_until_it_is_let_go() -> None:
    heard = Heard()
    reading, writing = pipe()
    heard.reader.hold(True)
    await heard.reader.open(reading)
    writing.write(b"one\n")
    writing.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not heard.lines

    heard.reader.hold(False)
    await heard.over.wait()

    assert heard.lines == [b"one"]


async def test_a_socket_that_is_reset_has_ended_and_that_is_no_fault() -> None:
    heard, faults = Heard(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    here, there = socket.socketpair()
    await heard.reader.open(here.makefile("rb", buffering=0))
    here.send(b"what is never read is a reason to reset")
    here.close()  # the file still has it
    there.send(b"one\n")
    await until(lambda: heard.lines)

    there.close()
    await heard.over.wait()

    assert (heard.lines, faults) == ([b"one"], [])


async def test_a_reader_that_is_closed_gives_no_more_and_ends_once() -> None:
    ends: list[bool] = []
    lines: list[bytes] = []
    reader = LineReader(lines.append, lambda: ends.append(True))
    reading, writing = pipe()
    with writing:
        await reader.open(reading)
        writing.write(b"half a line")
        writing.flush()

        reader.close()
        reader.close()
        reader.hold(False)
        for _ in range(5):
            await asyncio.sleep(0)

    assert (lines, ends) == ([], [True])
    assert reading.closed


async def test_a_file_is_read_no_further_than_wanted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 79 + b"\n" + b"y\n" * 100_000)
    heard = Heard()
    with (tmp_path / "file").open("rb") as file:
        heard.reader.hold(True)
        await heard.reader.open(file)
        await until(lambda: heard.lines)
        read = len(heard.lines)
        assert read < 100_000

        heard.reader.hold(False)
        await heard.over.wait()

    assert len(heard.lines) == 100_001


async def test_a_writer_to_a_full_disk_ends_and_raises_nothing() -> None:
    over = asyncio.Event()
    writer = Writer(on_end=over.set)
    with full() as file:
        await writer.open(file)

        writer.write(b"x\n")
        await asyncio.wait_for(over.wait(), 20)
        writer.write(b"y\n")

    assert not writer.is_open


async def test_a_writer_to_a_terminal_that_is_not_read_holds_up_nothing_else() -> None:
    there, here = pty.openpty()
    tty.setraw(here)
    holds: list[bool] = []
    rescue = threading.Timer(10.0, os.close, (there,))  # otherwise a writer that waits here would wait for ever
    rescue.start()
    writer = Writer(holds.append)
    with os.fdopen(here, "wb") as file:
        await writer.open(file)

        writer.write(b"x" * 300_000)
        writer.write(b"y")

        assert rescue.is_alive()
        assert holds == [True]
        rescue.cancel()
        came = await asyncio.to_thread(read_all, there, 300_001)
        await until(lambda: holds == [True, False])
        await writer.finish(20.0)
    os.close(there)
    assert came == b"x" * 300_000 + b"y"


async def test_a_file_has_all_that_was_written_however_soon_the_end_comes(tmp_path: Path) -> None:
    writer = Writer()
    with (tmp_path / "file").open("wb") as file:
        await writer.open(file)
        for _ in range(100):
            writer.write(b"x" * 10_000)

        await writer.finish(0)

    assert (tmp_path / "file").stat().st_size == 1_000_000


async def test_a_writer_to_a_terminal_that_is_never_read_is_given_up() -> None:
    there, here = pty.openpty()
    tty.setraw(here)
    over = asyncio.Event()
    writer = Writer(on_end=over.set)
    with os.fdopen(here, "wb") as file:
        await writer.open(file)
        writer.write(b"x" * 300_000)

        await writer.finish(0.01)

        assert over.is_set()
        os.close(there)  # ends the thread
        await until(lambda: "output" not in {thread.name for thread in threading.enumerate()})


async def test_a_reader_that_is_closed_gives_nothing_of_what_a_terminal_still_brings() -> None:
    there, here = pty.openpty()
    lines: list[bytes] = []
    over = asyncio.Event()
    reader = LineReader(lines.append, over.set)
    with os.fdopen(here, "rb") as file:
        await reader.open(file)
        os.write(there, b"one\n")
        await until(lambda: lines)

        reader.close()
        os.write(there, b"two\n")
        await asyncio.wait_for(over.wait(), 20)

    os.close(there)
    assert lines == [b"one"]


async def test_a_writer_finishes_what_is_left_for_as_long_as_it_may() -> None:
    reading, writing = pipe()
    writer = Writer()
    await writer.open(writing)
    writer.write(b"x" * 10**6)

    await writer.finish(0.01)  # nobody reads

    with reading:
        assert 0 < len(reading.read()) < 10**6


def test_an_echo_that_nobody_reads_drops_lines_and_keeps_nobody_waiting() -> None:
    reading, writing = pipe()
    with reading, writing:
        echo = Echo(writing)
        for _ in range(3):
            echo.write(b"x" * MOST_ECHOED)
        [thread] = [each for each in threading.enumerate() if each.name == "echo"]

        echo.close(0.01)

        assert thread.is_alive()  # it cannot write
        reading.close()
        thread.join(30)
        assert not thread.is_alive()


def test_an_echo_writes_what_is_left_when_it_is_closed(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as file:
        echo = Echo(file)
        echo.write(b"one")
        echo.write(b"two")

        echo.close(10.0)

    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"


def test_an_echo_that_is_read_drops_no_line_however_many_come_at_once(tmp_path: Path) -> None:
    lines = [b"%d" % number for number in range(100_000)]
    with (tmp_path / "log").open("wb", buffering=0) as file:
        echo = Echo(file)
        for line in lines:
            echo.write(line)

        echo.close(10.0)

    assert (tmp_path / "log").read_bytes().splitlines() == lines


def test_an_echo_says_where_lines_were_dropped() -> None:
    reading, writing = pipe()
    with reading, writing:
        echo = Echo(writing)
        echo.write(b"x" * 2**20)  # more than a pipe holds
        while echo._waiting:  # until the thread is at it
            pass
        for _ in range(3):
            echo.write(b"x" * (MOST_ECHOED - 10))
        echo.write(b"end")

        closing = threading.Thread(target=echo.close, args=(10.0,))
        closing.start()
        said = reading.read(MOST_ECHOED * 2)
        while not said.endswith(b"end\n"):
            said += reading.read(MOST_ECHOED * 2)
        closing.join()

    assert said.splitlines()[2:] == [b"holdfast: lines that nobody read were dropped here: 2", b"end"]


def test_an_echo_waits_for_a_reader_where_the_file_does_not() -> None:
    reading, writing = pipe()
    with reading, writing:
        os.set_blocking(writing.fileno(), False)
        echo = Echo(writing)
        echo.write(b"x" * 2**20)
        echo.write(b"end")

        said = b""
        while not said.endswith(b"end\n"):
            said += reading.read(2**20)
        echo.close(10.0)

    assert len(said) == 2**20 + 5


def test_an_echo_into_something_closed_is_silent(tmp_path: Path) -> None:
    file = (tmp_path / "log").open("wb")
    file.close()
    echo = Echo(file)

    echo.write(b"one")
    echo.close(10.0)

    assert (tmp_path / "log").read_bytes() == b""


def pipe() -> tuple[IO[bytes], IO[bytes]]:
    reading, writing = os.pipe()
    return open(reading, "rb", buffering=0), open(writing, "wb", buffering=0)


def full() -> IO[bytes]:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    return open("/dev/full", "wb", buffering=0)
