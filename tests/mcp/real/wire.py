"""A client that speaks JSON-RPC by hand and keeps every frame of the talk, both ways, as the bytes they were.

It answers the server's requests from a table and never invents a frame. How the lines travel is a link's affair: a pipe
to a process here, HTTP in `tests.mcp.real.web`.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

PATIENCE = 30.0  # seconds for one answer; nothing here takes longer than five

Json = dict[str, Any]
Answers = Mapping[str, Callable[[Json], Json]]


class Frame(NamedTuple):
    """One line of the talk; over HTTP with the stream that carried it."""

    sender: str
    raw: bytes
    message: Any
    stream: str = ""


class Scene(NamedTuple):
    """A part of the talk; in an *ordered* one the server's frames have one right order."""

    name: str
    ordered: bool
    frames: list[Frame]


class Link(Protocol):
    """How lines travel to the server and back."""

    def open(self, take: Callable[[bytes, str], None]) -> None: ...
    def send(self, line: bytes) -> None: ...
    def ended(self) -> bool: ...
    def tail(self) -> str: ...
    def close(self) -> int: ...


class Pipe:
    """A process, and the pipes to it. One that is not *obedient* must be told to go."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], obedient: bool = True) -> None:
        self._obedient = obedient
        self._writing = threading.Lock()  # the reader answers while the test asks
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env=dict(env), bufsize=0
        )
        self._reader: threading.Thread | None = None

    def open(self, take: Callable[[bytes, str], None]) -> None:
        self._reader = threading.Thread(target=self._read, args=(take,), daemon=True)
        self._reader.start()

    def send(self, line: bytes) -> None:
        assert self._process.stdin
        with self._writing:
            rest = memoryview(line + b"\n")
            while rest:
                rest = rest[self._process.stdin.write(rest) :]

    def ended(self) -> bool:
        return self._process.poll() is not None and self._reader is not None and not self._reader.is_alive()

    def tail(self) -> str:
        self._stderr.seek(0)
        return f"exit {self._process.poll()}, stderr:\n{self._stderr.read()[-3000:].decode(errors='replace')}"

    def close(self) -> int:
        assert self._process.stdin
        assert self._process.stdout
        assert self._reader
        self._process.stdin.close()
        if not self._obedient:
            self._process.terminate()
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise AssertionError(f"the process did not end when its input did\n{self.tail()}") from None
        finally:
            self._process.wait()
            self._reader.join(PATIENCE)
            self._process.stdout.close()
            self._stderr.close()

    def _read(self, take: Callable[[bytes, str], None]) -> None:
        assert self._process.stdout
        rest = b""
        while chunk := self._process.stdout.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                take(line, "")
        if rest:
            take(rest, "")


class Talk:
    """One connection to a server and everything that was said to it and by it."""

    def __init__(self, link: Link, answers: Answers) -> None:
        self.scenes: list[Scene] = [Scene("start", ordered=True, frames=[])]
        self._link = link
        self._answers = answers
        self._heard = threading.Condition()
        self._last = 0
        link.open(self._take)

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def frames(self) -> list[Frame]:
        return [frame for scene in self.scenes for frame in scene.frames]

    def heard(self, matches: Callable[[Any], bool]) -> list[Any]:
        """What the server has said so far that *matches*."""
        with self._heard:
            said = [
                frame.message for frame in self.frames if frame.sender == "server" and isinstance(frame.message, dict)
            ]
            return [message for message in said if matches(message)]

    def scene(self, name: str, *, ordered: bool = True) -> None:
        """What is said from now on belongs to the scene *name*."""
        with self._heard:
            self.scenes.append(Scene(name, ordered, []))

    def send(self, message: object) -> None:
        self.send_line(json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode())

    def send_line(self, line: bytes) -> None:
        with self._heard:
            self.scenes[-1].frames.append(Frame("client", line, None))
        self._link.send(line)

    def start(
        self, method: str, params: Json | None = None, *, id: int | str | None = None, **more: object
    ) -> int | str:
        """Send a request without waiting for its answer; returns its id."""
        if id is None:
            self._last += 1
            id = self._last
        message: Json = {"jsonrpc": "2.0", "id": id, "method": method}
        if params is not None:
            message["params"] = params
        self.send({**message, **more})
        return id

    def ask(self, method: str, params: Json | None = None, *, id: int | str | None = None) -> Json:
        """Send a request and wait for its answer."""
        return self.answer(self.start(method, params, id=id))

    def call(self, tool: str, /, **arguments: object) -> Json:
        return self.ask("tools/call", {"name": tool, "arguments": arguments})

    def notify(self, method: str, params: Json | None = None) -> None:
        message: Json = {"jsonrpc": "2.0", "method": method}
        self.send(message if params is None else {**message, "params": params})

    def answer(self, id: int | str) -> Json:
        """Wait for the answer to the request *id*; over HTTP an error may come without it, on that request's stream."""

        def answers() -> list[Any]:
            return [frame.message for frame in self.frames if frame.sender == "server" and _answers(frame, id)]

        return self._wait(answers, f"an answer to {id!r}", 1)

    def wait(self, matches: Callable[[Any], bool], what: str, *, count: int = 1) -> Json:
        """Wait until the server has said *count* messages that match; returns the last of them."""
        return self._wait(lambda: self.heard(matches), what, count)

    def _wait(self, look: Callable[[], list[Any]], what: str, count: int) -> Json:
        end = time.monotonic() + PATIENCE
        with self._heard:
            while len(found := look()) < count:
                if self._link.ended():
                    raise AssertionError(f"the server ended before {what}\n{self._tail()}")
                if time.monotonic() >= end:
                    raise AssertionError(f"{what} did not come within {PATIENCE} s\n{self._tail()}")
                self._heard.wait(1.0)
            message: Json = found[count - 1]
            return message

    def close(self) -> int:
        """End the talk as a client does; returns how the other side ended."""
        return self._link.close()

    def _take(self, line: bytes, stream: str) -> None:
        message = json.loads(line) if line[:1] in b"{[" else None
        with self._heard:
            self.scenes[-1].frames.append(Frame("server", line, message, stream))
            self._heard.notify_all()
        if isinstance(message, dict) and "method" in message and "id" in message:
            self.send({"jsonrpc": "2.0", "id": message["id"], **self._reply(message)})

    def _reply(self, message: Json) -> Json:
        if message["method"] in self._answers:
            return {"result": self._answers[message["method"]](message.get("params") or {})}
        return {"error": {"code": -32601, "message": "Method not found"}}

    def _tail(self) -> str:
        said = "\n".join(f"{frame.sender}: {frame.raw[:300]!r}" for frame in self.frames[-8:])
        return f"last frames:\n{said}\n{self._link.tail()}"


def _answers(frame: Frame, id: int | str) -> bool:
    message = frame.message
    if not isinstance(message, dict) or "method" in message:
        return False
    return message.get("id") == id or (message.get("id") is None and frame.stream.endswith(f" {id}"))
