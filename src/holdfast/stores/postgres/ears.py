"""How processes on one PostgreSQL notice each other: notifications wake them, and a lock tells that they live.

One session a store, in a thread of its own. What it tells is a hint: where there is no session (a pool that lends
connections by the transaction, a server that is away) watches say "look" by the clock, and leases tell who lives.
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

_BLINK = 0.25  # seconds in which one whose connection broke has a new one
_LOOK_ALONE = 1.0  # seconds between two looks into a mailbox where there is no session: a cancel is waited for
_FRESH = 5.0  # seconds for which what was seen of the locks is worth something
_LONGEST_WAIT = 86_400.0  # seconds; the system takes no endless ones
_LONGEST_CALL = 7_000  # bytes; PostgreSQL takes 8000
_CHANNEL = re.compile(r"[a-z_][a-z0-9_]{0,62}")

# How long the server has been up, also since it last recovered from a crash (which empties its statistics); and the
# numbers of all locks.
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

    Who commits notifies *channel* of each of `calls(…)`: all watches wake, and the mailboxes of those called. An answer
    is waited for no longer than *patience*; one whose connection broke is back within *blink*.
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
        self._tag = secrets.token_hex(4)  # what we send ourselves is no news to us
        self._rung_at = -math.inf

    @property
    def has_session(self) -> bool | None:
        """Whether there is one now; None while that is not known yet."""
        session = self._session
        return session.is_there if session is not None else None

    # -- news ----------------------------------------------------------------------------------------------------------

    def calls(self, owners: Iterable[str] = ()) -> list[str]:
        """What to notify with after a commit: everybody looks, and *owners* find something in their mailbox."""
        found, call = [], self._tag
        for owner in owners:
            if len(call) + len(owner) >= _LONGEST_CALL:
                found.append(call)
                call = self._tag
            call += f" {owner}"
        return [*found, call]

    def soon(self) -> bool:
        """Whether what was committed just now is told in a moment, with more; else it is to be told at once."""
        now, session = SystemClock.monotonic(), self._session
        if session is None or now - self._rung_at >= GAP:
            self._rung_at = now
            return False
        return session.ring_later(self._tag)

    def watch(self) -> Ear:
        """Wakes when anything was committed by another."""
        return self._open(Ear(self, None))

    def mailbox(self, owner: str) -> Ear:
        """Wakes when there is something for *owner*."""
        return self._open(Ear(self, owner))

    def poked(self, owner: str) -> bool:
        """Whether there was something for *owner* since this was last asked; true where that cannot be told."""
        if self.has_session is not True:
            return True
        try:
            self._pokes.remove(owner)
        except KeyError:
            return False
        return True

    # -- who lives -----------------------------------------------------------------------------------------------------

    def hold(self, owner: str) -> bool:
        """Hold the lock of *owner* from now on; false if it is not held yet, as there is no session.

        It may be held later, and be lost: `holds` tells, and whoever writes down that *owner* lives writes that, too.
        """
        with self._lock:
            session = self._begin()
            self._owners.add(owner)
        session.do(session.lock)
        return self.holds(owner)

    def holds(self, owner: str) -> bool:
        """Whether others can tell by the lock that *owner* lives."""
        session = self._session
        return session is not None and owner in session.held

    def let_go(self, owner: str) -> None:
        """Hold the lock of *owner* no longer; harmless if it is not held."""
        self._owners.discard(owner)
        self._pokes.discard(owner)
        if (session := self._session) is not None and owner in session.held:
            session.do(session.lock)

    def is_living(self, owner: str) -> bool | None:
        """Whether the lock of *owner*, who said that it has one, is held; None if that cannot be told."""
        before = self._seen
        living = self._is_held(owner)
        # One whose connection broke is back in a moment; only who is missing twice is gone.
        if living is False and (before is None or not before.lacks(owner, SystemClock.monotonic(), self._blink)):
            SystemClock.sleep(self._blink)
            return self._is_held(owner)
        return living

    def doubtful_for(self) -> float | None:
        """Seconds until a lock that is not held means something, as all may be coming back; None if nobody can tell."""
        rows = self._begun().do(lambda link: link.ask(_LOCKS))
        return max(0.0, GRACE - rows[0][0]) if rows else None

    def _is_held(self, owner: str) -> bool | None:
        """Whether it is held now; None also if it is not, and all may just be coming back."""
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
        """End the session and wake all who wait; the next use begins another one, from which they will hear again."""
        with self._lock:
            self._owners = set()
            session, self._session = self._session, None
        self._end(session)

    def rest(self) -> None:
        """The same, unless somebody holds a lock or watches: who does has come since all were told to leave."""
        with self._lock:
            if self._owners or any(ear.owner is None for ear in list(self._ears)):
                return
            session, self._session = self._session, None
        self._end(session)

    def after_fork(self) -> None:
        """In a forked child: the session, its locks and those who listen are the parent's."""
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
        """The session, for whoever has the lock."""
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
        """Tell whoever is called; None if anything may have happened."""
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
        """Whether it will tell nothing more; in a forked child it will not."""
        return self._closed or self._pid != os.getpid()

    def wait(self, timeout: float | None) -> bool:
        """Block until there may be news since the last wait: then true. False at the *timeout*, woken and closed."""
        end = math.inf if timeout is None else SystemClock.monotonic() + timeout
        while not self.closed:
            now = SystemClock.monotonic()
            due = self._told_at + self._pause()
            if self._news or now >= due:
                self._news = False  # before whoever waited looks: what comes from now on is news again
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
        """There may be news."""
        self._news = True
        self._ring()

    def wake(self) -> None:
        """Let `wait` return false: the one that runs now, else the next."""
        self._woken = True
        self._ring()

    def close(self) -> None:
        """End, and let whoever waits go; harmless when it has ended."""
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
        """Whether that of *owner* was missing already, not just now and not long ago."""
        return number(owner) not in self.held and blink <= now - self.at <= _FRESH
