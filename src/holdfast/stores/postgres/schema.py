"""The schema of a store on PostgreSQL: made by the first process that writes, updated by the first of a newer version.

One numbered migration per file; all that are missing are applied, with their numbers, in one transaction under a lock.
A migration only adds: processes of the previous version go on working on the tables.
"""

from __future__ import annotations

import os
import uuid

from holdfast.errors import StoreError
from holdfast.stores.postgres.link import Link
from holdfast.stores.schema import FOLDER as SHARED
from holdfast.stores.schema import by_name, migration, read_sql

MIGRATIONS = ("001_runs.sql", "002_awake.sql")
SCHEMA = len(MIGRATIONS)  # the newest schema that this version knows
OLDEST_SERVER = 130000
_FOLDER = os.path.join(os.path.dirname(__file__), "sql")
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('holdfast migrations ' || $1, 0))"
_MIGRATIONS = "CREATE TABLE holdfast.migrations (number BIGINT PRIMARY KEY, at TIMESTAMPTZ DEFAULT now())"
_FOUND = """
SELECT (SELECT count(*) FROM pg_namespace WHERE nspname = $1),
    (SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename = 'migrations'),
    (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1)
"""


def statements(schema: str) -> dict[str, str]:
    """The statements of PostgreSQL, by name, for tables in *schema*."""
    shared = read_sql(SHARED, "shared.sql").replace("json_list", "jsonb_array_elements_text")
    return by_name(_in(schema, shared + read_sql(_FOLDER, "statements.sql")))


def prepare(link: Link, schema: str, name: str, *, create: bool) -> bool:
    """Bring the database to the schema of this version, or raise; False if there is none and *create* is not set."""
    if link.server_version < OLDEST_SERVER:
        raise StoreError(f"{name}: PostgreSQL {link.server_version // 10000} is too old; use 13 or newer")
    if link.encoding != "UTF8":
        raise StoreError(f"{name}: the database's encoding is {link.encoding}; use one with UTF8")
    version = found(link, schema, name)
    if version == SCHEMA:
        return True
    if version == 0 and not create:
        return False
    _migrate(link, schema, name)
    return True


def found(link: Link, schema: str, name: str) -> int:
    """The number of the schema that is there, 0 if there is none; raise if it is newer than this version knows."""
    ((_, is_ours, things),) = link.ask(_FOUND, schema)
    if not is_ours:
        if things:
            raise StoreError(
                f"{name}: the schema {schema!r} is of something else; nothing was changed: name another with ?schema="
            )
        return 0
    ((version,),) = link.ask(_in(schema, "SELECT coalesce(max(number), 0) FROM holdfast.migrations"))
    if version > SCHEMA:
        raise StoreError(
            f"{name}: was written by a newer Holdfast (schema {version}; this one knows {SCHEMA}); nothing was "
            "changed: upgrade Holdfast, or use another schema"
        )
    return int(version)


def _migrate(link: Link, schema: str, name: str) -> None:
    link.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
    link.execute("SET LOCAL lock_timeout = 0")
    link.execute(statements(schema)["hurry"])
    link.ask(_LOCK, schema)  # another process may be migrating, and take its time
    version = found(link, schema, name)
    if version == 0:
        ((is_there, _, _),) = link.ask(_FOUND, schema)
        if not is_there:
            link.execute(f'CREATE SCHEMA "{schema}"')
        link.execute(_in(schema, _MIGRATIONS))
    for number in range(version + 1, SCHEMA + 1):
        for statement in _migration(number, schema):
            link.execute(statement)
        link.execute(_in(schema, "INSERT INTO holdfast.migrations (number) VALUES ($1)"), (number,))
    if version == 0:
        put = _in(schema, "INSERT INTO holdfast.meta (name, value) VALUES ($1, $2)")
        link.executemany(put, [("store", uuid.uuid4().hex), ("secret", os.urandom(32).hex())])
    link.execute("COMMIT")
    link.sync()


def _migration(number: int, schema: str) -> list[str]:
    """The statements that lead from one schema to the next; a function must be at the end of its file."""
    tables, create, function = _in(schema, migration(_FOLDER, MIGRATIONS[number - 1])).partition("CREATE FUNCTION")
    return [*(each for each in tables.split(";") if each.strip()), *([create + function] if create else [])]


def _in(schema: str, text: str) -> str:
    return text.replace("holdfast.", f'"{schema}".')  # quoted, as its name may be a word of SQL
