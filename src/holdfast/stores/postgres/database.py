"""A store's tables on a PostgreSQL server: how they are reached, written and read. The statements are in `sql/`.

Any number of processes write at once. A run that is cached here is written only if no other process has written it
meanwhile (its version tells); otherwise the group is made again. Between two transactions nothing is left with the
server except prepared statements, and behind a pool not even these.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast import checks
from holdfast.clock import Clock, SystemClock
from holdfast.errors import StoreError
from holdfast.stores import rows as columns
from holdfast.stores.database import Again, Later, Lost
from holdfast.stores.ledger import EventRow, Live, MemoRow
from holdfast.stores.neighbours import News
from holdfast.stores.postgres import connections
from holdfast.stores.postgres.address import Address
from holdfast.stores.postgres.clock import ServerClock
from holdfast.stores.postgres.connections import Connections, milliseconds
from holdfast.stores.postgres.ears import Ears
from holdfast.stores.postgres.group import Group
from holdfast.stores.postgres.link import Broken, Link, ServerError
from holdfast.stores.postgres.locks import ServerLocks
from holdfast.stores.postgres.schema import statements
from holdfast.stores.postgres.trouble import explained, is_again, is_doubtful, is_for_all, is_gone, is_locked
from holdfast.stores.trouble import errors_of

HELD_AGAIN = 1.0  # seconds to wait for locks after one was not released: the write to blame is sought, and others wait
STOPPED = 5.0  # seconds after which a connection that holds locks and does not go on is ended
BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

_log = logging.getLogger("holdfast")


class PostgresDatabase:
    """The tables at *address*; it connects when they are first needed."""

    def __init__(self, address: Address, ears: Ears | None = None) -> None:
        self.address = address
        self.path: str | None = address.name
        self.name = address.name
        self.url = address.url
        self.has_concurrent_writers, self.blocking = True, False
        self.later: Later | None = None  # each commit is on disk
        self.silence = 0.0  # processes do not wait for each other
        self.ears = ears or Ears(address.session, channel=address.schema)
        self._sql = statements(address.schema)
        self._clock = ServerClock(self._measured)
        self.links = Connections(address, self._sql, self._clock)
        self._contended: list[int] = []  # the keys of the runs of a group that is to be made again
        self._group: Group | None = None
        self._patience = _Patience()
        self._secret: bytes | None = None  # as the last `load` has read it
        self._tokens = random.Random(os.urandom(32))  # asking the system for each takes ten microseconds
        self.alone: contextlib.AbstractContextManager[object] = contextlib.nullcontext()  # readers need not wait

    # -- time, and others who use it -----------------------------------------------------------------------------------

    def clock(self, given: Clock | None) -> Clock:
        """The server's clock, unless *given* is a clock of the caller's own; a host's clock is not to be trusted."""
        return self._clock if given is None or type(given) is SystemClock else checks.clock(given)

    def locks(self) -> ServerLocks:
        """The locks of all processes that use the store."""
        return ServerLocks(self.ears, self.fetch)

    def watch(self) -> News:
        """News that wakes when another process has written."""
        return self.ears.watch()

    def _measured(self) -> float:
        with errors_of(self):
            return self.links.use(lambda link: link.offset())

    # -- a transaction -------------------------------------------------------------------------------------------------

    def begin(self, *, trusting: bool = False) -> bool:
        """Begin a group; False, as it is not known before the write whether another process has written."""
        link = self.links.fresh_writer()
        self._group = Group(link, self._sql, self._tokens.getrandbits(64) - 2**63, self._patience.with_others(link))
        if self._contended:
            self._group.lock(self._contended)
            self._contended = []
        return False

    def writing(self) -> Link:
        """The connection to write with, in the transaction that was begun."""
        group = self._current()
        group.hurry()
        group.is_news = True
        return group.link

    def commit(self) -> None:
        """Commit the group: on disk when it returns; processes that listen are notified along with it."""
        group = self._current()
        if group.is_empty:
            return
        link = group.link
        try:
            group.commit()
            tells = group.is_news and (bool(group.to_wake) or not self.ears.soon())
            if calls := self.ears.calls(group.to_wake) if tells else []:
                if link.pooled:  # of two batches, the pool may send the second answer to another client
                    link.finish()
                link.executemany(self._sql["ring"], [(self.ears.channel, call) for call in calls])
                link.end_batch()
            link.finish(left=1 if calls else 0)
            if link.pooled:
                self.links.check(link)
        except (ServerError, Broken) as error:
            if is_doubtful(error):
                link.close()
                raise Lost(lambda: self._was_committed(group), str(error)) from error
            raise
        self._group = None

    def is_committed(self) -> bool:
        """True if a commit that was interrupted was made."""
        if (group := self._group) is None:
            return True
        self.links.drop(group.link)  # some of its answers may be lost
        return self._was_committed(group)

    def rollback(self, *, afresh: bool) -> None:
        """Undo the transaction; *afresh* also drops the connection."""
        group, self._group = self._group, None
        if group is None:
            return
        self._contended = [] if afresh else group.keys
        link = group.link
        try:
            if afresh or link.is_broken:
                self.links.drop(link)
            elif group.has_begun:
                link.clear()
                link.ask("ROLLBACK")
        except (ServerError, Broken):
            self.links.drop(link)

    def give_back(self, most: int) -> int:
        """Do nothing: the server reuses free space itself."""
        return 0

    def _was_committed(self, group: Group) -> bool:
        """Find out whether *group* was written, on a connection that works.

        In a transaction that is to write the same again, the answer holds until that is over: the run that is looked at
        is locked, and a lost commit that arrives only then fails, as another transaction has written to the run. A new
        run can be added only once.
        """
        with errors_of(self):
            for _ in range(2):
                link = self.links.writer()
                try:
                    if self._group is not None and self._group is not group:
                        self._group.hurry()
                    return group.is_written(link)
                except (ServerError, Broken) as error:
                    self.links.drop(link)
                    if not (is_gone(error) or (is_locked(error) and self._end_stopped())):
                        raise
        raise StoreError(f"{self.name}: the connection broke again and again")

    def _current(self) -> Group:
        if self._group is None:
            raise StoreError(f"{self.name}: nothing was begun")
        return self._group

    # -- tables --------------------------------------------------------------------------------------------------------

    def load(self, run_id: str) -> Live | None:
        """Read a run as it is now; None if there is none."""
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
        """Make the transaction fail if another process has written to *lives*."""
        self._current().confirm(lives)

    def tell(self, owners: Iterable[str]) -> None:
        """Wake *owners* with the commit."""
        self._current().to_wake.update(owners)

    def ask(self, name: str, *parameters: object) -> list[tuple[Any, ...]]:
        """All rows of the statement *name*, as this transaction sees them."""
        return self._current().ask(name, *parameters).fetchall()

    def pick(self, name: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The same, without runs that another transaction has picked; those found are locked until this one ends."""
        return self.writing().execute(f"{self._sql[name]} FOR UPDATE SKIP LOCKED", parameters).fetchall()

    def put(self, name: str, *parameters: object, is_news: bool = True) -> None:
        """Send the statement *name*, without waiting for it; *is_news* if other processes want to look."""
        group = self._current()
        group.is_news |= is_news
        group.ask(name, *parameters)

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """True if there is anything to read yet."""
        with errors_of(self):
            return self.links.use(self.links.has_tables)

    def fetch(self, name: str, *parameters: object) -> list[tuple[Any, ...]]:
        """All rows of the statement *name*; none while there are no tables."""
        with errors_of(self):
            try:
                return self.links.ask(name, *parameters)
            except UnicodeEncodeError:  # nothing of that name can have been stored
                return []

    def meta(self, name: str) -> Any:
        """A value that the store keeps about itself; None if it is not set."""
        if name == "secret" and self._secret is not None:
            return self._secret
        with errors_of(self):
            rows = self.links.ask("meta", name, create=True)
        if not rows:
            return None
        return bytes.fromhex(rows[0][0]) if name == "secret" else rows[0][0]

    def sql(self, name: str) -> str:
        """The text of a statement."""
        return self._sql[name]

    @contextlib.contextmanager
    def consistent_reader(self) -> Iterator[Link]:
        """A connection that sees everything as it is now, whatever is written meanwhile."""
        with errors_of(self):
            link = self.links.connect()
        try:
            with errors_of(self):
                link.execute(BEGIN_READING)
            yield link
        finally:
            link.close()

    def explained(self, error: BaseException) -> Exception | None:
        """Return what *error* means: `Again` if others or the network spoilt a write; None if no database raised it."""
        if isinstance(error, ServerError | Broken) and self._group is not None and error.link is self._group.link:
            if is_gone(error):
                self._group.link.close()
                return Again(str(error))
            if is_again(error) or (is_locked(error) and self._end_stopped()):
                return Again(str(error))
            if is_locked(error):
                self._patience.lose()
        return explained(self.name, error)

    def concerns_all(self, error: BaseException) -> bool:
        """True if every write would fail with *error*."""
        return is_for_all(error)

    def _end_stopped(self) -> bool:
        """End connections that hold our tables and did nothing for `STOPPED` seconds; True if there were any."""
        try:
            which = (self.address.schema, milliseconds(STOPPED))
            ended = self.links.use(lambda link: link.ask(self._sql["end_stopped"], *which))
        except (ServerError, Broken) as error:
            _log.warning("%s: the sessions that hold its locks cannot be found: %s", self.name, error)
            return False
        if ended:
            _log.warning("%s: ended %d connections that held its tables and did not go on", self.name, len(ended))
        return bool(ended)

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all connections; a later use makes new ones."""
        self.links.close()
        self._secret = None
        self.ears.rest()

    def hold(self, patience: float) -> bool:
        """Keep other threads from the list of connections; False if one used it for more than *patience* seconds."""
        return self.links.hold(patience)

    def put_away(self) -> None:
        """Do nothing: the connections stay open here; the child abandons its copies."""

    def let_go(self) -> None:
        """Let other threads use the list of connections again."""
        self.links.let_go()

    def after_fork(self) -> None:
        """In a forked child: let go of the connections, which are the parent's."""
        self.links.after_fork()
        self._group = None
        self._tokens.seed(os.urandom(32))  # the child's tokens must not be the parent's
        self.ears.after_fork()


class _Patience:
    """How long a group waits for locks of others: the more were not released in time lately, the shorter."""

    def __init__(self) -> None:
        self._lost_until = 0.0
        self._times = 0  # locks that were not released in time since the first of them

    def with_others(self, link: Link) -> str | None:
        """The wait in milliseconds; None if the setting that *link* got when it was made will do."""
        if SystemClock.monotonic() < self._lost_until:
            return milliseconds(HELD_AGAIN / min(self._times, 10))
        return milliseconds(connections.HELD) if link.pooled else None

    def lose(self) -> None:
        """Note that a lock was not released in time."""
        now = SystemClock.monotonic()
        if now >= self._lost_until:
            self._lost_until, self._times = now + connections.HELD, 0
        self._times += 1
