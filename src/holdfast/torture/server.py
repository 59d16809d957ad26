"""A place on a PostgreSQL server: a schema of its own in the user's database, where nothing of the user's is touched.

It is there for one torture, whose process holds a lock in its name and drops it at the end. One that was killed leaves
its schema behind: the next torture drops it, since nobody holds that lock any more.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from holdfast.clock import SystemClock
from holdfast.errors import ConfigError, StoreError, printable
from holdfast.stores import RunStore
from holdfast.stores.postgres.address import Address, parse
from holdfast.stores.postgres.database import PostgresDatabase
from holdfast.stores.postgres.ears import Ears
from holdfast.stores.postgres.link import Broken, Link, ServerError
from holdfast.stores.postgres.schema import prepare
from holdfast.stores.postgres.trouble import explained, is_again
from holdfast.stores.store import LEASE
from holdfast.torture.process import GLANCE

PREFIX: Final = "holdfast_torture_"
COMMENT: Final = "temporary: dropped when its holdfast doctor --torture ends, or by the next one"
SESSION: Final = "session"  # the last word in the name of a connection that is no pool's
PATIENCE: Final = 60.0  # seconds: on a busy machine the lease would decide, which is in order, but not at once
BLINK: Final = 0.02  # seconds: here nobody's connection breaks but with its process
NOTICED: Final = 2.0  # seconds in which the dead are noticed, and others have a new connection if theirs broke
TRIES: Final = 3  # to drop what somebody may still write to

_NAMES = "SELECT quote_ident(current_database())::text, quote_ident(current_user)::text"
# Of the dead behind a pool only what is at work counts: the pool keeps the rest, and may lend it to anybody.
_AT_WORK = f"""
SELECT split_part(application_name, ' ', 2)::bigint FROM pg_stat_activity
WHERE datname = current_database() AND application_name ~ ('^' || $1::text || ' [0-9]+( |$)')
    AND (NOT $2::boolean OR state <> 'idle' OR application_name LIKE '% {SESSION}')
"""
_LEFT = f"""
SELECT nspname::text FROM pg_namespace
WHERE nspname ~ '^{PREFIX}[0-9a-f]{{12}}$' AND obj_description(oid, 'pg_namespace') = $1::text
    AND pg_has_role(nspowner, 'USAGE')
ORDER BY 1
"""
_USERS = """
SELECT DISTINCT split_part(application_name, ' ', 2) FROM pg_stat_activity
WHERE datname = current_database() AND starts_with(application_name, $1::text || ' ') ORDER BY 1
"""
_ALONE = "SELECT pg_advisory_xact_lock(hashtextextended('holdfast torture ' || $1::text, 0))"
_ALL = """
SELECT (SELECT sum(length(header) + length(snapshot)) FROM $schema.runs),
    (SELECT sum(length(type) + length(payload)) FROM $schema.events)
"""
_FLAWS = """
SELECT 'two events of one number' WHERE EXISTS (SELECT FROM $schema.events GROUP BY run, sequence HAVING count(*) > 1)
UNION ALL SELECT 'two runs of one id' WHERE EXISTS (SELECT FROM $schema.runs GROUP BY id HAVING count(*) > 1)
UNION ALL SELECT 'events of no run' WHERE EXISTS (SELECT run FROM $schema.events EXCEPT SELECT key FROM $schema.runs)
UNION ALL SELECT 'memos of no run' WHERE EXISTS (SELECT run FROM $schema.memos EXCEPT SELECT key FROM $schema.runs)
"""


class ServerPlace(msgspec.Struct, frozen=True, tag="server"):
    """A *schema* in the database at *url*; an owner that gives no sign for *lease* seconds has lost its runs."""

    url: str
    schema: str
    lease: float = LEASE

    def open(self, crash: Callable[[str], object] | None = None) -> RunStore:
        """The store; *crash* is called at each point of a transaction."""
        address = self._address()
        if crash is None:
            self._await_the_server(address)
        return RunStore(PostgresDatabase(address, self.ears()), lease=self.lease, crash=crash)

    def ears(self, blink: float = BLINK) -> Ears:
        """A session with the server; only who is missing for longer than a *blink* is dead."""
        return Ears(self._address().session, channel=self.schema, patience=PATIENCE, blink=blink)

    def damage(self) -> str | None:
        """What is wrong with the store itself, if anything is."""
        with _linked(self._address()) as link:
            try:
                link.ask(_ALL.replace("$schema", self.schema))  # a page that is damaged is an error
                found = [text for (text,) in link.ask(_FLAWS.replace("$schema", self.schema))]
            except ServerError as error:
                if not error.code.startswith("XX"):
                    raise
                return printable(str(error), 300)
        return "; ".join(found) or None

    def keep(self, folder: str) -> None:
        """Leave what is in the store in *folder*: the schema is dropped."""
        with self.open() as store, open(os.path.join(folder, "runs.jsonl"), "w", encoding="utf-8") as file:
            store.export(file)

    def clear(self) -> None:
        """Drop the schema; harmless when that was done."""
        for tries_left in reversed(range(TRIES)):
            try:
                with _linked(self._address()) as link:
                    link.execute("BEGIN")
                    link.execute(_ALONE, (self.schema,))  # others may be at it
                    link.execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")
                    link.execute("COMMIT")
                    link.sync()
                return
            except _Crossed:
                if not tries_left:
                    raise

    def _address(self) -> Address:
        """As the user gave it, but for the schema; its connections have the name of this process."""
        from psycopg.conninfo import make_conninfo

        address, name = parse(self.url), f"{self.schema} {os.getpid()}"
        return address._replace(
            dsn=make_conninfo(address.dsn, application_name=name),
            session=make_conninfo(address.session, application_name=f"{name} {SESSION}"),
            schema=self.schema,
            name=f"{address.name.partition('?')[0]}?schema={self.schema}",
        )

    def _await_the_server(self, address: Address) -> None:
        """Until it has noticed who is dead, which takes it a moment: then the dead are so at once."""
        until = SystemClock.monotonic() + PATIENCE
        with _linked(address) as link:
            while not all(_lives(pid) for (pid,) in link.ask(_AT_WORK, self.schema, link.pooled)):
                if SystemClock.monotonic() > until:
                    return
                SystemClock.sleep(GLANCE)


@contextmanager
def borrowed(url: str, say: Callable[[str], object]) -> Iterator[ServerPlace]:
    """A schema of its own in the database at *url*, dropped at the end; what killed tortures left is dropped first.

    *say* is told of that, and of what could not be dropped.
    """
    address = parse(url)
    _check_direct(address)
    place = ServerPlace(url, f"{PREFIX}{secrets.token_hex(6)}")
    ears = place.ears(blink=NOTICED)
    try:
        wait = ears.doubtful_for() if ears.hold(place.schema) else None
        if wait is None:
            raise StoreError(f"{address.name}: there is no session with the server; see that it runs and answers")
        SystemClock.sleep(wait)
        _clear_left(url, ears, say)
        try:
            _make(place)
            yield place
        finally:
            _is_cleared(place, say)
    finally:
        ears.close()


def _check_direct(address: Address) -> None:
    """Say what is wrong if the server cannot be reached, or there is only a pool."""
    name = address.name if address.session == address.dsn else f"the session address of {address.name}"
    with _linked(address._replace(dsn=address.session, pooled=False, name=name)) as link:
        if link.pooled:
            raise ConfigError(
                f"{name}: behind a connection pool a death is noticed only when a lease ends, and a torture cannot "
                "wait for that; name a direct address beside it: ?session=postgresql://USER@HOST:PORT/DATABASE"
            )


def _make(place: ServerPlace) -> None:
    address = place._address()
    with _linked(address) as link:
        ((database, user),) = link.ask(_NAMES)
        try:
            link.execute("BEGIN")
            link.execute(f"CREATE SCHEMA {place.schema}")
            link.execute(f"COMMENT ON SCHEMA {place.schema} IS '{COMMENT}'")
            link.execute("COMMIT")
            link.sync()
        except ServerError as error:
            if error.code != "42501":
                raise
            grant = printable(f"GRANT CREATE ON DATABASE {database} TO {user}", 300)
            raise StoreError(
                f"{parse(place.url).name}: the torture needs a schema of its own, and this user may not make one "
                f"({error}): {grant}, or name another database"
            ) from error
        prepare(link, place.schema, address.name, create=True)


def _clear_left(url: str, ears: Ears, say: Callable[[str], object]) -> None:
    """Drop what killed tortures have left; what may be in use stays."""
    with _linked(parse(url)) as link:
        left = [schema for (schema,) in link.ask(_LEFT, COMMENT)]
        gone = {schema: _users(link, schema) for schema in left if ears.is_living(schema) is False}
    for schema, users in gone.items():
        if users:
            say(f"the schema {schema} was left by a torture that broke off, but not by its processes: kill {users}")
        elif _is_cleared(ServerPlace(url, schema), say):
            say(f"dropped the schema {schema}, which a torture that broke off had left")


def _users(link: Link, schema: str) -> str:
    """The processes that still have a connection, when the server has had time to notice who is dead."""
    until = SystemClock.monotonic() + NOTICED
    while (users := link.ask(_USERS, schema)) and SystemClock.monotonic() < until:
        SystemClock.sleep(GLANCE)
    return ", ".join(printable(pid) for (pid,) in users)


def _is_cleared(place: ServerPlace, say: Callable[[str], object]) -> bool:
    """Drop the schema; false if it is still there, which is said."""
    try:
        place.clear()
    except StoreError as error:
        say(f"the schema {place.schema} could not be dropped; the next torture tries again ({error})")
        return False
    return True


class _Crossed(StoreError):
    """Others were in the way, and may not be when it is tried again."""


@contextmanager
def _linked(address: Address) -> Iterator[Link]:
    """A connection; its errors are told in words."""
    try:
        link = Link(address.dsn, pooled=address.pooled)
        try:
            link.connect()
            yield link
        finally:
            link.close()
    except (ServerError, Broken) as error:
        meaning = str(explained(address.name, error))
        raise (_Crossed(meaning) if is_again(error) else StoreError(meaning)) from error


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's by now
        return True
    return True
