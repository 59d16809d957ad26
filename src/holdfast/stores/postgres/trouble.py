"""Turns errors of PostgreSQL and of connections into a `StoreError` that tells a user what happened and what to do."""

from __future__ import annotations

import msgspec

from holdfast.errors import StoreError
from holdfast.stores.postgres.link import Broken, ServerError
from holdfast.stores.trouble import explained as of_sqlite
from holdfast.stores.trouble import store_error

STALE = "HF001"  # our own: another process has written meanwhile
READ_ONLY = "25006"
_LOCKED = "55P03"
_CANCELLED = "57014"
_AGAIN = {STALE, "23505", "40001", "40P01"}  # unique violation, serialization failure, deadlock
_FOR_ALL = (READ_ONLY, "3F", "42", "53", "58")  # read-only, no rights or tables, out of resources, disk
_GONE = {"57P01", "57P02", "57P03", "57P05", "25P03", "26000", "0A000", "08P01"}  # the connection is unusable

_MEANINGS = {  # by the beginning of the code
    "28": "this user may not connect; look at user, password and pg_hba.conf",
    "3D": "there is no such database; create it first",
    "TLS": "cannot be reached as safely as the address asks; look at sslmode, sslrootcert and the server's certificate",
    "42501": "this user may not do that; grant it what it needs, or have its owner make the schema first",
    "25P04": "the server ends transactions that take long; raise its transaction_timeout, or set it to 0 for this user",
    READ_ONLY: "is read-only: a standby, or set so; use the address of the primary",
    "53100": "the server's disk is full; make room there and go on",
    "53200": "the server is out of memory; see what else runs there",
    "53300": "the server has no connection left; raise max_connections, or put a pool before it",
    "53": "the server is out of something that it needs; look at its log",
    "57014": "the server cancelled the statement; a statement_timeout may be too short",
    "57P05": "the server ends connections that are idle; raise its idle_session_timeout, or set it to 0 for this user",
    "57": "the server is shutting down or restarting; try again when it is back",
    "08": "the connection is gone",
    "55": "somebody else holds what is needed; see who (pg_stat_activity), and wait or stop it",
    "42P01": "does not have the tables that it should have; if nobody dropped them, restore a backup",
    "42": "does not have the tables that it should have; if nobody changed them, report this",
    "XX": "is damaged, or has a fault of its own; look at the server's log",
    "58": "the server failed to read or write its disk; look at its log",
}
_SIGNS = (  # in messages of libpq that have no code
    ("authentication failed", "28"),
    ("no password supplied", "28"),
    ("no pg_hba.conf entry", "28"),
    ("too many clients", "53300"),
    ("too many connections", "53300"),
    ("remaining connection slots", "53300"),
    ('role "', "28"),
    ("CONNECT privilege", "28"),
    ("certificate", "TLS"),
    ("does not support SSL", "TLS"),
    ("does not exist", "3D"),
    ("starting up", "57"),
    ("not yet accepting", "57"),
    ("shutting down", "57"),
    ("recovery mode", "57"),
)
_AWAY = "cannot be reached; see that the server runs and that host and port are right"


def is_again(error: BaseException) -> bool:
    """True if a transaction failed because of other transactions, and may be made again."""
    return isinstance(error, ServerError) and error.code in _AGAIN


def is_locked(error: BaseException) -> bool:
    """True if another transaction did not release a lock in time."""
    return isinstance(error, ServerError) and error.code == _LOCKED


def is_gone(error: BaseException) -> bool:
    """True if it was the connection that failed, so that another one may work."""
    return isinstance(error, Broken) or (
        isinstance(error, ServerError) and (error.code in _GONE or error.code.startswith("08"))
    )


def is_for_all(error: BaseException) -> bool:
    """True if every write would fail with *error*."""
    return isinstance(error, ServerError) and error.code.startswith(_FOR_ALL)


def is_doubtful(error: BaseException) -> bool:
    """True if a commit that failed with *error* may have been made all the same."""
    return is_gone(error) or (isinstance(error, ServerError) and error.code == _CANCELLED)


def explained(name: str, error: BaseException) -> StoreError | None:
    """Return what *error* means for the store *name*; None if the database did not raise it."""
    if isinstance(error, ServerError):
        return store_error(name, _meaning(error.code), error)
    if isinstance(error, Broken):
        code = next((code for sign, code in _SIGNS if sign in str(error)), None)
        return store_error(name, _AWAY if code is None else _meaning(code), error)
    if isinstance(error, msgspec.DecodeError | UnicodeDecodeError):
        return store_error(name, "holds what nobody can read; restore a backup or an export", error)
    return of_sqlite(name, error)  # of the temporary file in which runs are staged


def _meaning(code: str) -> str | None:
    return next((text for length in (5, 2) if (text := _MEANINGS.get(code[:length])) is not None), None)
