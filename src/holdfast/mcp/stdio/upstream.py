"""A server that is a child process, kept alive: it is started again with backoff when it exits or stops answering. The
new process is told what the client had told the old one, and gets the frames that waited meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.clock import Clock
from holdfast.errors import printable
from holdfast.mcp import frames
from holdfast.mcp.frames import Head, Id
from holdfast.mcp.handshake import Handshake
from holdfast.mcp.ids import OURS
from holdfast.mcp.naming import shown
from holdfast.mcp.stdio.child import GRACE, Child, Command, in_words
from holdfast.mcp.wire import Channel, Condition, Event, Listener, ServerLost

FIRST_PAUSE: Final = 0.1  # seconds before a server is started again; doubled for each further failure in a row
LONGEST_PAUSE: Final = 30.0
STABLE: Final = 10.0  # seconds that a server has to live until its earlier failures are forgotten
MOST_FAILURES: Final = 5  # failures in a row; after that the server is started only on demand
MOST_QUEUED: Final = 2**20  # bytes that may wait for a server that is not ready; beyond that the client is not read
REPLAY_PATIENCE: Final = 60.0  # seconds for a new server to answer the handshake: as long as most clients wait for it
PING_PATIENCE: Final = 5.0  # seconds for a server to say anything after a ping

_OURS: Final = f'"{OURS}'.encode()
_log = logging.getLogger("holdfast")


class ChildUpstream:
    """A server as a child process, and its successors; *patience* is the seconds that each has to end by itself."""

    def __init__(self, command: Command, clock: Clock, *, patience: float = GRACE) -> None:
        self.command = command
        self.condition = Condition(clock, "stdio", shown(command.words), "stopped", pid=self._pid, said=command.said)
        self._clock = clock
        self._patience = patience
        self._child: Child | None = None
        self._live: Child | None = None  # the same from its handshake to its end: frames go to it
        self._listener: Listener  # set by `attach`, like the handshake
        self._handshake: Handshake
        self._queue: deque[bytes] = deque()  # frames for a server that is not ready
        self._queued = 0  # bytes in the queue
        self._failures = 0
        self._started_at = 0.0
        self._restarting: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[Head] | None = None  # to a handshake that we repeat
        self._heard = 0
        self._silent = False  # the child was killed since it did not answer
        self._held = False  # the client takes no more frames, so the child is not read
        self._full = False  # the child's input is full
        self._holds = False  # the client is not read, since the child's input or the queue is full
        self._closing = False

    @property
    def ready(self) -> Callable[[], Awaitable[object]] | None:
        return None if self._is_ready else self._become_ready

    @property
    def _is_ready(self) -> bool:
        return self._live is not None and not self._live.is_spent

    def attach(self, listener: Listener, handshake: Handshake) -> None:
        self._listener = listener
        self._handshake = handshake
        self.condition.on_change = listener.changed
        self._start()

    async def _become_ready(self) -> None:
        if self.condition.state == "failed":
            self._start()
        while not self._is_ready:
            if self._live is not None:  # this process is ending, and another one will replace it
                await self._live.over()
                continue
            restarting = self._restarting
            if restarting is None or restarting.done() or self._closing:
                raise ServerLost(self.condition.last_error or "the server is stopped", sent=False)
            await asyncio.wait({restarting})

    def send(self, data: bytes, head: Head | None, channel: Channel | None = None) -> None:
        if self._closing:
            return
        if self._live is not None:
            self._live.write(data)
            return
        self._queue.append(data)
        self._queued += len(data)
        self._press()
        if self.condition.state == "failed":
            self._start()

    def take_back(self, id: Id) -> bool:
        """False: what is written to a pipe stays there, and a call is sent only once the server is ready."""
        return False

    def asker(self, channel: Channel) -> None:
        """None: the server knows one client only."""

    def suspect(self) -> None:
        """Ping the server, and kill it if it stays silent."""
        ping = self._handshake.ping()
        if ping is not None and self._is_ready and self._asking is None:
            self._asking = asyncio.ensure_future(self._examine(ping))

    def hold(self, held: bool) -> None:
        """Stop reading from the server while *held*, or resume; a new server is read until it is ready."""
        self._held = held
        if self._live is not None:
            self._live.hold(held)

    async def close(self) -> None:
        """End the server; a second call while it ends makes it end sooner."""
        if self._ending is None:
            self._closing = True
            self._ending = asyncio.ensure_future(self._end())
        elif self._child is not None:
            self._child.hurry()
        await asyncio.shield(self._ending)

    def _pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    async def _end(self) -> None:
        self._live = None
        tasks = [task for task in (self._restarting, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._child is not None:
            await self._child.close()
        self.condition.turn("stopped")

    # -- starting ------------------------------------------------------------------------------------------------------

    def _start(self, state: str = "starting") -> None:
        if not self._closing and (self._restarting is None or self._restarting.done()):
            self.condition.turn(state)
            self._restarting = asyncio.ensure_future(self._keep_starting())

    async def _keep_starting(self) -> None:
        """Start the server until it works; give up after `MOST_FAILURES` failures, or if its command cannot be run."""
        while not self._closing:
            if self._failures:
                pause = min(FIRST_PAUSE * 2 ** (self._failures - 1), LONGEST_PAUSE)
                await self._clock.asleep(pause * random.uniform(0.5, 1.0))
            try:
                await self._begin()
                return
            except ServerLost as error:
                self._blame(error)
                if self._failures >= MOST_FAILURES or not error.sent:
                    self._give_up(error)
                    return

    async def _begin(self) -> None:
        child = self._child = Child(
            self.command,
            lambda line: self._hear(child, line),
            lambda: self._exited(child),
            lambda held: self._fill(child, held),
            grace=self._patience,
        )
        self._full = self._silent = False
        self._started_at = self._clock.monotonic()
        await child.start()
        if (begins := self._handshake.begins) is not None:
            await self._replay(child, begins)
        if child.is_spent or child.code is not None:
            await child.over()
            raise self._loss(child)
        self.condition.turn("ready")
        child.hold(self._held)
        self._live = child
        waiting, self._queue, self._queued = self._queue, deque(), 0
        for data in waiting:
            if begins is None or data is not self._handshake.initialized:  # otherwise it was told that already
                child.write(data)
        self._press()

    async def _replay(self, child: Child, begins: bytes) -> None:
        """Repeat the client's handshake and settings to a new server."""
        answer = await self._ask(child, begins)
        if answer.is_refusal:
            child.kill()
            said = printable(frames.rpc_error(answer).message, 500)
            raise ServerLost(f"the server was started again and refused the handshake: {said}")
        self._handshake.answered(answer)
        for data in self._handshake.restores():
            child.write(data)

    async def _ask(self, child: Child, data: bytes) -> Head:
        """Send a handshake and return the answer; kill the server if there is none in time."""
        answer: asyncio.Future[Head] = asyncio.get_running_loop().create_future()
        self._answer = answer
        late = ServerLost(f"the server did not take the handshake within {REPLAY_PATIENCE:g} s")
        timer = self._clock.call_at(self._clock.monotonic() + REPLAY_PATIENCE, lambda: self._no_answer(late))
        try:
            child.write(data)
            return await answer
        except ServerLost:
            child.kill()
            raise
        finally:
            timer.cancel()
            self._answer = None

    def _no_answer(self, error: ServerLost) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    async def _examine(self, ping: bytes) -> None:
        child, heard = self._child, self._heard
        assert child is not None
        try:
            child.write(ping)
            await self._clock.asleep(PING_PATIENCE)
            if self._heard == heard and child.code is None and not self._held:
                self._silent = True
                child.kill()
        finally:
            self._asking = None

    # -- what it does --------------------------------------------------------------------------------------------------

    def _hear(self, child: Child, line: bytes) -> None:
        if child is not self._child or self._closing:  # from a process that was given up
            return
        self._heard += 1
        if not line.isascii() and not _is_text(line):
            self._garbled(line)
            return
        if self._handshake.has_asked and _OURS in line and self._is_own(line):
            return
        if not self._listener.arrive(Event(line)):
            self.command.note(f"no frame, dropped: {line[:200].decode(errors='replace')}")

    def _garbled(self, line: bytes) -> None:
        """Drop a line that is not UTF-8, which would break many clients; fail the request that it answers at once."""
        self.command.note(f"not UTF-8, dropped: {line[:200].decode(errors='replace')}")
        head = frames.peek(line)
        if head is not None and head.is_answer and isinstance(head.id, Id):
            self._listener.failed(head.id, ServerLost("its answer was not UTF-8"))

    def _is_own(self, line: bytes) -> bool:
        """True if *line* answers a request of our own; the answer is noted."""
        head = frames.peek(line)
        if head is None or not head.is_answer or not self._handshake.is_own(head.id):
            return False
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(head)
        return True

    def _exited(self, child: Child) -> None:
        if child is not self._child or self._closing:
            return
        self._live = None
        error = self._loss(child)
        self._no_answer(error)
        if self._restarting is not None and not self._restarting.done():
            return  # it died while it was being started: `_keep_starting` deals with that
        if self._clock.monotonic() - self._started_at >= STABLE:
            self._failures = 0
        self._blame(error)
        self._listener.lost(error)
        if self._failures >= MOST_FAILURES:
            self._give_up(error)
        else:
            self._start("restarting")

    def _loss(self, child: Child) -> ServerLost:
        """The error that says why the server is gone, with its last line on stderr."""
        how = "stopped answering and was killed" if self._silent else in_words(child.code)
        words = self.command.last_words
        return ServerLost(f"the server {how}" + (f"; its last words: {words}" if words else ""))

    def _blame(self, error: ServerLost) -> None:
        self._failures += 1
        self.condition.restarts += 1
        self.condition.last_error = str(error)
        self.command.note(str(error))
        _log.info("%s: %s", printable(self.command.words[0]), error)

    def _give_up(self, error: ServerLost) -> None:
        """Start the server only on demand from now on; the requests that wait for it fail with *error*."""
        self._failures = min(self._failures, MOST_FAILURES - 1)  # so that there is one try on each demand
        self.condition.turn("failed")
        waiting, self._queue, self._queued = self._queue, deque(), 0
        for id in [id for data in waiting for id in frames.asked(data, None)]:
            self._listener.failed(id, error)
        self._press()

    def _fill(self, child: Child, full: bool) -> None:
        """Note that the child's input is *full*, or no longer is."""
        if child is self._child:
            self._full = full
            self._press()

    def _press(self) -> None:
        """Stop reading from the client while there is no room for more frames, or resume."""
        holds = self._full or self._queued > MOST_QUEUED
        if holds != self._holds:
            self._holds = holds
            self._listener.hold(holds)


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
