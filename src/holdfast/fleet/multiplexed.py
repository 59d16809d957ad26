"""One connection for all tasks of an event loop. Questions that are asked in one turn of the loop are sent together.

Answers come in the order of the questions. If the oldest question is not answered in time, the connection is given up
and all waiting tasks fail, because one late answer makes all after it late. *lost* must undo what the server granted in
answers that never came, also for tasks that were cancelled.
"""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.fleet.link import RECEIVE, Away, Link, feed, reader, wants_more

STAY = 0.00015  # seconds in which a server on the same host, or close to it, answers
TURNS = 8  # of so many questions asked alone, at least one waits in the event loop

_NOT_NOW = (BlockingIOError, InterruptedError)


class Asker(Protocol):
    """Asks a question, and may be cancelled before the answer comes."""

    def forsaken(self, reply: Any) -> None:
        """Take the answer that comes after the asking task was cancelled."""


class Multiplexed:
    """The link of one event loop; used in its thread only. *lost* is called when answers are lost."""

    __slots__ = (
        "broken", "_bound", "_link", "_loop", "_lost", "_out", "_reader", "_rest", "_timer", "_turn", "_usual",
        "_waiting", "__weakref__",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, link: Link, bound: float, lost: Callable[[], object]) -> None:
        self.broken: Away | None = None
        self._loop = loop
        self._link = link
        self._bound = bound  # seconds that a question waits for its answer
        self._lost = lost
        self._reader = reader()
        self._out: list[bytes] = []
        self._rest = b""  # bytes that the kernel has not taken yet
        self._waiting: deque[tuple[asyncio.Future[Any], float, Asker]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._turn = 0
        self._usual = STAY  # seconds that an answer takes, about
        link.socket.setblocking(False)
        me = weakref.ref(self)  # a closed loop must not keep this object alive and so the connection open
        loop.add_reader(link.socket, _on_readable, me)
        weakref.finalize(self, link.close)

    def ask(self, command: bytes, asker: Asker) -> asyncio.Future[Any]:
        """Send *command*; the answer is set in the future, or given to *asker* if the future was cancelled."""
        if self.broken is not None:
            raise self.broken
        loop, out = self._loop, self._out
        future: asyncio.Future[Any] = loop.create_future()
        is_alone = not self._waiting
        self._waiting.append((future, loop.time() + self._bound, asker))
        if self._timer is None:
            self._timer = loop.call_later(self._bound, self._look_at_clock)
        out.append(command)
        if is_alone:  # a question asked alone need not wait for others to be sent with it
            self._send()
            self._turn = (self._turn + 1) % TURNS
            if self._turn and self._usual <= STAY:
                self._stay()
        elif len(out) == 1 and not self._rest:
            loop.call_soon(self._send)
        return future

    def _stay(self) -> None:
        """Wait actively for an answer that is about to come: to sleep and be woken would take as long again.

        Answers are measured to come so soon only while the loop has nothing else to do, so no other task is delayed;
        the questions that wait in the loop (see TURNS) show whether that is still so.
        """
        end = self._loop.time() + STAY
        while self._waiting and self._loop.time() < end:
            self._receive()

    def close(self) -> None:
        """Give the connection up; waiting tasks get `Away`."""
        self._give_up(Away("the connection was closed"))

    # -- the loop's callbacks ------------------------------------------------------------------------------------------

    def _send(self) -> None:
        if self.broken is not None:
            return
        data = self._rest + b"".join(self._out)
        self._out.clear()
        try:
            sent = self._link.socket.send(data)
        except _NOT_NOW:
            sent = 0
        except OSError as error:
            if not wants_more(error):
                self._give_up(Away(f"{self._link.node.shown}: {error.strerror or error}"))
                return
            sent = 0
        had_rest, self._rest = bool(self._rest), data[sent:]
        if self._rest and not had_rest:
            self._loop.add_writer(self._link.socket, self._send)
        elif had_rest and not self._rest:
            self._loop.remove_writer(self._link.socket)

    def _receive(self) -> None:
        try:
            data = self._link.socket.recv(RECEIVE)
        except _NOT_NOW:
            return
        except OSError as error:
            if not wants_more(error):
                self._give_up(Away(f"{self._link.node.shown}: {error.strerror or error}"))
            return
        if not data:
            self._give_up(Away(f"{self._link.node.shown}: closed the connection"))
            return
        try:
            feed(self._reader, data)
            self._answer()
        except Away as error:
            self._give_up(error)
            return
        if _has_more(self._link.socket):
            self._loop.call_soon(self._receive)

    def _answer(self) -> None:
        """Give the answers that have come to the tasks that asked for them."""
        gets, waiting = self._reader.gets, self._waiting
        late_by = self._loop.time() + self._bound
        while (reply := gets()) is not False:
            if not waiting:  # then earlier tasks may have got answers to the questions of other tasks
                self._lost()
                raise Away(f"{self._link.node.shown}: answered what nobody asked")
            future, late_at, asker = waiting.popleft()
            self._usual += (late_by - late_at - self._usual) / TURNS
            if future.done():
                asker.forsaken(reply)
            else:
                future.set_result(reply)

    def _look_at_clock(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        late_at = self._waiting[0][1]
        if late_at <= self._loop.time():
            self._give_up(Away(f"{self._link.node.shown}: did not answer in time"))
        else:
            self._timer = self._loop.call_at(late_at, self._look_at_clock)

    def _give_up(self, reason: Away) -> None:
        if self.broken is not None:
            return
        self.broken = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        is_over = self._loop.is_closed()  # its tasks cannot be told
        if not is_over:
            self._loop.remove_reader(self._link.socket)
            self._loop.remove_writer(self._link.socket)
        self._link.close()
        if self._waiting:
            self._lost()
        while self._waiting:
            future, _, _ = self._waiting.popleft()
            if not future.done() and not is_over:
                future.set_exception(Away(str(reason)))


def _on_readable(me: weakref.ref[Multiplexed]) -> None:
    if (link := me()) is not None:
        link._receive()


def _has_more(connection: socket.socket) -> bool:
    """True if TLS has read more data than it returned; the event loop cannot see that."""
    pending = getattr(connection, "pending", None)
    return pending is not None and pending() > 0
