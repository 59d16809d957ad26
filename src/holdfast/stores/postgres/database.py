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
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast import checks
from holdfast.clock import Clock, SystemClock
from holdfast.errors import StoreError
from holdfast.stores import rows as columns
from holdfast.stores.database import Again, Lost
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

HELD_AGAIN = 1.0  # seconds to wait when something was not let go of: what spoils a group is sought, and others wait
STOPPED = 5.0  # seconds after which one that holds something and does not go on is ended for it
BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

_log = logging.getLogger("holdfast")


class PostgresDatabase:
    """The tables at *address*; connected to when they are first needed."""

    def __init__(self, address: Address, ears: Ears | None = None) -> None:
        self.address = address
        self.path: str | None = address.name
        self.name = address.name
        self.url = address.url
        self.crowded, self.blocking = True, False
        self.ears = ears or Ears(address.session, channel=address.schema)
        self._sql = statements(address.schema)
        self._clock = ServerClock(self._measured)
        self.links = Connections(address, self._sql, self._clock)
        self._contended: list[int] = []  # the runs of a group that is to be made again
        self._group: Group | None = None
        self._patience = _Patience()
        self._secret: bytes | None = None  # as it was when a run was last looked for
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
            return self.links.use(lambda link: link.offset())

    # -- a transaction -------------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Begin to write; what is at hand is never known to be outdated before it is written."""
        link = self.links.fresh_writer()
        self._group = Group(link, self._sql, self._tokens.getrandbits(64) - 2**63, self._patience.with_others(link))
        if self._contended:
            self._group.lock(self._contended)
            self._contended = []
        return False

    def writing(self) -> Link:
        """What to write with, in the transaction that was begun."""
        group = self._current()
        group.hurry()
        group.is_news = True
        return group.link

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
                self.links.check(link)
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
        self.links.drop(group.link)  # some of its answers may be lost
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
                self.links.drop(link)
            elif group.has_begun:
                link.clear()
                link.ask("ROLLBACK")
        except (ServerError, Broken):
            self.links.drop(link)

    def give_back(self, most: int) -> int:
        """The server sees to that itself."""
        return 0

    def _was_committed(self, group: Group) -> bool:
        """Find out whether *group* was written, on a connection that works.

        In a transaction that is to write the same again, what is found holds until that is over: the run that is looked
        at is locked, and what arrives only then finds that another has written to it. Of a new run, only one is added.
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

    def ask(self, name: str, *parameters: object) -> list[tuple[Any, ...]]:
        """All rows of the statement *name*, as this transaction sees them."""
        return self._current().ask(name, *parameters).fetchall()

    def pick(self, name: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The same, of runs that no other transaction has picked."""
        return self.writing().execute(f"{self._sql[name]} FOR UPDATE SKIP LOCKED", parameters).fetchall()

    def put(self, name: str, *parameters: object, is_news: bool = True) -> None:
        """Make the statement *name*, without waiting for it; *is_news* if others want to look."""
        group = self._current()
        group.is_news |= is_news
        group.ask(name, *parameters)

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is anything to read yet."""
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
        """A fact about the store itself."""
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
    def at_one_moment(self) -> Iterator[Link]:
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
        """What an error of the database means, if it is one; of a write that others or the network spoilt: again."""
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
        """Whether any write would fail like that, whatever it is."""
        return is_for_all(error)

    def _end_stopped(self) -> bool:
        """Whether somebody held our tables who has not gone on for a while; the server has ended it then."""
        try:
            which = (self.address.schema, milliseconds(STOPPED))
            ended = self.links.use(lambda link: link.ask(self._sql["end_stopped"], *which))
        except (ServerError, Broken) as error:
            _log.warning("%s: nobody can tell who holds what is needed: %s", self.name, error)
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
        """Let no other thread have the list of connections in hand."""
        return self.links.hold(patience)

    def put_away(self) -> None:
        """The connections stay open here; the child abandons its copies."""

    def let_go(self) -> None:
        """Go on."""
        self.links.let_go()

    def after_fork(self) -> None:
        """In a forked child: the connections are the parent's."""
        self.links.after_fork()
        self._group = None
        self._tokens.seed(os.urandom(32))  # those to come are not the parent's
        self.ears.after_fork()


class _Patience:
    """How long a group waits for what others hold: the more was not let go of lately, the less for the next."""

    def __init__(self) -> None:
        self._lost_until = 0.0
        self._times = 0  # that something was not let go of, since it was lost

    def with_others(self, link: Link) -> str | None:
        """In milliseconds; None if *link* was told when it was made."""
        if SystemClock.monotonic() < self._lost_until:
            return milliseconds(HELD_AGAIN / min(self._times, 10))
        return milliseconds(connections.HELD) if link.pooled else None

    def lose(self) -> None:
        """Something was not let go of."""
        now = SystemClock.monotonic()
        if now >= self._lost_until:
            self._lost_until, self._times = now + connections.HELD, 0
        self._times += 1
