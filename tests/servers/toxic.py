"""A bad network: a TCP proxy before a port of 127.0.0.1 that delays, swallows, cuts and refuses on command.

It runs in a thread of its own; each command has taken effect when it returns.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.servers.finding import free_port

PATIENCE = 30.0  # seconds for a command to take effect
AT_ONCE = struct.pack("ii", 1, 0)  # linger for no time: a close is a reset


class Toxic:
    """A proxy before *target*, which passes everything on until it is told otherwise."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.delay = 0.0
        self.swallows = False
        self.pairs: set[Pair] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="toxic", daemon=True)
        self._thread.start()
        self.port = free_port()  # while it refuses, nobody else is given it
        self._do(self._listen)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many go through it now."""
        number: int = self._do(lambda: len(self.pairs))
        return number

    def latency(self, seconds: float) -> None:
        """Make a round trip that much longer, half of it each way."""
        self._do(lambda: setattr(self, "delay", seconds / 2))

    def cut(self) -> None:
        """Reset all connections; new ones are made as before."""
        self._do(self._reset_all)

    def half_open(self) -> None:
        """Swallow whatever comes, both ways, new connections included, with no sign of it to either side."""
        self._do(lambda: setattr(self, "swallows", True))

    def refuse(self) -> None:
        """Reset all connections and refuse new ones."""
        self._do(self._stop_listening)
        self.cut()

    def heal(self) -> None:
        """Be a good network again; what is delayed arrives now. Connections that lost bytes are reset, as by a peer
        that knows nothing of them.
        """
        self._do(self._heal)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._do(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def __enter__(self) -> Toxic:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _listen(self) -> None:
        if self._listener is None:
            loop = self._loop
            self._listener = await loop.create_server(lambda: Pair(self, loop).client, "127.0.0.1", self.port)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            for each in listener.sockets:
                self._loop.remove_reader(each.fileno())
            for _ in range(3):  # who was accepted before has begun by then; a server that is closed loses its socket
                await asyncio.sleep(0)
            listener.close()
            await asyncio.sleep(0)  # its sockets are closed in the next round

    async def _end(self) -> None:
        """Leave no socket behind, nor one that is just being accepted: its loop is about to stop."""
        await self._stop_listening()
        for _ in range(5):  # in which whatever was accepted has begun
            await asyncio.sleep(0)
            self._reset_all()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)

    async def _heal(self) -> None:
        self.delay = 0.0
        self.swallows = False
        for pair in list(self.pairs):
            if pair.lossy:
                pair.reset()
            else:
                pair.client.hurry()
                pair.server.hurry()
        await self._listen()

    def _reset_all(self) -> None:
        for pair in list(self.pairs):
            pair.reset()

    def _do(self, what: Callable[[], Any]) -> Any:
        async def done() -> Any:
            result = what()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(PATIENCE)


class Pair:
    """One connection through the proxy: its client's side and its server's side; *lossy* once bytes are gone."""

    def __init__(self, toxic: Toxic, loop: asyncio.AbstractEventLoop) -> None:
        self.toxic = toxic
        self.loop = loop
        self.lossy = False
        self.client = Side(self)
        self.server = Side(self)
        self.client.other, self.server.other = self.server, self.client
        self._connecting: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self.toxic.pairs.add(self)
        if self.toxic.swallows:
            self.lossy = self.server.gone = True  # it is never made
        else:
            self._connecting = self.loop.create_task(self._connect())

    def reset(self) -> None:
        """End both sides with a reset."""
        self.toxic.pairs.discard(self)
        if self._connecting is not None:
            self._connecting.cancel()
        for side in (self.client, self.server):
            side.reset()

    def ended(self) -> None:
        if self.client.gone and self.server.gone:
            self.toxic.pairs.discard(self)

    async def _connect(self) -> None:
        try:
            await self.loop.create_connection(lambda: self.server, "127.0.0.1", self.toxic.target)
        except OSError:
            self.reset()


class Side(asyncio.Protocol):
    """One end of a connection; what *other* receives is sent here when its time has come."""

    other: Side

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._transport: asyncio.Transport | None = None
        self._queue: deque[tuple[float, bytes | None]] = deque()  # None: close
        self._timer: asyncio.TimerHandle | None = None
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self is self._pair.client:
            self._pair.begin()
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._pass_on(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True
        self._forget()
        self._pass_on(None)
        self._pair.ended()

    def send(self, data: bytes | None) -> None:
        due = self._pair.loop.time() + self._pair.toxic.delay
        if self._queue:
            due = max(due, self._queue[-1][0])  # nothing overtakes
        self._queue.append((due, data))
        self._flush()

    def hurry(self) -> None:
        """Send now what would be sent later."""
        self._queue = deque((0.0, data) for _, data in self._queue)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flush()

    def reset(self) -> None:
        self._forget()
        if self._transport is None or self.gone:
            self.gone = True
            return
        connection = self._transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self._transport.abort()

    def _pass_on(self, data: bytes | None) -> None:
        if self._pair.toxic.swallows or self._pair.lossy:
            self._pair.lossy = True
        else:
            self.other.send(data)

    def _flush(self) -> None:
        if self._transport is None or self.gone or self._timer is not None:
            return
        now = self._pair.loop.time()
        while self._queue and self._queue[0][0] <= now:
            _, data = self._queue.popleft()
            if data is None:
                self._transport.close()
                return
            self._transport.write(data)
        if self._queue:
            self._timer = self._pair.loop.call_at(self._queue[0][0], self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._flush()

    def _forget(self) -> None:
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
