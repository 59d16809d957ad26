"""A place on a PostgreSQL server: a schema of its own in the user's database, so that no data of the user is touched.

The schema exists for one torture, whose process holds a lock in the schema's name and drops the schema at the end. A
killed torture leaves its schema behind: the next one drops it, since no process holds that lock any more.
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
SESSION: Final = "session"  # last word in the name of a connection that is not from a pool
# Seconds: with less, on a busy machine, leases would decide which process is dead, which is correct but slow.
PATIENCE: Final = 60.0
BLINK: Final = 0.02  # seconds: here a connection breaks only when its process dies
# Seconds in which the server notices dead processes, and living ones replace a broken connection.
NOTICED: Final = 2.0
TRIES: Final = 3  # attempts to drop a schema that another process may still write to

_NAMES = "SELECT quote_ident(current_database())::text, quote_ident(current_user)::text"
# Behind a pool, only a dead process's connections that are at work count: the pool keeps the others for any client.
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
    """A *schema* in the database at *url*; an owner that gives no sign of life for *lease* seconds loses its runs."""

    url: str
    schema: str
    lease: float = LEASE

    def open(self, crash: Callable[[str], object] | None = None) -> RunStore:
        """Open the store; *crash* is called at each point of a transaction."""
        address = self._address()
        if crash is None:
            self._await_the_server(address)
        return RunStore(PostgresDatabase(address, self.ears()), lease=self.lease, crash=crash)

    def ears(self, blink: float = BLINK) -> Ears:
        """Return a session with the server; only an owner that is missing for longer than *blink* seconds is dead."""
        return Ears(self._address().session, channel=self.schema, patience=PATIENCE, blink=blink)

    def damage(self) -> str | None:
        """Return what is wrong with the store itself, if anything."""
        with _linked(self._address()) as link:
            try:
                link.ask(_ALL.replace("$schema", self.schema))  # reads everything: a damaged page is an error
                found = [text for (text,) in link.ask(_FLAWS.replace("$schema", self.schema))]
            except ServerError as error:
                if not error.code.startswith("XX"):
                    raise
                return printable(str(error), 300)
        return "; ".join(found) or None

    def keep(self, folder: str) -> None:
        """Export the store into *folder*, since the schema will be dropped."""
        with self.open() as store, open(os.path.join(folder, "runs.jsonl"), "w", encoding="utf-8") as file:
            store.export(file)

    def clear(self) -> None:
        """Drop the schema; harmless if it is gone already."""
        for tries_left in reversed(range(TRIES)):
            try:
                with _linked(self._address()) as link:
                    link.execute("BEGIN")
                    link.execute(_ALONE, (self.schema,))  # another torture may be dropping it, too
                    link.execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")
                    link.execute("COMMIT")
                    link.sync()
                return
            except _Crossed:
                if not tries_left:
                    raise

    def _address(self) -> Address:
        """Return the user's address with this schema; its connections carry the id of this process in their name."""
        from psycopg.conninfo import make_conninfo

        address, name = parse(self.url), f"{self.schema} {os.getpid()}"
        return address._replace(
            dsn=make_conninfo(address.dsn, application_name=name),
            session=make_conninfo(address.session, application_name=f"{name} {SESSION}"),
            schema=self.schema,
            name=f"{address.name.partition('?')[0]}?schema={self.schema}",
        )

    def _await_the_server(self, address: Address) -> None:
        """Wait a moment until the server has noticed which processes are dead: then they count as dead at once."""
        until = SystemClock.monotonic() + PATIENCE
        with _linked(address) as link:
            while not all(_lives(pid) for (pid,) in link.ask(_AT_WORK, self.schema, link.pooled)):
                if SystemClock.monotonic() > until:
                    return
                SystemClock.sleep(GLANCE)


@contextmanager
def borrowed(url: str, say: Callable[[str], object]) -> Iterator[ServerPlace]:
    """Yield a schema of its own in the database at *url*, dropped at the end; schemas of killed tortures are dropped
    first.

    *say* is told of these, and of any that could not be dropped.
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
            _try_clear(place, say)
    finally:
        ears.close()


def _check_direct(address: Address) -> None:
    """Raise if the server cannot be reached, or only through a connection pool."""
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
    """Drop the schemas that killed tortures have left; those that may be in use stay."""
    with _linked(parse(url)) as link:
        left = [schema for (schema,) in link.ask(_LEFT, COMMENT)]
        gone = {schema: _users(link, schema) for schema in left if ears.is_living(schema) is False}
    for schema, users in gone.items():
        if users:
            say(f"the schema {schema} was left by a torture that broke off, but not by its processes: kill {users}")
        elif _try_clear(ServerPlace(url, schema), say):
            say(f"dropped the schema {schema}, which a torture that broke off had left")


def _users(link: Link, schema: str) -> str:
    """Return the processes that still have a connection after the server had time to notice the dead ones."""
    until = SystemClock.monotonic() + NOTICED
    while (users := link.ask(_USERS, schema)) and SystemClock.monotonic() < until:
        SystemClock.sleep(GLANCE)
    return ", ".join(printable(pid) for (pid,) in users)


def _try_clear(place: ServerPlace, say: Callable[[str], object]) -> bool:
    """Drop the schema; if that fails, report it and return False."""
    try:
        place.clear()
    except StoreError as error:
        say(f"the schema {place.schema} could not be dropped; the next torture tries again ({error})")
        return False
    return True


class _Crossed(StoreError):
    """Another session was in the way; a second attempt may succeed."""


@contextmanager
def _linked(address: Address) -> Iterator[Link]:
    """Yield a connection; its errors are raised as `StoreError`, in words."""
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
    except PermissionError:  # the pid belongs to another user's process by now
        return True
    return True
