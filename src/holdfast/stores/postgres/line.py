"""The session of `ears` and the thread that keeps it: connects, listens, locks, and begins again when it is lost.

Nobody else touches the session: who wants something of it has it done in the thread, and waits no longer than a second.
"""

from __future__ import annotations

import hashlib
import logging
import math
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.clock import SystemClock
from holdfast.stores.postgres.session import Session, Waker

POLL = 0.25  # seconds between two looks where there is no session
GRACE = 6.0  # seconds that all have to come back after the server was away, before a lock not held means anything
_LOOK_LOST = 5.0  # while the server is away: those who look then may well be told so by an error
_LOOK = 10.0  # although nothing was heard: whoever dies between its commit and its notification tells nobody
_BEAT = 3.0  # seconds of silence until we ask whether there is somebody
PATIENCE = 1.0  # seconds that a caller waits for our thread
GAP = 0.005  # seconds between two notifications of a process that commits all the time
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 5.0

_LOCK = "SELECT pg_try_advisory_lock_shared($1::bigint)"
_UNLOCK = "SELECT pg_advisory_unlock_shared($1::bigint)"
_RING = "SELECT pg_notify($1, $2)"
# A session that is idle is none to be ended, and one whose host is gone is soon to be.
_STAY = """
SELECT set_config(name, value, false)
FROM (VALUES ('tcp_keepalives_idle', '10'), ('tcp_keepalives_interval', '5'), ('tcp_keepalives_count', '3'),
             ('idle_session_timeout', '0')) AS wanted (name, value)
JOIN pg_settings USING (name)
"""

_log = logging.getLogger("holdfast")


class Line:
    """The thread and its session, from its beginning to its end; *heard* is told what comes, None that all may have."""

    def __init__(
        self, dsn: str, channel: str, owners: set[str], heard: Callable[[list[str] | None], object], patience: float
    ) -> None:
        self.has_session: bool | None = None
        self.held: frozenset[str] = frozenset()
        self.pause = _LOOK_LOST  # of watches between two looks
        self._dsn = dsn
        self._channel = channel
        self._owners = owners
        self._heard = heard
        self._patience = patience
        self._waker = Waker()
        self._wanted: deque[_Errand] = deque()
        self._lost_once = self._ended = False
        self._since = math.inf  # when the session began
        self._call = ""
        self._rings_at = math.inf  # when others are to be told of what was committed
        self._session = Session(dsn, self._waker, self._is_ended)
        self._thread = threading.Thread(target=self._serve, name="holdfast-ears", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """End the session; a thread that waits for a name to be resolved ends after it."""
        self._ended = True
        self._waker.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(PATIENCE)

    def abandon(self) -> None:
        self._ended = True
        self._session.abandon()

    @property
    def is_shaken(self) -> bool:
        """Whether there was a loss not long ago, that others may have had, too."""
        return self._lost_once and SystemClock.monotonic() - self._since < GRACE

    def do(self, fn: Callable[[Session], Any]) -> Any:
        """What *fn* makes of the session, in its thread; None if there is none, or no answer in time."""
        if self.has_session is False or self._ended:
            return None
        errand = _Errand(fn, queue.SimpleQueue())
        self._wanted.append(errand)
        self._waker.wake()
        try:
            return errand.answer.get(timeout=self._patience)
        except queue.Empty:
            return None

    def ring_later(self, call: str) -> bool:
        """Notify with *call*, one for all who ask within a moment; false if there is no session to do it with."""
        if not self.has_session or self._ended:
            return False
        if self._rings_at == math.inf:
            self._call, self._rings_at = call, SystemClock.monotonic() + GAP
            self._waker.wake()
        return True

    def lock(self, session: Session) -> None:
        """Hold the locks of all owners and no others; in the thread."""
        held = set(self.held)
        for owner in held - self._owners:
            session.ask(_UNLOCK, number(owner))
            held.discard(owner)
            self.held = frozenset(held)
        for owner in set(self._owners) - held:
            if session.ask(_LOCK, number(owner)) == [("t",)]:
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
                if SystemClock.monotonic() - begun > _LAST_PAUSE + _BEAT:  # it was good for a while
                    pause = _FIRST_PAUSE
                self._rest(pause)
                pause, turn = min(2 * pause, _LAST_PAUSE), turn + 1
        finally:
            self.has_session = False
            self.held = frozenset()
            self._session.close()
            self._refuse()

    def _attend(self, turn: int) -> None:
        """Connect, and listen until it is over."""
        session = self._session
        session.connect(turn)
        if not session.is_direct:
            self._be_pooled()
            return
        session.ask(_STAY)
        session.ask(f'LISTEN "{self._channel}"')
        self.lock(session)
        self.pause, self._since, self.has_session = _LOOK, SystemClock.monotonic(), True
        self._heard(None)
        spoken = SystemClock.monotonic()
        while not self._ended:
            while self._wanted:
                self._wanted.popleft().run(session)
                spoken = SystemClock.monotonic()
            if SystemClock.monotonic() - spoken >= _BEAT:
                self.lock(session)
                session.ask("SELECT 1")
                spoken = SystemClock.monotonic()
            now = SystemClock.monotonic()
            if now >= self._rings_at:
                self._ring(session)
            if calls := session.hear(max(0.0, min(spoken + _BEAT, self._rings_at) - now)):
                spoken = SystemClock.monotonic()
                self._heard(calls)
        if self._rings_at < math.inf:
            self._ring(session)

    def _ring(self, session: Session) -> None:
        self._rings_at = math.inf  # first: what is committed from now on has another one
        session.ask(_RING, self._channel, self._call)

    def _be_pooled(self) -> None:
        """Nobody would hear us, and a lock would be whoever's connection it is next."""
        self._session.close()
        _log.info("the store is behind a connection pool: it is looked at every %g s, and leases tell who lives", POLL)
        self.pause, self.has_session = POLL, False
        self._refuse()  # who asked before that was known
        self._heard(None)
        while not self._ended:
            self._rest(_LAST_PAUSE)

    def _lose(self, error: Exception) -> None:
        if self._ended:
            return
        if not self._lost_once or self.has_session:
            _log.warning("the session with the store was lost and is sought again: %s", error)
        self._lost_once, self._since = True, math.inf
        self.pause, self.has_session, self.held = _LOOK_LOST, False, frozenset()
        self._session.close()
        self._refuse()

    def _rest(self, seconds: float) -> None:
        """Until the time is over or this has ended; who wants something meanwhile is told that there is no session."""
        end = SystemClock.monotonic() + seconds
        while not self._ended and (left := end - SystemClock.monotonic()) > 0:
            self._waker.wait(left)
            self._refuse()

    def _refuse(self) -> None:
        while self._wanted:
            self._wanted.popleft().answer.put(None)

    def _is_ended(self) -> bool:
        return self._ended


class _Errand(NamedTuple):
    """Something to be done with the session, and where its result is waited for."""

    fn: Callable[[Session], Any]
    answer: queue.SimpleQueue[Any]

    def run(self, session: Session) -> None:
        try:
            self.answer.put(self.fn(session))
        except BaseException:
            self.answer.put(None)
            raise


def number(owner: str) -> int:
    """The 64-bit number of the lock of *owner*."""
    digest = hashlib.blake2b(owner.encode(errors="surrogatepass"), digest_size=8, person=b"holdfast").digest()
    return int.from_bytes(digest, "big", signed=True)
