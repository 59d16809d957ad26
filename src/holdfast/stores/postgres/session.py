"""The one connection of a store that lasts, and the thread that keeps it: listens, locks, reconnects when it is lost.

Only that thread touches the connection: other threads hand it a function to call, and wait a second at most.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import queue
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from holdfast.clock import SystemClock
from holdfast.errors import printable
from holdfast.stores.postgres.link import Limits, Link, ServerError

LIMITS = Limits(connecting=5.0, answer=3.0, gone=10.0)
POLL = 0.25  # seconds between two looks at a store behind a pool, where there is no session
GRACE = 6.0  # seconds for all to come back after the server was away; until then a lock not held means nothing
_LOOK_LOST = 5.0  # seconds between two looks while the server is away: a look may well end in an error then
_LOOK = 10.0  # seconds between two looks without news: a process may die between its commit and its notification
_BEAT = 3.0  # seconds of silence until we ask whether the server is still there
PATIENCE = 1.0  # seconds that a caller waits for the thread
GAP = 0.005  # seconds between two notifications of a process that commits all the time
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 5.0

_LOCK = "SELECT pg_try_advisory_lock_shared($1::bigint)"
_UNLOCK = "SELECT pg_advisory_unlock_shared($1::bigint)"
_RING = "SELECT pg_notify($1, $2)"
# The server must not end a session because it is idle, but must soon end one whose host is gone.
_STAY = """
SELECT pg_catalog.set_config(name, value, false)
FROM (VALUES ('search_path', 'pg_catalog'), ('idle_session_timeout', '0'),
             ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'))
    AS wanted (name, value)
JOIN pg_catalog.pg_settings USING (name)
"""

_log = logging.getLogger("holdfast")


class Session:
    """A session and its thread; *heard* is called with the notifications that come, or None if some may have been lost.

    There is no session behind a pool, nor while the server is away: then `do` returns None and `ring_later` False.
    """

    def __init__(
        self, dsn: str, channel: str, owners: set[str], heard: Callable[[list[str] | None], object], patience: float
    ) -> None:
        self.is_there: bool | None = None  # None while that is not known yet
        self.held: frozenset[str] = frozenset()
        self.pause = _LOOK_LOST  # seconds that watches wait between two looks
        self._dsn = dsn
        self._channel = channel
        self._owners = owners
        self._heard = heard
        self._patience = patience
        self._wanted: deque[_Errand] = deque()
        self._lost_once = self._ended = False
        self._since = math.inf  # when the connection was made
        self._call = ""
        self._refused = ""  # the last error for which the server refused something
        self._rings_at = math.inf  # when to notify other processes of commits
        self._link: Link | None = None
        self._waker, self._stop = Waker(), Waker()  # there is something to do; the session is to end
        self._thread = threading.Thread(target=self._serve, name="holdfast-ears", daemon=True)

    def start(self) -> None:
        """Start the thread; `is_there` tells later whether there is a session."""
        self._thread.start()

    def end(self) -> None:
        """End the session; a thread that waits for a host name to be resolved ends after that."""
        self._ended = True
        self._stop.wake()
        self._waker.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(PATIENCE)

    def abandon(self) -> None:
        """In a forked child: let go of the connection, which is the parent's, even if it was only being made."""
        self._ended = True
        if self._link is not None:
            self._link.abandon()

    @property
    def is_shaken(self) -> bool:
        """True if the session was lost and is not back for `GRACE` seconds yet: others may have lost theirs, too."""
        return self._lost_once and SystemClock.monotonic() - self._since < GRACE

    def do(self, fn: Callable[[Link], Any]) -> Any:
        """Call *fn* with the connection, in its thread, and return its result; None without a session or answer.

        The caller waits for *patience* seconds at most.
        """
        if self.is_there is False or self._ended:
            return None
        errand = _Errand(fn, queue.SimpleQueue())
        self._wanted.append(errand)
        self._waker.wake()
        try:
            return errand.answer.get(timeout=self._patience)
        except queue.Empty:
            return None

    def ring_later(self, call: str) -> bool:
        """Notify with *call* in a moment, once for all requests until then; False if there is no session."""
        if not self.is_there or self._ended:
            return False
        if self._rings_at == math.inf:
            self._call, self._rings_at = call, SystemClock.monotonic() + GAP
            self._waker.wake()
        return True

    def lock(self, link: Link) -> None:
        """Take the locks of all owners and release all others; called in the thread."""
        held = set(self.held)
        for owner in held - self._owners:
            link.ask(_UNLOCK, number(owner))
            held.discard(owner)
            self.held = frozenset(held)
        for owner in set(self._owners) - held:
            if link.ask(_LOCK, number(owner)) == [(True,)]:
                held.add(owner)
                self.held = frozenset(held)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        pause, turn = _FIRST_PAUSE, 0
        try:
            while not self._ended:
                begun = SystemClock.monotonic()
                try:
                    self._attend(turn)
                    return
                except Exception as error:
                    self._lose(error)
                if SystemClock.monotonic() - begun > _LAST_PAUSE + _BEAT:  # the connection was good for a while
                    pause = _FIRST_PAUSE
                self._rest(pause)
                pause, turn = min(2 * pause, _LAST_PAUSE), turn + 1
        finally:
            self.is_there = False
            self.held = frozenset()
            self._hang_up()
            self._refuse()

    def _attend(self, turn: int) -> None:
        """Connect, and listen until the session is to end."""
        link = self._link = Link(self._dsn, limits=LIMITS, turn=turn, stop=self._stop.fileno())
        link.connect()
        if link.pooled:
            self._be_pooled()
            return
        link.ask(_STAY)
        link.ask(f'LISTEN "{self._channel}"')
        self.lock(link)
        self.pause, self._since, self.is_there = _LOOK, SystemClock.monotonic(), True
        self._heard(None)
        self._listen(link)

    def _listen(self, link: Link) -> None:
        """Do what other threads ask for, pass on notifications, and check now and then that the server is there."""
        spoken = SystemClock.monotonic()
        while not self._ended:
            while self._wanted:
                with self._though_refused(link):
                    self._wanted.popleft().run(link)
                spoken = SystemClock.monotonic()
            if SystemClock.monotonic() - spoken >= _BEAT:
                self.lock(link)
                link.ask("SELECT 1")
                spoken = SystemClock.monotonic()
            if SystemClock.monotonic() >= self._rings_at:
                self._ring(link)
            if calls := link.heard():
                spoken = SystemClock.monotonic()
                self._heard(calls)
            else:
                self._waker.wait(min(spoken + _BEAT, self._rings_at) - SystemClock.monotonic(), link.fileno())
                link.check()
        if self._rings_at < math.inf:
            self._ring(link)  # it is sent, though its answer is not waited for

    def _ring(self, link: Link) -> None:
        self._rings_at = math.inf  # first: a commit from now on gets another notification
        with self._though_refused(link):
            link.ask(_RING, self._channel, self._call)

    @contextlib.contextmanager
    def _though_refused(self, link: Link) -> Iterator[None]:
        """Log what the server refuses to do, and go on: if the session ended, its locks would be lost, too."""
        try:
            yield
        except ServerError as error:
            if link.is_broken:
                raise
            before, self._refused = self._refused, printable(str(error), 500)
            if self._refused != before:
                _log.warning("the session with the store goes on without what it asked for: %s", self._refused)

    def _be_pooled(self) -> None:
        """Do without a session: behind a pool no notification comes, and a lock would belong to the next client."""
        self._hang_up()
        _log.info("the store is behind a connection pool: it is looked at every %g s, and leases tell who lives", POLL)
        self.pause, self.is_there = POLL, False
        self._refuse()  # the threads that asked before that was known
        self._heard(None)
        while not self._ended:
            self._rest(_LAST_PAUSE)

    def _lose(self, error: Exception) -> None:
        if self._ended:
            return
        if not self._lost_once or self.is_there:
            said = printable(str(error), 500)
            _log.warning("the session with the store was lost and is sought again: %s", said)
        self._lost_once, self._since = True, math.inf
        self.pause, self.is_there, self.held = _LOOK_LOST, False, frozenset()
        self._hang_up()
        self._refuse()

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()

    def _rest(self, seconds: float) -> None:
        """Wait until the time is over or the session is to end; threads that ask meanwhile get None."""
        end = SystemClock.monotonic() + seconds
        while not self._ended and (left := end - SystemClock.monotonic()) > 0:
            self._waker.wait(left)
            self._refuse()

    def _refuse(self) -> None:
        while self._wanted:
            self._wanted.popleft().answer.put(None)


class Waker:
    """A pipe to wake a thread that waits for the network; closed with the last reference to it. Takes no lock."""

    def __init__(self) -> None:
        self._fds = os.pipe()
        for fd in self._fds:
            os.set_blocking(fd, False)

    def fileno(self) -> int:
        """The descriptor that can be read once the waker was woken."""
        return self._fds[0]

    def wake(self) -> None:
        """Wake the thread: now, or when it next waits."""
        with contextlib.suppress(BlockingIOError):  # full of wakes that were not read yet
            os.write(self._fds[1], b"\0")

    def wait(self, seconds: float, *others: int) -> None:
        """Wait until woken, until one of *others* can be read, or until the time is over; wakes are used up."""
        waiting = select.poll()
        for fd in (self.fileno(), *others):
            waiting.register(fd, select.POLLIN)
        if self.fileno() in dict(waiting.poll(1000 * max(0.0, seconds))):
            os.read(self.fileno(), 4096)

    def __del__(self) -> None:
        for fd in getattr(self, "_fds", ()):
            os.close(fd)


class _Errand(NamedTuple):
    """A function to call with the connection, and the queue in which its result is waited for."""

    fn: Callable[[Link], Any]
    answer: queue.SimpleQueue[Any]

    def run(self, link: Link) -> None:
        try:
            self.answer.put(self.fn(link))
        except BaseException:
            self.answer.put(None)
            raise


def number(owner: str) -> int:
    """The 64-bit number of the lock of *owner*."""
    digest = hashlib.blake2b(owner.encode(errors="surrogatepass"), digest_size=8, person=b"holdfast").digest()
    return int.from_bytes(digest, "big", signed=True)
