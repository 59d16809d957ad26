"""A server that is a child process, kept alive: started again with backoff when it exits or stops answering, told what
its client had told it, and handed the frames that waited meanwhile.
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
from holdfast.mcp.handshake import OURS, Handshake, is_ours
from holdfast.mcp.naming import shown
from holdfast.mcp.stdio.child import GRACE, Child, Command, in_words
from holdfast.mcp.wire import Channel, Condition, Event, Listener, ServerLost

FIRST_PAUSE: Final = 0.1  # seconds before a server is started again; twice that for each time more
LONGEST_PAUSE: Final = 30.0
STABLE: Final = 10.0  # seconds after which a server that ends counts as one that had worked
MOST_STARTS: Final = 5  # in a row that may fail; after that it is started when somebody asks for it
MOST_QUEUED: Final = 2**20  # bytes that wait for a server that is not ready, before the client has to
REPLAY_PATIENCE: Final = 60.0  # seconds for a new server to take the handshake: as long as most clients give it
PING_PATIENCE: Final = 5.0  # seconds for a server to show that it lives

_OURS: Final = f'"{OURS}'.encode()
_log = logging.getLogger("holdfast")


class ChildUpstream:
    """A server as a child process, and those that follow it; *patience* is how long one may take to end by itself."""

    def __init__(self, command: Command, clock: Clock, *, patience: float = GRACE) -> None:
        self.command = command
        self.condition = Condition(clock, "stdio", shown(command.words), "stopped", pid=self._pid, said=command.said)
        self._clock = clock
        self._patience = patience
        self._child: Child | None = None
        self._live: Child | None = None  # the same, from the handshake to its end: what takes frames
        self._listener: Listener  # from `attach` on, like the handshake
        self._handshake: Handshake
        self._queue: deque[bytes] = deque()  # for a server that is not ready
        self._queued = 0  # bytes in it
        self._failures = 0
        self._started_at = 0.0
        self._restarting: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[Head] | None = None  # to a handshake of ours
        self._heard = 0
        self._silent = False  # it was killed since it did not answer
        self._held = False  # the client takes no more
        self._full = False  # the child's input is
        self._holds = False  # the client has to wait, for that or for the queue
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
            if self._live is not None:  # there will be another
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

    def asker(self, channel: Channel) -> None:
        """It has one client, as far as it knows."""

    def suspect(self) -> None:
        """See whether the server still answers; one that does not is killed."""
        ping = self._handshake.ping()
        if ping is not None and self._is_ready and self._asking is None:
            self._asking = asyncio.ensure_future(self._examine(ping))

    def hold(self, held: bool) -> None:
        """Read no more from it for the moment, or do again."""
        self._held = held
        if self._child is not None:
            self._child.hold(held)

    async def close(self) -> None:
        """End it; who asks again while it ends is in a hurry."""
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
        """Start it until it works; what waits for it is told when that seems hopeless."""
        while not self._closing:
            if self._failures:
                pause = min(FIRST_PAUSE * 2 ** (self._failures - 1), LONGEST_PAUSE)
                await self._clock.asleep(pause * random.uniform(0.5, 1.0))
            try:
                await self._begin()
                return
            except ServerLost as error:
                self._blame(error)
                if self._failures >= MOST_STARTS or not error.sent:
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
        child.hold(self._held)
        if (begins := self._handshake.begins) is not None:
            await self._replay(child, begins)
        if child.is_spent or child.code is not None:
            await child.over()
            raise self._loss(child)
        self.condition.turn("ready")
        self._live = child
        waiting, self._queue, self._queued = self._queue, deque(), 0
        for data in waiting:
            child.write(data)
        self._press()

    async def _replay(self, child: Child, begins: bytes) -> None:
        """Tell a new server what the old one was told."""
        answer = await self._ask(child, begins)
        if answer.is_refusal:
            child.kill()
            said = printable(frames.rpc_error(answer).message, 500)
            raise ServerLost(f"the server was started again and refused the handshake: {said}")
        self._handshake.answered(answer)
        for data in self._handshake.restores():
            child.write(data)

    async def _ask(self, child: Child, data: bytes) -> Head:
        """The answer to a handshake of ours."""
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
        if child is not self._child or self._closing:  # of one that was given up
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
        """Bytes that are no text would be the end of many a client; who waits for them is told at once."""
        self.command.note(f"not UTF-8, dropped: {line[:200].decode(errors='replace')}")
        head = frames.peek(line)
        if head is not None and head.is_answer and isinstance(head.id, Id):
            self._listener.failed(head.id, ServerLost("its answer was not UTF-8"))

    def _is_own(self, line: bytes) -> bool:
        """Whether a line answers a request of ours."""
        head = frames.peek(line)
        if head is None or not head.is_answer or not is_ours(head.id):
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
            return  # it was only being started
        if self._clock.monotonic() - self._started_at >= STABLE:
            self._failures = 0
        self._blame(error)
        self._listener.lost(error)
        if self._failures >= MOST_STARTS:
            self._give_up(error)
        else:
            self._start("restarting")

    def _loss(self, child: Child) -> ServerLost:
        """Why the server is no more, with the last line that it said on stderr."""
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
        """Start it no more by itself; what waits for it gets *error*."""
        self._failures = min(self._failures, MOST_STARTS - 1)  # one more try when it is asked for
        self.condition.turn("failed")
        waiting, self._queue, self._queued = self._queue, deque(), 0
        for id in [id for data in waiting for id in frames.asked(data, None)]:
            self._listener.failed(id, error)
        self._press()

    def _fill(self, child: Child, full: bool) -> None:
        """Its input is full, or no longer."""
        if child is self._child:
            self._full = full
            self._press()

    def _press(self) -> None:
        """Have the client wait for as long as there is no room for more."""
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
