"""Where a store on PostgreSQL is: a URL as libpq has it, and three settings of ours in it.

`schema` names the tables' schema, `pool=transaction` says that connections are lent by the transaction (which is also
found out), `session` is the address for the one connection that must last, where the other leads to a pool.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from holdfast.checks import choice, shown
from holdfast.errors import ConfigError, printable

SCHEMES = ("postgresql", "postgres")
SCHEMA = "holdfast"
LONGEST = 4096  # characters
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_OURS = ("pool", "schema", "session")


class Address(NamedTuple):
    """The parts of a URL; *name* is what may be shown of it."""

    url: str
    dsn: str
    session: str
    schema: str
    pooled: bool
    name: str


def parse(url: str) -> Address:
    """The parts of *url*."""
    if not isinstance(url, str) or len(url) > LONGEST or "\0" in url or url.partition("://")[0] not in SCHEMES:
        raise ConfigError(f"dsn = {shown(_hidden(url))}: must be postgresql://USER@HOST:PORT/DATABASE")
    parts = urlsplit(url)
    given = [pair for pair in parts.query.split("&") if pair]
    ours = {name: unquote(value) for name, _, value in (pair.partition("=") for pair in given) if name in _OURS}
    schema, pool = ours.get("schema", SCHEMA), ours.get("pool", "")
    if not _NAME.fullmatch(schema) or schema.startswith("pg_"):
        raise ConfigError(f"schema = {shown(schema)}: must be 1 to 41 small letters, digits and underscores")
    choice("pool", pool or "session", ("session", "transaction"))
    rest = "&".join(pair for pair in given if pair.partition("=")[0] not in _OURS)
    dsn = urlunsplit(parts._replace(query=rest))
    session = parse(ours["session"]).dsn if "session" in ours else dsn
    where = urlunsplit((parts.scheme, _without_password(parts.netloc), parts.path, "", ""))
    name = where if schema == SCHEMA else f"{where}?schema={schema}"
    return Address(url, dsn, session, schema, pool == "transaction", printable(name, 300))


def _without_password(netloc: str) -> str:
    user, at, host = netloc.rpartition("@")
    return f"{user.partition(':')[0]}{at}{host}"


def _hidden(url: object) -> object:
    """As it may be shown: what stands before an @ may be a password."""
    return re.sub(r"//[^/]*@", "//…@", url) if isinstance(url, str) else url
