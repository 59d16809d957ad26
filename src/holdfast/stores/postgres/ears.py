"""How processes on a PostgreSQL server notice each other: notifications wake them, and locks show that they are alive.

One session per store, in a thread of its own. What it reports is a hint: where there is no session (behind a pool that
lends connections for one transaction each, or while the server is away) watches wake by the clock, and leases show who
is alive.
"""

from __future__ import annotations

import math
import os
import queue
import re
import secrets
import threading
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.checks import shown
from holdfast.clock import SystemClock
from holdfast.errors import ConfigError
from holdfast.stores.postgres.session import GAP, GRACE, PATIENCE, Session, number

_BLINK = 0.25  # seconds in which a process whose connection broke has a new one
_LOOK_ALONE = 1.0  # seconds between two looks into a mailbox where there is no session: a cancel may be waiting
_FRESH = 5.0  # seconds for which it counts which locks were seen
_LONGEST_WAIT = 86_400.0  # seconds; the system accepts no endless waits
_LONGEST_CALL = 7_000  # bytes of a notification; PostgreSQL takes 8000
_CHANNEL = re.compile(r"[a-z_][a-z0-9_]{0,62}")

# Seconds since the server started or last recovered from a crash (which resets its statistics), and the numbers of all
# locks.
_LOCKS = """
SELECT extract(epoch FROM clock_timestamp() - greatest(pg_postmaster_start_time(), stats_reset))::float8,
       (SELECT coalesce(string_agg(((classid::bigint << 32) | objid::bigint)::text, ' '), '')
        FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1 AND granted
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
FROM pg_stat_bgwriter
"""


class Ears:
    """The session of one store on *dsn*; begun when first needed, and again after `close`.

    A process that commits notifies *channel* of each of `calls(…)`: all watches wake, and the mailboxes of the owners
    named. A caller waits *patience* seconds for the session; an owner whose connection broke is back within *blink*.
    """

    def __init__(
        self, dsn: str, *, channel: str = "holdfast", patience: float = PATIENCE, blink: float = _BLINK
    ) -> None:
        if not isinstance(channel, str) or not _CHANNEL.fullmatch(channel):
            raise ConfigError(f"channel = {shown(channel)}: must be 1 to 63 small letters, digits and underscores")
        self.channel = channel
        self._dsn = dsn
        self._patience = patience
        self._blink = blink
        self._seen: _Seen | None = None
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._ears: set[Ear] = set()
        self._owners: set[str] = set()
        self._pokes: set[str] = set()
        self._tag = secrets.token_hex(4)  # marks what we send: it is no news to us
        self._rung_at = -math.inf

    @property
    def has_session(self) -> bool | None:
        """True if there is a session now; None while that is not known yet."""
        session = self._session
        return session.is_there if session is not None else None

    # -- news ----------------------------------------------------------------------------------------------------------

    def calls(self, owners: Iterable[str] = ()) -> list[str]:
        """What to notify with after a commit: all watches wake, and the mailboxes of *owners*."""
        found, call = [], self._tag
        for owner in owners:
            if len(call) + len(owner) >= _LONGEST_CALL:
                found.append(call)
                call = self._tag
            call += f" {owner}"
        return [*found, call]

    def soon(self) -> bool:
        """True if the session notifies of this commit in a moment, with others; otherwise the caller must, at once."""
        now, session = SystemClock.monotonic(), self._session
        if session is None or now - self._rung_at >= GAP:
            self._rung_at = now
            return False
        return session.ring_later(self._tag)

    def watch(self) -> Ear:
        """An ear that wakes when another process has committed anything."""
        return self._open(Ear(self, None))

    def mailbox(self, owner: str) -> Ear:
        """An ear that wakes when there is something for *owner*."""
        return self._open(Ear(self, owner))

    def poked(self, owner: str) -> bool:
        """True if there was something for *owner* since the last call, or if that cannot be told."""
        if self.has_session is not True:
            return True
        try:
            self._pokes.remove(owner)
        except KeyError:
            return False
        return True

    # -- who lives -----------------------------------------------------------------------------------------------------

    def hold(self, owner: str) -> bool:
        """Hold the lock of *owner* from now on; False if it is not held yet, as there is no session.

        It may be taken later, and be lost: `holds` tells, and so does the row of *owner* each time it is written.
        """
        with self._lock:
            session = self._begin()
            self._owners.add(owner)
        session.do(session.lock)
        return self.holds(owner)

    def holds(self, owner: str) -> bool:
        """True if others can tell by the lock that *owner* is alive."""
        session = self._session
        return session is not None and owner in session.held

    def let_go(self, owner: str) -> None:
        """Release the lock of *owner*; harmless if it is not held."""
        self._owners.discard(owner)
        self._pokes.discard(owner)
        if (session := self._session) is not None and owner in session.held:
            session.do(session.lock)

    def is_living(self, owner: str) -> bool | None:
        """True if the lock of *owner*, whose row says that it has one, is held; None if that cannot be told."""
        before = self._seen
        living = self._is_held(owner)
        # A process whose connection broke is back in a moment; only an owner that is missing twice is gone.
        if living is False and (before is None or not before.lacks(owner, SystemClock.monotonic(), self._blink)):
            SystemClock.sleep(self._blink)
            return self._is_held(owner)
        return living

    def doubtful_for(self) -> float | None:
        """Seconds until a lock that is not held means something, as owners may be coming back; None if unknown."""
        rows = self._begun().do(lambda link: link.ask(_LOCKS))
        return max(0.0, GRACE - rows[0][0]) if rows else None

    def _is_held(self, owner: str) -> bool | None:
        """True if the lock of *owner* is held now; None also if it is not held while all owners may be coming back."""
        session = self._begun()
        if self.holds(owner):
            return True
        rows = session.do(lambda link: link.ask(_LOCKS))
        if not rows:
            return None
        ((up, numbers),) = rows
        seen = _Seen(SystemClock.monotonic(), frozenset(map(int, numbers.split())))
        if number(owner) in seen.held:
            return True
        if up < GRACE or session.is_shaken:
            return None
        if self._seen is None or seen.at - self._seen.at > self._blink:
            self._seen = seen
        return False

    # -- beginning and ending ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the session and wake all ears; the next use begins another one, from which they will hear again."""
        with self._lock:
            self._owners = set()
            session, self._session = self._session, None
        self._end(session)

    def rest(self) -> None:
        """The same, unless a lock is held or a watch is open: these are new, since the store has told all to end."""
        with self._lock:
            if self._owners or any(ear.owner is None for ear in list(self._ears)):
                return
            session, self._session = self._session, None
        self._end(session)

    def after_fork(self) -> None:
        """In a forked child: the session, its locks and its ears are the parent's."""
        session = self._session
        self._reset()
        if session is not None:
            session.abandon()

    def _open(self, ear: Ear) -> Ear:
        with self._lock:
            self._begin()
            self._ears.add(ear)
        return ear

    def _begun(self) -> Session:
        with self._lock:
            return self._begin()

    def _begin(self) -> Session:
        """The session, begun if there is none; the caller holds `_lock`."""
        if self._session is None:
            session = Session(self._dsn, self.channel, self._owners, self._heard, self._patience)
            session.start()
            self._session = session
        return self._session

    def _end(self, session: Session | None) -> None:
        for ear in list(self._ears):
            ear.wake()
        if session is not None:
            session.end()

    def _heard(self, calls: list[str] | None) -> None:
        """Tell the ears that *calls* are for, all of them if it is None: then anything may have happened."""
        words = [] if calls is None else [call.split() for call in calls]
        foreign = [each for each in words if each[:1] != [self._tag]]
        called = {owner for each in foreign for owner in each[1:]} & self._owners
        self._pokes.update(self._owners if calls is None else called)
        for ear in list(self._ears):
            if calls is None or (foreign and (ear.owner is None or ear.owner in called)):
                ear.tell()


class Ear:
    """Tells one thread when to look; the interface of `stores.watch.Watch`. Nothing here takes a lock."""

    def __init__(self, ears: Ears, owner: str | None) -> None:
        self.owner = owner
        self._of = ears
        self._pid = os.getpid()
        self._closed = self._news = self._woken = False
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._told_at = SystemClock.monotonic()

    @property
    def closed(self) -> bool:
        """True if it will report nothing more; always so in a forked child."""
        return self._closed or self._pid != os.getpid()

    def wait(self, timeout: float | None) -> bool:
        """Block until there may be news since the last wait: True. False at the *timeout*, when woken or closed."""
        end = math.inf if timeout is None else SystemClock.monotonic() + timeout
        while not self.closed:
            now = SystemClock.monotonic()
            due = self._told_at + self._pause()
            if self._news or now >= due:
                self._news = False  # before the caller looks: what comes from now on is news again
                self._told_at = now
                return True
            if self._woken or now >= end:
                self._woken = False
                return False
            try:
                self._rings.get(timeout=min(end - now, due - now, _LONGEST_WAIT))
            except queue.Empty:
                continue
        return False

    def tell(self) -> None:
        """Wake `wait`, as there may be news."""
        self._news = True
        self._ring()

    def wake(self) -> None:
        """Make `wait` return False: the one in progress, otherwise the next."""
        self._woken = True
        self._ring()

    def close(self) -> None:
        """End, and wake the thread that waits; harmless when it has ended."""
        self._closed = True
        self._of._ears.discard(self)
        self._ring()

    def _ring(self) -> None:
        if self._pid == os.getpid() and self._rings.empty():
            self._rings.put(None)

    def _pause(self) -> float:
        session = self._of._session
        if session is None:
            return math.inf
        return session.pause if self.owner is None or session.is_there else min(session.pause, _LOOK_ALONE)


class _Seen(NamedTuple):
    """The locks that were held at a moment."""

    at: float
    held: frozenset[int]

    def lacks(self, owner: str, now: float, blink: float) -> bool:
        """True if the lock of *owner* was missing then, which is at least *blink* and at most `_FRESH` seconds ago."""
        return number(owner) not in self.held and blink <= now - self.at <= _FRESH
