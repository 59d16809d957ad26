"""The tool that the workers of a fleet share: a server on loopback, which counts who reaches it."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from holdfast.clock import SystemClock

PATIENCE = 30.0  # seconds for something to come that must


class Arrival(NamedTuple):
    """A call that has reached the tool; *who* is its process."""

    who: int
    at: float


class Upstream:
    """Answers each call with *answer*, "ok" or "fail"; holds calls back while that is "hold"."""

    def __init__(self, answer: str = "ok") -> None:
        self.port = 0
        self.arrivals: list[Arrival] = []
        self.in_flight = self.most = 0
        self._answer = answer
        self._changed = threading.Condition()

    @property
    def reached(self) -> int:
        """How many calls have reached it."""
        return len(self.arrivals)

    def turn(self, answer: str) -> None:
        """Answer like that from now on, held calls included."""
        with self._changed:
            self._answer = answer
            self._changed.notify_all()

    def wait_for(self, number: int) -> None:
        """Until so many calls have reached it."""
        self._wait(lambda: len(self.arrivals) >= number, f"{number} calls to reach the tool")

    def take(self, who: int) -> str:
        """One call."""
        with self._changed:
            self.arrivals.append(Arrival(who, SystemClock.monotonic()))
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._answer != "hold")
            return self._answer

    def leave(self) -> None:
        """The call is over, as far as its caller can know."""
        with self._changed:
            self.in_flight -= 1
            self._changed.notify_all()

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        with self._changed:
            came = self._changed.wait_for(done, PATIENCE)
            assert came, f"waited {PATIENCE:g} s in vain for {what}: {self.reached} came, {self.in_flight} are there"


@contextmanager
def upstream(answer: str = "ok") -> Iterator[Upstream]:
    """One that listens."""
    tool = Upstream(answer)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            answer = tool.take(int(self.rfile.readline()))
            tool.leave()  # before the answer: who has it may be back at once
            try:
                self.wfile.write(answer.encode() + b"\n")
            except OSError:  # the caller was killed
                return

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        tool.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="upstream")
        thread.start()
        try:
            yield tool
        finally:
            tool.turn("ok")
            server.shutdown()
            thread.join()


def reach(port: int, who: int) -> str:
    """Call the tool on *port*; its failure is one of the connection."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"%d\n" % who)
        answer = connection.makefile().readline().strip()
    if answer != "ok":
        raise ConnectionError(f"the tool said {answer}")
    return answer
