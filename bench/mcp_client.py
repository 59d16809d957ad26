"""The client of the measurement, by hand, so that it costs the same for everybody: a pipe or a connection, and frames.

What is timed is one `tools/call`: from the write of a frame that is ready to the last byte of its answer. Arguments are
never the same twice, since that is a loop to some, and every answer is looked at, after the clock has stopped.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"
PATIENCE = 60.0  # seconds until a port is open; an import may take a while when everybody starts at once
IDLE = 2.0  # seconds after which a server may have closed the connection
CLIENT = {"name": "bench", "version": "1"}
_PREFIX = "io.modelcontextprotocol/"
META = {f"{_PREFIX}protocolVersion": STATELESS, f"{_PREFIX}clientInfo": CLIENT, f"{_PREFIX}clientCapabilities": {}}


class Unusable(Exception):
    """A contender that cannot take part; its text says why."""


class Process:
    """A child of ours, and what it said on stderr."""

    def __init__(self, command: Sequence[str], *, folder: Path, env: Mapping[str, str], pipes: bool) -> None:
        self.log = folder / f"{time.monotonic_ns()}.log"
        pipe = subprocess.PIPE if pipes else subprocess.DEVNULL
        with self.log.open("wb") as log:
            self.popen = subprocess.Popen(
                list(command), stdin=pipe, stdout=pipe, stderr=log, bufsize=0, cwd=folder, env=dict(env)
            )

    @property
    def cpu(self) -> float:
        """CPU seconds of the process so far: all its threads, not its children."""
        return cpu_seconds(self.popen.pid)

    def last_words(self) -> str:
        """Why it ended, as far as it says so."""
        said = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return said[-1].strip()[:200] if said else f"ended with {self.popen.poll()}"

    def close(self) -> None:
        """End it, politely at first."""
        if self.popen.returncode is not None:
            return
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()
        if self.popen.stdin is None:
            self.popen.terminate()
        for end in (self.popen.terminate, self.popen.kill):
            try:
                self.popen.wait(5)
                return
            except subprocess.TimeoutExpired:
                end()
        self.popen.wait()


class Line(Protocol):
    """A way to a server, through the *process* before it, if there is one."""

    @property
    def process(self) -> Process | None: ...

    def greet(self) -> None: ...

    def call(self, number: int) -> float: ...

    def close(self) -> None: ...


class Stdio:
    """A server behind the pipes of a process."""

    def __init__(self, process: Process, era: str) -> None:
        assert process.popen.stdin is not None
        assert process.popen.stdout is not None
        self.process = process
        self.era = era
        self.sink = process.popen.stdin.fileno()
        self.source = process.popen.stdout.fileno()
        self.rest = b""

    def greet(self) -> None:
        """Shake hands, where the era does, and see that the tool is there."""
        if self.era == HANDSHAKE:
            self.ask(request("initialize", 0, self.era))
            self.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode() + b"\n")
        check(self.ask(request("tools/list", 1, self.era)), "echo")

    def call(self, number: int) -> float:
        """Seconds that one call took."""
        frame = request("tools/call", number, self.era) + b"\n"
        start = time.perf_counter()
        os.write(self.sink, frame)
        line = self.line()
        took = time.perf_counter() - start
        check(line, f"hello {number}")
        return took

    def ask(self, frame: bytes) -> bytes:
        """The next line after *frame*."""
        self.send(frame + b"\n")
        return self.line()

    def send(self, data: bytes) -> None:
        """Write all of it."""
        try:
            os.write(self.sink, data)  # far less than a pipe holds
        except BrokenPipeError:
            self.process.popen.wait()
            raise Unusable(self.process.last_words()) from None

    def line(self) -> bytes:
        """The next line that the server says."""
        while (end := self.rest.find(b"\n")) < 0:
            chunk = os.read(self.source, 1 << 16)
            if not chunk:
                self.process.popen.wait()
                raise Unusable(self.process.last_words())
            self.rest += chunk
        line, self.rest = self.rest[:end], self.rest[end + 1 :]
        return line

    def close(self) -> None:
        """End the process."""
        self.process.close()


class Http:
    """A server at a URL, over one connection that is kept."""

    def __init__(self, url: str, era: str, process: Process | None = None) -> None:
        parts = urlsplit(url)
        self.process = process
        self.era = era
        self.path = parts.path
        self.connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self.headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": era,
        }
        self.used = 0.0

    def wait(self) -> None:
        """Until somebody listens there."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.connection.connect()
                return
            except ConnectionRefusedError:
                if self.process is not None and self.process.popen.poll() is not None:
                    raise Unusable(self.process.last_words()) from None
                if time.monotonic() > end:
                    raise Unusable(f"nobody listens after {PATIENCE:.0f} s") from None
                time.sleep(0.02)

    def greet(self) -> None:
        """Shake hands, where the era does, and see that the tool is there."""
        self.wait()
        self.used = time.perf_counter()
        if self.era == HANDSHAKE:
            _, session = self._post(request("initialize", 0, self.era), "initialize")
            if session:
                self.headers["Mcp-Session-Id"] = session
            said = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            self._post(json.dumps(said).encode(), "notifications/initialized")
        check(self._post(request("tools/list", 1, self.era), "tools/list")[0], "echo")

    def call(self, number: int) -> float:
        """Seconds that one call took."""
        if time.perf_counter() - self.used > IDLE:
            self.connection.close()
            self.connection.connect()
        frame = request("tools/call", number, self.era)
        start = time.perf_counter()
        answer, _ = self._post(frame, "tools/call")
        self.used = time.perf_counter()
        check(answer, f"hello {number}")
        return self.used - start

    def close(self) -> None:
        """Let the connection go, and end the process."""
        self.connection.close()
        if self.process is not None:
            self.process.close()

    def _post(self, body: bytes, method: str) -> tuple[bytes, str | None]:
        headers = self.headers
        if self.era == STATELESS:
            headers = {**headers, "Mcp-Method": method, **({"Mcp-Name": "echo"} if method == "tools/call" else {})}
        self.connection.request("POST", self.path, body, headers)
        response = self.connection.getresponse()
        answer = response.read()
        if response.status not in (200, 202):
            raise Unusable(f"{method}: {response.status} {answer[:200].decode(errors='replace')}")
        if response.headers.get_content_type() == "text/event-stream":
            answer = next(part for part in answer.splitlines() if part.startswith(b"data:") and b'"jsonrpc"' in part)
        return answer, response.headers.get("Mcp-Session-Id")


def request(method: str, number: int, era: str) -> bytes:
    """A request as it goes over the wire."""
    params: dict[str, Any] = {}
    if method == "tools/call":
        params = {"name": "echo", "arguments": {"text": f"hello {number}"}}
    elif method == "initialize":
        params = {"protocolVersion": era, "capabilities": {}, "clientInfo": CLIENT}
    if era == STATELESS:
        params["_meta"] = META
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def check(answer: bytes, wanted: str) -> None:
    """What is timed must work."""
    if wanted.encode() not in answer or b'"isError":true' in answer.replace(b" ", b""):
        raise AssertionError(f"no {wanted!r} in the answer {answer[:500]!r}")


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process: to the nanosecond on Linux, to the hundredth of a second elsewhere."""
    if sys.platform == "linux":
        return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) makes of a pid
    told = subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout
    seconds = 0.0
    for part in told.strip().split(":"):
        seconds = seconds * 60 + float(part)
    return seconds
