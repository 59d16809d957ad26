"""A store's tables on a PostgreSQL server: how they are reached, written and read. The statements are in `sql/`.

Any number of processes write at once. What is at hand of a run is written only if nobody else has written it meanwhile
(its version says so); else the group is made again. Nothing is left with the server between two transactions, but for
statements that are ready for the next time, and those not behind a pool.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from holdfast import checks
from holdfast.clock import Clock, SystemClock
from holdfast.errors import StoreError
from holdfast.history import RunHeader
from holdfast.stores import rows as columns
from holdfast.stores.database import Again, Lost
from holdfast.stores.ledger import EventRow, Live, MemoRow, OwnerRow
from holdfast.stores.neighbours import News
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.ears import Ears
from holdfast.stores.postgres.link import Broken, Link, ServerError
from holdfast.stores.postgres.locks import ServerLocks
from holdfast.stores.postgres.readers import Readers
from holdfast.stores.postgres.schema import prepare, statements
from holdfast.stores.postgres.timing import ServerClock
from holdfast.stores.postgres.trouble import explained, is_again, is_doubtful, is_for_all, is_gone, is_locked
from holdfast.stores.postgres.writing import Group
from holdfast.stores.rows import pack_header
from holdfast.stores.trouble import errors_of

HELD = 8.0  # seconds to wait for what another process holds: a lease outlives that
HELD_AGAIN = 1.0  # the same when one was not let go of: what spoils a group is being found, and others want to write
STOPPED = 5.0  # seconds after which one that holds something and does not go on is ended for it
BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

T = TypeVar("T")
_log = logging.getLogger("holdfast")


class PostgresDatabase:
    """The tables at *address*; connected to when they are first needed."""

    def __init__(self, address: Address, ears: Ears | None = None) -> None:
        self.address = address
        self.path: str | None = address.name
        self.name = address.name
        self.url = address.url
        self.crowded = True
        self.ears = ears or Ears(address.session, channel=address.schema)
        self._sql = statements(address.schema)
        self._is_ready = False  # the tables are there, as this version knows them
        self._clock = ServerClock(self._measured)
        self._write: Link | None = None
        self._readers = Readers(lambda: self._connect(reads=True))
        self._abandoned: list[Link] = []
        self._contended: list[int] = []  # the runs of a group that is to be made again
        self._group: Group | None = None
        self._impatient_until = 0.0
        self._secret: bytes | None = None  # as it was when a run was last looked for
        self._held = 0  # times, since we are impatient, that something was not let go of
        self._tokens = random.Random(os.urandom(32))  # to ask the system for each takes ten microseconds
        self.alone: contextlib.AbstractContextManager[object] = contextlib.nullcontext()  # readers need not wait

    # -- time, and others who use it -----------------------------------------------------------------------------------

    def clock(self, given: Clock | None) -> Clock:
        """The server's clock, unless somebody brings one of their own; a host's is not to be trusted."""
        return self._clock if given is None or type(given) is SystemClock else checks.clock(given)

    def locks(self) -> ServerLocks:
        """The locks of all who use it."""
        return ServerLocks(self.ears, self.fetch)

    def watch(self) -> News:
        """Wakes when somebody else has written."""
        return self.ears.watch()

    def _measured(self) -> float:
        with errors_of(self):
            return self._readers.use(lambda link: link.offset())

    # -- a transaction -------------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Begin to write; what is at hand is never known to be outdated before it is written."""
        link = self._fresh_writer()
        self._group = Group(link, self._sql, self._tokens.getrandbits(64) - 2**63, self._patience(link))
        if self._contended:
            self._group.lock(self._contended)
            self._contended = []
        return False

    def writing(self) -> Link:
        """What to write with, in the transaction that was begun."""
        group = self._current()
        group.hurry()
        return group.speak()

    def commit(self) -> None:
        """On disk when it returns; whoever listens is told in the same breath."""
        group = self._current()
        if group.is_empty:
            return
        link = group.link
        try:
            group.commit()
            tells = group.is_news and (bool(group.to_wake) or not self.ears.soon())
            if calls := self.ears.calls(group.to_wake) if tells else []:
                if link.pooled:  # of two batches, the pool may give the second answer to somebody else
                    link.finish()
                link.executemany(self._sql["ring"], [(self.ears.channel, call) for call in calls])
                link.end_batch()
            link.finish(left=1 if calls else 0)
            if link.pooled:
                self._check(link)
        except (ServerError, Broken) as error:
            if is_doubtful(error):
                link.close()
                raise Lost(lambda: self._was_committed(group), str(error)) from error
            raise
        self._group = None

    def is_committed(self) -> bool:
        """Whether a commit that was cut short was made."""
        if (group := self._group) is None:
            return True
        self._drop(group.link)  # some of its answers may be lost
        with errors_of(self):
            return self._was_committed(group)

    def rollback(self, *, afresh: bool) -> None:
        """As if nothing had been written; *afresh* on a new connection."""
        group, self._group = self._group, None
        if group is None:
            return
        self._contended = [] if afresh else group.keys
        link = group.link
        try:
            if afresh or link.is_broken:
                self._drop(link)
            elif group.has_begun:
                link.clear()
                link.ask("ROLLBACK")
        except (ServerError, Broken):
            self._drop(link)

    def give_back(self, most: int) -> int:
        """The server sees to that itself."""
        return 0

    def _patience(self, link: Link) -> str | None:
        """Milliseconds for what others hold, where it is not what the connection was told."""
        if SystemClock.monotonic() < self._impatient_until:
            return _milliseconds(HELD_AGAIN / min(self._held, 10))
        return _milliseconds(HELD) if link.pooled else None

    def _fresh_writer(self) -> Link:
        """The connection to write with, about which nothing speaks against its being alive."""
        for _ in range(2):
            link = self._writer()
            try:
                self._check(link)
                if not self._clock.is_fresh:
                    self._clock.set(link.offset())
                return link
            except (ServerError, Broken) as error:
                self._drop(link)
                trouble = error
        raise trouble

    def _check(self, link: Link) -> None:
        try:
            link.check()
        except ServerError as error:  # of what was left unread
            _log.warning("%s: others could not be told to look: %s", self.name, error)

    def _was_committed(self, group: Group) -> bool:
        """Find out whether *group* was written, on a connection that works.

        In a transaction that is to write the same again, what is found holds until that is over: the run that is looked
        at is locked, and what arrives only then finds that another has written to it.
        """
        with errors_of(self):
            for _ in range(2):
                link = self._writer()
                try:
                    if self._group is not None and self._group is not group:
                        self._group.hurry()
                    return group.is_written(link)
                except (ServerError, Broken) as error:
                    self._drop(link)
                    if not (is_gone(error) or (is_locked(error) and self._end_stopped())):
                        raise
        raise StoreError(f"{self.name}: the connection broke again and again")

    def _current(self) -> Group:
        if self._group is None:
            raise StoreError(f"{self.name}: nothing was begun")
        return self._group

    # -- tables --------------------------------------------------------------------------------------------------------

    def load(self, run_id: str) -> Live | None:
        """A run as it is now."""
        try:
            (row,) = self._current().ask("load", run_id).fetchall()
        except UnicodeEncodeError:  # nothing of that name can have been stored
            return None
        self._secret = row[10] and bytes.fromhex(row[10])
        if row[0] is None:
            return None
        live = columns.live(row[:9])
        live.version = row[9]
        return live

    def new_keys(self, most: int) -> Iterator[int]:
        """Keys for new runs."""
        return iter([key for (key,) in self._current().ask("new_keys", most).fetchall()])

    def write(self, lives: Iterable[Live], rows: list[EventRow], memos: list[MemoRow]) -> None:
        """Write what has changed of *lives*, and the new *rows* and *memos*."""
        self._current().write(lives, rows, memos)

    def confirm(self, lives: Iterable[Live]) -> None:
        """Have the transaction fail if somebody else has written to *lives*."""
        self._current().confirm(lives)

    def tell(self, owners: Iterable[str]) -> None:
        """Have *owners* woken with the commit."""
        self._current().to_wake.update(owners)

    def change_header(self, run: int, header: RunHeader) -> None:
        """Write the header of a run that is there anew."""
        self._put("change_header", pack_header(header), run)

    def forget_memos(self, run: int) -> None:
        """Delete the exact results of a run."""
        self._put("forget_memos", run)

    def owner(self, owner: str) -> OwnerRow | None:
        """A process that has, or had, runs."""
        row = self._current().ask("owner", owner).fetchone()
        return OwnerRow(*row) if row is not None else None

    def keep_owner(self, row: OwnerRow) -> None:
        """Write down that a process lives, and until when at least."""
        self._current().ask("keep_owner", *row)  # no news to anybody

    def drop_owner(self, owner: str) -> None:
        """Forget a process, and what it shows of its tools."""
        for name in ("drop_owner", "drop_process", "drop_tools_of_process", "drop_details_of_process"):
            self._put(name, owner)

    def drop_old_owners(self, now: int) -> None:
        """Forget the processes whose lease is over and that no run waits for."""
        self._current().ask("drop_old_owners", now)

    def ask(self, name: str, *parameters: object) -> list[tuple[Any, ...]]:
        """All rows of the statement *name*, as this transaction sees them."""
        return self._current().ask(name, *parameters).fetchall()

    def pick(self, name: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The same, of runs that no other transaction has picked."""
        return self.writing().execute(f"{self._sql[name]} FOR UPDATE SKIP LOCKED", parameters).fetchall()

    def hold_queue(self) -> None:
        """Let nobody else take a run until this transaction is over."""
        self._current().hurry()
        self._current().ask("hold_queue")

    def _put(self, name: str, *parameters: object) -> None:
        self._current().speak().execute(self._sql[name], parameters)

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is anything to read yet."""
        with errors_of(self):
            return self._read(lambda link: True, create=False) is True

    def fetch(self, name: str, *parameters: object) -> list[tuple[Any, ...]]:
        """All rows of the statement *name*; none while there are no tables."""
        with errors_of(self):
            try:
                return self._read(lambda link: self._asked(link, name, *parameters), create=False) or []
            except UnicodeEncodeError:  # nothing of that name can have been stored
                return []

    def meta(self, name: str) -> Any:
        """A fact about the store itself."""
        if name == "secret" and self._secret is not None:
            return self._secret
        with errors_of(self):
            rows = self._read(lambda link: self._asked(link, "meta", name), create=True)
        if not rows:
            return None
        return bytes.fromhex(rows[0][0]) if name == "secret" else rows[0][0]

    def sql(self, name: str) -> str:
        """The text of a statement."""
        return self._sql[name]

    @contextlib.contextmanager
    def at_one_moment(self) -> Iterator[Link]:
        """A connection that sees everything as it is now, whatever is written meanwhile."""
        with errors_of(self):
            link = self._connect()
        try:
            with errors_of(self):
                link.execute(BEGIN_READING)
            yield link
        finally:
            link.close()

    def explained(self, error: BaseException) -> Exception | None:
        """What an error of the database means, if it is one; of a write that others or the network spoilt: again."""
        if isinstance(error, ServerError | Broken) and self._group is not None and error.link is self._group.link:
            if is_gone(error):
                self._group.link.close()
                return Again(str(error))
            if is_again(error):
                return Again(str(error))
            if is_locked(error):
                if self._end_stopped():
                    return Again(str(error))
                self._lose_patience()
        return explained(self.name, error)

    def concerns_all(self, error: BaseException) -> bool:
        """Whether any write would fail like that, whatever it is."""
        return is_for_all(error)

    def _lose_patience(self) -> None:
        """The more is not let go of, the less we wait for the next."""
        now = SystemClock.monotonic()
        if now >= self._impatient_until:
            self._impatient_until, self._held = now + HELD, 0
        self._held += 1

    # -- connections ---------------------------------------------------------------------------------------------------

    def _read(self, fn: Callable[[Link], T], *, create: bool) -> T | None:
        """What *fn* gives on a connection to read with; None while there are no tables and *create* is not said."""

        def read(link: Link) -> T | None:
            if not self._has_tables(link, create=create):
                return None
            if not self._clock.is_fresh:
                self._clock.set(link.offset())
            return fn(link)

        return self._readers.use(read)

    def _asked(self, link: Link, name: str, *parameters: object) -> list[tuple[Any, ...]]:
        if link.pooled:
            link.execute(self._sql["wait_at_most"], (_milliseconds(HELD),))  # in one transaction with what is asked
        return link.ask(self._sql[name], *parameters)

    def _has_tables(self, link: Link, *, create: bool) -> bool:
        if not self._is_ready:
            self._is_ready = prepare(link, self.address.schema, self.name, create=create)
        return self._is_ready

    def _writer(self) -> Link:
        if self._write is None or self._write.is_broken:
            self._write = self._connect()
        return self._write

    def _connect(self, *, reads: bool = False) -> Link:
        """A new one; who only *reads* with it sees to the tables itself."""
        link = Link(self.address.dsn, pooled=self.address.pooled, cancels=reads)
        try:
            if not link.pooled:
                link.ask(self._sql["settle"], _milliseconds(HELD))
            if not reads:
                self._has_tables(link, create=True)
        except BaseException:
            link.close()
            raise
        return link

    def _end_stopped(self) -> bool:
        """Whether somebody held our tables who has not gone on for a while; the server has ended it then."""
        try:
            which = (self.address.schema, _milliseconds(STOPPED))
            ended = self._readers.use(lambda link: link.ask(self._sql["end_stopped"], *which))
        except (ServerError, Broken) as error:
            _log.warning("%s: nobody can tell who holds what is needed: %s", self.name, error)
            return False
        if ended:
            _log.warning("%s: ended %d connections that held its tables and did not go on", self.name, len(ended))
        return bool(ended)

    def _drop(self, link: Link) -> None:
        link.close()
        if self._write is link:
            self._write = None

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all connections; a later use makes new ones."""
        self._readers.close()
        if self._write is not None:
            self._drop(self._write)
        self._is_ready = False
        self._secret = None
        self.ears.close()

    def hold(self, patience: float) -> bool:
        """Let no other thread have the list of connections in hand."""
        return self._readers.hold(patience)

    def put_away(self) -> None:
        """The connections stay open here; the child abandons its copies."""

    def let_go(self) -> None:
        """Go on."""
        self._readers.let_go()

    def after_fork(self) -> None:
        """In a forked child: the connections are the parent's."""
        self._readers.after_fork()
        if self._write is not None:
            self._write.abandon()
            self._abandoned.append(self._write)  # kept, so that nothing finalizes it
        self._write = self._group = None
        self._tokens.seed(os.urandom(32))  # those to come are not the parent's
        self.ears.after_fork()


def _milliseconds(seconds: float) -> str:
    return str(int(1000 * seconds))
