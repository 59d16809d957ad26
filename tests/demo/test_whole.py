"""The whole demo, as people run it: it ends, its numbers are right, and nothing of it stays."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.children import all_processes, until

HOLDFAST = Path(sys.executable).with_name("holdfast")
PATIENCE = 40.0  # seconds; a test that has to wait this long fails
UNSET = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "DISPLAY", "WAYLAND_DISPLAY", "BROWSER"}
# What a shell does for what it starts: the terminal is its own, so that Ctrl-C and a hang-up reach it.
IN_FRONT = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


# --- without a terminal ---


def test_it_ends_by_itself_and_its_numbers_are_those_that_it_tells(place: Path) -> None:
    done = subprocess.run(
        [HOLDFAST, "demo", "--json"], capture_output=True, text=True, env=environment(place), cwd=place, check=True
    )

    found = json.loads(done.stdout)
    proxied, told = found["proxied"], done.stderr
    assert (proxied["crashes"], proxied["repeated"]) == (2, 1)
    assert (proxied["in_doubt"], proxied["paid"], proxied["paid_twice"]) == (1, 1, 0)
    assert (proxied["refused"], proxied["paced"]) == (5, 12)
    assert "restarted, asked again, answered" in told
    assert re.search(r"hangs for 60 s: the model is told at the deadline +(1\.[5-9]|[2-9]\.\d|[12]\d\.\d) s", told)
    assert "fails 3 times (503 Service Unavailable)" in told
    assert "3 calls are answered meanwhile" in told
    assert "let through as a probe: answered" in told
    assert f"12 at once, {proxied['too_many']} × 429" in told
    assert "The tool 'visa_rules' was not called" in told
    assert found["page"]["processes"] == 3
    assert f"shows {found['page']['tools']} tools of 3 processes, {found['page']['runs']} runs, 1 server." in told
    assert savings(told) == {row["what"]: round(row["amount"]) for row in found["saved"]}
    assert_nothing_is_left(place)


def test_without_the_extra_it_says_so_and_goes_on_without_the_page(place: Path) -> None:
    blocked = "import sys; sys.modules['starlette'] = None; from holdfast.cli import main; sys.exit(main(sys.argv[1:]))"

    done = subprocess.run(
        [sys.executable, "-c", blocked, "demo", "--scene", "2", "--scene", "4"],
        capture_output=True, text=True, env=environment(place), check=True,
    )  # fmt: skip

    assert "It needs starlette: pip install 'holdfast[server]'" in done.stdout
    assert savings(done.stdout) == {"bookings and payments made twice": 2, "crashes that end the work": 2}
    assert_nothing_is_left(place)


# --- in a terminal ---


@pytest.mark.slow
def test_the_page_stays_with_agents_at_work_until_ctrl_c(place: Path) -> None:
    with staying(place) as demo:
        until(lambda: len(demo.processes()) == 3)
        before = demo.calls()
        until(lambda: demo.calls() > before)

        demo.ctrl_c()
        shown = demo.rest()

    assert demo.process.returncode == 0
    assert "what the guards saved you from" in shown
    assert "Traceback" not in shown
    assert_nothing_is_left(place)


@pytest.mark.slow
def test_a_terminal_that_is_closed_ends_it_too(place: Path) -> None:
    with staying(place) as demo:
        until(lambda: len(demo.processes()) == 3)

        demo.hang_up()
        demo.process.wait(PATIENCE)

    assert_nothing_is_left(place)


@pytest.mark.slow
def test_who_cancels_all_runs_on_the_page_still_has_agents_and_a_proxy(place: Path) -> None:
    with staying(place) as demo:
        until(lambda: len(demo.processes()) == 3)
        (first,) = demo.servers()

        assert demo.ask("/api/runs/cancel?all=true", b"{}")["requested"] > 0

        until(lambda: demo.servers() not in ([first], []))
        until(lambda: len(demo.processes()) == 3)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="there the system's own browser is opened")
def test_where_there_is_a_display_the_page_is_opened_in_a_browser(place: Path) -> None:
    opener, opened = place / "bin" / "xdg-open", place / "opened"
    opener.parent.mkdir()
    opener.write_text(f'#!/bin/sh\necho "$1" > {opened}\nread -r line\n')
    opener.chmod(0o755)

    with staying(place, DISPLAY=":99", PATH=str(opener.parent)) as demo:
        until(lambda: opened.exists() and opened.read_text().endswith("\n"))

    assert opened.read_text().strip() == demo.address
    assert "It is open in your browser." in demo.shown


@pytest.mark.slow
def test_an_interrupt_in_the_middle_leaves_nothing_behind(place: Path) -> None:
    with in_terminal(place, "--scene", "2", "--scene", "3") as demo:
        demo.read_until("pay_invoice")

        demo.ctrl_c()
        shown = demo.rest()

    assert demo.process.returncode == 130
    assert shown.rstrip().endswith("holdfast: interrupted")
    assert "Traceback" not in demo.shown
    assert_nothing_is_left(place)


# --- how it is run ---


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that holds all that the demo may write, and a home in which it must not."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "home").mkdir()
    return tmp_path


def environment(place: Path, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in UNSET and not key.startswith("XDG_")}
    return {**kept, "HOME": str(place / "home"), "TMPDIR": str(place / "temporary"), "TERM": "xterm-256color", **more}


class Demo:
    """A demo in a terminal of 80 × 24."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self.shown = ""
        self._terminal: int | None = terminal

    @property
    def address(self) -> str:
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=[\w-]+", self.shown)
        assert found, self.shown
        return found[0]

    def ctrl_c(self) -> None:
        assert self._terminal is not None
        os.write(self._terminal, b"\x03")

    def hang_up(self) -> None:
        """Close the terminal; harmless once it is."""
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    def read_until(self, words: str) -> None:
        while words not in self.shown:
            assert self._read(), self.shown

    def rest(self) -> str:
        """What it says until it ends."""
        before = len(self.shown)
        while self._read():
            pass
        self.process.wait(PATIENCE)
        return self.shown[before:]

    def ask(self, path: str, body: bytes | None = None) -> Any:
        """What the page's API answers."""
        address = urlsplit(self.address)
        connection = HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE)
        headers = {"Authorization": f"Bearer {parse_qs(address.query)['token'][0]}", "Content-Type": "application/json"}
        try:
            connection.request("GET" if body is None else "POST", path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, text
            return json.loads(text)
        finally:
            connection.close()

    def processes(self) -> set[str]:
        return {each["process"] for tool in self.ask("/api/tools")["tools"] for each in tool["processes"]}

    def servers(self) -> list[str]:
        """The proxies that have one."""
        return [each["process"] for each in self.ask("/api/servers")["servers"]]

    def calls(self) -> int:
        return sum(tool["calls"] for tool in self.ask("/api/tools")["tools"])

    def _read(self) -> str:
        """What there is to read; nothing once the other side is closed, which Linux reports as an error."""
        assert self._terminal is not None
        try:
            chunk = os.read(self._terminal, 65536).decode(errors="replace").replace("\r\n", "\n")
        except OSError:
            return ""
        self.shown += chunk
        return chunk


@contextmanager
def in_terminal(place: Path, *options: str, **more: str) -> Iterator[Demo]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", IN_FRONT, str(HOLDFAST), "demo", *options],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=place, env=environment(place, **more),
    )  # fmt: skip
    os.close(theirs)
    demo = Demo(process, ours)
    try:
        yield demo
    finally:
        process.terminate()
        demo.hang_up()
        process.wait(PATIENCE)


@contextmanager
def staying(place: Path, **more: str) -> Iterator[Demo]:
    with in_terminal(place, "--scene", "4", **more) as demo:
        demo.read_until("Ctrl-C ends it.")
        yield demo


def savings(told: str) -> dict[str, float]:
    """The last table: what was saved, and how much of it in all."""
    table = told[told.index("what the guards saved you from") :].splitlines()[2:]
    found = (re.match(r"(\S.*?)\s{2,}.*?\$?([\d,]+)(?: s)?\s*$", line) for line in table)
    return {match[1]: float(match[2].replace(",", "")) for match in found if match}


def assert_nothing_is_left(place: Path) -> None:
    """No file, and no process: each but the first has the demo's folder among its arguments."""
    assert list((place / "temporary").iterdir()) == []
    assert list((place / "home").iterdir()) == []
    assert [command for command in commands() if str(place / "temporary") in command] == []


def commands() -> list[str]:
    """What all processes of the machine were started with."""
    if not Path("/proc/self/cmdline").exists():
        return [command for (command,) in all_processes("command")]
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found
