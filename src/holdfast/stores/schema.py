"""The schema of an embedded store: a new file gets it, an older one is brought up to date, any other is left alone.

One numbered migration per file; all that are missing are applied, with the number of the last, in one transaction.
A migration only adds: processes of the previous version go on working on the tables.
"""

from __future__ import annotations

import os
import re
import uuid
from typing import TYPE_CHECKING

import msgspec

from holdfast.clock import SystemClock
from holdfast.errors import StoreError
from holdfast.shipped import read_shipped
from holdfast.stores.trouble import PATIENCE, busy

if TYPE_CHECKING:
    import sqlite3

    from holdfast.stores.sqlite import SqliteFile

MIGRATIONS = ("001_runs.sql", "002_board.sql", "003_queue.sql", "004_awake.sql")
SCHEMA = len(MIGRATIONS)  # the newest schema that this version knows
APPLICATION = 0x484F4C44  # "HOLD": marks a file as ours
FOLDER = os.path.join(os.path.dirname(__file__), "sql")
_PAUSE = 0.01


def prepare(file: SqliteFile, connection: sqlite3.Connection) -> None:
    """Bring the database of *connection* to the schema of this version, or raise an error that says why not."""
    version, application, tables = _found(connection)
    if application == APPLICATION:
        if version == SCHEMA:
            return
        if version < 1:
            raise msgspec.DecodeError(f"schema {version}")
        if version > SCHEMA:
            raise StoreError(
                f"{file.name}: was written by a newer Holdfast (schema {version}; this one knows {SCHEMA}); "
                "nothing was changed: upgrade Holdfast, or use another file"
            )
    elif application or version or tables:
        raise StoreError(f"{file.name}: is an SQLite database of something else; nothing was changed: use another file")
    if file.path is not None:
        if connection.execute("PRAGMA page_count").fetchone() == (0,):  # not accepted later
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        use_log(file, connection)
    _migrate(file, connection)


def use_log(file: SqliteFile, connection: sqlite3.Connection) -> None:
    """Switch to WAL, so that readers and the writer do not wait for each other."""
    import sqlite3

    for _ in range(int(PATIENCE / _PAUSE)):
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:  # another process makes the file, and SQLite does not wait
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            SystemClock.sleep(_PAUSE)
            continue
        if mode != "wal":
            raise StoreError(f"{file.name}: its file system cannot share memory; use a local disk")
        return
    raise busy(file)


def statements() -> dict[str, str]:
    """The statements of SQLite, by name."""
    shared = read_sql(FOLDER, "shared.sql").replace("holdfast.", "").replace("json_list", "json_each")
    return by_name(re.sub(r"\$\d+", "?", shared) + read_sql(FOLDER, "statements.sql"))


def by_name(text: str) -> dict[str, str]:
    """The statements in *text*, each after a line that names it."""
    parts = text.split("-- name: ")[1:]
    return {name.strip(): body.strip() for name, _, body in (part.partition("\n") for part in parts)}


def migration(folder: str, name: str) -> str:
    """The SQL that leads from one schema to the next, without its comment lines."""
    return "\n".join(line for line in read_sql(folder, name).splitlines() if not line.startswith("--"))


def read_sql(folder: str, name: str) -> str:
    """The text of a file of SQL."""
    return read_shipped(os.path.join(folder, name)).decode()


def _found(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Version, application id and number of tables, read in one transaction: another process may be making them."""
    connection.execute("BEGIN")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return version, application, tables


def _migrate(file: SqliteFile, connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()  # another process may have been quicker
        for number in range(version + 1, SCHEMA + 1):
            for statement in migration(FOLDER, MIGRATIONS[number - 1]).split(";"):
                connection.execute(statement)
        if version == 0:
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(file.sql("set_meta"), ("store", uuid.uuid4().hex))
            connection.execute(file.sql("set_meta"), ("secret", os.urandom(32)))
        if version < SCHEMA:
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
